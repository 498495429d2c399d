//! What can lie in a ring.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

mod sealed {
    pub trait Sealed {}
}
pub(super) use sealed::Sealed;

/// A value that a ring carries, and how it lies in memory.
///
/// Sealed. What each implementor keeps, because memory that others write is seen through it: the cell is made of atomics only,
/// every pattern of bits is a value of it, all zeros included.
pub trait Entry: Sealed + Copy + Send + 'static {
    /// One slot.
    type Cell: Default + Send + Sync;

    /// Reads a slot.
    fn load(cell: &Self::Cell) -> Self;

    /// Writes a slot.
    fn store(self, cell: &Self::Cell);
}

/// Entries that are plain numbers, so that a ring of them may lie in memory that another process writes.
pub trait Plain: Entry {}

impl Sealed for u64 {}
impl Plain for u64 {}

/// Addresses in a UMEM: what FILL and COMPLETION rings hold.
impl Entry for u64 {
    type Cell = AtomicU64;

    #[inline]
    fn load(cell: &AtomicU64) -> u64 {
        cell.load(Ordering::Relaxed)
    }

    #[inline]
    fn store(self, cell: &AtomicU64) {
        cell.store(self, Ordering::Relaxed);
    }
}

/// `struct xdp_desc` of `linux/if_xdp.h`: what RX and TX rings hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XdpDesc {
    /// Offset in the UMEM.
    pub addr: u64,
    /// Bytes of the packet.
    pub len: u32,
    /// Flags: [`xway_abi::xsk::PKT_CONTD`].
    pub options: u32,
}

/// A slot for [`XdpDesc`].
#[repr(C)]
#[derive(Debug, Default)]
pub struct DescCell {
    addr: AtomicU64,
    len: AtomicU32,
    options: AtomicU32,
}

impl Sealed for XdpDesc {}
impl Plain for XdpDesc {}

impl Entry for XdpDesc {
    type Cell = DescCell;

    #[inline]
    fn load(cell: &DescCell) -> XdpDesc {
        XdpDesc {
            addr: cell.addr.load(Ordering::Relaxed),
            len: cell.len.load(Ordering::Relaxed),
            options: cell.options.load(Ordering::Relaxed),
        }
    }

    #[inline]
    fn store(self, cell: &DescCell) {
        cell.addr.store(self.addr, Ordering::Relaxed);
        cell.len.store(self.len, Ordering::Relaxed);
        cell.options.store(self.options, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_lies_as_linux_has_it() {
        assert_eq!(std::mem::size_of::<DescCell>(), xway_abi::xsk::DESC_SIZE);
        assert_eq!(std::mem::offset_of!(DescCell, len), 8);
        assert_eq!(std::mem::offset_of!(DescCell, options), 12);
    }
}
