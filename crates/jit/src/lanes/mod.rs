//! `wide-numbers`, `lanes`, `known-branches`, `checks`, `dead-loads`, `in-place` and `interleave`: passes over Cranelift's intermediate form,
//! behind lowering and in front of the mid-end.
//!
//! clang copies packed headers byte by byte, and puts numbers together from bytes. The kernel's compilers keep that, and so
//! does Cranelift. Here every value is looked at as eight *lanes*: which byte of which other value, or which constant, each of
//! its bytes is. With the lanes of what was stored, and of what was loaded from where,
//!
//! - a load of bytes that were just stored takes them from the values (a processor cannot forward several stores to one load);
//! - bytes that were loaded one by one and put together are one load, turned around where the order is the other one;
//! - stores side by side become wide ones, where their bytes are a constant, neighbours in a value, or neighbours in memory.
//!
//! ```text
//! v1 = uload8 p+13                          v1 = uload16 p+12
//! v2 = uload8 p+12                 ──>
//! v3 = bor v2, (ishl v1, 8)
//!
//! istore8 (uload8 p+0), p+6                 v1 = uload32 p+0
//! … istore8 (uload8 p+3), p+9      ──>      istore32 v1, p+6
//! ```
//!
//! **Only memory of the run's own**: packets and stacks, as lowering marks them. What others read and write at the same time (map
//! values) is loaded and stored as lowering says (`value-words` has put bytes together there, under rules of its own). Packets that
//! lie in memory of another process may change too: what the program loaded from them once is read once, and never again behind
//! a check of it. Knowledge goes from a block to those that only it leads to; it ends where the program may have written in
//! a way that is not known: calls, stores through another pointer of the same kind of memory.
//!
//! | file | what |
//! |---|---|
//! | `chains` | pointers that are moved on and on |
//! | `wide` | numbers of 32 bits as numbers of 64 |
//! | `mod` | the order of blocks; loads |
//! | `widen` | loads side by side |
//! | `sum` | sums of neighbouring words |
//! | `fold` | sums folded to 16 bits |
//! | `value` | lanes of values, and values from lanes |
//! | `memory` | accesses, and what memory is known to hold |
//! | `merge` | stores |
//! | `known` | branches that go one way |
//! | `params` | parameters of blocks that are not needed |
//! | `checks` | several checks as one |
//! | `fields` | of two fields of the packet by one comparison |
//! | `dead` | what nobody uses any more, loads included |
//! | `place` | arithmetic in memory |
//! | `interleave` | what waits for itself, for several packets at once |

mod chains;
mod checks;
mod dead;
mod fields;
mod fold;
mod interleave;
mod known;
mod memory;
mod merge;
mod params;
mod place;
mod sum;
mod value;
mod wide;
mod widen;

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::{EntitySet, SecondaryMap};
use cranelift_codegen::ir::{self, Block, Inst, InstBuilder, InstructionData, Opcode, Value, types};
use rustc_hash::FxHashMap;

use known::Incoming;
pub(crate) use known::{compare, upper_bound};
use memory::{Access, Effect, Known};
pub(crate) use sum::{Run, word_sum};
pub(crate) use value::constant;
use value::{Lane, Lanes};

use crate::Options;
use crate::lower::region;

/// The passes over one function, in their order. `exit`, in a burst function: where the verdict is stored.
pub(crate) fn run(func: &mut ir::Function, exit: Option<Block>, options: &Options) {
    // Registers that many blocks leave alone are as long a chain of names: each would be followed to its end wherever one is asked for.
    func.dfg.resolve_all_aliases();
    if options.checks || options.lanes {
        chains::run(func);
    }
    let mut incoming = Incoming::of(func);
    if options.wide_numbers {
        wide::run(func, &incoming);
    }
    // Edges that are gone would make what is known of the blocks behind them less.
    if options.known_branches && known::fold(func, &incoming) {
        incoming = Incoming::of(func);
    }
    if options.checks {
        checks::run(func, exit, &incoming);
    }
    if options.known_branches {
        params::run(func, exit);
        known::sink_constants(func);
    }
    if options.lanes {
        lanes(func);
    }
    let uses = options.dead_loads.then(|| dead::remove(func));
    if options.in_place {
        place::run(func, &uses.unwrap_or_else(|| self::uses(func)));
    }
    if options.interleave
        && let Some(exit) = exit
    {
        interleave::run(func, exit);
    }
}

/// `lanes` over one function.
fn lanes(func: &mut ir::Function) {
    let mut own = EntitySet::with_capacity(func.dfg.num_blocks());
    for block in func.layout.blocks() {
        if func.layout.block_insts(block).any(|inst| memory::access(func, inst).is_some()) {
            own.insert(block);
        }
    }
    if own.is_empty() {
        return;
    }
    // Ways out have thousands of ways in.
    let mut ways_in: SecondaryMap<Block, u32> = SecondaryMap::with_capacity(func.dfg.num_blocks());
    let mut next = vec![];
    for block in func.layout.blocks() {
        successors(func, block, &mut next);
        next.iter().for_each(|to| ways_in[*to] += 1);
    }
    let (whole, alone, uses) = kinds_of_use(func);
    let mut pass = Pass { lanes: FxHashMap::default(), loads: FxHashMap::default(), whole, alone, uses };
    // From each block that knows nothing of what was before, along those that only one block leads to.
    let mut work: Vec<(Block, Known)> =
        func.layout.blocks().filter(|b| ways_in[*b] != 1).map(|b| (b, Known::default())).collect();
    while let Some((block, known)) = work.pop() {
        pass.sums(func, block);
        pass.folds(func, block);
        let after = match own.contains(block) {
            true => {
                pass.widen(func, block);
                let after = pass.loads(func, block, known.clone());
                pass.stores(func, block, known);
                after
            }
            // It may put bytes together that others have loaded.
            false => pass.loads(func, block, known),
        };
        successors(func, block, &mut next);
        next.retain(|to| ways_in[*to] == 1);
        if let Some(last) = next.pop() {
            work.extend(next.iter().map(|to| (*to, after.clone())));
            work.push((last, after));
        }
    }
}

/// The blocks that one leads to, each once and in the order of their numbers.
fn successors(func: &ir::Function, block: Block, out: &mut Vec<Block>) {
    let dfg = &func.dfg;
    out.clear();
    if let Some(last) = func.layout.last_inst(block) {
        let calls = dfg.insts[last].branch_destination(&dfg.jump_tables, &dfg.exception_tables);
        out.extend(calls.iter().map(|call| call.block(&dfg.value_lists)));
    }
    out.sort_unstable();
    out.dedup();
}

/// How often each value is used.
type Uses = SecondaryMap<Value, u32>;

/// A map with room for all values: it would grow by one at a time.
pub(crate) fn for_values<T: Clone + Default>(func: &ir::Function) -> SecondaryMap<Value, T> {
    let mut map = SecondaryMap::new();
    map.resize(func.dfg.num_values());
    map
}

fn uses(func: &ir::Function) -> Uses {
    let mut uses = for_values(func);
    for inst in func.layout.blocks().flat_map(|b| func.layout.block_insts(b)) {
        for v in func.dfg.inst_values(inst) {
            uses[func.dfg.resolve_aliases(v)] += 1;
        }
    }
    uses
}

/// Values that something else uses than what puts bytes together; those that something uses which neither puts bytes together nor
/// stores them; how often each is used.
fn kinds_of_use(func: &ir::Function) -> (SecondaryMap<Value, bool>, SecondaryMap<Value, bool>, Uses) {
    let (mut whole, mut alone) = (for_values::<bool>(func), for_values::<bool>(func));
    let mut uses: Uses = for_values(func);
    // What a value is cut from or extended from.
    let cut_from = |v: Value| match func.dfg.value_def(v) {
        ir::ValueDef::Result(from, _) => match func.dfg.insts[from] {
            InstructionData::Unary { opcode: Opcode::Uextend | Opcode::Ireduce, arg } => {
                Some(func.dfg.resolve_aliases(arg))
            }
            _ => None,
        },
        _ => None,
    };
    for inst in func.layout.blocks().flat_map(|b| func.layout.block_insts(b)) {
        let opcode = func.dfg.insts[inst].opcode();
        let joins = matches!(opcode, Opcode::Bor | Opcode::Ishl | Opcode::Uextend | Opcode::Ireduce);
        let stored = usize::from(opcode.can_store() && memory::access(func, inst).is_some_and(|a| !a.is_load));
        for (n, v) in func.dfg.inst_values(inst).enumerate() {
            let v = func.dfg.resolve_aliases(v);
            uses[v] += 1;
            if joins {
                continue;
            }
            whole[v] = true;
            // What is cut from a value is made of all of it.
            if let Some(from) = cut_from(v) {
                whole[from] = true;
            }
            let mut part = (n >= stored).then_some(v);
            // Behind one that is marked all others are.
            while let Some(v) = part.filter(|v| !alone[*v]) {
                alone[v] = true;
                // What is cut from a value, or extended, is that value.
                part = cut_from(v);
            }
        }
    }
    (whole, alone, uses)
}

struct Pass {
    lanes: FxHashMap<Value, Lanes>,
    /// What was loaded, by value.
    loads: FxHashMap<Value, Access>,
    whole: SecondaryMap<Value, bool>,
    alone: SecondaryMap<Value, bool>,
    uses: Uses,
}

/// More pieces than this are not put together for a load.
const PIECES_MAX: usize = 4;

impl Pass {
    /// Loads and values of a block; gives what is known at its end.
    fn loads(&mut self, func: &mut ir::Function, block: Block, mut known: Known) -> Known {
        let mut next = func.layout.first_inst(block);
        while let Some(inst) = next {
            next = func.layout.next_inst(inst);
            if let Some(access) = memory::access(func, inst) {
                if !access.is_load {
                    let lanes = self.lanes_of(func, func.dfg.inst_args(inst)[0]);
                    known.store(&access, lanes);
                    continue;
                }
                let result = func.dfg.first_result(inst);
                if let Some(v) = self.forwarded(func, inst, &access, &known) {
                    replace(func, inst, v);
                    continue;
                }
                self.loads.insert(result, access);
                // Those that are part of a wide one have its bytes.
                let lanes = *self.lanes.entry(result).or_insert_with(|| value::loaded(result, &access));
                known.load(&access, lanes);
            } else if func.dfg.insts[inst].opcode() == Opcode::Bor {
                if let Some(v) = self.put_together(func, inst, &known) {
                    replace(func, inst, v);
                }
            } else if memory::effect(func, inst) == Effect::Anything {
                known.forget();
            }
        }
        known
    }

    /// The value of a load from what is known of the memory, where that is better than the load.
    fn forwarded(&mut self, func: &mut ir::Function, inst: Inst, access: &Access, known: &Known) -> Option<Value> {
        let mut lanes = [Lane::ZERO; 8];
        let mut stored = false;
        for (n, lane) in lanes.iter_mut().enumerate().take(access.len) {
            let (known, by_store) = known.byte(access, n)?;
            *lane = known;
            stored |= by_store;
        }
        let pieces = value::pieces(&lanes[..access.len]);
        // A load of what was only loaded before is no dearer than what would stand in its place, unless it is the same load.
        let again = || match pieces[..] {
            [value::Piece { from: value::From::Value { root, index: 0 }, .. }] => {
                self.loads.get(&root).is_some_and(|l| l.len == access.len && !l.signed)
            }
            _ => false,
        };
        if access.signed || pieces.len() > PIECES_MAX || (!stored && !again()) {
            return None;
        }
        let ty = func.dfg.value_type(func.dfg.first_result(inst));
        if ty != types::I64 {
            return None;
        }
        let mut at = before(func, inst);
        Some(value::build(&mut at, &pieces, &self.loads))
    }

    /// One load for a number that was put together from bytes of memory.
    fn put_together(&mut self, func: &mut ir::Function, inst: Inst, known: &Known) -> Option<Value> {
        let result = func.dfg.first_result(inst);
        if !self.whole[result] || func.dfg.value_type(result) != types::I64 {
            return None;
        }
        let lanes = self.lanes_of(func, result);
        let used = 8 - lanes.iter().rev().take_while(|l| **l == Lane::ZERO).count();
        let len = [2, 4, 8].into_iter().find(|n| *n >= used)?;
        let swapped: Vec<Lane> = lanes[..len].iter().rev().copied().collect();
        // Neighbours in one value: a part of it, as it is or turned around.
        for (lanes, swap) in [(&lanes[..len], false), (&swapped[..], true)] {
            let pieces = value::pieces(lanes);
            let [value::Piece { from: value::From::Value { root, .. }, .. }] = pieces[..] else { continue };
            if root == result {
                return None;
            }
            let mut at = before(func, inst);
            let v = value::build(&mut at, &pieces, &self.loads);
            return Some(if swap { turned(&mut at, v, len) } else { v });
        }
        let swapped: Vec<Lane> = lanes[..len].iter().rev().copied().collect();
        let (access, swap) = match self.contiguous(&lanes[..len], known) {
            Some(access) => (access, false),
            None => (self.contiguous(&swapped, known)?, true),
        };
        let mut at = before(func, inst);
        let loaded = memory::load(&mut at, &access);
        let v = if swap { turned(&mut at, loaded, len) } else { loaded };
        self.loads.insert(loaded, access);
        self.lanes.insert(loaded, value::loaded(loaded, &access));
        Some(v)
    }

    /// Where bytes lie side by side on the stack, which still holds them. The packet's are not read a second time.
    fn contiguous(&self, lanes: &[Lane], known: &Known) -> Option<Access> {
        let first = self.place(lanes[0]).filter(|a| a.region == region::STACK)?;
        for (n, lane) in lanes.iter().enumerate() {
            let here = self.place(*lane)?;
            let same = (here.region, here.base) == (first.region, first.base) && here.off == first.off + n as i64;
            if !same || known.byte(&here, 0) != Some((*lane, false)) {
                return None;
            }
        }
        Some(Access { len: lanes.len(), signed: false, is_load: true, ..first })
    }

    /// The byte of memory that a lane was loaded from.
    fn place(&self, lane: Lane) -> Option<Access> {
        let Lane::Byte { root, index } = lane else { return None };
        let load = self.loads.get(&root).filter(|l| usize::from(index) < l.len)?;
        Some(Access { off: load.off + i64::from(index), len: 1, ..*load })
    }
}

/// The lowest bytes of a number in the other order.
fn turned(at: &mut FuncCursor<'_>, v: Value, len: usize) -> Value {
    if len == 8 {
        return at.ins().bswap(v);
    }
    let v = at.ins().ireduce(memory::int(len), v);
    let v = at.ins().bswap(v);
    at.ins().uextend(types::I64, v)
}

/// A cursor in front of an instruction, that gives what it makes the same origin.
fn before(func: &mut ir::Function, inst: Inst) -> FuncCursor<'_> {
    let loc = func.srcloc(inst);
    FuncCursor::new(func).with_srcloc(loc).at_inst(inst)
}

/// Puts a value in the place of an instruction's result.
fn replace(func: &mut ir::Function, inst: Inst, by: Value) {
    let old = func.dfg.first_result(inst);
    func.dfg.detach_inst_results(inst);
    func.dfg.change_to_alias(old, by);
    func.layout.remove_inst(inst);
}
