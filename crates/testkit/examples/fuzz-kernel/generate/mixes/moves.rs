//! The packet's start, end and metadata move: by themselves, in loops, on one of two ways, with something between the two loads of the new
//! bounds.

use super::Mix;

impl Mix<'_> {
    /// Moved, and asked for once more.
    pub(super) fn room(&mut self) {
        match self.rng.below(8) {
            0 => self.moved_in_turns(),
            1 => self.moved_on_one_way(),
            2 => {
                for _ in 0..2 + self.rng.below(2) {
                    self.moved();
                }
                self.bounds_apart();
            }
            3 => {
                self.moved();
                self.bounds_apart();
            }
            _ => {
                self.moved();
                self.packet();
            }
        }
        if self.rng.one_in(3) {
            self.metadata();
        }
    }

    /// One move, and what is made of its result; r7 and r8 are nothing then.
    fn moved(&mut self) {
        let (helper, by) = match self.rng.below(4) {
            0 | 1 => (44, *self.rng.pick(&[-40, -20, -8, -4, -1, 0, 1, 4, 8, 14, 20])),
            2 => (65, *self.rng.pick(&[-100, -40, -20, -4, -1, 0, 1, 4, 16, 70])),
            // Odd ones fit nowhere but behind the start of a packet that has no metadata.
            _ => (54, *self.rng.pick(&[-8, -4, 4, -12, 0, -5, -9, 1, -32])),
        };
        if self.rng.one_in(3) {
            // Where metadata begin is known in front of the move, and asked for behind it.
            self.line("r3 = *(u32 *)(r6 +8)");
            if self.rng.one_in(3) {
                let out = self.way_out();
                self.line(&format!(
                    "r5 = *(u32 *)(r6 +0)\nr4 = r3\nr4 += 4\nif r4 > r5 goto {out}\nr4 = *(u8 *)(r3 +2)\nr9 += r4"
                ));
            }
        }
        if self.rng.one_in(3) {
            self.line(&format!("r2 = r9\nr2 &= 7\nr2 += {by}"));
        } else {
            self.line(&format!("r2 = {by}"));
        }
        self.line(&format!("r1 = r6\ncall {helper}"));
        let out = self.way_out();
        match self.rng.below(5) {
            0 => self.line("r9 += r0"),
            1 => self.line(&format!("r1 = r0\nr0 = 3\nif r1 != 0 goto {out}")),
            2 => self.line(&format!("if w0 != 0 goto {out}")),
            3 => {
                // Both ways go on together.
                let on = self.label();
                self.line(&format!("if r0 == 0 goto {on}\nr9 += 5\n{on}: r0 = 0"));
            }
            _ => self.line(&format!("if r0 != 0 goto {out}")),
        }
        self.proved = 0;
    }

    fn moved_in_turns(&mut self) {
        let head = self.label();
        let turns = 1 + self.below(3);
        self.line(&format!("*(u64 *)(r10 -80) = 0\n{head}: r0 = 0"));
        self.moved();
        self.packet();
        if self.rng.one_in(2) {
            self.seen();
        }
        self.line(&format!("r1 = *(u64 *)(r10 -80)\nr1 += 1\n*(u64 *)(r10 -80) = r1\nif r1 < {turns} goto {head}"));
    }

    /// What was known of the packet is known on one way only; both ask again.
    fn moved_on_one_way(&mut self) {
        let (other, meet) = (self.label(), self.label());
        let bit = 1 << self.rng.below(4);
        self.line(&format!("if r9 & {bit} goto {other}"));
        self.moved();
        if self.rng.one_in(2) {
            self.packet();
            self.seen();
        }
        if self.rng.one_in(2) {
            self.line(&format!("goto {meet}\n{other}: r9 += 1\n{meet}: r0 = 0"));
        } else {
            self.line(&format!("{other}: r9 += 1"));
        }
        self.proved = 0;
        self.packet();
    }

    /// The new bounds, with something between them that leaves them as they are.
    fn bounds_apart(&mut self) {
        let mut loads = ["r7 = *(u32 *)(r6 +0)", "r8 = *(u32 *)(r6 +4)"];
        if self.rng.one_in(2) {
            loads.swap(0, 1);
        }
        self.proved = 0;
        self.line(loads[0]);
        match self.rng.below(4) {
            // Not where something has to be given back.
            0 if self.leads.is_none() => {
                // A tail call that mostly fails.
                let (slot, programs) = (1 + self.below(3), self.programs());
                self.line(&format!("r1 = r6\nr2 = map[idx:{programs}]\nr3 = {slot}\ncall 12"));
            }
            1 => self.line("r1 = r6\ncall 188\nr9 += r0"),
            2 => self.line("r1 = *(u32 *)(r6 +8)\nr2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +0)"),
            _ => {
                let on = self.label();
                self.line(&format!("if r9 & 1 goto {on}\nr9 += 3\n{on}: r0 = 0"));
            }
        }
        self.line(loads[1]);
    }

    /// What lies in front of the packet, if anything: read and written through a pointer that was loaded just now, or that has been there
    /// since before the packet's own bytes changed.
    pub(super) fn metadata(&mut self) {
        let on = self.label();
        let len = *self.rng.pick(&[4, 4, 8, 8, 12, 16, 32]);
        // As a bound it has to be the packet's start itself.
        let start = if self.rng.one_in(2) { "r7" } else { "r5" };
        let loads = ["r2 = *(u32 *)(r6 +8)", "r5 = *(u32 *)(r6 +0)"];
        let order = self.rng.index(2);
        self.line(&format!("{}\n{}\nr3 = r2\nr3 += {len}", loads[order], loads[1 - order]));
        match self.rng.below(4) {
            0 => self.line(&format!("if {start} < r3 goto {on}")),
            1 => self.line(&format!("if r3 <= {start} goto +1\ngoto {on}")),
            _ => self.line(&format!("if r3 > {start} goto {on}")),
        }
        for _ in 0..1 + self.rng.below(4) {
            let (name, size) = self.size();
            if size > len {
                continue;
            }
            let at = self.below(len - size + 1);
            match self.rng.below(7) {
                0 | 1 => self.line(&format!("*({name} *)(r2 +{at}) = r9")),
                2 => {
                    let number = self.rng.u32() as i32;
                    self.line(&format!("*({name} *)(r2 +{at}) = {number}"));
                }
                3 if self.proved >= size => {
                    // What stands behind the bound is another byte.
                    let off = self.below(self.proved - size + 1);
                    self.line(&format!("r1 = *({name} *)(r7 +{off})\n*({name} *)(r2 +{at}) = r1"));
                }
                4 if self.proved >= size => {
                    let off = self.below(self.proved - size + 1);
                    self.line(&format!("r1 = *({name} *)(r2 +{at})\n*({name} *)(r7 +{off}) = r1"));
                }
                5 if len >= 4 => self.line("r1 = *(u8 *)(r2 +1)\nr4 = *(u8 *)(r2 +0)\nr1 <<= 8\nr1 |= r4\nr9 ^= r1"),
                _ => self.line(&format!("r1 = *({name} *)(r2 +{at})\nr9 += r1")),
            }
        }
        self.line(&format!("{on}: r0 = 0"));
    }
}
