//! `value-numbering`: what is computed twice is computed once, and what is computed of constants not at all.
//!
//! Cranelift's mid-end does this and far more, at half a microsecond for each instruction of a program: a fifth of all that compiling
//! took. The passes in front of it leave little of what it is for. This one goes once over the instructions in the order of the
//! dominator tree, with one table (Click, "Global Code Motion, Global Value Numbering", PLDI 1995; Briggs, Cooper and Simpson, "Value
//! Numbering", 1997), and once back:
//!
//! - operations on constants, and those that change nothing, are what they give (`simplify`);
//! - an operation that stands on every way here already is that one, loads of memory that nobody has written since among them;
//! - what the loop over frames does not change is computed in front of it;
//! - what one other block asks for alone, or two that do not lead to one another, is computed there, and what nobody asks for not at all
//!   (`place`).
//!
//! **Functions that divide are Cranelift's**, which multiplies instead, and those with loops that have several ways in.
//!
//! Equal numbers are equal values wherever both are there. A load is replaced by another only where that one is on every way here: two
//! loads of memory that others may write are two numbers, whatever they have in common.

mod place;
mod simplify;
#[cfg(test)]
mod tests;

use cranelift_codegen::Context;
use cranelift_codegen::dominator_tree::DominatorTree;
use cranelift_codegen::entity::packed_option::PackedOption;
use cranelift_codegen::entity::{EntityRef, SecondaryMap};
use cranelift_codegen::flowgraph::ControlFlowGraph;
use cranelift_codegen::ir::{self, Block, Inst, InstructionData, Opcode, Type, Value, ValueDef};
use cranelift_codegen::loop_analysis::{Loop, LoopAnalysis};
use rustc_hash::FxHashMap;

use crate::lanes::{constant, for_values};

use simplify::{Simpler, number};

/// What has become of the edges between a function's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edges {
    AsTheyWere,
    /// Some are no more: its graphs are another function's.
    Gone,
}

/// The pass over a function that has no aliases, with its graphs. `None`: the function is left to Cranelift.
pub(crate) fn run(context: &mut Context) -> Option<Edges> {
    let Context { func, cfg, domtree, loop_analysis, .. } = context;
    let order: Vec<Block> = domtree.cfg_rpo().copied().collect();
    let divides = |n: usize| {
        let opcode = func.dfg.insts[Inst::new(n)].opcode();
        matches!(opcode, Opcode::Udiv | Opcode::Urem | Opcode::Sdiv | Opcode::Srem)
    };
    let known = func.dfg.alias_regions.len() < Memory::REGIONS;
    if !known || (0..func.dfg.num_insts()).any(divides) {
        return None;
    }
    loop_analysis.compute(func, cfg, domtree);
    let loops = Loops::of(func, domtree, loop_analysis, &order)?;
    let mut pass = Pass {
        cfg,
        domtree,
        found: FxHashMap::default(),
        numbers: for_values(func),
        instead: for_values(func),
        states: SecondaryMap::with_capacity(func.dfg.num_blocks()),
        memory: Memory::default(),
        writes: Memory::REGIONS as u32,
        entry: order[0],
        here: order[0],
        in_loop: false,
        edges: Edges::AsTheyWere,
    };
    pass.found.reserve(func.dfg.num_insts());
    for block in &order {
        pass.block(func, *block, &loops);
    }
    let edges = pass.edges;
    place::run(func, domtree, &order, &loops);
    Some(edges)
}

/// The loops of a function.
struct Loops<'a> {
    analysis: &'a LoopAnalysis,
    /// Kinds of memory that each writes, as bits.
    writes: SecondaryMap<Loop, u32>,
    /// The function's first block leads to one at once, and is where what it does not change is computed.
    behind_entry: bool,
}

impl<'a> Loops<'a> {
    /// `None` where some have several ways in.
    fn of(
        func: &ir::Function,
        domtree: &DominatorTree,
        analysis: &'a LoopAnalysis,
        order: &[Block],
    ) -> Option<Loops<'a>> {
        let mut place: SecondaryMap<Block, u32> = SecondaryMap::with_capacity(func.dfg.num_blocks());
        for (n, block) in order.iter().enumerate() {
            place[*block] = n as u32;
        }
        let mut loops = Loops { analysis, writes: SecondaryMap::new(), behind_entry: false };
        for block in order {
            let enters = |to: &Block| place[*to] <= place[*block] && !domtree.block_dominates(*to, *block);
            if successors(func, *block).any(|to| enters(&to)) {
                return None;
            }
            let mut inside = analysis.innermost_loop(*block);
            // The outermost is the one over frames, where calls write anything.
            if inside.is_none_or(|inner| loops.is_outermost(inner)) {
                continue;
            }
            let by = |inst: Inst| written_by(func, func.dfg.insts[inst]);
            let written = func.layout.block_insts(*block).fold(0, |written, inst| written | by(inst));
            while let Some(one) = inside.filter(|one| !loops.is_outermost(*one)) {
                loops.writes[one] |= written;
                inside = analysis.loop_parent(one);
            }
        }
        let entry = order[0];
        loops.behind_entry = successors(func, entry).any(|to| analysis.is_loop_header(to).is_some());
        Some(loops)
    }

    fn is_outermost(&self, one: Loop) -> bool {
        self.analysis.loop_parent(one).is_none()
    }

    /// Kinds of memory that are written in the loop that a block begins, as bits.
    fn written_behind(&self, block: Block) -> u32 {
        match self.analysis.is_loop_header(block) {
            Some(one) if self.is_outermost(one) => u32::MAX,
            Some(one) => self.writes[one],
            None => 0,
        }
    }

    /// Whether what is computed in one block may be computed in another behind it instead: not once for each turn of a loop that it is not
    /// in.
    fn may_move(&self, from: Block, to: Block) -> bool {
        let (here, there) = (self.analysis.innermost_loop(from), self.analysis.innermost_loop(to));
        here == there || self.analysis.loop_level(to).level() < self.analysis.loop_level(from).level()
    }
}

/// Kinds of memory that an instruction writes, as bits. What says nothing about itself may be any.
fn written_by(func: &ir::Function, data: InstructionData) -> u32 {
    match data {
        InstructionData::Store { flags, .. } if region(func, flags) != Memory::ANY => {
            1 << region(func, flags) | 1 << Memory::ANY
        }
        data if data.opcode().can_store() || is_fence(data.opcode()) => u32::MAX,
        _ => 0,
    }
}

fn successors(func: &ir::Function, block: Block) -> impl Iterator<Item = Block> {
    let dfg = &func.dfg;
    let last = func.layout.last_inst(block);
    let calls = last.map(|last| dfg.insts[last].branch_destination(&dfg.jump_tables, &dfg.exception_tables));
    calls.into_iter().flatten().map(|call| call.block(&dfg.value_lists))
}

/// What is computed: an operation on numbers, with the state of the memory that it reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    data: Data,
    ty: Type,
    memory: u32,
}

/// An instruction whose operands stand in it, which makes it comparable.
#[derive(Clone, Copy, PartialEq, Hash)]
struct Data(InstructionData);

impl Eq for Data {}

/// The last instruction with a key that was come by.
#[derive(Clone, Copy)]
struct Found {
    value: Value,
    block: Block,
}

/// For each kind of memory the number of what was written there last.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Memory([u32; Memory::REGIONS]);

impl Memory {
    /// Kinds of memory; the last stands for all, for accesses that say nothing.
    const REGIONS: usize = 16;
    const ANY: usize = Memory::REGIONS - 1;

    /// Another number for each kind of which these two differ.
    fn meet(&mut self, other: &Memory, writes: &mut u32) {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            if *mine != other {
                *writes += 1;
                *mine = *writes;
            }
        }
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory(std::array::from_fn(|region| region as u32))
    }
}

struct Pass<'a> {
    cfg: &'a ControlFlowGraph,
    domtree: &'a DominatorTree,
    found: FxHashMap<Key, Found>,
    /// The value whose number a value has; its own where there is none.
    numbers: SecondaryMap<Value, PackedOption<Value>>,
    /// What stands for a value that is no more.
    instead: SecondaryMap<Value, PackedOption<Value>>,
    /// Memory at the beginning of a block, as far as ways there have been gone.
    states: SecondaryMap<Block, Option<Box<Memory>>>,
    memory: Memory,
    writes: u32,
    entry: Block,
    here: Block,
    /// The block is not the first one, behind which there is a loop.
    in_loop: bool,
    edges: Edges,
}

impl Pass<'_> {
    fn block(&mut self, func: &mut ir::Function, block: Block, loops: &Loops<'_>) {
        self.here = block;
        self.in_loop = loops.behind_entry && loops.analysis.innermost_loop(block).is_some();
        if let Some(memory) = self.states[block].take() {
            self.memory = *memory;
        }
        self.forget(loops.written_behind(block));
        // What the pass makes itself it does not come by.
        let mut next = func.layout.first_inst(block);
        self.params(func, block);
        while let Some(inst) = next {
            next = func.layout.next_inst(inst);
            self.inst(func, inst);
        }
        let to: Vec<Block> = successors(func, block).collect();
        for to in to {
            match &mut self.states[to] {
                Some(known) => known.meet(&self.memory, &mut self.writes),
                none => *none = Some(Box::new(self.memory)),
            }
        }
    }

    /// Parameters that are one value on each way here are that value.
    fn params(&mut self, func: &mut ir::Function, block: Block) {
        for place in (0..func.dfg.block_params(block).len()).rev() {
            let Some(value) = self.one_value(func, block, place) else { continue };
            let param = func.dfg.block_params(block)[place];
            let value = match number(func, value) {
                // Where it is wanted, not where the ways here part.
                Some(n) => {
                    let first = func.layout.first_inst(block).expect("a way out");
                    self.constant(func, first, func.dfg.value_type(value), n)
                }
                None => value,
            };
            self.instead[param] = value.into();
            func.dfg.remove_block_param(param);
            for from in self.cfg.pred_iter(block) {
                let dfg = &mut func.dfg;
                let calls =
                    dfg.insts[from.inst].branch_destination_mut(&mut dfg.jump_tables, &mut dfg.exception_tables);
                for call in calls {
                    if call.block(&dfg.value_lists) == block {
                        call.remove(place, &mut dfg.value_lists);
                    }
                }
            }
        }
    }

    /// What all ways to a block hand it in a place, if that is one value, or one number. What a turn of a loop hands on to the next as it got
    /// it is no other value.
    fn one_value(&self, func: &ir::Function, block: Block, place: usize) -> Option<Value> {
        let dfg = &func.dfg;
        let param = dfg.block_params(block)[place];
        let mut one = None;
        for from in self.cfg.pred_iter(block) {
            for call in dfg.insts[from.inst].branch_destination(&dfg.jump_tables, &dfg.exception_tables) {
                if call.block(&dfg.value_lists) != block {
                    continue;
                }
                let v = call.args(&dfg.value_lists).nth(place)?.as_value()?;
                if v == param {
                    continue;
                }
                let first = *one.get_or_insert(v);
                if first != v && (number(func, v).is_none() || !self.same(first, v)) {
                    return None;
                }
            }
        }
        one
    }

    /// These kinds of memory may have been written.
    fn forget(&mut self, written: u32) {
        for (n, region) in self.memory.0.iter_mut().enumerate() {
            if written >> n & 1 != 0 {
                self.writes += 1;
                *region = self.writes;
            }
        }
    }

    fn inst(&mut self, func: &mut ir::Function, inst: Inst) {
        let dfg = &mut func.dfg;
        let instead = &self.instead;
        dfg.insts[inst].map_values(&mut dfg.value_lists, &mut dfg.jump_tables, &mut dfg.exception_tables, |v| {
            instead[v].expand().unwrap_or(v)
        });
        self.made_here(func, inst);
        let mut data = func.dfg.insts[inst];
        let opcode = data.opcode();
        if let InstructionData::Brif { arg, blocks, .. } = data {
            return self.branch(func, inst, arg, blocks);
        }
        if opcode.can_store() || is_fence(opcode) {
            return self.written(func, data);
        }
        if has_effects(opcode) || func.dfg.inst_results(inst).len() != 1 {
            return;
        }
        // Each makes the operation a simpler one.
        for _ in 0..4 {
            match simplify::simpler(self, func, inst, data) {
                Some(Simpler::Is(v)) => return self.replace(func, inst, v),
                Some(Simpler::Another(other)) => {
                    func.dfg.insts[inst] = other;
                    data = other;
                }
                None => break,
            }
        }
        let Some(key) = self.key(func, inst, data) else { return };
        self.number(func, inst, key);
    }

    /// A branch whose condition is a constant goes one way.
    fn branch(&mut self, func: &mut ir::Function, inst: Inst, arg: Value, blocks: [ir::BlockCall; 2]) {
        let Some(condition) = constant(func, arg) else { return };
        let destination = blocks[usize::from(condition == 0)];
        func.dfg.insts[inst] = InstructionData::Jump { opcode: Opcode::Jump, destination };
        self.edges = Edges::Gone;
    }

    /// What a store makes of what is known, and anything else that writes.
    fn written(&mut self, func: &ir::Function, data: InstructionData) {
        self.forget(written_by(func, data));
        let InstructionData::Store { opcode, args: [stored, base], offset, flags } = data else { return };
        let ty = func.dfg.value_type(stored);
        if opcode == Opcode::Store {
            let load = InstructionData::Load { opcode: Opcode::Load, arg: base, flags, offset };
            let key = self.keyed(func, load, ty);
            self.found.insert(key, Found { value: stored, block: self.here });
        }
    }

    /// What an operation without effects, or a load, is found by.
    fn key(&self, func: &ir::Function, inst: Inst, data: InstructionData) -> Option<Key> {
        use InstructionData::{
            Binary, BinaryImm8, IntCompare, Load, LoadNoOffset, Shuffle, StackAddr, Ternary, TernaryImm8, Unary,
            UnaryConst, UnaryImm,
        };
        let ty = func.dfg.value_type(func.dfg.inst_results(inst)[0]);
        match data {
            Load { .. } => Some(self.keyed(func, data, ty)),
            LoadNoOffset { opcode, .. } if opcode.can_load() => None,
            Binary { .. }
            | BinaryImm8 { .. }
            | IntCompare { .. }
            | LoadNoOffset { .. }
            | Shuffle { .. }
            | StackAddr { .. }
            | Ternary { .. }
            | TernaryImm8 { .. }
            | Unary { .. }
            | UnaryConst { .. }
            | UnaryImm { .. } => Some(self.keyed(func, data, ty)),
            _ => None,
        }
    }

    fn keyed(&self, func: &ir::Function, mut data: InstructionData, ty: Type) -> Key {
        let number = |v: Value| self.numbers[v].expand().unwrap_or(v);
        let mut memory = 0;
        match &mut data {
            InstructionData::Load { arg, flags, .. } => {
                *arg = number(*arg);
                if !is_constant_load(func, *flags) {
                    memory = 1 + self.memory.0[region(func, *flags)];
                }
                *flags = ir::MemFlags::from_u32(0);
            }
            InstructionData::Binary { opcode, args } => {
                *args = args.map(number);
                if commutes(*opcode) && args[0] > args[1] {
                    args.swap(0, 1);
                }
            }
            InstructionData::IntCompare { args, .. }
            | InstructionData::Shuffle { args, .. }
            | InstructionData::TernaryImm8 { args, .. } => *args = args.map(number),
            InstructionData::Ternary { args, .. } => *args = args.map(number),
            InstructionData::Unary { arg, .. }
            | InstructionData::BinaryImm8 { arg, .. }
            | InstructionData::LoadNoOffset { arg, .. } => *arg = number(*arg),
            _ => {}
        }
        Key { data: Data(data), ty, memory }
    }

    /// Puts what was there before in the place of an instruction, or notes the instruction.
    fn number(&mut self, func: &mut ir::Function, inst: Inst, key: Key) {
        let v = func.dfg.first_result(inst);
        let data = func.dfg.insts[inst];
        let is_read = key.memory != 0;
        let again = is_made_again(func, data);
        let mut block = self.here;
        if let Some(before) = self.found.get_mut(&key) {
            let there = before.block == self.here || !again && self.domtree.block_dominates(before.block, self.here);
            if there {
                let value = before.value;
                return self.replace(func, inst, value);
            }
            if !is_read {
                let number = self.numbers[before.value].expand().unwrap_or(before.value);
                self.numbers[v] = number.into();
            }
        }
        if self.in_loop && !again && !is_read && self.hoist(func, inst) {
            block = self.entry;
        }
        self.found.insert(key, Found { value: v, block });
    }

    /// Makes operands again that another block has made, where that costs less than a register from there to here: where the stack is,
    /// numbers that are no part of an instruction, and for calls, whose arguments are registers, all that is cheap. Calls stand beside the
    /// way that most packets take.
    fn made_here(&mut self, func: &mut ir::Function, inst: Inst) {
        let is_call = func.dfg.insts[inst].opcode().is_call();
        for n in 0..func.dfg.inst_args(inst).len() {
            let v = func.dfg.inst_args(inst)[n];
            let ValueDef::Result(from, 0) = func.dfg.value_def(v) else { continue };
            let data = func.dfg.insts[from];
            let again = match data {
                InstructionData::StackAddr { .. } => true,
                InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } if !is_call => {
                    i32::try_from(imm.bits()).is_err()
                }
                data => is_call && is_made_again(func, data),
            };
            if !again || func.layout.inst_block(from).is_none_or(|block| block == self.here) {
                continue;
            }
            let ty = func.dfg.value_type(v);
            let key = self.keyed(func, data, ty);
            let here = self.found.get(&key).filter(|found| found.block == self.here).map(|found| found.value);
            let own = here.unwrap_or_else(|| {
                let copy = func.dfg.clone_inst(from);
                let loc = func.srcloc(inst);
                func.set_srcloc(copy, loc);
                func.layout.insert_inst(copy, inst);
                self.made_here(func, copy);
                let own = func.dfg.first_result(copy);
                self.numbers[own] = self.numbers[v].expand().unwrap_or(v).into();
                self.found.insert(key, Found { value: own, block: self.here });
                own
            });
            func.dfg.inst_args_mut(inst)[n] = own;
        }
    }

    fn replace(&mut self, func: &mut ir::Function, inst: Inst, by: Value) {
        let v = func.dfg.first_result(inst);
        self.instead[v] = by.into();
        func.layout.remove_inst(inst);
    }

    /// Moves an operation in front of the loop, if all that it needs is there.
    fn hoist(&mut self, func: &mut ir::Function, inst: Inst) -> bool {
        let there = |v: Value| match func.dfg.value_def(v) {
            ValueDef::Result(from, _) => func.layout.inst_block(from) == Some(self.entry),
            ValueDef::Param(block, _) => block == self.entry,
            ValueDef::Union(..) => false,
        };
        let args = func.dfg.inst_args(inst);
        if !args.iter().all(|v| there(*v) || constant(func, *v).is_some()) {
            return false;
        }
        let last = func.layout.last_inst(self.entry).expect("a branch");
        let elsewhere: Vec<(usize, Value)> = args.iter().copied().enumerate().filter(|(_, v)| !there(*v)).collect();
        for (n, v) in elsewhere {
            let from = func.dfg.value_def(v).unwrap_inst();
            let copy = func.dfg.clone_inst(from);
            func.layout.insert_inst(copy, last);
            let own = func.dfg.first_result(copy);
            self.numbers[own] = self.numbers[v].expand().unwrap_or(v).into();
            func.dfg.inst_args_mut(inst)[n] = own;
        }
        func.layout.remove_inst(inst);
        func.layout.insert_inst(inst, last);
        true
    }
}

/// What costs nothing to be made in each block that asks for it, where a register that keeps it would: constants, what is computed with one,
/// and where the stack is.
fn is_made_again(func: &ir::Function, data: InstructionData) -> bool {
    match data {
        InstructionData::UnaryImm { .. } | InstructionData::StackAddr { .. } => true,
        InstructionData::Unary { opcode: Opcode::Bnot, .. } => true,
        InstructionData::Binary {
            opcode: Opcode::Iadd | Opcode::Isub | Opcode::Band | Opcode::Bor | Opcode::Bxor,
            args,
        } => args.iter().any(|v| constant(func, *v).is_some()),
        _ => false,
    }
}

/// The order of operands says nothing.
fn commutes(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Iadd | Opcode::Imul | Opcode::Band | Opcode::Bor | Opcode::Bxor | Opcode::Umulhi)
}

fn has_effects(opcode: Opcode) -> bool {
    opcode.is_call()
        || opcode.is_branch()
        || opcode.is_terminator()
        || opcode.is_return()
        || opcode.can_trap()
        || opcode.can_store()
        || opcode.other_side_effects()
}

/// What may come between any two accesses to memory.
fn is_fence(opcode: Opcode) -> bool {
    opcode.is_call()
        || matches!(
            opcode,
            Opcode::AtomicRmw
                | Opcode::AtomicCas
                | Opcode::AtomicLoad
                | Opcode::AtomicStore
                | Opcode::Fence
                | Opcode::SequencePoint
                | Opcode::Debugtrap
        )
}

/// The kind of memory that an access says it is one to.
fn region(func: &ir::Function, flags: ir::MemFlags) -> usize {
    func.dfg.mem_flags[flags].alias_region().map_or(Memory::ANY, |region| region.index())
}

/// What is loaded there never changes, and may be loaded at any time.
fn is_constant_load(func: &ir::Function, flags: ir::MemFlags) -> bool {
    let flags = func.dfg.mem_flags[flags];
    flags.readonly() && flags.notrap() && flags.can_move()
}
