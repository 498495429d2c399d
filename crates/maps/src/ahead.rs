//! Memory for look-ups that are about to come, fetched for many of them at once.
//!
//! A look-up in a table that is larger than the cache waits for memory, once for the bucket and once more for the element. Who
//! knows the keys of a whole burst fetches all buckets first, then all elements: the waits pass side by side. Generated code
//! fetches the first line itself, as soon as it has the key; what comes behind is here. Nothing is changed, not even marks of
//! the LRU, so a wrong guess costs time and nothing else.
//!
//! Keys come as *notes*, one word each; 0 is none.
//!
//! | map | note |
//! |---|---|
//! | hash tables | the hash, as in [`crate::native`] |
//! | tries | the first [`LPM_FRONT`] bytes of the address as a big-endian number, shorter ones on top; the lowest bit set |

use crate::Map;
use crate::map::Kind;

/// Bytes of an address that a note holds.
pub const LPM_FRONT: usize = 8;

/// Of so many values of an array, one is taken to be in use.
pub(crate) const ARRAY_SHARE: usize = 8;

/// Notes that are worth being fetched for at once.
pub(crate) const MANY: usize = 64;

impl Map {
    /// Bytes that look-ups of programs are spread over when the map is full; 0 where nothing can be fetched ahead. Of maps of maps: in
    /// the largest that may be put in, [`usize::MAX`] where that is a map of any length.
    pub fn spread_max(&self) -> usize {
        match &self.kind {
            // How much of an array is in use nobody knows; mostly it is little.
            Kind::Array(map) => map.values.bytes() / ARRAY_SHARE,
            Kind::PercpuArray(map) => map.values.cpu_stride / ARRAY_SHARE,
            Kind::Hash(map) => map.spread(map.table.pool().capacity() as usize),
            Kind::LpmTrie(map) => map.spread(map.max_entries()),
            Kind::MapArray(map) => map.template().spread_max(),
            Kind::MapHash(map) => map.template().spread_max(),
            _ => 0,
        }
    }

    /// Bytes that look-ups of programs are spread over by now: what the elements take that were in use at once, with their
    /// buckets; of maps of maps, in the largest that was ever put in, should it be full. Costs a few loads.
    pub fn spread(&self) -> usize {
        match &self.kind {
            Kind::Hash(map) => map.spread(map.table.touched()),
            Kind::LpmTrie(map) => map.spread(map.count()),
            Kind::MapArray(map) => map.template().spread(),
            Kind::MapHash(map) => map.template().spread(),
            _ => self.spread_max(),
        }
    }

    /// Fetches what look-ups of these keys on this CPU will need behind the first line, which should be under way. At most 64
    /// notes; what is no note of this map is harmless. The caller holds a guard: a trie's nodes serve other tries when they are out.
    pub fn fetch_ahead(&self, cpu: u32, notes: &[u64]) {
        match &self.kind {
            Kind::Hash(map) => map.fetch_ahead(cpu, notes),
            Kind::LpmTrie(map) => map.fetch_ahead(notes),
            _ => {}
        }
    }

    /// Looks many keys up at once in a trie whose keys have eight bytes, under a guard; `notes` are the keys, read as words. `each` gets the place
    /// of every note with the value's address, 0 where there is none; `None` where the note is no whole address. The result is the count of changes (see
    /// [`LpmLayout::changes`](crate::native::LpmLayout)): as long as it is the same, a look-up would find the same. `None`, and
    /// possibly some calls of `each`: something is being changed right now, or the map is another one.
    pub fn answer_many(&self, notes: &[u64], each: impl FnMut(usize, Option<usize>)) -> Option<u64> {
        match &self.kind {
            Kind::LpmTrie(map) => map.answer_many(notes, each),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Env, Guard, Map};
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
            for cpu in [0, 1, 9] {
                map.fetch_ahead(cpu, &notes);
                map.fetch_ahead(cpu, &[0, u64::MAX]);
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

    /// Of maps of maps the largest that was put in counts, and before that what may be.
    #[test]
    fn spread_is_that_of_the_largest_inner_map() {
        let of = |outer, inner: &MapSpec| {
            let spec = MapSpec { inner: Some(Box::new(inner.clone())), ..MapSpec::new(outer, 4, 4, 4) };
            Map::create(&spec, &Env::with_cpus(1)).unwrap()
        };
        let hash = |room| MapSpec::new(MapType::Hash, 8, 8, room);
        for outer in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
            let tables = of(outer, &hash(1));
            assert_eq!((tables.spread(), tables.spread_max()), (0, usize::MAX));
            for (slot, room) in [(0u32, 100), (1, 100_000), (1, 100)] {
                let inner = Map::create(&hash(room), &Env::with_cpus(1)).unwrap();
                tables.set_inner(&slot.to_ne_bytes(), inner.clone()).unwrap();
                assert!(tables.spread() >= inner.spread_max() && tables.spread() < usize::MAX);
            }
            assert!(tables.spread() > 100_000 * 16, "what is out may come back");
            let other = Map::create(&MapSpec::new(MapType::Hash, 4, 8, 1 << 20), &Env::with_cpus(1)).unwrap();
            let before = tables.spread();
            tables.set_inner(&[0; 4], other).unwrap_err();
            assert_eq!(tables.spread(), before, "it is not in");
        }
        let array = |flags| MapSpec { flags, ..MapSpec::new(MapType::Array, 4, 20, 800) };
        assert_eq!(of(MapType::ArrayOfMaps, &array(0)).spread_max(), 800 / 8 * 24, "all have that length");
        assert_eq!(of(MapType::ArrayOfMaps, &array(map_flags::INNER_MAP)).spread_max(), usize::MAX);
    }

    /// Every address gets what a look-up gives, and the count tells of every change.
    #[test]
    fn answers_are_those_of_look_ups() {
        let count = if cfg!(miri) { 60 } else { 4000u32 };
        let spec = MapSpec { flags: map_flags::NO_PREALLOC, ..MapSpec::new(MapType::LpmTrie, 8, 8, count) };
        let map = Map::create(&spec, &Env::with_cpus(1)).unwrap();
        let mix = |n: u32| n.wrapping_mul(0x9e37_79b9) ^ n >> 3;
        let key = |len: u32, bits: u32| [len.to_ne_bytes(), bits.to_be_bytes()].concat();
        for round in 0..3 {
            for n in 0..count / 4 {
                let (len, bits) = (4 + mix(n + round * count) % 29, mix(n * 7 + round));
                let before = map.answer_many(&[], |_, _| ());
                if map.update(&key(len, bits), &[n as u8; 8], 0).is_ok() {
                    assert_ne!(map.answer_many(&[], |_, _| ()), before);
                }
            }
            let guard = Guard::pin();
            for burst in 0..count / 64 {
                let addresses: Vec<u32> = (0..64).map(|n| mix(burst * 64 + n) >> (n % 3 * 4)).collect();
                let word = |bits: &u32| u64::from_ne_bytes(key(32, *bits).try_into().unwrap());
                let mut notes: Vec<u64> = addresses.iter().map(word).collect();
                notes.push(u64::from_ne_bytes(key(24, 7).try_into().unwrap()));
                let mut answers = vec![];
                map.answer_many(&notes, |n, value| {
                    assert_eq!(n, answers.len());
                    answers.push(value);
                });
                assert_eq!(answers.pop(), Some(None), "a prefix is no address");
                for (bits, answer) in addresses.iter().zip(&answers) {
                    let wanted = map.value(0, &key(32, *bits), &guard).map_or(0, |value| value.addr());
                    assert_eq!(*answer, Some(wanted), "{bits:08x}");
                }
            }
        }
    }
}
