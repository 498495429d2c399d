//! Starting a program, and the two ways in which a running one reaches beyond itself: tail calls and data sections.

use xway_packet::Frame;

use crate::addr::{self, POISON, at, offset, region};
use crate::fault::{FaultKind, Trap};
use crate::interp::Stopped;
use crate::mem::Vm;
use crate::{Env, Outcome, Program};

/// Tail calls that one run may make (`MAX_TAIL_CALL_CNT`).
pub const TAIL_CALLS_MAX: u32 = 33;

/// Runs a program over a packet: r1 is the context. The packet may come back changed, moved, and with a redirect target.
pub fn run<'e>(program: &'e Program, frame: &mut Frame, env: &mut Env<'e>) -> Outcome {
    frame.set_redirect(xway_packet::Redirect::None);
    start(program, Vm::new(env, Some(frame), &mut []), [at(addr::CTX, 0), POISON, POISON, POISON, POISON]).0
}

/// Goes on in `program` after `tail_calls` tail calls, over a packet whose redirect target stays: what a tail call from
/// compiled code into a program that is not compiled does. Those that are made from here on are added: where a function left, its
/// caller goes on, and has only the rest.
pub fn run_tail<'e>(program: &'e Program, frame: &mut Frame, env: &mut Env<'e>, tail_calls: &mut u32) -> Outcome {
    let mut vm = Vm::new(env, Some(frame), &mut []);
    vm.tail_calls = *tail_calls;
    let (outcome, made) = start(program, vm, [at(addr::CTX, 0), POISON, POISON, POISON, POISON]);
    *tail_calls = made;
    outcome
}

/// Runs a raw program over plain memory: r1 is its address, r2 its length; without memory both are 0.
pub fn run_raw<'e>(program: &'e Program, memory: &mut [u8], env: &mut Env<'e>) -> Outcome {
    let len = memory.len() as u64;
    let start_addr = if len == 0 { 0 } else { at(addr::RAW, 0) };
    start(program, Vm::new(env, None, memory), [start_addr, len, POISON, POISON, POISON]).0
}

/// How it ended, and after how many tail calls.
fn start<'e>(program: &'e Program, mut vm: Vm<'_, 'e>, args: [u64; 5]) -> (Outcome, u32) {
    let result = vm.call(program, 0, args);
    let insns = vm.env.budget - vm.fuel;
    let fault = vm.stopped.take();
    if result.is_err() {
        // The functions that were active have left their stacks as they were.
        (0..vm.depth).for_each(|frame| vm.clean_stack(frame));
    }
    vm.clean_up();
    vm.env.state.stack = Some(vm.stack);
    let outcome = match result {
        Ok(ret) => Outcome { ret, fault: None, insns },
        Err(Stopped) => Outcome { ret: 0, fault, insns },
    };
    (outcome, vm.tail_calls)
}

impl<'e> Vm<'_, 'e> {
    /// Gives back what a program may have left behind: a held lock, reserved records.
    pub(crate) fn clean_up(&mut self) {
        let lock = std::mem::take(&mut self.env.state.lock);
        if lock != 0
            && let Ok(place) = self.place(lock, 4)
        {
            place.spin_unlock(0);
        }
        // Records that were neither submitted nor discarded are discarded when their grants go.
        let state = &mut self.env.state;
        state.grants.clear();
        state.inner.clear();
        if !state.index.is_empty() || !state.free.is_empty() {
            state.index.clear();
            state.free.clear();
        }
    }

    /// Where `bpf_tail_call(ctx, map, index)` goes. `None`: it falls through, because the limit is reached or there is no
    /// program.
    #[inline(never)]
    pub(crate) fn tail_target(&mut self, program: &'e Program, r: [u64; 3]) -> Result<Option<&'e Program>, Trap> {
        let refused = |why: String| Err(Box::new(FaultKind::Call(format!("call of bpf_tail_call: {why}"))));
        if r[0] != at(addr::CTX, 0) {
            return refused("argument 1 is not the context".into());
        }
        let map = (region(r[1]) == addr::MAP).then(|| program.maps.get(offset(r[1]) as usize)).flatten();
        let Some(map) = map.filter(|m| m.map_type() == xway_abi::MapType::ProgArray) else {
            return refused(format!("argument 2 is {}, not a PROG_ARRAY", self.describe(r[1])));
        };
        // The index is 32 bits wide, whatever stands above.
        let Some(next) = map.program(r[2] as u32, self.env.guard) else { return Ok(None) };
        if self.tail_calls >= TAIL_CALLS_MAX {
            return Ok(None);
        }
        let Some(next) = next.as_any().downcast_ref::<Program>() else {
            return refused(format!("the program at index {} was not linked for this engine", r[2] as u32));
        };
        self.tail_calls += 1;
        Ok(Some(next))
    }

    /// The address of a byte in a data section's map.
    #[inline(never)]
    pub(crate) fn data_value(&mut self, program: &Program, map: usize, off: u32) -> Result<u64, Trap> {
        let map = &program.maps[map];
        match map.value(self.env.cpu, &[0; 4], self.env.guard) {
            Some(value) => {
                let base = self.grant_value(value, map.prog_readable(), map.prog_writable())?;
                Ok(base.wrapping_add(off.into()))
            }
            None => {
                Err(Box::new(FaultKind::Call(format!("map {} has no value whose address could be taken", map.name()))))
            }
        }
    }
}
