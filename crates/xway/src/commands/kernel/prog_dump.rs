//! `xway prog dump` of a program that is loaded on a hook.

use serde_json::json;
use xway_isa::{Slot, slots_to_bytes, with_names};
use xway_object::HelperNames;

use super::attach::Place;
use super::which::Which;
use super::{failure, prog, programs};
use crate::args::{Dump, DumpForm};
use crate::failure::Failure;
use crate::{output, print};

/// Runs the command; `rest` is `file PATH` or nothing.
pub fn run(args: &Dump, which: &Which, rest: &[String], as_json: bool) -> Result<(), Failure> {
    let file = match rest {
        [] => None,
        [word, path] if word == "file" => Some(path),
        [other, ..] => return Err(Failure::usage(format!("{other}: not expected here")).hint("file PATH")),
    };
    if !args.without.is_empty() {
        return Err(Failure::usage("--without: a loaded program is compiled already").hint("name its object file"));
    }
    let mut place = Place::of(&args.place)?;
    if matches!(place, Place::Kernel(_)) && file.is_none() {
        return super::dump::run(which, args.form, as_json);
    }
    let hook = place.hook();
    let id = programs::open(hook, which)?;
    let info = hook.program_info(id).map_err(failure)?;
    let code = hook.dump(id).map_err(failure)?;
    let bytes = match args.form {
        DumpForm::Xlated => slots_to_bytes(&code.xlated),
        DumpForm::Jited => code.jited,
        DumpForm::Ir => {
            let message = "ir: the intermediate form is not kept once a program is compiled";
            return Err(Failure::usage(message).hint("xway prog dump ir OBJ"));
        }
    };
    if bytes.is_empty() {
        let why = info.reason.as_deref().unwrap_or("it is not shown without CAP_SYS_ADMIN and kernel.kptr_restrict=0");
        return Err(Failure::no(format!("program {}: there is no {} code: {why}", id.0, args.form.name())));
    }
    if let Some(path) = file {
        return output::write(path.as_ref(), &bytes);
    }
    let text = match args.form {
        DumpForm::Xlated => listing(&code.xlated),
        _ => xway_jit::dump::bytes(&bytes),
    };
    if !as_json {
        print::text(&format!("; program {} (id {}, tag {})\n{text}", info.name, id.0, prog::tag(&info.tag)));
        return Ok(());
    }
    let doc = json!({
        "program": info.name,
        "id": id.0,
        "tag": prog::tag(&info.tag),
        "hook": hook.kind().name(),
        "form": args.form.name(),
        "bytes": bytes.len(),
        "text": text,
    });
    print::json(&print::document("prog dump", doc));
    Ok(())
}

/// Instructions one to a line. Linux's verifier leaves some that have no name outside of it: they are shown as they are.
fn listing(slots: &[Slot]) -> String {
    let mut out = String::new();
    let mut at = 0;
    while let Some(slot) = slots.get(at) {
        let (text, len) = match xway_isa::decode_at(slots, at) {
            Ok(insn) => (with_names(&insn, &HelperNames).to_string(), insn.slots()),
            Err(_) => (format!("{:02x?}", slots_to_bytes(&[*slot])), 1),
        };
        out.push_str(&format!("{at:4}: ({:02x}) {text}\n", slot.opcode));
        at += len;
    }
    out
}
