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
        if self.rng.one_in(4) {
            self.metadata();
        }
    }

    /// One move, and what is made of its result; r7 and r8 are nothing then.
    fn moved(&mut self) {
        let (helper, by) = match self.rng.below(4) {
            0 | 1 => (44, *self.rng.pick(&[-40, -20, -8, -4, -1, 0, 1, 4, 8, 14, 20])),
            2 => (65, *self.rng.pick(&[-100, -40, -20, -4, -1, 0, 1, 4, 16, 70])),
            _ => (54, *self.rng.pick(&[-8, -4, 4, -12, 0])),
        };
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
            0 if !self.frags => {
                // A tail call that mostly fails.
                let slot = 1 + self.below(3);
                self.line(&format!("r1 = r6\nr2 = map[idx:7]\nr3 = {slot}\ncall 12"));
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

    /// What lies in front of the packet, if anything.
    fn metadata(&mut self) {
        let on = self.label();
        let len = *self.rng.pick(&[4, 8]);
        self.line(&format!(
            "r2 = *(u32 *)(r6 +8)\nr3 = r2\nr3 += {len}\nif r3 > r7 goto {on}\n*(u32 *)(r2 +0) = r9\nr3 = *(u16 *)(r2 +1)\n\
             r9 += r3\n{on}: r0 = 0"
        ));
    }
}
