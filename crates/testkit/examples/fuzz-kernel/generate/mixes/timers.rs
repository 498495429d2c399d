//! Timers in elements of an array and of a hash: made, given a callback, started, started anew, cancelled, with an element that goes or is
//! replaced in between. None is due while a program runs: the test says when it is.

use std::fmt::Write;

use super::{Mix, Role};

/// Delays, nanoseconds.
const DELAYS: [u64; 4] = [1 << 40, 1 << 41, 1 << 42, 3 << 40];

impl Mix<'_> {
    pub(super) fn timers(&mut self) {
        let map = *self.rng.pick(&[6, 31, 31]);
        if self.rng.one_in(2) {
            let n = self.below(3);
            self.line(&format!("*(u32 *)(r10 -72) = {n}"));
        } else {
            self.line("r1 = r9\nr1 &= 1\n*(u32 *)(r10 -72) = r1");
        }
        if map == 31 && self.rng.one_in(2) {
            self.entered();
        }
        let miss = self.label();
        self.line(&format!(
            "r2 = r10\nr2 += -72\nr1 = map[idx:{map}]\ncall 1\nif r0 == 0 goto {miss}\n*(u64 *)(r10 -120) = r0"
        ));
        let mut order: Vec<u64> = (0..4).collect();
        for _ in 0..self.rng.below(5) {
            order.insert(self.rng.index(order.len()), self.rng.below(6));
        }
        for step in order {
            if self.rng.one_in(5) {
                continue;
            }
            self.line("r1 = *(u64 *)(r10 -120)");
            match step {
                0 => {
                    let clock = *self.rng.pick(&[0, 1, 1, 7, 2]);
                    self.line(&format!("r2 = map[idx:{map}]\nr3 = {clock}\ncall 169"));
                }
                1 => {
                    let name = self.due();
                    self.line(&format!("r2 = subprog[{name}]\ncall 170"));
                }
                2 => {
                    let text = self.start();
                    self.line(&text);
                }
                3 if self.rng.one_in(2) => self.line("r2 = *(u64 *)(r1 +16)\nr2 += 1\n*(u64 *)(r1 +16) = r2\nr0 = r2"),
                4 if map == 31 && self.rng.one_in(2) => {
                    // A timer that is made in an element behind its end waits in it for the next key in Linux.
                    self.line("r2 = r10\nr2 += -72\nr1 = map[idx:31]\ncall 3\nr9 += r0");
                    break;
                }
                _ => self.line("call 172"),
            }
            self.line("r9 += r0");
        }
        self.line(&format!("{miss}: *(u64 *)(r10 -120) = 0\nr0 = 0"));
    }

    /// An element comes, is replaced, or goes.
    fn entered(&mut self) {
        let (flags, at) = (*self.rng.pick(&[0, 0, 1, 2]), -64 + 8 * self.below(6));
        if self.rng.one_in(5) {
            return self.line("r2 = r10\nr2 += -72\nr1 = map[idx:31]\ncall 3\nr9 += r0");
        }
        self.line(&format!(
            "r2 = r10\nr2 += -72\nr3 = r10\nr3 += {at}\nr4 = {flags}\nr1 = map[idx:31]\ncall 2\nr9 += r0"
        ));
    }

    /// Starts the timer at r1.
    fn start(&mut self) -> String {
        let delay = *self.rng.pick(&DELAYS);
        match self.rng.below(8) {
            // At a time, which is far away.
            0 => format!("r2 = {} ll\nr3 = 1\ncall 171", 1u64 << 60),
            1 => format!("r2 = {delay} ll\nr3 = {}\ncall 171", *self.rng.pick(&[2, 4, 8, -1])),
            _ => format!("r2 = {delay} ll\nr3 = 0\ncall 171"),
        }
    }

    /// A callback: it counts in its element and elsewhere, and may start its timer anew or end it.
    fn due(&mut self) -> String {
        let name = format!("f{}", self.functions.len());
        let mut body = format!("{name}: r6 = r3\nr7 = *(u32 *)(r2 +0)\n");
        for _ in 0..1 + self.rng.below(4) {
            let _ = match self.rng.below(6) {
                0 => {
                    let text = self.start();
                    writeln!(body, "r1 = r6\n{text}\nr7 += r0")
                }
                1 => writeln!(body, "r1 = r6\ncall 172\nr7 ^= 1"),
                2 => {
                    let (miss, key) = (self.label(), self.below(4));
                    writeln!(
                        body,
                        "*(u32 *)(r10 -4) = {key}\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto {miss}\n\
                         r1 = *(u64 *)(r0 +8)\nr1 *= 3\nr1 += r7\n*(u64 *)(r0 +8) = r1\n{miss}: r0 = 0"
                    )
                }
                _ => writeln!(
                    body,
                    "r1 = *(u64 *)(r6 +16)\nr1 += {}\nr1 ^= r7\n*(u64 *)(r6 +16) = r1",
                    1 + self.below(9)
                ),
            };
        }
        body += "r0 = 0\nexit\n";
        self.functions.push((body, Role::Timer));
        name
    }
}
