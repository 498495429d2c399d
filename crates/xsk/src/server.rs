//! The server: where applications come to.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SocketType;
use xway_abi::Errno;
use xway_door::Refused;
use xway_engine::{Desk, Engine, EngineError, PortState, SocketTarget};
use xway_maps::Map;
use xway_xsk_client::Statistics;

use crate::hub::Hub;
use crate::{Policy, sessions};

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

/// A server at a UNIX socket. Dropping it closes all its sockets; drop it before the engine stops.
pub struct Server {
    hub: Arc<Hub>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at a path, for those whom the policy's [`Access`](crate::Access) lets in. A socket of a server that is gone is
    /// replaced.
    ///
    /// # Errors
    /// Another server listens there, or the system refuses.
    pub fn listen(path: &Path, queues: Arc<dyn Queues>, policy: Policy) -> Result<Server, ServerError> {
        let failed = |what, cause| ServerError { path: path.display().to_string(), what, cause };
        let listener =
            xway_door::listen(path, SocketType::SEQPACKET, policy.access).map_err(|refused| match refused {
                Refused::Answers => failed("binding", rustix::io::Errno::ADDRINUSE.into()),
                Refused::Failed { what, cause } => failed(what, cause),
            })?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = stop.map_err(|errno| failed("a descriptor", errno.into()))?;
        let hub = Arc::new(Hub::new(queues, policy, stop));
        let thread = std::thread::Builder::new().name("xsk-server".into()).spawn({
            let hub = hub.clone();
            move || sessions::serve(listener, &hub)
        });
        let thread = thread.map_err(|cause| failed("a thread", cause))?;
        Ok(Server { hub, path: path.to_owned(), thread: Some(thread) })
    }

    /// Puts every socket, those that are there and those that come, into this XSKMAP, at the number of its queue, for as long as
    /// somebody has the map. A map that is known already is left as it is.
    pub fn fill_map(&self, map: Arc<Map>) {
        self.hub.fill_map(map);
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sockets that are open.
    pub fn sockets(&self) -> Vec<SocketInfo> {
        self.hub.sockets()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.hub.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}
