//! Packets of several buffers on ports in memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_abi::Errno;
use xway_engine::{
    Engine, EngineConfig, EngineError, Executor, ExecutorInfo, HookPoint, LoadedProgram, Needs, PortConfig, Results,
    Stop, Worker, WorkerConfig,
};
use xway_maps::Guard;
use xway_packet::{Burst, Frame, Pool, PoolConfig, Redirect};
use xway_port_sim::{PairConfig, Pattern, Seen, SimDevice, SimPort, Traffic, pair};

const LEN: usize = 20_000;
const COUNT: u64 = 200;

/// Drops, passes, sends and redirects in turn, by packet id.
struct InTurn;

impl Executor for InTurn {
    fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
        for frame in frames {
            let turn = frame.packet_id() % 4 + 1;
            if turn == 4 {
                frame.set_redirect(Redirect::Ifindex(2 + frame.packet_id() as u32 / 4 % 2));
            }
            results.push(turn, 0);
        }
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: "in_turn".into(), engine: "interp" }
    }
}

fn traffic() -> Traffic {
    Traffic::udp(7, LEN, Pattern::Scan, 1).unwrap()
}

/// Every verdict takes all buffers along, ports that take no such frames are not sent any, and the counters are of whole packets.
#[test]
fn verdicts_concern_all_buffers() {
    let (input, sink) = SimPort::generated("in", 1, traffic(), Some(COUNT));
    let (able, able_sink) = SimPort::generated("able", 2, traffic(), Some(0));
    // An end that is not for such frames.
    let (unable, _far) = pair("un", PairConfig { ifindexes: [3, 4], ..PairConfig::default() }).unwrap();
    sink.inspect(true);
    able_sink.inspect(true);
    let ports: Vec<Box<dyn xway_engine::Port>> =
        vec![Box::new(input.with_frags(true)), Box::new(able), Box::new(unable)];
    let pool = Pool::new(PoolConfig::new(512)).unwrap();
    let report = Worker::new(ports, Box::new(InTurn), pool, WorkerConfig::new(Stop::new().unwrap())).run();
    assert_eq!(report.leak, None);
    let c = &report.counters;
    assert_eq!((c.balance(), c.rx, c.rx_bytes), (Ok(()), COUNT, COUNT * LEN as u64));
    let quarter = COUNT / 4;
    assert_eq!((c.passed, c.tx, c.redirected), (quarter, quarter, quarter / 2));
    assert_eq!(c.redirect_err.get(Errno::EOPNOTSUPP), quarter / 2);
    assert_eq!(report.ports[0].1.truncated, 0);
    // Packet n of the input has this place in the traffic.
    let digest = |picks: &dyn Fn(u64) -> bool| {
        let traffic = traffic();
        let picked = (1..=COUNT).filter(|n| picks(*n));
        picked.map(|n| Seen::digest_of(traffic.packet(n as usize - 1))).fold(0u64, u64::wrapping_add)
    };
    let bytes = quarter * LEN as u64;
    let expected = |frames, bytes, picks: &dyn Fn(u64) -> bool| Seen { frames, bytes, digest: digest(picks) };
    assert_eq!(sink.passed(), expected(quarter, bytes, &|n| n % 4 == 1));
    assert_eq!(sink.sent(), expected(quarter, bytes, &|n| n % 4 == 2));
    assert_eq!(able_sink.sent(), expected(quarter / 2, bytes / 2, &|n| n % 4 == 3 && n / 4 % 2 == 0));
}

/// What is too long for the frames that are left stays where it is and comes when there are some.
#[test]
fn a_pool_that_is_too_small_for_a_burst_loses_nothing() {
    let (port, _) = SimPort::generated("a", 1, traffic(), Some(50));
    let mut port = port.with_frags(true);
    // Six buffers a packet.
    let (mut pool, mut burst, mut got) = (Pool::new(PoolConfig::new(16)).unwrap(), Burst::new(), 0);
    while got < 50 {
        xway_engine::Port::rx(&mut port, 0, &mut pool, &mut burst, 64).unwrap();
        assert!((1..=2).contains(&burst.len()), "{}", burst.len());
        for frame in burst.frames() {
            got += 1;
            assert_eq!((frame.packet_id(), frame.total_len()), (got, LEN));
            assert_eq!(frame.contents(), traffic().packet(got as usize - 1));
        }
        pool.release_burst(&mut burst);
    }
    let counters = pool.counters();
    assert_eq!((counters.outstanding, counters.returned), (0, 0), "all came home to the owner's hands");
    assert!(xway_engine::Port::stats(&mut port).no_frame > 0);
    pool.close().unwrap();
}

struct Program(Needs);

impl LoadedProgram for Program {
    fn id(&self) -> u32 {
        1
    }

    fn name(&self) -> &str {
        "passes"
    }

    fn executor(&self, _: u32) -> Box<dyn Executor> {
        struct Pass;
        impl Executor for Pass {
            fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
                frames.iter().for_each(|_| results.push(2, 0));
            }

            fn info(&self) -> ExecutorInfo {
                ExecutorInfo { program: "passes".into(), engine: "interp" }
            }
        }
        Box::new(Pass)
    }

    fn needs(&self) -> Needs {
        self.0.clone()
    }
}

/// As Linux refuses a program without frags on an interface whose packets may not fit a page.
#[test]
fn programs_that_know_one_buffer_only_are_refused_by_name() {
    let (device, sink) = SimDevice::generated("long", 5, traffic(), Some(COUNT), 1);
    let engine = Engine::start(EngineConfig::default()).unwrap();
    let pool = Some(PoolConfig::new(512));
    engine.open(Box::new(device.with_frags(true)), PortConfig { pool, ..PortConfig::default() }).unwrap();
    let point = HookPoint { ifindex: 5, queue: None };
    match engine.attach(point, Arc::new(Program(Needs::default())), Default::default()) {
        Err(error @ EngineError::Lacks { .. }) => {
            assert!(error.to_string().contains("program passes lacks frags (section xdp.frags)"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    let needs = Needs { frags: true, ..Needs::default() };
    engine.attach(point, Arc::new(Program(needs)), Default::default()).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while sink.passed().frames < COUNT && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(sink.passed().bytes, COUNT * LEN as u64);
    for report in engine.close(5).unwrap() {
        assert_eq!(report.counters.balance(), Ok(()));
        assert_eq!(report.leak, None);
    }
}

/// Two engines' ends hand each other frames of several buffers, which go home to the pool they came from.
#[test]
fn pairs_hand_over_all_buffers() {
    let config = PairConfig { frags: true, queue_len: 8, ..PairConfig::default() };
    let (mut a, mut b) = pair("p", config).unwrap();
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(64)).unwrap(), Burst::new());
    let packet: Vec<u8> = (0..LEN).map(|n| (n % 251) as u8).collect();
    for _ in 0..4 {
        burst.push(pool.frame_of(&packet).unwrap()).unwrap();
    }
    let sent = xway_engine::Port::tx(&mut a, 0, &mut pool, &mut burst);
    assert_eq!((sent.sent, pool.counters().outstanding), (4, 24));
    let (mut other, mut came) = (Pool::new(PoolConfig::new(4)).unwrap(), Burst::new());
    xway_engine::Port::rx(&mut b, 0, &mut other, &mut came, 64).unwrap();
    assert!(came.frames().iter().all(|frame| *frame.contents() == packet[..]));
    assert_eq!(xway_engine::Port::stats(&mut b).rx_bytes, 4 * LEN as u64);
    other.release_burst(&mut came);
    assert_eq!(pool.counters().outstanding, 0);
    pool.close().unwrap();
}
