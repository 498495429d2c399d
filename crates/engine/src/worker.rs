//! The simple case: one thread, one program, one pool, from the start of the input to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_maps::Map;
use xway_packet::{Burst, Leak, Pool};

use crate::capture::{self, Tap};
use crate::core::{Core, Reach, Targets};
use crate::counters::Meters;
use crate::crew::{Leaving, Mailbox};
use crate::event::Events;
use crate::lane::{Hook, Lane, Pass, PassTo};
use crate::outbox::Outbox;
use crate::{
    Capture, CaptureConfig, Counters, EngineError, Executor, Live, Port, PortError, PortStats, Recorder, SocketTarget,
    Stop, Subscriber, Support, TxPolicy,
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
    /// Lets others bind its queues to sockets.
    pub desk: Option<Desk>,
    /// Lets others watch it.
    pub live: Arc<Live>,
    /// Sees each frame with its verdict.
    pub recorder: Option<Box<dyn Recorder>>,
    /// Captures packets beside the record: never waits for who reads them. Made by [`WorkerConfig::capture`].
    pub taps: Vec<Tap>,
    /// Hears of events.
    pub subscriber: Option<Box<dyn Subscriber>>,
    /// Events of each kind that the subscriber hears per second.
    pub events_per_second: u32,
    /// How frames are given to ports.
    pub tx: TxPolicy,
    /// Empty receive calls in a row before the worker sleeps.
    pub idle_polls: u32,
    /// Most frames that are received at once, from 1 to 64: fewer fit a small cache, more share what a burst costs.
    pub burst: u32,
    /// Measure the time that programs take: two readings of the clock a burst.
    pub timed: bool,
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
            desk: None,
            live: Arc::default(),
            recorder: None,
            taps: Vec::new(),
            subscriber: None,
            events_per_second: 10,
            tx: TxPolicy::default(),
            idle_polls: 16,
            burst: Burst::MAX as u32,
            timed: true,
        }
    }
}

impl WorkerConfig {
    /// Captures packets of the run. Copies lie in the worker's pool, so `room` is to be a small part of it.
    pub fn capture(&mut self, config: CaptureConfig) -> Capture {
        let (capture, taps) = capture::open(config, 1);
        self.taps.extend(taps);
        capture
    }
}

/// Where a worker hears of sockets while it runs. Clones are the same desk, of one worker.
#[derive(Clone)]
pub struct Desk(Arc<Mailbox>);

impl Desk {
    /// Nobody there yet.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new() -> std::io::Result<Desk> {
        Ok(Desk(Mailbox::new()?))
    }

    /// As [`crate::Engine::bind`]: waits until the worker is between two bursts.
    ///
    /// # Errors
    /// The worker has ended, or has no such queue.
    pub fn bind(
        &self,
        ifindex: u32,
        queue: u32,
        socket: Option<Arc<dyn SocketTarget>>,
        direct: bool,
    ) -> Result<(), EngineError> {
        let bound = self.0.send(0, move |core| core.bind((ifindex, queue), socket, direct)).wait()?;
        bound.map(drop).ok_or(EngineError::NoPort { ifindex })
    }

    /// Wakes the worker: a socket has something to send.
    pub fn wake(&self) {
        self.0.wake.ring();
    }
}

/// What a worker has counted so far, for any thread, while it runs.
#[derive(Clone, Debug)]
pub struct Watched(Arc<Meters>);

impl Watched {
    /// The numbers now; not one consistent picture.
    pub fn counters(&self) -> Counters {
        self.0.read()
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

/// One thread's work: some ports with one queue each, one program, one pool.
pub struct Worker {
    core: Core,
    meters: Arc<Meters>,
}

impl Worker {
    /// A worker over these ports. Positions in the configuration that name no port are ignored.
    pub fn new(ports: Vec<Box<dyn Port>>, executor: Box<dyn Executor>, pool: Pool, config: WorkerConfig) -> Worker {
        let events = Events::new(config.subscriber, config.events_per_second);
        let mut core = Core::new(0, config.stop, events);
        let meters = Arc::new(Meters::default());
        core.cpu_meters = meters.clone();
        let count = ports.len();
        let pass_of = |number: usize| {
            let to = config.pass_to.iter().find(|&&(from, to)| from == number && to < count);
            to.map_or(Pass::Stack, |&(_, to)| Pass::Out(to))
        };
        let reaches = ports.iter().enumerate().map(|(number, port)| Reach {
            ifindex: port.ifindex(),
            number,
            takes: port.capabilities().redirect_to != Support::None,
            frame_max: port.frame_max(),
            parts: port.capabilities().multi_buffer_tx,
            pass: pass_of(number),
        });
        let reaches: Vec<Reach> = reaches.collect();
        let fallback = config.redirect_fallback.and_then(|port| reaches.get(port).copied());
        core.targets = Targets::new(reaches, config.maps, fallback);
        core.lanes = (0..)
            .zip(ports)
            .map(|(number, port)| {
                let input = config.inputs.iter().find(|&&(port, _)| port == number);
                Lane {
                    port,
                    queue: input.map_or(0, |&(_, queue)| queue),
                    pool: 0,
                    hook: 0,
                    outbox: Outbox::default(),
                    tx: config.tx,
                    untold: 0,
                    told: None,
                    receiving: input.is_some(),
                    pass_to: PassTo::Stack,
                    pass: pass_of(number),
                    meters: meters.clone(),
                    inlet: None,
                    bound: None,
                    steering: None,
                    peers: Vec::new(),
                    direct: false,
                    error: None,
                }
            })
            .collect();
        core.pools = vec![pool];
        core.hooks = vec![Hook::new(executor)];
        core.recorder = config.recorder;
        core.taps = config.taps;
        core.limits = config.limits;
        core.live = config.live;
        core.mail = config.desk.map(|desk| desk.0);
        core.idle_polls = config.idle_polls;
        core.burst = config.burst.clamp(1, Burst::MAX as u32);
        core.timed = config.timed;
        Worker { core, meters }
    }

    /// Its counters, to be looked at while it runs.
    pub fn watched(&self) -> Watched {
        Watched(self.meters.clone())
    }

    /// Runs until the input is over, a limit is reached, somebody asks for a stop or a port fails. Every frame has ended
    /// when it returns.
    pub fn run(self) -> Report {
        let Worker { mut core, meters } = self;
        let leaving = core.mail.clone().map(Leaving);
        let started = Instant::now();
        let end = core.work(started);
        core.drain();
        core.tell_all();
        drop(leaving);
        let elapsed = started.elapsed();
        let record_error = core.recorder.take().and_then(|recorder| recorder.finish().err());
        // Ports may hold frames until they go.
        for lane in &mut core.lanes {
            if let Some(pool) = core.pools.get_mut(lane.pool) {
                lane.port.close(pool);
                lane.bound.take().into_iter().for_each(|socket| socket.close(pool));
            }
        }
        // Behind the close: what nobody had taken then is among them.
        let ports = core.lanes.iter_mut().map(|lane| (lane.port.name().to_owned(), lane.port.stats())).collect();
        core.lanes.clear();
        let held = settle(&mut core);
        let (mut counters, mut leak) = (xway_packet::Counters::default(), None);
        for mut pool in core.pools.drain(..) {
            counters = pool.counters();
            leak = pool.close().err().filter(|_| !held);
        }
        Report { end, counters: meters.read(), elapsed, ports, pool: counters, leak, record_error }
    }
}

/// Whoever captures has some time to fetch what was captured. `true`: it was not used, and frames are still in those hands.
fn settle(core: &mut Core) -> bool {
    const PATIENCE: Duration = Duration::from_secs(10);
    let until = Instant::now() + PATIENCE;
    let away = |core: &mut Core| core.pools.iter_mut().any(|pool| pool.counters().outstanding > 0);
    let mut held = false;
    while core.taps.iter().any(|tap| !tap.is_closed()) {
        held = away(core);
        if !held || Instant::now() >= until {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    held
}
