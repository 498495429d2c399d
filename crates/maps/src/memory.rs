//! What a map costs in memory, and where it lies.

use std::fmt;

use crate::{HugePages, Map, NumaNodes};

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

/// Where a map's memory lies: what became of the wish for a NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// The machine has this node only, whatever was asked for.
    Only(u32),
    /// Nobody asked: each page is on the node of the CPU that touches it first.
    FirstTouch,
    /// The node that was asked for.
    Node(u32),
    /// This one was asked for, and the system did not agree, or no part of the map has pages of its own.
    NotPlaced(u32),
}

impl Placement {
    fn new(asked: Option<u32>, agreed: Option<u32>, nodes: NumaNodes) -> Placement {
        match (nodes.only(), asked, agreed) {
            (Some(only), _, _) => Placement::Only(only),
            (None, None, _) => Placement::FirstTouch,
            (None, Some(_), Some(node)) => Placement::Node(node),
            (None, Some(node), None) => Placement::NotPlaced(node),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Only(node) => write!(f, "NUMA node {node}, the only one"),
            Placement::FirstTouch => f.write_str("the NUMA node of whoever touches it first"),
            Placement::Node(node) => write!(f, "NUMA node {node}"),
            Placement::NotPlaced(node) => write!(f, "any NUMA node: {node} was asked for and could not be had"),
        }
    }
}

impl Map {
    /// On which NUMA node the map's memory lies, in words for people too. Cost: constant.
    pub fn placement(&self) -> Placement {
        Placement::new(crate::create::wanted_node(self.spec()), self.node(), NumaNodes::online())
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use xway_abi::{MapSpec, MapType, map_flags};

    #[test]
    fn a_word_for_every_wish_and_machine() {
        let of = |asked, agreed, nodes| Placement::new(asked, agreed, NumaNodes::of(nodes)).to_string();
        assert_eq!(of(Some(0), Some(0), 1), "NUMA node 0, the only one");
        assert_eq!(of(None, None, 1), "NUMA node 0, the only one");
        assert_eq!(of(None, None, 3), "the NUMA node of whoever touches it first");
        assert_eq!(of(Some(1), Some(1), 3), "NUMA node 1");
        assert_eq!(of(Some(1), None, 3), "any NUMA node: 1 was asked for and could not be had");
    }

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
