//! Memory that another process may map as well.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::config::Backing;
use crate::memory::Mapping;

/// A shared mapping: a memory file of our own, or somebody else's descriptor.
///
/// It gives out no bytes. What lies in it is reached through types that expect the other side to write at any time, such as
/// [`crate::ring::RingMemory`].
pub struct SharedMemory {
    mapping: Mapping,
}

impl SharedMemory {
    /// A new memory file of `len` bytes, zeroed and sealed: nobody who gets its descriptor can shrink or grow it, so no access
    /// of ours can hit a page that is gone.
    ///
    /// # Errors
    /// A length of 0, or what the kernel says.
    pub fn create(len: usize) -> std::io::Result<SharedMemory> {
        Ok(SharedMemory { mapping: Mapping::file(nonzero(len)?, Backing::Memfd)? })
    }

    /// Maps `len` bytes of a descriptor from `offset` (a multiple of the page size): a ring of an AF_XDP socket, or a memory
    /// file that another process made. Of the latter a careful receiver asks for the seals first: whoever can shrink the file
    /// can end this process.
    ///
    /// # Errors
    /// A length of 0, or what the kernel says.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, len: usize) -> std::io::Result<SharedMemory> {
        Ok(SharedMemory { mapping: Mapping::of(fd, offset, nonzero(len)?)? })
    }

    /// Private memory of this process in the same shape, for rings between its threads.
    ///
    /// # Errors
    /// A length of 0, or what the kernel says.
    pub fn private(len: usize) -> std::io::Result<SharedMemory> {
        Ok(SharedMemory { mapping: Mapping::file(nonzero(len)?, Backing::Anonymous)? })
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Never: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it starts in this process.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Gives the memory file away; the mapping needs it no more.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.mapping.take_fd()
    }

    /// The memory file; `None` when the memory is private, was mapped from a descriptor that its owner keeps, or the file was given
    /// away.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.fd()
    }
}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMemory").field("len", &self.len()).finish_non_exhaustive()
    }
}

fn nonzero(len: usize) -> std::io::Result<usize> {
    if len == 0 { Err(std::io::ErrorKind::InvalidInput.into()) } else { Ok(len) }
}
