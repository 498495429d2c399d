//! What the engine is told and what it answers.

use std::sync::Arc;

use xway_jit::Compiled;
use xway_packet::{Leak, MemoryReport, PoolConfig, PoolError};

use crate::chain::ProgramCounters;
use crate::lane::PassTo;
use crate::slot::{AttachError, Attached};
use crate::wake::Wake;
use crate::{Backlog, Capabilities, Counters, Outcome, PortError, PortStats, Profile, TxPolicy};

/// Shape of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Workers: threads that serve queues. Programs see their numbers as CPU numbers.
    pub workers: u32,
    /// CPUs that the workers are bound to, in their order; those without one go where the system puts them.
    pub cpus: Vec<usize>,
    /// Rounds without work before a worker sleeps.
    pub idle_polls: u32,
    /// Most frames that a worker receives at once, from 1 to 64: fewer fit a small cache, more share what a burst costs.
    pub burst: u32,
    /// Frames that wait at most between two workers, for each queue and direction.
    pub ring_len: u32,
    /// Measure the time that programs take (`kernel.bpf_stats_enabled`): two readings of the clock a burst.
    pub timed: bool,
    /// Of frames in a row that go to one worker or socket only the first is looked up. Switched off to be measured.
    pub looks_up_runs: bool,
}

impl Default for EngineConfig {
    /// One worker, bound to no CPU.
    fn default() -> EngineConfig {
        let (burst, ring_len) = (Profile::Standard.burst(), Profile::Standard.ring_len());
        let (cpus, looks_up_runs) = (Vec::new(), true);
        EngineConfig { workers: 1, cpus, idle_polls: 1000, burst, ring_len, timed: false, looks_up_runs }
    }
}

/// How a port is opened.
#[derive(Clone, Debug, Default)]
pub struct PortConfig {
    /// Which queue on which worker. `None`: all queues, queue n on worker n modulo their number.
    pub queues: Option<Vec<(u32, u32)>>,
    /// Shape of the pools; `None`: what the device wants, within the profile.
    pub pool: Option<PoolConfig>,
    /// How much memory its queues take.
    pub profile: Profile,
    /// Bytes of a chunk, where that is said: 4,096 for one packet a page, 2,048 for two.
    pub chunk_size: Option<u32>,
    /// Where PASS goes.
    pub pass: PassTo,
    /// How its queues are given frames to send.
    pub tx: TxPolicy,
    /// Packets that come in may not be changed: only programs that are proved not to do so are attached. Who looks at the same
    /// memory, the device or another process, finds there what arrived.
    pub read_only: bool,
    /// Nothing is received before [`Engine::start_port`](crate::Engine::start_port) says so: what arrives waits in the device, so that no
    /// packet passes by programs that are attached meanwhile.
    pub held: bool,
}

/// Where a program is attached: to a port, or to one of its queues, whose programs win over those of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HookPoint {
    /// Interface index of the port.
    pub ifindex: u32,
    /// The queue; `None` for the port.
    pub queue: Option<u32>,
}

/// Why the engine did not do what it was asked. Nothing was changed then, unless the error says so.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The system refused a thread or a descriptor.
    #[error("starting a worker: {0}")]
    System(std::io::Error),
    /// A worker could not be bound to its CPU.
    #[error("binding a worker to CPU {cpu}: {cause}; name a CPU that is online and allowed")]
    Cpu {
        /// The CPU.
        cpu: usize,
        /// What the system said.
        cause: std::io::Error,
    },
    /// There is no such worker.
    #[error("worker {worker}: there are {workers}, numbered from 0")]
    NoWorker {
        /// Number asked for.
        worker: u32,
        /// How many there are.
        workers: u32,
    },
    /// A worker's thread has ended: a bug, or the engine was stopped.
    #[error("worker {worker} is gone")]
    WorkerGone {
        /// Its number.
        worker: u32,
    },
    /// No open port has this interface index.
    #[error("no port with interface index {ifindex} is open")]
    NoPort {
        /// The index.
        ifindex: u32,
    },
    /// Another port has this interface index.
    #[error("{name} has interface index {ifindex}, and so has {other}, which is open")]
    PortTaken {
        /// The new port.
        name: String,
        /// The index.
        ifindex: u32,
        /// The open port.
        other: String,
    },
    /// The port has no such queue, or it is not open.
    #[error("{name}: no queue {queue}; it has {queues}")]
    NoQueue {
        /// The port.
        name: String,
        /// Number asked for.
        queue: u32,
        /// How many the port has.
        queues: u32,
    },
    /// The queue is open.
    #[error("{name}: queue {queue} is served by worker {worker}; remove it there first")]
    QueueTaken {
        /// The port.
        name: String,
        /// The queue.
        queue: u32,
        /// Who serves it.
        worker: u32,
    },
    /// The device could not open the queue.
    #[error(transparent)]
    Port(PortError),
    /// The queue's pool could not be made.
    #[error("{name}: {cause}")]
    Pool {
        /// The port.
        name: String,
        /// Why.
        cause: PoolError,
    },
    /// The rings of a queue could not be made.
    #[error("rings of {ring_len} frames between workers: out of memory; ask for shorter ones")]
    Ring {
        /// Length asked for.
        ring_len: u32,
    },
    /// The port asks something of its programs that this one cannot do.
    #[error("{name}: packets of several buffers come in there, and program {program} lacks {}", lacking.join(", "))]
    Lacks {
        /// The port.
        name: String,
        /// The program.
        program: String,
        /// What it lacks, by name.
        lacking: Vec<&'static str>,
    },
    /// The port cannot do what the program needs.
    #[error("{name} lacks what program {program} needs: {}", missing.join(", "))]
    Needs {
        /// The port.
        name: String,
        /// The program's name.
        program: String,
        /// What is missing, by the names of `xway features`.
        missing: Vec<&'static str>,
    },
    /// The rules of attaching forbid it.
    #[error("{name}: {cause}")]
    Attach {
        /// The port.
        name: String,
        /// The rule.
        cause: AttachError,
    },
}

/// What became of a queue that is closed.
#[derive(Debug)]
pub struct QueueReport {
    /// Name of the port.
    pub port: String,
    /// Its interface index.
    pub ifindex: u32,
    /// The queue.
    pub queue: u32,
    /// The worker that served it.
    pub worker: u32,
    /// What was counted.
    pub counters: Counters,
    /// What the port counted.
    pub stats: PortStats,
    /// What the pool counted.
    pub pool: xway_packet::Counters,
    /// Set when frames did not come home.
    pub leak: Option<Leak>,
    /// Why the queue had stopped receiving, if it had.
    pub error: Option<PortError>,
}

/// What became of everything, when an engine has stopped.
#[derive(Debug)]
pub struct Stopped {
    /// The queues that were open.
    pub queues: Vec<QueueReport>,
    /// What came over CPUMAPs, by worker.
    pub cpus: Vec<Counters>,
}

/// Wakes the worker of a queue, from any thread. Costs a fence while it is awake.
#[derive(Clone)]
pub struct Waker(pub(super) Arc<Wake>);

impl Waker {
    /// There is something to do.
    pub fn wake(&self) {
        self.0.ring();
    }
}

/// A queue as it stands.
#[derive(Clone, Debug)]
pub struct QueueState {
    /// Name of the port.
    pub port: String,
    /// Its interface index.
    pub ifindex: u32,
    /// The queue.
    pub queue: u32,
    /// The worker that serves it.
    pub worker: u32,
    /// What was counted since it was opened.
    pub counters: Counters,
    /// The programs that run on it, in their order, and what each did here: id, name, counters.
    pub programs: Vec<(u32, String, ProgramCounters)>,
    /// Whether the programs are the queue's own; else they are the port's.
    pub own_programs: bool,
    /// What its packets lie in.
    pub memory: MemoryReport,
    /// What runs them: `jit` (one function), `interp`, `chain` (one after the other), `none`.
    pub engine: &'static str,
}

/// A chain that runs as one function.
#[derive(Clone)]
pub struct ChainState {
    /// Name of the port.
    pub port: String,
    /// The queue whose own chain it is; `None` for the port's.
    pub queue: Option<u32>,
    /// Its programs, in the order in which they run.
    pub programs: Vec<Attached>,
    /// What runs.
    pub code: Arc<Compiled>,
}

/// Whether a port may be called by this name: its own, options apart (`tap:a?queues=2` is `tap:a`); without its kind (`packet:eth0` is
/// `eth0`).
pub fn is_called<'a>(port: &'a str, name: &'a str) -> bool {
    let without = |text: &'a str| text.split('?').next().unwrap_or_default();
    let (plain, name) = (without(port), without(name));
    plain == name || plain.split_once(':').is_some_and(|(_, rest)| rest == name)
}

/// What a queue's port and its pool counted, and what waits there to be sent.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// Interface index of the port.
    pub ifindex: u32,
    /// The queue.
    pub queue: u32,
    /// What the port counted.
    pub stats: PortStats,
    /// What the pool counted.
    pub pool: xway_packet::Counters,
    /// The most frames of the pool that may be away at the same time.
    pub pool_limit: u32,
    /// What waits to be sent, now; `None` for a port whose queue cannot be looked at.
    pub backlog: Option<Backlog>,
    /// Why it receives no more, if its device failed.
    pub error: Option<String>,
}

/// A port as it stands.
#[derive(Clone)]
pub struct PortState {
    /// Its name.
    pub name: String,
    /// Its interface index.
    pub ifindex: u32,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Where it does something else than it was asked for.
    pub outcomes: Vec<Outcome>,
    /// Queues that the device has.
    pub queues: u32,
    /// Programs attached to the port.
    pub programs: Vec<Attached>,
    /// Programs attached to single queues.
    pub queue_programs: Vec<(u32, Vec<Attached>)>,
}
