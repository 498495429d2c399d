//! From raw slots to instructions.

use crate::{
    AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, LegacyMode, MovExt, Operand, Reg, Size, Slot, Width, op,
};

/// What is wrong with a slot, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("instruction {at} (opcode {:#04x}): {kind}", slot.opcode)]
pub struct DecodeError {
    /// Index of the slot.
    pub at: usize,
    /// The slot itself.
    pub slot: Slot,
    /// The reason.
    pub kind: DecodeErrorKind,
}

/// Reasons why a slot is no instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeErrorKind {
    /// No instruction has this opcode.
    #[error("unknown opcode")]
    UnknownOpcode,
    /// The opcode exists, but not with this offset or immediate (a modifier of the operation).
    #[error("unknown variant of the operation")]
    UnknownVariant,
    /// A field that must be zero is not.
    #[error("a reserved field is not zero")]
    ReservedField,
    /// Register number above 10.
    #[error("no such register")]
    BadRegister,
    /// The second slot of a 64-bit immediate is missing or malformed.
    #[error("the second half of a 64-bit immediate is missing or malformed")]
    BadWide,
    /// Source field of a 64-bit immediate or of a call without a meaning.
    #[error("unknown kind of reference")]
    UnknownPseudo,
}
use DecodeErrorKind as E;

/// Decodes a whole program. The result holds one entry for each slot; the second slot of a 64-bit immediate is `None`.
pub fn decode(slots: &[Slot]) -> Result<Vec<Option<Insn>>, DecodeError> {
    let mut out = Vec::with_capacity(slots.len());
    while out.len() < slots.len() {
        let insn = decode_at(slots, out.len())?;
        out.push(Some(insn));
        if insn.slots() == 2 {
            out.push(None);
        }
    }
    Ok(out)
}

/// Decodes the instruction that starts at slot `at`, which must be below `slots.len()`.
pub fn decode_at(slots: &[Slot], at: usize) -> Result<Insn, DecodeError> {
    let slot = slots[at];
    insn(slot, slots.get(at + 1).copied()).map_err(|kind| DecodeError { at, slot, kind })
}

fn insn(s: Slot, next: Option<Slot>) -> Result<Insn, E> {
    match s.opcode & op::CLASS_MASK {
        op::LD => load_special(s, next),
        op::LDX => load(s),
        op::ST | op::STX => store(s),
        op::ALU => alu(s, Width::W32),
        op::ALU64 => alu(s, Width::W64),
        op::JMP => jump(s, Width::W64),
        _ => jump(s, Width::W32),
    }
}

fn reg(n: u8) -> Result<Reg, E> {
    Reg::new(n).ok_or(E::BadRegister)
}

fn zero(ok: bool) -> Result<(), E> {
    if ok { Ok(()) } else { Err(E::ReservedField) }
}

fn size(opcode: u8) -> Size {
    match opcode & 0x18 {
        0x00 => Size::W,
        0x08 => Size::H,
        0x10 => Size::B,
        _ => Size::DW,
    }
}

fn load_special(s: Slot, next: Option<Slot>) -> Result<Insn, E> {
    match s.opcode & 0xe0 {
        0x00 if s.opcode == op::LD_IMM64 => wide(s, next),
        0x20 | 0x40 => {
            let size = size(s.opcode);
            if size == Size::DW {
                return Err(E::UnknownOpcode);
            }
            zero(s.dst == 0 && s.off == 0)?;
            let mode = if s.opcode & 0xe0 == 0x20 {
                zero(s.src == 0)?;
                LegacyMode::Abs
            } else {
                LegacyMode::Ind(reg(s.src)?)
            };
            Ok(Insn::LegacyLoad { size, mode, imm: s.imm })
        }
        _ => Err(E::UnknownOpcode),
    }
}

fn wide(s: Slot, next: Option<Slot>) -> Result<Insn, E> {
    let n = next.ok_or(E::BadWide)?;
    if n.opcode != 0 || n.dst != 0 || n.src != 0 || n.off != 0 {
        return Err(E::BadWide);
    }
    zero(s.off == 0)?;
    let low_only = |imm| if n.imm == 0 { Ok(imm) } else { Err(E::ReservedField) };
    let imm = match s.src {
        0 => Imm64::Value(u64::from(s.imm as u32) | u64::from(n.imm as u32) << 32),
        1 => low_only(Imm64::MapFd(s.imm))?,
        2 => Imm64::MapFdValue { fd: s.imm, off: n.imm as u32 },
        3 => Imm64::BtfId { id: s.imm, btf_fd: n.imm },
        4 => low_only(Imm64::Func(s.imm))?,
        5 => low_only(Imm64::MapIdx(s.imm))?,
        6 => Imm64::MapIdxValue { idx: s.imm, off: n.imm as u32 },
        _ => return Err(E::UnknownPseudo),
    };
    Ok(Insn::LoadImm64 { dst: reg(s.dst)?, imm })
}

fn load(s: Slot) -> Result<Insn, E> {
    let size = size(s.opcode);
    let signed = match s.opcode & 0xe0 {
        0x60 => false,
        0x80 if size != Size::DW => true,
        _ => return Err(E::UnknownOpcode),
    };
    zero(s.imm == 0)?;
    Ok(Insn::Load { size, signed, dst: reg(s.dst)?, base: reg(s.src)?, off: s.off })
}

fn store(s: Slot) -> Result<Insn, E> {
    let (size, base, off) = (size(s.opcode), reg(s.dst)?, s.off);
    let is_reg = s.opcode & op::CLASS_MASK == op::STX;
    match s.opcode & 0xe0 {
        0x60 if is_reg => {
            zero(s.imm == 0)?;
            Ok(Insn::Store { size, base, off, src: Operand::Reg(reg(s.src)?) })
        }
        0x60 => {
            zero(s.src == 0)?;
            Ok(Insn::Store { size, base, off, src: Operand::Imm(s.imm) })
        }
        0xc0 if is_reg => atomic(s, size, base),
        _ => Err(E::UnknownOpcode),
    }
}

fn atomic(s: Slot, size: Size, base: Reg) -> Result<Insn, E> {
    let (off, src) = (s.off, reg(s.src)?);
    match s.imm {
        // Here the source field is the address, as in an ordinary load.
        0x100 => return Ok(Insn::LoadAcquire { size, dst: base, base: src, off }),
        0x110 => return Ok(Insn::StoreRelease { size, base, off, src }),
        _ => {}
    }
    let fetch = s.imm & 1 != 0;
    let op = match s.imm {
        0x00 | 0x01 => AtomicOp::Add { fetch },
        0x40 | 0x41 => AtomicOp::Or { fetch },
        0x50 | 0x51 => AtomicOp::And { fetch },
        0xa0 | 0xa1 => AtomicOp::Xor { fetch },
        0xe1 => AtomicOp::Xchg,
        0xf1 => AtomicOp::CmpXchg,
        _ => return Err(E::UnknownVariant),
    };
    if !matches!(size, Size::W | Size::DW) {
        return Err(E::UnknownVariant);
    }
    Ok(Insn::Atomic { size, op, base, off, src })
}

fn operand(s: Slot) -> Result<Operand, E> {
    if s.opcode & op::X != 0 {
        zero(s.imm == 0)?;
        Ok(Operand::Reg(reg(s.src)?))
    } else {
        zero(s.src == 0)?;
        Ok(Operand::Imm(s.imm))
    }
}

fn alu(s: Slot, width: Width) -> Result<Insn, E> {
    let dst = reg(s.dst)?;
    let aop = match (s.opcode & 0xf0, s.off) {
        (0x80, _) if s.opcode & op::X != 0 => return Err(E::UnknownOpcode),
        (0x80, _) => {
            zero(s.src == 0 && s.off == 0 && s.imm == 0)?;
            return Ok(Insn::Neg { width, dst });
        }
        (0xb0, _) => return mov(s, width, dst),
        (0xd0, _) => return endian(s, width, dst),
        (0x30, 1) => AluOp::SDiv,
        (0x90, 1) => AluOp::SMod,
        (0x30 | 0x90, o) if o != 0 => return Err(E::UnknownVariant),
        (_, o) if o != 0 => return Err(E::ReservedField),
        (0x00, _) => AluOp::Add,
        (0x10, _) => AluOp::Sub,
        (0x20, _) => AluOp::Mul,
        (0x30, _) => AluOp::Div,
        (0x40, _) => AluOp::Or,
        (0x50, _) => AluOp::And,
        (0x60, _) => AluOp::Lsh,
        (0x70, _) => AluOp::Rsh,
        (0x90, _) => AluOp::Mod,
        (0xa0, _) => AluOp::Xor,
        (0xc0, _) => AluOp::Arsh,
        _ => return Err(E::UnknownOpcode),
    };
    Ok(Insn::Alu { width, op: aop, dst, src: operand(s)? })
}

fn mov(s: Slot, width: Width, dst: Reg) -> Result<Insn, E> {
    let is_reg = s.opcode & op::X != 0;
    let ext = match (s.off, is_reg) {
        (0, _) => MovExt::None,
        (1, true) if width == Width::W64 => {
            return Ok(Insn::AddrSpaceCast { dst, src: reg(s.src)?, spaces: s.imm });
        }
        (8, true) => MovExt::S8,
        (16, true) => MovExt::S16,
        (32, true) if width == Width::W64 => MovExt::S32,
        (_, true) => return Err(E::UnknownVariant),
        (_, false) => return Err(E::ReservedField),
    };
    Ok(Insn::Mov { width, dst, src: operand(s)?, ext })
}

fn endian(s: Slot, width: Width, dst: Reg) -> Result<Insn, E> {
    let order = match (width, s.opcode & op::X != 0) {
        (Width::W32, false) => ByteOrder::ToLe,
        (Width::W32, true) => ByteOrder::ToBe,
        (Width::W64, false) => ByteOrder::Swap,
        (Width::W64, true) => return Err(E::UnknownOpcode),
    };
    zero(s.src == 0 && s.off == 0)?;
    match s.imm {
        16 | 32 | 64 => Ok(Insn::Endian { order, bits: s.imm as u8, dst }),
        _ => Err(E::UnknownVariant),
    }
}

fn jump(s: Slot, width: Width) -> Result<Insn, E> {
    let is_reg = s.opcode & op::X != 0;
    let cond = match s.opcode & 0xf0 {
        0x00 if !is_reg => {
            zero(s.dst == 0 && s.src == 0)?;
            return if width == Width::W64 {
                zero(s.imm == 0)?;
                Ok(Insn::Jump { off: s.off.into(), long: false })
            } else {
                zero(s.off == 0)?;
                Ok(Insn::Jump { off: s.imm, long: true })
            };
        }
        0x80 if s.opcode == op::CALL => return call(s),
        0x90 if s.opcode == op::EXIT => {
            zero(s.dst == 0 && s.src == 0 && s.off == 0 && s.imm == 0)?;
            return Ok(Insn::Exit);
        }
        0xe0 if width == Width::W64 && !is_reg => {
            if s.src != 0 {
                return Err(E::UnknownVariant);
            }
            zero(s.dst == 0 && s.imm == 0)?;
            return Ok(Insn::MayGoto { off: s.off });
        }
        0x10 => Cond::Eq,
        0x20 => Cond::Gt,
        0x30 => Cond::Ge,
        0x40 => Cond::Set,
        0x50 => Cond::Ne,
        0x60 => Cond::SGt,
        0x70 => Cond::SGe,
        0xa0 => Cond::Lt,
        0xb0 => Cond::Le,
        0xc0 => Cond::SLt,
        0xd0 => Cond::SLe,
        _ => return Err(E::UnknownOpcode),
    };
    Ok(Insn::Branch { width, cond, dst: reg(s.dst)?, src: operand(s)?, off: s.off })
}

fn call(s: Slot) -> Result<Insn, E> {
    zero(s.dst == 0 && (s.off == 0 || s.src == 2))?;
    let target = match s.src {
        0 => CallTarget::Helper(s.imm as u32),
        1 => CallTarget::Local(s.imm),
        2 => CallTarget::Kfunc { id: s.imm, off: s.off },
        _ => return Err(E::UnknownPseudo),
    };
    Ok(Insn::Call(target))
}
