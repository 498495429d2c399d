//! Everything at once: faulty ports, programs that are swapped, ports that go down and up, queues that move. Nothing crashes, no
//! frame is lost without a counter, all come home.
//!
//! Two seconds here; `make soak` runs it for ten minutes (`XWAY_SOAK_SECONDS`).

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Faults, Rust, Wire, eventually};
use xway_abi::{MapSpec, MapType, Verdict};
use xway_engine::steer::{KEY_SYMMETRIC, Rss, Steering};
use xway_engine::{
    AttachFlags, Attached, Counters, Engine, EngineConfig, HookPoint, PassTo, PortConfig, QueueReport, VerdictSet,
};
use xway_maps::{Env, Map};
use xway_packet::{Frame, Redirect};

const FORCE: AttachFlags = AttachFlags { if_noexist: false, replace: None };

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A program that does everything, by the bytes of the packet and its own number.
fn program(seed: u64, maps: &[Arc<Map>]) -> Arc<Rust> {
    let ids: Vec<u32> = maps.iter().map(|map| map.id()).collect();
    Rust::with_maps(maps.to_vec(), move |_, frame: &mut Frame| {
        let mut random = Random(
            seed ^ frame.packet().iter().fold(1u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into())) | 1,
        );
        random.below(2);
        let target = match random.below(6) {
            0 => Redirect::None,
            1 => Redirect::Ifindex(random.below(5) as u32),
            2 => Redirect::Device { map_id: ids[0], key: 0, ifindex: 2 },
            3 => Redirect::Broadcast { map_id: ids[0], exclude_ingress: true },
            4 => Redirect::Cpu { map_id: ids[1], cpu: random.below(4) as u32 },
            _ => Redirect::Socket { map_id: 1, key: 0 },
        };
        frame.set_redirect(target);
        random.below(7)
    })
}

/// What closed queues counted, with each one's balance looked at.
#[derive(Default)]
struct Books {
    sum: Counters,
    outstanding: u32,
}

impl Books {
    fn close(&mut self, report: QueueReport) {
        assert_eq!(report.counters.balance(), Ok(()), "{} {}", report.port, report.queue);
        assert_eq!(report.counters.relay_balance(), Ok(()), "{} {}", report.port, report.queue);
        assert_eq!(report.counters.rx, report.stats.rx, "{} {}: what the port gave", report.port, report.queue);
        self.outstanding += report.pool.outstanding;
        self.sum.merge(&report.counters);
    }
}

/// Resident memory of the process, in pages.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn faults_swaps_and_moving_queues_lose_nothing_without_a_name() {
    let seconds = std::env::var("XWAY_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let env = Env::with_cpus(4);
    let devices = Map::create(&MapSpec::new(MapType::Devmap, 4, 4, 4), &env).unwrap();
    let cpus = Map::create(&MapSpec::new(MapType::Cpumap, 4, 4, 4), &env).unwrap();
    for key in 0..3u32 {
        devices.update(&key.to_ne_bytes(), &(key + 1).to_ne_bytes(), 0).unwrap();
        cpus.update(&key.to_ne_bytes(), &(64u32 << key).to_ne_bytes(), 0).unwrap();
    }
    let maps = [devices, cpus];
    let engine = Engine::start(EngineConfig { workers: 3, ring_len: 128, ..EngineConfig::default() }).unwrap();
    let faults = Faults { loss: 10, duplicate: 10, corrupt: 10, no_frame: 10, tx_full: 10, tx_fail: 10 };
    let wires: Vec<Wire> = (1..=3).map(|ifindex| Wire::new(ifindex, 2).forgetful().with_faults(faults)).collect();
    let mut random = Random(0x5eed);
    let mut books = Books::default();
    for wire in &wires {
        engine.open(wire.device(), PortConfig::default()).unwrap();
        wire.flood(true);
    }
    let point = |random: &mut Random, ifindex: u32| HookPoint {
        ifindex,
        queue: (random.below(3) == 0).then_some(random.below(2) as u32),
    };
    let started = Instant::now();
    let mut memory = 0;
    let mut rounds = 0u64;
    while started.elapsed() < Duration::from_secs(seconds) {
        rounds += 1;
        let ifindex = 1 + random.below(3) as u32;
        let queue = random.below(2) as u32;
        match random.below(12) {
            0..=4 => {
                let program = program(random.below(1 << 40), &maps);
                engine.attach(point(&mut random, ifindex), program, FORCE).unwrap();
            }
            5 => {
                let program = program(random.below(1 << 40), &maps);
                let (priority, chain_on) = (random.below(100) as i32, VerdictSet(random.below(32) as u32));
                // A chain may be full; then the hook is emptied.
                let at = point(&mut random, ifindex);
                if engine.chain(at, Attached { program, priority, chain_on }).is_err() {
                    engine.detach(at, None).unwrap();
                }
            }
            6 => engine.detach(point(&mut random, ifindex), None).unwrap(),
            7 => {
                if let Ok(report) = engine.remove_queue(ifindex, queue) {
                    books.close(report);
                }
            }
            8 | 9 => drop(engine.add_queue(ifindex, queue, random.below(3) as u32)),
            10 => {
                engine.close(ifindex).unwrap().into_iter().for_each(|report| books.close(report));
                let queues = (0..2).map(|queue| (queue, random.below(3) as u32)).collect();
                let pass = [PassTo::Stack, PassTo::Drop, PassTo::Port(1)][random.below(3) as usize];
                let config = PortConfig { queues: Some(queues), pass, ..PortConfig::default() };
                engine.open(wires[ifindex as usize - 1].device(), config).unwrap();
            }
            _ => {
                let steering = (random.below(2) == 0).then(|| Steering::new().with_rss(Rss::equal(&KEY_SYMMETRIC, 2)));
                engine.set_steering(ifindex, steering).unwrap();
            }
        }
        if memory == 0 && started.elapsed() * 2 > Duration::from_secs(seconds) {
            memory = resident();
        }
    }
    let grown = resident().saturating_sub(memory) * 4;
    for wire in &wires {
        wire.flood(false);
    }
    // What is left in queues that are closed stays there.
    for queue in engine.queues() {
        let wire = &wires[queue.ifindex as usize - 1];
        eventually(|| wire.queue_is_idle(queue.queue));
    }
    let stopped = engine.stop();
    stopped.queues.into_iter().for_each(|report| books.close(report));
    let mut cpus = Counters::default();
    for cpu in &stopped.cpus {
        assert_eq!(cpu.balance(), Ok(()));
        cpus.merge(cpu);
    }
    assert_eq!(books.outstanding, 0, "every frame came home");
    let (offered, made): (u64, u64) = wires
        .iter()
        .map(|wire| (wire.taken(), wire.received()))
        .fold((0, 0), |(taken, received), (t, r)| (taken + t, received + r));
    assert_eq!(books.sum.rx, made, "what the ports delivered came in");
    let lost_by_fault: u64 = wires.iter().map(|wire| wire.lost()).sum();
    let doubled: u64 = wires.iter().map(|wire| wire.duplicated()).sum();
    assert_eq!(made, offered - lost_by_fault + doubled);
    // Whatever left is what the counters say left.
    let left: u64 = wires.iter().map(|wire| wire.sent_count() + wire.passed_count()).sum();
    let sum = &books.sum;
    let direct = sum.tx + sum.passed + sum.redirected + sum.copies + cpus.passed + cpus.redirected + cpus.copies;
    // Sent over rings between workers: counted as sent there, and lost or sent by the owner; over CPUMAPs: came in again.
    let relayed_away = sum.relay_in - sum.relay_sent;
    assert!(left + relayed_away + cpus.cpu_in <= direct, "{left} {relayed_away} {} {direct}", cpus.cpu_in);
    assert!(direct - (left + relayed_away + cpus.cpu_in) <= 128 * 64, "only what was in a ring of a closed queue");
    assert!(sum.verdict(Verdict::Redirect) > 0 && sum.tx_full > 0 && sum.tx_err.total() > 0 && cpus.cpu_in > 0);
    assert!(rounds > 20, "{rounds} changes");
    assert!(grown < 64 << 10, "resident memory grew by {grown} KiB in the second half");
}
