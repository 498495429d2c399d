//! Objects of the program's own types: allocated, shared by counting, dropped.

use xway_abi::KfuncProto;
use xway_isa::Reg;
use xway_object::btf::Kind;

use super::no_types;
use crate::diag::{Fail, fail};
use crate::explore::{Flow, Verifier};
use crate::state::{Reference, State};
use crate::value::{Base, Object, Ptr, Trust, Value};

/// What is released by `bpf_obj_drop`, in words.
const OBJECT: &str = "the allocated object";

impl Verifier<'_> {
    /// A function that works on objects of the program's own types.
    pub(crate) fn call_object(&mut self, st: &mut State, k: &'static KfuncProto, next: usize) -> Result<Flow, Fail> {
        let result = match k.name {
            "bpf_obj_new_impl" => self.object_new(st)?,
            "bpf_obj_drop_impl" => {
                let (p, _) = self.own_object(st, k)?;
                self.release(st, p.reference)?;
                Value::Uninit
            }
            "bpf_refcount_acquire_impl" => {
                let (p, o) = self.own_object(st, k)?;
                let types = self.types_of(&o)?;
                let counted = types.resolve(o.ty).is_ok_and(|t| match t.1.kind {
                    Kind::Struct(c) => {
                        c.members().any(|m| types.resolve(m.ty).is_ok_and(|t| t.1.name == "bpf_refcount"))
                    }
                    _ => false,
                });
                if !counted {
                    return fail!(Argument, "argument 1 of {} has no struct bpf_refcount in it", k.name)
                        .map_err(|e| e.reg(1));
                }
                // The count of what is held is not zero: one more can always be had.
                Value::Ptr(self.owned(st, p.base))
            }
            _ => return fail!(Unsupported, "{} works on lists and trees of objects, which are not followed", k.name),
        };
        self.facts.kernel_object(k.name);
        self.returned(st, result);
        Ok(Flow::Next(next))
    }

    /// `bpf_obj_new`: an object of the type with the constant number in r1, or null.
    fn object_new(&mut self, st: &mut State) -> Result<Value, Fail> {
        let Some(types) = self.view.btf else { return Err(no_types("the type of the new object")) };
        let id = match *self.read(st, Reg::R1)? {
            Value::Num(n) => {
                self.graph.mark(n.def);
                n.s.as_const().and_then(|x| u32::try_from(x).ok())
            }
            _ => None,
        };
        let Some(Ok((ty, t))) = id.map(|id| types.resolve(id)) else {
            return fail!(Unbounded, "argument 1 of bpf_obj_new must be the number of a type").map_err(|e| e.reg(1));
        };
        if !matches!(t.kind, Kind::Struct(_)) {
            return fail!(Argument, "argument 1 of bpf_obj_new must be the number of a structure")
                .map_err(|e| e.reg(1));
        }
        let base = Base::Object(Object { ty, own: true, trust: Trust::Owned });
        Ok(Value::Ptr(Ptr { nullable: true, ..self.owned(st, base) }))
    }

    /// A pointer with a reference of its own.
    fn owned(&mut self, st: &mut State, base: Base) -> Ptr {
        let id = self.id();
        st.refs.push(Reference { id, insn: st.pc, what: OBJECT });
        Ptr { id, reference: id, ..Ptr::to(base) }
    }

    /// The object in r1, which the program holds.
    fn own_object(&mut self, st: &State, k: &KfuncProto) -> Result<(Ptr, Object), Fail> {
        let p = self.pointer(st, Reg::R1)?;
        match p.base {
            Base::Object(o) if o.own && o.trust == Trust::Owned && p.reference != 0 && p.off == 0 && p.is_fixed() => {
                Ok((p, o))
            }
            _ => fail!(Argument, "argument 1 of {} must be an object that the program has allocated and holds", k.name)
                .map_err(|e| e.reg(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use xway_object::KfuncRef;
    use xway_object::btf::{Btf, BtfBuilder, IntEncoding};

    use crate::testing::program;
    use crate::{Config, Kind, MapsView, verify};

    /// Type 2 is a structure of two numbers, type 4 one with a count, type 1 a number.
    fn types() -> Btf {
        let mut b = BtfBuilder::new();
        let long = b.int("u64", 8, IntEncoding::Unsigned);
        let pair = b.structure("pair", 16, &[("a", long, 0), ("b", long, 64)]);
        let count = b.structure("bpf_refcount", 4, &[]);
        let shared = b.structure("shared", 16, &[("a", long, 0), ("count", count, 64)]);
        assert_eq!((long, pair, shared), (1, 2, 4));
        b.finish()
    }

    fn verdict(text: &str) -> Option<Kind> {
        let mut program = program(text);
        let names = ["bpf_obj_new_impl", "bpf_obj_drop_impl", "bpf_refcount_acquire_impl"];
        program.kfuncs = names.map(|n| KfuncRef { name: n.to_owned(), func_id: 0, weak: false }).into();
        let types = types();
        let view = MapsView { btf: Some(&types), ..MapsView::empty() };
        verify(&program, &view, &Config::default()).err().map(|r| r.errors[0].kind)
    }

    /// An object of a type; `rest` has it in r6 and the check for null behind it.
    fn object(ty: i32, rest: &str) -> String {
        format!("r1 = {ty}\nr2 = 0\ncall kfunc #0\nif r0 == 0 goto out\nr6 = r0\n{rest}\nout: r0 = 2\nexit")
    }

    #[test]
    fn an_object_is_dropped_once_and_on_every_way() {
        let drop = "r1 = r6\nr2 = 0\ncall kfunc #1";
        assert_eq!(verdict(&object(2, drop)), None);
        assert_eq!(verdict(&object(2, "r1 = 0")), Some(Kind::Leak));
        assert!(verdict(&object(2, &format!("{drop}\n{drop}"))).is_some(), "dropped twice");
        assert!(verdict(&object(2, &format!("{drop}\nr3 = *(u64 *)(r6 +0)"))).is_some(), "read afterwards");
        assert_eq!(
            verdict("r1 = 2\nr2 = 0\ncall kfunc #0\nr1 = r0\nr2 = 0\ncall kfunc #1\nr0 = 2\nexit"),
            Some(Kind::Null)
        );
    }

    #[test]
    fn fields_are_the_programs_and_the_end_is_the_end() {
        let with = |access: &str| verdict(&object(2, &format!("{access}\nr1 = r6\nr2 = 0\ncall kfunc #1")));
        assert_eq!(with("*(u64 *)(r6 +8) = 7"), None);
        assert!(with("*(u64 *)(r6 +16) = 7").is_some());
        assert!(with("r3 = *(u8 *)(r6 -1)").is_some());
    }

    #[test]
    fn only_what_has_a_count_is_shared() {
        let share =
            "r1 = r6\nr2 = 0\ncall kfunc #2\nr7 = r0\nr1 = r6\nr2 = 0\ncall kfunc #1\nr1 = r7\nr2 = 0\ncall kfunc #1";
        assert_eq!(verdict(&object(4, share)), None);
        assert_eq!(verdict(&object(2, share)), Some(Kind::Argument));
        assert_eq!(verdict(&object(1, "r1 = 0")), Some(Kind::Argument), "a number is no structure");
        assert_eq!(verdict(&object(99, "r1 = 0")), Some(Kind::Unbounded), "there is no such type");
    }
}
