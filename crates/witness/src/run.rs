//! Running a guess in the checked interpreter.

use std::sync::Arc;

use xway_maps::Guard;
use xway_object::{Object, Program};
use xway_packet::{Pool, PoolConfig};
use xway_vm::{Env, Fault, FaultKind, FixedHost, Instance};

/// Instructions that one run may take.
const BUDGET: u64 = 1 << 20;

/// One program with live maps.
pub(crate) struct Runner {
    // The instance keeps the maps alive.
    _instance: Instance,
    linked: Arc<xway_vm::Program>,
    pool: Pool,
    insn: usize,
}

impl Runner {
    /// `None` when the program cannot be run at all.
    pub fn new(object: &Arc<Object>, program: &Program, insn: usize) -> Option<Runner> {
        let instance = Instance::new(object.clone(), 1).ok()?;
        let linked = instance.link(program).ok()?;
        let config = PoolConfig { chunk_size: 4096, headroom: 256, tailroom: 320, ..PoolConfig::new(1) };
        Some(Runner { _instance: instance, linked, pool: Pool::new(config).ok()?, insn })
    }

    /// Does the program go wrong at the instruction with this packet?
    pub fn faults(&mut self, packet: &[u8]) -> bool {
        self.run(packet, 1).is_some()
    }

    /// The fault in words, when it also shows with other random numbers. For a runner that ran nothing yet.
    pub fn confirm(&mut self, packet: &[u8]) -> Option<String> {
        let first = self.run(packet, 1)?;
        self.run(packet, 0x5eed)?;
        Some(first.kind.to_string())
    }

    fn run(&mut self, packet: &[u8], seed: u64) -> Option<Box<Fault>> {
        let mut frame = self.pool.alloc().ok()?;
        let filled = frame.fill(packet).is_ok();
        frame.set_ingress(1, 0);
        let guard = Guard::pin();
        let host = FixedHost::new(seed);
        let mut env = Env::new(&guard, &host, 0).with_budget(BUDGET);
        let fault = if filled { xway_vm::run(&self.linked, &mut frame, &mut env).fault } else { None };
        self.pool.release(frame);
        fault.filter(|f| f.insn == self.insn && f.program == self.linked.name() && is_access(&f.kind))
    }
}

/// Faults of memory, not of limits.
fn is_access(kind: &FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::Null { .. }
            | FaultKind::Wild { .. }
            | FaultKind::Bounds { .. }
            | FaultKind::Denied { .. }
            | FaultKind::Argument { .. }
    )
}
