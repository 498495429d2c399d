//! `known-branches`: branches that go one way, by what the values say themselves.
//!
//! Cranelift's mid-end folds branches on constants only. Two kinds stand in nearly every program and are decided by how their
//! operands were made: a pointer into the packet is compared with null (clang does not know that a packet is never at
//! address zero), and an index is compared with the size of a table that its type or a mask keeps it below.
//!
//! Constants that a branch hands to the block it goes to are made on the way there, not in front of the branch: nearly every
//! check goes to an end with its own verdict.

use std::collections::HashMap;

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    self, Block, BlockArg, Inst, InstBuilder, InstructionData, Opcode, Value, ValueDef, types,
};
use xway_packet::descriptor;

use super::value::constant;
use crate::lower::region;

/// Operations that are looked through.
const DEPTH_MAX: u32 = 12;
/// What a pointer is moved by stays below.
const DISTANCE_MAX: u64 = 1 << 32;

/// Makes jumps of branches that go one way.
pub(crate) fn fold(func: &mut ir::Function) {
    let mut exact = Exact::default();
    for block in func.layout.blocks().collect::<Vec<_>>() {
        let Some(last) = func.layout.last_inst(block) else { continue };
        let InstructionData::Brif { arg, blocks: [taken, fall], .. } = func.dfg.insts[last] else { continue };
        let Some(goes) = decided(func, arg, &mut exact) else { continue };
        let to = if goes { taken } else { fall };
        let (dest, args) = (to.block(&func.dfg.value_lists), to.args(&func.dfg.value_lists).collect::<Vec<BlockArg>>());
        let loc = func.srcloc(last);
        FuncCursor::new(func).at_inst(last).with_srcloc(loc).ins().jump(dest, &args);
        func.layout.remove_inst(last);
    }
    remove_unreachable(func);
}

/// Whether a condition always holds, or never.
fn decided(func: &ir::Function, condition: Value, exact: &mut Exact) -> Option<bool> {
    let v = func.dfg.resolve_aliases(condition);
    if is_pointer(func, v, DEPTH_MAX) {
        return Some(true);
    }
    let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
    let (cond, a, b) = match func.dfg.insts[inst] {
        InstructionData::IntCompare { opcode: Opcode::Icmp, cond, args: [a, b] } => (cond, a, b),
        _ => return None,
    };
    if let (Some(a), Some(b)) = (exact.of(func, a), exact.of(func, b)) {
        return Some(compare(cond, a, b, func.dfg.value_type(a_of(func, inst)).bits()));
    }
    let (a, n) = (func.dfg.resolve_aliases(a), constant(func, b)?);
    let bits = func.dfg.value_type(a).bits();
    let n = n as u64 & (u64::MAX >> (64 - bits.min(64)));
    match cond {
        IntCC::Equal | IntCC::NotEqual if n == 0 && is_pointer(func, a, DEPTH_MAX) => Some(cond == IntCC::NotEqual),
        IntCC::UnsignedLessThan if upper_bound(func, a, DEPTH_MAX) < n => Some(true),
        IntCC::UnsignedLessThanOrEqual if upper_bound(func, a, DEPTH_MAX) <= n => Some(true),
        IntCC::UnsignedGreaterThan if upper_bound(func, a, DEPTH_MAX) <= n => Some(false),
        IntCC::UnsignedGreaterThanOrEqual if upper_bound(func, a, DEPTH_MAX) < n => Some(false),
        _ => None,
    }
}

fn a_of(func: &ir::Function, compare: Inst) -> Value {
    func.dfg.inst_args(compare)[0]
}

/// Both operands as numbers of so many bits.
fn compare(cond: IntCC, a: u64, b: u64, bits: u32) -> bool {
    let signed = |v: u64| (v << (64 - bits)) as i64;
    match cond {
        IntCC::Equal => a == b,
        IntCC::NotEqual => a != b,
        IntCC::UnsignedLessThan => a < b,
        IntCC::UnsignedLessThanOrEqual => a <= b,
        IntCC::UnsignedGreaterThan => a > b,
        IntCC::UnsignedGreaterThanOrEqual => a >= b,
        IntCC::SignedLessThan => signed(a) < signed(b),
        IntCC::SignedLessThanOrEqual => signed(a) <= signed(b),
        IntCC::SignedGreaterThan => signed(a) > signed(b),
        IntCC::SignedGreaterThanOrEqual => signed(a) >= signed(b),
    }
}

/// Values that are one number, by value; counters of loops that were taken apart.
#[derive(Default)]
struct Exact(HashMap<Value, Option<u64>>);

impl Exact {
    fn of(&mut self, func: &ir::Function, v: Value) -> Option<u64> {
        let v = func.dfg.resolve_aliases(v);
        if let Some(known) = self.0.get(&v) {
            return *known;
        }
        // For what refers to itself on the way, and chains beyond the stack: unknown.
        self.0.insert(v, None);
        let found = self.compute(func, v);
        self.0.insert(v, found);
        found
    }

    fn compute(&mut self, func: &ir::Function, v: Value) -> Option<u64> {
        let ty = func.dfg.value_type(v);
        if !ty.is_int() || ty.bits() > 64 {
            return None;
        }
        let all = u64::MAX >> (64 - ty.bits());
        let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
        Some(match func.dfg.insts[inst] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => imm.bits() as u64 & all,
            InstructionData::Unary { opcode: Opcode::Uextend | Opcode::Ireduce, arg } => self.of(func, arg)? & all,
            InstructionData::Binary { opcode, args: [a, b] } => {
                let (a, b) = (self.of(func, a)?, self.of(func, b)?);
                match opcode {
                    Opcode::Iadd => a.wrapping_add(b) & all,
                    Opcode::Isub => a.wrapping_sub(b) & all,
                    Opcode::Band => a & b,
                    Opcode::Ishl => (a << (b & u64::from(ty.bits() - 1))) & all,
                    Opcode::Ushr => a >> (b & u64::from(ty.bits() - 1)),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
}

/// A pointer into a packet: the start of its chunk and a small distance. Chunks do not lie at the end of the address space.
fn is_pointer(func: &ir::Function, v: Value, depth: u32) -> bool {
    let v = func.dfg.resolve_aliases(v);
    let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return false };
    if depth == 0 {
        return false;
    }
    let small = |v: Value| {
        constant(func, v)
            .map_or_else(|| upper_bound(func, v, depth) < DISTANCE_MAX, |c| c.unsigned_abs() < DISTANCE_MAX)
    };
    match func.dfg.insts[inst] {
        // The address of a map's memory: no sum of small numbers brings it to zero.
        InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => (1 << 40..1 << 62).contains(&imm.bits()),
        InstructionData::Load { opcode: Opcode::Load, flags, offset, .. } => {
            let flags = func.dfg.mem_flags[flags];
            let kind = flags.alias_region().map(|r| func.dfg.alias_regions[r].user_id);
            kind == Some(region::DESCRIPTOR) && flags.readonly() && i32::from(offset) == descriptor::BASE
        }
        InstructionData::Binary { opcode: Opcode::Iadd, args: [a, b] } => {
            (is_pointer(func, a, depth - 1) && small(b)) || (is_pointer(func, b, depth - 1) && small(a))
        }
        _ => false,
    }
}

/// A number that a value never exceeds, as far as the operations that made it tell.
pub(crate) fn upper_bound(func: &ir::Function, v: Value, depth: u32) -> u64 {
    let dfg = &func.dfg;
    let v = dfg.resolve_aliases(v);
    let all = u64::MAX >> (64 - dfg.value_type(v).bits().clamp(1, 64));
    let ValueDef::Result(inst, 0) = dfg.value_def(v) else { return all };
    if depth == 0 {
        return all;
    }
    let of = |v| upper_bound(func, v, depth - 1);
    let bound = match dfg.insts[inst] {
        InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => imm.bits() as u64 & all,
        InstructionData::Load { opcode: Opcode::Uload8, .. } => 0xff,
        InstructionData::Load { opcode: Opcode::Uload16, .. } => 0xffff,
        InstructionData::Load { opcode: Opcode::Uload32, .. } => 0xffff_ffff,
        InstructionData::Unary { opcode: Opcode::Uextend, arg } => of(arg),
        // What does not fit may become anything that does.
        InstructionData::Unary { opcode: Opcode::Ireduce, arg } => of(arg),
        InstructionData::Binary { opcode: Opcode::Band, args: [a, b] } => of(a).min(of(b)),
        // No bit above the highest of both.
        InstructionData::Binary { opcode: Opcode::Bor | Opcode::Bxor, args: [a, b] } => {
            let bits = of(a) | of(b);
            u64::MAX.checked_shr(bits.leading_zeros()).unwrap_or(0)
        }
        InstructionData::Binary { opcode: Opcode::Iadd, args: [a, b] } => of(a).saturating_add(of(b)),
        InstructionData::Binary { opcode: Opcode::Ushr, args: [a, by] } => {
            let by = constant(func, by).map_or(0, |by| by as u32 & (dfg.value_type(v).bits() - 1));
            of(a) >> by
        }
        InstructionData::Binary { opcode: Opcode::Ishl, args: [a, by] } => match constant(func, by) {
            Some(by) => {
                let by = by as u32 & (dfg.value_type(v).bits() - 1);
                if of(a).leading_zeros() >= by { of(a) << by } else { all }
            }
            None => all,
        },
        _ => all,
    };
    if bound > all { all } else { bound }
}

fn remove_unreachable(func: &mut ir::Function) {
    let Some(entry) = func.layout.entry_block() else { return };
    let mut seen = std::collections::HashSet::from([entry]);
    let mut work = vec![entry];
    while let Some(block) = work.pop() {
        let Some(last) = func.layout.last_inst(block) else { continue };
        for to in targets(func, last) {
            if seen.insert(to) {
                work.push(to);
            }
        }
    }
    for block in func.layout.blocks().collect::<Vec<_>>() {
        if !seen.contains(&block) {
            func.layout.remove_block_and_insts(block);
        }
    }
}

fn targets(func: &ir::Function, last: Inst) -> Vec<Block> {
    let calls = func.dfg.insts[last].branch_destination(&func.dfg.jump_tables, &func.dfg.exception_tables);
    calls.iter().map(|c| c.block(&func.dfg.value_lists)).collect()
}

/// Where both ways of a branch meet at once, with nothing but constants that differ: a choice of numbers, which no processor
/// guesses wrong.
fn meet(func: &ir::Function, edges: &[(Block, Vec<BlockArg>); 2]) -> Option<(Block, Vec<(Value, Value)>)> {
    let [a, b] = [through(func, &edges[0]), through(func, &edges[1])];
    if a.0 != b.0 || a.1.is_empty() {
        return None;
    }
    let pairs = a.1.iter().zip(&b.1).map(|pair| match pair {
        (BlockArg::Value(x), BlockArg::Value(y)) => {
            let (x, y) = (func.dfg.resolve_aliases(*x), func.dfg.resolve_aliases(*y));
            (x == y || (constant(func, x).is_some() && constant(func, y).is_some())).then_some((x, y))
        }
        _ => None,
    });
    Some((a.0, pairs.collect::<Option<Vec<_>>>()?))
}

/// Where an edge leads through blocks that hold constants and a jump only.
fn through(func: &ir::Function, edge: &(Block, Vec<BlockArg>)) -> (Block, Vec<BlockArg>) {
    let (block, args) = edge;
    let only = |inst: &Inst| {
        matches!(func.dfg.insts[*inst], InstructionData::UnaryImm { opcode: Opcode::Iconst, .. })
            || matches!(func.dfg.insts[*inst], InstructionData::Jump { .. })
    };
    let last = func.layout.last_inst(*block);
    if args.is_empty()
        && func.dfg.block_params(*block).is_empty()
        && func.layout.block_insts(*block).all(|i| only(&i))
        && let Some(InstructionData::Jump { destination, .. }) = last.map(|l| func.dfg.insts[l])
    {
        let lists = &func.dfg.value_lists;
        return (destination.block(lists), destination.args(lists).collect());
    }
    edge.clone()
}

/// Makes constants that branches hand on in blocks of their own, or chooses between them where nothing else differs.
pub(crate) fn sink_constants(func: &mut ir::Function) {
    for block in func.layout.blocks().collect::<Vec<_>>() {
        let Some(last) = func.layout.last_inst(block) else { continue };
        let InstructionData::Brif { arg, blocks, .. } = func.dfg.insts[last] else { continue };
        let lists = &func.dfg.value_lists;
        let edges = blocks.map(|b| (b.block(lists), b.args(lists).collect::<Vec<BlockArg>>()));
        let is_constant = |a: &BlockArg| matches!(a, BlockArg::Value(v) if constant(func, *v).is_some());
        let loc = func.srcloc(last);
        if let Some((dest, pairs)) = meet(func, &edges) {
            let mut at = FuncCursor::new(func).at_inst(last).with_srcloc(loc);
            let mut made = vec![];
            for (a, b) in pairs {
                made.push(match (constant(at.func, a), constant(at.func, b)) {
                    (Some(x), Some(y)) if x != y => {
                        let ty = at.func.dfg.value_type(a);
                        let (x, y) = (at.ins().iconst(ty, x), at.ins().iconst(ty, y));
                        BlockArg::Value(at.ins().select(arg, x, y))
                    }
                    (Some(x), Some(_)) => {
                        let ty = at.func.dfg.value_type(a);
                        BlockArg::Value(at.ins().iconst(ty, x))
                    }
                    _ => BlockArg::Value(a),
                });
            }
            at.ins().jump(dest, &made);
            func.layout.remove_inst(last);
            continue;
        }
        if !edges.iter().any(|(_, args)| args.iter().any(is_constant)) {
            continue;
        }
        let mut to = vec![];
        for (dest, args) in edges {
            if !args.iter().any(|a| matches!(a, BlockArg::Value(v) if constant(func, *v).is_some())) {
                to.push((dest, args));
                continue;
            }
            let between = func.dfg.make_block();
            func.layout.insert_block_after(between, block);
            let mut at = FuncCursor::new(func).at_bottom(between).with_srcloc(loc);
            let mut made = vec![];
            for a in args {
                made.push(match a {
                    BlockArg::Value(v) => match constant(at.func, v) {
                        Some(c) => {
                            let ty: types::Type = at.func.dfg.value_type(v);
                            BlockArg::Value(at.ins().iconst(ty, c))
                        }
                        None => a,
                    },
                    other => other,
                });
            }
            at.ins().jump(dest, &made);
            to.push((between, vec![]));
        }
        let mut at = FuncCursor::new(func).at_inst(last).with_srcloc(loc);
        at.ins().brif(arg, to[0].0, &to[0].1, to[1].0, &to[1].1);
        func.layout.remove_inst(last);
    }
    remove_unreachable(func);
}
