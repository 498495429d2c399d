//! What is called: look-ups and what is done with the value, moves of the packet's start and end, functions, tail calls.

use super::super::SIZES;
use super::{Mix, Role};

impl Mix<'_> {
    /// A look-up and what is done with the value.
    pub(super) fn value(&mut self) {
        // Map, length of its key, bytes of its value.
        let (map, key, len) = *self.rng.pick(&[(0, 4, 64), (1, 8, 48), (1, 8, 48), (3, 4, 16), (4, 4, 16), (8, 4, 16)]);
        let by_number = self.rng.one_in(3);
        if by_number {
            let n = self.below(5);
            if key == 8 {
                self.line(&format!("*(u64 *)(r10 -72) = {n}"));
            } else {
                self.line(&format!("*(u32 *)(r10 -72) = {n}"));
            }
        } else {
            let mask = *self.rng.pick(&[1, 3, 7]);
            match (key, self.rng.below(3)) {
                (8, 0) => self.line(&format!("r1 = r9\nr1 &= {mask}\n*(u64 *)(r10 -72) = r1")),
                (8, 1) => self.line(&format!(
                    "r1 = r9\nr1 &= {mask}\n*(u32 *)(r10 -68) = 0\n*(u16 *)(r10 -72) = r1\n*(u16 *)(r10 -70) = 0"
                )),
                (8, _) => self.line(&format!("r1 = r9\nr1 &= {mask}\n*(u64 *)(r10 -72) = 0\n*(u8 *)(r10 -72) = r1")),
                (_, 0) => self.line(&format!("r1 = r9\nr1 &= {mask}\n*(u16 *)(r10 -72) = r1\n*(u16 *)(r10 -70) = 0")),
                _ => self.line(&format!("r1 = r9\nr1 &= {mask}\n*(u32 *)(r10 -72) = r1")),
            }
        }
        let (miss, done) = (self.label(), self.label());
        self.line(&format!("r2 = r10\nr2 += -72\nr1 = map[idx:{map}]\ncall 1"));
        if self.rng.one_in(5) {
            self.line("r1 = r0\nr2 = 5");
        }
        self.line(&format!("if r0 == 0 goto {miss}"));
        if map == 8 {
            let n = self.below(3);
            self.line(&format!(
                "*(u32 *)(r10 -80) = {n}\nr2 = r10\nr2 += -80\nr1 = r0\ncall 1\nif r0 == 0 goto {miss}"
            ));
        }
        for _ in 0..1 + self.rng.below(4) {
            self.in_value(len);
        }
        if matches!(map, 1 | 4) && self.rng.one_in(4) {
            let (name, size) = self.size();
            let at = self.below(len / size) * size;
            self.line(&format!(
                "*(u64 *)(r10 -80) = r9\nr9 = r0\nr2 = r10\nr2 += -72\nr1 = map[idx:{map}]\ncall 3\n\
                 r1 = *({name} *)(r9 +{at})\nr9 = *(u64 *)(r10 -80)\nr9 += r0\nr9 += r1"
            ));
        }
        self.line(&format!("goto {done}\n{miss}: r0 = 0"));
        if matches!(map, 1 | 4) && self.rng.one_in(2) {
            self.line(&format!(
                "r2 = r10\nr2 += -72\nr3 = r10\nr3 += -64\nr4 = 0\nr1 = map[idx:{map}]\ncall 2\nr9 += r0"
            ));
        }
        self.line(&format!("{done}: r0 = 0"));
    }

    /// r0 is a value of so many bytes.
    pub(super) fn in_value(&mut self, len: i64) {
        let (name, size) = self.size();
        let at = self.below(len / size) * size;
        match self.rng.below(9) {
            0 => self.line(&format!("r1 = *({name} *)(r0 +{at})\nr9 += r1")),
            7 => {
                let name = if size < 8 { name.replace('u', "s") } else { name.to_owned() };
                self.line(&format!("r1 = *({name} *)(r0 +{at})\nr9 ^= r1"));
            }
            8 => {
                let (name, size) = SIZES[2 + self.rng.index(2)];
                let (at, bits) = (self.below(len / size) * size, if size == 8 { "64" } else { "" });
                let expected = self.expected(name, 2, at);
                self.line(&format!(
                    "r2 = r0\n{expected}\nr1 = r9\nr0 = atomic{bits}_cmpxchg(({name} *)(r2 +{at}), r0, r1)\nr9 += r0\nr0 = r2"
                ));
            }
            1 => self.line(&format!("r1 = *({name} *)(r0 +{at})\nr1 += 1\n*({name} *)(r0 +{at}) = r1")),
            2 => {
                let op = *self.rng.pick(&["-=", "&=", "|=", "^="]);
                let w = if size == 4 && self.rng.one_in(2) { "w" } else { "r" };
                self.line(&format!("r1 = *({name} *)(r0 +{at})\n{w}1 {op} {w}9\n*({name} *)(r0 +{at}) = r1"));
            }
            3 => self.line(&format!("*({name} *)(r0 +{at}) = r9")),
            4 if len > 8 => {
                let (count, from) = (4 + self.below(5), self.below(len - 8));
                for n in 0..count {
                    self.line(&format!("r1 = *(u8 *)(r0 +{})\n*(u8 *)(r10 {}) = r1", from + n, -64 + n));
                    if self.rng.one_in(16) {
                        self.line(&format!("*(u8 *)(r0 +{}) = 3", from + count - 1));
                    }
                }
            }
            5 if len > 8 => {
                let count = 4 + self.below(3);
                if self.proved < count {
                    return;
                }
                let (from, to) = (self.below(len - 8), self.below(self.proved - count + 1));
                for n in 0..count {
                    self.line(&format!("r1 = *(u8 *)(r0 +{})\n*(u8 *)(r7 +{}) = r1", from + n, to + n));
                }
            }
            _ => {
                let (name, size) = SIZES[2 + self.rng.index(2)];
                let at = self.below(len / size) * size;
                let (word, bits) = (format!("({name} *)(r0 +{at})"), if size == 8 { "64" } else { "" });
                match self.rng.below(5) {
                    0 => self.line(&format!("lock *{word} += r9")),
                    1 => self.line(&format!("lock *{word} ^= r9")),
                    2 => self.line(&format!("r1 = r9\nr1 = atomic{bits}_fetch_add({word}, r1)\nr9 ^= r1")),
                    3 => self.line(&format!("r1 = r9\nr1 = atomic{bits}_fetch_and({word}, r1)\nr9 += r1")),
                    _ => self.line(&format!("r1 = r9\nr1 = atomic{bits}_xchg({word}, r1)\nr9 += r1")),
                }
            }
        }
    }

    /// A small function: arithmetic, its own stack, the caller's, or the packet.
    pub(super) fn function(&mut self) {
        let name = format!("f{}", self.functions.len());
        let end = self.label();
        let (name_of, size) = self.size();
        let at = 8 * (1 + self.below(4));
        let kind = self.rng.below(6);
        let body = match kind {
            4 => format!("r6 = r1\nr1 = r4\nr2 = {}\ncall 44\nr0 ^= r6\nexit", 4 * self.below(5) - 8),
            5 => format!(
                "*(u64 *)(r10 -8) = r2\n*(u8 *)(r10 -8) = {}\nr6 = r1\nr2 = r10\nr2 += -8\nr1 = map[idx:1]\ncall 1\n\
                 r1 = r0\nr0 = 7\nif r1 == 0 goto {end}\nr0 = *({name_of} *)(r1 +{at})\n*({name_of} *)(r1 +8) = r6\n{end}: exit",
                self.below(4)
            ),
            0 => format!("r0 = r1\nr0 *= 7\nr0 ^= r2\nif r0 & 1 goto {end}\nr0 += r1\n{end}: exit"),
            1 => format!(
                "*(u64 *)(r10 -8) = r1\n*({name_of} *)(r10 -{at}) = r2\n*(u64 *)(r10 -32) = r2\nr0 = *({name_of} *)(r10 -8)\n\
                 r3 = *(u32 *)(r10 -28)\nr0 += r3\nif r2 > 5 goto {end}\nr0 = r1\n{end}: exit"
            ),
            2 => format!("r0 = *({name_of} *)(r3 +0)\n*({name_of} *)(r3 +0) = r1\nr0 += r2\nexit"),
            _ => format!(
                "r6 = r4\nr0 = 1\nr3 = *(u32 *)(r6 +0)\nr5 = *(u32 *)(r6 +4)\nr4 = r3\nr4 += 20\nif r4 > r5 goto {end}\n\
                 r0 = *({name_of} *)(r3 +9)\nr0 += r1\n*({name_of} *)(r3 +{}) = r2\n{end}: exit",
                self.rng.below(20 - size as u64)
            ),
        };
        let third = -64 + 8 * self.below(8);
        for _ in 0..1 + self.rng.below(2) {
            self.line(&format!(
                "r1 = r9\nr2 = *(u8 *)(r10 -20)\nr3 = r10\nr3 += {third}\nr4 = r6\nr5 = 0\ncall {name}\nr9 += r0"
            ));
        }
        self.functions.push((format!("{name}: {body}\n"), Role::Static));
        if kind == 4 {
            self.packet();
        }
    }

    /// A tail call, to a program that stands there or does not.
    pub(super) fn leave(&mut self) {
        let (on, programs) = (self.label(), self.programs());
        let slot = match self.rng.below(3) {
            0 => "r3 = r9\nr3 &= 3".to_owned(),
            _ => format!("r3 = {}", self.below(3)),
        };
        let bit = 1 << self.rng.below(8);
        self.line(&format!(
            "if r9 & {bit} goto {on}\nr1 = r6\nr2 = map[idx:{programs}]\n{slot}\ncall 12\n{on}: r0 = 0"
        ));
    }
}
