//! Memory that maps are made of.
#![allow(unsafe_code)]
// Why unsafe: blocks are allocated zeroed without being touched (a map of many gigabytes costs what is used of it), are
// viewed as slices of atomics of several widths, and give out references that outlive the block's owner, up to the guard.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use xway_abi::Errno;

use crate::line::Line;
use crate::shared;
use crate::{Guard, HugePages, ValueRef};

/// A cache line: blocks begin on one.
const LINE: usize = 64;
/// Blocks from this size are mappings of their own.
const MAPPED_MIN: usize = 64 << 10;
/// Blocks that grow are from this size.
const GROWING_MIN: usize = 16 << 10;
/// A page.
const PAGE: usize = 4096;
/// What huge pages are aligned to; blocks below it do not ask for them.
const HUGE: usize = 2 << 20;

/// Heap blocks up to this size leave the alignment to the allocator.
const SMALL: usize = 4096;

/// Zeroed memory, only ever accessed atomically, freed when no guard can still see it.
///
/// Maps of one element are made of these, so what stands here is kept small.
pub(crate) struct Block {
    /// First byte, aligned.
    base: NonNull<u8>,
    /// Usable bytes from `base`, a multiple of 8.
    bytes: usize,
    /// Bytes that are given back at the end, from `skipped` bytes before `base` on.
    whole: usize,
    skipped: u32,
    kind: Kind,
    huge: HugePages,
}

/// Where a block's memory comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Heap,
    Mapped,
    /// The second half is the first once more.
    Mirrored,
    /// Another block's (`shared.rs`).
    Part,
}

/// What is given back at the end.
struct Memory {
    raw: NonNull<u8>,
    whole: usize,
    kind: Kind,
}

// SAFETY: plain memory without a thread-bound part; freeing it on another thread is allowed.
unsafe impl Send for Memory {}

// SAFETY: the memory is owned by the block (no thread-bound part) and only accessed atomically.
unsafe impl Send for Block {}
// SAFETY: shared access is atomic, see the type's promise.
unsafe impl Sync for Block {}

impl Block {
    /// At least `bytes` zeroed bytes on a cache-line boundary. `ENOMEM` when the system has no room for them.
    pub(crate) fn new(bytes: usize) -> Result<Block, Errno> {
        Block::with_pages(bytes, HugePages::Never)
    }

    /// As [`Block::new`], on huge pages if there are any to be had; [`Block::huge`] says what was.
    pub(crate) fn with_pages(bytes: usize, wanted: HugePages) -> Result<Block, Errno> {
        let bytes = bytes.max(8).checked_next_multiple_of(8).ok_or(Errno::ENOMEM)?;
        if bytes >= MAPPED_MIN && !cfg!(miri) { Block::mapped(bytes, wanted) } else { Block::on_heap(bytes) }
    }

    /// As [`Block::new`], for memory that is used little by little and from the front: what has pages of its own takes only those that were
    /// touched.
    pub(crate) fn growing(bytes: usize) -> Result<Block, Errno> {
        let bytes = bytes.max(8).checked_next_multiple_of(8).ok_or(Errno::ENOMEM)?;
        if bytes >= GROWING_MIN && !cfg!(miri) { Block::mapped(bytes, HugePages::Never) } else { Block::on_heap(bytes) }
    }

    fn on_heap(bytes: usize) -> Result<Block, Errno> {
        // The alignment of what has pages is made here and not by the allocator, which would touch every page to zero aligned memory.
        let whole = if bytes <= SMALL { bytes } else { bytes.checked_add(LINE).ok_or(Errno::ENOMEM)? };
        let layout = heap_layout(whole).ok_or(Errno::ENOMEM)?;
        // SAFETY: the layout's size is not zero.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)?;
        let skip = raw.as_ptr().align_offset(LINE).min(LINE);
        // SAFETY: `skip` is 0 where the allocator aligns; else it is at most LINE, and LINE bytes more than needed were allocated.
        let base = unsafe { raw.add(skip) };
        Ok(Block { base, bytes, whole, skipped: skip as u32, kind: Kind::Heap, huge: HugePages::Never })
    }

    fn mapped(bytes: usize, wanted: HugePages) -> Result<Block, Errno> {
        let wanted = if bytes >= HUGE { wanted } else { HugePages::Never };
        if wanted == HugePages::Explicit
            && let Some(len) = bytes.checked_next_multiple_of(HUGE)
            && let Ok(raw) = map(len, MapFlags::HUGETLB)
        {
            return Ok(Block {
                base: raw,
                bytes,
                whole: len,
                skipped: 0,
                kind: Kind::Mapped,
                huge: HugePages::Explicit,
            });
        }
        // Mappings begin on a page.
        let align = if wanted == HugePages::Never { 0 } else { HUGE };
        let len = bytes.checked_add(align).and_then(|len| len.checked_next_multiple_of(PAGE)).ok_or(Errno::ENOMEM)?;
        let raw = map(len, MapFlags::NORESERVE)?;
        let skip = raw.as_ptr().align_offset(align.max(LINE)).min(align);
        // SAFETY: `skip <= align`, and `align` bytes more than needed were mapped.
        let base = unsafe { raw.add(skip) };
        let mut huge = HugePages::Never;
        if wanted != HugePages::Never {
            // SAFETY: the range lies in the mapping that was just made; the advice changes no contents.
            let advised = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
            if advised.is_ok() {
                huge = HugePages::Transparent;
            }
        }
        Ok(Block { base, bytes, whole: len, skipped: skip as u32, kind: Kind::Mapped, huge })
    }

    /// `bytes` zeroed bytes and behind them the same once more, so that what runs over the end goes on at the beginning. Where the system
    /// has none (no descriptor is left for a moment), or for few bytes, the second half is memory of its own.
    pub(crate) fn mirrored(bytes: usize) -> Result<Block, Errno> {
        let whole = bytes.checked_mul(2).ok_or(Errno::ENOMEM)?;
        let pages = whole >= MAPPED_MIN && bytes.is_multiple_of(rustix::param::page_size()) && !cfg!(miri);
        match if pages { twice(bytes) } else { None } {
            Some(base) => {
                Ok(Block { base, bytes: whole, whole, skipped: 0, kind: Kind::Mirrored, huge: HugePages::Never })
            }
            None => Block::new(whole),
        }
    }

    /// So many bytes of this block for each of `cpus` from `at` on, [`shared::STRIDE`] apart. Who takes them out sees to it that nobody else
    /// has them, and that this block lives until they have come back.
    pub(crate) fn part(&self, at: usize, cpus: usize, bytes: usize) -> Block {
        let end = (cpus - 1) * shared::STRIDE + bytes;
        assert!(at <= self.bytes && end <= self.bytes - at && at.is_multiple_of(8));
        // SAFETY: the bytes lie in the block, as was just checked.
        let base = unsafe { self.base.add(at) };
        Block { base, bytes: end, whole: bytes * cpus, skipped: 0, kind: Kind::Part, huge: HugePages::Never }
    }

    /// A file's first `len` bytes, which it never loses.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, len: usize) -> Option<Block> {
        let raw = crate::mapped::map(fd, len, true).ok()?;
        Some(Block { base: raw, bytes: len, whole: len, skipped: 0, kind: Kind::Mapped, huge: HugePages::Never })
    }

    /// Usable length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the block has pages of its own.
    pub(crate) fn is_mapped(&self) -> bool {
        !matches!(self.kind, Kind::Heap | Kind::Part)
    }

    /// Bytes of memory that the block takes when all of it is used: what was asked of the allocator, or whole pages. Addresses that
    /// were skipped to begin on a huge page are no memory.
    pub(crate) fn memory(&self) -> usize {
        match (self.kind, self.huge) {
            (Kind::Heap | Kind::Part, _) | (_, HugePages::Explicit) => self.whole,
            (Kind::Mapped, _) => self.bytes.next_multiple_of(PAGE),
            (Kind::Mirrored, _) => self.bytes / 2,
        }
    }

    /// Bytes that it takes when `used` bytes from `at` on were touched, and others apart from them.
    pub(crate) fn memory_of(&self, at: usize, used: usize) -> usize {
        match self.kind {
            Kind::Heap | Kind::Part => used,
            _ if used == 0 => 0,
            Kind::Mapped | Kind::Mirrored => (at + used).next_multiple_of(PAGE) - at / PAGE * PAGE,
        }
    }

    /// Which kind of huge pages the block has.
    pub(crate) fn huge(&self) -> HugePages {
        self.huge
    }

    /// The address of the first byte, for generated code. It stays for the life of the block.
    pub(crate) fn addr(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Asks for the block's pages on this NUMA node; whether the system agreed.
    pub(crate) fn prefer_node(&self, node: u32) -> bool {
        self.is_mapped() && xway_numa::prefer(self.raw(), self.whole, node).is_ok()
    }

    fn raw(&self) -> NonNull<u8> {
        // SAFETY: `base` lies so far behind the first byte of what was allocated or mapped.
        unsafe { self.base.sub(self.skipped as usize) }
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

    /// The memory as buckets of a hash table.
    #[inline]
    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: as in `words`; a line is 64 bytes of atomics, aligned to 64, and zeroed bytes are an empty line.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / size_of::<Line>()) }
    }

    /// Brings the cache line at `offset` near, if it lies in the block. Reads nothing.
    #[inline(always)]
    pub(crate) fn prefetch(&self, offset: usize) {
        if offset >= self.bytes {
            return;
        }
        let at = self.base.as_ptr().cast_const().wrapping_add(offset);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a prefetch neither faults nor reads as far as the program can tell.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: the same.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
        let _ = at;
    }

    /// Brings the cache line at `offset` near to be written to.
    #[inline(always)]
    pub(crate) fn prefetch_to_write(&self, offset: usize) {
        if offset >= self.bytes {
            return;
        }
        let at = self.base.as_ptr().cast_const().wrapping_add(offset);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: as in `prefetch`.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: the same.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
        let _ = at;
    }

    /// The `len` bytes at `offset` for the owner's own use. Panics as [`Block::value`] does.
    #[inline]
    pub(crate) fn place(&self, offset: usize, len: usize) -> ValueRef<'_> {
        assert!(offset <= self.bytes && len <= self.bytes - offset && len <= u32::MAX as usize);
        // SAFETY: the bytes lie in the block (just checked), were zeroed at allocation, are accessed atomically only, and
        // the block is borrowed as long as they are.
        unsafe { ValueRef::borrowed(self.base.add(offset), len as u32) }
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

/// How heap blocks are asked for.
fn heap_layout(whole: usize) -> Option<Layout> {
    Layout::from_size_align(whole, if whole <= SMALL { LINE } else { 16 }).ok()
}

fn map(len: usize, extra: MapFlags) -> Result<NonNull<u8>, Errno> {
    let flags = MapFlags::PRIVATE | extra;
    // SAFETY: a fresh anonymous mapping at an address of the system's choice touches nobody's memory.
    let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    raw.ok().and_then(|raw| NonNull::new(raw.cast())).ok_or(Errno::ENOMEM)
}

/// A range with the same `len` bytes twice.
fn twice(len: usize) -> Option<NonNull<u8>> {
    let fd = memfd_create(c"xway-ring", MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&fd, len as u64).ok()?;
    let base = map(2 * len, MapFlags::NORESERVE).ok()?;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    for at in [0, len] {
        // SAFETY: the pages lie in the range that was just mapped, which nobody else knows yet.
        let done =
            unsafe { mmap(base.as_ptr().add(at).cast(), len, ProtFlags::READ | ProtFlags::WRITE, flags, &fd, 0) };
        if done.is_err() {
            // SAFETY: as above.
            let _ = unsafe { munmap(base.as_ptr().cast(), 2 * len) };
            return None;
        }
    }
    Some(base)
}

impl Drop for Block {
    fn drop(&mut self) {
        struct Owned(Memory);
        impl Drop for Owned {
            fn drop(&mut self) {
                let Memory { raw, whole, kind } = self.0;
                match (kind, heap_layout(whole)) {
                    // SAFETY: allocated in `Block::on_heap` with this layout; the block that owned it is gone.
                    (Kind::Heap, Some(layout)) => unsafe { dealloc(raw.as_ptr(), layout) },
                    (Kind::Heap, None) => {}
                    (Kind::Part, _) => shared::give(raw.as_ptr() as usize, whole),
                    (Kind::Mapped | Kind::Mirrored, _) => {
                        // SAFETY: mapped with this length when the block was made, which is gone.
                        let _ = unsafe { munmap(raw.as_ptr().cast(), whole) };
                    }
                }
            }
        }
        let owned = Owned(Memory { raw: self.raw(), whole: self.whole, kind: self.kind });
        match self.kind {
            // A page table full of pages takes its time, and who gives back a part waits for who takes one.
            Kind::Mapped | Kind::Mirrored | Kind::Part => crate::guard::retire(Box::new(owned)),
            Kind::Heap => crossbeam_epoch::pin().defer(move || drop(owned)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn aligned_zeroed_and_sized() {
        for bytes in [0, 1, 8, 9, 4096, 4097, 70_000] {
            let block = Block::new(bytes).unwrap();
            assert!(block.bytes() >= bytes && block.bytes().is_multiple_of(8));
            assert_eq!(block.words().as_ptr() as usize % LINE, 0);
            assert!(block.words().iter().all(|w| w.load(Ordering::Relaxed) == 0));
        }
        assert_eq!(Block::new(usize::MAX).err(), Some(Errno::ENOMEM));
        assert_eq!(Block::new(isize::MAX as usize - 8).err(), Some(Errno::ENOMEM));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no huge pages")]
    fn huge_pages_are_had_or_the_block_says_so() {
        for wanted in [HugePages::Never, HugePages::Transparent, HugePages::Explicit] {
            let block = Block::with_pages(5 << 20, wanted).unwrap();
            assert!(block.huge() <= wanted);
            if block.huge() != HugePages::Never {
                assert_eq!(block.addr() % HUGE, 0);
            }
            block.words().last().unwrap().store(1, Ordering::Relaxed);
            assert_eq!(block.words()[1 << 18].load(Ordering::Relaxed), 0);
        }
        assert_eq!(Block::with_pages(4096, HugePages::Explicit).unwrap().huge(), HugePages::Never);
    }

    #[test]
    fn what_runs_over_the_end_of_a_mirrored_block_goes_on_at_its_beginning() {
        let len = 64 << 10;
        let block = Block::mirrored(len).unwrap();
        assert_eq!((block.bytes(), block.words().len()), (2 * len, len / 4));
        block.words()[len / 8 + 3].store(7, Ordering::Relaxed);
        if block.memory() == len {
            assert_eq!(block.words()[3].load(Ordering::Relaxed), 7);
        } else {
            assert_eq!(block.memory(), 2 * len);
        }
        assert_eq!(Block::mirrored(4096).unwrap().memory(), 2 * 4096 + LINE, "small ones have both halves");
        assert_eq!(Block::mirrored(usize::MAX / 2 + 1).err(), Some(Errno::ENOMEM));
    }

    #[test]
    fn a_value_outlives_its_block_under_the_guard() {
        let guard = Guard::pin();
        let block = Block::new(64).unwrap();
        let value = block.value(0, 8, &guard);
        value.store(0, 8, 7).unwrap();
        drop(block);
        assert_eq!(value.load(0, 8).unwrap(), 7);
    }
}
