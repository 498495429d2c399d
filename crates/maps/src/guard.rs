//! The reclamation guard.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_epoch as epoch;
use parking_lot::Mutex;

/// Keeps everything alive that a program may hold a pointer to.
///
/// A worker pins one guard per burst. As long as it lives, no memory that a map gave out under it is freed: elements,
/// inner maps, programs, and the storage of a whole map whose last `Arc` was dropped meanwhile. Pinning costs a few
/// nanoseconds and takes no lock. A guard that lives for long delays the freeing of everybody's garbage, so do not keep
/// one over a sleep.
///
/// Now and then whoever pins a guard is the one who frees what others have removed. A thread that handles packets, and is not to wait for
/// a gigabyte that goes, says so ([`Guard::handles_packets`]).
///
/// What a guard does *not* promise is that an element still belongs to its key: as in Linux, an element that is deleted
/// or evicted may be given to another key while a program still holds a pointer into it.
pub struct Guard(epoch::Guard);

thread_local! {
    /// This thread leaves what it should free to others.
    static LEAVES: Cell<bool> = const { Cell::new(false) };
}

/// What no guard sees any more and a thread that handles packets has left.
static LEFT: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());
/// Whether there is any.
static ANY_LEFT: AtomicBool = AtomicBool::new(false);

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

    /// From now on this thread handles packets, or does no longer: of what others have removed it frees nothing large, whatever guards it
    /// pins. That is left to those who change things, and to itself when it has nothing else to do ([`Guard::free_left`]).
    pub fn handles_packets(yes: bool) {
        LEAVES.set(yes);
    }

    /// Leaves something to others that it would take a thread that handles packets too long to free.
    pub fn leave(owned: Box<dyn Send>) {
        LEFT.lock().push(owned);
        ANY_LEFT.store(true, Ordering::Release);
    }

    /// Frees what threads that handle packets have left. Costs a load when there is nothing.
    pub fn free_left() {
        while ANY_LEFT.swap(false, Ordering::Acquire) {
            let left = std::mem::take(&mut *LEFT.lock());
            drop(left);
        }
    }
}

/// Rounds in which [`Guard::collect`] waits for guards of others, and how long in each.
const ROUNDS: u32 = 32;
const ROUND: Duration = Duration::from_micros(100);
/// What has waited is freed a few pieces at a time, the oldest first: so often in each round, or a guard that was held for long would leave
/// more than all rounds can free.
const TIMES: u32 = 256;

/// For those who change things, not for those who handle packets.
impl Guard {
    /// Frees what this thread has removed and nobody can see any more. Costs some microseconds, and where threads that handle packets have
    /// guards a few milliseconds at most; what they see even then goes with later changes. The caller holds no guard.
    pub fn collect() {
        // What goes may take along what goes behind guards again: a program its maps, a map its memory.
        for _ in 0..3 {
            let gone = Arc::new(AtomicBool::new(false));
            let mark = gone.clone();
            epoch::pin().defer(move || mark.store(true, Ordering::Release));
            // Garbage is free two epochs after it was made, and each round moves on by one at most.
            for round in 0..4 + ROUNDS {
                for _ in 0..TIMES {
                    epoch::pin().flush();
                    if gone.load(Ordering::Acquire) {
                        break;
                    }
                }
                if gone.load(Ordering::Acquire) || (round >= 4 && epoch::is_pinned()) {
                    break;
                }
                if round >= 4 {
                    std::thread::sleep(ROUND);
                }
            }
            Guard::free_left();
            if !gone.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

/// Frees something behind all guards that are pinned now.
pub(crate) fn retire(owned: Box<dyn Send>) {
    let guard = epoch::pin();
    guard.defer(move || {
        if LEAVES.get() {
            Guard::leave(owned);
        } else {
            drop(owned);
        }
    });
    // To the collector now, and not when this thread's bag is full.
    guard.flush();
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guard")
    }
}
