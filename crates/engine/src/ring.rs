//! Frames on their way from one worker to another.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use xway_packet::{Burst, Frame};

use crate::wake::Wake;

/// A bounded queue of frames: any worker puts bursts in, one takes them out.
pub(crate) struct FrameRing {
    frames: Mutex<VecDeque<Frame>>,
    /// Written under the lock; the taker looks here first.
    len: AtomicUsize,
    room: usize,
}

impl FrameRing {
    pub(crate) fn new(room: usize) -> FrameRing {
        FrameRing { frames: Mutex::new(VecDeque::with_capacity(room)), len: AtomicUsize::new(0), room }
    }

    /// Takes frames of the burst, the first ones first, as far as there is room. What has none stays in the burst.
    pub(crate) fn push(&self, burst: &mut Burst) -> usize {
        let mut frames = self.frames.lock();
        let count = burst.len().min(self.room - frames.len());
        frames.extend(burst.drain_first(count));
        self.len.store(frames.len(), Ordering::Release);
        count
    }

    /// Moves frames into the burst, as far as it has room.
    pub(crate) fn pop(&self, burst: &mut Burst) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut frames = self.frames.lock();
        let count = burst.room().min(frames.len());
        for frame in frames.drain(..count) {
            // There is room for `count`; a frame without any would go home.
            let _ = burst.push(frame);
        }
        self.len.store(frames.len(), Ordering::Release);
        count
    }

    /// Whether nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }
}

/// What other workers hand to the owner of a queue.
pub(crate) struct Inbox {
    /// The queue's port.
    pub(crate) ifindex: u32,
    /// To be sent.
    pub(crate) tx: FrameRing,
    /// To be passed to the stack side.
    pub(crate) pass: FrameRing,
    /// Wakes the owner.
    pub(crate) wake: Arc<Wake>,
}

impl Inbox {
    pub(crate) fn new(ifindex: u32, room: usize, wake: Arc<Wake>) -> Inbox {
        Inbox { ifindex, tx: FrameRing::new(room), pass: FrameRing::new(room), wake }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tx.is_empty() && self.pass.is_empty()
    }
}
