//! The receive ring that the kernel shares with a packet socket (`packet(7)`).
//!
//! ```text
//! slots (TPACKET_V2): one packet in each             tp_mac
//! | tpacket2_hdr | sockaddr_ll | ... | virtio_net_hdr | packet ...        |
//! 0                                                                  slot_size
//!
//! blocks (TPACKET_V3): packets one after the other
//! | block header | tpacket3_hdr ... packet | tpacket3_hdr ... packet |    |
//! 0              offset_to_first_pkt       + tp_next_offset       block_size
//! ```
//!
//! A slot, and a block, belongs to the kernel while its status word is 0 and to us while bit 0 is set.
#![allow(unsafe_code)] // memory shared with the kernel

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use xway_packet::offload::VnetHeader;

use crate::config::Layout;

/// Bytes of a slot that are not packet, rounded up generously: header, link-layer address, alignment, virtio header.
pub(crate) const SLOT_OVERHEAD: u32 = 128;

/// What the kernel allocates at once: big enough for the longest packet, small enough to be had. A block of the second layout, as
/// long as the ring is not smaller than that.
pub(crate) const BLOCK: u32 = 256 << 10;

/// Where the link-layer address stands behind a packet's header: at the next multiple of 16 (`TPACKET_ALIGNMENT`).
const ADDRESS_V2: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);
const ADDRESS_V3: usize = size_of::<libc::tpacket3_hdr>().next_multiple_of(16);

/// Where the status word of a block stands, behind its version and the place of private data.
const BLOCK_STATUS: usize = 8;

/// Where reading a ring goes on, in numbers that another process understands: parts, bytes of one, the part that is read next, packets
/// left in it, and where in it the next one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place(pub [u32; 5]);

/// Gets the place of a ring when it is given up.
pub(crate) type End = Arc<Mutex<Place>>;

/// A mapped receive ring.
pub(crate) struct Ring {
    start: NonNull<u8>,
    len: usize,
    /// What changes hands at once: a slot or a block.
    part_size: usize,
    parts: usize,
    /// The part that is read next, or now.
    part: usize,
    layout: Layout,
    /// Of the block that is read now: packets left, and where in it the next one is.
    left: u32,
    at: usize,
    end: End,
}

// SAFETY: the mapping belongs to the process; one `Ring` is the only user of it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of a socket whose `PACKET_RX_RING` was set to this layout, with `parts` slots or blocks of `part_size` bytes,
    /// without gaps between them.
    pub(crate) fn map(
        fd: BorrowedFd<'_>,
        layout: Layout,
        parts: usize,
        part_size: usize,
        end: End,
    ) -> io::Result<Ring> {
        let len = parts * part_size;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { start, len, part_size, parts, part: 0, layout, left: 0, at: 0, end })
    }

    /// Goes on where another reader of the same ring ended.
    ///
    /// # Errors
    /// It is no place in this ring.
    pub(crate) fn go_on(&mut self, Place([parts, part_size, part, left, at]): Place) -> io::Result<()> {
        let same = (parts as usize, part_size as usize) == (self.parts, self.part_size);
        let inside = (part as usize) < self.parts && (at as usize) <= self.part_size;
        let before = (self.part, self.left, self.at);
        (self.part, self.left, self.at) = (part as usize, left, at as usize);
        // What is left of a block is only there while the block is ours.
        let whole = left == 0 || same && inside && self.layout == Layout::Blocks && self.is_ours();
        if same && inside && whole {
            return Ok(());
        }
        (self.part, self.left, self.at) = before;
        Err(io::ErrorKind::InvalidInput.into())
    }

    /// Whether a packet waits.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> bool {
        match self.layout {
            Layout::Slots => self.is_ours(),
            Layout::Blocks => {
                while self.left == 0 && self.is_ours() {
                    let block: libc::tpacket_hdr_v1 = self.copy(BLOCK_STATUS);
                    (self.left, self.at) = (block.num_pkts, block.offset_to_first_pkt as usize);
                    // One that was closed with nothing in it.
                    if self.left == 0 {
                        self.give_back();
                    }
                }
                self.left > 0
            }
        }
    }

    /// The next packet, which goes back to the kernel, alone or with its block, when the packet is dropped.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Slot<'_>> {
        if !self.is_ready() {
            return None;
        }
        let (header, next) = match self.layout {
            Layout::Slots => {
                let header: libc::tpacket2_hdr = self.copy(0);
                (Header::of_slot(&header, self.kind(ADDRESS_V2)), self.part_size)
            }
            Layout::Blocks => {
                let header: libc::tpacket3_hdr = self.copy(self.at);
                (Header::of_block(&header, self.kind(self.at + ADDRESS_V3)), header.tp_next_offset as usize)
            }
        };
        Some(Slot { ring: self, header, next })
    }

    /// Whether the part that is read next is ours.
    fn is_ours(&self) -> bool {
        // Acquire: what the kernel wrote before it set the word is seen.
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// How the kernel classed the packet whose link-layer address stands here (`PACKET_HOST` and so on).
    fn kind(&self, at: usize) -> u8 {
        let address: libc::sockaddr_ll = self.copy(at);
        address.sll_pkttype
    }

    /// Copies a structure of the kernel's out of the part that is read; zeros where it does not lie in it.
    fn copy<T: Plain>(&self, at: usize) -> T {
        if at.checked_add(size_of::<T>()).is_none_or(|end| end > self.part_size) {
            return T::ZERO;
        }
        // SAFETY: part < parts and the range lies inside the part, by the check above, so it lies inside the mapping; every value of
        // its bytes is a `T`. The part is ours until its status is set back; the status word itself may be read by the kernel at the
        // same time, so the copy is made without a reference.
        unsafe { self.part_start().add(at).cast::<T>().as_ptr().read_unaligned() }
    }

    /// Gives the part back to the kernel and goes on to the next one.
    fn give_back(&mut self) {
        // Release: what was read from the part was read before the kernel may write to it.
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.part = (self.part + 1) % self.parts;
    }

    fn part_start(&self) -> NonNull<u8> {
        // SAFETY: part < parts, so it lies inside the mapping.
        unsafe { self.start.add(self.part * self.part_size) }
    }

    fn status(&self) -> &AtomicU32 {
        let at = match self.layout {
            Layout::Slots => offset_of!(libc::tpacket2_hdr, tp_status),
            Layout::Blocks => BLOCK_STATUS + offset_of!(libc::tpacket_hdr_v1, block_status),
        };
        // SAFETY: each part holds its status word here, aligned as the part is, and both sides access it atomically.
        unsafe { self.part_start().add(at).cast::<AtomicU32>().as_ref() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let place = [self.parts as u32, self.part_size as u32, self.part as u32, self.left, self.at as u32];
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Place(place);
        // SAFETY: exactly the range that was mapped; slots borrow the ring, so none is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Structures of the kernel's that are numbers and nothing else: any bytes are one.
///
/// # Safety
/// The type has no padding that matters, no reference and no value that is invalid.
unsafe trait Plain: Copy {
    const ZERO: Self;
}

macro_rules! plain {
    ($($name:ident),*) => {$(
        // SAFETY: made of integers, and of arrays and structures of them.
        unsafe impl Plain for libc::$name {
            // SAFETY: zero is a value of each of them.
            const ZERO: Self = unsafe { std::mem::zeroed() };
        }
    )*};
}
plain!(tpacket2_hdr, tpacket3_hdr, tpacket_hdr_v1, sockaddr_ll);

/// The kernel's description of a packet, whatever the layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    /// Status bits (`TP_STATUS_*`).
    pub(crate) status: u32,
    /// Bytes on the wire, and those of them that are here.
    pub(crate) len: usize,
    captured: usize,
    /// Where the packet starts, from the header on.
    mac: usize,
    /// When it came.
    pub(crate) seconds: u32,
    pub(crate) nanoseconds: u32,
    /// The VLAN tag that was taken out, where the status says that there is one.
    pub(crate) vlan_tci: u16,
    pub(crate) vlan_tpid: u16,
    /// This host sends it.
    pub(crate) outgoing: bool,
}

impl Header {
    fn of_slot(h: &libc::tpacket2_hdr, kind: u8) -> Header {
        let vlan = (h.tp_vlan_tci, h.tp_vlan_tpid);
        Header::new(h.tp_status, [h.tp_len, h.tp_snaplen], h.tp_mac, [h.tp_sec, h.tp_nsec], vlan, kind)
    }

    fn of_block(h: &libc::tpacket3_hdr, kind: u8) -> Header {
        let vlan = (h.hv1.tp_vlan_tci as u16, h.hv1.tp_vlan_tpid);
        Header::new(h.tp_status, [h.tp_len, h.tp_snaplen], h.tp_mac, [h.tp_sec, h.tp_nsec], vlan, kind)
    }

    fn new(
        status: u32,
        [len, captured]: [u32; 2],
        mac: u16,
        [seconds, nanoseconds]: [u32; 2],
        (vlan_tci, vlan_tpid): (u16, u16),
        kind: u8,
    ) -> Header {
        let (len, captured, outgoing) = (len as usize, captured as usize, kind == libc::PACKET_OUTGOING);
        Header { status, len, captured, mac: mac.into(), seconds, nanoseconds, vlan_tci, vlan_tpid, outgoing }
    }

    /// Whether it was let in through a gate that is not open yet: one byte of it is here, which no packet is as short as.
    pub(crate) fn is_mark(&self) -> bool {
        self.captured == 1 && self.len > 1
    }
}

/// A packet in the ring.
pub(crate) struct Slot<'a> {
    ring: &'a mut Ring,
    header: Header,
    /// From its header to the next one's.
    next: usize,
}

impl Slot<'_> {
    /// The kernel's description.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// The captured bytes.
    pub(crate) fn packet(&self) -> &[u8] {
        self.bytes(self.header.mac, self.header.captured)
    }

    /// The virtio header, which stands directly before the packet.
    pub(crate) fn vnet_header(&self) -> Option<&[u8; VnetHeader::LEN]> {
        let at = self.header.mac.checked_sub(VnetHeader::LEN)?;
        self.bytes(at, VnetHeader::LEN).first_chunk()
    }

    /// Bytes from the packet's header on; empty when the range is not inside its slot or block.
    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        let at = at.saturating_add(self.ring.at);
        if at.checked_add(len).is_none_or(|end| end > self.ring.part_size) {
            return &[];
        }
        // SAFETY: the range lies inside the part, by the check above; the part is ours and nobody writes to it until it is given
        // back, which needs `self` dropped.
        unsafe { std::slice::from_raw_parts(self.ring.part_start().as_ptr().add(at), len) }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let ring = &mut *self.ring;
        if ring.layout == Layout::Blocks {
            ring.left = ring.left.saturating_sub(1);
            ring.at = ring.at.saturating_add(self.next);
            if ring.left > 0 {
                return;
            }
            ring.at = 0;
        }
        ring.give_back();
    }
}
