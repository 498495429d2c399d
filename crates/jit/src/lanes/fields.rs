//! Two comparisons of the packet's fields as one, of the word in which both lie.
//!
//! A part of [`checks`](super::checks): where two checks lead out the same way, and each compares bits of the packet with a constant, one
//! load, a mask and a comparison ask for both. Byte order, shifts and masks between the load and the comparison are followed bit by bit.
//!
//! Each byte is still read once: what the program uses elsewhere is left as it is.

use cranelift_codegen::cursor::FuncCursor;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, Inst, InstBuilder, InstructionData, MemFlagsData, Opcode, Value, ValueDef, types};

use super::Uses;
use super::memory::{self, Access, Effect};
use super::value::constant;
use crate::lower::region;

/// Operations between a load and its comparison.
const DEPTH_MAX: usize = 12;

/// Bits of the packet that have to have certain values.
#[derive(Debug)]
pub(super) struct Fields {
    base: Value,
    flags: MemFlagsData,
    /// Distance of the first byte from the base.
    off: i64,
    /// 1, 2, 4 or 8.
    len: usize,
    mask: u64,
    wanted: u64,
}

impl Fields {
    /// Of two values and the numbers that they are compared with. The word is to be loaded in front of the first check, behind what
    /// leads to the second, which does not write. `proved`, of a base: how many bytes behind it are there.
    pub fn of(
        func: &ir::Function,
        uses: &Uses,
        (check, between): (Inst, &[Inst]),
        compared: [(Value, i64); 2],
        proved: impl Fn(Value) -> i64,
    ) -> Option<Fields> {
        let (mut loads, mut bits) = (vec![], vec![]);
        for (value, number) in compared {
            for (n, from) in (Followed { func, uses, loads: &mut loads }).bits(value, 0)?.into_iter().enumerate() {
                let one = number as u64 >> n & 1;
                match from {
                    Some(bit) => bits.push((bit, one)),
                    // Never equal: whoever made the program may find out.
                    None if one == 1 => return None,
                    None => {}
                }
            }
        }
        let (_, first) = *loads.first()?;
        let same = loads.iter().all(|(_, a)| (a.base, a.region) == (first.base, first.region));
        if !same || !unwritten(func, &loads, check, between) {
            return None;
        }
        // Downwards in front of the base, too.
        let byte = |bit: i64| bit.div_euclid(8);
        let off = bits.iter().map(|(bit, _)| byte(*bit)).min()?;
        let end = bits.iter().map(|(bit, _)| byte(*bit) + 1).max()?;
        let len = [1, 2, 4, 8].into_iter().find(|len| off + len >= end)?;
        // What the program reads is there, and what a check has found.
        let read = |byte: i64| loads.iter().any(|(_, a)| (a.off..a.off + a.len as i64).contains(&byte));
        let proved = proved(first.base);
        let there = |off: i64| off >= 0 && (off + len <= proved || (off..off + len).all(read));
        let off = (end - len..=off).rev().find(|off| there(*off))?;
        let mut fields = Fields { base: first.base, flags: first.flags, off, len: len as usize, mask: 0, wanted: 0 };
        for (bit, one) in bits {
            let at = bit - 8 * off;
            if fields.mask >> at & 1 == 1 && fields.wanted >> at & 1 != one {
                return None;
            }
            fields.mask |= 1 << at;
            fields.wanted |= one << at;
        }
        Some(fields)
    }

    /// Whether they differ from what is wanted.
    pub fn differ(&self, at: &mut FuncCursor<'_>) -> Value {
        let Fields { base, flags, off, len, mask, wanted } = *self;
        let (v, all) = match len {
            // A mask of 32 bits is part of an instruction, as a number of 32 bits only.
            4 => (at.ins().load(types::I32, flags, base, off as i32), u64::from(u32::MAX)),
            _ => {
                let word = Access { region: region::PACKET, base, off, len, signed: false, is_load: true, flags };
                (memory::load(at, &word), u64::MAX >> (64 - 8 * len))
            }
        };
        let v = if mask == all { v } else { at.ins().band_imm_u(v, mask as i64) };
        at.ins().icmp_imm_u(IntCC::NotEqual, v, wanted as i64)
    }
}

/// Whether nothing has written to the packet between the loads and a check; those in between do not.
fn unwritten(func: &ir::Function, loads: &[(Inst, Access)], check: Inst, between: &[Inst]) -> bool {
    let above: Vec<Inst> = loads.iter().map(|(inst, _)| *inst).filter(|inst| !between.contains(inst)).collect();
    let block = func.layout.inst_block(check);
    if above.iter().any(|inst| func.layout.inst_block(*inst) != block) {
        return false;
    }
    let (mut at, mut left) = (check, above.len());
    while left > 0 {
        let Some(inst) = func.layout.prev_inst(at) else { return false };
        let writes = match memory::access(func, inst) {
            Some(access) => !access.is_load && access.region == region::PACKET,
            None => memory::effect(func, inst) == Effect::Anything,
        };
        if writes {
            return false;
        }
        left -= usize::from(above.contains(&inst));
        at = inst;
    }
    true
}

/// From a value back to the packet.
struct Followed<'a> {
    func: &'a ir::Function,
    uses: &'a Uses,
    loads: &'a mut Vec<(Inst, Access)>,
}

/// For each bit of a value: which bit it is, counted from the base of the packet's loads, or zero.
type Bits = [Option<i64>; 64];

impl Followed<'_> {
    /// None where it is something else, or where more than the comparison uses it.
    fn bits(&mut self, v: Value, depth: usize) -> Option<Bits> {
        let func = self.func;
        let v = func.dfg.resolve_aliases(v);
        let width = func.dfg.value_type(v).bits() as usize;
        if constant(func, v) == Some(0) {
            return Some([None; 64]);
        }
        if self.uses[v] > 1 || depth == DEPTH_MAX || width > 64 {
            return None;
        }
        let ValueDef::Result(inst, 0) = func.dfg.value_def(v) else { return None };
        if let Some(access) = memory::access(func, inst) {
            if access.signed || access.region != region::PACKET || self.loads.iter().any(|(load, _)| *load == inst) {
                return None;
            }
            self.loads.push((inst, access));
            return Some(std::array::from_fn(|n| (n < 8 * access.len).then_some(8 * access.off + n as i64)));
        }
        let cut = |bits: Bits| std::array::from_fn(|n| bits[n].filter(|_| n < width));
        let moved = |bits: Bits, from: &dyn Fn(usize) -> Option<usize>| -> Bits {
            std::array::from_fn(|n| from(n).and_then(|n| bits.get(n).copied().flatten()))
        };
        Some(match func.dfg.insts[inst] {
            InstructionData::Unary { opcode: Opcode::Uextend, arg } => self.bits(arg, depth + 1)?,
            InstructionData::Unary { opcode: Opcode::Ireduce, arg } => cut(self.bits(arg, depth + 1)?),
            InstructionData::Unary { opcode: Opcode::Bswap, arg } => {
                moved(self.bits(arg, depth + 1)?, &|n| (width - 8).checked_sub(n / 8 * 8).map(|byte| byte + n % 8))
            }
            InstructionData::Binary { opcode: Opcode::Band, args: [a, b] } => {
                let mask = constant(func, b)? as u64;
                let bits = self.bits(a, depth + 1)?;
                std::array::from_fn(|n| bits[n].filter(|_| mask >> n & 1 == 1))
            }
            InstructionData::Binary { opcode: opcode @ (Opcode::Ishl | Opcode::Ushr), args: [a, b] } => {
                let by = constant(func, b)? as usize & (width - 1);
                let bits = self.bits(a, depth + 1)?;
                cut(match opcode {
                    Opcode::Ishl => moved(bits, &|n| n.checked_sub(by)),
                    _ => moved(bits, &|n| Some(n + by)),
                })
            }
            InstructionData::Binary { opcode: Opcode::Bor, args: [a, b] } => {
                let (a, b) = (self.bits(a, depth + 1)?, self.bits(b, depth + 1)?);
                if (0..64).any(|n| a[n].is_some() && b[n].is_some()) {
                    return None;
                }
                std::array::from_fn(|n| a[n].or(b[n]))
            }
            _ => return None,
        })
    }
}
