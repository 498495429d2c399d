//! Waking a worker that sleeps, and leaving one alone that does not.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// A worker's bell. Ringing costs a fence and a load while the worker is awake, a system call only when it sleeps.
pub(crate) struct Wake {
    fd: OwnedFd,
    asleep: AtomicBool,
}

impl Wake {
    pub(crate) fn new() -> std::io::Result<Wake> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Wake { fd, asleep: AtomicBool::new(false) })
    }

    /// Called after work was put where the worker looks for it.
    #[inline]
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `lie_down`: either the worker sees the work, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // It can only fail when the counter is about to overflow, and then the descriptor is readable anyway.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// The worker is about to sleep. It looks for work once more after this, and sleeps only if there is none.
    pub(crate) fn lie_down(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The worker is up again.
    pub(crate) fn get_up(&self) {
        if !self.asleep.swap(false, Ordering::Relaxed) {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
