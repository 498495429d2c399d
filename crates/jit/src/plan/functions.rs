//! `inline-functions`: small functions of a program stand in the place of their calls.
//!
//! A call costs a handful of instructions and, what is more, everything that is known about values on both sides of it: constants,
//! loads that were made already, stack bytes that are values. Functions that call nothing of the program themselves are small enough
//! to be copied. What the proof says about their accesses holds for all calls, so it holds for each.

use super::{Func, Kind, Plan};

/// Instructions of a function that is copied.
const INSNS_MAX: usize = 48;
/// Instructions that a function may grow by.
const GROWTH_MAX: usize = 1_000;

impl Plan {
    /// Marks the calls that become copies.
    pub fn inline_functions(&mut self) {
        let small: Vec<Option<usize>> = self.funcs.iter().map(|f| is_small(f).then_some(f.insns)).collect();
        for (caller, func) in self.funcs.iter_mut().enumerate() {
            let mut room = GROWTH_MAX;
            for op in func.blocks.iter_mut().flat_map(|b| &mut b.ops) {
                let Kind::Local { func: callee, inline, .. } = &mut op.kind else { continue };
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

/// Calls of functions of the program, and whether each is a copy.
fn calls(func: &Func) -> impl Iterator<Item = (usize, bool)> + '_ {
    func.blocks.iter().flat_map(|b| &b.ops).filter_map(|op| match op.kind {
        Kind::Local { func, inline, .. } => Some((func, inline)),
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
