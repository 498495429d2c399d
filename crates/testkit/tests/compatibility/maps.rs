//! Map types, their flags, and which helper takes which.

use xway_abi::{MapSpec, MapType, helper_maps, helpers, map_flags};
use xway_maps::{Env, Map, is_supported};

use crate::Table;

/// The smallest spec of a type that can be created without flags of its own.
fn usual(map_type: MapType) -> MapSpec {
    use MapType::*;
    match map_type {
        ArrayOfMaps | HashOfMaps => {
            MapSpec { inner: Some(Box::new(MapSpec::new(Array, 4, 4, 1))), ..MapSpec::new(map_type, 4, 4, 1) }
        }
        LpmTrie => MapSpec::new(map_type, 8, 4, 1).with_flags(map_flags::NO_PREALLOC),
        StackTrace => MapSpec::new(map_type, 4, 8, 1),
        Queue | Stack | BloomFilter => MapSpec::new(map_type, 0, 4, 1),
        Ringbuf | UserRingbuf => MapSpec::new(map_type, 0, 0, 4096),
        _ => MapSpec::new(map_type, 4, 4, 1),
    }
}

fn creates(spec: &MapSpec) -> bool {
    Map::create(spec, &Env::with_cpus(2)).is_ok()
}

pub fn types() -> String {
    let mut table = Table::new(&["map type", "number", "here"]);
    for map_type in MapType::ALL.iter().copied() {
        let made = creates(&usual(map_type));
        assert_eq!(made, is_supported(map_type), "{}", map_type.name());
        let here = match (made, for_programs(map_type)) {
            (true, true) if only_refused(map_type) => "from user space; the helper that takes it is refused",
            (true, true) => "yes",
            (true, false) => "from user space; no XDP helper takes it, as in Linux",
            (false, _) => "no: creation gives EINVAL, as by a kernel built without it",
        };
        table.row(&[&format!("`{}`", map_type.name()), &(map_type as u32).to_string(), here]);
    }
    format!("## Map types\n\n{table}")
}

/// Every helper that takes such a map is one that no program here can call.
fn only_refused(map_type: MapType) -> bool {
    let mut takers =
        xway_abi::helpers().iter().filter(|h| h.xdp && xway_abi::helper_takes_map(h.id, map_type)).peekable();
    takers.peek().is_some() && takers.all(|h| xway_verifier::unsupported(h).is_some())
}

fn for_programs(map_type: MapType) -> bool {
    helpers().iter().any(|h| helper_maps(h.id).contains(&map_type))
}

const FLAGS: &[(&str, u32)] = &[
    ("NO_PREALLOC", map_flags::NO_PREALLOC),
    ("NO_COMMON_LRU", map_flags::NO_COMMON_LRU),
    ("NUMA_NODE", map_flags::NUMA_NODE),
    ("RDONLY", map_flags::RDONLY),
    ("WRONLY", map_flags::WRONLY),
    ("STACK_BUILD_ID", map_flags::STACK_BUILD_ID),
    ("ZERO_SEED", map_flags::ZERO_SEED),
    ("RDONLY_PROG", map_flags::RDONLY_PROG),
    ("WRONLY_PROG", map_flags::WRONLY_PROG),
    ("CLONE", map_flags::CLONE),
    ("MMAPABLE", map_flags::MMAPABLE),
    ("PRESERVE_ELEMS", map_flags::PRESERVE_ELEMS),
    ("INNER_MAP", map_flags::INNER_MAP),
];

pub fn flags() -> String {
    let mut table = Table::new(&["flag (`BPF_F_…`)", "taken at creation by"]);
    for (name, flag) in FLAGS {
        let takes = |t: &&MapType| {
            let spec = usual(**t);
            let with = spec.flags | flag;
            // Build ids are longer than addresses.
            let value = if *flag == map_flags::STACK_BUILD_ID { 32 } else { spec.value_size };
            creates(&MapSpec { value_size: value, ..spec.with_flags(with) })
        };
        let types: Vec<String> = MapType::ALL.iter().filter(takes).map(|t| format!("`{}`", t.name())).collect();
        let types = if types.is_empty() { "none".to_owned() } else { types.join(", ") };
        table.row(&[&format!("`{name}`"), &types]);
    }
    format!("## Map flags\n\nOther combinations give the errno that Linux gives.\n\n{table}")
}

pub fn helpers_by_map() -> String {
    let mut table = Table::new(&["helper", "map types that it takes, in Linux as here"]);
    for h in helpers().iter().filter(|h| !helper_maps(h.id).is_empty()) {
        let types: Vec<String> = helper_maps(h.id).iter().map(|t| format!("`{}`", t.name())).collect();
        table.row(&[format!("`{}`", h.name), types.join(", ")]);
    }
    format!("## Helpers and map types\n\n{table}")
}
