//! `unroll`: short loops of one block, several times one behind the other.
//!
//! A processor takes one branch a cycle and passes by two that are not taken. A loop whose body is a load and an addition is
//! bound by that. Each copy keeps its own check, so nothing needs to be known about the number of turns.

use super::{Block, End, Func, Kind, Plan};

/// Copies of a body, the first included.
const COPIES: usize = 4;
/// Operations of a body that is worth it: a longer one hides the branch.
const OPS_MAX: usize = 12;

impl Plan {
    /// Unrolls the loops of all functions.
    pub fn unroll(&mut self) {
        self.funcs.iter_mut().for_each(unroll);
    }
}

fn unroll(func: &mut Func) {
    for n in 0..func.blocks.len() {
        let block = &func.blocks[n];
        let End::Branch { taken, fall, .. } = block.end else { continue };
        let calls = |op: &super::Op| {
            matches!(op.kind, Kind::Helper(_) | Kind::Fetch { .. } | Kind::Kfunc { .. } | Kind::Local { .. })
        };
        if (taken == n) == (fall == n) || block.ops.len() > OPS_MAX || block.ops.iter().any(calls) {
            continue;
        }
        let body = block.clone();
        let first = func.blocks.len();
        for copy in 1..COPIES {
            let next = if copy + 1 < COPIES { first + copy } else { n };
            func.blocks.push(turned(&body, n, next));
        }
        func.blocks[n] = turned(&body, n, first);
        func.insns += (COPIES - 1) * (body.ops.len() + 1);
    }
}

/// A copy of a loop's block that goes on in another block instead of itself.
fn turned(body: &Block, head: usize, next: usize) -> Block {
    let mut copy = body.clone();
    if let End::Branch { taken, fall, .. } = &mut copy.end {
        for to in [taken, fall] {
            if *to == head {
                *to = next;
            }
        }
    }
    copy
}
