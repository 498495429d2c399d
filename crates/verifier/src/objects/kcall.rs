//! Kernel functions whose BTF type says what they take and give.
//!
//! The type names the parameters, and the names carry rules (`Documentation/bpf/kfuncs.rst`): `x__sz` is the length of the memory
//! before it, `x__k` a constant, `x__nullable` may be null, `x__ign` is not looked at. What BTF cannot say stands in the one
//! table ([`xway_abi::KfuncRules`]).

use xway_abi::{DynptrKind, FuncAccess, KfuncProto, MemAccess};
use xway_isa::Reg;
use xway_object::Btf;
use xway_object::btf::{Kind, Param};

use super::{no_types, pointee};
use crate::call::CallArgs;
use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::{Flow, Verifier};
use crate::graph::NONE;
use crate::state::{Reference, State};
use crate::value::{Base, MemKind, Object, Ptr, Trust, Value};

/// Structures within structures that memory made of numbers may have.
const NESTING_MAX: u32 = 4;

/// What the arguments of one call turned out to be.
#[derive(Default)]
struct Given {
    /// The one reference among them.
    reference: u32,
    /// Dynptrs and the like.
    common: CallArgs,
    /// The constant that says how much memory the result has.
    size: Option<u32>,
}

impl<'a> Verifier<'a> {
    /// The prototype of a kernel function: types, return type, parameters.
    fn kernel_proto(&mut self, name: &str, func_id: u32) -> Result<(&'a Btf, u32, Vec<Param<'a>>), Fail> {
        let Some(btf) = self.kernel_types() else { return Err(no_types(name)) };
        let id = match (self.view.kernel, self.funcs.get(name)) {
            (_, Some(id)) => *id,
            (Some(kernel), None) => {
                let Some(id) = kernel.find(name, |t| matches!(t.kind, Kind::Func(..))) else {
                    return fail!(BadReference, "the kernel has no function {name}");
                };
                self.funcs.insert(name.to_owned(), id);
                id
            }
            (None, None) => func_id,
        };
        let proto = match btf.ty(id).map(|t| t.kind) {
            Ok(Kind::Func(proto, _)) => proto,
            _ => return fail!(BadReference, "the types do not describe the function {name}"),
        };
        match btf.ty(proto).map(|t| t.kind) {
            Ok(Kind::FuncProto { ret, params }) if params.iter().len() <= 5 => Ok((btf, ret, params.iter().collect())),
            _ => fail!(BadReference, "the types give {name} no prototype of at most five parameters"),
        }
    }

    /// A call of a function that BTF describes.
    pub(crate) fn call_by_type(
        &mut self,
        st: &mut State,
        k: &'static KfuncProto,
        func_id: u32,
        next: usize,
    ) -> Result<Flow, Fail> {
        let (btf, ret, params) = self.kernel_proto(k.name, func_id)?;
        let mut given = Given::default();
        let mut i = 0;
        while i < params.len() {
            let sized = params.get(i + 1).filter(|p| is_length(btf, p)).copied();
            self.check_typed_arg(st, k, btf, i, &params[i], sized.as_ref(), &mut given).map_err(|e| {
                let mut e = e.reg(i + 1);
                e.message = format!("argument {} of {}: {}", i + 1, k.name, e.message);
                e
            })?;
            // A length is checked together with the memory before it.
            i += if sized.is_some() && pointee(btf, params[i].ty).is_some() { 2 } else { 1 };
        }
        if k.rules.release {
            if given.reference == 0 {
                return fail!(Leak, "{} releases a reference, and no argument is one", k.name);
            }
            self.release(st, given.reference)?;
        }
        let result = self.typed_result(st, k, btf, ret, &given)?;
        self.make_dynptr(st, &given.common);
        self.facts.kernel_object(k.name);
        self.returned(st, result);
        Ok(Flow::Next(next))
    }

    #[expect(clippy::too_many_arguments)]
    fn check_typed_arg(
        &mut self,
        st: &mut State,
        k: &KfuncProto,
        btf: &'a Btf,
        i: usize,
        param: &Param<'a>,
        sized: Option<&Param<'a>>,
        given: &mut Given,
    ) -> Result<(), Fail> {
        let suffix = |s: &str| param.name.ends_with(s);
        if suffix("__ign") || suffix("__prog") {
            return Ok(());
        }
        let reg = Reg::new(i as u8 + 1).expect("at most five parameters");
        let v = *self.read(st, reg)?;
        let Some((target, kind)) = pointee(btf, param.ty) else {
            let Value::Num(n) = v else {
                return fail!(Argument, "a number is wanted, and {} is given", crate::show::value(&v));
            };
            if suffix("__k") {
                self.graph.mark(n.def);
                if n.s.as_const().is_none() {
                    return fail!(Unbounded, "the number must be a constant");
                }
            }
            if matches!(param.name, "rdonly_buf_size" | "rdwr_buf_size") {
                self.graph.mark(n.def);
                given.size = n.s.as_const().and_then(|x| u32::try_from(x).ok());
                if given.size.is_none() {
                    return fail!(Unbounded, "the length must be a constant");
                }
            }
            return Ok(());
        };
        let null = v.as_const() == Some(0);
        let nullable = suffix("__nullable") || suffix("__opt");
        if let (Value::Num(n), true) = (&v, null) {
            self.graph.mark(n.def);
        }
        let may_be_null = null || v.as_ptr().is_some_and(|p| p.nullable);
        let strict = k.rules.trusted_args || k.rules.release || k.rules.rcu;
        if may_be_null && !nullable && strict {
            return fail!(Null, "the pointer may be null").map_err(|e| e.hint("compare it with null before the call"));
        }
        if let Value::Ptr(p) = &v
            && p.reference != 0
        {
            if k.rules.release && given.reference != 0 {
                return fail!(Argument, "two arguments are references; it is not clear which one is released");
            }
            given.reference = p.reference;
        }
        let name = btf.resolve(target).map_or("", |t| t.1.name);
        if matches!(kind, Kind::Struct(_)) && matches!(name, "xdp_md" | "xdp_buff") {
            return match v {
                Value::Ptr(p) if p.base == Base::Ctx && p.off == 0 && p.is_fixed() => Ok(()),
                _ => fail!(Argument, "the context is wanted, and {} is given", crate::show::value(&v)),
            };
        }
        if null && nullable && sized.is_none() {
            return Ok(());
        }
        if name == "bpf_dynptr" || name == "bpf_dynptr_kern" {
            let access = if suffix("__uninit") { FuncAccess::Init } else { FuncAccess::Use };
            let Value::Ptr(Ptr { base: Base::Stack(frame), .. }) = v else {
                return fail!(Argument, "a dynptr on the stack is wanted, and {} is given", crate::show::value(&v));
            };
            let p = *v.as_ptr().expect("it was just matched");
            return self.check_dynptr(st, &p, frame.into(), DynptrKind::Any, access, &mut given.common);
        }
        if suffix("__map") {
            return match v {
                Value::Ptr(Ptr { base: Base::Map(_), .. }) => Ok(()),
                _ => fail!(Argument, "a map is wanted, and {} is given", crate::show::value(&v)),
            };
        }
        if suffix("__str") {
            let Value::Ptr(p) = v else { return fail!(Argument, "a constant string is wanted") };
            let Base::MapValue(m) = p.base else { return fail!(Argument, "a constant string is wanted") };
            return self.check_string(&m, &p);
        }
        if let Value::Ptr(p) = &v
            && let Base::Object(_) | Base::Sock(_) = p.base
        {
            return self.check_object_arg(k, btf, p, target, kind);
        }
        self.check_memory_arg(st, btf, i, target, kind, sized, suffix("__opt"))
    }

    /// A pointer to an object of the kernel.
    fn check_object_arg(&mut self, k: &KfuncProto, btf: &Btf, p: &Ptr, want: u32, kind: Kind<'_>) -> Result<(), Fail> {
        let wanted = btf.resolve(want).map_or("", |t| t.1.name);
        if !matches!(kind, Kind::Struct(_) | Kind::Union(_)) {
            return fail!(Argument, "an object of the kernel is given where {} is wanted", btf.type_name(want));
        }
        let Base::Object(o) = p.base else {
            // What a socket look-up gives is a `struct sock_common` to kernel functions.
            return if wanted == "sock_common" || wanted == "sock" {
                Ok(())
            } else {
                fail!(Argument, "a socket is given where struct {wanted} is wanted")
            };
        };
        let held = p.reference != 0;
        let rules = k.rules;
        if (rules.trusted_args || rules.release) && !held && o.trust != Trust::Trusted {
            return fail!(Argument, "struct {wanted} must be a reference that is held, or trusted ({})", p.kind_name())
                .map_err(|e| e.hint("acquire a reference of it first, and release it afterwards"));
        }
        if rules.rcu && !held && !matches!(o.trust, Trust::Trusted | Trust::Rcu) {
            return fail!(Argument, "struct {wanted} must be trusted or protected by RCU ({})", p.kind_name());
        }
        if matches!(o.trust, Trust::Untrusted | Trust::PerCpu | Trust::User) {
            return fail!(
                Argument,
                "a pointer that may point anywhere ({}) is given where struct {wanted} is wanted",
                p.kind_name()
            );
        }
        if !self.is_object_of(p, &o, want, rules.release) {
            let name = self.object_name(&o);
            return fail!(Argument, "struct {name} is given where struct {wanted} is wanted");
        }
        Ok(())
    }

    /// A pointer to memory: numbers only, and as much as the type has or the next argument says.
    #[expect(clippy::too_many_arguments)]
    fn check_memory_arg(
        &mut self,
        st: &mut State,
        btf: &'a Btf,
        i: usize,
        target: u32,
        kind: Kind<'a>,
        sized: Option<&Param<'a>>,
        optional: bool,
    ) -> Result<(), Fail> {
        let plain = only_numbers(btf, target, NESTING_MAX) || (sized.is_some() && matches!(kind, Kind::Void));
        if !plain {
            let name = btf.resolve(target).map_or("", |t| t.1.name);
            return fail!(
                Argument,
                "a pointer to an object of the kernel (struct {name}) is wanted, and plain memory is given"
            );
        }
        let reg = Reg::new(i as u8 + 1).expect("at most five parameters");
        let v = *self.read(st, reg)?;
        let p = match v {
            Value::Ptr(p) => Ptr { nullable: false, ..p },
            _ if v.as_const() == Some(0) => {
                return match sized {
                    None => Ok(()),
                    Some(_) if optional => Ok(()),
                    Some(s) => self.check_length(st, i + 1, s).and_then(|(_, most)| match most {
                        0 => Ok(()),
                        _ => fail!(Null, "the memory is null, but its length may be {most}"),
                    }),
                };
            }
            _ => return fail!(Argument, "a pointer to memory is wanted, and {} is given", crate::show::value(&v)),
        };
        let size = match sized {
            Some(s) => self.check_length(st, i + 1, s)?.1,
            None => btf.size_of(target).map_err(|e| Fail::new(crate::diag::Kind::BadReference, e.to_string()))?,
        };
        self.check_memory(st, true, &p, size, MemAccess::ReadWrite)
    }

    /// A length: least and most.
    fn check_length(&mut self, st: &State, i: usize, param: &Param<'_>) -> Result<(u32, u32), Fail> {
        let reg = Reg::new(i as u8 + 1).expect("at most five parameters");
        let Value::Num(n) = *self.read(st, reg)? else { return fail!(Argument, "the length is no number") };
        self.graph.mark(n.def);
        if n.s.smin() < 0 || n.s.umax() >= 1 << 29 {
            return fail!(Unbounded, "the length has no bounds ({} to {})", n.s.smin(), n.s.umax())
                .map_err(|e| e.hint("check it: `if (len > MAX) return …`, or mask it: `len &= MAX`"));
        }
        if param.name.ends_with("__szk") && n.s.as_const().is_none() {
            return fail!(Unbounded, "the length must be a constant");
        }
        Ok((n.s.umin() as u32, n.s.umax() as u32))
    }

    fn typed_result(
        &mut self,
        st: &mut State,
        k: &KfuncProto,
        btf: &'a Btf,
        ret: u32,
        given: &Given,
    ) -> Result<Value, Fail> {
        let (_, t) = btf.resolve(ret).map_err(|e| Fail::new(crate::diag::Kind::BadReference, e.to_string()))?;
        let to = match t.kind {
            Kind::Void => return Ok(Value::Uninit),
            Kind::Ptr(to) => to,
            _ => return Ok(Value::num(Scalar::unknown(), NONE)),
        };
        let (id, target) = btf.resolve(to).map_err(|e| Fail::new(crate::diag::Kind::BadReference, e.to_string()))?;
        let base = match target.kind {
            Kind::Struct(_) | Kind::Union(_) => {
                Base::Object(Object { ty: id, own: false, trust: self.result_trust(k) })
            }
            _ => {
                let Some(size) = given.size.or_else(|| btf.size_of(id).ok()) else {
                    return fail!(Unsupported, "{} returns memory of an unknown length", k.name);
                };
                Base::Mem { size, kind: MemKind::Slice, read_only: true }
            }
        };
        let mut p = Ptr { nullable: k.rules.ret_null, ..Ptr::to(base) };
        if k.rules.ret_null || k.rules.acquire {
            p.id = self.id();
        }
        if k.rules.acquire {
            p.reference = p.id;
            st.refs.push(Reference { id: p.id, insn: st.pc, what: "the object of the kernel" });
        }
        if matches!(base, Base::Mem { .. }) && given.reference != 0 && !k.rules.release {
            p.reference = given.reference;
        }
        Ok(Value::Ptr(p))
    }

    fn result_trust(&self, k: &KfuncProto) -> Trust {
        if k.rules.acquire { Trust::Trusted } else { Trust::Plain }
    }

    /// A region that protects objects was left: what RCU protected may be gone.
    pub(crate) fn rcu_left(&mut self, st: &mut State) {
        if st.refs.iter().any(|r| r.what == crate::kfunc::RCU) {
            return;
        }
        st.replace(|v| match v {
            Value::Ptr(p) => match p.base {
                Base::Object(o) if o.trust == Trust::Rcu => {
                    let base = Base::Object(Object { trust: Trust::Untrusted, ..o });
                    Some(Value::Ptr(Ptr { base, nullable: false, ..*p }))
                }
                _ => None,
            },
            _ => None,
        });
    }

    /// `bpf_cast_to_kern_ctx`, `bpf_rdonly_cast`: another view of a pointer.
    pub(crate) fn cast(&mut self, st: &mut State, k: &'static KfuncProto, next: usize) -> Result<Flow, Fail> {
        let p = if k.name == "bpf_cast_to_kern_ctx" {
            match *self.read(st, Reg::R1)? {
                Value::Ptr(p) if p.base == Base::Ctx && p.off == 0 && p.is_fixed() => {}
                _ => return fail!(Argument, "argument 1 of {} must be the context", k.name).map_err(|e| e.reg(1)),
            }
            self.kernel_pointer("xdp_buff", Trust::Trusted, false)?
        } else {
            let Some(btf) = self.kernel_types() else { return Err(no_types("the type that is cast to")) };
            let id = match *self.read(st, Reg::R2)? {
                Value::Num(n) => {
                    self.graph.mark(n.def);
                    n.s.as_const()
                }
                _ => None,
            };
            let Some(id) = id.and_then(|x| u32::try_from(x).ok()) else {
                return fail!(Unbounded, "argument 2 of {} must be a constant", k.name).map_err(|e| e.reg(2));
            };
            let ty = match btf.resolve(id).map(|t| (t.0, t.1.kind)) {
                Ok((ty, Kind::Struct(_) | Kind::Union(_))) => ty,
                Ok((_, Kind::Void)) => 0,
                _ => {
                    return fail!(Argument, "argument 2 of {} is the number of no structure", k.name)
                        .map_err(|e| e.reg(2));
                }
            };
            Ptr::to(Base::Object(Object { ty, own: false, trust: Trust::Untrusted }))
        };
        self.facts.kernel_object(k.name);
        self.returned(st, Value::Ptr(p));
        Ok(Flow::Next(next))
    }
}

/// The parameter is the length of the memory before it.
fn is_length(btf: &Btf, p: &Param<'_>) -> bool {
    (p.name.ends_with("__sz") || p.name.ends_with("__szk"))
        && btf.resolve(p.ty).is_ok_and(|t| matches!(t.1.kind, Kind::Int(_)))
}

/// Numbers, or structures and arrays of numbers.
fn only_numbers(btf: &Btf, ty: u32, depth: u32) -> bool {
    let Ok((_, t)) = btf.resolve(ty) else { return false };
    match t.kind {
        Kind::Int(_) | Kind::Enum(_) | Kind::Enum64(_) => true,
        Kind::Array(a) => {
            btf.resolve(a.element).is_ok_and(|e| matches!(e.1.kind, Kind::Int(_) | Kind::Enum(_) | Kind::Enum64(_)))
        }
        Kind::Struct(c) | Kind::Union(c) => {
            depth > 0
                && c.members().all(|m| match btf.resolve(m.ty).map(|t| t.1.kind) {
                    Ok(Kind::Array(a)) => only_numbers(btf, a.element, depth - 1),
                    Ok(_) => only_numbers(btf, m.ty, depth - 1),
                    Err(_) => false,
                })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use xway_object::KfuncRef;
    use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding};

    use crate::testing::program;
    use crate::{Config, Kind, MapsView, verify};

    /// The kernel's types of the two functions that look connections up and give them back.
    fn kernel() -> xway_object::Btf {
        let mut b = BtfBuilder::new();
        let int = b.int("int", 4, IntEncoding::Unsigned);
        let context = b.structure("xdp_md", 24, &[]);
        let (tuple, options) =
            (b.structure("bpf_sock_tuple", 12, &[("a", int, 0)]), b.structure("bpf_ct_opts", 12, &[]));
        let next = b.ptr(0);
        let conn = b.structure("nf_conn", 256, &[("mark", int, 0), ("next", next, 64)]);
        let [context, tuple, options, conn] = [context, tuple, options, conn].map(|t| b.ptr(t));
        let look =
            [("xdp_ctx", context), ("bpf_tuple", tuple), ("tuple__sz", int), ("opts", options), ("opts__sz", int)];
        let (look, release) = (b.prototype(conn, &look), b.prototype(0, &[("nfct", conn)]));
        b.func("bpf_xdp_ct_lookup", look, FuncLinkage::Static);
        b.func("bpf_ct_release", release, FuncLinkage::Static);
        b.finish()
    }

    fn verdict(text: &str) -> Option<Kind> {
        let mut program = program(text);
        let names = ["bpf_xdp_ct_lookup", "bpf_ct_release"];
        program.kfuncs = names.map(|n| KfuncRef { name: n.to_owned(), func_id: 0, weak: false }).into();
        let kernel = kernel();
        let view = MapsView { kernel: Some(&kernel), ..MapsView::empty() };
        verify(&program, &view, &Config::default()).err().map(|r| r.errors[0].kind)
    }

    /// A look-up with lengths of tuple and options, then the rest.
    fn look(tuple: i32, options: i32, rest: &str) -> String {
        format!(
            "*(u64 *)(r10 -16) = 0\n*(u64 *)(r10 -8) = 0\nr2 = r10\nr2 += -16\nr3 = {tuple}\nr4 = r10\nr4 += -16\n\
             r5 = {options}\ncall kfunc #0\n{rest}\nr0 = 0\nexit"
        )
    }

    #[test]
    fn a_reference_is_checked_and_given_back() {
        assert_eq!(verdict(&look(12, 12, "if r0 == 0 goto +2\nr1 = r0\ncall kfunc #1")), None);
        assert_eq!(verdict(&look(12, 12, "if r0 == 0 goto +1\nr1 = r0")), Some(Kind::Leak));
        assert_eq!(verdict(&look(12, 12, "r1 = r0\ncall kfunc #1")), Some(Kind::Null));
        assert_eq!(
            verdict("r1 = r10\nr1 += -8\n*(u64 *)(r10 -8) = 0\ncall kfunc #1\nr0 = 0\nexit"),
            Some(Kind::Argument)
        );
    }

    #[test]
    fn lengths_bound_the_memory_before_them() {
        let rest = "if r0 == 0 goto +2\nr1 = r0\ncall kfunc #1";
        assert_eq!(verdict(&look(16, 16, rest)), None);
        assert_eq!(verdict(&look(17, 12, rest)), Some(Kind::StackBounds));
        assert_eq!(verdict(&look(12, 17, rest)), Some(Kind::StackBounds));
        assert_eq!(verdict(&look(-1, 12, rest)), Some(Kind::Unbounded));
    }

    #[test]
    fn arguments_have_the_types_that_the_kernel_says() {
        let other =
            look(12, 12, "if r0 == 0 goto +2\nr1 = r0\ncall kfunc #1").replace("*(u64 *)(r10 -8) = 0", "r1 = 5");
        assert_eq!(verdict(&other), Some(Kind::Argument), "no context");
    }
}
