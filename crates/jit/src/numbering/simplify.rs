//! What an operation gives by what its operands are.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::condcodes::{CondCode, IntCC};
use cranelift_codegen::ir::{self, Inst, InstBuilder, InstructionData, Opcode, Type, Value, ValueDef, types};

use super::{Pass, commutes};
use crate::lanes::{self, constant};

/// What may stand in the place of an operation.
pub(super) enum Simpler {
    /// A value that is there.
    Is(Value),
    /// An operation with the same result.
    Another(InstructionData),
}

use Simpler::{Another, Is};

/// Something simpler than an operation without effects, if there is.
pub(super) fn simpler(
    pass: &mut Pass<'_>,
    func: &mut ir::Function,
    inst: Inst,
    data: InstructionData,
) -> Option<Simpler> {
    let ty = func.dfg.value_type(func.dfg.inst_results(inst)[0]);
    match data {
        InstructionData::Unary { opcode, arg } => unary(func, opcode, arg, ty),
        InstructionData::Binary { opcode, args } if ty.is_int() && ty.bits() <= 64 => {
            binary(pass, func, inst, opcode, args, ty)
        }
        InstructionData::IntCompare { cond, args: [a, b], .. } => compare(func, cond, a, b),
        InstructionData::Ternary { opcode: Opcode::Select, args: [by, yes, no] } => {
            if yes == no {
                return Some(Is(yes));
            }
            constant(func, by).map(|by| Is(if by != 0 { yes } else { no }))
        }
        _ => None,
    }
}

/// All bits of a type.
fn all(ty: Type) -> u64 {
    u64::MAX >> (64 - ty.bits())
}

fn signed(v: u64, ty: Type) -> i64 {
    let up = 64 - ty.bits();
    (v << up) as i64 >> up
}

/// The number that a value of at most 64 bits is.
pub(super) fn number(func: &ir::Function, v: Value) -> Option<u64> {
    let ty = func.dfg.value_type(v);
    (ty.is_int() && ty.bits() <= 64).then(|| constant(func, v).map(|n| n as u64 & all(ty))).flatten()
}

/// The instruction of a number.
fn iconst(ty: Type, n: u64) -> Simpler {
    let imm = ir::immediates::Imm64::new((n & all(ty)) as i64);
    Another(InstructionData::UnaryImm { opcode: Opcode::Iconst, imm })
}

fn defined(func: &ir::Function, v: Value) -> Option<InstructionData> {
    match func.dfg.value_def(v) {
        ValueDef::Result(inst, 0) => Some(func.dfg.insts[inst]),
        _ => None,
    }
}

fn unary(func: &ir::Function, opcode: Opcode, arg: Value, ty: Type) -> Option<Simpler> {
    let from = func.dfg.value_type(arg);
    if !ty.is_int() || !from.is_int() || from.bits() > 64 || ty.bits() > 64 {
        return None;
    }
    if let Some(n) = number(func, arg) {
        return Some(match opcode {
            Opcode::Uextend | Opcode::Ireduce => iconst(ty, n),
            Opcode::Sextend => iconst(ty, signed(n, from) as u64),
            Opcode::Ineg => iconst(ty, n.wrapping_neg()),
            Opcode::Bnot => iconst(ty, !n),
            Opcode::Bswap => iconst(ty, n.swap_bytes() >> (64 - ty.bits())),
            _ => return None,
        });
    }
    let InstructionData::Unary { opcode: inner, arg: of } = defined(func, arg)? else { return None };
    let first = func.dfg.value_type(of);
    let again = |opcode| Some(Another(InstructionData::Unary { opcode, arg: of }));
    match (opcode, inner) {
        (Opcode::Bswap, Opcode::Bswap) | (Opcode::Ineg, Opcode::Ineg) | (Opcode::Bnot, Opcode::Bnot) => Some(Is(of)),
        (Opcode::Uextend, Opcode::Uextend) | (Opcode::Sextend, Opcode::Uextend) => again(Opcode::Uextend),
        (Opcode::Sextend, Opcode::Sextend) => again(Opcode::Sextend),
        (Opcode::Ireduce, Opcode::Ireduce) => again(Opcode::Ireduce),
        (Opcode::Ireduce, Opcode::Uextend | Opcode::Sextend) if first == ty => Some(Is(of)),
        (Opcode::Ireduce, Opcode::Uextend | Opcode::Sextend) if first.bits() > ty.bits() => again(Opcode::Ireduce),
        (Opcode::Ireduce, Opcode::Uextend | Opcode::Sextend) => again(inner),
        _ => None,
    }
}

fn folded(opcode: Opcode, a: u64, b: u64, ty: Type) -> Option<u64> {
    let by = (b & u64::from(ty.bits() - 1)) as u32;
    Some(match opcode {
        Opcode::Iadd => a.wrapping_add(b),
        Opcode::Isub => a.wrapping_sub(b),
        Opcode::Imul => a.wrapping_mul(b),
        Opcode::Band => a & b,
        Opcode::Bor => a | b,
        Opcode::Bxor => a ^ b,
        Opcode::Ishl => a << by,
        Opcode::Ushr => a >> by,
        Opcode::Sshr => (signed(a, ty) >> by) as u64,
        _ => return None,
    })
}

fn binary(
    pass: &mut Pass<'_>,
    func: &mut ir::Function,
    inst: Inst,
    opcode: Opcode,
    [a, b]: [Value; 2],
    ty: Type,
) -> Option<Simpler> {
    let (left, right) = (number(func, a), number(func, b));
    if let (Some(x), Some(y)) = (left, right) {
        return folded(opcode, x, y, ty).map(|n| iconst(ty, n));
    }
    // A constant stands behind what it is computed with.
    let (a, b, n) = match (left, right) {
        (Some(n), None) if commutes(opcode) => (b, a, Some(n)),
        (_, n) => (a, b, n),
    };
    let Some(n) = n else {
        if pass.same(a, b) {
            return match opcode {
                Opcode::Isub | Opcode::Bxor => Some(iconst(ty, 0)),
                Opcode::Band | Opcode::Bor => Some(Is(a)),
                _ => None,
            };
        }
        return None;
    };
    let by = n & u64::from(ty.bits() - 1);
    match (opcode, n) {
        (Opcode::Iadd | Opcode::Isub | Opcode::Bor | Opcode::Bxor, 0) => return Some(Is(a)),
        (Opcode::Ishl | Opcode::Ushr | Opcode::Sshr | Opcode::Rotl | Opcode::Rotr, _) if by == 0 => return Some(Is(a)),
        (Opcode::Imul, 1) => return Some(Is(a)),
        (Opcode::Imul | Opcode::Band, 0) => return Some(iconst(ty, 0)),
        (Opcode::Band, n) if n == all(ty) => return Some(Is(a)),
        (Opcode::Bor, n) if n == all(ty) => return Some(iconst(ty, n)),
        (Opcode::Imul, n) if n.is_power_of_two() => {
            let by = pass.constant(func, inst, ty, u64::from(n.trailing_zeros()));
            return Some(Another(InstructionData::Binary { opcode: Opcode::Ishl, args: [a, by] }));
        }
        (Opcode::Isub, n) => {
            let minus = pass.constant(func, inst, ty, n.wrapping_neg());
            return Some(Another(InstructionData::Binary { opcode: Opcode::Iadd, args: [a, minus] }));
        }
        _ => {}
    }
    // Two such operations one behind the other, with two constants.
    let InstructionData::Binary { opcode: inner, args: [x, y] } = defined(func, a)? else { return None };
    let (x, m) = match (number(func, x), number(func, y)) {
        (None, Some(m)) => (x, m),
        (Some(m), None) if commutes(inner) => (y, m),
        _ => return None,
    };
    let mut again = |n: u64| {
        let n = pass.constant(func, inst, ty, n);
        Some(Another(InstructionData::Binary { opcode, args: [x, n] }))
    };
    let bits = u64::from(ty.bits());
    match (opcode, inner) {
        (Opcode::Iadd, Opcode::Iadd) => again(m.wrapping_add(n)),
        (Opcode::Band, Opcode::Band) => again(m & n),
        (Opcode::Bor, Opcode::Bor) => again(m | n),
        (Opcode::Bxor, Opcode::Bxor) => again(m ^ n),
        (Opcode::Ishl, Opcode::Ishl) | (Opcode::Ushr, Opcode::Ushr) => {
            let both = (m & (bits - 1)) + by;
            if both < bits { again(both) } else { Some(iconst(ty, 0)) }
        }
        // The lower part of a number, as clang cuts it off.
        (Opcode::Ushr | Opcode::Sshr, Opcode::Ishl) if m & (bits - 1) == by && ty == types::I64 => {
            let part = Type::int(64 - by as u16).filter(|part| part.bits() >= 8)?;
            let loc = func.srcloc(inst);
            let cut = FuncCursor::new(func).at_inst(inst).with_srcloc(loc).ins().ireduce(part, x);
            let opcode = if opcode == Opcode::Ushr { Opcode::Uextend } else { Opcode::Sextend };
            Some(Another(InstructionData::Unary { opcode, arg: cut }))
        }
        _ => None,
    }
}

fn compare(func: &ir::Function, cond: IntCC, a: Value, b: Value) -> Option<Simpler> {
    let ty = func.dfg.value_type(a);
    if !ty.is_int() || ty.bits() > 64 {
        return None;
    }
    if a == b {
        let holds = matches!(
            cond,
            IntCC::Equal
                | IntCC::UnsignedLessThanOrEqual
                | IntCC::UnsignedGreaterThanOrEqual
                | IntCC::SignedLessThanOrEqual
                | IntCC::SignedGreaterThanOrEqual
        );
        return Some(iconst(types::I8, u64::from(holds)));
    }
    let y = number(func, b)?;
    if let Some(x) = number(func, a) {
        return Some(iconst(types::I8, u64::from(lanes::compare(cond, x, y, ty.bits()))));
    }
    // An outcome that is compared with zero is that outcome, or the other one.
    if y == 0
        && matches!(cond, IntCC::Equal | IntCC::NotEqual)
        && let Some(InstructionData::IntCompare { opcode, cond: inner, args }) = defined(func, a)
    {
        let inner = if cond == IntCC::NotEqual { inner } else { inner.complement() };
        return Some(Another(InstructionData::IntCompare { opcode, cond: inner, args }));
    }
    None
}

impl Pass<'_> {
    /// Whether two values are one number.
    pub(super) fn same(&self, a: Value, b: Value) -> bool {
        let number = |v: Value| self.numbers[v].expand().unwrap_or(v);
        number(a) == number(b)
    }

    /// A number in front of an instruction.
    pub(super) fn constant(&mut self, func: &mut ir::Function, inst: Inst, ty: Type, n: u64) -> Value {
        let loc = func.srcloc(inst);
        let v = FuncCursor::new(func).at_inst(inst).with_srcloc(loc).ins().iconst(ty, (n & all(ty)) as i64);
        let made = func.dfg.value_def(v).unwrap_inst();
        let key = self.keyed(func, func.dfg.insts[made], ty);
        match self.found.get(&key) {
            Some(before) if before.block == self.here => {
                let value = before.value;
                func.layout.remove_inst(made);
                return value;
            }
            Some(before) => self.numbers[v] = self.numbers[before.value].expand().unwrap_or(before.value).into(),
            None => {}
        }
        self.found.insert(key, super::Found { value: v, block: self.here });
        v
    }
}
