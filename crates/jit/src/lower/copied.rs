//! `inline-functions`: the blocks of a function of the program in the place of its call.

use cranelift_codegen::ir::{InstBuilder, types};
use xway_isa::Reg;

use super::Body;
use super::call::ARGS;

/// Registers that a call leaves alone.
pub(super) const KEPT: [Reg; 4] = [Reg::R6, Reg::R7, Reg::R8, Reg::R9];

impl Body<'_, '_> {
    /// Runs another function of the program here, with a stack of its own below this one's.
    pub(super) fn copied(&mut self, func: usize) {
        let callee = &self.unit.plan.funcs[func];
        let args = ARGS.map(|r| self.reg(r));
        let kept = KEPT.map(|r| self.reg(r));
        let join = self.b.create_block();
        self.b.append_block_param(join, types::I64);
        // Its stack begins where the slot does, and the caller's ends where the slot does.
        let below = self.b.ins().stack_addr(types::I64, self.stack, callee.stack as i32);

        let (plan, turns, exit, fp) = (self.plan, self.turns, self.exit, self.fp);
        let groups = self.groups;
        let (slots, blocks) = (std::mem::take(&mut self.slots), std::mem::take(&mut self.blocks));
        let (lookups, flow) = (std::mem::take(&mut self.lookups), std::mem::take(&mut self.flow));
        self.enter_function(callee);
        (self.exit, self.fp, self.is_copy) = (join, below, true);
        self.begin(&args);
        self.blocks();
        (self.plan, self.turns, self.exit, self.fp, self.is_copy) = (plan, turns, exit, fp, false);
        (self.groups, self.slots) = (groups, slots);
        (self.blocks, self.lookups, self.flow) = (blocks, lookups, flow);

        self.open(join);
        let r0 = self.b.block_params(join)[0];
        self.set(Reg::R0, r0);
        for (r, v) in KEPT.into_iter().zip(kept) {
            self.set(r, v);
        }
    }
}
