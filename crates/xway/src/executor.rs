//! The checked interpreter as the engine's executor.

use std::sync::Arc;

use xway_engine::{Executor, ExecutorInfo, Results};
use xway_maps::Guard;
use xway_packet::Frame;
use xway_vm::{BUDGET_DEFAULT, Env, Program, SystemHost};

/// Runs a linked program in the checked interpreter.
pub struct Interpreter {
    program: Arc<Program>,
    host: SystemHost,
    budget: u64,
}

impl Interpreter {
    /// An executor with a limit on the instructions of each packet.
    pub fn new(program: Arc<Program>, budget: Option<u64>) -> Interpreter {
        Interpreter { program, host: SystemHost::new(), budget: budget.unwrap_or(BUDGET_DEFAULT) }
    }
}

impl Executor for Interpreter {
    fn run(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        let mut env = Env::new(guard, &self.host, 0).with_budget(self.budget);
        for frame in frames {
            let outcome = xway_vm::run(&self.program, frame, &mut env);
            match outcome.fault {
                None => results.push(outcome.ret, outcome.insns),
                Some(fault) => results.push_fault(fault, outcome.insns),
            }
        }
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: self.program.name().to_owned(), engine: "interp" }
    }
}
