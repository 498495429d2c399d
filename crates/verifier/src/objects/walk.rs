//! Which field of a structure an access reaches, from BTF alone (`btf_struct_walk` of Linux's verifier has the same rules).

use xway_object::Btf;
use xway_object::btf::{Composite, Kind};

/// Structures within structures that a walk may pass.
const DEPTH_MAX: usize = 64;

/// What lies at an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Field<'a> {
    /// A number, or part of one.
    Number,
    /// A pointer to a structure.
    Pointer(Pointer<'a>),
    /// A pointer to something else.
    Address,
}

/// A field that points to a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pointer<'a> {
    /// The structure that it points to.
    pub to: u32,
    /// The structure that has the field.
    pub owner: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The type tag of what it points to (`rcu`, `percpu`, `user`), empty without one.
    pub tag: &'a str,
    /// It was reached through a union, so that it may be something else.
    pub in_union: bool,
}

/// Where one step of a walk ends.
enum Step<'a> {
    Field(Field<'a>),
    /// A structure begins exactly there.
    Inner(u32),
}

/// The field that `size` bytes at `off` of structure `ty` belong to, or why there is none.
pub(crate) fn field(btf: &Btf, ty: u32, off: u32, size: u32, untrusted: bool) -> Result<Field<'_>, String> {
    let mut walk = Walk { btf, in_union: untrusted, lenient: untrusted };
    let (mut at, mut off) = (ty, off);
    for _ in 0..DEPTH_MAX {
        match walk.step(at, off, size)? {
            Step::Field(f) => return Ok(f),
            Step::Inner(inner) => (at, off) = (inner, 0),
        }
    }
    Err("the structure nests too deep".to_owned())
}

/// True when at `off` of structure `ty` there lies one that `same` takes: `ty` itself, or one nested in it.
pub(crate) fn holds(btf: &Btf, ty: u32, off: u32, same: impl Fn(u32) -> bool) -> bool {
    if off == 0 && same(ty) {
        return true;
    }
    let mut walk = Walk { btf, in_union: false, lenient: false };
    let (mut at, mut off) = (ty, off);
    for _ in 0..DEPTH_MAX {
        match walk.step(at, off, 1) {
            Ok(Step::Inner(inner)) if same(inner) => return true,
            Ok(Step::Inner(inner)) => (at, off) = (inner, 0),
            _ => return false,
        }
    }
    false
}

struct Walk<'a> {
    btf: &'a Btf,
    in_union: bool,
    /// Reads may pass the end of a field: they fault safely.
    lenient: bool,
}

impl<'a> Walk<'a> {
    fn step(&mut self, ty: u32, off: u32, size: u32) -> Result<Step<'a>, String> {
        let (mut ty, mut off) = (ty, off);
        'again: for _ in 0..DEPTH_MAX {
            let (_, t) = self.btf.resolve(ty).map_err(|e| e.to_string())?;
            let (c, union) = match t.kind {
                Kind::Struct(c) => (c, false),
                Kind::Union(c) => (c, true),
                _ => return Err(format!("{} is no structure", self.btf.type_name(ty))),
            };
            self.in_union |= union && c.members().len() != 1;
            let (name, end) = (t.name, off.checked_add(size).ok_or("the offset is too large")?);
            if end > c.size {
                // An array without a length at the end goes on behind it.
                match self.open_end(c, off) {
                    Some((_, None)) => return Ok(Step::Field(Field::Number)),
                    Some((rest, Some(element))) => (ty, off) = (element, rest),
                    None => return Err(format!("{size} bytes at offset {off} lie behind the end of struct {name}")),
                }
                continue 'again;
            }
            for m in c.members() {
                let start = m.bit_offset / 8;
                if end <= start {
                    break;
                }
                if m.bit_size > 0 {
                    let last = (m.bit_offset + u32::from(m.bit_size)).div_ceil(8);
                    if off <= start && last <= end {
                        return Ok(Step::Field(Field::Number));
                    }
                    continue;
                }
                if off < start {
                    break;
                }
                let len = self.btf.size_of(m.ty).map_err(|e| e.to_string())?;
                let member_end = start + len;
                if off >= member_end {
                    continue;
                }
                let (element, count) = self.element(m.ty)?;
                let width = len / count.max(1);
                let start = start + (off - start) / width.max(1) * width;
                let (id, inner) = self.btf.resolve(element).map_err(|e| e.to_string())?;
                match inner.kind {
                    Kind::Struct(_) | Kind::Union(_) if off == start => return Ok(Step::Inner(id)),
                    Kind::Struct(_) | Kind::Union(_) => {
                        (ty, off) = (id, off - start);
                        continue 'again;
                    }
                    Kind::Ptr(to) => {
                        if width != size || off != start {
                            return Err(format!(
                                "{size} bytes at offset {off} are part of pointer {} of struct {name}",
                                m.name
                            ));
                        }
                        return Ok(Step::Field(self.pointer(name, m.name, to)?));
                    }
                    _ if end > member_end && !self.lenient => {
                        return Err(format!(
                            "{size} bytes at offset {off} pass the end of field {} of struct {name}",
                            m.name
                        ));
                    }
                    _ => return Ok(Step::Field(Field::Number)),
                }
            }
            return Err(format!("struct {name} has no field at offset {off}"));
        }
        Err("the structure nests too deep".to_owned())
    }

    fn pointer(&self, owner: &'a str, name: &'a str, to: u32) -> Result<Field<'a>, String> {
        let tag = match self.btf.ty(to).map_err(|e| e.to_string())? {
            t if matches!(t.kind, Kind::TypeTag(_)) => t.name,
            _ => "",
        };
        let (id, target) = self.btf.resolve(to).map_err(|e| e.to_string())?;
        Ok(match target.kind {
            Kind::Struct(_) | Kind::Union(_) => {
                Field::Pointer(Pointer { to: id, owner, name, tag, in_union: self.in_union })
            }
            _ => Field::Address,
        })
    }

    /// Element type and number of elements, arrays of arrays flattened; a plain member is its own element.
    fn element(&self, ty: u32) -> Result<(u32, u32), String> {
        let (mut at, mut count) = (ty, 1u32);
        for _ in 0..DEPTH_MAX {
            let (id, t) = self.btf.resolve(at).map_err(|e| e.to_string())?;
            match t.kind {
                Kind::Array(a) => (at, count) = (a.element, count.saturating_mul(a.len)),
                _ => return Ok((id, count)),
            }
        }
        Err("the array nests too deep".to_owned())
    }

    /// The array of unknown length at the end of a structure: the offset within its element, and the element when it is a
    /// structure.
    fn open_end(&self, c: Composite<'a>, off: u32) -> Option<(u32, Option<u32>)> {
        let last = c.members().last()?;
        let (_, t) = self.btf.resolve(last.ty).ok()?;
        let Kind::Array(a) = t.kind else { return None };
        let start = last.bit_offset / 8;
        if a.len != 0 || off < start {
            return None;
        }
        let (id, element) = self.btf.resolve(a.element).ok()?;
        match element.kind {
            Kind::Int(_) => Some((0, None)),
            Kind::Struct(s) | Kind::Union(s) if s.size > 0 => Some(((off - start) % s.size, Some(id))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_object::btf::{BtfBuilder, IntEncoding};

    /// `struct inner { u32 a; u32 b; }; struct outer { u64 id; struct inner *p; struct inner in[2]; u8 text[]; }`
    fn types() -> (Btf, u32, u32) {
        let mut b = BtfBuilder::new();
        let word = b.int("u32", 4, IntEncoding::Unsigned);
        let long = b.int("u64", 8, IntEncoding::Unsigned);
        let byte = b.int("u8", 1, IntEncoding::Unsigned);
        let inner = b.structure("inner", 8, &[("a", word, 0), ("b", word, 32)]);
        let pointer = b.ptr(inner);
        let two = b.array(inner, word, 2);
        let text = b.array(byte, word, 0);
        let members = [("id", long, 0), ("p", pointer, 64), ("in", two, 128), ("text", text, 256)];
        let outer = b.structure("outer", 32, &members);
        (b.finish(), outer, inner)
    }

    #[test]
    fn numbers_pointers_and_what_is_none() {
        let (btf, outer, inner) = types();
        let at = |off, size| field(&btf, outer, off, size, false);
        assert_eq!(at(0, 8), Ok(Field::Number));
        assert_eq!(at(4, 4), Ok(Field::Number));
        assert!(matches!(at(8, 8), Ok(Field::Pointer(p)) if p.to == inner && p.name == "p" && p.owner == "outer"));
        assert!(at(8, 4).unwrap_err().contains("part of pointer p"));
        assert_eq!(at(28, 4), Ok(Field::Number));
        assert!(at(20, 8).unwrap_err().contains("behind the end of struct inner"));
        assert!(field(&btf, inner, 2, 4, false).unwrap_err().contains("pass the end of field a"));
        assert_eq!(field(&btf, inner, 2, 4, true), Ok(Field::Number));
        // The open array at the end may be as long as it likes.
        assert_eq!(at(100, 1), Ok(Field::Number));
        assert!(field(&btf, inner, 8, 4, false).unwrap_err().contains("behind the end"));
        assert!(field(&btf, inner, u32::MAX, 8, false).is_err());
    }

    #[test]
    fn structures_begin_inside_others() {
        let (btf, outer, inner) = types();
        assert!(holds(&btf, outer, 0, |t| t == outer));
        assert!(holds(&btf, outer, 16, |t| t == inner) && holds(&btf, outer, 24, |t| t == inner));
        assert!(!holds(&btf, outer, 20, |t| t == inner) && !holds(&btf, outer, 0, |t| t == inner));
    }
}
