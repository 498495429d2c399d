//! `dead-loads`: what nobody uses any more.
//!
//! Cranelift keeps a load whose result is not used. What lanes have replaced, and what clang loads and compares with nothing,
//! goes here: loads that cannot fault and all that only leads to them.

use cranelift_codegen::ir::{self, Inst, InstructionData, Value, ValueDef};

use super::Uses;

/// The pass over one function. Gives how often what is left is used.
pub(super) fn remove(func: &mut ir::Function) -> Uses {
    let mut uses = super::uses(func);
    let mut work: Vec<Inst> = vec![];
    for block in func.layout.blocks() {
        work.extend(func.layout.block_insts(block).filter(|i| is_dead(func, *i, &uses)));
    }
    while let Some(inst) = work.pop() {
        if func.layout.inst_block(inst).is_none() {
            continue;
        }
        let args: Vec<Value> = func.dfg.inst_values(inst).map(|v| func.dfg.resolve_aliases(v)).collect();
        func.layout.remove_inst(inst);
        for v in args {
            uses[v] -= 1;
            if let ValueDef::Result(from, _) = func.dfg.value_def(v)
                && func.layout.inst_block(from).is_some()
                && is_dead(func, from, &uses)
            {
                work.push(from);
            }
        }
    }
    uses
}

/// Nothing depends on whether it runs.
fn is_dead(func: &ir::Function, inst: Inst, uses: &Uses) -> bool {
    let results = func.dfg.inst_results(inst);
    if results.is_empty() || results.iter().any(|r| uses[*r] != 0) {
        return false;
    }
    let data = &func.dfg.insts[inst];
    let opcode = data.opcode();
    let acts = opcode.is_call()
        || opcode.is_branch()
        || opcode.is_terminator()
        || opcode.can_trap()
        || opcode.can_store()
        || opcode.other_side_effects();
    let may_fault = opcode.can_load()
        && match *data {
            InstructionData::Load { flags, .. } => !func.dfg.mem_flags[flags].notrap(),
            _ => true,
        };
    !acts && !may_fault
}
