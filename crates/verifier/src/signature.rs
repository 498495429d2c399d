//! Signatures of global functions, from BTF.

use xway_object::Btf;
use xway_object::btf::Kind;

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
    pub fn read(btf: &Btf, func_id: u32) -> Option<Signature> {
        if func_id == 0 {
            return None;
        }
        let Kind::Func(proto, _) = btf.ty(func_id).ok()?.kind else { return None };
        let Kind::FuncProto { ret, params } = btf.ty(proto).ok()?.kind else { return None };
        let void = matches!(btf.resolve(ret).ok()?.1.kind, Kind::Void);
        let mut out = Vec::new();
        for (i, p) in params.iter().enumerate() {
            out.push(param(btf, p.ty, &tags(btf, func_id, i as i32))?);
        }
        (out.len() <= 5).then_some(Signature { params: out, void })
    }
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
        _ => return None,
    }
    let size = btf.size_of(id).ok()?;
    (size > 0).then_some(Param::Mem { size, nullable: tags.is_empty() })
}

/// The tags `arg:…` of a parameter.
fn tags(btf: &Btf, func: u32, index: i32) -> Vec<&str> {
    let of_it =
        |kind: &Kind<'_>| matches!(kind, Kind::DeclTag { target, component } if *target == func && *component == index);
    btf.types().filter(|(_, t)| t.name.starts_with("arg:") && of_it(&t.kind)).map(|(_, t)| t.name).collect()
}
