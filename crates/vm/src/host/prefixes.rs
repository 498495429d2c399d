//! Routes by prefix, and neighbours: hash tables under a key of their own.
//!
//! Addresses come from others' packets, so who sends them must not be able to aim at one bucket; the standard library's hash keeps that
//! promise for any key at a few times the price. As in the tables of maps each step is one product of 64 by 64 bits, whose halves are
//! folded together, and every factor holds a secret.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use super::route::Route;

/// Secrets of a hash table.
#[derive(Clone, Debug)]
pub(super) struct Keyed([u64; 3]);

impl Default for Keyed {
    fn default() -> Keyed {
        let draw = || RandomState::new().build_hasher().finish();
        // An even factor would lose bits, zero all of them.
        Keyed([draw(), draw() | 1, draw() | 1])
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folded;

    #[inline]
    fn build_hasher(&self) -> Folded {
        let Keyed([state, factor, last]) = *self;
        Folded { state, factor, last }
    }
}

/// The hash of what has been seen so far.
pub(super) struct Folded {
    state: u64,
    factor: u64,
    last: u64,
}

/// Both halves of the product of two words.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for Folded {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.factor);
    }

    #[inline]
    fn write_u128(&mut self, words: u128) {
        self.state = fold(self.state ^ words as u64, self.factor ^ (words >> 64) as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.state, self.last)
    }
}

/// An address as a number; of both families, which are asked for apart.
#[inline]
pub(super) fn number(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(a) => u32::from(a).into(),
        IpAddr::V6(a) => a.into(),
    }
}

/// The routes of one family in one table.
#[derive(Clone, Debug)]
pub(super) struct Prefixes {
    /// The table's number, and whether it is IPv6.
    pub key: (u32, bool),
    /// By their lengths, the longest first.
    lengths: Vec<Length>,
}

/// The routes whose prefixes are of one length, by these.
#[derive(Clone, Debug)]
struct Length {
    len: u8,
    routes: HashMap<u128, Vec<Route>, Keyed>,
}

impl Prefixes {
    pub fn new(key: (u32, bool)) -> Prefixes {
        Prefixes { key, lengths: vec![] }
    }

    /// The routes with a prefix, whose length is not longer than an address.
    pub fn routes_mut(&mut self, prefix: IpAddr, len: u8) -> &mut Vec<Route> {
        let at = match self.lengths.binary_search_by(|l| len.cmp(&l.len)) {
            Ok(at) => at,
            Err(at) => {
                self.lengths.insert(at, Length { len, routes: HashMap::default() });
                at
            }
        };
        let prefix = number(prefix) & self.mask(len);
        self.lengths[at].routes.entry(prefix).or_default()
    }

    /// How many lengths there are.
    pub fn count(&self) -> usize {
        self.lengths.len()
    }

    /// The routes with the address's prefix of the n-th length, and that length; the longest is the first.
    #[inline]
    pub fn nth(&self, n: usize, addr: u128) -> Option<(u8, &[Route])> {
        let Length { len, routes } = self.lengths.get(n)?;
        Some((*len, routes.get(&(addr & self.mask(*len)))?))
    }

    #[inline]
    fn mask(&self, len: u8) -> u128 {
        let bits = if self.key.1 { 128 } else { 32 };
        u128::MAX.checked_shl(bits - u32::from(len)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_spread_and_differ_from_table_to_table() {
        let (one, other) = (Keyed::default(), Keyed::default());
        let networks = || (0..4096u128).flat_map(|n| [n, n << 8, n << 16, n << 64, n << 112]);
        for keyed in [&one, &other] {
            let mut buckets = [0; 256];
            networks().for_each(|n| buckets[keyed.hash_one(n) as usize & 255] += 1);
            // Eighty each.
            assert!(buckets.iter().all(|n| (20..200).contains(n)), "{buckets:?}");
        }
        assert!(networks().filter(|n| one.hash_one(n) == other.hash_one(n)).count() < 2);
    }
}
