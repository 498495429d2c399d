//! One anonymous mapping, given back when the last user is gone.
#![allow(unsafe_code)] // mmap and munmap: the only way to page-aligned memory that is zero until touched.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A private anonymous mapping. Pages are zero and take no memory until they are touched.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory; who may touch which part of it is the pool's business (one owner per chunk).
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out addresses only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, `len > 0`.
    pub(crate) fn new(len: usize) -> rustix::io::Result<Mapping> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Mapping { base, len })
    }

    /// Address of the chunk at `offset`, which must lie inside with `size` bytes behind it.
    pub(crate) fn at(&self, offset: usize, size: usize) -> NonNull<u8> {
        assert!(offset.checked_add(size).is_some_and(|end| end <= self.len), "chunk outside its mapping");
        // SAFETY: the assertion above keeps the result inside the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and nobody holds an address into it: every chunk owner holds a
        // counted reference to the pool's home, which owns this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping cannot fail");
    }
}
