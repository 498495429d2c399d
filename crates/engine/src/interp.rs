//! The checked interpreter as executor.

use std::sync::Arc;
use std::time::Duration;

use xway_maps::Guard;
use xway_packet::{Frame, Redirect};
use xway_vm::{BUDGET_DEFAULT, Env, Host, Program, SystemHost, Timers};

use crate::exec::{Executor, ExecutorInfo, Results};

/// Runs a linked program, verified or not, in the checked interpreter.
pub struct Checked {
    program: Arc<Program>,
    host: Box<dyn Host + Send>,
    cpu: u32,
    budget: u64,
}

impl Checked {
    /// For the worker with this number, on the machine itself.
    pub fn new(program: Arc<Program>, cpu: u32) -> Checked {
        Checked { program, host: Box::new(SystemHost::new()), cpu, budget: BUDGET_DEFAULT }
    }

    /// On another host, for tests.
    pub fn with_host(mut self, host: Box<dyn Host + Send>) -> Checked {
        self.host = host;
        self
    }

    /// Limits the instructions of each run.
    pub fn with_budget(mut self, insns: u64) -> Checked {
        self.budget = insns;
        self
    }
}

impl Executor for Checked {
    fn run(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        frames.iter_mut().for_each(|frame| frame.set_redirect(Redirect::None));
        self.run_on(frames, guard, results);
    }

    fn run_on(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        self.host.burst_begins();
        let mut env = Env::new(guard, &*self.host, self.cpu).with_budget(self.budget);
        for frame in frames {
            let outcome = xway_vm::run_tail(&self.program, frame, &mut env, &mut 0);
            match outcome.fault {
                None => results.push(outcome.ret, outcome.insns),
                Some(fault) => results.push_fault(fault, outcome.insns),
            }
        }
    }

    fn tick(&mut self) -> Option<Duration> {
        let timers = Timers::shared();
        if timers.next_due(&*self.host)? == 0 {
            // A faulting callback concerns no frame; its timer is disarmed, and the next start arms it again.
            timers.run_due(&*self.host, self.cpu);
        }
        timers.next_due(&*self.host).map(Duration::from_nanos)
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: self.program.name().to_owned(), engine: "interp" }
    }
}
