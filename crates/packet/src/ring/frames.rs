//! Frames from worker to worker: a ring of owned frames with many senders and one receiver.
#![allow(unsafe_code)] // a frame lies in the ring as a pointer
//!
//! The invariant of this file: **each pointer in the ring comes from one frame that was given up to it, and is read once.** The
//! ring keeps it: a slot is read by the one consumer or, when all ends are gone, by the drop of what they shared, and never
//! again before it was written anew.
//!
//! ```
//! use xway_packet::{Burst, Pool, PoolConfig, ring::frames};
//!
//! let mut pool = Pool::new(PoolConfig::new(64))?;
//! let (mut sender, mut receiver) = frames::ring(64)?;
//! let mut burst = Burst::new();
//! pool.alloc_burst(&mut burst, 64);
//! assert_eq!(sender.send(&mut burst), 64);
//! let mut received = Burst::new();
//! assert_eq!(receiver.receive(&mut received, 64), 64);
//! pool.release_burst(&mut received);
//! pool.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ptr::NonNull;

use crate::Frame;
use crate::arena::{Desc, Handle};
use crate::burst::Burst;
use crate::ring::entry::Sealed;
use crate::ring::{Entry, RingError, mpsc};
use crate::sync::{Alone, Arc, AtomicBool, AtomicPtr, Ordering, fence};

/// A frame that the ring owns.
#[derive(Clone, Copy)]
struct Raw(*mut Desc);

// SAFETY: stands for a `Handle`, which may go to any thread.
unsafe impl Send for Raw {}

impl Raw {
    fn new(frame: Frame) -> Raw {
        Raw(frame.into_handle().into_raw().as_ptr())
    }

    /// # Safety
    /// Comes from `Raw::new` and is turned back once at most.
    unsafe fn into_handle(self) -> Option<Handle> {
        // SAFETY: the caller's word.
        NonNull::new(self.0).map(|desc| unsafe { Handle::from_raw(desc) })
    }
}

impl Sealed for Raw {}

/// A slot. Zeros are no frame.
pub struct RawCell(AtomicPtr<Desc>);

impl Default for RawCell {
    fn default() -> Self {
        RawCell(AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl Entry for Raw {
    type Cell = RawCell;

    #[inline]
    fn load(cell: &RawCell) -> Raw {
        Raw(cell.0.load(Ordering::Relaxed))
    }

    #[inline]
    fn store(self, cell: &RawCell) {
        cell.0.store(self.0, Ordering::Relaxed);
    }
}

/// What both ends know of each other.
#[derive(Default)]
struct Ends {
    /// The receiver is gone.
    closed: AtomicBool,
    /// The receiver sleeps, or is about to.
    asleep: AtomicBool,
}

/// A new ring for `entries` frames, a power of two, and both its ends.
///
/// # Errors
/// [`RingError::Entries`].
pub fn ring(entries: u32) -> Result<(FrameSender, FrameReceiver), RingError> {
    // SAFETY: the invariant of this file: what is left was given up to the ring and read by nobody.
    let (producer, consumer) = mpsc::ring_with(entries, |raw: Raw| drop(unsafe { raw.into_handle() }))?;
    let ends = Arc::new(Alone(Ends::default()));
    Ok((FrameSender { ring: producer, ends: ends.clone() }, FrameReceiver { ring: consumer, ends }))
}

/// An end that frames go into. A clone for each sender.
#[derive(Clone)]
pub struct FrameSender {
    ring: mpsc::Producer<Raw>,
    ends: Arc<Alone<Ends>>,
}

impl FrameSender {
    /// Sends the first frames of the burst, as many as there is room for, and says how many those are. The others stay in
    /// the burst; all do when the receiver is gone. One compare-and-swap for all.
    #[inline]
    pub fn send(&mut self, burst: &mut Burst) -> usize {
        self.send_first(burst, burst.len())
    }

    /// As [`FrameSender::send`], for the first `count` frames at most.
    #[inline]
    pub fn send_first(&mut self, burst: &mut Burst, count: usize) -> usize {
        let count = count.min(burst.len());
        if count == 0 || self.is_closed() {
            return 0;
        }
        self.ring.push_with(count, |room| {
            let mut frames = burst.drain_first(room).map(Raw::new);
            // As many as were asked for are there; a slot without a frame would be skipped.
            move || frames.next().unwrap_or(Raw(std::ptr::null_mut()))
        })
    }

    /// Whether the receiver is gone. What is sent after that goes home when the last end does.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.ends.0.closed.load(Ordering::Relaxed)
    }

    /// The doorbell, once after the sends of a burst: says whether the receiver sleeps and must be woken, to one sender only.
    /// Costs a fence.
    #[inline]
    pub fn must_wake(&self) -> bool {
        // Either the receiver's look after going to sleep sees what was sent, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        self.ends.0.asleep.load(Ordering::Relaxed) && self.ends.0.asleep.swap(false, Ordering::Relaxed)
    }

    /// Frames in the ring. A gauge: others change it at any time.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether the gauge is at zero.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// The most frames that fit.
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }
}

/// The end that frames come out of. Dropping it sends what is in the ring home, and senders keep what they have from then on.
pub struct FrameReceiver {
    ring: mpsc::Consumer<Raw>,
    ends: Arc<Alone<Ends>>,
}

impl FrameReceiver {
    /// Receives up to `count` frames, and as many as fit, into the burst, and says how many.
    #[inline]
    pub fn receive(&mut self, burst: &mut Burst, count: usize) -> usize {
        let before = burst.len();
        self.ring.pop_each(count.min(burst.room()), |raw| {
            // SAFETY: the invariant of this file: it was given up to the ring, and this is the one time that it is read.
            if let Some(handle) = unsafe { raw.into_handle() } {
                // The sender's core has its descriptor: those of the whole burst come at the same time.
                handle.fetch_descriptor();
                // There is room, see above; a frame that found none would go home.
                let _ = burst.push(Frame::new(handle));
            }
        });
        burst.len() - before
    }

    /// Before going to sleep: asks senders to wake the receiver, and looks once more. True when there is still nothing, so
    /// that it may sleep; [`FrameReceiver::awake`] afterwards in any case.
    pub fn may_sleep(&mut self) -> bool {
        self.ends.0.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.ring.is_ready()
    }

    /// After sleeping: no more calls are needed.
    pub fn awake(&mut self) {
        self.ends.0.asleep.store(false, Ordering::Relaxed);
    }

    /// Whether there is nothing to receive now.
    pub fn is_empty(&self) -> bool {
        !self.ring.is_ready()
    }
}

impl Drop for FrameReceiver {
    fn drop(&mut self) {
        self.ends.0.closed.store(true, Ordering::Relaxed);
        let mut burst = Burst::new();
        while self.receive(&mut burst, Burst::MAX) > 0 {
            burst.release();
        }
    }
}

impl std::fmt::Debug for FrameSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameSender").field("len", &self.len()).field("entries", &self.entries()).finish()
    }
}

impl std::fmt::Debug for FrameReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameReceiver").field("empty", &self.is_empty()).finish_non_exhaustive()
    }
}
