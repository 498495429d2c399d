//! Where what has no effect is computed: in the only other block that asks for it.

use std::cmp::Ordering;

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::entity::packed_option::PackedOption;
use cranelift_codegen::ir::{self, Block, Inst, InstructionData, Value};

use super::{Loops, has_effects, is_constant_load};
use crate::lanes::for_values;

/// Who uses a value.
#[derive(Clone, Copy, Default)]
struct Uses {
    /// The first instruction of the block that uses it, of those that have been gone by.
    first: PackedOption<Inst>,
    /// The only block.
    block: PackedOption<Block>,
    /// There are several.
    many: bool,
}

/// From the end of the function to its beginning; `order` is the way forth.
pub(super) fn run(func: &mut ir::Function, order: &[Block], loops: &Loops<'_>) {
    let mut uses: SecondaryMap<Value, Uses> = for_values(func);
    for block in order.iter().rev() {
        let mut before = func.layout.last_inst(*block);
        while let Some(inst) = before {
            before = func.layout.prev_inst(inst);
            let mut here = *block;
            if let [result] = *func.dfg.inst_results(inst)
                && may_move(func, inst)
            {
                let used = uses[result];
                let (Some(first), Some(there)) = (used.first.expand(), used.block.expand()) else {
                    func.layout.remove_inst(inst);
                    continue;
                };
                if !used.many && there != *block && loops.may_move(*block, there) {
                    func.layout.remove_inst(inst);
                    func.layout.insert_inst(inst, first);
                    here = there;
                }
            }
            for v in func.dfg.inst_values(inst) {
                let used = &mut uses[v];
                let known = used.block.expand();
                used.many |= known.is_some_and(|other| other != here);
                // What has moved may stand behind others of the block that it moved to.
                let is_first = here == *block
                    || known != Some(here)
                    || used.first.expand().is_none_or(|first| func.layout.pp_cmp(inst, first) == Ordering::Less);
                if is_first {
                    used.first = inst.into();
                }
                used.block = here.into();
            }
        }
    }
}

/// Nothing depends on when it runs, or whether it does.
fn may_move(func: &ir::Function, inst: Inst) -> bool {
    let data = func.dfg.insts[inst];
    let opcode = data.opcode();
    match data {
        InstructionData::Load { flags, .. } => is_constant_load(func, flags),
        _ => !has_effects(opcode) && !opcode.can_load(),
    }
}
