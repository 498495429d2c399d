//! Many producers, one consumer, within this process.
//!
//! A producer claims slots for a whole bulk with one compare-and-swap, writes them and marks each as ready. No producer waits
//! for another: one that is stopped between claim and mark holds up only the consumer, and only at its own slots. Entries of one
//! producer stay in order.
//!
//! ```text
//!            head                                  tail
//!             |                                      |
//!   ..free....|###ready###|..claimed, not ready..|###|....free....      a slot is ready when its lap number is the one
//!             consumer takes up to here                                 of the consumer's position
//! ```

use crate::ring::{Entry, RingError, check_entries};
use crate::sync::{Alone, Arc, AtomicU32, AtomicU64, Ordering};

struct Shared<T: Entry> {
    /// Slots claimed so far. Producers only.
    tail: Alone<AtomicU64>,
    /// Slots given back so far. Written by the consumer.
    head: Alone<AtomicU64>,
    /// For each slot the lap in which it was written last, counted from 1.
    laps: Box<[AtomicU32]>,
    cells: Box<[T::Cell]>,
    /// Gets what is left when all ends are gone.
    last: fn(T),
}

impl<T: Entry> Shared<T> {
    #[inline]
    fn at(&self, position: u64) -> (usize, u32) {
        let slot = position as usize & (self.cells.len() - 1);
        (slot, ((position >> self.cells.len().trailing_zeros()) as u32).wrapping_add(1))
    }

    /// Asks for the lines of these slots, which the consumer has read, to be written: so they come at the same time. A slot alone comes
    /// no later by itself.
    #[inline]
    fn fetch(&self, positions: std::ops::Range<u64>) {
        const SLOTS: usize = 8;
        if positions.end - positions.start < SLOTS as u64 {
            return;
        }
        for position in positions.step_by(SLOTS) {
            let (slot, _) = self.at(position);
            crate::prefetch::to_write(std::ptr::from_ref(&self.cells[slot]).cast());
            crate::prefetch::to_write(std::ptr::from_ref(&self.laps[slot]).cast());
        }
    }
}

impl<T: Entry> Drop for Shared<T> {
    fn drop(&mut self) {
        // Nobody else is there any more, so every slot between the two positions was written, unless its producer panicked.
        let (head, tail) = (self.head.0.load(Ordering::Relaxed), self.tail.0.load(Ordering::Relaxed));
        for (slot, lap) in (head..tail).map(|position| self.at(position)) {
            if self.laps[slot].load(Ordering::Acquire) == lap {
                (self.last)(T::load(&self.cells[slot]));
            }
        }
    }
}

/// A new ring and both its ends.
///
/// # Errors
/// [`RingError::Entries`].
pub fn ring<T: Entry>(entries: u32) -> Result<(Producer<T>, Consumer<T>), RingError> {
    ring_with(entries, |_| {})
}

/// As [`ring`]; `last` gets each entry that is still there when all ends are gone.
pub(crate) fn ring_with<T: Entry>(entries: u32, last: fn(T)) -> Result<(Producer<T>, Consumer<T>), RingError> {
    check_entries(entries)?;
    let shared = Arc::new(Shared {
        tail: Alone(AtomicU64::new(0)),
        head: Alone(AtomicU64::new(0)),
        laps: (0..entries).map(|_| AtomicU32::new(0)).collect(),
        cells: (0..entries).map(|_| T::Cell::default()).collect(),
        last,
    });
    Ok((Producer { shared: shared.clone(), head: 0 }, Consumer { shared, next: 0 }))
}

/// An end that writes entries. A clone for each producer.
pub struct Producer<T: Entry> {
    shared: Arc<Shared<T>>,
    /// The consumer's position when it was looked at last.
    head: u64,
}

impl<T: Entry> Clone for Producer<T> {
    fn clone(&self) -> Self {
        Producer { shared: self.shared.clone(), head: self.head }
    }
}

impl<T: Entry> Producer<T> {
    /// Number of slots.
    pub fn entries(&self) -> u32 {
        self.shared.cells.len() as u32
    }

    /// Claims up to `count` slots: the first position and how many.
    #[inline]
    fn claim(&mut self, count: usize) -> (u64, usize) {
        let shared = &*self.shared;
        let mut tail = shared.tail.0.load(Ordering::Relaxed);
        loop {
            // Signed: others may have moved far beyond the tail that was read, and then the exchange below fails.
            let free = |head: u64| (shared.cells.len() as i64 - tail.wrapping_sub(head) as i64).max(0) as usize;
            let mut room = free(self.head);
            if room < count {
                // Acquire: the consumer has read the slots that it gives back.
                self.head = shared.head.0.load(Ordering::Acquire);
                room = free(self.head);
            }
            let take = room.min(count).min(shared.cells.len());
            if take == 0 {
                return (tail, 0);
            }
            let next = tail + take as u64;
            match shared.tail.0.compare_exchange_weak(tail, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (tail, take),
                Err(now) => tail = now,
            }
        }
    }

    /// Makes room for up to `count` entries, tells `maker` how many there is room for, writes as many as that, each made by
    /// what `maker` gave, and says how many they were. Neither may panic: the slots would never become ready.
    #[inline]
    pub fn push_with<F: FnMut() -> T>(&mut self, count: usize, maker: impl FnOnce(usize) -> F) -> usize {
        let (first, count) = self.claim(count);
        let positions = first..first + count as u64;
        self.shared.fetch(positions.clone());
        let mut make = maker(count);
        for position in positions.clone() {
            make().store(&self.shared.cells[self.shared.at(position).0]);
        }
        // After all entries: a consumer that sees the first mark takes lines away under the hands of who still writes.
        for position in positions {
            let (slot, lap) = self.shared.at(position);
            // Release: the consumer must see the entry when it sees the lap.
            self.shared.laps[slot].store(lap, Ordering::Release);
        }
        count
    }

    /// Writes as many of the entries as there is room for, in order, and says how many those are.
    #[inline]
    pub fn push_slice(&mut self, entries: &[T]) -> usize {
        self.push_with(entries.len(), |_| {
            let mut at = 0;
            move || {
                at += 1;
                entries[at - 1]
            }
        })
    }

    /// Writes one entry.
    ///
    /// # Errors
    /// Gives it back when the ring is full.
    pub fn push(&mut self, entry: T) -> Result<(), T> {
        if self.push_with(1, |_| || entry) == 1 { Ok(()) } else { Err(entry) }
    }

    /// Entries in the ring, those included that are being written. A gauge: others change it at any time.
    pub fn len(&self) -> usize {
        let head = self.shared.head.0.load(Ordering::Relaxed);
        let len = self.shared.tail.0.load(Ordering::Relaxed).wrapping_sub(head);
        (len as usize).min(self.shared.cells.len())
    }

    /// Whether the gauge is at zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The end that reads entries.
pub struct Consumer<T: Entry> {
    shared: Arc<Shared<T>>,
    next: u64,
}

impl<T: Entry> Consumer<T> {
    /// Whether the next entry is there.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let (slot, lap) = self.shared.at(self.next);
        self.shared.laps[slot].load(Ordering::Acquire) == lap
    }

    /// Takes up to `count` entries, hands each to `f`, gives their slots back at once and says how many there were.
    #[inline]
    pub fn pop_each(&mut self, count: usize, mut f: impl FnMut(T)) -> usize {
        let before = self.next;
        while self.next - before < count as u64 {
            let (slot, lap) = self.shared.at(self.next);
            // Acquire: with the lap the entry is seen.
            if self.shared.laps[slot].load(Ordering::Acquire) != lap {
                break;
            }
            f(T::load(&self.shared.cells[slot]));
            self.next += 1;
        }
        if self.next != before {
            // Release: the reads of the slots come before a producer's next writes.
            self.shared.head.0.store(self.next, Ordering::Release);
        }
        (self.next - before) as usize
    }

    /// Takes one entry.
    pub fn pop(&mut self) -> Option<T> {
        let mut entry = None;
        self.pop_each(1, |e| entry = Some(e));
        entry
    }
}
