//! Functions of five arguments: numbers, pointers to the caller's stack, the packet's bounds or a value of a map; they call one another,
//! and the caller uses what they return as what its bounds allow.

use std::fmt::Write;

use super::super::INTERESTING;
use super::{COND, Mix, Role};

/// What the third and the fourth argument are.
#[derive(Clone, Copy, PartialEq)]
enum Given {
    Packet,
    Stack,
    Value,
    Numbers,
}

impl Mix<'_> {
    pub(super) fn arguments(&mut self) {
        let depth = self.rng.below(3);
        let given = *self.rng.pick(&[Given::Packet, Given::Stack, Given::Value, Given::Numbers]);
        let (name, most) = self.five(given, depth);
        for _ in 0..1 + self.rng.below(3) {
            let miss = self.label();
            let at = -64 + 8 * self.below(3);
            let first = if self.rng.one_in(3) {
                format!("r1 = {}", INTERESTING[self.rng.index(INTERESTING.len())])
            } else {
                "r1 = r9".to_owned()
            };
            let rest = match given {
                Given::Packet => "r3 = r7\nr4 = r8".to_owned(),
                // One of the two may be in the other's bytes.
                Given::Stack => {
                    format!("r3 = r10\nr3 += {}\nr4 = {}", -64 + 8 * self.below(5), self.below(16))
                }
                Given::Value => {
                    let n = self.below(2);
                    self.line(&format!(
                        "*(u32 *)(r10 -72) = {n}\nr2 = r10\nr2 += -72\nr1 = map[idx:3]\ncall 1\nif r0 == 0 goto {miss}"
                    ));
                    "r3 = r0\nr4 = r9".to_owned()
                }
                Given::Numbers => "r3 = r9\nr3 >>= 7\nw4 = w9".to_owned(),
            };
            let fifth =
                if self.rng.one_in(2) { "r5 = *(u8 *)(r10 -21)".to_owned() } else { format!("r5 = {}", self.below(9)) };
            self.line(&format!("{first}\nr2 = r10\nr2 += {at}\n{rest}\n{fifth}\ncall {name}"));
            self.returned(most);
            self.line(&format!("{miss}: r0 = 0"));
        }
    }

    /// r0 is at most this.
    fn returned(&mut self, most: i64) {
        let (name, size) = self.size();
        match self.rng.below(6) {
            0 if most < 56 => {
                let more = self.below(8);
                self.line(&format!(
                    "r1 = r10\nr1 += -64\nr1 += r0\nr2 = *(u8 *)(r1 +{more})\nr9 += r2\n*(u8 *)(r1 +3) = r9"
                ));
            }
            1 => {
                let out = self.way_out();
                self.line(&format!(
                    "r1 = r7\nr1 += r0\nr2 = r1\nr2 += {size}\nif r2 > r8 goto {out}\nr2 = *({name} *)(r1 +0)\nr9 ^= r2"
                ));
            }
            2 if most < 64 => {
                let miss = self.label();
                self.line(&format!(
                    "*(u32 *)(r10 -72) = 0\nr5 = r0\nr2 = r10\nr2 += -72\n*(u64 *)(r10 -80) = r5\nr1 = map[idx:0]\ncall 1\n\
                     if r0 == 0 goto {miss}\nr5 = *(u64 *)(r10 -80)\nr0 += r5\nr1 = *(u8 *)(r0 +0)\nr9 += r1\n{miss}: r9 += 1"
                ));
            }
            3 => {
                let (cond, out, w) = (COND[self.rng.index(COND.len())], self.way_out(), *self.rng.pick(&["w", "r"]));
                let number = self.below(most + 2);
                self.line(&format!("r9 += r0\nif {w}0 {cond} {number} goto {out}"));
            }
            _ => self.line("r9 += r0"),
        }
    }

    /// A function, and the most that it returns.
    fn five(&mut self, given: Given, depth: u64) -> (String, i64) {
        let place = self.functions.len();
        let name = format!("f{place}");
        self.functions.push((String::new(), Role::Static));
        let end = self.label();
        let mut body = format!("{name}: r6 = r1\nr7 = r2\nr8 = r3\nr9 = r4\n*(u64 *)(r10 -8) = r5\nr0 = r1\n");
        // Short ones stand in the place of their calls.
        let steps = if self.rng.one_in(4) { 14 } else { 5 };
        for _ in 0..1 + self.below(steps) {
            let (size_name, size) = self.size();
            let (own, theirs) = (-16 + size * self.below(16 / size), size * self.below(24 / size));
            let _ = match self.rng.below(9) {
                0 => writeln!(body, "*({size_name} *)(r7 +{theirs}) = r0"),
                1 => writeln!(body, "r1 = *({size_name} *)(r7 +{theirs})\nr0 += r1"),
                2 => writeln!(
                    body,
                    "*(u64 *)(r10 -16) = r6\n*({size_name} *)(r10 {own}) = r0\nr1 = *(u32 *)(r10 -12)\nr0 ^= r1"
                ),
                3 => writeln!(body, "r1 = *(u64 *)(r10 -8)\nr0 *= 5\n{0}0 += {0}1", self.rng.pick(&["w", "r"])),
                4 if depth > 0 => {
                    let (inner, most) = self.five(given, depth - 1);
                    let at = 8 * self.below(2);
                    let second = if self.rng.one_in(2) {
                        format!("r2 = r7\nr2 += {at}\n")
                    } else {
                        // Of its own, from which the deeper one reads what it must have written.
                        (1..=6).fold(String::new(), |text, n| text + &format!("*(u64 *)(r10 -{}) = r6\n", 8 * n))
                            + &format!("r2 = r10\nr2 += {}\n", -48 + at)
                    };
                    let first = *self.rng.pick(&["r1 = r0", "r1 = r6", "r1 = 3"]);
                    let _ = writeln!(body, "r5 = r0\n{first}\n{second}r3 = r8\nr4 = r9\ncall {inner}");
                    if most < 24 && self.rng.one_in(2) {
                        let _ = writeln!(body, "r1 = r7\nr1 += r0\n*(u8 *)(r1 +0) = r6");
                    }
                    Ok(())
                }
                5 => {
                    let (cond, number) = (COND[self.rng.index(COND.len())], self.byte());
                    writeln!(body, "r0 &= 3\nif {}6 {cond} {number} goto {end}", self.rng.pick(&["w", "r"]))
                }
                _ => match given {
                    Given::Packet => {
                        let (short, len) = (self.label(), *self.rng.pick(&[14, 20, 34]));
                        let at = self.below(len - size + 1);
                        let does = if self.rng.one_in(2) {
                            format!("*({size_name} *)(r8 +{at}) = r0\n")
                        } else {
                            String::new()
                        };
                        writeln!(
                            body,
                            "r1 = r8\nr1 += {len}\nif r1 > r9 goto {short}\nr2 = *({size_name} *)(r8 +{at})\nr0 += r2\n{does}{short}: r0 += 1"
                        )
                    }
                    Given::Stack => {
                        // Through both pointers.
                        let at = size * self.below(24 / size);
                        writeln!(
                            body,
                            "*({size_name} *)(r7 +{theirs}) = r0\nr1 = *({size_name} *)(r8 +{at})\nr0 += r1\n*(u8 *)(r8 +{}) = r6\n\
                             r1 = *(u16 *)(r7 +2)\nr0 ^= r1",
                            self.rng.below(24)
                        )
                    }
                    Given::Value => {
                        let at = size * self.below(16 / size);
                        writeln!(body, "r1 = *({size_name} *)(r8 +{at})\nr0 += r1\n*({size_name} *)(r8 +{at}) = r6")
                    }
                    Given::Numbers => writeln!(body, "r0 += r8\n{0}0 ^= {0}9\nr0 >>= 3", self.rng.pick(&["w", "r"])),
                },
            };
        }
        let (last, most) = match self.rng.below(5) {
            0 => ("r0 &= 7", 7),
            1 => ("w0 &= 15\nif w0 < 13 goto +1\nw0 = 12", 12),
            2 => ("r0 >>= 60\nw0 = w0", 15),
            3 => ("w1 = w0\nw0 = 2\nif w1 s> 77 goto +1\nw0 = 40", 40),
            _ => ("w0 = (s8)w0\nw0 &= 31", 31),
        };
        let _ = writeln!(body, "{last}\n{end}: exit");
        self.functions[place].0 = body;
        (name, most)
    }
}
