//! From JSON to bytes.

use serde_json::Value;
use xway_object::Btf;
use xway_object::btf::{Composite, IntEncoding, Kind};
use xway_packet_text::literal;

use super::{DEPTH_MAX, Shape};

/// Makes the bytes that JSON describes.
///
/// `base` gives the bytes of what is not mentioned (members left out); zeros when it is empty. Byte literals (`hex:…`,
/// `ip:…`, `be16:…`) fit wherever their length does, so that addresses and ports can be written as people read them.
/// The error is a sentence that starts with the place.
pub fn encode(shape: Shape<'_>, value: &Value, base: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = vec![0; shape.size];
    if base.len() == shape.size {
        out.copy_from_slice(base);
    }
    match shape.typed {
        Some((btf, ty)) => {
            let size = btf.size_of(ty).unwrap_or(0) as usize;
            let place = &mut out[..size.min(shape.size)];
            typed(btf, ty, value, place, DEPTH_MAX).map_err(|e| e.text())?;
        }
        None => out.copy_from_slice(&untyped(value, shape.size)?),
    }
    Ok(out)
}

/// What is wrong, and the path to it, innermost part last.
struct Wrong {
    path: Vec<String>,
    what: String,
}

impl Wrong {
    fn new(what: impl Into<String>) -> Wrong {
        Wrong { path: Vec::new(), what: what.into() }
    }

    fn inside(mut self, part: String) -> Wrong {
        self.path.push(part);
        self
    }

    fn text(&self) -> String {
        let mut path = String::new();
        for part in self.path.iter().rev() {
            if !path.is_empty() && !part.starts_with('[') {
                path.push('.');
            }
            path.push_str(part);
        }
        if path.is_empty() { self.what.clone() } else { format!("{path}: {}", self.what) }
    }
}

fn typed(btf: &Btf, ty: u32, value: &Value, out: &mut [u8], depth: usize) -> Result<(), Wrong> {
    let name = || btf.type_name(ty);
    let Some(depth) = depth.checked_sub(1) else { return Err(Wrong::new(format!("{} is nested too deeply", name()))) };
    if let Some(bytes) = raw_bytes(value, out.len()) {
        out.copy_from_slice(&bytes.map_err(|e| Wrong::new(format!("{}: {e}", name())))?);
        return Ok(());
    }
    let (_, resolved) = btf.resolve(ty).map_err(|e| Wrong::new(e.to_string()))?;
    match resolved.kind {
        Kind::Int(int) => number(value, out, int.encoding == IntEncoding::Signed, &name),
        Kind::Ptr(_) => number(value, out, false, &name),
        Kind::Enum(e) | Kind::Enum64(e) => match value.as_str() {
            None => number(value, out, e.signed, &name),
            Some(text) => match e.iter().find(|(n, _)| *n == text) {
                Some((_, v)) => {
                    let len = out.len().min(16);
                    out.copy_from_slice(&v.to_le_bytes()[..len]);
                    Ok(())
                }
                None => {
                    let have: Vec<&str> = e.iter().map(|(n, _)| n).take(20).collect();
                    Err(Wrong::new(format!("{text:?} is no value of {}; there are {}", name(), have.join(", "))))
                }
            },
        },
        Kind::Array(a) if value.is_string() && btf.is_char(a.element) => {
            let text = value.as_str().unwrap_or_default().as_bytes();
            if text.len() > out.len() {
                return Err(Wrong::new(format!("{} bytes of text for {} ({} bytes)", text.len(), name(), out.len())));
            }
            out.fill(0);
            out[..text.len()].copy_from_slice(text);
            Ok(())
        }
        Kind::Array(a) => {
            let list = value.as_array().ok_or_else(|| wants(&name, "a list", value, out.len()))?;
            if list.len() > a.len as usize {
                return Err(Wrong::new(format!("{} elements for {}", list.len(), name())));
            }
            let step = btf.size_of(a.element).map_err(|e| Wrong::new(e.to_string()))? as usize;
            for (i, element) in list.iter().enumerate() {
                let place = out.get_mut(i * step..(i + 1) * step);
                let place = place.ok_or_else(|| Wrong::new(format!("element {i} lies outside of {}", name())))?;
                typed(btf, a.element, element, place, depth).map_err(|e| e.inside(format!("[{i}]")))?;
            }
            Ok(())
        }
        Kind::Struct(c) | Kind::Union(c) => composite(btf, ty, c, value, out, depth),
        Kind::Var(inner, _) => typed(btf, inner, value, out, depth),
        Kind::Datasec { vars, .. } => {
            let fields = object(value, &name, out.len())?;
            for (key, field) in fields {
                let found = vars.iter().find(|v| btf.ty(v.ty).is_ok_and(|t| t.name == key));
                let Some(var) = found else {
                    let have: Vec<&str> =
                        vars.iter().filter_map(|v| btf.ty(v.ty).ok().map(|t| t.name)).take(40).collect();
                    return Err(Wrong::new(format!("no variable {key:?}; there are {}", have.join(", "))));
                };
                let len = btf.size_of(var.ty).map_err(|e| Wrong::new(e.to_string()))? as usize;
                let place =
                    slot(out, var.offset as usize, len).ok_or_else(|| Wrong::new("lies outside of its section"));
                place.and_then(|place| typed(btf, var.ty, field, place, depth)).map_err(|e| e.inside(key.clone()))?;
            }
            Ok(())
        }
        _ => Err(Wrong::new(format!("{} cannot be given as {value}; use a literal as \"hex:…\"", name()))),
    }
}

fn composite(btf: &Btf, ty: u32, c: Composite<'_>, value: &Value, out: &mut [u8], depth: usize) -> Result<(), Wrong> {
    let name = || btf.type_name(ty);
    for (key, field) in object(value, &name, out.len())? {
        // `member_at` takes paths; a key is one name.
        let found = if key.contains(['.', '[']) { Err(key.as_str()) } else { btf.member_at(ty, key) };
        let Ok(m) = found else {
            let have: Vec<&str> = c.members().map(|m| m.name).filter(|n| !n.is_empty()).take(40).collect();
            return Err(Wrong::new(format!("{} has no member {key:?}; there are {}", name(), have.join(", "))));
        };
        let result = if m.bit_size != 0 {
            bit_field(field, out, m.bit_offset as usize, m.bit_size.into())
        } else {
            let len = btf.size_of(m.ty).map_err(|e| Wrong::new(e.to_string()))? as usize;
            match slot(out, (m.bit_offset / 8) as usize, len) {
                Some(place) => typed(btf, m.ty, field, place, depth),
                None => Err(Wrong::new("lies outside of its type")),
            }
        };
        result.map_err(|e| e.inside(key.clone()))?;
    }
    Ok(())
}

fn slot(out: &mut [u8], at: usize, len: usize) -> Option<&mut [u8]> {
    out.get_mut(at..at.checked_add(len)?)
}

fn object<'v>(
    value: &'v Value,
    name: &dyn Fn() -> String,
    len: usize,
) -> Result<&'v serde_json::Map<String, Value>, Wrong> {
    value.as_object().ok_or_else(|| wants(name, "a table of its members", value, len))
}

/// The value is of another kind. Of an address, as packets of test files have it, it is said how map contents have it.
fn wants(name: &dyn Fn() -> String, what: &str, value: &Value, len: usize) -> Wrong {
    let literal = |text: &str| {
        let literals = ["ip", "mac"].map(|prefix| format!("{prefix}:{text}"));
        literals.into_iter().find(|l| matches!(literal::parse(l), Some(Ok(bytes)) if bytes.len() == len))
    };
    match value.as_str().and_then(literal) {
        Some(literal) => Wrong::new(format!("{} wants {what} or {literal:?}, not {value}", name())),
        None => Wrong::new(format!("{} wants {what}, not {value}", name())),
    }
}

fn bit_field(value: &Value, out: &mut [u8], at: usize, len: usize) -> Result<(), Wrong> {
    let number = as_number(value).filter(|n| (-(1i128 << (len - 1))..1i128 << len).contains(n));
    let number = number.ok_or_else(|| Wrong::new(format!("{value} does not fit {len} bits")))?;
    for i in 0..len {
        let bit = at + i;
        let byte = out.get_mut(bit / 8).ok_or_else(|| Wrong::new("lies outside of its type"))?;
        *byte = *byte & !(1 << (bit % 8)) | (((number >> i) & 1) as u8) << (bit % 8);
    }
    Ok(())
}

fn number(value: &Value, out: &mut [u8], signed: bool, name: &dyn Fn() -> String) -> Result<(), Wrong> {
    let number = as_number(value).ok_or_else(|| wants(name, "a number", value, out.len()))?;
    put(number, out, signed)
        .ok_or_else(|| Wrong::new(format!("{number} does not fit {} ({} bytes)", name(), out.len())))
}

fn put(number: i128, out: &mut [u8], signed: bool) -> Option<()> {
    let bits = out.len().min(15) as u32 * 8;
    let range = if signed { -(1i128 << (bits - 1))..1i128 << (bits - 1) } else { 0..1i128 << bits };
    if !range.contains(&number) {
        return None;
    }
    let wide = number.to_le_bytes();
    let len = out.len();
    if len <= 16 {
        out.copy_from_slice(&wide[..len]);
        Some(())
    } else {
        None
    }
}

fn as_number(value: &Value) -> Option<i128> {
    match value {
        Value::Bool(b) => Some((*b).into()),
        Value::Number(n) => n.as_u64().map(i128::from).or_else(|| n.as_i64().map(i128::from)),
        Value::String(s) => {
            let text = s.trim();
            literal::unsigned(text, 64).map(i128::from).ok().or_else(|| literal::signed(text, 64).map(i128::from).ok())
        }
        _ => None,
    }
}

/// Bytes that are written as such: a literal, or a list of `"0x…"` as bpftool prints them. `None` when the value is none.
fn raw_bytes(value: &Value, len: usize) -> Option<Result<Vec<u8>, String>> {
    let bytes = match value {
        Value::String(text) => literal::parse(text)?.map_err(|e| e.to_string()),
        Value::Array(list) if !list.is_empty() => {
            let byte =
                |v: &Value| u8::from_str_radix(v.as_str()?.strip_prefix("0x").filter(|h| h.len() <= 2)?, 16).ok();
            Ok(list.iter().map(byte).collect::<Option<Vec<u8>>>()?)
        }
        _ => return None,
    };
    Some(bytes.and_then(|b| if b.len() == len { Ok(b) } else { Err(format!("{} bytes given, {len} wanted", b.len())) }))
}

/// Bytes without a type: a literal, a list of literals or byte values one after the other, or a number.
fn untyped(value: &Value, size: usize) -> Result<Vec<u8>, String> {
    if let Some(bytes) = raw_bytes(value, size) {
        return bytes;
    }
    let bytes = match value {
        Value::String(text) => literal::hex(text).map_err(|e| e.to_string())?,
        Value::Array(list) => {
            let mut bytes = Vec::new();
            for element in list {
                match element {
                    Value::String(text) => {
                        let part = literal::parse(text).unwrap_or_else(|| literal::hex(text));
                        bytes.extend(part.map_err(|e| e.to_string())?);
                    }
                    Value::Number(n) => match n.as_u64().and_then(|n| u8::try_from(n).ok()) {
                        Some(b) => bytes.push(b),
                        None => return Err(format!("{n} is no byte; there is no type information to say more")),
                    },
                    other => return Err(format!("{other} is neither a byte nor a literal")),
                }
            }
            bytes
        }
        Value::Number(_) | Value::Bool(_) if size <= 8 => {
            let number = as_number(value).ok_or_else(|| format!("{value} is no integer"))?;
            let mut out = vec![0; size];
            put(number, &mut out, number < 0).ok_or_else(|| format!("{number} does not fit {size} bytes"))?;
            out
        }
        other => {
            return Err(format!("{other} needs type information, which this object lacks; give bytes as \"hex:…\""));
        }
    };
    if bytes.len() == size { Ok(bytes) } else { Err(format!("{} bytes given, {size} wanted", bytes.len())) }
}
