//! What a map costs in memory, and where it lies.

use xway_abi::{MapSpec, SpecialField};
use xway_numa::{Nodes, Placement};

use crate::{HugePages, Map};

/// A map's memory, as [`Map::memory`] reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Bytes that the map has taken, everything that was allocated for it: all of a preallocated map, what has been used so far of one
    /// that grows, in whole pages where it has pages of its own. Comparable with `memlock` of the kernel's maps.
    pub bytes: u64,
    /// The kind of huge pages that its largest part lies on. Transparent ones are advice: the kernel gives them where it has
    /// some.
    pub huge_pages: HugePages,
    /// The NUMA node that the system agreed to prefer for its pages; `None`: wherever they are touched first. Parts below
    /// 64 KiB are not placed.
    pub numa_node: Option<u32>,
}

/// Of a map that is shared: the counts of its owners, and its entry among those that are alive.
const SHARED: usize = 2 * size_of::<usize>() + 24;

/// What a description has beside itself.
fn of_spec(spec: &MapSpec) -> usize {
    let special = spec.special.capacity() * size_of::<SpecialField>();
    special + spec.inner.as_deref().map_or(0, |inner| size_of::<MapSpec>() + of_spec(inner))
}

impl Map {
    /// On which NUMA node the map's memory lies, in words for people too. Cost: constant.
    pub fn placement(&self) -> Placement {
        Placement::new(crate::create::wanted_node(self.spec()), self.node(), Nodes::online())
    }

    /// Bytes, huge pages and NUMA node: what was had, not what was asked for. Cost: constant.
    pub fn memory(&self) -> Memory {
        let blocks = self.ops().blocks();
        let largest = blocks.iter().max_by_key(|block| block.bytes());
        Memory {
            bytes: (SHARED + size_of::<Map>() + of_spec(self.spec()) + self.ops().memory()) as u64,
            huge_pages: largest.map_or(HugePages::Never, |block| block.huge()),
            numa_node: self.node(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_abi::{MapType, map_flags};

    /// What the system agreed to, it says itself.
    #[test]
    #[cfg_attr(miri, ignore = "asks the system")]
    fn a_node_that_was_agreed_to_is_in_numa_maps() {
        let plain = MapSpec::new(MapType::Array, 4, 64, 1 << 14);
        let asked = MapSpec { flags: map_flags::NUMA_NODE, numa_node: 0, ..plain.clone() };
        let [plain, asked] = [plain, asked].map(|spec| Map::create(&spec, &crate::Env::with_cpus(1)).unwrap());
        assert_eq!(plain.memory().numa_node, None);
        let lines = std::fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
        if asked.memory().numa_node == Some(0) && !lines.is_empty() {
            let preferred = lines.lines().any(|line| line.contains(" prefer") && line.contains(":0"));
            assert!(preferred, "mbind has agreed and no mapping prefers node 0:\n{lines}");
        }
    }
}
