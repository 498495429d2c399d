//! The keys that every side works with, in the same order.

use xway_abi::MapType;

use super::{Op, Subject};
use crate::flows::{mix32, prefix};

/// The keys, in the order in which they come.
pub(super) struct Keys {
    pub(super) size: usize,
    /// As many as the map has entries; half as many for an LRU map.
    pub(super) bytes: Vec<u8>,
    /// Keys that make an LRU map evict: four times its entries.
    pub(super) flood: Vec<u8>,
}

impl Keys {
    pub(super) fn new(subject: &Subject) -> Keys {
        let size = subject.key_size as usize;
        let many = |from: u32, count: u32| {
            let mut bytes = Vec::with_capacity(count as usize * size);
            let mut seen = std::collections::HashSet::new();
            for n in from..from + count {
                if subject.map_type == MapType::LpmTrie && !seen.insert(prefix(n)) {
                    continue;
                }
                bytes.extend_from_slice(&key(subject, n));
            }
            bytes
        };
        let entries = subject.entries;
        match subject.map_type {
            // Half of the entries: Linux's LRU map evicts before it is full.
            MapType::LruHash | MapType::LruPercpuHash => {
                Keys { size, bytes: many(0, entries.div_ceil(2)), flood: many(entries, 4 * entries) }
            }
            _ => Keys { size, bytes: many(0, entries), flood: Vec::new() },
        }
    }

    /// Every `of`th key from the `nth` on.
    pub(super) fn share(&self, nth: usize, of: usize) -> Keys {
        let every = |bytes: &[u8]| bytes.chunks(self.size).skip(nth).step_by(of).flatten().copied().collect();
        Keys { size: self.size, bytes: every(&self.bytes), flood: every(&self.flood) }
    }

    pub(super) fn of(&self, op: Op) -> &[u8] {
        if op == Op::Evict { &self.flood } else { &self.bytes }
    }
}

fn key(subject: &Subject, n: u32) -> Vec<u8> {
    match subject.map_type {
        // Every index once, in no order.
        MapType::Array | MapType::PercpuArray => {
            let bits = 32 - (subject.entries.max(2) - 1).leading_zeros();
            let mask = ((1u64 << bits) - 1) as u32;
            let mut at = n;
            loop {
                // A bijection of so many bits, again until the result is an index.
                at = at.wrapping_mul(0x9e37_79b1) & mask;
                at ^= at >> bits.div_ceil(2);
                if at < subject.entries {
                    return at.to_ne_bytes().to_vec();
                }
            }
        }
        MapType::LpmTrie => {
            let (length, address) = prefix(n);
            [length.to_ne_bytes(), address].concat()
        }
        _ => {
            let mut bytes: Vec<u8> =
                (0..subject.key_size.div_ceil(4)).flat_map(|w| mix32(n ^ w << 28).to_ne_bytes()).collect();
            bytes[..4].copy_from_slice(&mix32(n).to_ne_bytes());
            bytes.truncate(subject.key_size as usize);
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_all_different() {
        for (map_type, key_size) in [
            (MapType::Array, 4),
            (MapType::Hash, 4),
            (MapType::Hash, 37),
            (MapType::LruHash, 16),
            (MapType::LpmTrie, 8),
            (MapType::PercpuArray, 4),
            (MapType::LruPercpuHash, 16),
        ] {
            let keys = Keys::new(&Subject { map_type, key_size, entries: 1000 });
            let mut all: Vec<_> = keys.bytes.chunks(keys.size).chain(keys.flood.chunks(keys.size)).collect();
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "{map_type:?}");
            assert!(count >= 900, "{map_type:?}: {count}");
        }
    }
}
