//! Numbered places of equal size that never move.

use std::sync::OnceLock;

use xway_abi::Errno;

use crate::storage::Block;

/// Segments at most: each is twice as long as the one before.
const SEGMENTS: usize = 32;

/// `capacity` zeroed places of `stride` bytes, in one piece from the start or in segments that appear as they are needed.
///
/// A segment is never given back before the slab is dropped: a table that shrinks keeps its memory for its next elements.
pub(crate) struct Slab {
    stride: usize,
    capacity: u32,
    /// Binary logarithm of the first segment's length.
    first_log2: u32,
    segments: [OnceLock<Block>; SEGMENTS],
}

/// Places of the first segment of a slab that grows.
const FIRST_LOG2: u32 = 6;

impl Slab {
    /// A slab with all its memory reserved (`whole`) or one that grows. Strides are multiples of 8.
    pub(crate) fn new(stride: usize, capacity: u32, whole: bool) -> Result<Slab, Errno> {
        let first_log2 = if whole { capacity.next_power_of_two().ilog2() } else { FIRST_LOG2 };
        let slab = Slab { stride, capacity, first_log2, segments: [const { OnceLock::new() }; SEGMENTS] };
        if whole {
            slab.grow_to(0)?;
        }
        Ok(slab)
    }

    /// Makes sure that the place has memory. `ENOMEM` if there is none to be had.
    pub(crate) fn grow_to(&self, index: u32) -> Result<(), Errno> {
        let (segment, _) = self.locate(index);
        if self.segments[segment].get().is_some() {
            return Ok(());
        }
        let start = ((1u64 << segment) - 1) << self.first_log2;
        let len = (1u64 << (segment as u32 + self.first_log2)).min(u64::from(self.capacity).saturating_sub(start));
        let bytes = self.stride.checked_mul(len as usize).ok_or(Errno::ENOMEM)?;
        let block = Block::new(bytes)?;
        // Another thread may have been faster; then its block stays and ours goes.
        let _ = self.segments[segment].set(block);
        Ok(())
    }

    /// The block and the byte offset in it where the place begins. The place must have been grown to.
    #[inline]
    pub(crate) fn place(&self, index: u32) -> (&Block, usize) {
        let (segment, at) = self.locate(index);
        let block = self.segments[segment].get().expect("an element's memory is there before its index is given out");
        (block, at as usize * self.stride)
    }

    #[inline]
    fn locate(&self, index: u32) -> (usize, u32) {
        let quotient = (index >> self.first_log2) + 1;
        let segment = quotient.ilog2();
        (segment as usize, index - (((1u32 << segment) - 1) << self.first_log2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    #[cfg_attr(miri, ignore = "thousands of places, all safe code")]
    fn places_are_distinct_and_inside() {
        for (capacity, whole) in
            [(1, true), (63, true), (64, true), (1000, true), (1, false), (64, false), (1000, false)]
        {
            let slab = Slab::new(24, capacity, whole).unwrap();
            let mut seen = HashSet::new();
            for index in 0..capacity {
                slab.grow_to(index).unwrap();
                let (block, offset) = slab.place(index);
                assert!(offset + 24 <= block.bytes());
                assert!(seen.insert((block.words().as_ptr() as usize, offset)));
            }
        }
    }
}
