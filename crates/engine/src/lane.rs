//! A queue in the hands of its worker.

use std::sync::Arc;

use xway_packet::{Burst, Pressure};

use crate::counters::Meters;
use crate::exec::Executor;
use crate::inbox::{Inbox, Inlet};
use crate::outbox::Outbox;
use crate::steer::Steering;
use crate::{Port, PortError, SocketTarget, TxPolicy};

/// One queue of a port, and what belongs to it.
pub(crate) struct Lane {
    pub(crate) port: Box<dyn Port>,
    /// Number of the queue at its port.
    pub(crate) queue: u32,
    /// Its pool, by position in the worker's list.
    pub(crate) pool: usize,
    /// What runs over its frames, by position in the worker's list.
    pub(crate) hook: usize,
    /// What waits for its doorbell.
    pub(crate) outbox: Outbox,
    /// How it is given frames to send, and how many it has that were not told of.
    pub(crate) tx: TxPolicy,
    pub(crate) untold: u32,
    /// What programs were told of its pool; `None` before the first time.
    pub(crate) told: Option<Pressure>,
    /// Whether it is asked for frames.
    pub(crate) receiving: bool,
    /// Where PASS goes, and how.
    pub(crate) pass_to: PassTo,
    pub(crate) pass: Pass,
    pub(crate) meters: Arc<Meters>,
    /// What other workers hand to it.
    pub(crate) inlet: Option<Inlet>,
    /// What chooses queues for its packets.
    pub(crate) steering: Option<Arc<Steering>>,
    /// The other queues of its port.
    pub(crate) peers: Vec<Peer>,
    /// The socket that it is bound to: it sends what that has to send.
    pub(crate) bound: Option<Arc<dyn SocketTarget>>,
    /// Whether the socket gets everything that comes in, past the programs.
    pub(crate) direct: bool,
    /// Why it receives no more.
    pub(crate) error: Option<PortError>,
}

/// Another queue of the same port.
pub(crate) struct Peer {
    pub(crate) queue: u32,
    pub(crate) inbox: Inbox,
    /// Frames that steering moves there.
    pub(crate) burst: Burst,
}

/// Where PASS goes for frames of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PassTo {
    /// To the port's own stack side.
    #[default]
    Stack,
    /// Out of the port with this interface index; while there is none the frames are lost and counted (`ENODEV`).
    Port(u32),
    /// Nowhere: they are dropped and counted.
    Drop,
}

/// Where PASS goes, worked out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Pass {
    /// To the stack side of the port that the frame came in on.
    #[default]
    Stack,
    /// Out of another port, by its number.
    Out(usize),
    /// Out of a port that is not there.
    Missing,
    /// Nowhere.
    Drop,
}

/// Something that runs programs, and their names.
pub(crate) struct Hook {
    pub(crate) executor: Box<dyn Executor>,
    /// By position in the chain.
    names: Vec<String>,
}

impl Hook {
    pub(crate) fn new(executor: Box<dyn Executor>) -> Hook {
        Hook { names: executor.names(), executor }
    }

    /// Name of the program at this position of the chain.
    pub(crate) fn name(&self, position: usize) -> &str {
        self.names.get(position).map_or("", |name| name)
    }
}
