//! The order of the prefixes: what lies below a prefix comes before it, bit 0 before bit 1. Under the writer's lock.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering::Relaxed;

use super::{DEPTH, Entry, LpmTrie, OWN, PATH, SIZE, bits_at};

/// Which of two prefixes comes first.
fn compare(a: (u32, &[u32]), b: (u32, &[u32])) -> Order {
    let common = common_bits(a.1, b.1, a.0.min(b.0));
    match (a.0 == common, b.0 == common) {
        (true, true) => Order::Equal,
        // The longer one is the first.
        (true, false) => Order::Greater,
        (false, true) => Order::Less,
        (false, false) => bits_at(a.1, common, 1).cmp(&bits_at(b.1, common, 1)),
    }
}

/// How many of the first `limit` bits are the same.
pub(super) fn common_bits(a: &[u32], b: &[u32], limit: u32) -> u32 {
    let mut common = 0;
    for (a, b) in a.iter().zip(b) {
        let differ = (a ^ b).leading_zeros();
        common += differ;
        if differ < 32 || common >= limit {
            break;
        }
    }
    common.min(limit)
}

impl LpmTrie {
    /// The first stored prefix: its length and the number of its value.
    pub(super) fn first(&self) -> Option<(u32, u32)> {
        self.first_below(Entry::of(self.root().load(Relaxed)))
    }

    /// The stored prefix after this one.
    pub(super) fn after(&self, len: u32, bits: &[u32]) -> Option<(u32, u32)> {
        self.after_in(Entry::of(self.root().load(Relaxed)), len, bits)
    }

    /// The address of a value's prefix.
    pub(super) fn bits_of(&self, value: u32) -> Vec<u32> {
        self.address_of(value).iter().map(|word| word.load(Relaxed)).collect()
    }

    /// The first of a list that comes after `from`.
    fn first_in_list(&self, number: u32, from: Option<(u32, &[u32])>) -> Option<(u32, u32)> {
        let mut first: Option<((u32, u32), Vec<u32>)> = None;
        for (len, value) in self.list_prefixes(number) {
            let bits = self.bits_of(value);
            let here = (len, &bits[..]);
            if from.is_none_or(|from| compare(from, here) == Order::Less)
                && first.as_ref().is_none_or(|(first, bits)| compare(here, (first.0, bits)) == Order::Less)
            {
                first = Some(((len, value), bits));
            }
        }
        first.map(|(first, _)| first)
    }

    /// The first prefix of a node. What an entry holds as a value belongs to the table above it.
    fn first_below(&self, entry: Entry) -> Option<(u32, u32)> {
        match entry {
            Entry::Nothing | Entry::Value(_) => None,
            Entry::List(number) => self.first_in_list(number, None),
            Entry::Table(number) => self.first_inside(number, 1).or_else(|| self.own(number)),
        }
    }

    /// The prefix that ends where a table's bits begin.
    fn own(&self, number: u32) -> Option<(u32, u32)> {
        let node = self.arena.at(number);
        Some((node[DEPTH].load(Relaxed), node[OWN].load(Relaxed).checked_sub(1)?))
    }

    /// A table's prefix with the number `at`.
    fn inside_at(&self, number: u32, at: usize) -> Option<(u32, u32)> {
        let node = self.arena.at(number);
        let value = self.inside(number)[at].load(Relaxed).checked_sub(1)?;
        Some((node[DEPTH].load(Relaxed) + at.ilog2(), value))
    }

    /// The first prefix of a table below the one with the number `at`, that one last.
    fn first_inside(&self, number: u32, at: usize) -> Option<(u32, u32)> {
        let node = self.arena.at(number);
        let size = node[SIZE].load(Relaxed);
        let entries = &node[PATH + self.words..];
        let below = if at >= 1 << size {
            self.first_below(Entry::of(entries[at - (1 << size)].load(Relaxed)))
        } else {
            self.first_inside(number, 2 * at).or_else(|| self.first_inside(number, 2 * at + 1))
        };
        below.or_else(|| if at > 1 { self.inside_at(number, at) } else { None })
    }

    fn after_in(&self, entry: Entry, len: u32, bits: &[u32]) -> Option<(u32, u32)> {
        let number = match entry {
            Entry::Nothing | Entry::Value(_) => return None,
            Entry::List(number) => return self.first_in_list(number, Some((len, bits))),
            Entry::Table(number) => number,
        };
        let node = self.arena.at(number);
        let (size, depth) = (node[SIZE].load(Relaxed), node[DEPTH].load(Relaxed));
        // The prefix is stored, so it lies on the way: below this table, in it, or it is the table's own, the last of all.
        if len <= depth {
            return None;
        }
        let entries = &node[PATH + self.words..];
        let mut at;
        if len > depth + size {
            let slot = bits_at(bits, depth, size) as usize;
            if let Some(next) = self.after_in(Entry::of(entries[slot].load(Relaxed)), len, bits) {
                return Some(next);
            }
            at = (1 << size) + slot;
            if let Some(next) = self.inside_at(number, at) {
                return Some(next);
            }
        } else {
            at = 1 << (len - depth) | bits_at(bits, depth, len - depth) as usize;
        }
        while at > 1 {
            if at.is_multiple_of(2)
                && let Some(next) = self.first_inside(number, at + 1)
            {
                return Some(next);
            }
            at /= 2;
            if at > 1
                && let Some(next) = self.inside_at(number, at)
            {
                return Some(next);
            }
        }
        self.own(number)
    }
}
