//! From bytes to JSON.

use serde_json::{Map, Value, json};
use xway_object::Btf;
use xway_object::btf::{Composite, Int, IntEncoding, Kind};

use super::{DEPTH_MAX, Shape};

/// Shows bytes as their type says; as a byte literal where there is no type.
pub fn decode(shape: Shape<'_>, bytes: &[u8]) -> Value {
    match shape.typed {
        Some((btf, ty)) => typed(btf, ty, bytes, DEPTH_MAX),
        None => hex(bytes),
    }
}

fn typed(btf: &Btf, ty: u32, bytes: &[u8], depth: usize) -> Value {
    let (Some(depth), Ok((_, resolved))) = (depth.checked_sub(1), btf.resolve(ty)) else { return hex(bytes) };
    let part = |ty: u32, at: usize| -> Value {
        let len = btf.size_of(ty).unwrap_or(0) as usize;
        match bytes.get(at..at.saturating_add(len)) {
            Some(part) => typed(btf, ty, part, depth),
            None => Value::Null,
        }
    };
    match resolved.kind {
        Kind::Int(int) => integer(int, bytes),
        Kind::Ptr(_) => json!(unsigned(bytes)),
        Kind::Enum(e) | Kind::Enum64(e) => {
            let raw = unsigned(bytes);
            let number = if e.signed { i128::from(extend(raw, bytes.len() * 8)) } else { i128::from(raw) };
            match e.iter().find(|(_, v)| *v == number) {
                Some((name, _)) => json!(name),
                None if e.signed => json!(number as i64),
                None => json!(raw),
            }
        }
        Kind::Array(a) if btf.is_char(a.element) => match printable(bytes) {
            Some(text) => json!(text),
            None => hex(bytes),
        },
        Kind::Array(a) => {
            let step = btf.size_of(a.element).unwrap_or(0) as usize;
            if step == 0 {
                return json!([]);
            }
            (0..a.len as usize).take(bytes.len() / step).map(|i| part(a.element, i * step)).collect()
        }
        Kind::Struct(c) | Kind::Union(c) => {
            let mut out = Map::new();
            members(btf, c, bytes, depth, &mut out);
            Value::Object(out)
        }
        Kind::Var(ty, _) => part(ty, 0),
        Kind::Datasec { vars, .. } => {
            let vars = vars.iter().filter_map(|v| {
                let var = btf.ty(v.ty).ok()?;
                Some((var.name.to_owned(), part(v.ty, v.offset as usize)))
            });
            Value::Object(vars.collect())
        }
        _ => hex(bytes),
    }
}

/// Members by name; those of anonymous structs and unions stand in their parent, as C sees them.
fn members(btf: &Btf, c: Composite<'_>, bytes: &[u8], depth: usize, out: &mut Map<String, Value>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for (number, m) in c.members().enumerate() {
        let at = (m.bit_offset / 8) as usize;
        if m.name.is_empty() {
            if let Ok((_, inner)) = btf.resolve(m.ty)
                && let (Kind::Struct(inner) | Kind::Union(inner), Some(rest)) = (inner.kind, bytes.get(at..))
            {
                members(btf, inner, rest, depth, out);
            }
            continue;
        }
        let value = if m.bit_size != 0 {
            let raw = bits(bytes, m.bit_offset as usize, m.bit_size.into());
            let signed = matches!(btf.resolve(m.ty), Ok((_, t))
                if matches!(t.kind, Kind::Int(i) if i.encoding == IntEncoding::Signed));
            if signed { json!(extend(raw, m.bit_size.into())) } else { json!(raw) }
        } else {
            let len = btf.size_of(m.ty).unwrap_or(0) as usize;
            match bytes.get(at..at.saturating_add(len)) {
                Some(part) => typed(btf, m.ty, part, depth),
                None => Value::Null,
            }
        };
        let name = if out.contains_key(m.name) { format!("{}#{number}", m.name) } else { m.name.to_owned() };
        out.insert(name, value);
    }
}

fn integer(int: Int, bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        return hex(bytes);
    }
    let raw = unsigned(bytes);
    match int.encoding {
        IntEncoding::Bool if raw < 2 => json!(raw == 1),
        IntEncoding::Signed => json!(extend(raw, bytes.len() * 8)),
        _ => json!(raw),
    }
}

/// Up to eight bytes, little-endian.
fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |v, b| v << 8 | u64::from(*b))
}

/// `len` bits from bit `at` on, little-endian. At most 64.
fn bits(bytes: &[u8], at: usize, len: usize) -> u64 {
    (0..len.min(64)).fold(0, |v, i| {
        let bit = at + i;
        let set = bytes.get(bit / 8).is_some_and(|b| b >> (bit % 8) & 1 != 0);
        v | u64::from(set) << i
    })
}

/// Sign extension of the low `len` bits.
fn extend(raw: u64, len: usize) -> i64 {
    match len {
        1..64 => ((raw << (64 - len)) as i64) >> (64 - len),
        _ => raw as i64,
    }
}

/// Text that ends with zeros, if that is what the bytes are.
fn printable(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    // What looks like a literal would not be read back as text.
    let plain = text.chars().all(|c| !c.is_control()) && xway_packet_text::literal::parse(text).is_none();
    plain.then_some(text)
}

fn hex(bytes: &[u8]) -> Value {
    json!(format!("hex:{}", bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")))
}
