//! `xway prog dump xlated|jited WHICH`: a program in the kernel, as its verifier has rewritten it and as its compiler has made it.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Value, json};
use xway_isa::{Names, Slot};

use super::which::Which;
use super::{prog, refused};
use crate::args::DumpForm;
use crate::failure::Failure;
use crate::print;

/// Runs the command for a program in the kernel.
pub fn run(which: &Which, form: DumpForm, as_json: bool) -> Result<(), Failure> {
    let program = prog::open(which)?;
    let info = program.info().map_err(refused)?;
    let (xlated, jited) = program.code().map_err(refused)?;
    let (text, mut doc) = match form {
        DumpForm::Xlated => instructions(&xlated),
        DumpForm::Jited => machine_code(&jited),
        DumpForm::Ir => {
            let hint = "xway prog dump ir OBJ shows ours";
            return Err(Failure::usage("the kernel has no intermediate form to show").hint(hint));
        }
    };
    if text.is_empty() {
        let why = format!("{}: the kernel does not show it", info.name);
        return Err(Failure::needs(why).hint("run as root, with kernel.kptr_restrict below 2; the compiler may be off"));
    }
    if as_json {
        doc["program"] = prog::json(&info);
        doc["form"] = json!(form.name());
        print::json(&print::document("prog dump", doc));
    } else {
        print::text(&text);
    }
    Ok(())
}

/// Functions of the kernel that programs call: in the rewritten instructions a call has the distance of its function from a
/// fixed one.
struct Symbols {
    base: u64,
    names: HashMap<u64, String>,
}

impl Symbols {
    /// From the kernel's list; empty where it may not be read.
    fn read() -> Symbols {
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        Symbols::parse(&text)
    }

    fn parse(text: &str) -> Symbols {
        let mut symbols = Symbols { base: 0, names: HashMap::new() };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(address), _, Some(name)) = (words.next(), words.next(), words.next()) else { continue };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            if name == "__bpf_call_base" {
                symbols.base = address;
            } else if address != 0 {
                symbols.names.entry(address).or_insert_with(|| name.to_owned());
            }
        }
        symbols
    }
}

impl Names for Symbols {
    fn helper(&self, id: u32) -> Option<Cow<'_, str>> {
        // A distance, backwards or forwards.
        let address = self.base.wrapping_add_signed(i64::from(id as i32));
        self.names.get(&address).filter(|_| self.base != 0).map(|name| name.as_str().into())
    }
}

fn instructions(slots: &[Slot]) -> (String, Value) {
    let (symbols, mut text, mut lines, mut at) = (Symbols::read(), String::new(), Vec::new(), 0);
    while at < slots.len() {
        // The kernel has instructions of its own, which stand for themselves.
        let (words, len) = match xway_isa::decode_at(slots, at) {
            Ok(insn) => (xway_isa::with_names(&insn, &symbols).to_string(), insn.slots()),
            Err(_) => (format!("; opcode {:#04x}, imm {}", slots[at].opcode, slots[at].imm), 1),
        };
        text.push_str(&format!("{at:>5}: {words}\n"));
        lines.push(json!({ "insn": at, "text": words }));
        at += len;
    }
    (text, json!({ "disassembly": lines, "insns": slots.len() }))
}

/// Bytes of machine code, sixteen a line.
fn machine_code(code: &[u8]) -> (String, Value) {
    let hex = |line: &[u8]| line.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
    let text = code.chunks(16).enumerate().map(|(i, line)| format!("{:>5x}: {}\n", i * 16, hex(line))).collect();
    (text, json!({ "bytes": code.len(), "code": hex(code) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_their_functions() {
        let text = "ffffffff81000100 T bpf_map_lookup_elem\nffffffff81000000 T __bpf_call_base\n\
            ffffffff80ffff00 t before\n0000000000000000 A zero\nnonsense\n";
        let symbols = Symbols::parse(text);
        assert_eq!(symbols.helper(0x100).as_deref(), Some("bpf_map_lookup_elem"));
        assert_eq!(symbols.helper(-0x100i32 as u32).as_deref(), Some("before"));
        assert_eq!(symbols.helper(1), None);
        assert_eq!(Symbols::parse("").helper(0), None);
    }
}
