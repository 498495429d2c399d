//! Creation: every type, attribute by attribute.

use xway_abi::{MapSpec, MapType, map_flags};
use xway_maps::is_supported;

use crate::subject::{World, same_on_both};

/// A spec that both worlds accept, from which one or two attributes are changed at a time.
pub fn valid(map_type: MapType) -> MapSpec {
    use MapType::*;
    let spec = |key, value, entries| MapSpec::new(map_type, key, value, entries);
    match map_type {
        LpmTrie => spec(8, 8, 4).with_flags(map_flags::NO_PREALLOC),
        ProgArray | PerfEventArray | CgroupArray | Xskmap => spec(4, 4, 4),
        Devmap | DevmapHash | Cpumap => spec(4, 8, 2),
        Queue | Stack | BloomFilter => spec(0, 8, 4),
        Ringbuf | UserRingbuf => spec(0, 0, 4096),
        StackTrace => spec(4, 64, 4),
        ArrayOfMaps | HashOfMaps => {
            let inner = MapSpec::new(Array, 4, 4, 1);
            MapSpec { inner: Some(Box::new(inner)), ..spec(4, 4, 4) }
        }
        _ => spec(4, 8, 4),
    }
}

pub fn supported() -> impl Iterator<Item = MapType> {
    MapType::ALL.iter().copied().filter(|map_type| is_supported(*map_type))
}

const KEYS: &[u32] =
    &[0, 1, 2, 3, 4, 5, 6, 8, 16, 20, 64, 128, 256, 259, 260, 261, 512, 513, 4096, 1 << 20, 0x7fff_ffff, u32::MAX];
const VALUES: &[u32] = &[
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    12,
    16,
    24,
    32,
    64,
    512,
    1008,
    1016,
    1024,
    4064,
    4072,
    4096,
    8192,
    32760,
    32761,
    32768,
    32769,
    1 << 20,
    (4 << 20) - 400,
    (4 << 20) - 304,
    (4 << 20) - 303,
    (4 << 20) - 64,
    (4 << 20) - 60,
    (4 << 20) - 53,
    (4 << 20) - 52,
    (4 << 20) - 51,
    (4 << 20) - 48,
    (4 << 20) - 4,
    4 << 20,
    (4 << 20) + 1,
    0x7fff_ffff,
    0x8000_0000,
    u32::MAX,
];
const ENTRIES: &[u32] = &[0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 100, 1000, 2048, 4095, 4096, 4097, 6144, 8192, 12288, 65536];

/// Too large to make many of, or a matter of how much memory there is: not compared.
fn too_large(spec: &MapSpec) -> bool {
    let value = u64::from(spec.value_size) + u64::from(spec.key_size) + 64;
    value <= 5 << 20 && value * u64::from(spec.max_entries) > 48 << 20
        || (spec.map_type == MapType::Array
            && value * u64::from(spec.max_entries) > 48 << 20
            && spec.value_size < 1 << 31)
}

fn try_all(world: &dyn World, specs: Vec<MapSpec>) -> Vec<String> {
    let log = |spec: MapSpec| {
        let seen = match world.create(&spec) {
            Ok(map) => format!("ok {:?}", map.kept()),
            Err(errno) => errno.to_string(),
        };
        let MapSpec { map_type, key_size, value_size, max_entries, flags, numa_node, map_extra, .. } = spec;
        let extra = format!("node {numa_node} extra {map_extra:#x}");
        format!(
            "{} key {key_size} value {value_size} entries {max_entries} flags {flags:#x} {extra}: {seen}",
            map_type.name()
        )
    };
    specs.into_iter().filter(|spec| !too_large(spec)).map(log).collect()
}

#[test]
fn sizes_two_at_a_time() {
    same_on_both("sizes_two_at_a_time", |world| {
        let mut specs = Vec::new();
        for map_type in supported() {
            let base = valid(map_type);
            for &key_size in KEYS {
                specs.extend(VALUES.iter().map(|&value_size| MapSpec { key_size, value_size, ..base.clone() }));
                specs.extend(ENTRIES.iter().map(|&max_entries| MapSpec { key_size, max_entries, ..base.clone() }));
            }
            for &value_size in VALUES {
                specs.extend(ENTRIES.iter().map(|&max_entries| MapSpec { value_size, max_entries, ..base.clone() }));
            }
        }
        try_all(world, specs)
    });
}

#[test]
fn every_flag_alone_and_in_pairs() {
    same_on_both("every_flag_alone_and_in_pairs", |world| {
        let mut specs = Vec::new();
        for map_type in supported() {
            let base = valid(map_type);
            // Bit 16 and 17 are a descriptor's business (token, type information by descriptor) and bit 18 an arena's.
            let bits: Vec<u32> = (0..15).chain(19..32).collect();
            for &a in &bits {
                for &b in &bits {
                    let flags = 1 << a | 1 << b;
                    for flags in [flags, flags ^ base.flags] {
                        specs.push(MapSpec { flags, ..base.clone() });
                    }
                }
                for max_entries in [0, 1, 3] {
                    specs.push(MapSpec { flags: 1 << a, max_entries, ..base.clone() });
                }
                for value_size in [0, 3, 4, 8, 32, 32769] {
                    specs.push(MapSpec { flags: 1 << a, value_size, ..base.clone() });
                }
            }
        }
        try_all(world, specs)
    });
}

#[test]
fn extras_and_nodes() {
    same_on_both("extras_and_nodes", |world| {
        let mut specs = Vec::new();
        for map_type in supported() {
            let base = valid(map_type);
            for map_extra in [0, 1, 2, 5, 15, 16, 17, 1 << 20, u64::MAX] {
                specs.push(MapSpec { map_extra, ..base.clone() });
            }
            for numa_node in [0, 1, 7, u32::MAX] {
                for flags in [0, map_flags::NUMA_NODE, map_flags::NUMA_NODE | map_flags::NO_COMMON_LRU] {
                    specs.push(MapSpec { numa_node, flags: base.flags | flags, ..base.clone() });
                }
            }
        }
        try_all(world, specs)
    });
}

#[test]
fn limits_of_entries() {
    same_on_both("limits_of_entries", |world| {
        let mut specs = Vec::new();
        // Only where the refusal comes before any memory is asked for.
        for max_entries in [(1 << 28) + 1, 1 << 29, 1 << 30, 1 << 31, (1u32 << 31) + 1, u32::MAX] {
            for map_type in [MapType::Hash, MapType::PercpuHash, MapType::LruHash, MapType::LruPercpuHash] {
                specs.push(MapSpec { max_entries, ..valid(map_type) });
            }
            for map_type in [MapType::Hash, MapType::PercpuHash] {
                specs.push(MapSpec { max_entries, flags: map_flags::NO_PREALLOC, ..valid(map_type) });
            }
            if max_entries > 1 << 31 {
                specs.push(MapSpec { max_entries, ..valid(MapType::DevmapHash) });
                specs.push(MapSpec { max_entries, ..valid(MapType::StackTrace) });
            }
        }
        for max_entries in [1, 2, 127, 128, 256, 257, 4096, 8192, 8193, 100_000] {
            specs.push(MapSpec { max_entries, ..valid(MapType::Cpumap) });
        }
        for max_entries in [0, 1, 2048, 4096, 12288, 16384, 1 << 20, (1 << 20) + 4096] {
            specs.push(MapSpec { max_entries, ..valid(MapType::Ringbuf) });
            specs.push(MapSpec { max_entries, ..valid(MapType::UserRingbuf) });
        }
        let mut seen = Vec::new();
        for spec in specs {
            let result = world.create(&spec).map(|map| map.kept());
            seen.push(format!("{} {:#x} entries {}: {result:?}", spec.map_type.name(), spec.flags, spec.max_entries));
        }
        seen
    });
}

#[test]
fn templates_of_maps_of_maps() {
    same_on_both("templates_of_maps_of_maps", |world| {
        let mut seen = Vec::new();
        for outer in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
            seen.push(format!("none: {:?}", world.create(&MapSpec { inner: None, ..valid(outer) }).map(drop)));
            for inner in supported() {
                let spec = MapSpec { inner: Some(Box::new(valid(inner))), ..valid(outer) };
                seen.push(format!("{} of {}: {:?}", outer.name(), inner.name(), world.create(&spec).map(drop)));
            }
        }
        seen
    });
}

#[test]
fn other_types_are_refused() {
    let world = crate::subject::Ours::new();
    for map_type in MapType::ALL.iter().copied().filter(|map_type| !is_supported(*map_type)) {
        let error = xway_maps::Map::create(&valid(map_type), &world.env).unwrap_err();
        assert_eq!(error.errno, xway_abi::Errno::EINVAL);
        assert!(error.to_string().contains(map_type.name()), "{error}");
    }
}
