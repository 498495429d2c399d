//! RINGBUF and USER_RINGBUF: records of any length, in order, through one ring.
//!
//! ```text
//!            consumer position            pending                 producer position
//!                  ▼                         ▼                          ▼
//! ┄┄ free ┄┄┄┄┄┄┄┄ [len|flags][record][len|DISCARD][…][len|BUSY][ … ] ┄┄ free ┄┄
//! ```
//!
//! A record is reserved (header with the BUSY bit), filled in place, then submitted or discarded; the consumer stops at the
//! first busy one. Lengths are rounded up to 8 and stand behind an 8-byte header, as in Linux; so a ring of N bytes
//! holds exactly as many records as the kernel's. A record that reaches over the end of the ring lies in one piece all the
//! same: the memory is twice as long as the ring, and where the ring folds, records run on into the second half instead of
//! wrapping. Of all but small rings the second half is the first once more, as in Linux.
//!
//! Any number of producers; one consumer at a time. Reserving takes the ring's lock for a few instructions, submitting
//! takes none.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use xway_abi::{Errno, MapSpec};

use crate::ops::Ops;
use crate::signal::Signal;
use crate::storage::Block;
use crate::{Guard, ValueRef};

/// A ring; [`Map::ringbuf`](crate::Map::ringbuf) gives it. In a RINGBUF programs produce and user space consumes; in a
/// USER_RINGBUF it is the other way round.
pub struct RingBuf {
    size: u64,
    data: Block,
    /// Where the consumer reads next.
    consumer: AtomicU64,
    /// Where the next record goes.
    producer: AtomicU64,
    /// Held to reserve; the position before which no record is busy.
    reserve: Mutex<u64>,
    /// Held to consume.
    consuming: AtomicBool,
    signal: Signal,
}

/// Flags of submit, discard and output.
pub mod ringbuf_flags {
    /// Do not wake the consumer.
    pub const NO_WAKEUP: u64 = 1;
    /// Wake the consumer even if it has not caught up.
    pub const FORCE_WAKEUP: u64 = 2;
}

/// What [`RingBuf::query`] can be asked.
pub mod ringbuf_query {
    /// Bytes that wait for the consumer.
    pub const AVAIL_DATA: u64 = 0;
    /// Size of the ring.
    pub const RING_SIZE: u64 = 1;
    /// Position of the consumer.
    pub const CONS_POS: u64 = 2;
    /// Position of the producers.
    pub const PROD_POS: u64 = 3;
}

const HEADER: u64 = 8;
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
/// Longest record.
const RECORD_MAX: u64 = (u32::MAX / 4) as u64;
/// Records that one drain hands to a program at most.
const DRAIN_MAX: u64 = 128 << 10;

impl RingBuf {
    pub(crate) fn new(spec: &MapSpec) -> Result<RingBuf, Errno> {
        let size = u64::from(spec.max_entries);
        let bytes = usize::try_from(size).map_err(|_| Errno::ENOMEM)?;
        Ok(RingBuf {
            size,
            data: Block::mirrored(bytes)?,
            consumer: AtomicU64::new(0),
            producer: AtomicU64::new(0),
            reserve: Mutex::new(0),
            consuming: AtomicBool::new(false),
            signal: Signal::default(),
        })
    }

    /// `bpf_ringbuf_reserve`: room for a record of `size` bytes. Errors: `EINVAL` flags that are not 0; `E2BIG` longer than
    /// the ring or 1 GiB; `EAGAIN` no room now. (The helper gives null for all of them.)
    #[inline(always)]
    pub fn reserve(&self, size: u64, flags: u64) -> Result<RingRecord<'_>, Errno> {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let position = self.take(size)?;
        // No longer than `RECORD_MAX`.
        Ok(RingRecord { ring: self, position, len: size as u32, open: true })
    }

    /// The position of a new record.
    #[inline]
    fn take(&self, size: u64) -> Result<u64, Errno> {
        if size > RECORD_MAX {
            return Err(Errno::E2BIG);
        }
        let len = (size + HEADER).next_multiple_of(8);
        if len > self.size {
            return Err(Errno::E2BIG);
        }
        let mut pending = self.reserve.lock();
        let consumer = self.consumer.load(Ordering::Acquire);
        let position = self.producer.load(Ordering::Relaxed);
        *pending = self.first_busy(*pending, position);
        let end = position + len;
        if end - consumer >= self.size || end - *pending >= self.size {
            return Err(Errno::EAGAIN);
        }
        self.header(position).store(size as u32 | BUSY, Ordering::Relaxed);
        self.producer.store(end, Ordering::Release);
        Ok(position)
    }

    /// Where the bytes of the record at a position lie.
    #[inline]
    fn start(&self, position: u64) -> usize {
        (position & (self.size - 1)) as usize + HEADER as usize
    }

    /// `bpf_ringbuf_output`: copies a record in and submits it. `EINVAL` unknown flags, `EAGAIN` no room or too long.
    pub fn output(&self, data: &[u8], flags: u64) -> Result<(), Errno> {
        if flags & !(ringbuf_flags::NO_WAKEUP | ringbuf_flags::FORCE_WAKEUP) != 0 {
            return Err(Errno::EINVAL);
        }
        let position = self.take(data.len() as u64).map_err(|_| Errno::EAGAIN)?;
        // Nobody else is given it, so no guard is needed.
        let _ = self.data.place(self.start(position), data.len()).write_bytes(0, data);
        self.finish(position, false, flags);
        Ok(())
    }

    /// `bpf_ringbuf_query`; 0 for what it does not know.
    pub fn query(&self, what: u64) -> u64 {
        let consumer = self.consumer.load(Ordering::Acquire);
        let producer = self.producer.load(Ordering::Acquire);
        match what {
            ringbuf_query::AVAIL_DATA => producer.saturating_sub(consumer),
            ringbuf_query::RING_SIZE => self.size,
            ringbuf_query::CONS_POS => consumer,
            ringbuf_query::PROD_POS => producer,
            _ => 0,
        }
    }

    /// Reads up to `max` records, in order; returns how many. Stops at a record that is still being filled. `EBUSY` when
    /// another thread is reading.
    pub fn consume(&self, max: usize, visit: &mut dyn FnMut(&[u8])) -> Result<usize, Errno> {
        let mut bytes = Vec::new();
        let mut count = 0;
        self.drain_up_to(max as u64, &mut |value| {
            bytes.resize(value.len(), 0);
            let _ = value.read_bytes(0, &mut bytes);
            visit(&bytes);
            count += 1;
            true
        })?;
        Ok(count)
    }

    /// `bpf_user_ringbuf_drain`: hands records to a program until `visit` returns `false`, at most 131072; returns how many.
    /// `EBUSY` when another CPU is draining.
    pub fn drain(&self, visit: &mut dyn FnMut(ValueRef<'_>) -> bool) -> Result<u64, Errno> {
        self.drain_up_to(DRAIN_MAX, visit)
    }

    /// Sleeps until there is a record that can be read, or the time is over. `true`: there is one.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.signal.wait(timeout, || {
            let position = self.consumer.load(Ordering::Acquire);
            position < self.producer.load(Ordering::Acquire)
                && self.header(position).load(Ordering::Acquire) & BUSY == 0
        })
    }

    fn drain_up_to(&self, max: u64, visit: &mut dyn FnMut(ValueRef<'_>) -> bool) -> Result<u64, Errno> {
        if self.consuming.swap(true, Ordering::Acquire) {
            return Err(Errno::EBUSY);
        }
        let _release = Release(&self.consuming);
        let guard = Guard::pin();
        let mut count = 0;
        let mut position = self.consumer.load(Ordering::Relaxed);
        while count < max && position < self.producer.load(Ordering::Acquire) {
            let header = self.header(position).load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let len = u64::from(header & !DISCARD);
            let mut go_on = true;
            if header & DISCARD == 0 {
                go_on = visit(self.data.value(self.start(position), len as usize, &guard));
                count += 1;
            }
            position += (len + HEADER).next_multiple_of(8);
            self.consumer.store(position, Ordering::Release);
            if !go_on {
                break;
            }
        }
        Ok(count)
    }

    /// The first position from `from` on whose record is still being filled.
    fn first_busy(&self, mut from: u64, producer: u64) -> u64 {
        while from < producer {
            let header = self.header(from).load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            from += (u64::from(header & !DISCARD) + HEADER).next_multiple_of(8);
        }
        from
    }

    fn header(&self, position: u64) -> &AtomicU32 {
        &self.data.halves()[(position & (self.size - 1)) as usize / 4]
    }

    #[inline]
    fn finish(&self, position: u64, discard: bool, flags: u64) {
        let header = self.header(position);
        let len = header.load(Ordering::Relaxed) & !BUSY;
        header.swap(if discard { len | DISCARD } else { len }, Ordering::AcqRel);
        let waits_here = self.consumer.load(Ordering::SeqCst) == position;
        if flags & ringbuf_flags::FORCE_WAKEUP != 0 || (waits_here && flags & ringbuf_flags::NO_WAKEUP == 0) {
            self.signal.notify();
        }
    }
}

/// A reserved record. Dropped without a word, it is discarded: a program that faults does not stop the ring.
pub struct RingRecord<'a> {
    ring: &'a RingBuf,
    position: u64,
    len: u32,
    open: bool,
}

impl<'a> RingRecord<'a> {
    /// The record's bytes. Its content is whatever lay there before.
    #[inline(always)]
    pub fn value(&self) -> ValueRef<'a> {
        self.ring.data.place(self.ring.start(self.position), self.len as usize)
    }

    /// `bpf_ringbuf_submit`.
    #[inline(always)]
    pub fn submit(mut self, flags: u64) {
        self.open = false;
        self.ring.finish(self.position, false, flags);
    }

    /// `bpf_ringbuf_discard`.
    #[inline(always)]
    pub fn discard(mut self, flags: u64) {
        self.open = false;
        self.ring.finish(self.position, true, flags);
    }

    /// The record while somebody else knows that it is open.
    #[inline(always)]
    pub fn hold(self) -> HeldRecord<'a> {
        let held = HeldRecord { ring: self.ring, position: self.position, len: self.len };
        std::mem::forget(self);
        held
    }
}

/// A reserved record in plain numbers: what forgets it stops the ring for good. A list of these is written and read number by number; one of
/// [`RingRecord`]s, which have something to do when they go, is moved in wider pieces than it was written in, for which a
/// processor waits: 12 ns for each record.
#[must_use = "a record that is neither submitted nor discarded stops the ring"]
pub struct HeldRecord<'a> {
    ring: &'a RingBuf,
    position: u64,
    len: u32,
}

impl std::fmt::Debug for HeldRecord<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeldRecord(at {}, {} bytes)", self.position, self.len)
    }
}

impl<'a> HeldRecord<'a> {
    /// The record as it was.
    #[inline(always)]
    pub fn release(self) -> RingRecord<'a> {
        RingRecord { ring: self.ring, position: self.position, len: self.len, open: true }
    }
}

impl Drop for RingRecord<'_> {
    fn drop(&mut self) {
        if self.open {
            self.ring.finish(self.position, true, 0);
        }
    }
}

impl std::fmt::Debug for RingRecord<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingRecord(at {}, {} bytes)", self.position, self.len)
    }
}

/// Ends the consumer's turn, also when its callback panics.
struct Release<'a>(&'a AtomicBool);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Ops for RingBuf {
    fn blocks(&self) -> Vec<&Block> {
        vec![&self.data]
    }

    fn memory(&self) -> usize {
        size_of::<RingBuf>() + self.data.memory()
    }

    fn lookup(&self, _: &[u8], _: &mut [u8], _: bool) -> Result<(), Errno> {
        Err(Errno::ENOTSUPP)
    }

    fn update(&self, _: &[u8], _: &[u8], _: u64) -> Result<(), Errno> {
        Err(Errno::ENOTSUPP)
    }

    fn delete(&self, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::ENOTSUPP)
    }

    fn next_key(&self, _: Option<&[u8]>, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::ENOTSUPP)
    }
}
