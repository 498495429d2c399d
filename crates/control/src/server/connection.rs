//! One connection: its requests, one after the other, and what it holds.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use xway_abi::Errno;
use xway_door::{Pulse, refuse_rights};
use xway_hook::{Blame, HookError, TestRequest};

use super::Shared;
use super::seats::Seat;
use crate::log::Level;
use crate::message::{About, Answer, Asked, Refusal, Request, Tested};
use crate::peer::Peer;
use crate::rings::Rings;
use crate::share::{self, Scope};
use crate::state::Holds;
use crate::watch::Watching;
use crate::wire::{self, WireError};
use crate::{handover, upgrade};

pub(super) fn refuse(socket: &mut UnixStream, error: HookError) {
    let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
    // A peer that does not read its refusal goes without.
    let _ = wire::send(socket, &Answer::<Value>::Error(Refusal::from(error)));
}

impl Shared {
    /// One connection more, if there is room.
    pub(super) fn enter(&self, peer: Peer) -> Result<Seat, HookError> {
        self.seats.take(peer.uid, self.owners.is_owner(peer))
    }

    pub(super) fn serve(
        self: &Arc<Shared>,
        (socket, pulse): (&mut UnixStream, &Pulse),
        (peer, scope): (Peer, Scope),
        mut holds: Holds,
    ) {
        let most = Duration::from_secs(self.limits.message_seconds);
        if socket.set_write_timeout(Some(most)).is_ok() {
            let mut pace = Pace::new(self.limits.requests_per_second);
            let mut own = Own::default();
            while !self.stop.asked() {
                // Woken now and then to see whether the service ends.
                let bytes = match self.wait((socket, pulse), most, scope) {
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
    fn wait(
        &self,
        (socket, pulse): (&UnixStream, &Pulse),
        most: Duration,
        scope: Scope,
    ) -> Result<Option<Vec<u8>>, WireError> {
        const LOOK: Duration = Duration::from_millis(200);
        let since = Instant::now();
        // A descriptor is held as long as somebody likes.
        let silent = |since: Instant| scope == Scope::Service && since.elapsed().as_secs() >= self.limits.idle_seconds;
        while !self.stop.asked() && !silent(since) {
            let time = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
            match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&time)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(WireError::Io(e.into())),
            }
            return match wire::receive_from_others(socket, self.limits.message_bytes, Some(most), most, Some(pulse)) {
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
                Ok(_) if name.starts_with("map_") || name == "test_run" || name == "trace_log" => {}
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

    fn carry_out(self: &Arc<Shared>, request: Request, peer: Peer, holds: &mut Holds, own: &mut Own) -> Answered {
        let plain = |value| Ok((value, None));
        match request {
            Request::About => {
                let about = About {
                    version: env!("CARGO_PKG_VERSION").into(),
                    pid: std::process::id(),
                    managed: self.managed,
                    age_ms: self.began.elapsed().as_millis() as u64,
                    upgrade: self.upgraded().clone(),
                };
                plain(serde_json::to_value(about).map_err(|e| HookError::new(Blame::Machine, e))?)
            }
            Request::Down => {
                self.stop.ask();
                plain(Value::Null)
            }
            Request::Events { wait_ms } => plain(own.watching.events(self, wait_ms)?),
            Request::TraceLog { wait_ms } => plain(own.watching.trace_log(self, wait_ms)?),
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
            Request::MapMemory { id, write } => self.memory(id, write, peer),
            // For who may only look no file is opened, and no program proved.
            Request::Apply { config, dry_run: true } if !self.owners.may_change(peer) => {
                plain(self.state().foretell(&config)?)
            }
            Request::Upgrade { executable, dry_run } => plain(self.upgrade(executable, dry_run, peer)?),
            request => plain(self.state().handle(request, holds)?),
        }
    }

    /// A connection of its own for one map; the other end of it is the descriptor.
    fn share(self: &Arc<Shared>, map: u32, read_only: bool, peer: Peer) -> Answered {
        let failed = |e: std::io::Error| HookError::new(Blame::Machine, format!("a descriptor of map {map}: {e}"));
        let (mut near, far) = UnixStream::pair().map_err(failed)?;
        // Whoever gets it sends requests and nothing else.
        refuse_rights(&near);
        let seat = self.enter(peer)?;
        let mut held = Holds::new();
        self.state().hold_map(map, &mut held)?;
        let (shared, scope) = (self.clone(), Scope::Map { id: map, read_only });
        let again = held.clone();
        let started = std::thread::Builder::new().name("xway-map".into()).spawn(move || {
            shared.serve((&mut near, &Pulse::default()), (peer, scope), held);
            drop((near, seat));
        });
        if let Err(e) = started {
            let mut state = self.state();
            again.into_iter().for_each(|object| state.unhold(object));
            return Err(failed(e));
        }
        Ok((Value::Null, Some(far.into())))
    }

    /// The memory of an array. It stays as long as somebody has it, map or not, and no number of connections bounds that: who may only
    /// look gets none.
    fn memory(&self, id: u32, write: bool, peer: Peer) -> Answered {
        if !self.owners.may_change(peer) {
            let message = format!("user {} may look at values, but not have the memory of map {id}", peer.uid);
            let denied = HookError { errno: Some(Errno::EPERM), ..HookError::new(Blame::Machine, message) };
            return Err(
                denied.hint("a look-up gives them one by one; a member of the service's group can pass the memory on")
            );
        }
        let (fd, shape) = self.state().map_memory(id, write)?;
        Ok((json!({ "value_size": shape.value_size, "entries": shape.entries }), Some(fd)))
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
        let others = self.seats.taken().saturating_sub(1);
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
