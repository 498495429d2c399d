//! The hash table under all hash maps: buckets of one cache line, elements beside them.
//!
//! ```text
//! hash ──► bucket: tags, element numbers ──► element = key, padded to 8 | value, padded to 8
//!             └─ link ──► more slots, for the few buckets that are full
//! ```
//!
//! A look-up touches two cache lines, the bucket's and the element's, and both addresses follow from the hash alone and from
//! the first line: they can be fetched ahead for a whole burst. `line.rs` has the protocol that keeps readers right without a
//! lock. Elements are used again at once after they leave the table, while readers may stand on them, as in Linux.
//!
//! The low bits of the hash choose the bucket, its top byte is the tag. What Linux calls a bucket (the unit of the batch
//! commands, one element each on average) are the elements of a line whose tags agree in some low bits.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use xway_abi::Errno;

use crate::HugePages;
use crate::keyhash::{Seed, tail};
use crate::line::{Line, Locked, NUMBER, SLOTS, Seen, SlotSet, USED, tag_of};
use crate::native::HashLayout;
use crate::pool::Pool;
use crate::slab::Lines;
use crate::storage::Block;
use crate::{Guard, ValueRef};

pub(crate) struct Table {
    pub(crate) seed: Seed,
    /// Buckets less one.
    pub(crate) mask: u32,
    key_size: u32,
    /// Offset of the value in an element, and its length as programs see it (0: values are kept elsewhere).
    value_at: u32,
    value_size: u32,
    /// Bytes from one element to the next.
    stride: u32,
    pub(crate) lines: Block,
    pub(crate) elements: Block,
    /// Elements evict each other, and look-ups leave their mark.
    evicts: bool,
    /// Low bits of a tag that tell Linux's buckets in a line apart.
    parts_log2: u8,
    /// Most small tables have none.
    behind: OnceLock<Box<Lines>>,
    pool: Pool,
}

/// What a table is made from.
pub(crate) struct Shape {
    pub(crate) key_size: usize,
    /// 0: values are kept elsewhere.
    pub(crate) value_size: usize,
    pub(crate) seed: Seed,
    pub(crate) pool: Pool,
    pub(crate) pages: HugePages,
    /// All memory is taken from the start.
    pub(crate) whole: bool,
}

/// An element found by a reader.
#[derive(Clone, Copy)]
pub(crate) struct Found<'t> {
    pub(crate) index: u32,
    line: &'t Line,
    slot: usize,
    word: u32,
    first: &'t Line,
    seen: Seen,
}

/// Elements for each bucket on average when the table is full: of eleven places.
const PER_BUCKET_LOG2: u32 = 3;

/// Bytes from one element to the next: up to a cache line a power of two, so that no element lies across two lines, and
/// whole lines above. A small table's lines are near in any case: there a long element takes no more than it has.
pub(crate) fn stride_of(bytes: usize, elements: u32) -> usize {
    match bytes {
        0..=64 => bytes.next_power_of_two().max(8),
        _ if elements <= FEW => bytes.next_multiple_of(8),
        _ => bytes.next_multiple_of(64),
    }
}

/// So many elements at most are cheaper in twice the buckets, none of which is then full, than with lines behind one.
const FEW: u32 = 64;

/// How many buckets a table has.
pub(crate) fn buckets_log2(max: u32, evicts: bool) -> u32 {
    // Elements that evict each other do so in their bucket, the better the more there are.
    let few = !evicts && max <= FEW && max > 1 << PER_BUCKET_LOG2;
    max.next_power_of_two().ilog2().saturating_sub(PER_BUCKET_LOG2 - u32::from(few))
}

impl Table {
    pub(crate) fn new(shape: Shape) -> Result<Table, Errno> {
        let Shape { key_size, value_size, seed, pool, pages, whole } = shape;
        let value_at = key_size.next_multiple_of(8);
        let stride = stride_of(value_at + value_size.next_multiple_of(8), pool.max());
        if pool.capacity() > NUMBER {
            return Err(Errno::ENOMEM);
        }
        let buckets_log2 = buckets_log2(pool.max(), pool.evicts());
        let buckets = 1u32 << buckets_log2;
        let bytes = stride.checked_mul(pool.capacity() as usize).ok_or(Errno::ENOMEM)?;
        let short = |bytes: usize| u32::try_from(bytes).map_err(|_| Errno::ENOMEM);
        Ok(Table {
            seed,
            mask: buckets - 1,
            key_size: short(key_size)?,
            value_at: short(value_at)?,
            value_size: short(value_size)?,
            stride: short(stride)?,
            lines: Block::with_pages(buckets as usize * size_of::<Line>(), pages)?,
            elements: if whole { Block::with_pages(bytes, pages)? } else { Block::growing(bytes)? },
            evicts: pool.evicts(),
            parts_log2: (pool.max().next_power_of_two().ilog2() - buckets_log2) as u8,
            behind: OnceLock::new(),
            pool,
        })
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.seed.hash(key)
    }

    pub(crate) fn buckets(&self) -> u32 {
        self.mask + 1
    }

    /// What Linux's batch commands count as buckets.
    pub(crate) fn parts(&self) -> u32 {
        self.buckets() << self.parts_log2
    }

    pub(crate) fn key_size(&self) -> usize {
        self.key_size as usize
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride as usize
    }

    /// Where an element's value lies among the elements.
    #[inline]
    fn value_of(&self, index: u32) -> usize {
        index as usize * self.stride as usize + self.value_at as usize
    }

    /// As generated code sees it; of per-CPU values it says nothing.
    pub(crate) fn layout(&self) -> HashLayout {
        HashLayout {
            lines: self.lines.addr(),
            elements: self.elements.addr(),
            seed: self.seed.0,
            stride: self.stride(),
            value_at: self.value_at as usize,
            percpu_values: 0,
            cpu_stride: 0,
            value_stride: 0,
            mask: self.mask,
            key_size: self.key_size,
            max_entries: self.pool.max(),
            mark_used: u32::from(self.pool.evicts()),
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Bytes of memory taken; `whole`: all elements count, else those that were used once.
    pub(crate) fn memory(&self, whole: bool) -> usize {
        let elements =
            if whole { self.elements.memory() } else { self.touched_memory(&self.elements, [0], self.stride()) };
        let behind = self.behind.get().map_or(0, |lines| lines.bytes());
        self.lines.memory() + elements + behind + self.pool.memory()
    }

    /// Bytes taken of a block that has something for each element from each of these places on, `stride` bytes apart, by elements that were
    /// used once, the spare ones among them. A block without pages of its own is taken whole.
    pub(crate) fn touched_memory(
        &self,
        block: &Block,
        places: impl IntoIterator<Item = usize>,
        stride: usize,
    ) -> usize {
        if !block.is_mapped() {
            return block.memory();
        }
        let (max, spare) = (self.pool.max() as usize, (self.pool.capacity() - self.pool.max()) as usize);
        let from =
            |at| block.memory_of(at, self.touched() * stride) + block.memory_of(at + max * stride, spare * stride);
        places.into_iter().map(from).sum::<usize>().min(block.memory())
    }

    /// Elements that were ever in the table.
    pub(crate) fn touched(&self) -> usize {
        self.pool.touched() as usize
    }

    /// The lines behind full buckets, where there are any.
    #[inline]
    fn behind(&self) -> &Lines {
        // Each has at least one element.
        self.behind.get_or_init(|| Box::new(Lines::new(self.pool.capacity())))
    }

    #[inline(always)]
    fn line(&self, bucket: u32) -> &Line {
        &self.lines.lines()[(bucket & self.mask) as usize]
    }

    /// Brings the bucket of a hash near.
    #[inline(always)]
    pub(crate) fn prefetch_bucket(&self, hash: u64) {
        self.lines.prefetch((hash as u32 & self.mask) as usize * size_of::<Line>());
    }

    /// Brings the elements near that the bucket names for this hash; `each` gets their numbers. The bucket should be near. `true`: it
    /// names none, but there may be one behind the bucket, whose line is fetched.
    #[inline(always)]
    pub(crate) fn prefetch_elements(&self, hash: u64, each: impl Fn(u32)) -> bool {
        let line = self.line(hash as u32);
        let seen = line.look();
        let slots = seen.matching(tag_of(hash));
        if slots.is_empty() {
            return seen.overflows(tag_of(hash)) && line.link().is_some_and(|next| self.behind().prefetch(next));
        }
        self.prefetch_slots(line, slots, each);
        false
    }

    /// The same for the line behind the bucket.
    pub(crate) fn prefetch_behind(&self, hash: u64, each: impl Fn(u32)) {
        if let Some(next) = self.line(hash as u32).link() {
            let line = self.behind().get(next);
            self.prefetch_slots(line, line.look().matching(tag_of(hash)), each);
        }
    }

    /// Of a longer element: the lines where key and value begin.
    #[inline(always)]
    fn prefetch_slots(&self, line: &Line, slots: SlotSet, each: impl Fn(u32)) {
        for slot in slots {
            let index = line.slot(slot) & NUMBER;
            let at = index as usize * self.stride();
            self.elements.prefetch(at);
            if self.value_at >= 64 {
                self.elements.prefetch(at + self.value_at as usize);
            }
            each(index);
        }
    }

    /// Looks a key up without a lock.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<Found<'_>> {
        let first = self.line(hash as u32);
        let tag = tag_of(hash);
        'again: loop {
            let seen = first.look();
            let candidates = seen.matching(tag);
            for slot in candidates {
                let word = first.slot(slot);
                let index = word & NUMBER;
                if self.key_is(index, key) {
                    if !first.still(seen) {
                        continue 'again;
                    }
                    return Some(Found { index, line: first, slot, word, first, seen });
                }
            }
            if !seen.overflows(tag) {
                // The wanted key may have got a new element in its slot, and the old one another key, before it was compared.
                if !candidates.is_empty() && !first.still(seen) {
                    continue;
                }
                return None;
            }
            if let Ok(answer) = self.find_behind(first, seen, tag, key) {
                return answer;
            }
        }
    }

    /// Looks in the lines behind a full one. `Err`: something was taken out meanwhile; look again.
    #[cold]
    #[inline(never)]
    fn find_behind<'t>(&'t self, first: &'t Line, seen: Seen, tag: u8, key: &[u8]) -> Result<Option<Found<'t>>, ()> {
        let mut at = first.link();
        // A line that was unhooked may hang behind another bucket by now: each step is only as good as the head.
        while let Some(number) = at {
            if !first.still(seen) {
                return Err(());
            }
            let line = self.behind().get(number);
            for slot in line.look().matching(tag) {
                let word = line.slot(slot);
                let index = word & NUMBER;
                if self.key_is(index, key) {
                    return if first.still(seen) {
                        Ok(Some(Found { index, line, slot, word, first, seen }))
                    } else {
                        Err(())
                    };
                }
            }
            at = line.link();
        }
        if first.still(seen) { Ok(None) } else { Err(()) }
    }

    /// Whether the element has been this key's all the time since it was found. What was read from it in between is then
    /// what belonged to the key.
    #[inline]
    pub(crate) fn still(&self, found: Found<'_>) -> bool {
        found.first.still(found.seen)
    }

    /// Marks the element as used lately, where that matters.
    #[inline(always)]
    pub(crate) fn touch(&self, found: Found<'_>) {
        if self.evicts {
            found.line.touch(found.slot, found.word);
        }
    }

    /// The value of an element.
    #[inline]
    pub(crate) fn value<'g>(&self, index: u32, guard: &'g Guard) -> ValueRef<'g> {
        self.elements.value(self.value_of(index), self.value_size as usize, guard)
    }

    /// The same for the table's owner.
    #[inline]
    pub(crate) fn own_value(&self, index: u32) -> ValueRef<'_> {
        self.elements.place(self.value_of(index), self.value_size as usize)
    }

    /// The key of the element that an address lies in, if it is in the table.
    pub(crate) fn key_at(&self, addr: usize) -> Option<Vec<u8>> {
        let index = addr.checked_sub(self.elements.addr())? / self.stride();
        let index = u32::try_from(index).ok().filter(|index| *index < self.pool.capacity())?;
        let mut key = vec![0; self.key_size()];
        self.read_key(index, &mut key);
        // What was read is the element's own key only if that leads back to it.
        self.find(self.hash(&key), &key).filter(|found| found.index == index).map(|_| key)
    }

    /// Copies an element's key out.
    pub(crate) fn read_key(&self, index: u32, out: &mut [u8]) {
        for (word, out) in self.key(index).iter().zip(out[..self.key_size()].chunks_mut(8)) {
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            out.copy_from_slice(&bytes[..out.len()]);
        }
    }

    /// Locks the bucket of this hash, or of this number.
    #[inline]
    pub(crate) fn lock(&self, hash: u64) -> Bucket<'_> {
        let number = hash as u32 & self.mask;
        Bucket { table: self, number, locked: self.line(number).lock() }
    }

    /// What a reader sees of a bucket first.
    pub(crate) fn look(&self, bucket: u32) -> Seen {
        self.line(bucket).look()
    }

    /// Whether nothing was taken out of the bucket since.
    pub(crate) fn is_still(&self, bucket: u32, seen: Seen) -> bool {
        self.line(bucket).still(seen)
    }

    /// Whether the bucket has no element right now; needs no lock.
    pub(crate) fn is_empty_bucket(&self, bucket: u32) -> bool {
        self.line(bucket).look().is_vacant()
    }

    /// Gives an element back that is not in the table.
    #[inline]
    pub(crate) fn give(&self, cpu: u32, index: u32) {
        // A reader may still compare the key, in which the link lies; the head tells it that the element is gone.
        fence(Ordering::Release);
        self.pool.give(cpu, index, |link| self.key(index)[0].store(u64::from(link), Ordering::Relaxed));
    }

    /// An evicted element's stead: itself, or one whose memory is near by now.
    pub(crate) fn exchange(&self, cpu: u32, evicted: u32) -> u32 {
        match self.pool.exchange(cpu, evicted) {
            None => evicted,
            Some(other) => {
                let at = evicted as usize * self.stride();
                (at..at + self.stride()).step_by(64).take(4).for_each(|line| self.elements.prefetch_to_write(line));
                other
            }
        }
    }

    /// A free element.
    #[inline]
    pub(crate) fn take(&self, cpu: u32) -> Option<u32> {
        self.pool.take(cpu, |index| self.key(index)[0].load(Ordering::Relaxed) as u32)
    }

    #[inline(always)]
    fn key(&self, index: u32) -> &[AtomicU64] {
        &self.elements.words()[index as usize * (self.stride() / 8)..]
    }

    /// As [`Table::fill`], with a key in words and a plain value.
    #[inline(always)]
    fn fill_plain<const N: usize>(&self, key: &[u64; N], index: u32, value: &[u8]) {
        fence(Ordering::Release);
        for (there, word) in self.key(index)[..N].iter().zip(key) {
            there.store(*word, Ordering::Relaxed);
        }
        let _ = self.own_value(index).write_bytes(0, value);
    }

    /// Fills an element that nobody else can find.
    fn fill(&self, key: &[u8], index: u32, fill: impl FnOnce(u32)) {
        // Pairs with the reader's fence before its second look at the head: who reads a word of what is written now also
        // reads a head that says that the element left its place before.
        fence(Ordering::Release);
        for (word, bytes) in self.key(index).iter().zip(key.chunks(8)) {
            word.store(tail(bytes), Ordering::Relaxed);
        }
        fill(index);
    }

    #[inline(always)]
    fn key_is(&self, index: u32, key: &[u8]) -> bool {
        let words = self.key(index);
        let (chunks, rest) = key.as_chunks::<8>();
        chunks.iter().zip(words).all(|(chunk, word)| word.load(Ordering::Relaxed) == u64::from_ne_bytes(*chunk))
            && (rest.is_empty() || words[chunks.len()].load(Ordering::Relaxed) == tail(rest))
    }
}

/// A locked bucket.
pub(crate) struct Bucket<'t> {
    table: &'t Table,
    number: u32,
    locked: Locked<'t>,
}

/// Where an element stands in a locked bucket.
#[derive(Clone, Copy)]
pub(crate) struct Place<'t> {
    pub(crate) index: u32,
    line: &'t Line,
    slot: usize,
    tag: u8,
}

/// What the bucket's own line says of a key.
pub(crate) enum Near<'t> {
    Here(Place<'t>),
    /// It is not in the bucket, whose own line has this slot free.
    No(Option<usize>),
    /// It may stand behind.
    Unknown,
}

impl<'t> Bucket<'t> {
    /// The bucket's lines, the first first.
    fn lines(&self) -> impl Iterator<Item = &'t Line> + use<'t> {
        let table = self.table;
        std::iter::successors(Some(self.locked.line()), move |line| line.link().map(|next| table.behind().get(next)))
    }

    fn places_of(&self, line: &'t Line) -> impl Iterator<Item = Place<'t>> + use<'t> {
        let seen = self.locked.look(line);
        seen.used().map(move |slot| Place { index: line.slot(slot) & NUMBER, line, slot, tag: seen.tag(slot) })
    }

    /// Everything in the bucket.
    pub(crate) fn places(&self) -> Vec<Place<'t>> {
        self.lines().flat_map(|line| self.places_of(line)).collect()
    }

    /// Everything of one of Linux's buckets.
    pub(crate) fn places_in_part(&self, part: u32) -> Vec<Place<'t>> {
        let mask = (1u32 << self.table.parts_log2) - 1;
        let mut places = self.places();
        places.retain(|place| u32::from(place.tag) & mask == part & mask);
        places
    }

    /// Looks a key up in the bucket's own line, where nearly all are.
    #[inline(always)]
    pub(crate) fn find_near<const N: usize>(&self, hash: u64, key: &[u64; N]) -> Near<'t> {
        let (line, tag) = (self.locked.line(), tag_of(hash));
        let seen = self.locked.look(line);
        for slot in seen.matching(tag) {
            let index = line.slot(slot) & NUMBER;
            if self.table.key(index).first_chunk::<N>().is_some_and(|there| {
                there.iter().zip(key).fold(0, |all, (word, key)| all | word.load(Ordering::Relaxed) ^ key) == 0
            }) {
                return Near::Here(Place { index, line, slot, tag });
            }
        }
        if seen.overflows(tag) { Near::Unknown } else { Near::No(seen.matching(0).next()) }
    }

    /// Puts a free element into a free slot of the bucket's own line; `fill` has its value.
    #[inline(always)]
    pub(crate) fn insert_near<const N: usize>(
        &mut self,
        (hash, slot): (u64, usize),
        key: &[u64; N],
        index: u32,
        value: &[u8],
    ) {
        self.table.fill_plain(key, index, value);
        let line = self.locked.line();
        self.locked.fill(line, slot, index, tag_of(hash));
    }

    /// As [`Bucket::replace`], of a plain value in the element.
    #[inline(always)]
    pub(crate) fn replace_plain<const N: usize>(&mut self, place: Place<'t>, key: &[u64; N], index: u32, value: &[u8]) {
        self.table.fill_plain(key, index, value);
        self.put(place, index);
    }

    #[inline(always)]
    fn put(&mut self, place: Place<'t>, index: u32) {
        let marks = if self.table.evicts { place.line.marks(place.slot) | USED } else { 0 };
        self.locked.replace(place.line, place.slot, index | marks);
    }

    /// Looks a key up.
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<Place<'t>> {
        let tag = tag_of(hash);
        let beyond = self.locked.look(self.locked.line()).overflows(tag);
        self.lines().take(if beyond { usize::MAX } else { 1 }).find_map(|line| {
            let slots = self.locked.look(line).matching(tag);
            slots
                .map(|slot| Place { index: line.slot(slot) & NUMBER, line, slot, tag })
                .find(|place| self.table.key_is(place.index, key))
        })
    }

    /// Puts a free element in, filled by `fill`. `ENOMEM`: no memory for a line more; the element is not in.
    pub(crate) fn insert(&mut self, hash: u64, key: &[u8], index: u32, fill: impl FnOnce(u32)) -> Result<(), Errno> {
        let place = self.free_place()?;
        self.table.fill(key, index, fill);
        self.put_in(place, hash, index);
        Ok(())
    }

    /// As [`Bucket::insert`], of a plain value.
    #[inline(always)]
    pub(crate) fn insert_plain<const N: usize>(
        &mut self,
        hash: u64,
        key: &[u64; N],
        index: u32,
        value: &[u8],
    ) -> Result<(), Errno> {
        let place = self.free_place()?;
        self.table.fill_plain(key, index, value);
        self.put_in(place, hash, index);
        Ok(())
    }

    /// A free slot, where the clock comes last if it comes at all; in a new line where all are full.
    #[inline(always)]
    fn free_place(&mut self) -> Result<(&'t Line, usize), Errno> {
        let first = self.locked.line();
        let youngest = if self.table.evicts { self.locked.youngest_place() } else { None };
        youngest.map_or_else(|| self.free_place_behind(), |slot| Ok((first, slot)))
    }

    #[inline(never)]
    fn free_place_behind(&mut self) -> Result<(&'t Line, usize), Errno> {
        let free = self.lines().find_map(|line| Some((line, self.locked.look(line).matching(0).next()?)));
        if let Some(place) = free {
            return Ok(place);
        }
        let number = self.table.behind().take()?;
        let (line, first) = (self.table.behind().get(number), self.locked.line());
        self.locked.set_link(line, first.link());
        self.locked.set_link(first, Some(number));
        Ok((line, 0))
    }

    #[inline(always)]
    fn put_in(&mut self, (line, slot): (&'t Line, usize), hash: u64, index: u32) {
        let tag = tag_of(hash);
        self.locked.fill(line, slot, index, tag);
        if !std::ptr::eq(line, self.locked.line()) {
            self.locked.add_to_filter(tag);
        }
    }

    /// Puts another element in the place of one of the same key; then the old one is out.
    pub(crate) fn replace(&mut self, place: Place<'t>, key: &[u8], index: u32, fill: impl FnOnce(u32)) {
        self.table.fill(key, index, fill);
        self.put(place, index);
    }

    /// Marks an element as used lately, where that matters.
    #[inline]
    pub(crate) fn touch(&self, place: Place<'_>) {
        if self.table.evicts {
            place.line.touch(place.slot, 0);
        }
    }

    /// Takes an element out.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place<'t>) {
        self.locked.clear(place.line, place.slot);
        let first = self.locked.line();
        if !std::ptr::eq(place.line, first) {
            self.gone_behind(place);
        }
    }

    #[cold]
    fn gone_behind(&mut self, place: Place<'t>) {
        if self.locked.look(place.line).used().is_empty() {
            self.unhook(place.line);
        }
        let tags = self.lines().skip(1).flat_map(|line| self.places_of(line));
        let filter = tags.fold(0, |filter, place| filter | 1 << (place.tag & 7));
        self.locked.set_filter(filter);
    }

    /// Takes an empty line out of the chain. Its own link stays for the readers who stand on it.
    fn unhook(&mut self, line: &'t Line) {
        let before = self
            .lines()
            .find(|before| before.link().is_some_and(|next| std::ptr::eq(self.table.behind().get(next), line)));
        if let Some(before) = before
            && let Some(number) = before.link()
        {
            self.locked.set_link(before, line.link());
            self.table.behind().give(number);
        }
    }

    /// Takes some element out that was not used lately, to be used for this bucket; `None`: there is none, or it is in
    /// other threads' hands. Only elements of this CPU, if elements have CPUs.
    pub(crate) fn make_room(&mut self, cpu: u32) -> Option<u32> {
        let table = self.table;
        let mine = self.locked.look(self.locked.line()).used().len();
        // Buckets keep their number of elements from the time when the table filled up. Those that got few then take from
        // their neighbours, else their keys would push each other out for ever.
        if mine + 1 < table.pool.max() >> table.buckets().ilog2() {
            let fuller = (1..4).map(|n| self.number ^ n).filter(|other| *other <= table.mask);
            let fuller = fuller.map(|other| (table.line(other).look().used().len(), other)).max();
            if let Some((count, other)) = fuller
                && count > mine
                && let Some(index) = table.try_lock(other).and_then(|mut other| other.evict(cpu))
            {
                return Some(index);
            }
        }
        if let Some(index) = self.evict(cpu) {
            return Some(index);
        }
        (1..table.buckets())
            .map(|step| self.number.wrapping_add(step) & table.mask)
            .find_map(|other| if table.is_empty_bucket(other) { None } else { table.try_lock(other)?.evict(cpu) })
    }

    /// The clock: the hand goes round the bucket, turns marks into ranks and ranks into lower ones, and takes the first element
    /// that has neither. What is looked up again and again thus outlives a scan or a flood of keys that come once.
    /// The lines behind the first are its last position: one element of theirs goes each time round.
    fn evict(&mut self, cpu: u32) -> Option<u32> {
        const POSITIONS: usize = SLOTS + 1;
        /// Ranks are gone after so many rounds at most; in the last, marks that come meanwhile no longer count.
        const ROUNDS: usize = 6;
        let first = self.locked.line();
        let seen = self.locked.look(first);
        let hand = self.locked.hand();
        for step in 0..ROUNDS * POSITIONS {
            let at = (hand + step) % POSITIONS;
            let force = step >= (ROUNDS - 1) * POSITIONS;
            // The first time round ranks go down only from every fourth place on: while there are elements that nobody asked
            // for again, those that somebody did grow old slowly.
            let age = hand.is_multiple_of(4) || step >= POSITIONS;
            if at == SLOTS && first.link().is_none() {
                continue;
            }
            let victim = if at < SLOTS {
                let place = Place { index: first.slot(at) & NUMBER, line: first, slot: at, tag: seen.tag(at) };
                (seen.used().has(at) && self.may_go(place, cpu, age, force)).then_some(place)
            } else {
                let mut behind = self.lines().skip(1).flat_map(|line| self.places_of(line));
                behind.find(|place| self.may_go(*place, cpu, age, force))
            };
            if let Some(victim) = victim {
                self.locked.set_hand((at + 1) % POSITIONS);
                self.remove(victim);
                return Some(victim.index);
            }
        }
        None
    }

    /// Whether the clock may take this element; if not because it is marked, it no longer is.
    fn may_go(&self, place: Place<'_>, cpu: u32, age: bool, force: bool) -> bool {
        if !self.table.pool.is_own(cpu, place.index) {
            return false;
        }
        force || place.line.pass(place.slot, age)
    }
}

impl Table {
    fn try_lock(&self, number: u32) -> Option<Bucket<'_>> {
        Some(Bucket { table: self, number, locked: self.line(number).try_lock()? })
    }
}
