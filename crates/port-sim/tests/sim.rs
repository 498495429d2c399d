//! Ports in memory: what goes in comes out, the very same frames, and nothing is lost without a count.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use xway_engine::{Device, Executor, ExecutorInfo, Limits, Port, Results, Rx, Stop, Worker, WorkerConfig};
use xway_maps::Guard;
use xway_packet::{Burst, Frame, Pool, PoolConfig};
use xway_port_sim::{PairConfig, Pattern, Seen, SimDevice, SimPort, Sink, Traffic, pair};

fn traffic() -> Traffic {
    Traffic::udp(10, 100, Pattern::Scan, 1).unwrap()
}

/// Returns the same verdict for every packet.
struct Always(u64);

impl Executor for Always {
    fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
        frames.iter().for_each(|_| results.push(self.0, 0));
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: "always".into(), engine: "interp" }
    }
}

const DROP: u64 = 1;
const PASS: u64 = 2;
const TX: u64 = 3;

fn worker(port: SimPort, verdict: u64, config: WorkerConfig) -> Worker {
    let pool = Pool::new(PoolConfig::new(256)).unwrap();
    Worker::new(vec![Box::new(port)], Box::new(Always(verdict)), pool, config)
}

#[test]
fn generated_packets_are_those_of_the_traffic() {
    let traffic = traffic();
    let (mut port, sink) = SimPort::generated("a", 7, traffic.clone(), Some(25));
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(64)).unwrap(), Burst::new());
    assert_eq!(port.name(), "sim:a");
    assert_eq!(port.rx(0, &mut pool, &mut burst, 20).unwrap(), Rx::More);
    assert_eq!(port.rx(0, &mut pool, &mut burst, 20).unwrap(), Rx::End);
    assert_eq!(burst.len(), 25);
    for (n, frame) in burst.frames().iter().enumerate() {
        assert_eq!(frame.packet(), traffic.packet(n), "{n}");
        assert_eq!((frame.ingress_ifindex(), frame.packet_id()), (7, n as u64 + 1));
    }
    sink.inspect(true);
    port.pass(0, &mut pool, &mut burst);
    let digest = (0..25).map(|n| Seen::digest_of(traffic.packet(n))).fold(0u64, u64::wrapping_add);
    assert_eq!(sink.passed(), Seen { frames: 25, bytes: 2500, digest });
    assert_eq!((port.stats().rx, port.stats().rx_bytes), (25, 2500));
    pool.close().unwrap();
}

#[test]
fn digests_tell_packets_apart() {
    let packet = traffic().packet(0).to_vec();
    let mut seen = std::collections::BTreeSet::new();
    for byte in 0..packet.len() {
        for bit in 0..8 {
            let mut changed = packet.clone();
            changed[byte] ^= 1 << bit;
            seen.insert(Seen::digest_of(&changed));
        }
    }
    seen.insert(Seen::digest_of(&packet));
    seen.insert(Seen::digest_of(&packet[..99]));
    assert_eq!(seen.len(), 802);
}

#[test]
fn queues_share_the_traffic_and_each_has_its_count() {
    let sink = Sink::default();
    let mut port = SimPort::generated_queues("a", 1, Arc::new(traffic()), Some(5), 2, sink);
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(64)).unwrap(), Burst::new());
    assert_eq!(port.queues(), 2);
    port.rx(0, &mut pool, &mut burst, 64).unwrap();
    port.rx(1, &mut pool, &mut burst, 64).unwrap();
    let traffic = traffic();
    let expected: Vec<_> = (0..10).map(|n| traffic.packet(n).to_vec()).collect();
    assert_eq!(burst.frames().iter().map(|f| f.packet().to_vec()).collect::<Vec<_>>(), expected);
    assert_eq!(burst.frames().iter().filter(|f| f.rx_queue() == 1).count(), 5);
    assert_eq!(port.rx(2, &mut pool, &mut burst, 1).unwrap(), Rx::End, "no such queue");
}

#[test]
fn long_packets_are_cut_and_counted() {
    let traffic = Traffic::udp(1, 4000, Pattern::Scan, 1).unwrap();
    let (mut port, _) = SimPort::generated("a", 1, traffic, Some(3));
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(64)).unwrap(), Burst::new());
    port.rx(0, &mut pool, &mut burst, 64).unwrap();
    assert_eq!((port.stats().truncated, burst.frames()[0].len(), burst.frames()[0].cut()), (3, 3520, 480));
}

#[test]
fn an_empty_pool_is_counted_and_loses_nothing() {
    let (mut port, sink) = SimPort::generated("a", 1, traffic(), Some(40));
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(16)).unwrap(), Burst::new());
    assert_eq!(port.rx(0, &mut pool, &mut burst, 64).unwrap(), Rx::More);
    assert_eq!((burst.len(), port.stats().no_frame), (16, 1));
    while !burst.is_empty() {
        port.tx(0, &mut pool, &mut burst);
        port.rx(0, &mut pool, &mut burst, 64).unwrap();
    }
    assert_eq!(sink.sent().frames, 40);
    pool.close().unwrap();
}

#[test]
fn verdicts_arrive_where_they_should() {
    for (verdict, sent, passed) in [(DROP, 0, 0), (TX, 1000, 0), (PASS, 0, 1000)] {
        let (port, sink) = SimPort::generated("a", 1, traffic(), Some(1000));
        let report = worker(port, verdict, WorkerConfig::new(Stop::new().unwrap())).run();
        assert_eq!((sink.sent().frames, sink.passed().frames), (sent, passed));
        assert_eq!((report.counters.rx, report.leak), (1000, None));
        report.counters.balance().unwrap();
    }
}

#[test]
fn the_same_frames_change_hands() {
    let (mut a, mut b) = pair("p", PairConfig { queue_len: 16, ..PairConfig::default() }).unwrap();
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(64)).unwrap(), Burst::new());
    pool.alloc_burst(&mut burst, 20);
    for (n, frame) in burst.frames_mut().iter_mut().enumerate() {
        frame.fill(&[n as u8; 60]).unwrap();
        frame.adjust_meta(-8).unwrap();
        frame.set_redirect(xway_packet::Redirect::Ifindex(9));
    }
    let first = burst.frames()[0].packet().as_ptr();
    let sent = a.tx(0, &mut pool, &mut burst);
    assert_eq!((sent.sent, sent.full, a.stats().tx_bytes), (16, 4, 960), "a full ring drops, counted");
    a.flush().unwrap();
    assert_eq!(b.rx(0, &mut pool, &mut burst, 64).unwrap(), Rx::More);
    assert_eq!(burst.frames()[0].packet().as_ptr(), first);
    for (n, frame) in burst.frames().iter().enumerate() {
        assert_eq!((frame.packet(), frame.meta_len()), (&[n as u8; 60][..], 0));
        assert_eq!((frame.ingress_ifindex(), frame.redirect()), (2, xway_packet::Redirect::None));
    }
    pool.release_burst(&mut burst);
    assert_eq!(b.rx(0, &mut pool, &mut burst, 64).unwrap(), Rx::Idle);
    drop(a);
    assert_eq!(b.rx(0, &mut pool, &mut burst, 64).unwrap(), Rx::End);
    pool.close().unwrap();
}

#[test]
fn a_sleeping_end_is_woken_once() {
    let (mut a, mut b) = pair("p", PairConfig::default()).unwrap();
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(64)).unwrap(), Burst::new());
    let readable = |port: &SimPort| {
        let wait = Duration::ZERO.try_into().unwrap();
        poll(&mut [PollFd::from_borrowed_fd(port.fd().unwrap(), PollFlags::IN)], Some(&wait)).unwrap() == 1
    };
    let mut send = |a: &mut SimPort| {
        pool.alloc_burst(&mut burst, 1);
        a.tx(0, &mut pool, &mut burst);
        a.flush().unwrap();
    };
    send(&mut a);
    assert!(!readable(&b), "nobody sleeps, so nobody is woken");
    let (mut other, mut got) = (Pool::new(PoolConfig::new(1)).unwrap(), Burst::new());
    while b.rx(0, &mut other, &mut got, 64).unwrap() == Rx::More {}
    assert!(!readable(&b));
    send(&mut a);
    assert!(readable(&b));
    assert_eq!(b.rx(0, &mut other, &mut got, 64).unwrap(), Rx::More);
    assert_eq!(b.rx(0, &mut other, &mut got, 64).unwrap(), Rx::Idle);
    assert!(!readable(&b), "the bell is silent again before the next sleep");
    assert_eq!(got.len(), 2);
}

/// Two workers on two threads bounce frames: one generates and sends through a pair, the other drops.
#[test]
fn workers_hand_each_other_everything() {
    const COUNT: u64 = 20_000;
    let (mut near, far) = pair("p", PairConfig { queue_len: 64, ..PairConfig::default() }).unwrap();
    let stop = Stop::new().unwrap();
    let config = WorkerConfig { limits: Limits { count: Some(COUNT), timeout: None }, ..WorkerConfig::new(stop) };
    let receiver = std::thread::spawn(move || worker(far, DROP, config).run());
    let (mut source, _) = SimPort::generated("s", 3, traffic(), Some(COUNT));
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(256)).unwrap(), Burst::new());
    let mut state = Rx::More;
    while state == Rx::More {
        state = source.rx(0, &mut pool, &mut burst, 16).unwrap();
        while !burst.is_empty() {
            let mut part = Burst::new();
            burst.drain_first(8).for_each(|frame| part.push(frame).unwrap());
            let sent = near.tx(0, &mut pool, &mut part);
            near.flush().unwrap();
            // What did not fit is offered again as new packets, so that the count comes out.
            for _ in 0..sent.full {
                let Ok(mut frame) = pool.alloc() else { break };
                frame.fill(&[0; 100]).unwrap();
                burst.push(frame).unwrap();
            }
            if sent.full > 0 {
                std::thread::yield_now();
            }
        }
    }
    let report = receiver.join().unwrap();
    assert_eq!((report.counters.rx, report.leak), (COUNT, None));
    assert_eq!(near.stats().tx, COUNT);
    drop(near);
    pool.close().unwrap();
}

#[test]
fn queues_of_a_device_open_and_close() {
    let (mut a, mut b) = SimDevice::pair("p", PairConfig { queues: 2, ..PairConfig::default() }).unwrap();
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(64)).unwrap(), Burst::new());
    assert_eq!((a.name(), b.rx_queues()), ("sim:p.0", 2));
    let mut near = a.open_queue(1, &mut pool).unwrap();
    let taken = a.open_queue(1, &mut pool).err().unwrap();
    assert!(taken.to_string().contains("queue 1 is open"), "{taken}");
    assert!(a.open_queue(2, &mut pool).is_err());
    pool.alloc_burst(&mut burst, 3);
    near.tx(1, &mut pool, &mut burst);
    near.flush().unwrap();
    drop(near);
    let mut far = b.open_queue(1, &mut pool).unwrap();
    assert_eq!(far.rx(1, &mut pool, &mut burst, 64).unwrap(), Rx::More);
    assert_eq!((burst.len(), burst.frames()[0].rx_queue()), (3, 1));
    pool.release_burst(&mut burst);
    assert_eq!(far.rx(1, &mut pool, &mut burst, 64).unwrap(), Rx::Idle, "a closed queue may open again");
    assert!(a.open_queue(1, &mut pool).is_ok());
    let (mut device, sink) = SimDevice::generated("g", 5, traffic(), Some(4), 2);
    for queue in 0..2 {
        let mut port = device.open_queue(queue, &mut pool).unwrap();
        port.rx(queue, &mut pool, &mut burst, 64).unwrap();
        port.tx(queue, &mut pool, &mut burst);
    }
    assert_eq!(sink.sent().frames, 8);
}
