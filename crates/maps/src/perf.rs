//! PERF_EVENT_ARRAY: bounded buffers, one for each CPU as a rule, that programs write events into.
//!
//! In Linux user space opens a perf event for each CPU and puts its descriptor into the map. Here a reader is opened on the
//! map itself ([`PerfArray::open`]) and puts its buffer there. The rest is as in Linux: an index without a buffer gives
//! `ENOENT`, a buffer of another CPU `EOPNOTSUPP`, a full one `ENOSPC` and a count of what was lost, which the reader is told
//! of before the next event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec};

use crate::Guard;
use crate::ops::{Ops, index_of, next_index};
use crate::signal::Signal;
use crate::slots::Slots;
use crate::storage::Block;

/// The program side of a perf event array, and where readers are opened; [`Map::perf`](crate::Map::perf) gives it.
pub struct PerfArray {
    slots: Slots<Arc<Buffer>>,
    signal: Arc<Signal>,
}

/// In the flags of an output: the lower half is the index.
pub const PERF_INDEX_MASK: u64 = 0xffff_ffff;
/// As index: the buffer of the CPU that the program runs on.
pub const PERF_CURRENT_CPU: u64 = PERF_INDEX_MASK;

/// What one event costs in the buffer besides its bytes: record header and length, as perf's records have them.
const RECORD: usize = 12;
/// Longest record: its length is a 16-bit number.
const RECORD_MAX: usize = u16::MAX as usize;

struct Buffer {
    cpu: Option<u32>,
    closed: AtomicBool,
    signal: Arc<Signal>,
    ring: Mutex<Ring>,
}

/// Events as they wait: length, then bytes, round the end.
struct Ring {
    bytes: Box<[u8]>,
    start: usize,
    used: usize,
    lost: u64,
}

/// What a reader gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PerfRecord<'a> {
    /// An event's bytes.
    Sample(&'a [u8]),
    /// This many events found no room since the last record.
    Lost(u64),
}

impl PerfArray {
    pub(crate) fn new(spec: &MapSpec) -> Result<PerfArray, Errno> {
        let slots = Slots::new(spec.max_entries)?;
        Ok(PerfArray { slots, signal: Arc::default() })
    }

    /// Opens a reader at `index` with a buffer of `bytes`, for events of `cpu` or of all. It stays in the map until it is
    /// dropped, deleted or replaced. `E2BIG`: index too high; `EINVAL`: no room for even one record; `ENOMEM`.
    pub fn open(&self, index: u32, cpu: Option<u32>, bytes: usize) -> Result<PerfReader, Errno> {
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        if bytes < RECORD {
            return Err(Errno::EINVAL);
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).map_err(|_| Errno::ENOMEM)?;
        memory.resize(bytes, 0);
        let ring = Mutex::new(Ring { bytes: memory.into(), start: 0, used: 0, lost: 0 });
        let buffer = Arc::new(Buffer { cpu, closed: AtomicBool::new(false), signal: self.signal.clone(), ring });
        self.slots.set(index as usize, Some(buffer.clone()));
        Ok(PerfReader { buffer })
    }

    /// Opens one reader for each CPU, at the index of its number: what a loader does that wants all events.
    pub fn open_all(&self, cpus: u32, bytes: usize) -> Result<Vec<PerfReader>, Errno> {
        (0..cpus.min(self.slots.len())).map(|cpu| self.open(cpu, Some(cpu), bytes)).collect()
    }

    /// `bpf_perf_event_output` from a program on `cpu`: one event made of the parts one after the other. `flags` holds the
    /// index in its lower half ([`PERF_CURRENT_CPU`] for the own); other bits are `EINVAL`.
    pub fn output(&self, cpu: u32, flags: u64, parts: &[&[u8]], guard: &Guard) -> Result<(), Errno> {
        if flags & !PERF_INDEX_MASK != 0 {
            return Err(Errno::EINVAL);
        }
        let index = if flags == PERF_CURRENT_CPU { cpu } else { flags as u32 };
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        let buffer = self.slots.get(index as usize, guard).ok_or(Errno::ENOENT)?;
        if buffer.closed.load(Ordering::Acquire) {
            return Err(Errno::ENOENT);
        }
        if buffer.cpu.is_some_and(|only| only != cpu) {
            return Err(Errno::EOPNOTSUPP);
        }
        buffer.put(parts)
    }

    /// Sleeps until one of the readers may have something, or the time is over.
    pub fn wait(&self, readers: &[PerfReader], timeout: Duration) -> bool {
        self.signal.wait(timeout, || readers.iter().any(|reader| !reader.is_empty()))
    }
}

impl Buffer {
    fn put(&self, parts: &[&[u8]]) -> Result<(), Errno> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let cost = (len + RECORD).next_multiple_of(8);
        if cost > RECORD_MAX {
            return Err(Errno::E2BIG);
        }
        let mut ring = self.ring.lock();
        if ring.used + cost > ring.bytes.len() {
            ring.lost += 1;
            return Err(Errno::ENOSPC);
        }
        // Lost events are told of in a record of their own, which here is a length with the top bit.
        let lost = std::mem::take(&mut ring.lost);
        if lost > 0 {
            if ring.used + cost + LOST_COST > ring.bytes.len() {
                ring.lost = lost + 1;
                return Err(Errno::ENOSPC);
            }
            ring.append(&LOST_MARK.to_ne_bytes());
            ring.append(&lost.to_ne_bytes());
        }
        ring.append(&(len as u32).to_ne_bytes());
        parts.iter().for_each(|part| ring.append(part));
        ring.skip(cost - 4 - len);
        drop(ring);
        self.signal.notify();
        Ok(())
    }
}

const LOST_MARK: u32 = u32::MAX;
const LOST_COST: usize = 12;

impl Ring {
    fn append(&mut self, bytes: &[u8]) {
        let size = self.bytes.len();
        let at = (self.start + self.used) % size;
        let first = bytes.len().min(size - at);
        self.bytes[at..at + first].copy_from_slice(&bytes[..first]);
        self.bytes[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        self.used += bytes.len();
    }

    /// Space that a record takes without using it.
    fn skip(&mut self, bytes: usize) {
        self.used += bytes;
    }

    fn take(&mut self, out: &mut [u8]) {
        let size = self.bytes.len();
        let first = out.len().min(size - self.start);
        let (head, rest) = out.split_at_mut(first);
        head.copy_from_slice(&self.bytes[self.start..self.start + first]);
        rest.copy_from_slice(&self.bytes[..rest.len()]);
        self.drop_front(out.len());
    }

    fn drop_front(&mut self, bytes: usize) {
        self.start = (self.start + bytes) % self.bytes.len();
        self.used -= bytes;
    }
}

/// Reads one buffer of a perf event array. When it is dropped, the map's index is empty for programs.
pub struct PerfReader {
    buffer: Arc<Buffer>,
}

impl PerfReader {
    /// The CPU whose events come here; `None`: all CPUs'.
    pub fn cpu(&self) -> Option<u32> {
        self.buffer.cpu
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        let ring = self.buffer.ring.lock();
        ring.used == 0 && ring.lost == 0
    }

    /// Reads up to `max` records, in order; returns how many.
    pub fn read(&mut self, max: usize, visit: &mut dyn FnMut(PerfRecord<'_>)) -> usize {
        let mut bytes = Vec::new();
        for count in 0..max {
            // One record under the lock, its visit outside: programs do not wait for the visitor.
            let mut ring = self.buffer.ring.lock();
            if ring.used == 0 {
                let lost = std::mem::take(&mut ring.lost);
                drop(ring);
                if lost == 0 {
                    return count;
                }
                visit(PerfRecord::Lost(lost));
                continue;
            }
            let mut word = [0; 4];
            ring.take(&mut word);
            let len = u32::from_ne_bytes(word);
            if len == LOST_MARK {
                let mut lost = [0; 8];
                ring.take(&mut lost);
                drop(ring);
                visit(PerfRecord::Lost(u64::from_ne_bytes(lost)));
                continue;
            }
            let len = len as usize;
            bytes.resize(len, 0);
            ring.take(&mut bytes);
            ring.drop_front((len + RECORD).next_multiple_of(8) - 4 - len);
            drop(ring);
            visit(PerfRecord::Sample(&bytes));
        }
        max
    }
}

impl Drop for PerfReader {
    fn drop(&mut self) {
        self.buffer.closed.store(true, Ordering::Release);
    }
}

impl Ops for PerfArray {
    fn blocks(&self) -> Vec<&Block> {
        vec![self.slots.block()]
    }

    /// Readers bring their buffers.
    fn memory(&self) -> usize {
        self.slots.memory() + size_of::<Signal>() + 2 * size_of::<usize>()
    }

    fn lookup(&self, _: &[u8], _: &mut [u8], _: bool) -> Result<(), Errno> {
        Err(Errno::ENOTSUPP)
    }

    /// There are no perf events in this process: readers come through [`PerfArray::open`].
    fn update(&self, key: &[u8], _: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != f::ANY {
            return Err(Errno::EINVAL);
        }
        if index_of(key) >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        Err(Errno::EBADF)
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        if self.slots.set(index as usize, None) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.slots.len(), out)
    }
}
