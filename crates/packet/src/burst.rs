//! The unit of work: up to 64 frames.

use std::vec::Drain;

use crate::arena::Handle;
use crate::frame::Frame;

/// Up to [`Burst::MAX`] frames, received, run and sent together. Memory is allocated once, when the burst is made; a frame
/// costs eight bytes to move.
#[derive(Debug)]
pub struct Burst {
    frames: Vec<Frame>,
}

impl Burst {
    /// The most frames in a burst. Linux's drivers use the same number (`NAPI_POLL_WEIGHT`).
    pub const MAX: usize = 64;

    /// An empty burst.
    pub fn new() -> Burst {
        Burst { frames: Vec::with_capacity(Self::MAX) }
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// Gives the frame back when the burst is full.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.is_full() {
            return Err(frame);
        }
        self.frames.push(frame);
        Ok(())
    }

    /// Adds frames that have room: the caller has looked.
    #[inline]
    pub(crate) fn extend(&mut self, frames: impl Iterator<Item = Frame>) {
        self.frames.extend(frames);
        debug_assert!(self.frames.len() <= Self::MAX);
    }

    /// Moves the next `count` frames of another burst here, as many as have room, and says how many.
    #[inline]
    pub fn append(&mut self, frames: &mut Drain<'_, Frame>, count: usize) -> usize {
        let count = count.min(frames.len()).min(self.room());
        self.frames.extend(frames.take(count));
        count
    }

    /// Takes the last frame.
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        self.frames.pop()
    }

    /// Number of frames in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether there is no room for another.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.frames.len() >= Self::MAX
    }

    /// How many more fit.
    #[inline]
    pub fn room(&self) -> usize {
        Self::MAX - self.frames.len()
    }

    /// The frames in order of arrival.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The frames in order of arrival, writable.
    #[inline]
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames
    }

    /// Takes all frames out, in order of arrival.
    pub fn drain(&mut self) -> Drain<'_, Frame> {
        self.frames.drain(..)
    }

    /// Takes the first `count` frames out (all, when there are fewer); the others move up.
    pub fn drain_first(&mut self, count: usize) -> Drain<'_, Frame> {
        let count = count.min(self.frames.len());
        self.frames.drain(..count)
    }

    /// Sends all frames home, with one atomic operation for each run of frames of the same pool. For a thread that does not
    /// own the pool; the owner has [`crate::Pool::release_burst`].
    pub fn release(&mut self) {
        Handle::release_all(self.frames.drain(..).map(Frame::into_handle));
    }
}

impl Default for Burst {
    fn default() -> Self {
        Burst::new()
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.release();
    }
}
