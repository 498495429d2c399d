//! Bytes wherever they lie: copied from and to the packet by helpers, which reach all of its buffers, and read in slices.

use super::Mix;

impl Mix<'_> {
    pub(super) fn reach(&mut self) {
        for _ in 0..1 + self.rng.below(2) {
            match self.rng.below(5) {
                0 => self.line("r1 = r6\ncall 188\nr9 += r0"),
                1 | 2 => self.copied(189),
                3 => self.copied(190),
                _ => self.slice(),
            }
        }
    }

    /// `bpf_xdp_load_bytes` or `bpf_xdp_store_bytes`.
    fn copied(&mut self, helper: u32) {
        let len = *self.rng.pick(&[1, 2, 4, 6, 8, 14, 16, 20, 33, 64]);
        let at = -64 + self.below(64 - len + 1);
        match self.rng.below(4) {
            0 => {
                let mask = *self.rng.pick(&[15, 63, 127]);
                self.line(&format!("r2 = r9\nr2 &= {mask}"));
            }
            1 => {
                // Up to the end, or a byte more.
                let by = len - i64::from(self.rng.one_in(4));
                self.line(&format!("r1 = r6\ncall 188\nr2 = r0\nr2 -= {by}"));
            }
            _ => {
                let offset = *self.rng.pick(&[0, 0, 1, 6, 12, 13, 14, 20, 30, 34, 40, 60, 64, 100, 1000]);
                self.line(&format!("r2 = {offset}"));
            }
        }
        self.line(&format!("r1 = r6\nr3 = r10\nr3 += {at}\nr4 = {len}\ncall {helper}"));
        let out = self.way_out();
        match self.rng.below(3) {
            0 => self.line(&format!("if r0 != 0 goto {out}")),
            _ => self.line("r9 += r0"),
        }
    }

    /// A dynptr over the packet, and a slice of it: where it lies, or a copy on the stack.
    fn slice(&mut self) {
        let (miss, none) = (self.label(), self.label());
        let (name, size) = self.size();
        let len = 8 * (1 + self.below(4));
        let (offset, at) = (self.below(40), size * self.below(len / size));
        // 6 may be written, and is not what the packet has where it is a copy.
        let kfunc = *self.rng.pick(&[4, 6]);
        let buffer = if self.rng.one_in(3) { "r3 = 0".to_owned() } else { format!("r3 = r10\nr3 += {}", -8 - len) };
        self.line(&format!(
            "r1 = r6\nr2 = 0\nr3 = r10\nr3 += -136\ncall kfunc #3\nif r0 != 0 goto {none}\nr1 = r10\nr1 += -136\nr2 = {offset}\n\
             {buffer}\nr4 = {len}\ncall kfunc #{kfunc}\nif r0 == 0 goto {miss}\nr1 = *({name} *)(r0 +{at})\nr9 += r1"
        ));
        if kfunc == 6 && self.rng.one_in(2) {
            self.line(&format!("*({name} *)(r0 +{at}) = r9"));
        }
        // The same bytes change by another way: in the packet, or where a copy may be.
        let again = match self.rng.below(3) {
            0 if self.proved >= offset + at + size => Some(format!("(r7 +{})", offset + at)),
            1 => Some(format!("(r10 {})", -8 - len + at)),
            _ => None,
        };
        if let Some(place) = again {
            self.line(&format!("*({name} *){place} = r9\nr1 = *({name} *)(r0 +{at})\nr9 += r1"));
        }
        self.line(&format!("{miss}: r0 = 0\n{none}: r0 = 0"));
    }
}
