//! From bytes to a tree.

use super::{MAX_NODES, Value, ValueError};
use crate::btf::{Btf, Composite, Int, IntEncoding, Kind, MAX_DEPTH, Type};

impl Btf {
    /// Reads `bytes` as the type `id`. There may be more bytes than the type needs (padding), not fewer.
    ///
    /// ```
    /// # use xway_object::btf::{BtfBuilder, IntEncoding, value::Value};
    /// let mut b = BtfBuilder::new();
    /// let u16_id = b.int("__u16", 2, IntEncoding::Unsigned);
    /// let pair = b.structure("pair", 4, &[("a", u16_id, 0), ("b", u16_id, 16)]);
    /// let btf = b.finish();
    /// let v = btf.decode_value(pair, &[1, 0, 2, 0]).unwrap();
    /// assert_eq!(v.get("b"), Some(&Value::Int(2)));
    /// assert_eq!(btf.encode_value(pair, &v).unwrap(), [1, 0, 2, 0]);
    /// ```
    pub fn decode_value(&self, id: u32, bytes: &[u8]) -> Result<Value, ValueError> {
        // Bytes bound the members that are really there; unions read the same bytes more than once.
        let nodes = u32::try_from(bytes.len()).map_or(MAX_NODES, |n| n.saturating_mul(8)).saturating_add(1 << 16);
        Decoder { btf: self, nodes: nodes.min(MAX_NODES) }.value(id, bytes, MAX_DEPTH)
    }
}

struct Decoder<'a> {
    btf: &'a Btf,
    nodes: u32,
}

impl<'a> Decoder<'a> {
    fn value(&mut self, id: u32, bytes: &[u8], depth: usize) -> Result<Value, ValueError> {
        self.nodes = self.nodes.checked_sub(1).ok_or_else(|| ValueError::new("too many values"))?;
        let depth = depth.checked_sub(1).ok_or_else(|| ValueError::new("nested too deeply"))?;
        let (id, ty) = self.btf.resolve(id).map_err(|e| ValueError::new(e.to_string()))?;
        match ty.kind {
            Kind::Struct(c) | Kind::Union(c) => {
                let mut out = Vec::new();
                self.members(c, take(bytes, c.size)?, depth, &mut out)?;
                Ok(Value::Struct(out))
            }
            Kind::Array(a) => {
                let size = self.btf.size_of(a.element).map_err(|e| ValueError::new(e.to_string()))?;
                let total = size.checked_mul(a.len).ok_or_else(|| ValueError::new("an array that overflows"))?;
                self.array(a.element, size, a.len, take(bytes, total)?, depth)
            }
            Kind::Datasec { vars, .. } => {
                let mut out = Vec::new();
                for v in vars.iter() {
                    let var = self.btf.ty(v.ty).map_err(|e| ValueError::new(e.to_string()))?;
                    let Kind::Var(ty, _) = var.kind else { continue };
                    // A constant that the linker merged elsewhere has no value here.
                    let size = self.btf.size_of(ty).unwrap_or(v.size) as usize;
                    let Some(part) = bytes.get(v.offset as usize..).filter(|part| part.len() >= size) else { continue };
                    let value = self.value(ty, part, depth).map_err(|e| e.under(var.name))?;
                    out.push((var.name.to_owned(), value));
                }
                Ok(Value::Struct(out))
            }
            Kind::Var(ty, _) => self.value(ty, bytes, depth),
            _ => {
                let size = self.btf.size_of(id).map_err(|e| ValueError::new(e.to_string()))?;
                let bits = unsigned(take(bytes, size)?)?;
                Ok(scalar(ty, bits, size * 8))
            }
        }
    }

    fn members(
        &mut self,
        c: Composite<'a>,
        bytes: &[u8],
        depth: usize,
        out: &mut Vec<(String, Value)>,
    ) -> Result<(), ValueError> {
        for m in c.members() {
            self.nodes = self.nodes.checked_sub(1).ok_or_else(|| ValueError::new("too many values"))?;
            let (_, ty) = self.btf.resolve(m.ty).map_err(|e| ValueError::new(e.to_string()).under(m.name))?;
            let (start, odd) = ((m.bit_offset / 8) as usize, m.bit_offset % 8);
            let part = bytes.get(start..).ok_or_else(|| short().under(m.name))?;
            if m.bit_size != 0 || odd != 0 || old_bitfield(&ty) {
                let (skip, width) = match (ty.kind, m.bit_size) {
                    (Kind::Int(i), 0) => (odd + u32::from(i.bit_offset), u32::from(i.bits)),
                    (_, width) => (odd, u32::from(width)),
                };
                let bits = bit_field(part, skip, width).ok_or_else(|| short().under(m.name))?;
                out.push((m.name.to_owned(), scalar(ty, bits, width)));
                continue;
            }
            match ty.kind {
                Kind::Struct(inner) | Kind::Union(inner) if m.name.is_empty() => {
                    let depth = depth.checked_sub(1).ok_or_else(|| ValueError::new("nested too deeply"))?;
                    self.members(inner, take(part, inner.size)?, depth, out)?;
                }
                _ => {
                    let value = self.value(m.ty, part, depth).map_err(|e| e.under(m.name))?;
                    out.push((m.name.to_owned(), value));
                }
            }
        }
        Ok(())
    }

    fn array(&mut self, element: u32, size: u32, len: u32, bytes: &[u8], depth: usize) -> Result<Value, ValueError> {
        if self.btf.is_char(element)
            && let Some(text) = c_text(bytes)
        {
            return Ok(Value::Text(text));
        }
        if size == 0 {
            return Ok(Value::List(Vec::new()));
        }
        let mut out = Vec::new();
        for (i, part) in bytes.chunks_exact(size as usize).take(len as usize).enumerate() {
            out.push(self.value(element, part, depth).map_err(|e| e.under(&format!("[{i}]")))?);
        }
        Ok(Value::List(out))
    }
}

/// A number of `width` bits, as its type reads it.
fn scalar(ty: Type<'_>, bits: u128, width: u32) -> Value {
    let signed = || {
        let unused = 128 - width.clamp(1, 128);
        ((bits << unused) as i128) >> unused
    };
    match ty.kind {
        Kind::Int(Int { encoding: IntEncoding::Signed, .. }) => Value::Int(signed()),
        Kind::Int(Int { encoding: IntEncoding::Bool, .. }) if bits <= 1 => Value::Bool(bits != 0),
        Kind::Float(4) => Value::Float(f32::from_bits(bits as u32).into()),
        Kind::Float(8) => Value::Float(f64::from_bits(bits as u64)),
        Kind::Enum(e) | Kind::Enum64(e) => {
            let value = if e.signed { signed() } else { bits as i128 };
            match e.iter().find(|v| v.1 == value) {
                Some((name, _)) => Value::Enum { name: name.to_owned(), value },
                None => Value::Int(value),
            }
        }
        _ => Value::Int(bits as i128),
    }
}

/// Compilers before the member's own width existed put it into the integer type.
fn old_bitfield(ty: &Type<'_>) -> bool {
    matches!(ty.kind, Kind::Int(i) if i.bit_offset != 0 || u32::from(i.bits) != i.size.saturating_mul(8))
}

fn bit_field(bytes: &[u8], skip: u32, width: u32) -> Option<u128> {
    if width == 0 || width > 64 || skip > 64 {
        return None;
    }
    let raw = unsigned(bytes.get(..(skip + width).div_ceil(8) as usize)?).ok()?;
    Some(raw >> skip & ((1 << width) - 1))
}

fn unsigned(bytes: &[u8]) -> Result<u128, ValueError> {
    if bytes.len() > 16 {
        return Err(ValueError::new(format!("a number of {} bytes", bytes.len())));
    }
    Ok(bytes.iter().rev().fold(0, |n, b| n << 8 | u128::from(*b)))
}

/// Printable text that ends in null bytes.
fn c_text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|b| *b == 0)?;
    let (text, rest) = bytes.split_at(end);
    let plain = text.iter().all(|b| (0x20..0x7f).contains(b) || matches!(b, b'\n' | b'\t' | b'\r'));
    (plain && rest.iter().all(|b| *b == 0)).then(|| text.iter().map(|b| char::from(*b)).collect())
}

fn take(bytes: &[u8], len: u32) -> Result<&[u8], ValueError> {
    bytes
        .get(..len as usize)
        .ok_or_else(|| ValueError::new(format!("the type needs {len} bytes, there are {}", bytes.len())))
}

fn short() -> ValueError {
    ValueError::new("the member lies outside of its struct")
}
