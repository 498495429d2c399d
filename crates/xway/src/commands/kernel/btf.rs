//! `xway btf dump`: type information in the raw form that bpftool prints.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use xway_kernel::btf_by_id;
use xway_object::Btf;
use xway_object::btf::{Composite, Enumerators, FuncLinkage, IntEncoding, Kind, Type, VarLinkage};

use super::attach::Place;
use super::which::Which;
use super::{failure, map, prog, refused};
use crate::args_kernel::{self as args, HookRest as Rest};
use crate::failure::Failure;
use crate::{payload, print};

/// Longest file of plain type information, bytes.
const FILE_MAX: u64 = 128 << 20;

/// Runs the command.
pub fn run(args: &args::Btf, as_json: bool) -> Result<(), Failure> {
    let args::Btf::Dump(rest) = args;
    let btf = source(rest)?;
    if as_json {
        let types: Vec<_> = btf.types().skip_while(|(id, _)| *id == 0).map(|(id, t)| line(&btf, id, &t)).collect();
        print::json(&print::document("btf dump", json!({ "types": types })));
    } else {
        let mut out = String::new();
        btf.types().skip_while(|(id, _)| *id == 0).for_each(|(id, t)| out.push_str(&line(&btf, id, &t)));
        print::text(&out);
    }
    Ok(())
}

fn source(rest: &Rest) -> Result<Arc<Btf>, Failure> {
    let hint = "id N | file PATH | prog WHICH | map WHICH";
    let [kind, words @ ..] = rest.words.as_slice() else {
        return Err(Failure::usage("whose types?").hint(hint));
    };
    let of = |id: u32, whose: String| match id {
        0 => Err(Failure::no(format!("{whose} has no types")).hint("compile with -g")),
        id => Ok(id),
    };
    let which = |what| match Which::needed(words, what)? {
        (which, rest) if rest.is_empty() => Ok(which),
        (_, rest) => Err(Failure::usage(format!("{}: not expected here", rest[0]))),
    };
    let id = match (kind.as_str(), words) {
        ("file", [path]) => return file(Path::new(path)),
        ("id", [id]) => id.parse().map_err(|_| Failure::usage(format!("id {id}: not a number")))?,
        ("prog", _) => {
            let info = prog::open(&which("prog")?)?.info().map_err(refused)?;
            of(info.btf_id, format!("program {}", info.id))?
        }
        ("map", _) => {
            let mut hook = Place::of(&rest.place)?.boxed();
            let id = map::open(&mut *hook, &which("map")?)?;
            let types = hook.map_types(id).map_err(failure)?;
            let none = || Failure::no(format!("{id} has no types")).hint("compile with -g");
            let bytes = types.ok_or_else(none)?.btf;
            return Btf::parse(bytes).map(Arc::new).map_err(|e| Failure::input(format!("types of {id}: {e}")));
        }
        _ => return Err(Failure::usage(format!("{kind}: not expected here")).hint(hint)),
    };
    let bytes = btf_by_id(id).map_err(refused)?;
    Btf::parse(bytes).map(Arc::new).map_err(|e| Failure::input(format!("types {id}: {e}")))
}

/// Types in an object file, or plain ones as `/sys/kernel/btf/vmlinux` has them.
fn file(path: &Path) -> Result<Arc<Btf>, Failure> {
    const ELF: &[u8] = b"\x7fELF";
    let bytes = payload::file(path, FILE_MAX)?;
    if !bytes.starts_with(ELF) {
        let read = Btf::parse(bytes).map(Arc::new);
        return read.map_err(|e| Failure::input(format!("{}: {e}", path.display())));
    }
    let types = Btf::of_object(&bytes).map_err(|e| Failure::input(format!("{}: {e}", path.display())))?;
    let missing = || Failure::no(format!("{}: it has no types", path.display())).hint("compile with -g");
    types.map(Arc::new).ok_or_else(missing)
}

/// One type, with the lines of its parts.
fn line(btf: &Btf, id: u32, ty: &Type<'_>) -> String {
    let name = if ty.name.is_empty() { "(anon)" } else { ty.name };
    let head = |kind: &str, rest: String| format!("[{id}] {kind} '{name}' {rest}\n");
    let refers = |kind: &str, to: u32| head(kind, format!("type_id={to}"));
    match &ty.kind {
        Kind::Void => head("VOID", String::new()),
        Kind::Int(int) => {
            let encoding = match int.encoding {
                IntEncoding::Unsigned => "(none)",
                IntEncoding::Signed => "SIGNED",
                IntEncoding::Char => "CHAR",
                IntEncoding::Bool => "BOOL",
            };
            let (size, at, bits) = (int.size, int.bit_offset, int.bits);
            head("INT", format!("size={size} bits_offset={at} nr_bits={bits} encoding={encoding}"))
        }
        Kind::Ptr(to) => refers("PTR", *to),
        Kind::Typedef(to) => refers("TYPEDEF", *to),
        Kind::Volatile(to) => refers("VOLATILE", *to),
        Kind::Const(to) => refers("CONST", *to),
        Kind::Restrict(to) => refers("RESTRICT", *to),
        Kind::TypeTag(to) => refers("TYPE_TAG", *to),
        Kind::Array(a) => head("ARRAY", format!("type_id={} index_type_id={} nr_elems={}", a.element, a.index, a.len)),
        Kind::Struct(c) => head("STRUCT", String::new()).trim_end().to_owned() + &composite(c),
        Kind::Union(c) => head("UNION", String::new()).trim_end().to_owned() + &composite(c),
        Kind::Enum(e) => head("ENUM", enumerators(e).0) + &enumerators(e).1,
        Kind::Enum64(e) => head("ENUM64", enumerators(e).0) + &enumerators(e).1,
        Kind::Fwd { is_union } => head("FWD", format!("fwd_kind={}", if *is_union { "union" } else { "struct" })),
        Kind::Func(proto, linkage) => {
            let linkage = match linkage {
                FuncLinkage::Static => "static",
                FuncLinkage::Global => "global",
                FuncLinkage::Extern => "extern",
            };
            head("FUNC", format!("type_id={proto} linkage={linkage}"))
        }
        Kind::FuncProto { ret, params } => {
            let all: Vec<_> = params.iter().collect();
            let mut out = head("FUNC_PROTO", format!("ret_type_id={ret} vlen={}", all.len()));
            all.iter().for_each(|p| out.push_str(&format!("\t'{}' type_id={}\n", anonymous(p.name), p.ty)));
            out
        }
        Kind::Var(ty, linkage) => {
            let linkage = match linkage {
                VarLinkage::Static => "static",
                VarLinkage::Global => "global",
                VarLinkage::Extern => "extern",
            };
            head("VAR", format!("type_id={ty}, linkage={linkage}"))
        }
        Kind::Datasec { size, vars } => {
            let all: Vec<_> = vars.iter().collect();
            let mut out = head("DATASEC", format!("size={size} vlen={}", all.len()));
            for var in all {
                let kind = match btf.ty(var.ty) {
                    Ok(Type { name, kind: Kind::Var(..) }) => format!(" (VAR '{name}')"),
                    Ok(Type { name, kind: Kind::Func(..) }) => format!(" (FUNC '{name}')"),
                    _ => String::new(),
                };
                out.push_str(&format!("\ttype_id={} offset={} size={}{kind}\n", var.ty, var.offset, var.size));
            }
            out
        }
        Kind::Float(size) => head("FLOAT", format!("size={size}")),
        Kind::DeclTag { target, component } => head("DECL_TAG", format!("type_id={target} component_idx={component}")),
    }
}

fn composite(c: &Composite<'_>) -> String {
    let mut out = format!(" size={} vlen={}\n", c.size, c.members().len());
    for m in c.members() {
        out.push_str(&format!("\t'{}' type_id={} bits_offset={}", anonymous(m.name), m.ty, m.bit_offset));
        if m.bit_size > 0 {
            out.push_str(&format!(" bitfield_size={}", m.bit_size));
        }
        out.push('\n');
    }
    out
}

fn enumerators(e: &Enumerators<'_>) -> (String, String) {
    let encoding = if e.signed { "SIGNED" } else { "UNSIGNED" };
    let head = format!("encoding={encoding} size={} vlen={}", e.size, e.iter().len());
    (head, e.iter().map(|(name, value)| format!("\t'{name}' val={value}\n")).collect())
}

fn anonymous(name: &str) -> &str {
    if name.is_empty() { "(anon)" } else { name }
}
