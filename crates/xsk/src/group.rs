//! The sockets of one queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use xway_engine::{Sent, SocketTarget};
use xway_packet::{Burst, Pool};

use crate::Xsk;

/// Bytes that a socket of weight 1 may send in one turn: no packet is longer, so each turn gets one out at least.
const QUANTUM: u64 = 4096;

/// The sockets of one queue. They take turns to send by deficit round robin: each may send a number of bytes in its turn, in
/// proportion to its weight, and keeps what a packet that did not fit has left over for the next one. Over time each socket that
/// has something to send gets its share of bytes, whatever the sizes of its packets.
///
/// Sockets come and go while packets flow, so there are two lists: the roster, which is changed, and the worker's own view of it,
/// which it exchanges between two bursts when the roster has another version. Neither side waits for the other.
pub struct Group {
    bound: (u32, u32),
    roster: Mutex<Roster>,
    /// Changes of the roster.
    version: AtomicU64,
    /// The worker's. A mutex only because the language wants one: nobody else opens it.
    view: Mutex<View>,
    /// Frames that the queue did not take.
    lost: AtomicU64,
}

#[derive(Clone, Default)]
struct Roster {
    sockets: Vec<Arc<Xsk>>,
    /// Gets what comes past all programs.
    direct: Option<u64>,
}

#[derive(Default)]
struct View {
    roster: Roster,
    version: u64,
    /// Whose turn it is, and whether it has begun.
    turn: usize,
    begun: bool,
}

impl Group {
    /// An empty group for a queue.
    pub fn new(ifindex: u32, queue: u32) -> Group {
        Group {
            bound: (ifindex, queue),
            roster: Mutex::default(),
            version: AtomicU64::new(0),
            view: Mutex::default(),
            lost: AtomicU64::new(0),
        }
    }

    /// Adds a socket. With `direct` it gets what comes past all programs.
    pub fn add(&self, socket: Arc<Xsk>, direct: bool) {
        let mut roster = self.roster.lock();
        roster.direct = if direct { Some(socket.id()) } else { roster.direct };
        roster.sockets.push(socket);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Takes a socket out. Says how many are left.
    pub fn remove(&self, id: u64) -> usize {
        let mut roster = self.roster.lock();
        roster.sockets.retain(|socket| socket.id() != id);
        roster.direct = roster.direct.filter(|direct| *direct != id);
        self.version.fetch_add(1, Ordering::Release);
        roster.sockets.len()
    }

    /// Number of sockets.
    pub fn len(&self) -> usize {
        self.roster.lock().sockets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a socket gets what comes past all programs.
    pub fn has_direct(&self) -> bool {
        self.roster.lock().direct.is_some()
    }

    /// Frames of sockets that the queue did not take.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The worker's view, brought up to date when that can be done at once.
    fn view(&self) -> Option<MutexGuard<'_, View>> {
        let mut view = self.view.try_lock()?;
        let version = self.version.load(Ordering::Acquire);
        if view.version != version
            && let Some(roster) = self.roster.try_lock()
        {
            *view = View { roster: roster.clone(), version, ..View::default() };
        }
        Some(view)
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
        let view = self.view();
        let roster = view.as_ref().map(|view| &view.roster);
        let direct = roster.and_then(|roster| roster.sockets.iter().find(|s| Some(s.id()) == roster.direct));
        match direct {
            Some(socket) => socket.deliver(pool, burst),
            None => {
                let count = burst.len();
                pool.release_burst(burst);
                Sent::none(count, xway_abi::Errno::ENOENT)
            }
        }
    }

    fn room(&self) -> usize {
        let view = self.view();
        let roster = view.as_ref().map(|view| &view.roster);
        // Without a socket that gets what comes, it is for the counters to say so.
        let direct = roster.and_then(|roster| roster.sockets.iter().find(|s| Some(s.id()) == roster.direct));
        direct.map_or(usize::MAX, |socket| socket.room())
    }

    fn flush(&self) {
        self.view().iter().flat_map(|view| &view.roster.sockets).for_each(|socket| socket.flush());
    }

    fn collect(&self, pool: &mut Pool, burst: &mut Burst) {
        let Some(mut view) = self.view() else { return };
        let count = view.roster.sockets.len();
        // Once around without a packet: nobody has one, or nobody can send now.
        let mut idle = 0;
        while idle < count && !burst.is_full() {
            let socket = &view.roster.sockets[view.turn % count];
            // A turn that the end of the last burst cut short goes on without another share.
            let quantum = (!view.begun).then_some(QUANTUM * u64::from(socket.weight));
            let taken = socket.take(pool, burst, quantum);
            idle = if taken == 0 { idle + 1 } else { 0 };
            if burst.is_full() {
                view.begun = true;
                return;
            }
            view.turn = (view.turn + 1) % count;
            view.begun = false;
        }
    }

    fn sent(&self, sent: Sent) {
        self.lost.fetch_add(u64::from(sent.full + sent.failed), Ordering::Relaxed);
    }

    fn close(&self, pool: &mut Pool) {
        // The queue is being closed: no packet waits for this.
        let sockets = self.roster.lock().sockets.clone();
        sockets.iter().for_each(|socket| SocketTarget::close(&**socket, pool));
    }

    fn may_sleep(&self) -> bool {
        // Each is asked, so that each raises its flag.
        let current = |view: &View| view.version == self.version.load(Ordering::Acquire);
        self.view().is_some_and(|view| {
            current(&view) && view.roster.sockets.iter().filter(|socket| !socket.may_sleep()).count() == 0
        })
    }
}
