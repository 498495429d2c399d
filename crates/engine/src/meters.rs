//! Counters that one thread writes and any thread reads while they grow.
//!
//! A worker is the only one to add to its meters, so adding is a load and a store without a locked instruction; readers see each
//! number whole, and the numbers of a moment ago. [`crate::Counters`] is the plain copy that readers work with, and both are made
//! of one list of names.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use xway_abi::Errno;

use crate::counters::Tally;

/// A number that one thread adds to.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds; only the owning thread calls this.
    #[inline]
    pub fn add(&self, number: u64) {
        if number != 0 {
            self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
        }
    }

    /// The number now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts by key, as [`Tally`] but readable while it grows. At most [`Tally::KEYS_MAX`] keys are told apart.
#[derive(Debug)]
pub(crate) struct KeyedCount<K> {
    /// Bits of the key, and its count; the first `len` are in use.
    entries: [(AtomicU32, Count); Tally::<u32>::KEYS_MAX],
    len: AtomicUsize,
    others: Count,
    key: std::marker::PhantomData<fn(K) -> K>,
}

/// What counts can be told apart by.
pub trait Key: Copy + PartialEq {
    /// As a number.
    fn bits(self) -> u32;
    /// From that number.
    fn from_bits(bits: u32) -> Self;
    /// For names of counters.
    fn label(self) -> String;
}

impl Key for u32 {
    fn bits(self) -> u32 {
        self
    }
    fn from_bits(bits: u32) -> u32 {
        bits
    }
    fn label(self) -> String {
        self.to_string()
    }
}

impl Key for Errno {
    fn bits(self) -> u32 {
        self.0 as u32
    }
    fn from_bits(bits: u32) -> Errno {
        Errno(bits as i32)
    }
    fn label(self) -> String {
        self.to_string()
    }
}

impl<K: Key> KeyedCount<K> {
    /// Adds to the key's count; only the owning thread calls this.
    pub fn add(&self, key: K, count: u64) {
        if count == 0 {
            return;
        }
        let len = self.len.load(Ordering::Relaxed);
        let bits = key.bits();
        match self.entries[..len].iter().find(|(known, _)| known.load(Ordering::Relaxed) == bits) {
            Some((_, number)) => number.add(count),
            None if len < self.entries.len() => {
                self.entries[len].0.store(bits, Ordering::Relaxed);
                self.entries[len].1.add(count);
                // Readers look at an entry once its key stands there.
                self.len.store(len + 1, Ordering::Release);
            }
            None => self.others.add(count),
        }
    }
}

impl<K> Default for KeyedCount<K> {
    fn default() -> Self {
        KeyedCount {
            entries: Default::default(),
            len: AtomicUsize::new(0),
            others: Count::default(),
            key: std::marker::PhantomData,
        }
    }
}

/// A plain number, or numbers, and their live form.
pub(crate) trait Metered: Default {
    /// The form that one thread adds to and others read.
    type Live: Default + std::fmt::Debug;
    /// What it is now.
    fn read(live: &Self::Live) -> Self;
    /// Adds another one.
    fn merge(&mut self, other: &Self);
    /// Tells each number with its label: empty for a lone number.
    fn each(&self, labels: &[&str], tell: &mut dyn FnMut(&str, u64));
}

impl Metered for u64 {
    type Live = Count;
    fn read(live: &Count) -> u64 {
        live.get()
    }
    fn merge(&mut self, other: &u64) {
        *self += other;
    }
    fn each(&self, _: &[&str], tell: &mut dyn FnMut(&str, u64)) {
        tell("", *self);
    }
}

impl<const N: usize> Metered for [u64; N]
where
    [u64; N]: Default,
    [Count; N]: Default,
{
    type Live = [Count; N];
    fn read(live: &[Count; N]) -> [u64; N] {
        std::array::from_fn(|at| live[at].get())
    }
    fn merge(&mut self, other: &[u64; N]) {
        self.iter_mut().zip(other).for_each(|(ours, theirs)| *ours += theirs);
    }
    fn each(&self, labels: &[&str], tell: &mut dyn FnMut(&str, u64)) {
        self.iter().enumerate().for_each(|(at, number)| tell(labels.get(at).copied().unwrap_or("other"), *number));
    }
}

impl<K: Key + std::fmt::Debug> Metered for Tally<K> {
    type Live = KeyedCount<K>;
    fn read(live: &KeyedCount<K>) -> Tally<K> {
        let len = live.len.load(Ordering::Acquire);
        let mut tally = Tally::default();
        for (key, number) in &live.entries[..len] {
            tally.add(K::from_bits(key.load(Ordering::Relaxed)), number.get());
        }
        tally.add_others(live.others.get());
        tally
    }
    fn merge(&mut self, other: &Tally<K>) {
        other.entries().iter().for_each(|&(key, count)| self.add(key, count));
        self.add_others(other.others());
    }
    fn each(&self, _: &[&str], tell: &mut dyn FnMut(&str, u64)) {
        self.entries().iter().for_each(|&(key, count)| tell(&key.label(), count));
        if self.others() > 0 {
            tell("other", self.others());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_beyond_the_limit_are_counted_together() {
        let live = KeyedCount::<u32>::default();
        (0..40).for_each(|key| live.add(key, 2));
        live.add(3, 5);
        let tally = Tally::read(&live);
        assert_eq!((tally.get(3), tally.get(31), tally.get(32), tally.others(), tally.total()), (7, 2, 0, 16, 85));
    }

    #[test]
    fn a_reader_never_sees_a_count_without_its_key() {
        let live = KeyedCount::<Errno>::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=30).for_each(|errno| (0..100).for_each(|_| live.add(Errno(errno), 1))));
            loop {
                let tally = Tally::read(&live);
                assert!(tally.entries().iter().all(|&(errno, count)| (1..=30).contains(&errno.0) && count <= 100));
                if tally.total() == 3000 {
                    break;
                }
            }
        });
    }
}
