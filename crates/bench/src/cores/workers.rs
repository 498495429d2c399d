//! The same load on one worker and on several: each has a queue of its own that always has packets, and drops them.
//!
//! Two figures for each number of workers. Packets a second are what the machine gave; nanoseconds of CPU for each packet are what a
//! worker needed while it ran (`/proc/self/task/*/schedstat`), which other load on the machine does not change by taking the core
//! away, only through caches and memory.

use std::time::{Duration, Instant};

use xway_engine::{EngineConfig, PortConfig};
use xway_port_sim::{SimDevice, Traffic};

use super::{CoresError, engine, setup, stop};
use crate::forward::{Action, Operation};
use crate::measure::Stat;

/// What to measure.
#[derive(Clone, Debug)]
pub struct WorkersOptions {
    /// Cores, one for each worker; the first alone is what the others are compared with.
    pub cpus: Vec<u32>,
    /// How long each round lasts.
    pub time: Duration,
    /// Rounds; one worker and all of them take turns.
    pub rounds: u32,
}

/// Figures for a number of workers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WorkerFigures {
    /// Workers.
    pub workers: u32,
    /// Packets a second, all workers together.
    pub pps: Stat,
    /// Nanoseconds of CPU that a worker needed for a packet.
    pub cpu_ns: Stat,
    /// Share of the time for which the workers had their cores.
    pub had: f64,
}

/// What was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkersReport {
    /// One worker.
    pub one: WorkerFigures,
    /// One for each core.
    pub all: WorkerFigures,
}

impl WorkersReport {
    /// How many times as many packets a second all workers handle as one does, as the machine let them.
    pub fn gain(&self) -> f64 {
        ratio(self.all.pps.median, self.one.pps.median)
    }

    /// The same when each has its core for itself: by the CPU time that they needed.
    pub fn gain_by_cpu(&self) -> f64 {
        f64::from(self.all.workers) * ratio(self.one.cpu_ns.median, self.all.cpu_ns.median)
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Measures.
///
/// # Errors
/// Something could not be set up, or frames are missing at the end.
pub fn workers(options: &WorkersOptions, traffic: &Traffic) -> Result<WorkersReport, CoresError> {
    let (mut one, mut all) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds.max(1) {
        one.push(round(&options.cpus[..1.min(options.cpus.len())], options.time, traffic)?);
        all.push(round(&options.cpus, options.time, traffic)?);
    }
    let figures = |rounds: &[Round], workers: usize| WorkerFigures {
        workers: workers as u32,
        pps: Stat::of(rounds.iter().map(|round| round.pps).collect()),
        cpu_ns: Stat::of(rounds.iter().map(|round| round.cpu_ns).collect()),
        had: rounds.iter().map(|round| round.had).sum::<f64>() / rounds.len().max(1) as f64,
    };
    Ok(WorkersReport { one: figures(&one, 1), all: figures(&all, options.cpus.len()) })
}

/// Longest wait for a worker's turn on a processor that others use.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Time between two looks.
const TURN_LOOK: Duration = Duration::from_millis(1);

struct Round {
    pps: f64,
    cpu_ns: f64,
    had: f64,
}

fn round(cpus: &[u32], time: Duration, traffic: &Traffic) -> Result<Round, CoresError> {
    let workers = cpus.len() as u32;
    let cores = cpus.iter().map(|&cpu| cpu as usize).collect();
    let config = EngineConfig { workers, cpus: cores, idle_polls: u32::MAX, ..EngineConfig::default() };
    let (device, _) = SimDevice::generated("in", 10, traffic.clone(), None, workers);
    let engine = engine(config, device, PortConfig::default(), (Action::Drop, Operation::NoTouch), traffic)?;
    let counted = || engine.queues().iter().map(|queue| queue.counters.rx).sum::<u64>();
    // Memory is touched for the first time before the clock starts. A worker that shares its processor may wait for its turn
    // longer than the whole measurement is asked to take.
    let deadline = Instant::now() + TURN_MAX;
    std::thread::sleep(time / 10);
    while counted() == 0 && Instant::now() < deadline {
        std::thread::sleep(TURN_LOOK);
    }
    let (packets, cpu, start) = (counted(), cpu_time()?, Instant::now());
    std::thread::sleep(time);
    while counted() == packets && Instant::now() < deadline {
        std::thread::sleep(TURN_LOOK);
    }
    let (packets, cpu, took) = (counted() - packets, cpu_time()?.saturating_sub(cpu), start.elapsed());
    stop(engine, xway_abi::Verdict::Drop)?;
    if packets == 0 {
        return Err(CoresError::Wrong("no packet came in".into()));
    }
    let took = took.as_nanos() as f64;
    Ok(Round {
        pps: packets as f64 * 1e9 / took,
        cpu_ns: cpu as f64 / packets as f64,
        had: cpu as f64 / took / f64::from(workers.max(1)),
    })
}

/// Nanoseconds for which the workers of this process have run.
fn cpu_time() -> Result<u64, CoresError> {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").map_err(setup)? {
        let path = task.map_err(setup)?.path();
        // A thread may end meanwhile.
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        if read("comm").starts_with("xway-worker-") {
            let times = read("schedstat");
            sum += times.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or_default();
        }
    }
    Ok(sum)
}
