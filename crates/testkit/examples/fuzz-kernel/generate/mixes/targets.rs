//! Where packets go: targets that are chosen, chosen anew and forgotten, by number and by maps of every kind, in the program, in functions
//! and in callbacks; and entries of such maps that are looked at.

use super::{Mix, Role};

/// Maps of devices, by slot and by key, of CPUs and of sockets.
const MAPS: [i64; 4] = [23, 24, 25, 26];
/// The same for programs that take packets of several buffers: maps whose entries may have programs are for one kind of them.
const OF_FRAGS: [i64; 4] = [30, 24, 32, 26];

impl Mix<'_> {
    pub(super) fn targets(&mut self) {
        for _ in 0..1 + self.rng.below(3) {
            match self.rng.below(8) {
                0 => self.entry(),
                1 => {
                    let name = format!("f{}", self.functions.len());
                    let text = self.target("r6", "r7");
                    self.line(&format!("r1 = r9\nr2 = 0\nr3 = r10\nr4 = r6\nr5 = 0\ncall {name}"));
                    self.functions.push((format!("{name}: r6 = r1\nr7 = r4\n{text}\nexit\n"), Role::Static));
                }
                2 => {
                    // The last turn's is the one that counts.
                    let (name, turns) = (format!("f{}", self.functions.len()), self.below(4));
                    let text = self.target("r6", "r7");
                    let body = format!("{name}: r6 = r1\nr7 = *(u64 *)(r2 +0)\n{text}\nr0 &= 1\nexit\n");
                    self.functions.push((body, Role::Loop));
                    self.line(&format!(
                        "*(u64 *)(r10 -88) = r6\nr1 = {turns}\nr2 = subprog[{name}]\nr3 = r10\nr3 += -88\nr4 = 0\ncall 181"
                    ));
                }
                _ => {
                    // Now and then two, of which the second may be none.
                    for _ in 0..1 + self.rng.below(2) {
                        let text = self.target("r9", "r6");
                        self.line(&text);
                    }
                }
            }
            self.chosen();
        }
    }

    /// A choice by a number in one register; the context is in the other.
    fn target(&mut self, number: &str, ctx: &str) -> String {
        let key = match self.rng.below(6) {
            0 | 1 => format!("r2 = {}", self.below(6)),
            2 | 3 => format!("r2 = {number}\nr2 &= 7"),
            // What stands above the 32 bits is no part of it.
            4 => format!("r2 = {number}\nr2 <<= 32\nr2 |= {}", self.below(6)),
            _ => format!("r2 = *(u32 *)({ctx} +{})", *self.rng.pick(&[12, 16])),
        };
        if self.rng.one_in(2) {
            let flags = match self.rng.below(5) {
                0 => "r2 = 1".to_owned(),
                1 => format!("r2 = {number}\nr2 &= 1"),
                // All of it counts here.
                2 => format!("r2 = {number}\nr2 <<= 32"),
                _ => "r2 = 0".to_owned(),
            };
            return format!("{key}\nr1 = r2\n{flags}\ncall 23");
        }
        let flags = match self.rng.below(8) {
            0 => format!("r3 = {number}\nr3 &= {}", *self.rng.pick(&[3, 11, 27, 31])),
            1 => format!("r3 = {number}\nr3 <<= 32\nr3 |= 2"),
            2 => format!("r3 = {}", *self.rng.pick(&[4, 8, 9, 10, 16, 24, 27, 32, -1])),
            _ => format!("r3 = {}", self.below(4)),
        };
        let map = if self.frags { *self.rng.pick(&OF_FRAGS) } else { *self.rng.pick(&MAPS) };
        format!("{key}\n{flags}\nr1 = map[idx:{map}]\ncall 51")
    }

    /// What becomes of the answer in r0: a verdict, at once or not, or a part of the sum.
    fn chosen(&mut self) {
        let (on, bit) = (self.label(), 1 << self.rng.below(6));
        match self.rng.below(8) {
            0 => self.line(&format!("if r9 & {bit} goto {on}\nexit\n{on}: r0 = 0")),
            1 => self.line(&format!("if r0 != 4 goto {on}\nexit\n{on}: r9 += r0")),
            // A packet goes where the last one was to go, or nowhere.
            2 | 3 => self.line(&format!("if r9 & {bit} goto {on}\nr0 = 4\nexit\n{on}: r9 += 1")),
            4 => {
                let out = self.way_out();
                self.line(&format!("if w0 == 2 goto {out}\nr9 ^= r0"));
            }
            5 => self.line(&format!("if r0 == 4 goto {on}\nr9 += 3\n{on}: r0 = 0")),
            _ => self.line("r9 += r0"),
        }
    }

    /// An entry is looked at.
    fn entry(&mut self) {
        let (map, miss) = (*self.rng.pick(if self.frags { &[24, 26, 30][..] } else { &[23, 24, 26] }), self.label());
        if self.rng.one_in(2) {
            let n = self.below(6);
            self.line(&format!("*(u32 *)(r10 -72) = {n}"));
        } else {
            self.line("r1 = r9\nr1 &= 7\n*(u32 *)(r10 -72) = r1");
        }
        self.line(&format!(
            "r2 = r10\nr2 += -72\nr1 = map[idx:{map}]\ncall 1\nif r0 == 0 goto {miss}\nr1 = *(u32 *)(r0 +0)\nr9 += r1\n\
             {miss}: r0 = 0"
        ));
    }
}
