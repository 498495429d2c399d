//! The burst loop over ports made of memory: where each verdict leads, what is counted, and that nothing is lost unseen.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use xway_abi::{Errno, MapSpec, MapType, Verdict};
use xway_engine::{
    Capabilities, End, Event, EventKind, Executor, ExecutorInfo, Limits, Port, PortError, PortErrorKind, PortStats,
    Recorder, Report, Results, Rx, Sent, Stop, Support, Worker, WorkerConfig,
};
use xway_maps::{Env, Guard, Map};
use xway_packet::{Burst, Frame, Pool, PoolConfig, Redirect};

/// What a memory port was given, shared with the test.
#[derive(Default)]
struct Seen {
    sent: Vec<Vec<u8>>,
    passed: Vec<Vec<u8>>,
    flushes: usize,
    bursts: Vec<usize>,
}

/// A port made of memory: plays a list of packets and remembers what it is given.
struct MemoryPort {
    ifindex: u32,
    input: std::collections::VecDeque<Vec<u8>>,
    /// What to say when the input is empty.
    then: Option<Rx>,
    /// Takes this many frames of each burst, then is full.
    room: usize,
    /// Fails all frames with this.
    broken: Option<Errno>,
    /// Forgets this many frames of each burst without a word, which a port must not.
    careless: usize,
    seen: Arc<Mutex<Seen>>,
}

impl MemoryPort {
    fn new(ifindex: u32, input: impl IntoIterator<Item = Vec<u8>>) -> (Box<MemoryPort>, Arc<Mutex<Seen>>) {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let port = MemoryPort {
            ifindex,
            input: input.into_iter().collect(),
            then: Some(Rx::End),
            room: usize::MAX,
            broken: None,
            careless: 0,
            seen: seen.clone(),
        };
        (Box::new(port), seen)
    }

    fn take(&self, burst: &mut Burst, pool: &mut Pool, to: impl Fn(&mut Seen) -> &mut Vec<Vec<u8>>) -> Sent {
        if let Some(errno) = self.broken {
            let sent = Sent::none(burst.len(), errno);
            pool.release_burst(burst);
            return sent;
        }
        let mut sent = Sent::default();
        for frame in burst.drain().skip(self.careless) {
            if (sent.sent as usize) < self.room {
                sent.sent += 1;
                to(&mut self.seen.lock().unwrap()).push(frame.packet().to_vec());
            } else {
                sent.full += 1;
            }
            pool.release(frame);
        }
        sent
    }
}

impl Port for MemoryPort {
    fn name(&self) -> &str {
        "memory"
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { redirect_to: Support::Full, ..Capabilities::copying() }
    }

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        for _ in 0..budget.min(burst.room()) {
            let Some(packet) = self.input.pop_front() else {
                return self.then.ok_or_else(|| PortError::new("memory", PortErrorKind::Input, "cut in the middle"));
            };
            let mut frame = pool.alloc().expect("every frame is home between bursts");
            frame.fill(&packet).unwrap();
            frame.set_ingress(self.ifindex, queue);
            burst.push(frame).unwrap();
        }
        self.seen.lock().unwrap().bursts.push(burst.len());
        Ok(Rx::More)
    }

    fn tx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.take(burst, pool, |seen| &mut seen.sent)
    }

    fn pass(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.take(burst, pool, |seen| &mut seen.passed)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.seen.lock().unwrap().flushes += 1;
        Ok(())
    }

    fn stats(&mut self) -> PortStats {
        PortStats::default()
    }
}

/// A program in Rust: r0 for each frame, `None` to be stopped for a fault.
struct Program<F>(F);

impl<F: FnMut(&mut Frame) -> Option<u64> + Send> Executor for Program<F> {
    fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
        for frame in frames {
            match (self.0)(frame) {
                Some(ret) => results.push(ret, 3),
                None => results.push_fault("out of bounds".into(), 2),
            }
        }
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: "prog".into(), engine: "rust" }
    }
}

fn config() -> WorkerConfig {
    WorkerConfig::new(Stop::new().unwrap())
}

fn run(
    ports: Vec<Box<dyn Port>>,
    config: WorkerConfig,
    program: impl FnMut(&mut Frame) -> Option<u64> + Send + 'static,
) -> Report {
    run_in(PoolConfig::new(192), ports, config, program)
}

fn run_in(
    pool: PoolConfig,
    ports: Vec<Box<dyn Port>>,
    config: WorkerConfig,
    program: impl FnMut(&mut Frame) -> Option<u64> + Send + 'static,
) -> Report {
    let pool = Pool::new(pool).unwrap();
    let report = Worker::new(ports, Box::new(Program(program)), pool, config).run();
    assert_eq!(report.counters.balance(), Ok(()));
    assert_eq!((report.leak, report.pool.outstanding), (None, 0));
    report
}

/// Packets whose first byte is their number.
fn packets(count: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|number| vec![number as u8; 60])
}

fn first_bytes(packets: &[Vec<u8>]) -> Vec<u8> {
    packets.iter().map(|packet| packet[0]).collect()
}

#[test]
fn each_verdict_leads_where_it_should() {
    let (input, seen) = MemoryPort::new(3, packets(10));
    let (other, others) = MemoryPort::new(4, []);
    let report = run(vec![input, other], config(), |frame| {
        let number = frame.packet()[0];
        frame.packet_mut()[1] = 0xee;
        frame.set_redirect(Redirect::Ifindex(4));
        Some(u64::from(number % 5) | if number > 4 { 0xffff_ffff_0000_0000 } else { 0 })
    });
    let counters = &report.counters;
    assert!(matches!(report.end, End::Input));
    assert_eq!(counters.verdicts, [2; 5]);
    assert_eq!((counters.rx, counters.rx_bytes, counters.bursts, counters.insns), (10, 600, 1, 30));
    assert_eq!((counters.passed, counters.tx, counters.redirected), (2, 2, 2));
    let (seen, others) = (seen.lock().unwrap(), others.lock().unwrap());
    assert_eq!((first_bytes(&seen.passed), first_bytes(&seen.sent)), (vec![2, 7], vec![3, 8]));
    assert_eq!(first_bytes(&others.sent), [4, 9]);
    assert!(seen.passed.iter().chain(&seen.sent).chain(&others.sent).all(|packet| packet[1] == 0xee));
    assert_eq!((seen.flushes, others.flushes), (1, 1), "one doorbell for each target");
}

#[test]
fn a_port_without_frames_hears_no_doorbell() {
    let (input, seen) = MemoryPort::new(1, packets(200));
    let (other, others) = MemoryPort::new(2, []);
    run(vec![input, other], config(), |_| Some(Verdict::Drop as u64));
    assert_eq!((seen.lock().unwrap().flushes, others.lock().unwrap().flushes), (0, 0));
    assert_eq!(seen.lock().unwrap().bursts, [64, 64, 64]);
}

#[test]
fn codes_that_are_no_verdict_drop_and_are_told_by_code() {
    let (input, _) = MemoryPort::new(1, packets(100));
    let report = run(vec![input], config(), |frame| Some(5 + u64::from(frame.packet()[0])));
    assert_eq!(report.counters.invalid, 100);
    let codes = &report.counters.invalid_codes;
    assert_eq!((codes.get(5), codes.get(6), codes.total()), (1, 1, 100));
    assert_eq!((codes.entries().len(), codes.others()), (32, 68), "a program cannot make the counters grow");
}

#[test]
fn redirects_that_lead_nowhere_are_counted_by_reason() {
    let (input, _) = MemoryPort::new(1, packets(4));
    let report = run(vec![input], config(), |frame| {
        let target = match frame.packet()[0] {
            0 => Redirect::None,
            1 => Redirect::Ifindex(77),
            2 => Redirect::Device { map_id: 1, key: 0, ifindex: 77 },
            _ => Redirect::Socket { map_id: 1, key: 0 },
        };
        frame.set_redirect(target);
        Some(4)
    });
    let errors = &report.counters.redirect_err;
    let by_reason = [Errno::EBADRQC, Errno::EINVAL, Errno::ENODEV, Errno::ENOENT].map(|errno| errors.get(errno));
    assert_eq!((by_reason, errors.total()), ([1, 1, 1, 1], 4));
}

#[test]
fn a_fallback_takes_redirects_to_interfaces_that_are_no_ports() {
    let (input, seen) = MemoryPort::new(1, packets(3));
    let config = WorkerConfig { redirect_fallback: Some(0), ..config() };
    let report = run(vec![input], config, |frame| {
        frame.set_redirect(Redirect::Ifindex(u32::from(frame.packet()[0]) * 40));
        Some(4)
    });
    assert_eq!((report.counters.redirected, report.counters.redirect_err.get(Errno::EINVAL)), (2, 1), "0 is nobody");
    assert_eq!(first_bytes(&seen.lock().unwrap().sent), [1, 2]);
}

#[test]
fn redirect_to_a_cpu_ends_on_the_stack_side() {
    let (input, seen) = MemoryPort::new(1, packets(1));
    let report = run(vec![input], config(), |frame| {
        frame.set_redirect(Redirect::Cpu { map_id: 1, cpu: 0 });
        Some(4)
    });
    assert_eq!((report.counters.redirected, seen.lock().unwrap().passed.len()), (1, 1));
}

#[test]
fn a_broadcast_reaches_every_port_of_the_map_but_the_ingress() {
    let spec = MapSpec::new(MapType::Devmap, 4, 4, 8);
    let map = Map::create(&spec, &Env::default()).unwrap();
    for (key, ifindex) in [(0u32, 1u32), (1, 2), (2, 3), (5, 99)] {
        map.update(&key.to_ne_bytes(), &ifindex.to_ne_bytes(), 0).unwrap();
    }
    for (exclude_ingress, frames) in [(true, 192), (false, 192), (false, 128)] {
        let (input, one) = MemoryPort::new(1, packets(64));
        let (second, two) = MemoryPort::new(2, []);
        let (third, three) = MemoryPort::new(3, []);
        let config = WorkerConfig { maps: vec![map.clone()], ..config() };
        let map_id = map.id();
        let report = run_in(PoolConfig::new(frames), vec![input, second, third], config, move |frame| {
            frame.set_redirect(Redirect::Broadcast { map_id, exclude_ingress });
            Some(4)
        });
        let sent = [one, two, three].map(|seen| seen.lock().unwrap().sent.clone());
        let numbers: Vec<u8> = (0..64).collect();
        let counters = &report.counters;
        let copies = (counters.copies, counters.copies_lost.get(Errno::ENOMEM));
        assert_eq!(counters.redirected, 64);
        match (exclude_ingress, frames) {
            (true, _) => {
                assert_eq!(
                    (sent[0].len(), first_bytes(&sent[1]), first_bytes(&sent[2])),
                    (0, numbers.clone(), numbers)
                );
                assert_eq!(copies, (64, 0));
            }
            (false, 192) => {
                assert!(sent.iter().all(|port| first_bytes(port) == numbers));
                assert_eq!(copies, (128, 0));
            }
            // No memory for half of the copies: the frames themselves go, what is missing is counted.
            _ => {
                assert_eq!(first_bytes(&sent[0]), numbers);
                assert_eq!(copies, (64, 64));
            }
        }
    }
}

#[test]
fn full_and_broken_ports_and_careless_ones_are_accounted_for() {
    let cases = [(Verdict::Tx, Errno::ENETDOWN), (Verdict::Pass, Errno::EIO), (Verdict::Redirect, Errno::EMSGSIZE)];
    for (verdict, errno) in cases {
        let program = move |frame: &mut Frame| {
            frame.set_redirect(Redirect::Ifindex(1));
            Some(verdict as u64)
        };
        let numbers = |report: &Report, errno| {
            let counters = &report.counters;
            match verdict {
                Verdict::Tx => (counters.tx, counters.tx_full, counters.tx_err.get(errno)),
                Verdict::Pass => {
                    (counters.passed, counters.pass_lost.get(Errno::ENOBUFS), counters.pass_lost.get(errno))
                }
                _ => (counters.redirected, counters.redirect_err.get(Errno::ENOSPC), counters.redirect_err.get(errno)),
            }
        };
        let (mut port, _) = MemoryPort::new(1, packets(10));
        port.room = 7;
        assert_eq!(numbers(&run(vec![port], config(), program), errno), (7, 3, 0));
        let (mut port, _) = MemoryPort::new(1, packets(10));
        port.broken = Some(errno);
        assert_eq!(numbers(&run(vec![port], config(), program), errno), (0, 0, 10));
        let (mut port, _) = MemoryPort::new(1, packets(10));
        port.careless = 4;
        assert_eq!(numbers(&run(vec![port], config(), program), Errno::EIO), (6, 0, 4));
    }
}

#[test]
fn pass_can_go_out_of_another_port() {
    let (left, left_seen) = MemoryPort::new(1, packets(3));
    let (right, right_seen) = MemoryPort::new(2, packets(5));
    let config = WorkerConfig { inputs: vec![(0, 0), (1, 0)], pass_to: vec![(0, 1), (1, 0)], ..config() };
    let report = run(vec![left, right], config, |_| Some(2));
    assert_eq!(report.counters.passed, 8);
    assert_eq!((left_seen.lock().unwrap().sent.len(), right_seen.lock().unwrap().sent.len()), (5, 3));
}

#[test]
fn bursts_are_as_long_as_they_may_be() {
    for (burst, bursts, step) in [(1, 100, 0), (7, 15, 3), (16, 7, 4), (64, 2, 6), (1000, 2, 6)] {
        let (port, _) = MemoryPort::new(1, packets(100));
        let report = run(vec![port], WorkerConfig { burst, ..config() }, |_| Some(1));
        let c = &report.counters;
        assert_eq!((c.rx, c.bursts, c.burst_sizes.iter().sum::<u64>()), (100, bursts, bursts), "{burst}");
        assert!(c.burst_sizes[step] > 0 && c.burst_sizes[step + 1..].iter().all(|n| *n == 0), "{burst}: {c:?}");
    }
}

#[test]
fn limits_and_stop_end_a_run() {
    for (count, received) in [(0, 0), (1, 1), (64, 64), (100, 100), (1000, 200)] {
        let (input, _) = MemoryPort::new(1, packets(200));
        let config = WorkerConfig { limits: Limits { count: Some(count), timeout: None }, ..config() };
        let report = run(vec![input], config, |_| Some(1));
        assert_eq!(report.counters.rx, received, "exactly as many as asked for");
        assert_eq!(matches!(report.end, End::Count), count <= 200);
    }

    let (mut input, _) = MemoryPort::new(1, packets(5));
    input.then = Some(Rx::Idle);
    let timeout = Duration::from_millis(30);
    let config = WorkerConfig { limits: Limits { count: None, timeout: Some(timeout) }, ..config() };
    let report = run(vec![input], config, |_| Some(1));
    assert!(matches!(report.end, End::Timeout) && report.elapsed >= timeout);

    let (mut input, _) = MemoryPort::new(1, packets(5));
    input.then = Some(Rx::Idle);
    let stop = Stop::new().unwrap();
    let config = WorkerConfig::new(stop.clone());
    let report = std::thread::scope(|scope| {
        let worker = scope.spawn(move || run(vec![input], config, |_| Some(1)));
        std::thread::sleep(Duration::from_millis(20));
        stop.ask();
        worker.join().unwrap()
    });
    assert!(matches!(report.end, End::Stopped));
    assert_eq!(report.counters.rx, 5);
}

/// A port that sleeps on a descriptor that never becomes readable: only the stop can end the sleep.
struct Asleep(rustix::fd::OwnedFd);

impl Port for Asleep {
    fn name(&self) -> &str {
        "asleep"
    }
    fn ifindex(&self) -> u32 {
        1
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::copying()
    }
    fn rx(&mut self, _: u32, _: &mut Pool, _: &mut Burst, _: usize) -> Result<Rx, PortError> {
        Ok(Rx::Idle)
    }
    fn tx(&mut self, _: u32, _: &mut Pool, burst: &mut Burst) -> Sent {
        Sent::all(burst.len())
    }
    fn pass(&mut self, _: u32, _: &mut Pool, burst: &mut Burst) -> Sent {
        Sent::all(burst.len())
    }
    fn fd(&self) -> Option<rustix::fd::BorrowedFd<'_>> {
        use rustix::fd::AsFd;
        Some(self.0.as_fd())
    }
    fn stats(&mut self) -> PortStats {
        PortStats::default()
    }
}

#[test]
fn a_stop_wakes_a_sleeping_worker() {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let stop = Stop::new().unwrap();
    let config = WorkerConfig::new(stop.clone());
    let started = Instant::now();
    let report = std::thread::scope(|scope| {
        let worker = scope.spawn(move || run(vec![Box::new(Asleep(fd))], config, |_| Some(1)));
        std::thread::sleep(Duration::from_millis(50));
        stop.ask();
        worker.join().unwrap()
    });
    assert!(matches!(report.end, End::Stopped));
    // Without the wake-up it would sleep for ever; this only says that the test got here.
    assert!(started.elapsed() >= Duration::from_millis(50));
}

#[test]
fn a_failing_port_ends_the_run_and_what_came_before_is_counted() {
    let (mut input, seen) = MemoryPort::new(1, packets(70));
    input.then = None;
    let report = run(vec![input], config(), |_| Some(2));
    let End::Failed(error) = &report.end else { panic!("{:?}", report.end) };
    assert_eq!(error.to_string(), "memory: cut in the middle");
    assert_eq!((report.counters.rx, seen.lock().unwrap().passed.len()), (70, 70));
}

/// First byte of a frame, and its verdict.
type Note = (u8, Result<Verdict, u32>);

/// Remembers what it saw; fails after some records.
struct Notes {
    seen: Arc<Mutex<Vec<Note>>>,
    fail_after: usize,
}

impl Recorder for Notes {
    fn record(&mut self, frame: &Frame, verdict: Result<Verdict, u32>) -> Result<(), PortError> {
        let mut seen = self.seen.lock().unwrap();
        if seen.len() == self.fail_after {
            return Err(PortError::new("notes", PortErrorKind::Output, "disk full"));
        }
        seen.push((frame.packet()[0], verdict));
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), PortError> {
        self.seen.lock().unwrap().push((255, Err(0)));
        Ok(())
    }
}

#[test]
fn the_recorder_sees_every_frame_and_is_finished_also_when_it_fails() {
    for fail_after in [usize::MAX, 2] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let recorder = Box::new(Notes { seen: seen.clone(), fail_after });
        let (input, _) = MemoryPort::new(1, packets(6));
        let config = WorkerConfig { recorder: Some(recorder), ..config() };
        let report = run(vec![input], config, |frame| Some(u64::from(frame.packet()[0])));
        let seen = seen.lock().unwrap();
        assert_eq!(seen.last(), Some(&(255, Err(0))), "finished");
        if fail_after == 2 {
            assert!(matches!(report.end, End::Failed(_)));
            assert_eq!(seen.len(), 3);
        } else {
            let all: Vec<_> = Verdict::ALL.into_iter().enumerate().map(|(n, verdict)| (n as u8, Ok(verdict))).collect();
            assert_eq!(seen[..5], all);
            assert_eq!(seen[5], (5, Err(5)));
        }
    }
}

#[test]
fn events_tell_what_happened_at_a_bounded_rate() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let subscriber = {
        let told = told.clone();
        move |event: &Event<'_>| {
            let text = match event.kind {
                EventKind::Exception { fault } => {
                    format!("exception: {}", fault.map_or("by itself".into(), |f| f.to_string()))
                }
                EventKind::InvalidAction { code } => format!("invalid {code}"),
                EventKind::RedirectError { errno, target } => format!("redirect {errno} {target:?}"),
                EventKind::TxError { errno, ifindex, count } => format!("tx {errno} {count} on {ifindex}"),
            };
            told.lock().unwrap().push(format!("{}: {text}, {} before", event.program, event.suppressed));
        }
    };
    let (input, _) = MemoryPort::new(1, packets(200));
    let config = WorkerConfig { subscriber: Some(Box::new(subscriber)), events_per_second: 2, ..config() };
    let report = run(vec![input], config, |frame| match frame.packet()[0] % 4 {
        0 => None,
        1 => Some(0),
        2 => Some(9),
        _ => Some(4),
    });
    assert_eq!(report.counters.exceptions, 50);
    assert_eq!(report.counters.verdict(Verdict::Aborted), 100);
    let mut told = told.lock().unwrap().clone();
    told.sort();
    // More are told only if the run crosses into another second.
    assert!((6..=12).contains(&told.len()), "{told:?}");
    let has = |what: &str| told.iter().any(|line| line.starts_with(what));
    assert!(has("prog: exception: out of bounds") && has("prog: exception: by itself"), "{told:?}");
    assert!(has("prog: invalid 9") && has("prog: redirect EBADRQC None"), "{told:?}");
}

#[test]
fn a_full_queue_is_an_event_with_the_number_of_frames() {
    for (room, broken, expected) in [(7, None, (Errno::ENOSPC, 3)), (99, Some(Errno::ENETDOWN), (Errno::ENETDOWN, 10))]
    {
        let told = Arc::new(Mutex::new(Vec::new()));
        let subscriber = {
            let told = told.clone();
            move |event: &Event<'_>| match event.kind {
                EventKind::TxError { errno, ifindex, count } => told.lock().unwrap().push((errno, count, ifindex)),
                other => panic!("{other:?}"),
            }
        };
        let (mut port, _) = MemoryPort::new(5, packets(10));
        (port.room, port.broken) = (room, broken);
        let config = WorkerConfig { subscriber: Some(Box::new(subscriber)), ..config() };
        let report = run(vec![port], config, |_| Some(Verdict::Tx as u64));
        assert_eq!(*told.lock().unwrap(), [(expected.0, expected.1, 5)]);
        assert_eq!(report.counters.tx_full + report.counters.tx_err.total(), u64::from(expected.1));
    }
}

/// What one frame's program does.
#[derive(Clone, Copy, Debug)]
struct Choice {
    ret: Option<u64>,
    redirect: Redirect,
}

fn choice() -> impl Strategy<Value = Choice> {
    let ret = prop_oneof![Just(None), (0..7u64).prop_map(Some), any::<u64>().prop_map(Some)];
    let redirect = prop_oneof![
        Just(Redirect::None),
        (0..5u32).prop_map(Redirect::Ifindex),
        (0..5u32).prop_map(|ifindex| Redirect::Device { map_id: 1, key: 0, ifindex }),
        any::<bool>().prop_map(|exclude_ingress| Redirect::Broadcast { map_id: 0, exclude_ingress }),
        Just(Redirect::Cpu { map_id: 1, cpu: 0 }),
        Just(Redirect::Socket { map_id: 1, key: 0 }),
    ];
    (ret, redirect).prop_map(|(ret, redirect)| Choice { ret, redirect })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever programs and ports do: in = out + each named loss, and every frame comes home. `run` checks it.
    #[test]
    fn frames_in_are_frames_out_plus_named_losses(
        choices in prop::collection::vec(choice(), 0..300),
        rooms in prop::array::uniform3(prop_oneof![Just(usize::MAX), 0..70usize]),
        careless in prop::array::uniform3(prop_oneof![Just(0usize), 0..9usize]),
        pass_to in prop::collection::vec((0..3usize, 0..3usize), 0..3),
    ) {
        let spec = MapSpec::new(MapType::Devmap, 4, 4, 4);
        let map = Map::create(&spec, &Env::default()).unwrap();
        for key in 0..3u32 {
            map.update(&key.to_ne_bytes(), &(key + 1).to_ne_bytes(), 0).unwrap();
        }
        let map_id = map.id();
        let mut ports: Vec<Box<dyn Port>> = Vec::new();
        let mut seen = Vec::new();
        for at in 0..3 {
            let count = if at == 0 { choices.len() } else { 0 };
            let (mut port, its) = MemoryPort::new(at as u32 + 1, packets(count));
            (port.room, port.careless) = (rooms[at], careless[at]);
            ports.push(port);
            seen.push(its);
        }
        let mut next = 0;
        let config = WorkerConfig { maps: vec![map], pass_to, ..config() };
        let report = run(ports, config, move |frame| {
            let choice = choices[next];
            next += 1;
            frame.set_redirect(match choice.redirect {
                Redirect::Broadcast { exclude_ingress, .. } => Redirect::Broadcast { map_id, exclude_ingress },
                other => other,
            });
            choice.ret
        });
        let delivered: usize = seen.iter().map(|seen| seen.lock().unwrap()).map(|seen| seen.sent.len() + seen.passed.len()).sum();
        let counters = &report.counters;
        // What goes over a CPUMAP is redirected, comes in again, and passes.
        let sent = counters.passed + counters.tx + counters.redirected + counters.copies - counters.cpu_in;
        prop_assert_eq!(delivered as u64, sent);
    }
}
