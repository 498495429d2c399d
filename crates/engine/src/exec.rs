//! What the engine asks of whatever runs programs.

use std::time::Duration;

use xway_maps::Guard;
use xway_packet::{Burst, Frame};

/// Runs one program over the frames of a burst. Made for one worker; the interpreter and compiled code implement it.
pub trait Executor: Send {
    /// Runs the program over each frame, in order, and says how each run ended with [`Results::push`] or
    /// [`Results::push_fault`]: exactly one for each frame. A frame without a result counts as ABORTED.
    ///
    /// The guard lives as long as the burst: what maps give out under it stays valid.
    fn run(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results);

    /// As [`Executor::run`], for a program that is not the first of its chain: the target that an earlier one chose for a frame stays
    /// until this one chooses another, as on Linux.
    fn run_on(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        self.run(frames, guard, results);
    }

    /// Does what is due beside frames (timers of programs); called between bursts and before the worker sleeps. Returns the
    /// time until it wants to be called again.
    fn tick(&mut self) -> Option<Duration> {
        None
    }

    /// What is running, for reports and events.
    fn info(&self) -> ExecutorInfo;

    /// Names of the programs by their position in the chain; one name where there is no chain.
    fn names(&self) -> Vec<String> {
        vec![self.info().program]
    }
}

/// What is running.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExecutorInfo {
    /// Name of the program's function.
    pub program: String,
    /// How it is run: `interp`, `jit`.
    pub engine: &'static str,
}

/// Why a program was stopped. The concrete type is the executor's; subscribers may downcast to it.
pub type FaultError = Box<dyn std::error::Error + Send + Sync>;

/// How the runs of one burst ended. Reused from burst to burst.
#[derive(Debug, Default)]
pub struct Results {
    rets: Vec<u64>,
    faults: Vec<(usize, FaultError)>,
    insns: u64,
    /// Position in its chain of the program that had the last word, by frame; empty where there is no chain.
    last: Vec<u8>,
}

impl Results {
    /// With room for the frames of a burst from the start: the first long burst costs no more than the ones behind it.
    pub(crate) fn of_bursts() -> Results {
        Results { rets: Vec::with_capacity(Burst::MAX), last: Vec::with_capacity(Burst::MAX), ..Results::default() }
    }

    /// The next frame's program returned `ret` (its whole r0) after `insns` instructions; pass 0 where nobody counts.
    #[inline]
    pub fn push(&mut self, ret: u64, insns: u64) {
        self.rets.push(ret);
        self.insns += insns;
    }

    /// The next frames' programs returned these; nobody counted instructions.
    #[inline]
    pub fn extend(&mut self, rets: &[u64]) {
        self.rets.extend_from_slice(rets);
    }

    /// The next frame's program was stopped after `insns` instructions: its verdict is ABORTED.
    pub fn push_fault(&mut self, fault: FaultError, insns: u64) {
        self.faults.push((self.rets.len(), fault));
        self.push(0, insns);
    }

    /// Return values so far, in frame order.
    pub fn rets(&self) -> &[u64] {
        &self.rets
    }

    /// Faults so far: frame number in the burst, and why.
    pub fn faults(&self) -> &[(usize, FaultError)] {
        &self.faults
    }

    /// Takes the faults out, in frame order.
    pub fn take_faults(&mut self) -> std::vec::Drain<'_, (usize, FaultError)> {
        self.faults.drain(..)
    }

    /// Why the frame with this number in the burst was stopped, if it was. Cost: one comparison per call that finds nothing,
    /// as long as there are no faults.
    pub fn fault(&self, index: usize) -> Option<&FaultError> {
        let at = self.faults.binary_search_by_key(&index, |&(at, _)| at).ok()?;
        Some(&self.faults[at].1)
    }

    /// The next frame was decided about by the program at `position` of a chain.
    #[inline]
    pub(crate) fn push_decided(&mut self, ret: u64, position: u8) {
        self.last.resize(self.rets.len(), 0);
        self.last.push(position);
        self.rets.push(ret);
    }

    /// Position in the chain of the program that decided about the frame with this number in the burst; 0 without a chain.
    pub fn position(&self, index: usize) -> usize {
        self.last.get(index).copied().map_or(0, usize::from)
    }

    /// The frames from `at` on were run again by the program at `position` of a chain: its results replace what is there.
    pub(crate) fn overwrite(&mut self, at: usize, position: u8, with: &mut Results, count: usize) {
        self.last.resize(self.rets.len().max(at + count), 0);
        for (offset, ret) in with.all_rets().take(count).enumerate() {
            self.rets[at + offset] = ret;
            self.last[at + offset] = position;
        }
        self.insns += with.insns;
        if self.faults.is_empty() && with.faults.is_empty() {
            return;
        }
        self.faults.retain(|(index, _)| !(at..at + count).contains(index));
        self.faults.extend(with.faults.drain(..).map(|(index, fault)| (at + index, fault)));
        self.faults.sort_by_key(|&(index, _)| index);
    }

    /// Nothing ran: the next frames pass.
    pub(crate) fn pass_all(&mut self, count: usize) {
        self.rets.resize(self.rets.len() + count, xway_abi::Verdict::Pass as u64);
    }

    /// Makes the results as many as the frames: those that are missing are ABORTED.
    pub(crate) fn complete(&mut self, count: usize) {
        self.rets.resize(count, 0);
    }

    /// Return values by frame, for any number of frames: those without a result are 0, ABORTED.
    pub(crate) fn all_rets(&self) -> impl Iterator<Item = u64> + '_ {
        self.rets.iter().copied().chain(std::iter::repeat(0))
    }

    /// Instructions so far.
    pub fn insns(&self) -> u64 {
        self.insns
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.rets.clear();
        self.faults.clear();
        self.insns = 0;
        self.last.clear();
    }
}
