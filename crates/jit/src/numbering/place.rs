//! Where what has no effect is computed: in the only other block that asks for it, or in both of two that do and of which neither leads to
//! the other.

use std::cmp::Ordering;

use cranelift_codegen::dominator_tree::DominatorTree;
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::entity::packed_option::PackedOption;
use cranelift_codegen::ir::{self, Block, Inst, InstructionData, Value};

use super::{Loops, has_effects, is_constant_load};
use crate::lanes::for_values;

/// A block that uses a value, and the first of its instructions that does.
#[derive(Clone, Copy)]
struct Use {
    block: Block,
    first: Inst,
}

/// Who uses a value, of those that have been gone by.
#[derive(Clone, Copy, Default)]
struct Uses {
    blocks: [PackedOption<Block>; 2],
    firsts: [PackedOption<Inst>; 2],
    /// More blocks than two.
    many: bool,
}

impl Uses {
    fn get(&self, n: usize) -> Option<Use> {
        Some(Use { block: self.blocks[n].expand()?, first: self.firsts[n].expand()? })
    }

    /// One more, which stands in front of all others of its block unless it has moved there.
    fn add(&mut self, func: &ir::Function, inst: Inst, block: Block, moved: bool) {
        for n in 0..2 {
            match self.get(n) {
                Some(used) if used.block != block => continue,
                Some(used) if moved && func.layout.pp_cmp(used.first, inst) == Ordering::Less => {}
                _ => (self.blocks[n], self.firsts[n]) = (block.into(), inst.into()),
            }
            return;
        }
        self.many = true;
    }
}

/// From the end of the function to its beginning; `order` is the way forth.
pub(super) fn run(func: &mut ir::Function, domtree: &DominatorTree, order: &[Block], loops: &Loops<'_>) {
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
                let Some(first) = used.get(0) else {
                    func.layout.remove_inst(inst);
                    continue;
                };
                let away = |used: Use| used.block != *block && loops.may_move(*block, used.block);
                let apart = |a: Block, b: Block| !domtree.block_dominates(a, b) && !domtree.block_dominates(b, a);
                let to = match used.get(1) {
                    _ if used.many || !away(first) => None,
                    None => Some((first, None)),
                    Some(second) if away(second) && apart(first.block, second.block) => Some((first, Some(second))),
                    Some(_) => None,
                };
                if let Some((first, second)) = to {
                    if let Some(second) = second {
                        let copy = again(func, inst, second);
                        for n in 0..func.dfg.inst_args(copy).len() {
                            let v = func.dfg.inst_args(copy)[n];
                            uses[v].add(func, copy, second.block, true);
                        }
                    }
                    func.layout.remove_inst(inst);
                    func.layout.insert_inst(inst, first.first);
                    here = first.block;
                }
            }
            for v in func.dfg.inst_values(inst) {
                uses[v].add(func, inst, here, here != *block);
            }
        }
    }
}

/// Makes a value once more for a block that uses it.
fn again(func: &mut ir::Function, inst: Inst, used: Use) -> Inst {
    let copy = func.dfg.clone_inst(inst);
    let loc = func.srcloc(inst);
    func.set_srcloc(copy, loc);
    func.layout.insert_inst(copy, used.first);
    let (old, new) = (func.dfg.first_result(inst), func.dfg.first_result(copy));
    let mut next = Some(used.first);
    while let Some(inst) = next {
        func.dfg.map_inst_values(inst, |v| if v == old { new } else { v });
        next = func.layout.next_inst(inst);
    }
    copy
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
