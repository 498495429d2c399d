//! What packet memory and rings cost: pools beside the allocator, rings from core to core.
//!
//! The names are those of the kernel's micro-benchmarks where there is one: fast path (the pool's own stack), ring path (what
//! others gave back is collected first), slow path (a chunk is touched for the first time). Every figure is nanoseconds for
//! one frame or entry, taken and given back; every run checks that all frames came home or all entries arrived.

mod hints;
mod pool;
mod ring;

use std::time::Instant;

pub use pool::pool;
pub use ring::ring;

use crate::measure::{MeasureError, Stat};

/// One line of a table.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Which part of the table.
    pub group: &'static str,
    /// What it is.
    pub name: String,
    /// Entries or frames in one call.
    pub bulk: usize,
    /// Threads besides the owner.
    pub others: u32,
    /// Nanoseconds for one; `None` when it could not be measured here.
    pub ns: Option<Stat>,
    /// What a document says of its own implementation of the same thing, on its own machine.
    pub documented: Option<f64>,
    /// Why there is no figure, or what belongs to it.
    pub note: String,
}

impl Line {
    fn new(group: &'static str, name: impl Into<String>, bulk: usize, samples: Vec<f64>) -> Line {
        let ns = Some(Stat::of(samples));
        Line { group, name: name.into(), bulk, others: 0, ns, documented: None, note: String::new() }
    }

    fn missing(group: &'static str, name: &str, others: u32, why: impl Into<String>) -> Line {
        Line { group, name: name.into(), bulk: 0, others, ns: None, documented: None, note: why.into() }
    }

    fn noted(self, note: impl Into<String>) -> Line {
        Line { note: note.into(), ..self }
    }

    fn documented(self, ns: f64, of: &str) -> Line {
        Line { documented: Some(ns), note: of.to_owned(), ..self }
    }

    fn others(self, others: u32) -> Line {
        Line { others, ..self }
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Core of the owner or consumer.
    pub cpu: u32,
    /// Rounds; medians over them are reported.
    pub rounds: u32,
    /// Longest round, in frames or entries.
    pub count: u64,
}

/// Why a figure is missing that ought to be there.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The thread cannot be bound to a core.
    #[error(transparent)]
    Pin(#[from] MeasureError),
    /// No memory.
    #[error(transparent)]
    Pool(#[from] xway_packet::PoolError),
    /// No ring.
    #[error(transparent)]
    Ring(#[from] xway_packet::ring::RingError),
    /// Frames did not come home.
    #[error(transparent)]
    Leak(#[from] xway_packet::Leak),
    /// What arrived is not what was sent.
    #[error("{what}: {expected} were sent, {arrived} arrived")]
    Lost {
        /// Of what.
        what: String,
        /// Sent.
        expected: u64,
        /// Arrived.
        arrived: u64,
    },
    /// A thread ended early.
    #[error("a thread on another core ended early")]
    Thread,
    /// The path that was to be measured was not the one taken.
    #[error("{what}: {share:.0} % of the allocations took the path that is measured")]
    Path {
        /// Which path.
        what: &'static str,
        /// How many took it, percent.
        share: f64,
    },
}

/// Sizes of bulk calls.
const BULKS: [usize; 4] = [1, 8, 16, 64];

/// Nanoseconds for each of `count` things that `what` does.
fn timed(count: u64, what: impl FnOnce()) -> f64 {
    let start = Instant::now();
    what();
    start.elapsed().as_nanos() as f64 / count.max(1) as f64
}

/// Waits for a thread that was to work on another core. One that could not get there worked all the same, so that nobody waits for it,
/// but its figure is of something else.
fn ended(thread: std::thread::JoinHandle<Result<(), MeasureError>>) -> Result<(), MemoryError> {
    Ok(thread.join().map_err(|_| MemoryError::Thread)??)
}

/// Cores besides this one.
fn other_cpus(cpu: u32) -> Vec<u32> {
    (0..xway_kernel::possible_cpus()).filter(|&other| other != cpu).collect()
}
