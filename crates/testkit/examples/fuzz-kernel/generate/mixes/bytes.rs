//! Bytes of the packet, and of the stack beside it: compared, seen, put together, written, copied, summed.

use super::super::SIZES;
use super::Mix;

impl Mix<'_> {
    /// A field of the packet that is compared with a number.
    pub(super) fn field(&mut self) {
        for _ in 0..1 + self.rng.below(3) {
            let (name, size) = SIZES[self.rng.index(3)];
            let off = self.place(size);
            let w = if self.rng.one_in(3) { "w" } else { "r" };
            self.line(&format!("r1 = *({name} *)(r7 +{off})"));
            if size > 1 && self.rng.one_in(3) {
                self.line(&format!("r1 = be{} r1", 8 * size));
            }
            if self.rng.one_in(3) {
                let by = self.below(8 * size);
                self.line(&format!("{w}1 >>= {by}"));
            }
            if self.rng.one_in(2) {
                let mask = *self.rng.pick(&[1, 3, 0xf, 0xf0, 0xff, 0x1fff, 0xff00, 0x3fff_0000, -256]);
                self.line(&format!("{w}1 &= {mask}"));
            }
            let (low, high) = (self.byte(), self.byte());
            let number = if size == 1 || self.rng.one_in(2) { low } else { low | high << 8 };
            let cond = *self.rng.pick(&["!=", "!=", "==", "==", ">", "s<", "&"]);
            let out = self.way_out();
            self.line(&format!("if {w}1 {cond} {number} goto {out}"));
        }
    }

    /// What is loaded goes into the sum.
    pub(super) fn seen(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            let (name, size) = self.size();
            let off = self.place(size);
            let name = if size < 8 && self.rng.one_in(3) { name.replace('u', "s") } else { name.to_owned() };
            let (w, op) = (*self.rng.pick(&["w", "r", "r"]), *self.rng.pick(&["+=", "^=", "-=", "|=", "*="]));
            self.line(&format!("r1 = *({name} *)(r7 +{off})\n{w}9 {op} {w}1"));
        }
    }

    /// A number from bytes, in either order, and what becomes of it.
    pub(super) fn together(&mut self) {
        let len = *self.rng.pick(&[2, 3, 4, 8]);
        let from_packet = self.rng.one_in(2);
        let at = if from_packet { self.place(len) } else { -64 + self.below(64 - len) };
        let base = if from_packet { 7 } else { 10 };
        let turned = self.rng.one_in(2);
        let w = if len < 8 && self.rng.one_in(3) { "w" } else { "r" };
        self.line("r1 = 0");
        for n in 0..len {
            let from = if turned { len - 1 - n } else { n };
            let by = 8 * n + i64::from(self.rng.one_in(20));
            self.line(&format!("r2 = *(u8 *)(r{base} {:+})", at + from));
            if by > 0 && by < 32 || w == "r" && by < 64 {
                self.line(&format!("{w}2 <<= {by}"));
            }
            self.line(&format!("{w}1 |= {w}2"));
            if self.rng.one_in(12) {
                // A byte that was read, or will be, changes meanwhile.
                let byte = at + self.below(len);
                self.line(&format!("*(u8 *)(r{base} {byte:+}) = {n}"));
            }
        }
        self.line("r9 += r1");
        if self.rng.one_in(2) {
            let (name, size) = self.size();
            let off = self.place(size);
            // The check may have taken r1.
            self.line(&format!("r1 = r9\n*({name} *)(r7 +{off}) = r1"));
        }
    }

    pub(super) fn store(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            let (name, size) = self.size();
            let off = self.place(size);
            match self.rng.below(3) {
                0 => {
                    let number = self.rng.u32() as i32;
                    self.line(&format!("*({name} *)(r7 +{off}) = {number}"));
                }
                _ => self.line(&format!("*({name} *)(r7 +{off}) = r9")),
            }
        }
    }

    /// Bytes from place to place, which may overlap: one after the other, or all loaded first.
    pub(super) fn copy(&mut self) {
        let (name, size) = SIZES[self.rng.index(3)];
        let count = 2 + self.below(6);
        let (from_packet, to_packet) = (self.rng.one_in(2), self.rng.one_in(2));
        let (from, to) = (self.side(from_packet, size, count), self.side(to_packet, size, count));
        let base = |packet: bool| if packet { 7 } else { 10 };
        let (a, b) = (base(from_packet), base(to_packet));
        let order: Vec<i64> = if self.rng.one_in(3) { (0..count).rev().collect() } else { (0..count).collect() };
        if count <= 4 && self.rng.one_in(2) {
            for n in &order {
                self.line(&format!("r{} = *({name} *)(r{a} {:+})", n + 1, from + n * size));
            }
            let turned = self.rng.one_in(4);
            for n in 0..count {
                let to_n = if turned { count - 1 - n } else { n };
                self.line(&format!("*({name} *)(r{b} {:+}) = r{}", to + to_n * size, n + 1));
            }
        } else {
            for n in &order {
                let (f, t) = (from + n * size, to + n * size);
                self.line(&format!("r1 = *({name} *)(r{a} {f:+})\n*({name} *)(r{b} {t:+}) = r1"));
            }
        }
    }

    pub(super) fn side(&mut self, packet: bool, size: i64, count: i64) -> i64 {
        if packet {
            return self.place(size * count);
        }
        let first = self.below((64 - size * count) / size + 1);
        -64 + size * first
    }

    /// Another pointer into the packet, at a distance that is a constant or not, with stores through both.
    pub(super) fn other_pointer(&mut self) {
        let out = self.way_out();
        let (name, size) = self.size();
        let off = self.place(size);
        let (other, other_size) = self.size();
        let on = other_size + self.below(8);
        match self.rng.below(3) {
            0 => self.line("r2 = *(u32 *)(r6 +0)"),
            1 => self.line("r3 = r9\nr3 &= 7\nr2 = r7\nr2 += r3"),
            _ => self.line("r2 = r7\nr2 += 3"),
        }
        self.line(&format!("r3 = r2\nr3 += {on}\nif r3 > r8 goto {out}"));
        let at = self.below(on - other_size + 1);
        self.line(&format!("*({name} *)(r7 +{off}) = r9\nr4 = *({other} *)(r2 +{at})\n*({other} *)(r2 +{at}) = 77"));
        self.line(&format!("r5 = *({name} *)(r7 +{off})\nr9 += r4\nr9 ^= r5"));
    }

    /// From packet to stack and back in other widths.
    pub(super) fn between(&mut self) {
        let (name, size) = SIZES[self.rng.index(3)];
        let (wide, wide_size) = self.size();
        let count = 8 / size;
        let from = self.place(8);
        let at = self.own(8);
        for n in 0..count {
            self.line(&format!("r1 = *({name} *)(r7 +{})\n*({name} *)(r10 {}) = r1", from + n * size, at + n * size));
        }
        let to = self.place(wide_size);
        self.line(&format!("r1 = *({wide} *)(r10 {at})\n*({wide} *)(r7 +{to}) = r1\nr9 += r1"));
    }

    /// A sum of words, folded.
    pub(super) fn words(&mut self) {
        let count = 4 + self.below(10);
        let len = if self.rng.one_in(2) { 4 * count } else { 42 };
        let from = self.place(len);
        let steps = (self.proved - from) / 4;
        self.line("r1 = 0");
        for n in 0..count.min(steps) {
            self.line(&format!("r2 = *(u32 *)(r7 +{})\nr1 += r2", from + 4 * n));
            if self.rng.one_in(20) {
                self.line(&format!("*(u32 *)(r7 +{}) = r1", from + 4 * n));
            }
        }
        if self.rng.one_in(3) {
            self.line("r1 += r9");
        }
        for (bits, mask) in [(32, ""), (16, "0xffff"), (16, "0xffff"), (16, "0xffff")] {
            if self.rng.one_in(8) {
                continue;
            }
            if bits == 32 {
                self.line("r2 = r1\nr2 >>= 32\nr1 <<= 32\nr1 >>= 32\nr1 += r2");
            } else {
                self.line(&format!("r2 = r1\nr2 >>= 16\nr1 &= {mask}\nr1 += r2"));
            }
        }
        if self.rng.one_in(2) {
            self.line("r1 ^= -1\nr1 &= 65535");
        }
        self.line("r9 ^= r1");
        if self.rng.one_in(2) {
            let to = self.place(2);
            self.line(&format!("*(u16 *)(r7 +{to}) = r9"));
        }
    }

    /// `bpf_csum_diff` over constant lengths.
    pub(super) fn checksum(&mut self) {
        let side = |w: &mut Self, pointer: usize, length: usize| {
            let len = 4 * w.below(11);
            if len == 0 {
                w.line(&format!("r{pointer} = 0\nr{length} = 0"));
            } else if w.rng.one_in(2) {
                let at = -64 + 4 * w.below((64 - len) / 4 + 1);
                w.line(&format!("r{pointer} = r10\nr{pointer} += {at}\nr{length} = {len}"));
            } else {
                if w.proved < len {
                    return false;
                }
                let at = w.below(w.proved - len + 1);
                w.line(&format!("r{pointer} = r7\nr{pointer} += {at}\nr{length} = {len}"));
            }
            true
        };
        if side(self, 1, 2) && side(self, 3, 4) {
            self.line("r5 = r9\ncall 28\nr9 += r0");
        }
    }

    /// A loop over the packet, a byte or a word each turn, with its own check.
    pub(super) fn walk(&mut self) {
        let (head, done) = (self.label(), self.label());
        let (name, size) = SIZES[self.rng.index(3)];
        let turns = 1 + self.below(20);
        let does = if self.rng.one_in(3) { format!("*({name} *)(r2 +0) = r9") } else { "r9 += r4".to_owned() };
        self.line(&format!(
            "r3 = 0\nr2 = r7\n{head}: r5 = r2\nr5 += {size}\nif r5 > r8 goto {done}\nr4 = *({name} *)(r2 +0)\n{does}\n\
             r2 = r5\nr3 += 1\nif r3 < {turns} goto {head}\n{done}: r0 = 0"
        ));
    }
}
