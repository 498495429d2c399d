//! One packet, or one piece of memory, through a program.

use std::sync::Arc;

use xway_maps::Guard;
use xway_packet::{Pool, PoolConfig};
use xway_vm::{BUDGET_DEFAULT, Env, Outcome, Program, SystemHost};

use crate::failure::Failure;

/// Runs packets, each as it is given, through one program.
pub struct Single {
    program: Arc<Program>,
    host: SystemHost,
    pool: Pool,
    budget: u64,
}

/// What came of a packet.
pub struct Ran {
    /// The program's return value.
    pub retval: u32,
    /// Why it was stopped.
    pub fault: Option<String>,
    /// The packet afterwards, without metadata.
    pub packet: Vec<u8>,
}

impl Single {
    /// A runner with a frame of its own.
    pub fn new(program: Arc<Program>, budget: Option<u64>) -> Result<Single, Failure> {
        let pool = Pool::new(PoolConfig::new(1)).map_err(Failure::needs)?;
        Ok(Single { program, host: SystemHost::new(), pool, budget: budget.unwrap_or(BUDGET_DEFAULT) })
    }

    /// Runs the program over a packet that came in on this interface and queue.
    pub fn run(&mut self, packet: &[u8], ifindex: u32, queue: u32) -> Result<Ran, Failure> {
        let mut frame = self.pool.alloc().map_err(Failure::needs)?;
        if let Err(full) = frame.fill(packet) {
            self.pool.release(frame);
            return Err(Failure::input(format!("packet: {full}")));
        }
        frame.set_ingress(ifindex, queue);
        let guard = Guard::pin();
        let mut env = Env::new(&guard, &self.host, 0).with_budget(self.budget);
        let outcome = xway_vm::run(&self.program, &mut frame, &mut env);
        let packet = frame.packet().to_vec();
        self.pool.release(frame);
        Ok(Ran { retval: outcome.ret as u32, fault: outcome.fault.map(|f| f.to_string()), packet })
    }
}

/// Runs a program of the type `raw` over memory. A fault is a failure with the exit code "no".
pub fn run_raw(program: &Program, memory: &mut [u8], budget: Option<u64>) -> Result<Outcome, Failure> {
    let host = SystemHost::new();
    let guard = Guard::pin();
    let mut env = Env::new(&guard, &host, 0).with_budget(budget.unwrap_or(BUDGET_DEFAULT));
    let outcome = xway_vm::run_raw(program, memory, &mut env);
    match outcome.fault {
        Some(fault) => Err(Failure::no(fault)),
        None => Ok(outcome),
    }
}
