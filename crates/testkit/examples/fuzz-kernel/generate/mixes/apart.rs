//! Functions that are verified on their own: of numbers, of memory that may be the stack's, a value's or the packet's, or nothing, and of
//! the context; they call one another. And loops that end where `may_goto` says so, or sooner.

use std::fmt::Write;

use super::super::INTERESTING;
use super::{COND, Mix, Role};

impl Mix<'_> {
    pub(super) fn apart(&mut self) {
        let role = *self.rng.pick(&[Role::Numbers, Role::Memory, Role::Memory, Role::Context]);
        let depth = self.rng.below(3);
        let (name, moves) = self.own_function(role, depth);
        for _ in 0..1 + self.rng.below(3) {
            let miss = self.label();
            let number = match self.rng.below(3) {
                0 => format!("r2 = {}", INTERESTING[self.rng.index(INTERESTING.len())]),
                1 => "w2 = w9".to_owned(),
                _ => "r2 = r9".to_owned(),
            };
            match role {
                Role::Numbers => self.line(&format!("{number}\nr1 = r9\nr1 >>= {}\ncall {name}", self.labels % 40)),
                Role::Memory => {
                    let memory = self.some_memory(&miss);
                    self.line(&format!("{memory}\n{number}\ncall {name}"));
                }
                _ => self.line(&format!("r1 = r6\ncall {name}")),
            }
            let on = self.label();
            match self.rng.below(4) {
                0 => {
                    let (w, cond) = (*self.rng.pick(&["w", "r"]), COND[self.rng.index(COND.len())]);
                    let number = INTERESTING[self.rng.index(INTERESTING.len())];
                    self.line(&format!("if {w}0 {cond} {number} goto {on}\nr9 += 9\n{on}: r9 ^= r0"));
                }
                1 => self.line("w9 += w0"),
                _ => self.line("r9 += r0"),
            }
            if moves {
                self.packet();
            }
            self.line(&format!("{miss}: r0 = 0"));
        }
        // What it may have changed.
        self.stack();
    }

    /// Sixteen bytes into r1, or none.
    fn some_memory(&mut self, miss: &str) -> String {
        match self.rng.below(8) {
            0 => "r1 = 0".to_owned(),
            1 | 2 if self.proved >= 16 => format!("r1 = r7\nr1 += {}", self.below(self.proved - 15)),
            3 | 4 => {
                let (map, more) = *self.rng.pick(&[(0, 6), (3, 0)]);
                let (n, at) = (self.below(3), 8 * self.below(more + 1));
                self.line(&format!(
                    "*(u32 *)(r10 -72) = {n}\nr2 = r10\nr2 += -72\nr1 = map[idx:{map}]\ncall 1\nif r0 == 0 goto {miss}"
                ));
                format!("r1 = r0\nr1 += {at}")
            }
            // What everybody shares.
            5 => format!("r1 = map[idx:9][0]+{}", 8 * self.below(5)),
            _ => format!("r1 = r10\nr1 += {}", -64 + 8 * self.below(7)),
        }
    }

    /// A function; whether it moves the packet. r6 and r7 are its arguments, r8 what it returns.
    fn own_function(&mut self, role: Role, depth: u64) -> (String, bool) {
        let place = self.functions.len();
        let (name, end) = (format!("f{place}"), self.label());
        self.functions.push((String::new(), role));
        let mut moves = false;
        let mut body = match role {
            Role::Numbers => format!("{name}: r6 = r1\nr7 = r2\nr8 = r2\n"),
            Role::Memory => format!("{name}: r6 = r1\nr7 = r2\nr8 = 5\nif r6 == 0 goto {end}\nr8 = r2\n"),
            _ => format!("{name}: r6 = r1\nr7 = *(u32 *)(r1 +16)\nr8 = 3\n"),
        };
        body += "*(u64 *)(r10 -8) = r7\n*(u64 *)(r10 -16) = r8\n";
        for _ in 0..1 + self.rng.below(6) {
            let (size_name, size) = self.size();
            let at = size * self.below(16 / size);
            let (w, number) = (*self.rng.pick(&["w", "r"]), INTERESTING[self.rng.index(INTERESTING.len())]);
            let _ = match self.rng.below(12) {
                0 | 1 if role == Role::Memory => writeln!(body, "*({size_name} *)(r6 +{at}) = r8"),
                2 | 3 if role == Role::Memory => writeln!(body, "r1 = *({size_name} *)(r6 +{at})\n{w}8 += {w}1"),
                0 | 1 if role == Role::Context => {
                    let by = *self.rng.pick(&[(44, -8), (44, 4), (65, -1), (65, 4), (54, -4), (44, 0)]);
                    moves = true;
                    writeln!(body, "r1 = r6\nr2 = {}\ncall {}\nr8 += r0", by.1, by.0)
                }
                2 | 3 if role == Role::Context => self.look(&mut body),
                0..=3 => writeln!(body, "{w}8 {} {w}6", self.rng.pick(&["+=", "^=", "*=", "-="])),
                4 => writeln!(body, "*({size_name} *)(r10 {}) = r8\nr1 = *(u32 *)(r10 -12)\nr8 ^= r1", at - 16),
                5 => {
                    let (on, cond) = (self.label(), COND[self.rng.index(COND.len())]);
                    writeln!(body, "if {w}7 {cond} {number} goto {on}\n{w}8 *= 3\n{on}: r8 += 1")
                }
                6 => {
                    let (miss, key) = (self.label(), self.below(3));
                    writeln!(
                        body,
                        "*(u32 *)(r10 -20) = {key}\nr2 = r10\nr2 += -20\nr1 = map[idx:{}]\ncall 1\nif r0 == 0 goto {miss}\n\
                         r1 = *({size_name} *)(r0 +{at})\nr8 += r1\nr1 += 1\n*({size_name} *)(r0 +{at}) = r1\n{miss}: r0 = 0",
                        self.rng.pick(&[0, 3])
                    )
                }
                7 | 8 if depth > 0 => {
                    let inner = match role {
                        Role::Context => *self.rng.pick(&[Role::Context, Role::Memory, Role::Numbers]),
                        _ => *self.rng.pick(&[Role::Memory, Role::Numbers]),
                    };
                    let (called, moved) = self.own_function(inner, depth - 1);
                    moves |= moved;
                    match inner {
                        Role::Context => writeln!(body, "r1 = r6\ncall {called}\nr8 += r0"),
                        Role::Memory if role == Role::Memory && self.rng.one_in(2) => {
                            writeln!(body, "r1 = r6\nr2 = r8\ncall {called}\n{w}8 += {w}0")
                        }
                        Role::Memory => writeln!(
                            body,
                            "r1 = r10\nr1 += -16\nr2 = r8\ncall {called}\nr8 ^= r0\nr1 = *({size_name} *)(r10 {})\nr8 += r1",
                            at - 16
                        ),
                        _ => writeln!(body, "r1 = r8\nr2 = r7\ncall {called}\n{w}8 ^= {w}0"),
                    }
                }
                9 => {
                    let (head, out, turns) = (self.label(), self.label(), self.below(9));
                    writeln!(
                        body,
                        "r1 = 0\n{head}: may_goto {out}\n{w}8 += {w}1\nr8 <<= 1\nr1 += 1\nif r1 > {turns} goto {out}\ngoto {head}\n\
                         {out}: r8 += 1"
                    )
                }
                10 => writeln!(body, "if {w}8 == {number} goto {end}"),
                _ => writeln!(body, "{w}8 += {number}\nr1 = r8\nr1 >>= 7\n{w}8 ^= {w}1"),
            };
        }
        let _ = writeln!(body, "{end}: r0 = r8\nexit");
        self.functions[place].0 = body;
        (name, moves)
    }

    /// A look at the packet, or a change.
    fn look(&mut self, body: &mut String) -> std::fmt::Result {
        let (short, len) = (self.label(), *self.rng.pick(&[14, 18, 34]));
        let (name, size) = self.size();
        let at = self.below(len - size + 1);
        let does = if self.rng.one_in(2) { format!("*({name} *)(r2 +{at}) = r8\n") } else { String::new() };
        writeln!(
            body,
            "r2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\nr4 = r2\nr4 += {len}\nif r4 > r3 goto {short}\nr4 = *({name} *)(r2 +{at})\n\
             r8 += r4\n{does}{short}: r0 = 0"
        )
    }

    /// A loop that `may_goto` would end, and that ends sooner.
    pub(super) fn may_go(&mut self) {
        let (head, out, before) = (self.label(), self.label(), self.proved);
        let (turns, at) = (self.below(4), if self.depth == 0 { -160 } else { -168 });
        let start = if self.rng.one_in(2) { "r1 = r9\nr1 &= 3".to_owned() } else { format!("r1 = {turns}") };
        self.line(&format!("{start}\n*(u64 *)(r10 {at}) = r1\n{head}: may_goto {out}"));
        let moving = self.may_move();
        self.around(None, moving);
        if self.rng.one_in(4) {
            self.line(&format!("r9 &= 31\nr9 += 3\nif r9 > 20 goto {out}"));
        }
        self.line(&format!("r1 = *(u64 *)(r10 {at})\nr1 += -1\n*(u64 *)(r10 {at}) = r1\nif r1 s< 0 goto {out}"));
        let goto = if self.rng.one_in(4) { "gotol" } else { "goto" };
        self.line(&format!("{goto} {head}\n{out}: r0 = 0"));
        self.behind(moving, before);
    }

    /// Whether the packet may move in the turns of a loop, at the beginning of each: its bounds are asked for then.
    pub(super) fn may_move(&mut self) -> bool {
        let moving = self.rng.one_in(3);
        if moving {
            self.packet();
        }
        moving
    }

    /// What goes round in a loop from which every way out leads to this place, if there is one.
    pub(super) fn around(&mut self, out: Option<&str>, moving: bool) {
        self.depth += 1;
        let outer = self.leads.clone();
        if let Some(out) = out {
            self.leads = Some(out.to_owned());
        }
        for _ in 0..self.rng.below(3) {
            self.in_turn(moving);
        }
        self.leads = outer;
        self.depth -= 1;
    }

    /// What is proved behind such a loop.
    pub(super) fn behind(&mut self, moving: bool, before: i64) {
        self.proved = before;
        if moving {
            self.packet();
        }
    }

    /// What may stand in a loop, and where something has to be given back. Little that branches: a verifier goes every way in every turn.
    fn in_turn(&mut self, moving: bool) {
        match self.rng.below(32) {
            0..=3 if moving => self.room(),
            0..=5 => self.stack(),
            6..=9 => self.seen(),
            10 => self.field(),
            11..=14 => self.store(),
            15 => self.together(),
            16 | 17 => self.turns(),
            18 => self.value(),
            19 | 20 => self.arithmetic(),
            21 => self.diamond(),
            22 | 23 => self.atomic_stack(),
            24 => self.per_cpu(),
            25 => self.constants(),
            26..=28 => self.copy(),
            29 if self.depth < 2 => self.numbers(),
            30 if self.depth < 2 => self.may_go(),
            31 if self.rng.one_in(2) => self.tags(),
            _ => self.arguments(),
        }
    }
}
