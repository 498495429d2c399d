//! The same few bytes through pointers of every kind: the stack, the packet, a map's value, a place at a distance that only the run
//! knows, and one that is each of these on a way of its own. What passes make of stores side by side, and of what was just stored, hangs
//! on which of them may be the same place; and what may be any kind of memory stands between them everywhere.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_abi::{MapSpec, MapType};
use xway_jit::Options;
use xway_object::{MapDef, Object, Program};
use xway_testkit::Rng;

use crate::engines::{Engine, Outcome, compare_with};

/// Registers of pointers, and the bytes of the stack behind its first place.
const STACK: u64 = 10;
const PACKET: u64 = 6;
/// In the packet, at a distance.
const AWAY: u64 = 7;
const ANY: u64 = 8;
const VALUE: u64 = 9;

/// Where pointers are kept meanwhile.
const KEPT: i64 = -104;

struct Gen<'a> {
    rng: &'a mut Rng,
    text: String,
    labels: usize,
    /// What accesses go through, some of them more often than others.
    pointers: Vec<u64>,
    /// Bytes that accesses are to.
    room: u64,
    /// The packet may be what the mixed pointer is: no atomic operations there.
    packets: bool,
    functions: bool,
    /// In a loop, whose counter is r0.
    turns: bool,
}

impl Gen<'_> {
    fn line(&mut self, text: &str) {
        self.text += text;
        self.text.push('\n');
    }

    fn below(&mut self, bound: u64) -> i64 {
        self.rng.below(bound) as i64
    }

    fn number(&mut self) -> u64 {
        1 + self.rng.below(5)
    }

    /// A place of so many bytes, aligned to them as the stack asks for.
    fn place(&mut self, len: i64) -> (u64, i64) {
        let pointer = *self.rng.pick(&self.pointers);
        let at = self.below((self.room / len as u64).max(1)) * len;
        (pointer, if pointer == STACK { at - 64 } else { at })
    }

    /// Folds what was loaded into the answer.
    fn told(&mut self, number: u64) {
        if !self.turns && !self.rng.one_in(4) {
            self.line(&format!("r0 *= 31\nr0 += r{number}"));
        }
    }

    fn access(&mut self) {
        let bits = *self.rng.pick(&[8, 8, 16, 32, 64]);
        let (number, (p, at)) = (self.number(), self.place(bits / 8));
        match self.rng.below(9) {
            0 | 1 => {
                let sign = if bits < 64 && self.rng.one_in(6) { "s" } else { "u" };
                self.line(&format!("r{number} = *({sign}{bits} *)(r{p} {at:+})"));
                self.told(number);
            }
            2 => self.line(&format!("*(u{bits} *)(r{p} {at:+}) = r{number}")),
            3 => {
                let value = *self.rng.pick(&[0, 1, -1, 0x0123_4567, -256]);
                self.line(&format!("*(u{bits} *)(r{p} {at:+}) = {value}"));
            }
            4 => {
                let (bits, (p, at)) = if bits < 32 { (32, self.place(4)) } else { (bits, (p, at)) };
                let op = *self.rng.pick(&["+=", "-=", "|=", "&=", "^="]);
                let by = self.below(1000);
                self.line(&format!(
                    "r{number} = *(u{bits} *)(r{p} {at:+})\nr{number} {op} {by}\n*(u{bits} *)(r{p} {at:+}) = r{number}"
                ));
            }
            _ => self.pieces(),
        }
    }

    /// A word in pieces; often a second time, behind something that may have looked at it.
    fn pieces(&mut self) {
        let word = *self.rng.pick(&[2, 4, 8, 8, 8]);
        let piece = (*self.rng.pick(&[1, 2, 4, 4])).min(word / 2);
        let to = self.place(word);
        self.stores(to, word, piece);
        if self.rng.one_in(2) {
            self.looked_at(to, word);
            self.stores(to, word, piece);
            let (number, (p, at)) = (self.number(), to);
            self.line(&format!("r{number} = *(u{} *)(r{p} {at:+})", 8 * word));
            self.told(number);
        }
    }

    /// The bytes through what may be any pointer, mostly by a load.
    fn looked_at(&mut self, (p, at): (u64, i64), word: i64) {
        if !self.pointers.contains(&ANY) || self.rng.one_in(4) {
            return self.access();
        }
        let (number, at) = (self.number(), if p == STACK { at + 64 } else { at });
        if self.rng.one_in(4) {
            return self.line(&format!("*(u{} *)(r8 {at:+}) = r{number}", 8 * word));
        }
        self.line(&format!("r{number} = *(u{} *)(r8 {at:+})", 8 * word));
        self.told(number);
    }

    /// All of a word, or nearly all.
    fn stores(&mut self, (p, at): (u64, i64), word: i64, piece: i64) {
        let from = self.rng.one_in(4).then(|| self.place(word));
        let (left_out, constant) = (self.rng.one_in(6), !self.rng.one_in(3));
        for n in 0..word / piece {
            if left_out && n == 1 {
                continue;
            }
            let number = if let Some((p, at)) = from {
                self.line(&format!("r1 = *(u{} *)(r{p} {:+})", 8 * piece, at + n * piece));
                1
            } else {
                self.number()
            };
            let what = if constant && from.is_none() { self.below(100).to_string() } else { format!("r{number}") };
            self.line(&format!("*(u{} *)(r{p} {:+}) = {what}", 8 * piece, at + n * piece));
            if self.rng.one_in(16) {
                self.access();
            }
        }
    }

    /// Bytes as one number, in either order.
    fn together(&mut self) {
        let (len, (p, at)) = (2 + self.below(3), self.place(4));
        let big = self.rng.one_in(2);
        self.line("r1 = 0");
        for n in 0..len {
            let by = 8 * if big { len - 1 - n } else { n };
            self.line(&format!("r2 = *(u8 *)(r{p} {:+})\nr2 <<= {by}\nr1 |= r2", at + n));
            if self.rng.one_in(8) {
                let (p, at) = self.place(1);
                self.line(&format!("*(u8 *)(r{p} {at:+}) = 200"));
            }
        }
        self.told(1);
    }

    fn atomic(&mut self) {
        let bits = *self.rng.pick(&[32, 64]);
        let (mut p, at) = self.place(bits / 8);
        if p == PACKET || p == AWAY || p == ANY && self.packets {
            p = VALUE;
        }
        let at = if p == VALUE { at & 8 } else { at };
        let (op, number) = (*self.rng.pick(&["+=", "|=", "^=", "&="]), self.number());
        self.line(&format!("lock *(u{bits} *)(r{p} {at:+}) {op} r{number}"));
    }

    /// A call that looks at some of the bytes, or changes them. Numbers are others behind it.
    fn call(&mut self) {
        let kept = if self.pointers.contains(&ANY) && self.rng.one_in(2) { ANY } else { STACK };
        let place = |p: u64, at: i64| if p == STACK { at - 64 } else { at };
        let (p, q) = (*self.rng.pick(&self.pointers), *self.rng.pick(&self.pointers));
        let (at, other) = (8 * self.below(2), 8 * self.below(2));
        match self.rng.below(4) {
            0 => {
                let label = self.label();
                self.line(&format!("r2 = r{kept}\nr2 += {}\nr1 = map[idx:1]\ncall 1", place(kept, at)));
                self.line(&format!("if r0 == 0 goto l{label}\nr0 = *(u64 *)(r0 +8)\nl{label}: r1 = 0"));
            }
            1 => {
                self.line(&format!("r2 = r{kept}\nr2 += {}\nr3 = r10\nr3 += -64", place(kept, at)));
                self.line("r4 = 0\nr1 = map[idx:1]\ncall 2");
            }
            2 => {
                let len = 4 * (1 + self.below(8));
                let p = if self.rng.one_in(2) { PACKET } else { STACK };
                self.line(&format!("r5 = 0\nr1 = 0\nr2 = 0\nr3 = r{p}\nr3 += {}\nr4 = {len}\ncall 28", place(p, at)));
            }
            _ if self.functions => {
                let function = self.rng.below(2);
                let (at, other) = (place(p, at), place(q, other));
                self.line(&format!("r1 = r{p}\nr1 += {at}\nr2 = r{q}\nr2 += {other}\ncall function{function}"));
            }
            _ => self.line("call 8"),
        }
        self.numbers();
    }

    fn numbers(&mut self) {
        for number in 1..6 {
            let (bits, at) = (*self.rng.pick(&[8, 16, 32, 64]), self.below(48));
            self.line(&format!("r{number} = *(u{bits} *)(r6 +{at})"));
        }
    }

    fn label(&mut self) -> usize {
        self.labels += 1;
        self.labels
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0 | 1 => self.together(),
            2 => self.atomic(),
            3 if !self.turns => self.call(),
            4 | 5 => {
                let (label, byte, number) = (self.label(), self.below(64), self.number());
                let what = *self.rng.pick(&["& 1", "== 8", "s> 100", "!= 0"]);
                self.line(&format!("r{number} = *(u8 *)(r6 +{byte})\nif r{number} {what} goto l{label}"));
                (0..1 + self.rng.below(4)).for_each(|_| self.step());
                self.line(&format!("l{label}: r{number} = {byte}"));
            }
            // A pointer that was kept is another one as far as anybody can tell, until the load is found to be what was stored.
            6 => {
                let p = 6 + self.rng.below(4);
                self.line(&format!("r{p} = *(u64 *)(r10 {})", KEPT + 8 * (p as i64 - 6)));
            }
            7 => {
                let (by, number) = (*self.rng.pick(&[8, 16, 24, 32, 40, 56]), self.number());
                let op = *self.rng.pick(&["<<=", ">>=", "s>>="]);
                self.line(&format!("r{number} {op} {by}"));
            }
            _ => self.access(),
        }
    }
}

/// Gets two pointers, to bytes of its caller or of its caller's pointers, and has a stack of its own.
fn function(rng: &mut Rng, name: u64) -> String {
    let mut text = format!(
        "function{name}: r0 = 1\nr4 = 3\nr5 = 5\n*(u32 *)(r10 -8) = 9\n*(u32 *)(r10 -4) = 8\n*(u16 *)(r10 -16) = 11\n\
         *(u16 *)(r10 -14) = 12\n*(u32 *)(r10 -12) = 13\n"
    );
    for _ in 0..4 + rng.below(10) {
        let (p, len) = (*rng.pick(&[1, 2, 10, 1, 2]), *rng.pick(&[1, 2, 4, 8]));
        let at = rng.below(16 / len as u64) as i64 * len - if p == 10 { 16 } else { 0 };
        let number = *rng.pick(&[0, 4, 5]);
        let _ = match rng.below(5) {
            0 | 1 => writeln!(text, "r{number} = *(u{} *)(r{p} {at:+})", 8 * len),
            2 | 3 => writeln!(text, "*(u{} *)(r{p} {at:+}) = r{number}", 8 * len),
            _ => writeln!(text, "r0 += r4\nr4 <<= 8\nr5 ^= r4"),
        };
    }
    text + "r0 += r4\nr0 ^= r5\nexit\n"
}

/// What the mixed pointer is on one of its ways, and whether that is in the packet.
fn kind(rng: &mut Rng) -> (&'static str, bool) {
    let stack = ("r8 = r10\nr8 += -64\n", false);
    let moved = ("r8 = r10\nr8 += -64\nr4 = *(u8 *)(r6 +2)\nr4 &= 24\nr8 += r4\n", false);
    *rng.pick(&[stack, stack, moved, ("r8 = r9\n", false), ("r8 = r6\n", true), ("r8 = r7\n", true)])
}

fn program(rng: &mut Rng) -> String {
    let mut text =
        "r6 = *(u32 *)(r1 +0)\nr2 = *(u32 *)(r1 +4)\nr0 = 1\nr3 = r6\nr3 += 128\nif r3 > r2 goto out\nr7 = r6\n\
                    r4 = *(u8 *)(r6 +1)\nr4 &= 31\nr7 += r4\nr3 = r7\nr3 += 40\nif r3 > r2 goto out\n"
            .to_owned();
    for n in 0..9 {
        let _ = writeln!(text, "*(u64 *)(r10 {}) = {}", 8 * n - 72, rng.below(1 << 20));
    }
    text += "*(u32 *)(r10 -68) = 1\nr2 = r10\nr2 += -68\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto out\nr9 = r0\n";
    let (mut pointers, mut packets) = (vec![STACK, PACKET, VALUE, AWAY], false);
    text += "r8 = r9\n";
    if !rng.one_in(5) {
        let (one, other) = (kind(rng), kind(rng));
        let _ = writeln!(text, "{}r4 = *(u8 *)(r6 +9)\nif r4 & 1 goto mixed\n{}mixed: r4 = 0", one.0, other.0);
        packets = one.1 || other.1;
        // One kind beside it, mostly.
        let p = *rng.pick(&[STACK, STACK, PACKET, VALUE]);
        pointers = if rng.one_in(4) { [pointers, vec![ANY, ANY]].concat() } else { vec![p, p, p, ANY] };
    }
    for p in 6..10 {
        let _ = writeln!(text, "*(u64 *)(r10 {}) = r{p}", KEPT + 8 * (p - 6));
    }
    let (room, functions) = (*rng.pick(&[8, 8, 16, 24]), rng.one_in(3));
    let mut g = Gen { rng, text, labels: 0, pointers, room, packets, functions, turns: false };
    g.line("r0 = 0");
    g.numbers();
    let steps = 6 + g.rng.below(30);
    for _ in 0..steps {
        if g.rng.one_in(40) {
            let (label, turns) = (g.label(), 2 + g.below(6));
            g.turns = true;
            g.line(&format!("r0 = 0\nl{label}: r0 += 1"));
            (0..2 + g.rng.below(5)).for_each(|_| g.step());
            g.line(&format!("if r0 < {turns} goto l{label}"));
            g.turns = false;
        }
        g.step();
    }
    let Gen { rng, mut text, .. } = g;
    for number in 1..6 {
        let _ = writeln!(text, "r0 *= 31\nr0 += r{number}");
    }
    if !rng.one_in(3) {
        for n in 0..4 {
            let _ = writeln!(text, "r1 = *(u64 *)(r10 {})\nr0 *= 31\nr0 += r1", 8 * n - 64);
        }
    }
    if functions {
        for name in 0..2 {
            let _ = writeln!(text, "r9 = r0\nr1 = r10\nr1 += -64\nr2 = r6\ncall function{name}\nr0 += r9");
        }
    }
    text += "out: exit\n";
    if functions { text + &function(rng, 0) + &function(rng, 1) } else { text }
}

fn packets(rng: &mut Rng) -> Vec<Vec<u8>> {
    let one = |rng: &mut Rng| {
        let few = rng.one_in(2);
        (0..200).map(|_| if few { *rng.pick(&[0, 1, 8, 0xff]) } else { rng.below(256) as u8 }).collect()
    };
    (0..1 + rng.below(7)).map(|_| one(rng)).collect()
}

/// `XWAY_SEED` and `XWAY_SECONDS` for others and more of them.
#[test]
fn the_same_bytes_through_pointers_of_every_kind() {
    let (seed, more) = (crate::number("XWAY_SEED", 5), std::env::var_os("XWAY_SECONDS").is_some());
    let (mut rng, started) = (Rng::new(seed), Instant::now());
    let time = Duration::from_secs(crate::number("XWAY_SECONDS", 20));
    let (mut same, mut unverified) = (0, 0);
    // On a machine that is busy or emulated: until there is something to judge by.
    while same < 100 || started.elapsed() < time && (same < 1500 || more) {
        let text = program(&mut rng);
        let insns = xway_isa::assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let image = Program { name: "pointers".into(), section: "xdp".into(), insns, ..Program::default() };
        let maps = vec![
            MapDef::new("array", MapSpec::new(MapType::Array, 4, 64, 4)),
            MapDef::new("hash", MapSpec::new(MapType::Hash, 8, 16, 64)),
        ];
        let object = Arc::new(Object { programs: vec![image], maps, license: Some("GPL".into()), ..Object::default() });
        let packets = packets(&mut rng);
        let all = Options { check: true, jcc_erratum: Some(rng.one_in(2)), ..Options::default() };
        let mut some = all.clone();
        Options::PASSES.into_iter().filter(|_| rng.one_in(4)).for_each(|pass| assert!(some.set(pass, false), "{pass}"));
        let variants = vec![
            ("burst code", Engine::Burst(all.clone())),
            ("burst code with its stack in memory", Engine::Burst(Options { slots: false, ..all })),
            ("single-packet code without some passes", Engine::Single(some)),
        ];
        match compare_with(&object, 0, &packets, &|_| {}, variants) {
            Outcome::Same => same += 1,
            Outcome::Unverified | Outcome::Apart => unverified += 1,
            // What atomic operations are to may lie anywhere there.
            Outcome::NotCompiled(why) if cfg!(target_arch = "aarch64") && why.contains("may be unaligned") => {}
            Outcome::NotCompiled(why) => panic!("seed {seed}: {why}\n{text}"),
            Outcome::Differs(how) => panic!("seed {seed}: {how}\n{text}"),
        }
    }
    println!("seed {seed}: {same} programs are the same everywhere, {unverified} not verified");
    assert!(same > 10 * unverified, "too many are for nothing: {unverified} not verified");
}
