//! Why a program that the kernel refuses is accepted here, found out instead of guessed from the kernel's words.
//!
//! Two questions: is it refused here too when results are unknown that Linux does not follow, and does the kernel complain about
//! code that is dead here, behind which branch?

use xway_isa::{Insn, Operand, Slot, decode_at, op};

/// Opcodes without class and source bits: division, remainder, byte order.
const DIV: u8 = 0x30;
const MOD: u8 = 0x90;
const END: u8 = 0xd0;

/// The program with every quotient, remainder and byte-swapped number replaced by an unknown number, one instruction for one:
/// Linux 6.18 knows nothing of these results. `None` when there is none, or no stack left to take unknown numbers from.
///
/// Such a number is loaded from stack that the program does not write: a guess, which can only make a reason be missed.
pub fn without_results(insns: &[Slot]) -> Option<Vec<Slot>> {
    let below = untouched(insns)?;
    let mut out = insns.to_vec();
    let mut changed = false;
    let mut second = false;
    for slot in &mut out {
        if std::mem::replace(&mut second, slot.is_wide()) || slot.is_wide() {
            continue;
        }
        let class = slot.opcode & op::CLASS_MASK;
        let (alu, width) = (class == op::ALU || class == op::ALU64, slot.opcode & 0xf0);
        let load = match width {
            DIV | MOD if alu && class == op::ALU => 0x61,
            DIV | MOD | END if alu => 0x79,
            _ => continue,
        };
        *slot = Slot { opcode: load, dst: slot.dst, src: 10, off: below, imm: 0 };
        changed = true;
    }
    changed.then_some(out)
}

/// Eight bytes of stack below all that instructions name.
fn untouched(insns: &[Slot]) -> Option<i16> {
    let named = insns.iter().flat_map(|s| {
        let memory = matches!(s.opcode & op::CLASS_MASK, op::LDX | op::ST | op::STX);
        let added = s.opcode == 0x07 && (-512..0).contains(&s.imm);
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

/// What decides that the kernel's way is none, by its log: `None` when the way may be taken here too.
pub fn dead_end(log: &str, dead: &[usize], insns: &[Slot]) -> Option<Decided> {
    let way = way(log);
    let at = way.iter().position(|(at, _)| dead.contains(at))?;
    let Some((branch, state)) = at.checked_sub(1).map(|i| &way[i]) else { return Some(Decided::Unknown) };
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
    let number = |text: &str| text.starts_with("scalar") || text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    Some(match [left, right] {
        sides if sides.iter().any(|s| s.starts_with("pkt")) => Decided::Packet,
        [left, _] if left.contains("_or_null") || state.contains("_or_null") => Decided::Null,
        [left, right] if number(left) && (right.is_empty() || number(right)) => Decided::Number,
        ["", _] => Decided::Unknown,
        _ => Decided::Pointer,
    })
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
                _ => way.push((at, rest.split_once("; ").map_or("", |s| s.1).to_owned())),
            }
        }
    }
    way
}
