//! `wide-numbers`: operations of 32 bits on numbers that have no more are operations of 64.
//!
//! A register has 64 bits. An operation of 32 cuts its operands and extends its result, and compilers use those wherever C says `int`
//! (`-mcpu=v3`). What packets hold has a byte or two, and neither cut nor extension changes it. Without them the passes behind this one
//! see the same values as in programs that count in 64 bits, bytes that are put together, constants that edges hand on, checks
//! among them.
//!
//! ```text
//! v3 = ishl.i32 (ireduce v1), 8             v3 = ishl v1, 8          v1, v2 of one byte each
//! v4 = bor.i32 v3, (ireduce v2)    ──>      v4 = bor v3, v2
//! v5 = icmp eq v4, 8                        v5 = icmp eq v4, 8
//! ```

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, Inst, InstBuilder, InstructionData, Opcode, Value, ValueDef, types};
use rustc_hash::FxHashMap;

use super::known::{Incoming, upper_bound_in};
use super::value::constant;
use super::{before, replace};

/// Operations that are looked through.
const DEPTH_MAX: u32 = 12;
const LOW: u64 = u32::MAX as u64;

/// The pass over one function.
pub(super) fn run(func: &mut ir::Function, incoming: &Incoming) {
    let mut pass = Pass { incoming, made: FxHashMap::default() };
    for block in func.layout.blocks().collect::<Vec<_>>() {
        let mut next = func.layout.first_inst(block);
        while let Some(inst) = next {
            next = func.layout.next_inst(inst);
            if let Some(v) = pass.instead(func, inst) {
                replace(func, inst, v);
            }
        }
    }
}

struct Pass<'a> {
    incoming: &'a Incoming,
    /// The same numbers in 64 bits; `None` where there is no such value that is as cheap.
    made: FxHashMap<Value, Option<Value>>,
}

impl Pass<'_> {
    /// What gives the result of an instruction that extends or compares 32 bits.
    fn instead(&mut self, func: &mut ir::Function, inst: Inst) -> Option<Value> {
        match func.dfg.insts[inst] {
            InstructionData::Unary { opcode: Opcode::Uextend, arg }
                if func.dfg.value_type(func.dfg.first_result(inst)) == types::I64 =>
            {
                self.number(func, arg, DEPTH_MAX)
            }
            InstructionData::IntCompare { opcode: Opcode::Icmp, cond, args: [a, b] } => {
                // Numbers without a sign bit are in the same order with signs and without.
                let positive = |v| self.bound(func, v) <= i32::MAX as u64;
                if is_signed(cond) && !(positive(a) && positive(b)) {
                    return None;
                }
                let (a, b) = (self.number(func, a, DEPTH_MAX)?, self.number(func, b, DEPTH_MAX)?);
                Some(before(func, inst).ins().icmp(cond, a, b))
            }
            _ => None,
        }
    }

    fn bound(&self, func: &ir::Function, v: Value) -> u64 {
        upper_bound_in(func, v, self.incoming)
    }

    /// The number that a value of 32 bits is, in 64: made where the value is made.
    fn number(&mut self, func: &mut ir::Function, v: Value, depth: u32) -> Option<Value> {
        let v = func.dfg.resolve_aliases(v);
        if depth == 0 || func.dfg.value_type(v) != types::I32 {
            return None;
        }
        if let Some(known) = self.made.get(&v) {
            return *known;
        }
        let made = self.make(func, v, depth);
        self.made.insert(v, made);
        made
    }

    fn make(&mut self, func: &mut ir::Function, v: Value, depth: u32) -> Option<Value> {
        let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
        match func.dfg.insts[inst] {
            // Others do not fit into the operand of an instruction of 64 bits.
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => {
                let number = imm.bits() as u32;
                (number <= i32::MAX as u32).then(|| before(func, inst).ins().iconst(types::I64, i64::from(number)))
            }
            InstructionData::Unary { opcode: Opcode::Ireduce, arg } => (func.dfg.value_type(arg) == types::I64
                && self.bound(func, arg) <= LOW)
                .then(|| func.dfg.resolve_aliases(arg)),
            InstructionData::Binary { opcode, args: [a, b] } => self.binary(func, inst, opcode, [a, b], depth - 1),
            _ => None,
        }
    }

    fn binary(
        &mut self,
        func: &mut ir::Function,
        inst: Inst,
        opcode: Opcode,
        [a, b]: [Value; 2],
        depth: u32,
    ) -> Option<Value> {
        let fits = match opcode {
            Opcode::Band | Opcode::Bor | Opcode::Bxor => true,
            Opcode::Iadd => self.bound(func, a).saturating_add(self.bound(func, b)) <= LOW,
            Opcode::Imul => self.bound(func, a).saturating_mul(self.bound(func, b)) <= LOW,
            Opcode::Ishl => self.bound(func, a) << shift(func, b)? <= LOW,
            Opcode::Ushr => shift(func, b).is_some(),
            _ => false,
        };
        if !fits {
            return None;
        }
        if let Opcode::Ishl | Opcode::Ushr = opcode {
            let (by, a) = (shift(func, b)?, self.number(func, a, depth)?);
            let mut at = before(func, inst);
            return Some(match opcode {
                Opcode::Ishl => at.ins().ishl_imm_s(a, i64::from(by)),
                _ => at.ins().ushr_imm_u(a, i64::from(by)),
            });
        }
        let (x, y) = match (self.number(func, a, depth), self.number(func, b, depth)) {
            (Some(x), Some(y)) => (x, y),
            // What one operand has not, the other may have: a mask takes it away.
            (Some(x), None) if opcode == Opcode::Band => (x, uncut(func, b)?),
            (None, Some(y)) if opcode == Opcode::Band => (uncut(func, a)?, y),
            _ => return None,
        };
        let mut at = before(func, inst);
        Some(match opcode {
            Opcode::Band => at.ins().band(x, y),
            Opcode::Bor => at.ins().bor(x, y),
            Opcode::Bxor => at.ins().bxor(x, y),
            Opcode::Iadd => at.ins().iadd(x, y),
            _ => at.ins().imul(x, y),
        })
    }
}

/// By how much a value of 32 bits is shifted.
fn shift(func: &ir::Function, by: Value) -> Option<u32> {
    constant(func, by).map(|by| by as u32 & 31)
}

/// What a value of 32 bits is the lower half of.
fn uncut(func: &ir::Function, v: Value) -> Option<Value> {
    let ValueDef::Result(inst, 0) = func.dfg.value_def(func.dfg.resolve_aliases(v)) else { return None };
    match func.dfg.insts[inst] {
        InstructionData::Unary { opcode: Opcode::Ireduce, arg } => {
            (func.dfg.value_type(arg) == types::I64).then(|| func.dfg.resolve_aliases(arg))
        }
        _ => None,
    }
}

fn is_signed(cond: IntCC) -> bool {
    use IntCC::{SignedGreaterThan, SignedGreaterThanOrEqual, SignedLessThan, SignedLessThanOrEqual};
    matches!(cond, SignedGreaterThan | SignedGreaterThanOrEqual | SignedLessThan | SignedLessThanOrEqual)
}
