//! The mapping that a pool cuts into chunks.
#![allow(unsafe_code)] // mmap and munmap

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::config::{Backing, PoolError};

/// Zeroed memory of a fixed size, unmapped at drop. It hands out only its address: who may touch which byte is decided in
/// `arena.rs`.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    fd: Option<OwnedFd>,
}

// SAFETY: the value is an address, a length and a file descriptor; the memory behind it belongs to the process, not to a
// thread. Access to the bytes is arbitrated by the arena.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives out plain values only.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(len: usize, backing: Backing) -> Result<Mapping, PoolError> {
        let failed = |cause: std::io::Error| PoolError::Memory { bytes: len, cause };
        Mapping::file(len, backing).map_err(failed)
    }

    /// Zeroed memory with the kernel's own word when there is none. `len` is not 0.
    pub(crate) fn file(len: usize, backing: Backing) -> std::io::Result<Mapping> {
        os::map(len, backing)
    }

    /// `len` bytes, not 0, of a descriptor that somebody else keeps.
    pub(crate) fn of(fd: BorrowedFd<'_>, offset: u64, len: usize) -> std::io::Result<Mapping> {
        os::map_of(fd, offset, len)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.fd.as_ref().map(|fd| fd.as_fd())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        os::unmap(self.start, self.len);
    }
}

#[cfg(not(miri))]
mod os {
    use super::*;
    use rustix::{fs, mm};

    pub(super) fn map(len: usize, backing: Backing) -> std::io::Result<Mapping> {
        let prot = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        let (start, fd) = match backing {
            Backing::Anonymous => {
                // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
                let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, prot, mm::MapFlags::PRIVATE) }?;
                (start, None)
            }
            Backing::Memfd => {
                let fd = fs::memfd_create(c"xway-pool", fs::MemfdFlags::CLOEXEC | fs::MemfdFlags::ALLOW_SEALING)?;
                fs::ftruncate(&fd, len as u64)?;
                // A holder of the descriptor must not be able to shrink the file: touching lost pages would be SIGBUS.
                fs::fcntl_add_seals(&fd, fs::SealFlags::SHRINK | fs::SealFlags::GROW)?;
                // SAFETY: as above, a new mapping at an address of the kernel's choice, of a file of exactly this length.
                let start = unsafe { mm::mmap(std::ptr::null_mut(), len, prot, mm::MapFlags::SHARED, &fd, 0) }?;
                (start, Some(fd))
            }
        };
        // Fewer TLB misses where the kernel can; it is a wish, not a need, so the answer does not matter.
        // SAFETY: the range is the mapping just made; the advice does not change its contents.
        let _ = unsafe { mm::madvise(start, len, mm::Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))?;
        Ok(Mapping { start, len, fd })
    }

    pub(super) fn map_of(fd: BorrowedFd<'_>, offset: u64, len: usize) -> std::io::Result<Mapping> {
        let prot = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        let flags = mm::MapFlags::SHARED | mm::MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))?;
        Ok(Mapping { start, len, fd: None })
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: exactly the range that `map` returned; the arena drops the mapping after the last frame is gone.
        let _ = unsafe { mm::munmap(start.as_ptr().cast(), len) };
    }
}

/// Miri has no mmap of memory files: the allocator stands in, with the alignment that a page has.
#[cfg(miri)]
mod os {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, 4096).expect("pool size was checked")
    }

    pub(super) fn map(len: usize, _: Backing) -> std::io::Result<Mapping> {
        // SAFETY: the length is not zero, the configuration check saw to it.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(len)) }).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len, fd: None })
    }

    pub(super) fn map_of(_: BorrowedFd<'_>, _: u64, _: usize) -> std::io::Result<Mapping> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: allocated in `map` with the same layout.
        unsafe { dealloc(start.as_ptr(), layout(len)) }
    }
}
