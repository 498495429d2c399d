//! Instructions as the interpreter runs them: one dense entry for each slot, decided once at link time.

use xway_isa::{AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, MovExt, Operand, Size, Width};

use crate::rows::rows;

/// One pre-decoded instruction, 16 bytes. What the fields mean depends on the code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    /// What to do.
    pub code: Code,
    /// Destination register (loads, arithmetic) or base register (stores).
    pub dst: R,
    /// Source register or base register of a load.
    pub src: R,
    /// Memory offset, or absolute index of a jump's target.
    pub off: i32,
    /// Immediate, extended as the operation wants it; index of a call site.
    pub imm: i64,
}

/// A register, as an index that the compiler knows to be below 11: the register file needs no bounds check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[rustfmt::skip]
pub(crate) enum R { R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 }

impl From<xway_isa::Reg> for R {
    fn from(reg: xway_isa::Reg) -> R {
        use R::*;
        const ALL: [R; 11] = [R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10];
        ALL[reg.index()]
    }
}

impl Op {
    /// An entry that stops the program when it is reached.
    pub(crate) const fn stop(code: Code) -> Op {
        Op { code, dst: R::R0, src: R::R0, off: 0, imm: 0 }
    }
}

macro_rules! codes {
    ($($group:ident { $($op:ident: $($code:ident)*, |$a:ident, $b:ident| $meaning:expr;)* })*) => {
        /// Operation of an [`Op`]. `X` reads a register, `K` an immediate; the number is the width.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        #[rustfmt::skip]
        pub(crate) enum Code {
            // The rows come first, arithmetic before conditions.
            $($($($code,)*)*)*
            Jump, MayGoto, Exit,
            Mov64X, Mov64K, Mov32X, Mov32K,
            MovS8X64, MovS16X64, MovS32X64, MovS8X32, MovS16X32,
            Neg64, Neg32, Le16, Le32, Nop, Swap16, Swap32, Swap64,
            LoadB, LoadH, LoadW, LoadDw, LoadSB, LoadSH, LoadSW,
            StoreXB, StoreXH, StoreXW, StoreXDw, StoreKB, StoreKH, StoreKW, StoreKDw,
            /// Read-modify-write; `imm` is the index of an [`AtomicOp`] in [`ATOMICS`].
            Atomic32, Atomic64,
            AcquireB, AcquireH, AcquireW, AcquireDw, ReleaseB, ReleaseH, ReleaseW, ReleaseDw,
            LoadImm, LoadMap, LoadMapValue, LoadFunc,
            CallLocal, CallHelper, CallKfunc, TailCall,
            // Faster forms of what stands above, chosen by `fuse`.
            /// Access relative to r10, checked at link time; `off` counts from the start of the stack.
            StackLoadB, StackLoadH, StackLoadW, StackLoadDw,
            StackStoreB, StackStoreH, StackStoreW, StackStoreDw,
            /// `dst = src; dst += imm`, two slots.
            MovAdd,
            /// `dst = src; dst += imm; if dst > … goto …`, three slots: how programs ask whether the packet is long enough.
            MovAddGt,
            /// `dst <<= 32; dst >>= 32`, two slots.
            ZeroExtend,
            /// `dst = *(src + off); dst += …; *(src + off) = dst`, three slots.
            IncWK, IncWX, IncDwK, IncDwX,
            /// `bpf_map_lookup_elem`.
            Lookup,
            /// `r2 = r10; r2 += …; r1 = map; call bpf_map_lookup_elem`, five slots: `off` is the key's place on the stack,
            /// `imm` the map. Only for maps of values.
            LookupOnStack,
            /// Second slot of a wide instruction; nothing may jump here.
            Hole,
            /// Something that was known at link time to be impossible; `imm` is the index of its reason.
            Trap,
        }
    };
}
rows!(codes!);

/// Atomic operations by the number that [`Op::imm`] holds.
pub(crate) const ATOMICS: [AtomicOp; 10] = [
    AtomicOp::Add { fetch: false },
    AtomicOp::Add { fetch: true },
    AtomicOp::Or { fetch: false },
    AtomicOp::Or { fetch: true },
    AtomicOp::And { fetch: false },
    AtomicOp::And { fetch: true },
    AtomicOp::Xor { fetch: false },
    AtomicOp::Xor { fetch: true },
    AtomicOp::Xchg,
    AtomicOp::CmpXchg,
];

macro_rules! choose {
    (
        unsigned { $($u:ident: $($uc:ident)*, |$a:ident, $b:ident| $um:expr;)* }
        signed { $($s:ident: $($sc:ident)*, |$sa:ident, $sb:ident| $sm:expr;)* }
        if_unsigned { $($iu:ident: $($iuc:ident)*, |$iua:ident, $iub:ident| $ium:expr;)* }
        if_signed { $($is:ident: $($isc:ident)*, |$isa:ident, $isb:ident| $ism:expr;)* }
    ) => {
        fn alu_code(op: AluOp, width: Width, src: Operand) -> Code {
            form(match op { $(AluOp::$u => [$(Code::$uc),*],)* $(AluOp::$s => [$(Code::$sc),*],)* }, width, src)
        }

        fn jump_code(cond: Cond, width: Width, src: Operand) -> Code {
            form(match cond { $(Cond::$iu => [$(Code::$iuc),*],)* $(Cond::$is => [$(Code::$isc),*],)* }, width, src)
        }
    };
}
rows!(choose!);

/// The code of a row, or of anything with the same four forms, that fits width and operand.
fn form([x64, k64, x32, k32]: [Code; 4], width: Width, src: Operand) -> Code {
    match (width, src) {
        (Width::W64, Operand::Reg(_)) => x64,
        (Width::W64, Operand::Imm(_)) => k64,
        (Width::W32, Operand::Reg(_)) => x32,
        (Width::W32, Operand::Imm(_)) => k32,
    }
}

/// Translates one instruction that stands at slot `at`. Calls, map references and other links are left to the linker: they
/// come back as `None`.
pub(crate) fn translate(insn: &Insn, at: usize) -> Option<Op> {
    let target = |off: i32| i32::try_from(at as i64 + 1 + i64::from(off)).unwrap_or(-1);
    let mut op = Op::stop(Code::Trap);
    match *insn {
        Insn::Alu { width, op: alu, dst, src } => {
            op.code = alu_code(alu, width, src);
            op.dst = dst.into();
            operand(&mut op, src);
        }
        Insn::Mov { width, dst, src, ext } => {
            op.code = match (ext, width) {
                (MovExt::None, _) => form([Code::Mov64X, Code::Mov64K, Code::Mov32X, Code::Mov32K], width, src),
                (MovExt::S8, Width::W64) => Code::MovS8X64,
                (MovExt::S16, Width::W64) => Code::MovS16X64,
                (MovExt::S8, Width::W32) => Code::MovS8X32,
                (MovExt::S16, Width::W32) => Code::MovS16X32,
                (MovExt::S32, _) => Code::MovS32X64,
            };
            op.dst = dst.into();
            operand(&mut op, src);
        }
        Insn::Neg { width, dst } => {
            op.code = if width == Width::W64 { Code::Neg64 } else { Code::Neg32 };
            op.dst = dst.into();
        }
        Insn::Endian { order, bits, dst } => {
            op.code = endian(order, bits);
            op.dst = dst.into();
        }
        Insn::LoadImm64 { dst, imm: Imm64::Value(v) } => {
            op = Op { code: Code::LoadImm, dst: dst.into(), src: R::R0, off: 0, imm: v as i64 };
        }
        Insn::Load { size, signed, dst, base, off } => {
            op.code = match (size, signed) {
                (Size::B, false) => Code::LoadB,
                (Size::H, false) => Code::LoadH,
                (Size::W, false) => Code::LoadW,
                (Size::DW, _) => Code::LoadDw,
                (Size::B, true) => Code::LoadSB,
                (Size::H, true) => Code::LoadSH,
                (Size::W, true) => Code::LoadSW,
            };
            (op.dst, op.src, op.off) = (dst.into(), base.into(), off.into());
        }
        Insn::Store { size, base, off, src } => {
            let reg = matches!(src, Operand::Reg(_));
            op.code = match (size, reg) {
                (Size::B, true) => Code::StoreXB,
                (Size::H, true) => Code::StoreXH,
                (Size::W, true) => Code::StoreXW,
                (Size::DW, true) => Code::StoreXDw,
                (Size::B, false) => Code::StoreKB,
                (Size::H, false) => Code::StoreKH,
                (Size::W, false) => Code::StoreKW,
                (Size::DW, false) => Code::StoreKDw,
            };
            (op.dst, op.off) = (base.into(), off.into());
            operand(&mut op, src);
        }
        Insn::Atomic { size, op: atomic, base, off, src } => {
            op.code = if size == Size::DW { Code::Atomic64 } else { Code::Atomic32 };
            (op.dst, op.src, op.off) = (base.into(), src.into(), off.into());
            op.imm = ATOMICS.iter().position(|a| *a == atomic)? as i64;
        }
        Insn::LoadAcquire { size, dst, base, off } => {
            op.code = match size {
                Size::B => Code::AcquireB,
                Size::H => Code::AcquireH,
                Size::W => Code::AcquireW,
                Size::DW => Code::AcquireDw,
            };
            (op.dst, op.src, op.off) = (dst.into(), base.into(), off.into());
        }
        Insn::StoreRelease { size, base, off, src } => {
            op.code = match size {
                Size::B => Code::ReleaseB,
                Size::H => Code::ReleaseH,
                Size::W => Code::ReleaseW,
                Size::DW => Code::ReleaseDw,
            };
            (op.dst, op.src, op.off) = (base.into(), src.into(), off.into());
        }
        Insn::Jump { off, .. } => {
            op.code = Code::Jump;
            op.off = target(off);
        }
        Insn::Branch { width, cond, dst, src, off } => {
            op.code = jump_code(cond, width, src);
            op.dst = dst.into();
            operand(&mut op, src);
            op.off = target(off.into());
        }
        Insn::MayGoto { off } => {
            op.code = Code::MayGoto;
            op.off = target(off.into());
        }
        Insn::Call(CallTarget::Local(off)) => {
            op.code = Code::CallLocal;
            op.off = target(off);
        }
        Insn::Exit => op.code = Code::Exit,
        Insn::AddrSpaceCast { .. } | Insn::LoadImm64 { .. } | Insn::Call(_) | Insn::LegacyLoad { .. } => return None,
    }
    Some(op)
}

fn operand(op: &mut Op, src: Operand) {
    match src {
        Operand::Reg(r) => op.src = r.into(),
        Operand::Imm(i) => op.imm = i.into(),
    }
}

const fn endian(order: ByteOrder, bits: u8) -> Code {
    let swap = match order {
        ByteOrder::ToLe => cfg!(target_endian = "big"),
        ByteOrder::ToBe => cfg!(target_endian = "little"),
        ByteOrder::Swap => true,
    };
    match (swap, bits) {
        (false, 16) => Code::Le16,
        (false, 32) => Code::Le32,
        (false, _) => Code::Nop,
        (true, 16) => Code::Swap16,
        (true, 32) => Code::Swap32,
        (true, _) => Code::Swap64,
    }
}

impl Code {
    /// Whether [`Op::off`] is the index of another instruction.
    pub(crate) const fn has_target(self) -> bool {
        let n = self as u8;
        (n >= Code::JEq64X as u8 && n <= Code::MayGoto as u8) || matches!(self, Code::CallLocal | Code::LoadFunc)
    }
}

/// The registers that an instruction reads, as a bit set; for messages.
pub(crate) fn registers_read(insn: &Insn) -> u16 {
    let bit = |r: xway_isa::Reg| 1u16 << r.index();
    let operand = |o: Operand| if let Operand::Reg(r) = o { bit(r) } else { 0 };
    match *insn {
        Insn::Alu { dst, src, .. } | Insn::Branch { dst, src, .. } => bit(dst) | operand(src),
        Insn::Mov { src, .. } => operand(src),
        Insn::AddrSpaceCast { src, .. } => bit(src),
        Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => bit(dst),
        Insn::Load { base, .. } | Insn::LoadAcquire { base, .. } => bit(base),
        Insn::Store { base, src, .. } => bit(base) | operand(src),
        Insn::Atomic { base, src, op, .. } => bit(base) | bit(src) | u16::from(op == AtomicOp::CmpXchg),
        Insn::StoreRelease { base, src, .. } => bit(base) | bit(src),
        Insn::Call(_) => 0b11_1110,
        Insn::Exit => 1,
        Insn::LoadImm64 { .. } | Insn::Jump { .. } | Insn::MayGoto { .. } | Insn::LegacyLoad { .. } => 0,
    }
}
