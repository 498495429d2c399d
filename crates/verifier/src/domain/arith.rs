//! Arithmetic on abstract numbers, one function for each operation of the instruction set.

use xway_isa::{AluOp, ByteOrder, Width};

use super::range::{Range, signed, smax_of, smin_of, unsigned};
use super::scalar::{ScalarW, Word};
use super::tnum::{Tnum, ones};

impl<const W: u32> ScalarW<W> {
    /// `self OP rhs` at the full width or at the half width (whose result is zero-extended).
    pub fn alu(&self, op: AluOp, rhs: &Self, width: Width) -> Self {
        let half = || word_alu(op, self.half_word(), rhs.half_word(), Self::H);
        match width {
            Width::W32 => Self::from_half(half()),
            Width::W64 => {
                let whole = word_alu(op, self.word(), rhs.word(), W);
                // The low half of these results depends on the low halves of the operands alone.
                let low = match op {
                    AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor => half(),
                    _ => Word::unknown(Self::H),
                };
                Self::from_words(whole, low)
            }
        }
    }

    /// `-self`
    pub fn neg(&self, width: Width) -> Self {
        Self::constant(0).alu(AluOp::Sub, self, width)
    }

    /// `self + c`, modulo 2^W.
    pub fn add_const(&self, c: i64) -> Self {
        self.alu(AluOp::Add, &Self::constant(c as u64), Width::W64)
    }
}

impl ScalarW<64> {
    /// Byte-order conversion of the low `bits` on a little-endian machine.
    pub fn endian(&self, order: ByteOrder, bits: u32) -> Self {
        match order {
            ByteOrder::ToLe => self.truncate(bits),
            ByteOrder::ToBe | ByteOrder::Swap => {
                let word = Word { tnum: self.tnum.swap_bytes(bits), range: Range::full(64) };
                Self::from_words(word, Word::unknown(32))
            }
        }
    }
}

/// One operation at width `w`. Both operands are non-empty; so is the result.
fn word_alu(op: AluOp, a: Word, b: Word, w: u32) -> Word {
    if let (Some(x), Some(y)) = (a.as_const(), b.as_const()) {
        return Word::constant(op.apply(x, y, w), w);
    }
    let word = match op {
        AluOp::Add => Word { tnum: a.tnum.add(b.tnum, w), range: add(&a.range, &b.range, w) },
        AluOp::Sub => Word { tnum: a.tnum.sub(b.tnum, w), range: sub(&a.range, &b.range, w) },
        AluOp::Mul => Word { tnum: a.tnum.mul(b.tnum, w), range: mul(&a.range, &b.range, w) },
        AluOp::And => Word { tnum: a.tnum.and(b.tnum), range: and(&a.range, &b.range, w) },
        AluOp::Or => Word { tnum: a.tnum.or(b.tnum), range: or(&a.range, &b.range, w) },
        AluOp::Xor => Word { tnum: a.tnum.xor(b.tnum), range: Range::unsigned(0, carry_free(&a.range, &b.range), w) },
        AluOp::Div => Word::bounded(div(&a.range, &b.range, w), w),
        AluOp::Mod => Word::bounded(modulo(&a.range, &b.range, w), w),
        AluOp::SDiv => Word::bounded(sdiv(&a.range, &b.range, w), w),
        AluOp::SMod => Word::bounded(smod(&a.range, &b.range, w), w),
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => shift(op, a, b, w),
    };
    // A sound result of non-empty operands is never empty; should it be, forgetting everything stays sound.
    word.reduce(w).unwrap_or(Word::unknown(w))
}

/// Unsigned bounds of an exact result between `lo` and `hi`, taken modulo 2^w: known when both ends wrap equally often.
fn wrap_unsigned(lo: i128, hi: i128, w: u32) -> (u64, u64) {
    if lo >> w == hi >> w { (lo as u64 & ones(w), hi as u64 & ones(w)) } else { (0, ones(w)) }
}

/// The same for the signed reading.
fn wrap_signed(lo: i128, hi: i128, w: u32) -> (i64, i64) {
    let bias = 1i128 << (w - 1);
    if (lo + bias) >> w == (hi + bias) >> w {
        (signed(lo as u64, w), signed(hi as u64, w))
    } else {
        (smin_of(w), smax_of(w))
    }
}

fn wrapped(ulo: i128, uhi: i128, slo: i128, shi: i128, w: u32) -> Range {
    let (umin, umax) = wrap_unsigned(ulo, uhi, w);
    let (smin, smax) = wrap_signed(slo, shi, w);
    Range { umin, umax, smin, smax }
}

fn add(a: &Range, b: &Range, w: u32) -> Range {
    wrapped(
        i128::from(a.umin) + i128::from(b.umin),
        i128::from(a.umax) + i128::from(b.umax),
        i128::from(a.smin) + i128::from(b.smin),
        i128::from(a.smax) + i128::from(b.smax),
        w,
    )
}

fn sub(a: &Range, b: &Range, w: u32) -> Range {
    wrapped(
        i128::from(a.umin) - i128::from(b.umax),
        i128::from(a.umax) - i128::from(b.umin),
        i128::from(a.smin) - i128::from(b.smax),
        i128::from(a.smax) - i128::from(b.smin),
        w,
    )
}

fn mul(a: &Range, b: &Range, w: u32) -> Range {
    let mut r = Range::full(w);
    let high = u128::from(a.umax) * u128::from(b.umax);
    if high <= u128::from(ones(w)) {
        (r.umin, r.umax) = (a.umin * b.umin, high as u64);
    }
    let corners = [(a.smin, b.smin), (a.smin, b.smax), (a.smax, b.smin), (a.smax, b.smax)];
    let products = corners.map(|(x, y)| i128::from(x) * i128::from(y));
    let (lo, hi) = min_max(products);
    if lo >= i128::from(smin_of(w)) && hi <= i128::from(smax_of(w)) {
        (r.smin, r.smax) = (lo as i64, hi as i64);
    }
    r
}

fn min_max<T: Ord + Copy>(values: [T; 4]) -> (T, T) {
    let [a, b, c, d] = values;
    (a.min(b).min(c.min(d)), a.max(b).max(c.max(d)))
}

fn and(a: &Range, b: &Range, w: u32) -> Range {
    let mut r = Range::unsigned(0, a.umax.min(b.umax), w);
    // Two negative numbers: the result is negative and not above either.
    if a.smax < 0 && b.smax < 0 {
        r.smax = a.smax.min(b.smax);
    }
    r
}

fn or(a: &Range, b: &Range, w: u32) -> Range {
    Range::unsigned(a.umin.max(b.umin), carry_free(a, b), w)
}

/// No bit above the highest bit of either maximum can come out of or, xor.
fn carry_free(a: &Range, b: &Range) -> u64 {
    let top = a.umax | b.umax;
    if top == 0 { 0 } else { ones(64 - top.leading_zeros()) }
}

fn div(a: &Range, b: &Range, w: u32) -> Range {
    // Division by zero gives zero.
    let lo = if b.umin == 0 { 0 } else { a.umin / b.umax };
    let hi = if b.umax == 0 { 0 } else { a.umax / b.umin.max(1) };
    Range::unsigned(lo, hi, w)
}

fn modulo(a: &Range, b: &Range, w: u32) -> Range {
    if b.umin > a.umax {
        return *a;
    }
    // Modulo zero leaves the dividend.
    let below = b.umax.saturating_sub(1);
    let hi = if b.umin == 0 { a.umax } else { a.umax.min(below) };
    Range::unsigned(0, hi, w)
}

fn sdiv(a: &Range, b: &Range, w: u32) -> Range {
    if a.smin >= 0 && b.smin >= 0 {
        let lo = if b.smin == 0 { 0 } else { a.smin / b.smax };
        return Range::signed(lo, if b.smax == 0 { 0 } else { a.smax / b.smin.max(1) }, w);
    }
    // The magnitude never grows; the smallest number divided by -1 wraps to itself.
    let overflow = a.smin == smin_of(w) && b.smin <= -1 && b.smax >= -1;
    if overflow {
        return Range::full(w);
    }
    let most = a.smin.unsigned_abs().max(a.smax.unsigned_abs()) as i128;
    let lo = (-most).max(smin_of(w) as i128) as i64;
    let hi = most.min(smax_of(w) as i128) as i64;
    Range::signed(lo, hi, w)
}

fn smod(a: &Range, b: &Range, w: u32) -> Range {
    // The sign is the dividend's, the magnitude below the divisor's and not above the dividend's.
    let divisor = b.smin.unsigned_abs().max(b.smax.unsigned_abs());
    let zero_possible = b.smin <= 0 && b.smax >= 0;
    let limit = if zero_possible { u64::MAX } else { divisor - 1 };
    let lo = if a.smin >= 0 { 0 } else { -i128::from(limit.min(a.smin.unsigned_abs())) };
    let hi = if a.smax <= 0 { 0 } else { i128::from(limit.min(a.smax.unsigned_abs())) };
    Range::signed(lo as i64, hi as i64, w)
}

fn shift(op: AluOp, a: Word, b: Word, w: u32) -> Word {
    // The count is masked; only counts that are known to be below the width keep their bounds.
    let (kmin, kmax) = match b.as_const() {
        Some(k) => ((k & (w as u64 - 1)) as u32, (k & (w as u64 - 1)) as u32),
        None if b.range.umax < u64::from(w) => (b.range.umin as u32, b.range.umax as u32),
        None => (0, w - 1),
    };
    let exact = kmin == kmax;
    match op {
        AluOp::Lsh => {
            let tnum = if exact {
                a.tnum.shl(kmin, w)
            } else {
                let zeros = a.tnum.max().trailing_zeros().saturating_add(kmin).min(w);
                Tnum { value: 0, mask: if zeros >= w { 0 } else { ones(w) & !((1u64 << zeros) - 1) } }
            };
            Word { tnum, range: shl_range(&a.range, kmin, kmax, w) }
        }
        AluOp::Rsh => {
            let tnum = if exact { a.tnum.shr(kmin) } else { Tnum::unknown(w) };
            Word { tnum, range: Range::unsigned(a.range.umin >> kmax, a.range.umax >> kmin, w) }
        }
        _ => {
            let tnum = if exact { a.tnum.sar(kmin, w) } else { Tnum::unknown(w) };
            let r = &a.range;
            let (lo, hi) = min_max([r.smin >> kmin, r.smin >> kmax, r.smax >> kmin, r.smax >> kmax]);
            Word { tnum, range: Range::signed(lo, hi, w) }
        }
    }
}

fn shl_range(a: &Range, kmin: u32, kmax: u32, w: u32) -> Range {
    let mut r = Range::full(w);
    if u128::from(a.umax) << kmax <= u128::from(ones(w)) {
        (r.umin, r.umax) = (a.umin << kmin, a.umax << kmax);
    }
    let signed_fits = |x: i64| {
        let y = i128::from(x) << kmax;
        y >= i128::from(smin_of(w)) && y <= i128::from(smax_of(w))
    };
    if signed_fits(a.smin) && signed_fits(a.smax) {
        let (lo, hi) = min_max([a.smin << kmin, a.smin << kmax, a.smax << kmin, a.smax << kmax]);
        (r.smin, r.smax) = (lo, hi);
    }
    debug_assert!(unsigned(r.smin, w) <= ones(w));
    r
}

#[cfg(test)]
mod tests {
    use super::super::scalar::Scalar;
    use super::super::scalar::tests::{Small, W, shapes};
    use super::*;

    #[test]
    fn every_operation_holds_every_result_at_width_four() {
        let shapes = shapes();
        for op in AluOp::ALL {
            for (a, xs) in &shapes {
                for (b, ys) in &shapes {
                    let (whole, half) = (a.alu(op, b, Width::W64), a.alu(op, b, Width::W32));
                    for x in xs {
                        for y in ys {
                            let r = op.apply(*x, *y, W);
                            assert!(whole.contains(r), "{op:?} {x} {y} = {r}: {a:?} {b:?} {whole:?}");
                            let r = op.apply(x & 3, y & 3, 2);
                            assert!(half.contains(r), "{op:?}32 {x} {y} = {r}: {a:?} {b:?} {half:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn negation_at_width_four() {
        for (a, xs) in shapes() {
            for x in xs {
                assert!(a.neg(Width::W64).contains(x.wrapping_neg() & 15));
                assert!(a.neg(Width::W32).contains((x & 3).wrapping_neg() & 3));
            }
        }
        let _: Small = Small::unknown().neg(Width::W64);
    }

    #[test]
    fn constants_stay_constants_at_full_width() {
        let c = |x: u64| Scalar::constant(x);
        assert_eq!(c(7).alu(AluOp::SDiv, &c(-2i64 as u64), Width::W64), c(-3i64 as u64));
        assert_eq!(c(i64::MIN as u64).alu(AluOp::SDiv, &c(u64::MAX), Width::W64), c(i64::MIN as u64));
        assert_eq!(c(9).alu(AluOp::Mod, &c(0), Width::W64), c(9));
        assert_eq!(c(9).alu(AluOp::Div, &c(0), Width::W64), c(0));
        assert_eq!(c(u64::MAX).alu(AluOp::Add, &c(1), Width::W32), c(0));
        assert_eq!(c(1).alu(AluOp::Lsh, &c(65), Width::W64), c(2));
    }

    #[test]
    fn the_bounds_that_programs_rely_on() {
        let byte = Scalar::of_bits(8);
        let ihl =
            byte.alu(AluOp::And, &Scalar::constant(15), Width::W64).alu(AluOp::Lsh, &Scalar::constant(2), Width::W64);
        assert_eq!((ihl.umin(), ihl.umax(), ihl.tnum.mask), (0, 60, 60));
        let index = Scalar::unknown().alu(AluOp::Mod, &Scalar::constant(10), Width::W32);
        assert_eq!((index.umin(), index.umax()), (0, 9));
        let diff = Scalar::between(20, 60).alu(AluOp::Sub, &Scalar::constant(20), Width::W64);
        assert_eq!((diff.umin(), diff.umax()), (0, 40));
        assert_eq!(Scalar::constant(0x0800).endian(ByteOrder::ToBe, 16), Scalar::constant(8));
        assert_eq!(Scalar::unknown().endian(ByteOrder::Swap, 16).umax(), 0xffff);
    }
}
