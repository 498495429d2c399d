//! When a type of the target may stand for a type of the object.

use super::same_kind;
use crate::btf::{Btf, Composite, Enumerators, Int, IntEncoding, Kind, Type, essential_name};

/// libbpf's bound on nesting.
const MAX_LEVEL: u32 = 32;

/// A bound on the comparisons of one question.
const MAX_COMPARISONS: u32 = 100_000;

/// Whether a field of one type may be read as one of the other: any struct for any struct, any pointer for any pointer,
/// integers of every size, enums of one name, arrays by their elements.
pub(super) fn fields_are_compatible(local: &Btf, local_id: u32, target: &Btf, target_id: u32) -> bool {
    let (mut l, mut t) = (local_id, target_id);
    for _ in 0..MAX_LEVEL {
        let (Ok((_, lt)), Ok((_, tt))) = (local.resolve(l), target.resolve(t)) else { return false };
        let composite = |t: &Type<'_>| matches!(t.kind, Kind::Struct(_) | Kind::Union(_));
        if composite(&lt) && composite(&tt) {
            return true;
        }
        if !same_kind(&lt, &tt) {
            return false;
        }
        match (lt.kind, tt.kind) {
            (Kind::Ptr(_), _) | (Kind::Float(_), _) => return true,
            (Kind::Fwd { .. } | Kind::Enum(_) | Kind::Enum64(_), _) => {
                let (a, b) = (essential_name(lt.name), essential_name(tt.name));
                return a == b || a.is_empty() || b.is_empty();
            }
            (Kind::Int(a), Kind::Int(b)) => return a.bit_offset == 0 && b.bit_offset == 0,
            (Kind::Array(a), Kind::Array(b)) => (l, t) = (a.element, b.element),
            _ => return false,
        }
    }
    false
}

/// Whether the target's type answers questions about existence and size: the same kind of type; pointers and prototypes
/// by what they lead to, structs by their name alone.
pub(super) fn types_are_compatible(local: &Btf, local_id: u32, target: &Btf, target_id: u32) -> bool {
    let (Ok(l), Ok(t)) = (local.ty(local_id), target.ty(target_id)) else { return false };
    Comparison { local, target, left: MAX_COMPARISONS }.compatible(l, t, MAX_LEVEL)
}

/// Whether the target's type has all that the object's type has, member by member.
pub(super) fn types_match(local: &Btf, local_id: u32, target: &Btf, target_id: u32) -> bool {
    Comparison { local, target, left: MAX_COMPARISONS }.matches(local_id, target_id, false, MAX_LEVEL)
}

struct Comparison<'a> {
    local: &'a Btf,
    target: &'a Btf,
    left: u32,
}

impl<'a> Comparison<'a> {
    fn step(&mut self, level: u32) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        level.checked_sub(1)
    }

    fn compatible_ids(&mut self, l: u32, t: u32, level: u32) -> bool {
        match (self.local.resolve(l), self.target.resolve(t)) {
            (Ok((_, l)), Ok((_, t))) => self.compatible(l, t, level),
            _ => false,
        }
    }

    fn compatible(&mut self, l: Type<'_>, t: Type<'_>, level: u32) -> bool {
        let Some(level) = self.step(level) else { return false };
        if !same_kind(&l, &t) {
            return false;
        }
        match (l.kind, t.kind) {
            (Kind::Void | Kind::Struct(_) | Kind::Union(_) | Kind::Enum(_) | Kind::Enum64(_) | Kind::Fwd { .. }, _) => {
                true
            }
            (Kind::Int(a), Kind::Int(b)) => a.bit_offset == 0 && b.bit_offset == 0,
            (Kind::Ptr(a), Kind::Ptr(b)) => self.compatible_ids(a, b, level),
            (Kind::Typedef(a), Kind::Typedef(b)) => self.compatible_ids(a, b, level),
            (Kind::Array(a), Kind::Array(b)) => self.compatible_ids(a.element, b.element, level),
            (Kind::FuncProto { ret: a, params: p }, Kind::FuncProto { ret: b, params: q }) => {
                p.iter().len() == q.iter().len()
                    && p.iter().zip(q.iter()).all(|(x, y)| self.compatible_ids(x.ty, y.ty, level))
                    && self.compatible_ids(a, b, level)
            }
            _ => false,
        }
    }

    fn matches(&mut self, l: u32, t: u32, behind_pointer: bool, level: u32) -> bool {
        let Some(level) = self.step(level) else { return false };
        let (Ok((_, l)), Ok((_, t))) = (self.local.resolve(l), self.target.resolve(t)) else { return false };
        if essential_name(l.name) != essential_name(t.name) {
            return false;
        }
        match (l.kind, t.kind) {
            (Kind::Void, Kind::Void) => true,
            // Behind a pointer a declaration is as good as a definition.
            (Kind::Fwd { is_union: a }, Kind::Fwd { is_union: b }) => a == b,
            (Kind::Fwd { is_union }, Kind::Struct(_)) | (Kind::Struct(_), Kind::Fwd { is_union }) => {
                behind_pointer && !is_union
            }
            (Kind::Fwd { is_union }, Kind::Union(_)) | (Kind::Union(_), Kind::Fwd { is_union }) => {
                behind_pointer && is_union
            }
            (Kind::Struct(a), Kind::Struct(b)) | (Kind::Union(a), Kind::Union(b)) => {
                behind_pointer || self.members_match(a, b, level)
            }
            (Kind::Enum(a) | Kind::Enum64(a), Kind::Enum(b) | Kind::Enum64(b)) => enums_match(a, b),
            (Kind::Int(a), Kind::Int(b)) => ints_match(a, b),
            (Kind::Float(a), Kind::Float(b)) => a == b,
            (Kind::Ptr(a), Kind::Ptr(b)) => self.matches(a, b, true, level),
            (Kind::Array(a), Kind::Array(b)) => {
                a.len == b.len && self.matches(a.element, b.element, behind_pointer, level)
            }
            (Kind::FuncProto { ret: a, params: p }, Kind::FuncProto { ret: b, params: q }) => {
                p.iter().len() == q.iter().len()
                    && p.iter().zip(q.iter()).all(|(x, y)| self.matches(x.ty, y.ty, behind_pointer, level))
                    && self.matches(a, b, behind_pointer, level)
            }
            _ => false,
        }
    }

    fn members_match(&mut self, l: Composite<'_>, t: Composite<'_>, level: u32) -> bool {
        l.members().len() <= t.members().len()
            && l.members().all(|m| {
                t.members().any(|other| {
                    // Every look costs, or two long member lists would take quadratic time.
                    self.left = self.left.saturating_sub(1);
                    self.left != 0 && m.name == other.name && self.matches(m.ty, other.ty, false, level)
                })
            })
    }
}

fn enums_match(l: Enumerators<'_>, t: Enumerators<'_>) -> bool {
    let names: std::collections::HashSet<&str> = t.iter().map(|v| essential_name(v.0)).collect();
    l.iter().all(|v| names.contains(essential_name(v.0)))
}

fn ints_match(l: Int, t: Int) -> bool {
    let signed = |i: Int| i.encoding == IntEncoding::Signed;
    l.bits == t.bits && signed(l) == signed(t)
}
