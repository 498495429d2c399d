//! Values that other processes map into their memory: arrays with `BPF_F_MMAPABLE`.
//!
//! Such an array lies in a memory file from its first page on: value `i` at `i * stride`, as many whole pages as that takes, and
//! nothing else. What is given to others are descriptors of that file, opened for reading or for both, so the system itself keeps them
//! to what they were given:
//!
//! * The file neither shrinks nor grows, and nobody adds a seal: no access of ours can meet a page that is gone.
//! * An array that programs only read (`BPF_F_RDONLY_PROG`) is sealed against every further writable mapping from the start. The
//!   contents of a frozen one are constants of proofs and of machine code: nobody ever had such a mapping.
//! * Who writes into other arrays does what a program on another CPU may do as well: values are numbers that may change between two
//!   reads. Values with a lock, a timer or a pointer of the kernel's are not mapped at all, as in Linux.
#![allow(unsafe_code)]
// Why unsafe: mapping files, looking into memory that others write, and fcntl(2)'s leases.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use xway_abi::{Errno, MapSpec, MapType, map_flags};

use crate::map::Kind;
use crate::storage::Block;
use crate::{AccessError, Map, Rmw, ValueRef};

/// Where the values of an array lie in the memory that is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Bytes of a value.
    pub value_size: u32,
    /// Values.
    pub entries: u32,
}

impl Shape {
    /// That of a map's values.
    pub const fn of(spec: &MapSpec) -> Shape {
        Shape { value_size: spec.value_size, entries: spec.max_entries }
    }

    /// Bytes from one value to the next.
    pub const fn stride(self) -> usize {
        (self.value_size as usize).next_multiple_of(8)
    }

    /// Bytes of all values, in whole pages: what may be mapped.
    pub fn bytes(self) -> Option<usize> {
        let values = self.stride().checked_mul(self.entries as usize)?;
        values.checked_next_multiple_of(rustix::param::page_size())
    }
}

/// The file that an array's values lie in.
pub(crate) struct File {
    fd: OwnedFd,
    /// A descriptor that writes was given away.
    given: AtomicBool,
    /// Any was.
    shown: AtomicBool,
}

impl File {
    /// Memory in a file, mapped here. `None`: there is none to be had (no descriptor is left, no such call), so the values lie in memory of
    /// this process alone.
    pub(crate) fn create(spec: &MapSpec) -> Option<(File, Block)> {
        let len = Shape::of(spec).bytes()?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = fs::memfd_create(c"xway-map", flags).ok()?;
        // A descriptor for reading is not opened again for writing by another user.
        fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).ok()?;
        fs::ftruncate(&fd, len as u64).ok()?;
        let block = Block::of_file(fd.as_fd(), len)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if spec.flags & map_flags::RDONLY_PROG != 0 {
            seals |= SealFlags::FUTURE_WRITE;
        }
        fs::fcntl_add_seals(&fd, seals).ok()?;
        Some((File { fd, given: AtomicBool::new(false), shown: AtomicBool::new(false) }, block))
    }

    /// A descriptor of its own, for others. `ENODEV` when there is none to be had.
    fn open(&self, write: bool) -> Result<OwnedFd, Errno> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let fd = fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).map_err(|_| Errno::ENODEV)?;
        if write {
            self.given.store(true, Ordering::Release);
        }
        Ok(fd)
    }

    /// Whether somebody has a descriptor or a mapping through which it can be written, this array aside. The system knows: it grants a lease
    /// for reading on a file that nobody has open for writing, and what was created open does not count.
    fn is_written_by_others(&self) -> bool {
        const SET_SIGNAL: i32 = 10; // F_SETSIG
        if !self.given.load(Ordering::Acquire) {
            return false;
        }
        let Ok(read) = self.open(false) else { return true };
        // SAFETY: the calls take numbers only. Whoever opens the file meanwhile has a signal sent to this process: one that is ignored
        // unless somebody waits for it. The lease ends with the descriptor.
        unsafe {
            libc::fcntl(read.as_raw_fd(), SET_SIGNAL, libc::SIGURG) < 0
                || libc::fcntl(read.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) < 0
        }
    }
}

impl Map {
    /// A descriptor of the memory in which the values lie: what mmap(2) on a descriptor of the map is in Linux, with its errno values. It
    /// is mapped by [`Window::of_memory`], or by anybody with mmap(2) (`MAP_SHARED`, whole or in part, as [`Shape`] says).
    ///
    /// # Errors
    /// `ENOTSUPP`: values of this type, or with special fields, are not mapped; `EINVAL`: the array was made without `BPF_F_MMAPABLE`, or
    /// its creator may only read it; `EACCES`: it may not be written (or, with `BPF_F_WRONLY`, not be read) by others; `EPERM`: it is
    /// frozen. And what Linux does not have, `ENODEV`: the memory is this process's alone ([`Env::map_memory`](crate::Env::map_memory)
    /// was off, no descriptor was left when the map was made, or there is no `/proc`).
    pub fn memory_fd(&self, write: bool) -> Result<OwnedFd, Errno> {
        let flags = self.spec().flags;
        let has = |flag| flags & flag != 0;
        if has(map_flags::WRONLY) || (write && has(map_flags::RDONLY)) {
            return Err(Errno::EACCES);
        }
        if self.map_type() != MapType::Array || !self.spec().special.is_empty() {
            return Err(Errno::ENOTSUPP);
        }
        if has(map_flags::RDONLY) {
            return Err(Errno::EINVAL);
        }
        // Against freezing meanwhile.
        let _writing = self.writers.read_recursive();
        if write && self.is_frozen() {
            return Err(Errno::EPERM);
        }
        if write && has(map_flags::RDONLY_PROG) {
            return Err(Errno::EACCES);
        }
        if !has(map_flags::MMAPABLE) {
            return Err(Errno::EINVAL);
        }
        let file = self.file().ok_or(Errno::ENODEV)?;
        let fd = file.open(write)?;
        file.shown.store(true, Ordering::Relaxed);
        Ok(fd)
    }

    /// Whether [`Map::memory_fd`] has given any: others may have the values in their memory still.
    pub fn memory_was_given(&self) -> bool {
        self.file().is_some_and(|file| file.shown.load(Ordering::Relaxed))
    }

    /// Whether the values lie in memory that can be given to others.
    pub fn has_memory_file(&self) -> bool {
        self.file().is_some()
    }

    fn file(&self) -> Option<&File> {
        if let Kind::Array(array) = &self.kind { array.file.as_ref() } else { None }
    }

    /// Whether another mapping, or a descriptor to make one, can write into the values.
    pub(crate) fn is_written_by_others(&self) -> bool {
        self.file().is_some_and(File::is_written_by_others)
    }
}

/// An array's values in the memory of this process, whoever's array it is. Accesses are atomic in aligned pieces of up to eight bytes, as
/// everywhere in maps. It stays when the array goes, and then is memory that nobody else uses.
pub struct Window {
    start: NonNull<u8>,
    len: usize,
    shape: Shape,
    writable: bool,
}

// SAFETY: an address and numbers; the memory belongs to the process and is only accessed atomically.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps what [`Map::memory_fd`] gave, here or in another process. Who sent it need not be trusted: the file must be as long as its
    /// values are, and sealed to stay so.
    ///
    /// # Errors
    /// `EINVAL`: it is no such file. Those of mmap(2): `EACCES` when it is for reading and `write` is asked for.
    pub fn of_memory(fd: BorrowedFd<'_>, shape: Shape, write: bool) -> Result<Window, Errno> {
        let len = shape.bytes().ok_or(Errno::EINVAL)?;
        let seals = fs::fcntl_get_seals(fd).map_err(|_| Errno::EINVAL)?;
        let size = fs::fstat(fd).map_err(|_| Errno::EINVAL)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(size).is_ok_and(|size| size < len as u64) {
            return Err(Errno::EINVAL);
        }
        Window::of_kernel(fd, shape, write)
    }

    /// Maps a descriptor of an array of the kernel's, which answers for itself.
    ///
    /// # Errors
    /// Those of mmap(2) on it: see [`Map::memory_fd`].
    pub fn of_kernel(fd: BorrowedFd<'_>, shape: Shape, write: bool) -> Result<Window, Errno> {
        let len = shape.bytes().filter(|len| *len > 0).ok_or(Errno::EINVAL)?;
        let start = map(fd, len, write)?;
        Ok(Window { start, len, shape, writable: write })
    }

    /// Where values lie.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether it was mapped for writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The first byte, for who goes by [`Shape`]. Using it needs `unsafe`, and the promise of everybody's: atomic accesses, and none that
    /// writes where [`Window::is_writable`] says no.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies a value out. `ENOENT` behind the last one, `EFAULT` when `out` is too short.
    pub fn lookup(&self, index: u32, out: &mut [u8]) -> Result<(), Errno> {
        let value = self.value(index).ok_or(Errno::ENOENT)?;
        value.read_bytes(0, out.get_mut(..value.len()).ok_or(Errno::EFAULT)?).map_err(invalid)
    }

    /// Overwrites a value. `E2BIG` behind the last one, `EFAULT` when `bytes` are too few, `EACCES` when it was mapped for reading.
    pub fn update(&self, index: u32, bytes: &[u8]) -> Result<(), Errno> {
        self.may_write()?;
        let value = self.value(index).ok_or(Errno::E2BIG)?;
        value.write_bytes(0, bytes.get(..value.len()).ok_or(Errno::EFAULT)?).map_err(invalid)
    }

    /// Loads `size` (1, 2, 4 or 8) bytes of a value as a number. `ENOENT` behind the last value, `EINVAL` where it does not lie in one.
    pub fn load(&self, index: u32, offset: usize, size: usize) -> Result<u64, Errno> {
        self.value(index).ok_or(Errno::ENOENT)?.load(offset, size).map_err(invalid)
    }

    /// Stores them.
    pub fn store(&self, index: u32, offset: usize, size: usize, number: u64) -> Result<(), Errno> {
        self.may_write()?;
        self.value(index).ok_or(Errno::ENOENT)?.store(offset, size, number).map_err(invalid)
    }

    /// Adds to 4 or 8 naturally aligned bytes, atomically against programs and everybody; gives what was there.
    pub fn fetch_add(&self, index: u32, offset: usize, size: usize, number: u64) -> Result<u64, Errno> {
        self.may_write()?;
        self.value(index).ok_or(Errno::ENOENT)?.rmw(offset, size, Rmw::Add, number).map_err(invalid)
    }

    fn may_write(&self) -> Result<(), Errno> {
        if self.writable { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn value(&self, index: u32) -> Option<ValueRef<'_>> {
        let offset = (index < self.shape.entries).then(|| index as usize * self.shape.stride())?;
        // SAFETY: the mapping has room for every value below `entries` (`Shape::bytes`), lives as long as it is borrowed, cannot lose
        // pages, is zeroed where nobody wrote, and is accessed atomically only; writing calls ask `may_write` first.
        Some(unsafe { ValueRef::borrowed(self.start.add(offset), self.shape.value_size) })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped in `of_kernel` with this length, and nothing that was borrowed from it is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("shape", &self.shape).field("writable", &self.writable).finish_non_exhaustive()
    }
}

fn invalid(_: AccessError) -> Errno {
    Errno::EINVAL
}

/// A shared mapping of the file's first `len` bytes.
pub(crate) fn map(fd: BorrowedFd<'_>, len: usize, write: bool) -> Result<NonNull<u8>, Errno> {
    let access = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let raw = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) };
    let raw = raw.map_err(|e| Errno(e.raw_os_error()))?;
    NonNull::new(raw.cast()).ok_or(Errno::ENOMEM)
}
