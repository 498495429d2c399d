//! Numbers that another thread may watch while a worker runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Written by the worker once per burst, read by whoever shows progress. The numbers are not one consistent picture.
#[derive(Debug, Default)]
pub struct Live {
    rx: AtomicU64,
    rx_bytes: AtomicU64,
    done: AtomicU64,
    total: AtomicU64,
}

impl Live {
    /// Frames received so far.
    pub fn rx(&self) -> u64 {
        self.rx.load(Ordering::Relaxed)
    }

    /// Bytes received so far.
    pub fn rx_bytes(&self) -> u64 {
        self.rx_bytes.load(Ordering::Relaxed)
    }

    /// How far the input has been read and how long it is, in bytes; `None` for an input without an end.
    pub fn progress(&self) -> Option<(u64, u64)> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| (self.done.load(Ordering::Relaxed), total))
    }

    /// The worker alone calls this: so many frames by now, so many bytes more.
    pub(crate) fn add(&self, rx: u64, bytes: u64, progress: Option<(u64, u64)>) {
        self.rx.store(rx, Ordering::Relaxed);
        self.rx_bytes.store(self.rx_bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
        if let Some((done, total)) = progress {
            self.done.store(done, Ordering::Relaxed);
            self.total.store(total, Ordering::Relaxed);
        }
    }
}
