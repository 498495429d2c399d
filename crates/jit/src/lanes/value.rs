//! Lanes of values, and values from lanes.

use cranelift_codegen::cursor::FuncCursor;
use cranelift_codegen::ir::{self, InstBuilder, InstructionData, Opcode, Value, ValueDef, types};
use rustc_hash::FxHashMap;

use super::Pass;
use super::memory::Access;

/// What a byte of a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    Const(u8),
    /// The byte with this number, counted from the lowest, of a value about whose bytes nothing else is known.
    Byte {
        root: Value,
        index: u8,
    },
}

impl Lane {
    pub const ZERO: Lane = Lane::Const(0);
}

/// The eight bytes of a value, the lowest first; zero above its type.
pub(super) type Lanes = [Lane; 8];

/// Operations that are looked through.
const DEPTH_MAX: usize = 16;

/// A value that is only itself.
fn opaque(v: Value, bytes: usize) -> Lanes {
    std::array::from_fn(|n| if n < bytes { Lane::Byte { root: v, index: n as u8 } } else { Lane::ZERO })
}

/// The lanes of a load's result.
pub(super) fn loaded(v: Value, access: &Access) -> Lanes {
    // Sign-extended bytes above are the value's own.
    opaque(v, if access.signed { 8 } else { access.len })
}

impl Pass {
    pub(super) fn lanes_of(&mut self, func: &ir::Function, v: Value) -> Lanes {
        self.lanes_at(func, func.dfg.resolve_aliases(v), 0)
    }

    fn lanes_at(&mut self, func: &ir::Function, v: Value, depth: usize) -> Lanes {
        if let Some(lanes) = self.lanes.get(&v) {
            return *lanes;
        }
        let bytes = (func.dfg.value_type(v).bytes() as usize).min(8);
        if depth == DEPTH_MAX {
            return opaque(v, bytes);
        }
        let lanes = self.look_through(func, v, bytes, depth).unwrap_or_else(|| opaque(v, bytes));
        self.lanes.insert(v, lanes);
        lanes
    }

    fn look_through(&mut self, func: &ir::Function, v: Value, bytes: usize, depth: usize) -> Option<Lanes> {
        let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
        let mut of = |v: Value| self.lanes_at(func, func.dfg.resolve_aliases(v), depth + 1);
        let cut = |mut lanes: Lanes| {
            lanes[bytes..].fill(Lane::ZERO);
            lanes
        };
        Some(match func.dfg.insts[inst] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => cut(imm.bits().to_le_bytes().map(Lane::Const)),
            InstructionData::Unary { opcode: Opcode::Uextend, arg } => of(arg),
            InstructionData::Unary { opcode: Opcode::Ireduce, arg } => cut(of(arg)),
            InstructionData::Unary { opcode: Opcode::Bswap, arg } => {
                let mut lanes = of(arg);
                lanes[..bytes].reverse();
                lanes
            }
            InstructionData::Binary { opcode: opcode @ (Opcode::Ishl | Opcode::Ushr), args: [a, by] } => {
                let by = constant(func, by)? as usize & (8 * bytes - 1);
                if !by.is_multiple_of(8) {
                    return None;
                }
                let (lanes, by) = (of(a), by / 8);
                let from = |n: usize| {
                    let from = if opcode == Opcode::Ishl { n.checked_sub(by) } else { Some(n + by) };
                    from.and_then(|from| lanes.get(from)).copied().unwrap_or(Lane::ZERO)
                };
                cut(std::array::from_fn(from))
            }
            InstructionData::Binary { opcode: opcode @ (Opcode::Bor | Opcode::Bxor | Opcode::Band), args: [a, b] } => {
                let (a, b) = (of(a), of(b));
                let one = |n: usize| match (opcode, a[n], b[n]) {
                    (Opcode::Bor | Opcode::Bxor, Lane::ZERO, other)
                    | (Opcode::Bor | Opcode::Bxor, other, Lane::ZERO) => other,
                    (Opcode::Band, Lane::ZERO, _) | (Opcode::Band, _, Lane::ZERO) => Lane::ZERO,
                    (Opcode::Band, Lane::Const(0xff), other) | (Opcode::Band, other, Lane::Const(0xff)) => other,
                    (Opcode::Bor, Lane::Const(x), Lane::Const(y)) => Lane::Const(x | y),
                    (Opcode::Bor | Opcode::Band, x, y) if x == y => x,
                    _ => Lane::Byte { root: v, index: n as u8 },
                };
                cut(std::array::from_fn(one))
            }
            _ => return None,
        })
    }
}

/// A value that is one constant.
pub(crate) fn constant(func: &ir::Function, v: Value) -> Option<i64> {
    let ValueDef::Result(inst, 0) = func.dfg.value_def(func.dfg.resolve_aliases(v)) else { return None };
    match func.dfg.insts[inst] {
        InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => Some(imm.bits()),
        _ => None,
    }
}

/// Neighbouring lanes that are one constant or neighbours in one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Its first byte among the lanes.
    pub at: usize,
    pub len: usize,
    pub from: From,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum From {
    Const(u64),
    Value { root: Value, index: usize },
}

pub(super) fn pieces(lanes: &[Lane]) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for (n, lane) in lanes.iter().enumerate() {
        if let Some(last) = all.last_mut() {
            match (&mut last.from, *lane) {
                (From::Const(c), Lane::Const(byte)) => {
                    *c |= u64::from(byte) << (8 * last.len);
                    last.len += 1;
                    continue;
                }
                (From::Value { root, index }, Lane::Byte { root: r, index: i })
                    if *root == r && *index + last.len == usize::from(i) =>
                {
                    last.len += 1;
                    continue;
                }
                _ => {}
            }
        }
        let from = match *lane {
            Lane::Const(c) => From::Const(c.into()),
            Lane::Byte { root, index } => From::Value { root, index: index.into() },
        };
        all.push(Piece { at: n, len: 1, from });
    }
    all
}

/// A number of 64 bits with these bytes and zeros above. `loads` says how long what was loaded is: above it are zeros.
pub(super) fn build(at: &mut FuncCursor<'_>, pieces: &[Piece], loads: &FxHashMap<Value, Access>) -> Value {
    let mut constant = 0u64;
    let mut sum: Option<(Value, Value)> = None;
    for piece in pieces {
        let (root, index) = match piece.from {
            From::Const(c) => {
                constant |= c << (8 * piece.at);
                continue;
            }
            From::Value { root, index } => (root, index),
        };
        let ty = at.func.dfg.value_type(root).bytes() as usize;
        let bytes =
            loads.get(&root).filter(|l| !l.signed).map_or_else(|| loaded_bytes(at.func, root).unwrap_or(ty), |l| l.len);
        let mut v = if ty < 8 { at.ins().uextend(types::I64, root) } else { root };
        if index > 0 {
            v = at.ins().ushr_imm_u(v, 8 * index as i64);
        }
        // What stands above falls out at the top, or was never there.
        if index + piece.len < bytes && piece.at + piece.len < 8 {
            v = match piece.len {
                1 => narrowed(at, v, types::I8),
                2 => narrowed(at, v, types::I16),
                4 => narrowed(at, v, types::I32),
                len => {
                    let mask = at.ins().iconst(types::I64, (1i64 << (8 * len)) - 1);
                    at.ins().band(v, mask)
                }
            };
        }
        if piece.at > 0 {
            v = at.ins().ishl_imm_s(v, 8 * piece.at as i64);
        }
        let whole = match sum {
            // Parts of one value may be a rotation or a change of byte order, which Cranelift finds behind `bor`. Of two it would make a
            // double shift: six operations on AMD's processors, where these are three.
            Some((sum, last)) if last == root => at.ins().bor(sum, v),
            Some((sum, _)) => at.ins().iadd(sum, v),
            None => v,
        };
        sum = Some((whole, root));
    }
    match (sum.map(|(whole, _)| whole), constant) {
        (Some(sum), 0) => sum,
        (sum, constant) => {
            let c = at.ins().iconst(types::I64, constant as i64);
            match sum {
                Some(sum) => at.ins().bor(sum, c),
                None => c,
            }
        }
    }
}

/// Bytes that a load has filled, where it leaves zeros above them.
fn loaded_bytes(func: &ir::Function, v: Value) -> Option<usize> {
    let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
    match func.dfg.insts[inst].opcode() {
        Opcode::Uload8 => Some(1),
        Opcode::Uload16 => Some(2),
        Opcode::Uload32 => Some(4),
        _ => None,
    }
}

fn narrowed(at: &mut FuncCursor<'_>, v: Value, ty: types::Type) -> Value {
    let v = at.ins().ireduce(ty, v);
    at.ins().uextend(types::I64, v)
}
