//! Reading a perf event array of the kernel: one ring for each CPU, whose events programs write.
//!
//! Layout: `linux/perf_event.h`. A ring is a page with positions and 2^n pages of data. The kernel moves the head, we the tail;
//! a record is a header of eight bytes (type, flags, length) and its body.
#![allow(unsafe_code)] // Memory that the kernel writes at the same time; a system call that takes an address.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use xway_abi::{Errno, MapType};

use crate::{KernelMap, possible_cpus};

/// Pages of data in each ring, a power of two.
const PAGES: usize = 64;
/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;

/// What a program wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PerfEvent {
    /// The CPU it ran on.
    pub cpu: u32,
    /// The bytes, padded to a multiple of eight less four as the kernel does it.
    pub data: Vec<u8>,
}

/// The rings of one map, of all CPUs that are online. They are in the map until this is dropped.
#[derive(Debug)]
pub struct KernelPerf {
    rings: Vec<Ring>,
    // Closing the descriptor that the rings were put in with takes them out again.
    map: OwnedFd,
}

/// What a perf event counts or samples: `type` and `config` of `struct perf_event_attr`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub kind: u32,
    pub config: u64,
    /// Every event is a sample in a ring, and so many of them wake the reader; 0: they are only counted.
    pub wakes: u32,
}

impl Source {
    /// What programs write: `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_BPF_OUTPUT`.
    const PROGRAMS: Source = Source { kind: 1, config: 10, wakes: 1 };

    /// The tracepoint with this number: `PERF_TYPE_TRACEPOINT`.
    pub const fn tracepoint(id: u32, sampled: bool) -> Source {
        Source { kind: 2, config: id as u64, wakes: sampled as u32 }
    }

    /// Opens it on one CPU. It does not run yet.
    pub fn open(self, cpu: u32) -> Result<OwnedFd, Errno> {
        const SAMPLE_RAW: u64 = 1 << 10;
        const FD_CLOEXEC: u64 = 8;
        const DISABLED: u64 = 1;
        // `struct perf_event_attr`, first version.
        let mut attr = [0u64; 8];
        attr[0] = u64::from(self.kind) | 64 << 32;
        attr[1] = self.config;
        attr[5] = DISABLED;
        if self.wakes > 0 {
            attr[2] = 1; // Every event is a sample.
            attr[3] = SAMPLE_RAW;
            attr[6] = u64::from(self.wakes);
        }
        // SAFETY: the structure is 64 bytes long, as its second field says, and lives during the call.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), -1i64, i64::from(cpu), -1i64, FD_CLOEXEC)
        };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the call has just opened it, so nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// Lets an event run: what happens from now on is counted or sampled.
pub(crate) fn enable(event: &OwnedFd) -> Result<(), Errno> {
    const ENABLE: libc::Ioctl = 0x2400;
    // SAFETY: this request takes no address.
    if unsafe { libc::ioctl(event.as_raw_fd(), ENABLE, 0) } < 0 { Err(last_errno()) } else { Ok(()) }
}

fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

#[derive(Debug)]
pub(crate) struct Ring {
    cpu: u32,
    event: OwnedFd,
    start: NonNull<u8>,
    len: usize,
    page: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; access goes through atomics or copies.
unsafe impl Send for Ring {}

impl KernelPerf {
    /// Puts a ring for each CPU into a map of type perf event array.
    ///
    /// Errors: `EINVAL` for other types, `EACCES` or `EPERM` without `CAP_PERFMON`.
    pub fn open(map: &KernelMap) -> Result<KernelPerf, Errno> {
        KernelPerf::open_waking(map, 1)
    }

    /// The same; the reader is woken once for so many events of a CPU, 1 at least. Fewer than these are found by whoever looks without
    /// being woken.
    pub fn open_waking(map: &KernelMap, events: u32) -> Result<KernelPerf, Errno> {
        if map.spec().map_type != MapType::PerfEventArray {
            return Err(Errno::EINVAL);
        }
        let kept = map.as_fd().try_clone_to_owned().map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
        let mut rings = Vec::new();
        for cpu in 0..possible_cpus().min(map.spec().max_entries) {
            match Ring::open(Source { wakes: events.max(1), ..Source::PROGRAMS }, cpu) {
                Ok(ring) => {
                    ring.enable()?;
                    map.update_fd(&cpu.to_ne_bytes(), ring.event.as_fd(), 0)?;
                    rings.push(ring);
                }
                // The CPU is possible, but not there.
                Err(Errno::ENODEV) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(KernelPerf { rings, map: kept })
    }

    /// Room of each ring, bytes.
    pub fn ring_bytes() -> usize {
        rustix::param::page_size() * PAGES
    }

    /// Waits until there is something to read. `false`: nothing came in this time.
    pub fn wait(&self, most: Duration) -> Result<bool, Errno> {
        let mut fds: Vec<PollFd<'_>> = self.rings.iter().map(Ring::readable).collect();
        wait(&mut fds, most)
    }

    /// Hands every event to `visit`, CPU by CPU, and frees it. Gives the number of events that found no room.
    pub fn drain(&mut self, visit: &mut dyn FnMut(PerfEvent)) -> u64 {
        self.rings.iter().map(|ring| ring.drain(visit)).sum()
    }
}

/// Waits for one of several descriptors.
pub(crate) fn wait(fds: &mut [PollFd<'_>], most: Duration) -> Result<bool, Errno> {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    match poll(fds, Some(&most)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(Errno(e.raw_os_error())),
    }
}

impl Ring {
    /// A ring for an event on one CPU. It does not run yet.
    pub(crate) fn open(source: Source, cpu: u32) -> Result<Ring, Errno> {
        let event = source.open(cpu)?;
        let page = rustix::param::page_size();
        let len = page * (1 + PAGES);
        // SAFETY: no address is asked for, so no other mapping can be replaced.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &event, 0) };
        let start = start.map_err(|e| Errno(e.raw_os_error()))?;
        let ring = Ring { cpu, event, start: NonNull::new(start.cast()).ok_or(Errno::ENOMEM)?, len, page };
        Ok(ring)
    }

    /// Lets it run.
    pub(crate) fn enable(&self) -> Result<(), Errno> {
        enable(&self.event)
    }

    /// Another event of the same CPU writes its samples into this ring too.
    pub(crate) fn share(&self, other: &OwnedFd) -> Result<(), Errno> {
        const SET_OUTPUT: libc::Ioctl = 0x2405;
        // SAFETY: this request takes a descriptor, which both live through.
        let done = unsafe { libc::ioctl(other.as_raw_fd(), SET_OUTPUT, self.event.as_raw_fd()) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }

    /// What is waited for.
    pub(crate) fn readable(&self) -> PollFd<'_> {
        PollFd::new(&self.event, PollFlags::IN)
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both positions lie in the first page, on multiples of eight, and are shared with the kernel through atomic
        // accesses only.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    pub(crate) fn drain(&self, visit: &mut dyn FnMut(PerfEvent)) -> u64 {
        // Acquire pairs with the kernel's barrier behind the record that it has written.
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let mut at = self.position(DATA_TAIL).load(Ordering::Relaxed);
        let mut lost = 0;
        while at + 8 <= head {
            let header = self.copy(at, 8);
            let word = |bytes: &[u8], at: usize| bytes.get(at..at + 4).and_then(|b| b.first_chunk().copied());
            let kind = word(&header, 0).map_or(0, u32::from_ne_bytes);
            let len = u64::from(u16::from_ne_bytes([header[6], header[7]]));
            if len < 8 || at + len > head {
                // Not a record: the rest cannot be told apart.
                at = head;
                break;
            }
            let body = self.copy(at + 8, len as usize - 8);
            match kind {
                RECORD_SAMPLE => {
                    let size = word(&body, 0).map_or(0, u32::from_ne_bytes) as usize;
                    let data = body.get(4..4 + size).unwrap_or_default().to_vec();
                    visit(PerfEvent { cpu: self.cpu, data });
                }
                RECORD_LOST => {
                    lost += body.get(8..16).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b));
                }
                _ => {}
            }
            at += len;
        }
        // Release: the kernel may write there once it sees the position.
        self.position(DATA_TAIL).store(at, Ordering::Release);
        lost
    }

    /// Bytes of the data from a position on; the ring's end folds to its start.
    fn copy(&self, at: u64, len: usize) -> Vec<u8> {
        let size = self.len - self.page;
        let mut out = vec![0; len.min(size)];
        let first = (at % size as u64) as usize;
        let whole = (size - first).min(out.len());
        let (front, back) = out.split_at_mut(whole);
        // SAFETY: both parts lie in the data pages of the mapping: `first + front.len() <= size`, and the rest is shorter than
        // `size`. The records there are complete (they lie below the head), and the kernel does not write them before the
        // tail, which only we move, has passed them.
        unsafe {
            let data = self.start.as_ptr().add(self.page);
            std::ptr::copy_nonoverlapping(data.add(first), front.as_mut_ptr(), front.len());
            std::ptr::copy_nonoverlapping(data, back.as_mut_ptr(), back.len());
        }
        out
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `open` mapped exactly this, and references into it borrow `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl AsFd for KernelPerf {
    /// The map.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
