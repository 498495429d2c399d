//! What a map costs in memory, and where it lies.

use crate::{HugePages, Map};

/// A map's memory, as [`Map::memory`] reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Bytes that the map has taken: all of a preallocated map, what has been used so far of one that grows. Comparable with
    /// `memlock` of the kernel's maps.
    pub bytes: u64,
    /// The kind of huge pages that its largest part lies on. Transparent ones are advice: the kernel gives them where it has
    /// some.
    pub huge_pages: HugePages,
    /// The NUMA node that the system agreed to prefer for its pages; `None`: wherever they are touched first. Parts below
    /// 64 KiB are not placed.
    pub numa_node: Option<u32>,
}

impl Map {
    /// Bytes, huge pages and NUMA node: what was had, not what was asked for. Cost: constant.
    pub fn memory(&self) -> Memory {
        let blocks = self.ops().blocks();
        let largest = blocks.iter().max_by_key(|block| block.bytes());
        Memory {
            bytes: (size_of::<Map>() + self.ops().memory()) as u64,
            huge_pages: largest.map_or(HugePages::Never, |block| block.huge()),
            numa_node: self.node(),
        }
    }
}
