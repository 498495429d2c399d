//! Sleeping until a producer has something.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Wakes readers. Costs a producer one load when nobody sleeps.
#[derive(Default)]
pub(crate) struct Signal {
    sleepers: AtomicU32,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Signal {
    /// After something was published: wakes whoever waits for it.
    pub(crate) fn notify(&self) {
        // Pairs with the fence in `wait`: either we see the sleeper, or it sees what was published.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            let _lock = self.lock.lock();
            self.woken.notify_all();
        }
    }

    /// Sleeps until `ready` or the time is over; what `ready` says in the end.
    pub(crate) fn wait(&self, timeout: Duration, ready: impl Fn() -> bool) -> bool {
        let until = Instant::now().checked_add(timeout);
        let mut lock = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut is_ready = ready();
        while !is_ready {
            let timed_out = match until {
                Some(until) => self.woken.wait_until(&mut lock, until).timed_out(),
                None => {
                    self.woken.wait(&mut lock);
                    false
                }
            };
            is_ready = ready();
            if timed_out {
                break;
            }
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        is_ready
    }
}
