//! The threads that serve applications, and the one that takes applications in and looks after those threads.
//!
//! A UNIX socket brings whatever its sender likes, descriptors too. Those that nobody asked for are closed by the kernel, in the thread
//! that receives them or closes the connection; and closing can take as long as their sender wants: a TCP socket with `SO_LINGER` whose
//! other end reads nothing. So the thread that looks after the others never receives from a connection and never closes one, and a
//! thread that is held up in this way ([`Pulse`]) has nothing that anybody needs: its application's sockets are taken away without it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};

use crate::budget::Amount;
use crate::hub::Hub;
use crate::server::Refusal;
use crate::session::{self, Session};

/// Whether a thread does what takes as long as an application wants.
#[derive(Debug)]
pub(crate) struct Pulse {
    begun: Instant,
    /// Since so many milliseconds behind the beginning; 0: it does not.
    exposed: AtomicU64,
}

impl Pulse {
    fn new() -> Pulse {
        Pulse { begun: Instant::now(), exposed: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64 + 1
    }

    /// What comes now usually takes no time.
    pub(crate) fn expose(&self) {
        self.exposed.store(self.now(), Ordering::Release);
    }

    /// It is done.
    pub(crate) fn cover(&self) {
        self.exposed.store(0, Ordering::Release);
    }

    fn stuck(&self) -> bool {
        let since = self.exposed.load(Ordering::Acquire);
        since != 0 && self.now().saturating_sub(since) >= STUCK_MS
    }
}

/// What takes no time takes so long only when an application wants it.
const STUCK_MS: u64 = 500;
/// How often threads are looked after while there are some.
const LOOK: Duration = Duration::from_millis(500);
/// The same when something is short, or the server ends.
const LOOK_SOON: Duration = Duration::from_millis(50);
/// Applications that are told at one time why they are not taken in.
const TURNED_AWAY_MAX: usize = 16;
/// How long a server that ends waits for its threads: each ends within a second or two, or is held up.
const ENDING: Duration = Duration::from_secs(6);

/// One thread.
struct Running {
    connection: u64,
    thread: JoinHandle<()>,
    pulse: Arc<Pulse>,
    /// Its sockets were taken away without it.
    given_up: bool,
}

/// All of them.
struct Sessions<'a> {
    hub: &'a Arc<Hub>,
    running: Vec<Running>,
    /// No thread could be started for it.
    waiting: Option<(u64, Arc<Pulse>, Session)>,
    /// A descriptor that is given up to tell an application that there is none.
    spare: Option<OwnedFd>,
    next: u64,
}

/// Takes applications in until the server ends.
pub(crate) fn serve(listener: OwnedFd, hub: &Arc<Hub>) {
    let mut sessions = Sessions { hub, running: Vec::new(), waiting: None, spare: spare(hub), next: 0 };
    let mut short = false;
    while !hub.stopping() {
        let room = sessions.room();
        let closed = hub.reap();
        let most = match room && !short {
            false => Some(LOOK_SOON),
            true => (closed || !sessions.running.is_empty()).then_some(LOOK),
        };
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        let mut fds = vec![PollFd::new(&*hub.stop, PollFlags::IN)];
        // Where there is no room applications wait in the kernel.
        fds.extend((room && !short).then(|| PollFd::new(&listener, PollFlags::IN)));
        let _ = poll(&mut fds, most.as_ref());
        let came = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        sessions.look_after();
        short = (came || short) && room && !sessions.take_in(&listener);
    }
    sessions.end();
    // What waits to be taken in is closed with it.
    let closing = std::thread::Builder::new().name("xsk-close".into()).spawn(move || drop(listener));
    let until = Instant::now() + Duration::from_millis(STUCK_MS);
    while closing.as_ref().is_ok_and(|thread| !thread.is_finished()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Some descriptor.
fn spare(hub: &Hub) -> Option<OwnedFd> {
    hub.stop.try_clone().ok()
}

impl Sessions<'_> {
    /// Whether one more thread may be started.
    fn room(&self) -> bool {
        self.waiting.is_none() && self.running.len() < self.hub.policy.connections_max + TURNED_AWAY_MAX
    }

    /// Takes one application in. False when something is short, so that it is better tried again in a while.
    fn take_in(&mut self, listener: &OwnedFd) -> bool {
        self.spare = self.spare.take().or_else(|| spare(self.hub));
        let (connection, lacks) = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(connection) => (connection, None),
            Err(errno @ (Errno::MFILE | Errno::NFILE)) if self.spare.take().is_some() => {
                match accept_with(listener, SocketFlags::CLOEXEC) {
                    Ok(connection) => (connection, Some(session::shortage(xway_abi::Errno(errno.raw_os_error())))),
                    Err(_) => return false,
                }
            }
            // It has gone again, or was none.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return true,
            Err(_) => return false,
        };
        // The kernel cannot name one from another PID namespace to us: nobody's.
        let peer = sockopt::socket_peercred(&connection);
        let (pid, uid) = peer.map_or((0, u32::MAX), |peer| (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()));
        let charge = match lacks {
            Some(refusal) => Err(refusal),
            None => self.hub.budget.take(uid, Amount { connections: 1, ..Amount::default() }),
        };
        let refused: Option<Refusal> = charge.as_ref().err().cloned();
        self.next += 1;
        let pulse = Arc::new(Pulse::new());
        let session = Session::new(self.hub, connection, (self.next, pid, uid), charge.ok(), refused, pulse.clone());
        self.start(self.next, pulse, session);
        true
    }

    fn start(&mut self, connection: u64, pulse: Arc<Pulse>, session: Session) {
        // It must not be closed here when there is no thread for it.
        let place = Arc::new(Mutex::new(Some(session)));
        let theirs = place.clone();
        let thread = std::thread::Builder::new().name("xsk-session".into()).spawn(move || {
            let session = theirs.lock().take();
            if let Some(session) = session {
                session::run(session);
            }
        });
        match thread {
            Ok(thread) => self.running.push(Running { connection, thread, pulse, given_up: false }),
            Err(_) => self.waiting = place.lock().take().map(|session| (connection, pulse, session)),
        }
    }

    /// Forgets threads that have ended, takes away what those have that are held up, and starts what could not be started.
    fn look_after(&mut self) {
        let ended = self.running.extract_if(.., |running| running.thread.is_finished());
        ended.for_each(|running| drop(running.thread.join()));
        for running in self.running.iter_mut().filter(|running| !running.given_up && running.pulse.stuck()) {
            running.given_up = true;
            self.hub.end(running.connection);
        }
        if let Some((connection, pulse, session)) = self.waiting.take() {
            self.start(connection, pulse, session);
        }
    }

    /// Waits for the threads. Those that are held up are left to themselves.
    fn end(&mut self) {
        if let Some((.., session)) = self.waiting.take() {
            // Closed by the end of the process.
            std::mem::forget(session);
        }
        let until = Instant::now() + ENDING;
        loop {
            self.look_after();
            if self.running.iter().all(|running| running.given_up) || Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.hub.end_all();
        self.hub.reap();
    }
}
