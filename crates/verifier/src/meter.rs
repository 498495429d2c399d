//! What an analysis costs: bytes that it holds and work that it has done, counted where they arise.
//!
//! Frames are most of the memory, are shared between states and copied when one of them changes. Each knows the meter of
//! its analysis, adds itself when it is made and takes itself away when it goes, so that the count is exact however states
//! are passed around. Work is counted in values that were looked at or copied: the time of an analysis follows it closely, and
//! unlike time it is the same on every machine.

use std::cell::Cell;
use std::rc::Rc;

/// Values that take as long as visiting one instruction does.
pub(crate) const PER_INSN: u64 = 11;
/// Bytes of fresh memory that take as long as one value does.
const BYTES_PER_VALUE: u64 = 6;

/// What the allocator adds to each piece of memory, bytes.
pub(crate) const ALLOCATION: usize = 16;

/// Appends, and grows by a quarter instead of doubling, so that a list at its limit does not jump far beyond it.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.capacity() / 4).max(64));
    }
    list.push(item);
}

/// The counts of one analysis, shared by everything that belongs to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Rc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    bytes: Cell<usize>,
    peak: Cell<usize>,
    base: Cell<usize>,
    work: Cell<u64>,
}

impl Meter {
    /// Memory was taken.
    pub fn take(&self, bytes: usize) {
        self.0.bytes.set(self.0.bytes.get() + bytes);
    }

    /// Memory was given back.
    pub fn give(&self, bytes: usize) {
        self.0.bytes.set(self.0.bytes.get().saturating_sub(bytes));
    }

    /// So many values were looked at or copied.
    pub fn work(&self, values: usize) {
        self.0.work.set(self.0.work.get() + values as u64);
    }

    /// Bytes that are held now.
    pub fn bytes(&self) -> usize {
        self.0.bytes.get()
    }

    /// Work so far, with so many instructions visited.
    pub fn done(&self, visited: u64) -> u64 {
        self.0.work.get()
            + visited * PER_INSN
            + self.0.peak.get().saturating_sub(self.0.base.get()) as u64 / BYTES_PER_VALUE
    }

    /// What is held for the program itself, which is no work of the analysis.
    pub fn base(&self, bytes: usize) {
        self.0.base.set(bytes);
    }

    /// Notes what the whole analysis holds now, for [`Meter::peak`].
    pub fn note(&self, all: usize) {
        self.0.peak.set(self.0.peak.get().max(all));
    }

    /// The most that was noted.
    pub fn peak(&self) -> usize {
        self.0.peak.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_values_instructions_and_fresh_memory() {
        let meter = Meter::default();
        meter.work(5);
        assert_eq!(meter.done(2), 5 + 2 * PER_INSN);
        // Memory counts by its peak, without what the program itself takes.
        meter.base(100);
        meter.note(100 + 6 * BYTES_PER_VALUE as usize);
        meter.note(0);
        assert_eq!(meter.done(0), 5 + 6);
        assert_eq!(meter.peak(), 136);
    }

    #[test]
    fn copies_of_a_meter_count_together() {
        let meter = Meter::default();
        let copy = meter.clone();
        meter.take(10);
        copy.take(5);
        copy.give(10);
        assert_eq!((meter.bytes(), copy.bytes()), (5, 5));
        meter.give(100);
        assert_eq!(copy.bytes(), 0, "never below nothing");
    }

    #[test]
    fn a_list_grows_by_a_quarter() {
        let mut list = Vec::new();
        (0..65).for_each(|n| push(&mut list, n));
        assert_eq!((list.len(), list.capacity()), (65, 128));
        (65..129).for_each(|n| push(&mut list, n));
        assert_eq!(list.capacity(), 192, "64 at least");
        (129..1000).for_each(|n| push(&mut list, n));
        assert!(list.capacity() <= 1000 + 250, "{}", list.capacity());
    }
}
