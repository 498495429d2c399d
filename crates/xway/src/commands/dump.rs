//! `xway prog dump`: a program as the engines see it.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use xway_jit::{Options, dump};

use crate::args::{Dump, DumpForm};
use crate::commands::kernel::programs::Subject;
use crate::commands::{inspect, kernel};
use crate::failure::Failure;
use crate::print::{self, Paint};
use crate::session::{self, Trust};
use crate::{contents, load};

/// Runs the command.
pub fn run(args: &Dump, as_json: bool) -> Result<(), Failure> {
    let (subject, rest) = Subject::take(&args.words, &args.part)?;
    let select = match subject {
        Subject::Loaded(which) => return kernel::prog_dump::run(args, &which, &rest, as_json),
        Subject::Object(select) => select,
    };
    if let Some(extra) = rest.first() {
        return Err(Failure::usage(format!("{extra}: not expected here")));
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
        let text = inspect::listing(&object, &image, true, Paint::stdout());
        let doc = json!({ "disassembly": inspect::disassembly(&object, &image, true) });
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
    let stats = code.stats();
    let (text, doc) = match args.form {
        DumpForm::Ir => {
            let functions = dump::ir(&code, &[&program]);
            (functions.join("\n"), json!({ "functions": functions }))
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
    image: &xway_object::Program,
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
