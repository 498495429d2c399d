//! Bytes of packet and stack, one by one and put together.

use super::Gen;

impl Gen<'_> {
    /// Packet and stack bytes in pieces: copied one by one in any order, put together, taken apart, stored as constants, read
    /// back in other widths, added up; sometimes with a store through another pointer in between.
    pub(super) fn bytes(&mut self) {
        if self.inside {
            return self.arithmetic();
        }
        let skip = self.label();
        let len = *self.rng.pick(&[12, 14, 34, 48]);
        let n = self.a_number();
        self.line("r1 = *(u64 *)(r10 -152)\nr2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)");
        self.line(&format!("r4 = r2\nr4 += {len}\nif r4 > r3 goto {skip}\nr5 = r{n}\nr5 &= 7\nr5 += r2"));
        for slot in [16, 24, 32, 40, 48] {
            if self.rng.one_in(2) {
                let x = self.imm() as i32;
                self.line(&format!("*(u64 *)(r10 -{slot}) = {x}"));
            }
        }
        for _ in 0..1 + self.rng.below(5) {
            self.bytewise(len);
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    /// A pointer to packet or stack with room for some bytes: register and offset.
    fn piece(&mut self, len: i64, bytes: i64) -> (&'static str, i64) {
        match self.rng.below(4) {
            0 => ("r10", -48 + self.rng.below((41 - bytes).max(1) as u64) as i64),
            1 => ("r4", self.rng.below((len - bytes + 1) as u64) as i64 - len),
            _ => ("r2", self.rng.below((len - bytes + 1) as u64) as i64),
        }
    }

    fn bytewise(&mut self, len: i64) {
        let d = self.a_number();
        let count = *self.rng.pick(&[2, 4, 4, 6, 8, 8]);
        let mut order: Vec<i64> = (0..count).collect();
        if self.rng.one_in(3) {
            order.reverse();
        } else if self.rng.one_in(3) {
            let by = self.rng.below(count as u64) as usize;
            order.rotate_left(by);
        }
        let ((from, a), (to, b)) = (self.piece(len, count), self.piece(len, count));
        match self.rng.below(8) {
            0 | 1 => {
                for i in order {
                    self.line(&format!("r0 = *(u8 *)({from} {:+})\n*(u8 *)({to} {:+}) = r0", a + i, b + i));
                }
            }
            2 => {
                self.line("r0 = 0");
                for i in order {
                    self.line(&format!("r0 <<= 8\nr1 = *(u8 *)({from} {:+})\nr0 |= r1", a + i));
                }
                self.line(&format!("r{d} += r0"));
            }
            3 => {
                self.line(&format!("r0 = r{d}"));
                for i in order {
                    self.line(&format!("*(u8 *)({to} {:+}) = r0\nr0 >>= 8", b + i));
                }
            }
            4 => {
                for i in order {
                    let x = self.rng.below(256);
                    self.line(&format!("*(u8 *)({to} {:+}) = {x}", b + i));
                }
            }
            5 => {
                let (size, bytes) = *self.rng.pick(&[("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)]);
                let (from, a) = self.piece(len, bytes);
                let ext = if bytes < 8 && self.rng.one_in(4) { "s" } else { "u" };
                self.line(&format!("r{d} = *({ext}{} *)({from} {a:+})", &size[1..]));
            }
            6 => {
                let off = self.rng.below(4);
                self.line(&format!("*(u8 *)(r5 +{off}) = r{d}"));
            }
            _ => {
                let words = len / 4;
                self.line("r0 = 0");
                for i in 0..words {
                    self.line(&format!("r1 = *(u32 *)(r2 {:+})\nr0 += r1", 4 * i));
                }
                self.line(&format!("r{d} ^= r0"));
            }
        }
    }
}
