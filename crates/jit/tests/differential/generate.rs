//! Programs that often verify: small ones from a grammar, and the same with an instruction or two changed. The fuzzer
//! against the kernel has a larger grammar (`crates/testkit/examples/fuzz-kernel`).

use std::fmt::Write;

use xway_isa::Slot;
use xway_testkit::Rng;

/// A program as assembler text. Maps: 0 is an array of 4 values of 64 bytes, 1 a hash of 8-byte keys and 48-byte values,
/// 2 a ring buffer.
pub struct Generated {
    /// Text for [`xway_isa::assemble`].
    pub text: String,
    /// Its result depends on nothing but packet and maps, so that two machines must agree on it.
    pub comparable: bool,
}

/// What the generator believes a register to hold.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    Nothing,
    Number,
}

struct Gen<'a> {
    rng: &'a mut Rng,
    out: String,
    labels: u32,
    /// r0 and r6 to r9 between statements; r1 to r5 are scratch.
    regs: [Holds; 10],
    depth: u32,
    functions: Vec<String>,
    budget: u32,
}

/// Registers that keep numbers from statement to statement.
const KEEP: [usize; 4] = [6, 7, 8, 9];
const ALU: [&str; 11] = ["+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "<<=", ">>=", "s>>="];
const COND: [&str; 11] = ["==", "!=", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "&"];
const INTERESTING: [i64; 18] =
    [0, 1, 2, 3, 7, 8, 15, 16, 31, 60, 63, 64, 255, 0xffff, -1, -8, i32::MAX as i64, i32::MIN as i64];

/// A program from the grammar.
pub fn grammar(rng: &mut Rng) -> Generated {
    let budget = 4 + rng.below(14) as u32;
    let mut g =
        Gen { rng, out: String::new(), labels: 0, regs: [Holds::Nothing; 10], depth: 0, functions: Vec::new(), budget };
    // The context stays at fp-8; everything that is read from the stack later is written first.
    g.line("*(u64 *)(r10 -8) = r1");
    for slot in 2..=6 {
        g.line(&format!("*(u64 *)(r10 -{}) = {}", slot * 8, slot));
    }
    for r in KEEP {
        g.number(r);
    }
    while g.budget > 0 {
        g.statement();
    }
    let r = g.a_number();
    g.line(&format!("r0 = r{r}"));
    g.line("out: exit");
    // A jump to `out` has set r0 before.
    let mut text = std::mem::take(&mut g.out);
    for f in std::mem::take(&mut g.functions) {
        text.push_str(&f);
    }
    Generated { text, comparable: true }
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
        match self.rng.below(4) {
            0 => self.line(&format!("r{r} = {x}")),
            1 => self.line(&format!("w{r} = {x}")),
            _ => {
                self.line("r1 = *(u64 *)(r10 -8)");
                let field = if self.rng.one_in(2) { 12 } else { 16 };
                self.line(&format!("r{r} = *(u32 *)(r1 +{field})"));
            }
        }
        self.regs[r] = Holds::Number;
    }

    fn a_number(&mut self) -> usize {
        *self.rng.pick(&KEEP)
    }

    fn statement(&mut self) {
        self.budget = self.budget.saturating_sub(1);
        match self.rng.below(18) {
            15..=17 => self.bytes(),
            0..=3 => self.arithmetic(),
            4 => self.branch(),
            5 | 6 => self.packet(),
            7 | 8 => self.value(),
            9 => self.stack(),
            10 => self.looping(),
            11 => self.call(),
            12 => self.moving(),
            13 => self.checksum(),
            _ => self.indexed_stack(),
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
                let name = *self.rng.pick(&["be", "bswap"]);
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
                    "/=" | "%=" => self.bound(),
                    _ => self.imm(),
                };
                self.line(&format!("{w}{d} {op} {x}"));
            }
        }
    }

    /// Bounds a number in one of the ways that programs use.
    fn bounded(&mut self, r: usize, max: i64, skip: &str) {
        match self.rng.below(5) {
            0 => self.line(&format!("r{r} &= {max}")),
            1 => self.line(&format!("if r{r} > {max} goto {skip}")),
            2 => self.line(&format!("r{r} %= {}", max + 1)),
            3 => {
                self.line(&format!("if r{r} s> {max} goto {skip}"));
                if !self.rng.one_in(4) {
                    self.line(&format!("if r{r} s< 0 goto {skip}"));
                }
            }
            _ => {
                self.line(&format!("w{r} = w{r}"));
                self.line(&format!("if w{r} > {max} goto {skip}"));
            }
        }
    }

    fn branch(&mut self) {
        if self.depth >= 3 {
            return self.arithmetic();
        }
        let (a, b) = (self.a_number(), self.a_number());
        let cond = *self.rng.pick(&COND);
        let w = if self.rng.one_in(3) { "w" } else { "r" };
        let skip = self.label();
        if self.rng.one_in(2) {
            self.line(&format!("if {w}{a} {cond} {w}{b} goto {skip}"));
        } else {
            let x = self.imm();
            self.line(&format!("if {w}{a} {cond} {x} goto {skip}"));
        }
        self.block();
        self.line(&format!("{skip}: r0 = 0"));
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

    /// Loads data and data_end, checks, accesses close to what was checked.
    fn packet(&mut self) {
        let skip = self.label();
        let (n, d) = (self.a_number(), self.a_number());
        self.line("r1 = *(u64 *)(r10 -8)\nr2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)");
        if self.rng.one_in(2) {
            self.line(&format!("r5 = r{n}"));
            let max = self.bound();
            self.bounded(5, max, &skip);
            self.line("r2 += r5");
        }
        let len = 1 + self.rng.below(40) as i64;
        self.line(&format!("r4 = r2\nr4 += {len}"));
        let check = *self.rng.pick(&["if r4 > r3 goto", "if r3 < r4 goto", "if r4 >= r3 goto", "if r3 <= r4 goto"]);
        self.line(&format!("{check} {skip}"));
        let (size, bytes) = *self.rng.pick(&[("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)]);
        let mut off = self.rng.below((len - bytes).max(0) as u64 + 1) as i64;
        if self.rng.one_in(6) {
            off += self.rng.below(5) as i64 - 2;
        }
        match self.rng.below(3) {
            0 => self.line(&format!("*({size} *)(r2 {off:+}) = r{d}")),
            1 => self.line(&format!("*({size} *)(r4 {:+}) = r{d}", off - len)),
            _ => self.line(&format!("r{d} = *({size} *)(r2 {off:+})")),
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    /// Packet and stack bytes in pieces: copied one by one in any order, put together, taken apart, stored as constants, read
    /// back in other widths, added up; sometimes with a store through another pointer in between.
    fn bytes(&mut self) {
        let skip = self.label();
        let len = *self.rng.pick(&[12, 14, 34, 48]);
        let n = self.a_number();
        self.line("r1 = *(u64 *)(r10 -8)\nr2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)");
        self.line(&format!("r4 = r2\nr4 += {len}\nif r4 > r3 goto {skip}\nr5 = r{n}\nr5 &= 7\nr5 += r2"));
        for slot in [16, 24, 32, 40, 48] {
            if self.rng.one_in(2) {
                let x = self.imm() as i32;
                self.line(&format!("*(u64 *)(r10 -{slot}) = {x}"));
            }
        }
        for _ in 0..1 + self.rng.below(5) {
            self.bytewise(len);
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    /// A pointer to packet or stack with room for some bytes: register and offset.
    fn piece(&mut self, len: i64, bytes: i64) -> (&'static str, i64) {
        match self.rng.below(4) {
            0 => ("r10", -48 + self.rng.below((41 - bytes).max(1) as u64) as i64),
            1 => ("r4", self.rng.below((len - bytes + 1) as u64) as i64 - len),
            _ => ("r2", self.rng.below((len - bytes + 1) as u64) as i64),
        }
    }

    fn bytewise(&mut self, len: i64) {
        let d = self.a_number();
        let count = *self.rng.pick(&[2, 4, 4, 6, 8, 8]);
        let mut order: Vec<i64> = (0..count).collect();
        if self.rng.one_in(3) {
            order.reverse();
        } else if self.rng.one_in(3) {
            let by = self.rng.below(count as u64) as usize;
            order.rotate_left(by);
        }
        let ((from, a), (to, b)) = (self.piece(len, count), self.piece(len, count));
        match self.rng.below(8) {
            0 | 1 => {
                for i in order {
                    self.line(&format!("r0 = *(u8 *)({from} {:+})\n*(u8 *)({to} {:+}) = r0", a + i, b + i));
                }
            }
            2 => {
                self.line("r0 = 0");
                for i in order {
                    self.line(&format!("r0 <<= 8\nr1 = *(u8 *)({from} {:+})\nr0 |= r1", a + i));
                }
                self.line(&format!("r{d} += r0"));
            }
            3 => {
                self.line(&format!("r0 = r{d}"));
                for i in order {
                    self.line(&format!("*(u8 *)({to} {:+}) = r0\nr0 >>= 8", b + i));
                }
            }
            4 => {
                for i in order {
                    let x = self.rng.below(256);
                    self.line(&format!("*(u8 *)({to} {:+}) = {x}", b + i));
                }
            }
            5 => {
                let (size, bytes) = *self.rng.pick(&[("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)]);
                let (from, a) = self.piece(len, bytes);
                let ext = if bytes < 8 && self.rng.one_in(4) { "s" } else { "u" };
                self.line(&format!("r{d} = *({ext}{} *)({from} {a:+})", &size[1..]));
            }
            6 => {
                let off = self.rng.below(4);
                self.line(&format!("*(u8 *)(r5 +{off}) = r{d}"));
            }
            _ => {
                let words = len / 4;
                self.line("r0 = 0");
                for i in 0..words {
                    self.line(&format!("r1 = *(u32 *)(r2 {:+})\nr0 += r1", 4 * i));
                }
                self.line(&format!("r{d} ^= r0"));
            }
        }
    }

    /// A look-up, a null check, an access with a fixed or a variable offset.
    fn value(&mut self) {
        let skip = self.label();
        let (n, d) = (self.a_number(), self.a_number());
        let hash = self.rng.one_in(2);
        let (map, len) = if hash { (1, 48) } else { (0, 64) };
        if self.rng.one_in(2) {
            self.line(&format!("*(u64 *)(r10 -56) = r{n}"));
        } else {
            let key = self.rng.below(6);
            self.line(&format!("*(u64 *)(r10 -56) = {key}"));
        }
        self.line(&format!("r2 = r10\nr2 += -56\nr1 = map[idx:{map}]\ncall 1"));
        if !self.rng.one_in(20) {
            let check = *self.rng.pick(&["if r0 == 0 goto", "if r0 == 0 goto", "if r0 == 0 goto"]);
            self.line(&format!("{check} {skip}"));
        }
        let (size, bytes) = *self.rng.pick(&[("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)]);
        let mut room = len - bytes;
        if self.rng.one_in(2) {
            self.line(&format!("r5 = r{n}"));
            let max = self.bound().min(room + 2);
            self.bounded(5, max, &skip);
            self.line("r0 += r5");
            room -= max;
        }
        let off = self.rng.below(room.max(0) as u64 + 1) as i64 + i64::from(self.rng.one_in(12));
        match self.rng.below(4) {
            0 => self.line(&format!("*({size} *)(r0 {off:+}) = r{d}")),
            1 if bytes >= 4 && off % bytes == 0 => {
                let op = *self.rng.pick(&["+=", "|=", "&=", "^="]);
                self.line(&format!("lock *({size} *)(r0 {off:+}) {op} r{d}"));
            }
            _ => self.line(&format!("r{d} = *({size} *)(r0 {off:+})")),
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    fn stack(&mut self) {
        let (d, s) = (self.a_number(), self.a_number());
        let slot = 16 + 8 * self.rng.below(5) as i64;
        let (size, bytes) = *self.rng.pick(&[("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)]);
        let off = -slot + bytes * self.rng.below((8 / bytes) as u64) as i64;
        if self.rng.one_in(2) {
            self.line(&format!("*({size} *)(r10 {off}) = r{s}"));
        } else {
            let x = self.imm();
            self.line(&format!("*({size} *)(r10 {off}) = {x}"));
        }
        if self.rng.one_in(2) {
            self.line(&format!("r{d} = *({size} *)(r10 {off})"));
        } else {
            self.line(&format!("r{d} = *(u64 *)(r10 -{slot})"));
        }
    }

    /// Stack memory at an offset that a number decides.
    fn indexed_stack(&mut self) {
        let skip = self.label();
        let (n, d) = (self.a_number(), self.a_number());
        self.line(&format!("r5 = r{n}"));
        let max = *self.rng.pick(&[3, 7, 15, 31, 39]);
        self.bounded(5, max, &skip);
        self.line("r4 = r10\nr4 += -48\nr4 += r5");
        if self.rng.one_in(2) {
            self.line(&format!("r{d} = *(u8 *)(r4 +0)"));
        } else {
            self.line(&format!("*(u8 *)(r4 +0) = r{d}"));
        }
        self.line(&format!("{skip}: r0 = 0"));
    }

    /// A loop with a counter in a stack slot or a register that the body leaves alone.
    fn looping(&mut self) {
        if self.depth >= 2 {
            return self.arithmetic();
        }
        let head = self.label();
        let turns = 1 + self.rng.below(12);
        let d = self.a_number();
        // The counter lies below what the other statements touch.
        let slot = 64 + 8 * self.depth;
        self.line(&format!("*(u64 *)(r10 -{slot}) = 0"));
        self.line(&format!("{head}: r0 = 0"));
        self.block();
        self.line(&format!("r5 = *(u64 *)(r10 -{slot})\nr5 += 1\n*(u64 *)(r10 -{slot}) = r5\nr{d} += r5"));
        self.line(&format!("if r5 < {turns} goto {head}"));
    }

    /// A function of two numbers, and of a pointer to this frame's stack.
    fn call(&mut self) {
        let name = format!("f{}", self.functions.len());
        let (a, b, d) = (self.a_number(), self.a_number(), self.a_number());
        self.line(&format!("r1 = r{a}\nr2 = r{b}\nr3 = r10\nr3 += -40\ncall {name}\nr{d} = r0"));
        let mut body = format!("{name}: r0 = r1\n");
        for _ in 0..1 + self.rng.below(5) {
            let op = *self.rng.pick(&["+=", "-=", "*=", "|=", "&=", "^="]);
            let reg = *self.rng.pick(&["r1", "r2"]);
            let _ = match self.rng.below(5) {
                0 => writeln!(body, "*(u64 *)(r3 +{}) = {reg}", 8 * self.rng.below(3)),
                1 => writeln!(body, "{reg} = *(u64 *)(r3 +{})", 8 * self.rng.below(3)),
                2 => writeln!(body, "r6 = {reg}\nr6 >>= {}\nr0 += r6", self.rng.below(64)),
                3 => writeln!(body, "if r1 > r2 goto +1\nr0 {op} {reg}"),
                _ => writeln!(body, "r0 {op} {reg}"),
            };
        }
        body.push_str("exit\n");
        self.functions.push(body);
    }

    /// Moves the packet's ends.
    fn moving(&mut self) {
        let (helper, by) = match self.rng.below(3) {
            0 => (44, *self.rng.pick(&[-14, -4, 4, 14])),
            1 => (65, *self.rng.pick(&[-4, -1, 4])),
            _ => (44, *self.rng.pick(&[-64, 8])),
        };
        let d = self.a_number();
        self.line(&format!("r1 = *(u64 *)(r10 -8)\nr2 = {by}\ncall {helper}\nr{d} = r0"));
    }

    /// Checksum over stack memory of a constant or a bounded length.
    fn checksum(&mut self) {
        let skip = self.label();
        let (n, d) = (self.a_number(), self.a_number());
        self.line("r1 = 0\nr2 = 0\nr3 = r10\nr3 += -48");
        if self.rng.one_in(2) {
            let len = 4 * self.rng.below(11);
            self.line(&format!("r4 = {len}"));
        } else {
            self.line(&format!("r4 = r{n}"));
            self.bounded(4, 40, &skip);
            self.line("r4 &= 60");
        }
        self.line(&format!("r5 = 0\ncall 28\nr{d} = r0\n{skip}: r0 = 0"));
    }
}

/// Changes one to three fields of a program.
pub fn mutate(rng: &mut Rng, insns: &mut [Slot]) {
    for _ in 0..1 + rng.below(2) {
        let i = rng.index(insns.len());
        let other = *rng.pick(insns);
        let s = &mut insns[i];
        match rng.below(10) {
            0 | 1 => s.imm = s.imm.wrapping_add(*rng.pick(&[-1, 1, 4, -4, 8])),
            2 => s.imm = *rng.pick(&INTERESTING) as i32,
            3 | 4 => s.off = s.off.wrapping_add(*rng.pick(&[-1, 1, 2, -2, 4, 8, -8])),
            5 => s.dst = rng.below(11) as u8,
            6 => s.src = rng.below(11) as u8,
            // Another operation or condition of the same class, or the other operand kind.
            7 => s.opcode = (s.opcode & 0x0f) | (rng.below(16) as u8) << 4,
            8 => s.opcode ^= *rng.pick(&[0x08, 0x10, 0x18, 0x03, 0x01]),
            _ => *s = other,
        }
    }
}
