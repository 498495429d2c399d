//! Seeded mutation of byte strings.

use xway_testkit::Rng;

/// Values that sit at the edges of lengths, offsets and counts.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_ffff,
];

/// Longest result, bytes.
const LEN_MAX: usize = 1 << 18;

/// Changes `input` in one to eight places; `other` is material to take pieces from.
pub fn mutate(rng: &mut Rng, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut out = input.to_vec();
    for _ in 0..=rng.below(8) {
        step(rng, &mut out, other);
        out.truncate(LEN_MAX);
    }
    out
}

fn step(rng: &mut Rng, out: &mut Vec<u8>, other: &[u8]) {
    if out.is_empty() {
        out.push(rng.u64() as u8);
        return;
    }
    let at = rng.index(out.len());
    match rng.below(10) {
        0 | 1 => out[at] ^= 1 << rng.below(8),
        2 => out[at] = rng.u64() as u8,
        3 | 4 => put(rng, out, at),
        5 => {
            // A length that is off by a little.
            let delta = 1 + rng.below(16) as u8;
            out[at] = if rng.one_in(2) { out[at].wrapping_add(delta) } else { out[at].wrapping_sub(delta) };
        }
        6 => drop(out.drain(at..(at + 1 + rng.index(64)).min(out.len()))),
        7 => out.truncate(at),
        8 => {
            let piece = piece(rng, other);
            out.splice(at..at, piece);
        }
        _ => {
            let piece = piece(rng, other);
            let end = (at + piece.len()).min(out.len());
            out.splice(at..end, piece);
        }
    }
}

/// Writes an edge value of 1, 2, 4 or 8 bytes in either byte order.
fn put(rng: &mut Rng, out: &mut [u8], at: usize) {
    let value = *rng.pick(&EDGES);
    let width = *rng.pick(&[1usize, 2, 4, 8]);
    let bytes = if rng.one_in(4) { value.to_be_bytes() } else { value.to_le_bytes() };
    let bytes = if rng.one_in(4) { &bytes[8 - width..] } else { &bytes[..width] };
    for (to, from) in out[at..].iter_mut().zip(bytes) {
        *to = *from;
    }
}

fn piece(rng: &mut Rng, from: &[u8]) -> Vec<u8> {
    if from.is_empty() {
        let len = 1 + rng.index(16);
        return rng.bytes(len);
    }
    let at = rng.index(from.len());
    let len = 1 + rng.index(128);
    from[at..(at + len).min(from.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_other_seeds_others() {
        let run = |seed| {
            let mut rng = Rng::new(seed);
            let mut input = b"some bytes to begin with".to_vec();
            for _ in 0..200 {
                input = mutate(&mut rng, &input, b"other material");
            }
            input
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!(run(3).len() <= LEN_MAX);
    }
}
