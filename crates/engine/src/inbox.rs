//! What workers hand to each other.
//!
//! ```text
//! worker 0, for each port of others        worker 1, for each of its queues
//!   Inbox { tx, pass, rx } ── rings ──>      Inlet { tx, pass, rx }
//! worker 0, for each CPUMAP entry          worker 1, for each CPUMAP entry that names it
//!   CpuOut { ring }     ── ring ───>         CpuInlet { ring }
//! ```

use std::sync::Arc;

use xway_packet::ring::RingError;
use xway_packet::ring::frames::{FrameReceiver, FrameSender, ring};

use crate::wake::Wake;

/// The end that others put frames into. A clone for each worker.
#[derive(Clone)]
pub(crate) struct Inbox {
    /// To be sent.
    pub(crate) tx: FrameSender,
    /// To be passed to the stack side.
    pub(crate) pass: FrameSender,
    /// To be processed as if it had come in there.
    pub(crate) rx: FrameSender,
    /// Wakes the owner.
    pub(crate) wake: Arc<Wake>,
}

/// The end of the queue's owner.
pub(crate) struct Inlet {
    pub(crate) tx: FrameReceiver,
    pub(crate) pass: FrameReceiver,
    pub(crate) rx: FrameReceiver,
}

impl Inbox {
    /// Both ends; each ring has room for `len` frames, rounded up to a power of two.
    pub(crate) fn new(len: u32, wake: Arc<Wake>) -> Result<(Inbox, Inlet), RingError> {
        let len = len.max(2).next_power_of_two();
        let (tx_in, tx_out) = ring(len)?;
        let (pass_in, pass_out) = ring(len)?;
        let (rx_in, rx_out) = ring(len)?;
        let inbox = Inbox { tx: tx_in, pass: pass_in, rx: rx_in, wake };
        Ok((inbox, Inlet { tx: tx_out, pass: pass_out, rx: rx_out }))
    }
}

impl Inlet {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tx.is_empty() && self.pass.is_empty() && self.rx.is_empty()
    }
}
