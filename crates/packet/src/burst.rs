//! The unit of work: up to 64 frames.

use crate::Frame;

/// Frames that are received, run and sent together, in order of arrival.
#[derive(Debug)]
pub struct Burst {
    frames: Vec<Frame>,
}

impl Burst {
    /// Most frames that a burst holds.
    pub const MAX: usize = 64;

    /// An empty burst; its memory is allocated once, here.
    pub fn new() -> Burst {
        Burst { frames: Vec::with_capacity(Self::MAX) }
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// How many more frames fit.
    pub fn room(&self) -> usize {
        Self::MAX - self.frames.len()
    }

    /// Appends a frame; gives it back when the burst is full.
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.frames.len() == Self::MAX {
            return Err(frame);
        }
        self.frames.push(frame);
        Ok(())
    }

    /// The frames, in order.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The frames, in order, to be changed in place.
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames
    }

    /// Takes every frame out, in order.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Frame> + '_ {
        self.frames.drain(..)
    }

    /// Takes the first `n` frames out, in order; all when `n` is larger.
    pub fn drain_first(&mut self, n: usize) -> impl ExactSizeIterator<Item = Frame> + '_ {
        let n = n.min(self.frames.len());
        self.frames.drain(..n)
    }
}

impl Default for Burst {
    fn default() -> Self {
        Burst::new()
    }
}
