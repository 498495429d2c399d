//! The BPF instruction set (RFC 9669, versions 1 to 4) as plain data.
//!
//! Two types for two meanings:
//!
//! * [`Slot`] is the raw view: eight bytes as they lie in an object file, any bit pattern allowed.
//! * [`Insn`] is the valid meaning: a value of this type is an instruction that the standard defines.
//!
//! [`decode`] goes from slots to instructions and says what is wrong with those that mean nothing; [`encode`] goes back.
//! [`listing`] and [`assemble`] go between slots and text, in the style of the kernel's verifier log; names of helpers, kernel
//! functions and maps come from outside, through [`Names`].
//!
//! The crate knows nothing of ELF, Linux or packets.
#![forbid(unsafe_code)]

mod asm;
mod compute;
mod decode;
mod disasm;
mod encode;
mod insn;
mod names;
mod slot;

pub use asm::{AsmError, AsmErrorKind, assemble, assemble_with};
pub use decode::{DecodeError, DecodeErrorKind, decode, decode_at};
pub use disasm::{listing, with_names};
pub use encode::encode;
pub use insn::{
    AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, LegacyMode, MovExt, Operand, Reg, Size, Width,
};
pub use names::{Names, NoNames};
pub use slot::{Slot, op, slots_from_bytes, slots_to_bytes};
