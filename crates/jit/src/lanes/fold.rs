//! Folds of one's complement sums (RFC 1071) as compilers write them: halves added again and again until 16 bits are left.
//!
//! Each step `(x & mask) + (x >> bits)` waits for the one before it and is three or four instructions. A number added to itself with
//! its halves exchanged has their sum in its upper half, carry included, so two such additions take 64 bits to 16.
//!
//! Both give the same: every step keeps what is left of the number when divided by 65,535, and keeps zero apart from everything
//! else. Between 0 and 65,535 that is one number.

use cranelift_codegen::ir::{self, Block, Inst, InstBuilder, InstructionData, Opcode, Value, ValueDef, types};

use super::value::constant;
use super::{Pass, Uses, before, replace};

/// Steps that are followed: twice as many as take any number to 16 bits. A program may have thousands in a row, each of which is an end.
const STEPS_MAX: usize = 16;

/// Up to here one more step leaves 16 bits.
const NEARLY: u64 = 0x1_fffe;

impl Pass {
    /// Folds that end in a block.
    pub(super) fn folds(&mut self, func: &mut ir::Function, block: Block) {
        let ends: Vec<(Inst, Value)> =
            func.layout.block_insts(block).filter_map(|inst| Some((inst, self.folded(func, inst)?))).collect();
        // The longest first: what it makes superfluous is not looked at again.
        for (inst, sum) in ends.into_iter().rev() {
            if func.layout.inst_block(inst).is_some() && uses_low_half(func, inst, &self.uses) {
                let mut at = before(func, inst);
                let turned = at.ins().rotl_imm_u(sum, 32);
                let both = at.ins().iadd(sum, turned);
                let word = at.ins().ushr_imm_u(both, 32);
                let word = at.ins().ireduce(types::I32, word);
                let turned = at.ins().rotl_imm_u(word, 16);
                let both = at.ins().iadd(word, turned);
                let half = at.ins().ushr_imm_u(both, 16);
                let half = at.ins().uextend(types::I64, half);
                replace(func, inst, half);
            }
        }
    }

    /// The sum that an instruction folds to 16 bits, or to what has them in its lower half.
    fn folded(&self, func: &ir::Function, end: Inst) -> Option<Value> {
        let last = match step(func, end) {
            Some((last, 16)) => last,
            Some(_) => return None,
            None => half_step(func, end)?,
        };
        let (mut v, mut steps) = (last, vec![]);
        while steps.len() < STEPS_MAX
            && let ValueDef::Result(inst, 0) = func.dfg.value_def(v)
            && let Some((from, bits)) = step(func, inst)
        {
            steps.push(bits);
            v = from;
        }
        // Fewer are as cheap as they are.
        let after = |most: u64, bits: &u32| most.min((1 << bits) - 1) + (most >> bits);
        let bound = steps.iter().rev().fold(u64::MAX, after);
        (steps.len() >= 2 && bound <= NEARLY).then_some(v)
    }
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

/// Whether nobody looks at more than 16 bits of what an instruction gives; a whole step has no more.
fn uses_low_half(func: &ir::Function, inst: Inst, uses: &Uses) -> bool {
    if step(func, inst).is_some() {
        return true;
    }
    let v = func.dfg.first_result(inst);
    let Some(block) = func.layout.inst_block(inst) else { return false };
    let masks = func.layout.block_insts(block).filter(|user| {
        operands(func, *user, Opcode::Band).is_some_and(|[a, b]| {
            let mask = if a == v { b } else { a };
            (a == v) != (b == v) && constant(func, mask).is_some_and(|m| m as u64 <= 0xffff)
        })
    });
    masks.count() == uses[v] as usize
}
