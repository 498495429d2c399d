//! One owner per chunk: the shared part of a pool and the handle that stands for one chunk.
#![allow(unsafe_code)] // turns "who holds the handle owns the chunk" into references
//!
//! The invariant of this file, kept by `Arena::handle` and `Handle::into_number`: **for each chunk number there is at most
//! one of: a live `Handle`, an entry in the owner's free stack, an entry in the return list, or membership in the range that
//! was never used.** (`share.rs` makes more handles of one that only
//! read, and counts them.) So a `Handle` may make references to its chunk and its descriptor without asking anybody.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::config::{PoolConfig, PoolError};
use crate::frame::Frame;
use crate::memory::Mapping;
use crate::pressure::{Gauge, Pressure};
use crate::redirect::Redirect;
use crate::returns::Returns;
use crate::sync::AtomicU32;

/// Where a packet lies in its chunk: offsets from `Desc::base`, 16 bytes, so that one load and one store place it. Kept by
/// `frame.rs`: 40 <= data_meta <= data (or data + 1 without metadata), data <= data_end, data_end <= chunk_size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) data: u32,
    pub(crate) data_end: u32,
    pub(crate) data_meta: u32,
    pub(crate) hard_end: u32,
}

/// Where a packet came from and which way it leaves, and which of the receive metadata are there: 16 bytes, so that one store forgets
/// it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Origin {
    pub(crate) ingress_ifindex: u32,
    pub(crate) rx_queue: u32,
    pub(crate) egress_ifindex: u32,
    /// `frame::has`.
    pub(crate) has: u16,
    pub(crate) rx_hash_type: u16,
}

/// The descriptor of one frame. The first cache line holds what programs read through their context, the second what the
/// engine needs after the verdict. Generated code reads it by the offsets in `descriptor.rs`.
#[repr(C, align(64))]
pub(crate) struct Desc {
    /// Start of the chunk. Written when the arena is made, and by `guest.rs`.
    pub(crate) base: NonNull<u8>,
    /// The arena that the chunk belongs to. Written once, when the arena is made.
    arena: NonNull<Arena>,
    pub(crate) at: Bounds,
    pub(crate) from: Origin,
    pub(crate) rx_timestamp: u64,
    pub(crate) rx_hash: u32,
    pub(crate) vlan_tci: u16,
    pub(crate) vlan_proto: u16,
    // second line
    /// `at` of an empty frame; `data_meta` is one behind `data` in a pool without metadata. Written when the arena is
    /// made, and by `guest.rs`.
    pub(crate) fresh: Bounds,
    number: u32,
    pub(crate) chunk_size: u32,
    /// Holders of a shared frame, 0 for a frame with one owner. Kept by `share.rs`.
    pub(crate) shared: AtomicU32,
    pub(crate) cut: u32,
    pub(crate) packet_id: u64,
    pub(crate) redirect: Redirect,
    /// The packet's next buffer. Owned: taken out before the chunk goes home.
    pub(crate) next: Option<Frame>,
}

/// What a pool and its frames share: the mapping, the descriptors and the way home.
pub(crate) struct Arena {
    memory: Mapping,
    /// `frames` descriptors, from `Box::into_raw`.
    descs: NonNull<Desc>,
    frames: u32,
    pub(crate) returns: Returns,
    pub(crate) pressure: Gauge,
}

impl Arena {
    /// Makes the arena and gives the owner's reference to it. It lives until `Arena::free`.
    pub(crate) fn create(config: &PoolConfig) -> Result<NonNull<Arena>, PoolError> {
        config.check()?;
        let stride = config.stride();
        let memory = Mapping::new(config.frames as usize * stride, config.backing, config.pages, config.node)?;
        let start = memory.start();
        let arena = NonNull::from(Box::leak(Box::<Arena>::new_uninit())).cast::<Arena>();
        let fresh = |number| {
            let data = config.headroom + config.shift(number);
            let hard_end = config.chunk_size - config.tailroom + config.shift(number);
            Bounds { data, data_end: data, data_meta: data + u32::from(!config.metadata), hard_end }
        };
        let descs: Box<[Desc]> = (0..config.frames)
            .map(|number| Desc {
                // SAFETY: number < frames and a chunk is no longer than the stride, so it lies inside the mapping.
                base: unsafe { start.add(number as usize * stride) },
                arena,
                at: fresh(number),
                from: Origin::default(),
                rx_timestamp: 0,
                rx_hash: 0,
                vlan_tci: 0,
                vlan_proto: 0,
                fresh: fresh(number),
                number,
                chunk_size: config.chunk_size,
                shared: AtomicU32::new(0),
                cut: 0,
                packet_id: 0,
                redirect: Redirect::None,
                next: None,
            })
            .collect();
        let descs = NonNull::from(Box::leak(descs)).cast::<Desc>();
        let (frames, returns) = (config.frames, Returns::new(config.frames));
        let value = Arena { memory, descs, frames, returns, pressure: Gauge::default() };
        // SAFETY: the space was allocated above for exactly this type and nobody else has seen it.
        unsafe { arena.write(value) };
        Ok(arena)
    }

    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Asks for a chunk's descriptor, and for the line of its packet that starts so many bytes behind the start of all memory, to be
    /// written.
    #[inline]
    pub(crate) fn fetch(&self, number: u32, start: usize) {
        let desc = self.descs.as_ptr().wrapping_add(number as usize).cast::<u8>();
        crate::prefetch::to_write(desc);
        crate::prefetch::to_write(desc.wrapping_add(64));
        crate::prefetch::to_write(self.memory.start().as_ptr().wrapping_add(start));
    }

    /// Frees an arena whose frames are all home.
    ///
    /// # Safety
    /// No handle to it exists any more, and nobody will use the reference again.
    pub(crate) unsafe fn free(arena: NonNull<Arena>) {
        // SAFETY: leaked from a box in `create`; the caller vouches that this is the last use.
        let arena = unsafe { Box::from_raw(arena.as_ptr()) };
        let descs = std::ptr::slice_from_raw_parts_mut(arena.descs.as_ptr(), arena.frames as usize);
        // SAFETY: leaked as exactly this slice in `create`; no handle points into it any more.
        drop(unsafe { Box::from_raw(descs) });
    }

    /// The handle for a chunk.
    ///
    /// # Safety
    /// `number` must be in nobody's hands: the caller just took it from the free stack, the return list or the unused range
    /// (the invariant at the top).
    pub(crate) unsafe fn handle(&self, number: u32) -> Handle {
        debug_assert!(number < self.frames);
        // SAFETY: number < frames, as numbers in the three places are.
        Handle { desc: unsafe { self.descs.add(number as usize) } }
    }
}

/// Exclusive access to one chunk and its descriptor. Dropping it sends the chunk home through the return list.
#[repr(transparent)]
pub(crate) struct Handle {
    desc: NonNull<Desc>,
}

// SAFETY: a handle is the only one for its chunk, and chunk and descriptor belong to no thread.
unsafe impl Send for Handle {}
// SAFETY: through a shared handle everything can only be read.
unsafe impl Sync for Handle {}

impl Handle {
    #[inline]
    pub(crate) fn desc(&self) -> &Desc {
        // SAFETY: the arena lives while a handle lives, and only this handle reaches the descriptor.
        unsafe { self.desc.as_ref() }
    }

    #[inline]
    pub(crate) fn desc_mut(&mut self) -> &mut Desc {
        // SAFETY: as in `desc`, and `self` is borrowed exclusively.
        unsafe { self.desc.as_mut() }
    }

    /// The whole chunk.
    pub(crate) fn chunk(&self) -> &[u8] {
        let desc = self.desc();
        // SAFETY: the chunk is chunk_size initialised (zeroed by the kernel) bytes that only this handle reaches.
        unsafe { std::slice::from_raw_parts(desc.base.as_ptr(), desc.chunk_size as usize) }
    }

    /// The whole chunk, writable.
    pub(crate) fn chunk_mut(&mut self) -> &mut [u8] {
        let desc = self.desc();
        // SAFETY: as in `chunk`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(desc.base.as_ptr(), desc.chunk_size as usize) }
    }

    /// Lets the descriptor stand for other memory, in which an empty frame lies at `fresh`.
    ///
    /// # Safety
    /// `len` bytes from `memory` are initialised, and only this handle reaches them until it stands for others; `fresh` lies
    /// inside of them.
    pub(crate) unsafe fn stand_for(&mut self, memory: NonNull<u8>, len: u32, fresh: Bounds) -> &mut Desc {
        let desc = self.desc_mut();
        (desc.base, desc.chunk_size, desc.fresh, desc.at) = (memory, len, fresh, fresh);
        desc
    }

    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.desc().number
    }

    #[inline]
    pub(crate) fn arena(&self) -> NonNull<Arena> {
        self.desc().arena
    }

    pub(crate) fn raw(&self) -> NonNull<Desc> {
        self.desc
    }

    /// Asks for the line that the next packet of this chunk starts in, to be written: another core has it.
    #[inline]
    pub(crate) fn fetch(&self) {
        let desc = self.desc();
        crate::prefetch::to_write(desc.base.as_ptr().wrapping_add(desc.fresh.data as usize));
    }

    /// Asks for the descriptor, to be read.
    #[inline]
    pub(crate) fn fetch_descriptor(&self) {
        let desc = self.desc.as_ptr().cast::<u8>();
        crate::prefetch::to_read(desc);
        crate::prefetch::to_read(desc.wrapping_add(64));
    }

    /// How close the pool is to its limit.
    pub(crate) fn pressure(&self) -> Pressure {
        // SAFETY: the arena lives while a handle lives.
        unsafe { self.arena().as_ref() }.pressure.read()
    }

    /// Gives up the handle for the chunk's number, which the caller must put in one of the places of the invariant.
    #[inline]
    pub(crate) fn into_number(mut self) -> u32 {
        if self.desc().next.is_some() {
            self.shed();
        }
        ManuallyDrop::new(self).number()
    }

    /// As [`Handle::into_number`] for a packet that has no further buffers, which the caller has looked at.
    #[inline]
    pub(crate) fn into_only_number(self) -> u32 {
        debug_assert!(self.desc().next.is_none());
        ManuallyDrop::new(self).number()
    }

    /// Sends the packet's further buffers home.
    #[cold]
    fn shed(&mut self) {
        drop(self.desc_mut().next.take());
    }

    /// Gives up the handle for a pointer that stands for it: [`Handle::from_raw`] makes it a handle again.
    pub(crate) fn into_raw(self) -> NonNull<Desc> {
        ManuallyDrop::new(self).desc
    }

    /// The handle behind a pointer.
    ///
    /// # Safety
    /// `desc` comes from [`Handle::into_raw`], and each such pointer is turned back once at most.
    pub(crate) unsafe fn from_raw(desc: NonNull<Desc>) -> Handle {
        Handle { desc }
    }

    /// Sends many chunks home, one atomic operation for each run of the same arena.
    pub(crate) fn release_all(handles: impl Iterator<Item = Handle>) {
        let mut homeward = Homeward::new();
        handles.for_each(|handle| homeward.add(handle));
    }
}

/// Chunks on their way home, each run of the same arena with one atomic operation. What was added last leaves with the drop.
pub(crate) struct Homeward {
    numbers: [u32; Homeward::RUN],
    len: usize,
    arena: Option<NonNull<Arena>>,
}

impl Homeward {
    const RUN: usize = 64;

    pub(crate) fn new() -> Homeward {
        Homeward { numbers: [0; Homeward::RUN], len: 0, arena: None }
    }

    pub(crate) fn add(&mut self, handle: Handle) {
        let arena = handle.arena();
        if self.arena != Some(arena) || self.len == Homeward::RUN {
            self.leave();
        }
        self.arena = Some(arena);
        self.numbers[self.len] = handle.into_number();
        self.len += 1;
    }

    #[inline]
    pub(crate) fn leave(&mut self) {
        if let Some(arena) = self.arena.take() {
            push(arena, &self.numbers[..self.len]);
        }
        self.len = 0;
    }
}

impl Drop for Homeward {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.desc().next.is_some() {
            self.shed();
        }
        push(self.arena(), &[self.number()]);
    }
}

/// Sends numbers home whose handles were just given up, and frees the arena when they were the last of a closed pool.
fn push(arena: NonNull<Arena>, numbers: &[u32]) {
    // SAFETY: the arena lives while any of its chunks is away, and these are.
    let door = unsafe { arena.as_ref() }.returns.door();
    // Once these are home another thread may free the arena. Only references to its atomics are left by then.
    if door.push(numbers) {
        // SAFETY: `push` says true exactly once, after the owner closed and when no chunk is away.
        unsafe { Arena::free(arena) };
    }
}
