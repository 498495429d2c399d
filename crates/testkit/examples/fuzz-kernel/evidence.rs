//! Why a program that the kernel refuses is accepted here, found out instead of guessed from the kernel's words.
//!
//! Two questions: is it refused here too when numbers are unknown that Linux does not follow, and does the kernel complain about
//! code that is dead here, behind which branch?

use xway_isa::{Insn, Operand, Slot, decode_at, op};
use xway_object::Program;
use xway_verifier::Facts;

use super::insert::{Around, insert};
use super::links::unlink;
use super::seen::{Seen, is_number};

/// What is followed here and not in Linux 6.18, as far as taking it away shows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Followed {
    /// Quotients, remainders, byte-swapped numbers, and that a shift of 32 bits by an unknown amount leaves 32 bits.
    Results,
    /// Numbers extended by their sign, or negated.
    Signs,
    /// A part of a number that was kept on the stack.
    Parts,
    /// Copies of sums and sums of sums, which are linked with what they were made of.
    Links,
    /// Distances between a place in the packet and its end; that pointers subtracted in 32 bits leave 32 bits.
    Distances,
    /// Several of them.
    Several,
}

impl Followed {
    /// One after the other.
    pub const ALL: [Followed; 6] =
        [Followed::Results, Followed::Signs, Followed::Parts, Followed::Distances, Followed::Links, Followed::Several];

    /// The load that stands for what this instruction gives, when it is of this kind.
    fn unknown(self, at: usize, s: Slot, seen: &Seen<'_>) -> Option<u8> {
        let (class, operation) = (s.opcode & op::CLASS_MASK, s.opcode & 0xf0);
        let half = class == op::ALU;
        let alu = half || class == op::ALU64;
        let by_register = alu && s.opcode & op::X != 0;
        let load = if half { LOAD_WORD } else { LOAD_DOUBLE };
        match self {
            // Linux forgets all 64 bits of them, in 32 bits too.
            Followed::Results if alu && matches!(operation, DIV | MOD | END) => Some(LOAD_DOUBLE),
            Followed::Results if half && by_register && matches!(operation, LSH | RSH | ARSH) => seen
                .always(at, s.dst, |shown| shown.starts_with("scalar(smin=0,smax=umax=0xffffffff,"))
                .then_some(LOAD_DOUBLE),
            Followed::Signs if alu && (operation == MOV && s.off != 0 || operation == NEG) => Some(load),
            Followed::Parts if class == op::LDX && s.opcode != LOAD_DOUBLE => {
                (s.src == 10 || seen.always(at, s.src, |shown| shown.starts_with("fp"))).then_some(s.opcode)
            }
            Followed::Distances if by_register && operation == SUB && seen.number(at, s.dst) => {
                let packet = |shown: &str| shown.starts_with("pkt") && !shown.starts_with("pkt_end");
                // Two pointers in 32 bits leave 32 bits, whatever they point to.
                let halves = half && (s.src == s.dst || seen.always(at, s.src, |shown| !is_number(shown)));
                (halves || seen.always(at, s.src, packet)).then_some(LOAD_DOUBLE)
            }
            Followed::Several => Followed::ALL.into_iter().filter(|f| *f != self).find_map(|f| f.unknown(at, s, seen)),
            _ => None,
        }
    }

    /// The program without it: behind every instruction that gives such a number an unknown one takes its place, or links end. `None`
    /// when there is nothing to take away.
    pub fn taken_away(self, program: &Program, seen: &Seen<'_>) -> Option<Program> {
        let mut around = vec![Around::default(); program.insns.len()];
        if self != Followed::Links {
            self.forget(program, seen, &mut around);
        }
        if matches!(self, Followed::Links | Followed::Several) {
            unlink(program, seen, &mut around);
        }
        let changed = around.iter().any(|a| !a.before.is_empty() || !a.behind.is_empty());
        changed.then(|| insert(program, &around))?
    }

    /// Unknown numbers are loaded from stack that the program does not write: a guess, which can only make a reason be missed. So it is
    /// where there is no stack left for that.
    fn forget(self, program: &Program, seen: &Seen<'_>, around: &mut [Around]) {
        let Some(off) = untouched(&program.insns) else { return };
        let mut second = false;
        for (at, (slot, around)) in program.insns.iter().zip(around).enumerate() {
            if std::mem::replace(&mut second, slot.is_wide()) {
                continue;
            }
            if let Some(opcode) = self.unknown(at, *slot, seen) {
                around.behind.push(Slot { opcode, dst: slot.dst, src: 10, off, imm: 0 });
            }
        }
    }
}

/// Opcodes without class and source bits.
const SUB: u8 = 0x10;
const DIV: u8 = 0x30;
const LSH: u8 = 0x60;
const RSH: u8 = 0x70;
const NEG: u8 = 0x80;
const MOD: u8 = 0x90;
const MOV: u8 = 0xb0;
const ARSH: u8 = 0xc0;
const END: u8 = 0xd0;
/// `r += number`.
const ADD_NUMBER: u8 = 0x07;
/// Loads of four and of eight bytes.
const LOAD_WORD: u8 = 0x61;
const LOAD_DOUBLE: u8 = 0x79;

/// Eight bytes of stack below all that instructions name.
fn untouched(insns: &[Slot]) -> Option<i16> {
    let named = insns.iter().flat_map(|s| {
        let memory = matches!(s.opcode & op::CLASS_MASK, op::LDX | op::ST | op::STX);
        let added = s.opcode == ADD_NUMBER && (-512..0).contains(&s.imm);
        [if memory { i32::from(s.off) } else { 0 }, if added { s.imm } else { 0 }]
    });
    let lowest = named.filter(|n| *n >= -512).min().unwrap_or(0);
    let below = lowest.div_euclid(8) * 8 - 8;
    i16::try_from(below).ok().filter(|n| *n >= -512)
}

/// The branch behind which the kernel goes on where nothing is reached here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Decided {
    /// A register compared with itself.
    Same,
    /// A packet pointer compared with the packet's end, or with a number.
    Packet,
    /// A pointer that may be null for the kernel.
    Null,
    /// Another pointer.
    Pointer,
    /// A number.
    Number,
    /// Another instruction, or the log does not show it.
    Unknown,
}

/// What decides that the kernel's way is none, by its log: the first step of it that no run takes by `facts`. `None` when the way
/// may be taken here too.
pub fn dead_end(log: &str, facts: &Facts, insns: &[Slot]) -> Option<Decided> {
    let way = way(log);
    let closed = |from: usize, to: usize| {
        let always = facts.decided.iter().find(|d| d.0 == from).map(|d| d.1);
        facts.dead.contains(&to) || always.is_some_and(|taken| taken == (to == from + 1))
    };
    let Some(at) = way.windows(2).position(|w| closed(w[0].0, w[1].0)) else {
        return way.first().is_some_and(|w| facts.dead.contains(&w.0)).then_some(Decided::Unknown);
    };
    let (branch, state) = &way[at];
    let Ok(Insn::Branch { dst, src, .. }) = decode_at(insns, *branch) else { return Some(Decided::Unknown) };
    let known = |r: usize| {
        let (_, behind) = state.split_once(&format!("R{r}="))?;
        Some(behind.split(" R").next().unwrap_or_default())
    };
    let left = known(dst.index()).unwrap_or_default();
    let right = match src {
        Operand::Reg(r) if r == dst => return Some(Decided::Same),
        Operand::Reg(r) => known(r.index()).unwrap_or_default(),
        Operand::Imm(_) => "",
    };
    Some(match [left, right] {
        sides if sides.iter().any(|s| s.starts_with("pkt")) => Decided::Packet,
        [left, _] if left.contains("_or_null") || state.contains("_or_null") => Decided::Null,
        [left, right] if is_number(left) && (right.is_empty() || is_number(right)) => Decided::Number,
        ["", _] => Decided::Unknown,
        _ => Decided::Pointer,
    })
}

/// The kernel's own log bounds the register that its words name on both sides, below zero and not far: a number is added to
/// a pointer and a constant that is larger than it, and only the sum of all lies inside.
pub fn near(log: &str, words: &str) -> bool {
    let Some(reg) = words.split(' ').next().filter(|r| r.starts_with('R')) else { return false };
    let way = way(log);
    let Some(shown) = way.iter().rev().find_map(|(_, state)| state.split_once(&format!("{reg}=")).map(|s| s.1)) else {
        return false;
    };
    let shown = shown.split(')').next().unwrap_or_default();
    let bound = |name: &str| {
        let behind = &shown[shown.find(name)? + name.len()..];
        let value = behind.split([',', '=']).find(|v| v.starts_with(|c: char| c == '-' || c.is_ascii_digit()))?;
        value.parse::<i64>().ok()
    };
    let (Some(low), Some(high)) = (bound("smin="), bound("smax=")) else { return false };
    words.contains("unbounded memory access") && low > -(1 << 29) && high < 0
}

/// The instructions on the last way of the log, each with the state that stands beside it.
fn way(log: &str) -> Vec<(usize, String)> {
    let mut way: Vec<(usize, String)> = Vec::new();
    for (head, rest) in log.lines().filter_map(|l| l.split_once(": ")) {
        if let Some(from) = head.strip_prefix("from ").and_then(|h| h.split(' ').next()) {
            way = from.parse().map(|at| (at, rest.to_owned())).into_iter().collect();
        } else if let Ok(at) = head.parse() {
            match way.last_mut() {
                // A whole state: what the instruction before it has led to.
                Some((_, state)) if !rest.starts_with('(') => rest.clone_into(state),
                // A jump that is taken has the state behind it on its own line, with the number of the next instruction.
                _ => way.push((at, rest.split_once(": ").or(rest.split_once("; ")).map_or("", |s| s.1).to_owned())),
            }
        }
    }
    way
}
