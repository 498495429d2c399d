//! `xway prog dump`: a program as the engines see it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use xway_hook::user::dump::by_itself;
use xway_isa::slots_to_bytes;
use xway_jit::{Options, dump};
use xway_object::{Object, Program};

use crate::args::{Dump, DumpForm};
use crate::commands::kernel::listing::{self, Row, Source, Wish};
use crate::commands::kernel::programs::Subject;
use crate::commands::kernel::{graph, prog_dump};
use crate::commands::{inspect, kernel};
use crate::disasm::{InObject, Line, disassemble};
use crate::failure::Failure;
use crate::print::{self, Paint};
use crate::session::{self, Trust};
use crate::{contents, load, output};

/// Runs the command.
pub fn run(args: &Dump, as_json: bool) -> Result<(), Failure> {
    let (subject, rest) = Subject::take(&args.words, &args.part)?;
    let select = match subject {
        Subject::Loaded(which) => return kernel::prog_dump::run(args, &which, &rest, as_json),
        Subject::Object(select) => select,
    };
    let wish = Wish::parse(&rest)?;
    wish.fits(args.form)?;
    if args.form == DumpForm::Xlated && !args.without.is_empty() {
        let message = "--without: xlated are the instructions as they are before any pass of the compiler";
        return Err(Failure::usage(message).hint("xway prog dump ir OBJ --without PASS, or jited"));
    }
    if args.place.hook.is_some() {
        let message = "--hook: it is for programs that are loaded there";
        return Err(Failure::usage(message).hint("xway prog dump FORM id N --hook …"));
    }
    let place = select.object.display().to_string();
    let mut object = load::object(&select)?;
    let image = load::choose(&object, &select)?;
    // Data sections are part of the code; maps are as the object makes them.
    contents::fill_sections(&mut object, &[])?;
    if args.form == DumpForm::Xlated {
        if let Some(path) = &wish.file {
            return output::write(path.as_ref(), &slots_to_bytes(&image.insns));
        }
        let (text, doc) = xlated(&object, &image, &wish);
        return show(&place, &image, args.form, text, doc, as_json);
    }
    let instance = session::instance(object, Trust::Verified, &place)?;
    let program = session::link(&instance, &image, &place)?;
    let mut options = Options { keep_text: args.form == DumpForm::Ir, ..Options::default() };
    for pass in &args.without {
        if !options.set(pass, false) {
            return Err(Failure::usage(format!("--without {pass}: no such pass"))
                .hint(format!("passes: {}", Options::PASSES.join(", "))));
        }
    }
    let code = compile(&program, &options).map_err(|why| Failure::no(format!("{place}: {}: {why}", image.name)))?;
    if let Some(path) = &wish.file {
        return output::write(path.as_ref(), code.code());
    }
    let stats = code.stats();
    let (text, doc) = match args.form {
        DumpForm::Ir => {
            let functions = dump::ir(&code, &[&program]);
            (functions.join("\n"), json!({ "functions": functions }))
        }
        _ if wish.beside() => {
            let (text, functions) = prog_dump::jited(&by_itself(&program, Some(&code)), &wish);
            let doc = json!({ "functions": functions, "text": text });
            (text, doc)
        }
        _ => {
            let text = dump::jited(&code, &[&program]);
            let functions: Vec<Value> = (code.functions().iter())
                .map(|f| json!({ "name": f.name, "offset": f.offset, "bytes": f.len }))
                .collect();
            (text.clone(), json!({ "functions": functions, "text": text }))
        }
    };
    let mut doc = doc;
    doc["insns"] = json!(stats.insns);
    doc["bytes"] = json!(stats.code_len);
    doc["compile_us"] = json!(stats.time.as_micros() as u64);
    doc["clock"] = json!(clock());
    let mut head = String::new();
    let _ = writeln!(
        head,
        "; {} instructions, {} bytes of code, compiled in {:.2} ms; clock: {}",
        print::grouped(stats.insns as u64),
        print::grouped(stats.code_len as u64),
        stats.time.as_secs_f64() * 1e3,
        clock()
    );
    show(&place, &image, args.form, head + &text, doc, as_json)
}

/// The instructions, as text and for scripts.
fn xlated(object: &Object, image: &Program, wish: &Wish) -> (String, Value) {
    if wish.visual {
        let begins: BTreeMap<usize, String> = image.subprogs.iter().map(|s| (s.start, s.name.clone())).collect();
        let text = graph::draw(&image.insns, &begins, &InObject(object, image));
        let doc = json!({ "graph": text, "insns": image.insns.len() });
        return (text, doc);
    }
    if wish.beside() {
        let rows = rows(object, image);
        return (listing::text(&rows, wish, false), json!({ "disassembly": listing::json(&rows, wish, "insn") }));
    }
    let text = inspect::listing(object, image, true, Paint::stdout());
    (text, json!({ "disassembly": inspect::disassembly(object, image, true) }))
}

/// The instructions with what may stand beside them.
fn rows(object: &Object, image: &Program) -> Vec<Row> {
    let lines = disassemble(object, image);
    let ends = lines.iter().skip(1).map(|line| line.insn).chain([image.insns.len()]);
    let row = |(line, end): (&Line, usize)| Row {
        at: line.insn,
        text: format!("({:02x}) {}", line.opcode, line.text),
        bytes: slots_to_bytes(&image.insns[line.insn..end]),
        proto: image.subprogs.iter().find(|s| s.start == line.insn).map(|s| s.name.clone()),
        program: None,
        source: image.line_info.iter().find(|l| l.insn == line.insn && l.line > 0).map(|l| Source {
            text: l.text.trim().to_owned(),
            file: l.file.to_string(),
            line: l.line,
            col: l.col,
        }),
    };
    lines.iter().zip(ends).map(row).collect()
}

fn compile(program: &Arc<xway_vm::Program>, options: &Options) -> Result<Arc<xway_jit::Compiled>, String> {
    let proof = program.proof().ok_or("the program is not verified")?;
    xway_jit::compile(program, proof, options).map_err(|refusal| refusal.to_string())
}

/// Where compiled programs have their time from.
fn clock() -> String {
    match xway_jit::clock::source() {
        Ok(()) => "the processor's counter".into(),
        Err(why) => format!("the system, because {why}"),
    }
}

fn show(
    place: &str,
    image: &Program,
    form: DumpForm,
    text: String,
    mut doc: Value,
    as_json: bool,
) -> Result<(), Failure> {
    if !as_json {
        print::text(&text);
        return Ok(());
    }
    doc["object"] = json!(place);
    doc["program"] = json!(image.name);
    doc["form"] = json!(form.name());
    print::json(&print::document("prog dump", doc));
    Ok(())
}
