//! Folds of one's complement sums (RFC 1071) as compilers write them: halves added again and again until 16 bits are left.
//!
//! Each step `(x & mask) + (x >> bits)` waits for the one before it and is three or four instructions. A number added to itself with
//! its halves exchanged has their sum in its upper half, carry included, so two such additions take 64 bits to 16, and one takes 32.
//!
//! Both give the same: every step keeps what is left of the number when divided by 65,535, and keeps zero apart from everything
//! else. Between 0 and 65,535 that is one number.

use cranelift_codegen::ir::{self, Block, Inst, InstBuilder, InstructionData, Opcode, Value, ValueDef, types};
use rustc_hash::FxHashMap;

use super::known::upper_bound;
use super::value::constant;
use super::{Pass, before, replace};

/// Up to here one more step leaves 16 bits.
const NEARLY: u64 = 0x1_fffe;
/// Steps that are followed: five take any number there, and what is in front of them is a number like any other.
const STEPS_MAX: usize = 16;

impl Pass {
    /// Folds that end in a block.
    pub(super) fn folds(&mut self, func: &mut ir::Function, block: Block) {
        let ends: Vec<(Inst, Sum)> =
            func.layout.block_insts(block).filter_map(|inst| Some((inst, folded(func, inst)?))).collect();
        if ends.is_empty() {
            return;
        }
        let lower = self.lower_halves(func, block);
        // The longest first: what it makes superfluous is not looked at again.
        for (inst, Sum { value: sum, long }) in ends.into_iter().rev() {
            // A whole step has no more than 16 bits.
            let uses = self.uses[func.dfg.first_result(inst)];
            let of_low_half = || lower.get(&func.dfg.first_result(inst)).copied().unwrap_or(0) == uses;
            if func.layout.inst_block(inst).is_some() && (step(func, inst).is_some() || of_low_half()) {
                let mut at = before(func, inst);
                let word = match long {
                    true => {
                        let turned = at.ins().rotl_imm_u(sum, 32);
                        let both = at.ins().iadd(sum, turned);
                        at.ins().ushr_imm_u(both, 32)
                    }
                    false => sum,
                };
                let word = at.ins().ireduce(types::I32, word);
                let turned = at.ins().rotl_imm_u(word, 16);
                let both = at.ins().iadd(word, turned);
                let half = at.ins().ushr_imm_u(both, 16);
                let half = at.ins().uextend(types::I64, half);
                replace(func, inst, half);
            }
        }
    }

    /// How often uses in a block take no more than the lower 16 bits of a value: a mask, a store, a cut, what shifts all others out, or
    /// what turns bits over of which no more is taken.
    fn lower_halves(&self, func: &ir::Function, block: Block) -> FxHashMap<Value, u32> {
        let mut lower: FxHashMap<Value, u32> = FxHashMap::default();
        let mut next = func.layout.last_inst(block);
        // From the end: what becomes of a result is known then.
        while let Some(inst) = next {
            next = func.layout.prev_inst(inst);
            let result = func.dfg.inst_results(inst).first().copied();
            let half = |v: Value| func.dfg.value_type(v) == types::I64;
            let is_mask = |v: Value| constant(func, v).is_some_and(|m| (0..=0xffff).contains(&m));
            let taken: &[Value] = match &func.dfg.insts[inst] {
                InstructionData::Binary { opcode: Opcode::Band, args: [a, b] } if is_mask(*b) && !is_mask(*a) => &[*a],
                InstructionData::Binary { opcode: Opcode::Band, args: [a, b] } if is_mask(*a) && !is_mask(*b) => &[*b],
                InstructionData::Binary { opcode: Opcode::Ishl, args: [a, by] }
                    if half(*a) && constant(func, *by).is_some_and(|by| (48..64).contains(&by)) =>
                {
                    &[*a]
                }
                InstructionData::Store { opcode: Opcode::Istore8 | Opcode::Istore16, args: [v, _], .. } => &[*v],
                InstructionData::Unary { opcode: Opcode::Ireduce, arg }
                    if result.is_some_and(|r| func.dfg.value_type(r).bits() <= 16) =>
                {
                    &[*arg]
                }
                InstructionData::Binary { opcode: Opcode::Bxor, args } if self.takes_half(&lower, result) => args,
                InstructionData::Unary { opcode: Opcode::Bnot, arg } if self.takes_half(&lower, result) => &[*arg],
                _ => &[],
            };
            for v in taken {
                *lower.entry(func.dfg.resolve_aliases(*v)).or_default() += 1;
            }
        }
        lower
    }

    /// Whether no more is taken of a result.
    fn takes_half(&self, lower: &FxHashMap<Value, u32>, result: Option<Value>) -> bool {
        result.is_some_and(|v| lower.get(&v) == Some(&self.uses[v]))
    }
}

/// A number that is folded.
struct Sum {
    value: Value,
    /// It may have more than 32 bits.
    long: bool,
}

/// The sum that an instruction folds to 16 bits, or to what has them in its lower half.
fn folded(func: &ir::Function, end: Inst) -> Option<Sum> {
    let last = match step(func, end) {
        Some((last, 16)) => last,
        Some(_) => return None,
        None => half_step(func, end)?,
    };
    let (value, steps) = steps(func, last);
    if steps.is_empty() {
        return None;
    }
    let largest = upper_bound(func, value);
    let after = |most: u64, bits: &u32| most.min((1 << bits) - 1) + (most >> bits);
    let bound = steps.iter().rev().fold(largest, after);
    let long = largest > u64::from(u32::MAX);
    // Fewer steps are as cheap as they are.
    (steps.len() > usize::from(long) && bound <= NEARLY).then_some(Sum { value, long })
}

/// The number that so many steps make another of, and the bits of each, the last first.
fn steps(func: &ir::Function, last: Value) -> (Value, Vec<u32>) {
    let (mut v, mut steps) = (last, vec![]);
    while steps.len() < STEPS_MAX
        && let ValueDef::Result(inst, 0) = func.dfg.value_def(v)
        && let Some((from, bits)) = step(func, inst)
    {
        steps.push(bits);
        v = from;
    }
    (v, steps)
}

/// The number and its bits, where an instruction adds the lower so many bits of a number to the others.
fn step(func: &ir::Function, inst: Inst) -> Option<(Value, u32)> {
    let [a, b] = operands(func, inst, Opcode::Iadd)?;
    [(a, b), (b, a)].into_iter().find_map(|(low, high)| {
        let (of, bits) = shifted(func, high, Opcode::Ushr)?;
        (matches!(bits, 16 | 32) && lower(func, low)? == (of, bits)).then_some((of, bits))
    })
}

/// The number, where an instruction adds a number to its own upper 48 bits.
fn half_step(func: &ir::Function, inst: Inst) -> Option<Value> {
    let [a, b] = operands(func, inst, Opcode::Iadd)?;
    [(a, b), (b, a)]
        .into_iter()
        .find_map(|(all, high)| (shifted(func, high, Opcode::Ushr)? == (all, 16)).then_some(all))
}

/// The number that a value is the lower bits of, and how many.
fn lower(func: &ir::Function, v: Value) -> Option<(Value, u32)> {
    let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
    if let Some([a, b]) = operands(func, inst, Opcode::Band) {
        let (of, mask) = constant(func, b).map(|m| (a, m)).or_else(|| Some((b, constant(func, a)?)))?;
        return match mask as u64 {
            0xffff => Some((of, 16)),
            0xffff_ffff => Some((of, 32)),
            _ => None,
        };
    }
    // Up and down again.
    if let Some((up, 32)) = shifted(func, v, Opcode::Ushr) {
        let (of, bits) = shifted(func, up, Opcode::Ishl)?;
        return (bits == 32).then_some((of, 32));
    }
    let narrow = unary(func, v, Opcode::Uextend)?;
    let of = unary(func, narrow, Opcode::Ireduce)?;
    let bits = func.dfg.value_type(narrow).bits();
    (matches!(bits, 16 | 32) && func.dfg.value_type(of) == types::I64).then_some((of, bits))
}

/// Operands of an instruction on numbers of 64 bits.
fn operands(func: &ir::Function, inst: Inst, wanted: Opcode) -> Option<[Value; 2]> {
    match func.dfg.insts[inst] {
        InstructionData::Binary { opcode, args }
            if opcode == wanted && func.dfg.value_type(func.dfg.first_result(inst)) == types::I64 =>
        {
            Some(args.map(|v| func.dfg.resolve_aliases(v)))
        }
        _ => None,
    }
}

fn shifted(func: &ir::Function, v: Value, wanted: Opcode) -> Option<(Value, u32)> {
    let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
    let [of, by] = operands(func, inst, wanted)?;
    Some((of, constant(func, by)? as u32))
}

fn unary(func: &ir::Function, v: Value, wanted: Opcode) -> Option<Value> {
    let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
    match func.dfg.insts[inst] {
        InstructionData::Unary { opcode, arg } if opcode == wanted => Some(func.dfg.resolve_aliases(arg)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::cursor::{Cursor, FuncCursor};

    use super::*;

    /// Each step of a program of nothing but steps is an end.
    #[test]
    fn a_chain_is_not_followed_from_each_of_its_ends_to_its_beginning() {
        let mut func = ir::Function::new();
        let block = func.dfg.make_block();
        func.layout.append_block(block);
        let first = func.dfg.append_block_param(block, types::I64);
        let mut at = FuncCursor::new(&mut func).at_bottom(block);
        let (mut v, mut all) = (first, vec![]);
        for _ in 0..1_000 {
            let high = at.ins().ushr_imm_u(v, 16);
            let low = at.ins().band_imm_s(v, 0xffff);
            v = at.ins().iadd(low, high);
            all.push(v);
        }
        let walked: usize = all.iter().map(|last| steps(&func, *last).1.len()).sum();
        assert!(walked <= STEPS_MAX * all.len(), "{walked}");
        assert_eq!(steps(&func, all[4]), (first, vec![16; 5]), "five are all followed");
    }
}
