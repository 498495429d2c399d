//! Numbers that a filter, a stack or a queue was given, and may have: pushed from the stack, from the packet and from values, asked for,
//! taken out.

use super::Mix;

/// A filter, a stack and a queue.
const FILTER: i64 = 27;
const HEAPS: [i64; 2] = [28, 11];

impl Mix<'_> {
    pub(super) fn filters(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            if self.rng.one_in(3) {
                self.heap();
                continue;
            }
            let (miss, push) = (self.label(), self.rng.one_in(3));
            let from = self.some_number(&miss, push);
            if push {
                let flags = *self.rng.pick(&[0, 0, 0, 1, 2]);
                self.line(&format!("{from}\nr3 = {flags}\nr1 = map[idx:{FILTER}]\ncall 87"));
            } else {
                // Only what is there is found, or what looks like it.
                self.line(&format!("{from}\nr1 = map[idx:{FILTER}]\ncall 89"));
            }
            self.answered();
            self.line(&format!("{miss}: r0 = 0"));
            if self.rng.one_in(2) {
                self.stack();
            }
        }
    }

    /// Eight bytes into r2; what nobody can change and the packet's only for a push.
    fn some_number(&mut self, miss: &str, push: bool) -> String {
        let at = self.own(8);
        match self.rng.below(6) {
            0 if push && self.proved >= 8 => format!("r2 = r7\nr2 += {}", self.below(self.proved - 7)),
            1 => {
                self.line(&format!(
                    "*(u32 *)(r10 -72) = {}\nr2 = r10\nr2 += -72\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto {miss}",
                    self.labels % 4
                ));
                format!("r2 = r0\nr2 += {}", 8 * self.below(8))
            }
            2 if push => format!("r2 = map[idx:10][0]+{}", 8 * self.below(4)),
            3 => format!("r1 = r9\nr1 &= 15\n*(u64 *)(r10 {at}) = r1\nr2 = r10\nr2 += {at}"),
            4 => format!("*(u64 *)(r10 {at}) = {}\nr2 = r10\nr2 += {at}", self.below(12)),
            _ => format!("r2 = r10\nr2 += {at}"),
        }
    }

    fn heap(&mut self) {
        let (map, miss) = (*self.rng.pick(&HEAPS), self.label());
        if self.rng.one_in(2) {
            let (from, flags) = (self.some_number(&miss, true), *self.rng.pick(&[0, 2, 2, 1]));
            self.line(&format!("{from}\nr3 = {flags}\nr1 = map[idx:{map}]\ncall 87"));
            self.answered();
        } else {
            // Into the stack or a value; where there is nothing, zeros.
            let helper = *self.rng.pick(&[88, 88, 89]);
            let at = self.own(8);
            let (to, seen) = match self.rng.below(3) {
                0 => {
                    let off = 8 * self.below(8);
                    (format!("r2 = map[idx:9][0]+{off}"), format!("r1 = map[idx:9][0]+{off}\nr1 = *(u64 *)(r1 +0)"))
                }
                _ => {
                    let (name, size) = self.size();
                    let part = at + size * self.below(8 / size);
                    (format!("r2 = r10\nr2 += {at}"), format!("r1 = *({name} *)(r10 {part})"))
                }
            };
            self.line(&format!("{to}\nr1 = map[idx:{map}]\ncall {helper}"));
            self.answered();
            self.line(&format!("{seen}\nr9 ^= r1"));
        }
        self.line(&format!("{miss}: r0 = 0"));
    }

    /// r0 is an error or none.
    fn answered(&mut self) {
        let on = self.label();
        match self.rng.below(4) {
            0 => self.line(&format!("if r0 == 0 goto {on}\nr9 += 7\n{on}: r9 <<= 1")),
            1 => {
                let out = self.way_out();
                self.line(&format!("if w0 != 0 goto {out}"));
            }
            _ => self.line("r9 += r0"),
        }
    }
}
