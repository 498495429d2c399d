//! The socket: who may speak, how much, how long; one thread for each connection, one request at a time.

mod connection;
mod seats;

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, SocketType, accept_with};
use serde_json::json;
use xway_door::{Access, Listener, Pulse, Refused, Threads, refuse_rights};
use xway_engine::Stop;
use xway_hook::{Blame, HookError};
use xway_object::LoadOptions;

use crate::activate::{Differs, Given};
use crate::config::{Config, Limits};
use crate::handover::{self, Handed, Parcel};
use crate::log::{Level, LogFormat};
use crate::message::{PortFate, Request, Upgraded};
use crate::peer::{Owners, Peer};
use crate::share::Scope;
use crate::state::{Holds, State};
use crate::{activate, notify, upgrade};
use connection::refuse;
use seats::Seats;

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
    listener: Listener,
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
    reload: Option<Reload>,
}

/// When the file is to be read again, and how: the text of a configuration, or why there is none.
#[derive(Clone)]
struct Reload {
    asked: Arc<AtomicBool>,
    read: Arc<dyn Fn() -> Result<String, String> + Send + Sync>,
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
        variables: [(&'static str, String); 3],
        /// What becomes its standard input: descriptors of ports wait there. `None`: it keeps this one's.
        parcel: Option<OwnedFd>,
    },
}

pub(crate) struct Shared {
    state: Mutex<State>,
    owners: Owners,
    limits: Limits,
    pub(crate) stop: Stop,
    seats: Arc<Seats>,
    log: LogFormat,
    /// When it began, and what came of the upgrade by which it did.
    began: Instant,
    upgraded: Mutex<Option<Upgraded>>,
    /// Somebody else opened the socket and keeps it.
    managed: bool,
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
    /// Applies what the file says now.
    fn reload(&self, read: &dyn Fn() -> Result<String, String>) {
        notify::reloading();
        let apply = |config| self.state().handle(Request::Apply { config, dry_run: false }, &mut Holds::new());
        let done = read().map_err(|why| HookError::new(Blame::Input, why)).and_then(apply);
        let what = ("request", json!("reload"));
        match done {
            Ok(steps) => self.log.say(Level::Info, "done", &[what, ("steps", steps)]),
            Err(e) => self.log.say(Level::Warning, "refused", &[what, ("why", json!(e.message))]),
        }
        self.tell_outcomes();
        notify::tell("READY=1");
    }

    /// Says where ports do something else than they were asked for.
    fn tell_outcomes(&self) {
        for (port, o) in self.state().untold() {
            let members = [("port", json!(port)), ("what", json!(o.what)), ("requested", json!(o.requested))];
            let came = [("effective", json!(o.effective)), ("reason", json!(o.reason))];
            self.log.say(Level::Warning, "not as asked", &[&members[..], &came].concat());
        }
    }

    fn upgraded(&self) -> MutexGuard<'_, Option<Upgraded>> {
        self.upgraded.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
        let mut path = config.service.socket.clone();
        let owners = Owners::new(config.service.group.as_deref()).map_err(ServerError::Config)?;
        config.service.check_cpus().map_err(ServerError::Config)?;
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
            None => {
                let access = Access { mode, gid: owners.gid(), rights: config.service.rights };
                (listen(&path, access)?, false)
            }
            Some(Given { listener, managed, .. }) => {
                let failed = |cause| ServerError::Socket { path: path.clone(), cause };
                listener.set_nonblocking(true).map_err(failed)?;
                // A socket that a service manager has opened lies where that one says.
                let lies = listener.local_addr().ok().and_then(|a| a.as_pathname().map(Path::to_owned));
                path = lies.unwrap_or(path);
                let listener = Listener::from(OwnedFd::from(listener));
                refuse_rights(&listener);
                (listener, managed)
            }
        };
        let opened = managed.then_some(path.as_path()).and_then(|at| std::fs::metadata(at).ok());
        let wanted = config.service.group.as_deref().zip(owners.gid());
        let differs = opened.map_or_else(Vec::new, |is| activate::differs((is.mode() & 0o777, is.gid()), mode, wanted));
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
            seats: Seats::new(config.limits.connections),
            log: config.service.log,
            began: Instant::now(),
            managed,
            upgraded: Mutex::new(succeeds.then(upgrade::came).flatten()),
            upgrade: Mutex::new(None),
            gate: Mutex::new(()),
            asking: Mutex::new(()),
        };
        let keeps_path = AtomicBool::new(managed);
        let (shared, reload) = (Arc::new(shared), None);
        Ok(Server { listener, shared, path, notes, metrics, keeps_path, managed, succeeds, differs, reload })
    }

    /// What is applied whenever the flag is set, as daemons do it on SIGHUP. The log says what came of it.
    pub fn on_reload(
        &mut self,
        asked: Arc<AtomicBool>,
        read: impl Fn() -> Result<String, String> + Send + Sync + 'static,
    ) {
        self.reload = Some(Reload { asked, read: Arc::new(read) });
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

    /// Says in the log that the executable of an [`End::Upgrade`] could not be executed, and that the old one begins again; gives the
    /// variable by which that one knows.
    pub fn stays(&self, executable: &Path, why: &str) -> (&'static str, String) {
        let members = [("what", json!("upgrade")), ("requested", json!(executable))];
        let came = [("effective", json!("the old executable, started again")), ("reason", json!(why))];
        self.shared.log.say(Level::Warning, "not as asked", &[&members[..], &came].concat());
        let lost = self.shared.upgraded().as_ref().map_or_else(Vec::new, |upgraded| upgraded.lost.clone());
        upgrade::announce(executable, Some(why), lost)
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
        if let Some(upgraded) = &mut *self.shared.upgraded() {
            let mut state = self.shared.state();
            upgraded.ports = state.came().to_vec();
            let between = state.lost_between();
            between.iter().for_each(|loss| log.lost(loss));
            upgraded.lost.extend(between);
        }
        self.shared.state().anew().iter().for_each(|fate| log.fate(fate));
        self.shared.tell_outcomes();
        let failed = |cause| ServerError::Socket { path: self.path.clone(), cause };
        let mut threads = vec![self.watch().map_err(failed)?];
        if let Some(listener) = &self.metrics {
            let failed = |cause| ServerError::Config(format!("service.metrics: {cause}"));
            let (listener, shared) = (listener.try_clone().map_err(failed)?, self.shared.clone());
            let named = std::thread::Builder::new().name("xway-metrics".into());
            threads.push(named.spawn(move || crate::metrics::serve(&listener, &shared)).map_err(failed)?);
        }
        notify::tell("READY=1");
        // This thread neither receives from a connection nor closes one: what came along might hold it up.
        let mut serving = Threads::new("xway-control", self.shared.limits.connections + TURNED_AWAY_MAX);
        while !self.shared.stop.asked() {
            serving.look_after();
            // Without room for another one who comes waits in the kernel.
            let mut fds: Vec<_> =
                serving.room().then(|| PollFd::new(&self.listener, PollFlags::IN)).into_iter().collect();
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
                accept_with(&self.listener, SocketFlags::CLOEXEC)
            };
            match accepted {
                Ok(socket) => self.welcome(socket.into(), &mut serving),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                // The peer has gone already, or descriptors are short: others may still be answered.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        let upgrade = self.shared.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
        match &upgrade {
            Some(_) => notify::reloading(),
            None => notify::tell("STOPPING=1"),
        }
        // Whoever asked for the end is told that it comes.
        let until = Instant::now() + SETTLE;
        serving.end(SETTLE, |_| {});
        // Those for one map are not among these.
        while self.shared.seats.taken() > serving.len() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        // They hold the state, which somebody may open again when this returns.
        threads.into_iter().for_each(|thread| thread.join().unwrap_or_default());
        let mut state = self.shared.state();
        let mut fates = upgrade.as_ref().map_or_else(Vec::new, |(_, takes)| state.fates(takes));
        state.shut(&mut fates);
        let lost = state.finish(upgrade.is_some())?;
        xway_vm::told_of_lost_lines();
        lost.iter().for_each(|loss| log.lost(loss));
        let Some((executable, takes)) = upgrade else {
            log.say(Level::Info, "ended", &[]);
            return Ok(End::Down);
        };
        let parcel = self.pack(&mut state, &mut fates, &takes);
        fates.iter().for_each(|fate| log.fate(fate));
        log.say(Level::Info, "ended", &[("for", json!(executable))]);
        let handed = (handover::VARIABLE, if parcel.is_some() { "1".to_owned() } else { String::new() });
        let asked = upgrade::announce(&executable, None, lost.clone());
        self.shared.upgraded().get_or_insert_default().lost = lost;
        let variables = [activate::hand_over(&self.listener, self.managed).map_err(failed)?, handed, asked];
        self.keeps_path.store(true, Ordering::Relaxed);
        Ok(End::Upgrade { executable, variables, parcel })
    }

    /// Looks at ports once in a while, and reads the file again when that is asked for.
    fn watch(&self) -> std::io::Result<JoinHandle<()>> {
        let (shared, reload) = (self.shared.clone(), self.reload.clone());
        let work = move || {
            let mut looked = Instant::now();
            while !shared.stop.asked() {
                std::thread::sleep(LOOK_AT_PORTS / 10);
                if let Some(reload) = reload.as_ref().filter(|reload| reload.asked.swap(false, Ordering::SeqCst)) {
                    shared.reload(&*reload.read);
                }
                if looked.elapsed() >= LOOK_AT_PORTS {
                    shared.tell_outcomes();
                    looked = Instant::now();
                }
            }
        };
        std::thread::Builder::new().name("xway-watch".into()).spawn(work)
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
                for fate in fates.iter_mut().filter(|fate| fate.is_packed()) {
                    let reason = format!("nothing could be handed over: {e}; what waits there is lost");
                    *fate = PortFate::new(&fate.port, PortFate::OPENED_AGAIN, reason);
                }
            })
            .ok()
    }

    /// A thread of its own for a connection, also for one that is only told why it is not taken in.
    fn welcome(&self, mut socket: UnixStream, serving: &mut Threads) {
        let (shared, pulse) = (self.shared.clone(), Arc::new(Pulse::default()));
        let peer = Peer::of(&socket);
        let seat = peer.as_ref().ok().map(|peer| shared.enter(*peer));
        if let (Ok(peer), Some(Err(e))) = (&peer, &seat) {
            shared.log.say(Level::Warning, "refused", &[("uid", json!(peer.uid)), ("why", json!(e.message))]);
        }
        let theirs = pulse.clone();
        serving.start(0, pulse, move || {
            let seat = match (peer, seat) {
                (Ok(peer), Some(Ok(seat))) => {
                    shared.serve((&mut socket, &theirs), (peer, Scope::Service), Holds::new());
                    Some(seat)
                }
                (_, Some(Err(e))) => {
                    refuse(&mut socket, e);
                    None
                }
                _ => None,
            };
            drop(shared);
            // What waits in it is closed with it.
            theirs.expose();
            drop((socket, seat));
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.keeps_path.load(Ordering::Relaxed) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Connections that are told at one time why they are not taken in.
const TURNED_AWAY_MAX: usize = 16;

/// How often ports are looked at that somebody may have taken something away from.
const LOOK_AT_PORTS: Duration = Duration::from_secs(1);

/// How long connections are given to hear their last answer.
const SETTLE: Duration = Duration::from_secs(3);

/// Makes the socket, and the directory that it lies in.
fn listen(path: &Path, access: Access) -> Result<Listener, ServerError> {
    let failed = |cause| ServerError::Socket { path: path.to_owned(), cause };
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    xway_door::listen(path, SocketType::STREAM, access).map_err(|refused| match refused {
        Refused::Answers => ServerError::Running { path: path.to_owned() },
        Refused::Failed { what, cause } => failed(std::io::Error::new(cause.kind(), format!("{what}: {cause}"))),
    })
}
