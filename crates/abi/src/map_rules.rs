//! Which map types a helper's map argument may have.
//!
//! Source: programs with every pair of helper and map type, loaded into a 6.18 kernel.

use MapType::{
    Array, ArrayOfMaps, BloomFilter, CgroupArray, CgrpStorage, Cpumap, Devmap, DevmapHash, Hash, HashOfMaps, LpmTrie,
    LruHash, LruPercpuHash, PercpuArray, PercpuHash, PerfEventArray, ProgArray, Queue, Ringbuf, Sockhash, Sockmap,
    Stack, TaskStorage, UserRingbuf, Xskmap,
};

use crate::MapType;

/// The map types that this helper takes from an XDP program; empty for helpers without a map argument.
///
/// Beyond these rules: values looked up in a devmap cannot be written, `bpf_map_update_elem` on a sockmap takes a socket, and
/// a timer's map must be the one that the timer lies in.
pub const fn helper_maps(id: u32) -> &'static [MapType] {
    match id {
        1 => &[
            Hash,
            Array,
            PercpuHash,
            PercpuArray,
            LruHash,
            LruPercpuHash,
            LpmTrie,
            ArrayOfMaps,
            HashOfMaps,
            Devmap,
            Sockmap,
            Xskmap,
            Sockhash,
            DevmapHash,
        ],
        2 | 3 => &[Hash, Array, PercpuHash, PercpuArray, LruHash, LruPercpuHash, LpmTrie, Sockmap, Sockhash],
        12 => &[ProgArray],
        22 | 25 | 55 => &[PerfEventArray],
        37 => &[CgroupArray],
        51 => &[Devmap, Cpumap, Xskmap, DevmapHash],
        87 | 89 => &[Queue, Stack, BloomFilter],
        88 => &[Queue, Stack],
        130 | 131 | 134 | 198 => &[Ringbuf],
        156 | 157 => &[TaskStorage],
        164 => &[Hash, Array, PercpuHash, PercpuArray, LruHash, LruPercpuHash],
        169 => &[Hash, Array, LruHash],
        195 => &[PercpuHash, PercpuArray, LruPercpuHash],
        209 => &[UserRingbuf],
        210 | 211 => &[CgrpStorage],
        _ => &[],
    }
}

/// True when helper `id` takes a map of this type.
pub fn helper_takes_map(id: u32, map_type: MapType) -> bool {
    helper_maps(id).contains(&map_type)
}

impl MapType {
    /// True when a look-up gives the program a value that it may only read, whatever the map's flags say.
    pub const fn is_read_only_to_programs(self) -> bool {
        matches!(self, Devmap | DevmapHash)
    }

    /// True for the map types whose values are one per CPU.
    pub const fn is_percpu(self) -> bool {
        matches!(self, PercpuHash | PercpuArray | LruPercpuHash | MapType::PercpuCgroupStorage)
    }

    /// True for maps whose values are other maps.
    pub const fn is_map_of_maps(self) -> bool {
        matches!(self, ArrayOfMaps | HashOfMaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArgKind, helpers};

    #[test]
    fn every_map_argument_has_its_rule() {
        for h in helpers() {
            let takes_map = h.args.iter().any(|a| a.kind == ArgKind::ConstMap);
            assert_eq!(takes_map, !helper_maps(h.id).is_empty(), "{}", h.name);
        }
    }
}
