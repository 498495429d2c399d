//! A host that answers the same in every run.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use xway_abi::Errno;

use super::route::{FibAnswer, FibQuery, Link, Tables};
use super::{Clock, Host, Random, Task};

/// A deterministic host: the clock moves by a fixed step at each reading, random numbers follow from a seed, routes are
/// those that were put in. Trace output is kept.
#[derive(Debug)]
pub struct FixedHost {
    now: Cell<u64>,
    step: u64,
    random: Random,
    /// Routes, neighbours and interfaces.
    pub tables: Tables,
    /// Who runs.
    pub task: Arc<Task>,
    trace: RefCell<Vec<String>>,
}

impl FixedHost {
    /// A host whose clock starts at one second and whose random numbers follow from `seed`.
    pub fn new(seed: u64) -> FixedHost {
        FixedHost {
            now: Cell::new(1_000_000_000),
            step: 1000,
            random: Random::new(seed),
            tables: Tables::default(),
            task: Arc::new(Task {
                pid: 2,
                tgid: 1,
                comm: *b"xway\0\0\0\0\0\0\0\0\0\0\0\0",
                cgroup_ids: vec![1],
                ..Task::default()
            }),
            trace: RefCell::default(),
        }
    }

    /// Sets the clock, nanoseconds, and how far each reading moves it.
    pub fn with_clock(mut self, now_ns: u64, step_ns: u64) -> FixedHost {
        self.now = Cell::new(now_ns);
        self.step = step_ns;
        self
    }

    /// Moves the clock.
    pub fn advance(&self, ns: u64) {
        self.now.set(self.now.get().wrapping_add(ns));
    }

    /// Takes the trace lines since the last call.
    pub fn take_trace(&self) -> Vec<String> {
        self.trace.take()
    }
}

impl Host for FixedHost {
    fn clock_ns(&self, _: Clock) -> u64 {
        let now = self.now.get();
        self.now.set(now.wrapping_add(self.step));
        now
    }

    fn jiffies(&self) -> u64 {
        self.now.get() / 4_000_000
    }

    fn random_u32(&self) -> u32 {
        self.random.next_u32()
    }

    fn generator(&self) -> Option<&Random> {
        Some(&self.random)
    }

    fn numa_node(&self) -> i32 {
        0
    }

    fn task(&self) -> Arc<Task> {
        self.task.clone()
    }

    fn trace(&self, text: &str) {
        self.trace.borrow_mut().push(text.to_owned());
    }

    fn syncookie_secret(&self) -> [u64; 2] {
        [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]
    }

    fn fib_lookup(&self, query: &FibQuery) -> Result<FibAnswer, Errno> {
        self.tables.lookup(query)
    }

    fn device(&self, ifindex: u32) -> Result<Link, Errno> {
        self.tables.link(ifindex).copied().ok_or(Errno::ENODEV)
    }
}
