//! Slots that are no instruction. Linux minds wrong fields only where execution comes: what stands in dead code is replaced
//! before the program runs. Opcodes that do not exist, and 64-bit immediates that are none, are refused everywhere.

use std::collections::BTreeMap;

use xway_isa::{DecodeError, DecodeErrorKind, Insn, Slot, decode_at, op};

/// A jump to itself: what stands for dead instructions that are none.
const STUCK: Slot = Slot { opcode: op::JMP, dst: 0, src: 0, off: -1, imm: 0 };

/// A program's instructions, with stand-ins of the same shape where a slot is none.
pub(crate) struct Decoded {
    /// One entry for each slot, `None` for second halves.
    pub insns: Vec<Option<Insn>>,
    /// What is wrong with the slots that have a stand-in.
    pub wrong: BTreeMap<usize, DecodeErrorKind>,
}

/// Decodes a program.
pub(crate) fn decode(slots: &[Slot]) -> Result<Decoded, DecodeError> {
    let mut out = Decoded { insns: Vec::with_capacity(slots.len()), wrong: BTreeMap::new() };
    while out.insns.len() < slots.len() {
        let at = out.insns.len();
        let insn = match decode_at(slots, at) {
            Ok(insn) => insn,
            // The offset of an exit is not looked at.
            Err(_) if slots[at] == (Slot { opcode: op::EXIT, off: slots[at].off, ..Slot::default() }) => Insn::Exit,
            // Nor is the upper half of a function's address.
            Err(_) if is_function(slots[at]) && decode_at(&lower(&slots[at..]), 0).is_ok() => {
                decode_at(&lower(&slots[at..]), 0)?
            }
            Err(e) => {
                let insn = stand_in(&slots[at..], e.kind).ok_or(e)?;
                out.wrong.insert(at, e.kind);
                insn
            }
        };
        out.insns.push(Some(insn));
        if insn.slots() == 2 {
            out.insns.push(None);
        }
    }
    Ok(out)
}

/// True for the address of a function of the program (`BPF_PSEUDO_FUNC`).
fn is_function(s: Slot) -> bool {
    s.is_wide() && s.src == 4
}

/// A 64-bit immediate without its upper half; one slot where there are no two.
fn lower(slots: &[Slot]) -> Vec<Slot> {
    slots.iter().take(2).enumerate().map(|(i, s)| if i == 0 { *s } else { Slot { imm: 0, ..*s } }).collect()
}

/// An instruction that goes where this one would go, when it is one that Linux lets pass in dead code.
fn stand_in(slots: &[Slot], why: DecodeErrorKind) -> Option<Insn> {
    let s = slots[0];
    if s.is_wide() && s.off != 0 && slots.len() > 1 {
        return decode_at(&[Slot { off: 0, ..s }, slots[1]], 0).ok();
    }
    use DecodeErrorKind::{BadWide, UnknownOpcode, UnknownPseudo};
    if matches!(why, UnknownOpcode | BadWide | UnknownPseudo) {
        return None;
    }
    let class = s.opcode & op::CLASS_MASK;
    match class {
        op::ALU | op::ALU64 | op::ST | op::STX => Some(Insn::Jump { off: 0, long: false }),
        // A load's immediate is looked at wherever it stands.
        op::LDX if s.imm == 0 => Some(Insn::Jump { off: 0, long: false }),
        op::JMP | op::JMP32 if s.opcode == op::CALL => None,
        op::JMP | op::JMP32 if s.opcode == op::EXIT => Some(Insn::Exit),
        op::JMP | op::JMP32 => {
            let imm = if s.opcode == op::JMP32 { s.imm } else { 0 };
            let off = if s.opcode == op::JMP32 { 0 } else { s.off };
            decode_at(&[Slot { opcode: s.opcode, off, imm, ..Slot::default() }], 0).ok()
        }
        _ => None,
    }
}

/// The program as it may run: what is no instruction, or cannot be linked (`casts`), was proved to be dead.
pub(crate) fn tidy(
    slots: &[Slot],
    decoded: &[Option<Insn>],
    wrong: &BTreeMap<usize, DecodeErrorKind>,
    casts: &BTreeMap<usize, &'static str>,
) -> Vec<Slot> {
    let mut out = slots.to_vec();
    for (at, insn) in decoded.iter().enumerate() {
        match insn {
            Some(Insn::Exit) => out[at].off = 0,
            Some(Insn::LoadImm64 { .. }) if is_function(out[at]) => out[at + 1].imm = 0,
            _ => {}
        }
    }
    for at in wrong.keys().chain(casts.keys()) {
        if out[*at].is_wide() {
            out[*at].off = 0;
        } else {
            out[*at] = STUCK;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(opcode: u8) -> Slot {
        Slot { opcode, ..Slot::default() }
    }

    /// What stands for a slot that is no instruction, in front of an exit.
    fn stands_for(s: Slot) -> Option<Insn> {
        let decoded = decode(&[s, slot(op::EXIT)]).ok()?;
        assert!(decoded.wrong.contains_key(&0), "{s:?} is an instruction");
        decoded.insns[0]
    }

    #[test]
    fn wrong_fields_have_stand_ins_that_go_the_same_way() {
        let next = Some(Insn::Jump { off: 0, long: false });
        // `r1 += 1` with an offset, a load with an immediate of nothing but a wrong register.
        assert_eq!(stands_for(Slot { opcode: op::ALU64, dst: 1, off: 3, imm: 1, ..Slot::default() }), next);
        assert_eq!(stands_for(Slot { opcode: op::ALU64, dst: 12, imm: 1, ..Slot::default() }), next);
        // A jump keeps its target.
        let jump = Slot { opcode: op::JMP, off: 0, imm: 9, ..Slot::default() };
        assert_eq!(stands_for(jump), next);
        // An exit with fields stays an exit.
        assert_eq!(stands_for(Slot { opcode: op::EXIT, dst: 3, ..Slot::default() }), Some(Insn::Exit));
        // Calls, unknown opcodes and loads with an immediate have none.
        assert_eq!(stands_for(Slot { opcode: op::CALL, dst: 3, ..Slot::default() }), None);
        assert_eq!(stands_for(slot(0xff)), None);
        assert_eq!(stands_for(Slot { opcode: op::LDX | 0x60, imm: 4, ..Slot::default() }), None);
    }

    #[test]
    fn an_exit_may_have_an_offset_which_goes() {
        let slots = [slot(op::EXIT), Slot { opcode: op::EXIT, off: 7, ..Slot::default() }];
        let decoded = decode(&slots).unwrap();
        assert_eq!((decoded.insns[1], decoded.wrong.is_empty()), (Some(Insn::Exit), true));
        assert_eq!(tidy(&slots, &decoded.insns, &decoded.wrong, &BTreeMap::new()), [slots[0]; 2]);
    }

    #[test]
    fn what_is_dead_and_wrong_becomes_a_jump_to_itself() {
        let slots = [Slot { opcode: op::ALU64, dst: 12, imm: 1, ..Slot::default() }, slot(op::EXIT)];
        let decoded = decode(&slots).unwrap();
        assert_eq!(tidy(&slots, &decoded.insns, &decoded.wrong, &BTreeMap::new()), [STUCK, slots[1]]);
    }
}
