//! `checks`: fewer branches in front of what a program does.
//!
//! A program looks at header after header, and nearly every look is followed by a way out: too short, not that protocol. A
//! processor passes by two such branches a cycle, so that short programs are bound by their checks. Where one check follows another,
//! both lead to the same end with the same values, and nothing happens in between that anybody could see:
//!
//! - a check of the packet's length behind one that found it longer goes, wherever it leads;
//! - of several checks of the packet's length the longest stands first, and the others go;
//! - two checks become one: fields of the packet that lie in one word are compared together (`fields`), other differences as
//!   `(a ^ 8 | b ^ 4) != 0`.
//!
//! ```text
//! if data + 14 > end goto out                if data + 34 > end goto out
//! if *(u16 *)(data + 12) != 8 goto out       if *(u32 *)(data + 12) & 0xffffff != 0x450008 goto out
//! if data + 34 > end goto out          ──>
//! if *(u8 *)(data + 14) != 0x45 goto out
//! ```
//!
//! What stood between two checks then runs also where the first one leads out. So it may only be arithmetic, and loads of bytes of the
//! packet that a check of its length in front of both has found to be there: a verified load is safe where the program makes it, not before.

use std::cell::RefCell;

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::entity::packed_option::PackedOption;
use cranelift_codegen::ir::condcodes::{CondCode, IntCC};
use cranelift_codegen::ir::{
    self, Block, BlockArg, BlockCall, Inst, InstBuilder, InstructionData, Opcode, Value, ValueDef, types,
};
use rustc_hash::FxHashMap;
use xway_packet::descriptor;

use super::fields::Fields;
use super::known::{Incoming, through, upper_bound_in};
use super::value::constant;
use super::{Uses, memory};
use crate::lower::region;

/// Instructions that may run although a check in front of them leads out; constants are none.
const EARLY_MAX: usize = 8;
/// Instructions of a check that are looked at.
const BODY_MAX: usize = 48;
/// Checks in a row that are looked at.
const CHAIN_MAX: usize = 24;
/// Blocks that hold nothing but constants, one behind the other, that a way out is followed through.
const THROUGH_MAX: usize = 3;
/// What a pointer into a packet is moved by stays below.
const DISTANCE_MAX: u64 = 1 << 32;
/// Steps of a walk to where a pointer comes from: blocks that some hundred others lead to would make it long.
const STEPS_MAX: usize = 64;

/// Where an edge leads, and what it hands on.
#[derive(Clone, Copy)]
struct Edge {
    to: Block,
    call: BlockCall,
}

impl Edge {
    fn args(&self, func: &ir::Function) -> Vec<BlockArg> {
        self.call.args(&func.dfg.value_lists).collect()
    }
}

/// A branch that leads on or out.
struct Check {
    inst: Inst,
    condition: Value,
    /// Taken, and not.
    edges: [Edge; 2],
}

/// `at + len <= end` of the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Length {
    at: Value,
    len: i64,
    end: Value,
}

/// The pass over one function. `exit`, where all ways out meet, stays a block of its own: later passes start there.
pub(super) fn run(func: &mut ir::Function, exit: Option<Block>, incoming: &Incoming) {
    let mut pass = Pass::new(func, exit, incoming);
    let blocks: Vec<Block> = func.layout.blocks().collect();
    // What comes between two checks and is none, like `r4 = 1` on its own way, hides the second one from the first.
    for &block in &blocks {
        pass.not_again(func, block);
    }
    pass.splice_all(func, &blocks);
    for &block in &blocks {
        if func.layout.is_block_inserted(block) {
            pass.longest_first(func, block);
        }
    }
    pass.splice_all(func, &blocks);
    for &block in &blocks {
        while func.layout.is_block_inserted(block) && pass.merge(func, block) {}
    }
}

struct Pass<'a> {
    incoming: &'a Incoming,
    /// Edges that lead to each block, and where the only one comes from.
    entries: SecondaryMap<Block, (usize, PackedOption<Block>)>,
    /// Of the function as it was before the first two checks were put together; what that adds uses nothing else again.
    uses: Option<Uses>,
    exit: Option<Block>,
    /// What is known of the numbers that lengths are counted from: each is asked for by many checks.
    packets: RefCell<FxHashMap<Value, bool>>,
}

impl<'a> Pass<'a> {
    fn new(func: &ir::Function, exit: Option<Block>, incoming: &'a Incoming) -> Pass<'a> {
        let mut entries: SecondaryMap<_, (usize, PackedOption<Block>)> =
            SecondaryMap::with_capacity(func.dfg.num_blocks());
        for block in func.layout.blocks() {
            for to in edges(func, block) {
                let (many, from) = &mut entries[to];
                *many += 1;
                if *many == 1 {
                    *from = block.into();
                }
            }
        }
        Pass { incoming, entries, uses: None, exit, packets: RefCell::new(FxHashMap::default()) }
    }

    /// No check of what the packet was found to have, wherever it would lead.
    fn not_again(&mut self, func: &mut ir::Function, block: Block) {
        let Some(check) = check(func, block) else { return };
        let holds = |on| self.length(func, check.condition, on == 0).map(|length| (on, length));
        let Some((on, asked)) = [0, 1].into_iter().find_map(holds) else { return };
        let known = self.lengths_above(func, block);
        if !known.iter().any(|l| (l.at, l.end) == (asked.at, asked.end) && l.len >= asked.len) {
            return;
        }
        let (to, args) = (check.edges[on].to, check.edges[on].args(func));
        before(func, check.inst).ins().jump(to, &args);
        // The other edge is still counted: which is left of those that lead there is not known here.
        func.layout.remove_inst(check.inst);
    }

    /// One check of the packet's length instead of several that lead out the same way.
    fn longest_first(&mut self, func: &mut ir::Function, block: Block) {
        let Some(check) = check(func, block) else { return };
        for on in [0, 1] {
            let Some(first) = self.length(func, check.condition, on == 0) else { continue };
            let out = check.edges[1 - on];
            let (mut longest, mut found) = (first.len, vec![]);
            let mut next = check.edges[on].to;
            for _ in 0..CHAIN_MAX {
                if !self.only_way(func, next) || !func.layout.block_insts(next).all(|i| is_silent(func, i)) {
                    break;
                }
                let Some(check) = self::check(func, next) else { break };
                let Some(leads_on) = [0, 1].into_iter().find(|on| same(func, check.edges[1 - on], out)) else { break };
                next = check.edges[leads_on].to;
                if let Some(l) = self.length(func, check.condition, leads_on == 0)
                    && (l.at, l.end) == (first.at, first.end)
                {
                    longest = longest.max(l.len);
                    found.push((check, leads_on));
                }
            }
            if found.is_empty() {
                continue;
            }
            let on = check.edges[on];
            let (on_args, out_args) = (on.args(func), out.args(func));
            let mut at = before(func, check.inst);
            let last = at.ins().iadd_imm_s(first.at, longest);
            let short = at.ins().icmp(IntCC::UnsignedGreaterThan, last, first.end);
            // Cranelift puts the way that stands first behind the other one: the usual one falls through.
            at.ins().brif(short, out.to, &out_args, on.to, &on_args);
            func.layout.remove_inst(check.inst);
            for (check, leads_on) in found {
                let (edge, gone) = (check.edges[leads_on], check.edges[1 - leads_on]);
                let args = edge.args(func);
                before(func, check.inst).ins().jump(edge.to, &args);
                func.layout.remove_inst(check.inst);
                self.fewer(gone, out, block);
            }
            return;
        }
    }

    /// How many instructions it has moved.
    fn splice_all(&mut self, func: &mut ir::Function, blocks: &[Block]) -> usize {
        let mut moved = 0;
        for &block in blocks {
            // From the first of a row on, wherever the others lie: each instruction moves once.
            let taken = self.entries[block].1.expand().is_some_and(|from| self.takes(func, from) == Some(block));
            while !taken
                && func.layout.is_block_inserted(block)
                && let Some(count) = self.splice(func, block)
            {
                moved += count;
            }
        }
        moved
    }

    /// The block that this one alone leads to, without a condition.
    fn takes(&self, func: &ir::Function, block: Block) -> Option<Block> {
        let InstructionData::Jump { destination, .. } = func.dfg.insts[func.layout.last_inst(block)?] else {
            return None;
        };
        let next = destination.block(&func.dfg.value_lists);
        let alone = self.entries[next].0 == 1;
        (alone && next != block && Some(next) != self.exit).then_some(next)
    }

    /// Takes over such a block. How many instructions it has.
    fn splice(&mut self, func: &mut ir::Function, block: Block) -> Option<usize> {
        let (next, last) = (self.takes(func, block)?, func.layout.last_inst(block)?);
        let InstructionData::Jump { destination, .. } = func.dfg.insts[last] else { return None };
        let handed: Option<Vec<Value>> = destination.args(&func.dfg.value_lists).map(|a| a.as_value()).collect();
        let handed = handed?;
        func.layout.remove_inst(last);
        let params = func.dfg.detach_block_params(next);
        for (n, value) in handed.into_iter().enumerate() {
            let param = params.get(n, &func.dfg.value_lists).expect("as many as its parameters");
            func.dfg.change_to_alias(param, value);
        }
        let mut moved = 0;
        while let Some(inst) = func.layout.first_inst(next) {
            func.layout.remove_inst(inst);
            func.layout.append_inst(inst, block);
            moved += 1;
        }
        func.layout.remove_block(next);
        self.leads(func, block);
        Some(moved)
    }

    /// An edge has gone, and a block's way out leads there too. What that comes to by way of another block counts the edge still: which is
    /// left of those that lead there is not known here.
    fn fewer(&mut self, gone: Edge, out: Edge, from: Block) {
        if gone.to == out.to {
            let entry = &mut self.entries[out.to];
            *entry = (entry.0 - 1, from.into());
        }
    }

    /// A block has another's end now.
    fn leads(&mut self, func: &ir::Function, block: Block) {
        for to in edges(func, block) {
            self.entries[to].1 = block.into();
        }
    }

    /// Makes one check of this block's and the next one's.
    fn merge(&mut self, func: &mut ir::Function, block: Block) -> bool {
        let Some(first) = check(func, block) else { return false };
        for on in [0, 1] {
            let (next, out) = (first.edges[on].to, first.edges[1 - on]);
            if next == block || !self.only_way(func, next) {
                continue;
            }
            let Some(second) = check(func, next) else { continue };
            let Some(leads_on) = [0, 1].into_iter().find(|on| same(func, second.edges[1 - on], out)) else { continue };
            let body: Vec<Inst> = func.layout.block_insts(next).filter(|i| *i != second.inst).collect();
            if body.len() > BODY_MAX || !self.may_run_early(func, block, &body) {
                continue;
            }
            // A comparison with a result costs four instructions, one with a branch one: only differences are put together.
            let wide = |c: &Check, out: bool| difference(func, c.condition, out);
            let (Some(a), Some(b)) = (wide(&first, on == 1), wide(&second, leads_on == 1)) else { continue };
            let fields = self.fields(func, [&first, &second], &body, [a, b]);
            // What leads to two fields is one load then.
            let costs = |inst: &&Inst| func.dfg.insts[**inst].opcode() != Opcode::Iconst;
            if fields.is_none() && body.iter().filter(costs).count() > EARLY_MAX {
                continue;
            }
            for inst in body {
                func.layout.remove_inst(inst);
                func.layout.insert_inst(inst, first.inst);
            }
            let (on, gone) = (second.edges[leads_on], second.edges[1 - leads_on]);
            let (on_args, out_args) = (on.args(func), out.args(func));
            let mut at = before(func, first.inst);
            let any = match fields {
                Some(fields) => fields.differ(&mut at),
                None => {
                    let (a, b) = (number(&mut at, a), number(&mut at, b));
                    at.ins().bor(a, b)
                }
            };
            at.ins().brif(any, out.to, &out_args, on.to, &on_args);
            func.layout.remove_inst(first.inst);
            func.layout.remove_inst(second.inst);
            func.layout.remove_block(next);
            self.fewer(gone, out, block);
            self.leads(func, block);
            return true;
        }
        false
    }

    /// Two differences as one of the word in which both lie: that of a block's check, and that of the next one, of which nothing in its
    /// body writes.
    fn fields(
        &mut self,
        func: &ir::Function,
        checks: [&Check; 2],
        body: &[Inst],
        both: [(Value, i64); 2],
    ) -> Option<Fields> {
        let lengths = self.lengths_above(func, func.layout.inst_block(checks[0].inst)?);
        let uses = self.uses.get_or_insert_with(|| super::uses(func));
        // Whoever else asked for an outcome would keep its load.
        if checks.iter().any(|check| uses[check.condition] > 1) {
            return None;
        }
        let proved = |base| lengths.iter().filter(|l| l.at == base).map(|l| l.len).max().unwrap_or(0);
        Fields::of(func, uses, (checks[0].inst, body), both, proved)
    }

    /// A block without parameters that one edge leads to.
    fn only_way(&self, func: &ir::Function, block: Block) -> bool {
        self.entries[block].0 == 1 && func.dfg.block_params(block).is_empty()
    }

    /// Whether instructions may run in front of a block's check: arithmetic, and loads that earlier checks have made safe.
    fn may_run_early(&self, func: &ir::Function, block: Block, body: &[Inst]) -> bool {
        let mut lengths = None;
        body.iter().all(|inst| {
            let opcode = func.dfg.insts[*inst].opcode();
            if !opcode.can_load() {
                return is_arithmetic(opcode);
            }
            let Some(access) = memory::access(func, *inst) else { return is_descriptor(func, *inst) };
            let lengths = lengths.get_or_insert_with(|| self.lengths_above(func, block));
            let inside = |l: &Length| access.base == l.at && access.off >= 0 && access.off + access.len as i64 <= l.len;
            access.is_load && access.region == region::PACKET && lengths.iter().any(inside)
        })
    }

    /// What is known of the packet's length where a block begins.
    fn lengths_above(&self, func: &ir::Function, mut block: Block) -> Vec<Length> {
        let mut found = vec![];
        for _ in 0..CHAIN_MAX {
            let (1, Some(above)) = (self.entries[block].0, self.entries[block].1.expand()) else { break };
            if let Some(check) = check(func, above) {
                let taken = check.edges[0].to == block;
                found.extend(self.length(func, check.condition, taken));
            }
            block = above;
        }
        found
    }

    /// What a condition says about the packet's length where it holds, or does not.
    fn length(&self, func: &ir::Function, condition: Value, holds: bool) -> Option<Length> {
        let (cond, a, b) = compared(func, condition)?;
        let (from, end) = match if holds { cond } else { cond.complement() } {
            IntCC::UnsignedLessThanOrEqual => (a, b),
            IntCC::UnsignedGreaterThanOrEqual => (b, a),
            _ => return None,
        };
        let (at, len) = memory::start(func, from);
        let end = func.dfg.resolve_aliases(end);
        let sound = len >= 0 && is_end(func, end) && self.begins_in_packet(func, at);
        sound.then_some(Length { at, len, end })
    }

    /// A pointer that does not lie in front of the packet's memory: the start of a chunk, and what is not negative.
    fn begins_in_packet(&self, func: &ir::Function, v: Value) -> bool {
        let known = self.packets.borrow().get(&v).copied();
        known.unwrap_or_else(|| {
            let mut left = STEPS_MAX;
            let is = self.is_packet(func, v, 5, &mut left);
            self.packets.borrow_mut().insert(v, is);
            is
        })
    }

    fn is_packet(&self, func: &ir::Function, v: Value, depth: u32, left: &mut usize) -> bool {
        let v = func.dfg.resolve_aliases(v);
        if depth == 0 || *left == 0 {
            return false;
        }
        *left -= 1;
        let inst = match func.dfg.value_def(v) {
            ValueDef::Result(inst, 0) => inst,
            ValueDef::Param(..) => {
                let from = self.incoming.values(v);
                return from.is_some_and(|from| from.iter().all(|v| self.is_packet(func, *v, depth - 1, left)));
            }
            _ => return false,
        };
        let small = |v: Value| upper_bound_in(func, v, self.incoming) < DISTANCE_MAX;
        match func.dfg.insts[inst] {
            InstructionData::Binary { opcode: Opcode::Iadd, args: [a, b] } => {
                (self.is_packet(func, a, depth - 1, left) && small(b))
                    || (self.is_packet(func, b, depth - 1, left) && small(a))
            }
            _ => is_field(func, inst, Opcode::Load, descriptor::BASE),
        }
    }
}

/// The branch at the end of a block, when it is one of two ways.
fn check(func: &ir::Function, block: Block) -> Option<Check> {
    let inst = func.layout.last_inst(block)?;
    let InstructionData::Brif { arg, blocks, .. } = func.dfg.insts[inst] else { return None };
    let lists = &func.dfg.value_lists;
    let edges = blocks.map(|call| Edge { to: call.block(lists), call });
    Some(Check { inst, condition: func.dfg.resolve_aliases(arg), edges })
}

/// The blocks that a block's edges lead to.
fn edges(func: &ir::Function, block: Block) -> impl Iterator<Item = Block> {
    let dfg = &func.dfg;
    let last = func.layout.last_inst(block).map(|last| &dfg.insts[last]);
    let calls = last.map_or(&[][..], |last| last.branch_destination(&dfg.jump_tables, &dfg.exception_tables));
    calls.iter().map(|call| call.block(&dfg.value_lists))
}

/// Whether two edges lead to the same place with the same values, be it through blocks that make the values.
fn same(func: &ir::Function, a: Edge, b: Edge) -> bool {
    let [a, b] = [a, b].map(|edge| (0..THROUGH_MAX).fold(edge.call, |call, _| through(func, call)));
    let equal = |(x, y): (BlockArg, BlockArg)| match (x, y) {
        (BlockArg::Value(x), BlockArg::Value(y)) => {
            let (x, y) = (func.dfg.resolve_aliases(x), func.dfg.resolve_aliases(y));
            x == y
                || (func.dfg.value_type(x) == func.dfg.value_type(y)
                    && constant(func, x).is_some()
                    && constant(func, x) == constant(func, y))
        }
        _ => false,
    };
    let lists = &func.dfg.value_lists;
    a.block(lists) == b.block(lists) && a.len(lists) == b.len(lists) && a.args(lists).zip(b.args(lists)).all(equal)
}

fn before(func: &mut ir::Function, inst: Inst) -> FuncCursor<'_> {
    let loc = func.srcloc(inst);
    FuncCursor::new(func).with_srcloc(loc).at_inst(inst)
}

fn compared(func: &ir::Function, condition: Value) -> Option<(IntCC, Value, Value)> {
    let ValueDef::Result(inst, 0) = func.dfg.value_def(func.dfg.resolve_aliases(condition)) else { return None };
    match func.dfg.insts[inst] {
        InstructionData::IntCompare { opcode: Opcode::Icmp, cond, args: [a, b] } => Some((cond, a, b)),
        _ => None,
    }
}

/// Nobody can see that it ran or how often: no stores, no calls, nothing that others see.
fn is_silent(func: &ir::Function, inst: Inst) -> bool {
    let opcode = func.dfg.insts[inst].opcode();
    opcode.is_branch()
        || is_arithmetic(opcode)
        || memory::access(func, inst).is_some_and(|a| a.is_load)
        || is_descriptor(func, inst)
}

fn is_arithmetic(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Iconst
            | Iadd
            | Isub
            | Imul
            | Ineg
            | Bnot
            | Band
            | Bor
            | Bxor
            | Ishl
            | Ushr
            | Sshr
            | Uextend
            | Sextend
            | Ireduce
            | Icmp
            | Bswap
            | Select
    )
}

/// A load from a frame's descriptor, which is there for every frame.
fn is_descriptor(func: &ir::Function, inst: Inst) -> bool {
    let InstructionData::Load { flags, .. } = func.dfg.insts[inst] else { return false };
    let region = func.dfg.mem_flags[flags].alias_region();
    region.is_some_and(|r| func.dfg.alias_regions[r].user_id == region::DESCRIPTOR)
}

fn is_field(func: &ir::Function, inst: Inst, wanted: Opcode, at: i32) -> bool {
    match func.dfg.insts[inst] {
        InstructionData::Load { opcode, offset, .. } => {
            opcode == wanted && i32::from(offset) == at && is_descriptor(func, inst)
        }
        _ => false,
    }
}

/// The end of a packet: the start of its chunk and the field that says so.
fn is_end(func: &ir::Function, v: Value) -> bool {
    let made = |v: Value| match func.dfg.value_def(func.dfg.resolve_aliases(v)) {
        ValueDef::Result(inst, 0) => Some(inst),
        _ => None,
    };
    let Some(InstructionData::Binary { opcode: Opcode::Iadd, args: [a, b] }) = made(v).map(|i| func.dfg.insts[i])
    else {
        return false;
    };
    let is = |v, opcode, at| made(v).is_some_and(|i| is_field(func, i, opcode, at));
    is(a, Opcode::Load, descriptor::BASE) && is(b, Opcode::Uload32, descriptor::DATA_END)
}

/// A value and the number from which it differs where a condition leads out; for a condition that is a number, that of zero.
fn difference(func: &ir::Function, condition: Value, out: bool) -> Option<(Value, i64)> {
    match compared(func, condition) {
        Some((cond, a, b)) => {
            let differs = if out { IntCC::NotEqual } else { IntCC::Equal };
            let n = constant(func, b).filter(|_| cond == differs)?;
            let bits = func.dfg.value_type(a).bits();
            let n = if bits < 64 { n & ((1 << bits) - 1) } else { n };
            i32::try_from(n).ok().map(|_| (a, n))
        }
        None => (out && func.dfg.value_type(condition) == types::I64).then_some((condition, 0)),
    }
}

/// A number of 64 bits that is not zero where a value is not this one.
fn number(at: &mut FuncCursor<'_>, (v, n): (Value, i64)) -> Value {
    let wide = if at.func.dfg.value_type(v) == types::I64 { v } else { at.ins().uextend(types::I64, v) };
    if n == 0 { wide } else { at.ins().bxor_imm_s(wide, n) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of blocks each of which lies in front of the one that leads to it.
    #[test]
    fn what_a_row_of_blocks_holds_is_moved_once() {
        const ROW: usize = 100;
        let mut func = ir::Function::new();
        let blocks: Vec<Block> = (0..ROW).map(|_| func.dfg.make_block()).collect();
        let mut at = FuncCursor::new(&mut func);
        // The entry is the first of the layout.
        at.insert_block(blocks[ROW - 1]);
        blocks[..ROW - 1].iter().for_each(|block| at.insert_block(*block));
        for (n, block) in blocks.iter().enumerate() {
            at.goto_bottom(*block);
            let _: Value = at.ins().iconst(types::I64, n as i64);
            match n.checked_sub(1) {
                Some(next) => at.ins().jump(blocks[next], &[]),
                None => at.ins().return_(&[]),
            };
        }
        let incoming = Incoming::of(&func);
        let layout: Vec<Block> = func.layout.blocks().collect();
        let moved = Pass::new(&func, None, &incoming).splice_all(&mut func, &layout[1..]);
        assert_eq!(moved, 0, "each of them is taken by another");
        let moved = Pass::new(&func, None, &incoming).splice_all(&mut func, &layout);
        assert_eq!((func.layout.blocks().count(), moved), (1, 2 * ROW - 2));
    }
}
