//! The socket: who may speak, how much, how long; one thread for each connection, one request at a time.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use xway_engine::Stop;
use xway_hook::{Blame, HookError};
use xway_object::LoadOptions;

use crate::config::{Config, Limits};
use crate::message::{Answer, Refusal, Request};
use crate::notify;
use crate::peer::{Owners, Peer};
use crate::state::{Holds, State};
use crate::watch::Watching;
use crate::wire::{self, WireError};

/// Why a service could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another one answers at the socket.
    #[error("{}: a service answers there already; xway down ends it", path.display())]
    Running {
        /// The socket.
        path: PathBuf,
    },
    /// The socket could not be made.
    #[error("{}: {cause}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A field of the configuration names what this machine does not have.
    #[error("{0}")]
    Config(String),
    /// The engine, or what it had last time.
    #[error(transparent)]
    Hook(#[from] HookError),
}

/// A service that listens. Dropping it takes the socket away.
pub struct Server {
    listener: UnixListener,
    shared: Arc<Shared>,
    path: PathBuf,
    notes: Vec<String>,
    metrics: Option<std::net::TcpListener>,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    owners: Owners,
    limits: Limits,
    pub(crate) stop: Stop,
    connections: AtomicUsize,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A request that panicked has left the engine as a refused one would: each step of it is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Opens the socket, then the ports, and makes everything again that must be there. `text` is the file that `config` was
    /// read from; `options` is how object files are read on this machine.
    ///
    /// # Errors
    /// Another service answers; the socket, the group or the state directory cannot be had; the configuration is refused.
    pub fn start(config: &Config, text: &str, options: LoadOptions, stop: &Stop) -> Result<Server, ServerError> {
        let path = config.service.socket.clone();
        let owners = Owners::new(config.service.group.as_deref()).map_err(ServerError::Config)?;
        let metrics = config.service.metrics.map(|at| {
            let bound = std::net::TcpListener::bind(at).and_then(|l| l.set_nonblocking(true).map(|()| l));
            bound.map_err(|e| ServerError::Config(format!("service.metrics: {at}: {e}")))
        });
        let metrics = metrics.transpose()?;
        let listener = listen(&path, owners.gid())?;
        let mut state = State::new(config, text, options)?;
        let made = state.restore(config);
        let notes = match made {
            Ok(notes) => notes,
            Err(e) => {
                let _ = std::fs::remove_file(&path);
                return Err(e.into());
            }
        };
        let shared = Shared {
            state: Mutex::new(state),
            owners,
            limits: config.limits,
            stop: stop.clone(),
            connections: AtomicUsize::new(0),
        };
        Ok(Server { listener, shared: Arc::new(shared), path, notes, metrics })
    }

    /// Where counters are given out for Prometheus.
    pub fn metrics(&self) -> Option<std::net::SocketAddr> {
        self.metrics.as_ref().and_then(|l| l.local_addr().ok())
    }

    /// What could not be made again at the start, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Answers until it is asked to end, by a request or by `stop`. Then nothing more is accepted, and what must be there
    /// again is written down.
    pub fn run(&self) -> Result<(), ServerError> {
        if let Some(listener) = &self.metrics {
            let failed = |cause| ServerError::Config(format!("service.metrics: {cause}"));
            let (listener, shared) = (listener.try_clone().map_err(failed)?, self.shared.clone());
            let named = std::thread::Builder::new().name("xway-metrics".into());
            named.spawn(move || crate::metrics::serve(&listener, &shared)).map_err(failed)?;
        }
        notify::tell("READY=1");
        let failed = |cause| ServerError::Socket { path: self.path.clone(), cause };
        while !self.shared.stop.asked() {
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
            let most = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            match poll(&mut fds, Some(&most)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(failed(e.into())),
            }
            match self.listener.accept() {
                Ok((socket, _)) => self.welcome(socket),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                // The peer has gone already, or descriptors are short: others may still be answered.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        notify::tell("STOPPING=1");
        self.shared.state().finish()?;
        Ok(())
    }

    fn welcome(&self, mut socket: UnixStream) {
        let shared = self.shared.clone();
        if shared.connections.fetch_add(1, Ordering::AcqRel) >= shared.limits.connections {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            let message = format!("{} connections are open, which is the most", shared.limits.connections);
            refuse(&mut socket, HookError::new(Blame::Machine, message).hint("later, or raise limits.connections"));
            return;
        }
        let served = shared.clone();
        let started = std::thread::Builder::new().name("xway-control".into()).spawn(move || {
            served.serve(&mut socket);
            served.connections.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn refuse(socket: &mut UnixStream, error: HookError) {
    let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
    // A peer that does not read its refusal goes without.
    let _ = wire::send(socket, &Answer::<Value>::Error(Refusal::from(error)));
}

impl Shared {
    fn serve(&self, socket: &mut UnixStream) {
        let Ok(peer) = Peer::of(socket) else { return };
        let most = Duration::from_secs(self.limits.message_seconds);
        if socket.set_write_timeout(Some(most)).is_err() {
            return;
        }
        let (mut holds, mut watching) = (Holds::new(), Watching::default());
        let mut pace = Pace::new(self.limits.requests_per_second);
        while !self.stop.asked() {
            // Woken now and then to see whether the service ends.
            let bytes = match self.wait(socket, most) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(e) => {
                    refuse(socket, HookError::new(Blame::Request, e));
                    break;
                }
            };
            pace.step();
            let answer = match self.answer(&bytes, peer, &mut holds, &mut watching) {
                Ok(value) => Answer::Ok(value),
                Err(e) => Answer::Error(Refusal::from(e)),
            };
            if wire::send(socket, &answer).is_err() {
                break;
            }
        }
        let mut state = self.state();
        holds.into_iter().for_each(|object| state.unhold(object));
    }

    /// The next message; `None` when the peer has gone, was silent for too long, or the service ends.
    fn wait(&self, socket: &mut UnixStream, most: Duration) -> Result<Option<Vec<u8>>, WireError> {
        const LOOK: Duration = Duration::from_millis(200);
        let until = Instant::now() + Duration::from_secs(self.limits.idle_seconds);
        while !self.stop.asked() && Instant::now() < until {
            let time = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&*socket, PollFlags::IN)], Some(&time)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(WireError::Io(e.into())),
            }
            return match wire::receive(socket, self.limits.message_bytes, Some(most), most) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(WireError::Closed) => Ok(None),
                Err(e) => Err(e),
            };
        }
        Ok(None)
    }

    fn answer(&self, bytes: &[u8], peer: Peer, holds: &mut Holds, watching: &mut Watching) -> Result<Value, HookError> {
        let request: Request = wire::decode(bytes).map_err(|e| HookError {
            errno: Some(xway_abi::Errno::EINVAL),
            ..HookError::new(Blame::Request, format!("the request is not understood: {e}"))
        })?;
        if request.changes() && !self.owners.may_change(peer) {
            let message = format!("user {} (process {}) may look, but not change anything", peer.uid, peer.pid);
            let refused = HookError { errno: Some(xway_abi::Errno::EPERM), ..HookError::new(Blame::Machine, message) };
            return Err(refused.hint("as root, or as a member of the group that service.group names"));
        }
        match request {
            Request::Down => {
                self.stop.ask();
                Ok(Value::Null)
            }
            Request::Events { wait_ms } => watching.events(self, wait_ms),
            Request::Capture { request } => watching.capture(self, request),
            Request::Captured { wait_ms } => watching.captured(self, wait_ms),
            request => self.state().handle(request, holds),
        }
    }
}

/// Requests of one connection in a second: who asks faster is answered later.
struct Pace {
    limit: u32,
    since: Instant,
    count: u32,
}

impl Pace {
    fn new(limit: u32) -> Pace {
        Pace { limit, since: Instant::now(), count: 0 }
    }

    fn step(&mut self) {
        const SECOND: Duration = Duration::from_secs(1);
        if self.since.elapsed() >= SECOND {
            (self.since, self.count) = (Instant::now(), 0);
        }
        self.count += 1;
        if self.count > self.limit {
            std::thread::sleep(SECOND.saturating_sub(self.since.elapsed()));
        }
    }
}

/// Makes the socket. One that nobody listens to any more is left over from a service that was killed.
fn listen(path: &Path, gid: Option<u32>) -> Result<UnixListener, ServerError> {
    let failed = |cause: std::io::Error| ServerError::Socket { path: path.to_owned(), cause };
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    if UnixStream::connect(path).is_ok() {
        return Err(ServerError::Running { path: path.to_owned() });
    }
    match std::fs::symlink_metadata(path) {
        Ok(meta) if std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()) => {
            std::fs::remove_file(path).map_err(failed)?;
        }
        Ok(_) => return Err(failed(std::io::Error::other("something else than a socket is there"))),
        Err(_) => {}
    }
    // Nobody but the owner from the first moment on; the group follows when it is the right one.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(failed)?;
    if let Some(gid) = gid {
        std::os::unix::fs::chown(path, None, Some(gid)).map_err(failed)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}
