//! Instructions as text, with the names that an object gives to what they refer to.

use std::borrow::Cow;

use xway_isa::{CallTarget, Imm64, Insn, Names};
use xway_object::{Object, Program};

/// Names of helpers, kernel functions and maps.
pub struct InObject<'a>(pub &'a Object, pub &'a Program);

impl Names for InObject<'_> {
    fn helper(&self, id: u32) -> Option<Cow<'_, str>> {
        xway_abi::helper(id).map(|h| h.name.into())
    }

    fn kfunc(&self, id: i32, _: i16) -> Option<Cow<'_, str>> {
        self.1.kfuncs.get(usize::try_from(id).ok()?).map(|k| k.name.as_str().into())
    }

    fn map(&self, idx: i32) -> Option<Cow<'_, str>> {
        self.0.maps.get(usize::try_from(idx).ok()?).map(|m| m.name.as_str().into())
    }
}

/// One line of a disassembly.
pub struct Line {
    /// First slot of the instruction.
    pub insn: usize,
    /// Its opcode.
    pub opcode: u8,
    /// The instruction in words.
    pub text: String,
}

/// A whole program.
pub fn disassemble(object: &Object, program: &Program) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut at = 0;
    while at < program.insns.len() {
        let (text, slots) = one(object, program, at);
        lines.push(Line { insn: at, opcode: program.insns[at].opcode, text });
        at += slots;
    }
    lines
}

/// The instruction that begins at this slot, and how many slots it takes. What is no instruction says why.
pub fn one(object: &Object, program: &Program, at: usize) -> (String, usize) {
    match xway_isa::decode_at(&program.insns, at) {
        Ok(insn) => {
            let mut text = xway_isa::with_names(&insn, &InObject(object, program)).to_string();
            if let Some(note) = target_note(program, &insn, at) {
                text.push_str(&note);
            }
            (text, insn.slots())
        }
        Err(error) => (format!("; {error}"), 1),
    }
}

/// The name of the function that a local call or a callback reference reaches; the reason why an instruction is poisoned.
fn target_note(program: &Program, insn: &Insn, at: usize) -> Option<String> {
    if let Some(poison) = program.poisons.iter().find(|p| p.insn == at) {
        return Some(format!("  ; {}", poison.reason));
    }
    let next = at as i64 + insn.slots() as i64;
    let target = match *insn {
        Insn::Call(CallTarget::Local(rel)) => next + i64::from(rel),
        // Counted from the slot after the first one, as the kernel counts it.
        Insn::LoadImm64 { imm: Imm64::Func(rel), .. } => at as i64 + 1 + i64::from(rel),
        _ => return None,
    };
    let found = program.subprogs.iter().find(|s| s.start as i64 == target)?;
    Some(format!("  ; {}", found.name))
}
