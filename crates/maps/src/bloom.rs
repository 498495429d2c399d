//! BLOOM_FILTER: a set that only answers "surely not" or "perhaps".
//!
//! A push sets bits one by one: a peek that runs at the same time may not yet find the value; after the push has returned,
//! every peek finds it.

use std::sync::atomic::Ordering;

use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec};

use crate::keyhash::Seed;
use crate::ops::Ops;
use crate::storage::Block;

pub(crate) struct Bloom {
    bits: Block,
    mask: u64,
    /// What no two filters have in common.
    secret: Seed,
    hashes: u64,
}

/// Hash functions if the creator does not say.
const HASHES: u64 = 5;

impl Bloom {
    /// Takes `hashes / ln 2` bits for each entry, rounded up to a power of two: half of them are set when the filter holds
    /// `max_entries` values, which makes the answer wrong least often.
    pub(crate) fn new(spec: &MapSpec) -> Result<Bloom, Errno> {
        let hashes = if spec.map_extra & 0xf == 0 { HASHES } else { spec.map_extra & 0xf };
        // 7/5 = 1.4 stands for 1 / ln 2 = 1.44.
        let wanted = (u64::from(spec.max_entries) * hashes * 7 / 5).clamp(64, 1 << 32);
        let bits = wanted.next_power_of_two();
        let secret = if spec.flags & f::ZERO_SEED != 0 { Seed([0; 3]) } else { Seed::random() };
        Ok(Bloom { bits: Block::new((bits / 8) as usize)?, mask: bits - 1, secret, hashes })
    }

    /// The bit of the n-th hash function.
    #[inline]
    fn bit(&self, n: u64, value: &[u8]) -> (usize, u64) {
        let bit = Seed::fixed(n).mixed(&self.secret).hash(value) & self.mask;
        ((bit / 64) as usize, 1 << (bit % 64))
    }
}

impl Ops for Bloom {
    fn blocks(&self) -> Vec<&Block> {
        vec![&self.bits]
    }

    /// Asks for the value in `out`.
    fn lookup(&self, _: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        self.peek(out)
    }

    fn update(&self, _: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.push(value, flags)
    }

    fn delete(&self, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn next_key(&self, _: Option<&[u8]>, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn push(&self, value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != f::ANY {
            return Err(Errno::EINVAL);
        }
        for n in 0..self.hashes {
            let (word, mask) = self.bit(n, value);
            let word = &self.bits.words()[word];
            // Bits are never taken back. Of one that is there already nobody can tell who set it, and a look costs less than a change.
            if word.load(Ordering::Acquire) & mask == 0 {
                word.fetch_or(mask, Ordering::Release);
            }
        }
        Ok(())
    }

    fn pop(&self, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn peek(&self, value: &mut [u8]) -> Result<(), Errno> {
        let all = (0..self.hashes).all(|n| {
            let (word, mask) = self.bit(n, value);
            self.bits.words()[word].load(Ordering::Acquire) & mask != 0
        });
        if all { Ok(()) } else { Err(Errno::ENOENT) }
    }
}
