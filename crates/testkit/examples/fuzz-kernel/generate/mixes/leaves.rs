//! Tail calls in loops, on one way of two and out of functions, as often as there may be and more often; and constants that nobody can
//! change, wherever a number or memory is asked for.

use std::fmt::Write;

use super::super::SIZES;
use super::{COND, Mix, Role};

impl Mix<'_> {
    pub(super) fn leaves(&mut self) {
        match self.rng.below(4) {
            0 => self.leaves_in_turns(),
            1 | 2 => self.leaves_from_a_function(),
            _ => {
                let (other, meet) = (self.label(), self.label());
                let bit = 1 << self.rng.below(5);
                self.line(&format!("if r9 & {bit} goto {other}"));
                self.tail_call("r6", "r9");
                self.line(&format!("r9 += 3\ngoto {meet}\n{other}: r9 ^= 5"));
                self.leave();
                self.line(&format!("{meet}: r9 += 1"));
            }
        }
    }

    /// To a slot that is known, or is the number's; r0 is nothing behind it.
    fn tail_call(&mut self, ctx: &str, number: &str) {
        let text = self.tail_call_text(ctx, number);
        self.line(&text);
    }

    fn tail_call_text(&mut self, ctx: &str, number: &str) -> String {
        let slot = match self.rng.below(5) {
            0 => format!("r3 = {number}\nr3 &= 3"),
            // What stands above the 32 bits is no part of it.
            1 => format!("r3 = {number}\nr3 <<= 32\nr3 |= {}", self.below(3)),
            // None of that number.
            2 => format!("r3 = {}", *self.rng.pick(&[2, -1])),
            _ => format!("r3 = {}", self.below(2)),
        };
        format!("r1 = {ctx}\nr2 = map[idx:{}]\n{slot}\ncall 12\nr0 = 0", self.programs())
    }

    fn leaves_in_turns(&mut self) {
        let head = self.label();
        let (turns, on) = (1 + self.below(40), self.label());
        self.line(&format!("*(u64 *)(r10 -80) = 0\n{head}: r1 = *(u64 *)(r10 -80)"));
        let at = self.below(turns + 1);
        match self.rng.below(4) {
            0 => self.line(&format!("r9 += r1\nif r1 != {at} goto {on}")),
            1 => self.line(&format!("r9 += r1\nif r9 & 7 goto {on}")),
            2 => self.line(&format!("r9 *= 3\nif r1 s< {at} goto {on}")),
            _ => self.line(&format!("r9 += 1\nif r9 & 1 goto {on}")),
        }
        let (name, size) = self.size();
        if self.proved >= size && self.rng.one_in(2) {
            // Whoever comes next sees it.
            let off = self.below(self.proved - size + 1);
            self.line(&format!("*({name} *)(r7 +{off}) = r9"));
        }
        self.tail_call("r6", "r9");
        if self.rng.one_in(2) {
            let at = self.own(size);
            self.line(&format!("r1 = *({name} *)(r10 {at})\nr9 += r1\n*({name} *)(r10 {at}) = r9"));
        }
        self.line(&format!(
            "{on}: r1 = *(u64 *)(r10 -80)\nr1 += 1\n*(u64 *)(r10 -80) = r1\nif r1 < {turns} goto {head}"
        ));
    }

    /// What it comes back with is the other program's verdict, and the packet may be another.
    fn leaves_from_a_function(&mut self) {
        let name = format!("f{}", self.functions.len());
        let (end, stay, bit) = (self.label(), self.label(), 1 << self.rng.below(3));
        let text = self.tail_call_text("r6", "r7");
        let mut body = format!("{name}: r6 = r1\nr7 = *(u32 *)(r1 +16)\nr2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\n");
        let _ = writeln!(
            body,
            "r4 = r2\nr4 += 6\nif r4 > r3 goto {end}\nr7 = *(u8 *)(r2 +5)\n{end}: r0 = 9\nif r7 & {bit} goto {stay}"
        );
        let twice = if self.rng.one_in(3) { format!("{text}\nr7 += 1\n{text}") } else { text };
        let _ = writeln!(body, "{twice}\n{stay}: r0 += r7\nexit");
        self.functions.push((body, Role::Tail));
        for _ in 0..1 + self.rng.below(2) {
            self.line(&format!("r1 = r6\ncall {name}"));
            match self.rng.below(3) {
                0 => {
                    let out = self.way_out();
                    self.line(&format!("if w0 == 1 goto {out}"));
                }
                _ => self.line("r9 += r0"),
            }
        }
        self.packet();
    }

    /// Numbers that nobody can change: eight bytes with few bits, and others with many.
    pub(super) fn constants(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            let (name, size) = self.size();
            let (first, at) = (size * self.below(32 / size), 0);
            let split = self.below(first + 1);
            let (from, rest) = if self.rng.one_in(2) { (first, at) } else { (split, first - split) };
            let name = if size < 8 && self.rng.one_in(3) { name.replace('u', "s") } else { name.to_owned() };
            match self.rng.below(9) {
                0 => {
                    // The place is the packet's.
                    let (name, size) = SIZES[self.rng.index(3)];
                    let mask = 31 & !(size - 1);
                    self.line(&format!(
                        "r1 = r9\nr1 &= {mask}\nr2 = map[idx:10][0]+0\nr2 += r1\nr1 = *({name} *)(r2 +0)\nr9 ^= r1"
                    ));
                }
                1 => {
                    // By way of a look-up.
                    let miss = self.label();
                    self.line(&format!(
                        "*(u32 *)(r10 -72) = 0\nr2 = r10\nr2 += -72\nr1 = map[idx:10]\ncall 1\nif r0 == 0 goto {miss}\n\
                         r1 = *({name} *)(r0 +{first})\nr9 += r1\n{miss}: r0 = 0"
                    ));
                }
                2 => {
                    // It is the key, or the value.
                    let (map, len) = *self.rng.pick(&[(1, 8), (4, 4), (0, 4)]);
                    let (key, value) = (len * self.below(8 / len), 8 * self.below(2));
                    if map == 4 && self.rng.one_in(2) {
                        self.line(&format!(
                            "r2 = map[idx:10][0]+{key}\nr3 = map[idx:10][0]+{value}\nr4 = 0\nr1 = map[idx:4]\ncall 2\nr9 += r0"
                        ));
                    } else {
                        let miss = self.label();
                        self.line(&format!(
                            "r2 = map[idx:10][0]+{key}\nr1 = map[idx:{map}]\ncall 1\nif r0 == 0 goto {miss}"
                        ));
                        self.in_value(16);
                        self.line(&format!("{miss}: r0 = 0"));
                    }
                }
                3 => {
                    let (at, len) = (4 * self.below(4), 4 * (1 + self.below(4)));
                    self.line(&format!(
                        "r1 = map[idx:10][0]+{at}\nr2 = {len}\nr3 = 0\nr4 = 0\nr5 = r9\ncall 28\nr9 += r0"
                    ));
                }
                4 => {
                    // Bytes of it are written to the packet.
                    let len = 1 + self.below(16);
                    let (from, to) = (self.below(32 - len + 1), *self.rng.pick(&[0, 6, 12, 14, 30, 58]));
                    self.line(&format!(
                        "r1 = r6\nr2 = {to}\nr3 = map[idx:10][0]+{from}\nr4 = {len}\ncall 190\nr9 += r0"
                    ));
                }
                5 => {
                    // The same word as what may be written, side by side.
                    self.line(&format!(
                        "r2 = map[idx:9][0]+{first}\nr3 = map[idx:10][0]+{first}\nr1 = *({name} *)(r3 +0)\nr4 = *({name} *)(r2 +0)\n\
                         r4 += r1\nr4 += r9\n*({0} *)(r2 +0) = r4\nr1 = *({name} *)(r2 +0)\nr9 ^= r1",
                        name.replace('s', "u")
                    ));
                }
                _ => {
                    self.line(&format!("r2 = map[idx:10][0]+{from}\nr1 = *({name} *)(r2 +{rest})"));
                    let (w, cond, on) = (*self.rng.pick(&["w", "r"]), COND[self.rng.index(COND.len())], self.label());
                    match self.rng.below(4) {
                        0 => self.line(&format!("if {w}9 {cond} {w}1 goto {on}\nr9 += 7\n{on}: r9 ^= 1")),
                        1 => self.line(&format!("r1 &= 31\n{w}9 <<= {w}1\nr9 += 1")),
                        2 => {
                            let number = self.byte();
                            self.line(&format!("if {w}1 {cond} {number} goto {on}\nr9 += 7\n{on}: r9 ^= 1"));
                        }
                        _ => self.line(&format!("{w}9 += {w}1")),
                    }
                }
            }
        }
    }
}
