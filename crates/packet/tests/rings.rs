//! Rings over memory: layout, bounds, and a peer that lies.
#![cfg(not(loom))]

use std::os::fd::AsFd;
use std::sync::Arc;

use proptest::prelude::*;
use xway_packet::ring::{RingError, RingMemory, RingOffsets, XdpDesc, frames, mpsc, spsc};
use xway_packet::{Burst, Pool, PoolConfig, SharedMemory};

const LINUX: RingOffsets = RingOffsets::LINUX;

/// A ring of eight addresses, and a second view of the same memory in which single words can be written: a ring of one entry
/// whose slot lies where the wanted word is.
struct Lab {
    memory: Arc<SharedMemory>,
    ring: RingMemory<u64>,
}

impl Lab {
    fn new() -> Lab {
        let memory = Arc::new(SharedMemory::private(4096).unwrap());
        let ring = RingMemory::over(memory.clone(), 0, LINUX, 8).unwrap();
        Lab { memory, ring }
    }

    /// Writes an index as a hostile peer would.
    fn write(&self, offset: usize, value: u32) {
        // A ring whose producer index is the word in question; pushing moves it forward by one.
        let aside = RingOffsets { producer: 2048, consumer: 2052, flags: offset, desc: 3072 };
        let view = RingMemory::<u64>::over(self.memory.clone(), 0, aside, 1).unwrap();
        spsc::Producer::attach(view).unwrap().set_flags(value);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn a_ring_lies_where_linux_has_it() {
    let memory = Arc::new(SharedMemory::create(LINUX.size::<XdpDesc>(4)).unwrap());
    let ring = RingMemory::<XdpDesc>::over(memory.clone(), 0, LINUX, 4).unwrap();
    spsc::Producer::attach(ring).unwrap().push(XdpDesc { addr: 0x1122, len: 60, options: 1 }).unwrap();
    let mut bytes = vec![0; memory.len()];
    let file = std::fs::File::from(memory.fd().unwrap().try_clone_to_owned().unwrap());
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(128), word(196)), (1, 0, 0), "producer, consumer, flags");
    assert_eq!(bytes[320..328], 0x1122u64.to_ne_bytes());
    assert_eq!((word(328), word(332)), (60, 1));
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn two_mappings_of_one_file_are_one_ring() {
    let ours = Arc::new(SharedMemory::create(4096).unwrap());
    let theirs = Arc::new(SharedMemory::map(ours.fd().unwrap(), 0, 4096).unwrap());
    let mut producer = spsc::Producer::attach(RingMemory::<u64>::over(ours, 0, LINUX, 8).unwrap()).unwrap();
    let mut consumer = spsc::Consumer::attach(RingMemory::<u64>::over(theirs, 0, LINUX, 8).unwrap()).unwrap();
    assert_eq!(producer.push_slice(&[5, 6]), 2);
    let mut got = [0; 4];
    assert_eq!((consumer.pop_slice(&mut got), got), (2, [5, 6, 0, 0]));
    assert_eq!(producer.pending(), 0);
    // What the other side has not taken can be seen, around the end of the ring too; what is not submitted is not there.
    assert_eq!(producer.push_slice(&[1, 2, 3, 4, 5, 6, 7]), 7);
    assert_eq!(consumer.pop_slice(&mut got[..2]), 2);
    producer.stage(9).unwrap();
    let mut left = Vec::new();
    producer.pending_each(|entry| left.push(entry));
    assert_eq!((left, producer.pending()), (vec![3, 4, 5, 6, 7], 5));
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn nobody_can_shrink_our_memory() {
    let memory = SharedMemory::create(8192).unwrap();
    let file = std::fs::File::from(memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
    assert!(file.set_len(0).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn the_mapping_outlives_its_file() {
    let mut memory = SharedMemory::create(4096).unwrap();
    let theirs = SharedMemory::map(memory.fd().unwrap(), 0, 4096).unwrap();
    drop(memory.take_fd().unwrap());
    assert!(memory.fd().is_none() && memory.take_fd().is_none());
    let [ours, theirs] = [memory, theirs].map(|m| RingMemory::<u64>::over(Arc::new(m), 0, LINUX, 8).unwrap());
    spsc::Producer::attach(ours).unwrap().push(5).unwrap();
    assert_eq!(spsc::Consumer::attach(theirs).unwrap().pop(), Some(5));
}

#[test]
fn what_does_not_fit_is_refused() {
    let memory = Arc::new(SharedMemory::private(4096).unwrap());
    let over = |at, offsets, entries| RingMemory::<u64>::over(memory.clone(), at, offsets, entries).map(|_| ());
    for entries in [0, 3, 1 << 25] {
        assert!(matches!(over(0, LINUX, entries), Err(RingError::Entries(_))), "{entries}");
    }
    let place = |result| matches!(result, Err(RingError::Place { .. }));
    assert!(place(over(0, LINUX, 512)), "the slots end behind the memory");
    assert!(place(over(4, LINUX, 8)), "the slots are not aligned");
    assert!(place(over(usize::MAX, LINUX, 8)));
    assert!(place(over(0, RingOffsets { producer: 4093, ..LINUX }, 8)));
    assert!(place(over(0, RingOffsets { consumer: usize::MAX, ..LINUX }, 8)));
    assert!(over(3072, LINUX, 64).is_ok());
}

#[test]
fn a_consumer_that_lies_sees_a_full_ring() {
    let lab = Lab::new();
    let mut producer = spsc::Producer::attach(lab.ring.clone()).unwrap();
    assert_eq!(producer.push_slice(&[1; 8]), 8);
    for lie in [9, 0xffff_ffff, 0x8000_0000] {
        lab.write(LINUX.consumer, lie);
        assert_eq!(producer.push(2), Err(2), "{lie}");
    }
    assert_eq!(producer.refused(), 3);
    lab.write(LINUX.consumer, 4);
    assert_eq!(producer.room(8), 4);
    lab.write(LINUX.consumer, 3);
    assert_eq!((producer.room(8), producer.refused()), (4, 4), "it went back");
}

#[test]
fn a_producer_that_lies_is_not_read() {
    let lab = Lab::new();
    let mut consumer = spsc::Consumer::attach(lab.ring.clone()).unwrap();
    for lie in [9, 0xffff_ffff, 0x8000_0000] {
        lab.write(LINUX.producer, lie);
        assert_eq!(consumer.pop(), None, "{lie}");
    }
    assert_eq!(consumer.refused(), 3);
    lab.write(LINUX.producer, 8);
    assert_eq!(consumer.available(8), 8);
    consumer.take();
    lab.write(LINUX.producer, 0);
    assert_eq!((consumer.available(8), consumer.refused()), (7, 4), "it went back");
}

#[test]
fn indices_that_cannot_be_are_not_attached_to() {
    let lab = Lab::new();
    lab.write(LINUX.producer, 9);
    assert!(matches!(spsc::Producer::attach(lab.ring.clone()), Err(RingError::Indices { producer: 9, .. })));
    lab.write(LINUX.consumer, 3);
    assert_eq!(spsc::Consumer::attach(lab.ring.clone()).unwrap().available(8), 6, "indices in use are taken over");
}

#[test]
fn frames_that_are_left_in_a_ring_go_home() {
    let mut pool = Pool::new(PoolConfig::new(16)).unwrap();
    let (mut sender, receiver) = frames::ring(8).unwrap();
    let mut burst = Burst::new();
    pool.alloc_burst(&mut burst, 10);
    assert_eq!((sender.send(&mut burst), burst.len(), sender.len()), (8, 2, 8));
    drop(receiver);
    assert!(sender.is_closed());
    assert_eq!((sender.send(&mut burst), burst.len()), (0, 2), "nobody is there: the sender keeps them");
    pool.release_burst(&mut burst);
    assert_eq!(pool.counters().outstanding, 0);
    drop(sender);
    pool.close().unwrap();
}

#[test]
fn frames_that_are_left_when_the_sender_goes_last_go_home() {
    let mut pool = Pool::new(PoolConfig::new(4)).unwrap();
    let (mut sender, receiver) = frames::ring(4).unwrap();
    let mut burst = Burst::new();
    pool.alloc_burst(&mut burst, 3);
    let first = sender.clone();
    sender.send(&mut burst);
    drop((first, sender));
    assert_eq!(pool.counters().outstanding, 3);
    drop(receiver);
    pool.close().unwrap();
}

#[test]
fn frames_of_many_senders_arrive_once_and_in_order() {
    const EACH: u64 = if cfg!(miri) { 50 } else { 20_000 };
    let (sender, mut receiver) = frames::ring(64).unwrap();
    let threads: Vec<_> = (1..=3u32)
        .map(|number| {
            let mut sender = sender.clone();
            std::thread::spawn(move || {
                let mut pool = Pool::new(PoolConfig::new(128)).unwrap();
                let mut burst = Burst::new();
                let mut next = 1;
                while next <= EACH || !burst.is_empty() {
                    while next <= EACH && !burst.is_full() {
                        let Ok(mut frame) = pool.alloc() else { break };
                        frame.set_ingress(number, 0);
                        frame.set_packet_id(next);
                        burst.push(frame).unwrap();
                        next += 1;
                    }
                    if sender.send(&mut burst) == 0 {
                        std::thread::yield_now();
                    }
                }
                pool
            })
        })
        .collect();
    drop(sender);
    let mut seen = [0; 4];
    let mut burst = Burst::new();
    while seen[1..] != [EACH; 3] {
        if receiver.receive(&mut burst, 64) == 0 {
            std::thread::yield_now();
        }
        for frame in burst.frames() {
            let last = &mut seen[frame.ingress_ifindex() as usize];
            assert_eq!(frame.packet_id(), *last + 1);
            *last += 1;
        }
        burst.release();
    }
    for thread in threads {
        thread.join().unwrap().close().unwrap();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Pop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![(0usize..12).prop_map(Step::Push), (0usize..12).prop_map(Step::Pop)];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 4 } else { 256 }, ..ProptestConfig::default() })]

    /// Both rings against a queue of the standard library.
    #[test]
    fn rings_are_queues(steps in steps()) {
        let (mut single, mut single_out) = spsc::ring::<u64>(8).unwrap();
        let (mut many, mut many_out) = mpsc::ring::<u64>(8).unwrap();
        let mut queue = std::collections::VecDeque::new();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Push(count) => {
                    let entries: Vec<u64> = (next..next + count as u64).collect();
                    let fit = count.min(8 - queue.len());
                    prop_assert_eq!(single.push_slice(&entries), fit);
                    prop_assert_eq!(many.push_slice(&entries), fit);
                    queue.extend(&entries[..fit]);
                    next += fit as u64;
                }
                Step::Pop(count) => {
                    let expected: Vec<u64> = queue.drain(..count.min(queue.len())).collect();
                    let (mut one, mut other) = (Vec::new(), Vec::new());
                    single_out.pop_each(count, |n| one.push(n));
                    many_out.pop_each(count, |n| other.push(n));
                    prop_assert_eq!(&one, &expected);
                    prop_assert_eq!(&other, &expected);
                }
            }
            prop_assert_eq!(many.len(), queue.len());
        }
    }

    /// Whatever a peer writes into the indices: no panic, no entry beyond what can be there.
    #[test]
    fn any_index_is_survived(lies in proptest::collection::vec((any::<bool>(), any::<u32>()), 1..50)) {
        let lab = Lab::new();
        let mut producer = spsc::Producer::attach(lab.ring.clone()).unwrap();
        let mut consumer = spsc::Consumer::attach(lab.ring.clone()).unwrap();
        for (at_producer, lie) in lies {
            lab.write(if at_producer { LINUX.producer } else { LINUX.consumer }, lie);
            prop_assert!(producer.push_slice(&[7; 20]) <= 8);
            let popped = consumer.pop_each(20, |_| ());
            prop_assert!(popped <= 8);
        }
    }
}
