//! Signatures of global functions, from BTF.

use std::collections::HashMap;

use xway_object::Btf;
use xway_object::btf::Kind;

/// Tags of parameters.
pub(crate) type Tags<'a> = HashMap<(u32, i32), Vec<&'a str>>;

/// What a global function takes and gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Signature {
    /// Parameters, at most five.
    pub params: Vec<Param>,
    /// Returns nothing.
    pub void: bool,
}

/// One parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Param {
    /// A number.
    Number,
    /// The program's context.
    Ctx,
    /// Memory of this size.
    Mem {
        /// Bytes.
        size: u32,
        /// May be null.
        nullable: bool,
    },
    /// A trusted object of the kernel with this structure.
    Trusted {
        /// Structure.
        name: String,
        /// May be null.
        nullable: bool,
    },
    /// Anything at all, to be read as this structure of the kernel, or as bytes: reads of a bad address give zero.
    Untrusted(Option<String>),
    /// An address of the arena.
    Arena,
    /// The types say something that cannot be, and why.
    Wrong(&'static str),
}

impl Signature {
    /// Reads the signature of a `FUNC`. `None` when there is none, or one with parameters other than numbers, the context
    /// and pointers to plain memory.
    pub fn read(btf: &Btf, tags: &Tags<'_>, func_id: u32) -> Option<Signature> {
        if func_id == 0 {
            return None;
        }
        let Kind::Func(proto, _) = btf.ty(func_id).ok()?.kind else { return None };
        let Kind::FuncProto { ret, params } = btf.ty(proto).ok()?.kind else { return None };
        let void = matches!(btf.resolve(ret).ok()?.1.kind, Kind::Void);
        let mut out = Vec::new();
        for (i, p) in params.iter().enumerate() {
            let of_it = tags.get(&(func_id, i as i32)).map_or(&[][..], Vec::as_slice);
            out.push(param(btf, p.ty, of_it)?);
        }
        (out.len() <= 5).then_some(Signature { params: out, void })
    }
}

/// Name of a parameter (from 0) of a `FUNC`, and whether it is a pointer.
pub(crate) fn parameter(btf: &Btf, func_id: u32, n: usize) -> Option<(&str, bool)> {
    let Kind::Func(proto, _) = btf.ty(func_id).ok()?.kind else { return None };
    let Kind::FuncProto { params, .. } = btf.ty(proto).ok()?.kind else { return None };
    let p = params.iter().nth(n)?;
    Some((p.name, matches!(btf.resolve(p.ty).ok()?.1.kind, Kind::Ptr(_))))
}

fn param(btf: &Btf, ty: u32, tags: &[&str]) -> Option<Param> {
    let (_, t) = btf.resolve(ty).ok()?;
    let to = match t.kind {
        Kind::Int(_) | Kind::Enum(_) | Kind::Enum64(_) if tags.is_empty() => return Some(Param::Number),
        Kind::Ptr(to) => to,
        _ if !tags.is_empty() => return Some(Param::Wrong("the tag of a pointer, and is none")),
        _ => return None,
    };
    let (id, target) = btf.resolve(to).ok()?;
    let is_struct = matches!(target.kind, Kind::Struct(_) | Kind::Union(_));
    let has = |tag: &str| tags.contains(&tag);
    let only = |allowed: &[&str]| tags.iter().all(|t| allowed.contains(t));
    if has("arg:ctx") {
        // `void *` is any program's; what another kind of program gets is none. Linux takes `__sk_buff` for any network's.
        let context = matches!(target.kind, Kind::Void) || matches!(target.name, "xdp_md" | "__sk_buff");
        let fits = context && only(&["arg:ctx"]);
        return Some(if fits { Param::Ctx } else { Param::Wrong("a context of another kind of program") });
    }
    if has("arg:trusted") {
        let fits = is_struct && only(&["arg:trusted", "arg:nullable"]);
        let trusted = Param::Trusted { name: target.name.to_owned(), nullable: has("arg:nullable") };
        return Some(if fits { trusted } else { Param::Wrong("the tag of a trusted object, and is none") });
    }
    if has("arg:untrusted") {
        return Some(match target.kind {
            _ if !only(&["arg:untrusted"]) => Param::Wrong("tags that contradict each other"),
            Kind::Struct(_) | Kind::Union(_) => Param::Untrusted(Some(target.name.to_owned())),
            Kind::Void | Kind::Int(_) | Kind::Enum(_) | Kind::Enum64(_) => Param::Untrusted(None),
            _ => return None,
        });
    }
    if has("arg:arena") {
        return only(&["arg:arena"]).then_some(Param::Arena);
    }
    if !only(&["arg:nonnull"]) {
        return None;
    }
    match target.kind {
        Kind::Struct(_) if target.name == "xdp_md" => return Some(Param::Ctx),
        // No plain memory: such a function is walked through at every call.
        Kind::Struct(_) if target.name == "bpf_dynptr" => return None,
        Kind::Struct(_) | Kind::Union(_) | Kind::Int(_) | Kind::Enum(_) | Kind::Array(_) => {}
        // Linux refuses each call, whatever is given.
        Kind::Void | Kind::Fwd { .. } => return Some(Param::Wrong("the type of a pointer to memory of no known size")),
        _ => return None,
    }
    let size = btf.size_of(id).ok()?;
    (size > 0).then_some(Param::Mem { size, nullable: tags.is_empty() })
}

/// The tags `arg:…` of all parameters, by function and position. Read once: there may be many functions and types.
pub(crate) fn tags(btf: &Btf) -> Tags<'_> {
    let mut all = Tags::new();
    for (_, t) in btf.types().filter(|(_, t)| t.name.starts_with("arg:")) {
        if let Kind::DeclTag { target, component } = t.kind {
            all.entry((target, component)).or_default().push(t.name);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding};

    use super::*;

    /// The signature of a function with one parameter, whose type and tags are given.
    fn of(make: impl Fn(&mut BtfBuilder, u32) -> u32, tags: &[&str]) -> Option<Signature> {
        let mut b = BtfBuilder::new();
        let int = b.int("int", 4, IntEncoding::Signed);
        let ty = make(&mut b, int);
        let proto = b.prototype(int, &[("p", ty)]);
        let func = b.func("f", proto, FuncLinkage::Global);
        for tag in tags {
            b.decl_tag(tag, func, 0);
        }
        // Tags of other parameters and of the function itself are not this one's.
        b.decl_tag("arg:nonnull", func, 1);
        b.decl_tag("arg:ctx", func, -1);
        let btf = b.finish();
        Signature::read(&btf, &super::tags(&btf), func)
    }

    fn one(make: impl Fn(&mut BtfBuilder, u32) -> u32, tags: &[&str]) -> Option<Param> {
        of(make, tags).map(|s| s.params[0].clone())
    }

    #[test]
    fn parameters_are_numbers_memory_and_the_context() {
        assert_eq!(one(|_, int| int, &[]), Some(Param::Number));
        assert_eq!(one(|b, int| b.typedef("u32", int), &[]), Some(Param::Number));
        let memory = |nullable| Some(Param::Mem { size: 12, nullable });
        let array = |b: &mut BtfBuilder, int: u32| {
            let a = b.array(int, int, 3);
            b.ptr(a)
        };
        assert_eq!(one(array, &[]), memory(true));
        assert_eq!(one(array, &["arg:nonnull"]), memory(false));
        let named = |name: &'static str| {
            move |b: &mut BtfBuilder, int: u32| {
                let s = b.structure(name, 4, &[("x", int, 0)]);
                b.ptr(s)
            }
        };
        assert_eq!(one(named("xdp_md"), &[]), Some(Param::Ctx));
        assert_eq!(one(named("bpf_dynptr"), &[]), None, "walked through at every call");
        assert_eq!(one(named("task_struct"), &["arg:trusted"]), {
            Some(Param::Trusted { name: "task_struct".into(), nullable: false })
        });
        assert_eq!(one(named("s"), &["arg:untrusted"]), Some(Param::Untrusted(Some("s".into()))));
        assert_eq!(one(|b, _| b.ptr(0), &["arg:ctx"]), Some(Param::Ctx), "void * is any context");
        assert!(matches!(one(named("s"), &["arg:ctx"]), Some(Param::Wrong(_))));
        assert_eq!(one(|b, _| b.ptr(0), &["arg:arena"]), Some(Param::Arena));
        assert!(matches!(one(|b, _| b.ptr(0), &[]), Some(Param::Wrong(_))), "memory of no size");
    }

    #[test]
    fn tags_that_do_not_fit_are_wrong_and_not_forgotten() {
        assert!(matches!(one(|_, int| int, &["arg:nonnull"]), Some(Param::Wrong(_))), "of a number");
        let int = |b: &mut BtfBuilder, int: u32| b.ptr(int);
        assert!(matches!(one(int, &["arg:trusted"]), Some(Param::Wrong(_))));
        assert!(matches!(one(int, &["arg:untrusted", "arg:nonnull"]), Some(Param::Wrong(_))));
        assert_eq!(one(int, &["arg:unheard_of"]), None);
    }

    #[test]
    fn a_function_of_void_has_no_result_and_six_parameters_are_too_many() {
        let mut b = BtfBuilder::new();
        let int = b.int("int", 4, IntEncoding::Signed);
        let void = b.prototype(0, &[]);
        let many = b.prototype(int, &[("a", int); 6]);
        let funcs = [void, many].map(|p| b.func("f", p, FuncLinkage::Global));
        let btf = b.finish();
        assert_eq!(Signature::read(&btf, &tags(&btf), funcs[0]), Some(Signature { params: Vec::new(), void: true }));
        assert_eq!(Signature::read(&btf, &tags(&btf), funcs[1]), None);
        assert_eq!((Signature::read(&btf, &tags(&btf), 0), Signature::read(&btf, &tags(&btf), int)), (None, None));
    }
}
