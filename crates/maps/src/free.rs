//! Free element numbers: a lock-free stack.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Element numbers that were never used, and a lock-free stack of those that came back.
pub(crate) struct FreeList {
    /// The range's first number, and the first beyond it.
    start: u32,
    end: u32,
    /// The next number that was never used.
    fresh: AtomicU32,
    /// Top of the stack: number + 1 in the low half (0: empty), a change counter in the high half: without it a thread
    /// that has read a link would take an element off that came back in between with another one behind it.
    top: AtomicU64,
}

impl FreeList {
    pub(crate) fn new(start: u32, end: u32) -> FreeList {
        FreeList { start, end, fresh: AtomicU32::new(start), top: AtomicU64::new(0) }
    }

    /// Elements that were ever handed out.
    pub(crate) fn touched(&self) -> u32 {
        self.fresh.load(Ordering::Relaxed) - self.start
    }

    /// Takes an element that came back; `link` reads the stack link kept in an element.
    pub(crate) fn take_back(&self, link: impl Fn(u32) -> u32) -> Option<u32> {
        let mut top = self.top.load(Ordering::Acquire);
        while top as u32 != 0 {
            let index = top as u32 - 1;
            let next = ((top >> 32).wrapping_add(1) << 32) | u64::from(link(index));
            match self.top.compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => top = now,
            }
        }
        None
    }

    /// Takes an element that was never used.
    pub(crate) fn take_fresh(&self) -> Option<u32> {
        if self.fresh.load(Ordering::Relaxed) >= self.end {
            return None;
        }
        self.fresh.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| (n < self.end).then_some(n + 1)).ok()
    }

    /// Gives an element back; `set_link` writes the stack link kept in it.
    pub(crate) fn give(&self, index: u32, set_link: impl Fn(u32)) {
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            set_link(top as u32);
            let next = ((top >> 32).wrapping_add(1) << 32) | u64::from(index + 1);
            match self.top.compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}
