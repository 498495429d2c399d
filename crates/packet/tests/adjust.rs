//! The three adjustments against a plain model of their rules, and their corner cases by hand.

use proptest::prelude::*;
use xway_abi::Errno;
use xway_packet::{Frame, FrameFull, Pool, PoolConfig};

fn frame_of(pool: &mut Pool, len: usize) -> Frame {
    let mut frame = pool.alloc().unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
    frame.fill(&bytes).unwrap();
    frame
}

fn pool() -> Pool {
    Pool::new(PoolConfig { frames: 2, ..PoolConfig::default() }).unwrap()
}

#[test]
fn head_moves_down_to_the_reserve_and_up_to_the_last_header() {
    let mut pool = pool();
    let mut frame = frame_of(&mut pool, 64);
    assert_eq!(frame.adjust_head(-217), Err(Errno::EINVAL));
    assert_eq!(frame.adjust_head(-216), Ok(()));
    assert_eq!((frame.data(), frame.len(), frame.headroom()), (40, 280, 0));
    assert_eq!(frame.adjust_head(-1), Err(Errno::EINVAL));
    assert_eq!(frame.adjust_head(216 + 51), Err(Errno::EINVAL));
    assert_eq!(frame.adjust_head(216 + 50), Ok(()));
    assert_eq!(frame.packet(), (50u8..64).collect::<Vec<_>>());
    assert_eq!(frame.adjust_head(i32::MIN), Err(Errno::EINVAL));
    assert_eq!(frame.adjust_head(i32::MAX), Err(Errno::EINVAL));
}

#[test]
fn metadata_travels_with_the_head() {
    let mut pool = pool();
    let mut frame = frame_of(&mut pool, 64);
    frame.adjust_meta(-8).unwrap();
    frame.meta_mut().copy_from_slice(b"metadata");
    frame.adjust_head(-20).unwrap();
    assert_eq!(frame.meta(), b"metadata");
    frame.adjust_head(4).unwrap();
    assert_eq!(frame.meta(), b"metadata");
    assert_eq!(frame.adjust_head(-(frame.headroom() as i32) - 1), Err(Errno::EINVAL));
    assert_eq!(frame.adjust_head(-(frame.headroom() as i32)), Ok(()));
    assert_eq!((frame.meta(), frame.headroom()), (&b"metadata"[..], 0));
}

#[test]
fn metadata_is_aligned_bounded_and_optional() {
    let mut frame_pool = pool();
    let mut frame = frame_of(&mut frame_pool, 64);
    assert_eq!(frame.adjust_meta(-3), Err(Errno::EACCES));
    assert_eq!(frame.adjust_meta(4), Err(Errno::EINVAL));
    assert_eq!(frame.adjust_meta(-216), Ok(()));
    assert_eq!(frame.adjust_meta(-4), Err(Errno::EINVAL), "no headroom left");
    assert_eq!(frame.adjust_meta(212), Ok(()));
    assert_eq!(frame.meta_len(), 4);

    let mut roomy = Pool::new(PoolConfig { frames: 1, headroom: 512, ..PoolConfig::default() }).unwrap();
    let mut frame = frame_of(&mut roomy, 64);
    assert_eq!(frame.adjust_meta(-256), Err(Errno::EACCES));
    assert_eq!(frame.adjust_meta(-252), Ok(()));

    let mut without = Pool::new(PoolConfig { frames: 1, metadata: false, ..PoolConfig::default() }).unwrap();
    let mut frame = frame_of(&mut without, 64);
    assert_eq!(frame.adjust_meta(-4), Err(Errno::ENOTSUPP));
    assert_eq!((frame.data_meta(), frame.meta_len()), (frame.data() + 1, 0));
    frame.adjust_head(-10).unwrap();
    assert_eq!(frame.data_meta(), frame.data() + 1);
    assert_eq!(frame.adjust_head(-206), Ok(()));
}

#[test]
fn tail_grows_with_zeroes_to_the_hard_end_and_shrinks_to_a_header() {
    let mut pool = pool();
    let mut frame = frame_of(&mut pool, 64);
    frame.chunk_mut()[320..].fill(0xff);
    let room = 4096 - 320 - 256 - 64;
    assert_eq!(frame.tailroom(), room);
    assert_eq!(frame.adjust_tail(room as i32 + 1), Err(Errno::EINVAL));
    assert_eq!(frame.adjust_tail(room as i32), Ok(()));
    assert!(frame.packet()[64..].iter().all(|&byte| byte == 0));
    assert_eq!(frame.chunk()[4096 - 320], 0xff, "nothing behind the hard end is touched");
    assert_eq!(frame.adjust_tail(-3507), Err(Errno::EINVAL));
    assert_eq!(frame.adjust_tail(-3506), Ok(()));
    assert_eq!(frame.len(), 14);
    assert_eq!(frame.adjust_tail(i32::MIN), Err(Errno::EINVAL));
}

#[test]
fn packets_longer_than_the_chunk_are_refused_whole() {
    let mut pool = pool();
    let mut frame = frame_of(&mut pool, 64);
    assert_eq!(frame.fill(&vec![0; 3521]), Err(FrameFull { len: 3521, room: 3520 }));
    assert_eq!(frame.len(), 64);
    assert_eq!(frame.fill(&vec![1; 3520]), Ok(()));
    assert_eq!(frame.len(), 3520);
    let mut compact = Pool::new(PoolConfig::compact(1)).unwrap();
    let mut frame = compact.alloc().unwrap();
    assert_eq!(frame.capacity(), 1792);
    assert_eq!(frame.fill(&[7; 1792]), Ok(()));
}

#[test]
fn a_recycled_frame_knows_nothing_of_its_past() {
    let mut pool = Pool::new(PoolConfig { frames: 1, ..PoolConfig::default() }).unwrap();
    let mut frame = frame_of(&mut pool, 64);
    frame.set_ingress(7, 3);
    frame.set_egress_ifindex(9);
    frame.set_rx_meta(xway_packet::RxMeta {
        hash: Some((1, 2)),
        vlan: Some(xway_packet::Vlan { proto: 0x8100, tci: 5 }),
        timestamp: Some(1),
    });
    frame.set_redirect(xway_packet::Redirect::Ifindex(3));
    frame.adjust_meta(-4).unwrap();
    pool.release(frame);
    let frame = pool.alloc().unwrap();
    assert_eq!((frame.ingress_ifindex(), frame.rx_queue(), frame.egress_ifindex()), (0, 0, 0));
    assert_eq!(frame.rx_meta(), xway_packet::RxMeta::default());
    assert_eq!(frame.redirect(), xway_packet::Redirect::None);
    assert_eq!((frame.len(), frame.meta_len(), frame.data()), (0, 0, 256));
}

#[derive(Clone, Debug)]
enum Step {
    Head(i32),
    Meta(i32),
    Tail(i32),
}

fn step() -> impl Strategy<Value = Step> {
    let delta = prop_oneof![-300..300i32, -4096..4096i32, (-20..20i32).prop_map(|quads| quads * 4), any::<i32>()];
    (0..3, delta).prop_map(|(kind, delta)| match kind {
        0 => Step::Head(delta),
        1 => Step::Meta(delta),
        _ => Step::Tail(delta),
    })
}

/// The rules again, over a growable picture of the whole chunk.
struct Model {
    chunk: Vec<u8>,
    meta: i64,
    data: i64,
    end: i64,
}

impl Model {
    fn apply(&mut self, step: &Step) -> Result<(), Errno> {
        match *step {
            Step::Head(delta) => {
                let delta = i64::from(delta);
                if self.meta + delta < 40 || self.end - (self.data + delta) < 14 {
                    return Err(Errno::EINVAL);
                }
                let metadata = self.chunk[self.meta as usize..self.data as usize].to_vec();
                (self.meta, self.data) = (self.meta + delta, self.data + delta);
                self.chunk[self.meta as usize..self.data as usize].copy_from_slice(&metadata);
            }
            Step::Meta(delta) => {
                let meta = self.meta + i64::from(delta);
                if !(40..=self.data).contains(&meta) {
                    return Err(Errno::EINVAL);
                }
                if (self.data - meta) % 4 != 0 || self.data - meta > 252 {
                    return Err(Errno::EACCES);
                }
                self.meta = meta;
            }
            Step::Tail(delta) => {
                let end = self.end + i64::from(delta);
                if end > 4096 - 320 || end - self.data < 14 {
                    return Err(Errno::EINVAL);
                }
                if end > self.end {
                    self.chunk[self.end as usize..end as usize].fill(0);
                }
                self.end = end;
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_sequence_of_adjustments_follows_the_rules(len in 14..3520usize, steps in prop::collection::vec(step(), 1..40)) {
        let mut pool = pool();
        let mut frame = frame_of(&mut pool, len);
        let mut model =
            Model { chunk: frame.chunk().to_vec(), meta: 256, data: 256, end: 256 + len as i64 };
        for step in &steps {
            let got = match *step {
                Step::Head(delta) => frame.adjust_head(delta),
                Step::Meta(delta) => frame.adjust_meta(delta),
                Step::Tail(delta) => frame.adjust_tail(delta),
            };
            prop_assert_eq!(got, model.apply(step), "{:?}", step);
            prop_assert_eq!(
                (frame.data_meta(), frame.data(), frame.data_end()),
                (model.meta as u32, model.data as u32, model.end as u32)
            );
            prop_assert!(frame.chunk() == model.chunk.as_slice(), "bytes differ after {:?}", step);
        }
    }
}
