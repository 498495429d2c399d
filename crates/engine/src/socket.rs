//! What the engine asks of AF_XDP-style sockets.

use std::any::Any;
use std::sync::Arc;

use xway_maps::SocketObject;
use xway_packet::{Burst, Pool};

use crate::Sent;

/// A socket that takes frames from a queue and may have frames to send.
///
/// A program reaches it through an XSKMAP that holds a [`SocketEntry`]; a queue may also be bound to it
/// ([`crate::Engine::bind`]). Only the worker of the queue calls it, between two of its bursts or at the end of one.
pub trait SocketTarget: Send + Sync {
    /// A number that names the socket.
    fn id(&self) -> u64;

    /// Interface index and queue that the socket is bound to. Frames that came in elsewhere are not given to it (`EINVAL`, as
    /// Linux says).
    fn bound_to(&self) -> (u32, u32);

    /// Takes all frames of the burst, in order, and says what became of them. `pool` is that of the queue.
    fn deliver(&self, pool: &mut Pool, burst: &mut Burst) -> Sent;

    /// Frames that it can take now. A queue that is the socket's alone receives no more than that: what would find no room stays with
    /// the port, waits there or is lost there, as packets are for which a card finds no buffer, and costs the worker nothing.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// The doorbell, once after the deliveries of a burst.
    fn flush(&self) {}

    /// Adds frames that the socket wants to be sent, as many as the burst has room for, for a socket that its queue is bound to.
    fn collect(&self, pool: &mut Pool, burst: &mut Burst) {
        let _ = (pool, burst);
    }

    /// What became of the frames that were collected last.
    fn sent(&self, sent: Sent) {
        let _ = sent;
    }

    /// The queue that the socket is bound to is being closed: gives back to its pool what the socket has of it.
    fn close(&self, pool: &mut Pool) {
        let _ = pool;
    }

    /// Asks for a call of `wake` when there is something to collect, and says whether the worker may sleep until then.
    fn may_sleep(&self) -> bool {
        true
    }
}

/// A socket in an XSKMAP.
pub struct SocketEntry(Arc<dyn SocketTarget>);

impl SocketEntry {
    /// For [`xway_maps::Map::set_socket`] and for whoever resolves descriptors.
    pub fn new(target: Arc<dyn SocketTarget>) -> Arc<SocketEntry> {
        Arc::new(SocketEntry(target))
    }

    /// The socket.
    pub fn target(&self) -> &Arc<dyn SocketTarget> {
        &self.0
    }
}

impl SocketObject for SocketEntry {
    fn id(&self) -> u64 {
        self.0.id()
    }

    fn queue(&self) -> u32 {
        self.0.bound_to().1
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
