//! The mid-end, and long functions: whether what it leaves of them is within the register allocator's means.
//!
//! What is computed or loaded twice is computed once there, however far apart the two are, and lives in between. That is a gain as long as
//! few values do. A program that asks for the same thousand fields of a packet again and again has a thousand values that live through
//! thousands of blocks, which the allocator takes apart one by one: minutes for what takes a tenth of a second without the mid-end.
//! Only functions of many blocks can come to that; of them the values that live into each block are counted.

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::flowgraph::ControlFlowGraph;
use cranelift_codegen::ir::{self, Block, Opcode, Value, ValueDef};
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::{CodegenResult, Context};
use rustc_hash::FxHashMap;

use crate::lower::Surroundings;
use crate::numbering;

/// Blocks of a function that is looked at.
const BLOCKS_MIN: usize = 100;
/// Values that live into a block, on the average: several times as many as there are registers.
const LIVE_MAX: usize = 64;
/// As many, in all blocks together, are always had.
const LIVE_MIN: usize = 1 << 17;

/// What has been made of a function in front of the back end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Optimized {
    /// `value-numbering`.
    Numbered,
    /// Cranelift's mid-end.
    ByCranelift,
    /// Nothing.
    No,
}

/// Takes a function through a mid-end, as far as the switches and the back end's means allow; what leaves it is ready for the back end.
pub(crate) fn optimize(
    around: &Surroundings<'_>,
    context: &mut Context,
    control: &mut ControlPlane,
) -> CodegenResult<Optimized> {
    let isa = around.isa;
    context.verify_if(isa)?;
    prepare(isa, context)?;
    if !around.options.optimize {
        return Ok(Optimized::No);
    }
    let is_long = context.func.layout.blocks().nth(BLOCKS_MIN).is_some();
    let before = is_long.then(|| context.func.clone());
    let optimized = mid_end(around, context, control)?;
    match before {
        Some(before) if !is_affordable(&context.func) => {
            context.func = before;
            context.flowgraph();
            Ok(Optimized::No)
        }
        _ => Ok(optimized),
    }
}

fn mid_end(around: &Surroundings<'_>, context: &mut Context, control: &mut ControlPlane) -> CodegenResult<Optimized> {
    let numbered = if around.options.value_numbering { numbering::run(context) } else { None };
    match numbered {
        Some(numbering::Edges::Gone) => prepare(around.isa, context)?,
        Some(numbering::Edges::AsTheyWere) => context.verify_if(around.isa)?,
        None => {
            context.remove_constant_phis(around.isa)?;
            context.func.dfg.resolve_all_aliases();
            context.egraph_pass(around.isa, control)?;
            return Ok(Optimized::ByCranelift);
        }
    }
    Ok(Optimized::Numbered)
}

/// What mid-end and back end ask of a function: no aliases, and nothing that no run comes to.
fn prepare(isa: &dyn TargetIsa, context: &mut Context) -> CodegenResult<()> {
    context.flowgraph();
    context.eliminate_unreachable_code(isa)?;
    context.func.dfg.resolve_all_aliases();
    Ok(())
}

/// Whether fewer values live through the blocks of a function than would be beyond all means.
fn is_affordable(func: &ir::Function) -> bool {
    let blocks = func.layout.blocks().count();
    let mut left = LIVE_MIN.max(LIVE_MAX * blocks);
    let cfg = ControlFlowGraph::with_function(func);
    let mut seen: SecondaryMap<Block, Option<Value>> = SecondaryMap::new();
    let mut work: Vec<Block> = vec![];
    for (value, used) in used_elsewhere(func) {
        // From each use up to where it is made; each block counts once.
        work.extend(used);
        while let Some(block) = work.pop() {
            if seen[block] == Some(value) || made_in(func, value) == Some(block) {
                continue;
            }
            seen[block] = Some(value);
            let Some(rest) = left.checked_sub(1) else { return false };
            left = rest;
            work.extend(cfg.pred_iter(block).map(|from| from.block));
        }
    }
    true
}

/// The block that a value is made in.
fn made_in(func: &ir::Function, value: Value) -> Option<Block> {
    match func.dfg.value_def(value) {
        ValueDef::Result(inst, _) => func.layout.inst_block(inst),
        ValueDef::Param(block, _) => Some(block),
        ValueDef::Union(..) => None,
    }
}

/// Values with blocks that use them and do not make them, some of these several times. Constants are made anew wherever they are used.
fn used_elsewhere(func: &ir::Function) -> FxHashMap<Value, Vec<Block>> {
    let is_constant = |value: Value| match func.dfg.value_def(value) {
        ValueDef::Result(inst, _) => func.dfg.insts[inst].opcode() == Opcode::Iconst,
        _ => false,
    };
    let mut used: FxHashMap<Value, Vec<Block>> = FxHashMap::default();
    for block in func.layout.blocks() {
        for value in func.layout.block_insts(block).flat_map(|inst| func.dfg.inst_values(inst)) {
            let value = func.dfg.resolve_aliases(value);
            if made_in(func, value) != Some(block) && !is_constant(value) {
                used.entry(value).or_default().push(block);
            }
        }
    }
    used
}
