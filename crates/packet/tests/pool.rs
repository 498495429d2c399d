//! Pools: who owns a frame, how it comes home, what is counted.

use std::sync::Mutex;

use xway_packet::{
    Backing, Burst, Counters, FRAME_RESERVE, Leak, Pages, Placement, Pool, PoolConfig, Pressure, Refused,
};

fn small(frames: u32) -> PoolConfig {
    PoolConfig { frames, ..PoolConfig::default() }
}

#[test]
fn owner_allocates_slow_once_and_fast_ever_after() {
    let mut pool = Pool::new(small(4)).unwrap();
    for _ in 0..10 {
        let frame = pool.alloc().unwrap();
        pool.release(frame);
    }
    let expected =
        Counters { slow: 1, fast: 9, recycled: 10, outstanding: 0, outstanding_max: 1, ..Counters::default() };
    assert_eq!(pool.counters(), expected);
    pool.close().unwrap();
}

#[test]
fn exhaustion_is_refused_and_counted() {
    let mut pool = Pool::new(small(3)).unwrap();
    let held: Vec<_> = (0..3).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!(pool.alloc().unwrap_err(), Refused { outstanding: 3 });
    assert_eq!((pool.counters().refused, pool.counters().outstanding), (1, 3));
    drop(held);
    assert!(pool.alloc().is_ok(), "dropped frames are found in the return queue");
    assert_eq!(pool.counters().ring, 1);
}

#[test]
fn outstanding_limit_holds_below_the_number_of_chunks() {
    let mut pool = Pool::new(PoolConfig { max_outstanding: 2, ..small(8) }).unwrap();
    let a = pool.alloc().unwrap();
    let b = pool.alloc().unwrap();
    assert!(pool.alloc().is_err());
    pool.release(a);
    let c = pool.alloc().unwrap();
    assert!(pool.alloc().is_err());
    drop(b);
    let d = pool.alloc().expect("a frame in the return queue does not count against the limit");
    pool.release(c);
    pool.release(d);
    let counters = pool.counters();
    assert_eq!((counters.refused, counters.outstanding_max), (2, 2));
    pool.close().unwrap();
}

#[test]
fn close_names_what_is_missing_and_frames_outlive_the_pool() {
    let mut pool = Pool::new(small(4)).unwrap();
    let mut a = pool.alloc().unwrap();
    let b = pool.alloc().unwrap();
    a.fill(b"still here").unwrap();
    assert!(matches!(pool.close(), Err(Leak { outstanding: 2 })));
    drop(b);
    assert_eq!(a.packet(), b"still here");
}

#[test]
fn frame_of_another_pool_goes_home_to_that_pool() {
    let (mut one, mut two) = (Pool::new(small(2)).unwrap(), Pool::new(small(2)).unwrap());
    let frame = one.alloc().unwrap();
    assert!(one.owns(&frame) && !two.owns(&frame));
    two.release(frame);
    assert_eq!(one.counters().returned, 1);
    assert_eq!(two.counters().recycled, 0);
    one.close().unwrap();
    two.close().unwrap();
}

#[test]
fn a_burst_of_mixed_pools_goes_home_to_each() {
    let (mut one, mut two) = (Pool::new(small(40)).unwrap(), Pool::new(small(40)).unwrap());
    let mut burst = Burst::new();
    for round in 0..32 {
        let pool = if round % 3 == 0 { &mut one } else { &mut two };
        burst.push(pool.alloc().unwrap()).unwrap();
    }
    burst.release();
    assert_eq!((one.counters().returned, two.counters().returned), (11, 21));
    one.close().unwrap();
    two.close().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn every_chunk_is_its_own() {
    for backing in [Backing::Anonymous, Backing::Memfd] {
        let mut pool = Pool::new(PoolConfig { backing, ..small(16) }).unwrap();
        let mut frames: Vec<_> = (0..16).map(|_| pool.alloc().unwrap()).collect();
        for (i, frame) in frames.iter_mut().enumerate() {
            frame.chunk_mut().fill(i as u8);
        }
        for (i, frame) in frames.iter().enumerate() {
            assert_eq!(frame.chunk().len(), 4096);
            assert!(frame.chunk().iter().all(|&byte| byte == i as u8));
        }
        drop(frames);
        pool.close().unwrap();
    }
}

#[test]
fn alloc_burst_stops_at_the_end_of_burst_or_pool() {
    let mut pool = Pool::new(small(100)).unwrap();
    let (mut a, mut b) = (Burst::new(), Burst::new());
    assert_eq!(pool.alloc_burst(&mut a, 1000), 64);
    assert_eq!(pool.alloc_burst(&mut b, 64), 36);
    assert_eq!(pool.counters().refused, 1);
    pool.release_burst(&mut a);
    pool.release_burst(&mut b);
    pool.close().unwrap();
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    let refused = |config: PoolConfig| Pool::new(config).expect_err("must be refused").to_string();
    assert!(refused(PoolConfig { chunk_size: 3000, ..small(1) }).contains("power of two"));
    assert!(refused(PoolConfig { chunk_size: 1024, ..small(1) }).contains("power of two"));
    assert!(refused(small(0)).contains("1 to"));
    assert!(refused(small(u32::MAX)).contains("1 to"));
    assert!(refused(PoolConfig { headroom: 128, ..small(1) }).contains("256"));
    assert!(refused(PoolConfig { headroom: 3776, ..small(1) }).contains("no room"));
    assert!(refused(PoolConfig { headroom: u32::MAX, ..small(1) }).contains("no room"));
}

/// Frames cross threads in bulk and come home by every way there is; the pool is dropped while some are still travelling.
#[test]
fn frames_released_by_other_threads_come_home() {
    let rounds = if cfg!(miri) { 20 } else { 5_000 };
    let mut pool = Pool::new(small(200)).unwrap();
    let mut sent = 0u64;
    std::thread::scope(|scope| {
        let (to, from) = std::sync::mpsc::sync_channel::<Burst>(2);
        let from = std::sync::Arc::new(std::sync::Mutex::new(from));
        for _ in 0..2 {
            let from = from.clone();
            scope.spawn(move || {
                loop {
                    let next = from.lock().unwrap().recv();
                    let Ok(mut burst) = next else { break };
                    let first = burst.pop();
                    for frame in burst.frames() {
                        assert_eq!(frame.packet(), frame.packet_id().to_ne_bytes());
                    }
                    burst.release();
                    drop(first);
                }
            });
        }
        for round in 0..rounds {
            let mut burst = Burst::new();
            pool.alloc_burst(&mut burst, round % 64);
            for frame in burst.frames_mut() {
                sent += 1;
                frame.set_packet_id(sent);
                frame.fill(&sent.to_ne_bytes()).unwrap();
            }
            to.send(burst).unwrap();
        }
    });
    let counters = pool.counters();
    assert_eq!(counters.returned, sent);
    assert_eq!(counters.fast + counters.ring + counters.slow, sent);
    pool.close().unwrap();
}

#[test]
fn pool_dropped_while_frames_travel_is_freed_by_the_last_one() {
    let rounds = if cfg!(miri) { 10 } else { 500 };
    for round in 0..rounds {
        let mut pool = Pool::new(small(8)).unwrap();
        let mut frames: Vec<_> = (0..8).map(|_| pool.alloc().unwrap()).collect();
        let others = frames.split_off(4);
        std::thread::scope(|scope| {
            scope.spawn(move || drop(frames));
            scope.spawn(move || drop(others));
            if round % 2 == 0 {
                std::thread::yield_now();
            }
            drop(pool);
        });
    }
}

/// A burst's packets lie in different sets of the first-level cache: their addresses differ within a page.
#[test]
fn neighbours_do_not_share_a_cache_set() {
    let mut pool = Pool::new(PoolConfig::new(64)).unwrap();
    let frames: Vec<_> = (0..64).map(|_| pool.alloc().unwrap()).collect();
    let mut sets: Vec<usize> = frames.iter().map(|f| f.chunk().as_ptr() as usize % 4096 / 64).collect();
    sets.sort_unstable();
    sets.dedup();
    assert_eq!(sets.len(), 64);
    frames.into_iter().for_each(|frame| pool.release(frame));
    pool.close().unwrap();
}

#[test]
fn bulk_and_single_calls_count_alike() {
    let (mut bulk, mut single) = (Pool::new(small(50)).unwrap(), Pool::new(small(50)).unwrap());
    let mut burst = Burst::new();
    for count in [10, 50, 60, 3, 64, 1] {
        bulk.alloc_burst(&mut burst, count);
        bulk.release_burst(&mut burst);
        let mut frames = Vec::new();
        for _ in 0..count {
            let Ok(frame) = single.alloc() else { break };
            frames.push(frame);
        }
        frames.into_iter().for_each(|frame| single.release(frame));
        assert_eq!(bulk.counters(), single.counters(), "{count}");
    }
    assert_eq!(bulk.counters().recycle_hit_rate(), Some(114.0 / 164.0));
    bulk.close().unwrap();
    single.close().unwrap();
}

#[test]
fn programs_see_pressure_before_allocation_is_refused() {
    let mut pool = Pool::new(PoolConfig { max_outstanding: 20, ..small(64) }).unwrap();
    let mut held: Vec<_> = (0..14).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!(held[0].pool_pressure(), Pressure::None);
    held.push(pool.alloc().unwrap());
    assert_eq!((held[0].pool_pressure(), pool.pressure()), (Pressure::Some, Pressure::Some));
    let mut burst = Burst::new();
    assert_eq!(pool.alloc_burst(&mut burst, 10), 5);
    assert_eq!(held[0].pool_pressure(), Pressure::Critical);
    pool.release_burst(&mut burst);
    assert_eq!(held[0].pool_pressure(), Pressure::Some);
    let last = held.pop();
    held.clear();
    assert_eq!(pool.pressure(), Pressure::Some, "nobody has looked into the return queue yet");
    pool.collect();
    assert_eq!(last.unwrap().pool_pressure(), Pressure::None);
}

#[test]
fn shared_frames_go_home_with_their_last_holder() {
    let mut pool = Pool::new(small(2)).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.fill(b"sampled").unwrap();
    let shared = frame.share();
    let others: Vec<_> = (0..3).map(|_| shared.clone()).collect();
    assert_eq!(shared.holders(), 4);
    let shared = shared.try_unshare().expect_err("others look on");
    std::thread::scope(|scope| {
        for other in others {
            scope.spawn(move || assert_eq!(other.packet(), b"sampled"));
        }
    });
    let mut frame = shared.try_unshare().expect("nobody else is left");
    frame.packet_mut()[0] = b'S';
    assert_eq!(pool.counters().outstanding, 1);
    let again = frame.share();
    drop(again.clone());
    assert_eq!(pool.counters().outstanding, 1);
    drop(again);
    assert_eq!(pool.counters().outstanding, 0);
    pool.close().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn only_what_was_lent_comes_back() {
    for backing in [Backing::Anonymous, Backing::Memfd] {
        let mut pool = Pool::new(PoolConfig { backing, ..small(4) }).unwrap();
        let mut frame = pool.alloc().unwrap();
        frame.fill(b"lent").unwrap();
        let number = frame.packet().as_ptr() as u64 - pool.memory_range().0.as_ptr() as u64;
        let address = pool.lend(frame).unwrap();
        assert_eq!(address, number, "an address is an offset in the memory");
        for wrong in [address + 8192, u64::MAX, 1 << 40, pool.memory_range().1 as u64] {
            assert!(pool.reclaim(wrong).is_none(), "{wrong}");
        }
        assert_eq!(pool.counters().outstanding, 1);
        let frame = pool.reclaim(address - 100).expect("anywhere in the chunk");
        assert_eq!(frame.packet(), b"lent");
        assert!(pool.reclaim(address).is_none(), "once");
        pool.release(frame);
        let mut other = Pool::new(small(1)).unwrap();
        let foreign = other.alloc().unwrap();
        assert!(pool.lend(foreign).is_err());
        let frame = pool.alloc().unwrap();
        pool.lend(frame).unwrap();
        assert_eq!(pool.reclaim_all(), 1);
        pool.close().unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files")]
fn memory_says_what_was_asked_and_what_was_got() {
    let report = |pages, backing| Pool::new(PoolConfig { pages, backing, ..small(2048) }).unwrap().memory();
    for backing in [Backing::Anonymous, Backing::Memfd] {
        let base = report(Pages::Base, backing);
        assert_eq!((base.effective, base.reason, base.memfd), (Pages::Base, None, backing == Backing::Memfd));
        for pages in [Pages::Joined, Pages::Huge] {
            let report = report(pages, backing);
            assert!(report.bytes >= 2048 * 4096);
            assert_eq!(report.requested, pages);
            assert_eq!(report.effective == pages, report.reason.is_none(), "{report:?}");
        }
    }
    let tiny = Pool::new(small(1)).unwrap().memory();
    assert!(tiny.reason.unwrap().contains("less than one page"));
}

/// The kernel itself says what it has agreed to, for each kind of memory; a node that is not there is none.
#[test]
#[cfg_attr(miri, ignore = "asks the system")]
fn memory_lies_on_the_node_that_was_asked_for() {
    let on = |node, backing, pages| Pool::new(PoolConfig { node, backing, pages, ..small(64) }).unwrap();
    for backing in [Backing::Anonymous, Backing::Memfd] {
        for pages in [Pages::Base, Pages::Joined, Pages::Huge] {
            let pool = on(Some(0), backing, pages);
            let placement = pool.memory().placement;
            let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
            let start = format!("{:08x} ", pool.memory_range().0.as_ptr() as usize);
            // Anonymous mappings that are alike and side by side are one.
            let of_pool = maps.lines().find(|line| line.starts_with(&start));
            match placement {
                Placement::Only(0) | Placement::Node(0) => {
                    assert!(of_pool.is_none_or(|line| line.contains(" prefer")), "{of_pool:?}");
                }
                // A kernel without NUMA.
                other => assert!(of_pool.is_none(), "{other:?}: {maps}"),
            }
            pool.close().unwrap();
            let far = on(Some(1000), backing, pages).memory().placement;
            assert!(matches!(far, Placement::Only(_) | Placement::NotPlaced(1000)), "{far:?}");
            let anywhere = on(None, backing, pages).memory().placement;
            assert!(matches!(anywhere, Placement::Only(_) | Placement::FirstTouch), "{anywhere:?}");
        }
    }
}

#[test]
fn a_consumer_that_keeps_everything_starves_itself() {
    use xway_packet::ring::credit;
    let mut pool = Pool::new(small(128)).unwrap();
    let (mut lender, mut borrower) = credit::ring(64, 16).unwrap();
    let mut burst = Burst::new();
    let mut hoard = Vec::new();
    for _ in 0..10 {
        pool.alloc_burst(&mut burst, 8);
        lender.lend(&mut burst);
        pool.release_burst(&mut burst);
        hoard.push(borrower.borrow(64));
    }
    assert_eq!((lender.owed(), lender.refused()), (16, 64));
    hoard[0].give_back(3);
    assert_eq!(lender.owed(), 13);
    hoard.clear();
    assert_eq!(lender.owed(), 0);
    pool.alloc_burst(&mut burst, 8);
    assert_eq!(lender.lend(&mut burst), 8);
    drop(borrower);
    assert_eq!(lender.owed(), 0, "what was in the ring is owed no more");
    drop(lender);
    pool.close().unwrap();
}

/// What panics while frames are handed out loses them; nobody gets one twice, and the memory stays while one is away.
#[test]
fn a_panic_between_frames_loses_some_and_doubles_none() {
    let mut pool = Pool::new(small(8)).unwrap();
    let (mut burst, mut seen) = (Burst::new(), 0);
    let handed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pool.alloc_each(&mut burst, 5, |frame| {
            seen += 1;
            frame.fill(&[seen; 60]).unwrap();
            assert!(seen < 3, "the third cannot be filled");
        })
    }));
    assert!(handed.is_err());
    // Two are in the burst, the third came home alone, and two are lost.
    assert_eq!((burst.len(), pool.counters().outstanding), (2, 4));
    let more: Vec<_> = std::iter::from_fn(|| pool.alloc().ok()).collect();
    assert_eq!((more.len(), pool.counters().outstanding), (4, 8));
    let mut places: Vec<_> = burst.frames().iter().chain(&more).map(|frame| frame.chunk().as_ptr()).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 6);
    drop(more);
    assert!(matches!(pool.close(), Err(Leak { outstanding: 4 })));
    assert_eq!([burst.frames()[0].packet(), burst.frames()[1].packet()], [[1; 60], [2; 60]]);
    // As there is nobody left who could give the two back, the memory stays for good. What a static leads to, Miri calls no leak.
    static FOR_GOOD: Mutex<Option<Burst>> = Mutex::new(None);
    *FOR_GOOD.lock().unwrap() = Some(burst);
}

/// A packet in a cache line is put into a frame whole, and cut where there is no room.
#[test]
fn a_line_is_received_as_far_as_there_is_room() {
    let mut pool = Pool::new(PoolConfig::compact(2)).unwrap();
    let mut line = [0; 64];
    line.iter_mut().zip(1..).for_each(|(byte, n)| *byte = n);
    let mut frame = pool.alloc().unwrap();
    assert_eq!(frame.receive_line(&line, 61), 61);
    assert_eq!((frame.packet(), frame.headroom()), (&line[..61], PoolConfig::default().headroom - FRAME_RESERVE));
    // Less room than the line has, up to the chunk's last byte.
    let end = frame.hard_end();
    assert_eq!(end as usize, frame.chunk().len());
    frame.place(end - 20, end - 20, end - 20).unwrap();
    assert_eq!((frame.receive_line(&line, 61), frame.packet()), (20, &line[..20]));
    pool.release(frame);
    pool.close().unwrap();
}
