//! Statements that call: functions of the program, helpers with memory arguments, references, locks, timers, dynptrs.

use std::fmt::Write;

use super::super::world::Role;
use super::{Gen, Holds};

impl Gen<'_> {
    /// A static function of two numbers and of a pointer to this frame's stack.
    pub(super) fn call(&mut self) {
        let name = format!("f{}", self.functions.len());
        let (a, b, d) = (self.a_number(), self.a_number(), self.a_number());
        let call = format!("r1 = r{a}\nr2 = r{b}\nr3 = r10\nr3 += -40\nr4 = r9\ncall {name}\nr{d} = r0");
        self.line(&call);
        // Again, and what it reads of this stack was changed meanwhile: a function that is copied here must see that.
        while self.rng.one_in(2) {
            let size = *self.rng.pick(&["u8", "u16", "u32", "u64"]);
            let (at, n) = (40 - 8 * self.rng.below(3), self.a_number());
            self.line(&format!("*({size} *)(r10 -{at}) = r{n}"));
            self.line(&call);
        }
        let mut body = format!("{name}: r0 = r1\n");
        for _ in 0..1 + self.rng.below(5) {
            let op = *self.rng.pick(&["+=", "-=", "*=", "|=", "&=", "^="]);
            let reg = *self.rng.pick(&["r1", "r2"]);
            let _ = match self.rng.below(7) {
                0 => writeln!(body, "*(u64 *)(r3 +{}) = {reg}", 8 * self.rng.below(3)),
                1 => writeln!(body, "{reg} = *(u64 *)(r3 +{})", 8 * self.rng.below(3)),
                2 => writeln!(body, "r6 = {reg}\nr6 >>= {}\nr0 += r6", self.rng.below(64)),
                3 => writeln!(body, "if r1 > r2 goto +1\nr0 {op} {reg}"),
                4 => writeln!(body, "r6 = r1\nr6 &= 15\nr7 = r3\nr7 += r6\n*(u8 *)(r7 +0) = r2"),
                5 => writeln!(body, "*(u64 *)(r10 -8) = {reg}\nr6 = *(u32 *)(r10 -4)\nr0 += r6"),
                _ => writeln!(body, "r0 {op} {reg}"),
            };
        }
        body.push_str("exit\n");
        self.functions.push((body, Role::Static));
    }

    /// A function that is verified on its own.
    pub(super) fn global(&mut self) {
        if self.inside {
            return self.arithmetic();
        }
        let name = format!("f{}", self.functions.len());
        let (a, b, d) = (self.a_number(), self.a_number(), self.a_number());
        let kind = self.rng.below(3);
        let (setup, body, role) = match kind {
            0 => {
                let max = self.bound();
                (
                    format!("r1 = r{a}\nr2 = r{b}"),
                    format!("r0 = r1\nif w1 > {max} goto +2\nr0 += r2\nw0 ^= w1\nw0 += 1"),
                    Role::Numbers,
                )
            }
            1 => {
                let off = 8 * self.rng.below(2) + u64::from(self.rng.one_in(10));
                let check = if self.rng.one_in(8) { "r5 = 0" } else { "if r1 == 0 goto +2" };
                (
                    format!("r1 = r10\nr1 += -{}\nr2 = r{b}", 16 + 8 * self.rng.below(4)),
                    format!("r0 = 0\n{check}\nr0 = *(u64 *)(r1 +{off})\n*(u64 *)(r1 +0) = r2"),
                    Role::Memory,
                )
            }
            _ => {
                let end = if self.rng.one_in(2) {
                    "r2 = 4\ncall 44".to_owned()
                } else {
                    format!(
                        "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr2 += {}\nr0 = 0\nif r2 > r3 goto +1\nr0 = *(u8 *)(r2 -1)",
                        1 + self.rng.below(30)
                    )
                };
                ("r1 = *(u64 *)(r10 -152)".to_owned(), end, Role::Context)
            }
        };
        self.line(&format!("{setup}\ncall {name}\nr{d} = r0"));
        self.functions.push((format!("{name}: {body}\nexit\n"), role));
    }

    /// Moves the packet's ends.
    pub(super) fn moving(&mut self) {
        if self.inside {
            return self.arithmetic();
        }
        let (helper, by) = match self.rng.below(4) {
            0 => (44, *self.rng.pick(&[-14, -4, 4, 14])),
            1 => (65, *self.rng.pick(&[-4, -1, 4])),
            2 => (54, *self.rng.pick(&[-8, -4, 4])),
            _ => (44, *self.rng.pick(&[-64, 8])),
        };
        let d = self.a_number();
        self.line(&format!("r1 = *(u64 *)(r10 -152)\nr2 = {by}\ncall {helper}\nr{d} = r0"));
        if !self.rng.one_in(4) && matches!(self.nine, Holds::Packet(_)) {
            self.line("r9 = 0");
            self.nine = Holds::Number;
        }
    }

    /// Checksum over stack memory, or a copy from or to the packet, of a constant or a bounded length.
    pub(super) fn checksum(&mut self) {
        let skip = self.label();
        let (n, d) = (self.a_number(), self.a_number());
        if self.rng.one_in(2) || self.inside {
            self.line("r1 = 0\nr2 = 0\nr3 = r10\nr3 += -48");
            if self.rng.one_in(2) {
                let len = 4 * self.rng.below(11);
                self.line(&format!("r4 = {len}"));
            } else {
                self.line(&format!("r4 = r{n}"));
                self.bounded(4, 40, &skip);
                self.line("r4 &= 60");
            }
            self.line(&format!("r5 = 0\ncall 28\nr{d} = r0\n{skip}: r0 = 0"));
            return;
        }
        let helper = if self.rng.one_in(2) { 189 } else { 190 };
        let off = self.rng.below(24);
        self.line(&format!("r4 = r{n}"));
        self.bounded(4, 32, &skip);
        if !self.rng.one_in(6) {
            self.line(&format!("if r4 == 0 goto {skip}"));
        }
        self.line(&format!("r1 = *(u64 *)(r10 -152)\nr2 = {off}\nr3 = r10\nr3 += -48\ncall {helper}\nr{d} = r0"));
        self.line(&format!("{skip}: r0 = 0"));
    }

    /// Writes to a map, deletes from it, pushes, pops.
    pub(super) fn update(&mut self) {
        let d = self.a_number();
        let n = self.a_number();
        self.line(&format!("*(u64 *)(r10 -56) = r{n}\nr2 = r10\nr2 += -56"));
        match self.rng.below(6) {
            0 => self.line("r1 = map[idx:1]\ncall 3"),
            1 => self.line("r1 = map[idx:1]\nr3 = r10\nr3 += -48\nr4 = 0\ncall 2"),
            2 => self.line("r1 = map[idx:3]\nr3 = r10\nr3 += -32\nr4 = 0\ncall 2"),
            3 => self.line("r1 = map[idx:11]\nr3 = 2\ncall 87"),
            4 => self.line("r1 = map[idx:11]\ncall 88"),
            _ => {
                let off = 8 * self.rng.below(3);
                self.line(&format!("r1 = map[idx:1]\nr3 = map[idx:9][0]+{off}\nr4 = 0\ncall 2"));
            }
        }
        if !self.rng.one_in(20) {
            self.line(&format!("r{d} = r0"));
        }
        self.line("r0 = 0");
    }

    /// A ring buffer record, given back, leaked or used too late.
    pub(super) fn record(&mut self) {
        let (skip, d) = (self.label(), self.a_number());
        let len = 8 * (1 + self.rng.below(4));
        self.line(&format!("r1 = map[idx:2]\nr2 = {len}\nr3 = 0\ncall 131"));
        if !self.rng.one_in(15) {
            self.line(&format!("if r0 == 0 goto {skip}"));
        }
        let off = 8 * self.rng.below(len / 8) + u64::from(self.rng.one_in(12));
        self.line(&format!("*(u64 *)(r0 +{off}) = r{d}\nr1 = r0\nr2 = 0"));
        if self.rng.one_in(6) {
            self.line("r9 = r0");
            self.nine = Holds::Value { len: len as i64, checked: true };
        }
        if !self.rng.one_in(12) {
            let helper = if self.rng.one_in(2) { 132 } else { 133 };
            self.line(&format!("call {helper}"));
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    /// An element under its lock.
    pub(super) fn locked(&mut self) {
        let (skip, d, key) = (self.label(), self.a_number(), self.rng.below(3));
        self.line(&format!(
            "*(u64 *)(r10 -56) = {key}\nr2 = r10\nr2 += -56\nr1 = map[idx:5]\ncall 1\nif r0 == 0 goto {skip}"
        ));
        let scratch = if self.rng.one_in(2) { 6 } else { 7 };
        self.line(&format!("r{scratch} = r0\nr1 = r0\ncall 93"));
        match self.rng.below(6) {
            0 => self.line(&format!("r0 = *(u32 *)(r{scratch} +0)")),
            1 => self.line("r1 = 0"),
            _ => self.line(&format!("r5 = *(u64 *)(r{scratch} +8)\nr5 += 1\n*(u64 *)(r{scratch} +8) = r5")),
        }
        if self.rng.one_in(12) {
            self.line("call 5");
        }
        self.line(&format!("r1 = r{scratch}"));
        if !self.rng.one_in(12) {
            self.line("call 94");
        }
        self.line(&format!("r{d} = 1\nr{scratch} = 2\n{skip}: r{scratch} = 0\nr0 = 0"));
    }

    /// A dynptr over a map value or the packet.
    pub(super) fn dynptr(&mut self) {
        if self.inside {
            return self.arithmetic();
        }
        let (skip, d) = (self.label(), self.a_number());
        let place = 96 + 16 * u64::from(self.depth);
        if self.rng.one_in(2) {
            let len = 8 + self.rng.below(60);
            self.line(&format!("r1 = map[idx:9][0]+0\nr2 = {len}\nr3 = 0\nr4 = r10\nr4 += -{place}\ncall 197"));
        } else {
            self.line(&format!("r1 = *(u64 *)(r10 -152)\nr2 = 0\nr3 = r10\nr3 += -{place}\ncall kfunc #3"));
        }
        let off = self.rng.below(24);
        match self.rng.below(4) {
            0 => self.line(&format!(
                "r1 = r10\nr1 += -48\nr2 = 8\nr3 = r10\nr3 += -{place}\nr4 = {off}\nr5 = 0\ncall 201\nr{d} = r0"
            )),
            1 => self.line(&format!(
                "r1 = r10\nr1 += -{place}\nr2 = {off}\nr3 = r10\nr3 += -48\nr4 = 8\nr5 = 0\ncall 202\nr{d} = r0"
            )),
            2 => self.line(&format!(
                "r1 = r10\nr1 += -{place}\nr2 = {off}\nr3 = 8\ncall 203\nif r0 == 0 goto {skip}\nr{d} = *(u64 *)(r0 +0)"
            )),
            _ => {
                let late = if self.rng.one_in(4) {
                    "r9 = r0\nr1 = *(u64 *)(r10 -152)\nr2 = 4\ncall 44\nr0 = r9\nr9 = 0\n"
                } else {
                    ""
                };
                self.line(&format!("r1 = r10\nr1 += -{place}\nr2 = {off}\nr3 = 0\nr4 = 8\ncall kfunc #4"));
                self.line(&format!("if r0 == 0 goto {skip}\n{late}r{d} = *(u64 *)(r0 +0)"));
                if !late.is_empty() {
                    self.nine = Holds::Number;
                }
            }
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    /// Timers, tail calls, redirects, clocks.
    pub(super) fn rare(&mut self) {
        let (skip, d) = (self.label(), self.a_number());
        match self.rng.below(6) {
            0 if !self.inside => {
                let name = format!("f{}", self.functions.len());
                self.line(&format!(
                    "*(u64 *)(r10 -56) = 0\nr2 = r10\nr2 += -56\nr1 = map[idx:6]\ncall 1\nif r0 == 0 goto {skip}"
                ));
                self.line("r7 = r0\nr1 = r0\nr2 = map[idx:6]\nr3 = 1\ncall 169");
                self.line(&format!("r1 = r7\nr2 = subprog[{name}]\ncall 170\nr1 = r7\nr2 = 1000000\nr3 = 0\ncall 171"));
                self.line(&format!("{skip}: r7 = 0\nr0 = 0"));
                let off = 8 * self.rng.below(4);
                let body = format!("{name}: r0 = *(u64 *)(r3 +{off})\nr0 = 0\nexit\n");
                self.functions.push((body, Role::Timer));
            }
            1 if !self.inside => {
                let index = self.rng.below(3);
                self.line(&format!("r1 = *(u64 *)(r10 -152)\nr2 = map[idx:7]\nr3 = {index}\ncall 12\nr0 = 0"));
            }
            2 => self.line(&format!("r1 = 1\nr2 = 0\ncall 23\nr{d} = r0")),
            3 => self.line(&format!("call 5\nr{d} = r0")),
            4 if !self.inside => {
                // A tail call out of a function.
                let name = format!("f{}", self.functions.len());
                self.line(&format!("r1 = *(u64 *)(r10 -152)\ncall {name}\nr{d} = r0"));
                self.functions.push((format!("{name}: r2 = map[idx:7]\nr3 = 1\ncall 12\nr0 = 3\nexit\n"), Role::Tail));
            }
            _ => self.line(&format!("call 8\nr{d} = r0")),
        }
    }
}
