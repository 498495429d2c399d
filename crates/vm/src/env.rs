//! What a run needs beside the program and the packet, and what it gives back.

use std::collections::{HashMap, VecDeque};

use xway_maps::{Guard, RingRecord, ValueRef};

use crate::host::Host;
use crate::trace::Tracer;
use crate::{Fault, Timers};

/// Instructions that one run may execute unless told otherwise: some seconds of work.
pub const BUDGET_DEFAULT: u64 = 1 << 30;

/// Surroundings of a run: guard, host, worker number, and working memory that is reused from run to run.
///
/// Made once per burst: `guard` keeps alive whatever programs are granted, so it must be as old as the `Env`.
pub struct Env<'e> {
    pub(crate) guard: &'e Guard,
    pub(crate) host: &'e dyn Host,
    pub(crate) cpu: u32,
    pub(crate) budget: u64,
    pub(crate) timers: &'e Timers,
    pub(crate) tracer: Option<&'e dyn Tracer>,
    pub(crate) state: State<'e>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// r0 at exit; 0 (`XDP_ABORTED`) after a fault.
    pub ret: u64,
    /// Set when the program was stopped.
    pub fault: Option<Box<Fault>>,
    /// Instructions that were executed, those of tail-called programs included.
    pub insns: u64,
}

impl<'e> Env<'e> {
    /// Surroundings for the worker with this number (`bpf_get_smp_processor_id`, slot of per-CPU maps).
    pub fn new(guard: &'e Guard, host: &'e dyn Host, cpu: u32) -> Env<'e> {
        Env {
            guard,
            host,
            cpu,
            budget: BUDGET_DEFAULT,
            timers: Timers::shared(),
            tracer: None,
            state: State::default(),
        }
    }

    /// Limits the instructions of each run; a run that needs more faults.
    pub fn with_budget(mut self, insns: u64) -> Env<'e> {
        self.budget = insns;
        self
    }

    /// Keeps the timers of programs in this table instead of the shared one.
    pub fn with_timers(mut self, timers: &'e Timers) -> Env<'e> {
        self.timers = timers;
        self
    }

    /// Shows every instruction to somebody before it is executed. Slow; for tests and tools.
    pub fn with_tracer(mut self, tracer: &'e dyn Tracer) -> Env<'e> {
        self.tracer = Some(tracer);
        self
    }

    /// The host.
    pub fn host(&self) -> &'e dyn Host {
        self.host
    }

    /// The guard.
    pub fn guard(&self) -> &'e Guard {
        self.guard
    }
}

impl std::fmt::Debug for Env<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env").field("cpu", &self.cpu).field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// Length of a function's stack, bytes.
pub(crate) const STACK_LEN: usize = 512;
/// Functions of one program that may be active at once (`MAX_CALL_FRAMES`).
pub(crate) const CHAIN: usize = 8;
/// Functions of all programs that may be active at once: a tail call from inside a function leaves its callers waiting,
/// and the program that takes its place has a chain of its own. 33 tail calls, each from the eighth function, make 239.
pub(crate) const FRAMES: usize = 256;
const _: () = assert!(CHAIN + crate::run::TAIL_CALLS_MAX as usize * (CHAIN - 1) <= FRAMES);

/// The stacks of all functions that may be active.
pub(crate) struct Stacks {
    pub bytes: [[u8; STACK_LEN]; FRAMES],
    /// For each stack, the lowest byte that may not be zero; between runs all of them are.
    pub low: [u32; FRAMES],
}

impl Stacks {
    pub fn new() -> Box<Stacks> {
        Box::new(Stacks { bytes: [[0; STACK_LEN]; FRAMES], low: [STACK_LEN as u32; FRAMES] })
    }
}

/// Working memory of runs.
#[derive(Default)]
pub(crate) struct State<'e> {
    /// Stack of each frame; away during a run.
    pub stack: Option<Box<Stacks>>,
    /// Granted regions, from [`crate::addr::GRANT`] on.
    pub grants: Vec<Grant<'e>>,
    /// Granted regions whose records went back, the oldest first.
    pub free: VecDeque<u32>,
    /// Region number by address of the value, once there are many.
    pub index: HashMap<(usize, u32), u32>,
    /// Maps that were found in maps.
    pub inner: Vec<&'e xway_maps::Map>,
    /// Copies for callbacks, by depth of calls.
    pub copies: Vec<Vec<u8>>,
    /// Dynptrs of callbacks, by depth of calls.
    pub handles: Vec<[u8; 16]>,
    /// Memory for arguments of helpers.
    pub scratch: Vec<u8>,
    /// Address of a lock that is held, 0 if none.
    pub lock: u64,
}

/// A region that was granted during the run.
pub(crate) struct Grant<'e> {
    /// The memory.
    pub value: ValueRef<'e>,
    pub kind: GrantKind<'e>,
    pub readable: bool,
    pub writable: bool,
}

/// What a granted region is.
pub(crate) enum GrantKind<'e> {
    /// A value of a map, or part of one.
    Value,
    /// A reserved ring record.
    Record(Box<RingRecord<'e>>),
    /// It was a ring record that has been submitted or discarded.
    Returned,
}
