//! Where a table's elements come from: free ones, and a few spares for replacements.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::free::FreeList;

/// The elements of a table that are not in it.
///
/// Numbers below `max` are the table's capacity: one range for all CPUs, or one for each (`BPF_F_NO_COMMON_LRU`). Each CPU has
/// spares above `max`: an element that replaces another of the same key comes from the spares, and the one it replaces goes there,
/// so that updates of what is there need no free element. All spares together always are as many as at first.
pub(crate) struct Pool {
    max: u32,
    /// Whether old elements make room for new ones.
    evicts: bool,
    /// Each CPU has elements of its own.
    separate: bool,
    cpus: u32,
    /// One for each group of CPUs, and an empty one between two of them, so that no two are in one line.
    owns: Box<[Own]>,
    /// The numbers of a common pool that were never used, where there is more than one group.
    fresh: Option<Box<Fresh>>,
    /// Of a large pool that evicts, one for each CPU; else empty.
    stocks: Box<[Stock]>,
    /// CPUs with the same bits here are a group. In tables of few buckets, where no more CPUs than there are buckets can change
    /// something at a time, groups are few; else every CPU is one.
    group: u32,
    /// Spares of each group.
    spares: u8,
}

/// What a group of CPUs has: half a line.
#[repr(align(32))]
struct Own {
    /// Elements that its CPUs gave back, and the numbers never used that are only its own.
    list: FreeList,
    spares: [Spare; Pool::SPARES as usize],
}

/// In a line of its own: every CPU asks it, and most CPUs only until all numbers have been used.
#[repr(align(64))]
struct Fresh(FreeList);

/// Elements that were evicted a few evictions ago.
///
/// A large table's elements are not in the CPU's cache. So what is evicted is not filled at once, which would wait for the
/// memory, but fetched, and kept while the next few evictions pass; what is filled was evicted then.
#[repr(align(64))]
struct Stock {
    places: [AtomicU32; STOCK as usize],
    /// Where the next exchange takes place. Threads that share a CPU's number may meet there; each exchange is one of two
    /// elements all the same.
    next: AtomicU32,
}

/// Elements in a stock.
const STOCK: u32 = 8;
/// For each element in stock, elements in the table at least: the price in memory is below one percent.
const STOCK_SHARE: u32 = 128;

struct Spare(AtomicU32);

/// No spare here: another thread is replacing something with it.
const GONE: u32 = u32::MAX;

impl Spare {
    /// What is here, if no other thread has it.
    #[inline]
    fn take(&self) -> Option<u32> {
        if self.0.load(Ordering::Relaxed) == GONE {
            return None;
        }
        Some(self.0.swap(GONE, Ordering::AcqRel)).filter(|index| *index != GONE)
    }
}

impl Own {
    /// Nobody's.
    fn none() -> Own {
        Own { list: FreeList::new(0, 0), spares: std::array::from_fn(|_| Spare(AtomicU32::new(GONE))) }
    }
}

impl Pool {
    /// Spares for each CPU.
    const SPARES: u32 = 2;

    /// `max` elements in the table at most; a multiple of `cpus` when `separate`, which gives each CPU its share.
    pub(crate) fn new(max: u32, cpus: u32, evicts: bool, separate: bool) -> Pool {
        // The share of an only CPU is all there is: a common pool.
        let separate = separate && cpus > 1;
        // Whoever holds a spare holds its bucket's lock.
        let buckets = 1 << crate::table::buckets_log2(max, evicts);
        let (groups, group) = if separate || cpus <= buckets { (cpus, u32::MAX) } else { (buckets, buckets - 1) };
        let spares = if groups == 1 && buckets == 1 { 1 } else { Pool::SPARES };
        let stocks = if evicts && max / cpus >= STOCK * STOCK_SHARE { groups } else { 0 };
        let above = spares + if stocks > 0 { STOCK } else { 0 };
        let own = |n: u32| {
            let range = match (separate, groups) {
                (true, _) => n * (max / groups)..(n + 1) * (max / groups),
                (false, 1) => 0..max,
                (false, _) => 0..0,
            };
            let spare = |at| if at < spares { max + n * above + at } else { GONE };
            Own {
                list: FreeList::new(range.start, range.end),
                spares: std::array::from_fn(|at| Spare(AtomicU32::new(spare(at as u32)))),
            }
        };
        let stock = |n: u32| Stock {
            places: std::array::from_fn(|at| AtomicU32::new(max + n * above + spares + at as u32)),
            next: AtomicU32::new(0),
        };
        Pool {
            max,
            evicts,
            separate,
            cpus,
            owns: (0..2 * groups - 1).map(|at| if at % 2 == 0 { own(at / 2) } else { Own::none() }).collect(),
            fresh: (!separate && groups > 1).then(|| Box::new(Fresh(FreeList::new(0, max)))),
            stocks: (0..stocks).map(stock).collect(),
            group,
            spares: spares as u8,
        }
    }

    /// Bytes of memory beside the elements.
    pub(crate) fn memory(&self) -> usize {
        let fresh = self.fresh.as_ref().map_or(0, |_| size_of::<Fresh>());
        size_of_val(&*self.owns) + fresh + size_of_val(&*self.stocks)
    }

    /// How many elements need memory.
    pub(crate) fn capacity(&self) -> u32 {
        self.max + self.spare()
    }

    /// Elements above `max`.
    fn spare(&self) -> u32 {
        self.groups() as u32 * self.above()
    }

    fn groups(&self) -> usize {
        self.owns.len().div_ceil(2)
    }

    #[inline]
    fn own(&self, group: usize) -> &Own {
        &self.owns[2 * group]
    }

    /// Elements in the table at most.
    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    /// Elements that were ever handed out.
    pub(crate) fn touched(&self) -> u32 {
        let fresh = self.fresh.as_ref().map_or(0, |fresh| fresh.0.touched());
        self.owns.iter().map(|own| own.list.touched()).sum::<u32>() + fresh
    }

    pub(crate) fn cpus(&self) -> u32 {
        self.cpus
    }

    /// Elements of each group above `max`.
    fn above(&self) -> u32 {
        u32::from(self.spares) + if self.stocks.is_empty() { 0 } else { STOCK }
    }

    /// Puts an evicted element into the CPU's stock and takes another out: `None` when small tables keep none.
    pub(crate) fn exchange(&self, cpu: u32, evicted: u32) -> Option<u32> {
        let stock = self.stocks.get(cpu as usize % self.stocks.len().max(1))?;
        let next = stock.next.load(Ordering::Relaxed);
        stock.next.store(next.wrapping_add(1), Ordering::Relaxed);
        Some(stock.places[(next % STOCK) as usize].swap(evicted, Ordering::AcqRel))
    }

    pub(crate) fn evicts(&self) -> bool {
        self.evicts
    }

    /// Whether an element may be evicted for this CPU.
    #[inline]
    pub(crate) fn is_own(&self, cpu: u32, index: u32) -> bool {
        !self.separate || self.owner(index) == cpu as usize % self.groups()
    }

    /// Whose element this is, where they have owners.
    fn owner(&self, index: u32) -> usize {
        let groups = self.groups() as u32;
        let owner = if index < self.max { index / (self.max / groups) } else { (index - self.max) / self.above() };
        (owner % groups) as usize
    }

    /// A free element for this CPU. A common pool fills the table to its last element, whoever gave it back.
    pub(crate) fn take(&self, cpu: u32, link: impl Fn(u32) -> u32) -> Option<u32> {
        let own = cpu as usize % self.groups();
        let list = &self.own(own).list;
        let taken = list.take_back(&link).or_else(|| list.take_fresh());
        if taken.is_some() || self.separate {
            return taken;
        }
        self.fresh.as_ref().and_then(|fresh| fresh.0.take_fresh()).or_else(|| {
            let mut others = (1..self.groups()).map(|n| &self.own((own + n) % self.groups()).list);
            others.find_map(|list| list.take_back(&link))
        })
    }

    /// Gives an element back that is not in the table.
    pub(crate) fn give(&self, cpu: u32, index: u32, set_link: impl Fn(u32)) {
        let own = if self.separate { self.owner(index) } else { cpu as usize % self.groups() };
        self.own(own).list.give(index, set_link);
    }

    /// An element to replace `old` with, and the place in the spares where `old` goes with [`Pool::give_spare`].
    #[inline(always)]
    pub(crate) fn take_spare(&self, cpu: u32, old: u32) -> (usize, u32) {
        // Nearly always the first of one's own is there.
        let own = (cpu & self.group) as usize;
        if !self.separate
            && let Some(index) = self.owns.get(2 * own).and_then(|own| own.spares[0].take())
        {
            return (own * Pool::SPARES as usize, index);
        }
        self.search_spare(cpu, old)
    }

    #[cold]
    #[inline(never)]
    fn search_spare(&self, cpu: u32, old: u32) -> (usize, u32) {
        let (first, groups) =
            if self.separate { (self.owner(old), 1) } else { ((cpu & self.group) as usize, self.groups()) };
        loop {
            for own in (first..first + groups).map(|own| own % self.groups()) {
                for (at, spare) in self.own(own).spares.iter().enumerate() {
                    if let Some(index) = spare.take() {
                        return (own * Pool::SPARES as usize + at, index);
                    }
                }
            }
            // All spares are in the hands of threads that need no lock of ours to finish.
            std::thread::yield_now();
        }
    }

    #[inline]
    pub(crate) fn give_spare(&self, place: usize, old: u32) {
        let own = self.own(place / Pool::SPARES as usize);
        own.spares[place % Pool::SPARES as usize].0.store(old, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_element_once() {
        for (cpus, separate) in [(1, false), (1, true), (4, false), (4, true)] {
            let pool = Pool::new(100, cpus, separate, separate);
            let links: Vec<AtomicU32> = (0..pool.capacity()).map(|_| AtomicU32::new(0)).collect();
            let take = |cpu| pool.take(cpu, |i| links[i as usize].load(Ordering::Relaxed));
            let give = |cpu, i: u32| pool.give(cpu, i, |link| links[i as usize].store(link, Ordering::Relaxed));
            for _ in 0..2 {
                let all: HashSet<u32> = (0..100).map(|n| take(n % cpus).unwrap()).collect();
                assert_eq!((all.len(), take(0), take(3)), (100, None, None));
                let apart = separate && cpus > 1;
                assert!(!apart || all.iter().all(|i| pool.is_own(i / 25, *i) && !pool.is_own(i / 25 + 1, *i)));
                all.iter().for_each(|&i| give(i % 3, i));
            }
            // Elements change places with spares and stay those of their CPU.
            for old in [0, 99] {
                let (place, new) = pool.take_spare(2, old);
                assert!(new != old && (!pool.separate || pool.owner(new) == pool.owner(old)));
                pool.give_spare(place, old);
            }
        }
    }

    #[test]
    fn stocks_change_elements_of_one_owner() {
        for separate in [false, true] {
            let pool = Pool::new(4096, 4, true, separate);
            assert_eq!(pool.capacity(), 4096 + 4 * (Pool::SPARES + STOCK));
            let mut out = HashSet::new();
            for evicted in 1024..1024 + 2 * STOCK {
                let other = pool.exchange(1, evicted).unwrap();
                assert!(out.insert(other) && pool.is_own(1, other));
            }
            assert!((1024..1024 + STOCK).all(|first| out.contains(&first)), "what went in came out");
        }
        assert_eq!(Pool::new(100, 4, true, false).exchange(0, 5), None);
    }

    #[test]
    fn free_list_under_threads() {
        let links: Vec<AtomicU32> = (0..8).map(|_| AtomicU32::new(0)).collect();
        let owned: Vec<AtomicU32> = (0..8).map(|_| AtomicU32::new(0)).collect();
        let pool = Pool::new(8, 3, false, false);
        let rounds = if cfg!(miri) { 30 } else { 20_000 };
        std::thread::scope(|scope| {
            for cpu in 0..3 {
                let (pool, links, owned) = (&pool, &links, &owned);
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let Some(i) = pool.take(cpu, |i| links[i as usize].load(Ordering::Relaxed)) else { continue };
                        assert_eq!(owned[i as usize].swap(1, Ordering::AcqRel), 0);
                        owned[i as usize].store(0, Ordering::Release);
                        pool.give(cpu, i, |link| links[i as usize].store(link, Ordering::Relaxed));
                    }
                });
            }
        });
    }
}
