//! From instructions back to raw slots.

use crate::{
    AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, LegacyMode, MovExt, Operand, Reg, Size, Slot, Width, op,
};

/// Appends the one or two slots of `insn` to `out`. The inverse of [`crate::decode_at`].
pub fn encode(insn: &Insn, out: &mut Vec<Slot>) {
    let mut s = Slot::default();
    match *insn {
        Insn::Alu { width, op, dst, src } => {
            (s.opcode, s.off) = alu_op(op);
            s.opcode |= alu_class(width);
            s.dst = num(dst);
            set_operand(&mut s, src);
        }
        Insn::Mov { width, dst, src, ext } => {
            s.opcode = 0xb0 | alu_class(width);
            s.dst = num(dst);
            set_operand(&mut s, src);
            s.off = match ext {
                MovExt::None => 0,
                MovExt::S8 => 8,
                MovExt::S16 => 16,
                MovExt::S32 => 32,
            };
        }
        Insn::AddrSpaceCast { dst, src, spaces } => {
            s = Slot { opcode: 0xb0 | op::ALU64 | op::X, dst: num(dst), src: num(src), off: 1, imm: spaces };
        }
        Insn::Neg { width, dst } => {
            s.opcode = 0x80 | alu_class(width);
            s.dst = num(dst);
        }
        Insn::Endian { order, bits, dst } => {
            s.opcode = 0xd0
                | match order {
                    ByteOrder::ToLe => op::ALU,
                    ByteOrder::ToBe => op::ALU | op::X,
                    ByteOrder::Swap => op::ALU64,
                };
            s.dst = num(dst);
            s.imm = bits.into();
        }
        Insn::LoadImm64 { dst, imm } => {
            let (src, low, high) = wide(imm);
            out.push(Slot { opcode: op::LD_IMM64, dst: num(dst), src, off: 0, imm: low });
            s.imm = high;
        }
        Insn::Load { size, signed, dst, base, off } => {
            let mode = if signed { 0x80 } else { 0x60 };
            s = Slot { opcode: op::LDX | mode | size_bits(size), dst: num(dst), src: num(base), off, imm: 0 };
        }
        Insn::Store { size, base, off, src } => {
            s = Slot { opcode: 0x60 | size_bits(size), dst: num(base), src: 0, off, imm: 0 };
            match src {
                Operand::Reg(r) => {
                    s.opcode |= op::STX;
                    s.src = num(r);
                }
                Operand::Imm(i) => {
                    s.opcode |= op::ST;
                    s.imm = i;
                }
            }
        }
        Insn::Atomic { size, op, base, off, src } => s = atomic(size, base, src, off, atomic_imm(op)),
        Insn::LoadAcquire { size, dst, base, off } => s = atomic(size, dst, base, off, 0x100),
        Insn::StoreRelease { size, base, off, src } => s = atomic(size, base, src, off, 0x110),
        Insn::Jump { off, long: true } => {
            s.opcode = op::JMP32;
            s.imm = off;
        }
        Insn::Jump { off, long: false } => {
            s.opcode = op::JMP;
            s.off = off as i16;
        }
        Insn::Branch { width, cond, dst, src, off } => {
            let class = if width == Width::W64 { op::JMP } else { op::JMP32 };
            s = Slot { opcode: class | cond_bits(cond), dst: num(dst), src: 0, off, imm: 0 };
            set_operand(&mut s, src);
        }
        Insn::MayGoto { off } => {
            s.opcode = 0xe0 | op::JMP;
            s.off = off;
        }
        Insn::Call(target) => {
            s.opcode = op::CALL;
            (s.src, s.imm, s.off) = match target {
                CallTarget::Helper(id) => (0, id as i32, 0),
                CallTarget::Local(rel) => (1, rel, 0),
                CallTarget::Kfunc { id, off } => (2, id, off),
            };
        }
        Insn::Exit => s.opcode = op::EXIT,
        Insn::LegacyLoad { size, mode, imm } => {
            s.opcode = op::LD | size_bits(size);
            s.imm = imm;
            match mode {
                LegacyMode::Abs => s.opcode |= 0x20,
                LegacyMode::Ind(r) => {
                    s.opcode |= 0x40;
                    s.src = num(r);
                }
            }
        }
    }
    out.push(s);
}

fn num(r: Reg) -> u8 {
    r.index() as u8
}

fn alu_class(width: Width) -> u8 {
    if width == Width::W64 { op::ALU64 } else { op::ALU }
}

fn set_operand(s: &mut Slot, src: Operand) {
    match src {
        Operand::Reg(r) => {
            s.opcode |= op::X;
            s.src = num(r);
        }
        Operand::Imm(i) => s.imm = i,
    }
}

fn size_bits(size: Size) -> u8 {
    match size {
        Size::W => 0x00,
        Size::H => 0x08,
        Size::B => 0x10,
        Size::DW => 0x18,
    }
}

fn alu_op(op: AluOp) -> (u8, i16) {
    match op {
        AluOp::Add => (0x00, 0),
        AluOp::Sub => (0x10, 0),
        AluOp::Mul => (0x20, 0),
        AluOp::Div => (0x30, 0),
        AluOp::SDiv => (0x30, 1),
        AluOp::Or => (0x40, 0),
        AluOp::And => (0x50, 0),
        AluOp::Lsh => (0x60, 0),
        AluOp::Rsh => (0x70, 0),
        AluOp::Mod => (0x90, 0),
        AluOp::SMod => (0x90, 1),
        AluOp::Xor => (0xa0, 0),
        AluOp::Arsh => (0xc0, 0),
    }
}

fn cond_bits(cond: Cond) -> u8 {
    match cond {
        Cond::Eq => 0x10,
        Cond::Gt => 0x20,
        Cond::Ge => 0x30,
        Cond::Set => 0x40,
        Cond::Ne => 0x50,
        Cond::SGt => 0x60,
        Cond::SGe => 0x70,
        Cond::Lt => 0xa0,
        Cond::Le => 0xb0,
        Cond::SLt => 0xc0,
        Cond::SLe => 0xd0,
    }
}

fn atomic(size: Size, dst: Reg, src: Reg, off: i16, imm: i32) -> Slot {
    Slot { opcode: op::STX | 0xc0 | size_bits(size), dst: num(dst), src: num(src), off, imm }
}

fn atomic_imm(op: AtomicOp) -> i32 {
    match op {
        AtomicOp::Add { fetch } => i32::from(fetch),
        AtomicOp::Or { fetch } => 0x40 | i32::from(fetch),
        AtomicOp::And { fetch } => 0x50 | i32::from(fetch),
        AtomicOp::Xor { fetch } => 0xa0 | i32::from(fetch),
        AtomicOp::Xchg => 0xe1,
        AtomicOp::CmpXchg => 0xf1,
    }
}

fn wide(imm: Imm64) -> (u8, i32, i32) {
    match imm {
        Imm64::Value(v) => (0, v as i32, (v >> 32) as i32),
        Imm64::MapFd(fd) => (1, fd, 0),
        Imm64::MapFdValue { fd, off } => (2, fd, off as i32),
        Imm64::BtfId { id, btf_fd } => (3, id, btf_fd),
        Imm64::Func(rel) => (4, rel, 0),
        Imm64::MapIdx(idx) => (5, idx, 0),
        Imm64::MapIdxValue { idx, off } => (6, idx, off as i32),
    }
}
