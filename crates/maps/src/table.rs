//! The hash table under all hash maps: chains of numbered elements, writers lock a bucket, readers lock nothing.
//!
//! ```text
//! heads[bucket] ──► element ──► element ──► END|bucket      (0 in a head: never used)
//! element = next, hash, link, generation | key, padded to 8 | value, padded to 8
//! ```
//!
//! Elements are used again at once after they leave the table, while readers may stand on them. Three things keep readers
//! right. The *end mark* names the bucket, so that a reader who was carried into another chain notices at its end and
//! starts again. The *generation* is even while an element is in the table and changes when it leaves: a reader compares
//! the key (and copies the value) between two looks at it, and starts again when it has changed. And a reader who finds
//! nothing looks whether some key of the bucket changed its element on the way, and then looks again: a key that is only
//! ever replaced is always found.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use parking_lot::{Mutex, MutexGuard};
use xway_abi::Errno;

use crate::keyhash::{Seed, tail};
use crate::pool::{Evict, FreeList, Lru};
use crate::slab::Slab;
use crate::storage::Block;
use crate::{Guard, ValueRef};

/// Where elements come from.
pub(crate) enum Pool {
    /// A fixed number of elements; `E2BIG` when they are used up.
    Plain { free: FreeList, count: AtomicU32, max: u32 },
    /// Old elements make room for new ones.
    Lru(Lru),
}

pub(crate) struct Table {
    key_size: usize,
    /// Offset of the value in an element, and its length as programs see it (0: values are kept elsewhere).
    value_at: usize,
    value_size: usize,
    slab: Slab,
    heads: Block,
    mask: u32,
    stripes: Box<[Stripe]>,
    seed: Seed,
    pool: Pool,
}

/// What some buckets share.
#[derive(Default)]
struct Stripe {
    /// Held to change a chain.
    lock: Mutex<()>,
    /// Elements that left their chain because a new one took over their key.
    replaced: AtomicU32,
}

/// An element found by a reader.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) index: u32,
    generation: u32,
}

/// Locks at most: more buckets share them.
const LOCKS_MAX: u32 = 1024;
/// Marks the end of a chain; the bucket's number is in the other bits.
const END: u32 = 1 << 31;
/// Elements beyond `max_entries` in a plain pool: a replacement needs a second element for a moment.
pub(crate) const SPARE: u32 = 64;

// Words of an element's header.
const NEXT: usize = 0;
const HASH: usize = 1;
/// In a free element: the free list's link. In a used one: the LRU mark.
const LINK: usize = 2;
const GENERATION: usize = 3;
const HEADER: usize = 16;

/// One element's memory.
#[derive(Clone, Copy)]
struct Element<'t> {
    block: &'t Block,
    offset: usize,
}

impl<'t> Element<'t> {
    #[inline]
    fn word(&self, which: usize) -> &'t AtomicU32 {
        &self.block.halves()[self.offset / 4 + which]
    }

    #[inline]
    fn key(&self) -> &'t [AtomicU64] {
        &self.block.words()[(self.offset + HEADER) / 8..]
    }
}

impl Table {
    /// `buckets` is a power of two. `whole`: all memory now, else as elements come.
    pub(crate) fn new(
        key_size: usize,
        value_size: usize,
        buckets: u32,
        capacity: u32,
        whole: bool,
        seed: Seed,
        pool: Pool,
    ) -> Result<Table, Errno> {
        let value_at = HEADER + key_size.next_multiple_of(8);
        let stride = value_at + value_size.next_multiple_of(8);
        Ok(Table {
            key_size,
            value_at,
            value_size,
            slab: Slab::new(stride, capacity, whole)?,
            heads: Block::new(buckets as usize * 4)?,
            mask: buckets - 1,
            stripes: (0..buckets.min(LOCKS_MAX)).map(|_| Stripe::default()).collect(),
            seed,
            pool,
        })
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u32 {
        self.seed.hash(key)
    }

    pub(crate) fn buckets(&self) -> u32 {
        self.mask + 1
    }

    pub(crate) fn key_size(&self) -> usize {
        self.key_size
    }

    /// The hash of an element's key.
    pub(crate) fn hash_of(&self, index: u32) -> u32 {
        self.element(index).word(HASH).load(Ordering::Relaxed)
    }

    /// Whether the bucket has no element right now; needs no lock.
    pub(crate) fn is_empty_bucket(&self, bucket: u32) -> bool {
        let head = self.heads.halves()[bucket as usize].load(Ordering::Acquire);
        head == 0 || head & END != 0
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Locks the bucket of this hash (and those that share its lock). Locks are taken one at a time.
    pub(crate) fn lock(&self, hash: u32) -> MutexGuard<'_, ()> {
        self.stripe(hash).lock.lock()
    }

    #[inline]
    fn stripe(&self, hash: u32) -> &Stripe {
        &self.stripes[(hash & self.mask) as usize & (self.stripes.len() - 1)]
    }

    /// Looks a key up without a lock.
    #[inline]
    pub(crate) fn find(&self, hash: u32, key: &[u8]) -> Option<Found> {
        let bucket = hash & self.mask;
        let replaced = &self.stripe(hash).replaced;
        'again: loop {
            let before = replaced.load(Ordering::Acquire);
            let mut at = self.heads.halves()[bucket as usize].load(Ordering::Acquire);
            while at != 0 && at & END == 0 {
                let element = self.element(at - 1);
                let generation = element.word(GENERATION).load(Ordering::Acquire);
                let next = element.word(NEXT).load(Ordering::Acquire);
                let matches = element.word(HASH).load(Ordering::Relaxed) == hash && self.key_is(element, key);
                let found = Found { index: at - 1, generation };
                // Key and link must be of one moment in which the element was in the table. Else it may have been the
                // wanted key's before and the key may have a new element, in front of where we are.
                if generation & 1 == 1 || !self.still(found) {
                    std::hint::spin_loop();
                    continue 'again;
                }
                if matches {
                    return Some(found);
                }
                at = next;
            }
            // Nothing found. If a key of this stripe changed its element meanwhile, it may have been this one: its new
            // element in front of where the walk began, its old one gone from behind.
            fence(Ordering::Acquire);
            if (at == 0 || at == END | bucket) && replaced.load(Ordering::Relaxed) == before {
                return None;
            }
        }
    }

    /// Whether the element has been this key's all the time since it was found. What was read from it in between is then
    /// what belonged to the key.
    #[inline]
    pub(crate) fn still(&self, found: Found) -> bool {
        fence(Ordering::Acquire);
        self.element(found.index).word(GENERATION).load(Ordering::Relaxed) == found.generation
    }

    /// The value of an element.
    #[inline]
    pub(crate) fn value<'g>(&self, index: u32, guard: &'g Guard) -> ValueRef<'g> {
        let Element { block, offset } = self.element(index);
        block.value(offset + self.value_at, self.value_size, guard)
    }

    /// Marks the element as used lately.
    #[inline]
    pub(crate) fn touch(&self, index: u32) {
        let link = self.element(index).word(LINK);
        if link.load(Ordering::Relaxed) == 0 {
            link.store(1, Ordering::Relaxed);
        }
    }

    /// Copies an element's key out.
    pub(crate) fn read_key(&self, index: u32, out: &mut [u8]) {
        let words = self.element(index).key();
        for (word, out) in words.iter().zip(out[..self.key_size].chunks_mut(8)) {
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            out.copy_from_slice(&bytes[..out.len()]);
        }
    }

    /// Under the bucket's lock: looks a key up.
    pub(crate) fn find_locked(&self, hash: u32, key: &[u8]) -> Option<u32> {
        self.chain(hash & self.mask).find(|&index| {
            let element = self.element(index);
            element.word(HASH).load(Ordering::Relaxed) == hash && self.key_is(element, key)
        })
    }

    /// Under the bucket's lock: the elements of a bucket.
    pub(crate) fn chain(&self, bucket: u32) -> impl Iterator<Item = u32> {
        let mut at = self.heads.halves()[bucket as usize].load(Ordering::Acquire);
        std::iter::from_fn(move || {
            if at == 0 || at & END != 0 {
                return None;
            }
            let index = at - 1;
            at = self.element(index).word(NEXT).load(Ordering::Relaxed);
            Some(index)
        })
    }

    /// Under the bucket's lock: makes an element that was taken from the pool the first of its bucket. `fill` writes the
    /// value.
    pub(crate) fn insert(&self, hash: u32, key: &[u8], index: u32, fill: impl FnOnce(u32)) {
        let element = self.element(index);
        let generation = element.word(GENERATION);
        // Odd from here until the element is complete; readers that still stand on it give up.
        let odd = generation.load(Ordering::Relaxed) | 1;
        generation.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        element.word(HASH).store(hash, Ordering::Relaxed);
        element.word(LINK).store(0, Ordering::Relaxed);
        let (chunks, rest) = key.as_chunks::<8>();
        for (word, chunk) in element.key().iter().zip(chunks) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            element.key()[chunks.len()].store(tail(rest), Ordering::Relaxed);
        }
        fill(index);
        let bucket = hash & self.mask;
        let head = &self.heads.halves()[bucket as usize];
        let first = head.load(Ordering::Relaxed);
        element.word(NEXT).store(if first == 0 { END | bucket } else { first }, Ordering::Release);
        generation.store(odd.wrapping_add(1), Ordering::Release);
        head.store(index + 1, Ordering::Release);
    }

    /// Under the bucket's lock: takes out the element whose key has just got a new one.
    pub(crate) fn unlink_replaced(&self, hash: u32, index: u32) {
        // Before the old element goes: a reader who no longer finds it sees the count or the new element.
        self.stripe(hash).replaced.fetch_add(1, Ordering::Release);
        self.unlink(hash, index);
    }

    /// Under the bucket's lock: takes an element out of its chain. Its successor link stays for readers who stand on it.
    pub(crate) fn unlink(&self, hash: u32, index: u32) {
        let head = &self.heads.halves()[(hash & self.mask) as usize];
        let next = self.element(index).word(NEXT).load(Ordering::Relaxed);
        let mut link = head;
        while link.load(Ordering::Relaxed) != index + 1 {
            let at = link.load(Ordering::Relaxed);
            debug_assert!(at != 0 && at & END == 0, "the element is in its bucket");
            if at == 0 || at & END != 0 {
                return;
            }
            link = self.element(at - 1).word(NEXT);
        }
        link.store(next, Ordering::Release);
        self.element(index).word(GENERATION).fetch_add(1, Ordering::Release);
    }

    /// An element of the LRU pool, before any lock is taken; one may be evicted for it, which `evicted` is told of before
    /// the element can be used again. `ENOMEM` when all are in other threads' hands.
    pub(crate) fn take_lru(&self, lru: &Lru, cpu: u32, evicted: impl Fn(u32)) -> Result<u32, Errno> {
        let evict = |index: u32, force: bool| {
            let element = self.element(index);
            let generation = element.word(GENERATION).load(Ordering::Acquire);
            if generation & 1 == 1 || generation == 0 {
                return Evict::Absent;
            }
            if element.word(LINK).swap(0, Ordering::Relaxed) != 0 && !force {
                return Evict::Spared;
            }
            let hash = element.word(HASH).load(Ordering::Relaxed);
            let _lock = self.lock(hash);
            // Unchanged under the lock: in the table, and the hash was its own.
            if element.word(GENERATION).load(Ordering::Acquire) != generation {
                return Evict::Absent;
            }
            self.unlink(hash, index);
            evicted(index);
            Evict::Taken
        };
        let index = lru.take(cpu, evict).ok_or(Errno::ENOMEM)?;
        self.slab.grow_to(index).map(|()| index)
    }

    /// Under the bucket's lock: an element of the plain pool. `replaces`: another element leaves for it, so that fullness
    /// does not matter; else `E2BIG` when the table is full.
    pub(crate) fn take_plain(&self, replaces: bool) -> Result<u32, Errno> {
        let Pool::Plain { free, count, max } = &self.pool else { return Err(Errno::EINVAL) };
        if !replaces
            && count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| (n < *max).then_some(n + 1)).is_err()
        {
            return Err(Errno::E2BIG);
        }
        let index = loop {
            match free.take(|index| self.element(index).word(LINK).load(Ordering::Relaxed)) {
                Some(index) => break index,
                // More replacements at once than there are spare elements: the others need no lock of ours to finish.
                None => std::thread::yield_now(),
            }
        };
        let grown = self.slab.grow_to(index);
        if let Err(errno) = grown {
            // The number is lost to the table, which is what running out of memory means; the count is not.
            if !replaces {
                count.fetch_sub(1, Ordering::AcqRel);
            }
            return Err(errno);
        }
        Ok(index)
    }

    /// Gives an element back that is not in the table. `counted`: it was an element of its own and not a replacement's
    /// other half.
    pub(crate) fn give(&self, cpu: u32, index: u32, counted: bool) {
        match &self.pool {
            Pool::Plain { free, count, .. } => {
                free.give(index, |link| self.element(index).word(LINK).store(link, Ordering::Relaxed));
                if counted {
                    count.fetch_sub(1, Ordering::AcqRel);
                }
            }
            Pool::Lru(lru) => lru.give(cpu, index),
        }
    }

    #[inline]
    fn element(&self, index: u32) -> Element<'_> {
        let (block, offset) = self.slab.place(index);
        Element { block, offset }
    }

    #[inline]
    fn key_is(&self, element: Element<'_>, key: &[u8]) -> bool {
        let words = element.key();
        let (chunks, rest) = key.as_chunks::<8>();
        chunks.iter().zip(words).all(|(chunk, word)| word.load(Ordering::Relaxed) == u64::from_ne_bytes(*chunk))
            && (rest.is_empty() || words[chunks.len()].load(Ordering::Relaxed) == tail(rest))
    }
}
