//! Asking a worker to stop, from anywhere, also while it sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request that a worker finishes its burst and reports. Clones are the same request.
#[derive(Clone, Debug)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    asked: AtomicBool,
    /// Readable from the request on, so that it ends a sleep.
    wake: OwnedFd,
}

impl Stop {
    /// Nothing asked yet.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new() -> std::io::Result<Stop> {
        use rustix::event::{EventfdFlags, eventfd};
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop { shared: Arc::new(Shared { asked: AtomicBool::new(false), wake }) })
    }

    /// Asks. Takes no lock and allocates nothing: a signal handler may call it.
    pub fn ask(&self) {
        self.shared.asked.store(true, Ordering::Release);
        // It can only fail when the counter is about to overflow, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }

    /// Whether somebody asked.
    #[inline]
    pub fn asked(&self) -> bool {
        self.shared.asked.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}
