//! Ring records that a run has reserved and not yet given back.

use xway_maps::{HeldRecord, RingRecord};

/// Records by their addresses, the latest last. What is left when the run ends is discarded.
#[derive(Debug, Default)]
pub(crate) struct Records<'e>(Vec<(u64, HeldRecord<'e>)>);

impl<'e> Records<'e> {
    /// Keeps a record; its address.
    #[inline(always)]
    pub fn put(&mut self, record: RingRecord<'e>) -> u64 {
        let addr = record.value().addr() as u64;
        self.0.push((addr, record.hold()));
        addr
    }

    /// The record at an address.
    #[inline(always)]
    pub fn take(&mut self, addr: u64) -> Option<RingRecord<'e>> {
        // The usual case: the only one.
        if self.0.last().is_some_and(|last| last.0 == addr) {
            return self.0.pop().map(|last| last.1.release());
        }
        self.search(addr)
    }

    #[cold]
    #[inline(never)]
    fn search(&mut self, addr: u64) -> Option<RingRecord<'e>> {
        let at = self.0.iter().rposition(|record| record.0 == addr)?;
        Some(self.0.swap_remove(at).1.release())
    }
}

impl Drop for Records<'_> {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(_, record)| drop(record.release()));
    }
}

#[cfg(test)]
mod tests {
    use xway_abi::{MapSpec, MapType};
    use xway_maps::{Env, Map};

    use super::*;

    #[test]
    fn what_is_not_given_back_is_discarded() {
        let map = Map::create(&MapSpec::new(MapType::Ringbuf, 0, 0, 4096), &Env::with_cpus(1)).unwrap();
        let ring = map.ringbuf().unwrap();
        let mut records = Records::default();
        let addrs: Vec<u64> = (0..4).map(|_| records.put(ring.reserve(8, 0).unwrap())).collect();
        assert!(addrs.windows(2).all(|pair| pair[1] == pair[0] + 16), "{addrs:?}");
        assert!(records.take(addrs[0] + 8).is_none());
        // In any order.
        for n in [1, 3] {
            let record = records.take(addrs[n]).unwrap();
            assert_eq!((record.value().addr() as u64, record.value().len()), (addrs[n], 8));
            record.submit(0);
            assert!(records.take(addrs[n]).is_none());
        }
        let mut seen = 0;
        assert_eq!(ring.consume(9, &mut |_| seen += 1), Ok(0), "the first is open");
        drop(records);
        assert_eq!((ring.consume(9, &mut |_| seen += 1), seen), (Ok(2), 2));
    }
}
