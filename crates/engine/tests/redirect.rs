//! Where redirected frames go: ports with programs on the way out, all ports of a map, other workers, sockets; and what Linux
//! says when a redirect makes no sense.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Rust, Wire, eventually, frame_number};
use xway_abi::{Errno, MapSpec, MapType, Verdict};
use xway_engine::{
    AttachFlags, CaptureAt, CaptureConfig, Counters, Engine, EngineConfig, HookPoint, MapProgram, PassTo, PortConfig,
    Sent, SocketEntry, SocketTarget, Stopped, What, consumer,
};
use xway_maps::{Env, Handles, Map, ProgramObject, ProgramUse};
use xway_packet::ring::credit::Lent;
use xway_packet::{Burst, Frame, Pool, Redirect};

const FORCE: AttachFlags = AttachFlags { if_noexist: false, replace: None };

/// Descriptors of a test: the programs by their number from 1 on.
struct Programs(Vec<Arc<MapProgram>>);

impl Handles for Programs {
    fn program(&self, fd: i32) -> Result<Arc<dyn ProgramObject>, Errno> {
        let program = usize::try_from(fd - 1).ok().and_then(|at| self.0.get(at)).ok_or(Errno::EBADF)?;
        Ok(program.clone())
    }
}

fn map(map_type: MapType, value_size: u32, programs: Vec<Arc<MapProgram>>) -> Arc<Map> {
    let env = Env { handles: Arc::new(Programs(programs)), ..Env::with_cpus(4) };
    let key_size = 4;
    Map::create(&MapSpec::new(map_type, key_size, value_size, 8), &env).unwrap()
}

/// `struct bpf_devmap_val` and `struct bpf_cpumap_val`: a number and a program.
fn entry(map: &Map, key: u32, word: u32, program: u32) {
    let value = [word.to_ne_bytes(), program.to_ne_bytes()].concat();
    map.update(&key.to_ne_bytes(), &value[..map.user_value_size()], 0).unwrap();
}

fn port(ifindex: u32) -> HookPoint {
    HookPoint { ifindex, queue: None }
}

fn on(worker: u32) -> PortConfig {
    PortConfig { queues: Some(vec![(0, worker)]), ..PortConfig::default() }
}

fn engine(workers: u32) -> Engine {
    Engine::start(EngineConfig { workers, ..EngineConfig::default() }).unwrap()
}

/// Everything adds up. The sum of the queues' counters, then of what came over CPUMAPs.
fn settled(stopped: Stopped) -> (Counters, Counters) {
    let (mut queues, mut cpus) = (Counters::default(), Counters::default());
    for report in stopped.queues {
        assert_eq!((report.counters.balance(), report.counters.relay_balance()), (Ok(()), Ok(())), "{}", report.port);
        assert_eq!((report.leak, report.pool.outstanding), (None, 0), "{}", report.port);
        queues.merge(&report.counters);
    }
    for cpu in stopped.cpus {
        assert_eq!(cpu.balance(), Ok(()));
        cpus.merge(&cpu);
    }
    (queues, cpus)
}

fn redirecting(maps: Vec<Arc<Map>>, to: impl Fn(&Frame) -> Redirect + Send + Sync + 'static) -> Arc<Rust> {
    Rust::with_maps(maps, move |_, frame| {
        frame.set_redirect(to(frame));
        Verdict::Redirect as u64
    })
}

#[test]
fn the_program_of_a_device_map_entry_runs_on_the_way_out() {
    for map_type in [MapType::Devmap, MapType::DevmapHash] {
        for workers in [1, 2] {
            let out = Rust::new(|_, frame| {
                let (egress, ingress, queue) = (frame.egress_ifindex(), frame.ingress_ifindex(), frame.rx_queue());
                frame.packet_mut()[20..23].copy_from_slice(&[egress as u8, ingress as u8, queue as u8]);
                match frame_number(frame.packet()) % 5 {
                    0 => Verdict::Drop as u64,
                    1 => Verdict::Tx as u64,
                    2 => 77,
                    _ => Verdict::Pass as u64,
                }
            });
            let devices = map(map_type, 8, vec![MapProgram::new(out, ProgramUse::XdpDevmap)]);
            entry(&devices, 5, 2, 1);
            entry(&devices, 6, 2, 0);
            let map_id = devices.id();
            let engine = engine(workers);
            let (left, right) = (Wire::new(1, 2), Wire::new(2, 1));
            engine.open(left.device(), PortConfig { queues: Some(vec![(1, 0)]), ..PortConfig::default() }).unwrap();
            engine.open(right.device(), on(workers - 1)).unwrap();
            let key = |frame: &Frame| if frame_number(frame.packet()) < 50 { 5 } else { 6 };
            let to = move |frame: &Frame| Redirect::Device { map_id, key: key(frame), ifindex: 2 };
            engine.attach(port(1), redirecting(vec![devices], to), FORCE).unwrap();
            left.send(1, 100);
            eventually(|| right.sent().len() == 70);
            let (sum, _) = settled(engine.stop());
            assert_eq!((sum.redirected, sum.egress_drop, sum.egress_err), (70, 10, 20));
            let (marked, plain): (Vec<_>, Vec<_>) =
                right.sent().into_iter().partition(|packet| frame_number(packet) < 50);
            assert!(marked.iter().all(|packet| packet[20..23] == [2, 1, 0] && frame_number(packet) % 5 > 2));
            assert_eq!((marked.len(), plain.len()), (20, 50));
            assert!(plain.iter().all(|packet| packet[20] == 0), "an entry without a program runs none");
        }
    }
}

#[test]
fn a_broadcast_runs_each_entrys_program_over_its_own_copy() {
    let mark = |number: u8| {
        let program = Rust::new(move |_, frame| {
            frame.packet_mut()[20] += number;
            Verdict::Pass as u64
        });
        MapProgram::new(program, ProgramUse::XdpDevmap)
    };
    let devices = map(MapType::Devmap, 8, vec![mark(1), mark(2)]);
    // Port 9 is not open, so nothing is sent there.
    for (key, ifindex, program) in [(0, 1, 1), (1, 2, 1), (3, 3, 2), (5, 4, 0), (6, 9, 0)] {
        entry(&devices, key, ifindex, program);
    }
    let map_id = devices.id();
    let engine = engine(2);
    let wires: Vec<Wire> = (1..=4).map(|ifindex| Wire::new(ifindex, 1)).collect();
    for (wire, worker) in wires.iter().zip([0, 0, 1, 1]) {
        engine.open(wire.device(), on(worker)).unwrap();
    }
    let to = move |_: &Frame| Redirect::Broadcast { map_id, exclude_ingress: true };
    engine.attach(port(1), redirecting(vec![devices], to), FORCE).unwrap();
    wires[0].send(0, 10);
    eventually(|| wires[1..].iter().all(|wire| wire.sent().len() == 10));
    let marks: Vec<Vec<u8>> = wires.iter().map(|wire| wire.sent().iter().map(|packet| packet[20]).collect()).collect();
    assert_eq!(marks, [vec![], vec![1; 10], vec![2; 10], vec![0; 10]]);
    let (sum, _) = settled(engine.stop());
    assert_eq!((sum.redirected, sum.copies), (10, 20));
}

/// However many programs a broadcast meets, each entry's is the one that runs.
#[test]
fn a_broadcast_meets_as_many_programs_as_there_are() {
    const ENTRIES: u32 = 130;
    let runs: Arc<Vec<AtomicU32>> = Arc::new((0..ENTRIES).map(|_| AtomicU32::new(0)).collect());
    let counts = |n: u32| {
        let runs = runs.clone();
        let program = Rust::new(move |_, _| {
            runs[n as usize].fetch_add(1, Ordering::SeqCst);
            Verdict::Drop as u64
        });
        MapProgram::new(program, ProgramUse::XdpDevmap)
    };
    let env = Env { handles: Arc::new(Programs((0..ENTRIES).map(counts).collect())), ..Env::with_cpus(1) };
    let devices = Map::create(&MapSpec::new(MapType::Devmap, 4, 8, ENTRIES), &env).unwrap();
    (0..ENTRIES).for_each(|key| entry(&devices, key, 2, key + 1));
    let map_id = devices.id();
    let engine = engine(1);
    let (left, right) = (Wire::new(1, 1), Wire::new(2, 1));
    engine.open(left.device(), PortConfig::default()).unwrap();
    engine.open(right.device(), PortConfig::default()).unwrap();
    let to = move |_: &Frame| Redirect::Broadcast { map_id, exclude_ingress: false };
    engine.attach(port(1), redirecting(vec![devices], to), FORCE).unwrap();
    for count in 1..=5 {
        left.send(0, 1);
        eventually(|| engine.queues()[0].counters.egress_drop == count);
    }
    let (sum, _) = settled(engine.stop());
    assert!(runs.iter().all(|runs| runs.load(Ordering::SeqCst) == 5), "{runs:?}");
    assert_eq!((sum.egress_drop, right.sent_count()), (5, 0));
}

/// Ports that only read what they send get the one frame; who changes it on the way, or keeps it, gets a copy.
#[test]
fn a_broadcast_goes_by_reference_where_ports_only_read() {
    let program = Rust::new(|_, frame| {
        frame.packet_mut()[20] += 1;
        Verdict::Pass as u64
    });
    let devices = map(MapType::Devmap, 8, vec![MapProgram::new(program, ProgramUse::XdpDevmap)]);
    for (key, ifindex, program) in [(0, 2, 0), (1, 3, 0), (2, 4, 0), (3, 5, 1)] {
        entry(&devices, key, ifindex, program);
    }
    let map_id = devices.id();
    let engine = engine(1);
    let wires: Vec<Wire> = (1..=5).map(|n| Wire::new(n, 1)).collect();
    for (n, wire) in wires.iter().enumerate() {
        // Port 4 keeps what it sends, port 5 has a program in front of it.
        let wire = if n == 3 { wire.clone() } else { wire.clone().that_shares() };
        engine.open(wire.device(), on(0)).unwrap();
    }
    let to = move |_: &Frame| Redirect::Broadcast { map_id, exclude_ingress: true };
    engine.attach(port(1), redirecting(vec![devices], to), FORCE).unwrap();
    wires[0].send(0, 100);
    let counts = || wires.iter().map(|wire| wire.sent().len()).collect::<Vec<_>>();
    eventually(|| counts() == [0, 100, 100, 100, 100]);
    for (wire, mark) in wires[1..].iter().zip([0, 0, 0, 1]) {
        assert!(wire.sent().iter().all(|packet| packet[20] == mark));
    }
    let stopped = engine.stop();
    let taken = stopped.queues.iter().map(|queue| queue.pool.fast + queue.pool.ring + queue.pool.slow).sum::<u64>();
    let (sum, _) = settled(stopped);
    assert_eq!((sum.rx, sum.redirected, sum.copies), (100, 100, 300));
    assert_eq!(taken, 300, "a frame for each packet, and copies for two of its four targets");
}

#[test]
fn a_cpu_map_hands_frames_to_another_worker_where_its_program_runs() {
    for workers in [1, 3] {
        let second = Rust::new(|worker, frame| {
            let queue = frame.rx_queue();
            frame.packet_mut()[20..22].copy_from_slice(&[worker as u8 + 1, queue as u8]);
            match frame_number(frame.packet()) % 4 {
                0 => Verdict::Drop as u64,
                1 => Verdict::Tx as u64,
                2 => {
                    frame.set_redirect(Redirect::Ifindex(2));
                    Verdict::Redirect as u64
                }
                _ => Verdict::Pass as u64,
            }
        });
        let cpus = map(MapType::Cpumap, 8, vec![MapProgram::new(second, ProgramUse::XdpCpumap)]);
        let cpu = workers - 1;
        entry(&cpus, cpu, 4096, 1);
        let map_id = cpus.id();
        let engine = engine(workers);
        let (left, right) = (Wire::new(1, 2), Wire::new(2, 1));
        engine.open(left.device(), PortConfig { queues: Some(vec![(1, 0)]), ..PortConfig::default() }).unwrap();
        engine.open(right.device(), on(0)).unwrap();
        engine.attach(port(1), redirecting(vec![cpus], move |_| Redirect::Cpu { map_id, cpu }), FORCE).unwrap();
        left.send(1, 400);
        eventually(|| left.passed().len() == 100 && right.sent().len() == 100);
        for packets in [left.passed(), right.sent()] {
            assert!(packets.iter().map(|packet| frame_number(packet)).is_sorted(), "order is kept");
            assert!(
                packets.iter().all(|packet| packet[20..22] == [workers as u8, 0]),
                "on that worker, queue forgotten"
            );
        }
        let (sum, other) = settled(engine.stop());
        assert_eq!((sum.rx, sum.redirected, other.cpu_in), (400, 400, 400), "{workers} workers");
        assert_eq!((other.verdict(Verdict::Drop), other.invalid_codes.get(3)), (100, 100), "TX has no port there");
        assert_eq!((other.passed, other.redirected), (100, 100));
    }
}

/// A capture sees what each program decides, the second one of a CPUMAP too; its filter changes nothing of what it looks at, even if it
/// forgets a target when it begins, as the interpreter does.
#[test]
fn a_capture_sees_both_programs_and_changes_nothing() {
    let second = Rust::new(|_, frame| [Verdict::Drop, Verdict::Pass][frame_number(frame.packet()) as usize % 2] as u64);
    let cpus = map(MapType::Cpumap, 8, vec![MapProgram::new(second, ProgramUse::XdpCpumap)]);
    entry(&cpus, 1, 4096, 1);
    let map_id = cpus.id();
    let engine = engine(2);
    let wire = Wire::new(1, 1);
    engine.open(wire.device(), on(0)).unwrap();
    engine.attach(port(1), redirecting(vec![cpus], move |_| Redirect::Cpu { map_id, cpu: 1 }), FORCE).unwrap();
    let filter = Rust::new(|_, frame| {
        frame.set_redirect(Redirect::None);
        1
    });
    let captures = [CaptureAt::Entry, CaptureAt::Exit].map(|at| {
        let config = CaptureConfig { at, filter: Some(filter.clone()), ..CaptureConfig::default() };
        engine.capture(config).unwrap()
    });
    wire.send(0, 100);
    let mut seen = Vec::new();
    eventually(|| {
        seen.extend(std::iter::from_fn(|| captures[1].next(Duration::ZERO)).map(|c| (c.verdict, c.worker)));
        seen.len() == 200
    });
    assert_eq!(std::iter::from_fn(|| captures[0].next(Duration::ZERO)).count(), 100, "came in once");
    for (verdict, worker, count) in [(Verdict::Redirect, 0, 100), (Verdict::Drop, 1, 50), (Verdict::Pass, 1, 50)] {
        assert_eq!(seen.iter().filter(|seen| **seen == (Some(Ok(verdict)), worker)).count(), count, "{verdict:?}");
    }
    drop(captures);
    eventually(|| wire.passed().len() == 50);
    let (sum, other) = settled(engine.stop());
    assert_eq!((sum.redirected, other.passed, other.verdict(Verdict::Drop)), (100, 50, 50));
}

/// What waits for another worker when its map goes still meets the program of its entry, as in Linux: nothing slips past that.
#[test]
fn an_exchange_lets_nothing_past_the_second_program() {
    let engine = engine(2);
    let wire = Wire::new(1, 1);
    engine.open(wire.device(), on(0)).unwrap();
    let second = Rust::new(|_, _| Verdict::Drop as u64);
    for round in 0..60u32 {
        let cpus = map(MapType::Cpumap, 8, vec![MapProgram::new(second.clone(), ProgramUse::XdpCpumap)]);
        entry(&cpus, 1, 4096, 1);
        let map_id = cpus.id();
        engine.attach(port(1), redirecting(vec![cpus], move |_| Redirect::Cpu { map_id, cpu: 1 }), FORCE).unwrap();
        wire.flood(true);
        let before = engine.queues()[0].counters.rx;
        eventually(|| engine.queues()[0].counters.rx > before + 64);
        // Some go while packets come, some while the last ones wait.
        wire.flood(round % 2 == 0);
    }
    wire.flood(false);
    eventually(|| wire.idle());
    let (sum, other) = settled(engine.stop());
    assert_eq!((other.passed, other.verdict(Verdict::Drop)), (0, sum.redirected));
    assert!(other.cpu_in > 60 * 64);
}

/// A program that sends what comes over a CPUMAP to the same worker again and again, so that its queue never runs empty, until the
/// gate is open: from then on it drops. The map, and the program that sends packets there.
fn round_and_round(gate: Arc<AtomicBool>) -> (Arc<Map>, Arc<Rust>) {
    let number = Arc::new(AtomicU32::new(0));
    let own = number.clone();
    let second = Rust::new(move |_, frame| {
        if gate.load(Ordering::SeqCst) {
            return Verdict::Drop as u64;
        }
        frame.set_redirect(Redirect::Cpu { map_id: own.load(Ordering::SeqCst), cpu: 1 });
        Verdict::Redirect as u64
    });
    let cpus = map(MapType::Cpumap, 8, vec![MapProgram::new(second, ProgramUse::XdpCpumap)]);
    entry(&cpus, 1, 4096, 1);
    let map_id = cpus.id();
    number.store(map_id, Ordering::SeqCst);
    (cpus.clone(), redirecting(vec![cpus], move |_| Redirect::Cpu { map_id, cpu: 1 }))
}

/// What waits keeps map and program however long it takes: also when the call that takes them off their hook has given up waiting, and
/// when the port is closed. Afterwards they go.
#[test]
fn what_waits_for_another_worker_keeps_the_program_that_it_will_meet() {
    for close in [false, true] {
        let engine = engine(2);
        let (wire, other) = (Wire::new(1, 1), Wire::new(2, 1));
        engine.open(wire.device(), on(0)).unwrap();
        engine.open(other.device(), on(0)).unwrap();
        let gate = Arc::new(AtomicBool::new(false));
        let (cpus, program) = round_and_round(gate.clone());
        let (map, attached) = (Arc::downgrade(&cpus), Arc::downgrade(&program));
        drop(cpus);
        engine.attach(port(1), program, FORCE).unwrap();
        wire.send(0, 200);
        eventually(|| engine.queues()[0].counters.redirected == 200);
        if close {
            // The frames are the port's own, so their absence is told.
            assert!(engine.close(1).unwrap().iter().all(|report| report.leak.is_some()));
        } else {
            engine.detach(port(1), None).unwrap();
        }
        assert!(map.upgrade().is_some() && attached.upgrade().is_some(), "frames are on their way to them");
        // Other changes go on, and do not wait for these frames again.
        engine.attach(port(2), Rust::new(|_, _| Verdict::Pass as u64), FORCE).unwrap();
        assert!(map.upgrade().is_some());
        gate.store(true, Ordering::SeqCst);
        eventually(|| {
            engine.port_stats().unwrap();
            map.upgrade().is_none() && attached.upgrade().is_none()
        });
        let (_, other) = settled(engine.stop());
        assert_eq!((other.verdict(Verdict::Drop), other.passed, other.cpu_lost), (200, 0, 0), "close: {close}");
    }
}

#[test]
fn what_a_stop_does_not_wait_for_is_counted() {
    let engine = engine(2);
    let wire = Wire::new(1, 1);
    engine.open(wire.device(), on(0)).unwrap();
    engine.attach(port(1), round_and_round(Arc::default()).1, FORCE).unwrap();
    wire.send(0, 200);
    eventually(|| engine.queues()[0].counters.redirected == 200);
    let (sum, other) = settled(engine.stop());
    assert_eq!((sum.rx, sum.redirected, other.cpu_lost), (200, 200, 200));
    assert_eq!(other.cpu_in, other.redirected, "round and round until then");
}

#[test]
fn a_cpu_maps_queue_holds_what_its_entry_says() {
    let cpus = map(MapType::Cpumap, 4, vec![]);
    entry(&cpus, 1, 8, 0);
    entry(&cpus, 2, 64, 0);
    let map_id = cpus.id();
    let engine = engine(2);
    let (left, right) = (Wire::new(1, 1), Wire::new(2, 1));
    engine.open(left.device(), on(0)).unwrap();
    engine.open(right.device(), on(1)).unwrap();
    let to = move |frame: &Frame| Redirect::Cpu { map_id, cpu: 1 + u32::from(frame_number(frame.packet()) >= 64) };
    engine.attach(port(1), redirecting(vec![cpus], to), FORCE).unwrap();
    // Worker 1 is busy, so nothing leaves the queue.
    right.hold(true);
    engine.set_pass(2, PassTo::Port(2)).unwrap();
    right.send(0, 1);
    eventually(|| engine.queues()[1].counters.rx == 1);
    left.send(0, 74);
    eventually(|| engine.queues()[0].counters.rx == 74);
    right.hold(false);
    let (sum, other) = settled(engine.stop());
    assert_eq!(sum.redirect_err.get(Errno::ENOSPC), 56, "8 of 64 fit");
    assert_eq!(sum.redirect_err.get(Errno::ENODEV), 10, "there is no worker 2");
    assert_eq!((other.cpu_in, other.passed, left.passed().len()), (8, 8, 8));
}

#[test]
fn redirects_that_make_no_sense_have_linuxs_errno() {
    let devices = map(MapType::Devmap, 4, vec![]);
    let map_id = devices.id();
    let engine = engine(1);
    let (left, short, mute) = (Wire::new(1, 1), Wire::new(2, 1).with_frame_max(59), Wire::new(3, 1).without_redirect());
    for wire in [&left, &short, &mute] {
        engine.open(wire.device(), PortConfig::default()).unwrap();
    }
    let to = move |frame: &Frame| match frame_number(frame.packet()) {
        0 => Redirect::None,
        1 => Redirect::Ifindex(0),
        2 => Redirect::Ifindex(99),
        3 => Redirect::Ifindex(2),
        4 => Redirect::Ifindex(3),
        5 => Redirect::Device { map_id, key: 0, ifindex: 99 },
        6 => Redirect::Broadcast { map_id, exclude_ingress: false },
        7 => Redirect::Socket { map_id, key: 3 },
        _ => Redirect::Broadcast { map_id: 0, exclude_ingress: false },
    };
    engine.attach(port(1), redirecting(vec![devices], to), FORCE).unwrap();
    let listener = engine.listen(64);
    left.send(0, 9);
    eventually(|| engine.queues()[0].counters.rx == 9);
    // Each is an event, too, with its reason.
    let mut told: Vec<Errno> = Vec::new();
    eventually(|| {
        told.extend(std::iter::from_fn(|| listener.next(Duration::ZERO)).filter_map(|told| match told.what {
            What::RedirectError { errno, .. } => Some(errno),
            _ => None,
        }));
        told.len() == 9
    });
    let (sum, _) = settled(engine.stop());
    assert!([&left, &short, &mute].iter().all(|wire| wire.sent_count() == 0 && wire.passed().is_empty()), "dropped");
    let by_errno = |errno| sum.redirect_err.get(errno);
    let expected = [
        (Errno::EBADRQC, 1),
        (Errno::EINVAL, 2),
        (Errno::EMSGSIZE, 1),
        (Errno::EOPNOTSUPP, 1),
        (Errno::ENODEV, 1),
        (Errno::ENOENT, 3),
    ];
    for (errno, count) in expected {
        assert_eq!(by_errno(errno), count, "{errno}");
        assert_eq!(told.iter().filter(|told| **told == errno).count() as u64, count, "{errno}");
    }
}

/// A socket that remembers what it is given, and sends what it is told to.
struct Socket {
    id: u64,
    bound: (u32, u32),
    got: Mutex<Vec<u32>>,
    room: usize,
    to_send: Mutex<Vec<u8>>,
    sent: Mutex<u32>,
}

impl Socket {
    fn new(bound: (u32, u32), room: usize) -> Arc<Socket> {
        let (got, to_send, sent) = Default::default();
        Arc::new(Socket { id: 1 + u64::from(bound.1), bound, got, room, to_send, sent })
    }
}

impl SocketTarget for Socket {
    fn id(&self) -> u64 {
        self.id
    }
    fn bound_to(&self) -> (u32, u32) {
        self.bound
    }
    fn deliver(&self, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let mut got = self.got.lock().unwrap();
        let room = self.room.saturating_sub(got.len()).min(burst.len());
        got.extend(burst.drain_first(room).map(|frame| {
            let number = frame_number(frame.packet());
            pool.release(frame);
            number
        }));
        Sent { sent: room as u32, full: burst.len() as u32, failed: 0, errno: None }
    }
    fn collect(&self, pool: &mut Pool, burst: &mut Burst) {
        for byte in self.to_send.lock().unwrap().drain(..) {
            let mut frame = pool.alloc().unwrap();
            frame.fill(&[byte; 60]).unwrap();
            burst.push(frame).unwrap();
        }
    }
    fn sent(&self, sent: Sent) {
        *self.sent.lock().unwrap() += sent.sent;
    }
    fn may_sleep(&self) -> bool {
        self.to_send.lock().unwrap().is_empty()
    }
}

#[test]
fn a_socket_map_delivers_to_the_sockets_of_the_queue() {
    let sockets = map(MapType::Xskmap, 4, vec![]);
    let (first, second) = (Socket::new((1, 0), 30), Socket::new((1, 1), 100));
    sockets.set_socket(0, SocketEntry::new(first.clone())).unwrap();
    sockets.set_socket(1, SocketEntry::new(second.clone())).unwrap();
    let map_id = sockets.id();
    let engine = engine(1);
    let wire = Wire::new(1, 2);
    engine.open(wire.device(), PortConfig::default()).unwrap();
    // Every tenth frame names the socket of the other queue.
    let to = move |frame: &Frame| {
        let other = u32::from(frame_number(frame.packet()) % 10 == 9);
        Redirect::Socket { map_id, key: frame.rx_queue() ^ other }
    };
    engine.attach(port(1), redirecting(vec![sockets], to), FORCE).unwrap();
    (0..2).for_each(|queue| wire.send(queue, 40));
    eventually(|| engine.queues().iter().map(|queue| queue.counters.rx).sum::<u64>() == 80);
    let (sum, _) = settled(engine.stop());
    let mine: Vec<u32> = (0..40).filter(|number| number % 10 != 9).collect();
    assert_eq!((&first.got.lock().unwrap()[..], &second.got.lock().unwrap()[..]), (&mine[..30], &mine[..]));
    assert_eq!((sum.redirected, sum.redirect_err.get(Errno::EINVAL), sum.redirect_err.get(Errno::ENOSPC)), (66, 8, 6));
}

/// Half of the frames go to a thread of this process that keeps what it gets; the other half is passed.
#[test]
fn a_consumer_that_gives_nothing_back_gets_no_more_and_harms_nobody() {
    const CREDIT: u32 = 20;
    let sockets = map(MapType::Xskmap, 4, vec![]);
    let (target, mut consumer) = consumer((1, 0), 64, CREDIT).unwrap();
    sockets.set_socket(0, SocketEntry::new(target.clone())).unwrap();
    let map_id = sockets.id();
    let engine = engine(1);
    let wire = Wire::new(1, 1);
    engine.open(wire.device(), PortConfig::default()).unwrap();
    let program = Rust::with_maps(vec![sockets.clone()], move |_, frame| {
        frame.set_redirect(Redirect::Socket { map_id, key: 0 });
        if frame_number(frame.packet()).is_multiple_of(2) { Verdict::Redirect as u64 } else { Verdict::Pass as u64 }
    });
    engine.attach(port(1), program, FORCE).unwrap();
    // Far more than the pool has frames for.
    wire.send(0, 4000);
    eventually(|| wire.passed().len() == 2000);
    eventually(|| (target.owed(), target.refused()) == (CREDIT, 2000 - u64::from(CREDIT)));
    assert!(consumer.wait(Duration::from_secs(60)));
    let mut lent = consumer.take(Burst::MAX);
    let numbers = |lent: &Lent| lent.frames().iter().map(|frame| frame_number(frame.packet())).collect::<Vec<_>>();
    assert_eq!(numbers(&lent), (0..2 * CREDIT).step_by(2).collect::<Vec<_>>(), "the first ones, in order");
    // Taken is not given back.
    wire.send(0, 100);
    eventually(|| wire.passed().len() == 2050);
    assert!(consumer.take(1).frames().is_empty());
    // What is given back is lent again, and no more than that.
    lent.give_back(5);
    assert_eq!(target.owed(), CREDIT - 5);
    wire.send(0, 100);
    eventually(|| wire.passed().len() == 2100);
    assert_eq!(numbers(&consumer.take(Burst::MAX)), (4100..4110).step_by(2).collect::<Vec<_>>());
    // Past all programs what finds no credit stays with the port and waits there.
    engine.bind(1, 0, Some(target.clone()), true).unwrap();
    drop(lent);
    wire.send(0, 100);
    let mut came = Vec::new();
    while came.len() < 100 {
        assert!(consumer.wait(Duration::from_secs(60)));
        came.extend(numbers(&consumer.take(7)));
    }
    assert_eq!(came, (4200..4300).collect::<Vec<_>>());
    engine.bind(1, 0, None, false).unwrap();
    drop(consumer);
    let (sum, _) = settled(engine.stop());
    assert_eq!(sum.redirect_err.get(Errno::ENOSPC), target.refused());
    assert_eq!((sum.socket_out, sum.redirected), (u64::from(CREDIT) + 5 + 100, u64::from(CREDIT) + 5 + 100));
}

#[test]
fn a_queue_bound_to_a_socket_needs_no_program() {
    let engine = Engine::start(EngineConfig { idle_polls: 0, ..EngineConfig::default() }).unwrap();
    let wire = Wire::new(1, 2);
    engine.open(wire.device(), PortConfig::default()).unwrap();
    let socket = Socket::new((1, 1), 1000);
    // A program of the queue is not asked while the socket gets everything.
    let drops = Rust::new(|_, _| Verdict::Drop as u64);
    engine.attach(HookPoint { ifindex: 1, queue: Some(1) }, drops, FORCE).unwrap();
    engine.bind(1, 1, Some(socket.clone()), true).unwrap();
    (0..2).for_each(|queue| wire.send(queue, 100));
    eventually(|| socket.got.lock().unwrap().len() == 100 && wire.passed().len() == 100);
    socket.to_send.lock().unwrap().extend([7, 8, 9]);
    engine.waker(1, 1).unwrap().wake();
    eventually(|| *socket.sent.lock().unwrap() == 3);
    assert_eq!(wire.sent().iter().map(|packet| packet[0]).collect::<Vec<_>>(), [7, 8, 9]);
    assert_eq!(engine.queues()[1].counters.verdicts, [0; 5]);
    // Unbound, the queue has its program again.
    engine.bind(1, 1, None, false).unwrap();
    wire.send(1, 10);
    eventually(|| engine.queues()[1].counters.verdict(Verdict::Drop) == 10);
    let (sum, _) = settled(engine.stop());
    assert_eq!((sum.redirected, sum.passed, sum.socket_in, sum.socket_sent), (100, 100, 3, 3));
    assert_eq!(Arc::strong_count(&socket), 1, "the engine lets it go");
}

#[test]
fn programs_of_maps_may_be_exchanged_while_frames_run_through_them() {
    let mark = |number: u8| {
        let program = Rust::new(move |_, frame| {
            frame.packet_mut()[20] = number;
            Verdict::Pass as u64
        });
        MapProgram::new(program, ProgramUse::XdpDevmap)
    };
    let programs: Vec<_> = (1..=100).map(mark).collect();
    assert!(programs.iter().all(|program| program.loaded().id() > 0));
    let devices = map(MapType::Devmap, 8, programs);
    entry(&devices, 0, 2, 1);
    let map_id = devices.id();
    let engine = engine(1);
    let (left, right) = (Wire::new(1, 1), Wire::new(2, 1));
    engine.open(left.device(), PortConfig::default()).unwrap();
    engine.open(right.device(), PortConfig::default()).unwrap();
    let to = move |_: &Frame| Redirect::Device { map_id, key: 0, ifindex: 2 };
    engine.attach(port(1), redirecting(vec![devices.clone()], to), FORCE).unwrap();
    left.flood(true);
    for program in (2..=100).chain(1..=50) {
        entry(&devices, 0, 2, program);
        let before = right.sent_count();
        eventually(|| right.sent_count() > before + 64);
    }
    left.flood(false);
    eventually(|| left.idle());
    let (sum, _) = settled(engine.stop());
    assert_eq!((sum.redirected, right.sent_count()), (left.offered(), left.offered()));
    assert!(right.sent().iter().all(|packet| (1..=100).contains(&packet[20])), "never without a program");
}

/// Between the program that chose an entry and the sending of its burst the entry may go or change: no frame leaves without the program
/// that looks at what goes there.
#[test]
fn an_entry_that_changes_behind_the_program_lets_nothing_past_its_own() {
    for map_type in [MapType::Devmap, MapType::DevmapHash] {
        for replaced in [false, true] {
            let out = MapProgram::new(Rust::new(|_, _| Verdict::Drop as u64), ProgramUse::XdpDevmap);
            let devices = map(map_type, 8, vec![out]);
            entry(&devices, 5, 2, 1);
            let (map_id, same) = (devices.id(), devices.clone());
            let choose = move |_: &Frame| {
                match replaced {
                    true => entry(&same, 5, 3, 0),
                    false => drop(same.delete(&5u32.to_ne_bytes())),
                }
                Redirect::Device { map_id, key: 5, ifindex: 2 }
            };
            let engine = engine(1);
            let wires: Vec<Wire> = (1..=3).map(|ifindex| Wire::new(ifindex, 1)).collect();
            wires.iter().for_each(|wire| engine.open(wire.device(), PortConfig::default()).unwrap());
            engine.attach(port(1), redirecting(vec![devices], choose), FORCE).unwrap();
            wires[0].send(0, 40);
            eventually(|| engine.queues()[0].counters.rx == 40);
            let (sum, _) = settled(engine.stop());
            let sent = [wires[1].sent_count(), wires[2].sent_count()];
            let expected = if replaced { ([0, 40], 0) } else { ([0, 0], 40) };
            assert_eq!((sent, sum.redirect_err.get(Errno::ENOENT)), expected, "{map_type:?}");
        }
    }
}

/// The same for what waits in the queue of a CPUMAP's entry: as in Linux it meets the entry's program, whether the entry is there or not.
#[test]
fn what_waits_for_another_worker_meets_the_program_of_an_entry_that_is_gone() {
    for workers in [1, 2] {
        let second = MapProgram::new(Rust::new(|_, _| Verdict::Drop as u64), ProgramUse::XdpCpumap);
        let cpus = map(MapType::Cpumap, 8, vec![second]);
        let cpu = workers - 1;
        entry(&cpus, cpu, 4096, 1);
        let (map_id, same) = (cpus.id(), cpus.clone());
        let engine = engine(workers);
        let wire = Wire::new(1, 1);
        engine.open(wire.device(), on(0)).unwrap();
        let choose = move |frame: &Frame| {
            // Those of the first burst meet an entry that is there until they have been handed over.
            if frame_number(frame.packet()) >= 40 {
                let _ = same.delete(&cpu.to_ne_bytes());
            }
            Redirect::Cpu { map_id, cpu }
        };
        engine.attach(port(1), redirecting(vec![cpus], choose), FORCE).unwrap();
        wire.send(0, 40);
        eventually(|| engine.queues()[0].counters.redirected == 40);
        wire.send(0, 40);
        eventually(|| engine.queues()[0].counters.redirected == 80);
        let (sum, other) = settled(engine.stop());
        assert_eq!((sum.redirected, other.cpu_in, other.verdict(Verdict::Drop), other.passed), (80, 80, 80, 0));
    }
}

/// What a program writes in front of a packet goes along: to the program of a DEVMAP entry, and over a CPUMAP to another worker.
/// The next port's own program finds nothing of it, as on Linux.
#[test]
fn metadata_goes_along_with_a_redirect() {
    let writes = |to: fn(u32) -> Redirect, maps: Vec<Arc<Map>>, map_id| {
        Rust::with_maps(maps, move |_, frame| {
            frame.adjust_meta(-8).unwrap();
            let number = frame_number(frame.packet());
            frame.meta_mut().copy_from_slice(&(u64::from(number) * 3 + 1).to_ne_bytes());
            frame.set_redirect(to(map_id));
            Verdict::Redirect as u64
        })
    };
    for (map_type, program_use) in [(MapType::Devmap, ProgramUse::XdpDevmap), (MapType::Cpumap, ProgramUse::XdpCpumap)]
    {
        let reads = Rust::new(|_, frame| {
            let expected = (u64::from(frame_number(frame.packet())) * 3 + 1).to_ne_bytes();
            frame.packet_mut()[20] = u8::from(frame.meta() == expected);
            Verdict::Pass as u64
        });
        let entries = map(map_type, 8, vec![MapProgram::new(reads, program_use)]);
        let device = map_type == MapType::Devmap;
        entry(&entries, 1, if device { 2 } else { 4096 }, 1);
        let to: fn(u32) -> Redirect = match device {
            true => |map_id| Redirect::Device { map_id, key: 1, ifindex: 2 },
            false => |map_id| Redirect::Cpu { map_id, cpu: 1 },
        };
        let engine = engine(2);
        let (left, right) = (Wire::new(1, 1), Wire::new(2, 1));
        engine.open(left.device(), on(0)).unwrap();
        engine.open(right.device(), on(1)).unwrap();
        let map_id = entries.id();
        engine.attach(port(1), writes(to, vec![entries], map_id), FORCE).unwrap();
        left.send(0, 100);
        let arrived = || if device { right.sent() } else { left.passed() };
        eventually(|| arrived().len() == 100);
        assert!(arrived().iter().all(|packet| packet[20] == 1), "{map_type:?}");
        settled(engine.stop());
    }
}
