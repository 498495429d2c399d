//! What operations and conditions compute (RFC 9669, sections 4.1 and 4.3), for numbers of any width up to 64 bits.
//!
//! The verifier folds constants with it, and proves its domains at a width of four bits, where every pair can be tried.

use crate::{AluOp, Cond};

/// The `bits` lowest bits set; `bits` from 0 to 64.
const fn ones(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// The signed reading of the `bits` lowest bits; `bits` from 1 to 64.
const fn signed(x: u64, bits: u32) -> i64 {
    ((x << (64 - bits)) as i64) >> (64 - bits)
}

impl AluOp {
    /// The result of the operation on two numbers of `bits` bits (1 to 64; higher bits of `x` and `y` must be zero).
    ///
    /// Nothing is undefined: a division by zero is zero, its rest is the dividend, a shift takes its distance modulo the width.
    ///
    /// ```
    /// use xway_isa::AluOp;
    /// assert_eq!(AluOp::Sub.apply(1, 2, 32), 0xffff_ffff);
    /// assert_eq!(AluOp::Mod.apply(7, 0, 64), 7);
    /// assert_eq!(AluOp::Arsh.apply(0x8000_0000, 33, 32), 0xc000_0000);
    /// ```
    pub fn apply(self, x: u64, y: u64, bits: u32) -> u64 {
        let (sx, sy) = (signed(x, bits), signed(y, bits));
        let by = (y & (u64::from(bits) - 1)) as u32;
        let result = match self {
            AluOp::Add => x.wrapping_add(y),
            AluOp::Sub => x.wrapping_sub(y),
            AluOp::Mul => x.wrapping_mul(y),
            AluOp::Div => x.checked_div(y).unwrap_or(0),
            AluOp::Mod => x.checked_rem(y).unwrap_or(x),
            AluOp::SDiv => (if sy == 0 { 0 } else { sx.wrapping_div(sy) }) as u64,
            AluOp::SMod => (if sy == 0 { sx } else { sx.wrapping_rem(sy) }) as u64,
            AluOp::Or => x | y,
            AluOp::And => x & y,
            AluOp::Xor => x ^ y,
            AluOp::Lsh => x << by,
            AluOp::Rsh => x >> by,
            AluOp::Arsh => (sx >> by) as u64,
        };
        result & ones(bits)
    }
}

impl Cond {
    /// Whether the condition holds for two numbers of `bits` bits (1 to 64; higher bits of `x` and `y` must be zero).
    ///
    /// ```
    /// use xway_isa::Cond;
    /// assert!(Cond::SLt.holds(0xffff_ffff, 0, 32));
    /// assert!(!Cond::SLt.holds(0xffff_ffff, 0, 64));
    /// ```
    pub fn holds(self, x: u64, y: u64, bits: u32) -> bool {
        let (sx, sy) = (signed(x, bits), signed(y, bits));
        match self {
            Cond::Eq => x == y,
            Cond::Ne => x != y,
            Cond::Set => x & y != 0,
            Cond::Gt => x > y,
            Cond::Ge => x >= y,
            Cond::Lt => x < y,
            Cond::Le => x <= y,
            Cond::SGt => sx > sy,
            Cond::SGe => sx >= sy,
            Cond::SLt => sx < sy,
            Cond::SLe => sx <= sy,
        }
    }
}
