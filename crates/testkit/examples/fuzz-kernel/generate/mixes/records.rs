//! Records of a ring, written in pieces and given away; numbers in a queue; an element under its lock; memory behind dynptrs. No check leads
//! out while something has to be given back.

use super::super::SIZES;
use super::Mix;

impl Mix<'_> {
    pub(super) fn records(&mut self) {
        for _ in 0..1 + self.rng.below(2) {
            match self.rng.below(11) {
                0..=2 => self.record(),
                3 | 10 => self.told(),
                4 | 5 => self.queue(),
                6 => self.under_lock(),
                _ => self.pointed(),
            }
        }
    }

    /// A record of which bytes are written before it goes.
    fn record(&mut self) {
        let miss = self.label();
        let len = *self.rng.pick(&[8, 16, 24, 40, 64, 400]);
        self.line(&format!("r1 = map[idx:2]\nr2 = {len}\nr3 = 0\ncall 131\nif r0 == 0 goto {miss}"));
        // What a ring's memory held before is nobody's business.
        for at in (0..len.min(64)).step_by(8) {
            self.line(&format!("*(u64 *)(r0 +{at}) = 0"));
        }
        if len > 64 {
            for at in (64..len).step_by(8) {
                self.line(&format!("*(u64 *)(r0 +{at}) = {at}"));
            }
        }
        let kept = self.rng.one_in(2);
        let base = if kept {
            // In a register that calls leave alone.
            self.line("*(u64 *)(r10 -80) = r8\nr8 = r0");
            "r8"
        } else {
            "r0"
        };
        for _ in 0..2 + self.rng.below(8) {
            self.in_record(base, len.min(64), kept);
        }
        let (helper, flags) = (*self.rng.pick(&[132, 132, 133]), *self.rng.pick(&[0, 0, 1, 2]));
        self.line(&format!("r1 = {base}\nr2 = {flags}\ncall {helper}"));
        if kept {
            self.line("r8 = *(u64 *)(r10 -80)");
        }
        self.line(&format!("{miss}: r0 = 0"));
    }

    fn in_record(&mut self, base: &str, len: i64, kept: bool) {
        let (name, size) = self.size();
        let at = size * self.below(len / size);
        match self.rng.below(8) {
            0 | 1 => self.line(&format!("*({name} *)({base} +{at}) = r9")),
            2 => self.line(&format!("r1 = *({name} *)({base} +{at})\nr9 += r1")),
            3 if self.proved >= size => {
                let off = self.below(self.proved - size + 1);
                self.line(&format!("r1 = *({name} *)(r7 +{off})\n*({name} *)({base} +{at}) = r1"));
            }
            4 if self.proved >= size => {
                let off = self.below(self.proved - size + 1);
                self.line(&format!("r1 = *({name} *)({base} +{at})\n*({name} *)(r7 +{off}) = r1\nr9 ^= r1"));
            }
            5 => {
                let (name, size) = SIZES[2 + self.rng.index(2)];
                let (at, bits) = (size * self.below(len / size), if size == 8 { "64" } else { "" });
                self.line(&format!("r1 = r9\nr1 = atomic{bits}_fetch_add(({name} *)({base} +{at}), r1)\nr9 ^= r1"));
            }
            6 if kept => {
                // A helper writes some of it, or reads it.
                let (bytes, from) = (1 + self.below(8), self.below(20));
                let (at, helper) = (self.below(len - bytes + 1), *self.rng.pick(&[189, 190]));
                self.line(&format!(
                    "r1 = r6\nr2 = {from}\nr3 = {base}\nr3 += {at}\nr4 = {bytes}\ncall {helper}\nr9 += r0"
                ));
            }
            _ => {
                let own = self.own(size);
                self.line(&format!("r1 = *({name} *)(r10 {own})\n*({name} *)({base} +{at}) = r1"));
            }
        }
    }

    /// Bytes of the stack or of the packet are told as they are; how full the ring is.
    fn told(&mut self) {
        if self.rng.one_in(3) {
            let what = self.below(5);
            return self.line(&format!("r1 = map[idx:2]\nr2 = {what}\ncall 134\nr9 += r0"));
        }
        let len = if self.rng.one_in(3) {
            self.line("r3 = r9\nr3 &= 15\nr3 += 1");
            16
        } else {
            let len = 1 + self.below(16);
            self.line(&format!("r3 = {len}"));
            len
        };
        let from = if self.proved >= len && self.rng.one_in(2) {
            format!("r2 = r7\nr2 += {}", self.below(self.proved - len + 1))
        } else {
            format!("r2 = r10\nr2 += {}", -64 + self.below(64 - len + 1))
        };
        let flags = *self.rng.pick(&[0, 0, 1, 2, 4]);
        self.line(&format!("{from}\nr4 = {flags}\nr1 = map[idx:2]\ncall 130\nr9 += r0"));
    }

    fn queue(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            let at = self.own(8);
            match self.rng.below(4) {
                0 | 1 => {
                    if self.rng.one_in(2) {
                        self.line(&format!("*(u64 *)(r10 {at}) = r9"));
                    }
                    let flags = *self.rng.pick(&[0, 2, 2]);
                    self.line(&format!("r1 = map[idx:11]\nr2 = r10\nr2 += {at}\nr3 = {flags}\ncall 87\nr9 += r0"));
                }
                n => {
                    // Taken out or only looked at; nothing there is zeros.
                    let (name, size) = self.size();
                    let part = at + size * self.below(8 / size);
                    self.line(&format!(
                        "r1 = map[idx:11]\nr2 = r10\nr2 += {at}\ncall {}\nr9 += r0\nr1 = *({name} *)(r10 {part})\nr9 ^= r1",
                        86 + n
                    ));
                }
            }
        }
    }

    fn under_lock(&mut self) {
        let miss = self.label();
        if self.rng.one_in(2) {
            self.line("r1 = r9\nr1 &= 3\n*(u32 *)(r10 -72) = r1");
        } else {
            let n = self.below(3);
            self.line(&format!("*(u32 *)(r10 -72) = {n}"));
        }
        self.line(&format!(
            "r2 = r10\nr2 += -72\nr1 = map[idx:5]\ncall 1\nif r0 == 0 goto {miss}\n*(u64 *)(r10 -80) = r8\nr8 = r0\nr1 = r0\ncall 93"
        ));
        for _ in 0..1 + self.rng.below(6) {
            let (name, size) = self.size();
            let at = 8 + size * self.below(16 / size);
            match self.rng.below(4) {
                0 => self.line(&format!("*({name} *)(r8 +{at}) = r9")),
                1 => self.line(&format!("r1 = *({name} *)(r8 +{at})\nr9 += r1")),
                2 => self.line("r1 = *(u32 *)(r8 +4)\nr1 += 1\n*(u32 *)(r8 +4) = r1"),
                _ => self.line(&format!("r1 = *({name} *)(r8 +{at})\nr1 += r9\n*({name} *)(r8 +{at}) = r1")),
            }
        }
        self.line(&format!("r1 = r8\ncall 94\nr8 = *(u64 *)(r10 -80)\n{miss}: r0 = 0"));
    }

    /// A dynptr over the packet, a map's memory or a record: read, written, asked for a part of it.
    fn pointed(&mut self) {
        let kind = self.rng.below(3);
        match kind {
            0 => self.line("r1 = r6\nr2 = 0\nr3 = r10\nr3 += -136\ncall kfunc #3"),
            1 => {
                let (at, len) = (8 * self.below(4), 8 + self.below(24));
                self.line(&format!("r1 = map[idx:9][0]+{at}\nr2 = {len}\nr3 = 0\nr4 = r10\nr4 += -136\ncall 197"));
            }
            _ => {
                let len = *self.rng.pick(&[8, 16, 40, 5000]);
                self.line(&format!("r1 = map[idx:2]\nr2 = {len}\nr3 = 0\nr4 = r10\nr4 += -136\ncall 198"));
                if len < 5000 {
                    // All of it is written, whatever a ring's memory held before.
                    for at in (0..len).step_by(8) {
                        self.line(&format!(
                            "r1 = r10\nr1 += -136\nr2 = {at}\nr3 = r10\nr3 += -64\nr4 = 8\nr5 = 0\ncall 202"
                        ));
                    }
                }
            }
        }
        self.line("r9 += r0");
        for _ in 0..1 + self.rng.below(4) {
            let (len, off) = (1 + self.below(16), self.below(24));
            let at = -64 + self.below(64 - len + 1);
            match self.rng.below(5) {
                0 | 1 => {
                    let offset =
                        if self.rng.one_in(2) { format!("r4 = {off}") } else { "r4 = r9\nr4 &= 31".to_owned() };
                    let (name, size) = self.size();
                    let own = self.own(size);
                    self.line(&format!(
                        "r1 = r10\nr1 += {at}\nr2 = {len}\nr3 = r10\nr3 += -136\n{offset}\nr5 = 0\ncall 201\nr9 += r0\n\
                         r1 = *({name} *)(r10 {own})\nr9 ^= r1"
                    ));
                }
                2 => self.line(&format!(
                    "r1 = r10\nr1 += -136\nr2 = {off}\nr3 = r10\nr3 += {at}\nr4 = {len}\nr5 = 0\ncall 202\nr9 += r0"
                )),
                3 if kind > 0 => {
                    let miss = self.label();
                    let (name, size) = self.size();
                    let len = 8;
                    let at = size * self.below(len / size);
                    // The map's memory by another way, which may be the same bytes.
                    let near = 8 * self.below(4) + off;
                    let other = match self.rng.below(3) {
                        0 => format!("r2 = map[idx:9][0]+{near}\n*({name} *)(r2 +{at}) = r9\n"),
                        1 => format!("r2 = map[idx:9][0]+{near}\nr1 = *({name} *)(r2 +{at})\nr9 ^= r1\n"),
                        _ => String::new(),
                    };
                    self.line(&format!(
                        "r1 = r10\nr1 += -136\nr2 = {off}\nr3 = {len}\ncall 203\nif r0 == 0 goto {miss}\n\
                         r1 = *({name} *)(r0 +{at})\nr9 += r1\n*({name} *)(r0 +{at}) = r9\n{other}\
                         r1 = *({name} *)(r0 +{at})\nr9 += r1\n{miss}: r0 = 0"
                    ));
                }
                _ => {
                    let (from, to) = (self.below(20), 4 + self.below(30));
                    self.line(&format!("r1 = r10\nr1 += -136\nr2 = {from}\nr3 = {to}\ncall kfunc #8\nr9 += r0"));
                }
            }
        }
        if kind == 2 {
            let (helper, flags) = (*self.rng.pick(&[199, 199, 200]), *self.rng.pick(&[0, 1]));
            self.line(&format!("r1 = r10\nr1 += -136\nr2 = {flags}\ncall {helper}"));
        }
    }
}
