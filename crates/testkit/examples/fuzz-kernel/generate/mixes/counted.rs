//! Atomic operations on values of maps, in rows over one word and its halves; what they give back decides.

use super::super::SIZES;
use super::{COND, Mix};

impl Mix<'_> {
    pub(super) fn counted(&mut self) {
        let (map, key) = *self.rng.pick(&[(0, 4), (0, 4), (1, 8), (3, 4), (4, 4), (14, 8)]);
        let name = if key == 8 { "u64" } else { "u32" };
        if self.rng.one_in(2) {
            let n = self.below(3);
            self.line(&format!("*({name} *)(r10 -72) = {n}"));
        } else {
            self.line(&format!("r1 = r9\nr1 &= 1\n*({name} *)(r10 -72) = r1"));
        }
        let miss = self.label();
        self.line(&format!("r2 = r10\nr2 += -72\nr1 = map[idx:{map}]\ncall 1\nif r0 == 0 goto {miss}\nr2 = r0"));
        // Sixteen bytes, of which the row is about eight.
        let near = 8 * self.below(2);
        for _ in 0..2 + self.rng.below(6) {
            self.atomic_at(near);
        }
        self.line(&format!("{miss}: r0 = 0"));
    }

    /// One operation on the value at r2; what it gave is in r1 or r0 and seen.
    fn atomic_at(&mut self, near: i64) {
        let (name, size) = SIZES[2 + self.rng.index(2)];
        let bits = if size == 8 { "64" } else { "" };
        let at = near + if size == 4 { 4 * self.below(2) } else { 0 };
        let word = format!("({name} *)(r2 +{at})");
        let op = *self.rng.pick(&["add", "or", "and", "xor"]);
        let number = match self.rng.below(4) {
            0 => "r1 = r9".to_owned(),
            1 => "w1 = w9".to_owned(),
            2 => format!("r1 = {}", *self.rng.pick(&[0, 1, -1, 3, 0xff, i32::MIN])),
            _ => {
                let (name, size) = self.size();
                format!("r1 = *({name} *)(r10 {})", self.own(size))
            }
        };
        let mut given = 1;
        match self.rng.below(12) {
            0 | 1 => {
                let op = *self.rng.pick(&["+=", "|=", "&=", "^="]);
                return self.line(&format!("{number}\nlock *{word} {op} r1"));
            }
            2..=5 => self.line(&format!("{number}\nr1 = atomic{bits}_fetch_{op}({word}, r1)")),
            6 => self.line(&format!("{number}\nr1 = atomic{bits}_xchg({word}, r1)")),
            7 | 8 => {
                let expected = self.expected(name, 2, at);
                self.line(&format!("{number}\n{expected}\nr0 = atomic{bits}_cmpxchg({word}, r0, r1)"));
                given = 0;
            }
            9 => {
                // What is expected is what is put there, or the number itself changes.
                if self.rng.one_in(2) {
                    let expected = self.expected(name, 2, at);
                    self.line(&format!("{expected}\nr0 = atomic{bits}_cmpxchg({word}, r0, r0)"));
                    given = 0;
                } else {
                    return self.line(&format!("r9 = atomic{bits}_fetch_{op}({word}, r9)"));
                }
            }
            10 => {
                // As often as it takes, and no more.
                let (again, done) = (self.label(), self.label());
                let w = if size == 8 { "r" } else { "w" };
                self.line(&format!(
                    "r3 = 0\n{again}: r4 = *{word}\nr0 = r4\nr1 = r4\n{w}1 += {w}9\nr0 = atomic{bits}_cmpxchg({word}, r0, r1)\n\
                     if {w}0 == {w}4 goto {done}\nr3 += 1\nif r3 < 3 goto {again}\n{done}: r9 += r3"
                ));
                given = 0;
            }
            _ => {
                // Plain, in another width.
                let (name, size) = self.size();
                let at = near + size * self.below(8 / size);
                if self.rng.one_in(2) {
                    return self.line(&format!("*({name} *)(r2 +{at}) = r9"));
                }
                self.line(&format!("r1 = *({name} *)(r2 +{at})"));
            }
        }
        let (w, out) = (if self.rng.one_in(2) { "w" } else { "r" }, self.way_out());
        match self.rng.below(5) {
            0 => {
                let (cond, number) = (COND[self.rng.index(COND.len())], self.byte());
                self.line(&format!("if {w}{given} {cond} {number} goto {out}"));
            }
            1 => {
                let on = self.label();
                let cond = COND[self.rng.index(COND.len())];
                self.line(&format!("if {w}{given} {cond} {w}9 goto {on}\nr9 += 11\n{on}: r9 ^= 1"));
            }
            2 => self.line(&format!("r{given} &= 31\nr9 <<= 1\nr9 += r{given}")),
            3 => self.line(&format!("r9 = r{given}")),
            _ => self.line(&format!("{w}9 += {w}{given}")),
        }
    }
}
