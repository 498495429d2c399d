//! LPM_TRIE: the value of the longest stored prefix that matches.
//!
//! A trie whose nodes look at many bits at once. A **table** first compares the bits that all its prefixes share (the path),
//! then takes the next `s` bits of the address as an index. How many those are follows from the number of prefixes below,
//! about one for each entry, and is chosen anew when that number doubles. A **list** holds up to eight prefixes, longest first.
//!
//! ```text
//! entry   0: nothing | number of a value << 1 | 1 | number of a table << 2 | number of a list << 2 | 2
//! list    best | count << 28, then for each prefix, when addresses have at most four bytes: value + 1 | length << 26, its
//!         bits; for longer addresses: value + 1, length, 32 of its bits from where the list begins (the whole is compared
//!         where the value lies)
//! table   best, s, depth, own, count, path, then 2^s entries, then 2^(s+1) values by prefix
//! ```
//!
//! `best` is what the table above has for this entry: the value (+ 1) of the longest prefix that ends inside its `s` bits.
//! `own` is the value of the prefix that ends where the table's bits begin. Prefixes that end inside are kept by number: that
//! of `l` bits with value `v` is number `2^l + v`, so a prefix's parent is half its number. They are pushed down to the
//! entries, so that a look-up needs one word for each level.
//!
//! With 100,000 prefixes of IPv4 a look-up loads one entry of a table of 65,536 and, for every second address, one list.
//!
//! Readers walk without a lock. Writers take the trie's lock; they build lists and tables beside the old ones and exchange
//! the entry. Elsewhere they change single words, so a look-up that runs at the same time sees the old value or the new one;
//! a prefix that spans many entries becomes visible entry by entry. What is unlinked is used again behind the guards.

mod ahead;
mod arena;
mod build;
mod order;

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec};

use self::arena::{Arena, Garbage, Most, Piece};
use crate::native::{LpmLayout, MapLayout};
use crate::ops::{Batches, Ops, check_plain_flags};
use crate::storage::Block;
use crate::{Env, Guard, HugePages, ValueRef};

pub(crate) struct LpmTrie {
    /// Bytes of an address: the key without its prefix length, and the words that hold them.
    width: usize,
    words: usize,
    value_size: usize,
    max: usize,
    /// The piece with the entry of the first node, and the count of changes.
    root: Piece,
    /// Nodes, and value and address of each prefix, by number.
    arena: Arena,
    stride: usize,
    /// Where the address lies behind the value.
    key_at: usize,
    /// Stored prefixes. Written by the writer.
    count: AtomicUsize,
    writer: Mutex<Writer>,
}

#[derive(Default)]
struct Writer {
    /// What is out of the trie and not yet left to the guards.
    garbage: Garbage,
    /// Changes that it is of.
    changes: usize,
}

/// Who changes a trie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The system call side.
    User,
    Program,
}

// Words of a node's head.
const BEST: usize = 0;
/// Of the first word of a list: the bits that are `best`; the others are the number of prefixes.
pub(crate) const BEST_MASK: u32 = (1 << COUNT_SHIFT) - 1;
pub(crate) const COUNT_SHIFT: u32 = 28;
const LIST_HEAD: usize = 1;
/// Bits of a table's index.
const SIZE: usize = 1;
const DEPTH: usize = 2;
const OWN: usize = 3;
const BELOW: usize = 4;
const PATH: usize = 5;
/// In a list for short addresses, the length stands above the value.
pub(crate) const LEN_SHIFT: u32 = 26;

/// What an entry leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    Nothing,
    Value(u32),
    Table(u32),
    List(u32),
}

impl Entry {
    #[inline(always)]
    fn of(word: u32) -> Entry {
        match word & 3 {
            1 | 3 => Entry::Value(word >> 1),
            2 => Entry::List(word >> 2),
            _ if word == 0 => Entry::Nothing,
            _ => Entry::Table(word >> 2),
        }
    }

    fn word(self) -> u32 {
        match self {
            Entry::Nothing => 0,
            Entry::Value(value) => value << 1 | 1,
            Entry::Table(number) => number << 2,
            Entry::List(number) => number << 2 | 2,
        }
    }

    /// The entry of a value's number + 1, or nothing.
    fn best(best: u32) -> Entry {
        best.checked_sub(1).map_or(Entry::Nothing, Entry::Value)
    }
}

// What generated code knows of a table.
const _: () = {
    let [size, depth, own, path] = crate::native::TRIE_TABLE;
    assert!(size == 4 * SIZE && depth == 4 * DEPTH && own == 4 * OWN && path == 4 * PATH);
};

/// Longest address: 256 bytes.
const WORDS_MAX: usize = 64;

/// Values that fit into the words of a list.
fn most_values(words: usize) -> usize {
    if words == 1 { (1 << LEN_SHIFT) - 1 } else { BEST_MASK as usize - 1 }
}

/// Values that may wait for guards besides four times the map's size.
const WAITING: usize = if cfg!(miri) { 1 << 12 } else { 1 << 20 };

/// After so many changes, or for so many pieces, what is out of the trie is left to the guards, which costs more than a change itself; and
/// what waits for them is looked through. That is done by itself when guards are taken, but not for each of them,
/// and only so much at a time: a worker that takes one guard for a burst of changes would be ever further ahead of it.
const ASK: usize = 32;
const ASK_PIECES: usize = 64;

/// Tries for so many prefixes lie on huge pages.
const LARGE: usize = 1 << 14;

/// Words of the first entry and the count of changes: two of 64 bits; and of a cache line.
const ROOT: usize = 4;
const LINE: usize = 16;

/// Reserved for each prefix and each word of an address; only what is used becomes memory.
const RESERVE: usize = 96;

impl LpmTrie {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<LpmTrie, Errno> {
        let width = spec.key_size as usize - 4;
        let words = width.div_ceil(4);
        let max = spec.max_entries as usize;
        let value_size = spec.value_size as usize;
        // As values of other maps, but those in which nothing can be wider than four bytes: a next hop's number is the usual thing.
        let align = if value_size <= 4 { 4 } else { 8 };
        let key_at = value_size.next_multiple_of(align);
        let stride = (key_at + 4 * words).next_multiple_of(align);
        // What leaves waits for the guards, so there is room for many times the map, as far as there are addresses. Only what
        // is used becomes memory.
        let most = (1usize << 44) / stride;
        let capacity = (4 * max + WAITING).min(most).min(most_values(words)) as u32;
        // A huge page for a few prefixes would be a waste, and so would any page for a handful. What shall lie on a node has its own.
        let shared = max < LARGE && Arena::may_share(stride) && crate::create::wanted_node(spec).is_none();
        let full = max.saturating_mul(RESERVE * (words + 2)).min(1 << 33);
        let nodes = full + 64 * WAITING;
        let (arena, root) = if shared {
            let most = Most { bytes: nodes, values: capacity, full_bytes: full, full_values: max };
            (Arena::shared(most, stride)?, ROOT)
        } else {
            let pages = if max < LARGE { HugePages::Never } else { env.huge_pages };
            (Arena::own(pages, nodes, stride, capacity)?, LINE)
        };
        let root = arena.take(root)?;
        arena.at(root.number)[..ROOT].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let (count, writer) = (AtomicUsize::new(0), Mutex::default());
        Ok(LpmTrie { width, words, value_size, max, root, arena, stride, key_at, count, writer })
    }

    /// Prefixes that are stored.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Prefixes that can be stored.
    pub(crate) fn max_entries(&self) -> usize {
        self.max
    }

    pub(crate) fn layout(&self) -> MapLayout {
        MapLayout::Lpm(LpmLayout {
            root: self.root().as_ptr() as usize,
            nodes: self.arena.block().addr(),
            values: self.arena.values().addr(),
            stride: self.stride,
            width: self.width as u32,
            path_words: self.words as u32,
            changes: self.changes().as_ptr() as usize,
            key_at: self.key_at,
        })
    }

    /// The longest stored prefix of the key.
    #[inline]
    pub(crate) fn at<'g>(&self, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        let (len, bytes) = self.split(key)?;
        let found = match self.words {
            1 => self.find(len, &[word_of(bytes, 0)]),
            4 if bytes.len() == 16 => self.find(len, &std::array::from_fn::<u32, 4, _>(|at| word_of(bytes, at))),
            _ => self.find(len, self.words_of(bytes, &mut [0; WORDS_MAX])),
        };
        Some(self.arena.values().value(found? as usize * self.stride, self.value_size, guard))
    }

    /// The number of the value of the longest stored prefix of the first `len` bits.
    #[inline(always)]
    fn find(&self, len: u32, bits: &[u32]) -> Option<u32> {
        let mut best = 0u32;
        let mut below = 0;
        let mut word = self.root().load(Ordering::Acquire);
        loop {
            let (node, list) = match Entry::of(word) {
                Entry::Nothing => return best.checked_sub(1),
                Entry::Value(value) => return Some(value),
                Entry::List(number) => (self.arena.at(number), true),
                Entry::Table(number) => (self.arena.at(number), false),
            };
            let above = node[BEST].load(Ordering::Acquire);
            if above & BEST_MASK != 0 {
                best = above & BEST_MASK;
            }
            if list {
                let count = (above >> COUNT_SHIFT) as usize;
                return self.find_in_list(&node[LIST_HEAD..], count, below, len, bits).unwrap_or(best).checked_sub(1);
            }
            let (size, depth) = (node[SIZE].load(Ordering::Relaxed), node[DEPTH].load(Ordering::Relaxed));
            if len < depth || (depth != 0 && !self.on_path(node, depth, bits)) {
                return best.checked_sub(1);
            }
            let own = node[OWN].load(Ordering::Acquire);
            if own != 0 {
                best = own;
            }
            let entries = &node[PATH + bits.len()..];
            if len < depth + size {
                // Not an address but a prefix: only what is not longer than itself counts.
                let inside = &entries[1 << size..];
                let mut at = 1u32 << (len - depth) | bits_at(bits, depth, len - depth);
                while at > 1 {
                    let value = inside[at as usize].load(Ordering::Acquire);
                    if value != 0 {
                        return Some(value - 1);
                    }
                    at >>= 1;
                }
                return best.checked_sub(1);
            }
            below = depth + size;
            word = entries[bits_at(bits, depth, size) as usize].load(Ordering::Acquire);
        }
    }

    /// The value (+ 1) of the first prefix of a list that matches; they stand longest first. `below`: the bits that led to the
    /// list.
    #[inline(always)]
    fn find_in_list(&self, list: &[AtomicU32], count: usize, below: u32, len: u32, bits: &[u32]) -> Option<u32> {
        let step = list_step(bits.len());
        let mut prefixes = list[..count * step].chunks_exact(step);
        if let [bits] = bits {
            return prefixes.find_map(|prefix| {
                let (value, own, prefix) = in_list(prefix, 1);
                (own <= len && (prefix ^ bits) & mask(own) == 0).then_some(value)
            });
        }
        let window = bits_at(bits, below, 32);
        prefixes.find_map(|prefix| {
            let (value, own, prefix) = in_list(prefix, bits.len());
            let near = own <= len && (prefix ^ window) & mask(own - below) == 0;
            (near && same(self.address_of(value - 1), bits, own)).then_some(value)
        })
    }

    #[inline]
    fn on_path(&self, node: &[AtomicU32], depth: u32, bits: &[u32]) -> bool {
        same(&node[PATH..], bits, depth)
    }

    /// Counts changes: odd while one is under way.
    #[inline(always)]
    fn changes(&self) -> &AtomicU64 {
        // Beside the root's entry, which is the first half of the first word.
        &self.arena.block().words()[self.root.number as usize + 1]
    }

    #[inline(always)]
    fn root(&self) -> &AtomicU32 {
        &self.arena.at(self.root.number)[0]
    }

    /// Prefix length and address; `None` when the length is more than the address has.
    fn split<'k>(&self, key: &'k [u8]) -> Option<(u32, &'k [u8])> {
        let (len, bytes) = key.split_first_chunk::<4>()?;
        let len = u32::from_ne_bytes(*len);
        (len as usize <= self.width * 8).then_some((len, bytes))
    }

    /// The words of an address, in room for the longest.
    #[inline]
    fn words_of<'w>(&self, bytes: &[u8], room: &'w mut [u32; WORDS_MAX]) -> &'w [u32] {
        let words = &mut room[..self.words];
        words.iter_mut().enumerate().for_each(|(at, word)| *word = word_of(bytes, at));
        words
    }

    /// A new value's number, the address of its prefix written with it.
    fn new_value(&self, bits: &[u32], bytes: &[u8]) -> Result<u32, Errno> {
        let value = self.arena.take_value()?;
        let _ = self.arena.values().place(value as usize * self.stride, self.value_size).write_bytes(0, bytes);
        let address = self.address_of(value);
        address.iter().zip(bits).for_each(|(word, bits)| word.store(*bits, Ordering::Relaxed));
        Ok(value)
    }

    /// The address of the prefix that a value belongs to. How many of its bits count is known to whoever knows where it stands in the trie.
    fn address_of(&self, value: u32) -> &[AtomicU32] {
        &self.arena.values().halves()[(value as usize * self.stride + self.key_at) / 4..][..self.words]
    }

    fn store(&self, by: By, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        check_plain_flags(flags)?;
        let (len, bytes) = self.split(key).ok_or(Errno::EINVAL)?;
        let mut room = [0; WORDS_MAX];
        let bits = self.words_of(bytes, &mut room);
        let mut writer = self.writer.lock();
        let garbage = &mut writer.garbage;
        let stored = self.exact(len, bits);
        match flags {
            f::NOEXIST if stored.is_some() => return Err(Errno::EEXIST),
            f::EXIST if stored.is_none() => return Err(Errno::ENOENT),
            _ => {}
        }
        if stored.is_none() && self.count() >= self.max {
            return Err(Errno::ENOSPC);
        }
        let new = self.new_value(bits, value)?;
        let change = Change::begin(self.changes());
        let done = match stored {
            Some(old) => {
                self.exchange(len, bits, new);
                garbage.values.push(old);
                Ok(())
            }
            None => self.insert(garbage, len, bits, new),
        };
        match done {
            Ok(()) => self.count.store(self.count() + usize::from(stored.is_none()), Ordering::Relaxed),
            Err(_) => garbage.values.push(new),
        }
        drop(change);
        self.retire(writer, by);
        done
    }

    fn remove(&self, by: By, key: &[u8]) -> Result<(), Errno> {
        let (len, bytes) = self.split(key).ok_or(Errno::EINVAL)?;
        let mut room = [0; WORDS_MAX];
        let bits = self.words_of(bytes, &mut room);
        let mut writer = self.writer.lock();
        let garbage = &mut writer.garbage;
        let old = self.exact(len, bits).ok_or(Errno::ENOENT)?;
        let change = Change::begin(self.changes());
        self.take_out(garbage, len, bits)?;
        garbage.values.push(old);
        self.count.store(self.count() - 1, Ordering::Relaxed);
        drop(change);
        self.retire(writer, by);
        Ok(())
    }

    /// Leaves what is out of the trie to the guards, without the lock: this may be where what others have removed is freed. Programs do so
    /// now and then; and others, who have the time, in a small trie each time: what waits would soon be more than what serves.
    fn retire(&self, mut writer: MutexGuard<'_, Writer>, by: By) {
        writer.changes += 1;
        let few = writer.changes < ASK && writer.garbage.pieces.len() <= ASK_PIECES;
        if few && (by == By::Program || self.count() >= LARGE) {
            return;
        }
        let Writer { garbage, .. } = std::mem::take(&mut *writer);
        drop(writer);
        let returns = self.arena.returns();
        let guard = crossbeam_epoch::pin();
        guard.defer(move || returns(&garbage));
        guard.flush();
    }
}

impl Drop for LpmTrie {
    /// What others have parts of does not go with the trie.
    fn drop(&mut self) {
        if !self.arena.is_shared() {
            return;
        }
        let mut garbage = std::mem::take(&mut self.writer.get_mut().garbage);
        let first = Entry::of(self.root().load(Ordering::Relaxed));
        self.collect_pieces(first, &mut garbage.pieces);
        garbage.pieces.push(self.root);
        garbage.values.extend(self.items(first).into_iter().map(|item| item.value));
        self.arena.give_all(garbage);
    }
}

/// A change that is under way, which the writer's lock makes the only one.
struct Change<'t>(&'t AtomicU64);

impl<'t> Change<'t> {
    fn begin(changes: &'t AtomicU64) -> Change<'t> {
        changes.fetch_add(1, Ordering::AcqRel);
        Change(changes)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Words of a prefix in a list.
#[inline(always)]
pub(crate) fn list_step(words: usize) -> usize {
    if words == 1 { 2 } else { 3 }
}

/// Value (+ 1), length and some bits of a prefix in a list.
#[inline(always)]
fn in_list(prefix: &[AtomicU32], words: usize) -> (u32, u32, u32) {
    let first = prefix[0].load(Ordering::Acquire);
    let second = prefix[1].load(Ordering::Relaxed);
    if words == 1 {
        (first & ((1 << LEN_SHIFT) - 1), first >> LEN_SHIFT, second)
    } else {
        (first, second, prefix[2].load(Ordering::Relaxed))
    }
}

/// A word of an address, its first bit on top.
#[inline(always)]
fn word_of(bytes: &[u8], at: usize) -> u32 {
    match bytes[4 * at..].first_chunk::<4>() {
        Some(four) => u32::from_be_bytes(*four),
        None => {
            bytes[4 * at..].iter().zip([24, 16, 8, 0]).fold(0, |word, (byte, shift)| word | u32::from(*byte) << shift)
        }
    }
}

/// The first `len` bits of a word.
#[inline(always)]
fn mask(len: u32) -> u32 {
    (0xffff_ffff_0000_0000u64 >> len.min(32)) as u32
}

/// Whether the first `len` bits are the same.
#[inline(always)]
fn same(prefix: &[AtomicU32], bits: &[u32], len: u32) -> bool {
    if let [bits] = bits {
        return (prefix[0].load(Ordering::Relaxed) ^ bits) & mask(len) == 0;
    }
    let whole = len as usize / 32;
    bits[..whole].iter().zip(prefix).all(|(bits, word)| *bits == word.load(Ordering::Relaxed))
        && (len.is_multiple_of(32) || (prefix[whole].load(Ordering::Relaxed) ^ bits[whole]) & mask(len % 32) == 0)
}

/// `count` bits from bit `at`, at most 32.
#[inline(always)]
fn bits_at(bits: &[u32], at: u32, count: u32) -> u32 {
    let word = |n: usize| u64::from(bits.get(n).copied().unwrap_or(0));
    let first = at as usize / 32;
    let both = word(first) << 32 | word(first + 1);
    ((both << (at % 32)) >> 32 >> (32 - count)) as u32
}

impl Ops for LpmTrie {
    fn blocks(&self) -> Vec<&Block> {
        self.arena.blocks()
    }

    fn memory(&self) -> usize {
        size_of::<LpmTrie>() + self.arena.memory()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        let guard = Guard::pin();
        let value = self.at(key, &guard).ok_or(Errno::ENOENT)?;
        let _ = value.read_bytes(0, &mut out[..self.value_size]);
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.store(By::User, key, value, flags)
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        self.remove(By::User, key)
    }

    /// Order: what lies below a prefix comes before it, bit 0 before bit 1. After a key that is not stored: from the first.
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        let _writer = self.writer.lock();
        let mut room = [0; WORDS_MAX];
        let from = key.and_then(|key| self.split(key)).map(|(len, bytes)| (len, self.words_of(bytes, &mut room)));
        let next = match from.filter(|(len, bits)| self.exact(*len, bits).is_some()) {
            Some((len, bits)) => self.after(len, bits),
            None => self.first(),
        };
        let (len, value) = next.ok_or(Errno::ENOENT)?;
        out[..4].copy_from_slice(&len.to_ne_bytes());
        for (out, word) in out[4..4 + self.width].chunks_mut(4).zip(self.address_of(value)) {
            out.copy_from_slice(&word.load(Ordering::Relaxed).to_be_bytes()[..out.len()]);
        }
        Ok(())
    }

    fn batches(&self) -> Batches {
        Batches { lookup: true, update: true, delete: true, ..Batches::default() }
    }

    fn value<'g>(&self, _: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.at(key, guard)
    }

    fn prog_update(&self, _: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.store(By::Program, key, value, flags)
    }

    fn prog_delete(&self, _: u32, key: &[u8]) -> Result<(), Errno> {
        self.remove(By::Program, key)
    }
}

#[cfg(test)]
mod tests;
