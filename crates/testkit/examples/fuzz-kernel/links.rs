//! A program without the links between numbers that Linux 6.18 does not keep.
//!
//! A sum of a number and a constant stays linked with the number there (`BPF_ADD_CONST`) until it is copied, kept on the stack or
//! added to once more; a number that is shifted left and right by 32 bits is another one. Here both stay linked. `r *= 1` takes a link away and nothing else.
//!
//! Instructions are looked at in the order in which they stand: what a jump brings along is not followed, which can only make a
//! reason be missed.

use xway_isa::{Slot, op};
use xway_object::Program;

use super::insert::Around;
use super::seen::Seen;

/// Puts what ends links around the instructions.
pub fn unlink(program: &Program, seen: &Seen<'_>, around: &mut [Around]) {
    // Registers that hold such a sum.
    let mut sums = [false; 16];
    let mut second = false;
    for (at, (s, a)) in program.insns.iter().zip(around).enumerate() {
        if std::mem::replace(&mut second, s.is_wide()) {
            continue;
        }
        let (dst, src) = (usize::from(s.dst & 15), usize::from(s.src & 15));
        let number = |r| seen.number(at, r);
        match s.opcode {
            ADD | SUB | ADD_HALF | SUB_HALF if !sums[dst] => sums[dst] = number(s.dst),
            ADD | SUB | ADD_HALF | SUB_HALF if number(s.dst) => {
                a.behind.push(times_one(s.dst));
                sums[dst] = false;
            }
            MOVE | MOVE_HALF => {
                if std::mem::take(&mut sums[src]) && number(s.src) {
                    a.before.push(times_one(s.src));
                }
                sums[dst] = false;
            }
            // A store to the stack, mostly.
            _ if s.opcode & op::CLASS_MASK == op::STX && s.opcode & MODE == MEM => {
                let sum = std::mem::take(&mut sums[src]) && number(s.src);
                a.before.extend(sum.then(|| times_one(s.src)));
            }
            // What is shifted left and right by 32 bits stays what it was, where it had no more.
            SHIFT_BACK if s.imm == 32 && at > 0 && shifts(program.insns[at - 1], s.dst) => {
                a.behind.push(times_one(s.dst))
            }
            op::CALL => sums[..6].fill(false),
            _ if matches!(s.opcode & op::CLASS_MASK, op::ALU | op::ALU64 | op::LDX | op::LD) => sums[dst] = false,
            _ => {}
        }
    }
}

/// `r <<= 32`
fn shifts(s: Slot, r: u8) -> bool {
    s.opcode == SHIFT && s.dst == r && s.imm == 32
}

/// `r *= 1`
fn times_one(r: u8) -> Slot {
    Slot { opcode: MULTIPLY, dst: r, src: 0, off: 0, imm: 1 }
}

/// Operations with a number of 64 bits, and of 32.
const ADD: u8 = 0x07;
const SUB: u8 = 0x17;
const ADD_HALF: u8 = 0x04;
const SUB_HALF: u8 = 0x14;
const MULTIPLY: u8 = 0x27;
const SHIFT: u8 = 0x67;
const SHIFT_BACK: u8 = 0x77;
/// Copies of registers, those that extend a sign included.
const MOVE: u8 = 0xbf;
const MOVE_HALF: u8 = 0xbc;
/// The mode of loads and stores, and plain memory.
const MODE: u8 = 0xe0;
const MEM: u8 = 0x60;
