//! `inline-functions`: small functions of a program stand in the place of their calls.
//!
//! A call costs a handful of instructions and, what is more, everything that is known about values on both sides of it: constants,
//! loads that were made already, stack bytes that are values. Functions that call nothing of the program themselves are small enough
//! to be copied, also into the loops of `bpf_loop` and `bpf_for_each_map_elem` that call them back. What the proof says about their accesses
//! holds for all calls, so it holds for each.

use std::sync::Arc;

use xway_isa::{MovExt, Operand, Reg, Width};
use xway_maps::Map;
use xway_maps::native::MapLayout;

use super::{Block, Call, Func, Kind, Op, Plan, Turns};

/// `bpf_loop`
const LOOP: u32 = 181;
/// `bpf_for_each_map_elem`
pub(crate) const EACH: u32 = 164;

/// Instructions of a function that is copied.
const INSNS_MAX: usize = 48;
/// Instructions that a function may grow by.
const GROWTH_MAX: usize = 1_000;

impl Plan {
    /// Marks the calls that become copies.
    pub fn inline_functions(&mut self, maps: &[Arc<Map>]) {
        let small: Vec<Option<usize>> = self.funcs.iter().map(|f| is_small(f).then_some(f.insns)).collect();
        // A loop of no turns has a callback that no run comes to: there is no code of it.
        let live: Vec<bool> = self.funcs.iter().map(|f| f.insns > 0).collect();
        for (caller, func) in self.funcs.iter_mut().enumerate() {
            let mut room = GROWTH_MAX;
            func.blocks.iter_mut().for_each(|block| find_turns(block, &live, maps));
            for op in func.blocks.iter_mut().flat_map(|b| &mut b.ops) {
                let (callee, inline) = match &mut op.kind {
                    Kind::Local { func, inline, .. } => (func, inline),
                    Kind::Helper(Call { turns: Some(Turns { func, inline }), .. }) => (func, inline),
                    _ => continue,
                };
                let Some(insns) = small.get(*callee).copied().flatten().filter(|_| *callee != caller) else { continue };
                if let Some(rest) = room.checked_sub(insns) {
                    (room, *inline) = (rest, true);
                }
            }
            func.insns += GROWTH_MAX - room;
        }
    }

    /// Whether a function is called somewhere, or its address is taken.
    pub fn is_called(&self, func: usize) -> bool {
        self.funcs[func].callback || self.calls().any(|(callee, inline)| callee == func && !inline)
    }

    /// The most stack that a copied function of this one needs, bytes.
    pub fn inlined_stack(&self, func: &Func) -> u32 {
        let copied = calls(func).filter(|(_, inline)| *inline);
        copied.map(|(callee, _)| self.funcs[callee].stack).max().unwrap_or(0)
    }

    fn calls(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.funcs.iter().flat_map(calls)
    }
}

/// Finds calls of `bpf_loop`, and of `bpf_for_each_map_elem` in arrays, over functions that their blocks name.
fn find_turns(block: &mut Block, live: &[bool], maps: &[Arc<Map>]) {
    let is_loop = |call: &Call| match call.proto.id {
        LOOP => true,
        EACH => {
            let map = call.map.and_then(|map| maps.get(map as usize));
            matches!(map.map(|map| map.layout()), Some(MapLayout::Array(_) | MapLayout::PercpuArray(_)))
        }
        _ => false,
    };
    for n in 0..block.ops.len() {
        if !matches!(&block.ops[n].kind, Kind::Helper(call) if is_loop(call)) {
            continue;
        }
        let func = function(&block.ops[..n], Reg::R2).filter(|func| live[*func]);
        if let Kind::Helper(call) = &mut block.ops[n].kind {
            call.turns = func.map(|func| Turns { func, inline: false });
        }
    }
}

/// The function whose address a register holds behind these operations, when they say so.
fn function(ops: &[Op], reg: Reg) -> Option<usize> {
    let set = ops.iter().rposition(|op| op.kind.sets(reg))?;
    match ops[set].kind {
        Kind::Func { func, .. } => Some(func),
        Kind::Mov { width: Width::W64, src: Operand::Reg(from), ext: MovExt::None, .. } => function(&ops[..set], from),
        _ => None,
    }
}

/// Calls of functions of the program, and whether each is a copy.
fn calls(func: &Func) -> impl Iterator<Item = (usize, bool)> + '_ {
    func.blocks.iter().flat_map(|b| &b.ops).filter_map(|op| match op.kind {
        Kind::Local { func, inline, .. } | Kind::Helper(Call { turns: Some(Turns { func, inline }), .. }) => {
            Some((func, inline))
        }
        _ => None,
    })
}

/// Short, and without what depends on being a function of its own: further calls, callbacks, tail calls, counted loops.
fn is_small(func: &Func) -> bool {
    let stays = |kind: &Kind| match kind {
        Kind::Local { .. } | Kind::Func { .. } => true,
        Kind::Helper(call) => call.proto.is_tail_call(),
        _ => false,
    };
    (1..=INSNS_MAX).contains(&func.insns)
        && !func.may_goto
        && !func.blocks.iter().flat_map(|b| &b.ops).any(|op| stays(&op.kind))
}
