//! The abstract number: known bits, bounds of the whole, bounds of the low half.

use super::range::{Range, signed, unsigned};
use super::tnum::{Tnum, ones};

/// What is known about a number of `W` bits. Programs use `W` = 64 ([`Scalar`]); the tests use small widths, at which
/// everything can be tried.
///
/// The three parts describe the same number and are kept sharpened by one another ([`ScalarW::reduce`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScalarW<const W: u32> {
    /// Known bits.
    pub tnum: Tnum,
    /// Bounds of the number.
    pub whole: Range,
    /// Bounds of its low half (the 32-bit view).
    pub half: Range,
}

/// A 64-bit register's number.
pub type Scalar = ScalarW<64>;

/// Known bits and bounds at one width: what one operation of the arithmetic unit sees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Word {
    /// Known bits.
    pub tnum: Tnum,
    /// Bounds.
    pub range: Range,
}

impl Word {
    /// Any number of `w` bits.
    pub const fn unknown(w: u32) -> Word {
        Word { tnum: Tnum::unknown(w), range: Range::full(w) }
    }

    /// Exactly `x`.
    pub const fn constant(x: u64, w: u32) -> Word {
        let x = x & ones(w);
        Word { tnum: Tnum::constant(x), range: Range::constant(x, w) }
    }

    /// Only bounds are known.
    pub const fn bounded(range: Range, w: u32) -> Word {
        Word { tnum: Tnum::unknown(w), range }
    }

    /// The number, when only one is left.
    pub const fn as_const(&self) -> Option<u64> {
        if self.tnum.is_const() { Some(self.tnum.value) } else { None }
    }

    /// Lets bits and bounds sharpen each other; `None` when no number is left.
    pub fn reduce(self, w: u32) -> Option<Word> {
        let range = self.range.meet_tnum(self.tnum, w).tighten(w)?;
        let tnum = self.tnum.meet(Tnum::range(range.umin, range.umax))?;
        let range = range.meet_tnum(tnum, w).tighten(w)?;
        Some(Word { tnum, range })
    }
}

impl<const W: u32> ScalarW<W> {
    /// Width of the low half.
    pub const H: u32 = W / 2;

    /// Nothing is known.
    pub const fn unknown() -> Self {
        ScalarW { tnum: Tnum::unknown(W), whole: Range::full(W), half: Range::full(W / 2) }
    }

    /// Exactly `x` (its bits above `W` are ignored).
    pub const fn constant(x: u64) -> Self {
        let x = x & ones(W);
        ScalarW { tnum: Tnum::constant(x), whole: Range::constant(x, W), half: Range::constant(x & ones(W / 2), W / 2) }
    }

    /// Between `min` and `max`, unsigned, in order.
    pub fn between(min: u64, max: u64) -> Self {
        ScalarW { whole: Range::unsigned(min, max, W), ..Self::unknown() }.reduce().unwrap_or(Self::unknown())
    }

    /// Between `min` and `max`, signed, in order.
    pub fn between_signed(min: i64, max: i64) -> Self {
        ScalarW { whole: Range::signed(min, max, W), ..Self::unknown() }.reduce().unwrap_or(Self::unknown())
    }

    /// Any number of the low `bits` bits, zero above.
    pub fn of_bits(bits: u32) -> Self {
        ScalarW { tnum: Tnum::unknown(bits), ..Self::unknown() }.reduce().unwrap_or(Self::unknown())
    }

    /// The number, when only one is left.
    pub const fn as_const(&self) -> Option<u64> {
        if self.tnum.is_const() { Some(self.tnum.value) } else { None }
    }

    /// True when nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::unknown()
    }

    /// True when `x` (bits above `W` zero) is possible.
    pub fn contains(&self, x: u64) -> bool {
        self.tnum.contains(x) && self.whole.contains(x, W) && self.half.contains(x & ones(W / 2), W / 2)
    }

    /// True when every number that `o` allows is allowed here, judged part by part.
    pub fn includes(&self, o: &Self) -> bool {
        self.tnum.includes(o.tnum) && self.whole.includes(&o.whole) && self.half.includes(&o.half)
    }

    /// Numbers of either.
    pub fn join(&self, o: &Self) -> Self {
        let s =
            ScalarW { tnum: self.tnum.join(o.tnum), whole: self.whole.join(&o.whole), half: self.half.join(&o.half) };
        s.reduce().unwrap_or(s)
    }

    /// Numbers of both; `None` when there are none.
    pub fn meet(&self, o: &Self) -> Option<Self> {
        ScalarW { tnum: self.tnum.meet(o.tnum)?, whole: self.whole.meet(&o.whole), half: self.half.meet(&o.half) }
            .reduce()
    }

    /// The whole number as one word.
    pub const fn word(&self) -> Word {
        Word { tnum: self.tnum, range: self.whole }
    }

    /// The low half as one word.
    pub const fn half_word(&self) -> Word {
        Word { tnum: self.tnum.cast(W / 2), range: self.half }
    }

    /// Lets all parts sharpen one another until nothing changes (at most four rounds). `None` when they contradict one
    /// another: then no number is possible and the code that holds it cannot be reached.
    pub fn reduce(mut self) -> Option<Self> {
        // One number is left, or none: most numbers of loops that are unrolled.
        if self.tnum.is_const() || self.whole.umin == self.whole.umax {
            let x = if self.tnum.is_const() { self.tnum.value } else { self.whole.umin };
            return self.contains(x).then(|| Self::constant(x));
        }
        for _ in 0..4 {
            let before = self;
            let h = Self::H;
            self.whole = self.whole.meet_tnum(self.tnum, W).tighten(W)?;
            self.half = self.half.meet_tnum(self.tnum.cast(h), h);
            self.half = self.half.meet(&self.whole.low_half(W, h)).tighten(h)?;
            self.whole = self.whole.meet_low(&self.half, W, h)?.tighten(W)?;
            self.tnum = self.tnum.meet(Tnum::range(self.whole.umin, self.whole.umax))?;
            let low = Tnum::range(self.half.umin, self.half.umax);
            let high = ones(W) & !ones(h);
            self.tnum = self.tnum.meet(Tnum { value: low.value, mask: low.mask | high })?;
            if self == before {
                break;
            }
        }
        Some(self)
    }

    /// A number made from a whole word, sharpened by what is known about its low half.
    pub(super) fn from_words(whole: Word, half: Word) -> Self {
        let h = Self::H;
        let high = ones(W) & !ones(h);
        let low = Tnum { value: half.tnum.value, mask: half.tnum.mask | high };
        let tnum = whole.tnum.meet(low).unwrap_or(whole.tnum);
        let s = ScalarW { tnum, whole: whole.range, half: half.range };
        s.reduce().unwrap_or(Self::unknown())
    }

    /// The low half, zero-extended: what a 32-bit move or operation leaves.
    pub fn from_half(half: Word) -> Self {
        let s = ScalarW { tnum: half.tnum, whole: Range::full(W), half: half.range };
        s.reduce().unwrap_or(Self::of_bits(Self::H))
    }

    /// The low `bits` bits, zero-extended.
    pub fn truncate(&self, bits: u32) -> Self {
        if bits >= W {
            return *self;
        }
        if bits == Self::H {
            return Self::from_half(self.half_word());
        }
        let fits = self.whole.umax <= ones(bits);
        if fits {
            return *self;
        }
        let range = self.whole.low_half(W, bits);
        let word = Word { tnum: self.tnum.cast(bits), range }.reduce(bits).unwrap_or(Word::unknown(bits));
        let whole = Range::unsigned(word.range.umin, word.range.umax, W);
        ScalarW { tnum: word.tnum, whole, half: Range::full(Self::H) }.reduce().unwrap_or(Self::of_bits(bits))
    }

    /// The low `from` bits, sign-extended to `to` bits and zero-extended above; `to` is `W` or its half.
    pub fn sign_extend(&self, from: u32, to: u32) -> Self {
        if from >= to {
            return self.truncate(to);
        }
        let range = if from == Self::H { self.half } else { self.whole.low_half(W, from) };
        let low = Word { tnum: self.tnum.cast(from), range }.reduce(from).unwrap_or(Word::unknown(from));
        let s = Range::signed(low.range.smin, low.range.smax, to);
        let word = Word { tnum: low.tnum.sign_extend(from, to), range: s }.reduce(to).unwrap_or(Word::unknown(to));
        if to == W { Self::from_words(word, Word::unknown(Self::H)) } else { Self::from_half(word) }
    }

    /// The smallest value, signed.
    pub const fn smin(&self) -> i64 {
        self.whole.smin
    }

    /// The largest value, signed.
    pub const fn smax(&self) -> i64 {
        self.whole.smax
    }

    /// The smallest value, unsigned.
    pub const fn umin(&self) -> u64 {
        self.whole.umin
    }

    /// The largest value, unsigned.
    pub const fn umax(&self) -> u64 {
        self.whole.umax
    }

    /// Forgets how far apart the bounds are from what the type allows: used to reach a fixed point in loops. A part that
    /// did not grow since `old` is kept, one that grew is forgotten.
    pub fn widen(&self, old: &Self) -> Self {
        let part = |o: &Range, n: &Range, w: u32| Range {
            umin: if n.umin < o.umin { 0 } else { n.umin.min(o.umin) },
            umax: if n.umax > o.umax { ones(w) } else { n.umax.max(o.umax) },
            smin: if n.smin < o.smin { signed(1 << (w - 1), w) } else { n.smin.min(o.smin) },
            smax: if n.smax > o.smax { signed(unsigned(i64::MAX >> (64 - w), w), w) } else { n.smax.max(o.smax) },
        };
        let tnum = if old.tnum.includes(self.tnum) { old.tnum } else { Tnum::unknown(W) };
        let s = ScalarW { tnum, whole: part(&old.whole, &self.whole, W), half: part(&old.half, &self.half, Self::H) };
        s.reduce().unwrap_or(Self::unknown())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Width of the exhaustive tests.
    pub const W: u32 = 4;
    pub type Small = ScalarW<W>;

    /// Abstract numbers of width four in every shape that one part alone can give, and their members.
    pub fn shapes() -> Vec<(Small, Vec<u64>)> {
        let mut out: Vec<Small> = Vec::new();
        for mask in 0..16u64 {
            for value in (0..16u64).filter(|v| v & mask == 0) {
                out.extend(Small { tnum: Tnum { value, mask }, ..Small::unknown() }.reduce());
            }
        }
        for lo in 0..16u64 {
            for hi in lo..16 {
                out.extend(Small { whole: Range::unsigned(lo, hi, W), ..Small::unknown() }.reduce());
                let (slo, shi) = (lo as i64 - 8, hi as i64 - 8);
                out.extend(Small { whole: Range::signed(slo, shi, W), ..Small::unknown() }.reduce());
            }
        }
        for lo in 0..4u64 {
            for hi in lo..4 {
                out.extend(Small { half: Range::unsigned(lo, hi, 2), ..Small::unknown() }.reduce());
                out.extend(Small { half: Range::signed(lo as i64 - 2, hi as i64 - 2, 2), ..Small::unknown() }.reduce());
            }
        }
        // Mixtures: two shapes met.
        let base = out.clone();
        for (i, a) in base.iter().enumerate().step_by(2) {
            out.extend(base.iter().skip(i).step_by(11).filter_map(|b| a.meet(b)));
        }
        out.sort_by_key(|s| format!("{s:?}"));
        out.dedup();
        out.into_iter().map(|s| (s, (0..16).filter(|x| s.contains(*x)).collect())).collect()
    }

    #[test]
    fn reduce_never_loses_a_number() {
        for mask in 0..16u64 {
            for value in (0..16u64).filter(|v| v & mask == 0) {
                for lo in 0..16u64 {
                    for hi in lo..16 {
                        for (hlo, hhi) in [(0, 3), (1, 2), (2, 2), (0, 1)] {
                            let raw = Small {
                                tnum: Tnum { value, mask },
                                whole: Range::unsigned(lo, hi, W),
                                half: Range::unsigned(hlo, hhi, 2),
                            };
                            let members: Vec<u64> = (0..16).filter(|x| raw.contains(*x)).collect();
                            match raw.reduce() {
                                None => assert!(members.is_empty(), "{raw:?}"),
                                Some(s) => assert!(members.iter().all(|x| s.contains(*x)), "{raw:?} {s:?}"),
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn joins_meets_and_inclusion_agree_with_the_sets() {
        let shapes = shapes();
        assert!(shapes.len() > 250);
        for (a, xs) in &shapes {
            for (b, ys) in &shapes {
                let join = a.join(b);
                assert!(xs.iter().chain(ys).all(|x| join.contains(*x)));
                let both: Vec<_> = xs.iter().filter(|x| ys.contains(x)).collect();
                match a.meet(b) {
                    None => assert!(both.is_empty(), "{a:?} {b:?}"),
                    Some(m) => assert!(both.iter().all(|x| m.contains(**x)), "{a:?} {b:?}"),
                }
                if a.includes(b) {
                    assert!(ys.iter().all(|y| xs.contains(y)));
                }
                let wide = b.widen(a);
                assert!(ys.iter().all(|y| wide.contains(*y)), "{a:?} {b:?} {wide:?}");
            }
        }
    }

    #[test]
    fn truncation_and_sign_extension_hold_every_result() {
        for (a, xs) in shapes() {
            for bits in 1..=W {
                let t = a.truncate(bits);
                assert!(xs.iter().all(|x| t.contains(x & ones(bits))), "{a:?} to {bits}");
                for to in [2, 4] {
                    let e = a.sign_extend(bits, to);
                    for x in &xs {
                        let want = signed(x & ones(bits), bits.min(to)) as u64 & ones(to);
                        assert!(e.contains(want), "{a:?} from {bits} to {to}: {e:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn bounds_reach_every_part_at_full_width() {
        let s = Scalar::between(10, 0x1_0000_0000);
        assert_eq!((s.smin(), s.smax()), (10, 0x1_0000_0000));
        let s = Scalar { half: Range::unsigned(4, 9, 32), ..Scalar::of_bits(32) }.reduce().unwrap();
        assert_eq!((s.umin(), s.umax(), s.tnum.mask), (4, 9, 0xf));
        assert_eq!(Scalar::constant(u64::MAX).truncate(32), Scalar::constant(0xffff_ffff));
        assert_eq!(Scalar::between(200, 300).truncate(8).umax(), 255);
        assert_eq!(Scalar::between(0x80, 0xff).sign_extend(8, 64), Scalar::between_signed(-128, -1));
        assert!(Scalar::constant(3).meet(&Scalar::between(4, 9)).is_none());
    }
}
