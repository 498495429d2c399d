//! What the engine asks of whatever runs programs.

use std::time::Duration;

use xway_maps::Guard;
use xway_packet::Frame;

/// Runs one program over the frames of a burst. Made for one worker; the interpreter and compiled code implement it.
pub trait Executor: Send {
    /// Runs the program over each frame, in order, and says how each run ended with [`Results::push`] or
    /// [`Results::push_fault`]: exactly one for each frame. A frame without a result counts as ABORTED.
    ///
    /// The guard lives as long as the burst: what maps give out under it stays valid.
    fn run(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results);

    /// Does what is due beside frames (timers of programs); called between bursts and before the worker sleeps. Returns the
    /// time until it wants to be called again.
    fn tick(&mut self) -> Option<Duration> {
        None
    }

    /// What is running, for reports and events.
    fn info(&self) -> ExecutorInfo;
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
}

impl Results {
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

    /// Why the frame with this number in the burst was stopped, if it was. Cost: one comparison per call that finds nothing,
    /// as long as there are no faults.
    pub fn fault(&self, index: usize) -> Option<&FaultError> {
        let at = self.faults.binary_search_by_key(&index, |&(at, _)| at).ok()?;
        Some(&self.faults[at].1)
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
    }
}
