//! The receive ring that the kernel shares with a packet socket (`packet(7)`, `TPACKET_V2`).
//!
//! ```text
//! one slot                                tp_mac
//! | tpacket2_hdr | sockaddr_ll | ... | virtio_net_hdr | packet ...        |
//! 0                                                                  slot_size
//! ```
//!
//! A slot belongs to the kernel while its status word is 0 and to us while bit 0 is set.
#![allow(unsafe_code)] // memory shared with the kernel

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use xway_packet::offload::VnetHeader;

/// Bytes of a slot that are not packet, rounded up generously: header, link-layer address, alignment, virtio header.
pub(crate) const SLOT_OVERHEAD: u32 = 128;

/// A mapped receive ring.
pub(crate) struct Ring {
    start: NonNull<u8>,
    len: usize,
    slot_size: usize,
    slots: usize,
    next: usize,
}

// SAFETY: the mapping belongs to the process; one `Ring` is the only user of it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of a socket whose `PACKET_RX_RING` was set to `slots` slots of `slot_size` bytes, without gaps between
    /// blocks.
    pub(crate) fn map(fd: BorrowedFd<'_>, slots: usize, slot_size: usize) -> io::Result<Ring> {
        let len = slots * slot_size;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { start, len, slot_size, slots, next: 0 })
    }

    /// Whether a packet waits.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The next packet, which goes back to the kernel when the slot is dropped.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Slot<'_>> {
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot is ours until its status is set back, which only dropping the `Slot` does, and the header lies
        // at its start. The status word itself stays reachable for the kernel, so the copy is made without a reference.
        let header = unsafe { self.slot_start().cast::<libc::tpacket2_hdr>().read_volatile() };
        Some(Slot { ring: self, header, status })
    }

    fn slot_start(&self) -> NonNull<u8> {
        // SAFETY: next < slots, so the slot lies inside the mapping.
        unsafe { self.start.add(self.next * self.slot_size) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: each slot starts with its status word, aligned to the slot size, and both sides access it atomically.
        unsafe { self.slot_start().cast::<AtomicU32>().as_ref() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped; slots borrow the ring, so none is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A packet in the ring.
pub(crate) struct Slot<'a> {
    ring: &'a mut Ring,
    header: libc::tpacket2_hdr,
    status: u32,
}

impl Slot<'_> {
    /// Status bits (`TP_STATUS_*`).
    pub(crate) fn status(&self) -> u32 {
        self.status
    }

    /// The kernel's description.
    pub(crate) fn header(&self) -> &libc::tpacket2_hdr {
        &self.header
    }

    /// The captured bytes.
    pub(crate) fn packet(&self) -> &[u8] {
        self.bytes(usize::from(self.header.tp_mac), self.header.tp_snaplen as usize)
    }

    /// The virtio header, which stands directly before the packet.
    pub(crate) fn vnet_header(&self) -> Option<&[u8; VnetHeader::LEN]> {
        let at = usize::from(self.header.tp_mac).checked_sub(VnetHeader::LEN)?;
        self.bytes(at, VnetHeader::LEN).first_chunk()
    }

    /// Bytes of the slot; empty when the range is not inside it.
    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        if at.checked_add(len).is_none_or(|end| end > self.ring.slot_size) {
            return &[];
        }
        // SAFETY: the range lies inside the slot, by the check above; the slot is ours and nobody writes to it until it is
        // given back, which needs `self` dropped.
        unsafe { std::slice::from_raw_parts(self.ring.slot_start().as_ptr().add(at), len) }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        // Release: what was read from the slot was read before the kernel may write to it.
        self.ring.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.ring.next = (self.ring.next + 1) % self.ring.slots;
    }
}
