//! What is attached: compiled chains, needs and capabilities, steering before the hook, events for whoever listens.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Rust, Wire, eventually};
use xway_abi::{Errno, MapSpec, MapType, Verdict};
use xway_engine::steer::{KEY_PUBLISHED, Rss, Rule, Steering};
use xway_engine::{
    AttachFlags, Attached, Capture, CaptureAt, CaptureConfig, Captured, Choice, Counters, Engine, EngineConfig,
    EngineError, HookPoint, Linked, LoadedProgram, PassTo, PortConfig, VerdictSet, What,
};
use xway_maps::{Env, Map, ProgramObject};
use xway_object::MapDef;
use xway_packet::PoolConfig;
use xway_verifier::{Config, MapsView};
use xway_vm::Program;

const FORCE: AttachFlags = AttachFlags { if_noexist: false, replace: None };

fn engine(workers: u32) -> Engine {
    Engine::start(EngineConfig { workers, ..EngineConfig::default() }).unwrap()
}

fn port(ifindex: u32) -> HookPoint {
    HookPoint { ifindex, queue: None }
}

/// Packets that programs have decided about: they are counted as received before that.
fn decided(engine: &Engine) -> u64 {
    let of = |c: &Counters| c.verdicts.iter().sum::<u64>() + c.invalid;
    engine.queues().iter().map(|queue| of(&queue.counters)).sum()
}

fn settled(engine: Engine) -> Counters {
    let mut sum = Counters::default();
    for report in engine.stop().queues {
        assert_eq!((report.counters.balance(), report.counters.relay_balance()), (Ok(()), Ok(())));
        assert_eq!((report.leak, report.pool.outstanding), (None, 0));
        sum.merge(&report.counters);
    }
    sum
}

/// A verified program of these instructions, as machine code.
fn linked(name: &str, text: &str) -> Arc<Linked> {
    linked_with(name, text, &[])
}

/// The same with maps.
fn linked_with(name: &str, text: &str, maps: &[Arc<Map>]) -> Arc<Linked> {
    let insns = xway_isa::assemble(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let image = xway_object::Program { name: name.into(), section: "xdp".into(), insns, ..Default::default() };
    let defs: Vec<MapDef> = maps.iter().map(|map| MapDef::new("of the test", map.spec().clone())).collect();
    let view = MapsView { maps: &defs, btf: None, license: Some("GPL"), kernel: None };
    let program = Program::verify(&image, maps, &view, &Config::default()).unwrap_or_else(|error| panic!("{error}"));
    Arc::new(Linked::new(program))
}

/// Returns the packet's byte at `offset`, 1 where the packet is too short.
fn returns_byte(name: &str, offset: u32) -> Arc<Linked> {
    let text = format!(
        "r0 = 1\nr2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr4 = r2\nr4 += {}\nif r4 > r3 goto +1\n\
         r0 = *(u8 *)(r2 + {offset})\nexit\n",
        offset + 1
    );
    linked(name, &text)
}

/// A packet in which the programs find their verdicts.
fn packet(verdicts: [u8; 3]) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[20..23].copy_from_slice(&verdicts);
    packet
}

#[test]
fn a_chain_of_compiled_programs_is_one_function_and_counts_as_the_chain_of_executors() {
    let programs = [returns_byte("first", 20), returns_byte("second", 21), returns_byte("third", 22)];
    let chain_on = [VerdictSet::PASS, VerdictSet(1 << 2 | 1 << 0), VerdictSet::PASS];
    let packets = [[2, 2, 2], [2, 0, 3], [1, 2, 2], [2, 9, 2], [3, 2, 2], [2, 2, 0], [2, 1, 2], [2, 2, 7]];
    let run = |compiled: bool| {
        let engine = engine(1);
        let wire = Wire::new(5, 1);
        engine.open(wire.device(), PortConfig::default()).unwrap();
        for (priority, (program, chain_on)) in (0..).zip(programs.iter().zip(chain_on)) {
            let program: Arc<dyn LoadedProgram> = if compiled { program.clone() } else { Opaque::new(program) };
            engine.chain(port(5), Attached { program, priority, chain_on }).unwrap();
        }
        packets.iter().for_each(|verdicts| wire.send_packet(0, &packet(*verdicts)));
        eventually(|| decided(&engine) == packets.len() as u64);
        let queue = engine.queues().remove(0);
        let programs: Vec<_> = queue.programs.into_iter().map(|(.., counters)| counters).collect();
        (queue.engine, settled(engine), programs)
    };
    let (jit, chain) = (run(true), run(false));
    assert_eq!((jit.0, chain.0), ("jit", "chain"));
    let ends = |sum: &Counters| (sum.verdicts, sum.invalid, sum.passed, sum.tx);
    assert_eq!(ends(&jit.1), ends(&chain.1));
    assert_eq!(jit.2, chain.2);
    assert_eq!(jit.2.iter().map(|counters| counters.runs).collect::<Vec<_>>(), [8, 6, 4]);
    assert_eq!(ends(&jit.1), ([1, 2, 1, 2, 0], 2, 1, 2));
}

/// As Linux keeps it: the first program chooses the target, the second one says REDIRECT.
#[test]
fn the_target_that_one_program_of_a_chain_chose_is_there_for_the_next_one() {
    let chooses = linked("chooses", "r1 = 6\nr2 = 0\ncall 23\nr0 = 2\nexit");
    let redirects = linked("redirects", "r0 = 4\nexit");
    let interpreted = |program: &Arc<Linked>| -> Arc<dyn LoadedProgram> {
        Arc::new(Linked::with_choice(program.program().clone(), Choice::interpreter()))
    };
    let chains: [[Arc<dyn LoadedProgram>; 2]; 4] = [
        [chooses.clone(), redirects.clone()],
        [Opaque::new(&chooses), Opaque::new(&redirects)],
        [interpreted(&chooses), interpreted(&redirects)],
        [Opaque::new(&chooses), interpreted(&redirects)],
    ];
    for (n, chain) in chains.into_iter().enumerate() {
        let engine = engine(1);
        let (wire, out) = (Wire::new(5, 1), Wire::new(6, 1));
        engine.open(wire.device(), PortConfig::default()).unwrap();
        engine.open(out.device(), PortConfig::default()).unwrap();
        for (priority, program) in (0..).zip(chain) {
            engine.chain(port(5), Attached { program, priority, chain_on: VerdictSet::PASS }).unwrap();
        }
        (0..3).for_each(|_| wire.send_packet(0, &packet([2; 3])));
        eventually(|| engine.queues().iter().map(|queue| queue.counters.rx).sum::<u64>() == 3);
        let sum = settled(engine);
        assert_eq!((sum.redirected, sum.redirect_err.total()), (3, 0), "chain {n}");
        assert_eq!(out.sent().len(), 3, "chain {n}");
    }
}

/// One that looks for a target and finds none has the last word, whatever the ones before it chose: in whichever engine each runs. One that
/// asks for nonsense leaves what there is.
#[test]
fn a_program_of_a_chain_that_misses_a_target_takes_back_the_one_before() {
    let devices = [Map::create(&MapSpec::new(MapType::Devmap, 4, 4, 2), &Env::with_cpus(1)).unwrap()];
    let jumps = [Map::create(&MapSpec::new(MapType::ProgArray, 4, 4, 1), &Env::with_cpus(1)).unwrap()];
    let chooses = linked("chooses", "r1 = 6\nr2 = 0\ncall 23\nr0 = 2\nexit");
    let asks = |flags: u32| format!("r1 = map[idx:0]\nr2 = 1\nr3 = {flags}\ncall 51\nr0 = 2\nexit");
    let (misses, nonsense) =
        (linked_with("misses", &asks(2), &devices), linked_with("nonsense", &asks(1 << 20), &devices));
    // By way of a tail call, into a program that has no code for it.
    let calls = linked_with("calls", "r2 = map[idx:0]\nr3 = 0\ncall 12\nr0 = 1\nexit", &jumps);
    let redirects = linked("redirects", "r0 = 4\nexit");
    let interpreted = |program: &Arc<Linked>| -> Arc<dyn LoadedProgram> {
        Arc::new(Linked::with_choice(program.program().clone(), Choice::interpreter()))
    };
    type Runs<'a> = &'a dyn Fn(&Arc<Linked>) -> Arc<dyn LoadedProgram>;
    let (whole, single): (Runs<'_>, Runs<'_>) = (&|program| program.clone(), &|program| Opaque::new(program));
    let engines: [[Runs<'_>; 3]; 6] = [
        [whole, whole, whole],
        [&interpreted, &interpreted, &interpreted],
        [single, single, single],
        [&interpreted, single, single],
        [single, single, &interpreted],
        [single, &interpreted, single],
    ];
    for (n, engines) in engines.into_iter().enumerate() {
        type Case<'a> = (&'a Arc<Linked>, Option<&'a Arc<Linked>>, u64);
        let cases: [Case<'_>; 5] = [
            (&misses, None, 0),
            (&nonsense, None, 3),
            (&calls, Some(&misses), 0),
            (&calls, Some(&nonsense), 3),
            (&calls, Some(&chooses), 3),
        ];
        for (second, target, found) in cases {
            let program: Option<Arc<dyn ProgramObject>> = match target {
                Some(target) => Some(target.program().clone()),
                None => None,
            };
            jumps[0].set_program(0, program).unwrap();
            let engine = engine(1);
            let (wire, out) = (Wire::new(5, 1), Wire::new(6, 1));
            engine.open(wire.device(), PortConfig::default()).unwrap();
            engine.open(out.device(), PortConfig::default()).unwrap();
            for (priority, (program, runs)) in (0..).zip([&chooses, second, &redirects].into_iter().zip(engines)) {
                engine
                    .chain(port(5), Attached { program: runs(program), priority, chain_on: VerdictSet::PASS })
                    .unwrap();
            }
            (0..3).for_each(|_| wire.send_packet(0, &packet([2; 3])));
            eventually(|| decided(&engine) == 3);
            let sum = settled(engine);
            let (name, lost) = (second.name(), sum.redirect_err.get(Errno::EBADRQC));
            assert_eq!(
                (sum.redirected, lost),
                (found, 3 - found),
                "{name}, {:?}, {n}",
                target.map(|t| t.name().to_owned())
            );
        }
    }
    jumps[0].clear_programs();
}

/// A tail call may lead into a program of another object, put into the array at any time: what it redirects through is found all the same.
#[test]
fn a_program_of_another_object_redirects_through_its_own_maps() {
    let jumps = [Map::create(&MapSpec::new(MapType::ProgArray, 4, 4, 1), &Env::with_cpus(1)).unwrap()];
    let devices = [Map::create(&MapSpec::new(MapType::Devmap, 4, 4, 2), &Env::with_cpus(1)).unwrap()];
    devices[0].update(&[0; 4], &6u32.to_ne_bytes(), 0).unwrap();
    let calls = linked_with("calls", "r2 = map[idx:0]\nr3 = 0\ncall 12\nr0 = 1\nexit", &jumps);
    let far = linked_with("far", "r1 = map[idx:0]\nr2 = 0\nr3 = 8\ncall 51\nexit", &devices);
    let engine = engine(1);
    let (wire, out) = (Wire::new(5, 1), Wire::new(6, 1));
    engine.open(wire.device(), PortConfig::default()).unwrap();
    engine.open(out.device(), PortConfig::default()).unwrap();
    engine.attach(port(5), calls, FORCE).unwrap();
    jumps[0].set_program(0, Some(far.program().clone())).unwrap();
    (0..3).for_each(|_| wire.send_packet(0, &packet([2; 3])));
    eventually(|| decided(&engine) == 3);
    // Nobody keeps it behind that.
    jumps[0].clear_programs();
    engine.detach(port(5), None).unwrap();
    drop(far);
    let [devices] = devices.map(|map| Arc::downgrade(&map));
    eventually(|| {
        xway_maps::Guard::collect();
        devices.upgrade().is_none()
    });
    let sum = settled(engine);
    assert_eq!((sum.redirected, sum.redirect_err.total(), out.sent_count()), (3, 0, 3));
}

/// A program whose engine nobody can look into, so that chains of it are not compiled.
struct Opaque(Arc<Linked>);

impl Opaque {
    fn new(program: &Arc<Linked>) -> Arc<Opaque> {
        Arc::new(Opaque(program.clone()))
    }
}

impl LoadedProgram for Opaque {
    fn id(&self) -> u32 {
        self.0.id()
    }
    fn name(&self) -> &str {
        self.0.name()
    }
    fn executor(&self, worker: u32) -> Box<dyn xway_engine::Executor> {
        self.0.executor(worker)
    }
}

#[test]
fn a_program_that_needs_what_the_port_lacks_is_refused_by_name() {
    let engine = engine(1);
    let wire = Wire::new(5, 1).without_tx();
    engine.open(wire.device(), PortConfig::default()).unwrap();
    let bounce = linked("bounce", "r0 = 3\nexit\n");
    let error = engine.attach(port(5), bounce.clone(), FORCE).unwrap_err();
    assert_eq!(error.to_string(), "wire5 lacks what program bounce needs: tx");
    assert!(matches!(error, EngineError::Needs { missing, .. } if missing == ["tx"]));
    assert!(engine.queues()[0].programs.is_empty(), "nothing was changed");
    engine.attach(port(5), linked("drop", "r0 = 1\nexit\n"), FORCE).unwrap();
    // In a chain too.
    assert!(engine.chain(port(5), Attached::new(bounce)).is_err());
    assert_eq!(engine.queues()[0].programs.len(), 1);
    settled(engine);
}

#[test]
fn a_port_whose_packets_are_read_only_takes_programs_that_only_read() {
    let engine = engine(1);
    let wire = Wire::new(5, 1);
    engine.open(wire.device(), PortConfig { read_only: true, ..PortConfig::default() }).unwrap();
    assert!(!engine.ports()[0].capabilities.writable);
    let stores = "r0 = 2\nr2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr4 = r2\nr4 += 1\nif r4 > r3 goto +1\n\
                  *(u8 *)(r2 + 0) = 7\nexit\n";
    let moves = "r2 = 4\ncall 44\nr0 = 2\nexit\n"; // bpf_xdp_adjust_head
    for (name, text, how) in [("stores", stores, "it stores into packets"), ("moves", moves, "it moves the ends")] {
        let error = engine.attach(port(5), linked(name, text), FORCE).unwrap_err().to_string();
        assert!(error.starts_with(&format!("wire5 lacks what program {name} needs: write access ({how}")), "{error}");
    }
    let reads = returns_byte("reads", 20);
    engine.attach(port(5), reads, FORCE).unwrap();
    // In a chain too.
    assert!(engine.chain(port(5), Attached::new(linked("stores", stores))).is_err());
    wire.send(0, 10);
    eventually(|| decided(&engine) == 10);
    settled(engine);
    // Opened as usual it takes them all.
    let engine = self::engine(1);
    engine.open(Wire::new(5, 1).device(), PortConfig::default()).unwrap();
    engine.attach(port(5), linked("stores", stores), FORCE).unwrap();
    settled(engine);
}

/// Where [`udp`] packets have their number within their flow.
const NUMBER: std::ops::Range<usize> = 42..46;

/// The numbers of each flow's packets, a flow being its two ports, in the order in which they come here.
fn flows(packets: &[Vec<u8>]) -> BTreeMap<[u8; 4], Vec<u32>> {
    let mut flows: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for packet in packets {
        let number = u32::from_be_bytes(packet[NUMBER].try_into().unwrap());
        flows.entry(packet[34..38].try_into().unwrap()).or_default().push(number);
    }
    flows
}

/// Whether each flow has so many packets and they come in the order in which they were sent.
fn keep_their_order(packets: &[Vec<u8>], count: u32) -> bool {
    flows(packets).values().all(|numbers| numbers.iter().copied().eq(0..count))
}

fn udp(source: u16, destination: u16) -> Vec<u8> {
    let mut packet = vec![2; 12];
    packet.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([source.to_be_bytes(), destination.to_be_bytes()].concat());
    packet.extend([0, 8, 0, 0]);
    packet.resize(60, 0);
    packet
}

#[test]
fn steering_moves_packets_between_queues_before_the_hook() {
    for workers in [1, 3] {
        let engine = engine(workers);
        let wire = Wire::new(5, 4);
        engine.open(wire.device(), PortConfig::default()).unwrap();
        let mark = Rust::new(|_, frame| {
            let (queue, hash) = (frame.rx_queue(), frame.rx_meta().hash);
            frame.packet_mut()[50] = queue as u8;
            frame.packet_mut()[51] = hash.is_some_and(|(_, kind)| kind == 1 | 8 | 32) as u8;
            Verdict::Tx as u64
        });
        engine.attach(port(5), mark, FORCE).unwrap();
        let mut steering = Steering::new().with_rss(Rss::equal(&KEY_PUBLISHED, 3));
        for rule in ["flow-type udp4 dst-port 53 action 3 loc 5", "flow-type udp4 dst-port 99 action -1 loc 1"] {
            steering.insert(Rule::parse(rule).unwrap()).unwrap();
        }
        steering.insert(Rule::parse("flow-type udp4 dst-port 100 action 77").unwrap()).unwrap();
        engine.set_steering(5, Some(steering)).unwrap();
        // Everything comes in on queue 0: of a few flows one packet each in turn, so that a burst has several of each flow, and the next
        // burst has more.
        const SOURCES: u16 = 60;
        const EACH: u32 = 5;
        const AT_ONCE: u16 = 4;
        for first in (0..SOURCES).step_by(AT_ONCE.into()) {
            for number in 0..EACH {
                for (source, destination) in
                    (first..first + AT_ONCE).flat_map(|source| [53, 80, 99, 100].map(|to| (source, to)))
                {
                    let mut packet = udp(source, destination);
                    packet[NUMBER].copy_from_slice(&number.to_be_bytes());
                    wire.send_packet(0, &packet);
                }
            }
        }
        eventually(|| wire.sent().len() == 600);
        let mut queues = [0; 4];
        for packet in wire.sent() {
            let dns = packet[37] == 53;
            assert_eq!(dns, packet[50] == 3, "DNS and only DNS is on queue 3");
            assert_eq!(packet[51], 1, "the hash is in the metadata");
            queues[usize::from(packet[50])] += 1;
        }
        assert!(queues[..3].iter().all(|count| *count > 50) && queues[3] == 300, "{queues:?}");
        let mut sent = wire.sent();
        assert_eq!(flows(&sent).len(), 2 * usize::from(SOURCES));
        assert!(keep_their_order(&sent, EACH), "with {workers} workers: {:?}", flows(&sent));
        // That can be seen: one packet of a flow before the one that was sent before it.
        let flow = |packet: &[u8]| [packet[34], packet[35], packet[36], packet[37]];
        let later = sent.iter().rposition(|packet| flow(packet) == flow(&sent[0])).unwrap();
        sent.swap(0, later);
        assert!(!keep_their_order(&sent, EACH));
        let queues = engine.queues();
        let sum = |number: fn(&Counters) -> u64| queues.iter().map(|queue| number(&queue.counters)).sum::<u64>();
        assert_eq!((sum(|c| c.steer_drop), sum(|c| c.steer_lost)), (300, 300), "there is no queue 77");
        assert_eq!(sum(|c| c.steered_out), sum(|c| c.steered_in));
        engine.set_steering(5, None).unwrap();
        wire.send_packet(1, &udp(1, 53));
        eventually(|| wire.sent().len() == 601);
        assert_eq!(wire.sent()[600][50], 1);
        settled(engine);
    }
}

/// Who a packet is for is decided before any program, and a receiver that does not keep up holds no more of the other queues'
/// memory than the ring to it has room for.
#[test]
fn a_queue_that_is_stuck_starves_no_other_queue_of_its_port() {
    const ROOM: u32 = 64;
    let engine = Engine::start(EngineConfig { workers: 2, ring_len: ROOM, ..EngineConfig::default() }).unwrap();
    let (wire, stuck) = (Wire::new(5, 2), Wire::new(6, 1));
    engine.open(wire.device(), PortConfig { queues: Some(vec![(0, 0), (1, 1)]), ..PortConfig::default() }).unwrap();
    engine.open(stuck.device(), PortConfig { queues: Some(vec![(0, 1)]), ..PortConfig::default() }).unwrap();
    engine.set_pass(6, PassTo::Port(6)).unwrap();
    let mut steering = Steering::new();
    steering.insert(Rule::parse("flow-type udp4 dst-port 53 action 1").unwrap()).unwrap();
    engine.set_steering(5, Some(steering)).unwrap();
    // Worker 1 sends a packet that nobody takes, and does nothing else meanwhile.
    stuck.hold(true);
    stuck.send(0, 1);
    let counted = |ifindex, queue| {
        let found = engine.queues().into_iter().find(|q| (q.ifindex, q.queue) == (ifindex, queue));
        found.unwrap().counters
    };
    eventually(|| counted(6, 0).rx == 1);
    for _ in 0..1000 {
        wire.send_packet(0, &udp(1, 53));
    }
    for _ in 0..100 {
        wire.send_packet(0, &udp(1, 80));
    }
    eventually(|| wire.passed().len() == 100);
    assert!(wire.passed().iter().all(|packet| packet[37] == 80));
    let here = counted(5, 0);
    assert_eq!((here.steered_out, here.steer_lost), (u64::from(ROOM), 1000 - u64::from(ROOM)));
    stuck.hold(false);
    eventually(|| wire.passed().len() == 100 + ROOM as usize);
    settled(engine);
}

#[test]
fn listeners_hear_what_happens_to_frames_and_to_programs() {
    let engine = engine(2);
    let wire = Wire::new(5, 1);
    engine.open(wire.device(), PortConfig { queues: Some(vec![(0, 1)]), ..PortConfig::default() }).unwrap();
    wire.send(0, 1);
    eventually(|| wire.passed().len() == 1);
    let listener = engine.listen(100);
    let program = Rust::new(|_, _| 77);
    engine.attach(port(5), program.clone(), FORCE).unwrap();
    wire.send(0, 2);
    eventually(|| engine.queues()[0].counters.invalid == 2);
    let next = || listener.next(Duration::from_secs(60)).unwrap();
    let attached = next();
    assert_eq!((attached.worker, attached.ifindex, &*attached.program), (None, 5, "rust"));
    assert_eq!(attached.what, What::Attached { programs: vec![program.id()], queue: None });
    for _ in 0..2 {
        let told = next();
        assert_eq!((told.worker, told.ifindex, &*told.program), (Some(1), 5, "rust"));
        assert_eq!(told.what, What::InvalidAction { code: 77 });
    }
    engine.detach(port(5), None).unwrap();
    assert_eq!(next().what, What::Attached { programs: vec![], queue: None });
    assert_eq!((listener.next(Duration::ZERO), listener.lost()), (None, 0));
    settled(engine);
}

#[test]
fn captures_take_samples_by_verdict_and_never_hold_up_what_goes_on() {
    let engine = engine(1);
    let wire = Wire::new(5, 2);
    engine.open(wire.device(), PortConfig::default()).unwrap();
    // Verdict by number; the packet is marked.
    let program = Rust::new(|_, frame| {
        let number = u64::from(frame.packet()[3]);
        frame.packet_mut()[20] = 0xee;
        [1, 3, 9][number as usize % 3]
    });
    engine.attach(port(5), program, FORCE).unwrap();
    let dropped = CaptureConfig { verdicts: VerdictSet(1 << 1), queue: Some(0), ..CaptureConfig::default() };
    let sampled = CaptureConfig { every: 10, at: CaptureAt::Entry, ..CaptureConfig::default() };
    let even = Rust::new(|_, frame| u64::from(frame.packet()[3] % 2 == 0));
    let filtered = CaptureConfig { filter: Some(even), ..CaptureConfig::default() };
    let small = CaptureConfig { room: 3, ..CaptureConfig::default() };
    let captures = [dropped, sampled, filtered, small].map(|config| engine.capture(config).unwrap());
    (0..2).for_each(|queue| wire.send(queue, 60));
    // What goes on is sent behind that.
    eventually(|| decided(&engine) == 120);
    eventually(|| wire.sent_count() == 40);
    let take = |capture: &Capture| -> Vec<Captured> { std::iter::from_fn(|| capture.next(Duration::ZERO)).collect() };
    let [dropped, sampled, filtered, small] = captures.each_ref().map(take);
    let lost: Vec<u64> = captures.iter().map(|capture| capture.lost()).collect();
    assert_eq!((dropped.len(), sampled.len(), filtered.len(), small.len()), (20, 12, 60, 3));
    assert_eq!(lost, [0, 0, 0, 117]);
    assert!(dropped.iter().all(|c| c.verdict == Some(Ok(Verdict::Drop)) && c.frame.packet()[20] == 0xee));
    assert!(dropped.iter().all(|c| c.frame.rx_queue() == 0 && c.program == "rust" && c.frame.packet()[3] % 3 == 0));
    assert!(sampled.iter().all(|c| c.verdict.is_none() && c.frame.packet()[20] == 0), "before the program");
    assert!(filtered.iter().all(|c| c.frame.packet()[3] % 2 == 0 && c.time_ns > 0));
    assert_eq!(filtered.iter().filter(|c| c.verdict == Some(Err(9))).count(), 20);
    assert_eq!(wire.sent().len(), 40, "what goes on is not touched");
    drop((dropped, sampled, filtered, small));
    drop(captures);
    wire.send(0, 10);
    eventually(|| engine.queues()[0].counters.rx == 70);
    settled(engine);
}

/// Its queue is longer than the pool: what it holds of the pool ends where the pool has no more to spare.
#[test]
fn a_watcher_that_never_fetches_starves_nobody() {
    let engine = engine(1);
    let wire = Wire::new(5, 1);
    let pool = Some(PoolConfig::new(128));
    engine.open(wire.device(), PortConfig { pool, ..PortConfig::default() }).unwrap();
    engine.attach(port(5), Rust::new(|_, _| Verdict::Drop as u64), FORCE).unwrap();
    let capture = engine.capture(CaptureConfig { room: 4096, ..CaptureConfig::default() }).unwrap();
    wire.send(0, 5000);
    eventually(|| decided(&engine) == 5000);
    let held = std::iter::from_fn(|| capture.next(Duration::ZERO)).count() as u64;
    assert!((1..128).contains(&held), "{held}");
    assert_eq!(held + capture.lost(), 5000);
    drop(capture);
    settled(engine);
}
