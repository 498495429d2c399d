//! A port with its queues, before workers share them out.

use xway_packet::{Pool, PoolConfig};

use crate::{Capabilities, Port, PortError};

/// What was asked of a port, what came of it, and why the two differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// What it is about: `pass` (where frames go that pass), `mode` (native or generic), `copying`, `drop` (whether it takes
    /// frames away), [`port`](Outcome::PORT) (whether it still receives).
    pub what: &'static str,
    /// Asked for.
    pub requested: &'static str,
    /// Done.
    pub effective: &'static str,
    /// Why.
    pub reason: String,
}

impl Outcome {
    /// What an outcome is about that says that nothing comes in any more, or past all programs.
    pub const PORT: &str = "port";
    /// The port receives no more.
    pub const DEAD: &str = "dead";
    /// Its program was taken from the interface: packets pass by.
    pub const DETACHED: &str = "detached";

    /// A port that does not receive any more, though nobody closed it.
    pub fn lost(effective: &'static str, reason: String) -> Outcome {
        Outcome { what: Outcome::PORT, requested: "open", effective, reason }
    }
}

/// Something with queues: an interface, a pair of memory rings, a capture. The engine opens each queue as a [`Port`] of its
/// own and gives it to a worker.
///
/// ```text
/// Device "afxdp:eth0"          queue 0 -> Port + Pool on worker 0
///                              queue 1 -> Port + Pool on worker 1
/// ```
///
/// A device with one queue needs no more than [`OneQueue`].
pub trait Device: Send {
    /// What the user calls it, such as `packet:eth0`.
    fn name(&self) -> &str;

    /// Interface index: what programs see in `ingress_ifindex` and name in redirects. Never 0, and no other device has it.
    fn ifindex(&self) -> u32;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Where it does something else than it was asked for, now: what is known only when queues are open, or changes later, is told
    /// when it is asked for again. Asked by whoever controls, never on a packet's way.
    fn outcomes(&self) -> Vec<Outcome> {
        Vec::new()
    }

    /// Queues that can be received from.
    fn rx_queues(&self) -> u32 {
        1
    }

    /// Queues that can be sent to. A queue with a number that exists on both sides is opened once, for both.
    fn tx_queues(&self) -> u32 {
        self.rx_queues()
    }

    /// What the pool of a queue should be like, when the user does not say; a device that shares memory with the engine asks for
    /// what it can share.
    fn pool(&self, queue: u32) -> PoolConfig {
        let _ = queue;
        PoolConfig::default()
    }

    /// The NUMA node of its hardware, where there is some and it is known: packets of a worker that is bound to no CPU lie there.
    fn numa_node(&self) -> Option<u32> {
        None
    }

    /// Opens a queue. It closes when the port is dropped, and may be opened again after that. `pool` is the queue's own: a
    /// device that wants packets in shared memory registers it here.
    ///
    /// # Errors
    /// There is no such queue, or it is taken, or the system refuses.
    fn open_queue(&mut self, queue: u32, pool: &mut Pool) -> Result<Box<dyn Port>, PortError>;
}

/// A port that is all its device has, as a device.
pub struct OneQueue {
    name: String,
    ifindex: u32,
    capabilities: Capabilities,
    port: Option<Box<dyn Port>>,
}

impl OneQueue {
    /// Wraps an open port. Its queue can be opened once.
    pub fn new(port: Box<dyn Port>) -> OneQueue {
        OneQueue {
            name: port.name().to_owned(),
            ifindex: port.ifindex(),
            capabilities: port.capabilities(),
            port: Some(port),
        }
    }
}

impl Device for OneQueue {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn open_queue(&mut self, queue: u32, _: &mut Pool) -> Result<Box<dyn Port>, PortError> {
        let failed = |why: String| PortError::new(&*self.name, crate::PortErrorKind::Input, why);
        if queue != 0 {
            return Err(failed(format!("queue {queue}: there is only queue 0")));
        }
        self.port.take().ok_or_else(|| failed("queue 0 was opened before, and cannot be opened again".into()))
    }
}
