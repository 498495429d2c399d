//! Everything at once: bad wires on every queue, programs that are exchanged, ports that fail and come back, queues that go and
//! come, applications with sockets that are killed. Nothing crashes, leaks or sticks, and the books are exact.
//!
//! A tour comes first, on which each of these things happens at least once, whatever the chances are; then chance rules: for two
//! seconds here, for ten minutes with `make soak` (`XWAY_SOAK_SECONDS`).
//!
//! | file | what |
//! |---|---|
//! | `yard` | ports, their traffic, their wires |
//! | `programs` | what runs on them |
//! | `application` | processes with sockets |
//! | `books` | counters that add up |
//! | `memory` | what the process holds |

#[path = "../../../engine/tests/common/mod.rs"]
mod wire;

mod application;
mod books;
#[path = "../hard/counting.rs"]
mod counting;
mod memory;
mod programs;
mod yard;

use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use application::{Counted, application, echo};
use books::Books;
use memory::Memory;
use programs::{always, anything, compiled};
use wire::eventually;
use xway_abi::{MapSpec, MapType, Verdict};
use xway_engine::steer::{KEY_SYMMETRIC, Rss, Steering};
use xway_engine::{AttachFlags, Attached, Counters, Engine, EngineConfig, HookPoint, VerdictSet};
use xway_maps::{Env, Map};
use xway_packet::Redirect;
use xway_xsk::{EngineQueues, Policy, Server};
use yard::{PORTS, QUEUES, Random, WORKERS, Yard};

const FORCE: AttachFlags = AttachFlags { if_noexist: false, replace: None };

#[test]
fn nothing_is_lost_without_a_name() {
    let seconds = std::env::var("XWAY_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    // What libraries make once for a process is not lost: the tables of the disassembler come with the first code.
    drop(compiled(&mut Random(1)));
    let before = memory::held();
    let env = Env::with_cpus(4);
    let map = |kind| Map::create(&MapSpec::new(kind, 4, 4, 4), &env).unwrap();
    let maps = [map(MapType::Devmap), map(MapType::Cpumap), map(MapType::Xskmap)];
    for (key, ifindex) in (0u32..).zip(PORTS) {
        maps[0].update(&key.to_ne_bytes(), &ifindex.to_ne_bytes(), 0).unwrap();
        maps[1].update(&key.to_ne_bytes(), &(64u32 << key).to_ne_bytes(), 0).unwrap();
    }
    let config = EngineConfig { workers: WORKERS as u32, ring_len: 128, ..EngineConfig::default() };
    let engine = Arc::new(Engine::start(config).unwrap());
    let listener = engine.listen(256);
    let delivered = Arc::new(AtomicU64::new(0));
    let path: PathBuf = std::env::temp_dir().join(format!("xway-soak-{}", std::process::id()));
    let queues = Counted { queues: EngineQueues(engine.clone()), delivered: delivered.clone() };
    let server = Server::listen(&path, Arc::new(queues), Policy::default()).unwrap();
    server.fill_map(maps[2].clone());

    let (mut random, mut books, mut yard) = (Random(0x5eed), Books::default(), Yard::default());
    PORTS.iter().for_each(|&ifindex| yard.open(&engine, ifindex, &mut random));
    tour(&engine, &server, &maps, &path, &delivered, &mut yard, &mut books, &mut random);
    let mut applications: Vec<Child> = Vec::new();
    let (mut rounds, mut exchanged, mut cut, mut removed, mut killed, mut bound) = (0u64, 0u64, 1u64, 1u64, 1u64, 0u64);
    let (started, length) = (Instant::now(), Duration::from_secs(seconds));
    let mut memory = Memory::watch(length);
    while started.elapsed() < length || rounds < 40 {
        rounds += 1;
        memory.look();
        let ifindex = PORTS[random.below(3) as usize];
        let queue = random.below(QUEUES) as u32;
        let point = random.point(ifindex);
        match random.below(16) {
            0..=3 => {
                engine.attach(point, anything(random.below(1 << 40), &maps), FORCE).unwrap();
                exchanged += 1;
            }
            4 | 5 => {
                if let Some(program) = compiled(&mut random) {
                    engine.attach(point, program, FORCE).unwrap();
                    exchanged += 1;
                }
            }
            6 => {
                let program = anything(random.below(1 << 40), &maps);
                let (priority, chain_on) = (random.below(100) as i32, VerdictSet(random.below(32) as u32));
                // A chain may be full; then the hook is emptied.
                if engine.chain(point, Attached { program, priority, chain_on }).is_err() {
                    engine.detach(point, None).unwrap();
                }
            }
            7 => engine.detach(point, None).unwrap(),
            8 => {
                if let Ok(report) = engine.remove_queue(ifindex, queue) {
                    books.close(report);
                    removed += 1;
                }
            }
            9 | 10 => drop(engine.add_queue(ifindex, queue, random.below(WORKERS) as u32)),
            // Down, and up again.
            11 => {
                yard.cable(ifindex).store(true, Ordering::Relaxed);
                cut += 1;
            }
            12 => {
                engine.close(ifindex).unwrap().into_iter().for_each(|report| books.close(report));
                yard.open(&engine, ifindex, &mut random);
            }
            13 => {
                let steering = (random.below(2) == 0).then(|| Steering::new().with_rss(Rss::equal(&KEY_SYMMETRIC, 2)));
                engine.set_steering(ifindex, steering).unwrap();
            }
            14 if applications.len() < 3 => applications.push(application(&path, &mut random)),
            // A process takes longer to come up than a few of these turns.
            14 | 15 if rounds.is_multiple_of(8) && !applications.is_empty() => {
                let at = random.below(applications.len() as u64) as usize;
                let mut application = applications.swap_remove(at);
                application.kill().unwrap();
                application.wait().unwrap();
                killed += 1;
            }
            _ => bound = bound.max(server.sockets().len() as u64),
        }
        while listener.next(Duration::ZERO).is_some() {}
    }
    memory.print();
    let growth = memory.growth();

    for mut application in applications {
        application.kill().unwrap();
        application.wait().unwrap();
        killed += 1;
    }
    eventually(|| server.sockets().is_empty());
    // No queue is stuck: each whose cable is whole goes on to receive.
    for &ifindex in &PORTS {
        if yard.cable(ifindex).load(Ordering::Relaxed) {
            engine.close(ifindex).unwrap().into_iter().for_each(|report| books.close(report));
            yard.open(&engine, ifindex, &mut random);
        }
    }
    let received = || engine.queues().into_iter().map(|queue| (queue.port, queue.queue, queue.counters.rx));
    for (port, queue, before) in received().collect::<Vec<_>>() {
        eventually(|| received().any(|(name, number, now)| (&name, number) == (&port, queue) && now > before));
    }
    drop((server, listener));
    let stopped = Arc::into_inner(engine).expect("the server has let go of the engine").stop();
    stopped.queues.into_iter().for_each(|report| books.close(report));
    let mut cpus = Counters::default();
    for cpu in &stopped.cpus {
        assert_eq!(cpu.balance(), Ok(()));
        cpus.merge(cpu);
    }

    // What left the ports is what the counters say left: less what went on over rings to another worker or to a socket and was
    // counted there again, more what sockets sent.
    let sum = &books.sum;
    let out = |c: &Counters| c.tx + c.passed + c.redirected + c.copies;
    let left = yard.left();
    let told = out(sum) + out(&cpus) + sum.relay_sent + sum.socket_sent + books.doubled;
    let to_sockets = told - (sum.relay_in + cpus.cpu_in + cpus.cpu_lost + books.lost) - left;
    let direct = delivered.load(Ordering::Relaxed);
    println!(
        "{rounds} changes in {:.0} s: {exchanged} programs exchanged, {removed} queues removed, {cut} cables cut \
         ({} queues failed), {killed} applications killed, {bound} sockets at once at most",
        started.elapsed().as_secs_f64(),
        books.failed
    );
    println!(
        "{} packets received, {left} left, {to_sockets} to sockets ({direct} past all programs), {} from sockets, {} over CPUMAPs",
        sum.rx, sum.socket_in, cpus.cpu_in
    );
    drop((yard, maps, env, memory));
    let kept = memory::held() - before;
    println!(
        "when everything is closed {kept} bytes more are given out than before, {:.1} for each change",
        kept as f64 / rounds as f64
    );
    println!(
        "from the second third of the time to the last: {} KiB given out more, {} KiB resident more",
        growth.given_out, growth.resident
    );
    assert_eq!(to_sockets, sum.socket_out + cpus.socket_out, "what sockets took");
    assert!(sum.verdict(Verdict::Redirect) > 0 && sum.rx > 10_000);
    assert!(cpus.cpu_in > 0 && books.failed > 0 && direct > 0 && to_sockets > direct && sum.socket_in > 0);
    if seconds >= 60 {
        assert!(sum.tx_err.total() > 0 && sum.relay_lost.total() > 0);
    }
    // Whatever happened, and for however long: that is what libraries keep for the next one.
    assert!(kept < 64 << 10, "{kept} bytes after {rounds} changes");
    // Two seconds are all warming up; in minutes these move by what happens to be open, and by no more.
    let (given_out, resident) = if seconds >= 60 { (512, 2 << 10) } else { (8 << 10, 64 << 10) };
    assert!(growth.given_out < given_out && growth.resident < resident, "{growth:?}");
}

/// Everything that is to happen, once: frames over a CPUMAP, an application that gets packets past all programs and by a map, sends
/// some back and is killed, a queue that goes, a cable that is cut.
#[expect(clippy::too_many_arguments, reason = "everything that the soak has")]
fn tour(
    engine: &Engine,
    server: &Server,
    maps: &[Arc<Map>; 3],
    path: &std::path::Path,
    delivered: &AtomicU64,
    yard: &mut Yard,
    books: &mut Books,
    random: &mut Random,
) {
    let [one, other] = [PORTS[0], PORTS[1]];
    let whole = |ifindex| HookPoint { ifindex, queue: None };
    let sum = |of: fn(&Counters) -> u64| engine.queues().iter().map(|queue| of(&queue.counters)).sum::<u64>();

    engine.attach(whole(one), always(Redirect::Cpu { map_id: maps[1].id(), cpu: 1 }, maps), FORCE).unwrap();
    eventually(|| engine.cpu_counters().iter().any(|cpu| cpu.cpu_in > 0));

    for past_programs in [true, false] {
        let (ifindex, before) = (if past_programs { one } else { other }, sum(|counters| counters.socket_in));
        engine.attach(whole(ifindex), always(Redirect::Socket { map_id: maps[2].id(), key: 0 }, maps), FORCE).unwrap();
        let mut application = echo(path, ifindex, 0, past_programs);
        eventually(|| {
            let arrived = if past_programs {
                delivered.load(Ordering::Relaxed) > 0
            } else {
                sum(|counters| counters.socket_out) > delivered.load(Ordering::Relaxed)
            };
            arrived && sum(|counters| counters.socket_in) > before
        });
        application.kill().unwrap();
        application.wait().unwrap();
        eventually(|| server.sockets().is_empty());
    }

    books.close(engine.remove_queue(one, 1).unwrap());
    // A cable is looked at when its queue receives: until that has happened, once more.
    let before = books.failed;
    eventually(|| {
        if !yard.cable(other).swap(true, Ordering::Relaxed) {
            return false;
        }
        engine.close(other).unwrap().into_iter().for_each(|report| books.close(report));
        yard.open(engine, other, random);
        books.failed > before
    });
}
