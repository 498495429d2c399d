//! Known bits: a *tnum* says for each bit of a number 0, 1 or unknown.

/// A set of numbers given by their known bits: `value` has the known ones, `mask` the unknown bits.
///
/// The number `x` belongs to the set when `x & !mask == value`. No bit is set in both fields. Every operation returns a
/// superset of the exact result: it may forget, it never lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tnum {
    /// The bits known to be one.
    pub value: u64,
    /// The bits that are not known.
    pub mask: u64,
}

/// The `w` low bits set; `w` is 1 to 64.
pub const fn ones(w: u32) -> u64 {
    u64::MAX >> (64 - w)
}

impl Tnum {
    /// Exactly `value`.
    pub const fn constant(value: u64) -> Tnum {
        Tnum { value, mask: 0 }
    }

    /// Any number of `w` bits.
    pub const fn unknown(w: u32) -> Tnum {
        Tnum { value: 0, mask: ones(w) }
    }

    /// The best tnum that holds every number from `min` to `max`, which must be in order.
    pub const fn range(min: u64, max: u64) -> Tnum {
        let differ = min ^ max;
        let free = if differ == 0 { 0 } else { ones(64 - differ.leading_zeros()) };
        Tnum { value: min & !free, mask: free }
    }

    /// True when only one number is left.
    pub const fn is_const(self) -> bool {
        self.mask == 0
    }

    /// The smallest number of the set.
    pub const fn min(self) -> u64 {
        self.value
    }

    /// The largest number of the set.
    pub const fn max(self) -> u64 {
        self.value | self.mask
    }

    /// True when `x` belongs to the set.
    pub const fn contains(self, x: u64) -> bool {
        x & !self.mask == self.value
    }

    /// True when every number of `other` belongs to this set.
    pub const fn includes(self, other: Tnum) -> bool {
        other.mask & !self.mask == 0 && other.value & !self.mask == self.value
    }

    /// The numbers that are in both; `None` when two known bits contradict each other.
    pub const fn meet(self, other: Tnum) -> Option<Tnum> {
        let mask = self.mask & other.mask;
        let value = self.value | other.value;
        if (self.value ^ other.value) & !self.mask & !other.mask != 0 {
            return None;
        }
        Some(Tnum { value: value & !mask, mask })
    }

    /// The best tnum that holds both sets.
    pub const fn join(self, other: Tnum) -> Tnum {
        let mask = self.mask | other.mask | (self.value ^ other.value);
        Tnum { value: self.value & !mask, mask }
    }

    /// The low `w` bits, the rest zero.
    pub const fn cast(self, w: u32) -> Tnum {
        Tnum { value: self.value & ones(w), mask: self.mask & ones(w) }
    }

    /// Sign extension of the low `from` bits to `to` bits.
    pub const fn sign_extend(self, from: u32, to: u32) -> Tnum {
        let t = self.cast(from);
        let high = ones(to) & !ones(from);
        let sign = 1u64 << (from - 1);
        if t.mask & sign != 0 {
            Tnum { value: t.value, mask: t.mask | high }
        } else if t.value & sign != 0 {
            Tnum { value: t.value | high, mask: t.mask }
        } else {
            t
        }
    }

    /// Sum, modulo 2^w. The unknown bits are those of the operands and those that a carry may change.
    pub const fn add(self, o: Tnum, w: u32) -> Tnum {
        let low = self.value.wrapping_add(o.value);
        let high = low.wrapping_add(self.mask.wrapping_add(o.mask));
        let mask = (low ^ high) | self.mask | o.mask;
        Tnum { value: low & !mask, mask }.cast(w)
    }

    /// Difference, modulo 2^w.
    pub const fn sub(self, o: Tnum, w: u32) -> Tnum {
        let d = self.value.wrapping_sub(o.value);
        let high = d.wrapping_add(self.mask);
        let low = d.wrapping_sub(o.mask);
        let mask = (high ^ low) | self.mask | o.mask;
        Tnum { value: d & !mask, mask }.cast(w)
    }

    /// Bitwise and.
    pub const fn and(self, o: Tnum) -> Tnum {
        let value = self.value & o.value;
        let may = self.max() & o.max();
        Tnum { value, mask: may & !value }
    }

    /// Bitwise or.
    pub const fn or(self, o: Tnum) -> Tnum {
        let value = self.value | o.value;
        Tnum { value, mask: (self.mask | o.mask) & !value }
    }

    /// Exclusive or.
    pub const fn xor(self, o: Tnum) -> Tnum {
        let mask = self.mask | o.mask;
        Tnum { value: (self.value ^ o.value) & !mask, mask }
    }

    /// Product, modulo 2^w: the sum of shifted copies of `o`, one for each bit of `self` that may be set.
    pub fn mul(self, o: Tnum, w: u32) -> Tnum {
        let mut sum = Tnum::constant(0);
        for bit in 0..w {
            let (value, mask) = (self.value >> bit & 1, self.mask >> bit & 1);
            if value | mask == 0 {
                continue;
            }
            let part = o.shl(bit, w);
            // An unknown bit adds either nothing or the copy.
            let part = if mask != 0 { part.join(Tnum::constant(0)) } else { part };
            sum = sum.add(part, w);
        }
        sum
    }

    /// Shift left by a constant below `w`.
    pub const fn shl(self, by: u32, w: u32) -> Tnum {
        Tnum { value: self.value << by, mask: self.mask << by }.cast(w)
    }

    /// Logical shift right by a constant below 64.
    pub const fn shr(self, by: u32) -> Tnum {
        Tnum { value: self.value >> by, mask: self.mask >> by }
    }

    /// Arithmetic shift right of a number of `w` bits by a constant below `w`.
    pub const fn sar(self, by: u32, w: u32) -> Tnum {
        self.sign_extend(w, 64).shr_signed(by).cast(w)
    }

    const fn shr_signed(self, by: u32) -> Tnum {
        let mask = ((self.mask as i64) >> by) as u64;
        Tnum { value: ((self.value as i64) >> by) as u64 & !mask, mask }
    }

    /// The low `bits` (16, 32, 64) with their bytes in reverse order, the rest zero.
    pub const fn swap_bytes(self, bits: u32) -> Tnum {
        let by = 64 - bits;
        Tnum { value: self.value.swap_bytes() >> by, mask: self.mask.swap_bytes() >> by }
    }
}

impl std::fmt::Display for Tnum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({:#x}; {:#x})", self.value, self.mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: u32 = 5;

    fn all(w: u32) -> Vec<Tnum> {
        let n = 1u64 << w;
        (0..n).flat_map(|mask| (0..n).filter(move |v| v & mask == 0).map(move |value| Tnum { value, mask })).collect()
    }

    fn members(t: Tnum) -> impl Iterator<Item = u64> {
        (0..1u64 << W).filter(move |x| t.contains(*x))
    }

    #[test]
    fn binary_operations_hold_every_result_at_five_bits() {
        let sets = all(W);
        let m = ones(W);
        for &a in &sets {
            for &b in &sets {
                let (add, sub, mul) = (a.add(b, W), a.sub(b, W), a.mul(b, W));
                let (and, or, xor, join) = (a.and(b), a.or(b), a.xor(b), a.join(b));
                let meet = a.meet(b);
                for x in members(a) {
                    assert!(join.contains(x));
                    for y in members(b) {
                        assert!(add.contains(x.wrapping_add(y) & m), "{a} + {b}");
                        assert!(sub.contains(x.wrapping_sub(y) & m), "{a} - {b}");
                        assert!(mul.contains(x.wrapping_mul(y) & m), "{a} * {b}");
                        assert!(and.contains(x & y) && or.contains(x | y) && xor.contains(x ^ y));
                        assert!(x != y || meet.is_some_and(|t| t.contains(x)));
                    }
                }
                assert_eq!(a.includes(b), members(b).all(|y| a.contains(y)), "{a} includes {b}");
                for r in [add, sub, mul, and, or, xor, join] {
                    assert_eq!(r.value & r.mask, 0);
                    assert_eq!(r.max() & !m, 0);
                }
            }
        }
    }

    #[test]
    fn bitwise_operations_are_exact_at_four_bits() {
        for a in all(4) {
            for b in all(4) {
                let best = |f: fn(u64, u64) -> u64| {
                    let mut it = members(a).flat_map(|x| members(b).map(move |y| Tnum::constant(f(x, y))));
                    let first = it.next().unwrap();
                    it.fold(first, Tnum::join)
                };
                assert_eq!(a.and(b), best(|x, y| x & y));
                assert_eq!(a.or(b), best(|x, y| x | y));
                assert_eq!(a.xor(b), best(|x, y| x ^ y));
                assert_eq!(a.add(b, 5), best(|x, y| (x + y) & 31), "{a} + {b}");
            }
        }
    }

    #[test]
    fn shifts_and_extensions_hold_every_result() {
        for a in all(W) {
            for by in 0..W {
                let (l, r, s) = (a.shl(by, W), a.shr(by), a.sar(by, W));
                for x in members(a) {
                    assert!(l.contains(x << by & ones(W)));
                    assert!(r.contains(x >> by));
                    let signed = ((x << (64 - W)) as i64 >> (64 - W)) >> by;
                    assert!(s.contains(signed as u64 & ones(W)));
                }
            }
            for from in 1..=W {
                let e = a.sign_extend(from, W);
                for x in members(a) {
                    let want = ((x << (64 - from)) as i64 >> (64 - from)) as u64 & ones(W);
                    assert!(e.contains(want), "{a} from {from}");
                }
            }
        }
    }

    #[test]
    fn ranges_are_held_and_minimal() {
        for min in 0..32u64 {
            for max in min..32 {
                let t = Tnum::range(min, max);
                assert!((min..=max).all(|x| t.contains(x)));
                let best = (min..=max).map(Tnum::constant).reduce(Tnum::join).unwrap();
                assert_eq!(t, best);
            }
        }
        assert_eq!(Tnum::range(0, u64::MAX), Tnum::unknown(64));
    }

    #[test]
    fn byte_swaps_move_the_bits() {
        let t = Tnum { value: 0x0100, mask: 0x00f0 };
        assert_eq!(t.swap_bytes(16), Tnum { value: 0x0001, mask: 0xf000 });
        assert_eq!(Tnum::constant(0x1122_3344_5566_7788).swap_bytes(64).value, 0x8877_6655_4433_2211);
        assert_eq!(Tnum::constant(0x1122_3344_5566_7788).swap_bytes(32).value, 0x8877_6655);
    }
}
