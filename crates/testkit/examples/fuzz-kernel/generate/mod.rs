//! Programs that often verify: small ones from a grammar, and others with an instruction or two changed.

mod arguments;
mod bytes;
mod calls;
mod extent;
mod joins;
mod loops;
mod memory;
mod mixes;
mod mutate;
mod places;

use std::fmt::Write;

use xway_object::{Program, ProgramKind};
use xway_testkit::Rng;

use super::world::{Role, World};
pub use mutate::mutate;

/// Registers that keep numbers from statement to statement.
const KEEP: [usize; 3] = [6, 7, 8];
const ALU: [&str; 13] = ["+=", "-=", "*=", "/=", "%=", "s/=", "s%=", "|=", "&=", "^=", "<<=", ">>=", "s>>="];
const COND: [&str; 11] = ["==", "!=", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "&"];
const INTERESTING: [i64; 18] =
    [0, 1, 2, 3, 7, 8, 15, 16, 31, 60, 63, 64, 255, 0xffff, -1, -8, i32::MAX as i64, i32::MIN as i64];
const SIZES: [(&str, i64); 4] = [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)];

/// What the generator believes r9 to hold: a pointer that lives from statement to statement.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    Number,
    /// A packet pointer with so many bytes checked.
    Packet(i64),
    /// A value of the array or the hash, checked or not.
    Value {
        len: i64,
        checked: bool,
    },
}

/// One program being written. r6 to r8 hold numbers between statements, r9 what `nine` says; r0 to r5 are scratch. The
/// context stays at fp-152; fp-8 to fp-48 hold numbers, fp-56 keys, fp-64 and below loop counters, iterators, dynptrs.
struct Gen<'a> {
    rng: &'a mut Rng,
    out: String,
    labels: u32,
    nine: Holds,
    depth: u32,
    functions: Vec<(String, Role)>,
    budget: u32,
    /// Inside a function of the program: no context on the stack.
    inside: bool,
}

/// A program from the grammar.
pub fn grammar(rng: &mut Rng, world: &World) -> Program {
    match rng.below(32) {
        0 | 1 => return world.program(&extent::text(rng), &[]),
        2 | 3 => return world.program(&joins::text(rng), &[]),
        4 | 5 => return world.program(&places::text(rng), &[]),
        6 | 7 => {
            let (text, roles) = arguments::text(rng);
            return world.program(&text, &roles);
        }
        8..=11 => return mix(rng, world),
        _ => {}
    }
    // Most are small: they cost the kernel a tenth of a millisecond, and most mistakes need few instructions.
    let budget = match rng.below(16) {
        0 => 12,
        1..=4 => 2 + rng.below(6) as u32,
        _ => 1 + rng.below(3) as u32,
    };
    let mut g = Gen {
        rng,
        out: String::new(),
        labels: 0,
        nine: Holds::Number,
        depth: 0,
        functions: Vec::new(),
        budget,
        inside: false,
    };
    g.line("*(u64 *)(r10 -152) = r1");
    for slot in 1..=6 {
        g.line(&format!("*(u64 *)(r10 -{}) = {}", slot * 8, slot));
    }
    for r in [6, 7, 8, 9] {
        g.number(r);
    }
    while g.budget > 0 {
        g.statement();
    }
    let r = g.a_number();
    if g.rng.one_in(2) {
        g.line(&format!("r{r} &= 3"));
    }
    g.line(&format!("r0 = r{r}\nexit"));
    let mut text = std::mem::take(&mut g.out);
    let mut roles = Vec::new();
    for (body, role) in std::mem::take(&mut g.functions) {
        text.push_str(&body);
        roles.push(role);
    }
    world.program(&text, &roles)
}

/// A program of which a compiler takes much apart.
pub fn mix(rng: &mut Rng, world: &World) -> Program {
    let mixes::Made { text, roles, frags } = mixes::text(rng);
    let mut program = world.program(&text, &roles);
    if frags {
        program.kind = ProgramKind::Xdp { frags };
        program.section = "xdp.frags".into();
    }
    program
}

impl Gen<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("l{}", self.labels)
    }

    fn imm(&mut self) -> i64 {
        if self.rng.one_in(3) { self.rng.u32() as i32 as i64 } else { *self.rng.pick(&INTERESTING) }
    }

    /// A small bound, often a power of two or one below.
    fn bound(&mut self) -> i64 {
        *self.rng.pick(&[1, 3, 4, 7, 8, 10, 15, 16, 20, 31, 40, 48, 56, 60, 63, 64, 100, 255])
    }

    fn number(&mut self, r: usize) {
        let x = self.imm();
        match self.rng.below(5) {
            0 => self.line(&format!("r{r} = {x}")),
            1 => self.line(&format!("w{r} = {x}")),
            2 => {
                let off = 8 * self.rng.below(4);
                self.line(&format!("r1 = map[idx:9][0]+{off}\nr{r} = *(u64 *)(r1 +0)"));
            }
            _ if self.inside => self.line(&format!("r{r} = *(u64 *)(r10 -16)")),
            _ => {
                let field = if self.rng.one_in(2) { 12 } else { 16 };
                self.line(&format!("r1 = *(u64 *)(r10 -152)\nr{r} = *(u32 *)(r1 +{field})"));
            }
        }
        if r == 9 {
            self.nine = Holds::Number;
        }
    }

    fn a_number(&mut self) -> usize {
        *self.rng.pick(&KEEP)
    }

    fn statement(&mut self) {
        self.budget = self.budget.saturating_sub(1);
        match self.rng.below(39) {
            0..=4 => self.arithmetic(),
            5 | 6 => self.branch(),
            7..=9 => self.packet(),
            10 | 11 => self.value(),
            12 => self.stack(),
            13 => self.looping(),
            14 => self.call(),
            15 => self.moving(),
            16 => self.checksum(),
            17 => self.indexed_stack(),
            18 | 19 => self.choose(),
            20 | 21 => self.take_nine(),
            22 | 23 => self.use_nine(),
            24 => self.spilled_pointer(),
            25 => self.atomic(),
            26 => self.may_goto(),
            27 => self.iterate(),
            28 => self.callback(),
            29 => self.global(),
            30 => self.update(),
            31 => self.record(),
            32 => self.locked(),
            33 => self.dynptr(),
            34 => self.rare(),
            35..=37 => self.bytes(),
            _ => self.copies(),
        }
    }

    fn arithmetic(&mut self) {
        let (d, s) = (self.a_number(), self.a_number());
        let w = if self.rng.one_in(3) { "w" } else { "r" };
        let op = *self.rng.pick(&ALU);
        match self.rng.below(9) {
            0 => self.line(&format!("{w}{d} = {w}{s}")),
            1 => self.line(&format!("{w}{d} = -{w}{d}")),
            2 => {
                let bits = *self.rng.pick(&[16, 32, 64]);
                let name = *self.rng.pick(&["be", "bswap", "le"]);
                self.line(&format!("r{d} = {name}{bits} r{d}"));
            }
            3 => {
                let bits = *self.rng.pick(&[8, 16]);
                self.line(&format!("{w}{d} = (s{bits}){w}{s}"));
            }
            4 | 5 => self.line(&format!("{w}{d} {op} {w}{s}")),
            _ => {
                let x = match op {
                    "<<=" | ">>=" | "s>>=" => self.rng.below(if w == "w" { 32 } else { 64 }) as i64,
                    "/=" | "%=" | "s/=" | "s%=" => self.bound(),
                    _ => self.imm(),
                };
                self.line(&format!("{w}{d} {op} {x}"));
            }
        }
    }

    /// Bounds a number in one of the ways that programs use.
    fn bounded(&mut self, r: usize, max: i64, skip: &str) {
        match self.rng.below(20) {
            0..=5 => self.line(&format!("r{r} &= {max}")),
            6..=9 => self.line(&format!("if r{r} > {max} goto {skip}")),
            10 => self.line(&format!("r{r} %= {}", max + 1)),
            11..=14 => {
                self.line(&format!("if r{r} s> {max} goto {skip}"));
                if !self.rng.one_in(4) {
                    self.line(&format!("if r{r} s< 0 goto {skip}"));
                }
            }
            15 => {
                // By a copy.
                self.line(&format!("r4 = r{r}\nif r4 > {max} goto {skip}"));
            }
            16 => self.line(&format!("r4 = r{r}\nr4 += 3\nif r4 > {max} goto {skip}\nif r4 < 3 goto {skip}")),
            17 => {
                let by = self.rng.below(8) + 56;
                self.line(&format!("r{r} >>= {by}\nif r{r} > {max} goto {skip}"));
            }
            18 => self.line(&format!("w{r} = (s8)w{r}\nif w{r} s> {max} goto {skip}\nif w{r} s< 0 goto {skip}")),
            _ => self.line(&format!("w{r} = w{r}\nif w{r} > {max} goto {skip}")),
        }
    }

    fn condition(&mut self, target: &str) {
        let (a, b) = (self.a_number(), self.a_number());
        let cond = *self.rng.pick(&COND);
        let w = if self.rng.one_in(3) { "w" } else { "r" };
        if self.rng.one_in(3) {
            self.line(&format!("if {w}{a} {cond} {w}{b} goto {target}"));
        } else {
            let x = self.imm();
            self.line(&format!("if {w}{a} {cond} {x} goto {target}"));
        }
    }

    fn branch(&mut self) {
        if self.depth >= 3 {
            return self.arithmetic();
        }
        let (skip, end) = (self.label(), self.label());
        self.condition(&skip);
        self.block();
        if self.rng.one_in(2) {
            self.line(&format!("{skip}: r0 = 0"));
            return;
        }
        self.line(&format!("goto {end}\n{skip}: r0 = 0"));
        self.block();
        self.line(&format!("{end}: r0 = 0"));
    }

    fn block(&mut self) {
        self.depth += 1;
        for _ in 0..1 + self.rng.below(3) {
            if self.budget > 0 {
                self.statement();
            }
        }
        self.depth -= 1;
    }

    /// Two paths leave different constants, or a constant and an unknown number, in one register.
    fn choose(&mut self) {
        let (other, end, r) = (self.label(), self.label(), self.a_number());
        self.condition(&other);
        let (a, b) = (self.bound(), if self.rng.one_in(3) { self.imm() } else { self.bound() });
        self.line(&format!("r{r} = {a}\nr0 = 1\ngoto {end}\n{other}: r{r} = {b}\nr0 = 2"));
        self.line(&format!("r1 = 1\nr2 = 2\nr3 = 3\n{end}: r0 = 0"));
    }

    /// Copies of a number, one of them checked.
    fn copies(&mut self) {
        let (a, b, skip) = (self.a_number(), self.a_number(), self.label());
        let max = self.bound();
        let step = self.imm() % 64;
        self.line(&format!("r{a} = r{b}"));
        if self.rng.one_in(2) {
            self.line(&format!("r{a} += {step}"));
        }
        if self.rng.one_in(3) {
            self.line(&format!("*(u64 *)(r10 -32) = r{b}"));
        }
        self.bounded(a, max, &skip);
        self.line(&format!("r4 = r10\nr4 += -48\nr5 = r{b}"));
        if self.rng.one_in(2) {
            self.bounded(5, 39, &skip);
        }
        self.line(&format!("r4 += r5\nr{a} = *(u8 *)(r4 +0)\n{skip}: r0 = 0"));
    }
}
