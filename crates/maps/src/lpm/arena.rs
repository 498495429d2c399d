//! The memory of a trie's nodes: pieces of one reserved block, named by numbers that fit into an entry.
//!
//! A piece that is given back is used again only when every guard that could have seen it has gone.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;
use xway_abi::Errno;

use crate::HugePages;
use crate::storage::Block;

/// Words in the unit in which pieces are counted: 8 bytes.
pub(super) const UNIT: usize = 2;
/// Pieces from this many units are split when small ones are wanted.
const LARGE: usize = 64;
/// Units added to the used part at a time.
const STEP: usize = 256;

pub(super) struct Arena {
    words: Block,
    free: Arc<Mutex<Free>>,
}

/// What is not in use. Locked for a moment only, and never while anything is deferred, which may run what others deferred.
struct Free {
    /// Numbers of free pieces of `n` units, below [`LARGE`].
    small: Vec<Vec<u32>>,
    /// Large free pieces: number and units.
    large: Vec<(u32, usize)>,
    /// The first unit that was never used, and the first that does not exist.
    fresh: usize,
    end: usize,
}

/// A piece: its number and its size in units.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) number: u32,
    pub(super) units: usize,
}

/// Pieces and values that are out of the trie, to be used again after a while.
#[derive(Default)]
pub(super) struct Garbage {
    pub(super) pieces: Vec<Piece>,
    pub(super) values: Vec<u32>,
}

impl Arena {
    /// Reserves room for `bytes`; memory is taken as it is used.
    pub(super) fn new(pages: HugePages, bytes: usize) -> Result<Arena, Errno> {
        let end = (bytes / (4 * UNIT)).min(1 << 30);
        let words = Block::with_pages(end * 4 * UNIT, pages)?;
        // Number 0 is none.
        let free = Free { small: vec![Vec::new(); LARGE], large: Vec::new(), fresh: 1, end };
        Ok(Arena { words, free: Arc::new(Mutex::new(free)) })
    }

    /// Memory for `words` words. `ENOMEM`: the reserve is used up.
    pub(super) fn take(&self, words: usize) -> Result<Piece, Errno> {
        let units = words.div_ceil(UNIT);
        let mut free = self.free.lock();
        let number = free.take(units).ok_or(Errno::ENOMEM)?;
        Ok(Piece { number, units })
    }

    /// The words of a piece and all after it.
    #[inline(always)]
    pub(super) fn at(&self, number: u32) -> &[AtomicU32] {
        &self.words.halves()[number as usize * UNIT..]
    }

    pub(super) fn block(&self) -> &Block {
        &self.words
    }

    /// Bytes used so far.
    pub(super) fn bytes(&self) -> usize {
        self.free.lock().fresh * UNIT * 4
    }

    /// How a deferred function gives pieces back.
    pub(super) fn returns(&self) -> impl Fn(&[Piece]) + Send + use<> {
        let free = self.free.clone();
        move |pieces| {
            let mut free = free.lock();
            pieces.iter().for_each(|piece| free.give(*piece));
        }
    }
}

impl Free {
    fn take(&mut self, units: usize) -> Option<u32> {
        if let Some(number) = self.small.get_mut(units).and_then(Vec::pop) {
            return Some(number);
        }
        // What is left over of a small one stays one: a trie of few prefixes lives of such pieces.
        let larger = self.small.iter().enumerate().skip(units + 1).find(|(_, pieces)| !pieces.is_empty());
        if let Some((have, _)) = larger
            && let Some(number) = self.small[have].pop()
        {
            self.give(Piece { number: number + units as u32, units: have - units });
            return Some(number);
        }
        // The smallest large piece that suffices, else what was never used.
        let fitting = (0..self.large.len()).filter(|n| self.large[*n].1 >= units).min_by_key(|n| self.large[*n].1);
        if let Some(n) = fitting {
            let (number, have) = self.large.swap_remove(n);
            self.give(Piece { number: number + units as u32, units: have - units });
            return Some(number);
        }
        let wanted = if units < LARGE { STEP.min(self.end - self.fresh) } else { units };
        if wanted < units || self.end - self.fresh < wanted {
            return None;
        }
        let number = self.fresh as u32;
        self.fresh += wanted;
        self.give(Piece { number: number + units as u32, units: wanted - units });
        Some(number)
    }

    fn give(&mut self, piece: Piece) {
        match piece.units {
            0 => {}
            units if units < LARGE => self.small[units].push(piece.number),
            units => self.large.push((piece.number, units)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_come_back() {
        let arena = Arena::new(HugePages::Never, 1 << 16).unwrap();
        let sizes = [1, 4, 5, 17, 300, 4, 1, 2000];
        let pieces: Vec<Piece> = sizes.iter().map(|words| arena.take(*words).unwrap()).collect();
        let mut units: Vec<u32> = pieces.iter().flat_map(|p| p.number..p.number + p.units as u32).collect();
        units.sort_unstable();
        assert!(units.windows(2).all(|pair| pair[0] < pair[1]) && units[0] > 0);
        let used = arena.bytes();
        arena.returns()(&pieces);
        for words in sizes.iter().rev() {
            arena.take(*words).unwrap();
        }
        assert_eq!(arena.bytes(), used, "large pieces are found again, small ones cut from what is left");
        assert_eq!(arena.take(1 << 20).err(), Some(Errno::ENOMEM));
        while arena.take(400).is_ok() {}
        assert!(arena.take(3).is_ok(), "small ones still find room");
    }
}
