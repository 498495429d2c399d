//! The burst loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use xway_abi::{Errno, Verdict};
use xway_maps::{Guard, Map};
use xway_packet::{Burst, Frame, Leak, Pool, Redirect};

use crate::event::Events;
use crate::outbox::{Outbox, Why};
use crate::targets::{Target, Targets};
use crate::{
    Counters, EventKind, Executor, Live, Port, PortError, PortStats, Recorder, Results, Rx, Sent, Stop, Subscriber,
};

/// When to stop, besides the end of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// After exactly this many frames.
    pub count: Option<u64>,
    /// After this time.
    pub timeout: Option<Duration>,
}

/// What a worker may be told beside its ports and its program.
pub struct WorkerConfig {
    /// Ports that frames are received from, by position in the worker's list, with the queue. Served in turn.
    pub inputs: Vec<(usize, u32)>,
    /// Where PASS goes for frames that came in on the first port: out of the second one. Without an entry it goes to the
    /// stack side of the port that the frame came in on.
    pub pass_to: Vec<(usize, usize)>,
    /// Takes frames that are redirected to an interface that is none of the worker's ports. Without one they are dropped
    /// with an error, as on a machine without that interface.
    pub redirect_fallback: Option<usize>,
    /// Maps of the program: broadcasts walk them.
    pub maps: Vec<Arc<Map>>,
    /// When to stop.
    pub limits: Limits,
    /// Lets others stop it.
    pub stop: Stop,
    /// Lets others watch it.
    pub live: Arc<Live>,
    /// Sees each frame with its verdict.
    pub recorder: Option<Box<dyn Recorder>>,
    /// Hears of events.
    pub subscriber: Option<Box<dyn Subscriber>>,
    /// Events of each kind that the subscriber hears per second.
    pub events_per_second: u32,
    /// Empty receive calls in a row before the worker sleeps.
    pub idle_polls: u32,
}

impl WorkerConfig {
    /// The first port is the input, PASS goes to its stack side; no limits, nobody watches.
    pub fn new(stop: Stop) -> WorkerConfig {
        WorkerConfig {
            inputs: vec![(0, 0)],
            pass_to: Vec::new(),
            redirect_fallback: None,
            maps: Vec::new(),
            limits: Limits::default(),
            stop,
            live: Arc::default(),
            recorder: None,
            subscriber: None,
            events_per_second: 10,
            idle_polls: 16,
        }
    }
}

/// Why a run ended.
#[derive(Debug)]
pub enum End {
    /// The input is over.
    Input,
    /// The count limit was reached.
    Count,
    /// The time limit was reached.
    Timeout,
    /// [`Stop::ask`].
    Stopped,
    /// A port or the recorder failed. What happened before is counted.
    Failed(PortError),
}

/// How a run went.
#[derive(Debug)]
pub struct Report {
    /// Why it ended.
    pub end: End,
    /// What was counted.
    pub counters: Counters,
    /// From the first receive call to the last frame's end.
    pub elapsed: Duration,
    /// Each port's name and counters, in the order of the worker's list.
    pub ports: Vec<(String, PortStats)>,
    /// The pool's counters.
    pub pool: xway_packet::Counters,
    /// Set when frames did not come home: a bug.
    pub leak: Option<Leak>,
    /// Set when completing the record failed.
    pub record_error: Option<PortError>,
}

/// One thread's burst loop: some ports, one program, one pool.
pub struct Worker {
    ports: Vec<Box<dyn Port>>,
    executor: Box<dyn Executor>,
    pool: Pool,
    config: WorkerConfig,
    targets: Targets,
    outboxes: Vec<Outbox>,
    events: Events,
    program: String,
    results: Results,
    counters: Counters,
}

impl Worker {
    /// A worker over these ports. Positions in the configuration that name no port are ignored.
    pub fn new(ports: Vec<Box<dyn Port>>, executor: Box<dyn Executor>, pool: Pool, mut config: WorkerConfig) -> Worker {
        config.inputs.retain(|&(port, _)| port < ports.len());
        config.pass_to.retain(|&(_, to)| to < ports.len());
        config.redirect_fallback = config.redirect_fallback.filter(|&port| port < ports.len());
        let ifindexes = ports.iter().map(|port| port.ifindex()).collect();
        let targets = Targets::new(ifindexes, std::mem::take(&mut config.maps), config.redirect_fallback);
        Worker {
            outboxes: ports.iter().map(|_| Outbox::default()).collect(),
            events: Events::new(config.subscriber.take(), config.events_per_second),
            program: executor.info().program,
            ports,
            executor,
            pool,
            targets,
            config,
            results: Results::default(),
            counters: Counters::default(),
        }
    }

    /// Runs until the input is over, a limit is reached, somebody asks for a stop or a port fails. Every frame has ended
    /// when it returns.
    pub fn run(mut self) -> Report {
        let started = Instant::now();
        let end = self.work(started).unwrap_or_else(End::Failed);
        let elapsed = started.elapsed();
        let record_error = self.config.recorder.take().and_then(|recorder| recorder.finish().err());
        let ports = self.ports.iter_mut().map(|port| (port.name().to_owned(), port.stats())).collect();
        // Ports may hold frames until they go.
        self.ports.clear();
        Report {
            end,
            counters: self.counters,
            elapsed,
            ports,
            pool: self.pool.counters(),
            leak: self.pool.close().err(),
            record_error,
        }
    }

    fn work(&mut self, started: Instant) -> Result<End, PortError> {
        let deadline = self.config.limits.timeout.and_then(|timeout| started.checked_add(timeout));
        let mut inputs = std::mem::take(&mut self.config.inputs);
        let mut burst = Burst::new();
        let mut now = started;
        let mut idle_polls = 0;
        loop {
            let mut idle = true;
            let mut at = 0;
            while at < inputs.len() {
                let left = self.config.limits.count.map_or(u64::MAX, |count| count.saturating_sub(self.counters.rx));
                if left == 0 {
                    return Ok(End::Count);
                }
                let (number, queue) = inputs[at];
                let budget = left.min(Burst::MAX as u64) as usize;
                let state = self.ports[number].rx(queue, &mut self.pool, &mut burst, budget);
                if !burst.is_empty() {
                    self.process(number, queue, &mut burst)?;
                    let progress = self.ports[number].progress();
                    self.config.live.set(self.counters.rx, self.counters.rx_bytes, progress);
                }
                match state? {
                    Rx::More => idle = false,
                    Rx::Idle => {}
                    Rx::End => {
                        inputs.remove(at);
                        continue;
                    }
                }
                at += 1;
            }
            if inputs.is_empty() {
                return Ok(End::Input);
            }
            if self.config.stop.asked() {
                return Ok(End::Stopped);
            }
            if deadline.is_some() {
                now = Instant::now();
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            if left == Some(Duration::ZERO) {
                return Ok(End::Timeout);
            }
            let due = self.executor.tick();
            idle_polls = if idle { idle_polls + 1 } else { 0 };
            if idle_polls > self.config.idle_polls {
                self.sleep(&inputs, left.into_iter().chain(due).min());
            }
        }
    }

    /// Runs the program over the burst and carries out the verdicts. The burst is empty afterwards, also on errors.
    fn process(&mut self, input: usize, queue: u32, burst: &mut Burst) -> Result<(), PortError> {
        self.counters.bursts += 1;
        self.counters.rx += burst.len() as u64;
        self.counters.rx_bytes += burst.frames().iter().map(|frame| frame.len() as u64).sum::<u64>();

        self.results.clear();
        let before = Instant::now();
        {
            let guard = Guard::pin();
            self.executor.run(burst.frames_mut(), &guard, &mut self.results);
        }
        let after = Instant::now();
        self.counters.run_ns += after.duration_since(before).as_nanos() as u64;
        self.counters.insns += self.results.insns();

        let recorded = self.record(burst.frames());
        self.sort(input, burst);
        let sent = self.send(queue);
        recorded.and(sent)
    }

    fn record(&mut self, frames: &[Frame]) -> Result<(), PortError> {
        let Some(recorder) = &mut self.config.recorder else { return Ok(()) };
        for (frame, ret) in frames.iter().zip(self.results.all_rets()) {
            recorder.record(frame, Verdict::from_ret(ret).ok_or(ret as u32))?;
        }
        Ok(())
    }

    /// Gives each frame back to the pool or puts it where its verdict sends it.
    fn sort(&mut self, input: usize, burst: &mut Burst) {
        let results = std::mem::take(&mut self.results);
        let pass_to = self.config.pass_to.iter().find(|&&(from, _)| from == input);
        let pass = pass_to.map_or((input, Why::Pass), |&(_, to)| (to, Why::PassOut));
        for (index, (mut frame, ret)) in burst.drain().zip(results.all_rets()).enumerate() {
            let verdict = Verdict::from_ret(ret);
            let len = frame.len() as u64;
            match verdict {
                Some(verdict) => {
                    self.counters.verdicts[verdict as usize] += 1;
                    self.counters.verdict_bytes[verdict as usize] += len;
                }
                None => {
                    self.counters.invalid += 1;
                    self.counters.invalid_bytes += len;
                    self.counters.invalid_codes.add(ret as u32, 1);
                    let kind = EventKind::InvalidAction { code: ret as u32 };
                    self.events.tell(&self.program, Some(&frame), kind);
                }
            }
            let (port, why) = match verdict {
                Some(Verdict::Pass) => pass,
                Some(Verdict::Tx) => (input, Why::Tx),
                Some(Verdict::Redirect) => match self.redirect(input, &mut frame) {
                    Some(target) => target,
                    None => {
                        self.pool.release(frame);
                        continue;
                    }
                },
                Some(Verdict::Aborted) => {
                    let fault = results.fault(index);
                    self.counters.exceptions += u64::from(fault.is_some());
                    let kind = EventKind::Exception { fault: fault.map(|fault| &**fault) };
                    self.events.tell(&self.program, Some(&frame), kind);
                    self.pool.release(frame);
                    continue;
                }
                Some(Verdict::Drop) | None => {
                    self.pool.release(frame);
                    continue;
                }
            };
            // A burst per port and reason has room for every frame of the one that was received.
            if let Err(frame) = self.outboxes[port].burst(why).push(frame) {
                self.pool.release(frame);
                self.lost(why, Errno::ENOBUFS, 1);
            }
        }
        self.results = results;
    }

    /// Where a redirected frame goes; `None`, counted, when it goes nowhere. Copies for further targets are queued here.
    fn redirect(&mut self, input: usize, frame: &mut Frame) -> Option<(usize, Why)> {
        match self.targets.resolve(frame.redirect(), frame.ingress_ifindex()) {
            Ok(Target::Port(port)) => Some((port, Why::Redirect)),
            Ok(Target::Stack) => Some((input, Why::RedirectStack)),
            Ok(Target::Ports(ports)) => {
                let (&first, others) = ports.split_first()?;
                for &port in others {
                    let Ok(copy) = self.pool.copy(frame) else {
                        self.lost(Why::Copy, Errno::ENOMEM, 1);
                        continue;
                    };
                    // A device map may name one port many times, so this one can be full.
                    if let Err(copy) = self.outboxes[port].burst(Why::Copy).push(copy) {
                        self.pool.release(copy);
                        self.lost(Why::Copy, Errno::ENOSPC, 1);
                    }
                }
                Some((first, Why::Redirect))
            }
            Err(errno) => {
                self.counters.redirect_err.add(errno, 1);
                let kind = EventKind::RedirectError { errno, target: frame.redirect() };
                self.events.tell(&self.program, Some(frame), kind);
                None
            }
        }
    }

    /// Hands every port what waits for it and rings its doorbell once.
    fn send(&mut self, queue: u32) -> Result<(), PortError> {
        let mut failed = Ok(());
        for (outbox, port) in self.outboxes.iter_mut().zip(&mut self.ports) {
            if !outbox.take_filled() {
                continue;
            }
            for why in Why::ALL {
                let burst = outbox.burst(why);
                if burst.is_empty() {
                    continue;
                }
                let count = burst.len() as u32;
                let sent = match why {
                    Why::Pass | Why::RedirectStack => port.pass(queue, &mut self.pool, burst),
                    _ => port.tx(queue, &mut self.pool, burst),
                };
                // What a port neither took nor explained is lost here.
                self.pool.release_burst(burst);
                let unexplained = count.saturating_sub(sent.sent + sent.full + sent.failed);
                account(&mut self.counters, why, sent, unexplained);
                if why == Why::Tx {
                    let failed = (sent.failed + unexplained, sent.errno.unwrap_or(Errno::EIO));
                    for (count, errno) in [(sent.full, Errno::ENOSPC), failed] {
                        if count > 0 {
                            let kind = EventKind::TxError { errno, ifindex: port.ifindex(), count };
                            self.events.tell(&self.program, None, kind);
                        }
                    }
                }
                if let (Why::Redirect | Why::RedirectStack, Some(errno)) = (why, sent.errno) {
                    let kind = EventKind::RedirectError { errno, target: Redirect::Ifindex(port.ifindex()) };
                    self.events.tell(&self.program, None, kind);
                }
            }
            outbox.take_filled();
            failed = failed.and(port.flush());
        }
        failed
    }

    fn lost(&mut self, why: Why, errno: Errno, count: u32) {
        account(&mut self.counters, why, Sent::none(0, errno), count);
    }

    /// Waits until an input has something, the time is over or somebody asks for a stop.
    fn sleep(&self, inputs: &[(usize, u32)], left: Option<Duration>) {
        let mut fds = vec![PollFd::new(&self.config.stop, PollFlags::IN)];
        let mut wait = left;
        for &(port, _) in inputs {
            match self.ports[port].fd() {
                Some(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                // An input that cannot wake the worker is asked again soon.
                None => wait = Some(wait.map_or(NAP, |wait| wait.min(NAP))),
            }
        }
        // An error here (a signal) is a wake-up like any other; the loop looks at everything again.
        let wait = wait.and_then(|wait| wait.try_into().ok());
        let _ = poll(&mut fds, wait.as_ref());
    }
}

/// How long a worker sleeps when an idle input has nothing to sleep on.
const NAP: Duration = Duration::from_micros(100);

fn account(counters: &mut Counters, why: Why, sent: Sent, unexplained: u32) {
    let (good, full, failed) = (u64::from(sent.sent), u64::from(sent.full), u64::from(sent.failed));
    let errno = sent.errno.unwrap_or(Errno::EIO);
    match why {
        Why::Tx => {
            counters.tx += good;
            counters.tx_full += full;
            counters.tx_err.add(errno, failed + u64::from(unexplained));
        }
        Why::Pass | Why::PassOut => {
            counters.passed += good;
            counters.pass_lost.add(Errno::ENOBUFS, full);
            counters.pass_lost.add(errno, failed + u64::from(unexplained));
        }
        Why::Redirect | Why::RedirectStack => {
            counters.redirected += good;
            counters.redirect_err.add(Errno::ENOSPC, full);
            counters.redirect_err.add(errno, failed + u64::from(unexplained));
        }
        Why::Copy => {
            counters.copies += good;
            counters.copies_lost.add(Errno::ENOSPC, full);
            counters.copies_lost.add(errno, failed + u64::from(unexplained));
        }
    }
}
