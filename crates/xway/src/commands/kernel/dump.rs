//! `xway prog dump xlated|jited WHICH`: a program in the kernel, as its verifier has rewritten it and as its compiler has made it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use xway_isa::{Names, Slot, slots_to_bytes};
use xway_kernel::{FuncInfo, KernelProg, LineInfo, ProgInfo, ProgLines, btf_by_id};
use xway_object::Btf;
use xway_object::btf::Kind;

use super::graph;
use super::listing::{self, Row, Source, Wish};
use super::which::Which;
use super::{prog, refused};
use crate::args::DumpForm;
use crate::failure::Failure;
use crate::print;

/// Runs the command for a program in the kernel.
pub fn run(which: &Which, form: DumpForm, wish: &Wish, as_json: bool) -> Result<(), Failure> {
    let program = prog::open(which)?;
    let info = program.info().map_err(refused)?;
    let (xlated, jited) = program.code().map_err(refused)?;
    let known = Known::of(&program, &info)?;
    let (text, mut doc) = match form {
        DumpForm::Xlated if wish.visual => drawn(&xlated, &known),
        DumpForm::Xlated => instructions(&xlated, &known, wish),
        DumpForm::Jited => machine_code(&jited, &known, wish),
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

/// What the kernel knows of a program's functions and source lines.
struct Known {
    name: String,
    tag: [u8; 8],
    btf: Option<Btf>,
    lines: ProgLines,
}

impl Known {
    fn of(program: &KernelProg, info: &ProgInfo) -> Result<Known, Failure> {
        // What it does not show is left out; the instructions are what was asked for.
        let btf =
            if info.btf_id == 0 { None } else { btf_by_id(info.btf_id).ok().and_then(|raw| Btf::parse(raw).ok()) };
        let lines = program.lines().map_err(refused)?;
        Ok(Known { name: info.name.clone(), tag: info.tag, btf, lines })
    }

    /// The name of a function, and how C writes it.
    fn function(&self, index: usize) -> Option<(&str, String)> {
        let (btf, func) = (self.btf.as_ref()?, self.lines.funcs.get(index)?);
        let ty = btf.ty(func.type_id).ok()?;
        let Kind::Func(proto, _) = ty.kind else { return None };
        let Kind::FuncProto { ret, params } = btf.ty(proto).ok()?.kind else { return None };
        let one = |p: xway_object::btf::Param<'_>| if p.ty == 0 { "...".into() } else { btf.declaration(p.ty, p.name) };
        let params: Vec<String> = params.iter().map(one).collect();
        let params = if params.is_empty() { "void".to_owned() } else { params.join(", ") };
        Some((ty.name, btf.declaration(ret, &format!("{}({params})", ty.name))))
    }

    fn source(&self, line: &LineInfo) -> Option<Source> {
        let btf = self.btf.as_ref()?;
        let text = btf.string(line.text_off)?.trim().to_owned();
        Some(Source { text, file: btf.string(line.file_off)?.to_owned(), line: line.line, col: line.col })
    }
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

fn instructions(slots: &[Slot], known: &Known, wish: &Wish) -> (String, Value) {
    let (symbols, mut rows, mut at) = (Symbols::read(), Vec::new(), 0);
    while at < slots.len() {
        let (words, len) = in_words(slots, at, &symbols);
        let begins = known.lines.funcs.iter().position(|f| f.insn as usize == at);
        let line = known.lines.lines.iter().find(|l| l.insn as usize == at);
        rows.push(Row {
            at,
            text: words,
            bytes: slots_to_bytes(&slots[at..(at + len).min(slots.len())]),
            proto: begins.and_then(|i| known.function(i)).map(|(_, proto)| proto),
            program: None,
            source: line.and_then(|line| known.source(line)),
        });
        at += len;
    }
    let doc = json!({ "disassembly": listing::json(&rows, wish, "insn"), "insns": slots.len() });
    (listing::text(&rows, wish, false), doc)
}

fn drawn(slots: &[Slot], known: &Known) -> (String, Value) {
    let name = |(i, f): (usize, &FuncInfo)| Some((f.insn as usize, known.function(i)?.0.to_owned()));
    let begins: BTreeMap<usize, String> = known.lines.funcs.iter().enumerate().filter_map(name).collect();
    let text = if slots.is_empty() { String::new() } else { graph::draw(slots, &begins, &Symbols::read()) };
    let doc = json!({ "graph": text, "insns": slots.len() });
    (text, doc)
}

/// `BPF_ADDR_PERCPU`: the offset with which the kernel's own move turns a per-CPU address into this CPU's.
const PERCPU: i16 = -1;

/// One instruction, and how many slots it takes. The kernel has some of its own, which have no name outside; where a program says by which
/// descriptor it has a map, the kernel shows the map's id.
pub fn in_words(slots: &[Slot], at: usize, names: &dyn Names) -> (String, usize) {
    let Slot { opcode, off, .. } = slots[at];
    match xway_isa::decode_at(slots, at) {
        Ok(insn) => {
            let words = xway_isa::with_names(&insn, names).to_string();
            (format!("({opcode:02x}) {}", words.replacen(" map[fd:", " map[id:", 1)), insn.slots())
        }
        Err(_) if opcode == 0xbf && off == PERCPU => {
            let (dst, src) = (slots[at].dst, slots[at].src);
            (format!("({opcode:02x}) r{dst} = &(void __percpu *)(r{src})"), 1)
        }
        Err(_) => (format!("({opcode:02x}) ; off {}, imm {}", slots[at].off, slots[at].imm), 1),
    }
}

/// Functions one behind the other, as the kernel gives them.
fn machine_code(code: &[u8], known: &Known, wish: &Wish) -> (String, Value) {
    let whole = [code.len() as u32];
    let lengths = if known.lines.lengths.is_empty() { &whole[..] } else { &known.lines.lengths };
    let (mut text, mut functions, mut rest, mut offset) = (String::new(), Vec::new(), code, 0);
    for (index, len) in lengths.iter().enumerate() {
        let Some((own, behind)) = rest.split_at_checked(*len as usize).filter(|(own, _)| !own.is_empty()) else {
            break;
        };
        rest = behind;
        let function = known.function(index);
        // The first one has the program's own, as in the kernel's list of symbols.
        let tag = known.lines.tags.get(index).filter(|_| index > 0).unwrap_or(&known.tag);
        let name = function.as_ref().map_or(known.name.as_str(), |(name, _)| name);
        let symbol = format!("bpf_prog_{}_{name}", prog::tag(tag));
        let mut rows = machine_rows(own, known, known.lines.addresses.get(index).copied());
        if let (Some(first), Some((_, proto))) = (rows.first_mut(), function) {
            first.proto = Some(proto);
        }
        let listed = listing::text(&rows, wish, true);
        // The name that tools like perf show stands below the prototype.
        match listed.split_once(":\n").filter(|_| rows[0].proto.is_some()) {
            Some((proto, lines)) => text.push_str(&format!("{proto}:\n{symbol}:\n{lines}")),
            None => text.push_str(&format!("{symbol}:\n{listed}")),
        }
        functions.push(json!({
            "name": symbol,
            "offset": offset,
            "bytes": own.len(),
            "disassembly": listing::json(&rows, wish, "at"),
        }));
        offset += own.len();
    }
    (text, json!({ "bytes": code.len(), "code": listing::bytes(code), "functions": functions }))
}

/// Machine code of one function; `address`: where it runs, when the kernel shows that.
fn machine_rows(code: &[u8], known: &Known, address: Option<u64>) -> Vec<Row> {
    let insns = xway_jit::dump::instructions(code, address.unwrap_or(0));
    let ends = insns.iter().skip(1).map(|(at, _)| *at).chain([code.len()]);
    let lines = &known.lines;
    let source = |at: usize| {
        let here = address? + at as u64;
        let line = lines.jited_lines.iter().position(|place| *place == here)?;
        known.source(lines.lines.get(line)?)
    };
    let row = |((at, text), end): (&(usize, String), usize)| Row {
        at: *at,
        text: text.clone(),
        bytes: code.get(*at..end).unwrap_or_default().to_vec(),
        proto: None,
        program: None,
        source: source(*at),
    };
    insns.iter().zip(ends).map(row).collect()
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
    #[test]
    fn what_only_the_kernel_has_is_spelled_as_it_spells_it() {
        let slot = |opcode, dst, src, off, imm| Slot { opcode, dst, src, off, imm };
        let words = |slots: &[Slot]| in_words(slots, 0, &xway_isa::NoNames);
        let map = [slot(0x18, 1, 1, 0, 32648), slot(0, 0, 0, 0, 0)];
        assert_eq!(words(&map), ("(18) r1 = map[id:32648]".into(), 2));
        let value = [slot(0x18, 1, 2, 0, 52), slot(0, 0, 0, 0, 8)];
        assert_eq!(words(&value), ("(18) r1 = map[id:52][0]+8".into(), 2));
        assert_eq!(words(&[slot(0xbf, 0, 3, -1, 0)]), ("(bf) r0 = &(void __percpu *)(r3)".into(), 1));
    }
}
