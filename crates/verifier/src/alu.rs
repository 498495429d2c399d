//! Arithmetic and moves.

use xway_isa::{AluOp, ByteOrder, MovExt, Operand, Reg, Width};

use crate::diag::{Fail, Kind, fail};
use crate::domain::Scalar;
use crate::explore::Verifier;
use crate::graph::NONE;
use crate::state::{Quotient, State};
use crate::value::{Base, Num, Ptr, Value};

/// Offsets beyond this are refused (`BPF_MAX_VAR_OFF`): pointers then never wrap.
pub const OFFSET_MAX: i64 = 1 << 29;

impl Verifier<'_> {
    /// The right operand as a value.
    pub fn operand(&mut self, st: &State, src: Operand) -> Result<Value, Fail> {
        match src {
            Operand::Reg(r) => self.read(st, r).copied(),
            Operand::Imm(i) => {
                let x = i64::from(i) as u64;
                Ok(Value::num(Scalar::constant(x), self.graph.constant(x)))
            }
        }
    }

    /// `dst = dst OP src`
    pub fn alu(&mut self, st: &mut State, width: Width, op: AluOp, dst: Reg, src: Operand) -> Result<(), Fail> {
        self.writable(dst)?;
        let left = *self.read(st, dst)?;
        let right = self.operand(st, src)?;
        if let Operand::Imm(i) = src {
            check_immediate(op, width, i)?;
        }
        let left = match (left, src) {
            (Value::Num(n), Operand::Imm(_)) if matches!(op, AluOp::And | AluOp::Or) => {
                self.split_sign(st, width, op, dst, n, &right)?
            }
            (v, _) => v,
        };
        let result = match (&left, &right) {
            (Value::Num(a), Value::Num(b)) => {
                let back = self.shifted_back(st, width, op, dst, src);
                if let (AluOp::Lsh, Width::W64, Operand::Imm(32)) = (op, width, src) {
                    st.shifted = Some((dst, *a, st.pc + 1));
                }
                let result = back.unwrap_or_else(|| self.alu_numbers(op, width, a, b, src));
                self.remainder(st, width, op, (a, b), src, result)
            }
            // Any arithmetic is allowed on addresses of an arena: a bad one is caught when it is used.
            (Value::Ptr(Ptr { base: Base::Arena, .. }), _) => left,
            (_, Value::Ptr(Ptr { base: Base::Arena, .. })) => right,
            (Value::Ptr(p), Value::Num(n)) => {
                let n = if op == AluOp::Add && width == Width::W64 { self.link_offset(st, p, n, src) } else { *n };
                let mut sum = self.alu_pointer(op, width, p, &n, true).map_err(|e| e.reg(dst.index()))?;
                if let (AluOp::Add, Value::Ptr(q), None) = (op, &mut sum, n.s.as_const()) {
                    self.place_of_sum(st, p, &n, q);
                }
                sum
            }
            (Value::Num(n), Value::Ptr(p)) => {
                if op == AluOp::Sub && width == Width::W64 {
                    return fail!(PointerArithmetic, "{dst} is a number: a pointer cannot be subtracted from it");
                }
                let mut sum = self.alu_pointer(op, width, p, n, false).map_err(|e| e.reg(dst.index()))?;
                if let (AluOp::Add, Value::Ptr(q), None) = (op, &mut sum, n.s.as_const()) {
                    self.place_of_sum(st, p, n, q);
                }
                sum
            }
            (Value::Ptr(e), Value::Ptr(p)) if op == AluOp::Sub && e.base == Base::End => {
                if !same_object(e, p) {
                    self.facts.address_seen();
                }
                self.distance(st, e, p, width)
            }
            (Value::Ptr(a), Value::Ptr(b)) if op == AluOp::Sub => {
                if !same_object(a, b) || width == Width::W32 {
                    self.facts.address_seen();
                }
                Value::num(unknown(width), NONE)
            }
            _ => {
                return fail!(PointerArithmetic, "two pointers can be subtracted; {} is not possible", words(op))
                    .map_err(|e| e.reg(dst.index()));
            }
        };
        st.set(dst, result);
        Ok(())
    }

    /// `x <<= 32; x >>= 32` leaves a number of 32 bits as it is: it stays linked with its copies. Compilers cut numbers so.
    /// The second shift must be reached from the first one only.
    fn shifted_back(&mut self, st: &State, width: Width, op: AluOp, dst: Reg, src: Operand) -> Option<Value> {
        let (reg, before, next) = st.shifted?;
        let shifts_back = matches!((op, width, src), (AluOp::Rsh, Width::W64, Operand::Imm(32)));
        if !shifts_back || reg != dst || next != st.pc || self.cfg.prune[st.pc] {
            return None;
        }
        (before.s.umax() <= u64::from(u32::MAX)).then_some(Value::Num(before))
    }

    /// `x s>>= 31` leaves 0 or -1, and compilers make a choice of it: `x &= c` is 0 or c. Nothing describes just these two,
    /// so each is followed on a path of its own, as Linux does. Gives the value for this path.
    fn split_sign(
        &mut self,
        st: &State,
        width: Width,
        op: AluOp,
        dst: Reg,
        n: Num,
        right: &Value,
    ) -> Result<Value, Fail> {
        let (smin, smax) = match width {
            Width::W64 => (n.s.smin(), n.s.smax()),
            Width::W32 => (n.s.half.smin, n.s.half.smax),
        };
        let (-1, 0, Value::Num(b)) = (smin, smax, right) else { return Ok(Value::Num(n)) };
        let mut zero = st.clone();
        let s = Scalar::constant(0).alu(op, &b.s, width);
        zero.set(dst, Value::num(s, self.graph.op(n.def, NONE)));
        zero.pc = st.pc + 1;
        self.push(zero)?;
        let ones = if width == Width::W64 { u64::MAX } else { u32::MAX.into() };
        Ok(Value::num(Scalar::constant(ones), self.graph.op(n.def, NONE)))
    }

    /// `q = x; q /= n; q *= n; x -= q` leaves the remainder: compilers write `x % n` so. Its bounds follow from no bounds of the
    /// numbers, only from where they come from.
    fn remainder(
        &mut self,
        st: &mut State,
        width: Width,
        op: AluOp,
        ab: (&Num, &Num),
        src: Operand,
        out: Value,
    ) -> Value {
        let (a, b) = ab;
        let Value::Num(mut n) = out else { return out };
        // In 32 bits the same holds of numbers that have no more.
        if width == Width::W32 && a.s.umax() > u64::from(u32::MAX) {
            return out;
        }
        match (op, src, st.quotient) {
            (AluOp::Div, Operand::Imm(by), _) if by > 0 && a.link != 0 => {
                (n.link, n.delta) = (self.id(), 0);
                st.quotient = Some(Quotient { link: n.link, of: (a.link, a.delta), by: by as u64, whole: false });
            }
            (AluOp::Mul, Operand::Imm(by), Some(q))
                if !q.whole
                    && by as u64 == q.by
                    && (a.link, a.delta) == (q.link, 0)
                    // The product is that of whole numbers: nothing of it was cut off.
                    && (width == Width::W64 || a.s.umax().saturating_mul(q.by) <= u64::from(u32::MAX)) =>
            {
                (n.link, n.delta) = (self.id(), 0);
                st.quotient = Some(Quotient { link: n.link, whole: true, ..q });
            }
            (AluOp::Sub, Operand::Reg(_), Some(q))
                if q.whole && (b.link, b.delta) == (q.link, 0) && (a.link, a.delta) == q.of =>
            {
                let rest = Scalar::between(0, q.by - 1);
                n.s = n.s.meet(&rest).unwrap_or(rest);
                st.quotient = None;
            }
            _ => {}
        }
        Value::Num(n)
    }

    fn alu_numbers(&mut self, op: AluOp, width: Width, a: &Num, b: &Num, src: Operand) -> Value {
        let bits = if width == Width::W64 { 64 } else { 32 };
        let shifts = matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh);
        // Shifts by more than there are bits mean one thing in RFC 9669 (the amount is masked) and another on some machines.
        let s = if shifts && b.s.umax() >= bits { unknown(width) } else { a.s.alu(op, &b.s, width) };
        let def = self.graph.op(a.def, b.def);
        let mut n = Num::new(s, def);
        // x + constant stays linked with x; in 32 bits where nothing is cut off.
        if let (AluOp::Add | AluOp::Sub, Operand::Imm(i)) = (op, src)
            && a.link != 0
        {
            let step = if op == AluOp::Add { i64::from(i) } else { -i64::from(i) };
            if width == Width::W64 || whole_in_half(&a.s, step) {
                n.link = a.link;
                n.delta = a.delta.wrapping_add(step);
            }
        }
        Value::Num(n)
    }

    /// Pointer and number. `pointer_first` tells which operand is the pointer.
    fn alu_pointer(&mut self, op: AluOp, width: Width, p: &Ptr, n: &Num, pointer_first: bool) -> Result<Value, Fail> {
        if width == Width::W32 {
            if op == AluOp::Sub {
                self.facts.address_seen();
                return Ok(Value::num(unknown(width), NONE));
            }
            return fail!(PointerArithmetic, "32-bit arithmetic cuts a pointer in half")
                .map_err(|e| e.hint("use 64-bit types for pointers and for what is added to them"));
        }
        if p.nullable {
            return fail!(Null, "arithmetic on a pointer that may be null ({})", p.kind_name())
                .map_err(|e| e.hint("compare the pointer with null first"));
        }
        match (op, p.base) {
            // A constant distance from the end: `data_end - 4`.
            (AluOp::Add | AluOp::Sub, Base::End) if pointer_first && n.s.as_const().is_some() => {}
            (AluOp::Add | AluOp::Sub, Base::End | Base::Sock(_)) => {
                return fail!(PointerArithmetic, "arithmetic on {} is not possible", p.kind_name())
                    .map_err(|e| e.hint("compute with the packet pointer and compare the result with data_end"));
            }
            (AluOp::Add, Base::Map(_)) if n.s.as_const() == Some(0) => {}
            (AluOp::Add | AluOp::Sub, Base::Map(_) | Base::Func(_)) => {
                return fail!(PointerArithmetic, "arithmetic on {} is not possible", p.kind_name());
            }
            (AluOp::Sub, Base::Stack(_)) if !pointer_first => {
                return fail!(PointerArithmetic, "a stack pointer cannot be subtracted from a number");
            }
            (AluOp::Sub, Base::Stack(_)) => {
                return fail!(PointerArithmetic, "subtraction from a stack pointer is not possible")
                    .map_err(|e| e.hint("add a negative constant instead"));
            }
            (AluOp::Add | AluOp::Sub, _) => {}
            (AluOp::And | AluOp::Or | AluOp::Xor, _) => {
                return fail!(PointerArithmetic, "{} on a pointer is not possible", words(op))
                    .map_err(|e| e.hint("mask the number before it is added to the pointer"));
            }
            _ => return fail!(PointerArithmetic, "{} on a pointer is not possible", words(op)),
        }
        self.graph.mark(n.def);
        let mut q = *p;
        let amount = if op == AluOp::Add { n.s } else { n.s.neg(Width::W64) };
        if n.s.smin() < -OFFSET_MAX || n.s.smin() > OFFSET_MAX {
            return fail!(
                Unbounded,
                "the number that is added to the pointer ({}) has no lower bound that keeps the address near",
                p.kind_name()
            )
            .map_err(|e| e.hint("check that the number is not negative, or mask it: `x &= 0xffff`"));
        }
        match amount.as_const() {
            Some(c) => {
                let off = i64::from(p.off) + c as i64;
                if off.unsigned_abs() >= OFFSET_MAX.unsigned_abs() {
                    return fail!(Unbounded, "the offset {off} is too far from the start of {}", p.kind_name());
                }
                q.off = off as i32;
            }
            None => {
                q.var = p.var.alu(AluOp::Add, &amount, Width::W64);
                if q.var.smin() < -OFFSET_MAX || q.var.smin() > OFFSET_MAX {
                    return fail!(Unbounded, "the offset into {} has no lower bound", p.kind_name());
                }
                if p.is_packet() {
                    // A new place: what was proved about the old one says nothing here.
                    q.id = self.id();
                    q.range = 0;
                }
            }
        }
        Ok(Value::Ptr(q))
    }

    /// `dst = src`
    pub fn mov(&mut self, st: &mut State, width: Width, dst: Reg, src: Operand, ext: MovExt) -> Result<(), Fail> {
        self.writable(dst)?;
        let value = self.operand(st, src)?;
        let result = match value {
            Value::Num(n) => self.mov_number(st, width, n, src, ext),
            other if width == Width::W64 && ext == MovExt::None => other,
            // Part of a pointer is a number like any other.
            _ => {
                self.facts.address_seen();
                Value::num(unknown(width), NONE)
            }
        };
        st.set(dst, result);
        Ok(())
    }

    fn mov_number(&mut self, st: &mut State, width: Width, mut n: Num, src: Operand, ext: MovExt) -> Value {
        let bits = if width == Width::W64 { 64 } else { 32 };
        let s = match ext {
            MovExt::None => n.s.truncate(bits),
            MovExt::S8 => n.s.sign_extend(8, bits),
            MovExt::S16 => n.s.sign_extend(16, bits),
            MovExt::S32 => n.s.sign_extend(32, bits),
        };
        let Operand::Reg(r) = src else {
            // An immediate is sign-extended first, then cut.
            let def = s.as_const().map_or(NONE, |x| self.graph.constant(x));
            return Value::num(s, def);
        };
        if s == n.s {
            // A move that changes no bit: both registers hold the same number from now on.
            let same = ext == MovExt::None && width == Width::W64 || unchanged(&n.s, width, ext);
            if same {
                if n.s.as_const().is_none() && n.link == 0 {
                    n.link = self.id();
                    n.delta = 0;
                    st.set(r, Value::Num(n));
                }
                return Value::Num(n);
            }
        }
        let def = self.graph.op(n.def, NONE);
        Value::num(s, def)
    }

    /// `dst = -dst`
    pub fn neg(&mut self, st: &mut State, width: Width, dst: Reg) -> Result<(), Fail> {
        self.writable(dst)?;
        let v = match *self.read(st, dst)? {
            Value::Num(n) => Value::num(n.s.neg(width), self.graph.op(n.def, NONE)),
            _ => {
                self.facts.address_seen();
                Value::num(unknown(width), NONE)
            }
        };
        st.set(dst, v);
        Ok(())
    }

    /// Byte order of `dst`.
    pub fn endian(&mut self, st: &mut State, order: ByteOrder, bits: u8, dst: Reg) -> Result<(), Fail> {
        self.writable(dst)?;
        let v = match *self.read(st, dst)? {
            Value::Num(n) => Value::num(n.s.endian(order, bits.into()), self.graph.op(n.def, NONE)),
            _ => {
                self.facts.address_seen();
                Value::num(Scalar::of_bits(bits.into()), NONE)
            }
        };
        st.set(dst, v);
        Ok(())
    }
}

/// Two pointers whose distance is the same wherever memory lies.
pub(crate) fn same_object(a: &Ptr, b: &Ptr) -> bool {
    let packet = |p: &Ptr| matches!(p.base, Base::Packet | Base::End | Base::Meta);
    (packet(a) && packet(b)) || (a.base == b.base && a.id == b.id && !matches!(a.base, Base::Mem { .. }))
}

/// True when the move keeps every possible number as it is.
fn unchanged(s: &Scalar, width: Width, ext: MovExt) -> bool {
    let bits = match ext {
        MovExt::None => return width == Width::W64 || s.umax() <= u64::from(u32::MAX),
        MovExt::S8 => 8,
        MovExt::S16 => 16,
        MovExt::S32 => 32,
    };
    let top = (1i64 << (bits - 1)) - 1;
    match width {
        Width::W64 => s.smin() >= -top - 1 && s.smax() <= top,
        Width::W32 => s.smin() >= 0 && s.smax() <= top,
    }
}

/// An operation in words.
const fn words(op: AluOp) -> &'static str {
    match op {
        AluOp::Add => "addition",
        AluOp::Sub => "subtraction",
        AluOp::Mul => "multiplication",
        AluOp::Div | AluOp::SDiv => "division",
        AluOp::Mod | AluOp::SMod => "a remainder",
        AluOp::And => "a bitwise and",
        AluOp::Or => "a bitwise or",
        AluOp::Xor => "a bitwise exclusive or",
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => "a shift",
    }
}

fn unknown(width: Width) -> Scalar {
    if width == Width::W64 { Scalar::unknown() } else { Scalar::of_bits(32) }
}

/// The number, and the sum of it and `step`, lie between 0 and 2^32 - 1: adding the low halves gives the sum.
fn whole_in_half(s: &Scalar, step: i64) -> bool {
    let half = 0..=i64::from(u32::MAX);
    s.umax() <= u32::MAX.into() && half.contains(&(s.smin() + step)) && half.contains(&(s.smax() + step))
}

fn check_immediate(op: AluOp, width: Width, imm: i32) -> Result<(), Fail> {
    let bits = if width == Width::W64 { 64 } else { 32 };
    match op {
        AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod if imm == 0 => {
            Err(Fail::new(Kind::BadInstruction, "division by the constant zero"))
        }
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh if !(0..bits).contains(&imm) => {
            Err(Fail::new(Kind::BadInstruction, format!("shift by {imm} of a number of {bits} bits")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::behind;

    #[test]
    fn masks_and_shifts_leave_multiples() {
        let text = "r2 = *(u32 *)(r1 +16)\nr2 &= 15\nr2 <<= 2\nr0 = r2\nexit";
        assert_eq!(behind(text, 2), "R2=scalar(smin=smin32=0,smax=umax=smax32=umax32=60,var_off=(0x0; 0x3c))");
    }

    #[test]
    fn a_sum_of_32_bits_is_linked_where_nothing_is_cut_off() {
        let most = |first: &str, step: i32| -> u32 {
            let text = format!(
                "r2 = *(u32 *)(r1 +16)\nr0 = 0\n{first}\nif r2 > 100 goto out\nr3 = r2\nw3 += {step}\nif w3 > 20 goto out\nr4 = r2\nout: exit"
            );
            let shown = behind(&text, 7);
            let (_, most) = shown.split_once("umax32=").unwrap_or_else(|| panic!("{shown}"));
            most.split([',', ')']).next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
        };
        assert_eq!(most("r0 = 0", 5), 15u32);
        assert_eq!(most("r0 = 0", -5), 100, "it may wrap");
        assert_eq!(most("if r2 < 5 goto out", -5), 25);
    }

    #[test]
    fn a_number_without_the_multiple_in_it_is_a_remainder() {
        let text = "r2 = *(u32 *)(r1 +16)\nr3 = r2\nr3 /= 10\nr3 *= 10\nr2 -= r3\nr0 = r2\nexit";
        assert!(behind(text, 4).contains("umax=smax32=umax32=9,"), "{}", behind(text, 4));
    }
}
