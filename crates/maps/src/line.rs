//! One bucket: a cache line of tags and element numbers, and the protocol between its readers and its writer.
//!
//! ```text
//! byte  0   tags     eight tags, of slots 0 to 7; 0: the slot is free
//! byte  8   head     tags of slots 8 to 10 | filter (8 bits) | lock (1 bit) | removals (31 bits)
//! byte 16   slots    eleven words: the element's number in the low 28 bits, marks of the LRU above
//! byte 60   link     one more than the number of the overflow line behind this one, in the low 28 bits; the clock hand above
//! ```
//!
//! A writer holds the lock bit. It fills the element first, then the slot, then the tag. It takes an element out in the
//! other order: the tag goes, then the count of removals goes up, and only then may anybody write to the element.
//!
//! A reader remembers the head, looks for its tag, takes the element's number from the slot, compares the key and looks at
//! the head again. If the count of removals is what it was, the element was in the slot all the time, and the key that
//! was compared was one key and the slot's own. Otherwise it starts again. It waits for nobody: neither the lock nor a
//! half-done change stops it.
//!
//! Elements never change their slot. So a key that stays in the table, or is replaced in its slot, is found by everybody.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::vector::equal_bytes;

/// Slots of a line.
pub const SLOTS: usize = 11;
/// Bits of a slot that hold an element's number, and of the link that hold a line's.
pub const NUMBER: u32 = (1 << 28) - 1;
/// The mark of a slot whose element was looked up since the clock hand came by (LRU tables only).
pub const USED: u32 = 1 << 28;

/// How often a slot's element was found marked by the clock hand, less how often not: 0 to 3.
const RANK: u32 = 3 << RANK_SHIFT;
const RANK_SHIFT: u32 = 29;

const LOCK: u64 = 1 << 32;
const REMOVAL: u64 = 1 << 33;
const HEAD_TAGS: u64 = 0xff_ffff;
pub(crate) const FILTER_SHIFT: u32 = 24;
const HAND_SHIFT: u32 = 28;

/// A bucket of the table, or a line behind a full one. A zeroed line is empty.
#[cfg_attr(not(loom), repr(C, align(64)))]
pub struct Line {
    tags: AtomicU64,
    head: AtomicU64,
    slots: [AtomicU32; SLOTS],
    link: AtomicU32,
}

impl Default for Line {
    fn default() -> Line {
        let slots = std::array::from_fn(|_| AtomicU32::new(0));
        Line { tags: AtomicU64::new(0), head: AtomicU64::new(0), slots, link: AtomicU32::new(0) }
    }
}

/// Where tags, head, slots and link lie in a line, and how long it is.
#[cfg(all(test, not(loom)))]
pub(crate) fn offsets() -> [usize; 5] {
    use std::mem::offset_of;
    [offset_of!(Line, tags), offset_of!(Line, head), offset_of!(Line, slots), offset_of!(Line, link), size_of::<Line>()]
}

/// What a reader saw at first.
#[derive(Clone, Copy)]
pub struct Seen {
    tags: u64,
    head: u64,
}

/// The tag of a hash: its top byte; 0 stands for a free slot and is never a tag.
#[inline(always)]
pub fn tag_of(hash: u64) -> u8 {
    ((hash >> 56) as u8).max(1)
}

/// The slots of a line, as bits, from the lowest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotSet(u32);

impl Iterator for SlotSet {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(slot as usize)
    }
}

impl SlotSet {
    /// Whether the slot is one of them.
    pub fn has(self, slot: usize) -> bool {
        self.0 & 1 << slot != 0
    }

    /// How many.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// None at all.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Seen {
    /// The slots whose tag this is.
    #[inline(always)]
    pub fn matching(self, tag: u8) -> SlotSet {
        SlotSet(equal_bytes(self.tags, self.head, tag) & ((1 << SLOTS) - 1))
    }

    /// Slots in use.
    pub fn used(self) -> SlotSet {
        SlotSet(!equal_bytes(self.tags, self.head, 0) & ((1 << SLOTS) - 1))
    }

    /// The tag of a slot.
    pub fn tag(self, slot: usize) -> u8 {
        if slot < 8 { (self.tags >> (8 * slot)) as u8 } else { (self.head >> (8 * (slot - 8))) as u8 }
    }

    /// Whether an element with this tag may stand in a line behind this one.
    #[inline(always)]
    pub fn overflows(self, tag: u8) -> bool {
        (self.head >> FILTER_SHIFT) & (1 << (tag & 7)) != 0
    }

    /// Whether the bucket has no element at all.
    pub fn is_vacant(self) -> bool {
        self.tags == 0 && self.head & (HEAD_TAGS | 0xff << FILTER_SHIFT) == 0
    }
}

impl Line {
    /// The reader's first look.
    #[inline(always)]
    pub fn look(&self) -> Seen {
        let head = self.head.load(Ordering::Acquire);
        Seen { head, tags: self.tags.load(Ordering::Acquire) }
    }

    /// The word of a slot, after its tag was seen.
    #[inline(always)]
    pub fn slot(&self, slot: usize) -> u32 {
        self.slots[slot].load(Ordering::Acquire)
    }

    /// Whether nothing was taken out of the bucket since the look. Asked of the bucket's first line, which counts for those
    /// behind it too.
    #[inline(always)]
    pub fn still(&self, seen: Seen) -> bool {
        fence(Ordering::Acquire);
        (self.head.load(Ordering::Relaxed) ^ seen.head) < REMOVAL
    }

    /// The line behind this one.
    #[inline]
    pub fn link(&self) -> Option<u32> {
        (self.link.load(Ordering::Acquire) & NUMBER).checked_sub(1)
    }

    /// Marks the slot's element as used lately, if it is not marked. May mark the element that came after it.
    #[inline(always)]
    pub fn touch(&self, slot: usize, word: u32) {
        if word & USED == 0 {
            self.slots[slot].fetch_or(USED, Ordering::Relaxed);
        }
    }

    /// What the clock hand does to a slot, under the lock: a mark becomes a rank more, no mark (when it ages) a rank less.
    /// `true`: there was neither mark nor rank.
    pub fn pass(&self, slot: usize, age: bool) -> bool {
        let word = self.slots[slot].load(Ordering::Relaxed);
        let rank = (word & RANK) >> RANK_SHIFT;
        let next = match (word & USED != 0, rank) {
            (false, 0) => return true,
            (false, rank) => rank - u32::from(age),
            (true, rank) => (rank + 1).min(RANK >> RANK_SHIFT),
        };
        // A mark that a reader sets right now may get lost, which costs nothing but that mark.
        self.slots[slot].store(word & NUMBER | next << RANK_SHIFT, Ordering::Relaxed);
        false
    }

    /// The marks of a slot, for the element that takes it over with its key.
    #[inline]
    pub fn marks(&self, slot: usize) -> u32 {
        self.slots[slot].load(Ordering::Relaxed) & (RANK | USED)
    }

    /// Waits for the lock bit.
    #[inline]
    pub fn lock(&self) -> Locked<'_> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Locked<'_> {
        let mut tries = 0u32;
        loop {
            tries += 1;
            pause(tries);
            if let Some(locked) = self.try_lock() {
                return locked;
            }
        }
    }

    /// Takes the lock bit if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Locked<'_>> {
        let head = self.head.load(Ordering::Relaxed) & !LOCK;
        let locked = self.head.compare_exchange(head, head | LOCK, Ordering::Acquire, Ordering::Relaxed);
        // Made only when it is true: a `Locked` that is dropped gives the lock back.
        locked.is_ok().then(|| Locked { line: self, head: head | LOCK })
    }
}

#[cfg(not(loom))]
fn pause(tries: u32) {
    if tries.is_multiple_of(64) { std::thread::yield_now() } else { std::hint::spin_loop() }
}

#[cfg(loom)]
fn pause(_: u32) {
    loom::thread::yield_now();
}

/// The writer of a bucket, by its first line. Dropping it gives the lock back.
pub struct Locked<'l> {
    line: &'l Line,
    /// What the head is: nobody else writes it.
    head: u64,
}

impl<'l> Locked<'l> {
    /// The first line.
    #[inline]
    pub fn line(&self) -> &'l Line {
        self.line
    }

    /// What the lines hold; `line` is the first line or one behind it.
    #[inline]
    pub fn look(&self, line: &Line) -> Seen {
        if std::ptr::eq(line, self.line) {
            Seen { tags: line.tags.load(Ordering::Relaxed), head: self.head }
        } else {
            line.look()
        }
    }

    /// Puts an element into a free slot of a line of this bucket. The element is complete.
    pub fn fill(&mut self, line: &Line, slot: usize, word: u32, tag: u8) {
        line.slots[slot].store(word, Ordering::Release);
        self.set_tag(line, slot, tag);
    }

    /// Puts another element, of the same key, into a slot; then nobody finds the old one.
    #[inline]
    pub fn replace(&mut self, line: &Line, slot: usize, word: u32) {
        line.slots[slot].store(word, Ordering::Release);
        self.removed();
    }

    /// Takes the element out of a slot. Afterwards it may be written to, after a release fence.
    pub fn clear(&mut self, line: &Line, slot: usize) {
        self.set_tag(line, slot, 0);
        self.removed();
    }

    /// Hangs `next` (or nothing) behind a line of this bucket. Something that is unhooked counts as a removal.
    pub fn set_link(&mut self, line: &Line, next: Option<u32>) {
        let word = line.link.load(Ordering::Relaxed);
        line.link.store(word & !NUMBER | next.map_or(0, |next| next + 1), Ordering::Release);
        self.removed();
    }

    /// Says which tags stand in lines behind the first.
    pub fn set_filter(&mut self, filter: u8) {
        self.head = self.head & !(0xff << FILTER_SHIFT) | u64::from(filter) << FILTER_SHIFT;
        self.line.head.store(self.head, Ordering::Release);
    }

    /// The filter with one tag more.
    pub fn add_to_filter(&mut self, tag: u8) {
        self.set_filter((self.head >> FILTER_SHIFT) as u8 | 1 << (tag & 7));
    }

    /// A free slot of the first line: the one that the clock hand comes to last, so that what is put in is the youngest.
    pub fn youngest_place(&self) -> Option<usize> {
        let free = self.look(self.line).matching(0).0;
        let hand = self.hand() as u32 % SLOTS as u32;
        // As bits, from the hand on: the top bit is the place before the hand.
        let from_hand = (free >> hand | free << (SLOTS as u32 - hand)) & ((1 << SLOTS) - 1);
        // Back from the hand over the free slots: the last of them stands behind the youngest element. If there is none
        // directly before the hand, the nearest before it.
        let run = (!(from_hand << (32 - SLOTS))).leading_zeros();
        let step = if run > 0 { SLOTS as u32 - run } else { from_hand.checked_ilog2()? };
        Some((hand + step) as usize % SLOTS)
    }

    /// Where the clock hand stands: before a slot, or before the lines behind.
    pub fn hand(&self) -> usize {
        (self.line.link.load(Ordering::Relaxed) >> HAND_SHIFT) as usize
    }

    /// Moves the clock hand.
    pub fn set_hand(&mut self, hand: usize) {
        let word = self.line.link.load(Ordering::Relaxed);
        self.line.link.store(word & NUMBER | (hand as u32) << HAND_SHIFT, Ordering::Release);
    }

    fn set_tag(&mut self, line: &Line, slot: usize, tag: u8) {
        let put = |word: u64, at: usize| word & !(0xff << (8 * at)) | u64::from(tag) << (8 * at);
        if slot < 8 {
            line.tags.store(put(line.tags.load(Ordering::Relaxed), slot), Ordering::Release);
        } else if std::ptr::eq(line, self.line) {
            self.head = put(self.head, slot - 8);
            line.head.store(self.head, Ordering::Release);
        } else {
            line.head.store(put(line.head.load(Ordering::Relaxed), slot - 8), Ordering::Release);
        }
    }

    /// Counts a removal: after the slot was changed, before its old element is.
    #[inline]
    fn removed(&mut self) {
        self.head = self.head.wrapping_add(REMOVAL);
        self.line.head.store(self.head, Ordering::Release);
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.line.head.store(self.head & !LOCK, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_and_clear() {
        let line = Line::default();
        let before = line.look();
        for slot in 0..SLOTS {
            line.lock().fill(&line, slot, slot as u32 + 100, slot as u8 + 1);
        }
        assert!(line.still(before), "nothing was taken out");
        assert!(line.try_lock().is_some());
        let seen = line.look();
        assert_eq!(seen.used().len() as usize, SLOTS);
        for slot in 0..SLOTS {
            assert_eq!(seen.matching(slot as u8 + 1).collect::<Vec<_>>(), [slot]);
            assert_eq!((line.slot(slot), seen.tag(slot)), (slot as u32 + 100, slot as u8 + 1));
        }
        {
            let mut locked = line.lock();
            assert!(line.try_lock().is_none());
            assert!(line.still(seen), "the lock alone changes nothing");
            locked.clear(&line, 9);
            locked.replace(&line, 3, 7);
            locked.add_to_filter(0x1a);
            locked.set_link(&line, Some(5));
            locked.set_hand(9);
        }
        assert!(!line.still(seen));
        let seen = line.look();
        assert!(seen.overflows(2) && !seen.overflows(3) && seen.matching(10).is_empty());
        assert_eq!((line.slot(3), line.link(), line.lock().hand()), (7, Some(5), 9));
        assert_eq!(seen.used().len() as usize, SLOTS - 1);
    }

    #[test]
    fn what_is_put_in_last_is_what_the_hand_comes_to_last() {
        // Every hand and every set of used slots, against the words of the text.
        for hand in 0..=SLOTS {
            for used in 0..1u32 << SLOTS {
                let line = Line::default();
                let mut locked = line.lock();
                (0..SLOTS).filter(|slot| used & 1 << slot != 0).for_each(|slot| locked.fill(&line, slot, 0, 1));
                locked.set_hand(hand);
                let free = |slot: &usize| used & 1 << slot == 0;
                let back = (1..=SLOTS).map(|step| (hand % SLOTS + SLOTS - step) % SLOTS);
                let run = back.clone().take_while(free).last();
                assert_eq!(locked.youngest_place(), run.or_else(|| back.clone().find(free)), "{hand} {used:#b}");
                if cfg!(miri) && used > 3 {
                    break;
                }
            }
        }
    }
}
