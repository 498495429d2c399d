//! `interleave`: what waits for itself, for several packets at once.
//!
//! A computation in which each step needs the one before runs at a step's latency, three or four cycles, however many steps a core
//! could do at a time. The next packet's is independent of it, but stands behind it, further away than the core's schedulers
//! reach. So a packet that comes to such a place leaves what goes into the computation, and its verdict's address, in a place of the
//! stack, and the next packet has its turn; with the last free place the computation runs for all of them, a few steps of each
//! in turns.
//!
//! ```text
//!   … v = f(x)                                 place[n] = (&verdict, x); n += 1
//!   exit: *verdict = v; next frame     ──>     if n < 4: next frame
//!                                              v0 = f(place[0].x) … v3 = f(place[3].x), in turns
//!                                              *place[0].verdict = v0 …; n = 0; next frame
//!                                              behind the last frame: the same once more if n > 0
//! ```
//!
//! **Why nothing changes**: only what stands at the end of a program is put off, has arithmetic and nothing else in it (no memory is
//! read or written, nothing is called, nothing can trap), and ends in the verdict. So there is no order between it and anything
//! but the verdict's store, and verdicts are read by nobody before the burst function returns. Places that are not taken hold what an
//! earlier round left, and storing a verdict twice is the same as once; at first they point to a word of their own.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    self, Block, BlockArg, Inst, InstBuilder, InstructionData, MemFlagsData, Opcode, StackSlotData, StackSlotKind,
    Value, ValueDef, types,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Uses;
use super::value::constant;

/// Cycles of a computation from which on it is worth it: more than the schedulers of a core reach over.
const CYCLES_MIN: u32 = 64;
/// Its operations: fewer leave room in the schedulers for those of the next packet.
const OPS_MIN: usize = 48;
/// Operations of all packets together.
const OPS_MAX: usize = 640;
/// Packets that are computed at once, where so many fit.
const PACKETS: [usize; 2] = [4, 2];
/// Values that are put aside.
const LIVE_MAX: usize = 4;
/// Operations of one packet before the next one's: so many of all of them fit into the smallest scheduler.
const TURN: usize = 8;

/// Offsets on the stack: how far the places are taken, a word for what nobody reads, and the places.
const TAKEN: i32 = 0;
const NOBODY: i32 = 8;
const PLACES: i32 = 16;

/// The pass over a burst function, whose blocks end in `exit` with the verdict. Whether it did anything.
pub(super) fn run(func: &mut ir::Function, exit: Block) -> bool {
    let takes_time = |inst: &Inst| latency(func.dfg.insts[*inst].opcode()).is_some_and(|cycles| cycles > 0);
    let ops = func.layout.blocks().flat_map(|b| func.layout.block_insts(b)).filter(takes_time);
    if ops.take(OPS_MIN).count() < OPS_MIN {
        return false;
    }
    let Some(end) = End::of(func, exit) else { return false };
    let (before, uses) = (only_before(func), super::uses(func));
    let put = |last: Block| Put::of(func, &end, (&before, &uses), last, verdict_of(func, exit, last)?);
    let found = func.layout.blocks().filter_map(put).max_by_key(|put| put.cycles);
    let Some(put) = found else { return false };
    put.off(func, &end);
    true
}

/// The end of the loop over frames.
struct End {
    exit: Block,
    /// The store of the verdict.
    store: Inst,
    /// What its address is the sum of; both are known in all of the loop.
    address: [Value; 2],
    /// The branch to the next frame, and which of its ways leads out of the loop.
    branch: Inst,
    out: usize,
}

impl End {
    /// `None` where the block does not look like one.
    fn of(func: &ir::Function, exit: Block) -> Option<End> {
        let [verdict] = *func.dfg.block_params(exit) else { return None };
        let stores = |inst: &Inst| func.dfg.insts[*inst].opcode().can_store();
        let mut stores = func.layout.block_insts(exit).filter(stores);
        let (store, None) = (stores.next()?, stores.next()) else { return None };
        let [value, address] = *func.dfg.inst_args(store) else { return None };
        let address = func.dfg.resolve_aliases(address);
        if func.dfg.resolve_aliases(value) != verdict || func.dfg.insts[store].load_store_offset() != Some(0) {
            return None;
        }
        let ValueDef::Result(sum, 0) = func.dfg.value_def(address) else { return None };
        let InstructionData::Binary { opcode: Opcode::Iadd, args } = func.dfg.insts[sum] else { return None };
        let address = args.map(|v| func.dfg.resolve_aliases(v));
        let branch = func.layout.last_inst(exit)?;
        let InstructionData::Brif { blocks, .. } = func.dfg.insts[branch] else { return None };
        let to = blocks.map(|b| b.block(&func.dfg.value_lists));
        let returns = |b: Block| {
            let last = func.layout.last_inst(b).map(|last| func.dfg.insts[last].opcode());
            func.dfg.block_params(b).is_empty() && last == Some(Opcode::Return)
        };
        let out = to.iter().position(|b| returns(*b))?;
        // Known in the whole loop: made in front of it, or what its first block is given.
        let (entry, head) = (func.layout.entry_block()?, to[1 - out]);
        let in_loop = |v: &Value| match func.dfg.value_def(*v) {
            ValueDef::Param(block, _) => block == head || block == entry,
            ValueDef::Result(inst, _) => func.layout.inst_block(inst) == Some(entry),
            ValueDef::Union(..) => false,
        };
        // What comes behind the store is also gone to without it.
        let behind = std::iter::successors(func.layout.next_inst(store), |inst| func.layout.next_inst(*inst));
        let own: FxHashSet<Inst> = behind.collect();
        let known = |v: Value| match func.dfg.value_def(func.dfg.resolve_aliases(v)) {
            ValueDef::Result(inst, _) => own.contains(&inst) || func.layout.inst_block(inst) != Some(exit),
            ValueDef::Param(block, _) => block != exit,
            ValueDef::Union(..) => false,
        };
        let alone = own.iter().all(|inst| func.dfg.inst_values(*inst).all(known));
        (address.iter().all(in_loop) && alone).then_some(End { exit, store, address, branch, out })
    }
}

/// The only place that a block goes to.
fn jumps_to(func: &ir::Function, block: Block) -> Option<Block> {
    let last = func.layout.last_inst(block)?;
    match func.dfg.insts[last] {
        InstructionData::Jump { destination, .. } => Some(destination.block(&func.dfg.value_lists)),
        _ => None,
    }
}

/// What a block's jump hands on.
fn handed(func: &ir::Function, block: Block) -> Vec<BlockArg> {
    let last = func.layout.last_inst(block).expect("a block that jumps");
    match func.dfg.insts[last] {
        InstructionData::Jump { destination, .. } => destination.args(&func.dfg.value_lists).collect(),
        _ => vec![],
    }
}

/// What a block hands to the exit, if that is where it goes: at once, or through blocks that do nothing.
fn verdict_of(func: &ir::Function, exit: Block, block: Block) -> Option<Value> {
    let (mut to, mut args) = (jumps_to(func, block)?, handed(func, block));
    // As many as there may be one behind the other.
    for _ in 0..8 {
        if to == exit {
            let [BlockArg::Value(verdict)] = args[..] else { return None };
            return Some(verdict);
        }
        let next = jumps_to(func, to).filter(|_| func.layout.first_inst(to) == func.layout.last_inst(to))?;
        let params = func.dfg.block_params(to);
        let given = |arg: BlockArg| match arg {
            BlockArg::Value(v) => {
                let v = func.dfg.resolve_aliases(v);
                params.iter().position(|p| *p == v).map_or(arg, |n| args[n])
            }
            other => other,
        };
        args = handed(func, to).into_iter().map(given).collect();
        to = next;
    }
    None
}

/// Cycles until the result of an operation is there; `None` for what is not put off.
fn latency(opcode: Opcode) -> Option<u32> {
    match opcode {
        Opcode::Iconst | Opcode::Uextend | Opcode::Sextend | Opcode::Ireduce => Some(0),
        Opcode::Iadd | Opcode::Isub | Opcode::Ineg | Opcode::Band | Opcode::Bor | Opcode::Bxor | Opcode::Bnot => {
            Some(1)
        }
        Opcode::Ishl | Opcode::Ushr | Opcode::Sshr | Opcode::Rotl | Opcode::Rotr | Opcode::Bswap => Some(1),
        Opcode::Icmp | Opcode::Select => Some(1),
        Opcode::Imul | Opcode::Umulhi | Opcode::Smulhi => Some(3),
        _ => None,
    }
}

/// A computation that is put off.
struct Put {
    /// The blocks that it stands in, the first one's front apart: each leads to the next one and nowhere else.
    blocks: Vec<Block>,
    /// From here on the first one's operations belong to it.
    from: Option<Inst>,
    /// Its operations in order, and those that take time.
    ops: Vec<Inst>,
    counted: FxHashSet<Inst>,
    /// What parameters of its blocks are.
    given: FxHashMap<Value, Value>,
    /// What goes into it, and the verdict.
    live: Vec<Value>,
    verdict: Value,
    /// How long one waits for it.
    cycles: u32,
    packets: usize,
}

impl Put {
    /// What ends in a block that leads to the exit with a verdict, if it is worth putting off.
    fn of(
        func: &ir::Function,
        end: &End,
        (before, uses): (&FxHashMap<Block, Option<Block>>, &Uses),
        last: Block,
        verdict: Value,
    ) -> Option<Put> {
        let Chain { blocks, from, given } = chain(func, before, last)?;
        let resolve = |v: Value| {
            let mut v = func.dfg.resolve_aliases(v);
            while let Some(to) = given.get(&v) {
                v = func.dfg.resolve_aliases(*to);
            }
            v
        };
        let verdict = resolve(verdict);
        let first = std::iter::successors(from, |inst| func.layout.next_inst(*inst));
        let all: Vec<Inst> = first.chain(blocks[1..].iter().flat_map(|b| func.layout.block_insts(*b))).collect();
        if all.len() < OPS_MIN {
            return None;
        }
        let own: FxHashSet<Inst> = all.iter().copied().collect();
        // What the verdict is made of, from its end.
        let mut needed = FxHashSet::from_iter([verdict]);
        for inst in all.iter().rev().filter(|i| latency(func.dfg.insts[**i].opcode()).is_some()) {
            if needed.contains(&func.dfg.first_result(*inst)) {
                needed.extend(func.dfg.inst_values(*inst).map(resolve));
            }
        }
        let made = |v: &Value| matches!(func.dfg.value_def(*v), ValueDef::Result(inst, _) if own.contains(&inst));
        let is_op = |i: &Inst| latency(func.dfg.insts[*i].opcode()).is_some();
        let ops: Vec<Inst> =
            all.iter().copied().filter(|i| is_op(i) && needed.contains(&func.dfg.first_result(*i))).collect();
        // Cycles until each value is there; what is computed of constants alone will be one.
        let mut ready: FxHashMap<Value, u32> = FxHashMap::default();
        let mut counted = FxHashSet::default();
        for inst in &ops {
            let args: Vec<Value> = func.dfg.inst_values(*inst).map(resolve).collect();
            let Some(start) = args.iter().filter_map(|v| start_of(func, &own, &ready, *v)).max() else { continue };
            let cost = latency(func.dfg.insts[*inst].opcode())?;
            ready.insert(func.dfg.first_result(*inst), start + cost);
            if cost != 0 {
                counted.insert(*inst);
            }
        }
        let (cycles, real) = (*ready.get(&verdict)?, counted.len());
        // Many operations for each cycle keep a core busy by themselves.
        if cycles < CYCLES_MIN || real < OPS_MIN || real > 2 * cycles as usize || uses_outside(func, uses, &all) {
            return None;
        }
        let packets = PACKETS.into_iter().find(|n| n * real <= OPS_MAX)?;
        let mut live: Vec<Value> = needed.into_iter().filter(|v| !made(v) && constant(func, *v).is_none()).collect();
        live.sort_unstable();
        let small = |v: &Value| func.dfg.value_type(*v).is_int() && func.dfg.value_type(*v).bits() <= 64;
        let fits = live.len() <= LIVE_MAX && live.iter().all(small) && blocks.iter().all(|b| *b != end.exit);
        fits.then_some(Put { blocks, from, ops, counted, given, live, verdict, cycles, packets })
    }

    /// Bytes of a place.
    fn place(&self) -> i32 {
        8 * (1 + self.live.len() as i32)
    }

    /// Puts it off.
    fn off(&self, func: &mut ir::Function, end: &End) {
        let size = PLACES + self.packets as i32 * self.place();
        let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, size as u32, 3);
        let slot = func.create_sized_stack_slot(slot);
        self.clear(func, slot, size);

        // Behind the store, where those go that put something off.
        let next = func.dfg.make_block();
        let behind = func.layout.next_inst(end.store).expect("the branch");
        func.layout.split_block(next, behind);
        FuncCursor::new(func).at_bottom(end.exit).ins().jump(next, &[]);
        let (all, rest) = (func.dfg.make_block(), func.dfg.make_block());
        func.layout.insert_block_after(all, next);
        func.layout.insert_block_after(rest, all);

        self.set_aside(func, end, slot, [all, next]);
        self.compute(func, slot, all, next);

        // Behind the last frame, for what is left.
        let InstructionData::Brif { arg, blocks, .. } = func.dfg.insts[end.branch] else { unreachable!("End::of") };
        let lists = &func.dfg.value_lists;
        let mut to = blocks.map(|b| (b.block(lists), b.args(lists).collect::<Vec<BlockArg>>()));
        let done = std::mem::replace(&mut to[end.out], (rest, vec![]));
        let mut at = FuncCursor::new(func).at_inst(end.branch);
        at.ins().brif(arg, to[0].0, &to[0].1, to[1].0, &to[1].1);
        func.layout.remove_inst(end.branch);
        let mut at = FuncCursor::new(func).at_bottom(rest);
        let base = at.ins().stack_addr(types::I64, slot, 0);
        let taken = at.ins().load(types::I64, flags(), base, TAKEN);
        at.ins().brif(taken, all, &[], done.0, &done.1);
    }

    /// In front of the loop: nothing is put off, and what may be computed without having been has no verdict of anybody.
    fn clear(&self, func: &mut ir::Function, slot: ir::StackSlot, size: i32) {
        let entry = func.layout.entry_block().expect("an entry");
        let last = func.layout.last_inst(entry).expect("a branch");
        let mut at = FuncCursor::new(func).at_inst(last);
        let base = at.ins().stack_addr(types::I64, slot, 0);
        let nobody = at.ins().stack_addr(types::I64, slot, NOBODY);
        let zero = at.ins().iconst(types::I64, 0);
        at.ins().store(flags(), zero, base, TAKEN);
        for off in (PLACES..size).step_by(8) {
            let first = (off - PLACES) % self.place() == 0;
            at.ins().store(flags(), if first { nobody } else { zero }, base, off);
        }
    }

    /// In the computation's place: takes a place, and goes on with what is behind it or with the next frame.
    fn set_aside(&self, func: &mut ir::Function, end: &End, slot: ir::StackSlot, [all, next]: [Block; 2]) {
        for block in &self.blocks[1..] {
            func.layout.remove_block_and_insts(*block);
        }
        let mut inst = self.from;
        while let Some(this) = inst {
            inst = func.layout.next_inst(this);
            func.layout.remove_inst(this);
        }
        let mut at = FuncCursor::new(func).at_bottom(self.blocks[0]);
        let verdict = at.ins().iadd(end.address[0], end.address[1]);
        let base = at.ins().stack_addr(types::I64, slot, 0);
        let taken = at.ins().load(types::I64, flags(), base, TAKEN);
        let place = at.ins().iadd(base, taken);
        at.ins().store(flags(), verdict, place, PLACES);
        for (n, v) in self.live.iter().enumerate() {
            at.ins().store(flags(), *v, place, PLACES + 8 * (1 + n as i32));
        }
        let taken = at.ins().iadd_imm_s(taken, i64::from(self.place()));
        at.ins().store(flags(), taken, base, TAKEN);
        let full = at.ins().icmp_imm_s(IntCC::Equal, taken, i64::from(self.place()) * self.packets as i64);
        at.ins().brif(full, all, &[], next, &[]);
    }

    /// The computation for all places, a few operations of each in turns.
    fn compute(&self, func: &mut ir::Function, slot: ir::StackSlot, all: Block, next: Block) {
        let mut at = FuncCursor::new(func).at_bottom(all);
        let base = at.ins().stack_addr(types::I64, slot, 0);
        // What each value is for each packet.
        let mut made: Vec<FxHashMap<Value, Value>> = vec![FxHashMap::default(); self.packets];
        for (packet, made) in made.iter_mut().enumerate() {
            for (n, v) in self.live.iter().enumerate() {
                let off = PLACES + packet as i32 * self.place() + 8 * (1 + n as i32);
                let ty = at.func.dfg.value_type(*v);
                made.insert(*v, at.ins().load(ty, flags(), base, off));
            }
        }
        for turn in self.turns() {
            for made in &mut made {
                let mut last = None;
                for inst in turn {
                    let v = self.again(&mut at, *inst, made);
                    if self.counted.contains(inst) && at.func.dfg.value_type(v).bits() >= 32 {
                        last = Some(v);
                    }
                }
                // Cranelift computes where something is needed that cannot be moved or left out: this store, which nobody reads.
                if let Some(last) = last {
                    at.ins().store(flags(), last, base, NOBODY);
                    at.ins().sequence_point();
                }
            }
        }
        for (packet, made) in made.iter().enumerate() {
            let address = at.ins().load(types::I64, flags(), base, PLACES + packet as i32 * self.place());
            at.ins().store(flags(), made[&self.verdict], address, 0);
        }
        let zero = at.ins().iconst(types::I64, 0);
        at.ins().store(flags(), zero, base, TAKEN);
        at.ins().jump(next, &[]);
    }

    /// The operations, [`TURN`] at a time; those that cost nothing are not counted.
    fn turns(&self) -> Vec<&[Inst]> {
        let (mut turns, mut start, mut count) = (vec![], 0, 0);
        for (n, inst) in self.ops.iter().enumerate() {
            count += usize::from(self.counted.contains(inst));
            if count == TURN || n + 1 == self.ops.len() {
                turns.push(&self.ops[start..=n]);
                (start, count) = (n + 1, 0);
            }
        }
        turns
    }

    /// An operation once more, on a packet's own values.
    fn again(&self, at: &mut FuncCursor<'_>, inst: Inst, made: &mut FxHashMap<Value, Value>) -> Value {
        let args: Vec<Value> = at.func.dfg.inst_values(inst).collect();
        let mut own = vec![];
        for v in args {
            let mut v = at.func.dfg.resolve_aliases(v);
            while let Some(to) = self.given.get(&v) {
                v = at.func.dfg.resolve_aliases(*to);
            }
            let known = made.get(&v).copied();
            // A constant that is made elsewhere.
            own.push(known.unwrap_or_else(|| {
                let ty = at.func.dfg.value_type(v);
                let number = constant(at.func, v).expect("what is no constant is put aside");
                let number = at.ins().iconst(ty, number);
                made.insert(v, number);
                number
            }));
        }
        let copy = at.func.dfg.clone_inst(inst);
        let mut own = own.into_iter();
        at.func.dfg.map_inst_values(copy, |_| own.next().expect("as many as there were"));
        let loc = at.func.srcloc(inst);
        at.func.set_srcloc(copy, loc);
        at.insert_inst(copy);
        let result = at.func.dfg.first_result(copy);
        made.insert(at.func.dfg.first_result(inst), result);
        result
    }
}

/// Whether anything else uses what these instructions give; `uses` are those of all.
fn uses_outside(func: &ir::Function, uses: &Uses, own: &[Inst]) -> bool {
    let mut inside: FxHashMap<Value, u32> = FxHashMap::default();
    for v in own.iter().flat_map(|inst| func.dfg.inst_values(*inst)) {
        *inside.entry(func.dfg.resolve_aliases(v)).or_default() += 1;
    }
    let results = own.iter().flat_map(|inst| func.dfg.inst_results(*inst));
    results.into_iter().any(|v| uses[*v] > inside.get(v).copied().unwrap_or(0))
}

/// When an operand is there, in cycles from the beginning; `None` for constants and what is made of them.
fn start_of(func: &ir::Function, own: &FxHashSet<Inst>, ready: &FxHashMap<Value, u32>, v: Value) -> Option<u32> {
    let here = matches!(func.dfg.value_def(v), ValueDef::Result(inst, _) if own.contains(&inst));
    if here { ready.get(&v).copied() } else { constant(func, v).is_none().then_some(0) }
}

/// The only block that leads to each and goes nowhere else.
fn only_before(func: &ir::Function) -> FxHashMap<Block, Option<Block>> {
    let mut only: FxHashMap<Block, Option<Block>> = FxHashMap::default();
    for block in func.layout.blocks() {
        let Some(end) = func.layout.last_inst(block) else { continue };
        let dfg = &func.dfg;
        for to in dfg.insts[end].branch_destination(&dfg.jump_tables, &dfg.exception_tables) {
            let from = only.entry(to.block(&dfg.value_lists)).or_insert(Some(block));
            // Two ways in, or both ways of one branch.
            *from = from.filter(|from| *from == block && jumps_to(func, block).is_some());
        }
    }
    only
}

/// Blocks one behind the other, with nothing but arithmetic from some place of the first on.
struct Chain {
    blocks: Vec<Block>,
    from: Option<Inst>,
    /// What parameters of the blocks are.
    given: FxHashMap<Value, Value>,
}

/// The longest chain that ends in this block.
fn chain(func: &ir::Function, only: &FxHashMap<Block, Option<Block>>, last: Block) -> Option<Chain> {
    let (mut blocks, mut given) = (vec![last], FxHashMap::default());
    loop {
        let block = *blocks.last()?;
        let (mut from, mut at) = (None, func.layout.last_inst(block));
        while let Some(inst) = at {
            let opcode = func.dfg.insts[inst].opcode();
            if opcode != Opcode::Jump && latency(opcode).is_none() {
                break;
            }
            (from, at) = (Some(inst), func.layout.prev_inst(inst));
        }
        let before = only.get(&block).copied().flatten().filter(|b| at.is_none() && !blocks.contains(b));
        let Some(before) = before else {
            blocks.reverse();
            return Some(Chain { blocks, from, given });
        };
        for (param, arg) in func.dfg.block_params(block).iter().zip(handed(func, before)) {
            let BlockArg::Value(v) = arg else { return None };
            given.insert(*param, v);
        }
        blocks.push(before);
    }
}

/// Of accesses to the places.
fn flags() -> MemFlagsData {
    MemFlagsData::trusted()
}
