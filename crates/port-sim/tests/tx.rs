//! What a queue may be given to send, when it is told of it, and how programs hear that memory runs short.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xway_abi::{Errno, MapSpec, MapType};
use xway_engine::{
    Engine, EngineConfig, Executor, ExecutorInfo, OneQueue, Port, PortConfig, Results, Sent, SocketTarget, Stop,
    TxPolicy, Worker, WorkerConfig,
};
use xway_maps::{Env, Guard, Handles, Map};
use xway_packet::{Burst, Frame, Pool, PoolConfig, Redirect};
use xway_port_sim::{PairConfig, Pattern, SimPort, Traffic, pair};

/// Sends every packet to the port with index 3, and notes what the map says when a packet comes.
struct Send {
    map: Option<Arc<Map>>,
    seen: Arc<Mutex<Vec<Option<u32>>>>,
}

impl Executor for Send {
    fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
        for frame in frames {
            if let Some(map) = &self.map {
                let mut key = frame.ingress_ifindex().to_ne_bytes().to_vec();
                key.extend(frame.rx_queue().to_ne_bytes());
                let mut level = [0; 4];
                let found = map.lookup(&key, &mut level, 0).is_ok();
                let level = found.then(|| u32::from_ne_bytes(level));
                let mut seen = self.seen.lock().unwrap();
                if seen.last() != Some(&level) {
                    seen.push(level);
                }
            }
            frame.set_redirect(Redirect::Ifindex(3));
            results.push(4, 0);
        }
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: "send".into(), engine: "interp" }
    }
}

const COUNT: u64 = 256;

/// A run of packets of 64 bytes, one at a time, to an end whose other end takes nothing until the run is over.
fn run(tx: TxPolicy) -> (xway_engine::Report, Vec<usize>) {
    let traffic = Traffic::udp(1, 64, Pattern::Scan, 1).unwrap();
    let (input, _) = SimPort::generated("in", 1, traffic, Some(COUNT));
    let (near, mut far) = pair("p", PairConfig { ifindexes: [3, 4], ..PairConfig::default() }).unwrap();
    let send = Send { map: None, seen: Arc::default() };
    let config = WorkerConfig { tx, ..WorkerConfig::new(Stop::new().unwrap()) };
    let pool = Pool::new(PoolConfig::new(512)).unwrap();
    let ports: Vec<Box<dyn Port>> = vec![Box::new(input.in_bursts_of(1)), Box::new(near)];
    let report = Worker::new(ports, Box::new(send), pool, config).run();
    // What lies in the ring outlives the run, and goes home when it is dropped.
    let mut pool = Pool::new(PoolConfig::new(1)).unwrap();
    let (mut burst, mut lens) = (Burst::new(), Vec::new());
    far.rx(0, &mut pool, &mut burst, 64).unwrap();
    while !burst.is_empty() {
        lens.extend(burst.drain().map(|frame| frame.len()));
        far.rx(0, &mut pool, &mut burst, 64).unwrap();
    }
    (report, lens)
}

#[test]
fn a_byte_limit_bounds_what_waits() {
    for (max, fits) in [(1000, 15), (64 * 20, 20), (10, 1), (0, 1)] {
        let (report, lens) = run(TxPolicy { bytes_max: Some(max), ..TxPolicy::default() });
        let c = &report.counters;
        assert_eq!((c.balance(), c.redirected, lens.len() as u64), (Ok(()), fits, fits), "{max} bytes");
        assert_eq!((c.redirect_err.get(Errno::ENOSPC), c.tx_limited), (COUNT - fits, COUNT - fits));
    }
    let (report, lens) = run(TxPolicy::default());
    assert_eq!((report.counters.redirected, report.counters.tx_limited, lens.len() as u64), (COUNT, 0, COUNT));
}

/// Frames wait for one doorbell only while the queue is busy with others, and none waits for ever.
#[test]
fn a_busy_queue_is_told_of_many_at_once() {
    let doorbells = |batch_frames| {
        let (report, lens) = run(TxPolicy { batch_frames, ..TxPolicy::default() });
        assert_eq!((report.counters.redirected, lens.len() as u64), (COUNT, COUNT));
        report.counters.doorbells
    };
    // The first finds the queue idle; 64 of the others share one each; what is left at the end is told, too.
    assert_eq!(doorbells(64), 1 + COUNT / 64);
    assert_eq!(doorbells(1000), 2);
    assert_eq!(doorbells(1), COUNT);
    assert_eq!(doorbells(0), 0, "not counted where nothing is looked at");
}

/// Counts how often somebody wants to know of a device.
#[derive(Default)]
struct Asked(AtomicU64);

impl Handles for Asked {
    fn device(&self, _: u32) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// The level of a queue's pool stands in every map of that name before a packet meets it.
#[test]
fn programs_find_the_pressure_in_a_map() {
    let spec = MapSpec::new(MapType::Hash, 8, 4, 16);
    let map = Map::create_named("xway_pressure", &spec, &Env::default()).unwrap();
    let other = Map::create_named("pressure", &spec, &Env::default()).unwrap();
    // One of that name whose entries the engine has to be asked for: a worker that did so would wait for itself.
    let asked = Arc::new(Asked::default());
    let devices = MapSpec::new(MapType::DevmapHash, 4, 4, 16);
    let devices =
        Map::create_named("xway_pressure", &devices, &Env { handles: asked.clone(), ..Env::default() }).unwrap();
    let traffic = Traffic::udp(1, 64, Pattern::Scan, 1).unwrap();
    let (input, _) = SimPort::generated("in", 7, traffic, Some(80));
    let (near, mut far) = pair("p", PairConfig { ifindexes: [3, 4], ..PairConfig::default() }).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let send = Send { map: Some(map.clone()), seen: seen.clone() };
    let config =
        WorkerConfig { maps: vec![map.clone(), devices, other.clone()], ..WorkerConfig::new(Stop::new().unwrap()) };
    let pool = Pool::new(PoolConfig::new(100)).unwrap();
    let ports: Vec<Box<dyn Port>> = vec![Box::new(input.in_bursts_of(1)), Box::new(near)];
    Worker::new(ports, Box::new(send), pool, config).run();
    assert_eq!(*seen.lock().unwrap(), [Some(0), Some(1)], "from 75 of 100 frames on");
    assert_eq!(other.lookup(&[7, 0, 0, 0, 0, 0, 0, 0], &mut [0; 4], 0), Err(Errno::ENOENT));
    assert_eq!(asked.0.load(Ordering::Relaxed), 0, "times that a worker asked for a device");
    let mut pool = Pool::new(PoolConfig::new(1)).unwrap();
    far.rx(0, &mut pool, &mut Burst::new(), 64).unwrap();
}

/// Has packets of 64 bytes to send, and gives up to eight at a time.
struct Sender {
    left: AtomicU64,
    sent: AtomicU64,
}

impl SocketTarget for Sender {
    fn id(&self) -> u64 {
        1
    }

    fn bound_to(&self) -> (u32, u32) {
        (3, 0)
    }

    fn deliver(&self, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let count = burst.len();
        pool.release_burst(burst);
        Sent::all(count)
    }

    fn collect(&self, pool: &mut Pool, burst: &mut Burst) {
        for _ in 0..self.left.load(Ordering::SeqCst).min(8) {
            burst.push(pool.frame_of(&[7; 64]).unwrap()).unwrap();
            self.left.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn sent(&self, sent: Sent) {
        self.sent.fetch_add(sent.sent.into(), Ordering::SeqCst);
    }

    fn may_sleep(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

/// What a socket sends waits in its ring while the queue holds as much as it may, and is not lost.
#[test]
fn a_byte_limit_lets_sockets_wait() {
    let (near, mut far) = pair("s", PairConfig { ifindexes: [3, 4], ..PairConfig::default() }).unwrap();
    let engine = Engine::start(EngineConfig::default()).unwrap();
    let tx = TxPolicy { bytes_max: Some(1000), ..TxPolicy::default() };
    engine.open(Box::new(OneQueue::new(Box::new(near))), PortConfig { tx, ..PortConfig::default() }).unwrap();
    let socket = Arc::new(Sender { left: AtomicU64::new(100), sent: AtomicU64::new(0) });
    engine.bind(3, 0, Some(socket.clone()), false).unwrap();
    engine.waker(3, 0).unwrap().wake();
    let (mut pool, mut burst, mut came) = (Pool::new(PoolConfig::new(1)).unwrap(), Burst::new(), 0);
    let until = Instant::now() + Duration::from_secs(60);
    while came < 100 {
        assert!(Instant::now() < until, "{came} of 100 came");
        let waits = engine.port_stats().unwrap()[0].backlog.unwrap();
        assert!(waits.bytes < 1000 + 8 * 64, "{waits:?}");
        far.rx(0, &mut pool, &mut burst, 1).unwrap();
        came += burst.len();
        burst.drain().for_each(drop);
    }
    assert_eq!(socket.sent.load(Ordering::SeqCst), 100);
    drop(far);
    let stopped = engine.stop();
    let counters = &stopped.queues[0].counters;
    assert_eq!((counters.socket_in, counters.socket_sent, counters.socket_lost.total()), (100, 100, 0));
}
