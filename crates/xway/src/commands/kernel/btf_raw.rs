//! Types one by one, in the raw form that bpftool prints: lines, or objects of a document.

use serde_json::{Value, json};
use xway_object::Btf;
use xway_object::btf::{Composite, Enumerators, FuncLinkage, IntEncoding, Kind, Type, VarLinkage};

/// One type, with the lines of its parts.
pub fn line(btf: &Btf, id: u32, ty: &Type<'_>) -> String {
    let name = if ty.name.is_empty() { "(anon)" } else { ty.name };
    let head = |kind: &str, rest: String| format!("[{id}] {kind} '{name}' {rest}\n");
    let refers = |kind: &str, to: u32| head(kind, format!("type_id={to}"));
    match &ty.kind {
        Kind::Void => head("VOID", String::new()),
        Kind::Int(int) => {
            let encoding = encoding(int.encoding);
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
        Kind::Func(proto, linkage) => head("FUNC", format!("type_id={proto} linkage={}", of_func(*linkage))),
        Kind::FuncProto { ret, params } => {
            let all: Vec<_> = params.iter().collect();
            let mut out = head("FUNC_PROTO", format!("ret_type_id={ret} vlen={}", all.len()));
            all.iter().for_each(|p| out.push_str(&format!("\t'{}' type_id={}\n", anonymous(p.name), p.ty)));
            out
        }
        Kind::Var(ty, linkage) => head("VAR", format!("type_id={ty}, linkage={}", of_var(*linkage))),
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

const fn encoding(encoding: IntEncoding) -> &'static str {
    match encoding {
        IntEncoding::Unsigned => "(none)",
        IntEncoding::Signed => "SIGNED",
        IntEncoding::Char => "CHAR",
        IntEncoding::Bool => "BOOL",
    }
}

const fn of_func(linkage: FuncLinkage) -> &'static str {
    match linkage {
        FuncLinkage::Static => "static",
        FuncLinkage::Global => "global",
        FuncLinkage::Extern => "extern",
    }
}

const fn of_var(linkage: VarLinkage) -> &'static str {
    match linkage {
        VarLinkage::Static => "static",
        VarLinkage::Global => "global",
        VarLinkage::Extern => "extern",
    }
}

/// The same in documents, by the same names.
pub fn json(id: u32, ty: &Type<'_>) -> Value {
    let (kind, rest) = match &ty.kind {
        Kind::Void => ("VOID", json!({})),
        Kind::Int(int) => (
            "INT",
            json!({
                "size": int.size, "bits_offset": int.bit_offset, "nr_bits": int.bits, "encoding": encoding(int.encoding),
            }),
        ),
        Kind::Ptr(to) => ("PTR", json!({ "type_id": to })),
        Kind::Typedef(to) => ("TYPEDEF", json!({ "type_id": to })),
        Kind::Volatile(to) => ("VOLATILE", json!({ "type_id": to })),
        Kind::Const(to) => ("CONST", json!({ "type_id": to })),
        Kind::Restrict(to) => ("RESTRICT", json!({ "type_id": to })),
        Kind::TypeTag(to) => ("TYPE_TAG", json!({ "type_id": to })),
        Kind::Array(a) => ("ARRAY", json!({ "type_id": a.element, "index_type_id": a.index, "nr_elems": a.len })),
        Kind::Struct(c) => ("STRUCT", composite_json(c)),
        Kind::Union(c) => ("UNION", composite_json(c)),
        Kind::Enum(e) => ("ENUM", enumerators_json(e)),
        Kind::Enum64(e) => ("ENUM64", enumerators_json(e)),
        Kind::Fwd { is_union } => ("FWD", json!({ "fwd_kind": if *is_union { "union" } else { "struct" } })),
        Kind::Func(proto, linkage) => ("FUNC", json!({ "type_id": proto, "linkage": of_func(*linkage) })),
        Kind::FuncProto { ret, params } => {
            let one = |p: xway_object::btf::Param<'_>| json!({ "name": anonymous(p.name), "type_id": p.ty });
            let all: Vec<Value> = params.iter().map(one).collect();
            ("FUNC_PROTO", json!({ "ret_type_id": ret, "vlen": all.len(), "params": all }))
        }
        Kind::Var(ty, linkage) => ("VAR", json!({ "type_id": ty, "linkage": of_var(*linkage) })),
        Kind::Datasec { size, vars } => {
            let one = |v: xway_object::btf::SecVar| json!({ "type_id": v.ty, "offset": v.offset, "size": v.size });
            let all: Vec<Value> = vars.iter().map(one).collect();
            ("DATASEC", json!({ "size": size, "vlen": all.len(), "vars": all }))
        }
        Kind::Float(size) => ("FLOAT", json!({ "size": size })),
        Kind::DeclTag { target, component } => ("DECL_TAG", json!({ "type_id": target, "component_idx": component })),
    };
    let mut out = json!({ "id": id, "kind": kind, "name": anonymous(ty.name) });
    if let (Some(out), Value::Object(rest)) = (out.as_object_mut(), rest) {
        out.extend(rest);
    }
    out
}

fn composite_json(c: &Composite<'_>) -> Value {
    let one = |m: xway_object::btf::Member<'_>| {
        let mut out = json!({ "name": anonymous(m.name), "type_id": m.ty, "bits_offset": m.bit_offset });
        if m.bit_size > 0 {
            out["bitfield_size"] = json!(m.bit_size);
        }
        out
    };
    let members: Vec<Value> = c.members().map(one).collect();
    json!({ "size": c.size, "vlen": members.len(), "members": members })
}

fn enumerators_json(e: &Enumerators<'_>) -> Value {
    let number = |value: i128| i64::try_from(value).map_or_else(|_| json!(value as u64), |value| json!(value));
    let values: Vec<Value> = e.iter().map(|(name, value)| json!({ "name": name, "val": number(value) })).collect();
    let encoding = if e.signed { "SIGNED" } else { "UNSIGNED" };
    json!({ "encoding": encoding, "size": e.size, "vlen": values.len(), "values": values })
}
