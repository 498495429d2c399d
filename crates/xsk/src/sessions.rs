//! The threads that serve applications, and the one that takes applications in and looks after those threads ([`Threads`]): it never
//! receives from a connection and never closes one, and the sockets of an application whose thread is held up are taken away without it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use xway_door::{Listener, Pulse, Threads};

use crate::budget::{Amount, Charge};
use crate::hub::Hub;
use crate::server::Refusal;
use crate::session::{self, Session};

/// How often threads are looked after while there are some.
const LOOK: Duration = Duration::from_millis(500);
/// The same when something is short, or the server ends.
const LOOK_SOON: Duration = Duration::from_millis(50);
/// Applications that are told at one time why they are not taken in.
const TURNED_AWAY_MAX: usize = 16;
/// How long a server that ends waits for its threads: each ends within a second or two, or is held up.
const ENDING: Duration = Duration::from_secs(6);

/// All of them.
struct Sessions<'a> {
    hub: &'a Arc<Hub>,
    threads: Threads,
    /// A descriptor that is given up to tell an application that there is none.
    spare: Option<OwnedFd>,
    next: u64,
}

/// Takes applications in until the server ends.
pub(crate) fn serve(listener: Listener, hub: &Arc<Hub>) {
    let threads = Threads::new("xsk-session", hub.policy.connections_max + TURNED_AWAY_MAX);
    let mut sessions = Sessions { hub, threads, spare: spare(hub), next: 0 };
    let mut short = false;
    while !hub.stopping() {
        let room = sessions.threads.room();
        let closed = hub.reap();
        let most = match room && !short {
            false => Some(LOOK_SOON),
            true => (closed || !sessions.threads.is_empty()).then_some(LOOK),
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
}

/// Some descriptor.
fn spare(hub: &Hub) -> Option<OwnedFd> {
    hub.stop.try_clone().ok()
}

impl Sessions<'_> {
    /// Takes one application in. False when something is short, so that it is better tried again in a while.
    fn take_in(&mut self, listener: &Listener) -> bool {
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
            None => self.charge(uid),
        };
        let refused: Option<Refusal> = charge.as_ref().err().cloned();
        self.next += 1;
        let pulse = Arc::new(Pulse::default());
        let session = Session::new(self.hub, connection, (self.next, pid, uid), charge.ok(), refused, pulse.clone());
        self.threads.start(self.next, pulse, move || session::run(session));
        true
    }

    /// What a connection costs, and while it has no socket.
    fn charge(&self, uid: u32) -> Result<(Charge, Charge), Refusal> {
        let take = |amount| self.hub.budget.take(uid, amount);
        let one = take(Amount { connections: 1, ..Amount::default() })?;
        Ok((one, take(Amount { idle: 1, ..Amount::default() })?))
    }

    /// Takes away what those have that are held up.
    fn look_after(&mut self) {
        self.threads.look_after().into_iter().for_each(|connection| self.hub.end(connection));
    }

    /// Waits for the threads. Those that are held up are left to themselves.
    fn end(&mut self) {
        self.threads.end(ENDING, |connection| self.hub.end(connection));
        self.hub.end_all();
        self.hub.reap();
    }
}
