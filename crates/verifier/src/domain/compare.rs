//! Comparisons: what a branch that was taken (or not) says about its operands.

use xway_isa::{Cond, Width};

use super::range::{Range, signed, smax_of, smin_of, unsigned};
use super::scalar::{ScalarW, Word};
use super::tnum::{Tnum, ones};

/// The condition that holds when `cond` does not. `None` for [`Cond::Set`], which has no such condition in the
/// instruction set.
pub const fn negate(cond: Cond) -> Option<Cond> {
    Some(match cond {
        Cond::Eq => Cond::Ne,
        Cond::Ne => Cond::Eq,
        Cond::Gt => Cond::Le,
        Cond::Ge => Cond::Lt,
        Cond::Lt => Cond::Ge,
        Cond::Le => Cond::Gt,
        Cond::SGt => Cond::SLe,
        Cond::SGe => Cond::SLt,
        Cond::SLt => Cond::SGe,
        Cond::SLe => Cond::SGt,
        Cond::Set => return None,
    })
}

/// Both operands after `a COND b` turned out to be `holds`; `None` when it cannot turn out so.
pub fn refine<const W: u32>(
    a: &ScalarW<W>,
    b: &ScalarW<W>,
    cond: Cond,
    width: Width,
    holds: bool,
) -> Option<(ScalarW<W>, ScalarW<W>)> {
    match width {
        Width::W64 => {
            let (x, y) = refine_words(a.word(), b.word(), cond, W, holds)?;
            let put = |s: &ScalarW<W>, w: Word| ScalarW { tnum: w.tnum, whole: w.range, half: s.half }.reduce();
            Some((put(a, x)?, put(b, y)?))
        }
        Width::W32 => {
            let (x, y) = refine_words(a.half_word(), b.half_word(), cond, ScalarW::<W>::H, holds)?;
            let put = |s: &ScalarW<W>, w: Word| {
                let high = ones(W) & !ones(W / 2);
                let tnum = s.tnum.meet(Tnum { value: w.tnum.value, mask: w.tnum.mask | high })?;
                ScalarW { tnum, whole: s.whole, half: w.range }.reduce()
            };
            Some((put(a, x)?, put(b, y)?))
        }
    }
}

fn refine_words(a: Word, b: Word, cond: Cond, w: u32, holds: bool) -> Option<(Word, Word)> {
    let cond = if holds {
        cond
    } else {
        match negate(cond) {
            Some(c) => c,
            None => return no_common_bit(a, b, w),
        }
    };
    let (a, b) = match cond {
        Cond::Eq => {
            let both = Word { tnum: a.tnum.meet(b.tnum)?, range: a.range.meet(&b.range) };
            (both, both)
        }
        Cond::Ne => {
            if a.as_const().is_some() && a.as_const() == b.as_const() {
                return None;
            }
            (without(a, b, w), without(b, a, w))
        }
        Cond::Set => return common_bit(a, b, w),
        Cond::Lt => less(a, b, 1, w)?,
        Cond::Le => less(a, b, 0, w)?,
        Cond::Gt => swap(less(b, a, 1, w)?),
        Cond::Ge => swap(less(b, a, 0, w)?),
        Cond::SLt => less_signed(a, b, 1, w)?,
        Cond::SLe => less_signed(a, b, 0, w)?,
        Cond::SGt => swap(less_signed(b, a, 1, w)?),
        Cond::SGe => swap(less_signed(b, a, 0, w)?),
    };
    Some((a.reduce(w)?, b.reduce(w)?))
}

fn swap<T>((a, b): (T, T)) -> (T, T) {
    (b, a)
}

/// `a + gap <= b`, unsigned.
fn less(mut a: Word, mut b: Word, gap: u64, w: u32) -> Option<(Word, Word)> {
    a.range.umax = a.range.umax.min(b.range.umax.checked_sub(gap)?);
    b.range.umin = b.range.umin.max(a.range.umin.checked_add(gap).filter(|x| *x <= ones(w))?);
    Some((a, b))
}

/// `a + gap <= b`, signed.
fn less_signed(mut a: Word, mut b: Word, gap: i64, w: u32) -> Option<(Word, Word)> {
    a.range.smax = a.range.smax.min(b.range.smax.checked_sub(gap).filter(|x| *x >= smin_of(w))?);
    b.range.smin = b.range.smin.max(a.range.smin.checked_add(gap).filter(|x| *x <= smax_of(w))?);
    Some((a, b))
}

/// `a` without the number `b`, when that is one number at an end of an interval.
fn without(mut a: Word, b: Word, w: u32) -> Word {
    let Some(x) = b.as_const() else { return a };
    let s = signed(x, w);
    let r: &mut Range = &mut a.range;
    // A range of one number has no end to shave; equality was ruled out above by constants.
    if r.umin == x && r.umin < r.umax {
        r.umin += 1;
    }
    if r.umax == x && r.umin < r.umax {
        r.umax -= 1;
    }
    if r.smin == s && r.smin < r.smax {
        r.smin += 1;
    }
    if r.smax == s && r.smin < r.smax {
        r.smax -= 1;
    }
    debug_assert!(unsigned(r.smin, w) <= ones(w));
    a
}

/// `a & b != 0`
fn common_bit(mut a: Word, mut b: Word, w: u32) -> Option<(Word, Word)> {
    let possible = a.tnum.max() & b.tnum.max();
    if possible == 0 {
        return None;
    }
    if possible.is_power_of_two() {
        // Only one bit can be the common one: it is set in both.
        let set = Tnum { value: possible, mask: ones(w) & !possible };
        a.tnum = a.tnum.meet(set)?;
        b.tnum = b.tnum.meet(set)?;
    }
    Some((a.reduce(w)?, b.reduce(w)?))
}

/// `a & b == 0`
fn no_common_bit(mut a: Word, mut b: Word, w: u32) -> Option<(Word, Word)> {
    let clear = |t: Tnum, bits: u64| t.meet(Tnum { value: 0, mask: ones(w) & !bits });
    let (in_a, in_b) = (a.tnum.value, b.tnum.value);
    a.tnum = clear(a.tnum, in_b)?;
    b.tnum = clear(b.tnum, in_a)?;
    Some((a.reduce(w)?, b.reduce(w)?))
}

#[cfg(test)]
mod tests {
    use super::super::scalar::Scalar;
    use super::super::scalar::tests::{W, shapes};
    use super::*;

    #[test]
    fn every_outcome_keeps_its_witnesses_at_width_four() {
        let shapes = shapes();
        for (a, xs) in &shapes {
            for (b, ys) in &shapes {
                for cond in Cond::ALL {
                    for (width, w, mask) in [(Width::W64, W, 15), (Width::W32, 2, 3)] {
                        let outcomes = [refine(a, b, cond, width, false), refine(a, b, cond, width, true)];
                        for x in xs {
                            for y in ys {
                                let holds = cond.holds(x & mask, y & mask, w);
                                let kept = outcomes[usize::from(holds)]
                                    .is_some_and(|(ra, rb)| ra.contains(*x) && rb.contains(*y));
                                assert!(kept, "{x} {cond:?} {y} ({w} bits): {a:?} {b:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn negations_are_complements() {
        for cond in Cond::ALL {
            let Some(not) = negate(cond) else { continue };
            for x in 0..16 {
                for y in 0..16 {
                    assert_ne!(cond.holds(x, y, 4), not.holds(x, y, 4));
                }
            }
        }
    }

    #[test]
    fn decided_branches_have_one_outcome() {
        let (small, big) = (Scalar::between(0, 9), Scalar::between(10, 20));
        assert!(refine(&small, &big, Cond::Lt, Width::W64, false).is_none());
        assert!(refine(&small, &big, Cond::SGe, Width::W32, true).is_none());
        let six = Scalar::constant(6);
        let r = refine(&Scalar::unknown(), &six, Cond::Ne, Width::W64, false).unwrap();
        assert_eq!(r.0, six);
        assert!(refine(&Scalar::constant(5), &Scalar::constant(2), Cond::Set, Width::W64, true).is_none());
        let (bit, _) = refine(&Scalar::unknown(), &Scalar::constant(8), Cond::Set, Width::W64, true).unwrap();
        assert_eq!(bit.tnum.value, 8);
        let (zero, _) = refine(&Scalar::unknown(), &Scalar::constant(8), Cond::Set, Width::W64, false).unwrap();
        assert_eq!(zero.tnum.mask, !8);
    }
}
