//! Which chunks a device or a peer has, one bit each, so that nobody can give back what it was not lent.

/// A set of chunk numbers. Memory is taken when the first one is lent.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    words: Vec<u64>,
}

impl Lent {
    /// Adds a number below `len`.
    pub(crate) fn add(&mut self, number: u32, len: u32) {
        if self.words.is_empty() {
            self.words = vec![0; len.div_ceil(64) as usize];
        }
        if let Some(word) = self.words.get_mut(number as usize / 64) {
            *word |= 1 << (number % 64);
        }
    }

    /// Removes a number, any number, and says whether it was there.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        let Some(word) = self.words.get_mut(number as usize / 64) else { return false };
        let bit = 1 << (number % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// One of them.
    pub(crate) fn any(&self) -> Option<u32> {
        let at = self.words.iter().position(|&word| word != 0)?;
        Some(at as u32 * 64 + self.words[at].trailing_zeros())
    }
}
