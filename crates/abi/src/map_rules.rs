//! Which map types a helper's map argument may have.
//!
//! Source: programs with every pair of helper and map type, loaded into a 6.18 kernel.

use MapType::{
    Array, ArrayOfMaps, BloomFilter, CgroupArray, CgrpStorage, Cpumap, Devmap, DevmapHash, Hash, HashOfMaps, LpmTrie,
    LruHash, LruPercpuHash, PercpuArray, PercpuHash, PerfEventArray, ProgArray, Queue, Ringbuf, Sockhash, Sockmap,
    Stack, TaskStorage, UserRingbuf, Xskmap,
};

use crate::map::flags::{RDONLY_PROG, WRONLY_PROG};
use crate::{Errno, MapSpec, MapType, SpecialKind};

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

/// Whether the special fields of a map's values are such as its type may hold, in places where they may lie: else what Linux says when
/// the map is created with the type of its values, and why.
pub fn special_fields_fit(spec: &MapSpec) -> Result<(), (Errno, &'static str)> {
    let ensure = |holds: bool, errno, why| if holds { Ok(()) } else { Err((errno, why)) };
    let mut fields = spec.special.clone();
    fields.sort_by_key(|field| field.offset);
    let mut end = 0u64;
    for field in &fields {
        let start = u64::from(field.offset);
        ensure(start >= end, Errno::EINVAL, "special fields overlap")?;
        end = start + u64::from(field.kind.size());
        ensure(end <= u64::from(spec.value_size), Errno::EINVAL, "a special field lies outside the value")?;
        let (allowed, align): (&[MapType], u64) = match field.kind {
            SpecialKind::SpinLock => (&[Hash, Array], 4),
            SpecialKind::Timer | SpecialKind::Workqueue => (&[Hash, LruHash, Array], 8),
            SpecialKind::Kptr => (&[Hash, PercpuHash, LruHash, LruPercpuHash, Array, PercpuArray], 8),
            SpecialKind::Other(_) => (&[Hash, LruHash, Array, PercpuHash, PercpuArray, LruPercpuHash], 4),
        };
        ensure(start.is_multiple_of(align), Errno::EINVAL, "a special field is not aligned")?;
        ensure(allowed.contains(&spec.map_type), Errno::EOPNOTSUPP, "values of this type cannot hold such a field")?;
    }
    let limited = spec.flags & (RDONLY_PROG | WRONLY_PROG) != 0;
    ensure(fields.is_empty() || !limited, Errno::EACCES, "special fields are for maps that programs read and write")?;
    let locks = fields.iter().filter(|field| field.kind == SpecialKind::SpinLock).count();
    let timers = fields.iter().filter(|field| field.kind == SpecialKind::Timer).count();
    ensure(locks <= 1 && timers <= 1, Errno::E2BIG, "more than one spin lock or timer in a value")
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
