//! Memory of each CPU that small maps share.
//!
//! ```text
//! CPU 0: │ map a │ map b   map b │ map c │ …  CPU 1: │ map a │ map b   map b │ map c │ …
//!        └ a line ───────────────────────┘           └ STRIDE bytes behind
//! ```
//!
//! A counter for each CPU is eight bytes. In lines of its own it would take 64 on every CPU, and a program with five of them would touch
//! five lines for each packet. So less than a line lies beside what other maps have for the same CPU; CPUs share no line all the same.

use parking_lot::Mutex;
use xway_abi::Errno;

use crate::storage::Block;

/// Bytes from one CPU's memory to the next CPU's.
pub(crate) const STRIDE: usize = 512;
/// What is given out at least, and a multiple of what is.
const WORD: usize = 8;
/// Words of a line.
const LINE: usize = 64 / WORD;

struct Region {
    cpus: u32,
    memory: Block,
    /// Bit n: some map has word n of every CPU.
    used: u64,
}

static REGIONS: Mutex<Vec<Region>> = Mutex::new(Vec::new());

impl Region {
    /// The first of so many free words, which lie in one line.
    fn find(&self, words: usize) -> Option<usize> {
        let places = (0..STRIDE / WORD).filter(|at| at % LINE + words <= LINE);
        places.into_iter().find(|at| self.used & bits(*at, words) == 0)
    }

    fn take(&mut self, at: usize, words: usize) -> Block {
        self.used |= bits(at, words);
        self.memory.part(at * WORD, self.cpus as usize, words * WORD)
    }
}

fn bits(at: usize, words: usize) -> u64 {
    ((1 << words) - 1) << at
}

/// So many zeroed bytes for each CPU, fewer than a line and a multiple of 8, [`STRIDE`] bytes apart. They come back when the block goes.
pub(crate) fn take(cpus: u32, bytes: usize) -> Result<Block, Errno> {
    let words = bytes / WORD;
    let mut regions = REGIONS.lock();
    for region in regions.iter_mut().filter(|region| region.cpus == cpus) {
        if let Some(at) = region.find(words) {
            return Ok(region.take(at, words));
        }
    }
    let mut region = Region { cpus, memory: Block::new(STRIDE * cpus as usize)?, used: 0 };
    let block = region.take(0, words);
    regions.push(region);
    Ok(block)
}

/// Takes back what began at this address, `bytes` for all CPUs together, which nobody can see any more.
pub(crate) fn give(addr: usize, bytes: usize) {
    let mut regions = REGIONS.lock();
    let inside = |region: &Region| (region.memory.addr()..region.memory.addr() + STRIDE).contains(&addr);
    let number = regions.iter().position(inside).expect("a region lives as long as something of it is out");
    let region = &mut regions[number];
    let (at, words) = ((addr - region.memory.addr()) / WORD, bytes / region.cpus as usize / WORD);
    for cpu in 0..region.cpus as usize {
        let first = (cpu * STRIDE) / WORD + at;
        let all = &region.memory.words()[first..first + words];
        all.iter().for_each(|word| word.store(0, std::sync::atomic::Ordering::Relaxed));
    }
    region.used &= !bits(at, words);
    let gone = (region.used == 0).then(|| regions.swap_remove(number));
    // What is freed may take along what others have left.
    drop(regions);
    drop(gone);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Guard;
    use std::sync::atomic::Ordering;

    /// A number of CPUs that no other test has.
    const CPUS: u32 = 5;

    fn used() -> Vec<u64> {
        REGIONS.lock().iter().filter(|region| region.cpus == CPUS).map(|region| region.used).collect()
    }

    #[test]
    fn maps_share_lines_and_cpus_do_not() {
        let blocks: Vec<Block> = [8, 24, 48, 8, 56, 16].map(|bytes| take(CPUS, bytes).unwrap()).into();
        // 48 bytes are more than the first line has left, 16 are not.
        let base = blocks[0].addr();
        let places = blocks.iter().map(|block| block.addr() - base).collect::<Vec<_>>();
        assert_eq!(places, [0, 8, 64, 32, 128, 40]);
        assert_eq!((base % 64, used()), (0, vec![0x7f_3f_7f]));
        for (n, block) in blocks.iter().enumerate() {
            for cpu in 0..CPUS as usize {
                block.place(cpu * STRIDE, 8).store(0, 8, n as u64 + 1).unwrap();
            }
            assert_eq!(block.memory(), [8, 24, 48, 8, 56, 16][n] * CPUS as usize);
        }
        let seen = blocks.iter().map(|block| block.words()[0].load(Ordering::Relaxed)).collect::<Vec<_>>();
        assert_eq!(seen, [1, 2, 3, 4, 5, 6]);

        // What a guard may still see is given to nobody.
        let mut blocks = blocks.into_iter();
        let guard = Guard::pin();
        let first = blocks.next().unwrap();
        let value = first.value(STRIDE, 8, &guard);
        drop(first);
        Guard::collect();
        assert_eq!((value.load(0, 8).unwrap(), used()), (1, vec![0x7f_3f_7f]));
        drop(guard);
        let free = |expected: &[u64]| (0..100).any(|_| (Guard::collect(), used() == expected).1);
        assert!(free(&[0x7f_3f_7e]));
        let again = take(CPUS, 8).unwrap();
        assert_eq!((again.addr(), again.words()[STRIDE / WORD].load(Ordering::Relaxed)), (base, 0), "and is zero");
        drop((again, blocks));
        assert!(free(&[]), "a region goes with the last in it");
    }
}
