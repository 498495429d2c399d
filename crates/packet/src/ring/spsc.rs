//! One producer, one consumer, AF_XDP's memory layout, and a peer that is not trusted.
//!
//! ```
//! use xway_packet::ring::{RingMemory, spsc::{Consumer, Producer}};
//!
//! let memory = RingMemory::<u64>::private(8)?;
//! let mut producer = Producer::attach(memory.clone())?;
//! let mut consumer = Consumer::attach(memory)?;
//! assert_eq!(producer.push_slice(&[1, 2, 3]), 3);
//! assert_eq!(consumer.pop(), Some(1));
//! # Ok::<(), xway_packet::ring::RingError>(())
//! ```

use crate::ring::{Entry, RingError, RingMemory};
use crate::sync::Ordering;

/// A new ring in memory of this process, and both its ends.
///
/// # Errors
/// [`RingError::Entries`], [`RingError::Memory`].
pub fn ring<T: Entry>(entries: u32) -> Result<(Producer<T>, Consumer<T>), RingError> {
    let memory = RingMemory::private(entries)?;
    Ok((Producer::attach(memory.clone())?, Consumer::attach(memory)?))
}

/// The end that writes entries.
///
/// The consumer's index is believed only while it moves forward and not beyond what was produced. Anything else is counted in
/// [`Producer::refused`] and the last good index stays in force: such a peer gets a full ring, and nobody else notices.
#[derive(Debug)]
pub struct Producer<T: Entry> {
    memory: RingMemory<T>,
    entries: u32,
    /// Next slot to write. Ahead of what was published by the staged entries.
    next: u32,
    /// What the consumer sees.
    published: u32,
    /// The consumer's index when it was looked at last.
    consumer: u32,
    refused: u64,
}

impl<T: Entry> Producer<T> {
    /// Takes the producing end, where the memory says that it is. There must be one only.
    ///
    /// # Errors
    /// [`RingError::Indices`] when the memory says what cannot be.
    pub fn attach(memory: RingMemory<T>) -> Result<Producer<T>, RingError> {
        let (producer, consumer) = indices(&memory)?;
        let entries = memory.entries();
        Ok(Producer { memory, entries, next: producer, published: producer, consumer, refused: 0 })
    }

    /// Free slots, at least `wanted` if there are so many: looks at the consumer's index only when the last look does not
    /// suffice.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let free = self.entries - self.next.wrapping_sub(self.consumer);
        if free >= wanted { free } else { self.look() }
    }

    /// Asks for the next `count` slots, which the consumer has read: so their lines come at the same time.
    #[inline]
    pub fn fetch(&self, count: u32) {
        self.memory.fetch(self.next, count, true);
    }

    /// Looks at the consumer's index.
    fn look(&mut self) -> u32 {
        // Acquire: the consumer has read the slots that it gives back.
        let consumer = self.memory.consumer().load(Ordering::Acquire);
        if consumer.wrapping_sub(self.consumer) <= self.published.wrapping_sub(self.consumer) {
            self.consumer = consumer;
        } else {
            self.refused += 1;
        }
        self.entries - self.next.wrapping_sub(self.consumer)
    }

    /// Writes an entry that the consumer does not see before [`Producer::submit`].
    ///
    /// # Errors
    /// Gives it back when the ring is full.
    #[inline]
    pub fn stage(&mut self, entry: T) -> Result<(), T> {
        if self.room(1) == 0 {
            return Err(entry);
        }
        let cells = self.memory.cells();
        entry.store(&cells[self.next as usize & (cells.len() - 1)]);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Shows the consumer what was staged, and says how many entries that were.
    #[inline]
    pub fn submit(&mut self) -> u32 {
        let count = self.next.wrapping_sub(self.published);
        if count > 0 {
            // Release: the consumer must see the entries when it sees the index.
            self.memory.producer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
        count
    }

    /// Forgets what was staged, and says how many entries that were.
    pub fn unstage(&mut self) -> u32 {
        let count = self.next.wrapping_sub(self.published);
        self.next = self.published;
        count
    }

    /// Writes one entry and submits.
    ///
    /// # Errors
    /// Gives it back when the ring is full.
    #[inline]
    pub fn push(&mut self, entry: T) -> Result<(), T> {
        self.stage(entry)?;
        self.submit();
        Ok(())
    }

    /// Writes as many of the entries as there is room for, in order, submits, and says how many those are.
    #[inline]
    pub fn push_slice(&mut self, entries: &[T]) -> usize {
        let mut entries = entries.iter();
        self.push_some(entries.len(), || entries.next().copied())
    }

    /// Writes up to `count` entries that `next` makes, until it makes no more, submits, and says how many were written.
    /// `next` is called only for entries that have room.
    #[inline]
    pub fn push_some(&mut self, count: usize, mut next: impl FnMut() -> Option<T>) -> usize {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let count = self.room(count).min(count);
        let (first, second) = self.memory.slots(self.next, count);
        let mut written = 0;
        for cell in first.iter().chain(second) {
            let Some(entry) = next() else { break };
            entry.store(cell);
            written += 1;
        }
        self.next = self.next.wrapping_add(written);
        self.submit();
        written as usize
    }

    /// Entries that were submitted and that the consumer, as far as it says, has not taken. Looks at its index.
    pub fn pending(&mut self) -> u32 {
        self.look();
        self.published.wrapping_sub(self.consumer)
    }

    /// The same entries, from the oldest on, as they stand in the ring.
    pub fn pending_each(&mut self, f: impl FnMut(T)) {
        let count = self.pending();
        let (first, second) = self.memory.slots(self.consumer, count);
        first.iter().chain(second).map(T::load).for_each(f);
    }
}

/// The end that reads entries.
///
/// The producer's index is believed only while it moves forward and not further than the ring is long. Anything else is
/// counted in [`Consumer::refused`] and the last good index stays in force.
#[derive(Debug)]
pub struct Consumer<T: Entry> {
    memory: RingMemory<T>,
    entries: u32,
    /// Next slot to read. Ahead of what was given back by the entries taken since.
    next: u32,
    /// What the producer sees.
    released: u32,
    /// The producer's index when it was looked at last.
    producer: u32,
    refused: u64,
}

impl<T: Entry> Consumer<T> {
    /// Takes the consuming end, where the memory says that it is. There must be one only.
    ///
    /// # Errors
    /// [`RingError::Indices`] when the memory says what cannot be.
    pub fn attach(memory: RingMemory<T>) -> Result<Consumer<T>, RingError> {
        let (producer, consumer) = indices(&memory)?;
        let entries = memory.entries();
        Ok(Consumer { memory, entries, next: consumer, released: consumer, producer, refused: 0 })
    }

    /// Entries to take, at least `wanted` if there are so many: looks at the producer's index only when the last look does not
    /// suffice.
    #[inline]
    pub fn available(&mut self, wanted: u32) -> u32 {
        let there = self.producer.wrapping_sub(self.next);
        if there >= wanted { there } else { self.look() }
    }

    /// Asks for the next `count` entries, which the producer has written: so their lines come at the same time.
    #[inline]
    pub fn fetch(&self, count: u32) {
        self.memory.fetch(self.next, count, false);
    }

    /// Looks at the producer's index.
    fn look(&mut self) -> u32 {
        // Acquire: entries up to this index are written.
        let producer = self.memory.producer().load(Ordering::Acquire);
        let ahead = producer.wrapping_sub(self.released);
        if ahead <= self.entries && ahead >= self.producer.wrapping_sub(self.released) {
            self.producer = producer;
        } else {
            self.refused += 1;
        }
        self.producer.wrapping_sub(self.next)
    }

    /// Reads the next entry; its slot is given back by [`Consumer::release`].
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.available(1) == 0 {
            return None;
        }
        let cells = self.memory.cells();
        let entry = T::load(&cells[self.next as usize & (cells.len() - 1)]);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the slots of all entries taken back to the producer, and says how many those are.
    #[inline]
    pub fn release(&mut self) -> u32 {
        let count = self.next.wrapping_sub(self.released);
        if count > 0 {
            // Release: the reads of the slots come before the producer's next writes.
            self.memory.consumer().store(self.next, Ordering::Release);
            self.released = self.next;
        }
        count
    }

    /// Puts the last `count` entries taken (at most those not released) back, to be taken again.
    pub fn untake(&mut self, count: u32) -> u32 {
        let count = count.min(self.next.wrapping_sub(self.released));
        self.next = self.next.wrapping_sub(count);
        count
    }

    /// Takes one entry and gives its slot back.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let entry = self.take()?;
        self.release();
        Some(entry)
    }

    /// Takes up to `count` entries, hands each to `f`, gives their slots back and says how many there were.
    #[inline]
    pub fn pop_each(&mut self, count: usize, mut f: impl FnMut(T)) -> usize {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let count = self.available(count).min(count);
        let (first, second) = self.memory.slots(self.next, count);
        first.iter().chain(second).for_each(|cell| f(T::load(cell)));
        self.next = self.next.wrapping_add(count);
        self.release();
        count as usize
    }

    /// Takes as many entries as there are and fit, into the front of `out`, and says how many.
    pub fn pop_slice(&mut self, out: &mut [T]) -> usize {
        let mut at = 0;
        self.pop_each(out.len(), |entry| {
            out[at] = entry;
            at += 1;
        })
    }
}

/// What both ends have.
macro_rules! end {
    ($end:ident) => {
        impl<T: Entry> $end<T> {
            /// Number of slots.
            pub fn entries(&self) -> u32 {
                self.entries
            }

            /// How many times the other end published an index that cannot be.
            pub fn refused(&self) -> u64 {
                self.refused
            }

            /// The flags word: [`xway_abi::xsk::RING_NEED_WAKEUP`] when the side that serves waits to be called.
            #[inline]
            pub fn flags(&self) -> u32 {
                self.memory.flags().load(Ordering::Relaxed)
            }

            /// Sets the flags word, on the side that serves.
            pub fn set_flags(&self, flags: u32) {
                self.memory.flags().store(flags, Ordering::Relaxed);
            }
        }
    };
}

end!(Producer);
end!(Consumer);

fn indices<T: Entry>(memory: &RingMemory<T>) -> Result<(u32, u32), RingError> {
    let consumer = memory.consumer().load(Ordering::Acquire);
    let producer = memory.producer().load(Ordering::Acquire);
    let entries = memory.entries();
    if producer.wrapping_sub(consumer) > entries {
        return Err(RingError::Indices { producer, consumer, entries });
    }
    Ok((producer, consumer))
}
