//! The worker's environment: what generated code and the helpers it calls know of the run.
//!
//! Generated code takes a pointer to it as first argument and reads the few fields at the front by offset; nothing of a worker
//! or of a burst is a constant in the code, so workers share it.

use xway_maps::Guard;
use xway_packet::{Frame, Redirect};
use xway_vm::host::Ticks;
use xway_vm::host::route::Link;
use xway_vm::machine::FaultKind;
use xway_vm::{Host, Program, Random, Timers};

use crate::records::Records;
use crate::stage::Answer;

/// Surroundings of compiled runs. Made once per burst: the guard must be as old as the environment.
#[repr(C)]
pub struct RunEnv<'e> {
    // Read and written by generated code, at `offsets`.
    /// The frame that is being run.
    pub(crate) frame: *mut Frame,
    /// Number of the worker.
    pub(crate) cpu: u32,
    /// Tail calls of this run so far.
    pub(crate) tail_calls: u32,
    /// What was looked up for the frames of this burst; null for nothing.
    pub(crate) answers: *const Answer,
    /// The map's count of changes then.
    pub(crate) answered_at: u64,
    /// How the processor's counter becomes the clock.
    pub(crate) clock: crate::clock::Scale,
    /// The state of the host's generator of random numbers, of which this thread is the owner; null where it has another.
    pub(crate) random: *mut u64,
    /// What an entry gave that was called by a way which leaves all registers alone.
    pub(crate) result: u64,
    /// A program has looked for a target and found none: not 0.
    pub(crate) missed: u32,
    /// How often the clocks of ticks may still be read before the system is asked whether there was a tick.
    pub(crate) ticks_left: u32,
    /// Their words; without any, those of a time that stands still.
    pub(crate) ticks: &'static Ticks,
    /// What helpers of [`calls::ONCE`](crate::calls::ONCE) gave in this burst, and 1; 0 before that.
    pub(crate) told: [u64; crate::calls::ONCE.len()],
    // Used by helpers only.
    /// The interface that was asked for last, by its index.
    pub(crate) link: Option<(u32, Link)>,
    pub(crate) guard: &'e Guard,
    pub(crate) host: &'e dyn Host,
    pub(crate) timers: &'e Timers,
    /// The target that a program in front of this one chose, where the code begins with forgetting it; what is to be done with targets
    /// finds it in its place ([`RunEnv::recall_target`]).
    pub(crate) chosen: Redirect,
    /// A program that is not compiled, on its way into the interpreter.
    pub(crate) next: Option<&'e Program>,
    /// Ring records that were reserved and not yet given back.
    pub(crate) records: Records<'e>,
    /// Copies for callbacks, by depth of callbacks.
    pub(crate) copies: Vec<Vec<u8>>,
    pub(crate) depth: usize,
    /// Address of the lock that is held, 0 for none.
    pub(crate) lock: u64,
    /// What no verified program can do and one did: the frame and the fault. Reported, because it is a defect of the verifier.
    pub(crate) faults: Vec<(usize, FaultKind)>,
}

/// Where generated code finds the fields.
pub(crate) mod offsets {
    use super::RunEnv;
    use std::mem::offset_of;

    pub const FRAME: i32 = offset_of!(RunEnv<'static>, frame) as i32;
    pub const CPU: i32 = offset_of!(RunEnv<'static>, cpu) as i32;
    pub const TAIL_CALLS: i32 = offset_of!(RunEnv<'static>, tail_calls) as i32;
    pub const ANSWERS: i32 = offset_of!(RunEnv<'static>, answers) as i32;
    pub const ANSWERED_AT: i32 = offset_of!(RunEnv<'static>, answered_at) as i32;
    const CLOCK: usize = offset_of!(RunEnv<'static>, clock);
    pub const CLOCK_SCALE: i32 = (CLOCK + offset_of!(crate::clock::Scale, scale)) as i32;
    pub const CLOCK_START: i32 = (CLOCK + offset_of!(crate::clock::Scale, start)) as i32;
    pub const CLOCK_NOW: i32 = (CLOCK + offset_of!(crate::clock::Scale, now)) as i32;
    pub const RESULT: i32 = offset_of!(RunEnv<'static>, result) as i32;
    pub const MISSED: i32 = offset_of!(RunEnv<'static>, missed) as i32;
    pub const RANDOM: i32 = offset_of!(RunEnv<'static>, random) as i32;
    pub const TICKS_LEFT: i32 = offset_of!(RunEnv<'static>, ticks_left) as i32;
    pub const TICKS: i32 = offset_of!(RunEnv<'static>, ticks) as i32;
    pub const TOLD: i32 = offset_of!(RunEnv<'static>, told) as i32;
    pub const CLOCK_NS: i32 = (CLOCK + offset_of!(crate::clock::Scale, ns)) as i32;
    pub const CLOCK_LIMIT: i32 = (CLOCK + offset_of!(crate::clock::Scale, limit)) as i32;
    pub const CLOCK_SLEPT: i32 = (CLOCK + offset_of!(crate::clock::Scale, slept)) as i32;
    pub const CLOCK_LAST: i32 = (CLOCK + offset_of!(crate::clock::Scale, last)) as i32;
}

static NO_TICKS: Ticks = Ticks::new();

impl<'e> RunEnv<'e> {
    /// Surroundings for the worker with this number.
    pub fn new(guard: &'e Guard, host: &'e dyn Host, cpu: u32) -> RunEnv<'e> {
        RunEnv {
            frame: std::ptr::null_mut(),
            cpu,
            tail_calls: 0,
            answers: std::ptr::null(),
            answered_at: 0,
            clock: crate::clock::Scale::default(),
            random: host.generator().map_or(std::ptr::null_mut(), Random::state),
            result: 0,
            missed: 0,
            ticks_left: 0,
            ticks: host.ticks().unwrap_or(&NO_TICKS),
            told: [0; crate::calls::ONCE.len()],
            link: None,
            guard,
            host,
            timers: Timers::shared(),
            chosen: Redirect::None,
            next: None,
            records: Records::default(),
            copies: Vec::new(),
            depth: 0,
            lock: 0,
            faults: Vec::new(),
        }
    }

    /// Puts the target into the frame that a program in front of this one chose, unless this one has found another, or none.
    #[inline]
    pub(crate) fn recall_target(&self, frame: &mut Frame) {
        if self.chosen != Redirect::None && self.missed == 0 && frame.redirect() == Redirect::None {
            frame.set_redirect(self.chosen);
        }
    }

    /// Behind what may have changed the target of a frame: with the chosen one in its place before, none is one that was missed.
    #[inline]
    pub(crate) fn note_target(&mut self, frame: &Frame) {
        self.missed |= u32::from(self.chosen != Redirect::None && frame.redirect() == Redirect::None);
    }

    /// The faults of runs since the last call: address of the frame and what happened. No verified program faults, so
    /// whatever is found here is a defect of the verifier; the run went on with the value 0.
    pub fn take_faults(&mut self) -> Vec<(usize, FaultKind)> {
        std::mem::take(&mut self.faults)
    }

    /// Keeps the timers of programs in this table instead of the shared one.
    pub fn with_timers(mut self, timers: &'e Timers) -> RunEnv<'e> {
        self.timers = timers;
        self
    }
}

impl std::fmt::Debug for RunEnv<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunEnv").field("cpu", &self.cpu).field("faults", &self.faults).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::offsets::*;

    #[test]
    fn what_generated_code_reads_stands_in_front() {
        assert_eq!((FRAME, CPU, TAIL_CALLS), (0, 8, 12));
        assert_eq!((CLOCK_SCALE, CLOCK_START, CLOCK_NS, CLOCK_NOW, CLOCK_LIMIT, CLOCK_LAST), (32, 40, 48, 56, 64, 72));
        assert_eq!(CLOCK_SLEPT, 80);
        assert_eq!((RANDOM, RESULT, MISSED, TICKS_LEFT, TICKS, TOLD), (88, 96, 104, 108, 112, 120));
    }
}
