//! Packets that carry arguments for `bpf/tests/helpers.bpf.c`, and packets that a seed has spoilt.

use xway_testkit::Rng;
use xway_testkit::packets::{Named, mixed_set};

/// Frames of random length whose first bytes behind the Ethernet header are six words of arguments.
pub fn arguments(seed: u64, count: usize, word: impl Fn(&mut Rng, usize) -> u32) -> Vec<Named> {
    let mut rng = Rng::new(seed);
    let frame = |_| {
        let len = 38 + rng.index(200);
        let mut bytes = rng.bytes(len);
        for (place, number) in bytes[14..38].as_chunks_mut::<4>().0.iter_mut().zip(0..) {
            *place = word(&mut rng, number).to_ne_bytes();
        }
        Named { name: "arguments", bytes }
    };
    (0..count).map(frame).collect()
}

/// Distances for moves: small ones, and some near each limit.
pub fn distance(rng: &mut Rng) -> u32 {
    let near = |rng: &mut Rng, limit: i64| (limit + rng.below(9) as i64 - 4) as u32;
    match rng.below(8) {
        0..4 => (rng.below(81) as i64 - 40) as u32,
        4 => near(rng, -256),
        5 => near(rng, -32),
        6 => {
            let limit = *rng.pick(&[0, 14, -14, 3520, 4096, 224, -216, i64::from(i32::MAX), i64::from(i32::MIN)]);
            near(rng, limit)
        }
        _ => rng.u32(),
    }
}

/// The mixed set with bytes changed, cut off and added.
pub fn spoilt(seed: u64, rounds: usize) -> Vec<Named> {
    let mut rng = Rng::new(seed);
    let mut all = Vec::new();
    for _ in 0..rounds {
        for mut packet in mixed_set() {
            for _ in 0..1 + rng.below(4) {
                // Headers matter most.
                let at = rng.index(packet.bytes.len().min(80));
                packet.bytes[at] =
                    *rng.pick(&[0, 1, 4, 6, 8, 17, 0x45, 0x60, 0x81, 0xff, packet.bytes[at].wrapping_add(1)]);
            }
            if rng.one_in(4) {
                let len = 14 + rng.index(packet.bytes.len() - 13);
                packet.bytes.truncate(len);
            }
            all.push(packet);
        }
    }
    all
}
