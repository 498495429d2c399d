//! Accesses to memory that is the program's own, and what is known to stand there.

use cranelift_codegen::cursor::FuncCursor;
use cranelift_codegen::ir::{self, Inst, InstBuilder, InstructionData, MemFlagsData, Opcode, Value, ValueDef, types};

use super::value::{Lane, Lanes, constant};
use crate::lower::region;

/// A load or a store of up to eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    /// The kind of memory: `crate::lower::region`.
    pub region: u32,
    /// What the address is counted from.
    pub base: Value,
    pub off: i64,
    pub len: usize,
    pub signed: bool,
    pub is_load: bool,
    pub flags: MemFlagsData,
}

impl Access {
    /// Whether both have a byte in common; accesses from another start may.
    pub fn may_meet(&self, other: &Access) -> bool {
        self.region == other.region
            && (self.base != other.base
                || (self.off < other.off + other.len as i64 && other.off < self.off + self.len as i64))
    }
}

/// The access of an instruction, when it is a plain one to memory that nobody else writes.
pub(super) fn access(func: &ir::Function, inst: Inst) -> Option<Access> {
    let (opcode, address, flags, offset, is_load) = match func.dfg.insts[inst] {
        InstructionData::Load { opcode, arg, flags, offset } => (opcode, arg, flags, offset, true),
        InstructionData::Store { opcode, args, flags, offset } => (opcode, args[1], flags, offset, false),
        _ => return None,
    };
    let flags = func.dfg.mem_flags[flags];
    let region = own_region(func, flags)?;
    let (len, signed) = match opcode {
        Opcode::Uload8 | Opcode::Istore8 => (1, false),
        Opcode::Uload16 | Opcode::Istore16 => (2, false),
        Opcode::Uload32 | Opcode::Istore32 => (4, false),
        Opcode::Sload8 => (1, true),
        Opcode::Sload16 => (2, true),
        Opcode::Sload32 => (4, true),
        Opcode::Load | Opcode::Store => {
            let v = if is_load { func.dfg.first_result(inst) } else { func.dfg.inst_args(inst)[0] };
            let ty = func.dfg.value_type(v);
            if !ty.is_int() || ty.bytes() > 8 {
                return None;
            }
            (ty.bytes() as usize, false)
        }
        _ => return None,
    };
    let (base, off) = start(func, address);
    Some(Access { region, base, off: off + i64::from(i32::from(offset)), len, signed, is_load, flags })
}

fn own_region(func: &ir::Function, flags: MemFlagsData) -> Option<u32> {
    let id = func.dfg.alias_regions[flags.alias_region()?].user_id;
    matches!(id, region::PACKET | region::STACK).then_some(id)
}

/// An address as another value and a distance.
pub(super) fn start(func: &ir::Function, address: Value) -> (Value, i64) {
    /// Chains are shorter (`chains`).
    const STEPS_MAX: usize = 64;
    let (mut base, mut off) = (func.dfg.resolve_aliases(address), 0i64);
    for _ in 0..STEPS_MAX {
        let ValueDef::Result(inst, 0) = func.dfg.value_def(base) else { break };
        let InstructionData::Binary { opcode: Opcode::Iadd, args: [a, b] } = func.dfg.insts[inst] else { break };
        let (from, by) = match (constant(func, a), constant(func, b)) {
            (_, Some(by)) => (a, by),
            (Some(by), None) => (b, by),
            _ => break,
        };
        // Distances that do not fit into an access are not followed.
        let Some(sum) = off.checked_add(by).filter(|sum| sum.unsigned_abs() < 1 << 20) else { break };
        (base, off) = (func.dfg.resolve_aliases(from), sum);
    }
    (base, off)
}

/// What an instruction that is no [`Access`] may do to memory of the program's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Nothing,
    /// Reads it.
    Looks,
    /// Reads or writes it.
    Anything,
}

pub(super) fn effect(func: &ir::Function, inst: Inst) -> Effect {
    let data = &func.dfg.insts[inst];
    let opcode = data.opcode();
    if opcode.is_call() {
        return Effect::Anything;
    }
    if !opcode.can_load() && !opcode.can_store() {
        return Effect::Nothing;
    }
    // Marked as memory of another kind.
    let flags = match *data {
        InstructionData::Load { flags, .. }
        | InstructionData::Store { flags, .. }
        | InstructionData::LoadNoOffset { flags, .. }
        | InstructionData::StoreNoOffset { flags, .. }
        | InstructionData::AtomicRmw { flags, .. }
        | InstructionData::AtomicCas { flags, .. } => Some(func.dfg.mem_flags[flags]),
        _ => None,
    };
    let elsewhere = flags
        .and_then(|f| f.alias_region())
        .is_some_and(|r| !matches!(func.dfg.alias_regions[r].user_id, region::PACKET | region::STACK));
    match (elsewhere, opcode.can_store()) {
        (true, _) => Effect::Nothing,
        (false, true) => Effect::Anything,
        (false, false) => Effect::Looks,
    }
}

/// The unsigned integer type of this many bytes.
pub(super) fn int(len: usize) -> types::Type {
    match len {
        1 => types::I8,
        2 => types::I16,
        4 => types::I32,
        _ => types::I64,
    }
}

/// Emits a load of 1, 2, 4 or 8 bytes, zero-extended.
pub(super) fn load(at: &mut FuncCursor<'_>, access: &Access) -> Value {
    let (p, off, flags) = (access.base, access.off as i32, access.flags);
    let ins = at.ins();
    match access.len {
        1 => ins.uload8(types::I64, flags, p, off),
        2 => ins.uload16(types::I64, flags, p, off),
        4 => ins.uload32(flags, p, off),
        _ => ins.load(types::I64, flags, p, off),
    }
}

/// Emits a store of the lowest 1, 2, 4 or 8 bytes.
pub(super) fn store(at: &mut FuncCursor<'_>, access: &Access, v: Value) {
    let (p, off, flags) = (access.base, access.off as i32, access.flags);
    let ins = at.ins();
    match access.len {
        1 => ins.istore8(flags, v, p, off),
        2 => ins.istore16(flags, v, p, off),
        4 => ins.istore32(flags, v, p, off),
        _ => ins.store(flags, v, p, off),
    };
}

/// What memory holds, as the last accesses have told; the newest last.
#[derive(Clone, Default, Debug)]
pub(super) struct Known {
    all: Vec<(Access, Lanes)>,
}

/// Accesses that are remembered.
const KNOWN_MAX: usize = 64;

impl Known {
    pub fn load(&mut self, access: &Access, lanes: Lanes) {
        self.push(access, lanes);
    }

    pub fn store(&mut self, access: &Access, lanes: Lanes) {
        // From another start of the same kind: it may be anywhere.
        self.all.retain(|(a, _)| a.region != access.region || a.base == access.base);
        self.push(access, lanes);
    }

    fn push(&mut self, access: &Access, lanes: Lanes) {
        if self.all.len() == KNOWN_MAX {
            self.all.remove(0);
        }
        self.all.push((*access, lanes));
    }

    pub fn forget(&mut self) {
        self.all.clear();
    }

    /// What the byte with this number of an access holds, and whether it was stored.
    pub fn byte(&self, access: &Access, n: usize) -> Option<(Lane, bool)> {
        let off = access.off + n as i64;
        self.all.iter().rev().find_map(|(a, lanes)| {
            let inside =
                a.region == access.region && a.base == access.base && (a.off..a.off + a.len as i64).contains(&off);
            inside.then(|| (lanes[(off - a.off) as usize], !a.is_load))
        })
    }
}
