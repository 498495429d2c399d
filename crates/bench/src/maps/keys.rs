//! The keys that every side works with, in the same order.

use xway_abi::MapType;

use super::{Op, Subject, is_lru};
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
                let key = key(subject, n);
                if subject.map_type == MapType::LpmTrie && !seen.insert(key.clone()) {
                    continue;
                }
                bytes.extend_from_slice(&key);
            }
            bytes
        };
        let entries = subject.entries;
        if is_lru(subject.map_type) {
            // Half of the entries: Linux's LRU map evicts before it is full.
            return Keys { size, bytes: many(0, entries.div_ceil(2)), flood: many(entries, 4 * entries) };
        }
        Keys { size, bytes: many(0, entries), flood: Vec::new() }
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
        // Of an IPv4 address the Internet's lengths, of others the same share of the address.
        MapType::LpmTrie => {
            let ((length, _), size) = (prefix(n), subject.key_size - 4);
            let length = length * size / 4;
            let mut address = bytes(n, size, u32::to_be_bytes);
            for (at, byte) in address.iter_mut().enumerate() {
                let inside = length.saturating_sub(8 * at as u32).min(8);
                *byte &= !(0xff_u32 >> inside) as u8;
            }
            [&length.to_ne_bytes()[..], &address].concat()
        }
        _ => bytes(n, subject.key_size, u32::to_ne_bytes),
    }
}

/// So many bytes, others for each number.
fn bytes(n: u32, count: u32, order: fn(u32) -> [u8; 4]) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..count.div_ceil(4)).flat_map(|w| order(mix32(n ^ w << 28))).collect();
    bytes.truncate(count as usize);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_all_different() {
        for (map_type, key_size) in super::super::tests::KINDS {
            let keys = Keys::new(&Subject { map_type, key_size, entries: 1000 });
            let mut all: Vec<_> = keys.bytes.chunks(keys.size).chain(keys.flood.chunks(keys.size)).collect();
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "{map_type:?}");
            assert!(count >= 900, "{map_type:?}: {count}");
        }
    }

    #[test]
    fn prefixes_of_ipv4_are_the_suites_and_others_longer() {
        let keys = |key_size| Keys::new(&Subject { map_type: MapType::LpmTrie, key_size, entries: 1000 }).bytes;
        let four = keys(8);
        for n in 0..100 {
            let (length, address) = prefix(n);
            assert!(four.chunks(8).any(|key| key == [length.to_ne_bytes(), address].concat()), "{n}");
        }
        for key in keys(20).chunks(20) {
            let (length, address) = key.split_at(4);
            let length = u32::from_ne_bytes(length.try_into().unwrap());
            assert!((32..=96).contains(&length) && length.is_multiple_of(4), "{length}");
            let rest = u128::from_be_bytes(address.try_into().unwrap()).checked_shl(length).unwrap_or(0);
            assert_eq!(rest, 0, "bits behind the prefix");
        }
    }
}
