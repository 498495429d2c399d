//! Packets of several buffers: copies over the places where one ends and the next begins, over the packet's end and behind it, by lengths
//! that are known or not, from and to the stack and values; ends that move, buffer by buffer, and what lies there then.

use super::Mix;

impl Mix<'_> {
    pub(super) fn buffers(&mut self) {
        for _ in 0..2 + self.rng.below(4) {
            if self.rng.one_in(3) {
                self.end_moved();
            } else {
                self.over_an_end();
            }
        }
    }

    fn end_moved(&mut self) {
        let by = *self.rng.pick(&[-1500, -200, -64, -16, -3, -1, 0, 1, 3, 16, 63, 64, 65, 200, 1500]);
        if self.rng.one_in(4) {
            self.line(&format!("r2 = r9\nr2 &= 31\nr2 += {by}"));
        } else {
            self.line(&format!("r2 = {by}"));
        }
        self.line("r1 = r6\ncall 65");
        let (on, out) = (self.label(), self.way_out());
        self.proved = 0;
        match self.rng.below(4) {
            0 => self.line(&format!("if r0 != 0 goto {out}")),
            1 => self.line(&format!("if w0 == 0 goto {on}\nr9 ^= 3\n{on}: r0 = 0")),
            _ => self.line("r9 += r0"),
        }
        self.packet();
        if self.rng.one_in(3) {
            self.line("r1 = r6\ncall 188\nr9 += r0");
        }
    }

    fn over_an_end(&mut self) {
        let miss = self.label();
        let helper = *self.rng.pick(&[189, 189, 190]);
        let len = *self.rng.pick(&[1, 2, 3, 4, 7, 8, 15, 16, 24, 48, 64]);
        // Where: from the packet's end, from its start, or as the packet says.
        match self.rng.below(5) {
            0 | 1 => {
                let more = *self.rng.pick(&[0, 0, 0, 1, -1, -9, -40, 2]);
                self.line(&format!("r1 = r6\ncall 188\nr2 = r0\nr2 += {}", more - len));
            }
            2 => self.line("r2 = r9\nr2 &= 127"),
            3 => {
                // Behind the first buffer's end, or over it.
                let more = *self.rng.pick(&[0, -1, -3, -8, -15, 1, 5]);
                self.line(&format!("r2 = *(u32 *)(r6 +4)\nr1 = *(u32 *)(r6 +0)\nr2 -= r1\nr2 += {more}"));
            }
            _ => {
                let at = *self.rng.pick(&[0, 1, 13, 14, 40, 60, 99, 1000, 1490, 3519]);
                self.line(&format!("r2 = {at}"));
            }
        }
        let known = self.rng.one_in(2);
        let value = self.rng.one_in(3);
        let at = -64 + self.below(64 - len + 1);
        if value {
            self.line(&format!(
                "*(u64 *)(r10 -80) = r2\n*(u32 *)(r10 -72) = {}\nr2 = r10\nr2 += -72\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto {miss}\n\
                 r3 = r0\nr3 += {}\nr2 = *(u64 *)(r10 -80)",
                self.labels % 4,
                64 + at
            ));
        } else {
            self.line(&format!("r3 = r10\nr3 += {at}"));
        }
        if known || len < 2 {
            self.line(&format!("r4 = {len}"));
        } else {
            let most = (len + 1) as u64;
            let mask = (most.next_power_of_two() / 2 - 1).max(1) as i64;
            self.line(&format!("r4 = r9\nr4 &= {mask}\nr4 += 1"));
        }
        self.line(&format!("r1 = r6\ncall {helper}"));
        match self.rng.below(3) {
            0 => {
                let on = self.label();
                self.line(&format!("if r0 == 0 goto {on}\nr9 += 5\n{on}: r0 = 0"));
            }
            _ => self.line("r9 += r0"),
        }
        if value {
            self.line(&format!("{miss}: r0 = 0"));
        } else {
            let (name, size) = self.size();
            let at = self.own(size);
            self.line(&format!("r1 = *({name} *)(r10 {at})\nr9 ^= r1"));
        }
        // Its first bytes, by the pointers that are still good.
        if self.proved > 0 {
            let at = self.below(self.proved);
            self.line(&format!("r1 = *(u8 *)(r7 +{at})\nr9 += r1"));
        }
    }
}
