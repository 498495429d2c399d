//! Cache lines that appear as they are needed and never move: the lines behind full buckets.

use std::sync::OnceLock;

use parking_lot::Mutex;
use xway_abi::Errno;

use crate::line::Line;
use crate::storage::Block;

/// Numbered lines. What is given back is used again first; memory is given back with the whole.
///
/// The first segment is one line, and each is twice as long as the one before: most small tables need no more than one.
pub(crate) struct Lines {
    segments: Box<[OnceLock<Box<Block>>]>,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Lines handed out that were never used before.
    fresh: u32,
    back: Vec<u32>,
}

impl Lines {
    /// Room for so many lines and a few more.
    pub(crate) fn new(most: u32) -> Lines {
        let segments = locate(most).0 + 1;
        Lines { segments: (0..segments).map(|_| OnceLock::new()).collect(), free: Mutex::default() }
    }

    /// A line that is empty. `ENOMEM` if there is no memory for one.
    pub(crate) fn take(&self) -> Result<u32, Errno> {
        let mut free = self.free.lock();
        if let Some(number) = free.back.pop() {
            return Ok(number);
        }
        let number = free.fresh;
        let (segment, _) = locate(number);
        let place = self.segments.get(segment).ok_or(Errno::ENOMEM)?;
        if place.get().is_none() {
            let _ = place.set(Box::new(Block::new(size_of::<Line>() << segment)?));
        }
        free.fresh += 1;
        Ok(number)
    }

    /// Gives an empty line back.
    pub(crate) fn give(&self, number: u32) {
        self.free.lock().back.push(number);
    }

    /// The line. It was taken before.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Line {
        let (segment, at) = locate(number);
        let block = self.segments[segment].get().expect("a line's memory is there before its number is given out");
        &block.lines()[at as usize]
    }

    /// Brings a line near that was taken before; true.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32) -> bool {
        let (segment, at) = locate(number);
        if let Some(block) = self.segments[segment].get() {
            block.prefetch(at as usize * size_of::<Line>());
        }
        true
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let segments = self.segments.iter().filter_map(OnceLock::get);
        let given_back = self.free.lock().back.capacity() * size_of::<u32>();
        size_of::<Lines>()
            + size_of_val(&*self.segments)
            + given_back
            + segments.map(|block| size_of::<Block>() + block.memory()).sum::<usize>()
    }
}

#[inline]
fn locate(number: u32) -> (usize, u32) {
    let segment = (number + 1).ilog2();
    (segment as usize, number + 1 - (1 << segment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn lines_are_distinct_and_come_back() {
        let lines = Lines::new(100);
        let taken: Vec<u32> = (0..100).map(|_| lines.take().unwrap()).collect();
        let places: HashSet<*const Line> = taken.iter().map(|n| std::ptr::from_ref(lines.get(*n))).collect();
        assert_eq!((taken.len(), places.len()), (100, 100));
        assert!(lines.bytes() >= 100 * 64 && lines.bytes() < 200 * 64);
        lines.give(17);
        assert_eq!((lines.take(), lines.take()), (Ok(17), Ok(100)));
        assert_eq!((101..127).map(|_| lines.take()).find(Result::is_err), None);
        assert_eq!(lines.take(), Err(Errno::ENOMEM));
    }
}
