//! Where a table's elements come from: lists of free ones, and a few spares for replacements.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::free::FreeList;

/// The elements of a table that are not in it.
///
/// Numbers below `max` are the table's capacity: one list for all CPUs, or a range and a list for each
/// (`BPF_F_NO_COMMON_LRU`). Each list has spares above `max`: an element that replaces another of the same key
/// comes from the spares, and the one it replaces goes there, so that updates of what is there need no free element. All
/// spares together always are as many as at first.
pub(crate) struct Pool {
    max: u32,
    /// Whether old elements make room for new ones.
    evicts: bool,
    /// One, or one for each CPU.
    lists: Box<[FreeList]>,
    /// Free stacks of a common pool, one for each CPU; its only list keeps the fresh numbers.
    stacks: Box<[FreeList]>,
    /// [`Pool::SPARES`] for each CPU, in lines of their own.
    spares: Box<[Spare]>,
    /// Of a large pool that evicts, one for each CPU; else empty.
    stocks: Box<[Stock]>,
    cpus: u32,
    /// CPUs with the same bits here share stacks and spares. In tables of few buckets, where no more CPUs than there are buckets can
    /// change something at a time, these are few; else every CPU has its own.
    group: u32,
    /// Spares of each group.
    own: u32,
}

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

#[repr(align(64))]
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

impl Pool {
    /// Spares for each CPU.
    const SPARES: u32 = 2;

    /// `max` elements in the table at most; a multiple of `cpus` when `separate`, which gives each CPU its share.
    pub(crate) fn new(max: u32, cpus: u32, evicts: bool, separate: bool) -> Pool {
        // The share of an only CPU is all there is: one list, as of a common pool.
        let separate = separate && cpus > 1;
        let lists = if separate { cpus } else { 1 };
        let len = max / lists;
        // Whoever holds a spare holds its bucket's lock.
        let buckets = 1 << crate::table::buckets_log2(max, evicts);
        let (groups, group) = if separate || cpus <= buckets { (cpus, u32::MAX) } else { (buckets, buckets - 1) };
        let spares = if groups == 1 && buckets == 1 { 1 } else { Pool::SPARES };
        let stacks = if separate { 0 } else { groups };
        let stocks = if evicts && max / cpus >= STOCK * STOCK_SHARE { groups } else { 0 };
        let own = spares + if stocks > 0 { STOCK } else { 0 };
        let stock = |cpu| Stock {
            places: std::array::from_fn(|n| AtomicU32::new(max + cpu * own + spares + n as u32)),
            next: AtomicU32::new(0),
        };
        let spare = |n| Spare(AtomicU32::new(max + n / spares * own + n % spares));
        Pool {
            max,
            evicts,
            lists: (0..lists).map(|n| FreeList::new(n * len, (n + 1) * len)).collect(),
            stacks: (0..stacks).map(|_| FreeList::new(0, 0)).collect(),
            spares: (0..groups * spares).map(spare).collect(),
            stocks: (0..stocks).map(stock).collect(),
            cpus,
            group,
            own: spares,
        }
    }

    /// Bytes of memory beside the elements.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.lists) + size_of_val(&*self.stacks) + size_of_val(&*self.spares) + size_of_val(&*self.stocks)
    }

    /// How many elements need memory.
    pub(crate) fn capacity(&self) -> u32 {
        self.max + self.spare()
    }

    /// Elements above `max`.
    fn spare(&self) -> u32 {
        self.spares.len() as u32 / self.own * self.above()
    }

    /// Elements in the table at most.
    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    /// Elements that were ever handed out.
    pub(crate) fn touched(&self) -> u32 {
        self.lists.iter().map(FreeList::touched).sum()
    }

    pub(crate) fn cpus(&self) -> u32 {
        self.cpus
    }

    /// Elements of each group above `max`.
    fn above(&self) -> u32 {
        self.own + if self.stocks.is_empty() { 0 } else { STOCK }
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
        self.lists.len() == 1 || self.owner(index) == cpu % self.lists.len() as u32
    }

    /// The CPU whose element this is.
    fn owner(&self, index: u32) -> u32 {
        if index < self.max {
            index / (self.max / self.lists.len() as u32)
        } else {
            (index - self.max) / self.above() % self.lists.len() as u32
        }
    }

    /// A free element for this CPU. A common pool fills the table to its last element, whoever gave it back.
    pub(crate) fn take(&self, cpu: u32, link: impl Fn(u32) -> u32) -> Option<u32> {
        if self.lists.len() > 1 {
            let list = &self.lists[cpu as usize % self.lists.len()];
            return list.take_back(link).or_else(|| list.take_fresh());
        }
        let own = cpu as usize % self.stacks.len();
        self.stacks[own].take_back(&link).or_else(|| self.lists[0].take_fresh()).or_else(|| {
            let others = (1..self.stacks.len()).map(|n| &self.stacks[(own + n) % self.stacks.len()]);
            others.into_iter().find_map(|stack| stack.take_back(&link))
        })
    }

    /// Gives an element back that is not in the table.
    pub(crate) fn give(&self, cpu: u32, index: u32, set_link: impl Fn(u32)) {
        let list = if self.lists.len() > 1 {
            &self.lists[self.owner(index) as usize]
        } else {
            &self.stacks[cpu as usize % self.stacks.len()]
        };
        list.give(index, set_link);
    }

    /// An element to replace `old` with, and the place in the spares where `old` goes with [`Pool::give_spare`].
    #[inline(always)]
    pub(crate) fn take_spare(&self, cpu: u32, old: u32) -> (usize, u32) {
        // Nearly always the first of one's own is there.
        let first = (cpu & self.group) as usize * self.own as usize;
        if self.lists.len() == 1
            && let Some(index) = self.spares.get(first).and_then(Spare::take)
        {
            return (first, index);
        }
        self.search_spare(cpu, old)
    }

    #[cold]
    #[inline(never)]
    fn search_spare(&self, cpu: u32, old: u32) -> (usize, u32) {
        let (first, len) = if self.lists.len() > 1 {
            (self.owner(old) * self.own, self.own as usize)
        } else {
            ((cpu & self.group) * self.own, self.spares.len())
        };
        for n in 0.. {
            let place = if self.lists.len() > 1 { first as usize + n % len } else { (first as usize + n) % len };
            if let Some(index) = self.spares[place].take() {
                return (place, index);
            }
            if n % len == len - 1 {
                // All spares are in the hands of threads that need no lock of ours to finish.
                std::thread::yield_now();
            }
        }
        unreachable!("the loop has no end")
    }

    #[inline]
    pub(crate) fn give_spare(&self, place: usize, old: u32) {
        self.spares[place].0.store(old, Ordering::Release);
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
                assert!(new != old && pool.owner(new) == pool.owner(old));
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
