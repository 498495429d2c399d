//! `xway prog dump` of a program that is loaded on a hook.

use std::collections::BTreeMap;

use serde_json::json;
use xway_hook::{CodeFunction, Dump, SourceLine};
use xway_isa::{Slot, slots_to_bytes};
use xway_object::HelperNames;

use super::attach::Place;
use super::dump::in_words;
use super::graph;
use super::listing::{self, Row, Source, Wish};
use super::which::Which;
use super::{failure, prog, programs};
use crate::args::{self, DumpForm};
use crate::failure::Failure;
use crate::{output, print};

/// Runs the command; `rest` is bpftool's `file PATH`, `visual`, `opcodes`, `linum`.
pub fn run(args: &args::Dump, which: &Which, rest: &[String], as_json: bool) -> Result<(), Failure> {
    let wish = Wish::parse(rest)?;
    if !args.without.is_empty() {
        return Err(Failure::usage("--without: a loaded program is compiled already").hint("name its object file"));
    }
    if wish.visual && args.form != DumpForm::Xlated {
        let message = format!("visual: the ways through {} code are not drawn", args.form.name());
        return Err(Failure::usage(message).hint("xway prog dump xlated WHICH visual"));
    }
    let mut place = Place::of(&args.place)?;
    if matches!(place, Place::Kernel(_)) && wish.file.is_none() {
        return super::dump::run(which, args.form, &wish, as_json);
    }
    let hook = place.hook();
    let id = programs::open(hook, which)?;
    let info = hook.program_info(id).map_err(failure)?;
    let code = hook.dump(id).map_err(failure)?;
    let bytes = match args.form {
        DumpForm::Xlated => slots_to_bytes(&code.xlated),
        DumpForm::Jited => code.jited.clone(),
        DumpForm::Ir => {
            let message = "ir: the intermediate form is not kept once a program is compiled";
            return Err(Failure::usage(message).hint("xway prog dump ir OBJ"));
        }
    };
    if bytes.is_empty() {
        let why = info.reason.as_deref().unwrap_or("it is not shown without CAP_SYS_ADMIN and kernel.kptr_restrict=0");
        return Err(Failure::no(format!("program {}: there is no {} code: {why}", id.0, args.form.name())));
    }
    if let Some(path) = &wish.file {
        return output::write(path.as_ref(), &bytes);
    }
    let (field, text) = match args.form {
        DumpForm::Xlated if wish.visual => {
            let begins = BTreeMap::from([(0, info.name.clone())]);
            ("graph", graph::draw(&code.xlated, &begins, &HelperNames))
        }
        DumpForm::Xlated => ("text", listing::text(&instructions(&code.xlated, &code.lines), &wish, false)),
        _ => ("text", machine_code(&code).iter().map(|(_, rows)| listing::text(rows, &wish, true)).collect()),
    };
    if !as_json {
        // A graph is for programs that read nothing else.
        let head = match wish.visual {
            true => String::new(),
            false => format!("; program {} (id {}, tag {})\n", info.name, id.0, prog::tag(&info.tag)),
        };
        print::text(&(head + &text));
        return Ok(());
    }
    let mut doc = json!({
        "program": info.name,
        "id": id.0,
        "tag": prog::tag(&info.tag),
        "hook": hook.kind().name(),
        "form": args.form.name(),
        "bytes": bytes.len(),
        field: text,
    });
    match args.form {
        DumpForm::Xlated if wish.visual => {}
        DumpForm::Xlated => {
            doc["disassembly"] = json!(listing::json(&instructions(&code.xlated, &code.lines), &wish, "insn"));
        }
        _ => {
            let one = |(f, rows): &(CodeFunction, Vec<Row>)| {
                let rows = listing::json(rows, &wish, "at");
                json!({ "name": f.name, "offset": f.offset, "bytes": f.len, "disassembly": rows })
            };
            doc["functions"] = machine_code(&code).iter().map(one).collect();
        }
    }
    print::json(&print::document("prog dump", doc));
    Ok(())
}

/// Functions begin by their names, and lines where the compiler says.
fn instructions(slots: &[Slot], lines: &[SourceLine]) -> Vec<Row> {
    let (mut rows, mut at, mut function) = (Vec::new(), 0, "");
    while at < slots.len() {
        let (text, len) = in_words(slots, at, &HelperNames);
        let bytes = slots_to_bytes(&slots[at..(at + len).min(slots.len())]);
        let line = lines.binary_search_by_key(&at, |l| l.insn).ok().and_then(|n| lines.get(n));
        let begins = line.map(|l| l.function.as_str()).filter(|name| !name.is_empty() && *name != function);
        function = begins.unwrap_or(function);
        let (proto, source) = (begins.map(str::to_owned), line.filter(|l| l.line > 0).map(source));
        rows.push(Row { at, text, bytes, proto, source });
        at += len;
    }
    rows
}

fn source(l: &SourceLine) -> Source {
    Source { text: l.text.clone(), file: l.file.clone(), line: l.line, col: l.col }
}

/// The functions of machine code, each with its rows: places are offsets in the function, and what stands behind it and is no code comes
/// last. A service that is older than this says nothing of functions.
fn machine_code(code: &Dump) -> Vec<(CodeFunction, Vec<Row>)> {
    let whole = [CodeFunction { len: code.jited.len(), ..CodeFunction::default() }];
    let functions = if code.functions.is_empty() { &whole[..] } else { &code.functions };
    let ends = functions.iter().skip(1).map(|f| f.offset).chain([code.jited.len()]);
    let one = |(f, end): (&CodeFunction, usize)| {
        let mut rows = function(code, f);
        rows.extend(constants(code.jited.get(f.offset..end).unwrap_or_default(), f.len));
        (f.clone(), rows)
    };
    functions.iter().zip(ends).map(one).collect()
}

fn function(code: &Dump, f: &CodeFunction) -> Vec<Row> {
    let Some(bytes) = f.offset.checked_add(f.len).and_then(|end| code.jited.get(f.offset..end)) else { return vec![] };
    let insns = xway_jit::dump::instructions(bytes, 0);
    let ends: Vec<usize> = insns.iter().skip(1).map(|(at, _)| *at).chain([bytes.len()]).collect();
    let mut shown = None;
    let row = |((at, text), end): ((usize, String), usize)| {
        let slot = f.insns.partition_point(|l| l.0 as usize <= at).checked_sub(1).and_then(|n| f.insns[n].1);
        let line = slot.and_then(|slot| code.lines.partition_point(|l| l.insn <= slot).checked_sub(1));
        let new = line.map(|n| &code.lines[n]).filter(|l| shown.replace((l.line, &l.file)) != Some((l.line, &l.file)));
        Row {
            at,
            text,
            bytes: bytes.get(at..end).unwrap_or_default().to_vec(),
            proto: (at == 0 && !f.name.is_empty()).then(|| f.name.clone()),
            source: new.filter(|l| l.line > 0).map(source),
        }
    };
    insns.into_iter().zip(ends).map(row).collect()
}

/// What stands behind so many bytes of code, sixteen bytes a line.
fn constants(code: &[u8], from: usize) -> Vec<Row> {
    let row = |(n, bytes): (usize, &[u8])| Row {
        at: from + 16 * n,
        text: format!(".byte {}", listing::bytes(bytes)),
        bytes: bytes.to_vec(),
        ..Row::default()
    };
    code.get(from..).unwrap_or_default().chunks(16).enumerate().map(row).collect()
}
