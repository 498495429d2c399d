//! `packet-bounds`: where the packet begins and ends, behind what moves it.
//!
//! A program that has moved the packet's start asks for both ends again, and compares them again: it may not know what the
//! call made of them. The code that stands in place of the call does. On its way the start is the old one and a number, and
//! the end is the old one, so neither is loaded; and when the packet was found to be long enough before, the comparison says
//! nothing new (`checks`).
//!
//! ```text
//! r2 = data;  if r2 + 34 > end goto out
//! bpf_xdp_adjust_head(ctx, -20);  if r0 != 0 goto failed
//! r3 = data;  if r3 + 34 > end goto out         ──>      r3 = r2 - 20
//! ```
//!
//! What the helper did, where it was called after all, is not known. That way gets a copy of what follows, up to its end: the
//! operations that ask for the new bounds, and their check. Both meet behind it.

use cranelift_codegen::ir::{self, InstBuilder, Value, types};
use xway_abi::{Arg, ArgKind};
use xway_packet::descriptor;

use super::{Area, Body};
use crate::plan::{Block, Call, CtxField, Kind};

/// Longer blocks are not copied for the way that is seldom gone.
const COPIED_MAX: usize = 24;

/// One of the packet's bounds: the pointer that the program gets, and the descriptor's field that it is made from.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    pub(super) pointer: Value,
    pub(super) field: Value,
}

/// The packet's bounds at one place of the program, where they are known.
#[derive(Clone, Copy, Default)]
pub(super) struct Bounds {
    pub(super) data: Option<Bound>,
    pub(super) end: Option<Bound>,
    pub(super) meta: Option<Bound>,
}

impl Bounds {
    /// That of a field, when the field is one.
    fn of(&mut self, field: CtxField) -> Option<&mut Option<Bound>> {
        match field {
            CtxField::Data => Some(&mut self.data),
            CtxField::DataEnd => Some(&mut self.end),
            CtxField::DataMeta => Some(&mut self.meta),
            _ => None,
        }
    }
}

/// Bounds from block to block of one function.
#[derive(Default)]
pub(super) struct Flow {
    /// The block that alone leads to each, by one edge.
    only: Vec<Option<usize>>,
    /// What is known where each ends, or where it begins when something says so.
    ends: Vec<Bounds>,
    begins: Vec<Option<Bounds>>,
}

impl Flow {
    pub(super) fn of(blocks: &[Block]) -> Flow {
        let mut edges = vec![(0, 0); blocks.len()];
        for (from, block) in blocks.iter().enumerate() {
            for to in block.end.successors() {
                edges[to] = (edges[to].0 + 1, from);
            }
        }
        // The first block is come to from outside too.
        let only = edges.into_iter().enumerate().map(|(n, (count, from))| (n > from && count == 1).then_some(from));
        Flow { only: only.collect(), ends: vec![Bounds::default(); blocks.len()], begins: vec![None; blocks.len()] }
    }
}

impl<'a> Body<'a, '_> {
    /// Before a block is lowered.
    pub(super) fn enter_bounds(&mut self, block: usize) {
        let above = self.flow.only[block];
        let known = above.map(|above| self.flow.begins[block].unwrap_or(self.flow.ends[above]));
        self.bounds = known.unwrap_or_default();
    }

    /// Behind its operations, where nothing between them and its end led away. What follows a block that has a copy is come to from
    /// both.
    pub(super) fn leave_bounds(&mut self, block: usize) {
        if self.flow.begins[block].is_none() {
            self.flow.ends[block] = self.bounds;
        }
    }

    /// A pointer of the context that is known.
    pub(super) fn bound(&mut self, field: CtxField) -> Option<Value> {
        self.bounds.of(field)?.map(|bound| bound.pointer)
    }

    /// A pointer of the context has just been made.
    pub(super) fn learn_bound(&mut self, which: CtxField, bound: Bound) {
        if self.around.options.packet_bounds
            && let Some(known) = self.bounds.of(which)
        {
            *known = Some(bound);
        }
    }

    /// Behind an operation, which may have moved the packet's start or end.
    pub(super) fn forget_bounds(&mut self, kind: &Kind) {
        let moves = match kind {
            Kind::Helper(call) => moves_packet(call),
            Kind::Kfunc { .. } | Kind::Local { .. } => true,
            _ => false,
        };
        if moves {
            self.bounds = Bounds::default();
        }
    }

    /// A pointer to where a field of the descriptor says, from its number.
    pub(super) fn pointer(&mut self, desc: Value, offset: Value) -> Value {
        // Where a chunk starts never changes.
        let fixed = self.flags(Some(Area::Descriptor)).with_readonly().with_can_move();
        let start = self.b.ins().load(types::I64, fixed, desc, descriptor::BASE);
        self.b.ins().iadd(start, offset)
    }

    /// Whether what follows a call in place may stand there twice: it has no other way in, comes later, and is short.
    pub(super) fn may_copy(&self, from: usize, to: usize) -> bool {
        // No calls, which are long, and of which lowering counts some; each run goes only one of the two ways.
        let calls = |kind: &Kind| {
            matches!(kind, Kind::Helper(_) | Kind::Fetch { .. } | Kind::Kfunc { .. } | Kind::Local { .. })
        };
        let shared =
            |kind: &Kind| matches!(kind, Kind::Atomic { .. } | Kind::LoadAcquire { .. } | Kind::StoreRelease { .. });
        let block = &self.plan.blocks[to];
        self.around.options.packet_bounds
            && self.flow.only[to] == Some(from)
            && block.ops.len() <= COPIED_MAX
            && !block.ops.iter().any(|op| calls(&op.kind) || shared(&op.kind))
    }

    /// What is known where a block begins that has a copy.
    pub(super) fn begin_with(&mut self, block: usize, bounds: Bounds) {
        self.flow.begins[block] = Some(bounds);
    }

    /// Lowers a block of the plan once more, for the way that is seldom gone.
    pub(super) fn copy_for_seldom(&mut self, block: usize, copy: ir::Block) {
        let plan: &'a Block = &self.plan.blocks[block];
        self.b.set_cold_block(copy);
        self.open(copy);
        self.words.clear();
        self.bounds = Bounds::default();
        for op in &plan.ops {
            self.origin(op.at);
            self.op(&op.kind, op.at);
        }
        self.origin(plan.end_at);
        self.end(&plan.end);
    }
}

/// Whether a helper may move the packet's start or end, or run a function that does.
fn moves_packet(call: &Call) -> bool {
    let runs = |arg: &Arg| matches!(arg.kind, ArgKind::Func(_));
    call.proto.changes_packet || call.proto.args.iter().any(runs)
}
