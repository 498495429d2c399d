//! The burst loop: what one worker does, alone or as one of many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use xway_abi::MapType;
use xway_maps::{Guard, Map};
use xway_packet::{Burst, Frame, Pool, Pressure};

use crate::capture::Tap;
use crate::counters::{Meters, burst_step};
use crate::crew::Mailbox;
use crate::event::Events;
use crate::inbox::Inbox;
use crate::lane::{Hook, Lane, Pass, PassTo, Peer};
use crate::outbox::{Outbox, Remote};
use crate::steer::Steering;
use crate::{End, Limits, Live, PortError, Recorder, Results, Rx, SocketTarget, Stop};

mod cpu;
mod extras;
mod polling;
mod send;
mod sort;
mod tap;
mod targets;

pub(crate) use cpu::Crew;
use cpu::{CpuInlet, CpuOut};
use extras::Extras;
use polling::Polling;
use send::SocketOut;
pub(crate) use targets::{Reach, Targets};

/// Whether captures, samples, records and events are part of the code. Without them, for a measurement of what they cost while nobody
/// looks: `scripts/eyes`.
pub(crate) const EYES: bool = cfg!(not(feature = "without-eyes"));

/// Where the frames of a burst came in.
#[derive(Clone, Copy)]
pub(crate) enum Site {
    /// On the queue with this number.
    Lane(usize),
    /// Over a CPUMAP, whose program is at this position.
    Cpu { program: Option<usize> },
}

/// What a burst is counted by, and where its frames go home to.
struct Source {
    meters: Arc<Meters>,
    pool: usize,
}

/// Everything that a worker owns while it works.
pub(crate) struct Core {
    /// Number among the workers.
    pub(crate) number: u32,
    pub(crate) lanes: Vec<Lane>,
    /// The first is the worker's own; the others belong to queues.
    pub(crate) pools: Vec<Pool>,
    pub(crate) hooks: Vec<Hook>,
    /// Ports that other workers serve; their numbers follow those of the lanes.
    remotes: Vec<Remote>,
    /// What the numbers of ports are worked out from.
    ways: Vec<Way>,
    pub(crate) targets: Targets,
    /// Programs of maps.
    extras: Extras,
    /// Workers that frames go to by way of CPUMAPs, and what comes from others.
    pub(crate) crew: Arc<Crew>,
    cpu_outs: Vec<CpuOut>,
    cpu_inlets: Vec<CpuInlet>,
    /// Those that nobody looks into any more, because the worker is about to go.
    cpu_parked: Vec<CpuInlet>,
    /// Frames handed to other workers, in any way.
    handed: u64,
    /// Counts what comes over CPUMAPs.
    pub(crate) cpu_meters: Arc<Meters>,
    /// Sockets that frames of the current burst go to.
    sockets: Vec<SocketOut>,
    /// What the current burst is counted by, and whose frames it has.
    source: Source,
    /// Ports of a broadcast: number, interface index, program.
    fanout: Vec<(usize, u32, Option<usize>)>,
    pub(crate) events: Events,
    pub(crate) recorder: Option<Box<dyn Recorder>>,
    pub(crate) limits: Limits,
    pub(crate) stop: Stop,
    pub(crate) live: Arc<Live>,
    pub(crate) idle_polls: u32,
    /// Most frames of a burst, 1 to [`Burst::MAX`].
    pub(crate) burst: u32,
    /// Whether the time that programs take is measured: two readings of the clock a burst.
    pub(crate) timed: bool,
    /// Where it finds commands.
    pub(crate) mail: Option<Arc<Mailbox>>,
    /// Whether it goes on when a port fails or ends.
    pub(crate) stays: bool,
    /// A command asked the worker to go.
    pub(crate) leaving: bool,
    /// Why a worker that does not stay cannot go on.
    failed: Option<PortError>,
    /// Frames received.
    received: u64,
    results: Results,
    /// Results of programs on the way out.
    scratch: Results,
    /// Frames that steering has not looked at yet; empty between two bursts.
    arrived: Burst,
    polling: Polling,
    /// Who captures packets; empty for nearly always.
    pub(crate) taps: Vec<Tap>,
    /// Frames of the current burst that are dropped and that somebody captures, a bit for each.
    sampled: u64,
    /// Where the last frame of the current burst went, if the next one may follow it.
    run: Option<sort::Run>,
    /// Whether that is remembered.
    pub(crate) looks_up_runs: bool,
}

impl Core {
    pub(crate) fn new(number: u32, stop: Stop, events: Events) -> Core {
        let cpu_meters = Arc::new(Meters::default());
        Core {
            number,
            extras: Extras::default(),
            crew: Arc::default(),
            cpu_outs: Vec::new(),
            cpu_inlets: Vec::new(),
            cpu_parked: Vec::new(),
            handed: 0,
            source: Source { meters: cpu_meters.clone(), pool: 0 },
            cpu_meters,
            sockets: Vec::new(),
            fanout: Vec::new(),
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
            burst: Burst::MAX as u32,
            timed: true,
            mail: None,
            stays: false,
            leaving: false,
            failed: None,
            received: 0,
            results: Results::of_bursts(),
            scratch: Results::of_bursts(),
            arrived: Burst::new(),
            polling: Polling::default(),
            taps: Vec::new(),
            sampled: 0,
            run: None,
            looks_up_runs: true,
        }
    }

    /// Works until there is a reason to end.
    pub(crate) fn work(&mut self, started: Instant) -> End {
        // What goes out of maps meanwhile, control frees, or this thread when no packets are there.
        Guard::handles_packets(true);
        let end = self.rounds(started);
        Guard::handles_packets(false);
        end
    }

    fn rounds(&mut self, started: Instant) -> End {
        let deadline = self.limits.timeout.and_then(|timeout| started.checked_add(timeout));
        let mut burst = Burst::new();
        let mut now = started;
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
            if self.polling.is_over(busy, self.idle_polls) {
                let before = Instant::now();
                self.sleep(left.into_iter().chain(due).min());
                self.polling.slept(before.elapsed());
            }
        }
    }

    /// Serves every queue once, and says whether there was anything to do.
    fn round(&mut self, burst: &mut Burst) -> Result<bool, End> {
        self.events.round();
        self.extras.trim();
        let mut busy = false;
        for at in 0..self.lanes.len() {
            busy |= self.relay(at, burst);
            busy |= self.serve_socket(at, burst);
            let lane = &mut self.lanes[at];
            if !lane.receiving {
                continue;
            }
            let left = self.limits.count.map_or(u64::MAX, |count| count.saturating_sub(self.received));
            if left == 0 {
                return Err(End::Count);
            }
            let mut budget = left.min(self.burst.into()) as usize;
            if let Some(socket) = lane.bound.as_ref().filter(|_| lane.direct) {
                budget = budget.min(socket.room());
                if budget == 0 {
                    continue;
                }
            }
            let state = lane.port.rx(lane.queue, &mut self.pools[lane.pool], burst, budget);
            let pressure = self.pools[lane.pool].pressure();
            if lane.told != Some(pressure) {
                self.tell_pressure(at, pressure);
            }
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
        busy |= self.serve_cpus(burst);
        self.tell_waiting(!busy);
        if !self.stays && !self.lanes.iter().any(|lane| lane.receiving) {
            return Err(End::Input);
        }
        Ok(busy)
    }

    /// Writes how close the pool of a queue is to its limit where programs look: in their maps of that name.
    #[cold]
    fn tell_pressure(&mut self, at: usize, pressure: Pressure) {
        let lane = &mut self.lanes[at];
        lane.told = Some(pressure);
        let mut key = [0; 8];
        key[..4].copy_from_slice(&lane.port.ifindex().to_ne_bytes());
        key[4..].copy_from_slice(&lane.queue.to_ne_bytes());
        let value = (pressure as u32).to_ne_bytes();
        // One of another shape is a program's own business: some kinds of maps resolve what is written into them, and ask the engine
        // which ports there are, which may be waiting for this worker.
        let fits = |map: &&Arc<Map>| {
            let shape = (map.map_type(), map.key_size(), map.value_size());
            map.name() == PRESSURE_MAP && shape == (MapType::Hash, key.len(), value.len())
        };
        for map in self.targets.maps().iter().filter(fits) {
            // So is a full one.
            let _ = map.update(&key, &value, 0);
        }
    }

    /// Counts frames that came in, and processes them.
    fn receive(&mut self, at: usize, burst: &mut Burst) {
        let lane = &self.lanes[at];
        let bytes = burst.frames().iter().map(|frame| frame.total_len() as u64).sum::<u64>();
        lane.meters.rx.add(burst.len() as u64);
        lane.meters.rx_bytes.add(bytes);
        self.received += burst.len() as u64;
        if lane.steering.is_some() {
            self.steer(at, burst);
        }
        let lane = &self.lanes[at];
        match lane.bound {
            _ if burst.is_empty() => {}
            Some(_) if lane.direct => self.deliver_bound(at, burst),
            _ => self.process(Site::Lane(at), burst),
        }
        self.live.add(self.received, bytes, self.lanes[at].port.progress());
    }

    /// Runs the programs over the burst and carries out the verdicts. The burst is empty afterwards.
    fn process(&mut self, site: Site, burst: &mut Burst) {
        let (meters, pool) = match site {
            Site::Lane(at) => (&self.lanes[at].meters, self.lanes[at].pool),
            Site::Cpu { .. } => (&self.cpu_meters, 0),
        };
        meters.bursts.add(1);
        meters.burst_sizes[burst_step(burst.len())].add(1);
        self.source.pool = pool;
        if !Arc::ptr_eq(&self.source.meters, meters) {
            self.source.meters = meters.clone();
        }

        let guard = Guard::pin();
        if EYES && !self.taps.is_empty() {
            self.tap_entry(site, burst, &guard);
        }
        self.results.clear();
        let before = self.timed.then(Instant::now);
        let hook = match site {
            Site::Lane(at) => self.hooks.get_mut(self.lanes[at].hook),
            Site::Cpu { program } => program.and_then(|at| self.extras.hook(at)),
        };
        match hook {
            Some(hook) => hook.executor.run(burst.frames_mut(), &guard, &mut self.results),
            None => self.results.pass_all(burst.len()),
        }
        if let Some(before) = before {
            self.source.meters.run_ns.add(before.elapsed().as_nanos() as u64);
        }
        self.source.meters.insns.add(self.results.insns());

        if let Site::Lane(at) = site
            && EYES
        {
            self.record(at, burst.frames());
        }
        if EYES && !self.taps.is_empty() {
            self.tap_exit(site, burst, &guard);
        }
        self.sort(site, burst, &guard);
        self.send(site, &guard);
    }

    fn record(&mut self, at: usize, frames: &[Frame]) {
        let Some(recorder) = &mut self.recorder else { return };
        let record = |(frame, ret)| recorder.record(frame, xway_abi::Verdict::from_ret(ret).ok_or(ret as u32));
        let recorded = frames.iter().zip(self.results.all_rets()).try_for_each(record);
        if let Err(error) = recorded {
            self.fail(at, error);
        }
    }

    /// What waits for the port with this number.
    fn outbox(&mut self, number: usize) -> &mut Outbox {
        let own = self.lanes.len();
        if number < own { &mut self.lanes[number].outbox } else { &mut self.remotes[number - own].outbox }
    }

    /// Carries out what is under way when nothing more comes in.
    pub(crate) fn drain(&mut self) {
        let mut burst = Burst::new();
        // A program may send frames round in circles for ever.
        for _ in 0..DRAIN_ROUNDS {
            if !self.serve_cpus(&mut burst) {
                break;
            }
        }
        self.give_up_cpus();
    }

    /// A port is of no more use. A worker that stays serves its other queues on.
    fn fail(&mut self, at: usize, error: PortError) {
        let lane = &mut self.lanes[at];
        lane.receiving = false;
        let place = if self.stays { &mut lane.error } else { &mut self.failed };
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
        for way in &self.ways {
            let own = self.lanes.iter().position(|lane| lane.port.ifindex() == way.ifindex);
            let number = own.unwrap_or_else(|| {
                let Way { ifindex, ref inbox, .. } = *way;
                self.remotes.push(Remote { ifindex, inbox: inbox.clone(), outbox: Outbox::default() });
                self.lanes.len() + self.remotes.len() - 1
            });
            let Way { ifindex, takes, frame_max, parts, .. } = *way;
            ports.push(Reach { ifindex, number, takes, frame_max, parts, pass: Pass::Stack });
        }
        let number = |ifindex| ports.iter().find(|reach| reach.ifindex == ifindex).map(|reach| reach.number);
        let pass = |to| match to {
            PassTo::Stack => Pass::Stack,
            PassTo::Port(ifindex) => number(ifindex).map_or(Pass::Missing, Pass::Out),
            PassTo::Drop => Pass::Drop,
        };
        let passes: Vec<Pass> = self.ways.iter().map(|way| pass(way.pass)).collect();
        for lane in &mut self.lanes {
            let way = self.ways.iter().find(|way| way.ifindex == lane.port.ifindex());
            // A port that is being closed is not to be reached any more, and still receives.
            lane.pass_to = way.map_or(lane.pass_to, |way| way.pass);
            lane.pass = pass(lane.pass_to);
            let Some(way) = way else { continue };
            lane.steering = way.steering.clone();
            let others = way.queues.iter().filter(|(queue, _)| *queue != lane.queue);
            let peer =
                |(queue, inbox): &(u32, Inbox)| Peer { queue: *queue, inbox: inbox.clone(), burst: Burst::new() };
            lane.peers = if way.steering.is_some() { others.map(peer).collect() } else { Vec::new() };
        }
        ports.iter_mut().zip(passes).for_each(|(reach, pass)| reach.pass = pass);
        self.targets.set_ports(ports);
    }

    /// Takes a queue into the worker.
    pub(crate) fn add(&mut self, mut lane: Lane, pool: Pool, hook: Hook) {
        (lane.pool, lane.hook) = (self.pools.len(), self.hooks.len());
        self.pools.push(pool);
        self.hooks.push(hook);
        self.lanes.push(lane);
        self.renumber();
    }

    /// Other maps than before. What was kept for the old ones is given back.
    pub(crate) fn set_maps(&mut self, maps: Vec<Arc<Map>>) -> impl Send + use<> {
        let old = self.targets.set_maps(maps);
        // A map that is new knows nothing yet.
        self.lanes.iter_mut().for_each(|lane| lane.told = None);
        (old, self.prune_cpus(), self.extras.clear())
    }

    /// A queue receives from now on.
    pub(crate) fn start(&mut self, ifindex: u32, queue: u32) {
        if let Some(at) = self.lane(ifindex, queue) {
            self.lanes[at].receiving = true;
        }
    }

    /// Position of a queue among the worker's own.
    pub(crate) fn lane(&self, ifindex: u32, queue: u32) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.port.ifindex() == ifindex && lane.queue == queue)
    }

    /// Binds a queue to a socket or to none, and gives back what it was bound to; `None` when the queue is not the worker's.
    pub(crate) fn bind(
        &mut self,
        (ifindex, queue): (u32, u32),
        socket: Option<Arc<dyn SocketTarget>>,
        direct: bool,
    ) -> Option<Option<Arc<dyn SocketTarget>>> {
        let lane = self.lane(ifindex, queue)?;
        self.lanes[lane].direct = direct;
        Some(std::mem::replace(&mut self.lanes[lane].bound, socket))
    }

    /// Takes a queue out of the worker, with all that belongs to it. What waits in its inbox is sent first.
    pub(crate) fn remove(&mut self, at: usize) -> (Lane, Pool, Hook) {
        let mut burst = Burst::new();
        while self.relay(at, &mut burst) {}
        self.tell_all();
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
            let full = lane.direct && lane.bound.as_ref().is_some_and(|socket| socket.room() == 0);
            match lane.port.fd() {
                // Its application makes room without a word.
                _ if full => wait = Some(wait.map_or(FULL_NAP, |wait| wait.min(FULL_NAP))),
                Some(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                // An input that cannot wake the worker is asked again soon.
                None => wait = Some(wait.map_or(NAP, |wait| wait.min(NAP))),
            }
        }
        Guard::free_left();
        if let Some(mail) = &self.mail {
            fds.push(PollFd::new(&*mail.wake, PollFlags::IN));
            mail.wake.lie_down();
            let handed = |lane: &Lane| lane.inlet.as_ref().is_some_and(|inlet| !inlet.is_empty());
            let bound = |lane: &Lane| lane.bound.as_ref().is_some_and(|socket| !socket.may_sleep());
            let work = mail.waiting()
                || self.lanes.iter().any(|lane| handed(lane) || bound(lane))
                || self.cpu_inlets.iter().any(|inlet| !inlet.is_empty());
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
    pub(crate) inbox: Inbox,
    /// Whether frames can be redirected to it.
    pub(crate) takes: bool,
    /// The longest frame that it sends.
    pub(crate) frame_max: u32,
    /// Whether it takes frames of several buffers.
    pub(crate) parts: bool,
    /// Where PASS goes for its frames.
    pub(crate) pass: PassTo,
    /// All its open queues.
    pub(crate) queues: Vec<(u32, Inbox)>,
    /// What chooses among them.
    pub(crate) steering: Option<Arc<Steering>>,
}

/// Name of maps that hold how close pools are to their limits: a hash of interface index and queue (`__u32` each) to the level.
const PRESSURE_MAP: &str = "xway_pressure";

/// How long a worker sleeps when an idle input has nothing to sleep on.
const NAP: Duration = Duration::from_micros(100);

/// How long it sleeps when the socket that a queue belongs to has no room.
const FULL_NAP: Duration = Duration::from_millis(1);

/// Rounds that a worker goes on for frames that it sends to itself when nothing more comes in.
const DRAIN_ROUNDS: u32 = 10_000;
