//! Compiled code as executor.

use std::sync::Arc;
use std::time::Duration;

use xway_jit::{Compiled, RunEnv};
use xway_maps::Guard;
use xway_packet::{Burst, Frame};
use xway_vm::{Host, Program, SystemHost, Timers};

use crate::exec::{Executor, ExecutorInfo, Results};

/// Runs a verified program as machine code: one call for all frames of a burst.
pub struct Native {
    code: Arc<Compiled>,
    // Timers hold the program weakly through the code's handles.
    _program: Arc<Program>,
    host: Box<dyn Host + Send>,
    cpu: u32,
    rets: Vec<u64>,
}

impl Native {
    /// For the worker with this number, on the machine itself, with code that was made of this very program: see
    /// [`crate::Choice`].
    pub fn new(program: Arc<Program>, code: Arc<Compiled>, cpu: u32) -> Native {
        Native { code, _program: program, host: Box::new(SystemHost::new()), cpu, rets: Vec::with_capacity(Burst::MAX) }
    }

    /// On another host, for tests.
    pub fn with_host(mut self, host: Box<dyn Host + Send>) -> Native {
        self.host = host;
        self
    }

    /// The code.
    pub fn code(&self) -> &Arc<Compiled> {
        &self.code
    }
}

impl Executor for Native {
    fn run(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        self.host.burst_begins();
        let mut env = RunEnv::new(guard, &*self.host, self.cpu);
        self.rets.clear();
        self.rets.resize(frames.len(), 0);
        if let Err(refusal) = self.code.run_burst(frames, &mut env, &mut self.rets) {
            for _ in frames.iter() {
                results.push_fault(Box::new(refusal.clone()), 0);
            }
            return;
        }
        let faults = env.take_faults();
        if faults.is_empty() {
            return results.extend(&self.rets);
        }
        // A defect of the verifier, so it is shown with the frame that it happened to.
        for (n, ret) in self.rets.iter().enumerate() {
            let at = std::ptr::from_ref(&frames[n]) as usize;
            match faults.iter().find(|f| f.0 == at) {
                Some((_, kind)) => results.push_fault(Box::new(kind.clone()), 0),
                None => results.push(*ret, 0),
            }
        }
    }

    fn run_on(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        self.host.burst_begins();
        // The burst function begins with forgetting targets, so frames go one by one. Chains whose programs all have machine code
        // do not come here: they are one function.
        let mut env = RunEnv::new(guard, &*self.host, self.cpu);
        for frame in frames {
            match self.code.run_on(frame, &mut env) {
                Err(refusal) => results.push_fault(Box::new(refusal), 0),
                Ok(ret) => match env.take_faults().into_iter().next() {
                    Some((_, kind)) => results.push_fault(Box::new(kind), 0),
                    None => results.push(ret, 0),
                },
            }
        }
    }

    fn tick(&mut self) -> Option<Duration> {
        // Callbacks of timers are run by the interpreter: there are few, and nobody waits for them.
        let timers = Timers::shared();
        if timers.next_due(&*self.host)? == 0 {
            timers.run_due(&*self.host, self.cpu);
        }
        timers.next_due(&*self.host).map(Duration::from_nanos)
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: self.code.name().to_owned(), engine: "jit" }
    }
}
