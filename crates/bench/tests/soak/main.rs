//! Everything at once: bad wires on every queue, programs that are exchanged, ports that fail and come back, queues that go and
//! come, applications with sockets that are killed. Nothing crashes, leaks or sticks, and the books are exact.
//!
//! Two seconds here; `make soak` runs it for ten minutes (`XWAY_SOAK_SECONDS`).

#[path = "../../engine/tests/common/mod.rs"]
mod wire;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wire::{Rust, eventually};
use xway_abi::{Errno, MapSpec, MapType, Verdict, xsk};
use xway_engine::steer::{KEY_SYMMETRIC, Rss, Steering};
use xway_engine::{
    AttachFlags, Attached, Backlog, Capabilities, Counters, Engine, EngineConfig, HookPoint, Linked, LoadedProgram,
    PassTo, Port, PortConfig, PortError, PortErrorKind, PortStats, QueueReport, Rx, Sent, SocketTarget, VerdictSet,
};
use xway_maps::{Env, Map};
use xway_object::{Object, Select};
use xway_packet::{Backing, Burst, Frame, Pages, Pool, PoolConfig, Redirect};
use xway_port_sim::{Pattern, SimDevice, Sink, Traffic};
use xway_port_wrap::{Fault, FaultConfig, WrappedDevice};
use xway_vm::Instance;
use xway_xsk::{EngineQueues, Policy, Queues, Refusal, Server};
use xway_xsk_client::rings::Sizes;
use xway_xsk_client::{Bind, Connection};

const FORCE: AttachFlags = AttachFlags { if_noexist: false, replace: None };
/// The ports that the programs of `bpf/forward` know, and one more.
const PORTS: [u32; 3] = [10, 12, 14];
const QUEUES: u64 = 2;
const WORKERS: u64 = 3;

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn point(&mut self, ifindex: u32) -> HookPoint {
        HookPoint { ifindex, queue: (self.below(3) == 0).then_some(self.below(QUEUES) as u32) }
    }
}

// -- programs -------------------------------------------------------------------------------------------------------------

/// Redirects to sockets that programs asked for.
static TO_SOCKETS: AtomicU64 = AtomicU64::new(0);

/// A program that does everything that can be done to a packet, by its bytes and a number of its own.
fn anything(seed: u64, maps: &[Arc<Map>; 3]) -> Arc<dyn LoadedProgram> {
    let [devices, cpus, sockets] = maps.each_ref().map(|map| map.id());
    Rust::with_maps(maps.to_vec(), move |_, frame: &mut Frame| {
        let sum = frame.packet().iter().fold(1u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let mut random = Random(seed ^ sum | 1);
        random.below(2);
        let target = match random.below(6) {
            0 => Redirect::None,
            1 => Redirect::Ifindex(8 + 2 * random.below(4) as u32),
            2 => Redirect::Device { map_id: devices, key: 0, ifindex: PORTS[1] },
            3 => Redirect::Broadcast { map_id: devices, exclude_ingress: true },
            4 => Redirect::Cpu { map_id: cpus, cpu: random.below(4) as u32 },
            _ => Redirect::Socket { map_id: sockets, key: frame.rx_queue() },
        };
        let verdict = random.below(7);
        if verdict == Verdict::Redirect as u64 && matches!(target, Redirect::Socket { .. }) {
            TO_SOCKETS.fetch_add(1, Ordering::Relaxed);
        }
        frame.set_redirect(target);
        if random.below(5) == 0 {
            let _ = frame.adjust_head(if random.below(2) == 0 { -8 } else { 8 });
        }
        verdict
    })
}

/// One of the programs of `bpf/forward`, proved and compiled anew; `None` where no compiler made them.
fn compiled(random: &mut Random) -> Option<Arc<dyn LoadedProgram>> {
    const NAMES: [&str; 6] = [
        "drop_parse_ip",
        "pass_read_data",
        "tx_swap_macs",
        "redirect_map_swap_macs",
        "redirect_cpu_swap_macs",
        "redirect_multi_swap_macs",
    ];
    let object = Object::parse(xway_bench::forward::object()?, &Default::default()).unwrap();
    let name = NAMES[random.below(NAMES.len() as u64) as usize];
    let image = object.select(&Select::Name(name.into())).and_then(xway_object::Program::as_xdp).unwrap();
    let far = object.programs.iter().position(|program| program.name == "far_cpu").unwrap();
    let instance = Instance::verified(Arc::new(object), WORKERS as u32, Default::default()).unwrap();
    for (key, ifindex) in (0u32..).zip(PORTS) {
        let value = [ifindex.to_ne_bytes(), [0xff; 4]].concat();
        instance.map("ports").unwrap().update(&key.to_ne_bytes(), &value, 0).unwrap();
    }
    let far = if random.below(2) == 0 { instance.program_fd(far).unwrap() } else { 0 };
    let value = [64u32.to_ne_bytes(), far.to_ne_bytes()].concat();
    instance.map("cpus").unwrap().update(&[0; 4], &value, 0).unwrap();
    let linked = Linked::new(instance.link(&image).unwrap());
    assert_eq!(linked.choice().name(), "jit", "{:?}", linked.choice().reason);
    Some(Arc::new(linked))
}

// -- ports ----------------------------------------------------------------------------------------------------------------

/// A port whose cable can be cut: it receives no more, and what is sent fails.
struct Cable {
    inner: Box<dyn Port>,
    cut: Arc<AtomicBool>,
}

impl Port for Cable {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn ifindex(&self) -> u32 {
        self.inner.ifindex()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        match self.cut.load(Ordering::Relaxed) {
            true => Err(PortError::new(self.name(), PortErrorKind::Missing, "the cable is cut")),
            false => self.inner.rx(queue, pool, burst, budget),
        }
    }

    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        if !self.cut.load(Ordering::Relaxed) {
            return self.inner.tx(queue, pool, burst);
        }
        let count = burst.len();
        pool.release_burst(burst);
        Sent::none(count, Errno::ENETDOWN)
    }

    fn backlog(&mut self, queue: u32, pool: &mut Pool) -> Option<Backlog> {
        self.inner.backlog(queue, pool)
    }

    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.inner.pass(queue, pool, burst)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.inner.flush()
    }

    fn close(&mut self, pool: &mut Pool) {
        self.inner.close(pool);
    }

    fn stats(&mut self) -> PortStats {
        self.inner.stats()
    }
}

/// Ports with endless traffic behind bad wires, and what came out of all of them.
#[derive(Default)]
struct Yard {
    sinks: Vec<Sink>,
    /// Of the port with this index, as it is open now.
    cables: [Arc<AtomicBool>; PORTS.len()],
}

impl Yard {
    fn open(&mut self, engine: &Engine, ifindex: u32, random: &mut Random) {
        let seed = random.below(1 << 40);
        let sizes = [60, 90, 300, 1500];
        let size = sizes[random.below(sizes.len() as u64) as usize];
        let traffic = Traffic::udp(100, size, Pattern::Uniform, seed | 1).unwrap();
        let (inner, sink) = SimDevice::generated(&format!("d{ifindex}"), ifindex, traffic, None, QUEUES as u32);
        self.sinks.push(sink);
        let cut = Arc::new(AtomicBool::new(false));
        self.cables[PORTS.iter().position(|&port| port == ifindex).unwrap()] = cut.clone();
        let device = WrappedDevice::new(Box::new(inner), move |port, queue| {
            let (name, seed) = (port.name().to_owned(), seed + u64::from(queue));
            let bad = FaultConfig { loss: 0.1, duplicate: 0.1, corrupt: 0.1, reorder: 0.1, no_frame: 0.1, seed };
            let inner = Fault::new(port, bad).map_err(|e| PortError::new(name, PortErrorKind::Input, e))?;
            Ok(Box::new(Cable { inner: Box::new(inner), cut: cut.clone() }) as Box<dyn Port>)
        });
        // Small pools, so that they run dry; a memory file, so that applications can map them.
        let shape = PoolConfig { backing: Backing::Memfd, pages: Pages::Base, ..PoolConfig::new(512) };
        let config = PortConfig {
            queues: Some((0..QUEUES as u32).map(|queue| (queue, random.below(WORKERS) as u32)).collect()),
            pool: Some(PoolConfig { max_outstanding: 300, ..shape }),
            pass: [PassTo::Stack, PassTo::Drop, PassTo::Port(PORTS[0])][random.below(3) as usize],
            ..PortConfig::default()
        };
        engine.open(Box::new(device), config).unwrap();
    }

    fn cable(&self, ifindex: u32) -> &AtomicBool {
        &self.cables[PORTS.iter().position(|&port| port == ifindex).unwrap()]
    }
}

// -- applications with sockets --------------------------------------------------------------------------------------------

/// The queues of the engine, where what goes to sockets past all programs is counted.
struct Counted {
    queues: EngineQueues,
    delivered: Arc<AtomicU64>,
}

impl Queues for Counted {
    fn find(&self, name: &str, queue: u32) -> Result<u32, Refusal> {
        self.queues.find(name, queue)
    }

    fn bind(&self, at: (u32, u32), sockets: Option<Arc<dyn SocketTarget>>, direct: bool) -> Result<(), Refusal> {
        let counted = |inner| Arc::new(CountedSocket { inner, delivered: self.delivered.clone() }) as Arc<_>;
        self.queues.bind(at, sockets.map(counted), direct)
    }

    fn wake(&self, at: (u32, u32)) {
        self.queues.wake(at);
    }

    fn without_program(&self, at: (u32, u32)) -> bool {
        self.queues.without_program(at)
    }
}

struct CountedSocket {
    inner: Arc<dyn SocketTarget>,
    delivered: Arc<AtomicU64>,
}

impl SocketTarget for CountedSocket {
    fn id(&self) -> u64 {
        self.inner.id()
    }

    fn bound_to(&self) -> (u32, u32) {
        self.inner.bound_to()
    }

    fn deliver(&self, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let sent = self.inner.deliver(pool, burst);
        self.delivered.fetch_add(sent.sent.into(), Ordering::Relaxed);
        sent
    }

    fn room(&self) -> usize {
        self.inner.room()
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn collect(&self, pool: &mut Pool, burst: &mut Burst) {
        self.inner.collect(pool, burst);
    }

    fn sent(&self, sent: Sent) {
        self.inner.sent(sent);
    }

    fn close(&self, pool: &mut Pool) {
        self.inner.close(pool);
    }

    fn may_sleep(&self) -> bool {
        self.inner.may_sleep()
    }
}

/// A process that runs this file's test `application` until it is killed.
fn application(path: &Path, random: &mut Random) -> Child {
    let ifindex = PORTS[random.below(3) as usize];
    let way = ["works", "keeps", "stops"][random.below(3) as usize];
    let words = [
        format!("sim:d{ifindex}"),
        random.below(QUEUES).to_string(),
        way.to_owned(),
        random.below(2).to_string(),
        random.below(2).to_string(),
    ];
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_application", "--nocapture"])
        .env("XWAY_SOAK_APPLICATION", words.join(" "))
        .env("XWAY_SOAK_PATH", path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// What such a process does. Its queue may be taken, or gone: then it asks again.
#[test]
fn an_application() {
    let Ok(words) = std::env::var("XWAY_SOAK_APPLICATION") else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let (zero_copy, direct) = (words[3] == "1", words[4] == "1");
    let flags = if zero_copy { xsk::bind::ZEROCOPY } else { xsk::bind::COPY };
    let sizes = Sizes { fill: 64, completion: 64, rx: 64, tx: 64 };
    let queue = words[1].parse().unwrap();
    let flags = flags | xsk::bind::USE_NEED_WAKEUP | xsk::bind::SHARED_UMEM;
    let bind = Bind { flags, direct, sizes, chunks: 64, ..Bind::new(words[0], queue) };
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        // The server may be on its way out.
        let Ok(mut connection) = Connection::open(std::env::var("XWAY_SOAK_PATH").unwrap()) else { return };
        let Ok(umem) = connection.umem(128, 2048, 0) else { return };
        let Ok(mut socket) = connection.bind(&umem, &bind) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let mut kept = Vec::new();
        // Its queue may go and come back without it.
        let rebind = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until.min(rebind) {
            socket.fill(32);
            match words[2] {
                // Holds everything that it gets, and gives nothing back.
                "keeps" => kept.extend(socket.receive()),
                // Is in the middle of everything.
                "works" => {
                    while let Some(packet) = socket.receive() {
                        let _ = socket.send(packet);
                    }
                    socket.flush();
                }
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

// -- books ----------------------------------------------------------------------------------------------------------------

/// What closed queues counted, with each one's balance looked at.
#[derive(Default)]
struct Books {
    sum: Counters,
    /// Of what the ports said that they sent: more by copies, less by losses.
    doubled: u64,
    lost: u64,
    failed: u64,
}

impl Books {
    fn close(&mut self, report: QueueReport) {
        let what = format!("{} queue {}", report.port, report.queue);
        assert_eq!(report.counters.balance(), Ok(()), "{what}");
        assert_eq!(report.counters.relay_balance(), Ok(()), "{what}");
        assert_eq!((report.leak, report.pool.outstanding), (None, 0), "{what}");
        let of = |name: &str| report.stats.other.iter().find(|(known, _)| *known == name).map_or(0, |&(_, n)| n);
        // What came out of the port, less what its wire lost and more what it doubled, is what the worker got.
        let got = report.stats.rx - of("fault: lost on receive") + of("fault: doubled on receive");
        assert_eq!(got - of("fault: held on receive"), report.counters.rx, "{what}");
        self.doubled += of("fault: doubled on send");
        self.lost += of("fault: lost on send") + of("fault: held on send");
        self.failed += u64::from(report.error.is_some());
        self.sum.merge(&report.counters);
    }
}

/// Resident memory of the process in KiB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4
}

#[test]
fn nothing_is_lost_without_a_name() {
    let seconds = std::env::var("XWAY_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
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
    let mut applications: Vec<Child> = Vec::new();
    let (mut rounds, mut exchanged, mut cut, mut removed, mut killed, mut bound) = (0u64, 0u64, 0u64, 0u64, 0u64, 0u64);
    let (started, length) = (Instant::now(), Duration::from_secs(seconds));
    let mut warm = 0;
    while started.elapsed() < length || rounds < 40 {
        rounds += 1;
        if warm == 0 && started.elapsed() * 4 > length {
            warm = resident();
        }
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
    let end = resident();

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
    let left: u64 = yard.sinks.iter().map(|sink| sink.sent().frames + sink.passed().frames).sum();
    let told = out(sum) + out(&cpus) + sum.relay_sent + sum.socket_sent + books.doubled;
    let to_sockets = told - (sum.relay_in + cpus.cpu_in + books.lost) - left;
    let (direct, asked) = (delivered.load(Ordering::Relaxed), TO_SOCKETS.load(Ordering::Relaxed));
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
    println!("resident memory: {warm} KiB after a quarter of the time, {end} KiB at the end");
    assert!((direct..=direct + asked).contains(&to_sockets), "{direct} <= {to_sockets} <= {direct} + {asked}");
    assert!(sum.verdict(Verdict::Redirect) > 0 && sum.rx > 10_000);
    if seconds >= 60 {
        assert!(sum.tx_err.total() > 0 && sum.relay_lost.total() > 0 && cpus.cpu_in > 0 && books.failed > 0);
        assert!(killed > 0 && direct > 0 && to_sockets > direct && sum.socket_in > 0);
    }
    // A short run is still warming up.
    let bound = if seconds >= 60 { 16 << 10 } else { 64 << 10 };
    assert!(end.saturating_sub(warm) < bound, "resident memory grew from {warm} to {end} KiB");
}
