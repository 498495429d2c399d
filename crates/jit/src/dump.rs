//! Machine code for people: assembly with the instructions and source lines that it came from.

use std::fmt::Write;

use cranelift_codegen::ir::SourceLoc;
use xway_vm::Program;

use crate::{Compiled, Origin, asm};

/// The machine code as assembly, function by function. In front of what came from an instruction of the program stand the
/// instruction and, where it is another one than before, its source line. `programs` are what was compiled: one, or the links of
/// a chain.
pub fn jited(code: &Compiled, programs: &[&Program]) -> String {
    let mut out = String::new();
    let targets = code.targets();
    let programs: Vec<&Program> = programs.iter().copied().chain(targets.iter().map(|t| &**t)).collect();
    for f in code.functions() {
        let address = code.address() + f.offset as u64;
        let _ = writeln!(out, "{}: {} bytes at {address:#x}", f.name, f.len);
        let bytes = &code.code()[f.offset..f.offset + f.len];
        let (mut slot, mut line) = (None, (0, 0));
        asm::each(bytes, address, |at, text| {
            let from = f.lines.partition_point(|l| l.0 <= at).checked_sub(1).and_then(|i| f.lines[i].1);
            if let Some(from) = from.filter(|f| slot != Some(*f))
                && let Some(program) = programs.get(from.unit)
            {
                origin(&mut out, program, from, &mut line);
            }
            slot = from;
            let _ = writeln!(out, "  {at:5x}  {text}");
        });
        out.push('\n');
    }
    out
}

/// The intermediate form and the back end's assembly, as [`Compiled::texts`] has them, with the program's instructions and source
/// lines in front of what came from them, as in [`jited`].
pub fn ir(code: &Compiled, programs: &[&Program]) -> Vec<String> {
    let targets = code.targets();
    let programs: Vec<&Program> = programs.iter().copied().chain(targets.iter().map(|t| &**t)).collect();
    let interleaved = |text: &String| {
        let mut out = String::with_capacity(2 * text.len());
        let (mut slot, mut line) = (None, (0, 0));
        for written in text.lines() {
            // Cranelift writes where an instruction came from in front of it: @ and the number in hexadecimal.
            let loc = written.strip_prefix('@').and_then(|rest| rest.split_whitespace().next());
            let loc = loc.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            let from = loc.and_then(|loc| Origin::from_loc(SourceLoc::new(loc)));
            if let Some(from) = from.filter(|f| slot != Some(*f))
                && let Some(program) = programs.get(from.unit)
            {
                origin(&mut out, program, from, &mut line);
            }
            slot = from.or(slot);
            out.push_str(written);
            out.push('\n');
        }
        out
    };
    code.texts().iter().map(interleaved).collect()
}

/// Machine code of which nothing but the bytes is known: the offset of each instruction and its assembly. `address`: where it runs.
pub fn instructions(code: &[u8], address: u64) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    asm::each(code, address, |at, text| out.push((at as usize, text.to_owned())));
    out
}

/// The instruction that machine code came from, with its source line when that is new.
fn origin(out: &mut String, program: &Program, from: Origin, line: &mut (usize, u32)) {
    let slot = from.insn;
    if let Some(info) = program.line(slot)
        && (from.unit, info.line) != *line
    {
        *line = (from.unit, info.line);
        let _ = writeln!(out, "; {}:{}  {}", info.file, info.line, info.text.trim());
    }
    if let Some(Some(insn)) = program.insns().get(slot) {
        let _ = writeln!(out, ";   {slot}: {insn}");
    }
}
