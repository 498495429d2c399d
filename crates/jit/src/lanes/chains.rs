//! Long chains of constants that are added one after the other: a pointer that a program moves on and on.
//!
//! What an address is counted from is asked for again and again: of each access, of each check of a length. In a program of a few thousand
//! such steps every answer would be a walk over thousands of them. Every so many steps the number is made from the chain's beginning.
//!
//! And the sums of a pointer and such a counter, as a loop's turns have them one behind the other: they are made from the first of them, so
//! that all accesses are seen to be side by side.

use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{self, Block, Inst, InstBuilder, InstructionData, Opcode, Value, types};
use rustc_hash::FxHashMap;

use super::value::constant;
use super::{before, memory};

/// Additions one behind the other that are left as they are.
const LENGTH_MAX: u32 = 16;

/// `v1 = v0 + 1`, `v2 = v1 + 1`, ... and in place of one of many `v16 = v15 + 1`: `v16 = v0 + 16`.
pub(super) fn run(func: &mut ir::Function) {
    let mut lengths: SecondaryMap<Value, u32> = SecondaryMap::new();
    lengths.resize(func.dfg.num_values());
    let insts: Vec<Inst> = func.layout.blocks().flat_map(|block| func.layout.block_insts(block)).collect();
    for inst in insts {
        let Some(from) = moved(func, inst) else { continue };
        let sum = func.dfg.first_result(inst);
        let mut length = lengths[from].saturating_add(1);
        if length > LENGTH_MAX {
            let (base, off) = memory::start(func, sum);
            // What is counted from a number is a counter, and no address.
            if base != from && base != sum && constant(func, base).is_none() {
                let off = before(func, inst).ins().iconst(types::I64, off);
                func.dfg.insts[inst] = InstructionData::Binary { opcode: Opcode::Iadd, args: [base, off] };
                length = lengths[base].saturating_add(1);
            }
        }
        lengths[sum] = length;
    }
    let mut found = vec![];
    for block in func.layout.blocks().collect::<Vec<Block>>() {
        sums(func, block, &mut found);
    }
}

/// Of a block's `v3 = v0 + (v1 + 4)` and `v4 = v0 + (v1 + 8)`: `v2 = v0 + v1` in front of the first, `v3 = v2 + 4`, `v4 = v2 + 8`.
fn sums(func: &mut ir::Function, block: Block, found: &mut Vec<([Value; 2], Inst, i64)>) {
    found.clear();
    for inst in func.layout.block_insts(block) {
        let InstructionData::Binary { opcode: Opcode::Iadd, args } = func.dfg.insts[inst] else { continue };
        if func.dfg.value_type(func.dfg.first_result(inst)) != types::I64 {
            continue;
        }
        let [(a, by), (b, more)] = args.map(|v| memory::start(func, v));
        if constant(func, a).is_none() && constant(func, b).is_none() {
            found.push(([a.min(b), a.max(b)], inst, by + more));
        }
    }
    // One has nothing to share, and most blocks have none.
    if found.len() < 2 {
        return;
    }
    let mut all: FxHashMap<[Value; 2], Vec<(Inst, i64)>> = FxHashMap::default();
    let mut order = vec![];
    for (both, inst, off) in found.iter() {
        let same = all.entry(*both).or_default();
        if same.len() == 1 {
            order.push(*both);
        }
        same.push((*inst, *off));
    }
    for both in order {
        let [(first, off), ref rest @ ..] = all[&both][..] else { unreachable!("two at least") };
        if rest.iter().all(|(_, other)| *other == off) {
            continue;
        }
        let from = if off == 0 {
            func.dfg.first_result(first)
        } else {
            let from = before(func, first).ins().iadd(both[0], both[1]);
            add(func, first, from, off);
            from
        };
        for (inst, off) in rest {
            add(func, *inst, from, *off);
        }
    }
}

/// Makes an instruction `from + off`.
fn add(func: &mut ir::Function, inst: Inst, from: Value, off: i64) {
    let off = before(func, inst).ins().iconst(types::I64, off);
    func.dfg.insts[inst] = InstructionData::Binary { opcode: Opcode::Iadd, args: [from, off] };
}

/// What an instruction adds a constant to.
fn moved(func: &ir::Function, inst: Inst) -> Option<Value> {
    let InstructionData::Binary { opcode: Opcode::Iadd, args } = func.dfg.insts[inst] else { return None };
    let [a, b] = args.map(|v| func.dfg.resolve_aliases(v));
    if func.dfg.value_type(a) != types::I64 {
        return None;
    }
    match (constant(func, a), constant(func, b)) {
        (_, Some(_)) => Some(a),
        (Some(_), None) => Some(b),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::cursor::{Cursor, FuncCursor};

    use super::*;

    #[test]
    fn what_a_number_is_counted_from_is_found_in_few_steps() {
        let mut func = ir::Function::new();
        let block = func.dfg.make_block();
        func.layout.append_block(block);
        let first = func.dfg.append_block_param(block, types::I64);
        let mut at = FuncCursor::new(&mut func).at_bottom(block);
        let (mut v, mut all) = (first, vec![]);
        for n in 0..1_000 {
            v = at.ins().iadd_imm_s(v, if n % 3 == 0 { -5 } else { 40 });
            all.push(v);
        }
        run(&mut func);
        let mut sum = 0;
        for (n, v) in all.into_iter().enumerate() {
            sum += if n % 3 == 0 { -5 } else { 40 };
            assert_eq!(memory::start(&func, v), (first, sum));
            let back = |v: &Value| func.dfg.value_def(*v).inst().and_then(|inst| moved(&func, inst));
            assert!(std::iter::successors(Some(v), back).count() <= LENGTH_MAX as usize + 1, "{n}");
        }
    }
}
