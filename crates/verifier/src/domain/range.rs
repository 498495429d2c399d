//! Intervals of numbers of `w` bits, unsigned and signed at once.

use super::tnum::{Tnum, ones};

/// Bounds of a number of `w` bits, read as unsigned and as signed. Both intervals hold for it.
///
/// The width is not stored: every operation that needs it takes it, so that the same code serves 64-bit values, their
/// 32-bit halves and the small widths at which the tests try everything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    /// Smallest value, unsigned.
    pub umin: u64,
    /// Largest value, unsigned.
    pub umax: u64,
    /// Smallest value, signed.
    pub smin: i64,
    /// Largest value, signed.
    pub smax: i64,
}

/// The smallest signed number of `w` bits.
pub const fn smin_of(w: u32) -> i64 {
    i64::MIN >> (64 - w)
}

/// The largest signed number of `w` bits.
pub const fn smax_of(w: u32) -> i64 {
    i64::MAX >> (64 - w)
}

/// Reads the low `w` bits of `x` as a signed number.
pub const fn signed(x: u64, w: u32) -> i64 {
    ((x << (64 - w)) as i64) >> (64 - w)
}

/// The two's complement of `x` in `w` bits.
pub const fn unsigned(x: i64, w: u32) -> u64 {
    x as u64 & ones(w)
}

impl Range {
    /// Any number of `w` bits.
    pub const fn full(w: u32) -> Range {
        Range { umin: 0, umax: ones(w), smin: smin_of(w), smax: smax_of(w) }
    }

    /// Exactly `x`, whose bits above `w` are zero.
    pub const fn constant(x: u64, w: u32) -> Range {
        let s = signed(x, w);
        Range { umin: x, umax: x, smin: s, smax: s }
    }

    /// Unsigned bounds only.
    pub const fn unsigned(umin: u64, umax: u64, w: u32) -> Range {
        Range { umin, umax, ..Range::full(w) }
    }

    /// Signed bounds only.
    pub const fn signed(smin: i64, smax: i64, w: u32) -> Range {
        Range { smin, smax, ..Range::full(w) }
    }

    /// True when no number is left.
    pub const fn is_empty(&self) -> bool {
        self.umin > self.umax || self.smin > self.smax
    }

    /// True when only one number is left.
    pub const fn is_const(&self) -> bool {
        self.umin == self.umax
    }

    /// True when `x` (bits above `w` zero) lies within both intervals.
    pub const fn contains(&self, x: u64, w: u32) -> bool {
        let s = signed(x, w);
        self.umin <= x && x <= self.umax && self.smin <= s && s <= self.smax
    }

    /// True when both intervals of `o` lie within those of this range.
    pub const fn includes(&self, o: &Range) -> bool {
        self.umin <= o.umin && o.umax <= self.umax && self.smin <= o.smin && o.smax <= self.smax
    }

    /// What holds for both. The result may be empty.
    pub fn meet(&self, o: &Range) -> Range {
        Range {
            umin: self.umin.max(o.umin),
            umax: self.umax.min(o.umax),
            smin: self.smin.max(o.smin),
            smax: self.smax.min(o.smax),
        }
    }

    /// The smallest range that holds both.
    pub fn join(&self, o: &Range) -> Range {
        Range {
            umin: self.umin.min(o.umin),
            umax: self.umax.max(o.umax),
            smin: self.smin.min(o.smin),
            smax: self.smax.max(o.smax),
        }
    }

    /// Adds what known bits say.
    pub fn meet_tnum(&self, t: Tnum, w: u32) -> Range {
        let sign = 1u64 << (w - 1);
        // Read as signed, the smallest number has an unknown sign bit set, the largest has it clear.
        let low = if t.mask & sign != 0 { t.value | sign } else { t.value };
        let high = if t.mask & sign != 0 { t.max() & !sign } else { t.max() };
        self.meet(&Range { umin: t.min(), umax: t.max(), smin: signed(low, w), smax: signed(high, w) })
    }

    /// Lets the two intervals sharpen each other. `None` when they contradict each other.
    ///
    /// Each half of the number line (sign bit clear, sign bit set) is one piece in both readings; the pieces are
    /// intersected separately and the hulls taken.
    pub fn tighten(&self, w: u32) -> Option<Range> {
        if self.is_empty() {
            return None;
        }
        let top = smax_of(w) as u64;
        let piece = |ulo: u64, uhi: u64| {
            let slo = signed(ulo, w).max(self.smin);
            let shi = signed(uhi, w).min(self.smax);
            (slo <= shi).then_some(()).map(|()| {
                let lo = self.umin.max(unsigned(slo, w));
                let hi = self.umax.min(unsigned(shi, w));
                (lo, hi)
            })
        };
        let keep = |p: Option<(u64, u64)>| p.filter(|(lo, hi)| lo <= hi);
        let low = keep(piece(0, top));
        let high = keep(piece(top + 1, ones(w)));
        let (first, last) = (low.or(high)?, high.or(low)?);
        let (sfirst, slast) = (high.or(low)?, low.or(high)?);
        Some(Range { umin: first.0, umax: last.1, smin: signed(sfirst.0, w), smax: signed(slast.1, w) })
    }

    /// The low `h` bits of a number of `w` bits in this range, where `h < w`.
    pub fn low_half(&self, w: u32, h: u32) -> Range {
        let circular = |lo: u64, hi: u64, span: u64| {
            if span > ones(h) {
                return Range::full(h);
            }
            let (lo, hi) = (lo & ones(h), hi & ones(h));
            if lo <= hi {
                Range::unsigned(lo, hi, h)
            } else if signed(lo, h) <= signed(hi, h) {
                Range::signed(signed(lo, h), signed(hi, h), h)
            } else {
                Range::full(h)
            }
        };
        let by_u = circular(self.umin, self.umax, self.umax.wrapping_sub(self.umin));
        let (slo, shi) = (unsigned(self.smin, w), unsigned(self.smax, w));
        by_u.meet(&circular(slo, shi, (self.smax as u64).wrapping_sub(self.smin as u64)))
    }

    /// Sharpens a range of `w` bits by what is known about its low `h` bits. `None` when nothing is left.
    pub fn meet_low(&self, low: &Range, w: u32, h: u32) -> Option<Range> {
        let mut r = *self;
        r.umin = next_up(r.umin, low, w, h)?;
        r.umax = next_down(r.umax, low, h)?;
        // Adding the sign bit maps the signed order onto the unsigned one and leaves the low half alone.
        let bias = 1u64 << (w - 1);
        r.smin = signed(next_up(unsigned(r.smin, w) ^ bias, low, w, h)? ^ bias, w);
        r.smax = signed(next_down(unsigned(r.smax, w) ^ bias, low, h)? ^ bias, w);
        (!r.is_empty()).then_some(r)
    }
}

/// The smallest number at or above `x` whose low half lies within `low`'s unsigned bounds.
fn next_up(x: u64, low: &Range, w: u32, h: u32) -> Option<u64> {
    let (high, part) = (x & !ones(h), x & ones(h));
    if part < low.umin {
        Some(high | low.umin)
    } else if part <= low.umax {
        Some(x)
    } else {
        let high = high.checked_add(1 << h).filter(|n| *n <= ones(w))?;
        Some(high | low.umin)
    }
}

/// The largest number at or below `x` whose low half lies within `low`'s unsigned bounds.
fn next_down(x: u64, low: &Range, h: u32) -> Option<u64> {
    let (high, part) = (x & !ones(h), x & ones(h));
    if part > low.umax {
        Some(high | low.umax)
    } else if part >= low.umin {
        Some(x)
    } else {
        Some(high.checked_sub(1 << h)? | low.umax)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: u32 = 4;

    /// Every pair of intervals at width four, as (range, members).
    fn all() -> Vec<(Range, Vec<u64>)> {
        let mut out = Vec::new();
        for umin in 0..16u64 {
            for umax in umin..16 {
                for smin in -8..8i64 {
                    for smax in smin..8 {
                        let r = Range { umin, umax, smin, smax };
                        out.push((r, (0..16).filter(|x| r.contains(*x, W)).collect()));
                    }
                }
            }
        }
        out
    }

    #[test]
    fn tighten_is_the_best_pair_of_intervals() {
        for (r, members) in all() {
            match r.tighten(W) {
                None => assert!(members.is_empty(), "{r:?}"),
                Some(t) => {
                    let best = members.iter().map(|x| Range::constant(*x, W)).reduce(|a, b| a.join(&b));
                    assert_eq!(Some(t), best, "{r:?}");
                }
            }
        }
    }

    #[test]
    fn low_halves_hold_every_member_and_sharpen_back() {
        for (r, members) in all() {
            let low = r.low_half(W, 2);
            for x in &members {
                assert!(low.contains(x & 3, 2), "{r:?} {x}");
            }
        }
        for (r, members) in all().into_iter().step_by(7) {
            for (lo, hi) in [(0, 0), (0, 1), (1, 2), (2, 3), (3, 3), (1, 3), (0, 3)] {
                let low = Range::unsigned(lo, hi, 2);
                let left: Vec<u64> = members.iter().copied().filter(|x| (lo..=hi).contains(&(x & 3))).collect();
                match r.meet_low(&low, W, 2) {
                    None => assert!(left.is_empty(), "{r:?} {low:?}"),
                    Some(m) => assert!(left.iter().all(|x| m.contains(*x, W)) && r.includes(&m), "{r:?} {low:?} {m:?}"),
                }
            }
        }
    }

    #[test]
    fn known_bits_bound_both_readings() {
        for mask in 0..16u64 {
            for value in (0..16u64).filter(|v| v & mask == 0) {
                let t = Tnum { value, mask };
                let best = (0..16)
                    .filter(|x| t.contains(*x))
                    .map(|x| Range::constant(x, W))
                    .reduce(|a, b| a.join(&b))
                    .unwrap();
                assert_eq!(Range::full(W).meet_tnum(t, W), best);
            }
        }
    }

    #[test]
    fn full_width_edges() {
        let r = Range { umin: 5, umax: u64::MAX, smin: -3, smax: 7 };
        assert_eq!(r.tighten(64), Some(Range { umin: 5, umax: u64::MAX, smin: -3, smax: 7 }));
        let r = Range { umin: 8, umax: u64::MAX, smin: -3, smax: 7 };
        assert_eq!(r.tighten(64).unwrap().umin, u64::MAX - 2);
        assert_eq!(Range::full(64).low_half(64, 32), Range::full(32));
    }
}
