//! Memory that maps are made of.
#![allow(unsafe_code)]
// Why unsafe: blocks are allocated zeroed without being touched (a map of many gigabytes costs what is used of it), are
// viewed as slices of atomics of several widths, and give out references that outlive the block's owner, up to the guard.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use xway_abi::Errno;

use crate::{Guard, ValueRef};

/// A cache line: blocks begin on one.
const LINE: usize = 64;

/// Zeroed memory, only ever accessed atomically, freed when no guard can still see it.
pub(crate) struct Block {
    /// Start of the allocation.
    raw: NonNull<u8>,
    layout: Layout,
    /// First aligned byte in it.
    base: NonNull<u8>,
    /// Usable bytes from `base`, a multiple of 8.
    bytes: usize,
}

// SAFETY: the memory is owned by the block (no thread-bound part) and only accessed atomically.
unsafe impl Send for Block {}
// SAFETY: shared access is atomic, see the type's promise.
unsafe impl Sync for Block {}

impl Block {
    /// At least `bytes` zeroed bytes on a cache-line boundary. `ENOMEM` when the system has no room for them.
    pub(crate) fn new(bytes: usize) -> Result<Block, Errno> {
        let bytes = bytes.max(8).checked_next_multiple_of(8).ok_or(Errno::ENOMEM)?;
        // The alignment is made here and not by the allocator, which would touch every page to zero aligned memory.
        let padded = bytes.checked_add(LINE).ok_or(Errno::ENOMEM)?;
        let layout = Layout::from_size_align(padded, 16).map_err(|_| Errno::ENOMEM)?;
        // SAFETY: the layout's size is not zero.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)?;
        let skip = raw.as_ptr().align_offset(LINE);
        // SAFETY: `skip < LINE`, and LINE bytes more than needed were allocated.
        let base = unsafe { raw.add(skip.min(LINE)) };
        Ok(Block { raw, layout, base, bytes })
    }

    /// Usable length in bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory as 64-bit words.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` is aligned to 64, `bytes` initialised bytes follow it, shared access is atomic.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / 8) }
    }

    /// The memory as 32-bit words. A place is used either as these or as the wider ones, not both at once.
    #[inline]
    pub(crate) fn halves(&self) -> &[AtomicU32] {
        // SAFETY: as in `words`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / 4) }
    }

    /// The memory as pointers, null where nothing was written.
    #[inline]
    pub(crate) fn pointers<T>(&self) -> &[AtomicPtr<T>] {
        // SAFETY: as in `words`; the alignment suits pointers and zeroed bytes are a null pointer.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / size_of::<AtomicPtr<T>>()) }
    }

    /// The `len` bytes at `offset`, valid as long as the guard, whatever happens to the block. Panics when they do not lie
    /// in the block: offsets are the map's own arithmetic.
    #[inline]
    pub(crate) fn value<'g>(&self, offset: usize, len: usize, guard: &'g Guard) -> ValueRef<'g> {
        assert!(offset <= self.bytes && len <= self.bytes - offset && len <= u32::MAX as usize);
        // SAFETY: the bytes lie in the block (just checked), were zeroed at allocation, are accessed atomically only, and
        // `drop` defers their release until every guard that is pinned now has gone.
        unsafe { ValueRef::new(self.base.add(offset), len as u32, guard) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        struct Memory(NonNull<u8>, Layout);
        // SAFETY: plain memory; freeing it on another thread is allowed.
        unsafe impl Send for Memory {}
        impl Drop for Memory {
            fn drop(&mut self) {
                // SAFETY: allocated in `Block::new` with this layout; the block that owned it is gone.
                unsafe { dealloc(self.0.as_ptr(), self.1) }
            }
        }
        let memory = Memory(self.raw, self.layout);
        let guard = crossbeam_epoch::pin();
        let large = self.bytes >= 1 << 16;
        guard.defer(move || drop(memory));
        if large {
            // To the collector now, and not when this thread's bag is full.
            guard.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn aligned_zeroed_and_sized() {
        for bytes in [0, 1, 8, 9, 4096, 4097] {
            let block = Block::new(bytes).unwrap();
            assert!(block.bytes() >= bytes && block.bytes().is_multiple_of(8));
            assert_eq!(block.words().as_ptr() as usize % LINE, 0);
            assert!(block.words().iter().all(|w| w.load(Ordering::Relaxed) == 0));
        }
        assert_eq!(Block::new(usize::MAX).err(), Some(Errno::ENOMEM));
        assert_eq!(Block::new(isize::MAX as usize - 8).err(), Some(Errno::ENOMEM));
    }

    #[test]
    fn a_value_outlives_its_block_under_the_guard() {
        let guard = Guard::pin();
        let block = Block::new(64).unwrap();
        let value = block.value(8, 8, &guard);
        value.store(0, 8, 7).unwrap();
        drop(block);
        assert_eq!(value.load(0, 8).unwrap(), 7);
    }
}
