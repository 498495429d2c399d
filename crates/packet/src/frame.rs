//! The frame: one packet in one chunk, with everything that is known about it.

use xway_abi::Errno;

use crate::arena::{Handle, Origin};
use crate::layout::{ETH_HLEN, FRAME_RESERVE, META_ALIGN, META_MAX};
use crate::pressure::Pressure;
use crate::redirect::Redirect;

/// A packet and its descriptor. Owned: there is no second way to reach the same packet.
///
/// Positions are offsets in bytes from the start of the chunk (`data_hard_start` on Linux). At all times
/// `FRAME_RESERVE <= data_meta <= data <= data_end <= chunk size`, except that a frame without metadata support has
/// `data_meta == data + 1`, as on Linux.
///
/// Dropping a frame sends it home through the pool's return queue (one atomic operation). On the pool's own thread prefer
/// [`crate::Pool::release`].
#[repr(transparent)] // generated code walks slices of frames: see `descriptor`
pub struct Frame {
    handle: Handle,
}

/// A VLAN tag that a device took out of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vlan {
    /// Tag protocol, host byte order: 0x8100 or 0x88a8.
    pub proto: u16,
    /// Priority, drop eligibility and VLAN id, host byte order.
    pub tci: u16,
}

/// What the device knew about a packet when it arrived; `None` where it did not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxMeta {
    /// Receive hash and its type (`enum xdp_rss_hash_type` of Linux).
    pub hash: Option<(u32, u32)>,
    /// Tag that the device removed.
    pub vlan: Option<Vlan>,
    /// Arrival time in nanoseconds.
    pub timestamp: Option<u64>,
}

/// Bits of `Desc::has`.
mod has {
    pub(super) const HASH: u16 = 1;
    pub(super) const VLAN: u16 = 2;
    pub(super) const TIMESTAMP: u16 = 4;
}

impl Frame {
    pub(crate) fn new(handle: Handle) -> Frame {
        Frame { handle }
    }

    pub(crate) fn into_handle(self) -> Handle {
        self.handle
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn handle_mut(&mut self) -> &mut Handle {
        &mut self.handle
    }

    /// Makes the frame empty: no packet, no metadata, no target; the default headroom. The bytes of the chunk stay as they
    /// are.
    #[inline]
    pub fn reset(&mut self) {
        let desc = self.handle.desc_mut();
        desc.at = desc.fresh;
        desc.from = Origin::default();
        desc.cut = 0;
        desc.packet_id = 0;
        desc.redirect = Redirect::None;
    }

    // -- the packet ---------------------------------------------------------------------------------------------------

    /// The packet's bytes.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        let desc = self.handle.desc();
        &self.handle.chunk()[desc.at.data as usize..desc.at.data_end as usize]
    }

    /// The packet's bytes, writable.
    #[inline]
    pub fn packet_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.data() as usize, self.data_end() as usize);
        &mut self.handle.chunk_mut()[start..end]
    }

    /// Length of the packet in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        (self.data_end() - self.data()) as usize
    }

    /// Whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.data() == self.data_end()
    }

    /// The metadata in front of the packet; empty without metadata.
    pub fn meta(&self) -> &[u8] {
        let end = self.data() as usize;
        &self.handle.chunk()[end - self.meta_len() as usize..end]
    }

    /// The metadata in front of the packet, writable.
    pub fn meta_mut(&mut self) -> &mut [u8] {
        let (end, len) = (self.data() as usize, self.meta_len() as usize);
        &mut self.handle.chunk_mut()[end - len..end]
    }

    /// The whole chunk. Position 0 is the hard start.
    #[inline]
    pub fn chunk(&self) -> &[u8] {
        self.handle.chunk()
    }

    /// The whole chunk, writable. Whoever writes outside of the packet and its metadata harms only this frame.
    #[inline]
    pub fn chunk_mut(&mut self) -> &mut [u8] {
        self.handle.chunk_mut()
    }

    /// Metadata and packet in one slice, from `data_meta` to `data_end`: everything that a program may touch.
    pub fn accessible(&self) -> &[u8] {
        &self.handle.chunk()[(self.data() - self.meta_len()) as usize..self.data_end() as usize]
    }

    /// As [`Frame::accessible`], writable.
    pub fn accessible_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.data() - self.meta_len(), self.data_end());
        &mut self.handle.chunk_mut()[start as usize..end as usize]
    }

    /// The longest packet that [`Frame::fill`] takes.
    pub fn capacity(&self) -> usize {
        let desc = self.handle.desc();
        (desc.at.hard_end - desc.fresh.data) as usize
    }

    /// Makes `bytes` the packet, at the default headroom, without metadata.
    ///
    /// # Errors
    /// [`FrameFull`] when it does not fit; nothing is changed then.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), FrameFull> {
        self.set_len(bytes.len())?;
        self.packet_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// Puts a packet that lies in a cache line into a frame as [`crate::Pool::alloc_each`] hands it out, as much of it as there is room
    /// for, and says how much that is. The line is copied whole, which two instructions do: what follows the packet in it then stands
    /// behind the packet in the chunk.
    #[inline]
    pub fn receive_line(&mut self, line: &[u8; 64], len: usize) -> usize {
        let at = &mut self.handle.desc_mut().at;
        let data = at.data as usize;
        let kept = len.min(line.len()).min((at.hard_end - at.data) as usize);
        at.data_end = at.data + kept as u32;
        match self.handle.chunk_mut().get_mut(data..).and_then(|room| room.first_chunk_mut()) {
            Some(to) => *to = *line,
            None => self.write_cold(&line[..kept]),
        }
        kept
    }

    /// Out of line, so that the compiler does not make one copy of any length of the two.
    #[cold]
    #[inline(never)]
    fn write_cold(&mut self, packet: &[u8]) {
        self.packet_mut().copy_from_slice(packet);
    }

    /// Makes the packet `len` bytes long at the default headroom, without metadata, holding whatever was there: for a port
    /// that then has the bytes written into [`Frame::packet_mut`].
    ///
    /// # Errors
    /// [`FrameFull`] when it does not fit; nothing is changed then.
    pub fn set_len(&mut self, len: usize) -> Result<(), FrameFull> {
        let room = self.capacity();
        if len > room {
            return Err(FrameFull { len, room });
        }
        let desc = self.handle.desc_mut();
        desc.at.data = desc.fresh.data;
        desc.at.data_meta = desc.fresh.data_meta;
        desc.at.data_end = desc.fresh.data + len as u32;
        desc.cut = 0;
        Ok(())
    }

    /// Places packet and metadata anywhere in the chunk, for a test run that states its geometry.
    ///
    /// # Errors
    /// `EINVAL` unless `FRAME_RESERVE <= data_meta <= data <= data_end <= hard_end`; nothing is changed then.
    pub fn place(&mut self, data_meta: u32, data: u32, data_end: u32) -> Result<(), Errno> {
        if data_meta < FRAME_RESERVE || data < data_meta || data_end < data || data_end > self.hard_end() {
            return Err(Errno::EINVAL);
        }
        let desc = self.handle.desc_mut();
        (desc.at.data_meta, desc.at.data, desc.at.data_end) = (data_meta, data, data_end);
        Ok(())
    }

    /// Becomes a copy of `of` in everything but the redirect target.
    ///
    /// # Errors
    /// `EINVAL` when it does not fit the chunk at the same place.
    pub(crate) fn copy_from(&mut self, of: &Frame) -> Result<(), Errno> {
        let from = of.data() - of.meta_len();
        self.place(from, of.data(), of.data_end())?;
        self.accessible_mut().copy_from_slice(of.accessible());
        let (theirs, ours) = (of.handle.desc(), self.handle.desc_mut());
        ours.at.data_meta = theirs.at.data_meta;
        ours.from.ingress_ifindex = theirs.from.ingress_ifindex;
        ours.from.rx_queue = theirs.from.rx_queue;
        ours.from.egress_ifindex = theirs.from.egress_ifindex;
        ours.cut = theirs.cut;
        ours.packet_id = theirs.packet_id;
        self.set_rx_meta(of.rx_meta());
        Ok(())
    }

    // -- positions ----------------------------------------------------------------------------------------------------

    /// Where the packet starts.
    #[inline]
    pub fn data(&self) -> u32 {
        self.handle.desc().at.data
    }

    /// Where the packet ends: the first byte behind it.
    #[inline]
    pub fn data_end(&self) -> u32 {
        self.handle.desc().at.data_end
    }

    /// Where the metadata starts; `data` when it is empty, `data + 1` when metadata is not supported.
    #[inline]
    pub fn data_meta(&self) -> u32 {
        self.handle.desc().at.data_meta
    }

    /// Up to where `adjust_tail` may grow the packet.
    #[inline]
    pub fn hard_end(&self) -> u32 {
        self.handle.desc().at.hard_end
    }

    /// Bytes of metadata.
    #[inline]
    pub fn meta_len(&self) -> u32 {
        self.data().saturating_sub(self.data_meta())
    }

    /// Free bytes in front of the packet and its metadata.
    pub fn headroom(&self) -> u32 {
        self.data() - self.meta_len() - FRAME_RESERVE
    }

    /// Free bytes behind the packet.
    pub fn tailroom(&self) -> u32 {
        self.hard_end().saturating_sub(self.data_end())
    }

    /// Whether metadata may stand in front of the packet.
    pub fn has_metadata_support(&self) -> bool {
        self.data_meta() <= self.data()
    }

    // -- what the helpers do ------------------------------------------------------------------------------------------

    /// `bpf_xdp_adjust_head`: moves the start of the packet by `delta` bytes and takes the metadata along. Bytes gained in
    /// front hold whatever was there.
    ///
    /// # Errors
    /// `EINVAL` when the metadata would leave the headroom or less than an Ethernet header would be left; nothing is changed.
    pub fn adjust_head(&mut self, delta: i32) -> Result<(), Errno> {
        let meta_len = self.meta_len();
        let desc = self.handle.desc_mut();
        let data = i64::from(desc.at.data) + i64::from(delta);
        let first = i64::from(FRAME_RESERVE + meta_len);
        let last = i64::from(desc.at.data_end) - i64::from(ETH_HLEN);
        if data < first || data > last {
            return Err(Errno::EINVAL);
        }
        let data = data as u32;
        let (old_meta, new_meta) = (desc.at.data_meta, desc.at.data_meta.wrapping_add_signed(delta));
        (desc.at.data, desc.at.data_meta) = (data, new_meta);
        if meta_len > 0 {
            let (from, to) = (old_meta as usize, new_meta as usize);
            self.handle.chunk_mut().copy_within(from..from + meta_len as usize, to);
        }
        Ok(())
    }

    /// `bpf_xdp_adjust_meta`: moves the start of the metadata by `delta` bytes. Bytes gained hold whatever was there.
    ///
    /// # Errors
    /// `ENOTSUPP` without metadata support; `EINVAL` when it would start in front of the headroom or behind the start of the
    /// packet; `EACCES` when its length would not be a multiple of four or above 252. Nothing is changed.
    pub fn adjust_meta(&mut self, delta: i32) -> Result<(), Errno> {
        if !self.has_metadata_support() {
            return Err(Errno::ENOTSUPP);
        }
        let desc = self.handle.desc_mut();
        let meta = i64::from(desc.at.data_meta) + i64::from(delta);
        if meta < i64::from(FRAME_RESERVE) || meta > i64::from(desc.at.data) {
            return Err(Errno::EINVAL);
        }
        let len = desc.at.data - meta as u32;
        if !len.is_multiple_of(META_ALIGN) || len > META_MAX {
            return Err(Errno::EACCES);
        }
        desc.at.data_meta = meta as u32;
        Ok(())
    }

    /// `bpf_xdp_adjust_tail`: moves the end of the packet by `delta` bytes. Bytes gained are zero. Of several buffers the last one
    /// grows, and those that a shrinking packet leaves go home.
    ///
    /// # Errors
    /// `EINVAL` when it would end behind the hard end (of several buffers: behind the end of the last one's chunk) or less than an
    /// Ethernet header would be left; nothing is changed.
    pub fn adjust_tail(&mut self, delta: i32) -> Result<(), Errno> {
        if self.has_frags() {
            return self.adjust_tail_parts(delta);
        }
        let desc = self.handle.desc_mut();
        let end = i64::from(desc.at.data_end) + i64::from(delta);
        if end > i64::from(desc.at.hard_end) || end < i64::from(desc.at.data + ETH_HLEN) {
            return Err(Errno::EINVAL);
        }
        let (old, new) = (desc.at.data_end as usize, end as usize);
        desc.at.data_end = end as u32;
        if new > old {
            self.handle.chunk_mut()[old..new].fill(0);
        }
        Ok(())
    }

    // -- several buffers: see `frags.rs` ------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn next_part(&self) -> Option<&Frame> {
        self.handle.desc().next.as_ref()
    }

    pub(crate) fn next_part_mut(&mut self) -> Option<&mut Frame> {
        self.handle.desc_mut().next.as_mut()
    }

    pub(crate) fn take_next_part(&mut self) -> Option<Frame> {
        self.handle.desc_mut().next.take()
    }

    pub(crate) fn set_next_part(&mut self, next: Option<Frame>) {
        let before = std::mem::replace(&mut self.handle.desc_mut().next, next);
        drop(before);
    }

    /// Makes this a buffer behind the first: `len` bytes, at most the chunk's, from the chunk's first one on.
    pub(crate) fn set_part_len(&mut self, len: u32) {
        let desc = self.handle.desc_mut();
        (desc.at.data, desc.at.data_meta, desc.at.data_end) = (0, 0, len);
    }

    /// Moves the end of a buffer; it lies in the chunk.
    pub(crate) fn set_end(&mut self, end: u32) {
        self.handle.desc_mut().at.data_end = end;
    }

    /// Takes bytes off the end of a buffer; there are as many.
    pub(crate) fn cut_end(&mut self, count: u32) {
        self.handle.desc_mut().at.data_end -= count;
    }

    // -- where it came from and where it goes -------------------------------------------------------------------------

    /// Index of the interface that it arrived on.
    #[inline]
    pub fn ingress_ifindex(&self) -> u32 {
        self.handle.desc().from.ingress_ifindex
    }

    /// Receive queue that it arrived on.
    #[inline]
    pub fn rx_queue(&self) -> u32 {
        self.handle.desc().from.rx_queue
    }

    /// Says where it arrived.
    #[inline]
    pub fn set_ingress(&mut self, ifindex: u32, rx_queue: u32) {
        let desc = self.handle.desc_mut();
        (desc.from.ingress_ifindex, desc.from.rx_queue) = (ifindex, rx_queue);
    }

    /// The packet arrives at another port as it left the one before: what that one's device knew, the metadata in front of the
    /// packet, the target and the way out are forgotten.
    #[inline]
    pub fn arrive(&mut self, ifindex: u32, rx_queue: u32) {
        let desc = self.handle.desc_mut();
        (desc.from.ingress_ifindex, desc.from.rx_queue, desc.from.egress_ifindex) = (ifindex, rx_queue, 0);
        desc.at.data_meta = desc.at.data + (desc.fresh.data_meta - desc.fresh.data);
        desc.from.has = 0;
        desc.redirect = Redirect::None;
    }

    /// Index of the interface that it is about to leave by; 0 except in a devmap's egress program.
    #[inline]
    pub fn egress_ifindex(&self) -> u32 {
        self.handle.desc().from.egress_ifindex
    }

    /// Says which interface it is about to leave by.
    pub fn set_egress_ifindex(&mut self, ifindex: u32) {
        self.handle.desc_mut().from.egress_ifindex = ifindex;
    }

    /// What the device knew about it.
    pub fn rx_meta(&self) -> RxMeta {
        let desc = self.handle.desc();
        let some = |bit: u16| desc.from.has & bit != 0;
        RxMeta {
            hash: some(has::HASH).then_some((desc.rx_hash, u32::from(desc.from.rx_hash_type))),
            vlan: some(has::VLAN).then_some(Vlan { proto: desc.vlan_proto, tci: desc.vlan_tci }),
            timestamp: some(has::TIMESTAMP).then_some(desc.rx_timestamp),
        }
    }

    /// Says what the device knew about it.
    pub fn set_rx_meta(&mut self, meta: RxMeta) {
        let desc = self.handle.desc_mut();
        desc.from.has = 0;
        if let Some((hash, kind)) = meta.hash {
            desc.from.has |= has::HASH;
            (desc.rx_hash, desc.from.rx_hash_type) = (hash, kind as u16); // Linux's type bits end at 2^8
        }
        if let Some(vlan) = meta.vlan {
            desc.from.has |= has::VLAN;
            (desc.vlan_proto, desc.vlan_tci) = (vlan.proto, vlan.tci);
        }
        if let Some(timestamp) = meta.timestamp {
            desc.from.has |= has::TIMESTAMP;
            desc.rx_timestamp = timestamp;
        }
    }

    /// The target that a redirect helper chose.
    #[inline]
    pub fn redirect(&self) -> Redirect {
        self.handle.desc().redirect
    }

    /// Chooses a target, or forgets it.
    #[inline]
    pub fn set_redirect(&mut self, redirect: Redirect) {
        self.handle.desc_mut().redirect = redirect;
    }

    /// How close the pool that the frame is from is to its limit. Costs a look at a word that the pool's owner writes when the
    /// level changes.
    pub fn pool_pressure(&self) -> Pressure {
        self.handle.pressure()
    }

    /// Number of the packet in its port's input, counted from 1; 0 when the port does not count.
    pub fn packet_id(&self) -> u64 {
        self.handle.desc().packet_id
    }

    /// Numbers the packet.
    pub fn set_packet_id(&mut self, id: u64) {
        self.handle.desc_mut().packet_id = id;
    }

    /// Bytes that the packet had on the wire and a capture or a port cut off before it came here; 0 for a whole packet.
    pub fn cut(&self) -> u32 {
        self.handle.desc().cut
    }

    /// Says how many bytes are missing, after [`Frame::fill`].
    pub fn set_cut(&mut self, bytes: u32) {
        self.handle.desc_mut().cut = bytes;
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame")
            .field("number", &self.handle.number())
            .field("data_meta", &self.data_meta())
            .field("data", &self.data())
            .field("data_end", &self.data_end())
            .field("ingress_ifindex", &self.ingress_ifindex())
            .field("rx_queue", &self.rx_queue())
            .field("redirect", &self.redirect())
            .finish_non_exhaustive()
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
