//! What `xway bench map` and the benchmarks of this crate run: maps filled with random keys, and loops over them.
//!
//! Nothing here looks at a clock. Each loop does a number of operations and returns something that depends on all of them, so
//! that the caller can time it and no compiler leaves it out.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType, map_flags};

use crate::{CreateError, Env, Guard, Map};

/// A map and the keys that it is used with, in random order.
pub struct Workload {
    /// The map.
    pub map: Arc<Map>,
    keys: Vec<u8>,
    key_size: usize,
    count: usize,
}

/// Numbers without a pattern, the same for the same seed (splitmix64).
fn number(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Workload {
    /// A map of `entries` elements and `keys` different keys for it; nothing is in it yet. Keys of arrays are indexes, keys of
    /// tries are addresses; of other types `key_size` random bytes.
    pub fn new(
        map_type: MapType,
        key_size: u32,
        value_size: u32,
        entries: u32,
        keys: usize,
    ) -> Result<Workload, CreateError> {
        let flags = if map_type == MapType::LpmTrie { map_flags::NO_PREALLOC } else { 0 };
        let spec = MapSpec::new(map_type, key_size, value_size, entries).with_flags(flags);
        let map = Map::create(&spec, &Env::with_cpus(2))?;
        let size = key_size as usize;
        let key = |n: usize| -> Vec<u8> {
            let random = (0..size as u64 / 8 + 1).flat_map(|word| number(n as u64 * 64 + word).to_ne_bytes());
            match map_type {
                MapType::Array | MapType::PercpuArray => {
                    ((number(n as u64) % u64::from(entries)) as u32).to_ne_bytes().into()
                }
                MapType::LpmTrie => ((key_size - 4) * 8).to_ne_bytes().into_iter().chain(random).take(size).collect(),
                _ => random.take(size).collect(),
            }
        };
        Ok(Workload { map, keys: (0..keys).flat_map(key).collect(), key_size: size, count: keys })
    }

    /// The key of a number, from the first again after the last.
    #[inline]
    pub fn key(&self, n: usize) -> &[u8] {
        &self.keys[n % self.count * self.key_size..][..self.key_size]
    }

    /// Puts the first `count` keys in. Tries get prefixes of 8 to all bits of them.
    pub fn fill(&self, count: usize) {
        let value = vec![1; self.map.value_size()];
        for n in 0..count {
            let mut key = self.key(n).to_vec();
            if self.map.map_type() == MapType::LpmTrie {
                let bits = (self.key_size as u32 - 4) * 8;
                key[..4].copy_from_slice(&(8 + number(n as u64) as u32 % (bits - 7)).to_ne_bytes());
            }
            let _ = self.map.prog_update(0, &key, &value, 0);
        }
    }

    /// Looks `count` keys up, one after the other: how many were there.
    pub fn look_up(&self, from: usize, count: usize) -> usize {
        let guard = Guard::pin();
        (from..from + count).filter(|n| self.map.value(0, self.key(*n), &guard).is_some()).count()
    }

    /// Looks `count` keys up by [`Map::lookup_many`], `batch` at a time.
    pub fn look_up_many(&self, from: usize, count: usize, batch: usize) -> usize {
        let guard = Guard::pin();
        let mut found = vec![None; batch];
        let mut sum = 0;
        let mut at = from;
        while at < from + count {
            let start = at % self.count;
            let len = batch.min(self.count - start).min(from + count - at);
            let keys = &self.keys[start * self.key_size..][..len * self.key_size];
            self.map.lookup_many(0, keys, &mut found[..len], &guard);
            sum += found[..len].iter().filter(|value| value.is_some()).count();
            at += len;
        }
        sum
    }

    /// Overwrites or puts in, as a program does.
    pub fn update(&self, from: usize, count: usize) -> usize {
        let value = vec![2; self.map.value_size()];
        (from..from + count).filter(|n| self.map.prog_update(0, self.key(*n), &value, 0).is_ok()).count()
    }

    /// What a connection table does: looks up, and puts in what is not there, for which an LRU map evicts. How many were there.
    pub fn churn(&self, from: usize, count: usize) -> usize {
        let value = vec![3; self.map.value_size()];
        let guard = Guard::pin();
        let known = |n: &usize| {
            let found = self.map.value(0, self.key(*n), &guard).is_some();
            if !found {
                let _ = self.map.prog_update(0, self.key(*n), &value, 0);
            }
            found
        };
        (from..from + count).filter(known).count()
    }

    /// The same for `batch` keys at a time, as a program does that is staged: all look-ups first.
    pub fn churn_many(&self, from: usize, count: usize, batch: usize) -> usize {
        let value = vec![3; self.map.value_size()];
        let guard = Guard::pin();
        let mut found = vec![None; batch];
        let (mut sum, mut at) = (0, from);
        while at < from + count {
            let start = at % self.count;
            let len = batch.min(self.count - start).min(from + count - at);
            let keys = &self.keys[start * self.key_size..][..len * self.key_size];
            self.map.lookup_many(0, keys, &mut found[..len], &guard);
            for (key, found) in keys.chunks_exact(self.key_size).zip(&found[..len]) {
                match found {
                    Some(_) => sum += 1,
                    None => drop(self.map.prog_update(0, key, &value, 0)),
                }
            }
            at += len;
        }
        sum
    }

    /// Deletes keys and puts them in again.
    pub fn delete_and_insert(&self, from: usize, count: usize) -> usize {
        let value = vec![4; self.map.value_size()];
        let again = |n: &usize| {
            let deleted = self.map.prog_delete(0, self.key(*n)).is_ok();
            deleted && self.map.prog_update(0, self.key(*n), &value, 0).is_ok()
        };
        (from..from + count).filter(again).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_do_what_they_count() {
        let count = if cfg!(miri) { 20 } else { 500 };
        for map_type in [MapType::Hash, MapType::LruHash, MapType::PercpuHash] {
            let work = Workload::new(map_type, 16, 8, count as u32, 2 * count).unwrap();
            work.fill(count);
            assert_eq!((work.look_up(0, 2 * count), work.look_up_many(0, 2 * count, 7)), (count, count));
            assert_eq!((work.update(0, count), work.delete_and_insert(0, count)), (count, count));
        }
        let lru = Workload::new(MapType::LruHash, 4, 8, count as u32, 4 * count).unwrap();
        assert_eq!((lru.churn(0, 2 * count), lru.churn_many(2 * count, 2 * count, 7)), (0, 0));
        assert_eq!(lru.map.keys().unwrap().len(), count);
        let trie = Workload::new(MapType::LpmTrie, 8, 8, count as u32, 4 * count).unwrap();
        trie.fill(count);
        assert_eq!(trie.look_up(0, count), count);
        let array = Workload::new(MapType::Array, 4, 8, 16, 100).unwrap();
        assert_eq!(array.look_up(0, 100), 100);
    }
}
