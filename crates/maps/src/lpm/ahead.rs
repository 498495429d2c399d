//! Fetching ahead in a trie: all addresses go down one level, then all the next.

use std::sync::atomic::Ordering;

use super::{
    BEST, BEST_MASK, COUNT_SHIFT, DEPTH, Entry, LIST_HEAD, LpmTrie, OWN, PATH, SIZE, bits_at, in_list, list_step, mask,
};
use crate::ahead::MANY;

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
        /// A prefix has one or two entries in tables, and a list when it is one of several.
        const NODES: usize = 16;
        count * (self.stride + NODES)
    }

    /// The value of each address, all of them looked up side by side: see [`crate::Map::answer_many`].
    pub(crate) fn answer_many(&self, notes: &[u64], mut each: impl FnMut(usize, Option<usize>)) -> Option<u64> {
        if self.width != 4 {
            return None;
        }
        let at = self.changes().load(Ordering::Acquire);
        for (part, notes) in notes.chunks(MANY).enumerate() {
            let mut found = [0; MANY];
            self.walk(notes, &mut found);
            for (n, (note, best)) in notes.iter().zip(found).enumerate() {
                let whole = prefix_len(*note) == 32;
                let value = |value: u32| self.arena.values().addr() + value as usize * self.stride;
                each(part * MANY + n, whole.then(|| best.checked_sub(1).map_or(0, value)));
            }
        }
        // Odd: a writer is at work.
        at.is_multiple_of(2).then_some(at)
    }

    /// Goes down with all addresses at once, a level at a time: while the nodes of one come, those of the others are read.
    /// `found` becomes the value (+ 1) for each, which is fetched.
    fn walk(&self, notes: &[u64], found: &mut [u32; MANY]) {
        let arena = self.arena.block();
        // What each looks at: bits, the entry that it has come to, the bits that led there; and who is still on the way.
        let mut bits = [0; MANY];
        let mut entries = [self.root().load(Ordering::Acquire); MANY];
        let mut below = [0; MANY];
        let mut places = [0; MANY];
        let mut active: [u8; MANY] = std::array::from_fn(|n| n as u8);
        for (bits, note) in bits.iter_mut().zip(notes) {
            *bits = address(*note);
        }
        let mut left = notes.len();
        while left > 0 {
            // Nodes are near: into the table, or to the end.
            let mut on = 0;
            for at in 0..left {
                let n = active[at] as usize;
                let (number, is_list) = match Entry::of(entries[n]) {
                    Entry::Nothing => continue,
                    Entry::Value(value) => {
                        found[n] = value + 1;
                        continue;
                    }
                    Entry::List(number) => (number, true),
                    Entry::Table(number) => (number, false),
                };
                let node = self.arena.at(number);
                let above = node[BEST].load(Ordering::Acquire);
                if above & BEST_MASK != 0 {
                    found[n] = above & BEST_MASK;
                }
                if is_list {
                    let count = (above >> COUNT_SHIFT) as usize;
                    if let Some(value) = self.find_in_list(&node[LIST_HEAD..], count, below[n], 32, &[bits[n]]) {
                        found[n] = value;
                    }
                    continue;
                }
                let (size, depth) = (node[SIZE].load(Ordering::Relaxed), node[DEPTH].load(Ordering::Relaxed));
                if depth != 0 && !self.on_path(node, depth, &[bits[n]]) {
                    continue;
                }
                let own = node[OWN].load(Ordering::Acquire);
                if own != 0 {
                    found[n] = own;
                }
                below[n] = depth + size;
                places[n] = number as usize * super::arena::UNIT + PATH + 1 + bits_at(&[bits[n]], depth, size) as usize;
                arena.prefetch(places[n] * 4);
                active[on] = n as u8;
                on += 1;
            }
            left = on;
            // Entries are near: what they lead to. A list may lie across two lines.
            for n in active[..left].iter().map(|n| *n as usize) {
                let entry = arena.halves()[places[n]].load(Ordering::Acquire);
                entries[n] = entry;
                let node = (entry >> 2) as usize * 8;
                if entry & 1 == 0 {
                    arena.prefetch(node);
                    arena.prefetch(node + 64);
                }
            }
        }
        for best in found[..notes.len()].iter().filter(|best| **best != 0) {
            self.arena.values().prefetch((*best - 1) as usize * self.stride);
        }
    }

    pub(crate) fn fetch_ahead(&self, notes: &[u64]) {
        let mut steps = [Step { bits: [0; 2], at: 0, below: 0 }; MANY];
        let count = notes.len().min(MANY);
        let root = Entry::of(self.root().load(Ordering::Acquire));
        for (step, note) in steps.iter_mut().zip(notes) {
            step.bits = [(note >> 32) as u32, *note as u32];
            if let (Entry::Table(number), true) = (root, *note != 0) {
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
                    Entry::Value(value) => self.arena.values().prefetch(value as usize * self.stride),
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
            self.arena.values().prefetch((best - 1) as usize * self.stride);
        }
    }
}

/// The prefix length of a key of eight bytes, read as a word of the machine's order.
#[inline(always)]
fn prefix_len(note: u64) -> u32 {
    let [a, b, c, d, ..] = note.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Its address, the first byte on top.
#[inline(always)]
fn address(note: u64) -> u32 {
    let [.., a, b, c, d] = note.to_ne_bytes();
    u32::from_be_bytes([a, b, c, d])
}
