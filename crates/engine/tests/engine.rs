//! Workers, queues and programs that change while packets flow: nothing is lost, nothing is out of order, everything adds up.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Rust, Wire, eventually, frame_number};
use xway_abi::{Errno, Verdict};
use xway_engine::{
    AttachFlags, Attached, Counters, Engine, EngineConfig, EngineError, HookPoint, OneQueue, PassTo, PortConfig,
    QueueReport, VerdictSet,
};
use xway_packet::Redirect;

const FORCE: AttachFlags = AttachFlags { if_noexist: false, replace: None };

fn engine(workers: u32) -> Engine {
    Engine::start(EngineConfig { workers, ..EngineConfig::default() }).unwrap()
}

fn port(ifindex: u32) -> HookPoint {
    HookPoint { ifindex, queue: None }
}

fn queue(ifindex: u32, queue: u32) -> HookPoint {
    HookPoint { ifindex, queue: Some(queue) }
}

/// Every queue is balanced and no frame is away. Gives the sum of all counters.
fn settled(reports: &[QueueReport]) -> Counters {
    let mut sum = Counters::default();
    for report in reports {
        let what = (&report.port, report.queue);
        assert_eq!(report.counters.balance(), Ok(()), "{what:?}");
        assert_eq!(report.counters.relay_balance(), Ok(()), "{what:?}");
        assert_eq!((report.leak, report.pool.outstanding), (None, 0), "{what:?}");
        sum.merge(&report.counters);
    }
    sum
}

fn stop(engine: Engine) -> Counters {
    let stopped = engine.stop();
    stopped.cpus.iter().for_each(|cpu| assert_eq!(cpu.balance(), Ok(())));
    settled(&stopped.queues)
}

#[test]
fn a_port_without_a_program_passes_everything() {
    let engine = engine(1);
    let wire = Wire::new(7, 1);
    engine.open(wire.device(), PortConfig::default()).unwrap();
    wire.send(0, 1000);
    eventually(|| wire.passed().len() == 1000);
    let sum = stop(engine);
    assert_eq!((sum.rx, sum.verdict(Verdict::Pass), sum.passed), (1000, 1000, 1000));
    assert_eq!(
        wire.passed().iter().map(|packet| frame_number(packet)).collect::<Vec<_>>(),
        (0..1000).collect::<Vec<_>>()
    );
}

#[test]
fn queues_are_served_by_the_workers_they_are_given_to() {
    let engine = engine(3);
    let wire = Wire::new(7, 4);
    let config = PortConfig { queues: Some(vec![(0, 2), (1, 0), (3, 2)]), ..PortConfig::default() };
    engine.open(wire.device(), config).unwrap();
    let on_worker = Rust::new(|worker, frame| {
        frame.packet_mut()[20] = worker as u8;
        Verdict::Tx as u64
    });
    engine.attach(port(7), on_worker, FORCE).unwrap();
    (0..4).for_each(|queue| wire.send(queue, 100));
    eventually(|| wire.sent().len() == 300);
    assert_eq!(engine.queues().iter().map(|q| (q.queue, q.worker)).collect::<Vec<_>>(), [(0, 2), (1, 0), (3, 2)]);
    // Queue 2 joins while the others run.
    engine.add_queue(7, 2, 1).unwrap();
    eventually(|| wire.sent().len() == 400);
    for packet in wire.sent() {
        let queue = usize::from(packet[4]);
        assert_eq!(packet[20], [2, 0, 1, 2][queue]);
    }
    let taken = engine.add_queue(7, 2, 0).unwrap_err().to_string();
    assert_eq!(taken, "wire7: queue 2 is served by worker 1; remove it there first");
    assert!(matches!(engine.add_queue(7, 9, 0), Err(EngineError::NoQueue { queue: 9, queues: 4, .. })));
    assert!(matches!(engine.add_queue(8, 0, 0), Err(EngineError::NoPort { ifindex: 8 })));
    assert!(matches!(engine.open(Wire::new(7, 1).device(), PortConfig::default()), Err(EngineError::PortTaken { .. })));
    let sum = stop(engine);
    assert_eq!((sum.tx, sum.rx), (400, 400));
}

#[test]
fn a_port_that_another_worker_serves_is_reached_through_its_owner() {
    let engine = engine(2);
    let (left, right) = (Wire::new(1, 1), Wire::new(2, 1));
    engine.open(left.device(), PortConfig { queues: Some(vec![(0, 0)]), ..PortConfig::default() }).unwrap();
    engine.open(right.device(), PortConfig { queues: Some(vec![(0, 1)]), ..PortConfig::default() }).unwrap();
    let across = Rust::new(|_, frame| {
        frame.set_redirect(Redirect::Ifindex(3 - frame.ingress_ifindex()));
        Verdict::Redirect as u64
    });
    engine.attach(port(1), across.clone(), FORCE).unwrap();
    engine.set_pass(2, PassTo::Port(1)).unwrap();
    left.send(0, 1500);
    right.send(0, 1200);
    eventually(|| right.sent().len() == 1500 && left.sent().len() == 1200);
    let in_order = |packets: Vec<Vec<u8>>| packets.iter().map(|p| frame_number(p)).is_sorted();
    assert!(in_order(right.sent()) && in_order(left.sent()));
    let reports = engine.stop().queues;
    let sum = settled(&reports);
    assert_eq!((sum.redirected, sum.passed, sum.relay_in, sum.relay_sent), (1500, 1200, 2700, 2700));
}

#[test]
fn a_full_ring_between_workers_loses_frames_with_a_reason() {
    let engine = Engine::start(EngineConfig { workers: 2, ring_len: 10, ..EngineConfig::default() }).unwrap();
    let (left, right) = (Wire::new(1, 1), Wire::new(2, 1));
    engine.open(left.device(), PortConfig { queues: Some(vec![(0, 0)]), ..PortConfig::default() }).unwrap();
    engine.open(right.device(), PortConfig { queues: Some(vec![(0, 1)]), ..PortConfig::default() }).unwrap();
    let across = Rust::new(|_, frame| {
        frame.set_redirect(Redirect::Ifindex(2));
        Verdict::Redirect as u64
    });
    engine.attach(port(1), across, FORCE).unwrap();
    right.hold(true);
    left.send(0, 640);
    eventually(|| engine.queues()[0].counters.rx == 640);
    right.hold(false);
    let sum = stop(engine);
    assert!(sum.redirect_err.get(Errno::ENOSPC) > 0);
    assert_eq!(sum.redirected + sum.redirect_err.total(), 640);
    assert_eq!(right.sent().len() as u64, sum.redirected);
}

#[test]
fn a_thousand_swaps_under_load_lose_and_reorder_nothing() {
    let engine = engine(2);
    let wire = Wire::new(5, 2);
    engine.open(wire.device(), PortConfig::default()).unwrap();
    let mark = |number: u8| {
        Rust::new(move |_, frame| {
            frame.packet_mut()[20] = number;
            Verdict::Tx as u64
        })
    };
    let programs = [mark(1), mark(2)];
    engine.attach(port(5), programs[0].clone(), FORCE).unwrap();
    wire.flood(true);
    for swap in 1..=1000usize {
        let expected = programs[(swap - 1) % 2].id();
        let flags = AttachFlags { replace: Some(expected), ..FORCE };
        engine.attach(port(5), programs[swap % 2].clone(), flags).unwrap();
        // Now and then with packets behind it, of the one program and of the other.
        if swap % 99 == 0 {
            let before = wire.sent_count();
            eventually(|| wire.sent_count() > before + 1000);
        }
    }
    eventually(|| wire.sent_count() > 10_000);
    wire.flood(false);
    eventually(|| wire.idle());
    let reports = engine.stop().queues;
    let sum = settled(&reports);
    assert_eq!(sum.rx, wire.offered());
    assert_eq!((sum.tx, sum.verdict(Verdict::Pass)), (sum.rx, 0), "never without a program");
    let sent = wire.sent();
    for queue in 0..2u8 {
        let numbers: Vec<u32> = sent.iter().filter(|p| p[4] == queue).map(|p| frame_number(p)).collect();
        assert!(numbers.iter().enumerate().all(|(at, number)| at as u32 == *number), "queue {queue}");
    }
    assert!(sent.iter().all(|packet| matches!(packet[20], 1 | 2)));
    let changes = sent.windows(2).filter(|two| two[0][4] == two[1][4] && two[0][20] != two[1][20]).count();
    assert!(changes >= 5, "{changes}: each program ran, again and again");
}

#[test]
fn the_programs_of_a_queue_win_over_those_of_its_port() {
    let engine = engine(1);
    let wire = Wire::new(5, 2);
    engine.open(wire.device(), PortConfig::default()).unwrap();
    let returning = |verdict: Verdict| Rust::new(move |_, _| verdict as u64);
    engine.attach(port(5), returning(Verdict::Drop), FORCE).unwrap();
    engine.attach(queue(5, 1), returning(Verdict::Tx), FORCE).unwrap();
    let round = |rx: u64| {
        (0..2).for_each(|queue| wire.send(queue, 10));
        // Counted as received before it is decided, and as sent behind that.
        let ended = |c: &Counters| c.verdict(Verdict::Drop) + c.tx;
        eventually(|| engine.queues().iter().map(|queue| ended(&queue.counters)).sum::<u64>() == rx);
        engine.queues().iter().map(|q| (q.counters.verdict(Verdict::Drop), q.counters.tx)).collect::<Vec<_>>()
    };
    assert_eq!(round(20), [(10, 0), (0, 10)]);
    assert_eq!(engine.queues().iter().map(|q| q.own_programs).collect::<Vec<_>>(), [false, true]);
    // A change of the port's program does not touch the queue; taking the queue's own off does.
    engine.attach(port(5), returning(Verdict::Drop), FORCE).unwrap();
    assert_eq!(round(40), [(20, 0), (0, 20)]);
    engine.detach(queue(5, 1), None).unwrap();
    assert_eq!(round(60), [(30, 0), (10, 20)]);
    assert!(matches!(engine.detach(queue(5, 7), None), Err(EngineError::NoQueue { .. })));
    let busy = engine.attach(port(5), returning(Verdict::Tx), AttachFlags { if_noexist: true, ..FORCE });
    let Err(EngineError::Attach { cause, .. }) = busy else { panic!() };
    assert_eq!(cause.errno, Errno::EBUSY);
    stop(engine);
}

#[test]
fn a_chain_grows_and_shrinks_under_traffic_and_counts_for_each_program() {
    let engine = engine(1);
    let ended = |c: &Counters| c.verdict(Verdict::Drop) + c.tx;
    let wire = Wire::new(5, 1);
    engine.open(wire.device(), PortConfig::default()).unwrap();
    let odd = Rust::new(|_, frame| if frame_number(frame.packet()) % 2 == 1 { 1 } else { 2 });
    let back = Rust::new(|_, _| Verdict::Tx as u64);
    engine.chain(port(5), Attached { priority: 20, ..Attached::new(back.clone()) }).unwrap();
    engine.chain(port(5), Attached { priority: 10, ..Attached::new(odd.clone()) }).unwrap();
    wire.send(0, 100);
    eventually(|| ended(&engine.queues()[0].counters) == 100);
    let programs = engine.queues()[0].programs.clone();
    assert_eq!(programs.iter().map(|(id, _, c)| (*id, c.runs)).collect::<Vec<_>>(), [(odd.id(), 100), (back.id(), 50)]);
    engine.unchain(port(5), odd.id()).unwrap();
    wire.send(0, 10);
    eventually(|| ended(&engine.queues()[0].counters) == 110);
    assert_eq!(engine.queues()[0].programs[0].2.runs, 60, "it goes on counting");
    let on_tx = Attached { priority: 30, chain_on: VerdictSet::PASS, ..Attached::new(odd.clone()) };
    engine.chain(port(5), on_tx).unwrap();
    wire.send(0, 10);
    eventually(|| ended(&engine.queues()[0].counters) == 120);
    assert_eq!(engine.queues()[0].programs[1].2.runs, 0, "TX ends the chain");
    let sum = stop(engine);
    assert_eq!((sum.tx, sum.verdict(Verdict::Drop)), (70, 50));
}

#[test]
fn queues_and_ports_come_and_go_under_traffic() {
    let engine = engine(2);
    let (one, two) = (Wire::new(1, 2), Wire::new(2, 1));
    engine.open(one.device(), PortConfig::default()).unwrap();
    let across = Rust::new(|_, frame| {
        frame.set_redirect(Redirect::Ifindex(2));
        Verdict::Redirect as u64
    });
    engine.attach(port(1), across, FORCE).unwrap();
    one.flood(true);
    let mut sums = Counters::default();
    for round in 0..20 {
        engine.open(two.device(), PortConfig { queues: Some(vec![(0, round % 2)]), ..PortConfig::default() }).unwrap();
        let before = two.sent_count();
        eventually(|| two.sent_count() > before);
        sums.merge(&settled(&[engine.remove_queue(1, round % 2).unwrap()]));
        engine.add_queue(1, round % 2, (round + 1) % 2).unwrap();
        sums.merge(&settled(&engine.close(2).unwrap()));
    }
    one.flood(false);
    eventually(|| one.idle());
    sums.merge(&settled(&engine.stop().queues));
    assert_eq!(sums.rx, one.offered());
    assert_eq!(sums.redirected + sums.redirect_err.total(), sums.rx);
    assert_eq!(two.sent_count(), sums.redirected);
    assert!(sums.redirect_err.get(Errno::EINVAL) > 0, "while the port was closed");
}

#[test]
fn a_failing_queue_stops_alone_and_says_why() {
    let engine = engine(1);
    let wire = Wire::new(5, 2);
    engine.open(wire.device(), PortConfig::default()).unwrap();
    wire.break_queue(0);
    wire.send(1, 50);
    eventually(|| wire.passed().len() == 50);
    let reports = engine.stop().queues;
    settled(&reports);
    let errors: Vec<_> = reports.iter().map(|report| report.error.as_ref().map(|error| error.to_string())).collect();
    assert_eq!(errors, [Some("wire5: cable cut".to_owned()), None]);
}

#[test]
fn a_port_of_one_queue_is_a_device() {
    let engine = engine(1);
    let wire = Wire::new(5, 1);
    let mut device = wire.device();
    let mut pool = xway_packet::Pool::new(device.pool(0)).unwrap();
    let port = device.open_queue(0, &mut pool).unwrap();
    engine.open(Box::new(OneQueue::new(port)), PortConfig::default()).unwrap();
    wire.send(0, 3);
    eventually(|| wire.passed().len() == 3);
    engine.remove_queue(5, 0).unwrap();
    let again = engine.add_queue(5, 0, 0).unwrap_err().to_string();
    assert_eq!(again, "wire5: queue 0 was opened before, and cannot be opened again");
    engine.stop();
}

#[test]
fn a_worker_that_cannot_be_bound_is_no_worker() {
    let config = EngineConfig { workers: 1, cpus: vec![900], ..EngineConfig::default() };
    let error = Engine::start(config).err().unwrap().to_string();
    assert!(error.starts_with("binding a worker to CPU 900: "), "{error}");
}

#[test]
fn sleeping_workers_wake_for_commands_and_for_each_other() {
    let engine = Engine::start(EngineConfig { workers: 2, idle_polls: 0, ..EngineConfig::default() }).unwrap();
    let (left, right) = (Wire::new(1, 1), Wire::new(2, 1));
    engine.open(left.device(), PortConfig { queues: Some(vec![(0, 0)]), ..PortConfig::default() }).unwrap();
    engine.open(right.device(), PortConfig { queues: Some(vec![(0, 1)]), ..PortConfig::default() }).unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let across = Rust::new(move |_, frame| {
        counted.fetch_add(1, Ordering::Relaxed);
        frame.set_redirect(Redirect::Ifindex(2));
        Verdict::Redirect as u64
    });
    engine.attach(port(1), across, FORCE).unwrap();
    for number in 1..=50 {
        left.send(0, 1);
        eventually(|| right.sent().len() == number);
    }
    assert_eq!(runs.load(Ordering::Relaxed), 50);
    stop(engine);
}

#[test]
fn a_worker_that_panics_is_gone_and_nobody_waits_for_it() {
    let engine = engine(2);
    let (bad, good) = (Wire::new(1, 1), Wire::new(2, 1));
    engine.open(bad.device(), PortConfig { queues: Some(vec![(0, 0)]), ..PortConfig::default() }).unwrap();
    engine.open(good.device(), PortConfig { queues: Some(vec![(0, 1)]), ..PortConfig::default() }).unwrap();
    engine.attach(port(1), Rust::new(|_, _| panic!("a defect, made for this test")), FORCE).unwrap();
    bad.send(0, 1);
    eventually(|| matches!(engine.port_stats(), Err(EngineError::WorkerGone { worker: 0 })));
    good.send(0, 5);
    eventually(|| good.passed().len() == 5);
    assert_eq!(engine.stop().queues.iter().map(|report| report.ifindex).collect::<Vec<_>>(), [2]);
}

/// A port that is being closed still receives: what passes goes where it went, and not to the port's own stack side.
#[test]
fn what_passes_goes_to_its_target_until_the_port_is_closed() {
    for pass in [PassTo::Drop, PassTo::Port(2)] {
        let engine = engine(1);
        let (one, two) = (Wire::new(1, 1), Wire::new(2, 1));
        engine.open(two.device(), PortConfig::default()).unwrap();
        for _ in 0..20 {
            engine.open(one.device(), PortConfig { pass, ..PortConfig::default() }).unwrap();
            let before = one.offered();
            one.flood(true);
            eventually(|| one.offered() > before + 100);
            let counters = engine.close(1).unwrap().remove(0).counters;
            one.flood(false);
            assert_eq!(counters.balance(), Ok(()));
            assert_eq!(counters.pass_lost.total(), 0);
        }
        assert_eq!(one.passed(), [[0u8; 0]; 0]);
        stop(engine);
    }
}
