//! One packet, or one piece of memory, through a program.

use std::sync::Arc;

use xway_jit::{Compiled, RunEnv};
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
    code: Option<Arc<Compiled>>,
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
    /// A runner with a frame of its own, in machine code where there is some.
    pub fn new(program: Arc<Program>, code: Option<Arc<Compiled>>, budget: Option<u64>) -> Result<Single, Failure> {
        let pool = Pool::new(PoolConfig::new(1)).map_err(Failure::needs)?;
        Ok(Single { program, host: SystemHost::new(), pool, budget: budget.unwrap_or(BUDGET_DEFAULT), code })
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
        let (ret, fault) = match &self.code {
            None => {
                let mut env = Env::new(&guard, &self.host, 0).with_budget(self.budget);
                let outcome = xway_vm::run(&self.program, &mut frame, &mut env);
                (Ok(outcome.ret), outcome.fault.map(|f| f.to_string()))
            }
            Some(code) => {
                let mut env = RunEnv::new(&guard, &self.host, 0);
                // A burst of one, as a worker would run it.
                let mut verdict = [0];
                let ran = code.run_burst(std::slice::from_mut(&mut frame), &mut env, &mut verdict);
                (ran.map(|()| verdict[0]), env.take_faults().first().map(|(_, kind)| kind.to_string()))
            }
        };
        let packet = frame.packet().to_vec();
        self.pool.release(frame);
        let ret = ret.map_err(Failure::no)?;
        Ok(Ran { retval: ret as u32, fault, packet })
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
