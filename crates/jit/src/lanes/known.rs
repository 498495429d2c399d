//! `known-branches`: branches that go one way, by what the values say themselves.
//!
//! The mid-end folds branches on constants only. Two kinds stand in nearly every program and are decided by how their
//! operands were made: a pointer into the packet is compared with null (clang does not know that a packet is never at
//! address zero), and an index is compared with the size of a table that its type or a mask keeps it below.
//!
//! Constants that a branch hands to the block it goes to are made on the way there, not in front of the branch: nearly every
//! check goes to an end with its own verdict.

use std::collections::hash_map::Entry;

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::{EntitySet, SecondaryMap};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    self, Block, BlockArg, BlockCall, Inst, InstBuilder, InstructionData, Opcode, Value, ValueDef, types,
};
use rustc_hash::FxHashMap;
use xway_packet::descriptor;

use super::value::constant;
use crate::lower::region;

/// Operations that are looked through.
const DEPTH_MAX: u32 = 12;
/// What a pointer is moved by stays below.
const DISTANCE_MAX: u64 = 1 << 32;

/// Makes jumps of branches that go one way. Whether there were any.
pub(super) fn fold(func: &mut ir::Function, incoming: &Incoming) -> bool {
    let mut exact = Exact::default();
    let mut folded = false;
    for block in func.layout.blocks().collect::<Vec<_>>() {
        drop_masks(func, block, incoming);
        let Some(last) = func.layout.last_inst(block) else { continue };
        let InstructionData::Brif { arg, blocks: [taken, fall], .. } = func.dfg.insts[last] else { continue };
        let Some(goes) = decided(func, arg, &mut exact, incoming) else { continue };
        let to = if goes { taken } else { fall };
        let (dest, args) = (to.block(&func.dfg.value_lists), to.args(&func.dfg.value_lists).collect::<Vec<BlockArg>>());
        let loc = func.srcloc(last);
        FuncCursor::new(func).at_inst(last).with_srcloc(loc).ins().jump(dest, &args);
        func.layout.remove_inst(last);
        folded = true;
    }
    // What lowering has made and nothing leads to goes too.
    remove_unreachable(func);
    folded
}

/// Whether a condition always holds, or never.
fn decided(func: &ir::Function, condition: Value, exact: &mut Exact, incoming: &Incoming) -> Option<bool> {
    let v = func.dfg.resolve_aliases(condition);
    let search = || Search::new(func, Some(incoming));
    if search().is_pointer(v, DEPTH_MAX) {
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
    let most = || search().upper_bound(a, DEPTH_MAX);
    match cond {
        IntCC::Equal | IntCC::NotEqual if n == 0 && search().is_pointer(a, DEPTH_MAX) => Some(cond == IntCC::NotEqual),
        IntCC::Equal | IntCC::NotEqual if most() < n => Some(cond == IntCC::NotEqual),
        IntCC::UnsignedLessThan if most() < n => Some(true),
        IntCC::UnsignedLessThanOrEqual if most() <= n => Some(true),
        IntCC::UnsignedGreaterThan if most() <= n => Some(false),
        IntCC::UnsignedGreaterThanOrEqual if most() < n => Some(false),
        _ => None,
    }
}

/// Masks of low bits that take nothing away.
fn drop_masks(func: &mut ir::Function, block: Block, incoming: &Incoming) {
    let mut next = func.layout.first_inst(block);
    while let Some(inst) = next {
        next = func.layout.next_inst(inst);
        let InstructionData::Binary { opcode: Opcode::Band, args: [a, mask] } = func.dfg.insts[inst] else { continue };
        let Some(mask) = constant(func, mask).map(|m| m as u64).filter(|m| m & m.wrapping_add(1) == 0) else {
            continue;
        };
        if Search::new(func, Some(incoming)).upper_bound(a, DEPTH_MAX) <= mask {
            super::replace(func, inst, a);
        }
    }
}

/// What edges hand on to the parameters of blocks.
pub(super) struct Incoming {
    /// Where a parameter's begin and end among all.
    places: SecondaryMap<Value, (u32, u32)>,
    all: Vec<Value>,
}

impl Incoming {
    /// As the function is now.
    pub fn of(func: &ir::Function) -> Incoming {
        let mut places: SecondaryMap<Value, (u32, u32)> = super::for_values(func);
        let mut params = vec![];
        let mut count = 0;
        handed_on(func, |param, _| {
            if places[param].1 == 0 {
                params.push(param);
            }
            places[param].1 += 1;
            count += 1;
        });
        let mut next = 0;
        for param in params {
            let many = places[param].1;
            places[param] = (next, next);
            next += many;
        }
        let mut all = vec![Value::from_u32(0); count];
        handed_on(func, |param, from| {
            let end = &mut places[param].1;
            all[*end as usize] = from;
            *end += 1;
        });
        Incoming { places, all }
    }

    /// The values that a parameter may be; `None` for those of the function.
    pub fn values(&self, param: Value) -> Option<&[Value]> {
        let (start, end) = self.places[param];
        (start < end).then(|| &self.all[start as usize..end as usize])
    }
}

/// Each parameter of a block with each value that an edge hands it.
fn handed_on(func: &ir::Function, mut each: impl FnMut(Value, Value)) {
    let dfg = &func.dfg;
    for block in func.layout.blocks() {
        let Some(last) = func.layout.last_inst(block) else { continue };
        for call in dfg.insts[last].branch_destination(&dfg.jump_tables, &dfg.exception_tables) {
            let params = dfg.block_params(call.block(&dfg.value_lists));
            for (param, arg) in params.iter().zip(call.args(&dfg.value_lists)) {
                // What is no value may be anything, as a parameter of the function is.
                each(*param, if let BlockArg::Value(v) = arg { v } else { *param });
            }
        }
    }
}

/// A walk along what values were made of.
struct Search<'a> {
    func: &'a ir::Function,
    incoming: Option<&'a Incoming>,
    /// Steps that are left: blocks that meet again and again would make it endless.
    left: std::cell::Cell<u32>,
}

/// Steps of one walk.
const STEPS_MAX: u32 = 200;

fn a_of(func: &ir::Function, compare: Inst) -> Value {
    func.dfg.inst_args(compare)[0]
}

/// Both operands as numbers of so many bits.
pub(crate) fn compare(cond: IntCC, a: u64, b: u64, bits: u32) -> bool {
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
struct Exact(FxHashMap<Value, Option<u64>>);

impl Exact {
    /// A chain is as long as a program, and several times that where loops were taken apart: it is not walked on the stack.
    fn of(&mut self, func: &ir::Function, v: Value) -> Option<u64> {
        let v = func.dfg.resolve_aliases(v);
        if let Some(known) = self.0.get(&v) {
            return *known;
        }
        let mut work = vec![v];
        while let Some(v) = work.last().copied() {
            let before = work.len();
            if let Entry::Vacant(entry) = self.0.entry(v) {
                // For what refers to itself on the way: unknown.
                entry.insert(None);
                work.extend(operands(func, v).into_iter().flatten().filter(|of| !self.0.contains_key(of)));
            }
            if work.len() == before {
                work.pop();
                let found = self.compute(func, v);
                self.0.insert(v, found);
            }
        }
        self.0[&v]
    }

    /// What a value is by what is known of its operands.
    fn compute(&self, func: &ir::Function, v: Value) -> Option<u64> {
        let ty = func.dfg.value_type(v);
        if !ty.is_int() || ty.bits() > 64 {
            return None;
        }
        let all = u64::MAX >> (64 - ty.bits());
        let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
        let of = |v| self.0.get(&func.dfg.resolve_aliases(v)).copied().flatten();
        Some(match func.dfg.insts[inst] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => imm.bits() as u64 & all,
            InstructionData::Unary { opcode: Opcode::Uextend | Opcode::Ireduce, arg } => of(arg)? & all,
            InstructionData::Binary { opcode, args: [a, b] } => {
                let (a, b) = (of(a)?, of(b)?);
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

/// What a value is made of, where [`Exact::compute`] looks at it.
fn operands(func: &ir::Function, v: Value) -> [Option<Value>; 2] {
    let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return [None; 2] };
    let of = |v| Some(func.dfg.resolve_aliases(v));
    match func.dfg.insts[inst] {
        InstructionData::Unary { opcode: Opcode::Uextend | Opcode::Ireduce, arg } => [of(arg), None],
        InstructionData::Binary {
            opcode: Opcode::Iadd | Opcode::Isub | Opcode::Band | Opcode::Ishl | Opcode::Ushr,
            args: [a, b],
        } => [of(a), of(b)],
        _ => [None; 2],
    }
}

impl<'a> Search<'a> {
    fn new(func: &'a ir::Function, incoming: Option<&'a Incoming>) -> Search<'a> {
        Search { func, incoming, left: std::cell::Cell::new(STEPS_MAX) }
    }

    /// One step less; false when there are none.
    fn step(&self, depth: u32) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0 && depth > 0
    }

    /// What a parameter may be, when all of it is known.
    fn handed(&self, param: Value) -> Option<&'a [Value]> {
        self.incoming.and_then(|incoming| incoming.values(param))
    }

    /// A pointer into a packet: the start of its chunk and a small distance. Chunks do not lie at the end of the address space.
    fn is_pointer(&self, v: Value, depth: u32) -> bool {
        let func = self.func;
        let v = func.dfg.resolve_aliases(v);
        if !self.step(depth) {
            return false;
        }
        let inst = match func.dfg.value_def(v) {
            ValueDef::Result(inst, 0) => inst,
            ValueDef::Param(..) => {
                return self.handed(v).is_some_and(|from| from.iter().all(|v| self.is_pointer(*v, depth - 1)));
            }
            _ => return false,
        };
        let small = |v: Value| {
            constant(func, v)
                .map_or_else(|| self.upper_bound(v, depth) < DISTANCE_MAX, |c| c.unsigned_abs() < DISTANCE_MAX)
        };
        match func.dfg.insts[inst] {
            // The address of a map's memory: no sum of small numbers brings it to zero.
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => (1 << 40..1 << 62).contains(&imm.bits()),
            InstructionData::Load { opcode: Opcode::Load, flags, offset, .. } => {
                let flags = func.dfg.mem_flags[flags];
                let kind = flags.alias_region().map(|r| func.dfg.alias_regions[r].user_id);
                kind == Some(region::BASES)
                    || kind == Some(region::DESCRIPTOR) && flags.readonly() && i32::from(offset) == descriptor::BASE
            }
            InstructionData::Binary { opcode: Opcode::Iadd, args: [a, b] } => {
                (self.is_pointer(a, depth - 1) && small(b)) || (self.is_pointer(b, depth - 1) && small(a))
            }
            _ => false,
        }
    }

    /// A number that a value never exceeds, as far as the operations that made it tell.
    fn upper_bound(&self, v: Value, depth: u32) -> u64 {
        let dfg = &self.func.dfg;
        let v = dfg.resolve_aliases(v);
        let all = u64::MAX >> (64 - dfg.value_type(v).bits().clamp(1, 64));
        if !self.step(depth) {
            return all;
        }
        let of = |v| self.upper_bound(v, depth - 1);
        let inst = match dfg.value_def(v) {
            ValueDef::Result(inst, 0) => inst,
            ValueDef::Param(..) => {
                let from = self.handed(v).unwrap_or_default();
                return from.iter().map(|v| of(*v)).max().unwrap_or(all).min(all);
            }
            _ => return all,
        };
        let bound = match dfg.insts[inst] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => imm.bits() as u64 & all,
            InstructionData::Load { opcode: Opcode::Uload8, .. } => 0xff,
            InstructionData::Load { opcode: Opcode::Uload16, .. } => 0xffff,
            InstructionData::Load { opcode: Opcode::Uload32, .. } => 0xffff_ffff,
            InstructionData::Unary { opcode: Opcode::Uextend, arg } => of(arg),
            // What does not fit may become anything that does.
            InstructionData::Unary { opcode: Opcode::Ireduce, arg } => of(arg),
            InstructionData::Binary { opcode: Opcode::Band, args: [a, b] } => {
                // The mask first: what it is applied to may use up all steps.
                let mask = of(b);
                of(a).min(mask)
            }
            // No bit above the highest of both.
            InstructionData::Binary { opcode: Opcode::Bor | Opcode::Bxor, args: [a, b] } => {
                let bits = of(a) | of(b);
                u64::MAX.checked_shr(bits.leading_zeros()).unwrap_or(0)
            }
            InstructionData::Binary { opcode: Opcode::Iadd, args: [a, b] } => of(a).saturating_add(of(b)),
            InstructionData::Binary { opcode: Opcode::Ushr, args: [a, by] } => {
                let by = constant(self.func, by).map_or(0, |by| by as u32 & (dfg.value_type(v).bits() - 1));
                of(a) >> by
            }
            InstructionData::Binary { opcode: Opcode::Ishl, args: [a, by] } => match constant(self.func, by) {
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
}

/// A number that a value never exceeds, in a function that is still being made.
pub(crate) fn upper_bound(func: &ir::Function, v: Value) -> u64 {
    Search::new(func, None).upper_bound(v, DEPTH_MAX)
}

/// The same in a whole one, where it is known what blocks get.
pub(super) fn upper_bound_in(func: &ir::Function, v: Value, incoming: &Incoming) -> u64 {
    Search::new(func, Some(incoming)).upper_bound(v, DEPTH_MAX)
}

fn remove_unreachable(func: &mut ir::Function) {
    let Some(entry) = func.layout.entry_block() else { return };
    let mut seen = EntitySet::with_capacity(func.dfg.num_blocks());
    seen.insert(entry);
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
        if !seen.contains(block) {
            func.layout.remove_block_and_insts(block);
        }
    }
}

fn targets(func: &ir::Function, last: Inst) -> impl Iterator<Item = Block> {
    let calls = func.dfg.insts[last].branch_destination(&func.dfg.jump_tables, &func.dfg.exception_tables);
    calls.iter().map(|c| c.block(&func.dfg.value_lists))
}

/// Where both ways of a branch meet at once, with nothing but constants that differ: a choice of numbers, which no processor
/// guesses wrong.
fn meet(func: &ir::Function, edges: [BlockCall; 2]) -> Option<(Block, Vec<(Value, Value)>)> {
    let lists = &func.dfg.value_lists;
    let [a, b] = edges.map(|edge| through(func, edge));
    if a.block(lists) != b.block(lists) || a.len(lists) == 0 {
        return None;
    }
    let pairs = a.args(lists).zip(b.args(lists)).map(|pair| match pair {
        (BlockArg::Value(x), BlockArg::Value(y)) => {
            let (x, y) = (func.dfg.resolve_aliases(x), func.dfg.resolve_aliases(y));
            (x == y || (constant(func, x).is_some() && constant(func, y).is_some())).then_some((x, y))
        }
        _ => None,
    });
    Some((a.block(lists), pairs.collect::<Option<Vec<_>>>()?))
}

/// Where an edge leads through blocks that hold constants and a jump only.
pub(super) fn through(func: &ir::Function, edge: BlockCall) -> BlockCall {
    let lists = &func.dfg.value_lists;
    let block = edge.block(lists);
    let only = |inst: &Inst| {
        matches!(func.dfg.insts[*inst], InstructionData::UnaryImm { opcode: Opcode::Iconst, .. })
            || matches!(func.dfg.insts[*inst], InstructionData::Jump { .. })
    };
    if edge.len(lists) == 0
        && func.dfg.block_params(block).is_empty()
        && func.layout.block_insts(block).all(|i| only(&i))
        && let Some(last) = func.layout.last_inst(block)
        && let InstructionData::Jump { destination, .. } = func.dfg.insts[last]
    {
        return destination;
    }
    edge
}

/// Makes constants that branches hand on in blocks of their own, or chooses between them where nothing else differs. Ways out with the same
/// constants share a block: less code, and fewer blocks for Cranelift.
pub(super) fn sink_constants(func: &mut ir::Function) {
    let mut shared = FxHashMap::default();
    let mut chosen = false;
    for block in func.layout.blocks().collect::<Vec<_>>() {
        let Some(last) = func.layout.last_inst(block) else { continue };
        let InstructionData::Brif { arg, blocks, .. } = func.dfg.insts[last] else { continue };
        let loc = func.srcloc(last);
        if let Some((dest, pairs)) = meet(func, blocks) {
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
            chosen = true;
            continue;
        }
        let lists = &func.dfg.value_lists;
        let hands_number = |a: BlockArg| matches!(a, BlockArg::Value(v) if constant(func, v).is_some());
        let ends = blocks.iter().filter(|edge| edge.args(lists).any(hands_number)).count();
        if ends == 0 {
            continue;
        }
        let edges = blocks.map(|b| (b.block(lists), b.args(lists).collect::<Vec<BlockArg>>()));
        // Constants, and values that are none.
        let known = |a: &BlockArg| match *a {
            BlockArg::Value(v) => Some(constant(func, v).ok_or_else(|| func.dfg.resolve_aliases(v))),
            _ => None,
        };
        let handed = edges.each_ref().map(|(_, args)| args.iter().map(known).collect::<Vec<_>>());
        let is_number = |a: &Option<Result<i64, Value>>| matches!(a, Some(Ok(_)));
        let to = edges.into_iter().zip(handed).map(|((dest, args), handed)| {
            if !handed.iter().any(is_number) {
                return (dest, args);
            }
            // The way on falls through; who leaves early jumps in any case. What a cold block leads to is not in its way.
            let cold = ends == 1 || func.layout.is_cold(block);
            // A value that two branches hand on is there in front of both, and so where they meet.
            let whole: Option<Vec<_>> = handed.iter().copied().collect();
            let key = whole.filter(|_| cold).map(|whole| (dest, whole));
            if let Some(between) = key.as_ref().and_then(|key| shared.get(key)) {
                return (*between, vec![]);
            }
            let between = func.dfg.make_block();
            func.layout.insert_block_after(between, block);
            if cold {
                func.layout.set_cold(between);
            }
            let mut at = FuncCursor::new(func).at_bottom(between).with_srcloc(loc);
            let mut made = vec![];
            for (a, known) in args.into_iter().zip(handed) {
                made.push(match (a, known) {
                    (BlockArg::Value(v), Some(Ok(number))) => {
                        let ty: types::Type = at.func.dfg.value_type(v);
                        BlockArg::Value(at.ins().iconst(ty, number))
                    }
                    _ => a,
                });
            }
            at.ins().jump(dest, &made);
            shared.extend(key.map(|key| (key, between)));
            (between, vec![])
        });
        let to: Vec<(Block, Vec<BlockArg>)> = to.collect();
        let mut at = FuncCursor::new(func).at_inst(last).with_srcloc(loc);
        at.ins().brif(arg, to[0].0, &to[0].1, to[1].0, &to[1].1);
        func.layout.remove_inst(last);
    }
    if chosen {
        remove_unreachable(func);
    }
}
