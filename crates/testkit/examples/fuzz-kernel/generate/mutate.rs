//! Changing a program a little, so that some four in ten stay acceptable.

use xway_isa::{Slot, op};
use xway_object::Program;
use xway_testkit::Rng;

use super::INTERESTING;

/// Changes one or two instructions of a program. What does not decode is mostly changed once more: both sides refuse it
/// without a look at what the program does.
pub fn mutate(rng: &mut Rng, program: &mut Program) {
    for _ in 0..4 {
        let mut mutant = program.insns.clone();
        change(rng, &mut mutant);
        if xway_isa::decode(&mutant).is_ok() || rng.one_in(16) {
            // What stands beside the instructions follows them: otherwise it would be what is refused.
            program.poisons.retain(|p| mutant.get(p.insn) == program.insns.get(p.insn));
            if starts(&mutant) != starts(&program.insns) {
                // Other functions than the records name: they are all static then, and have no types.
                program.subprogs.clear();
            }
            program.insns = mutant;
            return;
        }
    }
}

/// Where the functions begin that are called or handed to a helper.
fn starts(insns: &[Slot]) -> Vec<usize> {
    let target = |(at, s): (usize, &Slot)| {
        let refers = s.opcode == op::CALL && s.src == 1 || s.is_wide() && s.src == 4;
        refers.then(|| usize::try_from(at as i64 + 1 + i64::from(s.imm)).ok())?
    };
    let mut all: Vec<usize> = insns.iter().enumerate().filter_map(target).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn change(rng: &mut Rng, insns: &mut [Slot]) {
    for _ in 0..1 + rng.below(3) / 2 {
        let i = rng.index(insns.len());
        // The second half of a 64-bit immediate has but a number to change.
        if i > 0 && insns[i - 1].is_wide() {
            insns[i].imm = rng.u32() as i32;
            continue;
        }
        let other = *rng.pick(insns);
        let wide = insns[i].is_wide() || other.is_wide();
        let narrow_next = insns.get(i + 1).is_some_and(|n| !n.is_wide());
        let s = &mut insns[i];
        match rng.below(14) {
            0 | 1 => s.imm = s.imm.wrapping_add(*rng.pick(&[-1, 1, 4, -4, 8])),
            2 => s.imm = *rng.pick(&INTERESTING) as i32,
            3 | 4 => s.off = s.off.wrapping_add(*rng.pick(&[-1, 1, 2, -2, 4, 8, -8])),
            5 => s.dst = rng.below(11) as u8,
            6 => s.src = rng.below(11) as u8,
            // Another operation or condition of the same class, or the other operand kind.
            7 => s.opcode = (s.opcode & 0x0f) | (rng.below(16) as u8) << 4,
            8 => s.opcode ^= *rng.pick(&[0x08, 0x10, 0x18, 0x03, 0x01]),
            // Left out: a jump to the next instruction.
            9 | 10 if !wide => *s = Slot { opcode: 0x05, dst: 0, src: 0, off: 0, imm: 0 },
            // A check the other way round.
            11 if s.opcode & 7 == 5 || s.opcode & 7 == 6 => s.opcode ^= *rng.pick(&[0x80, 0x90, 0x40, 0x10]),
            12 if !wide && narrow_next => insns.swap(i, i + 1),
            _ if !wide => *s = other,
            _ => s.imm = s.imm.wrapping_add(1),
        }
    }
}
