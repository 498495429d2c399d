//! Which chunks a socket has, one bit each: what it must give back at its end.

/// A set of chunk numbers.
#[derive(Debug, Default)]
pub(crate) struct Marks(Vec<u64>);

impl Marks {
    pub(crate) fn new(chunks: u32) -> Marks {
        Marks(vec![0; chunks.div_ceil(64) as usize])
    }

    #[inline]
    pub(crate) fn add(&mut self, number: u64) {
        if let Some(word) = self.0.get_mut((number / 64) as usize) {
            *word |= 1 << (number % 64);
        }
    }

    /// Takes a number out, and says whether it was there.
    #[inline]
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        let Some(word) = self.0.get_mut((number / 64) as usize) else { return false };
        let bit = 1 << (number % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = u64> {
        let words = std::mem::take(&mut self.0);
        (0..)
            .zip(words)
            .flat_map(|(at, word)| (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| at * 64 + bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_comes_out_once() {
        let mut marks = Marks::new(130);
        for number in [0, 63, 64, 129] {
            marks.add(number);
        }
        marks.add(5000);
        assert!(marks.remove(64) && !marks.remove(64) && !marks.remove(5000) && !marks.remove(1));
        assert_eq!(marks.drain().collect::<Vec<_>>(), [0, 63, 129]);
        assert_eq!(marks.drain().count(), 0);
    }
}
