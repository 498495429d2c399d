//! Functions of the program in a scout: their blocks stand in the place of their calls, whether the program calls or copies them.
//!
//! A scout is made of what is left of a program on the way to its look-ups ([`super::scout`]), and most of a function that parses
//! or looks up is on that way. So what is cut down is one graph: the main function with a copy of each function where it is
//! called. Each copy has a *frame*: a stack below the one of the function that calls it, and stack bytes that are values.
//!
//! ```text
//! call parse                 Enter 1;  jump to the copy of parse
//! if r0 == 0 goto out   ──>  ...       where it returned: jump behind the call
//!                            Leave 1;  if r0 == 0 goto out
//! ```

use xway_verifier::{Place, Region};

use super::scout::walk;
use super::{Block, Call, End, Func, Kind, Op, Plan};

/// Instructions that stand in a scout in place of calls, before it is cut down.
const ROOM: usize = 2_000;
/// Functions that call each other, as many as there may be.
const DEPTH_MAX: usize = 8;

/// A function that stands in a scout.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// The function of the program.
    pub func: usize,
    pub name: String,
    /// Bytes of the stacks of those that called it.
    pub above: u32,
    depth: usize,
    /// Memory of which the function says nothing (arguments of a global one) is on the scout's stack: its callers handed it
    /// nothing else.
    own: bool,
}

/// A program as one function.
pub(super) struct Flat {
    /// The main function, with more blocks than the program gave it; its stack has room for all.
    pub func: Func,
    pub frames: Vec<Frame>,
    /// The frame of each block.
    pub of: Vec<usize>,
}

impl Flat {
    /// The main function alone.
    pub fn main(plan: &Plan) -> Flat {
        let func = plan.funcs[0].clone();
        let main = Frame { func: 0, name: func.name.clone(), above: 0, depth: 1, own: true };
        let of = vec![0; func.blocks.len()];
        Flat { func, frames: vec![main], of }
    }

    /// With its functions.
    pub fn whole(plan: &Plan) -> Flat {
        let mut flat = Flat::main(plan);
        let (mut room, mut n) = (ROOM, 0);
        // Copies, and what stands behind calls, come behind all others and are looked through in their turn.
        while n < flat.func.blocks.len() {
            flat.enter_first(n, plan, &mut room);
            n += 1;
        }
        if flat.frames.len() > 1 {
            flat.put_in_order();
        }
        flat
    }

    /// Puts a function in the place of the first call in a block that has room for it.
    fn enter_first(&mut self, block: usize, plan: &Plan, room: &mut usize) {
        let outer = self.of[block];
        let fits = |func: usize| {
            let insns = plan.funcs[func].insns;
            func != 0 && insns > 0 && insns <= *room && self.frames[outer].depth < DEPTH_MAX
        };
        let entered = |op: &Op| match op.kind {
            Kind::Local { func, args, .. } if fits(func) => Some((func, args)),
            _ => None,
        };
        let ops = &self.func.blocks[block].ops;
        let Some((at, (func, args))) = ops.iter().enumerate().find_map(|(n, op)| Some((n, entered(op)?))) else {
            return;
        };
        let callee = &plan.funcs[func];
        *room -= callee.insns;
        let frame = self.frames.len();
        let caller = &self.frames[outer];
        self.frames.push(Frame {
            func,
            name: callee.name.clone(),
            above: caller.above + plan.funcs[caller.func].stack,
            depth: caller.depth + 1,
            own: caller.own && args.iter().flatten().all(is_own),
        });
        let last = &self.frames[frame];
        self.func.stack = self.func.stack.max(last.above + callee.stack);

        let (behind, first) = (self.func.blocks.len(), self.func.blocks.len() + 1);
        let here = &mut self.func.blocks[block];
        let mut rest = here.ops.split_off(at);
        let insn = rest[0].at;
        rest[0].kind = Kind::Leave { frame };
        here.ops.push(Op { at: insn, kind: Kind::Enter { frame } });
        let end = std::mem::replace(&mut here.end, End::Jump(first));
        let rest = Block { ops: rest, end, end_at: here.end_at };
        self.func.blocks.push(rest);
        self.of.push(outer);
        for copy in &callee.blocks {
            let mut copy = copy.clone();
            copy.end = match copy.end {
                End::Exit => End::Jump(behind),
                End::Jump(to) => End::Jump(first + to),
                End::Branch { width, cond, dst, src, taken, fall } => {
                    End::Branch { width, cond, dst, src, taken: first + taken, fall: first + fall }
                }
                End::MayGoto { out, fall } => End::MayGoto { out: first + out, fall: first + fall },
                End::Unreachable => End::Unreachable,
            };
            if self.frames[frame].own {
                copy.ops.iter_mut().for_each(|op| name_stack(&mut op.kind));
            }
            self.func.blocks.push(copy);
            self.of.push(frame);
        }
    }

    /// Each block before those behind it: a function is entered before it is left.
    fn put_in_order(&mut self) {
        let (mut order, _) = walk(&self.func);
        let mut reached = vec![false; self.of.len()];
        order.iter().for_each(|n| reached[*n] = true);
        order.extend((0..reached.len()).filter(|n| !reached[*n]));
        self.of = order.iter().map(|n| self.of[*n]).collect();
        self.func.put_in_order(&order);
    }
}

/// Whether an argument is no memory but the stack's: what a function that is verified by itself knows only as memory.
fn is_own(place: &Place) -> bool {
    matches!(
        place.region,
        Region::Stack | Region::OuterStack | Region::Context | Region::Map(_) | Region::InnerMap(_) | Region::Func(_)
    )
}

/// Memory of which nothing is known is a caller's stack.
fn name_stack(kind: &mut Kind) {
    let name = |place: &mut Place| {
        if place.region == Region::Other {
            *place = Place { region: Region::OuterStack, off: None };
        }
    };
    match kind {
        Kind::Load { place, .. }
        | Kind::Store { place, .. }
        | Kind::Atomic { place, .. }
        | Kind::LoadAcquire { place, .. }
        | Kind::StoreRelease { place, .. } => name(place),
        Kind::Helper(Call { args, .. }) | Kind::Local { args, .. } | Kind::Kfunc { args, .. } => {
            args.iter_mut().flatten().for_each(name);
        }
        _ => {}
    }
}
