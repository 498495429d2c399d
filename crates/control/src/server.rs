//! The socket: who may speak, how much, how long; one thread for each connection, one request at a time.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use xway_abi::Errno;
use xway_engine::Stop;
use xway_hook::{Blame, HookError, TestRequest};
use xway_object::LoadOptions;

use crate::activate::{Differs, Given};
use crate::config::{Config, Limits};
use crate::handover::{self, Handed, Parcel};
use crate::log::{Level, LogFormat};
use crate::message::{Answer, Asked, PortFate, Refusal, Request, Tested};
use crate::peer::{Owners, Peer};
use crate::rings::Rings;
use crate::share::{self, Scope};
use crate::state::{Holds, State};
use crate::watch::Watching;
use crate::wire::{self, WireError};
use crate::{activate, notify, upgrade};

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
    /// The socket's file is somebody else's: a service manager's, or that of the executable that follows.
    keeps_path: AtomicBool,
    /// The socket's file is a service manager's.
    managed: bool,
    succeeds: bool,
    /// Where a socket that was given is another one than the file asks for.
    differs: Vec<Differs>,
}

/// Why a service ended.
#[derive(Debug)]
pub enum End {
    /// It was asked to.
    Down,
    /// Another executable is to go on: it is started in the place of this one (`exec`), with these variables in its environment.
    Upgrade {
        /// The executable.
        executable: PathBuf,
        /// Names and values.
        variables: [(&'static str, String); 2],
        /// What becomes its standard input: descriptors of ports wait there. `None`: it keeps this one's.
        parcel: Option<OwnedFd>,
    },
}

pub(crate) struct Shared {
    state: Mutex<State>,
    owners: Owners,
    limits: Limits,
    pub(crate) stop: Stop,
    connections: AtomicUsize,
    log: LogFormat,
    /// The executable that is to go on, and what it takes over.
    upgrade: Mutex<Option<(PathBuf, Vec<String>)>>,
    /// Held while a connection is accepted, and while the end is asked for on behalf of another executable: who connects behind that
    /// waits for the other one, and is not taken in by this one for nothing.
    gate: Mutex<()>,
    /// Held while another executable is asked whether it can take over. When one may, no more children are started: the listening
    /// socket is about to outlive an `exec`, and is not for them.
    asking: Mutex<()>,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A request that panicked has left the engine as a refused one would: each step of it is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn gate(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (mut handed, damaged) = match Handed::receive() {
            Ok(handed) => (handed, None),
            Err(why) => (Handed::default(), Some(why)),
        };
        let metrics = config.service.metrics.map(|at| {
            // Whoever asks between the two executables waits.
            let there = handed.metrics(at);
            let bound = there.map_or_else(|| std::net::TcpListener::bind(at), Ok);
            let bound = bound.and_then(|l| l.set_nonblocking(true).map(|()| l));
            bound.map_err(|e| ServerError::Config(format!("service.metrics: {at}: {e}")))
        });
        let metrics = metrics.transpose()?;
        let mode = if config.service.readable { 0o666 } else { 0o660 };
        let given = activate::listener().map_err(ServerError::Config)?;
        let succeeds = given.as_ref().is_some_and(|g| g.succeeds);
        let (listener, managed) = match given {
            None => (listen(&path, owners.gid(), mode)?, false),
            Some(Given { listener, managed, .. }) => {
                let failed = |cause| ServerError::Socket { path: path.clone(), cause };
                listener.set_nonblocking(true).map_err(failed)?;
                (listener, managed)
            }
        };
        // A socket that a service manager has opened lies where that one says.
        let lies = listener.local_addr().ok().and_then(|a| a.as_pathname().map(Path::to_owned));
        let opened = lies.as_deref().filter(|_| managed).and_then(|at| std::fs::metadata(at).ok());
        let wanted = config.service.group.as_deref().zip(owners.gid());
        let differs = opened.map_or_else(Vec::new, |is| activate::differs((is.mode() & 0o777, is.gid()), mode, wanted));
        let path = lies.unwrap_or(path);
        let mut state = State::new(config, text, options, handed)?;
        let made = state.restore(config);
        let notes = match made {
            Ok(notes) => notes.into_iter().chain(damaged).collect(),
            Err(e) => {
                if !managed {
                    let _ = std::fs::remove_file(&path);
                }
                return Err(e.into());
            }
        };
        let shared = Shared {
            state: Mutex::new(state),
            owners,
            limits: config.limits,
            stop: stop.clone(),
            connections: AtomicUsize::new(0),
            log: config.service.log,
            upgrade: Mutex::new(None),
            gate: Mutex::new(()),
            asking: Mutex::new(()),
        };
        let keeps_path = AtomicBool::new(managed);
        Ok(Server { listener, shared: Arc::new(shared), path, notes, metrics, keeps_path, managed, succeeds, differs })
    }

    /// Whether a start would come as far as its ports: the group, the state and the objects are read, verified and compiled. Nothing
    /// is opened, nobody is told. Costs what the programs cost.
    ///
    /// # Errors
    /// What [`Server::start`] would say.
    pub fn check(config: &Config, text: &str, options: LoadOptions) -> Result<(), ServerError> {
        Owners::new(config.service.group.as_deref()).map_err(ServerError::Config)?;
        Ok(State::check(config, text, options)?)
    }

    /// Says in the log that the executable of an [`End::Upgrade`] could not be executed, and that the old one begins again.
    pub fn stays(&self, executable: &Path, why: &str) {
        let members = [("what", json!("upgrade")), ("requested", json!(executable))];
        let came = [("effective", json!("the old executable, started again")), ("reason", json!(why))];
        self.shared.log.say(Level::Warning, "not as asked", &[&members[..], &came].concat());
    }

    /// Where counters are given out for Prometheus.
    pub fn metrics(&self) -> Option<std::net::SocketAddr> {
        self.metrics.as_ref().and_then(|l| l.local_addr().ok())
    }

    /// Whether it goes on where another executable in this process has ended.
    pub fn succeeds(&self) -> bool {
        self.succeeds
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What could not be made again at the start, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Answers until it is asked to end, by a request or by `stop`. Then nothing more is accepted, and what must be there
    /// again is written down.
    pub fn run(&self) -> Result<End, ServerError> {
        let log = self.shared.log;
        log.say(Level::Info, "started", &[("socket", json!(self.path)), ("pid", json!(std::process::id()))]);
        for note in &self.notes {
            log.say(Level::Warning, "not there again", &[("what", json!(note))]);
        }
        for o in &self.differs {
            let members = [("socket", json!(self.path)), ("what", json!(o.what)), ("requested", json!(o.requested))];
            let came = [("effective", json!(o.effective)), ("reason", json!(o.reason))];
            log.say(Level::Warning, "not as asked", &[&members[..], &came].concat());
        }
        for (port, why) in self.shared.state().anew() {
            log.fate(&PortFate::new(port, PortFate::OPENED_AGAIN, why.as_str()));
        }
        self.shared.tell_outcomes();
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
            let accepted = {
                let _gate = self.shared.gate();
                if self.shared.stop.asked() {
                    break;
                }
                self.listener.accept()
            };
            match accepted {
                Ok((socket, _)) => self.welcome(socket),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                // The peer has gone already, or descriptors are short: others may still be answered.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        let upgrade = self.shared.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
        notify::tell(if upgrade.is_some() { "RELOADING=1" } else { "STOPPING=1" });
        // Whoever asked for the end is told that it comes.
        let until = Instant::now() + SETTLE;
        while self.shared.connections.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut state = self.shared.state();
        let mut fates = upgrade.as_ref().map_or_else(Vec::new, |(_, takes)| state.fates(takes));
        state.finish(upgrade.is_some())?;
        let Some((executable, takes)) = upgrade else {
            log.say(Level::Info, "ended", &[]);
            return Ok(End::Down);
        };
        let parcel = self.pack(&mut state, &mut fates, &takes);
        fates.iter().for_each(|fate| log.fate(fate));
        log.say(Level::Info, "ended", &[("for", json!(executable))]);
        let handed = (handover::VARIABLE, if parcel.is_some() { "1".to_owned() } else { String::new() });
        let variables = [activate::hand_over(&self.listener, self.managed).map_err(failed)?, handed];
        self.keeps_path.store(true, Ordering::Relaxed);
        Ok(End::Upgrade { executable, variables, parcel })
    }

    /// What goes along with the next executable. Without a parcel every port is opened again, and its fate says so.
    fn pack(&self, state: &mut State, fates: &mut [PortFate], takes: &[String]) -> Option<OwnedFd> {
        if takes.is_empty() {
            return None;
        }
        let packed = Parcel::new().and_then(|mut parcel| {
            state.pack(&mut parcel, fates);
            if let Some(listener) = self.metrics.as_ref().filter(|_| takes.iter().any(|t| t == "metrics")) {
                // Without it the next one opens the address itself.
                let _ = parcel.metrics(listener);
            }
            parcel.close()
        });
        packed
            .map_err(|e| {
                for fate in fates.iter_mut().filter(|fate| fate.goes_on()) {
                    let reason = format!("nothing could be handed over: {e}; what waits there is lost");
                    *fate = PortFate::new(&fate.port, PortFate::OPENED_AGAIN, reason);
                }
            })
            .ok()
    }

    fn welcome(&self, mut socket: UnixStream) {
        let shared = self.shared.clone();
        let peer = match Peer::of(&socket) {
            Ok(peer) => peer,
            Err(_) => return,
        };
        if let Err(e) = shared.enter() {
            shared.log.say(Level::Warning, "refused", &[("uid", json!(peer.uid)), ("why", json!(e.message))]);
            refuse(&mut socket, e);
            return;
        }
        let served = shared.clone();
        let started = std::thread::Builder::new().name("xway-control".into()).spawn(move || {
            served.serve(&mut socket, peer, Scope::Service, Holds::new());
            served.connections.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.keeps_path.load(Ordering::Relaxed) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn refuse(socket: &mut UnixStream, error: HookError) {
    let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
    // A peer that does not read its refusal goes without.
    let _ = wire::send(socket, &Answer::<Value>::Error(Refusal::from(error)));
}

impl Shared {
    /// One connection more, if there is room.
    fn enter(&self) -> Result<(), HookError> {
        let most = self.limits.connections;
        if self.connections.fetch_add(1, Ordering::AcqRel) < most {
            return Ok(());
        }
        self.connections.fetch_sub(1, Ordering::AcqRel);
        let message = format!("{most} connections are open, which is the most");
        Err(HookError::new(Blame::Machine, message).hint("later, or raise limits.connections"))
    }

    fn serve(self: &Arc<Shared>, socket: &mut UnixStream, peer: Peer, scope: Scope, mut holds: Holds) {
        let most = Duration::from_secs(self.limits.message_seconds);
        if socket.set_write_timeout(Some(most)).is_ok() {
            let mut pace = Pace::new(self.limits.requests_per_second);
            let mut own = Own::default();
            while !self.stop.asked() {
                // Woken now and then to see whether the service ends.
                let bytes = match self.wait(socket, most, scope) {
                    Ok(Some(bytes)) => bytes,
                    Ok(None) => break,
                    Err(e) => {
                        refuse(socket, HookError::new(Blame::Request, e));
                        break;
                    }
                };
                pace.step();
                let (answer, descriptor) = match self.answer(&bytes, (peer, scope), &mut holds, &mut own) {
                    Ok((value, descriptor)) => (Answer::Ok(value), descriptor),
                    Err(e) => (Answer::Error(Refusal::from(e)), None),
                };
                let sent = wire::send(socket, &answer).is_ok();
                if !sent || descriptor.is_some_and(|fd| share::send(socket, fd.as_fd()).is_err()) {
                    break;
                }
            }
        }
        let mut state = self.state();
        holds.into_iter().for_each(|object| state.unhold(object));
    }

    /// The next message; `None` when the peer has gone, was silent for too long, or the service ends.
    fn wait(&self, socket: &mut UnixStream, most: Duration, scope: Scope) -> Result<Option<Vec<u8>>, WireError> {
        const LOOK: Duration = Duration::from_millis(200);
        let since = Instant::now();
        // A descriptor is held as long as somebody likes.
        let silent = |since: Instant| scope == Scope::Service && since.elapsed().as_secs() >= self.limits.idle_seconds;
        while !self.stop.asked() && !silent(since) {
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

    fn answer(
        self: &Arc<Shared>,
        bytes: &[u8],
        (peer, scope): (Peer, Scope),
        holds: &mut Holds,
        own: &mut Own,
    ) -> Answered {
        let request: Request = wire::decode(bytes).map_err(|e| HookError {
            errno: Some(Errno::EINVAL),
            ..HookError::new(Blame::Request, format!("the request is not understood: {e}"))
        })?;
        let denied =
            |message: String| HookError { errno: Some(Errno::EPERM), ..HookError::new(Blame::Machine, message) };
        // A descriptor carries its own right: it may be given to anybody.
        if let Some(why) = scope.refuses(&request) {
            return Err(denied(why));
        }
        if scope == Scope::Service && request.changes() && !self.owners.may_change(peer) {
            let message = format!("user {} (process {}) may look, but not change anything", peer.uid, peer.pid);
            return Err(denied(message).hint("as root, or as a member of the group that service.group names"));
        }
        let changes = request.changes();
        let answer = self.carry_out(request, peer, holds, own);
        if changes {
            let name = serde_json::from_slice::<Asked>(bytes).map_or_else(|_| String::new(), |asked| asked.name);
            let who = [("request", json!(name)), ("uid", json!(peer.uid)), ("pid", json!(peer.pid))];
            match &answer {
                // Map writes are traffic, not events.
                Ok(_) if name.starts_with("map_") || name == "test_run" => {}
                Ok(_) => {
                    self.log.say(Level::Info, "done", &who);
                    if name == "open_port" || name == "apply" {
                        self.tell_outcomes();
                    }
                }
                Err(e) => {
                    self.log.say(Level::Warning, "refused", &[&who[..], &[("why", json!(e.message))]].concat());
                }
            }
        }
        answer
    }

    /// Says where ports do something else than they were asked for.
    fn tell_outcomes(&self) {
        for (port, o) in self.state().untold() {
            let members = [("port", json!(port)), ("what", json!(o.what)), ("requested", json!(o.requested))];
            let came = [("effective", json!(o.effective)), ("reason", json!(o.reason))];
            self.log.say(Level::Warning, "not as asked", &[&members[..], &came].concat());
        }
    }

    fn carry_out(self: &Arc<Shared>, request: Request, peer: Peer, holds: &mut Holds, own: &mut Own) -> Answered {
        let plain = |value| Ok((value, None));
        match request {
            Request::Down => {
                self.stop.ask();
                plain(Value::Null)
            }
            Request::Events { wait_ms } => plain(own.watching.events(self, wait_ms)?),
            Request::Capture { request } => plain(own.watching.capture(self, request)?),
            Request::Captured { wait_ms } => plain(own.watching.captured(self, wait_ms)?),
            Request::TestRun { repeat, .. } if repeat > REPEAT_MAX => {
                let message = format!("field repeat: {repeat}; at most {REPEAT_MAX} runs are one request");
                let refused = HookError { errno: Some(Errno::EINVAL), ..HookError::new(Blame::Request, message) };
                Err(refused.hint("ask several times"))
            }
            Request::TestRun { id, data, ctx, repeat } => {
                // Others are answered meanwhile.
                let tester = self.state().tester(id)?;
                let ran = tester.run(&TestRequest { data: &data.0, ctx, repeat })?;
                plain(serde_json::to_value(Tested::from(ran)).map_err(|e| HookError::new(Blame::Machine, e))?)
            }
            Request::MapEvents { id, wait_ms } => {
                let rings = &mut own.rings;
                if !rings.has(id) {
                    rings.open(id, self.state().live_map(id)?)?;
                }
                let until = Instant::now() + Duration::from_millis(wait_ms.min(60_000));
                let mut all = rings.drain(id)?;
                while all.records.is_empty() && all.lost == 0 && Instant::now() < until && !self.stop.asked() {
                    std::thread::sleep(LOOK_AGAIN.min(until.saturating_duration_since(Instant::now())));
                    all = rings.drain(id)?;
                }
                plain(serde_json::to_value(all).map_err(|e| HookError::new(Blame::Machine, e))?)
            }
            Request::Share { map, read_only } => self.share(map, read_only, peer),
            Request::Upgrade { executable, dry_run } => plain(self.upgrade(executable, dry_run, peer)?),
            request => plain(self.state().handle(request, holds)?),
        }
    }

    /// A connection of its own for one map; the other end of it is the descriptor.
    fn share(self: &Arc<Shared>, map: u32, read_only: bool, peer: Peer) -> Answered {
        let failed = |e: std::io::Error| HookError::new(Blame::Machine, format!("a descriptor of map {map}: {e}"));
        let (mut near, far) = UnixStream::pair().map_err(failed)?;
        self.enter()?;
        let mut held = Holds::new();
        let leave = |e| {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            e
        };
        self.state().hold_map(map, &mut held).map_err(leave)?;
        let (shared, scope) = (self.clone(), Scope::Map { id: map, read_only });
        let again = held.clone();
        let started = std::thread::Builder::new().name("xway-map".into()).spawn(move || {
            shared.serve(&mut near, peer, scope, held);
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(e) = started {
            let mut state = self.state();
            again.into_iter().for_each(|object| state.unhold(object));
            return Err(leave(failed(e)));
        }
        Ok((Value::Null, Some(far.into())))
    }

    fn upgrade(&self, executable: PathBuf, dry_run: bool, peer: Peer) -> Result<Value, HookError> {
        if !dry_run && !self.owners.is_owner(peer) {
            let message = format!("user {} may not say what is executed as the service's user", peer.uid);
            return Err(HookError { errno: Some(Errno::EPERM), ..HookError::new(Blame::Machine, message) });
        }
        let _one = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if self.stop.asked() {
            return Err(HookError::new(Blame::Machine, "the service ends, or another executable takes over already"));
        }
        // Who may only look does not make this process execute anything: what the other executable takes is then not known.
        let takes = match self.owners.is_owner(peer) {
            true => upgrade::check(&executable)?,
            false => handover::TAKES.map(str::to_owned).to_vec(),
        };
        let others = self.connections.load(Ordering::Acquire).saturating_sub(1);
        let outlook = self.state().outlook(&takes, others);
        if !dry_run {
            *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some((executable, takes));
            let _gate = self.gate();
            self.stop.ask();
        }
        serde_json::to_value(outlook).map_err(|e| HookError::new(Blame::Machine, e))
    }
}

/// What a connection has of its own beside what it holds.
#[derive(Default)]
struct Own {
    rings: Rings,
    watching: Watching,
}

/// An answer, and a descriptor that goes with it.
type Answered = Result<(Value, Option<OwnedFd>), HookError>;

/// Runs of one test-run request: one that takes a microsecond a run takes seconds.
const REPEAT_MAX: u32 = 1_000_000;

/// How often something that is waited for is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long connections are given to hear their last answer.
const SETTLE: Duration = Duration::from_secs(3);

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
fn listen(path: &Path, gid: Option<u32>, mode: u32) -> Result<UnixListener, ServerError> {
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
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}
