//! Types as C writes them.

use super::{Btf, IntEncoding, Kind, MAX_DEPTH};

impl Btf {
    /// A type's name as C writes it: `struct iphdr`, `__u32`, `const char *`, `__u64[4]`, `int (*)(void *)`.
    /// Ids that do not exist print as `<type N?>`, what is nested too deeply as `…`.
    pub fn type_name(&self, id: u32) -> String {
        self.declaration(id, "")
    }

    /// A declaration of `name` with this type: `__u8 mac[6]`, `int (*handler)(void *)`.
    pub fn declaration(&self, id: u32, name: &str) -> String {
        self.declare(id, name.to_owned(), &mut { MAX_DEPTH })
    }

    /// C declarations are read from the inside out: `inner` is what has been written around the name so far. `fuel` is the
    /// number of types that may still be written.
    fn declare(&self, id: u32, inner: String, fuel: &mut usize) -> String {
        let Some(left) = fuel.checked_sub(1) else { return join("…", &inner) };
        *fuel = left;
        let Ok(ty) = self.ty(id) else { return join(&format!("<type {id}?>"), &inner) };
        let named = |keyword: &str| {
            let name = if ty.name.is_empty() { "(anonymous)" } else { ty.name };
            join(&format!("{keyword}{name}"), &inner)
        };
        match ty.kind {
            Kind::Void => join("void", &inner),
            Kind::Int(_) | Kind::Float(_) | Kind::Typedef(_) | Kind::Func(..) => named(""),
            Kind::Struct(_) | Kind::Fwd { is_union: false } => named("struct "),
            Kind::Union(_) | Kind::Fwd { is_union: true } => named("union "),
            Kind::Enum(_) | Kind::Enum64(_) => named("enum "),
            Kind::Datasec { .. } => named("section "),
            Kind::DeclTag { .. } => named("tag "),
            Kind::Var(t, _) => self.declare(t, ty.name.to_owned(), fuel),
            Kind::TypeTag(t) => self.declare(t, inner, fuel),
            Kind::Const(t) => self.qualified("const", t, inner, fuel),
            Kind::Volatile(t) => self.qualified("volatile", t, inner, fuel),
            Kind::Restrict(t) => self.qualified("restrict", t, inner, fuel),
            Kind::Ptr(t) => {
                let needs_parens =
                    matches!(self.strip_modifiers(t).map(|t| t.1.kind), Ok(Kind::Array(_) | Kind::FuncProto { .. }));
                let star = format!("*{inner}");
                self.declare(t, if needs_parens { format!("({star})") } else { star }, fuel)
            }
            Kind::Array(a) => self.declare(a.element, format!("{inner}[{}]", a.len), fuel),
            Kind::FuncProto { ret, params } => {
                // Each parameter takes fuel, so a list is never longer than the fuel that is left.
                let list: Vec<String> = params
                    .iter()
                    .take(*fuel + 1)
                    .map(|p| if p.ty == 0 { "...".to_owned() } else { self.declare(p.ty, String::new(), fuel) })
                    .collect();
                let list = if list.is_empty() { "void".to_owned() } else { list.join(", ") };
                self.declare(ret, format!("{inner}({list})"), fuel)
            }
        }
    }

    /// A qualifier stands before a plain type and after a pointer's star.
    fn qualified(&self, word: &str, id: u32, inner: String, fuel: &mut usize) -> String {
        match self.strip_modifiers(id).map(|t| t.1.kind) {
            Ok(Kind::Ptr(_)) => self.declare(id, join(word, &inner), fuel),
            _ => format!("{word} {}", self.declare(id, inner, fuel)),
        }
    }

    /// True when this is a character type, behind typedefs and qualifiers.
    pub fn is_char(&self, id: u32) -> bool {
        matches!(self.resolve(id), Ok((_, t)) if matches!(t.kind,
            Kind::Int(i) if i.size == 1 && (i.encoding == IntEncoding::Char || t.name == "char")))
    }
}

/// A base type and what is written around the declared name. Array brackets and parameter lists follow without a space.
fn join(base: &str, inner: &str) -> String {
    match inner.chars().next() {
        None => base.to_owned(),
        Some('[') => format!("{base}{inner}"),
        Some(_) => format!("{base} {inner}"),
    }
}
