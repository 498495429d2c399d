//! Arithmetic (RFC 9669 section 4.1): division by zero gives 0, remainder by zero the dividend, quotients that do not fit wrap.

use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use xway_isa::{AluOp, MovExt, Operand, Reg, Width};

use super::Body;

impl Body<'_, '_> {
    pub(super) fn alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Operand) {
        let a = self.narrow(dst, width);
        let b = self.operand(src, width);
        let constant = if let Operand::Imm(i) = src { Some(i) } else { None };
        let v = match op {
            AluOp::Add => self.b.ins().iadd(a, b),
            AluOp::Sub => self.b.ins().isub(a, b),
            AluOp::Mul => self.b.ins().imul(a, b),
            AluOp::Or => self.b.ins().bor(a, b),
            AluOp::And => self.b.ins().band(a, b),
            AluOp::Xor => self.b.ins().bxor(a, b),
            AluOp::Lsh => self.b.ins().ishl(a, b),
            AluOp::Rsh => self.b.ins().ushr(a, b),
            AluOp::Arsh => self.b.ins().sshr(a, b),
            AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod => match constant {
                Some(n) => self.divide_by_constant(op, a, b, n, width),
                None => self.divide(op, a, b, width),
            },
        };
        self.set_wide(dst, width, v);
    }

    fn divide_by_constant(&mut self, op: AluOp, a: Value, b: Value, n: i32, width: Width) -> Value {
        match (op, n) {
            (AluOp::Div | AluOp::SDiv, 0) | (AluOp::SMod, -1) => self.constant(0, width),
            (AluOp::Mod | AluOp::SMod, 0) => a,
            (AluOp::SDiv, -1) => self.b.ins().ineg(a),
            (AluOp::Div, _) => self.b.ins().udiv(a, b),
            (AluOp::Mod, _) => self.b.ins().urem(a, b),
            (AluOp::SDiv, _) => self.b.ins().sdiv(a, b),
            _ => self.b.ins().srem(a, b),
        }
    }

    fn divide(&mut self, op: AluOp, a: Value, b: Value, width: Width) -> Value {
        let zero = self.constant(0, width);
        let one = self.constant(1, width);
        let by_zero = self.b.ins().icmp_imm_s(IntCC::Equal, b, 0);
        if matches!(op, AluOp::Div | AluOp::Mod) {
            let safe = self.b.ins().select(by_zero, one, b);
            return if op == AluOp::Div {
                let q = self.b.ins().udiv(a, safe);
                self.b.ins().select(by_zero, zero, q)
            } else {
                let r = self.b.ins().urem(a, safe);
                self.b.ins().select(by_zero, a, r)
            };
        }
        // The machine's division faults for the least number by -1.
        let by_minus_one = self.b.ins().icmp_imm_s(IntCC::Equal, b, -1);
        let special = self.b.ins().bor(by_zero, by_minus_one);
        let safe = self.b.ins().select(special, one, b);
        if op == AluOp::SDiv {
            let q = self.b.ins().sdiv(a, safe);
            let minus = self.b.ins().ineg(a);
            let q = self.b.ins().select(by_minus_one, minus, q);
            self.b.ins().select(by_zero, zero, q)
        } else {
            // By 1 the remainder is 0, as it is by -1.
            let r = self.b.ins().srem(a, safe);
            self.b.ins().select(by_zero, a, r)
        }
    }

    pub(super) fn mov(&mut self, width: Width, dst: Reg, src: Operand, ext: MovExt) {
        let narrow = match ext {
            MovExt::None => {
                let v = self.operand(src, width);
                return self.set_wide(dst, width, v);
            }
            MovExt::S8 => types::I8,
            MovExt::S16 => types::I16,
            MovExt::S32 => types::I32,
        };
        let v = self.operand(src, Width::W64);
        let v = self.b.ins().ireduce(narrow, v);
        let wide = if width == Width::W32 { types::I32 } else { types::I64 };
        let v = if narrow == wide { v } else { self.b.ins().sextend(wide, v) };
        self.set_wide(dst, width, v);
    }

    pub(super) fn neg(&mut self, width: Width, dst: Reg) {
        let v = self.narrow(dst, width);
        let v = self.b.ins().ineg(v);
        self.set_wide(dst, width, v);
    }

    pub(super) fn truncate(&mut self, dst: Reg, bits: u8) {
        let v = self.reg(dst);
        let v = self.b.ins().ireduce(int(bits), v);
        let v = self.b.ins().uextend(types::I64, v);
        self.set(dst, v);
    }

    pub(super) fn swap(&mut self, dst: Reg, bits: u8) {
        let mut v = self.reg(dst);
        if bits < 64 {
            v = self.b.ins().ireduce(int(bits), v);
        }
        v = self.b.ins().bswap(v);
        if bits < 64 {
            v = self.b.ins().uextend(types::I64, v);
        }
        self.set(dst, v);
    }
}

fn int(bits: u8) -> types::Type {
    match bits {
        16 => types::I16,
        32 => types::I32,
        _ => types::I64,
    }
}
