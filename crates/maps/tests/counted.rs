//! What a map says that it takes, beside what was allocated for it. Alone in its program: everything that is allocated counts.

#[path = "../../bench/tests/hard/counting.rs"]
mod counting;

use counting::Counting;
use xway_abi::{MapSpec, MapType, map_flags};
use xway_maps::{Env, Guard, Map};

#[global_allocator]
static MEMORY: Counting = Counting::new();

/// Of maps without pages of their own, which the allocator knows nothing of.
#[test]
#[cfg_attr(miri, ignore = "counts what the allocator is asked for")]
fn a_map_says_what_was_allocated_for_it() {
    use MapType::*;
    let sizes = |map_type| match map_type {
        Queue | Stack | BloomFilter => (0, 8),
        Devmap => (4, 8),
        ProgArray | PerfEventArray | CgroupArray | ArrayOfMaps | HashOfMaps | Xskmap | DevmapHash => (4, 4),
        Array | PercpuArray | StackTrace => (4, 64),
        _ => (12, 24),
    };
    let types = [
        Hash,
        LruHash,
        PercpuHash,
        LruPercpuHash,
        Array,
        PercpuArray,
        Queue,
        Stack,
        BloomFilter,
        ProgArray,
        PerfEventArray,
        CgroupArray,
        ArrayOfMaps,
        HashOfMaps,
        Xskmap,
        Devmap,
        DevmapHash,
        StackTrace,
    ];
    let env = Env::with_cpus(3);
    // What threads and guards take once.
    drop(Map::create(&MapSpec::new(Hash, 4, 4, 100), &env).unwrap());
    // What small values of each CPU have in common is nobody's.
    let _there = Map::create(&MapSpec::new(PercpuArray, 4, 8, 1), &env).unwrap();
    Guard::collect();
    for map_type in types {
        let (key_size, value_size) = sizes(map_type);
        for entries in [1, 16, 100, 300] {
            let mut spec = MapSpec::new(map_type, key_size, value_size, entries);
            spec.inner = matches!(map_type, ArrayOfMaps | HashOfMaps).then(|| MapSpec::new(Array, 4, 8, 1).into());
            // Epochs take and give back memory of their own now and then, and the table of all maps grows.
            let off = (0..8).map(|_| off(&spec, &env)).min_by_key(|off| off.1.abs());
            let (says, off) = off.unwrap();
            // Two elements' values on three CPUs lie in what small values have in common.
            let common = if matches!(map_type, PercpuHash | LruPercpuHash) && entries == 1 { 3 * 2 * 24 } else { 0 };
            let off = off + common;
            assert!((-60..=60).contains(&off), "{map_type:?} {entries}: says {says}, {off} more was allocated");
        }
    }
}

/// What a map with elements says that it takes, and how much more was allocated for it.
fn off(spec: &MapSpec, env: &Env) -> (u64, i64) {
    let before = MEMORY.now();
    let map = Map::create(spec, env).unwrap();
    if spec.key_size == 12 {
        let value = vec![1; map.user_value_size()];
        (0..spec.max_entries).for_each(|n| {
            let _ = map.update(&[n.to_ne_bytes(); 3].concat(), &value, map_flags::ANY);
        });
    }
    Guard::collect();
    let taken = MEMORY.now() as i64 - before as i64;
    let says = map.memory().bytes;
    drop(map);
    Guard::collect();
    (says, taken - says as i64)
}
