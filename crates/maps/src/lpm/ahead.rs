//! Fetching ahead in a trie: all addresses go down one level, then all the next.

use std::sync::atomic::Ordering;

use super::{
    BEST, BEST_MASK, COUNT_SHIFT, DEPTH, Entry, LIST_HEAD, LpmTrie, PATH, SIZE, bits_at, in_list, list_step, mask,
};
use crate::ahead::Notes;

/// Addresses that go down together.
const MANY: usize = 64;
/// Levels that are fetched; what lies below is seldom, and waited for.
const LEVELS: usize = 4;

/// Where an address has come to.
#[derive(Clone, Copy)]
struct Step {
    bits: [u32; 2],
    /// The entry to look at next, as an index into the arena's words; 0: none.
    at: usize,
    /// Bits of the address that led there.
    below: u32,
}

impl LpmTrie {
    /// Bytes that look-ups are spread over with so many prefixes.
    pub(crate) fn spread(&self, count: usize) -> usize {
        // Addresses meet wide prefixes far more often than narrow ones, so most look-ups touch a small part: a hundred thousand
        // prefixes were faster without, a million three times slower.
        count * self.stride / 4
    }

    pub(crate) fn fetch_ahead(&self, notes: Notes<'_>) {
        let mut steps = [Step { bits: [0; 2], at: 0, below: 0 }; MANY];
        let mut count = 0;
        let root = Entry::of(self.root().load(Ordering::Acquire));
        for (step, note) in steps.iter_mut().zip(notes.all()) {
            count += 1;
            step.bits = [(note >> 32) as u32, note as u32];
            if let (Entry::Table(number), true) = (root, note != 0) {
                self.enter(step, number);
            }
        }
        let words = self.arena.block();
        for _ in 0..LEVELS {
            let mut left = false;
            // The entries are near by now: what they lead to.
            let mut next = [Entry::Nothing; MANY];
            for (step, next) in steps[..count].iter().zip(&mut next) {
                if step.at == 0 {
                    continue;
                }
                *next = Entry::of(words.halves()[step.at].load(Ordering::Acquire));
                match *next {
                    Entry::Nothing => {}
                    Entry::Value(value) => self.values.prefetch(value as usize * self.stride),
                    Entry::List(number) | Entry::Table(number) => words.prefetch(number as usize * 8),
                }
            }
            for (step, next) in steps[..count].iter_mut().zip(next) {
                step.at = 0;
                match next {
                    Entry::List(number) => self.fetch_from_list(number, step),
                    Entry::Table(number) => {
                        self.enter(step, number);
                        left |= step.at != 0;
                    }
                    Entry::Nothing | Entry::Value(_) => {}
                }
            }
            if !left {
                break;
            }
        }
    }

    /// Goes into a table whose head is near, and fetches the address's entry. Whether the path is the address's is not asked.
    #[inline(always)]
    fn enter(&self, step: &mut Step, number: u32) {
        let node = self.arena.at(number);
        let (size, depth) = (node[SIZE].load(Ordering::Relaxed), node[DEPTH].load(Ordering::Relaxed));
        let known = 32 * self.words.min(2) as u32;
        if depth + size > known || size == 0 {
            return;
        }
        step.below = depth + size;
        step.at = number as usize * super::arena::UNIT + PATH + self.words + bits_at(&step.bits, depth, size) as usize;
        self.arena.block().prefetch(step.at * 4);
    }

    /// Fetches the value that the first prefix of a list names that matches, as far as the note can tell.
    #[inline(always)]
    fn fetch_from_list(&self, number: u32, step: &Step) {
        let node = self.arena.at(number);
        let first = node[BEST].load(Ordering::Acquire);
        let (window, skip) =
            if self.words == 1 { (step.bits[0], 0) } else { (bits_at(&step.bits, step.below, 32), step.below) };
        let stride = list_step(self.words);
        let list = node[LIST_HEAD..][..(first >> COUNT_SHIFT) as usize * stride].chunks_exact(stride);
        let mut best = first & BEST_MASK;
        for prefix in list {
            let (value, len, bits) = in_list(prefix, self.words);
            if (bits ^ window) & mask(len.saturating_sub(skip)) == 0 {
                best = value;
                break;
            }
        }
        if best != 0 {
            self.values.prefetch((best - 1) as usize * self.stride);
        }
    }
}
