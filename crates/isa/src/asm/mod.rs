//! Program text to slots: the inverse of [`crate::listing`], with labels and comments for people who write programs.
//!
//! ```
//! let slots = xway_isa::assemble(
//!     "   r0 = 2               ; XDP_PASS
//!         r2 = *(u32 *)(r1 +0) // data
//!         if r2 == 0 goto out
//!         r0 += 0xff
//!     out:
//!         exit",
//! )?;
//! assert_eq!(slots.len(), 5);
//! # Ok::<(), xway_isa::AsmError>(())
//! ```
//!
//! * One instruction a line. What [`crate::listing`] prints before it (`12:` and `(b7)`) may stand there; an opcode is checked.
//! * Jumps, `call` and `subprog[…]` go to `pc+N` (slots after the next one) or to a label.
//! * `r1 = 5` is a move of a 32-bit immediate; `r1 = 0x5`, `r1 = 5 ll` and numbers beyond 32 bits are the two-slot load
//!   of a 64-bit immediate, because that is how the kernel prints them.
//! * An immediate that would be sign-extended into another number than written is refused, except in comparisons, where the
//!   kernel's style is the stored 32 bits.

mod error;
mod lexer;
mod line;
mod parser;
mod rhs;

use std::collections::HashMap;

use crate::{CallTarget, Imm64, Insn, Names, NoNames, Slot, encode};
use error::AsmErrorKind as E;
pub use error::{AsmError, AsmErrorKind};
use line::Parsed;

/// Assembles a program whose helpers, kernel functions and maps are given by number.
pub fn assemble(text: &str) -> Result<Vec<Slot>, AsmError> {
    assemble_with(text, &NoNames)
}

/// Assembles a program; bare names of helpers (`call bpf_ktime_get_ns`), kernel functions and maps are looked up.
pub fn assemble_with(text: &str, names: &dyn Names) -> Result<Vec<Slot>, AsmError> {
    let mut program = Program::default();
    for (n, line) in text.lines().enumerate() {
        program.line(n + 1, line, names)?;
    }
    program.link()
}

/// An instruction whose jump target may still be a label.
struct Pending {
    parsed: Parsed,
    /// Its first slot.
    at: usize,
    line: usize,
}

#[derive(Default)]
struct Program {
    insns: Vec<Pending>,
    /// Slot and line of each label.
    labels: HashMap<String, (usize, usize)>,
    slots: usize,
}

impl Program {
    fn line(&mut self, line: usize, text: &str, names: &dyn Names) -> Result<(), AsmError> {
        let fail = |(col, kind)| AsmError { line, col, kind };
        let tokens = lexer::tokens(text).map_err(fail)?;
        let mut rest = &tokens[..];
        while let Some((name, col)) = line::label(&mut rest) {
            if let Some((_, first)) = self.labels.insert(name.to_owned(), (self.slots, line)) {
                return Err(fail((col, E::DuplicateLabel { name: name.to_owned(), first })));
            }
        }
        let Some(parsed) = line::statement(rest, text.trim_end().len() + 1, names).map_err(fail)? else {
            return Ok(());
        };
        let at = self.slots;
        self.slots += parsed.insn.slots();
        self.insns.push(Pending { parsed, at, line });
        Ok(())
    }

    fn link(self) -> Result<Vec<Slot>, AsmError> {
        let mut out = Vec::with_capacity(self.slots);
        for Pending { parsed: Parsed { mut insn, label }, at, line } in self.insns {
            if let Some((name, col)) = label {
                let fail = |kind| AsmError { line, col, kind };
                let Some(&(to, _)) = self.labels.get(&name) else {
                    let what = if matches!(insn, Insn::Call(_)) { "helper or label" } else { "label" };
                    return Err(fail(E::UnknownName { what, name }));
                };
                // Distances count from the next slot, also in the two slots of a subprogram's address.
                set_target(&mut insn, to as i64 - (at as i64 + 1)).map_err(fail)?;
            }
            encode(&insn, &mut out);
        }
        Ok(out)
    }
}

/// Puts a relative target into an instruction that has one.
fn set_target(insn: &mut Insn, rel: i64) -> Result<(), E> {
    let short = || {
        i16::try_from(rel).map_err(|_| E::OutOfRange {
            value: format!("{rel:+}"),
            limit: "this jump reaches -32768 to +32767 slots; `gotol` reaches farther",
        })
    };
    let long = || {
        i32::try_from(rel).map_err(|_| E::OutOfRange { value: format!("{rel:+}"), limit: "a signed 32-bit distance" })
    };
    match insn {
        Insn::Jump { off, long: false } => *off = short()?.into(),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => *off = short()?,
        Insn::Jump { off, long: true }
        | Insn::Call(CallTarget::Local(off))
        | Insn::LoadImm64 { imm: Imm64::Func(off), .. } => *off = long()?,
        _ => {}
    }
    Ok(())
}
