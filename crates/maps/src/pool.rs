//! Where a table's elements come from: a free list, or the eviction of what was not used lately.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Element numbers that were never used, and a lock-free stack of those that came back.
pub(crate) struct FreeList {
    capacity: u32,
    /// Elements handed out that were never used before.
    fresh: AtomicU32,
    /// Top of the stack: number + 1 in the low half (0: empty), a change counter in the high half.
    top: AtomicU64,
}

impl FreeList {
    pub(crate) fn new(capacity: u32) -> FreeList {
        FreeList { capacity, fresh: AtomicU32::new(0), top: AtomicU64::new(0) }
    }

    /// Takes an element; `link` reads the stack link kept in an element.
    pub(crate) fn take(&self, link: impl Fn(u32) -> u32) -> Option<u32> {
        let mut top = self.top.load(Ordering::Acquire);
        while top as u32 != 0 {
            let index = top as u32 - 1;
            let next = ((top >> 32).wrapping_add(1) << 32) | u64::from(link(index));
            match self.top.compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => top = now,
            }
        }
        let capacity = self.capacity;
        self.fresh.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| (n < capacity).then_some(n + 1)).ok()
    }

    /// Gives an element back; `set_link` writes the stack link kept in it.
    pub(crate) fn give(&self, index: u32, set_link: impl Fn(u32)) {
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            set_link(top as u32);
            let next = ((top >> 32).wrapping_add(1) << 32) | u64::from(index + 1);
            match self.top.compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}

/// Eviction by the clock: a hand goes round the elements, clears the "used" mark of those that have it and takes those that
/// have not.
///
/// No global list and no global lock: CPUs share nothing but the hand, one counter, from which each claims a few elements
/// to look at; what is taken goes to the CPU's own stock. The cost of making room is bounded by [`Lru::SCAN_MAX`].
pub(crate) struct Lru {
    /// One for each CPU.
    stocks: Vec<Mutex<Vec<u32>>>,
    /// One range of elements and one hand for all CPUs, or one for each (`BPF_F_NO_COMMON_LRU`).
    ranges: Vec<Range>,
    per_cpu: bool,
    /// Elements that one claim of the hand covers.
    window: u32,
}

struct Range {
    start: u32,
    len: u32,
    fresh: AtomicU32,
    hand: AtomicU32,
}

/// What [`Lru::take`] asks the table about one element.
pub(crate) enum Evict {
    /// It was in the table and is out now: ours.
    Taken,
    /// It had the mark, which is cleared now.
    Spared,
    /// It is not in the table: another CPU is about to use it.
    Absent,
}

impl Lru {
    /// Elements looked at, for each one asked for, before the mark is no longer honoured.
    const SCAN_MAX: u32 = 64;

    /// `capacity` is a multiple of `cpus` when `per_cpu`.
    pub(crate) fn new(capacity: u32, cpus: u32, per_cpu: bool) -> Lru {
        let ranges = if per_cpu { cpus } else { 1 };
        let len = capacity / ranges;
        let range = |n| Range { start: n * len, len, fresh: AtomicU32::new(0), hand: AtomicU32::new(0) };
        Lru {
            stocks: (0..cpus).map(|_| Mutex::new(Vec::new())).collect(),
            ranges: (0..ranges).map(range).collect(),
            per_cpu,
            window: (len / (cpus * 8)).clamp(1, 16),
        }
    }

    pub(crate) fn cpus(&self) -> usize {
        self.stocks.len()
    }

    /// An element for `cpu`, with one taken from the table if no free one is left. `evict(index, force)` tries to take the
    /// element out of the table. `None` only when every element is in some other thread's hands.
    pub(crate) fn take(&self, cpu: u32, evict: impl Fn(u32, bool) -> Evict) -> Option<u32> {
        let cpu = cpu as usize % self.stocks.len();
        if let Some(index) = self.stocks[cpu].lock().pop() {
            return Some(index);
        }
        let range = &self.ranges[if self.per_cpu { cpu } else { 0 }];
        let unused =
            range.fresh.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| (n < range.len).then_some(n + 1));
        if let Ok(n) = unused {
            return Some(range.start + n);
        }
        if !self.per_cpu {
            // Free elements that other CPUs hold come before any eviction: the map fills to its last element.
            for other in 1..self.stocks.len() {
                if let Some(index) = self.stocks[(cpu + other) % self.stocks.len()].lock().pop() {
                    return Some(index);
                }
            }
        }
        self.make_room(cpu, range, evict)
    }

    /// Gives an element back to the CPU whose it is.
    pub(crate) fn give(&self, cpu: u32, index: u32) {
        let cpu = if self.per_cpu { (index / self.ranges[0].len) as usize } else { cpu as usize };
        self.stocks[cpu % self.stocks.len()].lock().push(index);
    }

    fn make_room(&self, cpu: usize, range: &Range, evict: impl Fn(u32, bool) -> Evict) -> Option<u32> {
        let mut looked_at = 0u32;
        let mut mine = None;
        // After twice round by force, all elements are in others' hands.
        let limit = Lru::SCAN_MAX.saturating_add(range.len.saturating_mul(2));
        while mine.is_none() && looked_at < limit {
            let start = range.hand.fetch_add(self.window, Ordering::Relaxed);
            for step in 0..self.window {
                let index = range.start + start.wrapping_add(step) % range.len;
                match evict(index, looked_at >= Lru::SCAN_MAX && mine.is_none()) {
                    Evict::Taken if mine.is_none() => mine = Some(index),
                    Evict::Taken => self.stocks[cpu].lock().push(index),
                    Evict::Spared | Evict::Absent => {}
                }
                looked_at += 1;
            }
        }
        mine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn free_list_gives_each_element_once() {
        let links: Vec<AtomicU32> = (0..100).map(|_| AtomicU32::new(0)).collect();
        let list = FreeList::new(100);
        let take = || list.take(|i| links[i as usize].load(Ordering::Relaxed));
        let give = |i: u32| list.give(i, |link| links[i as usize].store(link, Ordering::Relaxed));
        let all: HashSet<u32> = (0..100).map(|_| take().unwrap()).collect();
        assert_eq!((all.len(), take()), (100, None));
        all.iter().for_each(|&i| give(i));
        let again: HashSet<u32> = (0..100).map(|_| take().unwrap()).collect();
        assert_eq!((again, take()), (all, None));
    }

    #[test]
    fn free_list_under_threads() {
        let links: Vec<AtomicU32> = (0..8).map(|_| AtomicU32::new(0)).collect();
        let owned: Vec<AtomicU32> = (0..8).map(|_| AtomicU32::new(0)).collect();
        let list = FreeList::new(8);
        let rounds = if cfg!(miri) { 30 } else { 20_000 };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let Some(i) = list.take(|i| links[i as usize].load(Ordering::Relaxed)) else { continue };
                        assert_eq!(owned[i as usize].swap(1, Ordering::AcqRel), 0);
                        owned[i as usize].store(0, Ordering::Release);
                        list.give(i, |link| links[i as usize].store(link, Ordering::Relaxed));
                    }
                });
            }
        });
    }

    #[test]
    fn the_hand_spares_marked_elements_once() {
        let lru = Lru::new(4, 1, false);
        let all: HashSet<u32> = (0..4).map(|_| lru.take(0, |_, _| Evict::Absent).unwrap()).collect();
        assert_eq!(all.len(), 4);
        let marked = [const { AtomicU32::new(1) }; 4];
        marked[2].store(0, Ordering::Relaxed);
        let evict = |i: u32, force: bool| {
            let was = marked[i as usize].swap(0, Ordering::Relaxed);
            if was == 0 || force { Evict::Taken } else { Evict::Spared }
        };
        assert_eq!(lru.take(0, evict), Some(2));
        assert!(lru.take(0, |_, _| Evict::Absent).is_none());
        // Everything marked again and again: force ends it.
        assert!(lru.take(0, |_, force| if force { Evict::Taken } else { Evict::Spared }).is_some());
    }
}
