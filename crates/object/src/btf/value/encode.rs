//! From a tree to bytes.

use super::{MAX_NODES, Value, ValueError};
use crate::btf::{Btf, Composite, Enumerators, Kind, MAX_DEPTH, MemberAt};

/// The largest value that is built. Linux's own limit on map values is far lower.
const MAX_BYTES: u32 = 64 << 20;

impl Btf {
    /// Writes a tree as the type `id`. Members that are not given stay zero; members that do not exist, numbers that do not
    /// fit and lists that are too long are errors that name their place. Numbers may be given as text (`"0x1f"`, `"-3"`),
    /// arrays of bytes as hexadecimal text (`"aa:bb:cc"`, `"aabbcc"`), enums by name.
    pub fn encode_value(&self, id: u32, value: &Value) -> Result<Vec<u8>, ValueError> {
        let size = self.size_of(id).map_err(|e| ValueError::new(e.to_string()))?;
        if size > MAX_BYTES {
            return Err(ValueError::new(format!("the type needs {size} bytes, more than {MAX_BYTES}")));
        }
        let mut out = vec![0; size as usize];
        Encoder { btf: self, nodes: MAX_NODES }.value(id, value, &mut out, MAX_DEPTH)?;
        Ok(out)
    }
}

struct Encoder<'a> {
    btf: &'a Btf,
    nodes: u32,
}

impl Encoder<'_> {
    fn value(&mut self, id: u32, value: &Value, out: &mut [u8], depth: usize) -> Result<(), ValueError> {
        self.nodes = self.nodes.checked_sub(1).ok_or_else(|| ValueError::new("too many values"))?;
        let depth = depth.checked_sub(1).ok_or_else(|| ValueError::new("nested too deeply"))?;
        if let Value::Bytes(bytes) = value {
            let size = self.btf.size_of(id).map_err(|e| ValueError::new(e.to_string()))?;
            return copy(bytes, out.get_mut(..size as usize).ok_or_else(outside)?);
        }
        let (id, ty) = self.btf.resolve(id).map_err(|e| ValueError::new(e.to_string()))?;
        match ty.kind {
            Kind::Struct(c) | Kind::Union(c) => self.composite(id, c, value, out, depth),
            Kind::Array(a) => self.array(a.element, a.len, value, out, depth),
            Kind::Datasec { vars, .. } => {
                let Value::Struct(members) = value else { return Err(expected("an object of variables", value)) };
                for (name, v) in members {
                    let var = vars.iter().find(|v| self.btf.ty(v.ty).is_ok_and(|t| t.name == name));
                    let var = var.ok_or_else(|| ValueError::new("no such variable").under(name))?;
                    let part = out.get_mut(var.offset as usize..).ok_or_else(|| outside().under(name))?;
                    self.value(var.ty, v, part, depth).map_err(|e| e.under(name))?;
                }
                Ok(())
            }
            Kind::Var(ty, _) => self.value(ty, value, out, depth),
            Kind::Float(4) => copy(&(number_f64(value)? as f32).to_le_bytes(), out),
            Kind::Float(_) => copy(&number_f64(value)?.to_le_bytes(), out),
            kind => {
                let size = self.btf.size_of(id).map_err(|e| ValueError::new(e.to_string()))?;
                let bits = self.bits(kind, value, size.saturating_mul(8))?;
                copy(bits.to_le_bytes().get(..size as usize).ok_or_else(outside)?, out)
            }
        }
    }

    fn composite(
        &mut self,
        id: u32,
        c: Composite<'_>,
        value: &Value,
        out: &mut [u8],
        depth: usize,
    ) -> Result<(), ValueError> {
        let Value::Struct(members) = value else { return Err(expected("an object of members", value)) };
        let out = out.get_mut(..c.size as usize).ok_or_else(outside)?;
        for (name, v) in members {
            let at = match name.contains(['.', '[']) {
                true => Err(()),
                false => self.btf.member_at(id, name).map_err(|_| ()),
            };
            let at = at.map_err(|()| self.no_member(c).under(name))?;
            self.member(at, v, out, depth).map_err(|e| e.under(name))?;
        }
        Ok(())
    }

    fn member(&mut self, at: MemberAt, value: &Value, out: &mut [u8], depth: usize) -> Result<(), ValueError> {
        let (start, odd) = ((at.bit_offset / 8) as usize, at.bit_offset % 8);
        let part = out.get_mut(start..).ok_or_else(outside)?;
        let (_, ty) = self.btf.resolve(at.ty).map_err(|e| ValueError::new(e.to_string()))?;
        let (skip, width) = match ty.kind {
            Kind::Int(i) if at.bit_size == 0 && u32::from(i.bits) != i.size.saturating_mul(8) => {
                (odd + u32::from(i.bit_offset), u32::from(i.bits))
            }
            _ => (odd, u32::from(at.bit_size)),
        };
        if width == 0 {
            return self.value(at.ty, value, part, depth);
        }
        if width > 64 {
            return Err(ValueError::new("a bit field of more than 64 bits"));
        }
        let bits = self.bits(ty.kind, value, width)?;
        let part = part.get_mut(..(skip + width).div_ceil(8) as usize).ok_or_else(outside)?;
        let mask = ((1u128 << width) - 1) << skip;
        for (i, byte) in part.iter_mut().enumerate() {
            let (m, b) = ((mask >> (8 * i)) as u8, (bits << skip >> (8 * i)) as u8);
            *byte = *byte & !m | b & m;
        }
        Ok(())
    }

    fn array(&mut self, element: u32, len: u32, value: &Value, out: &mut [u8], depth: usize) -> Result<(), ValueError> {
        let size = self.btf.size_of(element).map_err(|e| ValueError::new(e.to_string()))? as usize;
        match value {
            Value::List(items) => {
                if items.len() > len as usize {
                    return Err(ValueError::new(format!("{} elements, the array has {len}", items.len())));
                }
                for (i, item) in items.iter().enumerate() {
                    let part = out.get_mut(i * size..(i + 1) * size).ok_or_else(outside)?;
                    self.value(element, item, part, depth).map_err(|e| e.under(&format!("[{i}]")))?;
                }
                Ok(())
            }
            Value::Text(text) if self.btf.is_char(element) => {
                if text.len() > len as usize {
                    return Err(ValueError::new(format!("{} characters, the array has {len}", text.len())));
                }
                copy(text.as_bytes(), out)
            }
            Value::Text(text) if size == 1 => {
                let bytes = hex(text).ok_or_else(|| ValueError::new(format!("`{text}` is not hexadecimal")))?;
                if bytes.len() != len as usize {
                    return Err(ValueError::new(format!("{} bytes, the array has {len}", bytes.len())));
                }
                copy(&bytes, out)
            }
            _ => Err(expected("a list", value)),
        }
    }

    /// The low `width` bits of a number.
    fn bits(&self, kind: Kind<'_>, value: &Value, width: u32) -> Result<u128, ValueError> {
        let number = match (kind, value) {
            (_, Value::Int(v) | Value::Enum { value: v, .. }) => *v,
            (_, Value::Bool(b)) => i128::from(*b),
            (Kind::Enum(e) | Kind::Enum64(e), Value::Text(name)) => match enumerator(e, name).or(parse_int(name)) {
                Some(v) => v,
                None => return Err(ValueError::new(format!("the enum has no value `{name}`"))),
            },
            (_, Value::Text(text)) => {
                parse_int(text).ok_or_else(|| ValueError::new(format!("`{text}` is not a number")))?
            }
            _ => return Err(expected("a number", value)),
        };
        // Negative numbers are taken for unsigned types too: -1 is the common way to write all ones.
        let fits = width >= 127 || (number >= -(1i128 << (width.max(1) - 1)) && number < 1i128 << width);
        if !fits {
            return Err(ValueError::new(format!("{number} does not fit into {width} bits")));
        }
        Ok(if width >= 128 { number as u128 } else { number as u128 & ((1 << width) - 1) })
    }

    fn no_member(&self, c: Composite<'_>) -> ValueError {
        let names: Vec<&str> = c.members().map(|m| m.name).filter(|n| !n.is_empty()).take(20).collect();
        ValueError::new(format!("no such member; there are: {}", names.join(", ")))
    }
}

fn enumerator(e: Enumerators<'_>, name: &str) -> Option<i128> {
    e.iter().find(|v| v.0 == name).map(|v| v.1)
}

fn parse_int(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let number = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => i128::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    if negative { number.checked_neg() } else { Some(number) }
}

/// Bytes from `aa:bb`, `aa bb`, `aabb` or `0xaabb`.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .strip_prefix("0x")
        .unwrap_or(text)
        .bytes()
        .filter(|b| !matches!(b, b':' | b' ' | b'-'))
        .map(|b| char::from(b).to_digit(16).map(|d| d as u8))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|p| p[0] << 4 | p[1]).collect())
}

fn number_f64(value: &Value) -> Result<f64, ValueError> {
    match value {
        Value::Float(v) => Ok(*v),
        Value::Int(v) => Ok(*v as f64),
        _ => Err(expected("a number", value)),
    }
}

fn copy(from: &[u8], to: &mut [u8]) -> Result<(), ValueError> {
    let to = to.get_mut(..from.len()).ok_or_else(|| ValueError::new(format!("{} bytes are too many", from.len())))?;
    to.copy_from_slice(from);
    Ok(())
}

fn expected(what: &str, got: &Value) -> ValueError {
    let got = match got {
        Value::Int(_) | Value::Float(_) | Value::Enum { .. } => "a number",
        Value::Bool(_) => "a boolean",
        Value::Text(_) => "text",
        Value::Bytes(_) => "bytes",
        Value::List(_) => "a list",
        Value::Struct(_) => "an object",
    };
    ValueError::new(format!("{what} is wanted, not {got}"))
}

fn outside() -> ValueError {
    ValueError::new("lies outside of the value")
}
