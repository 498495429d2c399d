//! What a pool counts.

/// What a pool has done, in frames. `fast + ring + slow` is the number of successful allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Allocations from the owner's own stack: no atomic operation.
    pub fast: u64,
    /// Allocations that first had to collect what other threads gave back.
    pub ring: u64,
    /// Allocations of a chunk that was never used before: its pages are touched for the first time.
    pub slow: u64,
    /// Frames that the owner gave back.
    pub recycled: u64,
    /// Frames that came home through the return queue.
    pub returned: u64,
    /// Frames that are away now. Frames in the return queue count until the owner collects them.
    pub outstanding: u32,
    /// The most that were ever away at the same time.
    pub outstanding_max: u32,
    /// Allocations refused: no chunk left or the limit reached.
    pub refused: u64,
    /// Addresses that a device or a peer said it gives back and that were not lent to it.
    pub foreign: u64,
}

impl Counters {
    /// Successful allocations.
    pub fn allocated(&self) -> u64 {
        self.fast + self.ring + self.slow
    }

    /// The part of the allocations that got a chunk that had been used before, 0 to 1; `None` before the first one. A driver's
    /// recycling cache is as good as this number.
    pub fn recycle_hit_rate(&self) -> Option<f64> {
        let all = self.allocated();
        (all > 0).then(|| (self.fast + self.ring) as f64 / all as f64)
    }
}
