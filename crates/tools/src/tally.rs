//! What the programs of this crate count (`struct tally` of `bpf/include/tally.h`), one for each CPU.

use std::ops::{AddAssign, Sub};

use xway_kernel::KernelMap;

/// One counter. What each field means is said where it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Packets.
    pub processed: u64,
    /// Packets that were lost, or dropped as asked.
    pub dropped: u64,
    /// Errors, batches or turns.
    pub issue: u64,
    /// XDP_PASS by a program behind a map.
    pub pass: u64,
    /// XDP_DROP by one; of transmissions: failures of the driver.
    pub drop: u64,
    /// XDP_REDIRECT by one.
    pub redirect: u64,
}

impl Tally {
    /// Bytes of the structure.
    const BYTES: usize = 48;

    fn from_bytes(bytes: &[u8]) -> Tally {
        let word = |i: usize| bytes.get(i * 8..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b));
        let [processed, dropped, issue, pass, drop, redirect] = std::array::from_fn(word);
        Tally { processed, dropped, issue, pass, drop, redirect }
    }

    /// Nothing was counted.
    pub fn is_zero(&self) -> bool {
        *self == Tally::default()
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.processed += other.processed;
        self.dropped += other.dropped;
        self.issue += other.issue;
        self.pass += other.pass;
        self.drop += other.drop;
        self.redirect += other.redirect;
    }
}

impl Sub for Tally {
    type Output = Tally;

    fn sub(self, before: Tally) -> Tally {
        Tally {
            processed: self.processed.saturating_sub(before.processed),
            dropped: self.dropped.saturating_sub(before.dropped),
            issue: self.issue.saturating_sub(before.issue),
            pass: self.pass.saturating_sub(before.pass),
            drop: self.drop.saturating_sub(before.drop),
            redirect: self.redirect.saturating_sub(before.redirect),
        }
    }
}

/// The same counter on every CPU, by the CPU's number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PerCpu(pub Vec<Tally>);

impl PerCpu {
    /// All CPUs together.
    pub fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        self.0.iter().for_each(|one| sum += *one);
        sum
    }

    /// What was counted since `before`.
    pub fn since(&self, before: &PerCpu) -> PerCpu {
        let old = before.0.iter().copied().chain(std::iter::repeat(Tally::default()));
        PerCpu(self.0.iter().zip(old).map(|(now, old)| *now - old).collect())
    }

    /// CPUs that counted something, with their numbers.
    pub fn busy(&self) -> impl Iterator<Item = (usize, &Tally)> {
        self.0.iter().enumerate().filter(|(_, one)| !one.is_zero())
    }

    /// Reads an element of a per-CPU map; an element that is not there has counted nothing.
    pub(crate) fn read(map: &KernelMap, key: &[u8]) -> PerCpu {
        let bytes = map.get(key).unwrap_or_default();
        PerCpu(bytes.as_chunks::<{ Tally::BYTES }>().0.iter().map(|b| Tally::from_bytes(b)).collect())
    }

    /// The same for an array.
    pub(crate) fn at(map: &KernelMap, index: u32) -> PerCpu {
        PerCpu::read(map, &index.to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_by_cpu() {
        let tally = |processed| Tally { processed, ..Tally::default() };
        let (old, new) = (PerCpu(vec![tally(5)]), PerCpu(vec![tally(9), tally(2)]));
        let between = new.since(&old);
        assert_eq!(between, PerCpu(vec![tally(4), tally(2)]));
        assert_eq!(between.sum(), tally(6));
        assert_eq!(new.since(&new).busy().count(), 0);
    }
}
