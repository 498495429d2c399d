//! A bucket's readers and writers, and the stacks of free elements, under every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p xway-maps --test loom --release`
#![cfg(loom)]

#[path = "../src/line.rs"]
#[allow(dead_code, unused_imports, missing_docs)]
mod line;

#[path = "../src/free.rs"]
#[allow(dead_code)]
mod free;

/// What `line.rs` takes from the crate.
mod vector {
    pub fn equal_bytes(low: u64, high: u64, tag: u8) -> u32 {
        let bytes = low.to_le_bytes().into_iter().chain(high.to_le_bytes());
        bytes.enumerate().map(|(at, byte)| u32::from(byte == tag) << at).sum()
    }
}

use line::{Line, NUMBER};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

/// Two elements: a key of two words each, which must never be seen half-written.
struct Table {
    line: Line,
    elements: [[AtomicU64; 2]; 2],
}

impl Table {
    fn new() -> Arc<Table> {
        let element = || [AtomicU64::new(0), AtomicU64::new(0)];
        Arc::new(Table { line: Line::default(), elements: [element(), element()] })
    }

    /// As `Table::fill` of the crate.
    fn fill(&self, element: usize, key: u64) {
        fence(Ordering::Release);
        self.elements[element].iter().for_each(|word| word.store(key, Ordering::Relaxed));
    }

    fn key_is(&self, element: usize, key: [u64; 2]) -> bool {
        self.elements[element].iter().zip(key).all(|(word, key)| word.load(Ordering::Relaxed) == key)
    }

    /// As `Table::find`: the element, or nothing. All keys here have one tag, the hardest case.
    fn find(&self, key: [u64; 2]) -> Option<usize> {
        loop {
            let seen = self.line.look();
            let candidates = seen.matching(1);
            let found = candidates.map(|slot| self.line.slot(slot)).find(|word| {
                let element = (word & NUMBER) as usize;
                self.key_is(element, key)
            });
            match found {
                Some(_) if !self.line.still(seen) => thread::yield_now(),
                Some(word) => return Some((word & NUMBER) as usize),
                None if !candidates.is_empty() && !self.line.still(seen) => thread::yield_now(),
                None => return None,
            }
        }
    }
}

/// An element goes from one key to another, in one slot. Whoever looks for a mixture of the two never finds it.
#[test]
fn no_reader_takes_two_halves_for_a_key() {
    loom::model(|| {
        let table = Table::new();
        table.fill(0, 7);
        table.line.lock().fill(&table.line, 0, 0, 1);
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                assert_eq!(table.find([9, 7]), None);
                table.find([9, 9])
            })
        };
        {
            let mut locked = table.line.lock();
            locked.clear(&table.line, 0);
            table.fill(0, 9);
            locked.fill(&table.line, 0, 0, 1);
        }
        assert!(matches!(reader.join().unwrap(), None | Some(0)));
        assert_eq!((table.find([9, 9]), table.find([7, 7])), (Some(0), None));
    });
}

/// A key that is replaced, and whose old element is filled with another key at once, is found all the time, and never in an
/// element that is another's.
#[test]
fn a_replaced_key_is_always_found() {
    loom::model(|| {
        let table = Table::new();
        table.fill(0, 7);
        table.line.lock().fill(&table.line, 8, 0, 1);
        let reader = {
            let table = table.clone();
            thread::spawn(move || assert!(table.find([7, 7]).is_some()))
        };
        {
            let mut locked = table.line.lock();
            table.fill(1, 7);
            locked.replace(&table.line, 8, 1);
            // The old element's new owner, in another slot.
            table.fill(0, 9);
            locked.fill(&table.line, 2, 0, 1);
        }
        reader.join().unwrap();
        assert_eq!((table.find([7, 7]), table.find([9, 9])), (Some(1), Some(0)));
    });
}

/// Two writers, one of which evicts what the other put in: one element, one owner, nothing lost.
#[test]
fn writers_exclude_each_other() {
    loom::model(|| {
        let table = Table::new();
        let other = {
            let table = table.clone();
            thread::spawn(move || {
                let mut locked = table.line.lock();
                let free = locked.look(&table.line).matching(0).next().unwrap();
                table.fill(0, 5);
                locked.fill(&table.line, free, 0, 1);
                // A reader's mark may land at any time.
                table.line.touch(free, 0);
            })
        };
        {
            let mut locked = table.line.lock();
            if let Some(slot) = locked.look(&table.line).used().next() {
                locked.clear(&table.line, slot);
                table.fill(0, 6);
                locked.fill(&table.line, slot, 0, 1);
            } else {
                table.fill(1, 6);
                locked.fill(&table.line, 0, 1, 1);
            }
        }
        other.join().unwrap();
        assert!(table.find([6, 6]).is_some());
        assert!(table.line.look().used().len() <= 2);
        assert_eq!(table.find([5, 5]).is_some(), table.line.look().used().len() == 2);
    });
}

/// A prefix trie's writer builds a node beside the old one and exchanges the entry; readers see either, whole.
#[test]
fn an_exchanged_node_is_whole() {
    loom::model(|| {
        // Two nodes of two words, and the entry: as `LpmTrie::exchange_node` and `LpmTrie::find` use them.
        let nodes: Arc<[[AtomicU64; 2]; 2]> =
            Arc::new([[AtomicU64::new(1), AtomicU64::new(1)], [AtomicU64::new(0), AtomicU64::new(0)]]);
        let entry = Arc::new(AtomicU64::new(0));
        let reader = {
            let (nodes, entry) = (nodes.clone(), entry.clone());
            thread::spawn(move || {
                let node = &nodes[entry.load(Ordering::Acquire) as usize];
                let words = [0, 1].map(|at: usize| node[at].load(Ordering::Relaxed));
                assert!(words == [1, 1] || words == [2, 2], "{words:?}");
            })
        };
        nodes[1].iter().for_each(|word| word.store(2, Ordering::Relaxed));
        entry.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}

/// A bucket whose first line is full as far as anybody asks: keys stand in two lines behind it.
struct Chain {
    first: Line,
    behind: [Line; 2],
    elements: [[AtomicU64; 2]; 2],
}

impl Chain {
    /// First line, then line 0 with `keys[0]` in element 0, then line 1 with `keys[1]` in element 1.
    fn new(keys: [u64; 2]) -> Arc<Chain> {
        let element = |key| [AtomicU64::new(key), AtomicU64::new(key)];
        let behind = [Line::default(), Line::default()];
        let chain = Chain { first: Line::default(), behind, elements: keys.map(element) };
        {
            let mut locked = chain.first.lock();
            locked.set_link(&chain.behind[0], Some(1));
            locked.set_link(&chain.first, Some(0));
            for (n, line) in chain.behind.iter().enumerate() {
                locked.fill(line, 0, n as u32, 1);
            }
            locked.add_to_filter(1);
        }
        Arc::new(chain)
    }

    fn key_is(&self, element: usize, key: u64) -> bool {
        self.elements[element].iter().all(|word| word.load(Ordering::Relaxed) == key)
    }

    /// As `Table::find` with `Table::find_behind`; nothing stands in the first line.
    fn find(&self, key: u64) -> Option<usize> {
        loop {
            let seen = self.first.look();
            if !seen.overflows(1) {
                return None;
            }
            if let Ok(answer) = self.find_behind(seen, key) {
                return answer;
            }
            thread::yield_now();
        }
    }

    fn find_behind(&self, seen: line::Seen, key: u64) -> Result<Option<usize>, ()> {
        let mut at = self.first.link();
        while let Some(number) = at {
            if !self.first.still(seen) {
                return Err(());
            }
            let line = &self.behind[number as usize];
            for slot in line.look().matching(1) {
                let element = (line.slot(slot) & NUMBER) as usize;
                if self.key_is(element, key) {
                    return if self.first.still(seen) { Ok(Some(element)) } else { Err(()) };
                }
            }
            at = line.link();
        }
        if self.first.still(seen) { Ok(None) } else { Err(()) }
    }
}

/// Interleavings with more than so many forced switches are left out: these models have many steps.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}

/// A line behind a bucket loses its only element and is unhooked: what stands behind it is found all the time.
#[test]
fn an_unhooked_line_hides_nothing() {
    model(|| {
        let chain = Chain::new([7, 9]);
        let reader = {
            let chain = chain.clone();
            thread::spawn(move || assert_eq!(chain.find(9), Some(1)))
        };
        {
            // As `Bucket::remove` and `Bucket::unhook`.
            let mut locked = chain.first.lock();
            locked.clear(&chain.behind[0], 0);
            locked.set_link(&chain.first, chain.behind[0].link());
            locked.set_filter(1 << 1);
        }
        reader.join().unwrap();
        assert_eq!((chain.find(7), chain.find(9)), (None, Some(1)));
    });
}

/// A line is unhooked and hung behind the chain again with another key: nobody takes one key for the other, and the key that never
/// moved is found.
#[test]
fn a_line_that_comes_back_is_read_anew() {
    model(|| {
        let chain = Chain::new([7, 9]);
        let reader = {
            let chain = chain.clone();
            thread::spawn(move || chain.find(9))
        };
        {
            let mut locked = chain.first.lock();
            locked.clear(&chain.behind[0], 0);
            locked.set_link(&chain.first, chain.behind[0].link());
            fence(Ordering::Release);
            chain.elements[0].iter().for_each(|word| word.store(5, Ordering::Relaxed));
            // As `Bucket::insert`: in front of the others.
            locked.set_link(&chain.behind[0], chain.first.link());
            locked.set_link(&chain.first, Some(0));
            locked.fill(&chain.behind[0], 0, 0, 1);
            locked.add_to_filter(1);
        }
        assert_eq!(reader.join().unwrap(), Some(1), "it never moved");
        assert_eq!((chain.find(5), chain.find(7)), (Some(0), None));
    });
}

/// The clock takes an element while readers mark it: a mark may be lost or fall to the next owner, but the slot names whole
/// elements, the old key is never found in the new one's, and the new key is there.
#[test]
fn eviction_beside_marks() {
    loom::model(|| {
        let table = Table::new();
        table.fill(0, 7);
        table.line.lock().fill(&table.line, 0, 0, 1);
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                // As a look-up in an LRU table: what is found is marked.
                let seen = table.line.look();
                for slot in seen.matching(1) {
                    let word = table.line.slot(slot);
                    let element = (word & NUMBER) as usize;
                    if table.key_is(element, [7, 7]) && table.line.still(seen) {
                        table.line.touch(slot, word);
                        return Some(element);
                    }
                }
                None
            })
        };
        {
            // As `Bucket::evict` and `Bucket::insert`: the hand passes once, and takes it if it may.
            let mut locked = table.line.lock();
            if table.line.pass(0, true) {
                locked.clear(&table.line, 0);
                table.fill(1, 9);
                locked.fill(&table.line, 0, 1, 1);
            }
        }
        assert!(matches!(reader.join().unwrap(), None | Some(0)));
        let slot = table.line.slot(0) & NUMBER;
        match slot {
            0 => assert_eq!((table.find([7, 7]), table.find([9, 9])), (Some(0), None)),
            _ => assert_eq!((slot, table.find([7, 7]), table.find([9, 9])), (1, None, Some(1))),
        }
    });
}

/// Free elements with what keeps their links, and who has which.
struct Free {
    list: free::FreeList,
    links: [AtomicU32; 3],
    owned: [AtomicU32; 3],
}

impl Free {
    /// The first so many of three elements are free again, the others were never used.
    fn new(back: u32) -> Arc<Free> {
        let words = || std::array::from_fn(|_| AtomicU32::new(0));
        let free = Free { list: free::FreeList::new(0, 3), links: words(), owned: words() };
        let taken: Vec<u32> = (0..back).filter_map(|_| free.list.take_fresh()).collect();
        taken.into_iter().rev().for_each(|element| free.put(element));
        Arc::new(free)
    }

    fn take(&self) -> Option<u32> {
        let back = self.list.take_back(|element| self.links[element as usize].load(Ordering::Relaxed));
        let element = back.or_else(|| self.list.take_fresh())?;
        assert_eq!(self.owned[element as usize].swap(1, Ordering::Relaxed), 0, "element {element} is another's");
        Some(element)
    }

    fn give(&self, element: u32) {
        assert_eq!(self.owned[element as usize].swap(0, Ordering::Relaxed), 1);
        self.put(element);
    }

    fn put(&self, element: u32) {
        self.list.give(element, |link| self.links[element as usize].store(link, Ordering::Relaxed));
    }
}

/// One thread takes an element off while another takes it, takes the next one too and gives the first back: what stood on top
/// stands there again, with another element behind it. Nobody gets what somebody has, and nothing is lost.
#[test]
fn an_element_has_one_owner() {
    for back in [1, 2] {
        loom::model(move || {
            let free = Free::new(back);
            let other = {
                let free = free.clone();
                thread::spawn(move || [free.take(), free.take()])
            };
            let mut mine = vec![free.take(), free.take()];
            if let Some(first) = mine[0].take() {
                free.give(first);
            }
            let others = other.join().unwrap();
            // Whatever is left comes to us: all three have an owner, each one.
            mine.extend([free.take(), free.take(), free.take()]);
            let mut all: Vec<u32> = mine.into_iter().chain(others).flatten().collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2]);
        });
    }
}
