//! Functions in front of look-ups, and look-ups in functions: one fills a key where it is told, one looks up by it, the numbers that they
//! give decide whether anything is looked up. What looks ahead of a burst goes through them.

use std::fmt::Write;

use super::{BYTES, COND, Mix, Role};

/// What fills the key.
#[derive(Clone, Copy, PartialEq)]
enum Fills {
    /// The program itself.
    Here,
    /// A function that is told where the packet and the key are.
    Static,
    /// One that is verified by itself, and knows of 16 bytes of memory and of a number.
    Global,
}

impl Mix<'_> {
    pub(super) fn ahead(&mut self) {
        let (map, len, value) = *self.rng.pick(&[(1, 8, 48), (4, 4, 16), (14, 8, 16), (16, 8, 16)]);
        let fills = *self.rng.pick(&[Fills::Here, Fills::Static, Fills::Static, Fills::Global]);
        let filler = match fills {
            Fills::Here => None,
            Fills::Static => Some(self.filler(map, len)),
            Fills::Global => Some(self.global_filler(map)),
        };
        let finder = if self.rng.one_in(2) { Some(self.finder(map, value, 2)) } else { None };
        for _ in 0..1 + self.rng.below(2) {
            let miss = self.label();
            match (fills, &filler) {
                (Fills::Static, Some(name)) => {
                    self.line(&format!("r1 = r7\nr2 = r8\nr3 = r10\nr3 += -72\nr4 = r9\ncall {name}"));
                    match self.rng.below(3) {
                        0 => {
                            let out = self.way_out();
                            self.line(&format!("if r0 != 0 goto {out}"));
                        }
                        1 => self.line(&format!("if r0 != 0 goto {miss}")),
                        _ => self.line("r9 += r0"),
                    }
                }
                (_, Some(name)) => {
                    self.line(&format!("r1 = r10\nr1 += -80\nr2 = r9\ncall {name}\nif r0 != 0 goto {miss}"));
                }
                (_, None) => {
                    let key = key_text(map, "r9", "r10 -72", "r10 -68");
                    let turns = self.goes_round("r1");
                    self.line(&format!("*(u64 *)(r10 -72) = 0\nr5 = r9\n{turns}{key}"));
                }
            }
            match &finder {
                Some((name, pointer)) => {
                    let pointer = *pointer;
                    self.line(&format!("r1 = r10\nr1 += -72\nr2 = r9\ncall {name}"));
                    if pointer {
                        self.line(&format!("if r0 == 0 goto {miss}"));
                        self.in_value(value);
                    } else if self.rng.one_in(3) {
                        let (cond, number) = (COND[self.rng.index(COND.len())], self.byte());
                        self.line(&format!("if r0 {cond} {number} goto {miss}\nr9 ^= r0"));
                    } else {
                        self.line("r9 += r0");
                    }
                }
                None => {
                    self.line(&format!("r2 = r10\nr2 += -72\nr1 = map[idx:{map}]\ncall 1\nif r0 == 0 goto {miss}"));
                    self.in_value(value);
                }
            }
            self.line(&format!("{miss}: r0 = 0"));
        }
    }

    /// Fills the key at r3 with bytes of the packet, from r1 to r2, where it has them; gives 0 then.
    fn filler(&mut self, map: u32, len: i64) -> String {
        let name = format!("f{}", self.functions.len());
        let (end, need) = (self.label(), *self.rng.pick(&[14, 20, 34]));
        let at = self.below(need - 1);
        let own = self.own_bytes();
        let key = key_text(map, "r4", "r3 +0", "r3 +4");
        let clear = if len == 8 { "*(u64 *)(r3 +0) = 0" } else { "*(u32 *)(r3 +0) = 0" };
        let walk = if self.rng.one_in(2) { self.goes_round("r1") } else { self.goes_along(&end) };
        let text = format!(
            "{name}: r6 = r1\nr7 = r2\n{own}r0 = 1\nr5 = r6\nr5 += {need}\nif r5 > r7 goto {end}\nr5 = *(u8 *)(r6 +{at})\n{walk}{clear}\n{key}\n\
             r0 = 0\n{end}: exit\n"
        );
        self.functions.push((text, Role::Static));
        name
    }

    /// Fills the second half of 16 bytes at r1, by a number.
    fn global_filler(&mut self, map: u32) -> String {
        let name = format!("f{}", self.functions.len());
        let none = self.label();
        let (key, turns) = (key_text(map, "r4", "r1 +8", "r1 +12"), self.goes_round("r3"));
        let text = format!(
            "{name}: r0 = 1\nif r1 == 0 goto {none}\nr4 = r2\nr4 >>= 3\nr5 = r2\n{turns}*(u64 *)(r1 +8) = 0\n{key}\nr0 = 0\n{none}: exit\n"
        );
        self.functions.push((text, Role::Memory));
        name
    }

    /// Now and then a loop that makes another number of r5: few turns or more than are looked ahead over. It has a register for itself.
    fn goes_round(&mut self, counter: &str) -> String {
        if !self.rng.one_in(3) {
            return String::new();
        }
        let (head, done, most) = (self.label(), self.label(), 1 + self.below(48));
        let way_out = match self.rng.below(3) {
            0 => String::new(),
            1 => format!("if r5 & {} goto {done}\n", 1 << self.below(8)),
            _ => format!("if r5 & 1 goto {head}\n"),
        };
        // What leads back by the number alone would not be known to end.
        let counted = format!("{counter} += 1\nif {counter} > {most} goto {done}\n");
        format!(
            "{counter} = 0\n{head}: r5 *= 3\nr5 ^= {counter}\n{counted}{way_out}r5 += 1\ngoto {head}\n{done}: r5 &= 255\n"
        )
    }

    /// Goes on from r6 to r7 by what stands there, a few bytes at a time, and puts what it has seen into r5. Where the packet ends it goes out.
    fn goes_along(&mut self, end: &str) -> String {
        let (head, done) = (self.label(), self.label());
        let (most, step, stop) = (1 + self.below(40), *self.rng.pick(&[1, 3, 7]), *self.rng.pick(&BYTES));
        format!(
            "r1 = r6\nr8 = 0\n{head}: r2 = r1\nr2 += 2\nif r2 > r7 goto {end}\nr2 = *(u8 *)(r1 +0)\nif r2 == {stop} goto {done}\nr5 += r2\n\
             r2 &= {step}\nr2 += 1\nr1 += r2\nr8 += 1\nif r8 < {most} goto {head}\n{done}: r5 &= 255\n"
        )
    }

    /// Looks up by the key at r1, or has another function do so; gives the value's address, or a number. Whether it is the first.
    fn finder(&mut self, map: u32, value: i64, depth: u32) -> (String, bool) {
        let place = self.functions.len();
        let name = format!("f{place}");
        self.functions.push((String::new(), Role::Static));
        let (miss, own) = (self.label(), self.own_bytes());
        let mut text = format!("{name}: r6 = r1\nr7 = r2\n{own}");
        let pointer = if depth > 0 && self.rng.one_in(3) {
            let (inner, pointer) = self.finder(map, value, depth - 1);
            let _ = writeln!(text, "r1 = r6\nr2 = r7\nr2 += 1\ncall {inner}");
            pointer
        } else {
            let _ = writeln!(text, "r2 = r6\nr1 = map[idx:{map}]\ncall 1");
            true
        };
        if !pointer {
            text.push_str("r0 ^= r7\nexit\n");
        } else if self.rng.one_in(2) {
            text.push_str("exit\n");
        } else {
            let at = 8 * self.below(value / 8);
            let _ = write!(
                text,
                "if r0 == 0 goto {miss}\nr1 = *(u64 *)(r0 +{at})\nr1 += 1\n*(u64 *)(r0 +{at}) = r1\nr0 = r1\nexit\n{miss}: r0 = r7\nr0 &= 3\nexit\n"
            );
            self.functions[place].0 = text;
            return (name, false);
        }
        self.functions[place].0 = text;
        (name, pointer)
    }

    /// Bytes of the function's own stack are written, or nothing is: its caller's are others.
    fn own_bytes(&mut self) -> String {
        match self.rng.below(3) {
            0 => String::new(),
            1 => "*(u64 *)(r10 -8) = r6\n".to_owned(),
            _ => (1..=10).fold(String::new(), |text, n| text + &format!("*(u64 *)(r10 -{}) = {n}\n", 8 * n)),
        }
    }
}

/// A key of a map in two halves, of the number in r5: a few ones. `more` is a register with another.
fn key_text(map: u32, more: &str, low: &str, high: &str) -> String {
    match map {
        // A prefix.
        16 => format!("r5 &= 0x45\n*(u32 *)({low}) = 32\n*(u32 *)({high}) = 0x45000801\n*(u8 *)({high}) = r5"),
        4 => format!("r5 &= 7\n*(u16 *)({low}) = r5"),
        _ => format!("r5 ^= {more}\nr5 &= 7\n*(u8 *)({low}) = r5"),
    }
}
