//! What a compiler takes apart and puts together, mixed: checks of the packet's length and of fields that lead out the same way, bytes that
//! are copied, put together and written over, sums and folds, the stack in pieces of every width, loops that are taken apart, look-ups with
//! arithmetic in the value, moves of the packet's start and end in between, functions that are copied, callbacks, copies from and to
//! further buffers, rows of 32 bits, atomic operations whose results decide, metadata, options, loops that count, targets, records, tail
//! calls in loops, constants, tags, functions that are verified on their own, iterators, timers, filters, and a long computation at the end.
//!
//! r6 is the context, r7 the packet's start, r8 its end, r9 a sum of what was seen; r0 to r5 are scratch. fp-8 to fp-64 are bytes of all
//! widths, fp-72 and fp-80 keys, fp-88 the context for callbacks, fp-112 and up a key with a prefix's length, fp-120 a pointer to a map,
//! fp-136 a dynptr, fp-144 and fp-152 iterators, fp-160 and fp-168 counters of loops that `may_goto` ends.

mod ahead;
mod apart;
mod buffers;
mod bytes;
mod callbacks;
mod calls;
mod changes;
mod counted;
mod filters;
mod functions;
mod halves;
mod leaves;
mod moves;
mod numbers;
mod pieces;
mod reach;
mod records;
mod rounds;
mod tables;
mod tags;
mod targets;
mod timers;
mod walks;

use std::fmt::Write;

use xway_testkit::Rng;

use super::super::world::Role;
use super::{COND, INTERESTING, SIZES};

/// Where headers end.
const LENGTHS: [i64; 14] = [1, 2, 4, 8, 14, 15, 16, 18, 20, 24, 34, 38, 42, 54];
/// Ways out.
const OUTS: [&str; 4] = ["out0", "out1", "out2", "out3"];
/// Bytes that packets have often.
const BYTES: [i64; 6] = [0, 1, 8, 0x45, 0x80, 0xff];

/// A program as text.
pub(super) struct Made {
    pub(super) text: String,
    /// The roles of its functions.
    pub(super) roles: Vec<Role>,
    /// It takes packets of several buffers.
    pub(super) frags: bool,
}

pub(super) fn text(rng: &mut Rng) -> Made {
    let frags = rng.one_in(6);
    let mut w = Mix { rng, out: String::new(), labels: 0, proved: 0, functions: vec![], frags, depth: 0, leads: None };
    w.line("r6 = r1\nr9 = 0");
    for slot in 1..=14 {
        let number = w.rng.u32() as i32;
        w.line(&format!("*(u64 *)(r10 -{}) = {number}", 8 * slot));
    }
    w.packet();
    let statements = 3 + w.rng.below(12);
    // Some are about nothing but where the packet is, or about one other thing: all of them where one is named.
    let (mut about, mut about_one) = (w.rng.below(10), w.rng.below(21));
    if let Ok(one) = std::env::var("XWAY_ABOUT") {
        (about, about_one) = (2, one.parse().unwrap_or_else(|e| panic!("XWAY_ABOUT={one}: {e}")));
    }
    for _ in 0..statements {
        match about {
            0 | 1 => w.about_bounds(),
            2 | 3 => w.about_one(about_one),
            _ => w.statement(),
        }
    }
    match w.rng.below(5) {
        0 => w.line("r0 = 2\nexit"),
        1 => w.line("r0 = r9\nr0 &= 3\nexit"),
        2 => {
            w.long();
            w.line("exit");
        }
        _ => w.line("r0 = r9\nexit"),
    }
    // What no way leads to is refused.
    for (out, verdict) in OUTS.into_iter().zip(["1", "2", "r9", "0"]) {
        if w.out.contains(&format!("goto {out}\n")) {
            w.line(&format!("{out}: r0 = {verdict}\nexit"));
        }
    }
    let Mix { mut out, functions, rng, .. } = w;
    let mut roles = vec![];
    for (text, role) in functions {
        out.push_str(&text);
        roles.push(role);
    }
    Made { text: far(rng, &out), roles, frags }
}

/// The same with some jumps in the form that reaches far.
fn far(rng: &mut Rng, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let jump = line.starts_with("goto ") || line.contains(": goto ");
        let line = if jump && rng.one_in(6) { line.replace("goto ", "gotol ") } else { line.to_owned() };
        let _ = writeln!(out, "{line}");
    }
    out
}

struct Mix<'a> {
    rng: &'a mut Rng,
    out: String,
    labels: u32,
    /// Bytes behind r7 that are there.
    proved: i64,
    functions: Vec<(String, Role)>,
    frags: bool,
    /// Loops around what is made, of those that may hold any statement.
    depth: u32,
    /// Where every way out leads while something has to be given back.
    leads: Option<String>,
}

impl Mix<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("m{}", self.labels)
    }

    fn way_out(&mut self) -> String {
        if let Some(out) = &self.leads {
            return out.clone();
        }
        // Mostly one, so that checks lead out the same way.
        let out = if self.rng.one_in(4) { OUTS[self.rng.index(OUTS.len())] } else { OUTS[0] };
        out.to_owned()
    }

    /// The array of programs of this kind.
    fn programs(&self) -> u32 {
        if self.frags { 29 } else { 7 }
    }

    fn below(&mut self, n: i64) -> i64 {
        self.rng.below(n as u64) as i64
    }

    fn size(&mut self) -> (&'static str, i64) {
        SIZES[self.rng.index(SIZES.len())]
    }

    fn byte(&mut self) -> i64 {
        BYTES[self.rng.index(BYTES.len())]
    }

    /// Start and end once more, of which nothing is proved.
    fn packet(&mut self) {
        self.proved = 0;
        if self.rng.one_in(2) {
            self.line("r7 = *(u32 *)(r6 +0)\nr8 = *(u32 *)(r6 +4)");
        } else {
            self.line("r8 = *(u32 *)(r6 +4)\nr7 = *(u32 *)(r6 +0)");
        }
    }

    fn check(&mut self, len: i64) {
        let out = self.way_out();
        self.line(&format!("r1 = r7\nr1 += {len}"));
        match self.rng.below(4) {
            0 => self.line(&format!("if r8 < r1 goto {out}")),
            1 => {
                let on = self.label();
                self.line(&format!("if r1 <= r8 goto {on}\ngoto {out}\n{on}: r0 = 0"));
            }
            _ => self.line(&format!("if r1 > r8 goto {out}")),
        }
        self.proved = self.proved.max(len);
    }

    /// A place in the packet of so many bytes, proved.
    fn place(&mut self, size: i64) -> i64 {
        if self.proved < size || self.rng.one_in(6) {
            let more: Vec<i64> = LENGTHS.into_iter().filter(|len| *len >= size).collect();
            let len = *self.rng.pick(&more);
            self.check(len);
        }
        self.below(self.proved - size + 1)
    }

    /// A place on the stack, aligned.
    fn own(&mut self, size: i64) -> i64 {
        -64 + size * self.below(64 / size)
    }

    fn statement(&mut self) {
        match self.rng.below(79) {
            0 => {
                let len = *self.rng.pick(&LENGTHS);
                self.check(len);
            }
            1..=3 => self.field(),
            4 | 5 => self.seen(),
            6 => self.together(),
            7 | 8 => self.store(),
            9 => self.copy(),
            10 => self.other_pointer(),
            11 | 12 => self.stack(),
            13 => self.between(),
            14 => self.words(),
            15 => self.checksum(),
            16 | 17 => self.turns(),
            18..=20 => self.value(),
            21 => self.room(),
            22 => self.function(),
            23 | 24 => self.arithmetic(),
            25 => self.diamond(),
            26 => self.atomic_stack(),
            27 => self.leave(),
            28 | 29 => self.per_cpu(),
            30 | 31 => self.prefixes(),
            32 => self.inner(),
            33 | 34 => self.callback(),
            35 | 36 => self.reach(),
            37 => self.walk(),
            38..=40 => self.halves(),
            41 | 42 => self.counted(),
            43 | 44 => self.arguments(),
            45 => self.pieces(),
            46 => self.header_moves(),
            47 | 48 => self.options(),
            49 => self.metadata(),
            50..=52 => self.rounds(),
            53 | 54 => self.targets(),
            55 | 56 => self.records(),
            57 | 58 => self.leaves(),
            59 => self.constants(),
            60 | 61 => self.tags(),
            62 | 63 => self.apart(),
            64 | 65 => self.may_go(),
            66 | 67 => self.numbers(),
            68 => self.timers(),
            69 | 70 => self.filters(),
            71 | 72 => self.buffers(),
            73..=75 => self.ahead(),
            _ => self.changed(),
        }
    }

    fn about_bounds(&mut self) {
        match self.rng.below(15) {
            0..=3 => self.room(),
            4 => self.callback(),
            5 => self.function(),
            6 => self.field(),
            7 => self.store(),
            8 => self.other_pointer(),
            9 => self.reach(),
            10 => self.diamond(),
            11 | 12 => self.metadata(),
            13 => self.header_moves(),
            _ => self.seen(),
        }
    }

    fn about_one(&mut self, thing: u64) {
        match (self.rng.below(4), thing) {
            (0, _) => self.statement(),
            (_, 0 | 1) => self.halves(),
            (_, 2) => self.counted(),
            (_, 3) => self.arguments(),
            (_, 4) => self.pieces(),
            (_, 5) => self.header_moves(),
            (_, 6) => self.options(),
            (_, 7) => self.rounds(),
            (_, 8) => self.targets(),
            (_, 9) => self.records(),
            (_, 10) => self.leaves(),
            (_, 11) => self.constants(),
            (_, 12) => self.tags(),
            (_, 13) => self.apart(),
            (_, 14) => self.may_go(),
            (_, 15) => self.numbers(),
            (_, 16) => self.timers(),
            (_, 17) => self.filters(),
            (_, 18) => self.buffers(),
            (_, 19) => self.ahead(),
            _ => self.changed(),
        }
    }

    fn stack(&mut self) {
        for _ in 0..1 + self.rng.below(5) {
            let (name, size) = self.size();
            let at = self.own(size);
            match self.rng.below(5) {
                0 => self.line(&format!("*({name} *)(r10 {at}) = {}", self.labels as i32 - 300)),
                1 | 2 => self.line(&format!("*({name} *)(r10 {at}) = r9")),
                3 if size < 8 => {
                    let name = name.replace('u', "s");
                    self.line(&format!("r1 = *({name} *)(r10 {at})\nr9 += r1"));
                }
                _ => self.line(&format!("r1 = *({name} *)(r10 {at})\nr9 ^= r1")),
            }
        }
        if self.rng.one_in(12) {
            self.line(
                "r1 = r9\nr1 &= 56\nr2 = r10\nr2 += -64\nr2 += r1\nr3 = *(u64 *)(r2 +0)\nr9 += r3\n*(u8 *)(r2 +1) = 9",
            );
        }
    }

    /// A loop of one short block, in turns of which the number is known or not.
    fn turns(&mut self) {
        let head = self.label();
        let body = match self.rng.below(4) {
            0 => "r9 += r3",
            1 => "r9 *= 3\nr9 ^= r3",
            2 => "w9 += w3\nr9 <<= 1",
            _ => "r4 = *(u8 *)(r10 -9)\nr9 += r4\n*(u8 *)(r10 -9) = r9",
        };
        match self.rng.below(5) {
            0 => {
                let turns = 1 + self.below(70);
                self.line(&format!("r3 = 0\n{head}: {body}\nr3 += 1\nif r3 < {turns} goto {head}"));
            }
            1 => {
                let turns = 1 + self.below(30);
                self.line(&format!("w3 = {turns}\n{head}: {body}\nw3 += -1\nif w3 != 0 goto {head}"));
            }
            2 => {
                let (step, end) = (1 + self.below(5), 4 + self.below(60));
                self.line(&format!("r3 = -3\n{head}: {body}\nr3 += {step}\nif r3 s<= {end} goto {head}"));
            }
            3 => self
                .line(&format!("r5 = r9\nr5 &= 15\nr5 += 1\nr3 = 0\n{head}: {body}\nr3 += 1\nif r3 < r5 goto {head}")),
            _ => {
                let out = self.label();
                self.line(&format!(
                    "r3 = 0\n{head}: {body}\nr3 += 2\nif r3 > 20 goto {out}\ngoto {head}\n{out}: r0 = 0"
                ));
            }
        }
    }

    fn arithmetic(&mut self) {
        for _ in 0..1 + self.rng.below(5) {
            let w = if self.rng.one_in(2) { "w" } else { "r" };
            let number = INTERESTING[self.rng.index(INTERESTING.len())];
            match self.rng.below(8) {
                0 => {
                    let op = *self.rng.pick(&["/=", "%=", "s/=", "s%="]);
                    let at = self.own(4);
                    self.line(&format!("r1 = *(u32 *)(r10 {at})\n{w}9 {op} {w}1"));
                }
                1 => {
                    let op = *self.rng.pick(&["/=", "%=", "s/=", "s%="]);
                    let number = if number == 0 { -1 } else { number };
                    self.line(&format!("{w}9 {op} {number}"));
                }
                2 => {
                    let op = *self.rng.pick(&["<<=", ">>=", "s>>="]);
                    let at = self.own(1);
                    self.line(&format!("r1 = *(u8 *)(r10 {at})\n{w}9 {op} {w}1"));
                }
                3 => {
                    let bits = *self.rng.pick(if w == "r" { &[8, 16, 32] } else { &[8, 16] });
                    self.line(&format!("{w}1 = (s{bits}){w}9\n{w}9 ^= {w}1"));
                }
                4 => {
                    let (name, bits) = (*self.rng.pick(&["be", "bswap", "le"]), *self.rng.pick(&[16, 32, 64]));
                    self.line(&format!("r9 = {name}{bits} r9"));
                }
                5 => self.line(&format!("{w}9 = -{w}9")),
                6 => {
                    let cond = COND[self.rng.index(COND.len())];
                    let on = self.label();
                    self.line(&format!("if {w}9 {cond} {number} goto {on}\nr9 += 3\n{on}: r0 = 0"));
                }
                _ => {
                    let op = *self.rng.pick(&["+=", "*=", "^=", "|=", "&=", "-="]);
                    self.line(&format!("{w}9 {op} {number}"));
                }
            }
        }
    }

    /// Two ways that meet with other values, or with other bytes on the stack.
    fn diamond(&mut self) {
        let (other, meet) = (self.label(), self.label());
        let (name, size) = self.size();
        let at = self.own(size);
        let bit = 1 << self.rng.below(6);
        self.line(&format!("r1 = 4\nif r9 & {bit} goto {other}\n*({name} *)(r10 {at}) = r9\nr1 = 9\ngoto {meet}"));
        let at = self.own(size);
        self.line(&format!("{other}: r2 = *({name} *)(r10 {at})\nr9 += r2\n{meet}: r9 += r1"));
    }

    fn atomic_stack(&mut self) {
        let (name, size) = SIZES[2 + self.rng.index(2)];
        let at = self.own(size);
        let (word, bits) = (format!("({name} *)(r10 {at})"), if size == 8 { "64" } else { "" });
        match self.rng.below(6) {
            0 => self.line(&format!("lock *{word} += r9")),
            4 => self.line(&format!("r1 = load_acquire({word})\nr9 += r1")),
            5 => self.line(&format!("store_release({word}, r9)")),
            1 => self.line(&format!("r1 = r9\nr1 = atomic{bits}_fetch_or({word}, r1)\nr9 += r1")),
            2 => self.line(&format!("r1 = r9\nr1 = atomic{bits}_xchg({word}, r1)\nr9 += r1")),
            _ => {
                let expected = self.expected(name, 10, at);
                self.line(&format!("{expected}\nr1 = r9\nr0 = atomic{bits}_cmpxchg({word}, r0, r1)\nr9 += r0"));
            }
        }
    }

    /// What a compare-and-exchange may expect, in r0: mostly what is there.
    fn expected(&mut self, name: &str, base: u32, at: i64) -> String {
        match self.rng.below(4) {
            0 => "r0 = 5".to_owned(),
            1 => "w0 = w9".to_owned(),
            // With other bits above those that are compared, or with what was there.
            2 => format!("r0 = *({} *)(r{base} {at:+})", if name == "u32" { "s32" } else { name }),
            _ => format!("r0 = *({name} *)(r{base} {at:+})"),
        }
    }

    /// A long computation in which each step waits for the one before.
    fn long(&mut self) {
        self.line("r0 = r9");
        for n in 0..20 + self.rng.below(20) {
            let factor = self.rng.u32() as i32 | 1;
            let by = 1 + self.rng.below(31);
            match self.rng.below(3) {
                0 => self.line(&format!("w0 *= {factor}\nr1 = r0\nr1 >>= {by}\nr0 ^= r1")),
                1 => self.line(&format!("r0 *= {factor}\nr1 = r0\nr1 >>= {by}\nr0 ^= r1\nr0 += {n}")),
                _ => self.line(&format!("r1 = r0\nr1 <<= {by}\nr0 += r1\nr0 = bswap64 r0")),
            }
        }
    }
}
