//! Numbers as formulas over the packet: its bytes and its length.
//!
//! A formula can be evaluated for a packet, and *inverted*: which bytes must change so that it gets a certain value? The
//! inversion need not be right, only useful: whatever it proposes is evaluated again, and in the end run.

use std::rc::Rc;

use xway_isa::{AluOp, Cond, Width};

/// The packet that is being looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Guess {
    /// The packet; its length is an unknown like its bytes.
    pub packet: Vec<u8>,
}

/// Longest packet that is tried, bytes.
pub(crate) const LEN_MAX: u64 = 3000;

/// A number.
#[derive(Debug)]
pub(crate) enum Expr {
    /// A constant.
    Const(u64),
    /// `1 << 3` bytes or less of the packet as it came in, little-endian: offset, length.
    Field(usize, usize),
    /// Length of the packet as it came in.
    Len,
    /// Something that the packet does not decide.
    Opaque,
    /// An operation at full width.
    Op(AluOp, E, E),
    /// The low bits, zero-extended.
    Low(u32, E),
    /// The low bits, sign-extended to 64.
    Sign(u32, E),
    /// The low bits with their bytes in reverse order.
    Swap(u32, E),
}

/// Shared formula.
pub(crate) type E = Rc<Expr>;

pub(crate) fn constant(x: u64) -> E {
    Rc::new(Expr::Const(x))
}

pub(crate) fn opaque() -> E {
    Rc::new(Expr::Opaque)
}

const fn ones(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

const fn sign_extend(x: u64, bits: u32) -> u64 {
    if bits >= 64 { x } else { (((x << (64 - bits)) as i64) >> (64 - bits)) as u64 }
}

const fn swap(x: u64, bits: u32) -> u64 {
    x.swap_bytes() >> (64 - bits)
}

/// `a OP b` in the way of the instruction set, at 32 or 64 bits.
pub(crate) fn alu(op: AluOp, width: Width, a: &E, b: &E) -> E {
    if matches!(**a, Expr::Opaque) || matches!(**b, Expr::Opaque) {
        return opaque();
    }
    let e = match width {
        Width::W64 => Expr::Op(op, a.clone(), b.clone()),
        Width::W32 => {
            let signed = matches!(op, AluOp::Arsh | AluOp::SDiv | AluOp::SMod);
            let half = |e: &E| Rc::new(if signed { Expr::Sign(32, e.clone()) } else { Expr::Low(32, e.clone()) });
            let count = matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh);
            let right = if count { Rc::new(Expr::Op(AluOp::And, b.clone(), constant(31))) } else { half(b) };
            Expr::Low(32, Rc::new(Expr::Op(op, half(a), right)))
        }
    };
    fold(e)
}

/// Constants are computed at once, so that formulas stay small.
fn fold(e: Expr) -> E {
    let none = Guess { packet: Vec::new() };
    let is_const = |e: &E| matches!(**e, Expr::Const(_));
    let all = match &e {
        Expr::Op(_, a, b) => is_const(a) && is_const(b),
        Expr::Low(_, a) | Expr::Sign(_, a) | Expr::Swap(_, a) => is_const(a),
        _ => false,
    };
    match (all, eval(&e, &none)) {
        (true, Some(x)) => constant(x),
        _ => Rc::new(e),
    }
}

pub(crate) fn low(bits: u32, e: &E) -> E {
    if matches!(**e, Expr::Opaque) { opaque() } else { fold(Expr::Low(bits, e.clone())) }
}

pub(crate) fn sign(bits: u32, e: &E) -> E {
    if matches!(**e, Expr::Opaque) { opaque() } else { fold(Expr::Sign(bits, e.clone())) }
}

pub(crate) fn swapped(bits: u32, e: &E) -> E {
    if matches!(**e, Expr::Opaque) { opaque() } else { fold(Expr::Swap(bits, e.clone())) }
}

/// The value for a packet; `None` when the packet does not decide it.
pub(crate) fn eval(e: &Expr, g: &Guess) -> Option<u64> {
    Some(match e {
        Expr::Const(x) => *x,
        Expr::Field(at, len) => {
            let byte = |i: usize| u64::from(g.packet.get(at + i).copied().unwrap_or(0));
            (0..*len).fold(0, |x, i| x | byte(i) << (8 * i))
        }
        Expr::Len => g.packet.len() as u64,
        Expr::Opaque => return None,
        Expr::Op(op, a, b) => op.apply(eval(a, g)?, eval(b, g)?, 64),
        Expr::Low(bits, a) => eval(a, g)? & ones(*bits),
        Expr::Sign(bits, a) => sign_extend(eval(a, g)?, *bits),
        Expr::Swap(bits, a) => swap(eval(a, g)? & ones(*bits), *bits),
    })
}

/// True when the packet takes part in the value.
fn varies(e: &Expr) -> bool {
    match e {
        Expr::Const(_) | Expr::Opaque => false,
        Expr::Field(..) | Expr::Len => true,
        Expr::Op(_, a, b) => varies(a) || varies(b),
        Expr::Low(_, a) | Expr::Sign(_, a) | Expr::Swap(_, a) => varies(a),
    }
}

/// Bits that can be one, roughly.
fn possible(e: &Expr) -> u64 {
    match e {
        Expr::Const(x) => *x,
        Expr::Field(_, len) => ones(8 * *len as u32),
        Expr::Len => 0xffff,
        Expr::Op(AluOp::And, a, b) => possible(a) & possible(b),
        Expr::Op(AluOp::Or | AluOp::Xor, a, b) => possible(a) | possible(b),
        Expr::Op(AluOp::Lsh, a, k) => match **k {
            Expr::Const(k) if k < 64 => possible(a) << k,
            _ => u64::MAX,
        },
        Expr::Op(AluOp::Rsh, a, k) => match **k {
            Expr::Const(k) if k < 64 => possible(a) >> k,
            _ => u64::MAX,
        },
        Expr::Low(bits, a) => possible(a) & ones(*bits),
        Expr::Swap(bits, a) => swap(possible(a) & ones(*bits), *bits),
        _ => u64::MAX,
    }
}

/// Changes the guess so that the formula gets the value `v` in its low `w` bits. False when no way is known; the guess may
/// then be changed in part.
pub(crate) fn invert(e: &Expr, v: u64, w: u32, g: &mut Guess) -> bool {
    let v = v & ones(w);
    match e {
        Expr::Const(x) => x & ones(w) == v,
        Expr::Opaque => false,
        Expr::Field(at, len) => {
            let bits = 8 * *len as u32;
            if bits < 64 && v >> bits != 0 {
                return false;
            }
            if at + len > g.packet.len() {
                return false;
            }
            let keep = w < bits;
            for i in 0..*len {
                if !keep || 8 * i < w as usize {
                    g.packet[at + i] = (v >> (8 * i)) as u8;
                }
            }
            true
        }
        Expr::Len => {
            if v > LEN_MAX {
                return false;
            }
            g.packet.resize(v as usize, 0);
            true
        }
        Expr::Low(bits, a) => {
            if w <= *bits {
                invert(a, v, w, g)
            } else {
                v >> bits == 0 && invert(a, v, *bits, g)
            }
        }
        Expr::Sign(bits, a) => {
            let same = sign_extend(v, *bits) & ones(w) == v;
            (w <= *bits || same) && invert(a, v & ones(*bits), w.min(*bits), g)
        }
        Expr::Swap(bits, a) => (w >= *bits && (*bits == 64 || v >> bits == 0)) && invert(a, swap(v, *bits), *bits, g),
        Expr::Op(op, a, b) => invert_op(*op, a, b, v, w, g),
    }
}

fn invert_op(op: AluOp, a: &E, b: &E, v: u64, w: u32, g: &mut Guess) -> bool {
    let (Some(x), Some(y)) = (eval(a, g), eval(b, g)) else { return false };
    let mut try_one = |which: &E, value: u64, w: u32| varies(which) && invert(which, value, w, g);
    match op {
        AluOp::Add => try_one(a, v.wrapping_sub(y), w) || try_one(b, v.wrapping_sub(x), w),
        AluOp::Sub => try_one(a, v.wrapping_add(y), w) || try_one(b, x.wrapping_sub(v), w),
        AluOp::Xor => try_one(a, v ^ y, w) || try_one(b, v ^ x, w),
        AluOp::And if !varies(b) => v & !y & ones(w) == 0 && try_one(a, (x & !y) | v, w),
        AluOp::And => try_one(a, (x & !y) | v, w) || try_one(b, (y & !x) | v, w),
        AluOp::Or => {
            let (pa, pb) = (possible(a), possible(b));
            if varies(a) && varies(b) && pa & pb == 0 {
                v & !(pa | pb) & ones(w) == 0 && try_one(a, v & pa, w) && try_one(b, v & pb, w)
            } else if varies(a) {
                v & y == y & ones(w) && try_one(a, (v & !y) | (x & y), w)
            } else {
                v & x == x & ones(w) && try_one(b, (v & !x) | (y & x), w)
            }
        }
        AluOp::Mul if y != 0 && v.is_multiple_of(y) => try_one(a, v / y, w) || (x != 0 && try_one(b, v / x, w)),
        AluOp::Mul => x != 0 && v.is_multiple_of(x) && try_one(b, v / x, w),
        AluOp::Div => y != 0 && try_one(a, v.wrapping_mul(y), w),
        AluOp::Mod => (y == 0 || v < y) && try_one(a, if y == 0 { v } else { x - x % y + v }, w),
        AluOp::Lsh => {
            let k = (y & 63) as u32;
            v & ones(k) & if k == 0 { 0 } else { u64::MAX } == 0 && try_one(a, v >> k, w.saturating_sub(k).max(1))
        }
        AluOp::Rsh => {
            let k = (y & 63) as u32;
            let keep = if k == 0 { 0 } else { x & ones(k) };
            try_one(a, (v << k) | keep, (w + k).min(64))
        }
        AluOp::Arsh => try_one(a, v << (y & 63), 64),
        AluOp::SDiv | AluOp::SMod => false,
    }
}

/// A comparison that must turn out in a certain way.
#[derive(Clone, Debug)]
pub(crate) struct Constraint {
    pub cond: Cond,
    pub width: Width,
    pub a: E,
    pub b: E,
    pub holds: bool,
}

impl Constraint {
    /// Does it hold for the packet? `None` when the packet does not decide it.
    pub fn met(&self, g: &Guess) -> Option<bool> {
        Some(compare(self.cond, self.width, eval(&self.a, g)?, eval(&self.b, g)?) == self.holds)
    }

    /// Packets near `g` for which it may hold, the likeliest first.
    pub fn proposals(&self, g: &Guess) -> Vec<Guess> {
        let (Some(x), Some(y)) = (eval(&self.a, g), eval(&self.b, g)) else { return Vec::new() };
        let w = if self.width == Width::W32 { 32 } else { 64 };
        let mut out = Vec::new();
        // `b` moves first where it is the length: a comparison with the end decides how long the packet is.
        let length_right = matches!(*self.b, Expr::Len) || matches!(*self.b, Expr::Op(..));
        let sides = if length_right { [false, true] } else { [true, false] };
        for left in sides {
            let (e, other) = if left { (&self.a, y) } else { (&self.b, x) };
            for v in wanted(self.cond, self.holds, other, left) {
                let mut next = g.clone();
                if varies(e) && invert(e, v, w, &mut next) && self.met(&next) == Some(true) && !out.contains(&next) {
                    out.push(next);
                }
            }
        }
        out
    }
}

/// Values of one side for which the comparison with `other` may turn out as it must: the nearest ones first.
fn wanted(cond: Cond, holds: bool, other: u64, left: bool) -> Vec<u64> {
    let o = other;
    let (up, down) = (o.wrapping_add(1), o.wrapping_sub(1));
    let equal = matches!((cond, holds), (Cond::Eq, true) | (Cond::Ne, false));
    if equal {
        return vec![o];
    }
    if cond == Cond::Set {
        return if holds { vec![o, o & o.wrapping_neg(), u64::MAX] } else { vec![0, !o] };
    }
    let _ = left;
    vec![o, up, down, 0, 1, o.wrapping_add(16), o.wrapping_sub(16), 0xff, 0xffff, u64::MAX, 1 << 31, 0x7f, 0x80, 20, 60]
}

/// Whether the condition holds for the lower `width` bits of two numbers.
fn compare(cond: Cond, width: Width, x: u64, y: u64) -> bool {
    let bits = if width == Width::W32 { 32 } else { 64 };
    cond.holds(x & ones(bits), y & ones(bits), bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(at: usize, len: usize) -> E {
        Rc::new(Expr::Field(at, len))
    }

    #[test]
    fn a_formula_is_inverted_and_gives_the_value() {
        let c = constant;
        let ihl = alu(AluOp::Lsh, Width::W64, &alu(AluOp::And, Width::W64, &field(3, 1), &c(15)), &c(2));
        let word = alu(AluOp::Or, Width::W64, &alu(AluOp::Lsh, Width::W64, &field(13, 1), &c(8)), &field(12, 1));
        let port = swapped(16, &field(6, 2));
        let sum = alu(AluOp::Add, Width::W32, &alu(AluOp::Mul, Width::W32, &field(0, 1), &c(3)), &c(7));
        for (e, v) in [(&ihl, 60), (&ihl, 20), (&word, 0x0008), (&word, 0xdd86), (&port, 53), (&sum, 3 * 5 + 7)] {
            let mut g = Guess { packet: vec![0x45; 20] };
            assert!(invert(e, v, 64, &mut g), "{e:?} {v}");
            assert_eq!(eval(e, &g), Some(v), "{e:?}");
        }
        let mut g = Guess { packet: vec![0; 20] };
        assert!(!invert(&ihl, 61, 64, &mut g));
        assert!(!invert(&field(0, 1), 256, 64, &mut g));
    }

    #[test]
    fn a_comparison_proposes_packets_for_which_it_holds() {
        let end =
            Constraint { cond: Cond::Gt, width: Width::W64, a: constant(34), b: Rc::new(Expr::Len), holds: false };
        let g = Guess { packet: vec![0; 14] };
        assert_eq!(end.met(&g), Some(false));
        assert_eq!(end.proposals(&g)[0].packet.len(), 34);
        let not = Constraint { cond: Cond::Ne, width: Width::W64, a: field(12, 2), b: constant(8), holds: false };
        assert_eq!(not.proposals(&g)[0].packet[12..14], [8, 0]);
    }
}
