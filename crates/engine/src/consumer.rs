//! A thread of this process that takes frames from the engine, on credit.
//!
//! It stands where a socket of another process may stand: in an XSKMAP, or bound to a queue past all programs. It gets the very frames,
//! without a copy, and gives them back by dropping them. One that does not give back gets no more: it may hold as many as its credit
//! says, what comes beyond that is dropped and counted as for a socket that has no room (`redirect_err.ENOSPC`), and the queue that the
//! frames belong to goes on with the others. See [`xway_packet::ring::credit`].

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use xway_packet::ring::RingError;
use xway_packet::ring::credit::{self, Borrower, Lender, Lent};
use xway_packet::{Burst, Pool};

use crate::wake::Wake;
use crate::{Sent, SocketTarget};

/// Why there is no consumer.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    /// Its ring cannot be made.
    #[error("a consumer's ring: {0}")]
    Ring(#[from] RingError),
    /// The system has no descriptor for it.
    #[error("a consumer's bell: {0}")]
    System(#[from] std::io::Error),
}

/// The consumer's end. Dropping it sends home what is left in the ring.
pub struct Consumer {
    borrower: Borrower,
    wake: Arc<Wake>,
}

/// The engine's end: for [`crate::SocketEntry::new`] or [`crate::Engine::bind`].
pub struct ConsumerTarget {
    id: u64,
    bound: (u32, u32),
    entries: u32,
    credit: u32,
    lender: Mutex<Lender>,
    wake: Arc<Wake>,
}

/// Numbers of consumers, apart from those of sockets, which count from 1.
static NEXT: AtomicU64 = AtomicU64::new(1 << 63);

/// A consumer of frames that come in on this queue (interface index and number), with a ring of `entries` frames, a power of two, of
/// which it may hold `credit`, those in the ring included. Give it less credit than the queue's pool has frames to spare.
///
/// # Errors
/// [`ConsumerError`].
pub fn consumer(
    bound: (u32, u32),
    entries: u32,
    credit: u32,
) -> Result<(Arc<ConsumerTarget>, Consumer), ConsumerError> {
    let (lender, borrower) = credit::ring(entries, credit)?;
    let wake = Arc::new(Wake::new()?);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let target = ConsumerTarget { id, bound, entries, credit, lender: Mutex::new(lender), wake: wake.clone() };
    Ok((Arc::new(target), Consumer { borrower, wake }))
}

impl Consumer {
    /// Takes up to `count` frames, at most a burst, none when nothing waits. They go home when what is given here is dropped.
    pub fn take(&mut self, count: usize) -> Lent {
        self.borrower.borrow(count)
    }

    /// Sleeps until something waits or the time is over, and says whether something waits.
    pub fn wait(&mut self, time: Duration) -> bool {
        self.wake.lie_down();
        if self.borrower.may_sleep() {
            // An error (a signal) is a wake-up like any other.
            let _ = poll(&mut [PollFd::new(&*self.wake, PollFlags::IN)], time.try_into().ok().as_ref());
        }
        self.wake.get_up();
        let empty = self.borrower.may_sleep();
        self.borrower.awake();
        !empty
    }
}

impl AsFd for Consumer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl ConsumerTarget {
    /// Frames that the consumer holds or could take.
    pub fn owed(&self) -> u32 {
        self.lender.lock().owed()
    }

    /// Frames that it was not given so far, for want of credit or room.
    pub fn refused(&self) -> u64 {
        self.lender.lock().refused()
    }
}

impl SocketTarget for ConsumerTarget {
    fn id(&self) -> u64 {
        self.id
    }

    fn bound_to(&self) -> (u32, u32) {
        self.bound
    }

    fn deliver(&self, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let sent = self.lender.lock().lend(burst) as u32;
        let full = burst.len() as u32;
        pool.release_burst(burst);
        Sent { sent, full, ..Sent::default() }
    }

    fn room(&self) -> usize {
        // What it has taken is not in the ring any more, so this is less than there may be: never more.
        self.credit.min(self.entries).saturating_sub(self.owed()) as usize
    }

    fn flush(&self) {
        self.wake.ring();
    }
}
