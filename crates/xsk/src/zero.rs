//! Chunks of the engine's own memory in an application's hands.

use std::num::NonZeroUsize;

use xway_packet::ring::spsc::Producer;
use xway_packet::{Frame, Pool};

/// Which chunks of a queue's pool a socket was lent.
///
/// A socket has a fixed number of chunks, and only exchanges them: for each packet that it receives it gives a chunk through FILL,
/// for each that it sends it gets one through COMPLETION. So what it can hold back is known when it is bound, and the pool does not
/// wait for it.
#[derive(Debug)]
pub(crate) struct Loans {
    words: Vec<u64>,
    /// Of the pool's memory, which tells it from others.
    start: NonZeroUsize,
    /// A chunk is two to the power of this.
    chunk_shift: u32,
    /// Chunks that the socket is to get through COMPLETION.
    owed: u32,
}

impl Loans {
    /// Loans from a pool that can be mapped, whose chunks lie one behind the other, the first `count` still to be given.
    pub(crate) fn new(pool: &Pool, count: u32) -> Loans {
        let config = pool.config();
        Loans {
            words: vec![0; config.frames.div_ceil(64) as usize],
            start: pool.memory_range().0.addr(),
            chunk_shift: config.chunk_size.ilog2(),
            owed: count,
        }
    }

    /// Whether they are of this pool.
    #[inline]
    pub(crate) fn are_of(&self, pool: &Pool) -> bool {
        pool.memory_range().0.addr() == self.start
    }

    /// Lends a frame. One of another pool is copied, because the application cannot see that pool.
    pub(crate) fn lend(&mut self, pool: &mut Pool, frame: Frame) -> Result<u64, Frame> {
        let address = pool.lend(frame).or_else(|frame| match pool.copy(&frame) {
            Ok(copy) => pool.lend(copy),
            Err(_) => Err(frame),
        })?;
        let number = (address >> self.chunk_shift) as usize;
        self.words[number / 64] |= 1 << (number % 64);
        Ok(address)
    }

    /// Takes back the chunk that an address lies in; `None` when it was not lent to this socket.
    pub(crate) fn take_back(&mut self, pool: &mut Pool, address: u64) -> Option<Frame> {
        let number = usize::try_from(address >> self.chunk_shift).ok()?;
        let word = self.words.get_mut(number / 64)?;
        let bit = 1 << (number % 64);
        if *word & bit == 0 {
            return None;
        }
        *word &= !bit;
        pool.reclaim(address)
    }

    /// The packet that an application describes in one of its chunks. What does not lie in the part of a chunk where packets may be
    /// is refused; the chunk is taken back all the same, and another is owed.
    pub(crate) fn packet(&mut self, pool: &mut Pool, address: u64, len: u32) -> Option<Frame> {
        let mut frame = self.take_back(pool, address)?;
        self.owed += 1;
        let data = (address & ((1 << self.chunk_shift) - 1)) as u32;
        let placed = data.checked_add(len).is_some_and(|end| frame.place(data, data, end).is_ok());
        if placed && len >= xway_packet::ETH_HLEN {
            return Some(frame);
        }
        pool.release(frame);
        None
    }

    /// Gives through COMPLETION what is owed, as far as pool and ring allow. The application is not shown it yet.
    pub(crate) fn pay(&mut self, pool: &mut Pool, completion: &mut Producer<u64>) {
        while self.owed > 0 && completion.room(1) > 0 {
            let Ok(frame) = pool.alloc() else { break };
            let Ok(address) = self.lend(pool, frame) else { break };
            // There is room, and only this side puts entries in.
            let _ = completion.stage(address >> self.chunk_shift << self.chunk_shift);
            self.owed -= 1;
        }
    }

    /// A chunk was taken and nothing given for it: it comes through COMPLETION.
    pub(crate) fn owe(&mut self) {
        self.owed += 1;
    }

    /// Takes everything back.
    pub(crate) fn settle(&mut self, pool: &mut Pool) {
        self.owed = 0;
        for (at, word) in (0u64..).zip(std::mem::take(&mut self.words)) {
            for bit in (0..64).filter(|bit| word >> bit & 1 != 0) {
                if let Some(frame) = pool.reclaim((at * 64 + bit) << self.chunk_shift) {
                    pool.release(frame);
                }
            }
        }
    }
}
