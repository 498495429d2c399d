//! Statements that go round: counted, bounded by `may_goto`, by an iterator, by a helper.

use super::super::world::Role;
use super::{Gen, Holds};

impl Gen<'_> {
    /// The place of a counter or an iterator: below what the other statements touch, its own at each depth.
    fn place(&self) -> u32 {
        64 + 8 * self.depth
    }

    /// What r9 holds after a body that may run any number of times: nobody knows, so a number is put there.
    fn forget_nine(&mut self) {
        if self.nine != Holds::Number {
            self.line("r9 = 0");
            self.nine = Holds::Number;
        }
    }

    /// A loop with a counter in a stack slot that the body leaves alone.
    pub(super) fn looping(&mut self) {
        if self.depth >= 2 {
            return self.arithmetic();
        }
        let (head, d, slot) = (self.label(), self.a_number(), self.place());
        let turns = 1 + self.rng.below(8);
        self.forget_nine();
        self.line(&format!("*(u64 *)(r10 -{slot}) = 0\n{head}: r0 = 0"));
        self.block();
        self.forget_nine();
        self.line(&format!("r5 = *(u64 *)(r10 -{slot})\nr5 += 1\n*(u64 *)(r10 -{slot}) = r5\nr{d} += r5"));
        let cond = *self.rng.pick(&["<", "!=", "s<"]);
        self.line(&format!("if r5 {cond} {turns} goto {head}"));
    }

    /// A loop that `may_goto` bounds, with a break of its own so that it is short.
    pub(super) fn may_goto(&mut self) {
        if self.depth >= 2 {
            return self.arithmetic();
        }
        let (head, out, d) = (self.label(), self.label(), self.a_number());
        self.forget_nine();
        self.line(&format!("r{d} &= 255\n{head}: may_goto {out}"));
        self.block();
        self.forget_nine();
        let x = 200 + self.rng.below(200);
        self.line(&format!("r{d} += 16\nif r{d} > {x} goto {out}"));
        if self.rng.one_in(4) {
            self.line(&format!("gotol {head}\n{out}: r0 = 0"));
        } else {
            self.line(&format!("goto {head}\n{out}: r0 = 0"));
        }
    }

    /// A number iterator.
    pub(super) fn iterate(&mut self) {
        if self.depth >= 2 {
            return self.arithmetic();
        }
        let (head, out, d, slot) = (self.label(), self.label(), self.a_number(), self.place());
        let turns = 1 + self.rng.below(12);
        self.forget_nine();
        self.line(&format!("r1 = r10\nr1 += -{slot}\nr2 = 0\nr3 = {turns}\ncall kfunc #0"));
        self.line(&format!("{head}: r1 = r10\nr1 += -{slot}\ncall kfunc #1\nif r0 == 0 goto {out}"));
        self.line(&format!("r{d} = *(u32 *)(r0 +0)"));
        self.block();
        self.forget_nine();
        if self.rng.one_in(3) {
            self.condition(&out);
        }
        self.line(&format!("goto {head}\n{out}: r1 = r10\nr1 += -{slot}"));
        if !self.rng.one_in(15) {
            self.line("call kfunc #2");
        }
        self.line("r0 = 0");
    }

    /// `bpf_loop` or `bpf_for_each_map_elem` with a function that works on this frame's stack.
    pub(super) fn callback(&mut self) {
        if self.inside {
            return self.arithmetic();
        }
        let name = format!("f{}", self.functions.len());
        let skip = self.label();
        self.forget_nine();
        if self.rng.one_in(3) {
            let map = if self.rng.one_in(2) { 0 } else { 3 };
            self.line(&format!("r1 = map[idx:{map}]\nr2 = subprog[{name}]\nr3 = r10\nr3 += -48\nr4 = 0\ncall 164"));
            let off = self.rng.below(17);
            let body = match self.rng.below(3) {
                0 => "r0 = *(u32 *)(r2 +0)\nr1 = *(u64 *)(r4 +0)\nr1 += r0\n*(u64 *)(r4 +0) = r1\nr0 = 0".to_owned(),
                1 => format!("r5 = *(u64 *)(r4 +8)\n*(u8 *)(r3 +{off}) = r5\nr0 = 1"),
                _ => format!("r0 = *(u8 *)(r3 +{off})\nr0 &= 1"),
            };
            self.functions.push((format!("{name}: {body}\nexit\n"), Role::Element));
        } else {
            let n = self.a_number();
            if self.rng.one_in(2) {
                let turns = 1 + self.rng.below(20);
                self.line(&format!("r1 = {turns}"));
            } else {
                self.line(&format!("r1 = r{n}"));
                self.bounded(1, 31, &skip);
                // More than eight million turns are refused by bpf_loop with -E2BIG, which Linux, where it has inlined the
                // call, leaves in the low half alone.
                self.line("r1 &= 63");
            }
            self.line(&format!("r2 = subprog[{name}]\nr3 = r10\nr3 += -48\nr4 = 0\ncall 181"));
            let at = 8 * self.rng.below(5);
            let body = match self.rng.below(5) {
                0 => format!("r0 = *(u64 *)(r2 +{at})\nr0 += r1\n*(u64 *)(r2 +{at}) = r0\nr0 = 0"),
                1 => format!(
                    "r3 = *(u64 *)(r2 +{at})\nr3 += 8\n*(u64 *)(r2 +{at}) = r3\nr0 = 0\nif r3 < 64 goto +1\nr0 = 1"
                ),
                // The index as an offset, checked, masked or not.
                2 => format!(
                    "if r1 > {} goto +3\nr3 = r2\nr3 += r1\n*(u8 *)(r3 +0) = r1\nr0 = 0",
                    30 + self.rng.below(12)
                ),
                3 => format!("r1 &= 31\nr2 += r1\nr0 = *(u8 *)(r2 +{})\nr0 &= 1", self.rng.below(10)),
                _ => format!("r3 = *(u64 *)(r10 -8)\nr0 = {}", self.rng.below(3)),
            };
            self.functions.push((format!("{name}: {body}\nexit\n"), Role::Loop));
        }
        let d = self.a_number();
        self.line(&format!("r{d} = r0\n{skip}: r0 = 0"));
    }
}
