//! Loops in which a pointer into the packet moves by what it reads there: options, extension headers, labels; the bytes that it reads are
//! written meanwhile through it and through others.

use super::Mix;

impl Mix<'_> {
    pub(super) fn options(&mut self) {
        let (head, done) = (self.label(), self.label());
        let turns = 1 + self.below(8);
        let first = *self.rng.pick(&[0, 0, 14, 34, 20]);
        // A place that another pointer leads to.
        let (wide, size) = self.size();
        let known = if self.rng.one_in(2) { Some(self.place(size)) } else { None };
        let need = *self.rng.pick(&[2, 2, 4, 8]);
        self.line(&format!("r2 = r7\nr2 += {first}"));
        let spilled = self.rng.one_in(3);
        let down = self.rng.one_in(3);
        self.line(if down { "r3 = 7" } else { "r3 = 0" });
        if spilled {
            self.line("*(u64 *)(r10 -80) = r2");
        }
        self.line(&format!("{head}: r0 = 0"));
        if spilled {
            self.line("r2 = *(u64 *)(r10 -80)");
        }
        self.line(&format!("r4 = r2\nr4 += {need}\nif r4 > r8 goto {done}\nr5 = *(u8 *)(r2 +1)"));
        match self.rng.below(4) {
            0 => self.line("r5 &= 7"),
            1 => self.line(&format!("if r5 > 20 goto {done}\nif r5 < 2 goto {done}")),
            2 => self.line("w5 <<= 2\nw5 &= 28"),
            _ => self.line("r1 = *(u8 *)(r2 +0)\nr5 &= 15\nif r1 > 1 goto +1\nr5 = 1"),
        }
        for _ in 0..1 + self.rng.below(3) {
            let (name, size) = self.size();
            let (name, size) = if size > need { ("u8", 1) } else { (name, size) };
            let at = self.below(need - size + 1);
            match (self.rng.below(6), known) {
                (0 | 1, _) => self.line(&format!("r1 = *({name} *)(r2 +{at})\nr9 += r1")),
                (2, _) => self.line(&format!("*({name} *)(r2 +{at}) = r9")),
                (_, Some(known)) => {
                    if self.rng.one_in(2) {
                        self.line(&format!("*({name} *)(r2 +{at}) = r9\nr1 = *({wide} *)(r7 +{known})\nr9 ^= r1"));
                    } else {
                        self.line(&format!("*({wide} *)(r7 +{known}) = r9\nr1 = *({name} *)(r2 +{at})\nr9 += r1"));
                    }
                }
                _ => self.line(&format!("r1 = *({name} *)(r2 +{at})\nr9 *= 3\nr9 ^= r1")),
            }
        }
        self.line("r2 += r5");
        if self.rng.one_in(2) {
            self.line("r2 += 1");
        }
        if spilled {
            self.line("*(u64 *)(r10 -80) = r2");
        }
        if down {
            self.line(&format!("r3 += -1\nif r3 != 0 goto {head}\n{done}: r9 += r3"));
        } else {
            self.line(&format!("r3 += 1\nif r3 < {turns} goto {head}\n{done}: r9 += r3"));
        }
        if spilled {
            self.line("*(u64 *)(r10 -80) = 3");
        }
    }
}
