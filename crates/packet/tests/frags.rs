//! Packets of several buffers: whole, in order, and home again.

use proptest::prelude::*;
use xway_abi::Errno;
use xway_packet::{Frame, Pool, PoolConfig};

fn pool() -> Pool {
    Pool::new(PoolConfig::new(64)).unwrap()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn contents(frame: &Frame) -> Vec<u8> {
    frame.parts().flatten().copied().collect()
}

#[test]
fn long_packets_take_as_many_buffers_as_they_need() {
    let mut pool = pool();
    for (len, frags) in [(3520, 0), (3521, 1), (3520 + 4096, 1), (3520 + 4097, 2), (65_535, 16), (3520 + 17 * 4096, 17)]
    {
        let packet = bytes(len);
        let frame = pool.frame_of(&packet).unwrap();
        assert_eq!((frame.frag_count(), frame.total_len(), frame.has_frags()), (frags, len, frags > 0));
        assert_eq!(contents(&frame), packet);
        assert_eq!(pool.counters().outstanding, frags as u32 + 1);
        pool.release(frame);
        assert_eq!(pool.counters().outstanding, 0, "{len}");
    }
    assert!(pool.frame_of(&bytes(3520 + 17 * 4096 + 1)).is_err());
    assert_eq!(pool.counters().outstanding, 0);
    pool.close().unwrap();
}

#[test]
fn the_parts_go_where_the_frame_goes() {
    let mut pool = pool();
    let frame = pool.frame_of(&bytes(20_000)).unwrap();
    let other = std::thread::spawn(move || contents(&frame).len());
    assert_eq!(other.join().unwrap(), 20_000);
    assert_eq!(pool.counters().outstanding, 0);
    let shared = pool.frame_of(&bytes(20_000)).unwrap().share();
    let second = shared.clone();
    drop(shared);
    assert_eq!(contents(&second), bytes(20_000));
    let mut copied = Pool::new(PoolConfig::new(16)).unwrap();
    let copy = copied.copy(&second).unwrap();
    drop(second);
    assert_eq!(contents(&copy), bytes(20_000));
    assert_eq!(copied.counters().outstanding, 6);
    let mut small = Pool::new(PoolConfig::new(3)).unwrap();
    assert!(small.copy(&copy).is_err(), "there are not as many frames");
    assert_eq!(small.counters().outstanding, 0);
    drop(copy);
    for pool in [pool, copied, small] {
        pool.close().unwrap();
    }
}

#[test]
fn parts_are_not_nested_and_not_too_many() {
    let mut pool = pool();
    let mut frame = pool.frame_of(&bytes(100)).unwrap();
    let nested = pool.frame_of(&bytes(5000)).unwrap();
    let nested = frame.push_part(nested).unwrap_err();
    for _ in 0..Frame::FRAGS_MAX {
        let mut part = pool.alloc().unwrap();
        part.fill_part(b"x").unwrap();
        frame.push_part(part).unwrap();
    }
    let one_more = pool.alloc().unwrap();
    assert!(frame.push_part(one_more).is_err());
    assert_eq!(frame.total_len(), 117);
    let mut part = pool.alloc().unwrap();
    assert_eq!(part.fill_part(&[0; 4097]), Err(Errno::EINVAL));
    drop((nested, frame, part));
    pool.close().unwrap();
}

#[test]
fn the_tail_moves_through_buffers() {
    let mut pool = pool();
    let mut frame = pool.frame_of(&bytes(3520 + 4096 + 100)).unwrap();
    assert_eq!(frame.adjust_tail(4096 - 100 + 1), Err(Errno::EINVAL), "no room behind the last chunk");
    frame.adjust_tail(10).unwrap();
    assert_eq!(contents(&frame)[7716..], [0; 10]);
    frame.adjust_tail(-60).unwrap();
    assert_eq!((frame.total_len(), frame.frag_count()), (7666, 2));
    frame.adjust_tail(-50).unwrap();
    assert_eq!((frame.total_len(), frame.frag_count()), (7616, 1), "an empty buffer goes home");
    assert_eq!(pool.counters().outstanding, 2);
    assert_eq!(frame.adjust_tail(-(7616 - 13)), Err(Errno::EINVAL), "an Ethernet header stays");
    frame.adjust_tail(-(7616 - 14)).unwrap();
    assert_eq!((frame.total_len(), frame.len(), frame.has_frags()), (14, 14, false));
    assert_eq!(contents(&frame), bytes(14));
    drop(frame);
    pool.close().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// Loads and stores anywhere do what they do to bytes in one piece.
    #[test]
    fn loads_and_stores_see_one_packet(
        len in 14usize..30_000,
        accesses in proptest::collection::vec((0usize..31_000, 0usize..9000, any::<u8>()), 1..12),
    ) {
        let mut pool = pool();
        let mut whole = bytes(len);
        let mut frame = pool.frame_of(&whole).unwrap();
        for (offset, count, fill) in accesses {
            let mut read = vec![0; count];
            let inside = offset + count <= len;
            prop_assert_eq!(frame.load(offset, &mut read).is_ok(), inside);
            prop_assert_eq!(frame.store(offset, &vec![fill; count]).is_ok(), inside);
            if inside {
                prop_assert_eq!(&read[..], &whole[offset..offset + count]);
                whole[offset..offset + count].fill(fill);
            }
        }
        prop_assert_eq!(contents(&frame), whole);
        drop(frame);
        pool.close().unwrap();
    }
}
