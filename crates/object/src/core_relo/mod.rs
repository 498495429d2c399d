//! CO-RE: instructions that depend on the layout of types are adapted to the types of the machine.
//!
//! A relocation names a type of the object, an access into it (`0:3:1`: element 0, member 3, member 1) and a question
//! (offset, size, existence…). The same type is looked up in the target by name, the access is repeated there by member
//! names, and the answer goes into the instruction. What the target lacks is answered with "does not exist", or the
//! instruction is poisoned: replaced by a call of a helper that does not exist, so that only a path that reaches it is
//! refused.
//!
//! Semantics: `enum bpf_core_relo_kind` in `linux/bpf.h` and the behaviour of libbpf's relocation.

mod answer;
mod compat;
mod patch;
mod spec;

use std::collections::HashMap;

use crate::ObjectError;
use crate::btf::{Btf, CoreRelo, Kind, Type, essential_name};

use answer::{Answer, answer};
pub(crate) use patch::apply;
use spec::Spec;

/// The questions (`enum bpf_core_relo_kind`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    ByteOffset,
    ByteSize,
    FieldExists,
    Signed,
    LShift,
    RShift,
    LocalTypeId,
    TargetTypeId,
    TypeExists,
    TypeSize,
    EnumValueExists,
    EnumValue,
    TypeMatches,
}

impl Question {
    fn from_number(n: u32) -> Option<Question> {
        use Question::*;
        const ALL: [Question; 13] = [
            ByteOffset,
            ByteSize,
            FieldExists,
            Signed,
            LShift,
            RShift,
            LocalTypeId,
            TargetTypeId,
            TypeExists,
            TypeSize,
            EnumValueExists,
            EnumValue,
            TypeMatches,
        ];
        ALL.get(n as usize).copied()
    }

    fn about_type(self) -> bool {
        use Question::*;
        matches!(self, LocalTypeId | TargetTypeId | TypeExists | TypeSize | TypeMatches)
    }

    fn about_enum(self) -> bool {
        matches!(self, Question::EnumValueExists | Question::EnumValue)
    }
}

/// What is to be done to one instruction.
#[derive(Clone, Debug)]
pub(crate) struct Resolution {
    /// The value that the compiler wrote, when it is certain.
    pub expected: Option<u64>,
    /// The value for the target; an error text means poison.
    pub value: Result<u64, String>,
    /// New access size for a load or store, when it differs.
    pub access_size: Option<u32>,
    /// Why a load or store would read or write something else: poison for these, nothing to who only wants the place.
    pub not_accessed: Option<String>,
    /// The relocation in words, for messages.
    pub what: String,
}

/// Resolves the relocations of one object.
pub(crate) struct Resolver<'a> {
    local: &'a Btf,
    target: Option<&'a Btf>,
    /// Candidates in the target by local type.
    candidates: HashMap<u32, Vec<u32>>,
}

/// The most types of one name that are tried. Kernels have a handful.
const MAX_CANDIDATES: usize = 64;

impl<'a> Resolver<'a> {
    /// Without a target the object's own types answer.
    pub fn new(local: &'a Btf, target: Option<&'a Btf>) -> Resolver<'a> {
        Resolver { local, target, candidates: HashMap::new() }
    }

    /// Answers one relocation. The error is a malformed relocation, in words.
    pub fn resolve(&mut self, relo: &CoreRelo) -> Result<Resolution, String> {
        let question = Question::from_number(relo.kind)
            .ok_or_else(|| format!("CO-RE relocation of unknown kind {}", relo.kind))?;
        let access = self.local.string(relo.access).ok_or("CO-RE relocation without an access string")?;
        let spec = Spec::parse(self.local, relo.ty, access, question)?;
        let what = spec.describe(self.local, question);
        let own = answer(self.local, &spec, question).map_err(|e| format!("{what}: {e}"))?;
        let expected = own.certain.then_some(own.value);
        let done = |value, access_size| {
            Ok(Resolution { expected, value, access_size, not_accessed: None, what: what.clone() })
        };
        let (Some(target), false) = (self.target, question == Question::LocalTypeId) else {
            return done(Ok(own.value), None);
        };
        let mut found: Option<Answer> = None;
        for id in self.candidates(relo.ty, target) {
            let Some(there) = spec.find_in(self.local, target, id, question) else { continue };
            let new = answer(target, &there, question).map_err(|e| format!("{what}: {e}"))?;
            match &found {
                Some(old) if (old.value, old.size) != (new.value, new.size) => {
                    return Err(format!("{what}: ambiguous, the target has several types of this name"));
                }
                _ => found = Some(new),
            }
        }
        let Some(new) = found else {
            use Question::*;
            return match question {
                FieldExists | TypeExists | TypeMatches | EnumValueExists | TargetTypeId | TypeSize => done(Ok(0), None),
                _ => done(Err(format!("{what}: the target has no such thing")), None),
            };
        };
        if own.size == new.size {
            return done(Ok(new.value), None);
        }
        match (own.resizable, new.resizable, new.size) {
            (Some(a), Some(b), Some(size)) if a == b => done(Ok(new.value), Some(size)),
            _ => {
                let not_accessed = Some(format!("{what}: the target has it with another size"));
                Ok(Resolution { not_accessed, ..done(Ok(new.value), None)? })
            }
        }
    }

    fn candidates(&mut self, id: u32, target: &Btf) -> Vec<u32> {
        if let Some(known) = self.candidates.get(&id) {
            return known.clone();
        }
        let list = match self.local.ty(id) {
            Ok(ty) if !ty.name.is_empty() => target
                .with_essential_name(essential_name(ty.name))
                .filter(|t| target.ty(*t).is_ok_and(|t| same_kind(&ty, &t)))
                .take(MAX_CANDIDATES)
                .collect(),
            _ => Vec::new(),
        };
        self.candidates.insert(id, list.clone());
        list
    }
}

/// Kinds count as the same, both sizes of enum as one.
fn same_kind(a: &Type<'_>, b: &Type<'_>) -> bool {
    let is_enum = |k: &Kind<'_>| matches!(k, Kind::Enum(_) | Kind::Enum64(_));
    std::mem::discriminant(&a.kind) == std::mem::discriminant(&b.kind) || is_enum(&a.kind) && is_enum(&b.kind)
}

/// A resolution's error with its place.
pub(crate) fn relocation_error(section: &str, offset: u32, why: String) -> ObjectError {
    ObjectError::Relocation { section: section.to_owned(), insn: u64::from(offset) / 8, why }
}
