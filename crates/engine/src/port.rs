//! Where packets come from and go to.

use std::os::fd::BorrowedFd;

use xway_abi::Errno;
use xway_packet::{Burst, Pool, SharedFrame};

use crate::Capabilities;

/// One worker's side of a packet source and sink: an interface, a capture file, a tunnel to a virtual machine.
///
/// Frames are moved, never copied by reference: a port that takes a frame gives it back to the pool when it is done with it
/// ([`Pool::release`], or by dropping it when it is done on another thread).
pub trait Port: Send {
    /// What the user calls it, such as `packet:eth0`.
    fn name(&self) -> &str;

    /// Interface index: what programs see in `ingress_ifindex` and name in redirects. Never 0; a port that is no interface
    /// chooses one.
    fn ifindex(&self) -> u32;

    /// Number of receive queues that this side serves.
    fn queues(&self) -> u32 {
        1
    }

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The longest frame that it can send, in bytes without what the wire adds (on Linux the MTU, 14 bytes of Ethernet and 4
    /// for a VLAN tag). A longer one cannot be redirected to it (`EMSGSIZE`).
    fn frame_max(&self) -> u32 {
        u32::MAX
    }

    /// Receives at most `budget` frames (and at most what fits) into `burst`, without waiting. Sets ingress, original length,
    /// packet id and whatever receive metadata it has.
    ///
    /// When the pool has no frame the packet should stay where it is; a port that cannot leave it counts it in
    /// [`PortStats::no_frame`]. A packet that does not fit a frame is counted in [`PortStats::oversize`] or received cut and
    /// counted in [`PortStats::truncated`]; it never disappears silently.
    ///
    /// # Errors
    /// The port is of no more use: input damaged, device gone. Frames received before that are in the burst.
    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError>;

    /// Takes all frames of the burst for sending, in order, and says what became of them.
    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent;

    /// Whether sending only reads frames: then one that goes out of several ports at once is not copied for this one.
    fn shares(&self) -> bool {
        false
    }

    /// Sends frames that others send too, as [`Port::tx`] but without having them: reads them and says what became of them. Only
    /// ports that share ([`Port::shares`]) are asked.
    fn tx_shared(&mut self, queue: u32, frames: &[SharedFrame]) -> Sent {
        let _ = queue;
        Sent::none(frames.len(), Errno::EOPNOTSUPP)
    }

    /// What waits in a queue of the port to be sent, what it was given and not yet told of included; `None` for a port that has no queue, or
    /// cannot look into it. Asked for once a burst where a byte limit or batching is wanted ([`crate::TxPolicy`]), and where somebody reads statistics.
    fn backlog(&mut self, queue: u32, pool: &mut Pool) -> Option<Backlog> {
        let _ = (queue, pool);
        None
    }

    /// Takes all frames of the burst to its stack side (what PASS means), and says what became of them.
    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent;

    /// The doorbell: called once after the `tx` and `pass` calls of a burst, for ports that only queue in those.
    ///
    /// # Errors
    /// The port is of no more use.
    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// The port is about to be dropped: gives back to the pool what it still holds of it. Ports that keep frames, in a device's
    /// rings for example, stop the device here first. Packets that wait in them and were never received are lost with it: it counts them,
    /// and [`Port::stats`] says so when it is asked behind this.
    fn close(&mut self, pool: &mut Pool) {
        let _ = pool;
    }

    /// What to sleep on until there is something to receive; `None` for a port that is never idle.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How far the input has been read, and how long it is, in bytes; `None` for an input without an end.
    fn progress(&self) -> Option<(u64, u64)> {
        None
    }

    /// The port's own counters.
    fn stats(&mut self) -> PortStats;
}

/// What waits in a port's queue to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backlog {
    /// Frames.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// How a queue is given frames to send.
///
/// ```text
/// queue idle    frames ──> queue, doorbell at once                        nothing waits for anything
/// queue busy    frames ──> queue, no doorbell while fewer than             one doorbell for many bursts (batch_frames)
///                          batch_frames have none
/// queue long    what is beyond bytes_max is dropped, counted as full       what waits is bounded in time
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxPolicy {
    /// While the queue has something to send, up to so many frames wait for one doorbell; when it has not, or the worker has nothing
    /// else to do, it is rung. 0: one doorbell a burst.
    pub batch_frames: u32,
    /// Bytes that may wait in the queue; one frame always may. What is beyond is dropped and counted as if the queue were full.
    pub bytes_max: Option<u64>,
}

impl TxPolicy {
    /// Whether the queue has to be looked at.
    #[inline]
    pub(crate) const fn looks(&self) -> bool {
        self.batch_frames > 0 || self.bytes_max.is_some()
    }
}

/// How a receive call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rx {
    /// There may be more at once.
    More,
    /// Nothing more for now.
    Idle,
    /// Nothing more ever: the input is over.
    End,
}

/// What became of the frames that a port took; the three numbers add up to how many they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// Sent, or queued to be sent at the flush.
    pub sent: u32,
    /// Dropped because the port's queue was full.
    pub full: u32,
    /// Dropped for another reason.
    pub failed: u32,
    /// The reason of the last failure.
    pub errno: Option<Errno>,
}

impl Sent {
    /// All `count` frames were sent.
    pub const fn all(count: usize) -> Sent {
        Sent { sent: count as u32, full: 0, failed: 0, errno: None }
    }

    /// All `count` frames failed.
    pub const fn none(count: usize, errno: Errno) -> Sent {
        Sent { sent: 0, full: 0, failed: count as u32, errno: Some(errno) }
    }
}

/// What a port counted since it was opened, in packets unless it says bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Packets received into frames.
    pub rx: u64,
    /// Bytes received into frames.
    pub rx_bytes: u64,
    /// Lost before the port saw them, because it was not read fast enough.
    pub dropped: u64,
    /// Received cut: the frame holds less than the wire had.
    pub truncated: u64,
    /// Not received, because they are longer than a frame.
    pub oversize: u64,
    /// Times that the pool had no frame when there was a packet.
    pub no_frame: u64,
    /// Not received for another reason, by name.
    pub other: Vec<(&'static str, u64)>,
    /// Packets sent.
    pub tx: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

/// A port failed for good.
#[derive(Debug, thiserror::Error)]
#[error("{port}: {cause}")]
pub struct PortError {
    /// Name of the port.
    pub port: String,
    /// What kind of failure, for exit codes.
    pub kind: PortErrorKind,
    /// What went wrong, with whatever the user can do about it.
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// Why a port that is a device of the host failed while it was in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Lost {
    /// Somebody set it down.
    #[error("the interface went down")]
    Down,
    /// It is there no more.
    #[error("the interface was removed")]
    Removed,
    /// A system call failed.
    #[error("the interface failed with errno {0}")]
    Other(i32),
}

/// What kind of failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortErrorKind {
    /// Input could not be read, or is not what it should be.
    Input,
    /// A privilege or a device is missing.
    Missing,
    /// Output could not be written.
    Output,
}

impl PortError {
    /// A failure of the port with this name.
    pub fn new(
        port: impl Into<String>,
        kind: PortErrorKind,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> PortError {
        PortError { port: port.into(), kind, cause: cause.into() }
    }
}
