//! `xway btf`: type information, listed and printed.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use xway_abi::Errno;
use xway_kernel::{BtfInfo, KernelMap, KernelProg, ObjectKind, btf_by_id, btf_info, ids};
use xway_object::Btf;
use xway_object::btf::BtfError;

use super::attach::Place;
use super::which::Which;
use super::{btf_raw, by_id, failure, map, prog, programs, refused};
use crate::args_kernel::{self as args, BtfDump, HookRest as Rest, Place as Hook};
use crate::failure::Failure;
use crate::{payload, print};

/// Longest file of plain type information, bytes.
const FILE_MAX: u64 = 128 << 20;

/// Runs the command.
pub fn run(args: &args::Btf, as_json: bool) -> Result<(), Failure> {
    match args {
        args::Btf::Show(rest) => show(rest, as_json),
        args::Btf::Dump(rest) => dump(rest, as_json),
    }
}

fn show(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    if rest.place.hook == Some(Hook::User) {
        return Err(Failure::no("types in the service have no numbers: they belong to their maps and programs")
            .hint("xway btf dump map WHICH --hook user; xway btf dump prog WHICH --hook user"));
    }
    let numbers = match rest.words.as_slice() {
        [] => ids(ObjectKind::Btf).map_err(refused)?,
        [word, id] if word == "id" => vec![number(id)?],
        [id] => vec![number(id)?],
        [_, extra, ..] => {
            return Err(Failure::usage(format!("{extra}: not expected here")).hint("xway btf show [id N]"));
        }
    };
    let (progs, maps) = (users(ObjectKind::Program)?, users(ObjectKind::Map)?);
    let mut found = Vec::new();
    for id in &numbers {
        match btf_info(*id) {
            Ok(info) => found.push(info),
            // It went away meanwhile.
            Err(e) if e.errno() == Some(Errno::ENOENT) && rest.words.is_empty() => {}
            Err(e) => return by_id("btf", *id, Err(e)),
        }
    }
    let of = |all: &[(u32, u32)], btf: u32| -> Vec<u32> {
        all.iter().filter(|(_, of)| *of == btf).map(|(user, _)| *user).collect()
    };
    let one = |info: &BtfInfo| {
        json!({
            "id": info.id,
            "name": (!info.name.is_empty()).then_some(&info.name),
            "size": info.size,
            "kernel": info.kernel,
            "prog_ids": of(&progs, info.id),
            "map_ids": of(&maps, info.id),
        })
    };
    let all: Vec<Value> = found.iter().map(one).collect();
    if as_json {
        print::json(&print::document("btf show", json!({ "btfs": all })));
    } else {
        print::text(&found.iter().zip(&all).map(|(info, doc)| line(info, doc)).collect::<String>());
    }
    Ok(())
}

fn line(info: &BtfInfo, doc: &Value) -> String {
    let name = match (info.name.is_empty(), info.kernel) {
        (true, _) => "<anon>".to_owned(),
        (false, true) => format!("[{}]", info.name),
        (false, false) => info.name.clone(),
    };
    let mut out = format!("{}: name {name}  size {}B", info.id, info.size);
    for field in ["prog_ids", "map_ids"] {
        let numbers: Vec<String> = doc[field].as_array().into_iter().flatten().map(Value::to_string).collect();
        if !numbers.is_empty() {
            out.push_str(&format!("  {field} {}", numbers.join(",")));
        }
    }
    out + "\n"
}

/// Programs or maps, each with the number of its types.
fn users(kind: ObjectKind) -> Result<Vec<(u32, u32)>, Failure> {
    let types = |id: u32| match kind {
        ObjectKind::Program => KernelProg::by_id(id).and_then(|p| p.info()).map(|info| info.btf_id),
        _ => KernelMap::by_id(id).map(|map| map.info().map_or(0, |info| info.btf_id)),
    };
    // One that goes away meanwhile uses nothing any more.
    let all = ids(kind).map_err(refused)?;
    Ok(all.into_iter().filter_map(|id| Some((id, types(id).ok().filter(|btf| *btf != 0)?))).collect())
}

fn number(text: &str) -> Result<u32, Failure> {
    text.parse().map_err(|_| Failure::usage(format!("id {text}: not a number")))
}

/// Types, and those of them that are asked for: `None` for all.
struct Asked {
    btf: Arc<Btf>,
    roots: Option<Vec<u32>>,
}

impl Asked {
    /// All of them but those that they continue.
    fn all(btf: Arc<Btf>, base: Option<&Btf>) -> Asked {
        let roots = base.map(|base| (base.max_id() + 1..=btf.max_id()).collect());
        Asked { btf, roots }
    }
}

fn dump(rest: &BtfDump, as_json: bool) -> Result<(), Failure> {
    let hint = "format raw, or format c";
    let (words, as_c) = match rest.words.as_slice() {
        [words @ .., keyword, form] if keyword == "format" => match form.as_str() {
            "c" => (words, true),
            "raw" => (words, false),
            other => return Err(Failure::usage(format!("format {other}: there is no such form")).hint(hint)),
        },
        [.., keyword] if keyword == "format" => return Err(Failure::usage("format: of which kind?").hint(hint)),
        words => (words, false),
    };
    let Asked { btf, roots } = source(words, rest)?;
    if as_c {
        let text = btf.c_header(roots.as_deref()).map_err(Failure::input)?;
        match as_json {
            true => print::json(&print::document("btf dump", json!({ "c": text }))),
            false => print::text(&text),
        }
        return Ok(());
    }
    let chosen: Vec<u32> = roots.unwrap_or_else(|| (1..=btf.max_id()).collect());
    let types = chosen.into_iter().filter(|id| *id != 0).filter_map(|id| Some((id, btf.ty(id).ok()?)));
    if as_json {
        let types: Vec<Value> = types.map(|(id, ty)| btf_raw::json(id, &ty)).collect();
        print::json(&print::document("btf dump", json!({ "types": types })));
    } else {
        print::text(&types.map(|(id, ty)| btf_raw::line(&btf, id, &ty)).collect::<String>());
    }
    Ok(())
}

fn source(words: &[String], rest: &BtfDump) -> Result<Asked, Failure> {
    let hint = "id N | file PATH | prog WHICH | map WHICH [key | value | kv | all]; behind it: format raw | c";
    let place = &rest.place;
    let [kind, words @ ..] = words else {
        return Err(Failure::usage("whose types?").hint(hint));
    };
    let of = |id: u32, whose: String| match id {
        0 => Err(Failure::no(format!("{whose} has no types")).hint("compile with -g")),
        id => Ok(id),
    };
    let nothing_more = |rest: &[String]| match rest {
        [] => Ok(()),
        [extra, ..] => Err(Failure::usage(format!("{extra}: not expected here")).hint(hint)),
    };
    let named = rest.base_btf.as_deref().map(|path| file(path, None)).transpose()?;
    if place.hook == Some(Hook::User) && kind == "id" {
        let message = "id: types in the service have no numbers: they belong to their maps and programs";
        let hint =
            "xway btf dump map WHICH --hook user, xway btf dump prog WHICH --hook user, or xway btf dump file OBJ";
        return Err(Failure::no(message).hint(hint));
    }
    let id = match (kind.as_str(), words) {
        ("file", [path]) => {
            let path = Path::new(path);
            let base = named.or_else(|| is_module(path).then(xway_kernel::vmlinux).flatten());
            return Ok(Asked::all(file(path, base.as_deref())?, base.as_deref()));
        }
        ("id", [id]) => number(id)?,
        ("prog", _) => {
            let (which, rest) = Which::needed(words, "prog")?;
            nothing_more(&rest)?;
            if place.hook == Some(Hook::User) {
                let mut hook = Place::of(place)?.boxed();
                let id = programs::open(&mut *hook, &which)?;
                let none = || Failure::no(format!("{id} has no types")).hint("compile with -g");
                let types = hook.program_types(id).map_err(failure)?.ok_or_else(none)?;
                let read = parsed(types, None).map_err(|e| Failure::input(format!("types of {id}: {e}")))?;
                return Ok(Asked::all(Arc::new(read), None));
            }
            let info = prog::open(&which)?.info().map_err(refused)?;
            of(info.btf_id, format!("program {}", info.id))?
        }
        ("map", _) => {
            let (which, rest) = Which::needed(words, "map")?;
            let part = rest.first().map_or("kv", String::as_str);
            if !["key", "value", "kv", "all"].contains(&part) {
                nothing_more(&rest)?;
            }
            nothing_more(rest.get(1..).unwrap_or_default())?;
            let mut hook = Place::of(place)?.boxed();
            let id = map::open(&mut *hook, &which)?;
            let types = hook.map_types(id).map_err(failure)?;
            let none = || Failure::no(format!("{id} has no types")).hint("compile with -g");
            let types = types.ok_or_else(none)?;
            let read = Btf::parse(types.btf).map_err(|e| Failure::input(format!("types of {id}: {e}")))?;
            let roots = match part {
                "key" => Some(vec![types.key]),
                "value" => Some(vec![types.value]),
                "kv" => Some(vec![types.key, types.value]),
                _ => None,
            };
            return Ok(Asked { btf: Arc::new(read), roots });
        }
        _ => return Err(Failure::usage(format!("{kind}: not expected here")).hint(hint)),
    };
    let bytes = by_id("btf", id, btf_by_id(id))?;
    // A module's continue the kernel's.
    let module = || btf_info(id).is_ok_and(|info| info.kernel && info.name != "vmlinux");
    let base = named.or_else(|| module().then(xway_kernel::vmlinux).flatten());
    let read = parsed(bytes, base.as_deref()).map_err(|e| Failure::input(format!("types {id}: {e}")))?;
    Ok(Asked::all(Arc::new(read), base.as_deref()))
}

/// Whether the kernel shows a module's types there.
fn is_module(path: &Path) -> bool {
    path.parent() == Some(Path::new("/sys/kernel/btf")) && path.file_name().is_some_and(|name| name != "vmlinux")
}

fn parsed(bytes: Vec<u8>, base: Option<&Btf>) -> Result<Btf, BtfError> {
    match base {
        Some(base) => Btf::parse_behind(base, &bytes),
        None => Btf::parse(bytes),
    }
}

/// Types in an object file, or plain ones as `/sys/kernel/btf/vmlinux` has them; `base`: what plain ones continue.
fn file(path: &Path, base: Option<&Btf>) -> Result<Arc<Btf>, Failure> {
    const ELF: &[u8] = b"\x7fELF";
    let bytes = payload::file(path, FILE_MAX)?;
    if !bytes.starts_with(ELF) {
        let read = parsed(bytes, base).map(Arc::new);
        return read.map_err(|e| Failure::input(format!("{}: {e}", path.display())));
    }
    let types = Btf::of_object(&bytes).map_err(|e| Failure::input(format!("{}: {e}", path.display())))?;
    let missing = || Failure::no(format!("{}: it has no types", path.display())).hint("compile with -g");
    types.map(Arc::new).ok_or_else(missing)
}
