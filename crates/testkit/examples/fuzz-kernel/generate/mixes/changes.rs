//! Callbacks that change what their caller has written and reads once more: bytes of its stack, of the packet, of a map's value that it has
//! in its hands, and entries of a table.

use std::fmt::Write;

use super::{Mix, Role};

impl Mix<'_> {
    pub(super) fn changed(&mut self) {
        let miss = self.label();
        let (name, size) = self.size();
        let at = self.own(size);
        let held = self.rng.one_in(2);
        // One of the packet's words, which no move takes away.
        let (packet_name, packet_size) = self.size();
        let off = self.place(packet_size);
        if held {
            let n = self.below(3);
            self.line(&format!(
                "*(u32 *)(r10 -72) = {n}\nr2 = r10\nr2 += -72\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto {miss}\n\
                 *(u64 *)(r10 -120) = r0\n*({name} *)(r0 +8) = r9\nr1 = *(u32 *)(r0 +12)\nr9 += r1"
            ));
        }
        self.line(&format!("*(u64 *)(r10 -88) = r6\n*({name} *)(r10 {at}) = r9"));
        let packet = self.rng.below(3);
        match packet {
            0 => self.line(&format!("*({packet_name} *)(r7 +{off}) = r9")),
            1 => self.line(&format!("r1 = *({packet_name} *)(r7 +{off})\nr9 += r1")),
            _ => {}
        }
        // Where the caller keeps its context and its bytes, or the value.
        let in_value = held && self.rng.one_in(3);
        let ctx = if in_value { "r3 = r10\nr3 += -120" } else { "r3 = r10\nr3 += -88" };
        let (callback, walk) = self.changing(at + 88, size, off, packet_size, in_value);
        if walk {
            let map = *self.rng.pick(&[0, 0, 3]);
            self.line(&format!("r1 = map[idx:{map}]\nr2 = subprog[{callback}]\n{ctx}\nr4 = 0\ncall 164"));
        } else {
            let turns = self.below(5);
            match self.rng.below(3) {
                0 => self.line("r1 = r9\nr1 &= 3"),
                _ => self.line(&format!("r1 = {turns}")),
            }
            self.line(&format!("r2 = subprog[{callback}]\n{ctx}\nr4 = 0\ncall 181"));
        }
        if self.rng.one_in(2) {
            self.line("r9 += r0");
        }
        let (again, size) = self.size();
        let at = at.div_euclid(size) * size;
        self.line(&format!("r1 = *({again} *)(r10 {at})\nr9 ^= r1"));
        if self.rng.one_in(2) {
            self.line(&format!("r1 = *({packet_name} *)(r7 +{off})\nr9 += r1"));
        }
        if held {
            self.line(&format!(
                "r2 = *(u64 *)(r10 -120)\nr1 = *({again} *)(r2 +8)\nr9 ^= r1\n*({name} *)(r2 +16) = r9"
            ));
            self.line(&format!("{miss}: *(u64 *)(r10 -120) = 0"));
        }
    }

    /// A callback that writes where its caller reads: `at` is the place behind what it is given, and the caller's bytes end at 88; `off` that
    /// in the packet.
    fn changing(&mut self, at: i64, size: i64, off: i64, packet_size: i64, in_value: bool) -> (String, bool) {
        let walk = self.rng.one_in(3);
        let (name, end) = (format!("f{}", self.functions.len()), self.label());
        let mut body = if walk { format!("{name}: r6 = r3\nr7 = r4\n") } else { format!("{name}: r6 = r1\nr7 = r2\n") };
        if in_value {
            body += "r7 = *(u64 *)(r7 +0)\n";
        }
        let number = if walk { "*(u8 *)(r6 +1)" } else { "r6" };
        let _ = writeln!(body, "r9 = {number}\nr9 += 3");
        for _ in 0..1 + self.rng.below(3) {
            let (width, n) = self.size();
            let _ = match self.rng.below(6) {
                _ if in_value => {
                    let at = n * self.below(64 / n);
                    writeln!(body, "r1 = *({width} *)(r7 +{at})\nr9 += r1\n*({width} *)(r7 +{at}) = r9")
                }
                0 | 1 => {
                    // The whole, a part of it, or a neighbour too.
                    let at = (at + self.below(size)).div_euclid(n) * n;
                    writeln!(body, "r1 = *({width} *)(r7 +{at})\nr9 ^= r1\n*({width} *)(r7 +{at}) = r9")
                }
                2 | 3 => {
                    let short = self.label();
                    let len = off + packet_size;
                    let at = off + self.below(packet_size);
                    let far = len.max(at + n);
                    writeln!(
                        body,
                        "r1 = *(u64 *)(r7 +0)\nr2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += {far}\n\
                         if r4 > r3 goto {short}\nr5 = *({width} *)(r2 +{at})\nr5 += r9\n*({width} *)(r2 +{at}) = r5\n{short}: r0 = 0"
                    )
                }
                4 => {
                    // The value that the caller has.
                    let (miss, key) = (self.label(), self.below(3));
                    writeln!(
                        body,
                        "*(u32 *)(r10 -4) = {key}\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto {miss}\n\
                         *({width} *)(r0 +8) = r9\n{miss}: r9 += 1"
                    )
                }
                _ => {
                    let key = self.below(6);
                    let take = self.rng.one_in(2);
                    let call = if take { "call 3" } else { "r3 = r7\nr3 += 40\nr4 = 0\ncall 2" };
                    writeln!(body, "*(u64 *)(r10 -8) = {key}\nr2 = r10\nr2 += -8\nr1 = map[idx:1]\n{call}\nr9 ^= r0")
                }
            };
        }
        // The last turn, now and then.
        let _ = match self.rng.below(3) {
            0 => writeln!(body, "r0 = 1\nif r9 & 1 goto {end}\nr0 = 0\n{end}: exit"),
            1 => writeln!(body, "r0 = r9\nr0 &= 1\nexit"),
            _ => writeln!(body, "r0 = 0\nexit"),
        };
        self.functions.push((body, if walk { Role::Element } else { Role::Loop }));
        (name, walk)
    }
}
