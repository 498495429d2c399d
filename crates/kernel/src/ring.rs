//! Reading a ring buffer of the kernel.
//!
//! The kernel offers three mappings of one map (`kernel/bpf/ringbuf.c`): a page with the consumer's position, which we
//! write; a page with the producer's position; and the data, mapped twice in a row so that a record that wraps around the
//! end can be read in one piece. A record is a header of eight bytes (length with two flags, page offset) and its data,
//! rounded up to eight.
#![allow(unsafe_code)] // Memory that the kernel writes at the same time.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use xway_abi::{Errno, MapType};

use crate::KernelMap;

/// Flags in a record's length.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: u64 = 8;

/// A mapped ring buffer. One consumer at a time: the position is the map's, not the reader's.
#[derive(Debug)]
pub struct KernelRing {
    consumer: Mapping,
    producer: Mapping,
    /// Length of the data, a power of two.
    len: u64,
    page: usize,
}

impl KernelRing {
    /// Maps the buffer of a map of type ringbuf; `EINVAL` for other types.
    pub fn open(map: &KernelMap) -> Result<KernelRing, Errno> {
        if map.spec().map_type != MapType::Ringbuf {
            return Err(Errno::EINVAL);
        }
        let page = rustix::param::page_size();
        let len = map.spec().max_entries as usize;
        let consumer = Mapping::new(map, page, ProtFlags::READ | ProtFlags::WRITE, 0)?;
        let producer = Mapping::new(map, page + 2 * len, ProtFlags::READ, page as u64)?;
        Ok(KernelRing { consumer, producer, len: len as u64, page })
    }

    /// Waits until there is something to read in `map`, which this is the buffer of. `false`: nothing came in this time.
    pub fn wait(map: &KernelMap, most: std::time::Duration) -> Result<bool, Errno> {
        crate::perf::wait(&mut [rustix::event::PollFd::new(map, rustix::event::PollFlags::IN)], most)
    }

    /// Hands every submitted record to `visit`, in order, and frees it. Ends at the first record that is still being
    /// written. Gives the number of records.
    pub fn drain(&mut self, visit: &mut dyn FnMut(&[u8])) -> usize {
        let position = self.consumer.u64_at(0);
        // Acquire pairs with the kernel's release of the position behind a record that is written.
        let end = self.producer.u64_at(0).load(Ordering::Acquire);
        let mut at = position.load(Ordering::Relaxed);
        let mut count = 0;
        while at < end {
            let offset = self.page + (at & (self.len - 1)) as usize;
            let header = self.producer.u32_at(offset).load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let len = header & !DISCARDED;
            if header & DISCARDED == 0 {
                visit(&self.producer.copy(offset + HEADER as usize, len as usize));
                count += 1;
            }
            at += (HEADER + u64::from(len)).next_multiple_of(8);
            position.store(at, Ordering::Release);
        }
        count
    }
}

/// A shared mapping of a map, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; access goes through atomics or copies.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(map: &KernelMap, len: usize, prot: ProtFlags, offset: u64) -> Result<Mapping, Errno> {
        // SAFETY: no address is asked for, so no other mapping can be replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, map, offset) };
        let start = start.map_err(|e| Errno(e.raw_os_error()))?;
        Ok(Mapping { start: NonNull::new(start.cast()).ok_or(Errno::ENOMEM)?, len })
    }

    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: inside the mapping (checked), aligned (checked; mappings start at a page), and shared with the kernel
        // through atomic accesses only.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    fn u32_at(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: as in `u64_at`; a read-only mapping is only loaded from.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    fn copy(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let mut out = vec![0; len];
        // SAFETY: inside the mapping (checked). The record is submitted, so the kernel does not write it until the
        // consumer's position, which only the caller moves, has passed it.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), out.as_mut_ptr(), len) };
        out
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this, and references into it borrow `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
