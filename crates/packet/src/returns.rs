//! The way home for frames that another thread releases: a lock-free list of chunk numbers.
//!
//! Many threads push, one thread (the pool's owner) takes everything at once. Because the taker never removes single
//! elements, a push whose expected head went away and came back is still right: it links to whatever the head is now.
//!
//! The list also settles who frees the pool. The owner closes it once; after that releases are only counted, and whichever
//! side brings the count to zero is told so, exactly once.

use crate::sync::{AtomicI64, AtomicU32, Ordering};

const EMPTY: u32 = u32::MAX;
const CLOSED: u32 = u32::MAX - 1;

/// A multi-producer, single-taker list of the numbers `0..len`, each of which may be in it at most once.
pub struct Returns {
    head: AtomicU32,
    /// Element `i` names the number below `i` in the list. Written by whoever pushes `i`, read by the taker.
    next: Box<[AtomicU32]>,
    /// Releases after the close count down, the close counts up by what was away: zero afterwards means all are home.
    away: AtomicI64,
}

impl Returns {
    /// An empty list for numbers below `len`.
    pub fn new(len: u32) -> Self {
        Returns {
            head: AtomicU32::new(EMPTY),
            next: (0..len).map(|_| AtomicU32::new(EMPTY)).collect(),
            away: AtomicI64::new(0),
        }
    }

    /// Sends the numbers of `chain` home with one atomic operation; returns true when the list was closed and these were the
    /// last ones away, so that the caller must free what the list belongs to. An empty chain does nothing.
    ///
    /// The caller owns the numbers and gives them up here. A number that is not below `len` is ignored.
    pub fn push(&self, chain: &[u32]) -> bool {
        self.door().push(chain)
    }

    /// The atomics alone. Once a push has succeeded the list may be freed by another thread at any moment, and then only
    /// references to atomics may still be around, as with the counts of an `Arc`.
    pub fn door(&self) -> Door<'_> {
        Door { head: &self.head, next: &self.next, away: &self.away }
    }

    /// Takes everything that is in the list and appends it to `out`. Only the owner calls this.
    pub fn take(&self, out: &mut Vec<u32>) -> usize {
        // The common case, nothing there, without a locked instruction.
        if self.head.load(Ordering::Relaxed) == EMPTY {
            return 0;
        }
        self.collect(self.head.swap(EMPTY, Ordering::Acquire), out)
    }

    /// Closes the list for good and appends what was in it to `out`. Called once, by the owner, who then says with
    /// [`Door::settle`] how many numbers are still away.
    pub fn close(&self, out: &mut Vec<u32>) -> usize {
        self.collect(self.head.swap(CLOSED, Ordering::Acquire), out)
    }

    fn collect(&self, mut at: u32, out: &mut Vec<u32>) -> usize {
        let before = out.len();
        // Each number is at most once in the list, so its length bounds the walk.
        while let Some(next) = self.next.get(at as usize) {
            out.push(at);
            at = next.load(Ordering::Relaxed);
        }
        out.len() - before
    }
}

/// What is done to [`Returns`] last by each party.
pub struct Door<'a> {
    head: &'a AtomicU32,
    next: &'a [AtomicU32],
    away: &'a AtomicI64,
}

impl Door<'_> {
    /// See [`Returns::push`].
    pub fn push(self, chain: &[u32]) -> bool {
        let (Some(&first), Some(&last)) = (chain.first(), chain.last()) else { return false };
        for pair in chain.windows(2) {
            self.link(pair[0], pair[1]);
        }
        let mut head = self.head.load(Ordering::Relaxed);
        while head != CLOSED {
            self.link(last, head);
            // Release: the taker must see the links and everything done to the frames before they were released.
            match self.head.compare_exchange_weak(head, first, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return false,
                Err(now) => head = now,
            }
        }
        // AcqRel: whoever frees must see what all the others did before.
        let count = chain.len() as i64;
        self.away.fetch_sub(count, Ordering::AcqRel) == count
    }

    /// The owner's last word after [`Returns::close`]: so many numbers are still away. Returns true when, counting those that
    /// came back since, none is, so that the owner must free.
    pub fn settle(self, away: u32) -> bool {
        let away = i64::from(away);
        self.away.fetch_add(away, Ordering::AcqRel) + away == 0
    }

    fn link(&self, from: u32, to: u32) {
        if let Some(slot) = self.next.get(from as usize) {
            slot.store(to, Ordering::Relaxed);
        }
    }
}
