//! Changing the trie. Everything here runs under the writer's lock.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};

use xway_abi::Errno;

use super::arena::{Garbage, Piece};
use super::order::common_bits;
use super::{
    BELOW, BEST, BEST_MASK, COUNT_SHIFT, DEPTH, Entry, LEN_SHIFT, LIST_HEAD, LpmTrie, OWN, PATH, SIZE, bits_at,
    in_list, list_step, same,
};

/// Prefixes in a list at most; more become a table.
const LIST_MAX: usize = 8;
/// Bits of a table's index at most.
const SIZE_MAX: u32 = 20;

/// A prefix that is to be put into a node.
pub(super) struct Item {
    len: u32,
    bits: Vec<u32>,
    pub(super) value: u32,
}

/// Where a stored prefix has its value (+ 1).
enum Spot<'t> {
    /// A word that nothing else depends on, and what stands in it besides.
    Word(&'t AtomicU32, u32),
    /// Inside a table, by its number there, pushed down to the entries.
    Inside(u32, usize),
}

impl LpmTrie {
    /// The value of exactly this prefix.
    pub(super) fn exact(&self, len: u32, bits: &[u32]) -> Option<u32> {
        let value = match self.spot(len, bits)? {
            Spot::Word(word, besides) => word.load(Relaxed) ^ besides,
            Spot::Inside(number, at) => self.inside(number)[at].load(Relaxed),
        };
        value.checked_sub(1)
    }

    fn spot(&self, len: u32, bits: &[u32]) -> Option<Spot<'_>> {
        let mut word = self.root().load(Relaxed);
        loop {
            let number = match Entry::of(word) {
                Entry::Nothing | Entry::Value(_) => return None,
                Entry::List(number) => {
                    let at = LIST_HEAD + self.place_in_list(number, len, bits)? * list_step(self.words);
                    let besides = if self.words == 1 { len << LEN_SHIFT } else { 0 };
                    return Some(Spot::Word(&self.arena.at(number)[at], besides));
                }
                Entry::Table(number) => number,
            };
            let node = self.arena.at(number);
            let (size, depth) = (node[SIZE].load(Relaxed), node[DEPTH].load(Relaxed));
            if len < depth || !same(&node[PATH..], bits, depth) {
                return None;
            }
            if len == depth {
                return Some(Spot::Word(&node[OWN], 0));
            }
            if len <= depth + size {
                return Some(Spot::Inside(number, (1 << (len - depth) | bits_at(bits, depth, len - depth)) as usize));
            }
            word = self.entry(number, bits_at(bits, depth, size)).load(Relaxed);
        }
    }

    /// Gives a stored prefix another value.
    pub(super) fn exchange(&self, len: u32, bits: &[u32], value: u32) {
        match self.spot(len, bits) {
            None => {}
            Some(Spot::Word(word, besides)) => word.store((value + 1) | besides, Release),
            Some(Spot::Inside(number, at)) => {
                self.inside(number)[at].store(value + 1, Release);
                self.push(number, at, value + 1);
            }
        }
    }

    /// Puts a prefix in that is not stored.
    pub(super) fn insert(&self, garbage: &mut Garbage, len: u32, bits: &[u32], value: u32) -> Result<(), Errno> {
        let item = || Item { len, bits: bits.to_vec(), value };
        let mut cell = self.root();
        let mut tables = Vec::new();
        let mut above = 0;
        loop {
            let old = Entry::of(cell.load(Relaxed));
            if self.in_list_of(old).is_some_and(|count| count < LIST_MAX) {
                self.exchange_list(garbage, cell, None, Some((len, bits, value)), above)?;
                break;
            }
            let (best, mut items) = match old {
                Entry::Nothing => (0, Vec::new()),
                Entry::Value(best) => (best + 1, Vec::new()),
                Entry::List(number) => (self.best_of(number), self.items(old)),
                Entry::Table(number) => {
                    let node = self.arena.at(number);
                    let (size, depth) = (node[SIZE].load(Relaxed), node[DEPTH].load(Relaxed));
                    if len < depth || !same(&node[PATH..], bits, depth) {
                        // It leaves the way to this table above it.
                        (node[BEST].load(Relaxed), self.items(old))
                    } else if len > depth + size {
                        tables.push((cell, number, above));
                        cell = self.entry(number, bits_at(bits, depth, size));
                        above = depth + size;
                        continue;
                    } else {
                        if len == depth {
                            node[OWN].store(value + 1, Release);
                        } else {
                            let at = (1 << (len - depth) | bits_at(bits, depth, len - depth)) as usize;
                            self.inside(number)[at].store(value + 1, Release);
                            self.push(number, at, value + 1);
                        }
                        tables.push((cell, number, above));
                        break;
                    }
                }
            };
            items.push(item());
            self.exchange_node(garbage, cell, items, best, above)?;
            break;
        }
        for (_, number, _) in &tables {
            let below = &self.arena.at(*number)[BELOW];
            below.store(below.load(Relaxed) + 1, Relaxed);
        }
        // Four times as many prefixes as entries: it is time for a larger table. Without memory the old one still serves.
        let crowded = tables.into_iter().find(|(_, number, _)| {
            let node = self.arena.at(*number);
            let size = node[SIZE].load(Relaxed);
            size < SIZE_MAX && node[BELOW].load(Relaxed) > 4 << size && self.can_grow(*number)
        });
        if let Some((cell, number, above)) = crowded {
            let best = self.arena.at(number)[BEST].load(Relaxed);
            let _ = self.exchange_node(garbage, cell, self.items(Entry::Table(number)), best, above);
        }
        Ok(())
    }

    /// Whether there are bits left for a larger index.
    fn can_grow(&self, number: u32) -> bool {
        let node = self.arena.at(number);
        ((node[DEPTH].load(Relaxed) + node[SIZE].load(Relaxed)) as usize) < self.width * 8
    }

    /// Takes a stored prefix out.
    pub(super) fn take_out(&self, garbage: &mut Garbage, len: u32, bits: &[u32]) -> Result<(), Errno> {
        let mut cell = self.root();
        let mut tables = Vec::new();
        let mut above = 0;
        loop {
            let old = Entry::of(cell.load(Relaxed));
            let number = match old {
                Entry::Nothing | Entry::Value(_) => return Err(Errno::ENOENT),
                Entry::List(number) => {
                    let out = self.place_in_list(number, len, bits).ok_or(Errno::ENOENT)?;
                    self.exchange_list(garbage, cell, Some(out), None, above)?;
                    break;
                }
                Entry::Table(number) => number,
            };
            tables.push((cell, number, above));
            let node = self.arena.at(number);
            let (size, depth) = (node[SIZE].load(Relaxed), node[DEPTH].load(Relaxed));
            if len > depth + size {
                cell = self.entry(number, bits_at(bits, depth, size));
                above = depth + size;
                continue;
            }
            if len <= depth {
                node[OWN].store(0, Release);
            } else {
                let at = (1 << (len - depth) | bits_at(bits, depth, len - depth)) as usize;
                self.inside(number)[at].store(0, Release);
                self.push(number, at, self.best_inside(number, at));
            }
            break;
        }
        for (_, number, _) in &tables {
            let below = &self.arena.at(*number)[BELOW];
            below.store(below.load(Relaxed) - 1, Relaxed);
        }
        let sparse = tables.into_iter().find(|(_, number, _)| {
            let node = self.arena.at(*number);
            let below = node[BELOW].load(Relaxed);
            below as usize <= LIST_MAX / 2 || below < 1 << node[SIZE].load(Relaxed) >> 2
        });
        if let Some((cell, number, above)) = sparse {
            let best = self.arena.at(number)[BEST].load(Relaxed);
            // Without memory the large table goes on to serve.
            let _ = self.exchange_node(garbage, cell, self.items(Entry::Table(number)), best, above);
        }
        Ok(())
    }

    /// How many prefixes the list has that an entry leads to, or would have.
    fn in_list_of(&self, entry: Entry) -> Option<usize> {
        match entry {
            Entry::Nothing | Entry::Value(_) => Some(0),
            Entry::List(number) => Some(self.list_len(number)),
            Entry::Table(_) => None,
        }
    }

    /// Which one of a list's prefixes this one is.
    fn place_in_list(&self, number: u32, len: u32, bits: &[u32]) -> Option<usize> {
        self.prefixes(number).position(|prefix| {
            let (value, own, _) = in_list(prefix, self.words);
            own == len && same(self.address_of(value - 1), bits, len)
        })
    }

    /// The words of each prefix of a list.
    fn prefixes(&self, number: u32) -> std::slice::ChunksExact<'_, AtomicU32> {
        let step = list_step(self.words);
        self.arena.at(number)[LIST_HEAD..][..self.list_len(number) * step].chunks_exact(step)
    }

    /// Puts a list in the place of what is there and is one, or nothing: without one of its prefixes, or with one more.
    fn exchange_list(
        &self,
        garbage: &mut Garbage,
        cell: &AtomicU32,
        without: Option<usize>,
        more: Option<(u32, &[u32], u32)>,
        above: u32,
    ) -> Result<(), Errno> {
        let old = Entry::of(cell.load(Relaxed));
        let (best, number) = match old {
            Entry::List(number) => (self.best_of(number), Some(number)),
            Entry::Value(best) => (best + 1, None),
            _ => (0, None),
        };
        let count = number.map_or(0, |number| self.list_len(number)) + usize::from(more.is_some())
            - usize::from(without.is_some());
        let new = match count {
            0 => Entry::best(best),
            _ => {
                let piece = self.arena.take(LIST_HEAD + count * list_step(self.words))?;
                let words = self.arena.at(piece.number);
                words[BEST].store(best | (count as u32) << COUNT_SHIFT, Relaxed);
                let mut to = words[LIST_HEAD..].chunks_exact(list_step(self.words));
                // Longest first, and of one length the newest last.
                let mut more = more;
                let old = number.into_iter().flat_map(|number| self.prefixes(number)).enumerate();
                for (_, prefix) in old.filter(|(n, _)| Some(*n) != without) {
                    if let Some((len, bits, value)) = more.take_if(|(len, ..)| *len > in_list(prefix, self.words).1) {
                        self.write_prefix(to.next(), len, bits, value, above);
                    }
                    let to = to.next().into_iter().flatten();
                    to.zip(prefix).for_each(|(to, word)| to.store(word.load(Relaxed), Relaxed));
                }
                if let Some((len, bits, value)) = more {
                    self.write_prefix(to.next(), len, bits, value, above);
                }
                Entry::List(piece.number)
            }
        };
        self.collect_pieces(old, &mut garbage.pieces);
        cell.store(new.word(), Release);
        Ok(())
    }

    /// A prefix as it stands in a list to which `above` bits lead.
    fn write_prefix(&self, to: Option<&[AtomicU32]>, len: u32, bits: &[u32], value: u32, above: u32) {
        match to {
            Some([first, second]) => {
                first.store((value + 1) | len << LEN_SHIFT, Relaxed);
                second.store(bits[0], Relaxed);
            }
            Some([first, second, third]) => {
                first.store(value + 1, Relaxed);
                second.store(len, Relaxed);
                third.store(bits_at(bits, above, 32), Relaxed);
            }
            _ => {}
        }
    }

    /// Puts a node for these prefixes in the place of what is there.
    fn exchange_node(
        &self,
        garbage: &mut Garbage,
        cell: &AtomicU32,
        items: Vec<Item>,
        best: u32,
        above: u32,
    ) -> Result<(), Errno> {
        let mut made = Vec::new();
        match self.build(&mut made, items, best, above) {
            Ok(new) => {
                self.collect_pieces(Entry::of(cell.load(Relaxed)), &mut garbage.pieces);
                cell.store(new.word(), Release);
                Ok(())
            }
            Err(errno) => {
                garbage.pieces.append(&mut made);
                Err(errno)
            }
        }
    }

    /// A node for these prefixes, with everything below it. `above`: the bits that lead to it. What memory it takes is added to `made`.
    fn build(&self, made: &mut Vec<Piece>, mut items: Vec<Item>, best: u32, above: u32) -> Result<Entry, Errno> {
        if items.is_empty() {
            return Ok(Entry::best(best));
        }
        if items.len() <= LIST_MAX {
            return self.build_list(made, items, best, above);
        }
        let shortest = items.iter().map(|item| item.len).min().unwrap_or(0);
        let depth = items[1..].iter().fold(shortest, |common, item| common_bits(&items[0].bits, &item.bits, common));
        let size = (items.len() / 2).ilog2().clamp(1, SIZE_MAX).min(self.width as u32 * 8 - depth);
        let piece = self.arena.take(PATH + self.words + (3 << size))?;
        made.push(piece);
        let node = self.arena.at(piece.number);
        let head = [best, size, depth, 0, items.len() as u32];
        let zeros = std::iter::repeat_n(0, 3 << size);
        let path = items[0].bits.clone();
        let words = head.into_iter().chain(path).chain(zeros);
        node.iter().zip(words).for_each(|(word, value)| word.store(value, Relaxed));
        let mut deeper = Vec::new();
        for item in items.drain(..) {
            let inside = item.len - depth;
            if inside == 0 {
                node[OWN].store(item.value + 1, Relaxed);
            } else if inside <= size {
                let at = (1 << inside | bits_at(&item.bits, depth, inside)) as usize;
                self.inside(piece.number)[at].store(item.value + 1, Relaxed);
            } else {
                deeper.push((bits_at(&item.bits, depth, size), item));
            }
        }
        self.push_all(piece.number, 1, 0);
        deeper.sort_by_key(|(slot, _)| *slot);
        let mut deeper = deeper.into_iter().peekable();
        while let Some((slot, item)) = deeper.next() {
            let mut items = vec![item];
            while let Some((_, item)) = deeper.next_if(|(next, _)| *next == slot) {
                items.push(item);
            }
            let best = self.best_inside(piece.number, (1 << size) + slot as usize);
            let entry = self.build(made, items, best, depth + size)?;
            self.entry(piece.number, slot).store(entry.word(), Relaxed);
        }
        Ok(Entry::Table(piece.number))
    }

    fn build_list(&self, made: &mut Vec<Piece>, mut items: Vec<Item>, best: u32, above: u32) -> Result<Entry, Errno> {
        items.sort_by_key(|item| std::cmp::Reverse(item.len));
        let step = list_step(self.words);
        let piece = self.arena.take(LIST_HEAD + items.len() * step)?;
        made.push(piece);
        let words = self.arena.at(piece.number);
        words[BEST].store(best | (items.len() as u32) << COUNT_SHIFT, Relaxed);
        for (to, item) in words[LIST_HEAD..].chunks_exact(step).zip(&items) {
            self.write_prefix(Some(to), item.len, &item.bits, item.value, above);
        }
        Ok(Entry::List(piece.number))
    }

    /// All prefixes of a node and below it.
    pub(super) fn items(&self, entry: Entry) -> Vec<Item> {
        let mut items = Vec::new();
        self.collect_items(entry, &mut items);
        items
    }

    fn collect_items(&self, entry: Entry, items: &mut Vec<Item>) {
        let mut push = |len: u32, value: u32| {
            if let Some(value) = value.checked_sub(1) {
                items.push(Item { len, bits: self.bits_of(value), value });
            }
        };
        match entry {
            Entry::Nothing | Entry::Value(_) => {}
            Entry::List(number) => {
                self.list_prefixes(number).into_iter().for_each(|(len, value)| push(len, value + 1));
            }
            Entry::Table(number) => {
                let node = self.arena.at(number);
                let (size, depth) = (node[SIZE].load(Relaxed), node[DEPTH].load(Relaxed));
                push(depth, node[OWN].load(Relaxed));
                let inside = self.inside(number)[..2 << size].iter().enumerate().skip(2);
                inside.for_each(|(at, word)| push(depth + at.ilog2(), word.load(Relaxed)));
                (0..1 << size)
                    .for_each(|slot| self.collect_items(Entry::of(self.entry(number, slot).load(Relaxed)), items));
            }
        }
    }

    /// The memory of a node and of all below it.
    pub(super) fn collect_pieces(&self, entry: Entry, pieces: &mut Vec<Piece>) {
        let unit = super::arena::UNIT;
        match entry {
            Entry::Nothing | Entry::Value(_) => {}
            Entry::List(number) => {
                let words = LIST_HEAD + self.list_len(number) * list_step(self.words);
                pieces.push(Piece { number, units: words.div_ceil(unit) });
            }
            Entry::Table(number) => {
                let size = self.arena.at(number)[SIZE].load(Relaxed);
                (0..1 << size)
                    .for_each(|slot| self.collect_pieces(Entry::of(self.entry(number, slot).load(Relaxed)), pieces));
                pieces.push(Piece { number, units: (PATH + self.words + (3 << size)).div_ceil(unit) });
            }
        }
    }

    fn best_of(&self, number: u32) -> u32 {
        self.arena.at(number)[BEST].load(Relaxed) & BEST_MASK
    }

    fn list_len(&self, number: u32) -> usize {
        (self.arena.at(number)[BEST].load(Relaxed) >> COUNT_SHIFT) as usize
    }

    /// Length and value of each prefix of a list.
    pub(super) fn list_prefixes(&self, number: u32) -> Vec<(u32, u32)> {
        let prefix = |prefix| {
            let (value, len, _) = in_list(prefix, self.words);
            (len, value - 1)
        };
        self.prefixes(number).map(prefix).collect()
    }

    fn entry(&self, number: u32, slot: u32) -> &AtomicU32 {
        &self.arena.at(number)[PATH + self.words + slot as usize]
    }

    /// The values of a table's prefixes that end inside its bits, by number.
    pub(super) fn inside(&self, number: u32) -> &[AtomicU32] {
        let node = self.arena.at(number);
        &node[PATH + self.words + (1 << node[SIZE].load(Relaxed))..]
    }

    /// The value (+ 1) of the longest prefix inside a table that begins the one with the number `at`, or is it.
    fn best_inside(&self, number: u32, at: usize) -> u32 {
        let inside = self.inside(number);
        let way = std::iter::successors(Some(at), |at| Some(at / 2)).take_while(|at| *at > 1);
        way.map(|at| inside[at].load(Relaxed)).find(|value| *value != 0).unwrap_or(0)
    }

    /// Makes `best` what the entries below the prefix with the number `at` hold, but for those that have a longer one.
    fn push(&self, number: u32, at: usize, best: u32) {
        let size = self.arena.at(number)[SIZE].load(Relaxed);
        if at >= 1 << size {
            let entry = self.entry(number, (at - (1 << size)) as u32);
            match Entry::of(entry.load(Relaxed)) {
                Entry::List(node) => {
                    let word = &self.arena.at(node)[BEST];
                    word.store(word.load(Relaxed) & !BEST_MASK | best, Release);
                }
                Entry::Table(node) => self.arena.at(node)[BEST].store(best, Release),
                _ => entry.store(Entry::best(best).word(), Release),
            }
            return;
        }
        for below in [2 * at, 2 * at + 1] {
            if self.inside(number)[below].load(Relaxed) == 0 {
                self.push(number, below, best);
            }
        }
    }

    /// Fills the entries of a new table from the prefixes inside it.
    fn push_all(&self, number: u32, at: usize, best: u32) {
        let size = self.arena.at(number)[SIZE].load(Relaxed);
        if at >= 1 << size {
            self.entry(number, (at - (1 << size)) as u32).store(Entry::best(best).word(), Relaxed);
            return;
        }
        for below in [2 * at, 2 * at + 1] {
            let own = self.inside(number)[below].load(Relaxed);
            self.push_all(number, below, if own != 0 { own } else { best });
        }
    }
}
