//! `thread-nulls`: a call whose result is compared with zero at the end of its block.
//!
//! Code that stands in place of a call knows on each of its ways what the result is, so each goes where the check would lead. Compilers
//! put the answer for "nothing found" between the two, often in the register of the result, which moves out of the way:
//!
//! ```text
//! call bpf_map_lookup_elem                  hit:  r1 = the value; r0 = 2; goto found
//! r1 = r0                            ──>
//! r0 = 2                                    miss: r1 = 0; r0 = 2; goto out
//! if r1 == 0 goto out
//! ```
//!
//! What only moves numbers among registers goes with each of the ways.

use xway_isa::{Cond, MovExt, Operand, Reg, Width};

use super::{Block, End, Kind, Op};

/// Operations that go with each way.
const BETWEEN_MAX: usize = 8;

/// The last call of its kind in a block whose result is asked for at the end of it.
#[derive(Clone, Copy)]
pub(crate) struct Check<'a> {
    /// The operation.
    pub at: usize,
    /// What stands between it and the check.
    pub between: &'a [Op],
    /// The block where zero goes.
    pub zero: usize,
    /// Where everything else goes.
    pub other: usize,
}

/// What a result is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Half of the register is enough to tell.
    Int,
    Pointer,
}

/// Finds it, if there is one.
pub(crate) fn check(block: &Block, is_call: impl Fn(&Op) -> bool, answer: Answer) -> Option<Check<'_>> {
    let whole = |width: Width| answer == Answer::Int || width == Width::W64;
    let at = block.ops.iter().rposition(is_call)?;
    let between = &block.ops[at + 1..];
    if between.len() > BETWEEN_MAX {
        return None;
    }
    // Registers that hold the result.
    let mut holds = vec![Reg::R0];
    for op in between {
        let (dst, same) = match op.kind {
            Kind::Const { dst, .. } => (dst, false),
            Kind::Mov { width, ext: MovExt::None, dst, src: Operand::Reg(from) } => {
                (dst, whole(width) && holds.contains(&from))
            }
            Kind::Mov { dst, .. } => (dst, false),
            _ => return None,
        };
        holds.retain(|held| *held != dst);
        holds.extend(same.then_some(dst));
    }
    let End::Branch { width, cond, dst, src: Operand::Imm(0), taken, fall } = block.end else { return None };
    let (zero, other) = match cond {
        Cond::Eq => (taken, fall),
        Cond::Ne => (fall, taken),
        _ => return None,
    };
    (whole(width) && holds.contains(&dst)).then_some(Check { at, between, zero, other })
}
