//! One packet in one chunk, and the moves that a program may make on it.
#![allow(unsafe_code)] // The frame is the owner of its chunk: here an address becomes a slice, and a dropped frame goes home.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use xway_abi::Errno;

use crate::Redirect;
use crate::pool::Home;

/// Length of an Ethernet header: a packet is never made shorter than this.
pub const ETH_HLEN: u32 = 14;

/// Bytes at the start of a chunk that no program reaches: `sizeof(struct xdp_frame)` on 64-bit Linux.
pub const FRAME_RESERVE: u32 = 40;

/// Longest metadata area: the kernel keeps its length in one byte, in multiples of four.
const META_MAX: u32 = 252;

/// `ENOTSUPP` is what Linux answers where metadata is not supported; bounds give `EINVAL`, a bad length `EACCES`.
type Adjusted = Result<(), Errno>;

/// An 802.1Q tag that the port took off the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vlan {
    /// Tag protocol, host order: 0x8100 or 0x88a8.
    pub proto: u16,
    /// Priority, drop eligibility and VLAN id.
    pub tci: u16,
}

/// What the port knows about a received frame beside its bytes. `None` means that the port does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxMeta {
    /// RX hash and its type (`enum xdp_rss_hash_type`).
    pub hash: Option<(u32, u32)>,
    /// Time of arrival, nanoseconds since the port's epoch (UNIX epoch for captures and AF_PACKET).
    pub timestamp: Option<u64>,
    /// Tag that was stripped.
    pub vlan: Option<Vlan>,
}

/// The chunk and its description. Boxed once, when the pool is made; a frame is the right to use it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    base: NonNull<u8>,
    data: u32,
    data_end: u32,
    data_meta: u32,
    hard_end: u32,
    ingress_ifindex: u32,
    rx_queue: u32,
    egress_ifindex: u32,
    headroom: u32,
    redirect: Redirect,
    rx: RxMeta,
    packet_id: u64,
    original_len: u32,
    home: Arc<Home>,
}

// SAFETY: a slot is the only way to its chunk (the pool makes exactly one slot a chunk and slots are not `Clone`), so
// moving the slot to another thread moves the whole access.
unsafe impl Send for Slot {}

impl Slot {
    /// A slot for the chunk of `size` bytes at `base`, which must be inside `home`'s mapping and belong to no other slot.
    pub(crate) fn new(base: NonNull<u8>, size: u32, headroom: u32, tailroom: u32, home: Arc<Home>) -> Box<Slot> {
        assert!(headroom >= FRAME_RESERVE && headroom + ETH_HLEN + tailroom <= size);
        Box::new(Slot {
            base,
            data: headroom,
            data_end: headroom,
            data_meta: headroom,
            hard_end: size - tailroom,
            ingress_ifindex: 0,
            rx_queue: 0,
            egress_ifindex: 0,
            headroom,
            redirect: Redirect::None,
            rx: RxMeta::default(),
            packet_id: 0,
            original_len: 0,
            home,
        })
    }
}

/// One packet, owned. Offsets count bytes from the start of the chunk.
///
/// Dropping a frame sends its chunk home to the pool, from any thread. The owner of the pool does better with
/// [`crate::Pool::release`], which takes no atomic operation.
#[derive(Debug)]
pub struct Frame {
    slot: ManuallyDrop<Box<Slot>>,
}

impl Frame {
    /// A frame with an empty packet at the default headroom.
    pub(crate) fn new(slot: Box<Slot>) -> Frame {
        let mut frame = Frame { slot: ManuallyDrop::new(slot) };
        frame.reset();
        frame
    }

    /// The slot without the way home that `Drop` takes.
    pub(crate) fn into_slot(self) -> Box<Slot> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped and never used again, so the box is taken exactly once.
        unsafe { ManuallyDrop::take(&mut this.slot) }
    }

    /// True when the frame's chunk belongs to `home`.
    pub(crate) fn belongs_to(&self, home: &Arc<Home>) -> bool {
        Arc::ptr_eq(&self.slot.home, home)
    }

    /// Empties the frame: no packet, no metadata, default headroom. The bytes of the chunk stay as they are.
    pub fn reset(&mut self) {
        let s = &mut *self.slot;
        (s.data, s.data_end, s.data_meta) = (s.headroom, s.headroom, s.headroom);
        (s.ingress_ifindex, s.rx_queue, s.egress_ifindex) = (0, 0, 0);
        (s.redirect, s.rx) = (Redirect::None, RxMeta::default());
        (s.packet_id, s.original_len) = (0, 0);
    }

    /// Makes `bytes` the packet, at the default headroom.
    ///
    /// # Errors
    /// [`FrameFull`] when it does not fit; the frame is then empty.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), FrameFull> {
        self.set_len(bytes.len())?;
        self.packet_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// Makes the packet `len` bytes long at the default headroom, with whatever bytes the chunk holds: for ports that
    /// let the kernel write into [`Frame::packet_mut`] afterwards.
    ///
    /// # Errors
    /// [`FrameFull`] when it does not fit; the frame is then empty.
    pub fn set_len(&mut self, len: usize) -> Result<(), FrameFull> {
        let s = &mut *self.slot;
        (s.data, s.data_end, s.data_meta) = (s.headroom, s.headroom, s.headroom);
        let room = (s.hard_end - s.headroom) as usize;
        if len > room {
            return Err(FrameFull { len, room });
        }
        s.data_end = s.headroom + len as u32;
        s.original_len = len as u32;
        Ok(())
    }

    /// Longest packet that [`Frame::fill`] takes, bytes.
    pub fn capacity(&self) -> usize {
        (self.slot.hard_end - self.slot.headroom) as usize
    }

    /// The packet.
    pub fn packet(&self) -> &[u8] {
        self.bytes(self.slot.data, self.slot.data_end)
    }

    /// The packet, to be changed in place.
    pub fn packet_mut(&mut self) -> &mut [u8] {
        let (from, to) = (self.slot.data, self.slot.data_end);
        self.bytes_mut(from, to)
    }

    /// The metadata area that stands directly before the packet.
    pub fn meta(&self) -> &[u8] {
        self.bytes(self.slot.data_meta, self.slot.data)
    }

    /// Metadata and packet in one slice, from `data_meta` to `data_end`: everything that a program may touch.
    pub fn accessible(&self) -> &[u8] {
        self.bytes(self.slot.data_meta, self.slot.data_end)
    }

    /// As [`Frame::accessible`], to be changed in place.
    pub fn accessible_mut(&mut self) -> &mut [u8] {
        let (from, to) = (self.slot.data_meta, self.slot.data_end);
        self.bytes_mut(from, to)
    }

    /// Length of the packet, bytes.
    pub fn len(&self) -> usize {
        (self.slot.data_end - self.slot.data) as usize
    }

    /// True for a packet of no bytes.
    pub fn is_empty(&self) -> bool {
        self.slot.data == self.slot.data_end
    }

    /// Offset of the packet's first byte.
    pub fn data(&self) -> u32 {
        self.slot.data
    }

    /// Offset behind the packet's last byte.
    pub fn data_end(&self) -> u32 {
        self.slot.data_end
    }

    /// Offset of the metadata; equal to [`Frame::data`] when there is none.
    pub fn data_meta(&self) -> u32 {
        self.slot.data_meta
    }

    /// Offset behind the last byte that `adjust_tail` may reach.
    pub fn hard_end(&self) -> u32 {
        self.slot.hard_end
    }

    /// `bpf_xdp_adjust_head`: moves the start of the packet by `delta` bytes; negative grows it. Metadata moves along.
    ///
    /// # Errors
    /// `EINVAL` when the packet would begin in the reserve or keep less than an Ethernet header.
    pub fn adjust_head(&mut self, delta: i32) -> Adjusted {
        let s = &*self.slot;
        let meta_len = s.data - s.data_meta;
        let data = i64::from(s.data) + i64::from(delta);
        if data < i64::from(FRAME_RESERVE + meta_len) || data > i64::from(s.data_end) - i64::from(ETH_HLEN) {
            return Err(Errno::EINVAL);
        }
        let data = data as u32;
        let meta = data - meta_len;
        if meta_len > 0 {
            let (from, to) = (s.data_meta, meta);
            // Both areas lie between the reserve and `data_end` by the check above.
            let low = from.min(to);
            let area = self.bytes_mut(low, from.max(to) + meta_len);
            area.copy_within((from - low) as usize..(from - low + meta_len) as usize, (to - low) as usize);
        }
        (self.slot.data, self.slot.data_meta) = (data, meta);
        Ok(())
    }

    /// `bpf_xdp_adjust_tail`: moves the end of the packet by `delta` bytes; new bytes are zero.
    ///
    /// # Errors
    /// `EINVAL` when the packet would pass `hard_end` or keep less than an Ethernet header.
    pub fn adjust_tail(&mut self, delta: i32) -> Adjusted {
        let s = &*self.slot;
        let old = s.data_end;
        let end = i64::from(old) + i64::from(delta);
        if end > i64::from(s.hard_end) || end < i64::from(s.data + ETH_HLEN) {
            return Err(Errno::EINVAL);
        }
        let end = end as u32;
        if end > old {
            self.bytes_mut(old, end).fill(0);
        }
        self.slot.data_end = end;
        Ok(())
    }

    /// `bpf_xdp_adjust_meta`: moves the start of the metadata by `delta` bytes; negative grows it.
    ///
    /// # Errors
    /// `EINVAL` outside reserve and packet, `EACCES` for a length above 252 or not a multiple of four.
    pub fn adjust_meta(&mut self, delta: i32) -> Adjusted {
        let s = &mut *self.slot;
        let meta = i64::from(s.data_meta) + i64::from(delta);
        if meta < i64::from(FRAME_RESERVE) || meta > i64::from(s.data) {
            return Err(Errno::EINVAL);
        }
        let len = s.data - meta as u32;
        if len > META_MAX || !len.is_multiple_of(4) {
            return Err(Errno::EACCES);
        }
        s.data_meta = meta as u32;
        Ok(())
    }

    /// Interface index of the port that received the frame.
    pub fn ingress_ifindex(&self) -> u32 {
        self.slot.ingress_ifindex
    }

    /// Queue that received the frame.
    pub fn rx_queue(&self) -> u32 {
        self.slot.rx_queue
    }

    /// Says where the frame came in.
    pub fn set_ingress(&mut self, ifindex: u32, queue: u32) {
        (self.slot.ingress_ifindex, self.slot.rx_queue) = (ifindex, queue);
    }

    /// Interface index of the target device while a device-map program runs; else 0.
    pub fn egress_ifindex(&self) -> u32 {
        self.slot.egress_ifindex
    }

    /// Sets [`Frame::egress_ifindex`].
    pub fn set_egress_ifindex(&mut self, ifindex: u32) {
        self.slot.egress_ifindex = ifindex;
    }

    /// What the port said about the frame.
    pub fn rx_meta(&self) -> &RxMeta {
        &self.slot.rx
    }

    /// Sets what the port says about the frame.
    pub fn set_rx_meta(&mut self, rx: RxMeta) {
        self.slot.rx = rx;
    }

    /// Where a redirect helper wants the frame to go.
    pub fn redirect(&self) -> Redirect {
        self.slot.redirect
    }

    /// Sets the redirect target.
    pub fn set_redirect(&mut self, to: Redirect) {
        self.slot.redirect = to;
    }

    /// Number of the packet in its port's input, counted from 1; 0 when the port does not count.
    pub fn packet_id(&self) -> u64 {
        self.slot.packet_id
    }

    /// Sets [`Frame::packet_id`].
    pub fn set_packet_id(&mut self, id: u64) {
        self.slot.packet_id = id;
    }

    /// Length that the packet had on the wire; larger than at arrival when a capture had cut it.
    pub fn original_len(&self) -> u32 {
        self.slot.original_len
    }

    /// Sets [`Frame::original_len`], after [`Frame::fill`].
    pub fn set_original_len(&mut self, len: u32) {
        self.slot.original_len = len;
    }

    fn bytes(&self, from: u32, to: u32) -> &[u8] {
        debug_assert!(from <= to && to <= self.slot.hard_end);
        // SAFETY: `FRAME_RESERVE <= data_meta <= data <= data_end <= hard_end <= chunk size` is kept by every setter
        // in this file, the chunk is mapped as long as `home` lives, it was zeroed by the kernel (so initialised), and
        // this frame is its only owner, so no one writes while the borrow of `self` lasts.
        unsafe { std::slice::from_raw_parts(self.slot.base.as_ptr().add(from as usize), (to - from) as usize) }
    }

    fn bytes_mut(&mut self, from: u32, to: u32) -> &mut [u8] {
        debug_assert!(from <= to && to <= self.slot.hard_end);
        // SAFETY: as in `bytes`; the exclusive borrow of `self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.slot.base.as_ptr().add(from as usize), (to - from) as usize) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: the frame is being dropped and its field is not used again.
        let slot = unsafe { ManuallyDrop::take(&mut self.slot) };
        let home = Arc::clone(&slot.home);
        home.take_back(slot);
    }
}

/// A packet that is longer than its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a packet of {len} bytes does not fit a frame with room for {room}")]
pub struct FrameFull {
    /// Length of the packet, bytes.
    pub len: usize,
    /// Room in the frame, bytes.
    pub room: usize,
}
