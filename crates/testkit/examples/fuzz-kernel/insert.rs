//! Instructions put between those of a program, with all that counts in instructions moved along.

use xway_isa::{Slot, op};
use xway_object::Program;

/// What comes before an instruction and behind it. Jumps to the instruction lead to what stands before it.
#[derive(Clone, Default)]
pub struct Around {
    /// Before it.
    pub before: Vec<Slot>,
    /// Behind it; never reached by a jump.
    pub behind: Vec<Slot>,
}

/// The program with these around its instructions, a list as long as the program. `None` when a distance is too long then.
pub fn insert(program: &Program, around: &[Around]) -> Option<Program> {
    let old = &program.insns;
    let mut at = Vec::with_capacity(old.len() + 1);
    let mut next = 0;
    for a in around {
        at.push(next);
        next += a.before.len() + 1 + a.behind.len();
    }
    at.push(next);
    let mut insns = Vec::with_capacity(next);
    let mut second = false;
    for (i, (slot, a)) in old.iter().zip(around).enumerate() {
        insns.extend(&a.before);
        let mut slot = *slot;
        if !std::mem::replace(&mut second, slot.is_wide()) {
            let here = insns.len() as i64 + 1;
            let moved = |distance: i64| {
                let target = usize::try_from(i as i64 + 1 + distance).ok().and_then(|t| at.get(t));
                target.map_or(distance, |t| *t as i64 - here)
            };
            match kind(slot) {
                Distance::None => {}
                Distance::Off => slot.off = i16::try_from(moved(slot.off.into())).ok()?,
                Distance::Imm => slot.imm = i32::try_from(moved(slot.imm.into())).ok()?,
            }
        }
        insns.push(slot);
        insns.extend(&a.behind);
    }
    let mut out = Program { insns, ..program.clone() };
    for f in &mut out.subprogs {
        let end = *at.get(f.start + f.len)?;
        f.start = *at.get(f.start)?;
        f.len = end - f.start;
    }
    for p in &mut out.poisons {
        p.insn = at.get(p.insn)? + around[p.insn].before.len();
    }
    out.line_info.clear();
    Some(out)
}

/// Where an instruction has a distance to another one.
enum Distance {
    None,
    Off,
    Imm,
}

fn kind(s: Slot) -> Distance {
    match (s.opcode & op::CLASS_MASK, s.opcode) {
        (_, op::CALL) if s.src == 1 => Distance::Imm,
        (_, op::LD_IMM64) if s.src == 4 => Distance::Imm,
        (_, op::CALL | op::EXIT) => Distance::None,
        (_, GOTOL) => Distance::Imm,
        (op::JMP | op::JMP32, _) => Distance::Off,
        _ => Distance::None,
    }
}

/// `gotol`
const GOTOL: u8 = 0x06;
