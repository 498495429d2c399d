//! The memory of tries: pieces for their nodes, named by numbers that fit into an entry, and places for their values.
//!
//! A trie for many prefixes has regions of its own. Smaller ones share theirs, or each would take pages for what fits into a few lines:
//! of a shared region a trie counts what it has.
//!
//! What is given back is used again only when every guard that could have seen it has gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use xway_abi::Errno;

use crate::HugePages;
use crate::storage::Block;

/// Words in the unit in which pieces are counted: 8 bytes.
pub(super) const UNIT: usize = 2;
/// Pieces from this many units are split when small ones are wanted.
const LARGE: usize = 64;
/// Units added to the used part at a time.
const STEP: usize = 256;
/// Reserved for the nodes of tries that share a region, and for their values; only what is used becomes memory.
const SHARED: usize = if cfg!(miri) { 4 << 20 } else { 256 << 20 };

/// Nodes of one trie or of several.
pub(super) struct Region {
    words: Block,
    free: Mutex<Free>,
    /// Units that the tries which share it may come to, apart from what waits for guards.
    promised: AtomicUsize,
}

/// What is not in use. Locked for a moment only, and never while anything is deferred, which may run what others deferred.
struct Free {
    /// Numbers of free pieces of `n` units, below [`LARGE`].
    small: Vec<Vec<u32>>,
    /// Large free pieces: units and number.
    large: BTreeSet<(usize, u32)>,
    /// The first unit that was never used, and the first that does not exist.
    fresh: usize,
    end: usize,
}

/// A piece: its number and its size in units.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) number: u32,
    pub(super) units: usize,
}

/// Pieces and values that are out of the trie, to be used again after a while.
#[derive(Default)]
pub(super) struct Garbage {
    pub(super) pieces: Vec<Piece>,
    pub(super) values: Vec<u32>,
}

/// Values, each with the address of its prefix, of one trie or of several with values of one length.
pub(super) struct Values {
    block: Block,
    places: Mutex<Places>,
    capacity: u32,
    /// Values of the tries that share it when they are full.
    promised: AtomicUsize,
}

#[derive(Default)]
struct Places {
    /// Places that were ever used.
    fresh: u32,
    back: Vec<u32>,
}

/// What a trie has of its regions, what waits for guards included.
#[derive(Default)]
pub(super) struct Held {
    units: AtomicUsize,
    values: AtomicUsize,
}

/// What a trie may come to.
#[derive(Clone, Copy)]
pub(super) struct Most {
    /// Bytes of nodes, and values, in all.
    pub(super) bytes: usize,
    pub(super) values: u32,
    /// The same of a full trie, apart from what waits for guards.
    pub(super) full_bytes: usize,
    pub(super) full_values: usize,
}

/// A trie's memory.
pub(super) struct Arena {
    region: Arc<Region>,
    values: Arc<Values>,
    held: Arc<Held>,
    /// Bytes from one value to the next.
    stride: usize,
    /// Values and units that the trie may have at a time.
    most: (usize, usize),
    /// Values and units of the shared regions that are kept for it.
    promised: (usize, usize),
    shared: bool,
}

/// Regions that tries share, as long as there are any: one for nodes, and one for each distance of values.
static NODES: Mutex<Weak<Region>> = Mutex::new(Weak::new());
static VALUES: Mutex<BTreeMap<usize, Weak<Values>>> = Mutex::new(BTreeMap::new());

impl Arena {
    /// Regions of its own, with room for `bytes` of nodes and `most` values `stride` bytes apart; memory is taken as it is used.
    pub(super) fn own(pages: HugePages, bytes: usize, stride: usize, most: u32) -> Result<Arena, Errno> {
        let region = Arc::new(Region::new(pages, bytes)?);
        let values = Arc::new(Values::new(pages, stride, most)?);
        let most = (most as usize, usize::MAX);
        Ok(Arena { region, values, held: Arc::default(), stride, most, promised: (0, 0), shared: false })
    }

    /// Regions that others use too, each of which may have as much as it would have alone. Whoever is there finds room until it is full,
    /// whatever the others come to: those for whom that cannot be said get another region.
    pub(super) fn shared(most: Most, stride: usize) -> Result<Arena, Errno> {
        let units = most.full_bytes / (4 * UNIT);
        let region = {
            let mut current = NODES.lock();
            let region = match current.upgrade().filter(|region| region.has_room(units)) {
                Some(region) => region,
                None => {
                    let region = Arc::new(Region::new(HugePages::Never, SHARED)?);
                    *current = Arc::downgrade(&region);
                    region
                }
            };
            region.promised.fetch_add(units, Relaxed);
            region
        };
        let values = Arena::shared_values(stride, most.full_values).inspect_err(|_| {
            region.promised.fetch_sub(units, Relaxed);
        })?;
        let promised = (most.full_values, units);
        let most = (most.values as usize, most.bytes / (4 * UNIT));
        Ok(Arena { region, values, held: Arc::default(), stride, most, promised, shared: true })
    }

    fn shared_values(stride: usize, full: usize) -> Result<Arc<Values>, Errno> {
        let mut all = VALUES.lock();
        let values = match all.get(&stride).and_then(Weak::upgrade).filter(|values| values.has_room(full)) {
            Some(values) => values,
            None => {
                let capacity = (SHARED / stride).min(super::most_values(1)) as u32;
                let values = Arc::new(Values::new(HugePages::Never, stride, capacity)?);
                all.retain(|_, values| values.strong_count() > 0);
                all.insert(stride, Arc::downgrade(&values));
                values
            }
        };
        values.promised.fetch_add(full, Relaxed);
        Ok(values)
    }

    /// Whether values so far apart are for regions that are shared.
    pub(super) fn may_share(stride: usize) -> bool {
        stride <= 1 << 10
    }

    /// Memory for `words` words. `ENOMEM`: the reserve is used up, or what a trie may have of it.
    pub(super) fn take(&self, words: usize) -> Result<Piece, Errno> {
        let units = words.div_ceil(UNIT);
        if self.held.units.load(Relaxed) + units > self.most.1 {
            return Err(Errno::ENOMEM);
        }
        let number = self.region.free.lock().take(units).ok_or(Errno::ENOMEM)?;
        self.held.units.fetch_add(units, Relaxed);
        Ok(Piece { number, units })
    }

    /// A place for a value.
    pub(super) fn take_value(&self) -> Result<u32, Errno> {
        if self.held.values.load(Relaxed) >= self.most.0 {
            return Err(Errno::ENOMEM);
        }
        let value = {
            let mut places = self.values.places.lock();
            match places.back.pop() {
                Some(value) => value,
                None if places.fresh < self.values.capacity => {
                    places.fresh += 1;
                    places.fresh - 1
                }
                None => return Err(Errno::ENOMEM),
            }
        };
        self.held.values.fetch_add(1, Relaxed);
        Ok(value)
    }

    /// The words of a piece and all after it.
    #[inline(always)]
    pub(super) fn at(&self, number: u32) -> &[AtomicU32] {
        &self.region.words.halves()[number as usize * UNIT..]
    }

    #[inline(always)]
    pub(super) fn block(&self) -> &Block {
        &self.region.words
    }

    #[inline(always)]
    pub(super) fn values(&self) -> &Block {
        &self.values.block
    }

    /// The blocks that are this trie's alone.
    pub(super) fn blocks(&self) -> Vec<&Block> {
        if self.shared { Vec::new() } else { vec![self.block(), self.values()] }
    }

    /// Bytes of memory: what it has of shared regions, what was used so far of its own.
    pub(super) fn memory(&self) -> usize {
        let counts = size_of::<Held>() + 2 * size_of::<usize>();
        if self.shared {
            return counts + self.held.units.load(Relaxed) * UNIT * 4 + self.held.values.load(Relaxed) * self.stride;
        }
        let (nodes, lists) = {
            let free = self.region.free.lock();
            let small = free.small.iter().map(Vec::capacity).sum::<usize>() * size_of::<u32>();
            let large = free.large.len() * size_of::<(usize, u32)>();
            (free.fresh * UNIT * 4, size_of::<Region>() + LARGE * size_of::<Vec<u32>>() + small + large)
        };
        let (values, back) = {
            let places = self.values.places.lock();
            (places.fresh as usize * self.stride, size_of::<Values>() + places.back.capacity() * size_of::<u32>())
        };
        counts + lists + back + self.block().memory_of(0, nodes) + self.values().memory_of(0, values)
    }

    /// How a deferred function gives back what is out of the trie.
    pub(super) fn returns(&self) -> impl Fn(&Garbage) + Send + use<> {
        let (region, values, held) = (self.region.clone(), self.values.clone(), self.held.clone());
        move |garbage| {
            {
                let mut free = region.free.lock();
                garbage.pieces.iter().for_each(|piece| free.give(*piece));
            }
            values.places.lock().back.extend(&garbage.values);
            held.units.fetch_sub(garbage.pieces.iter().map(|piece| piece.units).sum(), Relaxed);
            held.values.fetch_sub(garbage.values.len(), Relaxed);
        }
    }

    /// Whether what is in it has to be given back at the end.
    pub(super) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Gives everything back that a trie had, which is gone.
    pub(super) fn give_all(&self, garbage: Garbage) {
        struct Gone<F: Fn(&Garbage)>(F, Garbage);
        impl<F: Fn(&Garbage)> Drop for Gone<F> {
            fn drop(&mut self) {
                (self.0)(&self.1);
            }
        }
        crate::guard::retire(Box::new(Gone(self.returns(), garbage)));
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.values.promised.fetch_sub(self.promised.0, Relaxed);
        self.region.promised.fetch_sub(self.promised.1, Relaxed);
    }
}

impl Region {
    fn new(pages: HugePages, bytes: usize) -> Result<Region, Errno> {
        let end = (bytes / (4 * UNIT)).min(1 << 30);
        let words = Block::with_pages(end * 4 * UNIT, pages)?;
        // Number 0 is none; the first piece begins on a line.
        let free = Free { small: vec![Vec::new(); LARGE], large: BTreeSet::new(), fresh: 8.min(end), end };
        Ok(Region { words, free: Mutex::new(free), promised: AtomicUsize::new(0) })
    }

    /// Whether a trie that comes to so many units is to share it. Half of it is for what waits for guards, and for what pieces that were
    /// split cannot serve for any more.
    fn has_room(&self, units: usize) -> bool {
        let free = self.free.lock();
        free.fresh < free.end / 2 && self.promised.load(Relaxed) + units <= free.end / 2
    }
}

impl Values {
    fn new(pages: HugePages, stride: usize, capacity: u32) -> Result<Values, Errno> {
        let block = Block::with_pages(capacity as usize * stride, pages)?;
        Ok(Values { block, places: Mutex::default(), capacity, promised: AtomicUsize::new(0) })
    }

    /// Half of it is for what waits for guards.
    fn has_room(&self, values: usize) -> bool {
        self.promised.load(Relaxed) + values <= self.capacity as usize / 2
    }
}

impl Free {
    fn take(&mut self, units: usize) -> Option<u32> {
        if let Some(number) = self.small.get_mut(units).and_then(Vec::pop) {
            return Some(number);
        }
        // What is left over of a small one stays one: a trie of few prefixes lives of such pieces.
        let larger = self.small.iter().enumerate().skip(units + 1).find(|(_, pieces)| !pieces.is_empty());
        if let Some((have, _)) = larger
            && let Some(number) = self.small[have].pop()
        {
            self.give(Piece { number: number + units as u32, units: have - units });
            return Some(number);
        }
        // The smallest large piece that suffices, else what was never used.
        let fitting = self.large.range((units, 0)..).next().copied();
        if let Some((have, number)) = fitting {
            self.large.remove(&(have, number));
            self.give(Piece { number: number + units as u32, units: have - units });
            return Some(number);
        }
        let wanted = if units < LARGE { STEP.min(self.end - self.fresh) } else { units };
        if wanted < units || self.end - self.fresh < wanted {
            return None;
        }
        let number = self.fresh as u32;
        self.fresh += wanted;
        self.give(Piece { number: number + units as u32, units: wanted - units });
        Some(number)
    }

    fn give(&mut self, piece: Piece) {
        match piece.units {
            0 => {}
            units if units < LARGE => self.small[units].push(piece.number),
            units => {
                self.large.insert((units, piece.number));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_come_back() {
        let arena = Arena::own(HugePages::Never, 1 << 16, 16, 100).unwrap();
        let sizes = [1, 4, 5, 17, 300, 4, 1, 2000];
        let pieces: Vec<Piece> = sizes.iter().map(|words| arena.take(*words).unwrap()).collect();
        let mut units: Vec<u32> = pieces.iter().flat_map(|p| p.number..p.number + p.units as u32).collect();
        units.sort_unstable();
        assert!(units.windows(2).all(|pair| pair[0] < pair[1]) && units[0] > 0);
        let used = || arena.region.free.lock().fresh;
        let before = used();
        arena.returns()(&Garbage { pieces, values: Vec::new() });
        for words in sizes.iter().rev() {
            arena.take(*words).unwrap();
        }
        assert_eq!(used(), before, "large pieces are found again, small ones cut from what is left");
        assert_eq!(arena.take(1 << 20).err(), Some(Errno::ENOMEM));
        while arena.take(400).is_ok() {}
        assert!(arena.take(3).is_ok(), "small ones still find room");
    }

    /// Each may come to what it was made for, however many there are.
    #[test]
    #[cfg_attr(miri, ignore = "counts what is reserved, of which Miri has little")]
    fn those_that_share_do_not_take_each_others_room() {
        // A distance that no other test has.
        let (stride, max) = (1008, 16_000);
        let full = max as usize * 288;
        let most = Most { bytes: full + (64 << 20), values: 4 * max, full_bytes: full, full_values: max as usize };
        let arenas: Vec<Arena> = (0..70).map(|_| Arena::shared(most, stride).unwrap()).collect();
        for (n, arena) in arenas.iter().enumerate() {
            for at in 0..max {
                assert!(arena.take_value().is_ok(), "value {at} of {n}");
            }
            for at in 0..full / 4096 {
                assert!(arena.take(1024).is_ok(), "node {at} of {n}");
            }
        }
        let (nodes, values) = (arenas[0].region.clone(), arenas[0].values.clone());
        drop(arenas);
        assert_eq!(values.promised.load(Relaxed), 0, "what is kept for them goes with them");
        assert!(nodes.promised.load(Relaxed) < 70 * full / 8, "other tests have some");
    }

    /// Whatever it went through, all that it had serves others when it is gone.
    #[test]
    fn a_trie_that_goes_leaves_nothing_behind() {
        use super::super::{By, LpmTrie, f};
        for (width, value) in [(4, 8), (16, 24), (5, 3)] {
            let spec = xway_abi::MapSpec::new(xway_abi::MapType::LpmTrie, 4 + width, value, 300);
            let trie = LpmTrie::new(&spec.with_flags(f::NO_PREALLOC), &crate::Env::with_cpus(1)).unwrap();
            let held = trie.arena.held.clone();
            let mut random = 1u64;
            for step in 0..if cfg!(miri) { 60 } else { 6000 } {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let mut key = vec![0; 4 + width as usize];
                key[..4].copy_from_slice(&((random >> 59) as u32).to_ne_bytes());
                key[4..9.min(4 + width as usize)].fill((random >> 40) as u8);
                key[5] = (random >> 48) as u8;
                // Times of growth and times of decay.
                if random >> 33 & 7 < if step / 700 % 2 == 0 { 7 } else { 1 } {
                    let _ = trie.store(By::Program, &key, &vec![1; value as usize], 0);
                } else {
                    let _ = trie.remove(if step % 2 == 0 { By::User } else { By::Program }, &key);
                }
            }
            assert!(trie.count() > 0 && held.units.load(Relaxed) > 0);
            drop(trie);
            let mut rounds = 0;
            while (held.units.load(Relaxed), held.values.load(Relaxed)) != (0, 0) {
                rounds += 1;
                let left = (held.units.load(Relaxed), held.values.load(Relaxed));
                assert!(rounds < 1000, "{left:?} units and values are left");
                crate::Guard::collect();
            }
        }
    }

    #[test]
    fn what_is_shared_is_counted_for_who_has_it() {
        // A distance that no other test has.
        let most = Most { bytes: 96, values: 3, full_bytes: 96, full_values: 3 };
        let [one, other] = [(); 2].map(|()| Arena::shared(most, 1000).unwrap());
        assert!(Arc::ptr_eq(&one.region, &other.region) && Arc::ptr_eq(&one.values, &other.values));
        let (empty, piece) = (other.memory(), one.take(10).unwrap());
        let values: Vec<u32> = (0..3).map(|_| one.take_value().unwrap()).collect();
        assert_eq!((one.memory() - empty, other.memory()), (40 + 3000, empty));
        assert_eq!(one.take_value(), Err(Errno::ENOMEM), "each has its share");
        assert_eq!(one.take(20).err(), Some(Errno::ENOMEM), "of nodes too");
        assert!(!values.contains(&other.take_value().unwrap()));
        one.returns()(&Garbage { pieces: vec![piece], values });
        assert_eq!(one.memory(), empty);
    }
}
