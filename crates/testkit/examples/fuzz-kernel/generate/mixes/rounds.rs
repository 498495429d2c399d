//! Loops of one block that count from a number to a number, in either width, up or down, by additions and shifts, in a few turns or many;
//! they go through the packet's bytes as checksums do, and change the stack or the packet meanwhile.

use super::Mix;

/// Turns that a program is kept waiting for at most.
const TURNS_MAX: usize = 300;

/// When a loop goes on.
const CONDS: [&str; 8] = ["!=", "!=", "<", "<=", ">", "s<", "s>", "s>="];

/// How a loop counts.
struct Count {
    wide: bool,
    start: i64,
    step: (&'static str, i64),
    cond: &'static str,
    limit: i64,
}

impl Count {
    /// The counter in each turn, and behind the last one; `None` where there are too many.
    fn turns(&self) -> Option<Vec<u64>> {
        let low = |v: u64| if self.wide { v } else { v & 0xffff_ffff };
        let mut counter = low(self.start as u64);
        let mut all = vec![counter];
        let by = self.step.1 as u64;
        for _ in 0..TURNS_MAX {
            counter = low(match self.step.0 {
                "+=" => counter.wrapping_add(by),
                "-=" => counter.wrapping_sub(by),
                "<<=" => counter << by,
                _ => counter >> by,
            });
            all.push(counter);
            let limit = low(self.limit as u64);
            let signed = |v: u64| if self.wide { v as i64 } else { i64::from(v as u32 as i32) };
            let again = match self.cond {
                "!=" => counter != limit,
                "<" => counter < limit,
                "<=" => counter <= limit,
                ">" => counter > limit,
                "s<" => signed(counter) < signed(limit),
                "s>=" => signed(counter) >= signed(limit),
                _ => signed(counter) > signed(limit),
            };
            if !again {
                return Some(all);
            }
        }
        None
    }
}

impl Mix<'_> {
    fn count(&mut self) -> Count {
        Count {
            wide: self.rng.one_in(2),
            start: *self.rng.pick(&[0, 0, 0, 0, 0, 1, 2, -1, -3, 16, 75, 200, 0x7fff_fff0]),
            step: *self.rng.pick(&[
                ("+=", 1),
                ("+=", 1),
                ("+=", 2),
                ("+=", 4),
                ("+=", 8),
                ("+=", -1),
                ("-=", 1),
                ("-=", 3),
            ]),
            cond: CONDS[self.rng.index(CONDS.len())],
            limit: match self.rng.below(4) {
                0 => *self.rng.pick(&[0, 0, 1, -1, 64, 65, 66, 0x7fff_ffff]),
                1 => 4 * self.rng.below(80) as i64,
                _ => self.rng.below(300) as i64,
            },
        }
    }

    pub(super) fn rounds(&mut self) {
        let (count, turns) = loop {
            let mut count = self.count();
            if self.rng.one_in(10) {
                count.step = if self.rng.one_in(2) { ("<<=", 1) } else { (">>=", 1) };
            }
            // Short ones are everywhere else.
            if let Some(turns) = count.turns().filter(|all| all.len() > 10 || self.rng.one_in(8)) {
                break (count, turns);
            }
        };
        let (last, inside) = (turns[turns.len() - 1], &turns[..turns.len() - 1]);
        let most = inside.iter().copied().max().unwrap_or(0);
        let mut body = vec![];
        for _ in 0..1 + self.rng.below(3) {
            let (name, size) = self.size();
            match self.rng.below(8) {
                0 | 1 if most < 260 => {
                    if self.proved < most as i64 + size {
                        self.check(most as i64 + size);
                    }
                    body.push(format!("r1 = r7\nr1 += r3\nr1 = *({name} *)(r1 +0)\nr9 += r1"));
                }
                0..=3 => {
                    if self.proved < 15 + size {
                        self.check(15 + size);
                    }
                    let reads = self.rng.one_in(2);
                    let into = if reads {
                        format!("r1 = *({name} *)(r1 +0)\nr9 += r1")
                    } else {
                        format!("*({name} *)(r1 +0) = r9")
                    };
                    body.push(format!("r4 = r3\nr4 &= 15\nr1 = r7\nr1 += r4\n{into}"));
                }
                4 => body.push("r9 *= 3\nr9 ^= r3".to_owned()),
                5 => body.push("w9 += w3".to_owned()),
                6 => body.push("r4 = *(u8 *)(r10 -9)\nr9 += r4\n*(u8 *)(r10 -9) = r9".to_owned()),
                _ => {
                    let at = self.own(size);
                    body.push(format!("r4 = *({name} *)(r10 {at})\nr9 ^= r4\n*({name} *)(r10 {at}) = r3"));
                }
            }
        }
        let (head, done) = (self.label(), self.label());
        let r = if count.wide { "r" } else { "w" };
        let Count { start, step: (op, by), cond, limit, .. } = count;
        self.line(&format!("{r}3 = {start}\n{head}: r0 = 0"));
        // Some have ways out of the middle, to behind the loop or out of the program.
        let mut leaves = false;
        for part in body {
            self.line(&part);
            if self.rng.one_in(4) {
                let (out, byte) = (self.way_out(), self.byte());
                let (out, behind) = if self.rng.one_in(2) { (out, false) } else { (done.clone(), true) };
                leaves |= behind;
                match self.rng.below(3) {
                    0 => self.line(&format!("if r9 == {byte} goto {out}")),
                    1 => self.line(&format!("r4 = r9\nr4 &= 255\nif r4 == {byte} goto {out}")),
                    _ => self.line(&format!("if r7 > r8 goto {out}")),
                }
            }
        }
        if self.rng.one_in(3) {
            let again = self.label();
            self.line(&format!(
                "{r}3 {op} {by}\nif {r}3 {cond} {limit} goto {again}\ngoto {done}\n{again}: goto {head}"
            ));
        } else {
            self.line(&format!("{r}3 {op} {by}\nif {r}3 {cond} {limit} goto {head}"));
        }
        self.line(&format!("{done}: r0 = 0"));
        if leaves {
            return self.line("r9 += r3");
        }
        // What the counter is behind the loop.
        if last < 1 << 30 && self.rng.one_in(2) {
            let wrong = self.label();
            self.line(&format!("if r3 == {last} goto {wrong}\nr9 = 77\n{wrong}: r9 += r3"));
        } else {
            self.line("r9 += r3");
        }
    }
}
