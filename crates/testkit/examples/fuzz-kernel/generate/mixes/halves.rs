//! Rows of operations of 32 bits between fields of the packet, as clang makes them with `-mcpu=v3`: halves of registers are computed with,
//! compared and extended, with operations of 64 bits and pieces of memory between them.

use super::super::{COND, INTERESTING, SIZES};
use super::Mix;

/// Registers of a row; r0 is scratch.
const ROW: [usize; 5] = [1, 2, 3, 4, 5];

impl Mix<'_> {
    pub(super) fn halves(&mut self) {
        // The checks stand in front: they take r0 and r1.
        let fields: Vec<_> = (0..1 + self.rng.below(4))
            .map(|_| {
                let (name, size) = self.size();
                (name, size, self.place(size))
            })
            .collect();
        for (n, r) in ROW.into_iter().enumerate() {
            let Some((name, size, at)) = fields.get(n).copied() else {
                let number = INTERESTING[self.rng.index(INTERESTING.len())];
                match self.rng.below(3) {
                    0 => self.line(&format!("w{r} = {number}")),
                    1 => self.line(&format!("w{r} = w9")),
                    _ => self.line(&format!("r{r} = r9")),
                }
                continue;
            };
            let name = if size < 8 && self.rng.one_in(4) { name.replace('u', "s") } else { name.to_owned() };
            self.line(&format!("r{r} = *({name} *)(r7 +{at})"));
            if size > 1 && self.rng.one_in(3) {
                self.line(&format!("r{r} = be{} r{r}", 8 * size));
            }
        }
        for _ in 0..3 + self.rng.below(14) {
            self.half();
        }
        let d = *self.rng.pick(&ROW);
        match self.rng.below(6) {
            0 => self.line(&format!("r9 += r{d}")),
            1 => self.line(&format!("w9 ^= w{d}")),
            2 | 3 => {
                let out = self.way_out();
                self.line("r9 += r1");
                self.decide(d, &out);
            }
            4 => {
                // A number of 32 bits moves a pointer.
                let mask = *self.rng.pick(&[7, 15, 63]);
                let (name, size) = self.size();
                let (on, out) = (self.label(), self.way_out());
                self.line(&format!("w{d} &= {mask}\nr0 = r7\nr0 += r{d}\nr{d} = r0\nr{d} += {size}"));
                if self.rng.one_in(2) {
                    self.line(&format!("if r{d} > r8 goto {out}\nr{d} = *({name} *)(r0 +0)\nr9 += r{d}"));
                } else {
                    self.line(&format!("if r{d} > r8 goto {on}\n*({name} *)(r0 +0) = r9\n{on}: r0 = 0"));
                }
            }
            _ => {
                self.line("r9 ^= r1\nr9 *= 3\nr9 += r2\nr9 *= 5\nr9 ^= r3\nr9 += r4\nr9 *= 7\nr9 ^= r5");
            }
        }
    }

    fn half(&mut self) {
        let (d, s) = (*self.rng.pick(&ROW), *self.rng.pick(&ROW));
        let w = if self.rng.one_in(4) { "r" } else { "w" };
        let number = INTERESTING[self.rng.index(INTERESTING.len())];
        match self.rng.below(20) {
            0..=3 => {
                let op = *self.rng.pick(&["+=", "-=", "*=", "|=", "&=", "^="]);
                self.line(&format!("{w}{d} {op} {w}{s}"));
            }
            4 | 5 => {
                let op = *self.rng.pick(&["+=", "-=", "*=", "|=", "&=", "^="]);
                self.line(&format!("{w}{d} {op} {number}"));
            }
            6 | 7 => {
                let (op, by) = (*self.rng.pick(&["<<=", ">>=", "s>>="]), self.below(if w == "w" { 32 } else { 64 }));
                self.line(&format!("{w}{d} {op} {by}"));
            }
            8 => {
                let op = *self.rng.pick(&["<<=", ">>=", "s>>="]);
                self.line(&format!("{w}{d} {op} {w}{s}"));
            }
            9 => {
                let op = *self.rng.pick(&["/=", "%=", "s/=", "s%="]);
                self.line(&format!("{w}{d} {op} {w}{s}"));
            }
            10 => {
                let op = *self.rng.pick(&["/=", "%=", "s/=", "s%="]);
                self.line(&format!("{w}{d} {op} {}", if number == 0 { -1 } else { number }));
            }
            11 => self.line(&format!("{w}{d} = {w}{s}")),
            12 => {
                let bits = *self.rng.pick(if w == "r" { &[8, 16, 32] } else { &[8, 16] });
                self.line(&format!("{w}{d} = (s{bits}){w}{s}"));
            }
            13 => {
                let (name, bits) = (*self.rng.pick(&["be", "bswap", "le"]), *self.rng.pick(&[16, 32, 64]));
                self.line(&format!("r{d} = {name}{bits} r{d}"));
            }
            14 => match self.rng.below(3) {
                0 => self.line(&format!("{w}{d} = -{w}{d}")),
                1 => {
                    let back = *self.rng.pick(&[">>=", "s>>="]);
                    self.line(&format!("r{d} <<= 32\nr{d} {back} 32"));
                }
                _ => self.line(&format!("w{d} = {number}")),
            },
            15..=17 => {
                // What C says with `?:`, and a row that is left out on one of the ways.
                let on = self.label();
                self.decide(d, &on);
                match self.rng.below(3) {
                    0 => self.line(&format!("w{d} = w{s}")),
                    1 => self.line(&format!("{w}{s} += {number}")),
                    _ => self.half(),
                }
                self.line(&format!("{on}: r0 = 0"));
            }
            18 => {
                let (name, size) = self.size();
                if self.proved >= size {
                    let at = self.below(self.proved - size + 1);
                    self.line(&format!("*({name} *)(r7 +{at}) = r{s}"));
                    let (name, size) = SIZES[self.rng.index(3)];
                    let near = (at + self.below(4) - 1).clamp(0, (self.proved - size).max(0));
                    if self.proved >= size {
                        self.line(&format!("r{d} = *({name} *)(r7 +{near})"));
                    }
                }
            }
            _ => {
                let (name, size) = self.size();
                let at = self.own(size);
                self.line(&format!("*({name} *)(r10 {at}) = r{s}"));
                let (name, size) = self.size();
                let at = at.div_euclid(size) * size;
                let name = if size < 8 && self.rng.one_in(3) { name.replace('u', "s") } else { name.to_owned() };
                self.line(&format!("r{d} = *({name} *)(r10 {at})"));
            }
        }
    }

    /// A jump by a half, or now and then by all of a register.
    fn decide(&mut self, d: usize, target: &str) {
        let cond = COND[self.rng.index(COND.len())];
        let w = if self.rng.one_in(5) { "r" } else { "w" };
        if self.rng.one_in(2) {
            let s = *self.rng.pick(&ROW);
            self.line(&format!("if {w}{d} {cond} {w}{s} goto {target}"));
        } else {
            let number = if self.rng.one_in(2) { self.byte() } else { INTERESTING[self.rng.index(INTERESTING.len())] };
            self.line(&format!("if {w}{d} {cond} {number} goto {target}"));
        }
    }
}
