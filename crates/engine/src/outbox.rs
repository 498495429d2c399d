//! What waits for the doorbell of one target.

use xway_packet::{Burst, SharedFrame};

use crate::inbox::Inbox;

/// Why a frame goes to a port. Each reason has its own burst, so that each loss is counted under its cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// TX.
    Tx,
    /// PASS, to the port's own stack side.
    Pass,
    /// PASS, where the worker was told to send such frames out of a port.
    PassOut,
    /// REDIRECT out of the port.
    Redirect,
    /// A broadcast's further copies.
    Copy,
}

impl Why {
    pub(crate) const ALL: [Why; 5] = [Why::Tx, Why::Pass, Why::PassOut, Why::Redirect, Why::Copy];

    /// Whether it is the stack side that takes the frames.
    pub(crate) fn is_stack(self) -> bool {
        self == Why::Pass
    }
}

/// Frames of the current burst that go to one port.
pub(crate) struct Outbox {
    bursts: [Burst; Why::ALL.len()],
    /// Of a broadcast, for ports that only read them: as its redirect, and as further copies.
    shared: [Vec<SharedFrame>; 2],
    filled: bool,
}

impl Default for Outbox {
    fn default() -> Outbox {
        // Room for a burst from the start, here too: nothing grows on the way of a packet.
        let shared = std::array::from_fn(|_| Vec::with_capacity(Burst::MAX));
        Outbox { bursts: Default::default(), shared, filled: false }
    }
}

impl Outbox {
    pub(crate) fn burst(&mut self, why: Why) -> &mut Burst {
        self.filled = true;
        &mut self.bursts[why as usize]
    }

    /// Adds a frame that other ports send too.
    ///
    /// # Errors
    /// Gives it back when a device map names the port so often that a burst is full.
    pub(crate) fn share(&mut self, why: Why, frame: SharedFrame) -> Result<(), SharedFrame> {
        self.filled = true;
        let frames = self.shared(why);
        if frames.len() == Burst::MAX {
            return Err(frame);
        }
        frames.push(frame);
        Ok(())
    }

    /// Frames that other ports send too.
    pub(crate) fn shared(&mut self, why: Why) -> &mut Vec<SharedFrame> {
        &mut self.shared[usize::from(why == Why::Copy)]
    }

    /// Whether `burst` was asked for since the last time, that is, whether there is anything to send.
    pub(crate) fn take_filled(&mut self) -> bool {
        std::mem::take(&mut self.filled)
    }
}

/// A port whose queues belong to other workers.
pub(crate) struct Remote {
    pub(crate) ifindex: u32,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
}
