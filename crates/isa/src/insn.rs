//! The valid meaning of an instruction.

/// A register, r0 to r10. r10 is the read-only frame pointer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reg(u8);

impl Reg {
    /// Return value.
    pub const R0: Reg = Reg(0);
    /// First argument; the context at entry.
    pub const R1: Reg = Reg(1);
    /// Second argument.
    pub const R2: Reg = Reg(2);
    /// Third argument.
    pub const R3: Reg = Reg(3);
    /// Fourth argument.
    pub const R4: Reg = Reg(4);
    /// Fifth argument.
    pub const R5: Reg = Reg(5);
    /// First callee-saved register.
    pub const R6: Reg = Reg(6);
    /// Callee-saved.
    pub const R7: Reg = Reg(7);
    /// Callee-saved.
    pub const R8: Reg = Reg(8);
    /// Callee-saved.
    pub const R9: Reg = Reg(9);
    /// Frame pointer.
    pub const FP: Reg = Reg(10);

    /// A register by its number; `None` above 10.
    pub const fn new(n: u8) -> Option<Reg> {
        if n <= 10 { Some(Reg(n)) } else { None }
    }

    /// Its number, 0 to 10.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for Reg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// Width of arithmetic and of comparisons. 32-bit results are zero-extended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// The low 32 bits.
    W32,
    /// All 64 bits.
    W64,
}

/// Size of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Size {
    /// One byte.
    B,
    /// Two bytes.
    H,
    /// Four bytes.
    W,
    /// Eight bytes.
    DW,
}

impl Size {
    /// Length in bytes: 1, 2, 4 or 8.
    pub const fn bytes(self) -> u32 {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::DW => 8,
        }
    }

    /// Length in bits: 8, 16, 32 or 64.
    pub const fn bits(self) -> u32 {
        self.bytes() * 8
    }
}

/// Second operand: a register or an immediate (sign-extended where 64 bits are wanted).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// Register.
    Reg(Reg),
    /// Immediate.
    Imm(i32),
}

/// Arithmetic that reads its destination. Division by zero gives 0, modulo by zero leaves the destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AluOp {
    /// Addition.
    Add,
    /// Subtraction.
    Sub,
    /// Multiplication.
    Mul,
    /// Unsigned division.
    Div,
    /// Signed division (v4).
    SDiv,
    /// Bitwise or.
    Or,
    /// Bitwise and.
    And,
    /// Shift left; the count is masked to the width.
    Lsh,
    /// Logical shift right.
    Rsh,
    /// Unsigned remainder.
    Mod,
    /// Signed remainder (v4).
    SMod,
    /// Exclusive or.
    Xor,
    /// Arithmetic shift right.
    Arsh,
}

impl AluOp {
    /// Every operation.
    pub const ALL: [AluOp; 13] = [
        AluOp::Add,
        AluOp::Sub,
        AluOp::Mul,
        AluOp::Div,
        AluOp::SDiv,
        AluOp::Or,
        AluOp::And,
        AluOp::Lsh,
        AluOp::Rsh,
        AluOp::Mod,
        AluOp::SMod,
        AluOp::Xor,
        AluOp::Arsh,
    ];
}

/// How a register move extends its source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MovExt {
    /// Plain move.
    None,
    /// Sign-extend the low 8 bits (v4).
    S8,
    /// Sign-extend the low 16 bits (v4).
    S16,
    /// Sign-extend the low 32 bits (v4, 64-bit moves only).
    S32,
}

/// Byte-order conversions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ByteOrder {
    /// To little-endian: truncation on a little-endian machine.
    ToLe,
    /// To big-endian.
    ToBe,
    /// Unconditional swap (v4).
    Swap,
}

/// Branch conditions: `dst COND operand`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cond {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Any bit of the operand set in dst.
    Set,
    /// Unsigned greater.
    Gt,
    /// Unsigned greater or equal.
    Ge,
    /// Unsigned less.
    Lt,
    /// Unsigned less or equal.
    Le,
    /// Signed greater.
    SGt,
    /// Signed greater or equal.
    SGe,
    /// Signed less.
    SLt,
    /// Signed less or equal.
    SLe,
}

impl Cond {
    /// Every condition.
    pub const ALL: [Cond; 11] = [
        Cond::Eq,
        Cond::Ne,
        Cond::Set,
        Cond::Gt,
        Cond::Ge,
        Cond::Lt,
        Cond::Le,
        Cond::SGt,
        Cond::SGe,
        Cond::SLt,
        Cond::SLe,
    ];
}

/// Atomic read-modify-write operations on memory of four or eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// Add; with `fetch` the old value lands in the source register.
    Add {
        /// Return the old value.
        fetch: bool,
    },
    /// Or.
    Or {
        /// Return the old value.
        fetch: bool,
    },
    /// And.
    And {
        /// Return the old value.
        fetch: bool,
    },
    /// Exclusive or.
    Xor {
        /// Return the old value.
        fetch: bool,
    },
    /// Exchange with the source register.
    Xchg,
    /// Compare with r0, store the source register when equal; the old value lands in r0.
    CmpXchg,
}

/// What a 64-bit immediate means: the source field of `lddw` (RFC 9669 section 5.4 and `linux/bpf.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Imm64 {
    /// A number.
    Value(u64),
    /// Map by file descriptor (`BPF_PSEUDO_MAP_FD`).
    MapFd(i32),
    /// Address of a map's first value plus an offset (`BPF_PSEUDO_MAP_VALUE`).
    MapFdValue {
        /// File descriptor.
        fd: i32,
        /// Offset in the value area, bytes.
        off: u32,
    },
    /// Kernel variable by BTF id (`BPF_PSEUDO_BTF_ID`).
    BtfId {
        /// BTF id of the variable.
        id: i32,
        /// BTF object (0: vmlinux).
        btf_fd: i32,
    },
    /// Address of a subprogram, relative to the next slot (`BPF_PSEUDO_FUNC`).
    Func(i32),
    /// Map by index in the loader's table (`BPF_PSEUDO_MAP_IDX`).
    MapIdx(i32),
    /// Address of a map's first value plus an offset, the map by index (`BPF_PSEUDO_MAP_IDX_VALUE`).
    MapIdxValue {
        /// Index.
        idx: i32,
        /// Offset in the value area, bytes.
        off: u32,
    },
}

/// Whom a call reaches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallTarget {
    /// Helper function by its number.
    Helper(u32),
    /// Subprogram, in slots relative to the next slot.
    Local(i32),
    /// Kernel function by BTF id; `off` is the index of the BTF object in the loader's table (0: vmlinux).
    Kfunc {
        /// BTF id, or before linking an index in the loader's list of kernel functions.
        id: i32,
        /// Index of the BTF object.
        off: i16,
    },
}

/// Legacy packet access (RFC 9669 section 5.5), decoded so that it can be refused by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LegacyMode {
    /// At a constant offset.
    Abs,
    /// At a register plus a constant.
    Ind(Reg),
}

/// One instruction. Jump offsets count slots from the slot after the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Insn {
    /// `dst = dst OP src`
    Alu {
        /// Width of the operation.
        width: Width,
        /// Operation.
        op: AluOp,
        /// Destination and left operand.
        dst: Reg,
        /// Right operand.
        src: Operand,
    },
    /// `dst = src`, with sign extension in v4.
    Mov {
        /// Width of the move.
        width: Width,
        /// Destination.
        dst: Reg,
        /// Source.
        src: Operand,
        /// Extension; always `None` for an immediate.
        ext: MovExt,
    },
    /// `dst = addr_space_cast(src)`: arena pointers, which XDP programs cannot use.
    AddrSpaceCast {
        /// Destination.
        dst: Reg,
        /// Source.
        src: Reg,
        /// Address spaces, destination in the high half.
        spaces: i32,
    },
    /// `dst = -dst`
    Neg {
        /// Width.
        width: Width,
        /// Register.
        dst: Reg,
    },
    /// Byte-order conversion of the low `bits` (16, 32, 64); higher bits become zero.
    Endian {
        /// Direction.
        order: ByteOrder,
        /// 16, 32 or 64.
        bits: u8,
        /// Register.
        dst: Reg,
    },
    /// `dst = imm64` (two slots).
    LoadImm64 {
        /// Destination.
        dst: Reg,
        /// Value or reference.
        imm: Imm64,
    },
    /// `dst = *(size *)(base + off)`, sign-extended in v4 when `signed`.
    Load {
        /// Access size.
        size: Size,
        /// Sign-extend (`BPF_MEMSX`).
        signed: bool,
        /// Destination.
        dst: Reg,
        /// Base address.
        base: Reg,
        /// Offset, bytes.
        off: i16,
    },
    /// `*(size *)(base + off) = src`
    Store {
        /// Access size.
        size: Size,
        /// Base address.
        base: Reg,
        /// Offset, bytes.
        off: i16,
        /// Value; an immediate is sign-extended for eight bytes.
        src: Operand,
    },
    /// Atomic read-modify-write at `base + off`.
    Atomic {
        /// `Size::W` or `Size::DW`.
        size: Size,
        /// Operation.
        op: AtomicOp,
        /// Base address.
        base: Reg,
        /// Offset, bytes.
        off: i16,
        /// Operand, and destination of a fetch.
        src: Reg,
    },
    /// `dst = load_acquire(base + off)`
    LoadAcquire {
        /// Access size.
        size: Size,
        /// Destination.
        dst: Reg,
        /// Base address.
        base: Reg,
        /// Offset, bytes.
        off: i16,
    },
    /// `store_release(base + off, src)`
    StoreRelease {
        /// Access size.
        size: Size,
        /// Base address.
        base: Reg,
        /// Offset, bytes.
        off: i16,
        /// Value.
        src: Reg,
    },
    /// Unconditional jump: `goto` (16-bit offset) or `gotol` (32-bit, v4).
    Jump {
        /// Offset in slots.
        off: i32,
        /// Encoded as `gotol`.
        long: bool,
    },
    /// Conditional jump.
    Branch {
        /// Width of the comparison.
        width: Width,
        /// Condition.
        cond: Cond,
        /// Left operand.
        dst: Reg,
        /// Right operand.
        src: Operand,
        /// Offset in slots.
        off: i16,
    },
    /// `may_goto`: falls through until a run-time bound is used up, then jumps.
    MayGoto {
        /// Offset in slots.
        off: i16,
    },
    /// Call.
    Call(CallTarget),
    /// Return from the program or subprogram.
    Exit,
    /// Legacy packet access, refused for XDP.
    LegacyLoad {
        /// Access size.
        size: Size,
        /// Absolute or indirect.
        mode: LegacyMode,
        /// Constant offset.
        imm: i32,
    },
}

impl Insn {
    /// Number of slots: 2 for a 64-bit immediate, else 1.
    pub const fn slots(&self) -> usize {
        if matches!(self, Insn::LoadImm64 { .. }) { 2 } else { 1 }
    }

    /// The register that receives what the instruction computes, loads or fetches; `None` for stores, jumps, and for calls
    /// and legacy loads, which leave r0 and use up r1 to r5.
    pub const fn result(&self) -> Option<Reg> {
        match *self {
            Insn::Alu { dst, .. }
            | Insn::Mov { dst, .. }
            | Insn::Neg { dst, .. }
            | Insn::Endian { dst, .. }
            | Insn::AddrSpaceCast { dst, .. }
            | Insn::LoadImm64 { dst, .. }
            | Insn::Load { dst, .. }
            | Insn::LoadAcquire { dst, .. } => Some(dst),
            Insn::Atomic { op, src, .. } => match op {
                AtomicOp::CmpXchg => Some(Reg::R0),
                AtomicOp::Xchg => Some(src),
                AtomicOp::Add { fetch }
                | AtomicOp::Or { fetch }
                | AtomicOp::And { fetch }
                | AtomicOp::Xor { fetch } => {
                    if fetch {
                        Some(src)
                    } else {
                        None
                    }
                }
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fetches_nothing_has_no_result() {
        let atomic = |op| Insn::Atomic { op, size: Size::DW, base: Reg::R1, off: 0, src: Reg::R2 };
        assert_eq!(atomic(AtomicOp::Add { fetch: false }).result(), None);
        assert_eq!(atomic(AtomicOp::Xor { fetch: true }).result(), Some(Reg::R2));
        assert_eq!(atomic(AtomicOp::Xchg).result(), Some(Reg::R2));
        assert_eq!(atomic(AtomicOp::CmpXchg).result(), Some(Reg::R0));
        assert_eq!(Insn::Exit.result(), None);
        assert_eq!(Insn::AddrSpaceCast { dst: Reg::R3, src: Reg::R4, spaces: 1 }.result(), Some(Reg::R3));
    }
}
