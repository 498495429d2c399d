//! Consumers that do not give back get no more.
//!
//! A consumer behind a credit ring may hold a fixed number of frames. It gets them as [`Lent`] bursts, and what it still holds
//! is known exactly: the account goes down when frames really go home, at the latest when the burst is dropped. A consumer that
//! keeps everything starves itself; the sender keeps what it could not lend, counts it and drops it, and its queue goes on.
//!
//! ```
//! use xway_packet::{Burst, Pool, PoolConfig, ring::credit};
//!
//! let mut pool = Pool::new(PoolConfig::new(64))?;
//! let (mut lender, mut borrower) = credit::ring(64, 10)?;
//! let mut burst = Burst::new();
//! pool.alloc_burst(&mut burst, 16);
//! assert_eq!(lender.lend(&mut burst), 10);          // six stay: the credit is used up
//! let lent = borrower.borrow(64);
//! assert_eq!((lent.frames().len(), lender.owed()), (10, 10));
//! drop(lent);
//! assert_eq!(lender.owed(), 0);
//! # pool.release_burst(&mut burst);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::burst::Burst;
use crate::frame::Frame;
use crate::ring::{RingError, frames};
use crate::sync::{Alone, Arc, AtomicU32, Ordering};

/// A ring of `entries` frames whose consumer may hold at most `credit` of them, those in the ring included.
///
/// # Errors
/// [`RingError::Entries`].
pub fn ring(entries: u32, credit: u32) -> Result<(Lender, Borrower), RingError> {
    let (sender, receiver) = frames::ring(entries)?;
    let owed = Arc::new(Alone(AtomicU32::new(0)));
    Ok((Lender { ring: sender, credit, owed: owed.clone(), refused: 0 }, Borrower { ring: receiver, owed }))
}

/// The end that lends frames. One: the account has one writer who adds.
#[derive(Debug)]
pub struct Lender {
    ring: frames::FrameSender,
    credit: u32,
    owed: Arc<Alone<AtomicU32>>,
    refused: u64,
}

impl Lender {
    /// Lends the first frames of the burst, as many as credit and ring allow, and says how many. The others stay in the burst
    /// and are counted in [`Lender::refused`].
    pub fn lend(&mut self, burst: &mut Burst) -> usize {
        let asked = burst.len();
        let left = self.credit.saturating_sub(self.owed()) as usize;
        // Before the frames are visible, so that the account never goes below zero.
        let count = left.min(asked);
        self.owed.0.fetch_add(count as u32, Ordering::Relaxed);
        let lent = self.ring.send_first(burst, count);
        self.owed.0.fetch_sub((count - lent) as u32, Ordering::Relaxed);
        self.refused += (asked - lent) as u64;
        lent
    }

    /// Frames that the consumer holds or could take from the ring.
    pub fn owed(&self) -> u32 {
        // Acquire: a frame that came home before the account went down is home.
        self.owed.0.load(Ordering::Acquire)
    }

    /// Frames that were not lent so far, for want of credit or room.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The doorbell: see [`frames::FrameSender::must_wake`].
    pub fn must_wake(&self) -> bool {
        self.ring.must_wake()
    }
}

/// The end that gets them.
#[derive(Debug)]
pub struct Borrower {
    ring: frames::FrameReceiver,
    owed: Arc<Alone<AtomicU32>>,
}

impl Borrower {
    /// Takes up to `count` frames, at most a burst.
    pub fn borrow(&mut self, count: usize) -> Lent {
        let mut burst = Burst::new();
        self.ring.receive(&mut burst, count);
        Lent { burst, owed: self.owed.clone() }
    }

    /// Before going to sleep: see [`frames::FrameReceiver::may_sleep`].
    pub fn may_sleep(&mut self) -> bool {
        self.ring.may_sleep()
    }

    /// After sleeping: see [`frames::FrameReceiver::awake`].
    pub fn awake(&mut self) {
        self.ring.awake();
    }
}

impl Drop for Borrower {
    fn drop(&mut self) {
        // What is left in the ring goes home with it, and is owed no more.
        let mut burst = Burst::new();
        while self.ring.receive(&mut burst, Burst::MAX) > 0 {
            settle(&mut burst, &self.owed);
        }
    }
}

/// Borrowed frames. They can be read and written but not kept apart from the account that they are on.
#[derive(Debug)]
pub struct Lent {
    burst: Burst,
    owed: Arc<Alone<AtomicU32>>,
}

impl Lent {
    /// The frames.
    pub fn frames(&self) -> &[Frame] {
        self.burst.frames()
    }

    /// The frames, writable.
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        self.burst.frames_mut()
    }

    /// Gives the first `count` frames back; the others stay.
    pub fn give_back(&mut self, count: usize) {
        let mut part = Burst::new();
        for frame in self.burst.drain_first(count) {
            // Both are as long as a burst, so there is room.
            let _ = part.push(frame);
        }
        settle(&mut part, &self.owed);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        settle(&mut self.burst, &self.owed);
    }
}

/// Sends the frames home and takes them off the account.
fn settle(burst: &mut Burst, owed: &Alone<AtomicU32>) {
    let count = burst.len() as u32;
    if count > 0 {
        burst.release();
        // Release: they are home when the account says so.
        owed.0.fetch_sub(count, Ordering::Release);
    }
}
