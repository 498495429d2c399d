//! `known-branches`: parameters of blocks that are not needed.
//!
//! Lowering gives a block a parameter for each register that differs from way to way, and learns only behind it whether anybody asks for
//! it, and what came along each way. Every parameter is a move on each edge. Those that nothing uses go, and so do those that all
//! edges give the same constant: verdicts that a program makes ready in front of a check and then does not need.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::EntitySet;
use cranelift_codegen::ir::{self, Block, InstBuilder, Value, ValueDef};
use rustc_hash::FxHashMap;

use super::known::Incoming;
use super::value::constant;

/// `exit` keeps its own.
pub(super) fn run(func: &mut ir::Function, exit: Option<Block>) {
    let incoming = Incoming::of(func);
    let wanted = wanted(func, &incoming);
    // Which of a block's parameters go, by place.
    let mut gone: FxHashMap<Block, Vec<usize>> = FxHashMap::default();
    for block in func.layout.blocks().skip(1).collect::<Vec<_>>() {
        if Some(block) == exit {
            continue;
        }
        for (place, param) in func.dfg.block_params(block).to_vec().into_iter().enumerate() {
            let number = one_constant(func, &incoming, param);
            if wanted.contains(param) && number.is_none() {
                continue;
            }
            func.dfg.remove_block_param(param);
            if let Some(number) = number {
                let ty = func.dfg.value_type(param);
                let number = FuncCursor::new(func).at_first_insertion_point(block).ins().iconst(ty, number);
                func.dfg.change_to_alias(param, number);
            }
            gone.entry(block).or_default().push(place);
        }
    }
    if gone.is_empty() {
        return;
    }
    let ir::function::FunctionStencil { layout, dfg, .. } = &mut func.stencil;
    for block in layout.blocks() {
        let Some(last) = layout.last_inst(block) else { continue };
        for call in dfg.insts[last].branch_destination_mut(&mut dfg.jump_tables, &mut dfg.exception_tables) {
            let places = gone.get(&call.block(&dfg.value_lists));
            for place in places.into_iter().flatten().rev() {
                call.remove(*place, &mut dfg.value_lists);
            }
        }
    }
}

/// Parameters that an instruction uses, or another wanted parameter is given.
fn wanted(func: &ir::Function, incoming: &Incoming) -> EntitySet<Value> {
    let mut wanted = EntitySet::with_capacity(func.dfg.num_values());
    let mut work = vec![];
    let is_param = |v: Value| matches!(func.dfg.value_def(v), ValueDef::Param(..));
    for inst in func.layout.blocks().flat_map(|b| func.layout.block_insts(b)) {
        for v in func.dfg.inst_args(inst) {
            let v = func.dfg.resolve_aliases(*v);
            if is_param(v) && wanted.insert(v) {
                work.push(v);
            }
        }
    }
    while let Some(param) = work.pop() {
        for v in incoming.values(param).unwrap_or_default() {
            let v = func.dfg.resolve_aliases(*v);
            if is_param(v) && wanted.insert(v) {
                work.push(v);
            }
        }
    }
    wanted
}

/// The number that all edges give a parameter.
fn one_constant(func: &ir::Function, incoming: &Incoming, param: Value) -> Option<i64> {
    let mut numbers = incoming.values(param)?.iter().map(|v| constant(func, *v));
    let first = numbers.next()??;
    numbers.all(|n| n == Some(first)).then_some(first)
}
