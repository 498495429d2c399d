//! Iterators over numbers: of ranges that are known, the packet's, empty, refused or very long, one within another, left early on every
//! way; the number is an offset into the packet, into the stack or into a value.

use super::Mix;

impl Mix<'_> {
    pub(super) fn numbers(&mut self) {
        let at = if self.depth == 0 { -144 } else { -152 };
        let (head, out, before) = (self.label(), self.label(), self.proved);
        let range = match self.rng.below(12) {
            0 => "r2 = r9\nr2 &= 7\nr3 = 9".to_owned(),
            1 => "r2 = r9\nr2 &= 3\nr3 = r2\nr3 += 4".to_owned(),
            // What stands above the 32 bits is no part of it.
            2 => "r2 = r9\nr2 <<= 32\nr3 = r9\nr3 <<= 32\nr3 |= 5".to_owned(),
            3 => format!("r2 = {}\nr3 = {}", 3 + self.below(3), self.below(4)),
            4 => {
                format!("r2 = {}\nr3 = {}", *self.rng.pick(&[i32::MIN, 0, -1]), *self.rng.pick(&[i32::MAX, 8_388_608]))
            }
            5 => format!("w2 = {}\nr3 = {}", -self.below(9), self.below(5)),
            6 => format!("r2 = {0}\nr3 = {0}", *self.rng.pick(&[i32::MIN, i32::MAX, 7])),
            7 => format!("r2 = {}\nr3 = {}", i32::MAX - 3, i32::MAX),
            8 => format!("r2 = {}\nr3 = {}", i32::MIN, i32::MIN + 4),
            _ => format!("r2 = {}\nr3 = {}", self.below(3), 3 + self.below(12)),
        };
        let long = range.contains("8388608");
        self.line(&format!("r1 = r10\nr1 += {at}\n{range}\ncall kfunc #0\nr9 += r0"));
        self.line(&format!("{head}: r1 = r10\nr1 += {at}\ncall kfunc #1\nif r0 == 0 goto {out}"));
        let moving = self.may_move();
        for _ in 0..1 + self.rng.below(2) {
            self.number_seen();
        }
        self.around(Some(&out), moving);
        let mask = 1 << self.rng.below(5);
        match self.rng.below(4) {
            // Eight million turns are too many.
            _ if long => self.line(&format!("r9 &= 31\nr9 += 3\nif r9 > 20 goto {out}")),
            0 => self.line(&format!("if r9 & {mask} goto {out}")),
            1 => self.line(&format!("r9 += 1\nif w9 s< 0 goto {out}")),
            _ => {}
        }
        self.line(&format!("goto {head}\n{out}: r1 = r10\nr1 += {at}\ncall kfunc #2\nr0 = 0"));
        self.behind(moving, before);
    }

    /// The number at r0 is used; r0 stays.
    fn number_seen(&mut self) {
        let skip = self.label();
        match self.rng.below(8) {
            0 => self.line("r1 = *(s32 *)(r0 +0)\nr9 += r1"),
            1 => self.line("r1 = *(u8 *)(r0 +0)\nr9 ^= r1\nr1 = *(u16 *)(r0 +2)\nr9 += r1"),
            2 | 3 if self.proved > 0 => {
                let (name, size) = self.size();
                let most = self.proved - size;
                if most >= 0 {
                    let does = *self.rng.pick(&["load", "load", "store"]);
                    let does = match does {
                        "load" => format!("r2 = *({name} *)(r2 +0)\nr9 += r2"),
                        _ => format!("*({name} *)(r2 +0) = r9"),
                    };
                    self.line(&format!(
                        "r1 = *(u32 *)(r0 +0)\nif r1 > {most} goto {skip}\nr2 = r7\nr2 += r1\n{does}\n{skip}: r9 += 1"
                    ));
                }
            }
            4 => self.line(&format!(
                "r1 = *(u32 *)(r0 +0)\nif r1 > 15 goto {skip}\nr2 = r10\nr2 += -64\nr2 += r1\nr1 = *(u8 *)(r2 +5)\nr9 += r1\n\
                 *(u8 *)(r2 +7) = r9\n{skip}: r9 += 1"
            )),
            5 => self.line("r1 = *(u32 *)(r0 +0)\nr1 &= 7\nr2 = map[idx:9][0]+8\nr2 += r1\nr1 = *(u8 *)(r2 +0)\nr9 ^= r1"),
            _ => self.line("r1 = *(u32 *)(r0 +0)\nr9 += r1"),
        }
    }
}
