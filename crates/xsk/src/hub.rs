//! What all connections share: which sockets there are, on which queues and in which maps.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use xway_abi::Errno;
use xway_engine::{SocketEntry, SocketTarget};
use xway_maps::{Map, Target};

use crate::budget::{Amount, Budget, Charge};
use crate::server::{Queues, Refusal, SocketInfo};
use crate::{Group, Policy, Xsk};

pub(crate) struct Hub {
    pub(crate) queues: Arc<dyn Queues>,
    pub(crate) policy: Policy,
    pub(crate) budget: Arc<Budget>,
    state: Mutex<State>,
    stopping: AtomicBool,
    /// Rung when it stops. Whoever waits for an application has this and not the hub.
    pub(crate) stop: Arc<OwnedFd>,
}

#[derive(Default)]
struct State {
    groups: HashMap<(u32, u32), Arc<Group>>,
    sockets: Vec<Served>,
    /// They are their programs': a map that nobody else has goes.
    maps: Vec<Weak<Map>>,
    /// Sockets that are closed, until nobody else has them: it is not a worker who gives their memory back to the system.
    closed: Vec<Arc<Xsk>>,
}

struct Served {
    socket: Arc<Xsk>,
    join: Join,
    _charge: Charge,
}

/// Whose a new socket is, and how it shares its queue.
#[derive(Clone, Copy)]
pub(crate) struct Join {
    /// Number of the connection.
    pub(crate) connection: u64,
    pub(crate) uid: u32,
    pub(crate) pid: i32,
    pub(crate) zero_copy: bool,
    pub(crate) direct: bool,
    /// Others may be there (`XDP_SHARED_UMEM`).
    pub(crate) shared: bool,
    /// Bytes of its rings.
    pub(crate) rings: u64,
}

impl Hub {
    pub(crate) fn new(queues: Arc<dyn Queues>, policy: Policy, stop: OwnedFd) -> Hub {
        let budget = Arc::new(Budget::new(&policy));
        let (state, stopping) = (Mutex::default(), AtomicBool::new(false));
        Hub { queues, policy, budget, state, stopping, stop: Arc::new(stop) }
    }

    /// Puts a socket on its queue and into the maps.
    pub(crate) fn add(&self, socket: &Arc<Xsk>, join: Join) -> Result<(), Refusal> {
        let at = socket.bound_to();
        let cost = Amount { sockets: 1, memory: join.rings, ..Amount::default() };
        let charge = self.budget.take(join.uid, cost)?;
        let mut state = self.state.lock();
        if self.stopping() {
            return Err((Errno::ENODEV, "the server ends".into()));
        }
        let group = state.groups.entry(at).or_insert_with(|| Arc::new(Group::new(at.0, at.1))).clone();
        if !group.is_empty() && !join.shared {
            return Err((Errno::EBUSY, "the queue has a socket; XDP_SHARED_UMEM shares it".into()));
        }
        if join.direct && group.has_direct() {
            return Err((Errno::EBUSY, "another socket gets what comes on this queue".into()));
        }
        group.add(socket.clone(), join.direct);
        if let Err(refusal) = self.queues.bind(at, Some(group.clone()), group.has_direct()) {
            if group.remove(socket.id()) == 0 {
                state.groups.remove(&at);
            }
            return Err(refusal);
        }
        for map in state.maps.iter().filter_map(Weak::upgrade) {
            // A map without such a key is for other queues.
            let _ = map.set_socket(at.1, SocketEntry::new(socket.clone()));
        }
        state.sockets.push(Served { socket: socket.clone(), join, _charge: charge });
        drop(state);
        self.queues.wake(at);
        Ok(())
    }

    /// Takes a socket away: from the maps, then from its queue, when the worker has taken back what it had.
    pub(crate) fn remove(&self, socket: &Arc<Xsk>) {
        let (id, at) = (socket.id(), socket.bound_to());
        let forget = |state: &State| {
            state.maps.iter().filter_map(Weak::upgrade).for_each(|map| remove_from(&map, at.1, id));
        };
        forget(&self.state.lock());
        socket.close();
        self.queues.wake(at);
        // While it is in its group the worker calls it. A worker that is gone has given its pool up.
        for _ in 0..SETTLE_TRIES {
            if socket.settled() {
                break;
            }
            std::thread::sleep(SETTLE_WAIT);
        }
        let mut state = self.state.lock();
        // It is listed until its place is free, and may have come into a map that was filled meanwhile.
        let before = state.sockets.len();
        state.sockets.retain(|served| served.socket.id() != id);
        if state.sockets.len() < before {
            state.closed.push(socket.clone());
        }
        forget(&state);
        let Some(group) = state.groups.get(&at).cloned() else { return };
        let left = group.remove(id);
        if left == 0 {
            state.groups.remove(&at);
        }
        // The queue may be gone, and that is as good.
        let sockets = (left > 0).then(|| group.clone() as Arc<dyn SocketTarget>);
        let _ = self.queues.bind(at, sockets, group.has_direct());
    }

    /// The sockets of a connection.
    pub(crate) fn of(&self, connection: u64) -> Vec<Arc<Xsk>> {
        let state = self.state.lock();
        let own = state.sockets.iter().filter(|served| served.join.connection == connection);
        own.map(|served| served.socket.clone()).collect()
    }

    /// Takes all sockets of a connection away.
    pub(crate) fn end(&self, connection: u64) {
        self.of(connection).iter().for_each(|socket| self.remove(socket));
    }

    /// Takes all sockets away; no others come.
    pub(crate) fn end_all(&self) {
        let all: Vec<_> = self.state.lock().sockets.iter().map(|served| served.socket.clone()).collect();
        all.iter().for_each(|socket| self.remove(socket));
    }

    /// Gives the memory of closed sockets back that nobody has any more, and says whether some are left.
    pub(crate) fn reap(&self) -> bool {
        let mut state = self.state.lock();
        let all = std::mem::take(&mut state.closed);
        let (free, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|socket| Arc::strong_count(socket) == 1);
        state.closed = kept;
        let left = !state.closed.is_empty();
        drop(state);
        drop(free);
        left
    }

    /// Puts every socket, those that are there and those that come, into this XSKMAP.
    pub(crate) fn fill_map(&self, map: Arc<Map>) {
        let mut state = self.state.lock();
        state.maps.retain(|known| known.strong_count() > 0);
        if state.maps.iter().any(|known| known.as_ptr() == Arc::as_ptr(&map)) {
            return;
        }
        for served in &state.sockets {
            let _ = map.set_socket(served.socket.bound_to().1, SocketEntry::new(served.socket.clone()));
        }
        state.maps.push(Arc::downgrade(&map));
    }

    pub(crate) fn sockets(&self) -> Vec<SocketInfo> {
        let info = |served: &Served| SocketInfo {
            id: served.socket.id(),
            pid: served.join.pid,
            bound: served.socket.bound_to(),
            zero_copy: served.join.zero_copy,
            direct: served.join.direct,
            statistics: served.socket.statistics(),
        };
        self.state.lock().sockets.iter().map(info).collect()
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells everybody to stop.
    pub(crate) fn stop(&self) {
        // Under the lock: a socket that is being added is there, or is not added.
        let state = self.state.lock();
        self.stopping.store(true, Ordering::Release);
        drop(state);
        // Each thread polls this; nobody reads it, so all of them see it.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

/// How long a worker is given to take back what a socket had.
const SETTLE_TRIES: u32 = 1000;
const SETTLE_WAIT: Duration = Duration::from_millis(1);

fn remove_from(map: &Map, key: u32, id: u64) {
    let guard = xway_maps::Guard::pin();
    let is_it = matches!(map.target(key, &guard), Some(Target::Socket(socket)) if socket.id() == id);
    if is_it {
        let _ = map.delete(&key.to_ne_bytes());
    }
}
