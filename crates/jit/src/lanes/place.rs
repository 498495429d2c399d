//! `in-place`: arithmetic where the number lies, and constants as part of the store.
//!
//! x86-64 adds to memory with one instruction, and stores a constant without a register for it. Cranelift has both, but misses them
//! in what programs do most: count.
//!
//! ```text
//! v1 = load p+8                             v1 = load p+8
//! sequence_point                            v2 = iadd v1, v3
//! v2 = iadd v1, v3                 ──>      store v2, p+8
//! store v2, p+8
//!
//! v1 = uload32 p+8                          v1 = load.i32 p+8
//! v2 = iadd v1, 1                  ──>      v2 = iadd v1, 1 (of 32 bits)
//! istore32 v2, p+8                          store v2, p+8
//!
//! istore32 (iconst.i64 7), p       ──>      store (iconst.i32 7), p
//! ```
//!
//! What stands in front of an access to memory that others use too (`Body::shared`) keeps loads from being answered by what was
//! known before, and stores from being left out. Behind the load that the store answers it does neither: the one in front of that
//! load still parts both from everything before them.

use cranelift_codegen::ir::{
    self, Block, Inst, InstBuilder, InstructionData, MemFlagsData, Opcode, Value, ValueDef, types,
};

use super::value::constant;
use super::{Uses, before, memory};

/// The pass over one function.
pub(super) fn run(func: &mut ir::Function, uses: &Uses) {
    let blocks: Vec<Block> = func.layout.blocks().collect();
    for block in blocks {
        let stores: Vec<Inst> =
            func.layout.block_insts(block).filter(|i| func.dfg.insts[*i].opcode().can_store()).collect();
        for store in stores {
            let Some(to) = place(func, store) else { continue };
            if let Some(value) = constant(func, to.value) {
                stored_constant(func, store, &to, value);
            } else if let Some(found) = counted(func, store, &to, uses) {
                found.parted.into_iter().for_each(|inst| {
                    func.layout.remove_inst(inst);
                });
                if to.len == 4 && func.dfg.value_type(to.value) == types::I64 {
                    narrow(func, store, &to, &found);
                }
            }
        }
    }
}

/// Where a plain load or store goes.
struct Place {
    base: Value,
    off: i32,
    /// In bytes.
    len: usize,
    flags: MemFlagsData,
    /// What is stored, or was loaded.
    value: Value,
}

fn place(func: &ir::Function, inst: Inst) -> Option<Place> {
    let (opcode, base, flags, offset, value) = match func.dfg.insts[inst] {
        InstructionData::Load { opcode, arg, flags, offset } => {
            (opcode, arg, flags, offset, func.dfg.first_result(inst))
        }
        InstructionData::Store { opcode, args, flags, offset } => (opcode, args[1], flags, offset, args[0]),
        _ => return None,
    };
    let value = func.dfg.resolve_aliases(value);
    let len = match opcode {
        Opcode::Istore8 => 1,
        Opcode::Istore16 => 2,
        Opcode::Istore32 | Opcode::Uload32 => 4,
        Opcode::Load | Opcode::Store if matches!(func.dfg.value_type(value), types::I32 | types::I64) => {
            func.dfg.value_type(value).bytes() as usize
        }
        _ => return None,
    };
    let (flags, base) = (func.dfg.mem_flags[flags], func.dfg.resolve_aliases(base));
    Some(Place { base, off: offset.into(), len, flags, value })
}

/// A store of part of a constant, as a store of a constant of that many bits, which is part of the instruction.
fn stored_constant(func: &mut ir::Function, store: Inst, to: &Place, value: i64) {
    if func.dfg.value_type(to.value).bytes() as usize == to.len {
        return;
    }
    let bits = 8 * to.len;
    let mut at = before(func, store);
    let value = at.ins().iconst(memory::int(to.len), value & ((1 << bits) - 1));
    at.ins().store(to.flags, value, to.base, to.off);
    func.layout.remove_inst(store);
}

/// A number in memory that is loaded, changed and stored.
struct Counted {
    load: Inst,
    change: Inst,
    /// What parts the load from the store.
    parted: Option<Inst>,
}

/// What a store puts back, where nothing but numbers lies between it and the load.
fn counted(func: &ir::Function, store: Inst, to: &Place, uses: &Uses) -> Option<Counted> {
    if to.len < 4 || uses[to.value] != 1 {
        return None;
    }
    let ValueDef::Result(change, 0) = func.dfg.value_def(to.value) else { return None };
    let InstructionData::Binary { opcode, args } = func.dfg.insts[change] else { return None };
    if !matches!(opcode, Opcode::Iadd | Opcode::Isub | Opcode::Band | Opcode::Bor | Opcode::Bxor) {
        return None;
    }
    let mut parted = None;
    let mut here = store;
    let load = loop {
        here = func.layout.prev_inst(here)?;
        let opcode = func.dfg.insts[here].opcode();
        if opcode == Opcode::SequencePoint && parted.is_none() {
            parted = Some(here);
        } else if opcode.can_load() {
            break here;
        } else if opcode.is_call() || opcode.can_store() || opcode.can_trap() || opcode.other_side_effects() {
            return None;
        }
    };
    let from = place(func, load)?;
    let first = func.dfg.resolve_aliases(args[0]) == from.value;
    let either = first || opcode != Opcode::Isub && func.dfg.resolve_aliases(args[1]) == from.value;
    let same = (from.base, from.off, from.len) == (to.base, to.off, to.len) && from.flags == to.flags;
    (either && same && uses[from.value] == 1).then_some(Counted { load, change, parted })
}

/// Half a word that was extended to be counted: in its own width.
fn narrow(func: &mut ir::Function, store: Inst, to: &Place, found: &Counted) {
    let InstructionData::Binary { opcode, args } = func.dfg.insts[found.change] else { return };
    let wide = func.dfg.first_result(found.load);
    if func.dfg.value_type(wide) != types::I64 {
        return;
    }
    let half = before(func, found.load).ins().load(types::I32, to.flags, to.base, to.off);
    let halves = args.map(|v| {
        let v = func.dfg.resolve_aliases(v);
        match constant(func, v) {
            _ if v == wide => half,
            Some(value) => before(func, store).ins().iconst(types::I32, value & 0xffff_ffff),
            None => before(func, store).ins().ireduce(types::I32, v),
        }
    });
    let mut at = before(func, store);
    let changed = match opcode {
        Opcode::Iadd => at.ins().iadd(halves[0], halves[1]),
        Opcode::Isub => at.ins().isub(halves[0], halves[1]),
        Opcode::Band => at.ins().band(halves[0], halves[1]),
        Opcode::Bor => at.ins().bor(halves[0], halves[1]),
        _ => at.ins().bxor(halves[0], halves[1]),
    };
    at.ins().store(to.flags, changed, to.base, to.off);
    for inst in [store, found.change, found.load] {
        func.layout.remove_inst(inst);
    }
}
