//! Types as a C header: what a program includes to know them by their names.
//!
//! BTF has no order: a struct may stand behind those that hold it. C wants everything that a declaration needs in front of it,
//! the whole definition of what lies inside, and a mere announcement (`struct x;`) of what is only pointed to. So types are
//! written depth first: [`Writer::need`] writes whatever a use of a type wants to have been written.
//!
//! The compiler shall place members where BTF says that they are. `place` plays its rules and says where it would not: there
//! the struct is packed, and gaps are filled.
//!
//! | file | what |
//! |---|---|
//! | `place` | where a C compiler puts members: alignment, packing, gaps |
//! | `spell` | declarations, from the inside out; bodies of structs, unions and enums |
//! | `names` | names that are C's and that occur once |

mod names;
mod place;
mod spell;

use std::collections::{HashMap, HashSet};

use super::{Btf, BtfError, Kind};
use names::Names;
use place::Shape;

/// How deeply types may lie in each other on the way to what must be written first. Those of a kernel need some forty.
const NESTED_MAX: usize = 200;

/// Bytes of text beyond which types are not written any more.
const TEXT_MAX: usize = 256 << 20;

/// How many uses of types are looked at, and how many more for each type: types without names that hold each other often unfold
/// without end. Those of a kernel need ten for each.
const FUEL: u64 = 1 << 20;
const FUEL_PER_TYPE: u64 = 64;

impl Btf {
    /// A C header with all types, or with those that `roots` need. Its guard and its pragma are those that sources written
    /// for `vmlinux.h` count on.
    ///
    /// Names that C does not permit are changed, and a name that another type has already gets a flavour (`name___2`), which
    /// CO-RE ignores. Functions, variables and sections are left out.
    ///
    /// # Errors
    /// Ids that do not exist, types that hold themselves, and more than 256 MiB of text. Linear cost otherwise.
    ///
    /// ```
    /// # use xway_object::btf::{BtfBuilder, IntEncoding};
    /// let mut b = BtfBuilder::new();
    /// let int = b.int("unsigned int", 4, IntEncoding::Unsigned);
    /// b.structure("pair", 16, &[("first", int, 0), ("second", int, 64)]);
    /// let header = b.finish().c_header(None)?;
    /// assert!(header.contains("struct pair {\n\tunsigned int first;\n\tint: 32;\n\tunsigned int second;\n\tint: 32;\n};\n"), "{header}");
    /// # Ok::<(), xway_object::btf::BtfError>(())
    /// ```
    pub fn c_header(&self, roots: Option<&[u32]>) -> Result<String, BtfError> {
        let mut writer = Writer {
            btf: self,
            names: Names::new(),
            shapes: HashMap::new(),
            states: HashMap::new(),
            ready: HashSet::new(),
            announced: HashSet::new(),
            open: Vec::new(),
            out: HEAD.to_owned(),
            fuel: FUEL + FUEL_PER_TYPE * u64::from(self.max_id()),
        };
        match roots {
            Some(roots) => roots.iter().try_for_each(|root| writer.need(*root, Use::Whole, NESTED_MAX))?,
            None => writer.all()?,
        }
        Ok(writer.out + TAIL)
    }
}

/// What sources that include `vmlinux.h` count on: its guard, by which libbpf's headers know that they must not declare these
/// types themselves, and the attribute by which accesses become relocatable.
const HEAD: &str = "\
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute push (__attribute__((preserve_access_index)), apply_to = record)
#endif

";

const TAIL: &str = "\
#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute pop
#endif

#endif /* __VMLINUX_H__ */
";

/// What a use of a type needs of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Its name: it is pointed to.
    Name,
    /// All of it: it lies inside of something.
    Whole,
}

/// How far a type is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// What it needs is being written.
    Begun,
    /// It is written.
    Done,
}

/// A header in the making.
struct Writer<'a> {
    btf: &'a Btf,
    names: Names,
    shapes: HashMap<u32, Shape>,
    states: HashMap<u32, State>,
    /// Types without a name of their own, and targets of typedefs, of which everything that they hold is written.
    ready: HashSet<u32>,
    /// Tags that have been announced or defined.
    announced: HashSet<String>,
    /// Named types that are begun, the innermost last.
    open: Vec<u32>,
    out: String,
    /// Uses of types that may still be looked at.
    fuel: u64,
}

impl Writer<'_> {
    /// Everything that has a name, and the constants of enums that have none.
    fn all(&mut self) -> Result<(), BtfError> {
        let used = self.used();
        for id in 1..=self.btf.max_id() {
            let ty = self.btf.ty(id)?;
            match ty.kind {
                // Those that something has as its type are written there.
                Kind::Enum(_) | Kind::Enum64(_) if ty.name.is_empty() && used.contains(&id) => {}
                Kind::Struct(_) | Kind::Union(_) if ty.name.is_empty() => {}
                Kind::Struct(_) | Kind::Union(_) | Kind::Enum(_) | Kind::Enum64(_) => self.define(id, NESTED_MAX)?,
                Kind::Typedef(_) | Kind::Fwd { .. } => self.need(id, Use::Name, NESTED_MAX)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Enums without a name that something else has as its type: their constants are written there.
    fn used(&self) -> HashSet<u32> {
        let mut used = HashSet::new();
        for (_, ty) in self.btf.types() {
            match ty.kind {
                Kind::Ptr(t) | Kind::Const(t) | Kind::Volatile(t) | Kind::Restrict(t) | Kind::TypeTag(t) => {
                    used.insert(t);
                }
                Kind::Typedef(t) => {
                    used.insert(t);
                }
                Kind::Array(a) => {
                    used.insert(a.element);
                }
                Kind::Struct(c) | Kind::Union(c) => used.extend(c.members().map(|m| m.ty)),
                Kind::FuncProto { ret, params } => {
                    used.insert(ret);
                    used.extend(params.iter().map(|p| p.ty));
                }
                _ => {}
            }
        }
        used.retain(|id| matches!(self.btf.ty(*id).map(|t| t.kind), Ok(Kind::Enum(_) | Kind::Enum64(_))));
        used
    }

    /// Writes what a use of a type wants to stand in front of it.
    fn need(&mut self, id: u32, how: Use, depth: usize) -> Result<(), BtfError> {
        let depth = self.deeper(id, depth)?;
        let ty = self.btf.ty(id)?;
        let anonymous = ty.name.is_empty();
        match ty.kind {
            Kind::Const(t) | Kind::Volatile(t) | Kind::Restrict(t) | Kind::TypeTag(t) => self.need(t, how, depth),
            Kind::Ptr(t) => self.need(t, Use::Name, depth),
            // C wants to know the elements of an array even when it is only pointed to.
            Kind::Array(a) => self.need(a.element, Use::Whole, depth),
            Kind::FuncProto { ret, params } => {
                self.need(ret, Use::Name, depth)?;
                params.iter().try_for_each(|p| self.need(p.ty, Use::Name, depth))
            }
            Kind::Typedef(t) if is_builtin(ty.name) => self.need(t, how, depth),
            Kind::Typedef(t) => {
                self.typedef(id, t, depth)?;
                if how == Use::Whole && self.ready.insert(id) {
                    self.need(t, Use::Whole, depth)?;
                }
                Ok(())
            }
            // It is written where it is used, with everything that it holds.
            Kind::Struct(c) | Kind::Union(c) if anonymous => {
                if !self.ready.contains(&id) {
                    c.members().try_for_each(|m| self.need(m.ty, Use::Whole, depth))?;
                    self.ready.insert(id);
                }
                Ok(())
            }
            Kind::Enum(_) | Kind::Enum64(_) if anonymous => Ok(()),
            Kind::Struct(_) | Kind::Union(_) if how == Use::Name => {
                self.announce(id);
                Ok(())
            }
            Kind::Fwd { .. } => {
                self.announce(id);
                Ok(())
            }
            Kind::Struct(_) | Kind::Union(_) | Kind::Enum(_) | Kind::Enum64(_) => self.define(id, depth),
            _ => Ok(()),
        }
    }

    /// The depth that is left behind one more use of a type.
    fn deeper(&mut self, id: u32, depth: usize) -> Result<usize, BtfError> {
        self.fuel = self.fuel.checked_sub(1).ok_or(BtfError::TooMuchText(id))?;
        depth.checked_sub(1).ok_or(BtfError::Cycle(id))
    }

    /// Says that there is such a struct or union. One that is being defined has said so itself.
    fn announce(&mut self, id: u32) {
        if self.open.last() == Some(&id) {
            return;
        }
        let tag = self.tag(id);
        if self.announced.insert(tag.clone()) {
            self.out.push_str(&format!("{tag};\n\n"));
        }
    }

    fn typedef(&mut self, id: u32, to: u32, depth: usize) -> Result<(), BtfError> {
        if !self.begin(id)? {
            return Ok(());
        }
        self.need(to, Use::Name, depth)?;
        let name = self.names.word_of(id, self.btf.ty(id)?.name);
        let text = self.declaration(to, name)?;
        self.finish(id, &format!("typedef {text};"), is_keyword_of_c23(self.btf.ty(id)?.name))
    }

    /// Writes a struct, a union or an enum.
    fn define(&mut self, id: u32, depth: usize) -> Result<(), BtfError> {
        if !self.begin(id)? {
            return Ok(());
        }
        self.open.push(id);
        let kind = self.btf.ty(id)?.kind;
        if let Kind::Struct(c) | Kind::Union(c) = kind {
            c.members().try_for_each(|m| self.need(m.ty, Use::Whole, depth))?;
        }
        self.open.pop();
        let text = self.definition(id)?;
        let constants = match kind {
            Kind::Enum(e) | Kind::Enum64(e) => e.iter().any(|(name, _)| is_keyword_of_c23(name)),
            _ => false,
        };
        if !self.btf.ty(id)?.name.is_empty() {
            let tag = self.tag(id);
            self.announced.insert(tag);
        }
        self.finish(id, &format!("{text};"), constants)
    }

    /// False when it is written already.
    fn begin(&mut self, id: u32) -> Result<bool, BtfError> {
        match self.states.insert(id, State::Begun) {
            None => Ok(true),
            Some(State::Begun) => Err(BtfError::Cycle(id)),
            Some(State::Done) => {
                self.states.insert(id, State::Done);
                Ok(false)
            }
        }
    }

    fn finish(&mut self, id: u32, text: &str, before_c23: bool) -> Result<(), BtfError> {
        if before_c23 {
            // From C23 on these are words of the language.
            self.out.push_str("#if !defined(__STDC_VERSION__) || __STDC_VERSION__ < 202311L\n");
        }
        self.out.push_str(text);
        self.out.push_str(if before_c23 { "\n#endif\n\n" } else { "\n\n" });
        self.states.insert(id, State::Done);
        if self.out.len() > TEXT_MAX { Err(BtfError::TooMuchText(id)) } else { Ok(()) }
    }

    /// `struct name`, `union name`, `enum name`.
    fn tag(&mut self, id: u32) -> String {
        let Ok(ty) = self.btf.ty(id) else { return String::new() };
        let (keyword, whole) = match ty.kind {
            Kind::Union(_) => ("union", true),
            Kind::Fwd { is_union: true } => ("union", false),
            Kind::Enum(_) | Kind::Enum64(_) => ("enum", true),
            Kind::Fwd { .. } => ("struct", false),
            _ => ("struct", true),
        };
        format!("{keyword} {}", self.names.tag_of(id, ty.name, keyword, whole))
    }
}

/// What compilers have by themselves, and permit no second ones of; on another target they have another size. What they stand for is
/// written in their place.
fn is_builtin(name: &str) -> bool {
    name.starts_with("__builtin_")
}

fn is_keyword_of_c23(name: &str) -> bool {
    matches!(name, "bool" | "true" | "false")
}
