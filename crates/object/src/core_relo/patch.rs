//! Writing an answer into an instruction.

use xway_isa::{Slot, op};

use super::Resolution;

/// The helper number of a poisoned instruction, recognisable in a verifier's log (libbpf's number).
const POISON: i32 = 0xbad2310;

/// Changes the instruction at `at`. `Ok(Some(reason))` says that it was poisoned.
pub(crate) fn apply(insns: &mut [Slot], at: usize, r: &Resolution) -> Result<Option<String>, String> {
    let Some(slot) = insns.get(at).copied() else { return Err(format!("{}: no instruction there", r.what)) };
    let wide = slot.is_wide();
    if wide && insns.len() <= at + 1 {
        return Err(format!("{}: the second half of the instruction is missing", r.what));
    }
    let accesses = matches!(slot.opcode & op::CLASS_MASK, op::LDX | op::ST | op::STX);
    let value = match (&r.value, &r.not_accessed) {
        (Ok(_), Some(reason)) if accesses => Err(reason),
        (value, _) => value.as_ref(),
    };
    let value = match value {
        Ok(value) => *value,
        Err(reason) => {
            let poison = Slot { opcode: op::CALL, imm: POISON, ..Slot::default() };
            insns[at..=at + usize::from(wide)].fill(poison);
            return Ok(Some(reason.clone()));
        }
    };
    let expect = |found: u64| match r.expected {
        Some(expected) if expected != found => {
            Err(format!("{}: the instruction has {found}, the relocation says {expected}", r.what))
        }
        _ => Ok(()),
    };
    match slot.opcode & op::CLASS_MASK {
        op::ALU | op::ALU64 if slot.opcode & op::X == 0 => {
            // Immediates are sign-extended 32 bits; the answers are compared in that width.
            expect_imm(r, slot.imm)?;
            insns[at].imm = value as i32;
        }
        op::LDX | op::ST | op::STX => {
            expect(slot.off as u16 as u64)?;
            let Some(off) = i16::try_from(value).ok() else {
                return Err(format!("{}: offset {value} does not fit into the instruction", r.what));
            };
            insns[at].off = off;
            if let Some(size) = r.access_size {
                let bits = match size {
                    8 => 0x18,
                    4 => 0x00,
                    2 => 0x08,
                    1 => 0x10,
                    _ => return Err(format!("{}: no load or store has {size} bytes", r.what)),
                };
                insns[at].opcode = slot.opcode & !0x18 | bits;
            }
        }
        op::LD if wide && slot.src == 0 => {
            expect(u64::from(slot.imm as u32) | u64::from(insns[at + 1].imm as u32) << 32)?;
            insns[at].imm = value as i32;
            insns[at + 1].imm = (value >> 32) as i32;
        }
        _ => return Err(format!("{}: an instruction that cannot be relocated (opcode {:#04x})", r.what, slot.opcode)),
    }
    Ok(None)
}

fn expect_imm(r: &Resolution, imm: i32) -> Result<(), String> {
    match r.expected {
        Some(expected) if expected as i32 != imm => {
            Err(format!("{}: the instruction has {imm}, the relocation says {expected}", r.what))
        }
        _ => Ok(()),
    }
}
