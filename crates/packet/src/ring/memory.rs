//! The shared part of a ring: two indices, a flags word, and the slots.
#![allow(unsafe_code)] // turns addresses in a mapping into references to atomics
//!
//! The invariant of this file, established by [`RingMemory::over`] and never changed: **each pointer is aligned, lies with all
//! that it points to inside the mapping that `_keep` keeps mapped, and points to atomics only.** So references may be made of
//! them at any time, whoever else writes there.

use crate::prefetch;
use crate::ring::{Entry, RingError, check_entries};
use crate::sync::{Arc, AtomicU32};

/// Where the parts of a ring lie in its memory, in bytes: `struct xdp_ring_offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingOffsets {
    /// The producer's index, 32 bits.
    pub producer: usize,
    /// The consumer's index, 32 bits.
    pub consumer: usize,
    /// Flags, 32 bits: [`xway_abi::xsk::RING_NEED_WAKEUP`].
    pub flags: usize,
    /// The first slot.
    pub desc: usize,
}

impl RingOffsets {
    /// What Linux uses on machines with 64-byte cache lines, and what rings of our own use. Of a socket of the kernel's always
    /// ask (`XDP_MMAP_OFFSETS`).
    pub const LINUX: RingOffsets = RingOffsets { producer: 0, consumer: 128, flags: 196, desc: 320 };

    /// Bytes of a ring of `entries` entries of type `T`.
    pub const fn size<T: Entry>(&self, entries: u32) -> usize {
        self.desc + entries as usize * std::mem::size_of::<T::Cell>()
    }
}

#[cfg(not(loom))]
pub use mapped::RingMemory;
#[cfg(loom)]
pub use model::RingMemory;

#[cfg(not(loom))]
mod mapped {
    use std::ptr::NonNull;

    use super::*;
    use crate::ring::Plain;
    use crate::shared::SharedMemory;

    /// The shared part of a ring. Clones are the same ring; who attaches to which end is the caller's word.
    pub struct RingMemory<T: Entry> {
        producer: NonNull<AtomicU32>,
        consumer: NonNull<AtomicU32>,
        flags: NonNull<AtomicU32>,
        cells: NonNull<T::Cell>,
        entries: u32,
        _keep: Arc<SharedMemory>,
    }

    // SAFETY: what the pointers reach are atomics, which any thread may use, and the memory is kept by a shared count.
    unsafe impl<T: Entry> Send for RingMemory<T> {}
    // SAFETY: as above.
    unsafe impl<T: Entry> Sync for RingMemory<T> {}

    impl<T: Entry> Clone for RingMemory<T> {
        fn clone(&self) -> Self {
            RingMemory { _keep: self._keep.clone(), ..*self }
        }
    }

    impl<T: Entry> RingMemory<T> {
        /// A new, empty ring in memory of this process.
        ///
        /// # Errors
        /// [`RingError::Entries`]; [`RingError::Memory`].
        pub fn private(entries: u32) -> Result<RingMemory<T>, RingError> {
            check_entries(entries)?;
            let offsets = RingOffsets::LINUX;
            let bytes = offsets.size::<T>(entries);
            let memory = SharedMemory::private(bytes).map_err(|cause| RingError::Memory { bytes, cause })?;
            RingMemory::place(Arc::new(memory), 0, offsets, entries)
        }

        /// A ring that lies `at` bytes into shared memory. Its contents are whatever is there; zeros are an empty ring.
        ///
        /// # Errors
        /// [`RingError::Entries`]; [`RingError::Place`] when a part would be outside or is not aligned.
        pub fn over(
            memory: Arc<SharedMemory>,
            at: usize,
            offsets: RingOffsets,
            entries: u32,
        ) -> Result<RingMemory<T>, RingError>
        where
            T: Plain,
        {
            check_entries(entries)?;
            RingMemory::place(memory, at, offsets, entries)
        }

        fn place(
            memory: Arc<SharedMemory>,
            at: usize,
            offsets: RingOffsets,
            entries: u32,
        ) -> Result<RingMemory<T>, RingError> {
            let len = memory.len();
            let place = |part: &'static str, offset: usize, size: usize, align: usize| {
                let error = RingError::Place { part, offset: at.saturating_add(offset), entries, len };
                let offset = at.checked_add(offset);
                let inside = offset.and_then(|offset| offset.checked_add(size)).is_some_and(|end| end <= len);
                match offset {
                    Some(offset) if inside && offset.is_multiple_of(align) => Ok(offset),
                    _ => Err(error),
                }
            };
            let word = |part, offset| place(part, offset, 4, 4);
            let (producer, consumer) =
                (word("producer index", offsets.producer)?, word("consumer index", offsets.consumer)?);
            let flags = word("flags", offsets.flags)?;
            let slot = std::mem::size_of::<T::Cell>();
            let cells = place("slots", offsets.desc, slot * entries as usize, std::mem::align_of::<T::Cell>())?;
            let start = memory.start();
            // SAFETY: `place` has checked that each offset, with what lies there, is inside the mapping.
            let at = |offset: usize| unsafe { start.add(offset) };
            Ok(RingMemory {
                producer: at(producer).cast(),
                consumer: at(consumer).cast(),
                flags: at(flags).cast(),
                cells: at(cells).cast(),
                entries,
                _keep: memory,
            })
        }

        #[inline]
        pub(crate) fn producer(&self) -> &AtomicU32 {
            // SAFETY: the invariant of this file; mappings start at a page, so the offset's alignment is the address's.
            unsafe { self.producer.as_ref() }
        }

        #[inline]
        pub(crate) fn consumer(&self) -> &AtomicU32 {
            // SAFETY: as in `producer`.
            unsafe { self.consumer.as_ref() }
        }

        #[inline]
        pub(crate) fn flags(&self) -> &AtomicU32 {
            // SAFETY: as in `producer`.
            unsafe { self.flags.as_ref() }
        }

        #[inline]
        pub(crate) fn cells(&self) -> &[T::Cell] {
            // SAFETY: the invariant of this file; a cell has a value for every pattern of bits (see `Entry`; frames, whose
            // cells are pointers, lie in private memory only, which starts zeroed).
            unsafe { std::slice::from_raw_parts(self.cells.as_ptr(), self.entries as usize) }
        }
    }
}

/// Loom's atomics cannot lie in mapped memory: the model has boxes instead, and the same code on top.
#[cfg(loom)]
mod model {
    use super::*;

    /// The shared part of a ring.
    pub struct RingMemory<T: Entry> {
        shared: Arc<Shared<T>>,
    }

    struct Shared<T: Entry> {
        producer: AtomicU32,
        consumer: AtomicU32,
        flags: AtomicU32,
        cells: Box<[T::Cell]>,
    }

    impl<T: Entry> Clone for RingMemory<T> {
        fn clone(&self) -> Self {
            RingMemory { shared: self.shared.clone() }
        }
    }

    impl<T: Entry> RingMemory<T> {
        /// A new, empty ring.
        ///
        /// # Errors
        /// [`RingError::Entries`].
        pub fn private(entries: u32) -> Result<RingMemory<T>, RingError> {
            RingMemory::starting_at(entries, 0)
        }

        /// An empty ring whose indices are already at `index`, so that a model reaches the wrap.
        ///
        /// # Errors
        /// [`RingError::Entries`].
        pub fn starting_at(entries: u32, index: u32) -> Result<RingMemory<T>, RingError> {
            check_entries(entries)?;
            let cells = (0..entries).map(|_| T::Cell::default()).collect();
            let shared = Shared {
                producer: AtomicU32::new(index),
                consumer: AtomicU32::new(index),
                flags: AtomicU32::new(0),
                cells,
            };
            Ok(RingMemory { shared: Arc::new(shared) })
        }

        pub(crate) fn producer(&self) -> &AtomicU32 {
            &self.shared.producer
        }

        pub(crate) fn consumer(&self) -> &AtomicU32 {
            &self.shared.consumer
        }

        pub(crate) fn flags(&self) -> &AtomicU32 {
            &self.shared.flags
        }

        pub(crate) fn cells(&self) -> &[T::Cell] {
            &self.shared.cells
        }
    }
}

impl<T: Entry> RingMemory<T> {
    /// Number of slots.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.cells().len() as u32
    }

    /// Slots from `index` on, `count` of them: up to the end of the memory, and those from its start on. `count` is not more
    /// than there are.
    #[inline]
    pub(crate) fn slots(&self, index: u32, count: u32) -> (&[T::Cell], &[T::Cell]) {
        let cells = self.cells();
        let (before, from) = cells.split_at((index as usize) & (cells.len() - 1));
        let first = (count as usize).min(from.len());
        (&from[..first], &before[..(count as usize - first).min(before.len())])
    }
}

impl<T: Entry> RingMemory<T> {
    /// Asks for the lines that these slots lie in: the other side has had them, and so they come at the same time instead of one
    /// after the other.
    #[inline]
    pub(crate) fn fetch(&self, index: u32, count: u32, to_write: bool) {
        const LINE: usize = 64;
        let per_line = (LINE / std::mem::size_of::<T::Cell>().clamp(1, LINE)).max(1);
        let (first, second) = self.slots(index, count.min(self.entries()));
        for cell in first.iter().step_by(per_line).chain(first.last()).chain(second.iter().step_by(per_line)) {
            let at = std::ptr::from_ref(cell).cast::<u8>();
            if to_write { prefetch::to_write(at) } else { prefetch::to_read(at) }
        }
    }
}

impl<T: Entry> std::fmt::Debug for RingMemory<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingMemory").field("entries", &self.entries()).finish_non_exhaustive()
    }
}
