//! The mapping that a pool cuts into chunks.
#![allow(unsafe_code)] // mmap and munmap

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use xway_numa::{Nodes, Placement};

use crate::config::{Backing, MemoryReport, Pages, PoolError};

/// Zeroed memory of a fixed size, unmapped at drop. It hands out only its address: who may touch which byte is decided in
/// `arena.rs`.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    fd: Option<OwnedFd>,
    requested: Pages,
    /// What the kernel said when it was asked for pages of its reserve.
    refused: Option<std::io::Error>,
    /// The NUMA node that was asked for, and the one that the kernel agreed to.
    node: (Option<u32>, Option<u32>),
}

/// Size of a page of the reserve.
const HUGE: usize = 2 << 20;

// SAFETY: the value is an address, a length and a file descriptor; the memory behind it belongs to the process, not to a
// thread. Access to the bytes is arbitrated by the arena.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives out plain values only.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(len: usize, backing: Backing, pages: Pages, node: Option<u32>) -> Result<Mapping, PoolError> {
        let failed = |cause: std::io::Error| PoolError::Memory { bytes: len, cause };
        let mut refused = None;
        if pages == Pages::Huge && len >= HUGE {
            match os::map_huge(len.next_multiple_of(HUGE), backing) {
                Ok(mapping) => return Ok(mapping.on_node(node)),
                Err(error) => refused = Some(error),
            }
        }
        let mut mapping = Mapping::file(len, backing).map_err(failed)?;
        if pages != Pages::Base {
            mapping.join_pages();
        }
        (mapping.requested, mapping.refused) = (pages, refused);
        Ok(mapping.on_node(node))
    }

    /// Before the first page is touched.
    fn on_node(mut self, asked: Option<u32>) -> Mapping {
        self.node = (asked, asked.filter(|node| os::prefer_node(self.start, self.len, *node)));
        self
    }

    /// What was asked for, what was got, and why.
    pub(crate) fn report(&self) -> MemoryReport {
        let memfd = self.fd.is_some();
        let placement = Placement::new(self.node.0, self.node.1, Nodes::online());
        let report = |effective, reason| MemoryReport {
            bytes: self.len,
            memfd,
            requested: self.requested,
            effective,
            reason,
            placement,
        };
        let huge = match (self.requested, &self.refused) {
            (Pages::Base, _) => return report(Pages::Base, None),
            (Pages::Joined, _) => None,
            (Pages::Huge, None) if self.len >= HUGE => return report(Pages::Huge, None),
            (Pages::Huge, None) => Some(format!("{} bytes are less than one page of 2 MiB", self.len)),
            (Pages::Huge, Some(error)) => Some(format!(
                "the reserve of 2 MiB pages does not suffice ({error}); try: sysctl vm.nr_hugepages={}",
                self.len.div_ceil(HUGE)
            )),
        };
        match os::why_not_joined(memfd) {
            None => report(Pages::Joined, huge),
            Some(why) => report(Pages::Base, Some(huge.map_or(why.clone(), |huge| format!("{huge}; {why}")))),
        }
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

    pub(crate) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }
}

impl Mapping {
    /// Asks for joined pages. It is a wish, not a need: the answer shows in the report.
    fn join_pages(&self) {
        os::join_pages(self.start, self.len);
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

    /// A holder of the descriptor must not be able to shrink the file: touching lost pages would be SIGBUS. Nor may it add a seal of
    /// its own: behind one against writing (`F_SEAL_FUTURE_WRITE`) nobody else could map the memory.
    const SEALS: fs::SealFlags = fs::SealFlags::SHRINK.union(fs::SealFlags::GROW).union(fs::SealFlags::SEAL);

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
                fs::fcntl_add_seals(&fd, SEALS)?;
                // SAFETY: as above, a new mapping at an address of the kernel's choice, of a file of exactly this length.
                let start = unsafe { mm::mmap(std::ptr::null_mut(), len, prot, mm::MapFlags::SHARED, &fd, 0) }?;
                (start, Some(fd))
            }
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))?;
        Ok(Mapping { start, len, fd, requested: Pages::Base, refused: None, node: (None, None) })
    }

    /// Memory of the machine's reserve. It is set aside when it is mapped, so no later access can find it missing.
    pub(super) fn map_huge(len: usize, backing: Backing) -> std::io::Result<Mapping> {
        let prot = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        let (start, fd) = match backing {
            Backing::Anonymous => {
                let flags = mm::MapFlags::PRIVATE | mm::MapFlags::HUGETLB | mm::MapFlags::HUGE_2MB;
                // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
                (unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?, None)
            }
            Backing::Memfd => {
                let flags = fs::MemfdFlags::CLOEXEC
                    | fs::MemfdFlags::ALLOW_SEALING
                    | fs::MemfdFlags::HUGETLB
                    | fs::MemfdFlags::HUGE_2MB;
                let fd = fs::memfd_create(c"xway-pool", flags)?;
                fs::ftruncate(&fd, len as u64)?;
                fs::fcntl_add_seals(&fd, SEALS)?;
                // SAFETY: as above, a new mapping of a file of exactly this length.
                (unsafe { mm::mmap(std::ptr::null_mut(), len, prot, mm::MapFlags::SHARED, &fd, 0) }?, Some(fd))
            }
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))?;
        Ok(Mapping { start, len, fd, requested: Pages::Huge, refused: None, node: (None, None) })
    }

    pub(super) fn join_pages(start: NonNull<u8>, len: usize) {
        // SAFETY: the range is a mapping of ours; the advice does not change its contents.
        let _ = unsafe { mm::madvise(start.as_ptr().cast(), len, mm::Advice::LinuxHugepage) };
    }

    pub(super) fn prefer_node(start: NonNull<u8>, len: usize, node: u32) -> bool {
        xway_numa::prefer(start, len, node).is_ok()
    }

    /// Why the kernel will not join pages, if so.
    pub(super) fn why_not_joined(memfd: bool) -> Option<String> {
        let switch = if memfd { "shmem_enabled" } else { "enabled" };
        let path = format!("/sys/kernel/mm/transparent_hugepage/{switch}");
        match std::fs::read_to_string(&path) {
            Err(_) => Some("this kernel joins no pages".to_owned()),
            Ok(text) if ["[never]", "[deny]"].iter().any(|off| text.contains(off)) => {
                let on = if memfd { "advise" } else { "madvise" };
                Some(format!("joined pages are switched off; try: echo {on} > {path}"))
            }
            Ok(_) => None,
        }
    }

    pub(super) fn map_of(fd: BorrowedFd<'_>, offset: u64, len: usize) -> std::io::Result<Mapping> {
        let prot = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        let flags = mm::MapFlags::SHARED | mm::MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))?;
        Ok(Mapping { start, len, fd: None, requested: Pages::Base, refused: None, node: (None, None) })
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
        Ok(Mapping { start, len, fd: None, requested: Pages::Base, refused: None, node: (None, None) })
    }

    pub(super) fn map_huge(_: usize, _: Backing) -> std::io::Result<Mapping> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub(super) fn join_pages(_: NonNull<u8>, _: usize) {}

    pub(super) fn prefer_node(_: NonNull<u8>, _: usize, _: u32) -> bool {
        false
    }

    pub(super) fn why_not_joined(_: bool) -> Option<String> {
        Some("Miri joins no pages".to_owned())
    }

    pub(super) fn map_of(_: BorrowedFd<'_>, _: u64, _: usize) -> std::io::Result<Mapping> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: allocated in `map` with the same layout.
        unsafe { dealloc(start.as_ptr(), layout(len)) }
    }
}
