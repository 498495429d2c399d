//! Declarations, from the inside out, and what stands between braces.

use super::place::bitfield;
use super::{NESTED_MAX, Writer, is_builtin, names};
use crate::btf::{BtfError, Composite, Enumerators, Int, IntEncoding, Kind};

/// Qualifiers that a type on the way has: `const` and its like in front of a plain type, tags behind it.
#[derive(Clone, Default)]
struct Quals {
    words: String,
    tags: String,
}

impl Quals {
    fn with(mut self, word: &str) -> Quals {
        // Elements of an array may have a qualifier that the array has, too.
        if !self.words.split(' ').any(|w| w == word) {
            self.words.push_str(&format!("{word} "));
        }
        self
    }

    fn tagged(mut self, tag: &str) -> Quals {
        let quoted: String = tag.chars().filter(|c| !c.is_control()).flat_map(escaped).collect();
        self.tags.push_str(&format!(" __attribute__((btf_type_tag(\"{quoted}\")))"));
        self
    }
}

fn escaped(c: char) -> impl Iterator<Item = char> {
    matches!(c, '"' | '\\').then_some('\\').into_iter().chain([c])
}

impl Writer<'_> {
    /// `TYPE NAME`, as C writes it.
    pub(super) fn declaration(&mut self, id: u32, name: String) -> Result<String, BtfError> {
        self.declare(id, Quals::default(), name, 0, NESTED_MAX)
    }

    /// A struct, a union or an enum with its body.
    pub(super) fn definition(&mut self, id: u32) -> Result<String, BtfError> {
        self.body(id, 0, NESTED_MAX)
    }

    /// `inner` is what stands around the name so far; `tabs` how far bodies are indented.
    fn declare(&mut self, id: u32, quals: Quals, inner: String, tabs: usize, depth: usize) -> Result<String, BtfError> {
        let depth = self.deeper(id, depth)?;
        let ty = self.btf.ty(id)?;
        let base = match ty.kind {
            Kind::Const(t) => return self.declare(t, quals.with("const"), inner, tabs, depth),
            Kind::Volatile(t) => return self.declare(t, quals.with("volatile"), inner, tabs, depth),
            Kind::Restrict(t) => return self.declare(t, quals.with("restrict"), inner, tabs, depth),
            Kind::TypeTag(t) => return self.declare(t, quals.tagged(ty.name), inner, tabs, depth),
            Kind::Ptr(t) => {
                let mut star = format!("*{}{inner}", quals.words);
                if !quals.tags.is_empty() {
                    star = format!("*{} {}{inner}", quals.tags.trim_start(), quals.words);
                }
                let star = star.trim_end().to_owned();
                let binds = matches!(self.written(t)?, Kind::Array(_) | Kind::FuncProto { .. });
                let star = if binds { format!("({star})") } else { star };
                return self.declare(t, Quals::default(), star, tabs, depth);
            }
            // Its elements have the qualifiers.
            Kind::Array(a) => return self.declare(a.element, quals, format!("{inner}[{}]", a.len), tabs, depth),
            Kind::FuncProto { ret, params } => {
                let mut list = Vec::new();
                for param in params.iter() {
                    list.push(match param.ty {
                        0 => "...".to_owned(),
                        ty => self.declare(ty, Quals::default(), String::new(), tabs, depth)?,
                    });
                }
                let list = if list.is_empty() { "void".to_owned() } else { list.join(", ") };
                return self.declare(ret, Quals::default(), format!("{inner}({list})"), tabs, depth);
            }
            Kind::Int(int) => integer(ty.name, int).to_owned(),
            Kind::Float(_) => match ty.name {
                known @ ("float" | "double" | "long double") => known.to_owned(),
                other => names::valid(other),
            },
            Kind::Typedef(t) if is_builtin(ty.name) => return self.declare(t, quals, inner, tabs, depth),
            Kind::Typedef(_) => self.names.word_of(id, ty.name),
            Kind::Struct(_) | Kind::Union(_) | Kind::Enum(_) | Kind::Enum64(_) if ty.name.is_empty() => {
                // One that stands in several places is written in each.
                self.body(id, tabs, depth)?
            }
            Kind::Struct(_) | Kind::Union(_) | Kind::Enum(_) | Kind::Enum64(_) | Kind::Fwd { .. } => self.tag(id),
            Kind::Void | Kind::Func(..) | Kind::Var(..) | Kind::Datasec { .. } | Kind::DeclTag { .. } => "void".into(),
        };
        let space = if inner.is_empty() { "" } else { " " };
        Ok(format!("{}{base}{}{space}{inner}", quals.words, quals.tags))
    }

    /// What a type is written as, behind qualifiers and what is only the compiler's.
    fn written(&self, id: u32) -> Result<Kind<'_>, BtfError> {
        let mut at = id;
        for _ in 0..NESTED_MAX {
            let (_, ty) = self.btf.strip_modifiers(at)?;
            match ty.kind {
                Kind::Typedef(to) if is_builtin(ty.name) => at = to,
                kind => return Ok(kind),
            }
        }
        Err(BtfError::Cycle(id))
    }

    fn body(&mut self, id: u32, tabs: usize, depth: usize) -> Result<String, BtfError> {
        let depth = self.deeper(id, depth)?;
        let ty = self.btf.ty(id)?;
        let head = |word: &str, tag: String| if ty.name.is_empty() { word.to_owned() } else { tag };
        match ty.kind {
            Kind::Struct(c) => {
                let tag = head("struct", self.tag_if_named(id));
                self.members(id, c, tag, false, tabs, depth)
            }
            Kind::Union(c) => {
                let tag = head("union", self.tag_if_named(id));
                self.members(id, c, tag, true, tabs, depth)
            }
            Kind::Enum(e) | Kind::Enum64(e) => {
                let tag = head("enum", self.tag_if_named(id));
                Ok(self.constants(e, tag, tabs))
            }
            _ => Err(BtfError::NoSize { id, name: self.btf.type_name(id) }),
        }
    }

    fn tag_if_named(&mut self, id: u32) -> String {
        if self.btf.ty(id).is_ok_and(|ty| ty.name.is_empty()) { String::new() } else { self.tag(id) }
    }

    fn members(
        &mut self,
        id: u32,
        c: Composite<'_>,
        tag: String,
        is_union: bool,
        tabs: usize,
        depth: usize,
    ) -> Result<String, BtfError> {
        let shape = self.shape(id, depth)?;
        let indent = "\t".repeat(tabs + 1);
        let mut out = format!("{tag} {{\n");
        if shape.opaque {
            out.push_str(&format!("{indent}/* its members are not where C can put any */\n"));
            out.push_str(&format!("{indent}unsigned char opaque[{}];\n{}}}", c.size, "\t".repeat(tabs)));
            return Ok(out);
        }
        let mut cursor = 0;
        for member in c.members() {
            let Some(placed) = self.placed(&member, depth)? else { continue };
            if !is_union && placed.natural(cursor, shape.packed) != placed.at {
                let gap = Self::gap(cursor, placed.at, shape, c.size);
                gap.iter().for_each(|line| out.push_str(&format!("{indent}{line}\n")));
            }
            cursor = placed.end();
            let name = if member.name.is_empty() { String::new() } else { names::valid(member.name) };
            let text = match (name.is_empty(), self.btf.strip_modifiers(member.ty)?) {
                // Members of a member that has a type's name but none itself belong to the outer one; only some compilers
                // know that form.
                (true, (inner, ty)) if matches!(ty.kind, Kind::Struct(_) | Kind::Union(_)) && !ty.name.is_empty() => {
                    let body = self.body(inner, tabs + 1, depth)?;
                    let (word, rest) = body.split_once(' ').unwrap_or((&body, ""));
                    format!("{word} {}", rest.split_once(' ').map_or(rest, |(_, rest)| rest))
                }
                _ => self.declare(member.ty, Quals::default(), name, tabs + 1, depth)?,
            };
            let bits = bitfield(self.btf, &member).1.map_or_else(String::new, |bits| format!(": {bits}"));
            out.push_str(&format!("{indent}{text}{bits};\n"));
        }
        let size = u64::from(c.size) * 8;
        if !is_union && cursor.div_ceil(8).next_multiple_of(shape.align.into()) < c.size.into() {
            let gap = Self::gap(cursor, size, shape, c.size);
            gap.iter().for_each(|line| out.push_str(&format!("{indent}{line}\n")));
        }
        out.push_str(&format!("{}}}", "\t".repeat(tabs)));
        if shape.packed {
            out.push_str(" __attribute__((packed))");
        }
        if let Some(align) = shape.aligned {
            out.push_str(&format!(" __attribute__((aligned({align})))"));
        }
        Ok(out)
    }

    fn constants(&mut self, e: Enumerators<'_>, tag: String, tabs: usize) -> String {
        if e.iter().len() == 0 {
            // It was only announced in its source.
            return tag;
        }
        let (indent, end) = ("\t".repeat(tabs + 1), "\t".repeat(tabs));
        let mut out = format!("{tag} {{\n");
        let (mut least, mut most) = (0, 0);
        for (name, value) in e.iter() {
            (least, most) = (value.min(least), value.max(most));
            let suffix = match (value, e.signed) {
                (v, _) if i128::from(i32::MIN) <= v && v <= i128::from(u32::MAX) => "",
                (_, true) => "LL",
                (_, false) => "ULL",
            };
            let value = match i64::try_from(value) {
                Ok(i64::MIN) => "(-9223372036854775807LL - 1)".to_owned(),
                _ => format!("{value}{suffix}"),
            };
            out.push_str(&format!("{indent}{} = {value},\n", self.names.word(name)));
        }
        out.push_str(&format!("{end}}}"));
        let four = i128::from(i32::MIN) <= least && most <= if least < 0 { i32::MAX.into() } else { u32::MAX.into() };
        let mode = match (e.size, four) {
            (1, _) => "QI",
            (2, _) => "HI",
            (8, true) => "DI",
            _ => return out,
        };
        format!("{out} __attribute__((mode({mode})))")
    }
}

/// An integer's name, when it is one of C's and of this size; else C's name for such an integer.
fn integer(name: &str, int: Int) -> &str {
    let words = || name.split_ascii_whitespace();
    let count = |word: &str| words().filter(|w| *w == word).count();
    let of_c = !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ' ')
        && words()
            .all(|w| matches!(w, "char" | "short" | "int" | "long" | "signed" | "unsigned" | "_Bool" | "__int128"));
    let size = match () {
        () if count("char") + count("_Bool") > 0 => 1,
        () if count("short") > 0 => 2,
        () if count("__int128") > 0 => 16,
        () if count("long") > 0 => 8,
        () => 4,
    };
    if of_c && size == int.size {
        return name;
    }
    match (int.encoding, int.size) {
        (IntEncoding::Bool, 1) => "_Bool",
        (IntEncoding::Char, 1) => "char",
        (IntEncoding::Signed, 1) => "signed char",
        (IntEncoding::Signed, 2) => "short",
        (IntEncoding::Signed, 4) => "int",
        (IntEncoding::Signed, 8) => "long long",
        (IntEncoding::Signed, 16) => "__int128",
        (_, 1) => "unsigned char",
        (_, 2) => "unsigned short",
        (_, 4) => "unsigned int",
        (_, 16) => "unsigned __int128",
        _ => "unsigned long long",
    }
}
