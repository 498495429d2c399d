//! The machine's clocks that go by ticks, as words in memory that generated code reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// What `bpf_ktime_get_coarse_ns` and `bpf_jiffies64` give: words that all threads of a process read, as the kernel has them for all CPUs.
///
/// Nobody is told a tick that is not in its word, so what one thread was told another one's later answer is never in front of. A tick
/// comes into the word when a thread asks the system.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Ticks {
    coarse: AtomicU64,
    jiffies: AtomicU64,
}

impl Ticks {
    /// Words at zero, where time does not pass.
    pub const fn new() -> Ticks {
        Ticks { coarse: AtomicU64::new(0), jiffies: AtomicU64::new(0) }
    }

    /// Where the nanoseconds of the last tick lie, 64 bits; they only grow.
    pub const COARSE: usize = std::mem::offset_of!(Ticks, coarse);
    /// Where the number of ticks lies, 64 bits; it only grows.
    pub const JIFFIES: usize = std::mem::offset_of!(Ticks, jiffies);

    /// The nanoseconds of the last tick that somebody saw.
    pub fn coarse(&self) -> u64 {
        self.coarse.load(Ordering::Acquire)
    }

    /// The number of that tick.
    pub fn jiffies(&self) -> u64 {
        self.jiffies.load(Ordering::Acquire)
    }

    /// Somebody saw a clock of ticks, of which there are `hz` a second, at these nanoseconds.
    pub fn advance(&self, coarse: u64, hz: u64) {
        if coarse <= self.coarse() {
            return;
        }
        // The kernel lets its counter start five minutes before 32 bits overflow, so that overflows are met early.
        let start = (1u64 << 32) - 300 * hz;
        let jiffies = start + (u128::from(coarse) * u128::from(hz) / 1_000_000_000) as u64;
        // This first: whoever finds that the other one needs nothing goes by it.
        self.jiffies.fetch_max(jiffies, Ordering::AcqRel);
        self.coarse.fetch_max(coarse, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tick_is_taken_back() {
        let ticks = Ticks::new();
        ticks.advance(4_000_000, 250);
        assert_eq!((ticks.coarse(), ticks.jiffies()), (4_000_000, (1 << 32) - 75_000 + 1));
        ticks.advance(3_999_999, 250);
        assert_eq!((ticks.coarse(), ticks.jiffies()), (4_000_000, (1 << 32) - 75_000 + 1));
        ticks.advance(301_000_000_000, 250);
        assert_eq!((ticks.coarse(), ticks.jiffies()), (301_000_000_000, (1 << 32) + 250));
    }
}
