//! Several programs behind one another without extension programs: each member hands on by a tail call.
//!
//! ```text
//!   root ──tail call──▶ member 1 ──tail call──▶ member 2 …        each arrow is slot 0 of a PROG_ARRAY
//!                        │ calls its program as a function, looks at the verdict, hands on or returns it
//! ```
//!
//! A list of such arrows is changed one pointer at a time, so packets see the chain before or after, never half of it.

use std::os::fd::{AsFd, AsRawFd};

use xway_isa::{Slot, op};
use xway_object::{Program, Subprog};

use crate::{KernelError, KernelMap, KernelProg, ProgSpec, consts};

/// `bpf_tail_call`.
const TAIL_CALL: i32 = 12;
/// `XDP_PASS`.
const PASS: i32 = 2;
/// Verdicts that can be chained on: `XDP_ABORTED` to `XDP_REDIRECT`.
const VERDICTS: u32 = 5;

const MOV64_REG: u8 = 0xbf;
const MOV64_IMM: u8 = 0xb7;
const JEQ32_IMM: u8 = 0x16;
const JA: u8 = 0x05;
const EXIT: u8 = 0x95;

const fn slot(opcode: u8, dst: u8, src: u8, off: i16, imm: i32) -> Slot {
    Slot { opcode, dst, src, off, imm }
}

/// The name of the program that a chain hangs on.
pub const CHAIN_ROOT: &str = "xway_chain";

/// Loads the program that a chain hangs on: it runs what slot 0 of `next` holds; XDP_PASS when it is empty.
pub fn chain_root(next: &KernelMap, frags: bool) -> Result<KernelProg, KernelError> {
    let mut insns = tail_call(1, next.as_fd().as_raw_fd()).to_vec();
    insns.extend([slot(MOV64_IMM, 0, 0, 0, PASS), slot(EXIT, 0, 0, 0, 0)]);
    let flags = if frags { consts::F_XDP_HAS_FRAGS } else { 0 };
    KernelProg::load(&ProgSpec { flags, ..ProgSpec::xdp(CHAIN_ROOT, &insns) })
}

/// `bpf_tail_call(r1, map, 0)`; `map_kind` is 1 for a descriptor, 5 for an index in the object.
fn tail_call(map_kind: u8, map: i32) -> [Slot; 4] {
    [
        slot(op::LD_IMM64, 2, map_kind, 0, map),
        slot(0, 0, 0, 0, 0),
        slot(MOV64_IMM, 3, 0, 0, 0),
        slot(op::CALL, 0, 0, 0, TAIL_CALL),
    ]
}

/// A program with the instructions of a chain's member in front; `next` is the index of its array.
pub(crate) fn member(program: &Program, next: i32, chain_on: u32) -> Program {
    let front = front(next, chain_on);
    let shift = front.len();
    let mut out = program.clone();
    let mut insns = front;
    insns.append(&mut out.insns);
    out.insns = insns;
    out.subprogs.iter_mut().for_each(|f| f.start += shift);
    if out.subprogs.is_empty() {
        let len = out.insns.len() - shift;
        out.subprogs.push(Subprog { name: out.name.clone(), start: shift, len, global: false, func_id: 0 });
    }
    let own = Subprog { name: out.name.clone(), start: 0, len: shift, global: false, func_id: 0 };
    out.subprogs.insert(0, own);
    out.poisons.iter_mut().for_each(|p| p.insn += shift);
    out.line_info.iter_mut().for_each(|l| l.insn += shift);
    // The kernel wants a line where every function begins.
    if let Some(first) = out.line_info.first().cloned() {
        out.line_info.insert(0, xway_object::LineInfo { insn: 0, ..first });
    }
    out
}

/// Calls what stands behind it, then hands on or returns the verdict.
fn front(next: i32, chain_on: u32) -> Vec<Slot> {
    let on: Vec<u32> = (0..VERDICTS).filter(|v| chain_on >> v & 1 != 0).collect();
    // context to r6, call, verdict to r7, comparisons, jump to the end, context back, tail call, verdict, exit.
    let len = 3 + on.len() + 1 + 1 + 4 + 2;
    let mut out = vec![slot(MOV64_REG, 6, 1, 0, 0)];
    out.push(slot(op::CALL, 0, 1, 0, (len - 2) as i32));
    out.push(slot(MOV64_REG, 7, 0, 0, 0));
    for (i, verdict) in on.iter().enumerate() {
        // Over the comparisons that are left and the jump.
        out.push(slot(JEQ32_IMM, 7, 0, (on.len() - i) as i16, *verdict as i32));
    }
    out.push(slot(JA, 0, 0, 5, 0));
    out.push(slot(MOV64_REG, 1, 6, 0, 0));
    out.extend(tail_call(5, next));
    out.push(slot(MOV64_REG, 0, 7, 0, 0));
    out.push(slot(EXIT, 0, 0, 0, 0));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_calls_what_follows_and_hands_on() {
        let exit = [slot(MOV64_IMM, 0, 0, 0, PASS), slot(EXIT, 0, 0, 0, 0)];
        let program = Program { name: "p".into(), insns: exit.to_vec(), ..Program::default() };
        for chain_on in [0, 1 << 2, 0b11111] {
            let made = member(&program, 7, chain_on);
            let call = made.insns[1];
            let target = (2 + call.imm) as usize;
            assert_eq!(made.insns[target..], exit, "the call reaches the program");
            assert_eq!(made.subprogs[1].start, target);
            let on = chain_on.count_ones() as usize;
            let hand_on = 3 + on + 1;
            for at in 3..3 + on {
                assert_eq!(at + 1 + made.insns[at].off as usize, hand_on, "each comparison jumps to the tail call");
            }
            let jump = made.insns[hand_on - 1];
            assert_eq!(hand_on + jump.off as usize, target - 2, "others leave with their verdict");
            assert_eq!(xway_isa::decode(&made.insns).map(|d| d.len()), Ok(made.insns.len()));
        }
    }
}
