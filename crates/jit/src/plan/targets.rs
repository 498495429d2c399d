//! `inline-tail-targets`: which tail calls go to a program that is known already.
//!
//! A tail call with a constant index into a PROG_ARRAY nearly always goes where it went the last time. The program that stands
//! there when code is made becomes part of the same burst function; the call looks whether the slot still names it and jumps.
//! The slot names a program by the address of a word inside it, and the code keeps that memory (not the program) from being
//! used for another: an equal address is the same program.

use std::sync::Arc;

use xway_isa::{MovExt, Operand, Reg, Width};
use xway_maps::{Guard, Map, ProgramObject};
use xway_vm::Program;

use super::{Block, Func, Kind};

/// A tail call whose target is known.
pub(crate) struct Known {
    pub insn: usize,
    pub index: u32,
    pub program: Arc<Program>,
    pub cell: usize,
}

/// Those of a function, by what PROG_ARRAYs hold now.
pub(crate) fn known(func: &Func, maps: &[Arc<Map>], guard: &Guard) -> Vec<Known> {
    let one = |block: &Block, n: usize| {
        let Kind::Helper(call) = &block.ops[n].kind else { return None };
        let map = maps.get(call.map.filter(|_| call.proto.is_tail_call())? as usize)?;
        // The index is 32 bits wide, whatever stands above.
        let index = constant(block, n, Reg::R3)? as u32;
        let program = map.program(index, guard)?.as_any().downcast_ref::<Program>()?.arc()?;
        let cell = program.entry()?.as_ptr() as usize;
        Some(Known { insn: block.ops[n].at, index, program, cell })
    };
    let all = func.blocks.iter().flat_map(|b| (0..b.ops.len()).map(move |n| (b, n)));
    all.filter_map(|(block, n)| one(block, n)).collect()
}

/// A register's value in front of an operation, when the block itself sets it to a constant.
pub(super) fn constant(block: &Block, n: usize, reg: Reg) -> Option<u64> {
    let last = block.ops[..n].iter().rev().find(|op| op.kind.sets(reg))?;
    match last.kind {
        Kind::Const { value, .. } => Some(value),
        Kind::Mov { width: Width::W32, src: Operand::Imm(i), ext: MovExt::None, .. } => Some(u64::from(i as u32)),
        Kind::Mov { width: Width::W64, src: Operand::Imm(i), ext: MovExt::None, .. } => Some(i as u64),
        _ => None,
    }
}

impl Kind {
    /// Whether it may change a register.
    pub(super) fn sets(&self, reg: Reg) -> bool {
        match self {
            Kind::Alu { dst, .. }
            | Kind::Mov { dst, .. }
            | Kind::Neg { dst, .. }
            | Kind::Truncate { dst, .. }
            | Kind::Swap { dst, .. }
            | Kind::Const { dst, .. }
            | Kind::Map { dst, .. }
            | Kind::Value { dst, .. }
            | Kind::Func { dst, .. }
            | Kind::Ctx { dst, .. }
            | Kind::Load { dst, .. }
            | Kind::LoadAcquire { dst, .. } => *dst == reg,
            Kind::Store { .. } | Kind::StoreRelease { .. } => false,
            Kind::Atomic { src, .. } => *src == reg || reg == Reg::R0,
            Kind::Helper(_) | Kind::Fetch { .. } | Kind::Kfunc { .. } | Kind::Local { .. } => reg.index() <= 5,
            Kind::Enter { .. } | Kind::Leave { .. } => true,
        }
    }
}
