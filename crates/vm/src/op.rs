//! Instructions as the interpreter runs them: one dense entry for each slot, decided once at link time.

use xway_isa::{AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, MovExt, Operand, Size, Width};

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

/// Operation of an [`Op`]. `X` reads a register, `K` an immediate; the number is the width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[rustfmt::skip]
pub(crate) enum Code {
    Add64X, Add64K, Add32X, Add32K,
    Sub64X, Sub64K, Sub32X, Sub32K,
    Mul64X, Mul64K, Mul32X, Mul32K,
    Div64X, Div64K, Div32X, Div32K,
    SDiv64X, SDiv64K, SDiv32X, SDiv32K,
    Or64X, Or64K, Or32X, Or32K,
    And64X, And64K, And32X, And32K,
    Lsh64X, Lsh64K, Lsh32X, Lsh32K,
    Rsh64X, Rsh64K, Rsh32X, Rsh32K,
    Mod64X, Mod64K, Mod32X, Mod32K,
    SMod64X, SMod64K, SMod32X, SMod32K,
    Xor64X, Xor64K, Xor32X, Xor32K,
    Arsh64X, Arsh64K, Arsh32X, Arsh32K,
    Mov64X, Mov64K, Mov32X, Mov32K,
    MovS8X64, MovS16X64, MovS32X64, MovS8X32, MovS16X32,
    Neg64, Neg32, Le16, Le32, Nop, Swap16, Swap32, Swap64,
    JEq64X, JEq64K, JEq32X, JEq32K,
    JNe64X, JNe64K, JNe32X, JNe32K,
    JSet64X, JSet64K, JSet32X, JSet32K,
    JGt64X, JGt64K, JGt32X, JGt32K,
    JGe64X, JGe64K, JGe32X, JGe32K,
    JLt64X, JLt64K, JLt32X, JLt32K,
    JLe64X, JLe64K, JLe32X, JLe32K,
    JSGt64X, JSGt64K, JSGt32X, JSGt32K,
    JSGe64X, JSGe64K, JSGe32X, JSGe32K,
    JSLt64X, JSLt64K, JSLt32X, JSLt32K,
    JSLe64X, JSLe64K, JSLe32X, JSLe32K,
    Jump, MayGoto, Exit,
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
    /// `dst <<= 32; dst >>= 32`, two slots.
    ZeroExtend,
    /// `dst = *(src + off); dst += …; *(src + off) = dst`, three slots.
    IncWK, IncWX, IncDwK, IncDwX,
    /// `bpf_map_lookup_elem`.
    Lookup,
    /// `dst = r10; dst += …; r1 = map; call bpf_map_lookup_elem`, five slots: `off` is the key's place on the stack, `imm`
    /// the map.
    LookupOnStack,
    /// Second slot of a wide instruction; nothing may jump here.
    Hole,
    /// Something that was known at link time to be impossible; `imm` is the index of its reason.
    Trap,
}

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

#[rustfmt::skip]
const fn alu_code(op: AluOp, width: Width, reg: bool) -> Code {
    use Width::{W32, W64};
    match (op, width, reg) {
        (AluOp::Add, W64, true) => Code::Add64X,
        (AluOp::Add, W64, false) => Code::Add64K,
        (AluOp::Add, W32, true) => Code::Add32X,
        (AluOp::Add, W32, false) => Code::Add32K,
        (AluOp::Sub, W64, true) => Code::Sub64X,
        (AluOp::Sub, W64, false) => Code::Sub64K,
        (AluOp::Sub, W32, true) => Code::Sub32X,
        (AluOp::Sub, W32, false) => Code::Sub32K,
        (AluOp::Mul, W64, true) => Code::Mul64X,
        (AluOp::Mul, W64, false) => Code::Mul64K,
        (AluOp::Mul, W32, true) => Code::Mul32X,
        (AluOp::Mul, W32, false) => Code::Mul32K,
        (AluOp::Div, W64, true) => Code::Div64X,
        (AluOp::Div, W64, false) => Code::Div64K,
        (AluOp::Div, W32, true) => Code::Div32X,
        (AluOp::Div, W32, false) => Code::Div32K,
        (AluOp::SDiv, W64, true) => Code::SDiv64X,
        (AluOp::SDiv, W64, false) => Code::SDiv64K,
        (AluOp::SDiv, W32, true) => Code::SDiv32X,
        (AluOp::SDiv, W32, false) => Code::SDiv32K,
        (AluOp::Or, W64, true) => Code::Or64X,
        (AluOp::Or, W64, false) => Code::Or64K,
        (AluOp::Or, W32, true) => Code::Or32X,
        (AluOp::Or, W32, false) => Code::Or32K,
        (AluOp::And, W64, true) => Code::And64X,
        (AluOp::And, W64, false) => Code::And64K,
        (AluOp::And, W32, true) => Code::And32X,
        (AluOp::And, W32, false) => Code::And32K,
        (AluOp::Lsh, W64, true) => Code::Lsh64X,
        (AluOp::Lsh, W64, false) => Code::Lsh64K,
        (AluOp::Lsh, W32, true) => Code::Lsh32X,
        (AluOp::Lsh, W32, false) => Code::Lsh32K,
        (AluOp::Rsh, W64, true) => Code::Rsh64X,
        (AluOp::Rsh, W64, false) => Code::Rsh64K,
        (AluOp::Rsh, W32, true) => Code::Rsh32X,
        (AluOp::Rsh, W32, false) => Code::Rsh32K,
        (AluOp::Mod, W64, true) => Code::Mod64X,
        (AluOp::Mod, W64, false) => Code::Mod64K,
        (AluOp::Mod, W32, true) => Code::Mod32X,
        (AluOp::Mod, W32, false) => Code::Mod32K,
        (AluOp::SMod, W64, true) => Code::SMod64X,
        (AluOp::SMod, W64, false) => Code::SMod64K,
        (AluOp::SMod, W32, true) => Code::SMod32X,
        (AluOp::SMod, W32, false) => Code::SMod32K,
        (AluOp::Xor, W64, true) => Code::Xor64X,
        (AluOp::Xor, W64, false) => Code::Xor64K,
        (AluOp::Xor, W32, true) => Code::Xor32X,
        (AluOp::Xor, W32, false) => Code::Xor32K,
        (AluOp::Arsh, W64, true) => Code::Arsh64X,
        (AluOp::Arsh, W64, false) => Code::Arsh64K,
        (AluOp::Arsh, W32, true) => Code::Arsh32X,
        (AluOp::Arsh, W32, false) => Code::Arsh32K,
    }
}

#[rustfmt::skip]
const fn jump_code(op: Cond, width: Width, reg: bool) -> Code {
    use Width::{W32, W64};
    match (op, width, reg) {
        (Cond::Eq, W64, true) => Code::JEq64X,
        (Cond::Eq, W64, false) => Code::JEq64K,
        (Cond::Eq, W32, true) => Code::JEq32X,
        (Cond::Eq, W32, false) => Code::JEq32K,
        (Cond::Ne, W64, true) => Code::JNe64X,
        (Cond::Ne, W64, false) => Code::JNe64K,
        (Cond::Ne, W32, true) => Code::JNe32X,
        (Cond::Ne, W32, false) => Code::JNe32K,
        (Cond::Set, W64, true) => Code::JSet64X,
        (Cond::Set, W64, false) => Code::JSet64K,
        (Cond::Set, W32, true) => Code::JSet32X,
        (Cond::Set, W32, false) => Code::JSet32K,
        (Cond::Gt, W64, true) => Code::JGt64X,
        (Cond::Gt, W64, false) => Code::JGt64K,
        (Cond::Gt, W32, true) => Code::JGt32X,
        (Cond::Gt, W32, false) => Code::JGt32K,
        (Cond::Ge, W64, true) => Code::JGe64X,
        (Cond::Ge, W64, false) => Code::JGe64K,
        (Cond::Ge, W32, true) => Code::JGe32X,
        (Cond::Ge, W32, false) => Code::JGe32K,
        (Cond::Lt, W64, true) => Code::JLt64X,
        (Cond::Lt, W64, false) => Code::JLt64K,
        (Cond::Lt, W32, true) => Code::JLt32X,
        (Cond::Lt, W32, false) => Code::JLt32K,
        (Cond::Le, W64, true) => Code::JLe64X,
        (Cond::Le, W64, false) => Code::JLe64K,
        (Cond::Le, W32, true) => Code::JLe32X,
        (Cond::Le, W32, false) => Code::JLe32K,
        (Cond::SGt, W64, true) => Code::JSGt64X,
        (Cond::SGt, W64, false) => Code::JSGt64K,
        (Cond::SGt, W32, true) => Code::JSGt32X,
        (Cond::SGt, W32, false) => Code::JSGt32K,
        (Cond::SGe, W64, true) => Code::JSGe64X,
        (Cond::SGe, W64, false) => Code::JSGe64K,
        (Cond::SGe, W32, true) => Code::JSGe32X,
        (Cond::SGe, W32, false) => Code::JSGe32K,
        (Cond::SLt, W64, true) => Code::JSLt64X,
        (Cond::SLt, W64, false) => Code::JSLt64K,
        (Cond::SLt, W32, true) => Code::JSLt32X,
        (Cond::SLt, W32, false) => Code::JSLt32K,
        (Cond::SLe, W64, true) => Code::JSLe64X,
        (Cond::SLe, W64, false) => Code::JSLe64K,
        (Cond::SLe, W32, true) => Code::JSLe32X,
        (Cond::SLe, W32, false) => Code::JSLe32K,
    }
}

/// Translates one instruction that stands at slot `at`. Calls, map references and other links are left to the linker: they
/// come back as `None`.
pub(crate) fn translate(insn: &Insn, at: usize) -> Option<Op> {
    let target = |off: i32| i32::try_from(at as i64 + 1 + i64::from(off)).unwrap_or(-1);
    let mut op = Op::stop(Code::Trap);
    match *insn {
        Insn::Alu { width, op: alu, dst, src } => {
            op.code = alu_code(alu, width, matches!(src, Operand::Reg(_)));
            op.dst = dst.into();
            operand(&mut op, src);
        }
        Insn::Mov { width, dst, src, ext } => {
            let reg = matches!(src, Operand::Reg(_));
            op.code = match (ext, width, reg) {
                (MovExt::None, Width::W64, true) => Code::Mov64X,
                (MovExt::None, Width::W64, false) => Code::Mov64K,
                (MovExt::None, Width::W32, true) => Code::Mov32X,
                (MovExt::None, Width::W32, false) => Code::Mov32K,
                (MovExt::S8, Width::W64, _) => Code::MovS8X64,
                (MovExt::S16, Width::W64, _) => Code::MovS16X64,
                (MovExt::S8, Width::W32, _) => Code::MovS8X32,
                (MovExt::S16, Width::W32, _) => Code::MovS16X32,
                (MovExt::S32, _, _) => Code::MovS32X64,
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
            op.code = jump_code(cond, width, matches!(src, Operand::Reg(_)));
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

/// Replaces instructions and short sequences by forms that run faster.
///
/// A sequence is replaced in its first slot only: the others stay as they are, so jumps into it keep their meaning, and a
/// fast form that cannot do its work does what its first instruction did and leaves the rest to them.
pub(crate) fn fuse(ops: &mut [Op], is_lookup: impl Fn(&Op) -> bool, key_size: impl Fn(i64) -> Option<i32>) {
    use Code::*;
    const STACK: i32 = crate::env::STACK_LEN as i32;
    for i in 0..ops.len() {
        let op = ops[i];
        let (next, third) = (ops.get(i + 1).copied(), ops.get(i + 2).copied());
        let stack_form = match op.code {
            LoadB | LoadH | LoadW | LoadDw if op.src == R::R10 => Some(match op.code {
                LoadB => (StackLoadB, 1),
                LoadH => (StackLoadH, 2),
                LoadW => (StackLoadW, 4),
                _ => (StackLoadDw, 8),
            }),
            StoreXB | StoreXH | StoreXW | StoreXDw if op.dst == R::R10 => Some(match op.code {
                StoreXB => (StackStoreB, 1),
                StoreXH => (StackStoreH, 2),
                StoreXW => (StackStoreW, 4),
                _ => (StackStoreDw, 8),
            }),
            _ => None,
        };
        if let Some((code, len)) = stack_form {
            if op.off >= -STACK && op.off + len <= 0 {
                ops[i] = Op { code, off: op.off + STACK, ..op };
            }
            continue;
        }
        match (op.code, next, third) {
            (Mov64X, Some(add), Some(map))
                if add.code == Add64K
                    && (op.src, op.dst, add.dst) == (R::R10, R::R2, R::R2)
                    && (map.code, map.dst) == (LoadMap, R::R1)
                    && ops.get(i + 4).is_some_and(|call| call.code == CallHelper && is_lookup(call))
                    && key_size(map.imm)
                        .is_some_and(|size| (-i64::from(STACK)..=-i64::from(size)).contains(&add.imm)) =>
            {
                ops[i] = Op { code: LookupOnStack, off: add.imm as i32 + STACK, imm: map.imm, ..op };
            }
            (Mov64X, Some(add), _) if add.code == Add64K && add.dst == op.dst => {
                ops[i] = Op { code: MovAdd, imm: add.imm, ..op };
            }
            (Lsh64K, Some(r), _) if r.code == Rsh64K && r.dst == op.dst && op.imm == 32 && r.imm == 32 => {
                ops[i].code = ZeroExtend;
            }
            (LoadW | LoadDw, Some(add), Some(store))
                if matches!(add.code, Add64K | Add64X)
                    && add.dst == op.dst
                    && (add.code == Add64K || add.src != op.dst)
                    && op.src != op.dst
                    && store.code == (if op.code == LoadW { StoreXW } else { StoreXDw })
                    && store.src == op.dst
                    && store.dst == op.src
                    && store.off == op.off =>
            {
                ops[i].code = match (op.code, add.code) {
                    (LoadW, Add64K) => IncWK,
                    (LoadW, _) => IncWX,
                    (_, Add64K) => IncDwK,
                    _ => IncDwX,
                };
            }
            (CallHelper, ..) if is_lookup(&op) => ops[i].code = Lookup,
            _ => {}
        }
    }
}
