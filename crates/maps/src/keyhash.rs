//! The keyed hash of the tables.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A secret for each map: who cannot see the table cannot aim at one bucket.
#[derive(Clone, Copy)]
pub(crate) struct Seed(u64, u64);

impl Seed {
    /// A fresh secret from the system's randomness.
    pub(crate) fn random() -> Seed {
        let draw = || RandomState::new().build_hasher().finish();
        Seed(draw(), draw())
    }

    /// The seed of `BPF_F_ZERO_SEED`: the same table for the same keys.
    pub(crate) const ZERO: Seed = Seed(0, 0);

    /// The n-th of a row of seeds that are the same in every map.
    pub(crate) fn fixed(n: u64) -> Seed {
        Seed(n.wrapping_mul(STEP), n.wrapping_mul(FINISH))
    }

    /// Hashes a key of any length: eight bytes a step, each folded by a 64-to-128-bit multiplication with the secret in
    /// both factors.
    #[inline]
    pub(crate) fn hash(self, key: &[u8]) -> u32 {
        let mut state = self.0 ^ (key.len() as u64).wrapping_mul(STEP);
        let (chunks, rest) = key.as_chunks::<8>();
        for chunk in chunks {
            state = fold(state ^ u64::from_ne_bytes(*chunk), self.1 ^ STEP);
        }
        if !rest.is_empty() {
            state = fold(state ^ tail(rest), self.1 ^ STEP);
        }
        let last = fold(state ^ FINISH, self.1 ^ FINISH);
        (last ^ (last >> 32)) as u32
    }
}

/// Two odd numbers without structure: digits of the golden ratio and of the square root of two.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const FINISH: u64 = 0x6a09_e667_f3bc_c909;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1);
    product as u64 ^ (product >> 64) as u64
}

/// Fewer than eight bytes as a number, zero-padded.
#[inline]
pub(crate) fn tail(rest: &[u8]) -> u64 {
    match rest {
        [a, b, c, d] => u64::from(u32::from_ne_bytes([*a, *b, *c, *d])),
        [a, b] => u64::from(u16::from_ne_bytes([*a, *b])),
        _ => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_ne_bytes(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "thousands of hashes, all safe code")]
    fn spreads_counters_and_single_bits() {
        for seed in [Seed::ZERO, Seed::random()] {
            let mut buckets = [0u32; 256];
            for n in 0..65536u32 {
                buckets[(seed.hash(&n.to_ne_bytes()) & 255) as usize] += 1;
            }
            assert!(buckets.iter().all(|n| (150..370).contains(n)), "{buckets:?}");
            let mut seen = std::collections::HashSet::new();
            for len in 1..40 {
                for bit in 0..len * 8 {
                    let mut key = vec![0u8; len];
                    key[bit / 8] |= 1 << (bit % 8);
                    seen.insert(seed.hash(&key));
                }
            }
            let keys = (1..40).map(|len| len * 8).sum::<usize>();
            assert!(seen.len() > keys - 10, "{} of {keys}", seen.len());
        }
    }
}
