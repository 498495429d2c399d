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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    let nonnull = match tags {
        [] => false,
        ["arg:nonnull"] => true,
        // A context under another type's name.
        ["arg:ctx"] if matches!(t.kind, Kind::Ptr(_)) => return Some(Param::Ctx),
        _ => return None,
    };
    match t.kind {
        Kind::Int(_) | Kind::Enum(_) | Kind::Enum64(_) => Some(Param::Number),
        Kind::Ptr(to) => {
            let (id, target) = btf.resolve(to).ok()?;
            match (target.kind, target.name) {
                (Kind::Struct(_), "xdp_md") => return Some(Param::Ctx),
                // No plain memory: such a function is walked through at every call.
                (Kind::Struct(_), "bpf_dynptr") => return None,
                (Kind::Struct(_) | Kind::Union(_) | Kind::Int(_) | Kind::Enum(_) | Kind::Array(_), _) => {}
                _ => return None,
            }
            let size = btf.size_of(id).ok()?;
            (size > 0).then_some(Param::Mem { size, nullable: !nonnull })
        }
        _ => None,
    }
}

/// The tags `arg:…` of a parameter.
fn tags(btf: &Btf, func: u32, index: i32) -> Vec<&str> {
    let of_it =
        |kind: &Kind<'_>| matches!(kind, Kind::DeclTag { target, component } if *target == func && *component == index);
    btf.types().filter(|(_, t)| t.name.starts_with("arg:") && of_it(&t.kind)).map(|(_, t)| t.name).collect()
}
