//! Random valid instructions.

use proptest::prelude::*;
use xway_isa::{
    AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, LegacyMode, MovExt, Operand, Reg, Size, Width,
};

fn reg() -> impl Strategy<Value = Reg> {
    (0u8..=10).prop_map(|n| Reg::new(n).unwrap())
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![Just(Width::W32), Just(Width::W64)]
}

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![Just(Size::B), Just(Size::H), Just(Size::W), Just(Size::DW)]
}

fn imm() -> impl Strategy<Value = i32> {
    prop_oneof![any::<i32>(), -4..4i32, Just(i32::MIN), Just(i32::MAX)]
}

fn off() -> impl Strategy<Value = i16> {
    prop_oneof![any::<i16>(), -4..4i16, Just(i16::MIN), Just(i16::MAX)]
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![reg().prop_map(Operand::Reg), imm().prop_map(Operand::Imm)]
}

fn mov() -> impl Strategy<Value = Insn> {
    let ext = prop_oneof![Just(MovExt::None), Just(MovExt::S8), Just(MovExt::S16), Just(MovExt::S32)];
    (width(), reg(), operand(), ext).prop_map(|(width, dst, src, ext)| {
        let plain = matches!(src, Operand::Imm(_)) || width == Width::W32 && ext == MovExt::S32;
        Insn::Mov { width, dst, src, ext: if plain { MovExt::None } else { ext } }
    })
}

fn atomic() -> impl Strategy<Value = Insn> {
    let op = prop_oneof![
        any::<bool>().prop_map(|fetch| AtomicOp::Add { fetch }),
        any::<bool>().prop_map(|fetch| AtomicOp::Or { fetch }),
        any::<bool>().prop_map(|fetch| AtomicOp::And { fetch }),
        any::<bool>().prop_map(|fetch| AtomicOp::Xor { fetch }),
        Just(AtomicOp::Xchg),
        Just(AtomicOp::CmpXchg),
    ];
    let size = prop_oneof![Just(Size::W), Just(Size::DW)];
    (size, op, reg(), off(), reg()).prop_map(|(size, op, base, off, src)| Insn::Atomic { size, op, base, off, src })
}

fn imm64() -> impl Strategy<Value = Imm64> {
    prop_oneof![
        any::<u64>().prop_map(Imm64::Value),
        imm().prop_map(Imm64::MapFd),
        imm().prop_map(Imm64::MapIdx),
        imm().prop_map(Imm64::Func),
        (imm(), any::<u32>()).prop_map(|(fd, off)| Imm64::MapFdValue { fd, off }),
        (imm(), any::<u32>()).prop_map(|(idx, off)| Imm64::MapIdxValue { idx, off }),
        (imm(), imm()).prop_map(|(id, btf_fd)| Imm64::BtfId { id, btf_fd }),
    ]
}

fn control() -> impl Strategy<Value = Insn> {
    let cond = proptest::sample::select(Cond::ALL.to_vec());
    prop_oneof![
        Just(Insn::Exit),
        off().prop_map(|off| Insn::Jump { off: off.into(), long: false }),
        imm().prop_map(|off| Insn::Jump { off, long: true }),
        off().prop_map(|off| Insn::MayGoto { off }),
        any::<u32>().prop_map(|id| Insn::Call(CallTarget::Helper(id))),
        imm().prop_map(|rel| Insn::Call(CallTarget::Local(rel))),
        (imm(), off()).prop_map(|(id, off)| Insn::Call(CallTarget::Kfunc { id, off })),
        (width(), cond, reg(), operand(), off()).prop_map(|(width, cond, dst, src, off)| Insn::Branch {
            width,
            cond,
            dst,
            src,
            off
        }),
    ]
}

fn memory() -> impl Strategy<Value = Insn> {
    let legacy_mode = prop_oneof![Just(LegacyMode::Abs), reg().prop_map(LegacyMode::Ind)];
    let legacy_size = prop_oneof![Just(Size::B), Just(Size::H), Just(Size::W)];
    prop_oneof![
        (size(), any::<bool>(), reg(), reg(), off()).prop_map(|(size, signed, dst, base, off)| Insn::Load {
            size,
            signed: signed && size != Size::DW,
            dst,
            base,
            off
        }),
        (size(), reg(), off(), operand()).prop_map(|(size, base, off, src)| Insn::Store { size, base, off, src }),
        (size(), reg(), reg(), off()).prop_map(|(size, dst, base, off)| Insn::LoadAcquire { size, dst, base, off }),
        (size(), reg(), off(), reg()).prop_map(|(size, base, off, src)| Insn::StoreRelease { size, base, off, src }),
        (legacy_size, legacy_mode, imm()).prop_map(|(size, mode, imm)| Insn::LegacyLoad { size, mode, imm }),
        atomic(),
    ]
}

/// Any valid instruction.
pub fn insn() -> impl Strategy<Value = Insn> {
    let op = proptest::sample::select(AluOp::ALL.to_vec());
    let order = prop_oneof![Just(ByteOrder::ToLe), Just(ByteOrder::ToBe), Just(ByteOrder::Swap)];
    let bits = prop_oneof![Just(16u8), Just(32), Just(64)];
    prop_oneof![
        (width(), op, reg(), operand()).prop_map(|(width, op, dst, src)| Insn::Alu { width, op, dst, src }),
        mov(),
        (reg(), reg(), imm()).prop_map(|(dst, src, spaces)| Insn::AddrSpaceCast { dst, src, spaces }),
        (width(), reg()).prop_map(|(width, dst)| Insn::Neg { width, dst }),
        (order, bits, reg()).prop_map(|(order, bits, dst)| Insn::Endian { order, bits, dst }),
        (reg(), imm64()).prop_map(|(dst, imm)| Insn::LoadImm64 { dst, imm }),
        control(),
        memory(),
    ]
}
