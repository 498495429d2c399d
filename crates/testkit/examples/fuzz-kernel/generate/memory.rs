//! Statements about packets, map values and the stack.

use super::{Gen, Holds, SIZES};

impl Gen<'_> {
    /// Loads data and data_end, checks, accesses close to what was checked.
    pub(super) fn packet(&mut self) {
        if self.inside {
            return self.arithmetic();
        }
        let skip = self.label();
        let (n, d) = (self.a_number(), self.a_number());
        let (start, end) = if self.rng.one_in(8) { (8, 0) } else { (0, 4) };
        self.line(&format!("r1 = *(u64 *)(r10 -152)\nr2 = *(u32 *)(r1 +{start})\nr3 = *(u32 *)(r1 +{end})"));
        if self.rng.one_in(2) {
            self.line(&format!("r5 = r{n}"));
            let max = self.bound();
            self.bounded(5, max, &skip);
            self.line("r2 += r5");
        }
        let len = 1 + self.rng.below(40) as i64;
        self.line(&format!("r4 = r2\nr4 += {len}"));
        let check = *self.rng.pick(&["if r4 > r3 goto", "if r3 < r4 goto", "if r4 >= r3 goto", "if r3 <= r4 goto"]);
        self.line(&format!("{check} {skip}"));
        let (size, bytes) = *self.rng.pick(&SIZES);
        let mut off = self.rng.below((len - bytes).max(0) as u64 + 1) as i64;
        if self.rng.one_in(6) {
            off += self.rng.below(5) as i64 - 2;
        }
        match self.rng.below(4) {
            0 => self.line(&format!("*({size} *)(r2 {off:+}) = r{d}")),
            1 => self.line(&format!("*({size} *)(r4 {:+}) = r{d}", off - len)),
            2 => {
                // A second check from the same place, further on.
                let more = 1 + self.rng.below(8) as i64;
                self.line(&format!("r5 = r2\nr5 += {}\nif r5 > r3 goto {skip}", len + more));
                self.line(&format!("r{d} = *({size} *)(r2 {:+})", off + more));
            }
            _ => self.line(&format!("r{d} = *({size} *)(r2 {off:+})")),
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    fn lookup(&mut self, map: usize) {
        if self.rng.one_in(2) {
            let n = self.a_number();
            self.line(&format!("*(u64 *)(r10 -56) = r{n}"));
        } else {
            let key = self.rng.below(6);
            self.line(&format!("*(u64 *)(r10 -56) = {key}"));
        }
        self.line(&format!("r2 = r10\nr2 += -56\nr1 = map[idx:{map}]\ncall 1"));
    }

    /// A look-up, a null check, an access with a fixed or a variable offset.
    pub(super) fn value(&mut self) {
        let skip = self.label();
        let (n, d) = (self.a_number(), self.a_number());
        let (map, len) =
            *self.rng.pick(&[(0, 64), (1, 48), (0, 64), (1, 48), (3, 16), (4, 16), (8, 16), (9, 64), (10, 32)]);
        match map {
            9 | 10 => self.line(&format!("r0 = map[idx:{map}][0]+0")),
            8 => {
                self.lookup(8);
                self.line(&format!("if r0 == 0 goto {skip}\nr1 = r0\nr2 = r10\nr2 += -56\ncall 1"));
            }
            _ => self.lookup(map),
        }
        match self.rng.below(24) {
            0 => {}
            1 => self.line(&format!("if r0 == r{n} goto {skip}")),
            2 => self.line(&format!("r1 = r0\nif r1 == 0 goto {skip}")),
            _ => self.line(&format!("if r0 == 0 goto {skip}")),
        }
        let (size, bytes) = *self.rng.pick(&SIZES);
        let mut room = len - bytes;
        if self.rng.one_in(2) {
            self.line(&format!("r5 = r{n}"));
            let max = self.bound().min(room + 2);
            self.bounded(5, max, &skip);
            self.line("r0 += r5");
            room -= max;
        }
        let off = self.rng.below(room.max(0) as u64 + 1) as i64 + i64::from(self.rng.one_in(12));
        match self.rng.below(4) {
            0 if map != 10 => self.line(&format!("*({size} *)(r0 {off:+}) = r{d}")),
            1 if bytes >= 4 && off % bytes == 0 && map != 10 => {
                let op = *self.rng.pick(&["+=", "|=", "&=", "^="]);
                self.line(&format!("lock *({size} *)(r0 {off:+}) {op} r{d}"));
            }
            _ => self.line(&format!("r{d} = *({size} *)(r0 {off:+})")),
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    pub(super) fn stack(&mut self) {
        let (d, s) = (self.a_number(), self.a_number());
        let slot = 16 + 8 * self.rng.below(5) as i64;
        let (size, bytes) = *self.rng.pick(&SIZES);
        let off = -slot + bytes * self.rng.below((8 / bytes) as u64) as i64;
        if self.rng.one_in(2) {
            self.line(&format!("*({size} *)(r10 {off}) = r{s}"));
        } else {
            let x = self.imm();
            self.line(&format!("*({size} *)(r10 {off}) = {x}"));
        }
        match self.rng.below(3) {
            0 => self.line(&format!("r{d} = *({size} *)(r10 {off})")),
            1 => {
                let half = slot - 4 * self.rng.below(2) as i64;
                self.line(&format!("r{d} = *(u32 *)(r10 -{half})"));
            }
            _ => self.line(&format!("r{d} = *(u64 *)(r10 -{slot})")),
        }
    }

    /// Stack memory at an offset that a number decides.
    pub(super) fn indexed_stack(&mut self) {
        let skip = self.label();
        let (n, d) = (self.a_number(), self.a_number());
        self.line(&format!("r5 = r{n}"));
        if !self.rng.one_in(8) {
            let max = *self.rng.pick(&[3, 7, 15, 31, 39]);
            self.bounded(5, max, &skip);
        }
        self.line("r4 = r10\nr4 += -48\nr4 += r5");
        if self.rng.one_in(2) {
            self.line(&format!("r{d} = *(u8 *)(r4 +0)"));
        } else {
            self.line(&format!("*(u8 *)(r4 +0) = r{d}"));
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    /// r9 becomes a pointer, on one path or on all.
    pub(super) fn take_nine(&mut self) {
        let keep = self.label();
        let only_sometimes = self.rng.one_in(4);
        if only_sometimes {
            self.condition(&keep);
        }
        if self.rng.one_in(2) && !self.inside {
            let len = 1 + self.rng.below(32) as i64;
            let out = self.label();
            self.line("r1 = *(u64 *)(r10 -152)\nr9 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)");
            self.line(&format!("r4 = r9\nr4 += {len}\nif r4 <= r3 goto {out}\nr0 = 1\nexit\n{out}: r0 = 0"));
            self.nine = Holds::Packet(len);
        } else {
            let (map, len) = *self.rng.pick(&[(0, 64), (1, 48), (3, 16)]);
            self.lookup(map);
            self.line("r9 = r0");
            let checked = self.rng.one_in(2);
            if checked {
                let out = self.label();
                self.line(&format!("if r9 != 0 goto {out}\nr0 = 1\nexit\n{out}: r0 = 0"));
            }
            self.nine = Holds::Value { len, checked };
        }
        if only_sometimes {
            self.line(&format!("{keep}: r0 = 0"));
        }
    }

    /// The pointer in r9 is used, after whatever happened meanwhile.
    pub(super) fn use_nine(&mut self) {
        let (d, skip) = (self.a_number(), self.label());
        let (size, bytes) = *self.rng.pick(&SIZES);
        let len = match self.nine {
            Holds::Number => return self.take_nine(),
            Holds::Packet(len) => len,
            Holds::Value { len, checked } => {
                if !checked && !self.rng.one_in(10) {
                    self.line(&format!("if r9 == 0 goto {skip}"));
                }
                len
            }
        };
        let off = self.rng.below((len - bytes).max(0) as u64 + 1);
        match self.rng.below(3) {
            0 => self.line(&format!("*({size} *)(r9 +{off}) = r{d}")),
            1 => {
                let n = self.a_number();
                self.line(&format!("r5 = r{n}"));
                self.bounded(5, (len - bytes).max(1), &skip);
                self.line(&format!("r4 = r9\nr4 += r5\nr{d} = *({size} *)(r4 +0)"));
            }
            _ => self.line(&format!("r{d} = *({size} *)(r9 +{off})")),
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    /// A pointer goes to the stack and comes back, whole, in part or overwritten.
    pub(super) fn spilled_pointer(&mut self) {
        if self.nine == Holds::Number {
            return self.take_nine();
        }
        let d = self.a_number();
        self.line("*(u64 *)(r10 -24) = r9");
        if self.rng.one_in(3) {
            self.statement();
        }
        match self.rng.below(5) {
            0 => self.line(&format!("r{d} = *(u8 *)(r10 -24)\nr{d} = 0")),
            1 => self.line("*(u8 *)(r10 -23) = 1"),
            _ => {}
        }
        self.line("r9 = *(u64 *)(r10 -24)");
        self.use_nine();
        self.line("*(u64 *)(r10 -24) = 3");
    }

    /// Read-modify-write on the stack or in a map value, and its newer relatives.
    pub(super) fn atomic(&mut self) {
        let (a, b) = (self.a_number(), self.a_number());
        let (size, bits) = if self.rng.one_in(2) { ("u32", "") } else { ("u64", "64") };
        let (base, off) = if self.rng.one_in(2) {
            ("r10", -16 - 8 * self.rng.below(4) as i64)
        } else {
            self.line("r2 = map[idx:9][0]+0");
            ("r2", 8 * self.rng.below(8) as i64)
        };
        let op = *self.rng.pick(&["add", "or", "and", "xor"]);
        let at = format!("({size} *)({base} {off:+})");
        match self.rng.below(7) {
            0 => self.line(&format!("r{a} = atomic{bits}_fetch_{op}({at}, r{a})")),
            1 => self.line(&format!("r{a} = atomic{bits}_xchg({at}, r{a})")),
            2 => self.line(&format!("r0 = r{b}\nr0 = atomic{bits}_cmpxchg({at}, r0, r{a})\nr{b} = r0")),
            3 => self.line(&format!("r{a} = load_acquire({at})")),
            4 => self.line(&format!("store_release({at}, r{a})")),
            _ => self.line(&format!("lock *{at} += r{a}")),
        }
    }
}
