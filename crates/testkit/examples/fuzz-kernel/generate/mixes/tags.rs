//! Questions about one field of the packet one after the other, as programs ask for tags in front of a header: what has one comes back with
//! the field behind it, copies are masked in between, and the same numbers are asked for again.

use super::Mix;

impl Mix<'_> {
    pub(super) fn tags(&mut self) {
        let w = if self.rng.one_in(4) { "w" } else { "r" };
        self.tag_field();
        self.line("r4 = r3");
        let (rounds, done) = (1 + self.rng.below(3), self.label());
        let numbers: Vec<i64> = (0..3).map(|_| self.byte()).collect();
        for _ in 0..rounds {
            let (tag, on) = (self.label(), self.label());
            // What is asked: the field, a copy of it, or what a mask leaves.
            let reg = if self.rng.one_in(2) { 3 } else { 4 };
            self.tag_moves(reg);
            for n in 0..1 + self.rng.index(3) {
                let number = numbers[n % numbers.len()];
                self.line(&format!("if {w}{reg} == {number} goto {tag}"));
                if self.rng.one_in(3) {
                    self.tag_moves(reg);
                }
            }
            self.line(&format!("goto {on}\n{tag}: r9 += 1"));
            // What is proved on this way only is not proved behind it.
            let proved = self.proved;
            self.tag_field();
            self.proved = proved;
            if self.rng.one_in(2) {
                self.line("r4 = r3");
            }
            self.line(&format!("{on}: r0 = 0"));
        }
        let (reg, number, again) = (3 + self.rng.below(2), self.byte(), self.label());
        self.tag_moves(reg);
        match self.rng.below(3) {
            0 => {
                let out = self.way_out();
                self.line(&format!("if {w}{reg} != {number} goto {out}"));
            }
            1 => self.line(&format!("if {w}{reg} == {number} goto {again}\nr9 ^= 5\n{again}: r9 += r0")),
            _ => self.line(&format!("if {w}{reg} != {number} goto {done}\nr9 <<= 1\n{done}: r9 += r0")),
        }
        self.line("r9 += r3\nr9 += r4");
    }

    /// A field into r3, from the packet, or a sum with more bits.
    fn tag_field(&mut self) {
        let (name, size) = self.size();
        match self.rng.below(5) {
            0 => {
                let at = self.place(2);
                self.line(&format!("r3 = *(u8 *)(r7 +{at})\nr1 = *(u8 *)(r7 +{})\nr3 <<= 8\nr3 |= r1", at + 1));
            }
            1 => self.line("r3 = r9"),
            _ => {
                let at = self.place(size);
                self.line(&format!("r3 = *({name} *)(r7 +{at})"));
            }
        }
    }

    /// What stands between questions about this register.
    fn tag_moves(&mut self, reg: u64) {
        let other = 7 - reg;
        for _ in 0..self.rng.below(3) {
            let text = match self.rng.below(9) {
                0 => format!("r{reg} &= 65535"),
                1 => format!("r{reg} &= 255"),
                2 => format!("w{reg} &= 65535"),
                3 => format!("r{reg} = r{other}"),
                4 => format!("w{reg} = w{other}"),
                5 => format!("r{other} = r{reg}\nr{other} &= 65535"),
                6 => format!("r0 = {}", self.labels),
                7 => format!("r0 = r{reg}\nr0 ^= 3"),
                _ => format!("r{reg} = le16 r{reg}"),
            };
            self.line(&text);
        }
    }
}
