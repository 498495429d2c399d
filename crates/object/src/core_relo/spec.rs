//! An access into a type, and the same access in another set of types.

use super::{Question, compat};
use crate::btf::{Array, Btf, Composite, Kind, MAX_DEPTH, essential_name};

/// An access: a root type and steps down from it.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub root: u32,
    pub steps: Vec<Step>,
    /// Offset of what is accessed from the start of the root, bits.
    pub bit_offset: u64,
    /// For questions about enums: the index of the value.
    pub enumerator: usize,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// For a member the struct or union that has it, for an element (and the root) the element's type.
    pub ty: u32,
    /// Index of the member or element.
    pub index: u32,
    pub is_member: bool,
}

/// libbpf's own bound on the steps of an access.
const MAX_STEPS: usize = 64;

impl Spec {
    /// Reads an access string of the compiler.
    pub fn parse(btf: &Btf, root: u32, access: &str, question: Question) -> Result<Spec, String> {
        let bad = || format!("malformed CO-RE access `{access}`");
        let numbers: Vec<u32> =
            access.split(':').take(MAX_STEPS + 1).map(|n| n.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        let (&first, rest) = numbers.split_first().ok_or_else(bad)?;
        if numbers.len() > MAX_STEPS {
            return Err(bad());
        }
        let mut spec = Spec { root, steps: Vec::new(), bit_offset: 0, enumerator: 0 };
        btf.ty(root).map_err(|e| e.to_string())?;
        if question.about_type() {
            return if access == "0" { Ok(spec) } else { Err(bad()) };
        }
        let (id, ty) = btf.resolve(root).map_err(|e| e.to_string())?;
        if question.about_enum() {
            let (Kind::Enum(e) | Kind::Enum64(e)) = ty.kind else { return Err(bad()) };
            spec.enumerator = first as usize;
            return if rest.is_empty() && e.get(spec.enumerator).is_some() { Ok(spec) } else { Err(bad()) };
        }
        spec.element(btf, id, first).ok_or_else(bad)?;
        let mut here = id;
        for &index in rest {
            let (id, ty) = btf.resolve(here).map_err(|e| e.to_string())?;
            here = match ty.kind {
                Kind::Struct(c) | Kind::Union(c) => {
                    let m = c.member(index as usize).ok_or_else(bad)?;
                    spec.bit_offset += u64::from(m.bit_offset);
                    // Anonymous members are no steps: the target may have grouped its members otherwise.
                    if !m.name.is_empty() {
                        spec.steps.push(Step { ty: id, index, is_member: true });
                    }
                    m.ty
                }
                Kind::Array(a) => {
                    if index >= a.len && !spec.is_flexible(btf, a) {
                        return Err(bad());
                    }
                    let (element, _) = btf.resolve(a.element).map_err(|e| e.to_string())?;
                    spec.element(btf, element, index).ok_or_else(bad)?;
                    element
                }
                _ => return Err(bad()),
            };
        }
        Ok(spec)
    }

    /// The same access below `root` in the types of `target`, if they have it.
    pub fn find_in(&self, local: &Btf, target: &Btf, root: u32, question: Question) -> Option<Spec> {
        let mut there = Spec { root, steps: Vec::new(), bit_offset: 0, enumerator: 0 };
        if question == Question::TypeMatches {
            return compat::types_match(local, self.root, target, root).then_some(there);
        }
        if question.about_type() {
            return compat::types_are_compatible(local, self.root, target, root).then_some(there);
        }
        let (id, ty) = target.resolve(root).ok()?;
        if question.about_enum() {
            let name = essential_name(self.enumerator_name(local)?);
            let (Kind::Enum(e) | Kind::Enum64(e)) = ty.kind else { return None };
            there.enumerator = e.iter().position(|(n, _)| essential_name(n) == name)?;
            return Some(there);
        }
        let (first, rest) = self.steps.split_first()?;
        there.element(target, id, first.index)?;
        let mut here = id;
        for step in rest {
            let (id, ty) = target.resolve(here).ok()?;
            here = if step.is_member {
                let (Kind::Struct(c) | Kind::Union(c)) = ty.kind else { return None };
                let wanted = member_of(local, step)?;
                there.member(target, (id, c), (local, wanted), MAX_DEPTH, &mut { MAX_MEMBERS })?
            } else {
                let Kind::Array(a) = ty.kind else { return None };
                if step.index >= a.len && !there.is_flexible(target, a) {
                    return None;
                }
                let (element, _) = target.resolve(a.element).ok()?;
                there.element(target, element, step.index)?;
                element
            };
        }
        Some(there)
    }

    fn element(&mut self, btf: &Btf, ty: u32, index: u32) -> Option<()> {
        self.steps.push(Step { ty, index, is_member: false });
        // The root may have no size (a forward declaration) as long as nothing is multiplied by it.
        if index != 0 {
            self.bit_offset =
                self.bit_offset.checked_add(u64::from(index).checked_mul(u64::from(btf.size_of(ty).ok()?) * 8)?)?;
        }
        Some(())
    }

    /// The member of `c` with the wanted name and a compatible type, perhaps inside anonymous members. Gives its type.
    fn member(
        &mut self,
        target: &Btf,
        (id, c): (u32, Composite<'_>),
        (local, wanted): (&Btf, (&str, u32)),
        depth: usize,
        fuel: &mut u32,
    ) -> Option<u32> {
        let depth = depth.checked_sub(1)?;
        for (index, m) in c.members().enumerate() {
            *fuel = fuel.checked_sub(1)?;
            let before = (self.bit_offset, self.steps.len());
            self.bit_offset += u64::from(m.bit_offset);
            if m.name.is_empty() {
                if let Ok((inner_id, t)) = target.resolve(m.ty)
                    && let Kind::Struct(inner) | Kind::Union(inner) = t.kind
                    && let Some(found) = self.member(target, (inner_id, inner), (local, wanted), depth, fuel)
                {
                    return Some(found);
                }
            } else if m.name == wanted.0 {
                if !compat::fields_are_compatible(local, wanted.1, target, m.ty) {
                    return None;
                }
                self.steps.push(Step { ty: id, index: index as u32, is_member: true });
                return Some(m.ty);
            }
            self.bit_offset = before.0;
            self.steps.truncate(before.1);
        }
        None
    }

    /// An array at the end of its struct may be indexed beyond its declared length when that is 0 or 1.
    fn is_flexible(&self, btf: &Btf, a: Array) -> bool {
        let Some(last) = self.steps.last().filter(|s| s.is_member && a.len <= 1) else { return false };
        match btf.ty(last.ty).map(|t| t.kind) {
            Ok(Kind::Struct(c)) => last.index as usize + 1 == c.members().len(),
            _ => false,
        }
    }

    pub fn enumerator_name<'b>(&self, btf: &'b Btf) -> Option<&'b str> {
        match btf.resolve(self.root).ok()?.1.kind {
            Kind::Enum(e) | Kind::Enum64(e) => e.get(self.enumerator).map(|v| v.0),
            _ => None,
        }
    }

    /// The relocation in words: `offset of struct task_struct.pid`.
    pub fn describe(&self, btf: &Btf, question: Question) -> String {
        let root = btf.type_name(self.root);
        let what = match question {
            Question::ByteOffset => "offset of",
            Question::ByteSize => "size of",
            Question::FieldExists | Question::TypeExists | Question::EnumValueExists => "existence of",
            Question::Signed => "sign of",
            Question::LShift | Question::RShift => "bit position of",
            Question::LocalTypeId | Question::TargetTypeId => "type id of",
            Question::TypeSize => "size of",
            Question::EnumValue => "value of",
            Question::TypeMatches => "match of",
        };
        let mut path = String::new();
        if question.about_enum() {
            path = format!(".{}", self.enumerator_name(btf).unwrap_or("?"));
        }
        for (i, step) in self.steps.iter().enumerate() {
            match (member_of(btf, step), i) {
                (Some((name, _)), _) => path.push_str(&format!(".{name}")),
                (None, 0) if step.index == 0 => {}
                _ => path.push_str(&format!("[{}]", step.index)),
            }
        }
        format!("{what} {root}{path}")
    }
}

/// A bound on the members that one search looks at.
const MAX_MEMBERS: u32 = 100_000;

/// Name and type of the member that a step goes to.
pub(super) fn member_of<'b>(btf: &'b Btf, step: &Step) -> Option<(&'b str, u32)> {
    if !step.is_member {
        return None;
    }
    match btf.ty(step.ty).ok()?.kind {
        Kind::Struct(c) | Kind::Union(c) => c.member(step.index as usize).map(|m| (m.name, m.ty)),
        _ => None,
    }
}
