//! Handing over what was sorted: one doorbell for each target.

use std::sync::Arc;

use xway_abi::{Errno, Verdict};
use xway_maps::Guard;
use xway_packet::{Burst, Pool, Redirect};

use super::{Core, Site};
use crate::counters::Meters;
use crate::event::{EventKind, Events};
use crate::lane::Lane;
use crate::outbox::Why;
use crate::steer::Decision;
use crate::{Port, PortError, Sent, SocketTarget, TxPolicy};

/// Frames of the current burst that go to one socket.
#[derive(Default)]
pub(super) struct SocketOut {
    /// Set while the burst has frames.
    target: Option<Arc<dyn SocketTarget>>,
    pub(super) burst: Burst,
}

/// Which of these is the socket's; a free one becomes it. Once for each run of frames that go to one socket.
pub(super) fn socket_out(sockets: &mut Vec<SocketOut>, target: &Arc<dyn SocketTarget>) -> usize {
    let id = target.id();
    let same = |out: &SocketOut| out.target.as_ref().is_some_and(|target| target.id() == id);
    if let Some(at) = sockets.iter().position(same) {
        return at;
    }
    let at = sockets.iter().position(|out| out.target.is_none()).unwrap_or_else(|| {
        sockets.push(SocketOut::default());
        sockets.len() - 1
    });
    sockets[at].target = Some(target.clone());
    at
}

impl Core {
    /// Hands every target what waits for it and rings its doorbell once.
    pub(super) fn send(&mut self, site: Site, guard: &Guard) {
        self.run_on_the_way_out(guard);
        let name = match site {
            Site::Lane(at) => self.hooks[self.lanes[at].hook].name(0),
            Site::Cpu { program } => program.and_then(|at| self.extras.hook(at)).map_or("", |hook| hook.name(0)),
        };
        let meters = &*self.source.meters;
        let mut failed = None;
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if !lane.outbox.take_filled() {
                continue;
            }
            for why in Why::ALL {
                let pool = &mut self.pools[lane.pool];
                let burst = lane.outbox.burst(why);
                if burst.is_empty() {
                    continue;
                }
                let count = burst.len();
                let sent = match why.is_stack() {
                    true => lane.port.pass(lane.queue, pool, burst),
                    false if lane.tx.looks() => gated(lane.tx, &mut *lane.port, lane.queue, pool, burst, meters),
                    false => lane.port.tx(lane.queue, pool, burst),
                };
                // What a port neither took nor explained is lost here.
                pool.release_burst(burst);
                let sent = explained(sent, count);
                if !why.is_stack() {
                    lane.untold = lane.untold.saturating_add(sent.sent);
                }
                account(meters, why, sent);
                tell(&mut self.events, name, lane.port.ifindex(), why, sent);
            }
            for why in [Why::Redirect, Why::Copy] {
                let frames = lane.outbox.shared(why);
                if frames.is_empty() {
                    continue;
                }
                let sent = explained(lane.port.tx_shared(lane.queue, frames), frames.len());
                // The last port to send a frame gives it back.
                let last = frames.drain(..).filter_map(|frame| frame.try_unshare().ok());
                self.pools[self.source.pool].release_all(last);
                account(meters, why, sent);
                tell(&mut self.events, name, lane.port.ifindex(), why, sent);
            }
            lane.outbox.take_filled();
            if lane.tx.looks() && lane.may_wait(&mut self.pools) {
                continue;
            }
            if let Err(error) = lane.tell(meters) {
                failed.get_or_insert((number, error));
            }
        }
        for remote in &mut self.remotes {
            if !remote.outbox.take_filled() {
                continue;
            }
            for why in Why::ALL {
                let burst = remote.outbox.burst(why);
                if burst.is_empty() {
                    continue;
                }
                let ring = if why.is_stack() { &mut remote.inbox.pass } else { &mut remote.inbox.tx };
                let sent = ring.send(burst) as u32;
                self.handed += u64::from(sent);
                let sent = Sent { sent, full: burst.len() as u32, failed: 0, errno: None };
                self.pools[self.source.pool].release_burst(burst);
                account(meters, why, sent);
                tell(&mut self.events, name, remote.ifindex, why, sent);
            }
            remote.outbox.take_filled();
            remote.inbox.wake.ring();
        }
        if let Some((number, error)) = failed {
            self.fail(number, error);
        }
        self.send_to_cpus(site);
        self.send_to_sockets(site);
    }

    /// Rings the doorbells of queues whose frames waited for others and need not any more: `idle` says that the worker has nothing
    /// else to do.
    pub(super) fn tell_waiting(&mut self, idle: bool) {
        for at in 0..self.lanes.len() {
            let lane = &mut self.lanes[at];
            if lane.untold == 0 || !lane.tx.looks() || (!idle && lane.may_wait(&mut self.pools)) {
                continue;
            }
            let meters = lane.meters.clone();
            if let Err(error) = lane.tell(&meters) {
                self.fail(at, error);
            }
        }
    }

    /// Rings all doorbells that are due: nothing more will come.
    pub(crate) fn tell_all(&mut self) {
        self.tell_waiting(true);
    }

    /// Runs the programs of DEVMAP entries over the frames that leave through them.
    fn run_on_the_way_out(&mut self, guard: &Guard) {
        let mut groups = self.extras.take_groups();
        for group in groups.iter_mut().filter(|group| !group.burst.is_empty()) {
            for frame in group.burst.frames_mut() {
                // Linux forgets the receive queue here.
                frame.set_ingress(frame.ingress_ifindex(), 0);
                frame.set_egress_ifindex(group.ifindex);
            }
            let results = &mut self.scratch;
            results.clear();
            let Some(hook) = self.extras.hook(group.program) else { continue };
            hook.executor.run(group.burst.frames_mut(), guard, results);
            let name = hook.name(0);
            let meters = &*self.source.meters;
            let own = self.lanes.len();
            for (index, (frame, ret)) in group.burst.drain().zip(results.all_rets()).enumerate() {
                let verdict = Verdict::from_ret(ret);
                let kind = match verdict {
                    Some(Verdict::Pass) => {
                        let outbox = match group.number.checked_sub(own) {
                            None => &mut self.lanes[group.number].outbox,
                            Some(remote) => &mut self.remotes[remote].outbox,
                        };
                        if let Err(frame) = outbox.burst(group.why).push(frame) {
                            self.pools[self.source.pool].release(frame);
                            account(meters, group.why, Sent::none(1, Errno::ENOSPC));
                        }
                        continue;
                    }
                    Some(Verdict::Drop) => None,
                    Some(Verdict::Aborted) => {
                        Some(EventKind::Exception { fault: results.fault(index).map(|fault| &**fault) })
                    }
                    _ => Some(EventKind::InvalidAction { code: ret as u32 }),
                };
                match (group.why, kind.is_some()) {
                    (Why::Copy, _) => account(meters, Why::Copy, Sent::none(1, Errno::EACCES)),
                    (_, true) => meters.egress_err.add(1),
                    (_, false) => meters.egress_drop.add(1),
                }
                if let Some(kind) = kind {
                    self.events.tell(name, Some(&frame), kind);
                }
                self.pools[self.source.pool].release(frame);
            }
        }
        self.extras.keep_groups(groups);
    }

    /// Sends and passes what other workers handed to this queue, and processes what steering moved here.
    pub(super) fn relay(&mut self, at: usize, burst: &mut Burst) -> bool {
        let lane = &mut self.lanes[at];
        let Some(inlet) = lane.inlet.as_mut().filter(|inlet| !inlet.is_empty()) else { return false };
        let steered = inlet.rx.receive(burst, Burst::MAX);
        if steered > 0 {
            lane.meters.steered_in.add(steered as u64);
            match lane.bound {
                Some(_) if lane.direct => self.deliver_bound(at, burst),
                _ => self.process(Site::Lane(at), burst),
            }
        }
        let lane = &mut self.lanes[at];
        let Some(inlet) = lane.inlet.as_mut() else { return true };
        let pool = &mut self.pools[lane.pool];
        for (ring, stack) in [(&mut inlet.tx, false), (&mut inlet.pass, true)] {
            let count = ring.receive(burst, Burst::MAX);
            if count == 0 {
                continue;
            }
            let sent = match stack {
                true => lane.port.pass(lane.queue, pool, burst),
                false if lane.tx.looks() => gated(lane.tx, &mut *lane.port, lane.queue, pool, burst, &lane.meters),
                false => lane.port.tx(lane.queue, pool, burst),
            };
            pool.release_burst(burst);
            let sent = explained(sent, count);
            lane.meters.relay_in.add(count as u64);
            lane.meters.relay_sent.add(u64::from(sent.sent));
            lane.meters.relay_lost.add(Errno::ENOSPC, u64::from(sent.full));
            lane.meters.relay_lost.add(sent.errno.unwrap_or(Errno::EIO), u64::from(sent.failed));
            tell(&mut self.events, "", lane.port.ifindex(), Why::Tx, sent);
        }
        lane.untold = 0;
        if let Err(error) = lane.port.flush() {
            self.fail(at, error);
        }
        true
    }

    /// Moves frames to the queues that steering chooses for them. What stays is in the burst afterwards, in order.
    pub(super) fn steer(&mut self, at: usize, burst: &mut Burst) {
        let lane = &mut self.lanes[at];
        let Some(steering) = lane.steering.clone() else { return };
        let pool = &mut self.pools[lane.pool];
        // What came in lies in the other burst meanwhile; what stays comes back into its own.
        std::mem::swap(burst, &mut self.arrived);
        for mut frame in self.arrived.drain() {
            let queue = match steering.decide(&mut frame) {
                Decision::Stay => lane.queue,
                Decision::Queue(queue) => queue,
                Decision::Drop => {
                    lane.meters.steer_drop.add(1);
                    pool.release(frame);
                    continue;
                }
            };
            if queue == lane.queue {
                // As many as came in, so there is room.
                let _ = burst.push(frame);
                continue;
            }
            match lane.peers.iter_mut().find(|peer| peer.queue == queue) {
                Some(peer) => {
                    frame.set_ingress(frame.ingress_ifindex(), queue);
                    let _ = peer.burst.push(frame);
                }
                None => {
                    lane.meters.steer_lost.add(1);
                    pool.release(frame);
                }
            }
        }
        for peer in lane.peers.iter_mut().filter(|peer| !peer.burst.is_empty()) {
            let sent = peer.inbox.rx.send(&mut peer.burst) as u64;
            self.handed += sent;
            lane.meters.steered_out.add(sent);
            lane.meters.steer_lost.add(peer.burst.len() as u64);
            pool.release_burst(&mut peer.burst);
            peer.inbox.wake.ring();
        }
    }

    // -- sockets ----------------------------------------------------------------------------------------------------------

    fn send_to_sockets(&mut self, site: Site) {
        for at in 0..self.sockets.len() {
            let out = &mut self.sockets[at];
            let Some(target) = out.target.take() else { continue };
            let count = out.burst.len();
            let pool = &mut self.pools[self.source.pool];
            let sent = target.deliver(pool, &mut out.burst);
            pool.release_burst(&mut out.burst);
            target.flush();
            let sent = explained(sent, count);
            self.source.meters.redirected.add(u64::from(sent.sent));
            self.source.meters.socket_out.add(u64::from(sent.sent));
            for (lost, errno) in [(sent.full, Errno::ENOSPC), (sent.failed, sent.errno.unwrap_or(Errno::EIO))] {
                if lost > 0 {
                    let socket = Redirect::Socket { map_id: 0, key: target.bound_to().1 };
                    self.redirect_lost(site, socket, errno, lost as usize);
                }
            }
        }
    }

    /// A queue that is bound to a socket, without a program between them.
    pub(super) fn deliver_bound(&mut self, at: usize, burst: &mut Burst) {
        let lane = &mut self.lanes[at];
        let Some(target) = &lane.bound else { return };
        let (count, pool) = (burst.len(), &mut self.pools[lane.pool]);
        let sent = target.deliver(pool, burst);
        pool.release_burst(burst);
        target.flush();
        let sent = explained(sent, count);
        lane.meters.socket_out.add(u64::from(sent.sent));
        account(&lane.meters, Why::Redirect, sent);
    }

    /// Sends what the socket of a queue has to send.
    pub(super) fn serve_socket(&mut self, at: usize, burst: &mut Burst) -> bool {
        let lane = &mut self.lanes[at];
        let Some(target) = &lane.bound else { return false };
        let pool = &mut self.pools[lane.pool];
        // What a socket has to send waits in its ring while the queue holds as much as it may: nothing of it is lost for that.
        if let Some(max) = lane.tx.bytes_max
            && lane.port.backlog(lane.queue, pool).is_some_and(|backlog| backlog.frames > 0 && backlog.bytes >= max)
        {
            return false;
        }
        target.collect(pool, burst);
        if burst.is_empty() {
            return false;
        }
        let count = burst.len();
        let sent = lane.port.tx(lane.queue, pool, burst);
        pool.release_burst(burst);
        let sent = explained(sent, count);
        target.sent(sent);
        lane.meters.socket_in.add(count as u64);
        lane.meters.socket_sent.add(u64::from(sent.sent));
        lane.meters.socket_lost.add(Errno::ENOSPC, u64::from(sent.full));
        lane.meters.socket_lost.add(sent.errno.unwrap_or(Errno::EIO), u64::from(sent.failed));
        lane.untold = 0;
        if let Err(error) = lane.port.flush() {
            self.fail(at, error);
        }
        true
    }

    pub(super) fn account(&self, why: Why, sent: Sent) {
        account(&self.source.meters, why, sent);
    }
}

impl Lane {
    /// Whether what the queue was given may wait for more before it is told: it is busy with what it knows of.
    fn may_wait(&mut self, pools: &mut [Pool]) -> bool {
        if self.untold >= self.tx.batch_frames {
            return false;
        }
        let Some(pool) = pools.get_mut(self.pool) else { return false };
        self.port.backlog(self.queue, pool).is_some_and(|backlog| backlog.frames > self.untold)
    }

    /// Tells the port of what it was given.
    fn tell(&mut self, meters: &Meters) -> Result<(), PortError> {
        if self.tx.looks() {
            meters.doorbells.add(1);
        }
        self.untold = 0;
        self.port.flush()
    }
}

/// Gives a port as much of the burst as its queue may hold; what is beyond goes home, counted as if the queue were full.
fn gated(
    policy: TxPolicy,
    port: &mut dyn Port,
    queue: u32,
    pool: &mut Pool,
    burst: &mut Burst,
    meters: &Meters,
) -> Sent {
    let mut beyond = 0;
    if let Some(max) = policy.bytes_max
        && let Some(backlog) = port.backlog(queue, pool)
    {
        let mut left = max.saturating_sub(backlog.bytes);
        // One frame always may, or a limit below its length would stop the queue for ever.
        let mut fits = usize::from(backlog.frames == 0);
        for (at, frame) in burst.frames().iter().enumerate() {
            let len = frame.total_len() as u64;
            if len > left && at >= fits {
                break;
            }
            left = left.saturating_sub(len);
            fits = at + 1;
        }
        while burst.len() > fits
            && let Some(frame) = burst.pop()
        {
            pool.release(frame);
            beyond += 1;
        }
        meters.tx_limited.add(u64::from(beyond));
    }
    if burst.is_empty() {
        return Sent { full: beyond, ..Sent::default() };
    }
    let count = burst.len();
    let sent = explained(port.tx(queue, pool, burst), count);
    Sent { full: sent.full + beyond, ..sent }
}

/// Counts what a port did not explain as failed.
fn explained(sent: Sent, count: usize) -> Sent {
    let unexplained = (count as u32).saturating_sub(sent.sent + sent.full + sent.failed);
    Sent { failed: sent.failed + unexplained, ..sent }
}

fn account(meters: &Meters, why: Why, sent: Sent) {
    let (good, full, failed) = (u64::from(sent.sent), u64::from(sent.full), u64::from(sent.failed));
    let errno = sent.errno.unwrap_or(Errno::EIO);
    match why {
        Why::Tx => {
            meters.tx.add(good);
            meters.tx_full.add(full);
            meters.tx_err.add(errno, failed);
        }
        Why::Pass | Why::PassOut => {
            meters.passed.add(good);
            meters.pass_lost.add(Errno::ENOBUFS, full);
            meters.pass_lost.add(errno, failed);
        }
        Why::Redirect => {
            meters.redirected.add(good);
            meters.redirect_err.add(Errno::ENOSPC, full);
            meters.redirect_err.add(errno, failed);
        }
        Why::Copy => {
            meters.copies.add(good);
            meters.copies_lost.add(Errno::ENOSPC, full);
            meters.copies_lost.add(errno, failed);
        }
    }
}

/// Events of what could not be sent.
fn tell(events: &mut Events, program: &str, ifindex: u32, why: Why, sent: Sent) {
    if sent.full + sent.failed == 0 {
        return;
    }
    for (count, errno) in [(sent.full, Errno::ENOSPC), (sent.failed, sent.errno.unwrap_or(Errno::EIO))] {
        if count == 0 {
            continue;
        }
        let kind = match why {
            Why::Tx => EventKind::TxError { errno, ifindex, count },
            Why::Redirect => EventKind::RedirectError { errno, target: Redirect::Ifindex(ifindex) },
            Why::Pass | Why::PassOut | Why::Copy => continue,
        };
        events.tell(program, None, kind);
    }
}
