//! Few bytes that are written and read in every width, one over the other; headers that move forward and backward by less than their
//! length.

use super::super::SIZES;
use super::Mix;

impl Mix<'_> {
    /// Sixteen bytes of the stack.
    pub(super) fn pieces(&mut self) {
        let base = -64 + 16 * self.below(4);
        for _ in 0..4 + self.rng.below(12) {
            let (name, size) = self.size();
            let at = base + size * self.below(16 / size);
            match self.rng.below(14) {
                0 => {
                    let number = self.rng.u32() as i32;
                    self.line(&format!("*({name} *)(r10 {at}) = {number}"));
                }
                1..=4 => self.line(&format!("*({name} *)(r10 {at}) = r9")),
                5 => {
                    let (w, by) = (*self.rng.pick(&["w", "r"]), 1 + self.below(31));
                    self.line(&format!("r1 = r9\n{w}1 >>= {by}\n*({name} *)(r10 {at}) = r1"));
                }
                6 | 7 => {
                    // Read, and written elsewhere in another width.
                    let (other, size) = self.size();
                    let to = base + size * self.below(16 / size);
                    self.line(&format!("r1 = *({name} *)(r10 {at})\n*({other} *)(r10 {to}) = r1"));
                }
                8 => {
                    let on = self.label();
                    let bit = 1 << self.rng.below(6);
                    self.line(&format!("if r9 & {bit} goto {on}\n*({name} *)(r10 {at}) = r9\n{on}: r9 += 1"));
                }
                9 if self.proved >= size => {
                    let to = self.below(self.proved - size + 1);
                    self.line(&format!("r1 = *({name} *)(r10 {at})\n*({name} *)(r7 +{to}) = r1"));
                }
                10 if self.rng.one_in(3) => {
                    // A helper writes some of it, or looks at it.
                    let len = 1 + self.below(8);
                    let (at, helper) = (base + self.below(16 - len + 1), 189 + self.below(2));
                    let from = self.below(16);
                    self.line(&format!(
                        "r1 = r6\nr2 = {from}\nr3 = r10\nr3 += {at}\nr4 = {len}\ncall {helper}\nr9 += r0"
                    ));
                }
                _ => {
                    let name = if size < 8 && self.rng.one_in(3) { name.replace('u', "s") } else { name.to_owned() };
                    let op = *self.rng.pick(&["^=", "+=", "*=", "-="]);
                    self.line(&format!("r1 = *({name} *)(r10 {at})\nr9 {op} r1"));
                }
            }
        }
    }

    /// A header moves within the packet, in pieces of any width, in either order, one by one or some at once.
    pub(super) fn header_moves(&mut self) {
        if self.rng.one_in(3) {
            return self.tag();
        }
        let (len, by) = (*self.rng.pick(&[4, 6, 8, 12, 14, 16, 20]), *self.rng.pick(&[1, 2, 4, 4, 8, 14]));
        let low = self.place(len + by);
        let (from, to) = if self.rng.one_in(2) { (low, low + by) } else { (low + by, low) };
        let pieces = self.cut(len);
        let (mut n, turned) = (0, self.rng.one_in(4));
        while n < pieces.len() {
            let some = (1 + self.rng.index(4)).min(pieces.len() - n);
            let these = &pieces[n..n + some];
            for (r, (name, at)) in these.iter().enumerate() {
                self.line(&format!("r{} = *({name} *)(r7 +{})", r + 1, from + at));
            }
            let mut order: Vec<usize> = (0..some).collect();
            if turned {
                order.reverse();
            }
            for r in order {
                let (name, at) = these[r];
                self.line(&format!("*({name} *)(r7 +{}) = r{}", to + at, r + 1));
            }
            n += some;
        }
        let seen = low + self.below(len + by - 3);
        self.line(&format!("r1 = *(u32 *)(r7 +{seen})\nr9 += r1"));
    }

    /// So many bytes in pieces: width and place, from the front or from the back.
    fn cut(&mut self, len: i64) -> Vec<(&'static str, i64)> {
        let mut pieces = vec![];
        let mut at = 0;
        let widest = 1 + self.rng.index(4);
        while at < len {
            let (name, size) = SIZES[if self.rng.one_in(3) { self.rng.index(4) } else { widest - 1 }];
            if at + size <= len {
                pieces.push((name, at));
                at += size;
            } else if widest > 1 {
                pieces.push(("u8", at));
                at += 1;
            }
        }
        if self.rng.one_in(2) {
            pieces.reverse();
        }
        pieces
    }

    /// A tag is put in behind the addresses, or taken out: by way of the stack, or within the packet.
    fn tag(&mut self) {
        let (by, out) = (*self.rng.pick(&[-4, 4, -8, -14]), self.way_out());
        self.check(18);
        let pieces = self.cut(12);
        let on_stack = by > 0 || self.rng.one_in(2);
        if on_stack {
            for (name, at) in &pieces {
                // Aligned there, as the stack has to be.
                self.line(&format!("r1 = *({name} *)(r7 +{at})"));
                for (n, (part, size)) in parts(name, *at).into_iter().enumerate() {
                    if n > 0 {
                        self.line(&format!("r1 >>= {}", 8 * size));
                    }
                    self.line(&format!("*({part} *)(r10 {}) = r1", at - 24 + n as i64 * size));
                }
            }
        }
        self.line(&format!("r1 = r6\nr2 = {by}\ncall 44\nif r0 != 0 goto {out}"));
        self.packet();
        self.check(18);
        let pieces = self.cut(12);
        for (name, at) in pieces {
            if on_stack {
                for (n, (part, size)) in parts(name, at).into_iter().enumerate() {
                    let at = at + n as i64 * size;
                    self.line(&format!("r1 = *({part} *)(r10 {})\n*({part} *)(r7 +{at}) = r1", at - 24));
                }
            } else if at - by + width(name) <= 18 {
                self.line(&format!("r1 = *({name} *)(r7 +{})\n*({name} *)(r7 +{at}) = r1", at - by));
            }
        }
        self.line("*(u16 *)(r7 +12) = 129\n*(u16 *)(r7 +14) = r9");
    }
}

/// The pieces of a piece that lie aligned from -24 on.
fn parts(name: &'static str, at: i64) -> Vec<(&'static str, i64)> {
    let size = width(name);
    if at % size == 0 {
        return vec![(name, size)];
    }
    vec![("u8", 1); size as usize]
}

fn width(name: &str) -> i64 {
    SIZES.iter().find(|s| s.0 == name).map_or(1, |s| s.1)
}
