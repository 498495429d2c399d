//! The burst loop: what one worker does, alone or as one of many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use xway_abi::{Errno, Verdict};
use xway_maps::{Guard, Map};
use xway_packet::{Burst, Frame, Pool, Redirect};

use crate::counters::{Meters, burst_step};
use crate::crew::Mailbox;
use crate::event::Events;
use crate::lane::{Hook, Lane, Pass, PassTo};
use crate::outbox::{Outbox, Remote, Why};
use crate::ring::Inbox;
use crate::targets::{Target, Targets};
use crate::{End, EventKind, Limits, Live, PortError, Recorder, Results, Rx, Sent, Stop};

/// Everything that a worker owns while it works.
pub(crate) struct Core {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) hooks: Vec<Hook>,
    /// Ports that other workers serve; their numbers follow those of the lanes.
    remotes: Vec<Remote>,
    /// What the numbers of ports are worked out from.
    ways: Vec<Way>,
    pub(crate) targets: Targets,
    pub(crate) events: Events,
    pub(crate) recorder: Option<Box<dyn Recorder>>,
    pub(crate) limits: Limits,
    pub(crate) stop: Stop,
    pub(crate) live: Arc<Live>,
    pub(crate) idle_polls: u32,
    /// Whether the time that programs take is measured: two readings of the clock a burst.
    pub(crate) timed: bool,
    /// Set in a worker that takes commands: it goes on when a port fails or ends.
    pub(crate) mail: Option<Arc<Mailbox>>,
    /// A command asked the worker to go.
    pub(crate) leaving: bool,
    /// Why a worker without commands cannot go on.
    failed: Option<PortError>,
    /// Frames received.
    received: u64,
    results: Results,
}

impl Core {
    pub(crate) fn new(stop: Stop, events: Events) -> Core {
        Core {
            lanes: Vec::new(),
            pools: Vec::new(),
            hooks: Vec::new(),
            remotes: Vec::new(),
            ways: Vec::new(),
            targets: Targets::default(),
            events,
            recorder: None,
            limits: Limits::default(),
            stop,
            live: Arc::default(),
            idle_polls: 16,
            timed: true,
            mail: None,
            leaving: false,
            failed: None,
            received: 0,
            results: Results::default(),
        }
    }

    /// Works until there is a reason to end.
    pub(crate) fn work(&mut self, started: Instant) -> End {
        let deadline = self.limits.timeout.and_then(|timeout| started.checked_add(timeout));
        let mut burst = Burst::new();
        let mut now = started;
        let mut idle_polls = 0;
        loop {
            self.take_commands();
            let busy = match self.round(&mut burst) {
                Ok(busy) => busy,
                Err(end) => return end,
            };
            if self.stop.asked() || self.leaving {
                return End::Stopped;
            }
            if deadline.is_some() {
                now = Instant::now();
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            if left == Some(Duration::ZERO) {
                return End::Timeout;
            }
            let due = self.hooks.iter_mut().filter_map(|hook| hook.executor.tick()).min();
            idle_polls = if busy { 0 } else { idle_polls + 1 };
            if idle_polls > self.idle_polls {
                self.sleep(left.into_iter().chain(due).min());
            }
        }
    }

    /// Serves every queue once, and says whether there was anything to do.
    fn round(&mut self, burst: &mut Burst) -> Result<bool, End> {
        let mut busy = false;
        for at in 0..self.lanes.len() {
            busy |= self.relay(at, burst);
            let lane = &mut self.lanes[at];
            if !lane.receiving {
                continue;
            }
            let left = self.limits.count.map_or(u64::MAX, |count| count.saturating_sub(self.received));
            if left == 0 {
                return Err(End::Count);
            }
            let budget = left.min(Burst::MAX as u64) as usize;
            let state = lane.port.rx(lane.queue, &mut self.pools[lane.pool], burst, budget);
            if !burst.is_empty() {
                self.receive(at, burst);
            }
            match state {
                Ok(Rx::More) => busy = true,
                Ok(Rx::Idle) => {}
                Ok(Rx::End) => self.lanes[at].receiving = false,
                Err(error) => self.fail(at, error),
            }
            if let Some(error) = self.failed.take() {
                return Err(End::Failed(error));
            }
        }
        if self.mail.is_none() && !self.lanes.iter().any(|lane| lane.receiving) {
            return Err(End::Input);
        }
        Ok(busy)
    }

    /// Counts frames that came in, and processes them.
    fn receive(&mut self, at: usize, burst: &mut Burst) {
        let meters = &self.lanes[at].meters;
        let bytes = burst.frames().iter().map(|frame| frame.len() as u64).sum::<u64>();
        meters.rx.add(burst.len() as u64);
        meters.rx_bytes.add(bytes);
        self.received += burst.len() as u64;
        self.process(at, burst);
        let lane = &self.lanes[at];
        self.live.add(self.received, bytes, lane.port.progress());
    }

    /// Runs the programs over the burst and carries out the verdicts. The burst is empty afterwards.
    fn process(&mut self, at: usize, burst: &mut Burst) {
        let lane = &self.lanes[at];
        let meters = lane.meters.clone();
        meters.bursts.add(1);
        meters.burst_sizes[burst_step(burst.len())].add(1);

        self.results.clear();
        let before = self.timed.then(Instant::now);
        {
            let guard = Guard::pin();
            self.hooks[lane.hook].executor.run(burst.frames_mut(), &guard, &mut self.results);
        }
        if let Some(before) = before {
            meters.run_ns.add(before.elapsed().as_nanos() as u64);
        }
        meters.insns.add(self.results.insns());

        self.record(at, burst.frames());
        self.sort(at, &meters, burst);
        self.send(at, &meters);
    }

    fn record(&mut self, at: usize, frames: &[Frame]) {
        let Some(recorder) = &mut self.recorder else { return };
        let record = |(frame, ret)| recorder.record(frame, Verdict::from_ret(ret).ok_or(ret as u32));
        let recorded = frames.iter().zip(self.results.all_rets()).try_for_each(record);
        if let Err(error) = recorded {
            self.fail(at, error);
        }
    }

    /// Gives each frame back to the pool or puts it where its verdict sends it.
    fn sort(&mut self, at: usize, meters: &Meters, burst: &mut Burst) {
        let results = std::mem::take(&mut self.results);
        let (pool, hook, pass) = (self.lanes[at].pool, self.lanes[at].hook, self.lanes[at].pass);
        let (mut verdicts, mut bytes) = ([0; 5], [0; 5]);
        for (index, (mut frame, ret)) in burst.drain().zip(results.all_rets()).enumerate() {
            let verdict = Verdict::from_ret(ret);
            if let Some(verdict) = verdict {
                verdicts[verdict as usize] += 1;
                bytes[verdict as usize] += frame.len() as u64;
            }
            let (number, why) = match verdict {
                Some(Verdict::Drop) => {
                    self.pools[pool].release(frame);
                    continue;
                }
                Some(Verdict::Tx) => (at, Why::Tx),
                Some(Verdict::Pass) => match pass {
                    Pass::Stack => (at, Why::Pass),
                    Pass::Out(number) => (number, Why::PassOut),
                    Pass::Missing | Pass::Drop => {
                        self.pools[pool].release(frame);
                        match pass {
                            Pass::Drop => meters.pass_drop.add(1),
                            _ => meters.pass_lost.add(Errno::ENODEV, 1),
                        }
                        continue;
                    }
                },
                Some(Verdict::Redirect) => match self.redirect(at, meters, &results, index, &mut frame) {
                    Some(target) => target,
                    None => {
                        self.pools[pool].release(frame);
                        continue;
                    }
                },
                Some(Verdict::Aborted) | None => {
                    let kind = if verdict.is_some() {
                        let fault = results.fault(index);
                        meters.exceptions.add(u64::from(fault.is_some()));
                        EventKind::Exception { fault: fault.map(|fault| &**fault) }
                    } else {
                        meters.invalid.add(1);
                        meters.invalid_bytes.add(frame.len() as u64);
                        meters.invalid_codes.add(ret as u32, 1);
                        EventKind::InvalidAction { code: ret as u32 }
                    };
                    self.events.tell(self.hooks[hook].name(results.position(index)), Some(&frame), kind);
                    self.pools[pool].release(frame);
                    continue;
                }
            };
            // A burst per target and reason has room for every frame of the one that was received.
            if let Err(frame) = self.outbox(number).burst(why).push(frame) {
                self.pools[pool].release(frame);
                lost(meters, why, Errno::ENOBUFS);
            }
        }
        meters.verdicts.iter().zip(verdicts).for_each(|(count, number)| count.add(number));
        meters.verdict_bytes.iter().zip(bytes).for_each(|(count, number)| count.add(number));
        self.results = results;
    }

    /// Where a redirected frame goes; `None`, counted, when it goes nowhere. Copies for further targets are queued here.
    fn redirect(
        &mut self,
        at: usize,
        meters: &Meters,
        results: &Results,
        index: usize,
        frame: &mut Frame,
    ) -> Option<(usize, Why)> {
        let lane = &self.lanes[at];
        let (pool, hook) = (lane.pool, lane.hook);
        match self.targets.resolve(frame.redirect(), frame.ingress_ifindex()) {
            Ok(Target::Port(number)) => Some((number, Why::Redirect)),
            Ok(Target::Stack) => Some((at, Why::RedirectStack)),
            Ok(Target::Ports(ports)) => {
                let (&first, others) = ports.split_first()?;
                for &number in others {
                    let Ok(copy) = self.pools[pool].copy(frame) else {
                        lost(meters, Why::Copy, Errno::ENOMEM);
                        continue;
                    };
                    // A device map may name one port many times, so this one can be full.
                    if let Err(copy) = self.outbox(number).burst(Why::Copy).push(copy) {
                        self.pools[pool].release(copy);
                        lost(meters, Why::Copy, Errno::ENOSPC);
                    }
                }
                Some((first, Why::Redirect))
            }
            Err(errno) => {
                meters.redirect_err.add(errno, 1);
                let kind = EventKind::RedirectError { errno, target: frame.redirect() };
                self.events.tell(self.hooks[hook].name(results.position(index)), Some(frame), kind);
                None
            }
        }
    }

    /// What waits for the port with this number.
    fn outbox(&mut self, number: usize) -> &mut Outbox {
        let own = self.lanes.len();
        if number < own { &mut self.lanes[number].outbox } else { &mut self.remotes[number - own].outbox }
    }

    /// Hands every target what waits for it and rings its doorbell once.
    fn send(&mut self, at: usize, meters: &Meters) {
        let hook = self.lanes[at].hook;
        for number in 0..self.lanes.len() {
            let lane = &mut self.lanes[number];
            if !lane.outbox.take_filled() {
                continue;
            }
            let pool = &mut self.pools[lane.pool];
            for why in Why::ALL {
                let burst = lane.outbox.burst(why);
                if burst.is_empty() {
                    continue;
                }
                let count = burst.len() as u32;
                let sent = match why.is_stack() {
                    true => lane.port.pass(lane.queue, pool, burst),
                    false => lane.port.tx(lane.queue, pool, burst),
                };
                // What a port neither took nor explained is lost here.
                pool.release_burst(burst);
                let unexplained = count.saturating_sub(sent.sent + sent.full + sent.failed);
                account(meters, why, sent, unexplained);
                tell(&mut self.events, self.hooks[hook].name(0), lane.port.ifindex(), why, sent, unexplained);
            }
            lane.outbox.take_filled();
            if let Err(error) = lane.port.flush() {
                self.fail(number, error);
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
                let ring = if why.is_stack() { &remote.inbox.pass } else { &remote.inbox.tx };
                let sent = Sent { sent: ring.push(burst) as u32, full: 0, failed: 0, errno: None };
                let sent = Sent { full: burst.len() as u32, ..sent };
                self.pools[self.lanes[at].pool].release_burst(burst);
                account(meters, why, sent, 0);
                tell(&mut self.events, self.hooks[hook].name(0), remote.inbox.ifindex, why, sent, 0);
            }
            remote.outbox.take_filled();
            remote.inbox.wake.ring();
        }
    }

    /// Sends and passes what other workers handed to this queue.
    fn relay(&mut self, at: usize, burst: &mut Burst) -> bool {
        let lane = &mut self.lanes[at];
        let Some(inbox) = lane.inbox.as_ref().filter(|inbox| !inbox.is_empty()) else { return false };
        let pool = &mut self.pools[lane.pool];
        for (ring, stack) in [(&inbox.tx, false), (&inbox.pass, true)] {
            let count = ring.pop(burst) as u32;
            if count == 0 {
                continue;
            }
            let sent = match stack {
                true => lane.port.pass(lane.queue, pool, burst),
                false => lane.port.tx(lane.queue, pool, burst),
            };
            pool.release_burst(burst);
            let unexplained = count.saturating_sub(sent.sent + sent.full + sent.failed);
            lane.meters.relay_in.add(u64::from(count));
            lane.meters.relay_sent.add(u64::from(sent.sent));
            lane.meters.relay_lost.add(Errno::ENOSPC, u64::from(sent.full));
            lane.meters.relay_lost.add(sent.errno.unwrap_or(Errno::EIO), u64::from(sent.failed + unexplained));
            tell(&mut self.events, "", lane.port.ifindex(), Why::Tx, sent, unexplained);
        }
        if let Err(error) = lane.port.flush() {
            self.fail(at, error);
        }
        true
    }

    /// A port is of no more use. A worker that takes commands serves its other queues on.
    fn fail(&mut self, at: usize, error: PortError) {
        let lane = &mut self.lanes[at];
        lane.receiving = false;
        let place = if self.mail.is_some() { &mut lane.error } else { &mut self.failed };
        place.get_or_insert(error);
    }

    // -- commands ---------------------------------------------------------------------------------------------------------

    fn take_commands(&mut self) {
        let Some(mail) = self.mail.as_ref().filter(|mail| mail.waiting()).cloned() else { return };
        for command in mail.take() {
            command(self);
        }
    }

    /// Other ways than before: the ports that can be reached, those of other workers through their rings.
    pub(crate) fn rewire(&mut self, ways: Vec<Way>) {
        self.ways = ways;
        self.renumber();
    }

    /// Ports are called by numbers on the packets' way; these change with the queues and with the ways.
    fn renumber(&mut self) {
        self.remotes.clear();
        let mut ports = Vec::with_capacity(self.ways.len());
        for Way { ifindex, inbox } in &self.ways {
            let own = self.lanes.iter().position(|lane| lane.port.ifindex() == *ifindex);
            let number = own.unwrap_or_else(|| {
                self.remotes.push(Remote { inbox: inbox.clone(), outbox: Outbox::default() });
                self.lanes.len() + self.remotes.len() - 1
            });
            ports.push((*ifindex, number));
        }
        self.targets.set_ports(ports);
        for lane in &mut self.lanes {
            lane.pass = match lane.pass_to {
                PassTo::Stack => Pass::Stack,
                PassTo::Port(ifindex) => self.targets.port(ifindex).map_or(Pass::Missing, Pass::Out),
                PassTo::Drop => Pass::Drop,
            };
        }
    }

    /// Takes a queue into the worker.
    pub(crate) fn add(&mut self, mut lane: Lane, pool: Pool, hook: Hook) {
        (lane.pool, lane.hook) = (self.pools.len(), self.hooks.len());
        self.pools.push(pool);
        self.hooks.push(hook);
        self.lanes.push(lane);
        self.renumber();
    }

    /// Other maps than before.
    pub(crate) fn set_maps(&mut self, maps: Vec<Arc<Map>>) -> Vec<Arc<Map>> {
        self.targets.set_maps(maps)
    }

    /// Position of a queue among the worker's own.
    pub(crate) fn lane(&self, ifindex: u32, queue: u32) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.port.ifindex() == ifindex && lane.queue == queue)
    }

    /// Takes a queue out of the worker, with all that belongs to it. What waits in its inbox is sent first.
    pub(crate) fn remove(&mut self, at: usize) -> (Lane, Pool, Hook) {
        let mut burst = Burst::new();
        while self.relay(at, &mut burst) {}
        let lane = self.lanes.remove(at);
        let (pool, hook) = (self.pools.remove(lane.pool), self.hooks.remove(lane.hook));
        for other in &mut self.lanes {
            other.pool -= usize::from(other.pool > lane.pool);
            other.hook -= usize::from(other.hook > lane.hook);
        }
        self.renumber();
        (lane, pool, hook)
    }

    /// Waits until an input has something, the time is over or somebody asks for a stop.
    fn sleep(&self, left: Option<Duration>) {
        let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
        let mut wait = left;
        for lane in self.lanes.iter().filter(|lane| lane.receiving) {
            match lane.port.fd() {
                Some(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                // An input that cannot wake the worker is asked again soon.
                None => wait = Some(wait.map_or(NAP, |wait| wait.min(NAP))),
            }
        }
        if let Some(mail) = &self.mail {
            fds.push(PollFd::new(&*mail.wake, PollFlags::IN));
            mail.wake.lie_down();
            let work =
                mail.waiting() || self.lanes.iter().any(|lane| lane.inbox.as_ref().is_some_and(|i| !i.is_empty()));
            if work {
                return mail.wake.get_up();
            }
        }
        // An error here (a signal) is a wake-up like any other; the loop looks at everything again.
        let wait = wait.and_then(|wait| wait.try_into().ok());
        let _ = poll(&mut fds, wait.as_ref());
        if let Some(mail) = &self.mail {
            mail.wake.get_up();
        }
    }
}

/// How a port can be reached.
pub(crate) struct Way {
    pub(crate) ifindex: u32,
    /// Of the queue that takes frames for it, when the worker has none of its own.
    pub(crate) inbox: Arc<Inbox>,
}

/// How long a worker sleeps when an idle input has nothing to sleep on.
const NAP: Duration = Duration::from_micros(100);

fn lost(meters: &Meters, why: Why, errno: Errno) {
    account(meters, why, Sent::none(0, errno), 1);
}

fn account(meters: &Meters, why: Why, sent: Sent, unexplained: u32) {
    let (good, full, failed) = (u64::from(sent.sent), u64::from(sent.full), u64::from(sent.failed));
    let errno = sent.errno.unwrap_or(Errno::EIO);
    match why {
        Why::Tx => {
            meters.tx.add(good);
            meters.tx_full.add(full);
            meters.tx_err.add(errno, failed + u64::from(unexplained));
        }
        Why::Pass | Why::PassOut => {
            meters.passed.add(good);
            meters.pass_lost.add(Errno::ENOBUFS, full);
            meters.pass_lost.add(errno, failed + u64::from(unexplained));
        }
        Why::Redirect | Why::RedirectStack => {
            meters.redirected.add(good);
            meters.redirect_err.add(Errno::ENOSPC, full);
            meters.redirect_err.add(errno, failed + u64::from(unexplained));
        }
        Why::Copy => {
            meters.copies.add(good);
            meters.copies_lost.add(Errno::ENOSPC, full);
            meters.copies_lost.add(errno, failed + u64::from(unexplained));
        }
    }
}

/// Events of what could not be sent.
fn tell(events: &mut Events, program: &str, ifindex: u32, why: Why, sent: Sent, unexplained: u32) {
    if sent.full + sent.failed + unexplained == 0 {
        return;
    }
    let failed = (sent.failed + unexplained, sent.errno.unwrap_or(Errno::EIO));
    for (count, errno) in [(sent.full, Errno::ENOSPC), failed] {
        if count == 0 {
            continue;
        }
        let kind = match why {
            Why::Tx => EventKind::TxError { errno, ifindex, count },
            Why::Redirect | Why::RedirectStack => {
                EventKind::RedirectError { errno, target: Redirect::Ifindex(ifindex) }
            }
            Why::Pass | Why::PassOut | Why::Copy => continue,
        };
        events.tell(program, None, kind);
    }
}
