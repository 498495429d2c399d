//! NUMA: which nodes the machine has, on which one a CPU or an interface is, and memory that lies there.
//!
//! Memory of another node costs half as much again for each miss of the caches, so the memory of maps and of packets is placed on
//! a node where somebody can say which: the creator of a map, the CPU that a worker is bound to, the slot that a card is in. What became of the
//! wish is told in one word, [`Placement`], everywhere.
#![allow(unsafe_code)] // one system call

use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// NUMA nodes, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nodes(u64);

impl Nodes {
    /// The nodes of this machine that are online, of the first 64; node 0 where the system does not say.
    pub fn online() -> Nodes {
        static ONLINE: OnceLock<u64> = OnceLock::new();
        let read = || std::fs::read_to_string("/sys/devices/system/node/online").map_or(1, |list| mask(&list));
        Nodes(*ONLINE.get_or_init(read))
    }

    /// Those whose bits are set, for tests. A machine has one at least.
    pub fn of(bits: u64) -> Nodes {
        Nodes(bits.max(1))
    }

    /// The node, where there is only one.
    pub fn only(self) -> Option<u32> {
        (self.0.count_ones() == 1).then(|| self.0.trailing_zeros())
    }

    /// Whether this is one of them.
    pub fn has(self, node: u32) -> bool {
        node < 64 && self.0 & 1 << node != 0
    }
}

/// A list as the kernel writes it (`0-2,5`) as bits; 1 for what is no such list.
fn mask(list: &str) -> u64 {
    let mut mask = 0;
    for range in list.trim().split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (Ok(from), Ok(to)) = (from.parse::<u32>(), to.parse::<u32>()) else { return 1 };
        (from..=to.min(63)).for_each(|node| mask |= 1u64 << node.min(63));
    }
    mask.max(1)
}

/// The node of a CPU; `None` where the system does not say.
pub fn of_cpu(cpu: usize) -> Option<u32> {
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")).ok()?;
    entries.flatten().find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// The node that an interface's card is attached to, in the network namespace whose /sys is mounted; `None` for an interface without a
/// card, and where the firmware does not say.
pub fn of_interface(name: &str) -> Option<u32> {
    // A name is one component of a path.
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
    let text = plain.then(|| std::fs::read_to_string(format!("/sys/class/net/{name}/device/numa_node")).ok())??;
    // -1 where nobody knows.
    text.trim().parse().ok()
}

/// Asks for the pages of a mapping on this node, those that nobody has touched yet. What they hold does not change.
///
/// # Errors
/// The system's: `EINVAL` for a node that is not there or a start that is not a page's, `EFAULT` for what is not mapped, `ENOSYS`
/// on a kernel without NUMA.
pub fn prefer(start: NonNull<u8>, len: usize, node: u32) -> std::io::Result<()> {
    let mut mask = [0u64; 16];
    let word = mask.get_mut(node as usize / 64).ok_or(std::io::ErrorKind::InvalidInput)?;
    *word = 1 << (node % 64);
    // SAFETY: the call sets where pages come from and reads or writes none of them, whatever the range is; `mask` is as long as it
    // is told.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, start.as_ptr(), len, libc::MPOL_PREFERRED, mask.as_ptr(), 64 * mask.len(), 0)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Where memory lies: what became of the wish for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// The machine has this node only, whatever was asked for.
    Only(u32),
    /// Nobody asked: each page is on the node of the CPU that touches it first.
    FirstTouch,
    /// The node that was asked for.
    Node(u32),
    /// This one was asked for, and the system did not agree, or the memory has no pages of its own.
    NotPlaced(u32),
}

impl Placement {
    /// Of memory that was asked for on a node, or not, and that the system agreed to place, or not.
    pub fn new(asked: Option<u32>, agreed: Option<u32>, nodes: Nodes) -> Placement {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_for_every_wish_and_machine() {
        let of = |asked, agreed, nodes| Placement::new(asked, agreed, Nodes::of(nodes)).to_string();
        assert_eq!(of(Some(0), Some(0), 1), "NUMA node 0, the only one");
        assert_eq!(of(None, None, 1), "NUMA node 0, the only one");
        assert_eq!(of(None, None, 3), "the NUMA node of whoever touches it first");
        assert_eq!(of(Some(1), Some(1), 3), "NUMA node 1");
        assert_eq!(of(Some(1), None, 3), "any NUMA node: 1 was asked for and could not be had");
    }

    #[test]
    fn lists_of_nodes() {
        assert_eq!([mask("0\n"), mask("0-2,5"), mask("1,3-3"), mask("60-70"), mask("")], [1, 0x27, 0xa, 0xf << 60, 1]);
        assert!(Nodes::online().has(0) && !Nodes::of(1).has(64));
        assert_eq!((Nodes::of(4).only(), Nodes::of(5).only()), (Some(2), None));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the system")]
    fn the_system_knows_its_nodes() {
        // Every CPU that there is is on a node that there is; what is not there is on none.
        let node = of_cpu(0);
        assert!(node.is_none_or(|node| Nodes::online().has(node)), "{node:?}");
        assert_eq!(
            (of_cpu(1 << 20), of_interface("../net"), of_interface("no-such-one"), of_interface("lo")),
            (None, None, None, None)
        );
    }
}
