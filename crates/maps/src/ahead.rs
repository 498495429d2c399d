//! Memory for look-ups that are about to come, fetched for many of them at once.
//!
//! A look-up in a table that is larger than the cache waits for memory, once for the bucket and once more for the element. Who
//! knows the keys of a whole burst fetches all buckets first, then all elements: the waits pass side by side. Nothing is
//! looked up here and nothing is changed, not even marks of the LRU, so a wrong guess costs time and nothing else.
//!
//! Keys come as *notes*, one word each; 0 is none.
//!
//! | map | note |
//! |---|---|
//! | hash tables | the hash, as in [`crate::native`] |
//! | arrays | index + 1 |
//! | tries | the first [`LPM_FRONT`] bytes of the address as a big-endian number, shorter ones on top; the lowest bit set |

use crate::Map;
use crate::map::Kind;

/// Bytes of an address that a note holds.
pub const LPM_FRONT: usize = 8;

/// Notes of one target: `notes[first]`, `notes[first + step]` and so on.
#[derive(Clone, Copy)]
pub(crate) struct Notes<'a> {
    words: &'a [u64],
    first: usize,
    step: usize,
}

impl<'a> Notes<'a> {
    /// The notes in their order, none left out.
    #[inline(always)]
    pub(crate) fn all(self) -> impl Iterator<Item = u64> + use<'a> {
        self.words.iter().skip(self.first).step_by(self.step.max(1)).copied()
    }
}

impl Map {
    /// Bytes that look-ups of programs are spread over when the map is full; 0 where nothing can be fetched ahead.
    pub fn spread_max(&self) -> usize {
        match &self.kind {
            Kind::Array(map) => map.values.bytes(),
            Kind::PercpuArray(map) => map.values.cpu_stride,
            Kind::Hash(map) => map.spread(map.table.pool().capacity() as usize),
            Kind::LpmTrie(map) => map.spread(map.max_entries()),
            _ => 0,
        }
    }

    /// Bytes that look-ups of programs are spread over by now: what the elements take that were in use at once, with their
    /// buckets. Costs a few loads.
    pub fn spread(&self) -> usize {
        match &self.kind {
            Kind::Hash(map) => map.spread(map.table.touched()),
            Kind::LpmTrie(map) => map.spread(map.count()),
            _ => self.spread_max(),
        }
    }

    /// Fetches what look-ups of these keys on this CPU will need: `notes[first]`, `notes[first + step]` and so on. At most 64 at
    /// a time are useful. What is no note of this map is harmless.
    pub fn fetch_ahead(&self, cpu: u32, notes: &[u64], first: usize, step: usize) {
        let notes = Notes { words: notes, first, step };
        match &self.kind {
            Kind::Hash(map) => map.fetch_ahead(cpu, notes),
            Kind::LpmTrie(map) => map.fetch_ahead(notes),
            Kind::Array(map) => {
                for index in notes.all() {
                    map.values.prefetch((index.wrapping_sub(1) as usize).wrapping_mul(map.layout.stride));
                }
            }
            Kind::PercpuArray(map) => {
                let own = (cpu as usize).wrapping_mul(map.values.cpu_stride);
                for index in notes.all() {
                    let at = (index.wrapping_sub(1) as usize).wrapping_mul(map.layout.stride);
                    map.values.values.prefetch(own.wrapping_add(at));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Env, Map};
    use xway_abi::{MapSpec, MapType, map_flags};

    /// Whatever the notes say: nothing is changed and nothing outside is touched.
    #[test]
    fn notes_are_only_hints() {
        let trie = MapSpec { flags: map_flags::NO_PREALLOC, ..MapSpec::new(MapType::LpmTrie, 8, 8, 500) };
        let trie_16 = MapSpec { flags: map_flags::NO_PREALLOC, ..MapSpec::new(MapType::LpmTrie, 20, 8, 500) };
        let of = |map_type| MapSpec::new(map_type, 4, 100, 500);
        let types = [MapType::Hash, MapType::LruHash, MapType::PercpuHash, MapType::Array, MapType::PercpuArray];
        let queue = MapSpec::new(MapType::Queue, 0, 8, 4);
        for spec in types.map(of).into_iter().chain([trie, trie_16, queue]) {
            let map = Map::create(&spec, &Env::with_cpus(2)).unwrap();
            let put = |n: u32| {
                let len = if spec.map_type == MapType::LpmTrie { 4 } else { 0 };
                let mut key = vec![3; map.key_size()];
                key[len..len + 4].copy_from_slice(&n.to_be_bytes());
                if len > 0 {
                    key[..4].copy_from_slice(&(8 + n % (8 * (map.key_size() as u32 - 4) - 7)).to_ne_bytes());
                }
                let _ = map.update(&key, &vec![1; map.user_value_size()], 0);
            };
            if map.key_size() > 0 {
                (0..500u32).for_each(|n| put(n.wrapping_mul(0x9e37_79b9)));
            }
            let keys = map.keys();
            let notes: Vec<u64> = (0..200u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n % 5 * 12)).collect();
            for (cpu, first, step) in [(0, 0, 1), (1, 1, 3), (9, 0, 0), (0, 300, 2)] {
                map.fetch_ahead(cpu, &notes, first, step);
                map.fetch_ahead(cpu, &[0, u64::MAX], first, step);
            }
            assert_eq!(map.keys(), keys, "{spec:?}");
        }
    }

    #[test]
    fn spread_grows_with_what_is_in_use() {
        let spec = MapSpec::new(MapType::Hash, 8, 8, 100_000);
        let map = Map::create(&spec, &Env::with_cpus(1)).unwrap();
        let empty = map.spread();
        (0..1000u64).for_each(|n| map.update(&n.to_ne_bytes(), &[1; 8], 0).unwrap());
        let (some, all) = (map.spread(), map.spread_max());
        assert!(empty < 1000 && some >= 1000 * 16 && all >= 100_000 * 16 && some < all, "{empty} {some} {all}");
        assert_eq!(Map::create(&MapSpec::new(MapType::Queue, 0, 8, 4), &Env::with_cpus(1)).unwrap().spread_max(), 0);
    }
}
