//! The rings under every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p xway-packet --test loom_rings --release`
#![cfg(loom)]

use loom::thread;
use xway_packet::ring::{RingMemory, XdpDesc, mpsc, spsc};

/// Both ends of a ring whose indices are about to wrap.
fn wrapping(entries: u32) -> (spsc::Producer<u64>, spsc::Consumer<u64>) {
    let memory = RingMemory::starting_at(entries, u32::MAX - 1).unwrap();
    (spsc::Producer::attach(memory.clone()).unwrap(), spsc::Consumer::attach(memory).unwrap())
}

/// One by one through a ring of two, across the wrap of the indices: full and empty rings, cached indices looked at again.
#[test]
fn single_entries_come_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = wrapping(2);
        let sender = thread::spawn(move || {
            let mut sent = 0;
            for n in 1..=3 {
                if producer.push(n).is_err() {
                    break;
                }
                sent += 1;
            }
            assert_eq!(producer.refused(), 0);
            sent
        });
        let mut got: Vec<u64> = (0..3).filter_map(|_| consumer.pop()).collect();
        let sent = sender.join().unwrap();
        got.extend(std::iter::from_fn(|| consumer.pop()));
        assert_eq!(got, (1..=sent).collect::<Vec<u64>>());
        assert_eq!(consumer.refused(), 0);
    });
}

/// Bulks that do not fit, split over the end of the memory.
#[test]
fn bulks_come_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = wrapping(2);
        let sender = thread::spawn(move || {
            let first = producer.push_slice(&[1, 2, 3]);
            assert_eq!(first, 2, "the ring has two slots");
            let second = producer.push_slice(&[3, 4]);
            first + second
        });
        let mut got = Vec::new();
        consumer.pop_each(2, |n| got.push(n));
        consumer.pop_each(4, |n| got.push(n));
        let sent = sender.join().unwrap();
        while consumer.pop_each(2, |n| got.push(n)) > 0 {}
        assert_eq!(got, (1..=sent as u64).collect::<Vec<u64>>());
    });
}

/// What is staged is not seen, what is taken is not given back, and descriptors are whole.
#[test]
fn staged_entries_wait_for_their_doorbell() {
    loom::model(|| {
        let memory = RingMemory::<XdpDesc>::starting_at(2, u32::MAX).unwrap();
        let mut producer = spsc::Producer::attach(memory.clone()).unwrap();
        let mut consumer = spsc::Consumer::attach(memory).unwrap();
        let desc = |n: u32| XdpDesc { addr: u64::from(n), len: n, options: n };
        let sender = thread::spawn(move || {
            producer.stage(desc(7)).unwrap();
            assert_eq!(producer.unstage(), 1);
            producer.stage(desc(1)).unwrap();
            producer.stage(desc(2)).unwrap();
            assert_eq!(producer.submit(), 2);
            producer.push(desc(3)).is_ok()
        });
        let mut got = Vec::new();
        if let Some(first) = consumer.take() {
            assert_eq!(consumer.untake(1), 1);
            assert_eq!(consumer.take(), Some(first));
            got.push(first);
        }
        consumer.release();
        let third = sender.join().unwrap();
        while let Some(desc) = consumer.pop() {
            got.push(desc);
        }
        assert_eq!(got, (1..=2 + u32::from(third)).map(desc).collect::<Vec<_>>());
    });
}

/// Two producers with bulks, one consumer: nothing is lost, nothing comes twice, each producer's entries stay in order.
#[test]
fn many_producers_keep_their_order() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut first, mut consumer) = mpsc::ring::<u64>(4).unwrap();
        let mut second = first.clone();
        let a = thread::spawn(move || first.push_slice(&[1, 2]));
        let b = thread::spawn(move || second.push_slice(&[11, 12]));
        let mut got = Vec::new();
        consumer.pop_each(4, |n| got.push(n));
        assert_eq!((a.join().unwrap(), b.join().unwrap()), (2, 2), "there is room for all");
        while consumer.pop_each(4, |n| got.push(n)) > 0 {}
        assert_eq!(got.len(), 4);
        let of = |from, to| got.iter().copied().filter(|n| (from..to).contains(n)).collect::<Vec<_>>();
        assert_eq!((of(1, 10), of(11, 20)), (vec![1, 2], vec![11, 12]));
    });
}

/// Two producers fight for a ring of two: what is said to be in comes out, in the second lap as well.
#[test]
fn a_full_ring_refuses_and_is_reused() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut first, mut consumer) = mpsc::ring::<u64>(2).unwrap();
        let mut second = first.clone();
        let a = thread::spawn(move || (1..=2).filter(|&n| first.push(n).is_ok()).count());
        let b = thread::spawn(move || second.push_slice(&[11, 12]));
        let mut got = Vec::new();
        consumer.pop_each(2, |n| got.push(n));
        let sent = a.join().unwrap() + b.join().unwrap();
        while consumer.pop_each(2, |n| got.push(n)) > 0 {}
        assert_eq!(got.len(), sent);
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len(), sent);
    });
}

/// What is left when both ends go is seen by nobody twice; the receiver that goes to sleep is woken.
#[test]
fn a_sleeping_receiver_is_woken_or_sees_the_frame() {
    use xway_packet::{Burst, Pool, PoolConfig, ring::frames};
    loom::model(|| {
        let mut pool = Pool::new(PoolConfig::new(2)).unwrap();
        let (mut sender, mut receiver) = frames::ring(2).unwrap();
        let mut burst = Burst::new();
        pool.alloc_burst(&mut burst, 1);
        let other = thread::spawn(move || {
            assert_eq!(sender.send(&mut burst), 1);
            sender.must_wake()
        });
        let sleeps = receiver.may_sleep();
        let woken = other.join().unwrap();
        assert!(woken || !sleeps, "asleep with a frame in the ring and nobody to call");
        receiver.awake();
        drop(receiver);
        pool.close().unwrap();
    });
}
