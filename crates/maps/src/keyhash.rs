//! The keyed hash of the tables.
//!
//! Words of eight bytes, in the machine's byte order, the last one filled up with zeros, go in by twos; each step is one
//! multiplication of 64 by 64 bits whose two halves are folded together. Every factor holds a secret of the map, so who
//! cannot see the table cannot aim at one bucket. [`Seed::hash`] is the definition; generated code does the same
//! (`native.rs` has it as an example).

use std::hash::{BuildHasher, Hasher, RandomState};

/// The secrets of one map.
#[derive(Clone, Copy)]
pub(crate) struct Seed(pub(crate) [u64; 3]);

/// Odd numbers without structure: digits of the golden ratio, of the square root of two and of pi.
const DIGITS: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909, 0x2435_f6a8_885a_308d];

impl Seed {
    /// A fresh secret from the system's randomness.
    pub(crate) fn random() -> Seed {
        let draw = || RandomState::new().build_hasher().finish();
        Seed::from([draw(), draw(), draw()])
    }

    /// The seed of `BPF_F_ZERO_SEED`: the same table for the same keys.
    pub(crate) fn zero() -> Seed {
        Seed::from([0; 3])
    }

    /// The n-th of a row of seeds that are the same in every map.
    #[inline]
    pub(crate) fn fixed(n: u64) -> Seed {
        let word = |at: usize| n.wrapping_add(1).wrapping_mul(DIGITS[at]);
        Seed::from([word(1), word(2), word(0)])
    }

    /// This one with the secrets of another.
    #[inline]
    pub(crate) fn mixed(&self, other: &Seed) -> Seed {
        let (Seed([a, b, c]), Seed([x, y, z])) = (self, other);
        Seed([a ^ x, (b ^ y) | 1, (c ^ z) | 1])
    }

    /// The two factors that stand alone are odd: an even one would lose bits, zero all of them.
    #[inline]
    fn from(words: [u64; 3]) -> Seed {
        Seed([words[0] ^ DIGITS[0], (words[1] ^ DIGITS[1]) | 1, (words[2] ^ DIGITS[2]) | 1])
    }

    /// Hashes a key. Keys of one map have one length, which therefore is not part of it.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        // The lengths that programs use are written out, so that each compiles to a handful of instructions.
        match key.len() {
            4 => self.words(&key[..4]),
            8 => self.words(&key[..8]),
            16 => self.words(&key[..16]),
            20 => self.words(&key[..20]),
            36 => self.words(&key[..36]),
            40 => self.words(&key[..40]),
            _ => self.words(key),
        }
    }

    #[inline(always)]
    pub(crate) fn words(&self, key: &[u8]) -> u64 {
        let Seed([first, factor, last]) = *self;
        let mut state = first;
        let (pairs, rest) = key.as_chunks::<16>();
        for pair in pairs {
            let (a, b) = pair.split_at(8);
            state = fold(state ^ tail(a), factor ^ tail(b));
        }
        if rest.len() > 8 {
            let (a, b) = rest.split_at(8);
            state = fold(state ^ tail(a), factor ^ tail(b));
        } else if !rest.is_empty() {
            state = fold(state ^ tail(rest), factor);
        }
        fold(state, last)
    }
}

impl Seed {
    /// The same of a key in words, the last one filled up with zeros.
    #[inline(always)]
    pub(crate) fn of_words<const N: usize>(&self, words: &[u64; N]) -> u64 {
        let Seed([first, factor, last]) = *self;
        let mut state = first;
        let (pairs, rest) = words.as_chunks::<2>();
        for [a, b] in pairs {
            state = fold(state ^ a, factor ^ b);
        }
        if let [a] = rest {
            state = fold(state ^ a, factor);
        }
        fold(state, last)
    }
}

/// A key of 8 N bytes or up to seven fewer in words, the last one filled up with zeros.
#[inline(always)]
pub(crate) fn in_words<const N: usize>(key: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (n, word) in words.iter_mut().enumerate() {
        *word = tail(&key[8 * n..key.len().min(8 * n + 8)]);
    }
    words
}

/// Both halves of the product of two words.
#[inline(always)]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// At most eight bytes as a number, zero-padded.
#[inline(always)]
pub(crate) fn tail(rest: &[u8]) -> u64 {
    if let Ok(bytes) = <[u8; 8]>::try_from(rest) {
        u64::from_ne_bytes(bytes)
    } else if let Ok(bytes) = <[u8; 4]>::try_from(rest) {
        u64::from(u32::from_ne_bytes(bytes)) << if cfg!(target_endian = "big") { 32 } else { 0 }
    } else {
        let mut bytes = [0; 8];
        bytes[..rest.len()].copy_from_slice(rest);
        u64::from_ne_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far the fullest of 2^12 buckets (and the rarest and commonest of 2^8 tags) may be from even.
    fn spread(name: &str, seed: Seed, keys: impl Iterator<Item = Vec<u8>>) {
        let (mut buckets, mut tags, mut count) = (vec![0f64; 4096], vec![0f64; 256], 0f64);
        for key in keys {
            let hash = seed.hash(&key);
            buckets[hash as usize & 4095] += 1.0;
            tags[(hash >> 56) as usize] += 1.0;
            count += 1.0;
        }
        for cells in [buckets, tags] {
            let mean = count / cells.len() as f64;
            let chi: f64 = cells.iter().map(|n| (n - mean) * (n - mean) / mean).sum();
            let free = cells.len() as f64 - 1.0;
            // Eight standard deviations above what chance gives. Evener than chance is welcome.
            assert!(chi < free + 8.0 * (2.0 * free).sqrt(), "{name}: chi square {chi} of {free}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of hashes, all safe code")]
    fn spreads_what_scans_and_networks_look_like() {
        for seed in [Seed::zero(), Seed::fixed(1), Seed::random(), Seed::random()] {
            let addresses = |n: u32| (0x0a00_0000u32 + n).to_be_bytes();
            spread("counter", seed, (0..65536u32).map(|n| n.to_ne_bytes().into()));
            spread("addresses", seed, (0..65536).map(|n| addresses(n).into()));
            spread("every 256th address", seed, (0..65536).map(|n| addresses(n * 256).into()));
            spread("8-byte counter", seed, (0..65536u64).map(|n| n.to_ne_bytes().into()));
            spread("high half", seed, (0..65536u64).map(|n| (n << 32).to_ne_bytes().into()));
            let tuple = |source: u32, port: u16| {
                [&addresses(source)[..], &[10, 0, 0, 1], &port.to_be_bytes(), &[0, 80, 6, 0, 0, 0]].concat()
            };
            spread("port scan", seed, (0..65536u32).map(|n| tuple(7, n as u16)));
            spread("host scan", seed, (0..65536u32).map(|n| tuple(n, 4096)));
            spread("both", seed, (0..65536u32).map(|n| tuple(n / 256, (n % 256) as u16)));
            for len in [6, 20, 36, 37, 40] {
                let at = |n: u32| (0..len).map(move |i| if i < len - 2 { 1 } else { (n >> (8 * (len - 1 - i))) as u8 });
                spread("long keys", seed, (0..65536u32).map(|n| at(n).collect()));
            }
        }
    }

    #[test]
    fn every_bit_counts() {
        let seed = Seed::random();
        let mut seen = std::collections::HashSet::new();
        let lengths = if cfg!(miri) { 7..9 } else { 1..48 };
        for len in lengths.clone() {
            for bit in 0..len * 8 {
                let mut key = vec![0u8; len];
                key[bit / 8] |= 1 << (bit % 8);
                seen.insert((len, seed.hash(&key)));
            }
        }
        assert_eq!(seen.len(), lengths.map(|len| len * 8).sum::<usize>());
    }
}
