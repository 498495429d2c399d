//! The sockets of one queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use xway_engine::{Sent, SocketTarget};
use xway_packet::{Burst, Pool};

use crate::Xsk;

/// Bytes that a socket of weight 1 may send in one turn: no packet is longer, so each turn gets one out at least.
const QUANTUM: u64 = 4096;

/// The sockets of one queue. They take turns to send by deficit round robin: each may send a number of bytes in its turn, in
/// proportion to its weight, and keeps what a packet that did not fit has left over for the next one. Over time each socket that
/// has something to send gets its share of bytes, whatever the sizes of its packets.
pub struct Group {
    bound: (u32, u32),
    members: Mutex<Members>,
    /// Frames that the queue did not take.
    lost: AtomicU64,
}

#[derive(Default)]
struct Members {
    sockets: Vec<Arc<Xsk>>,
    /// Gets what comes past all programs.
    direct: Option<u64>,
    /// Whose turn it is, and whether it has begun.
    turn: usize,
    begun: bool,
}

impl Group {
    /// An empty group for a queue.
    pub fn new(ifindex: u32, queue: u32) -> Group {
        Group { bound: (ifindex, queue), members: Mutex::default(), lost: AtomicU64::new(0) }
    }

    /// Adds a socket. With `direct` it gets what comes past all programs.
    pub fn add(&self, socket: Arc<Xsk>, direct: bool) {
        let mut members = self.members.lock();
        members.direct = if direct { Some(socket.id()) } else { members.direct };
        members.sockets.push(socket);
    }

    /// Takes a socket out. Says how many are left.
    pub fn remove(&self, id: u64) -> usize {
        let mut members = self.members.lock();
        members.sockets.retain(|socket| socket.id() != id);
        members.direct = members.direct.filter(|direct| *direct != id);
        (members.turn, members.begun) = (0, false);
        members.sockets.len()
    }

    /// Number of sockets.
    pub fn len(&self) -> usize {
        self.members.lock().sockets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a socket gets what comes past all programs.
    pub fn has_direct(&self) -> bool {
        self.members.lock().direct.is_some()
    }

    /// Frames of sockets that the queue did not take.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl SocketTarget for Group {
    fn id(&self) -> u64 {
        // Not the id of any socket.
        u64::MAX
    }

    fn bound_to(&self) -> (u32, u32) {
        self.bound
    }

    fn deliver(&self, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let members = self.members.lock();
        match members.sockets.iter().find(|socket| Some(socket.id()) == members.direct) {
            Some(socket) => socket.deliver(pool, burst),
            None => {
                let count = burst.len();
                pool.release_burst(burst);
                Sent::none(count, xway_abi::Errno::ENOENT)
            }
        }
    }

    fn flush(&self) {
        self.members.lock().sockets.iter().for_each(|socket| socket.flush());
    }

    fn collect(&self, pool: &mut Pool, burst: &mut Burst) {
        let mut members = self.members.lock();
        let count = members.sockets.len();
        // Once around without a packet: nobody has one, or nobody can send now.
        let mut idle = 0;
        while idle < count && !burst.is_full() {
            let socket = &members.sockets[members.turn % count];
            // A turn that the end of the last burst cut short goes on without another share.
            let quantum = (!members.begun).then_some(QUANTUM * u64::from(socket.weight));
            let taken = socket.take(pool, burst, quantum);
            idle = if taken == 0 { idle + 1 } else { 0 };
            if burst.is_full() {
                members.begun = true;
                return;
            }
            members.turn = (members.turn + 1) % count;
            members.begun = false;
        }
    }

    fn sent(&self, sent: Sent) {
        self.lost.fetch_add(u64::from(sent.full + sent.failed), Ordering::Relaxed);
    }

    fn close(&self, pool: &mut Pool) {
        self.members.lock().sockets.iter().for_each(|socket| SocketTarget::close(&**socket, pool));
    }

    fn may_sleep(&self) -> bool {
        // Each is asked, so that each raises its flag.
        self.members.lock().sockets.iter().filter(|socket| !socket.may_sleep()).count() == 0
    }
}
