//! The reclamation guard.

use crossbeam_epoch as epoch;

/// Keeps everything alive that a program may hold a pointer to.
///
/// A worker pins one guard per burst. As long as it lives, no memory that a map gave out under it is freed: elements,
/// inner maps, programs, and the storage of a whole map whose last `Arc` was dropped meanwhile. Pinning costs a few
/// nanoseconds and takes no lock. A guard that lives for long delays the freeing of everybody's garbage, so do not keep
/// one over a sleep.
///
/// What a guard does *not* promise is that an element still belongs to its key: as in Linux, an element that is deleted
/// or evicted may be given to another key while a program still holds a pointer into it.
pub struct Guard(epoch::Guard);

impl Guard {
    /// Pins the current thread.
    pub fn pin() -> Guard {
        Guard(epoch::pin())
    }

    /// Lets the reclamation move on, as if the guard had been dropped and pinned again; needs that nothing taken under
    /// the guard is still borrowed.
    pub fn repin(&mut self) {
        self.0.repin();
    }
}

/// For those who change things, not for those who handle packets.
impl Guard {
    /// Frees what this thread has removed and nobody can see any more, as far as the guards of others allow. Otherwise it goes
    /// with later changes. Costs some microseconds; the caller holds no guard.
    pub fn collect() {
        // Garbage is free two epochs after it was made, and each round moves on by one at most.
        for _ in 0..4 {
            epoch::pin().flush();
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guard")
    }
}
