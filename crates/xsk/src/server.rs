//! The server: where applications come to.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with, sockopt,
};
use xway_abi::Errno;
use xway_engine::{Desk, Engine, EngineError, PortState, SocketEntry, SocketTarget};
use xway_maps::{Map, Target};
use xway_xsk_client::Statistics;

use crate::session::{self, Session};
use crate::{Group, Policy, Xsk};

/// A refusal: Linux's errno, and words.
pub type Refusal = (Errno, String);

/// What the server asks of whoever has the queues.
pub trait Queues: Send + Sync {
    /// Interface index of the port with this name.
    ///
    /// # Errors
    /// `ENODEV`: no such port. `EINVAL`: it has no such queue.
    fn find(&self, name: &str, queue: u32) -> Result<u32, Refusal>;

    /// Binds a queue to its sockets, or to none.
    ///
    /// # Errors
    /// The queue is gone.
    fn bind(&self, at: (u32, u32), sockets: Option<Arc<dyn SocketTarget>>, direct: bool) -> Result<(), Refusal>;

    /// Wakes the worker of a queue: a socket has something to send.
    fn wake(&self, at: (u32, u32));

    /// Whether no program is attached where the queue's packets would meet it.
    fn without_program(&self, at: (u32, u32)) -> bool;
}

/// The queues of an engine.
pub struct EngineQueues(pub Arc<Engine>);

impl Queues for EngineQueues {
    fn find(&self, name: &str, queue: u32) -> Result<u32, Refusal> {
        let ports = self.0.ports();
        let one = |port: &PortState| (port.name.clone(), port.ifindex, port.queues);
        find(&ports.iter().map(one).collect::<Vec<_>>(), name, queue)
    }

    fn bind(&self, at: (u32, u32), sockets: Option<Arc<dyn SocketTarget>>, direct: bool) -> Result<(), Refusal> {
        let errno = |e: EngineError| (Errno::ENODEV, e.to_string());
        self.0.bind(at.0, at.1, sockets, direct).map_err(errno)
    }

    fn wake(&self, at: (u32, u32)) {
        // A queue that is gone needs no waking.
        if let Ok(waker) = self.0.waker(at.0, at.1) {
            waker.wake();
        }
    }

    fn without_program(&self, (ifindex, queue): (u32, u32)) -> bool {
        self.0.ports().iter().any(|port| {
            let own = port.queue_programs.iter().any(|(number, programs)| *number == queue && !programs.is_empty());
            port.ifindex == ifindex && port.programs.is_empty() && !own
        })
    }
}

/// The queues of a worker that runs by itself over one port, with a program.
pub struct WorkerQueues {
    /// Where the worker hears of sockets.
    pub desk: Desk,
    /// The port's name.
    pub port: String,
    /// Its interface index.
    pub ifindex: u32,
    /// Its queues.
    pub queues: u32,
}

impl Queues for WorkerQueues {
    fn find(&self, name: &str, queue: u32) -> Result<u32, Refusal> {
        find(&[(self.port.clone(), self.ifindex, self.queues)], name, queue)
    }

    fn bind(&self, at: (u32, u32), sockets: Option<Arc<dyn SocketTarget>>, direct: bool) -> Result<(), Refusal> {
        self.desk.bind(at.0, at.1, sockets, direct).map_err(|e| (Errno::ENODEV, e.to_string()))
    }

    fn wake(&self, _: (u32, u32)) {
        self.desk.wake();
    }

    fn without_program(&self, _: (u32, u32)) -> bool {
        false
    }
}

/// Interface index of the port with this name, of name, index and number of queues; `eth0` is `afxdp:eth0` or whatever port has
/// that interface.
fn find(ports: &[(String, u32, u32)], name: &str, queue: u32) -> Result<u32, Refusal> {
    let Some((_, ifindex, queues)) = ports.iter().find(|(port, ..)| xway_engine::is_called(port, name)) else {
        let names: Vec<_> = ports.iter().map(|(port, ..)| port.as_str()).collect();
        return Err((Errno::ENODEV, format!("no port {name}; there are: {}", names.join(", "))));
    };
    match queue < *queues {
        true => Ok(*ifindex),
        false => Err((Errno::EINVAL, format!("{name} has {queues} queue(s), no queue {queue}"))),
    }
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[error("serving AF_XDP sockets at {path}: {what}: {cause}")]
pub struct ServerError {
    /// The socket's path.
    pub path: String,
    /// What was being done.
    pub what: &'static str,
    /// What the system said.
    pub cause: std::io::Error,
}

/// One served socket, for lists.
#[derive(Clone, Debug)]
pub struct SocketInfo {
    /// Its number.
    pub id: u64,
    /// Process that it was made for.
    pub pid: i32,
    /// Interface index and queue.
    pub bound: (u32, u32),
    /// Whether it goes without copies.
    pub zero_copy: bool,
    /// Whether it gets what comes past all programs.
    pub direct: bool,
    /// Its counters.
    pub statistics: Statistics,
}

/// What all connections share.
pub(crate) struct Hub {
    pub(crate) queues: Arc<dyn Queues>,
    pub(crate) policy: Policy,
    state: Mutex<State>,
    connections: AtomicUsize,
    stopping: AtomicBool,
    pub(crate) stop: OwnedFd,
}

#[derive(Default)]
struct State {
    groups: HashMap<(u32, u32), Arc<Group>>,
    sockets: Vec<Served>,
    /// They are their programs': a map that nobody else has goes.
    maps: Vec<Weak<Map>>,
}

struct Served {
    socket: Arc<Xsk>,
    pid: i32,
    zero_copy: bool,
    direct: bool,
}

/// How a new socket shares its queue.
#[derive(Clone, Copy)]
pub(crate) struct Join {
    pub(crate) pid: i32,
    pub(crate) zero_copy: bool,
    pub(crate) direct: bool,
    /// Others may be there (`XDP_SHARED_UMEM`).
    pub(crate) shared: bool,
}

impl Hub {
    /// Puts a socket on its queue and into the maps.
    pub(crate) fn add(&self, socket: &Arc<Xsk>, join: Join) -> Result<(), Refusal> {
        let at = socket.bound_to();
        let mut state = self.state.lock();
        let group = state.groups.entry(at).or_insert_with(|| Arc::new(Group::new(at.0, at.1))).clone();
        if !group.is_empty() && !join.shared {
            return Err((Errno::EBUSY, "the queue has a socket; XDP_SHARED_UMEM shares it".into()));
        }
        if join.direct && group.has_direct() {
            return Err((Errno::EBUSY, "another socket gets what comes on this queue".into()));
        }
        group.add(socket.clone(), join.direct);
        if let Err(refusal) = self.queues.bind(at, Some(group.clone()), group.has_direct()) {
            group.remove(socket.id());
            return Err(refusal);
        }
        for map in state.maps.iter().filter_map(Weak::upgrade) {
            // A map without such a key is for other queues.
            let _ = map.set_socket(at.1, SocketEntry::new(socket.clone()));
        }
        let Join { pid, zero_copy, direct, .. } = join;
        state.sockets.push(Served { socket: socket.clone(), pid, zero_copy, direct });
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
        state.sockets.retain(|served| served.socket.id() != id);
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

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
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

/// A server at a UNIX socket. Dropping it closes all its sockets; drop it before the engine stops.
pub struct Server {
    hub: Arc<Hub>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at a path. A socket of a server that is gone is replaced.
    ///
    /// # Errors
    /// Another server listens there, or the system refuses.
    pub fn listen(path: &Path, queues: Arc<dyn Queues>, policy: Policy) -> Result<Server, ServerError> {
        let failed = |what| {
            move |errno: rustix::io::Errno| ServerError { path: path.display().to_string(), what, cause: errno.into() }
        };
        let address = SocketAddrUnix::new(path).map_err(failed("its path"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed("a socket"));
        let listener = socket()?;
        if path.exists() && rustix::net::connect(&socket()?, &address).is_err() {
            // Nobody answers there any more. Whatever cannot be removed shows in the bind.
            let _ = std::fs::remove_file(path);
        }
        bind(&listener, &address).map_err(failed("binding"))?;
        listen(&listener, 16).map_err(failed("listening"))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed("a descriptor"))?;
        let hub = Arc::new(Hub {
            queues,
            policy,
            state: Mutex::default(),
            connections: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            stop,
        });
        let thread = std::thread::Builder::new().name("xsk-server".into()).spawn({
            let hub = hub.clone();
            move || serve(&listener, &hub)
        });
        let thread =
            thread.map_err(|cause| ServerError { path: path.display().to_string(), what: "a thread", cause })?;
        Ok(Server { hub, path: path.to_owned(), thread: Some(thread) })
    }

    /// Puts every socket, those that are there and those that come, into this XSKMAP, at the number of its queue, for as long as
    /// somebody has the map. A map that is known already is left as it is.
    pub fn fill_map(&self, map: Arc<Map>) {
        let mut state = self.hub.state.lock();
        state.maps.retain(|known| known.strong_count() > 0);
        if state.maps.iter().any(|known| known.as_ptr() == Arc::as_ptr(&map)) {
            return;
        }
        for served in &state.sockets {
            let _ = map.set_socket(served.socket.bound_to().1, SocketEntry::new(served.socket.clone()));
        }
        state.maps.push(Arc::downgrade(&map));
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sockets that are open.
    pub fn sockets(&self) -> Vec<SocketInfo> {
        let info = |served: &Served| SocketInfo {
            id: served.socket.id(),
            pid: served.pid,
            bound: served.socket.bound_to(),
            zero_copy: served.zero_copy,
            direct: served.direct,
            statistics: served.socket.statistics(),
        };
        self.hub.state.lock().sockets.iter().map(info).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.hub.stopping.store(true, Ordering::Release);
        // Each thread polls this; nobody reads it, so all of them see it.
        let _ = rustix::io::write(&self.hub.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(listener: &OwnedFd, hub: &Arc<Hub>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !hub.stopping() {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&hub.stop, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        threads.retain(|thread| !thread.is_finished());
        let Ok(connection) = accept_with(listener, SocketFlags::CLOEXEC) else { continue };
        if hub.connections.load(Ordering::Relaxed) >= hub.policy.connections_max {
            continue; // Closed at once: the application sees the end of the connection.
        }
        let Ok(peer) = sockopt::socket_peercred(&connection) else { continue };
        let (pid, uid) = (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw());
        let session = Session::new(hub.clone(), connection, pid, uid);
        hub.connections.fetch_add(1, Ordering::Relaxed);
        let hub = hub.clone();
        let thread = std::thread::Builder::new().name("xsk-session".into()).spawn(move || {
            session::run(session);
            hub.connections.fetch_sub(1, Ordering::Relaxed);
        });
        threads.extend(thread);
    }
    for thread in threads {
        let _ = thread.join();
    }
}
