//! The BPF instruction set (RFC 9669, versions 1 to 4) as plain data.
//!
//! Two types for two meanings:
//!
//! * [`Slot`] is the raw view: eight bytes as they lie in an object file, any bit pattern allowed.
//! * [`Insn`] is the valid meaning: a value of this type is an instruction that the standard defines.
//!
//! [`decode`] goes from slots to instructions and says what is wrong with those that mean nothing; [`encode`] goes back.
//! The crate knows nothing of ELF, Linux or packets.
#![forbid(unsafe_code)]

mod decode;
mod encode;
mod insn;
mod slot;

pub use decode::{DecodeError, DecodeErrorKind, decode, decode_at};
pub use encode::encode;
pub use insn::{
    AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, LegacyMode, MovExt, Operand, Reg, Size, Width,
};
pub use slot::{Slot, op, slots_from_bytes, slots_to_bytes};
