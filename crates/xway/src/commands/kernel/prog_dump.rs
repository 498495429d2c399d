//! `xway prog dump` of a program that is loaded on a hook.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use xway_hook::{ChainCode, ChainPart, CodeFunction, Dump, SourceLine};
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
    // Of a loaded program there is none at all, which is said below.
    if args.form != DumpForm::Ir {
        wish.fits(args.form)?;
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
    let chains = if args.form == DumpForm::Jited { &code.chains[..] } else { &[] };
    if let Some(path) = &wish.file {
        // What runs, as far as that is one thing.
        let bytes = match chains {
            [] => &bytes,
            [chain] => &chain.jited,
            several => {
                let message = format!("file: program {} runs as part of {} functions", id.0, several.len());
                return Err(Failure::usage(message).hint("without file all of them are shown, with -j too"));
            }
        };
        return output::write(path.as_ref(), bytes);
    }
    let (field, text) = match args.form {
        DumpForm::Xlated if wish.visual => {
            let begins = BTreeMap::from([(0, info.name.clone())]);
            ("graph", graph::draw(&code.xlated, &begins, &HelperNames))
        }
        DumpForm::Xlated => ("text", listing::text(&instructions(&code.xlated, &code.lines), &wish, false)),
        _ => ("text", jited(&code, &wish).0),
    };
    if !as_json {
        // A graph is for programs that read nothing else.
        let head = match wish.visual {
            true => String::new(),
            false => {
                format!("; program {} (id {}, tag {}){}\n", info.name, id.0, prog::tag(&info.tag), by_itself(chains))
            }
        };
        let before = chains.iter().map(|chain| {
            let rows = machine_code(&Code::of_chain(chain));
            format!("{}{}\n", heading(chain), listed(&rows, &wish))
        });
        print::text(&(before.collect::<String>() + &head + &text));
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
            doc["functions"] = jited(&code, &wish).1;
            doc["chains"] = chains.iter().map(|chain| chain_json(chain, &wish)).collect();
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
        rows.push(Row { at, text, bytes, proto, program: None, source });
        at += len;
    }
    rows
}

fn source(l: &SourceLine) -> Source {
    Source { text: l.text.clone(), file: l.file.clone(), line: l.line, col: l.col }
}

/// Machine code of a program by itself: as text, and its functions for scripts.
pub fn jited(dump: &Dump, wish: &Wish) -> (String, Value) {
    let all = machine_code(&Code::of(dump));
    (listed(&all, wish), functions(&all, wish))
}

/// Machine code with what is known of it.
struct Code<'a> {
    jited: &'a [u8],
    lines: &'a [SourceLine],
    functions: &'a [CodeFunction],
    /// The programs of a chain.
    parts: &'a [ChainPart],
}

impl Code<'_> {
    fn of(dump: &Dump) -> Code<'_> {
        Code { jited: &dump.jited, lines: &dump.lines, functions: &dump.functions, parts: &[] }
    }

    fn of_chain(chain: &ChainCode) -> Code<'_> {
        Code { jited: &chain.jited, lines: &chain.lines, functions: &chain.functions, parts: &chain.programs }
    }
}

/// Which programs a chain has, in their order, and where it runs.
fn heading(chain: &ChainCode) -> String {
    let names: Vec<String> = chain.programs.iter().map(|p| format!("{} (id {})", p.name, p.id)).collect();
    let of = |(port, queue): &(String, Option<u32>)| match queue {
        Some(queue) => format!("queue {queue} of {port}"),
        None => port.clone(),
    };
    let places: Vec<String> = chain.points.iter().map(of).collect();
    format!(
        "; runs on {}: one function of {} programs, in this order: {}\n",
        places.join(", "),
        names.len(),
        names.join(", ")
    )
}

/// What a program's own code is for, where it runs in chains too.
fn by_itself(chains: &[ChainCode]) -> &'static str {
    match chains {
        [] => "",
        _ => " by itself: code for test runs, tail calls and ports where it is alone; the chain does not use it",
    }
}

fn chain_json(chain: &ChainCode, wish: &Wish) -> Value {
    let point = |(port, queue): &(String, Option<u32>)| json!({ "port": port, "queue": queue });
    let part = |p: &ChainPart| json!({ "id": p.id, "name": p.name });
    json!({
        "points": chain.points.iter().map(point).collect::<Vec<_>>(),
        "programs": chain.programs.iter().map(part).collect::<Vec<_>>(),
        "bytes": chain.jited.len(),
        "functions": functions(&machine_code(&Code::of_chain(chain)), wish),
    })
}

fn listed(functions: &[(CodeFunction, Vec<Row>)], wish: &Wish) -> String {
    functions.iter().map(|(_, rows)| listing::text(rows, wish, true)).collect()
}

fn functions(functions: &[(CodeFunction, Vec<Row>)], wish: &Wish) -> Value {
    let one = |(f, rows): &(CodeFunction, Vec<Row>)| {
        let rows = listing::json(rows, wish, "at");
        json!({ "name": f.name, "offset": f.offset, "bytes": f.len, "disassembly": rows })
    };
    functions.iter().map(one).collect()
}

/// The functions of machine code, each with its rows: places are offsets in the function, and what stands behind it and is no code comes
/// last. A service that is older than this says nothing of functions.
fn machine_code(code: &Code<'_>) -> Vec<(CodeFunction, Vec<Row>)> {
    let whole = [CodeFunction { len: code.jited.len(), ..CodeFunction::default() }];
    let functions = if code.functions.is_empty() { &whole[..] } else { code.functions };
    let ends = functions.iter().skip(1).map(|f| f.offset).chain([code.jited.len()]);
    let one = |(f, end): (&CodeFunction, usize)| {
        let mut rows = function(code, f);
        rows.extend(constants(code.jited.get(f.offset..end).unwrap_or_default(), f.len));
        (f.clone(), rows)
    };
    functions.iter().zip(ends).map(one).collect()
}

fn function(code: &Code<'_>, f: &CodeFunction) -> Vec<Row> {
    let Some(bytes) = f.offset.checked_add(f.len).and_then(|end| code.jited.get(f.offset..end)) else { return vec![] };
    let insns = xway_jit::dump::instructions(bytes, 0);
    let ends: Vec<usize> = insns.iter().skip(1).map(|(at, _)| *at).chain([bytes.len()]).collect();
    let (mut shown, mut within) = (None, None);
    let row = |((at, text), end): ((usize, String), usize)| {
        let slot = f.insns.partition_point(|l| l.0 as usize <= at).checked_sub(1).and_then(|n| f.insns[n].1);
        // Which program of a chain, where that is another one than before.
        let part = slot.and_then(|slot| code.parts.partition_point(|p| p.first <= slot).checked_sub(1));
        let begins = part.filter(|n| within.replace(*n) != Some(*n)).map(|n| &code.parts[n]);
        let line = slot.and_then(|slot| code.lines.partition_point(|l| l.insn <= slot).checked_sub(1));
        // No line of a program in front of it: one without lines has none.
        let line = line.map(|n| &code.lines[n]).filter(|l| part.is_none_or(|n| l.insn >= code.parts[n].first));
        let new = line.filter(|l| shown.replace((l.line, &l.file)) != Some((l.line, &l.file)));
        Row {
            at,
            text,
            bytes: bytes.get(at..end).unwrap_or_default().to_vec(),
            proto: (at == 0 && !f.name.is_empty()).then(|| f.name.clone()),
            program: begins.map(|p| format!("{} (id {})", p.name, p.id)),
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
