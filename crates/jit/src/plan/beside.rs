//! `thread-nulls`, its first half: the check of a look-up's result stands right behind the look-up.
//!
//! Compilers like to put the answer for "nothing found" between the two:
//!
//! ```text
//! call bpf_map_lookup_elem                   r6 = 0
//! r6 = 0                            ──>      call bpf_map_lookup_elem
//! if r0 == 0 goto out                        if r0 == 0 goto out
//! ```
//!
//! A call leaves r6 to r9 alone and does not look at them, so what only moves numbers among them may stand in front of it. Then the
//! look-up's own branches are the check (`lower/lookup.rs`).

use xway_isa::{Operand, Reg};

use super::{Block, Kind, Plan};

/// `bpf_map_lookup_elem`
const LOOKUP: u32 = 1;

impl Plan {
    /// Moves what stands between look-ups and the ends of their blocks.
    pub fn checks_beside_lookups(&mut self) {
        self.funcs.iter_mut().flat_map(|f| &mut f.blocks).for_each(beside);
    }
}

fn beside(block: &mut Block) {
    let is_lookup = |kind: &Kind| matches!(kind, Kind::Helper(call) if call.proto.id == LOOKUP);
    let Some(at) = block.ops.iter().rposition(|op| is_lookup(&op.kind)) else { return };
    if block.ops[at + 1..].iter().all(|op| is_among_saved(&op.kind)) {
        block.ops[at..].rotate_left(1);
    }
}

/// Whether an operation only moves numbers among the registers that calls leave alone.
fn is_among_saved(kind: &Kind) -> bool {
    let saved = |r: Reg| matches!(r, Reg::R6 | Reg::R7 | Reg::R8 | Reg::R9);
    match kind {
        Kind::Const { dst, .. } => saved(*dst),
        Kind::Mov { dst, src, .. } => saved(*dst) && !matches!(src, Operand::Reg(r) if !saved(*r)),
        _ => false,
    }
}
