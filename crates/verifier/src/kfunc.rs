//! Kernel functions that XDP programs call, by their prototypes: number iterators, packet metadata, dynptrs.

use xway_abi::{
    Arg, ArgKind, DynptrKind, Effect, FuncAccess, HelperProto, IterKind, KfuncClass, KfuncProto, KfuncRet, MemAccess,
    MemSize, Region, Ret,
};
use xway_isa::Reg;
use xway_object::Program;

use crate::call::CallArgs;
use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::{Flow, Verifier};
use crate::graph::NONE;
use crate::stack::slot_of;
use crate::state::{Byte, FrameKind, Reference, State};
use crate::value::{Base, Iter, MemKind, Ptr, Value};

/// What is held between `bpf_preempt_disable` and `bpf_preempt_enable`, in words.
pub(crate) const PREEMPTION: &str = "the hold on preemption";

/// What is held between `bpf_rcu_read_lock` and `bpf_rcu_read_unlock`, in words.
pub(crate) const RCU: &str = "the RCU read lock";

/// Why no program that calls this kernel function is accepted, although Linux accepts some.
pub fn kfunc_unsupported(proto: &KfuncProto) -> Option<&'static str> {
    match (proto.class, proto.name) {
        (KfuncClass::Region, _) if proto.region.is_none() => {
            Some("interrupt regions and resilient spin locks are not followed")
        }
        (KfuncClass::Object, "bpf_obj_new_impl" | "bpf_obj_drop_impl" | "bpf_refcount_acquire_impl") => None,
        (KfuncClass::Object, _) => Some("lists and trees of objects, and objects of each CPU, are not followed"),
        (KfuncClass::Deferred, _) => Some("work that runs later, timers apart, is not followed"),
        (KfuncClass::Kernel, name) if name.starts_with("bpf_iter_") => {
            Some("iterators over objects of the kernel are not followed")
        }
        // Their context comes from a map value.
        (KfuncClass::Kernel, "bpf_crypto_encrypt" | "bpf_crypto_decrypt") => {
            Some("pointers to objects of the kernel in map values are not followed")
        }
        _ => None,
    }
}

/// Name of the kernel function with this index.
fn name(program: &Program, index: i32) -> Option<&str> {
    program.kfuncs.get(usize::try_from(index).ok()?).map(|k| k.name.as_str())
}

/// True for the function that advances an iterator.
pub(crate) fn is_iter_next(program: &Program, index: i32) -> bool {
    matches!(name(program, index), Some("bpf_iter_num_next" | "bpf_iter_bits_next"))
}

/// True for the function that ends the program.
pub(crate) fn throws(program: &Program, index: i32) -> bool {
    name(program, index) == Some("bpf_throw")
}

/// True for functions that may move the packet, and for unknown ones.
pub(crate) fn moves_packet(program: &Program, index: i32) -> bool {
    name(program, index).and_then(xway_abi::kfunc).is_none_or(|k| k.changes_packet)
}

/// The iterator that a stack pointer points to.
pub(crate) fn iter_at(st: &State, p: &Ptr) -> Option<Iter> {
    let Base::Stack(frame) = p.base else { return None };
    if !p.is_fixed() || p.off % 8 != 0 || !(-512..0).contains(&p.off) {
        return None;
    }
    match st.frames.get(usize::from(frame))?.stack.get(slot_of(p.off.into()).0)? {
        s if s.bytes[0] == Byte::Special => match s.spill {
            Value::Iter(i) if i.part == 0 => Some(i),
            _ => None,
        },
        _ => None,
    }
}

impl Verifier<'_> {
    /// `call` of a kernel function.
    pub fn call_kfunc(&mut self, st: &mut State, index: i32, next: usize) -> Result<Flow, Fail> {
        let Some(name) = name(self.program, index).map(str::to_owned) else {
            return fail!(BadReference, "the program calls kernel function {index} of its list, which does not exist");
        };
        self.facts.arguments(st.pc, &st.frame().regs, st.depth());
        let numbers = matches!(name.as_str(), "bpf_iter_num_new" | "bpf_iter_num_next" | "bpf_iter_num_destroy");
        if st.lock.is_some() && !numbers {
            return fail!(Lock, "{name} is called while a spin lock is held");
        }
        let Some(proto) = xway_abi::kfunc(&name) else {
            return fail!(Unsupported, "the kernel function {name} is not known here");
        };
        if !proto.xdp() {
            return fail!(BadCall, "{name} cannot be called by XDP programs");
        }
        if !self.view.gpl() {
            return fail!(BadCall, "{name} may only be called by programs with a licence compatible with the GPL");
        }
        if let Some(why) = kfunc_unsupported(proto) {
            return fail!(Unsupported, "{name} cannot be proved here: {why}");
        }
        self.facts.kfunc(&name);
        match (name.as_str(), proto.class, proto.args) {
            (_, KfuncClass::Iterator, Some([Arg { kind: ArgKind::Iter(kind, access), .. }, rest @ ..])) => match access
            {
                FuncAccess::Init => self.iter_new(st, *kind, rest, next),
                FuncAccess::Use => self.iter_next(st, *kind, next),
                FuncAccess::Release => self.iter_destroy(st, *kind, next),
            },
            (_, KfuncClass::Region, _) if proto.region.is_some() => self.region(st, proto, next),
            (_, KfuncClass::Metadata | KfuncClass::Packet | KfuncClass::Dynptr | KfuncClass::Engine, Some(args)) => {
                self.call_plain(st, proto, args, next)
            }
            ("bpf_throw", _, _) => self.throw(st),
            ("__bpf_trap", _, _) => {
                fail!(BadCall, "the compiler ends this way in __bpf_trap: what it depends on was never given a value")
            }
            (_, KfuncClass::Object, _) => self.call_object(st, proto, next),
            (_, KfuncClass::Cast, _) => self.cast(st, proto, next),
            (_, KfuncClass::Kernel | KfuncClass::Map | KfuncClass::Text, None) => {
                let func_id = self.program.kfuncs[index as usize].func_id;
                self.call_by_type(st, proto, func_id, next)
            }
            ("bpf_map_sum_elem_count", _, _) => {
                if !matches!(self.read(st, Reg::R1)?, Value::Ptr(Ptr { base: Base::Map(_), .. })) {
                    return fail!(Argument, "argument 1 of {name} must be a map").map_err(|e| e.reg(1));
                }
                self.facts.kernel_object(proto.name);
                self.returned(st, Value::num(Scalar::unknown(), NONE));
                Ok(Flow::Next(next))
            }
            // They read memory that may not be there: a kernel can.
            (_, KfuncClass::Text, Some(args)) => {
                self.facts.kernel_object(proto.name);
                self.call_plain(st, proto, args, next)
            }
            _ => fail!(Unsupported, "the kernel function {name} is not known well enough to prove calls of it"),
        }
    }

    /// A kernel function that its prototype describes completely.
    fn call_plain(
        &mut self,
        st: &mut State,
        kfunc: &'static KfuncProto,
        list: &'static [Arg],
        next: usize,
    ) -> Result<Flow, Fail> {
        // The same checks as for helpers; number 0 is no helper.
        let proto = HelperProto {
            id: 0,
            name: kfunc.name,
            ret: Ret::Integer,
            args: list,
            gpl_only: true,
            changes_packet: kfunc.changes_packet,
            pkt_access: true,
            might_sleep: false,
            effect: Effect::None,
            fastcall: false,
            xdp: true,
        };
        let mut args = CallArgs::default();
        let mut shared = None;
        for (i, arg) in list.iter().enumerate() {
            self.check_arg(st, &proto, i, *arg, &mut args).map_err(|e| {
                let mut e = e.reg(i + 1);
                e.message = format!("argument {} of {}: {}", i + 1, proto.name, e.message);
                e
            })?;
            let buffer = matches!(arg.kind, ArgKind::Mem(MemAccess::ReadWrite, MemSize::NextArg));
            if let (true, Value::Ptr(p)) = (buffer, st.frame().regs[i + 1]) {
                shared = Some(p);
            }
        }
        if let Some(d) = args.dynptr {
            args.init = args.init.map(|(frame, slot, _)| (frame, slot, d.kind));
        }
        if kfunc.changes_packet {
            self.packet_moves(st);
        }
        let result = match kfunc.ret {
            KfuncRet::Integer => Value::num(Scalar::unknown(), NONE),
            KfuncRet::Void => Value::Uninit,
            KfuncRet::SliceOrNull { writable } => {
                let (Some(size), Some(d)) = (args.alloc, args.dynptr) else {
                    return fail!(Argument, "{} needs a dynptr and a constant length", kfunc.name);
                };
                let kind = if d.kind == DynptrKind::Xdp { MemKind::PacketSlice } else { MemKind::Slice };
                let base = Base::Mem { size, kind, read_only: !writable };
                // The slice may be the buffer: when that is given back the slice is gone, too.
                let buffer = shared.map_or(0, |p| p.reference);
                let reference = if d.reference == 0 && buffer != 0 { buffer } else { d.owner() };
                Value::Ptr(Ptr { nullable: true, id: self.id(), reference, ..Ptr::to(base) })
            }
            _ => return fail!(Unsupported, "the result of {}", kfunc.name),
        };
        if let (Some(Ptr { base: Base::Stack(frame), .. }), Some(size)) = (shared, args.alloc) {
            self.share_stack(st, frame.into(), &shared.expect("it was just matched"), size)?;
        }
        self.make_dynptr(st, &args);
        self.returned(st, result);
        Ok(Flow::Next(next))
    }

    pub(crate) fn returned(&mut self, st: &mut State, r0: Value) {
        let regs = &mut st.frame_mut().regs;
        regs[0] = r0;
        regs[1..6].fill(Value::Uninit);
    }

    /// The program ends here, from any depth, with the number in r1 as its result.
    fn throw(&mut self, st: &mut State) -> Result<Flow, Fail> {
        let Value::Num(n) = *self.read(st, Reg::R1)? else {
            return fail!(ReturnValue, "bpf_throw takes a number").map_err(|e| e.reg(1));
        };
        self.nothing_held(st, "bpf_throw ends the program")?;
        if matches!(st.frames[0].kind, FrameKind::Async) {
            return fail!(ReturnValue, "a callback that runs later cannot throw");
        }
        self.exits.push(n.def);
        self.facts.kernel_object("bpf_throw");
        Ok(Flow::End)
    }

    /// A region is entered, or left by the matching call. What was entered is left before the program ends.
    fn region(&mut self, st: &mut State, proto: &'static KfuncProto, next: usize) -> Result<Flow, Fail> {
        let held = |st: &State, what| st.refs.iter().rev().find(|r| r.what == what).map(|r| r.id);
        match proto.region {
            Some(Region::RcuEnter) if held(st, RCU).is_some() => {
                return fail!(Lock, "the RCU read lock is taken twice; on Linux 6.18 it does not nest");
            }
            Some(Region::RcuEnter | Region::PreemptEnter) => {
                let what = if proto.region == Some(Region::RcuEnter) { RCU } else { PREEMPTION };
                let id = self.id();
                st.refs.push(Reference { id, insn: st.pc, what });
            }
            _ => {
                let what = if proto.region == Some(Region::RcuLeave) { RCU } else { PREEMPTION };
                let Some(id) = held(st, what) else { return fail!(Lock, "{what} is not held here") };
                st.refs.retain(|r| r.id != id);
                if proto.region == Some(Region::RcuLeave) {
                    self.rcu_left(st);
                }
            }
        }
        self.returned(st, Value::Uninit);
        Ok(Flow::Next(next))
    }

    fn iter_place(&mut self, st: &State, kind: IterKind) -> Result<(Ptr, usize, usize), Fail> {
        let p = self.pointer(st, Reg::R1)?;
        let Base::Stack(frame) = p.base else {
            return fail!(Argument, "an iterator lies on the stack").map_err(|e| e.reg(1));
        };
        if !p.is_fixed() || p.off % 8 != 0 {
            return fail!(Argument, "an iterator lies at a constant, aligned offset of the stack")
                .map_err(|e| e.reg(1));
        }
        let (lo, _) = self.stack_extent(st, frame.into(), &p, 0, kind.size())?;
        Ok((p, frame.into(), slot_of(lo).0))
    }

    /// The iterator in r1, which must be one of this kind.
    fn iter_held(&mut self, st: &State, kind: IterKind) -> Result<(Iter, usize, usize), Fail> {
        let (p, frame, slot) = self.iter_place(st, kind)?;
        match iter_at(st, &p).filter(|i| i.kind == kind) {
            Some(iter) => Ok((iter, frame, slot)),
            None => fail!(Argument, "there is no initialised iterator at offset {} of the stack", p.off)
                .map_err(|e| e.reg(1)),
        }
    }

    /// What is iterated over is the function's business at run time: it bounds the number of turns.
    fn iter_new(&mut self, st: &mut State, kind: IterKind, rest: &[Arg], next: usize) -> Result<Flow, Fail> {
        let (p, frame, slot) = self.iter_place(st, kind)?;
        for (i, arg) in rest.iter().enumerate() {
            let r = Reg::new(i as u8 + 2).expect("at most five arguments");
            if !matches!(arg.kind, ArgKind::Ignored) && !matches!(self.read(st, r)?, Value::Num(_)) {
                return fail!(Argument, "the bounds of the iteration are numbers").map_err(|e| e.reg(r.index()));
            }
        }
        let slots = slot + 1 - kind.size() as usize / 8..=slot;
        let taken = |s: &crate::state::Slot| s.shared || s.bytes.contains(&Byte::Special);
        if slots.clone().any(|i| st.frames[frame].stack.get(i).is_some_and(taken)) {
            return fail!(Argument, "the stack at offset {} holds an iterator or dynptr already", p.off)
                .map_err(|e| e.reg(1));
        }
        let id = self.id();
        st.refs.push(Reference { id, insn: st.pc, what: "the iterator" });
        for (part, i) in slots.rev().enumerate() {
            let s = st.frame_at(frame).slot_mut(i);
            s.bytes = [Byte::Special; 8];
            s.spill = Value::Iter(Iter { kind, id, drained: false, turns: 0, part: part as u8 });
        }
        self.returned(st, Value::num(Scalar::unknown().truncate(32), NONE));
        Ok(Flow::Next(next))
    }

    fn iter_next(&mut self, st: &mut State, kind: IterKind, next: usize) -> Result<Flow, Fail> {
        let (iter, frame, slot) = self.iter_held(st, kind)?;
        let live = st.frames[frame].stack[slot].live;
        self.graph.mark(live);
        if !iter.drained {
            let mut more = st.clone();
            more.pc = next;
            let turns = iter.turns.saturating_add(1);
            more.frame_at(frame).slot_mut(slot).spill = Value::Iter(Iter { turns, ..iter });
            let item = Base::Mem { size: 4, kind: MemKind::IterItem, read_only: true };
            self.returned(&mut more, Value::Ptr(Ptr { reference: iter.id, ..Ptr::to(item) }));
            self.note_branch(&mut more, st.pc, true);
            self.note_branch(st, st.pc, false);
            self.push(more)?;
        }
        // The end of the loop is walked first: it shows which numbers the loop must keep apart.
        st.frame_at(frame).slot_mut(slot).spill = Value::Iter(Iter { drained: true, ..iter });
        let zero = self.graph.constant(0);
        self.returned(st, Value::num(Scalar::constant(0), zero));
        Ok(Flow::Next(next))
    }

    fn iter_destroy(&mut self, st: &mut State, kind: IterKind, next: usize) -> Result<Flow, Fail> {
        let (iter, frame, slot) = self.iter_held(st, kind)?;
        self.release(st, iter.id)?;
        for i in slot + 1 - kind.size() as usize / 8..=slot {
            let s = st.frame_at(frame).slot_mut(i);
            s.bytes = [Byte::Misc; 8];
            s.spill = Value::Uninit;
        }
        self.returned(st, Value::Uninit);
        Ok(Flow::Next(next))
    }
}

#[cfg(test)]
mod tests {
    use xway_object::KfuncRef;

    use crate::testing::program;
    use crate::{Config, Kind, MapsView, verify};

    /// The kind of the first error of a program that calls these kernel functions, by their place in the list.
    fn verdict(text: &str, names: &[&str]) -> Option<Kind> {
        let mut program = program(text);
        program.kfuncs = names.iter().map(|n| KfuncRef { name: (*n).to_owned(), func_id: 0, weak: false }).collect();
        verify(&program, &MapsView::empty(), &Config::default()).err().map(|r| r.errors[0].kind)
    }

    const NUM: [&str; 3] = ["bpf_iter_num_new", "bpf_iter_num_next", "bpf_iter_num_destroy"];

    #[test]
    fn an_iterator_is_made_used_and_destroyed() {
        let new = "r1 = r10\nr1 += -8\nr2 = 0\nr3 = 10\ncall kfunc #0\n";
        let turn = "again: r1 = r10\nr1 += -8\ncall kfunc #1\nif r0 == 0 goto done\nr6 = *(u32 *)(r0 +0)\ngoto again\n";
        let destroy = "done: r1 = r10\nr1 += -8\ncall kfunc #2\nr0 = 0\nexit";
        assert_eq!(verdict(&format!("{new}{turn}{destroy}"), &NUM), None);
        assert_eq!(verdict(&format!("{new}{turn}done: r0 = 0\nexit"), &NUM), Some(Kind::Leak));
        assert_eq!(verdict(&format!("{turn}{destroy}"), &NUM), Some(Kind::Argument), "never made");
        // What it yields has four bytes, and ends with it.
        let wide = turn.replace("u32", "u64");
        assert_eq!(verdict(&format!("{new}{wide}{destroy}"), &NUM), Some(Kind::MemoryBounds));
        let late = turn.replace("goto again", "r7 = r0");
        let used = destroy.replace("r0 = 0", "r0 = *(u32 *)(r7 +0)");
        let after = format!("{new}*(u64 *)(r10 -16) = 0\nr7 = r10\nr7 += -16\n{late}{used}");
        assert_eq!(verdict(&after, &NUM), Some(Kind::NotAPointer));
    }

    #[test]
    fn regions_are_left_before_the_end() {
        let names = ["bpf_rcu_read_lock", "bpf_rcu_read_unlock", "bpf_preempt_disable"];
        assert_eq!(verdict("call kfunc #0\ncall kfunc #1\nr0 = 0\nexit", &names), None);
        assert_eq!(verdict("call kfunc #0\nr0 = 0\nexit", &names), Some(Kind::Leak));
        assert_eq!(verdict("call kfunc #1\nr0 = 0\nexit", &names), Some(Kind::Lock));
        assert_eq!(verdict("call kfunc #0\ncall kfunc #0\ncall kfunc #1\nr0 = 0\nexit", &names), Some(Kind::Lock));
        assert_eq!(verdict("call kfunc #2\ncall kfunc #1\nr0 = 0\nexit", &names), Some(Kind::Lock));
    }

    #[test]
    fn what_lies_beside_a_slices_buffer_was_not_written() {
        let unwritten = |text: &str| {
            let mut program = program(text);
            let names = ["bpf_dynptr_from_xdp", "bpf_dynptr_slice"];
            program.kfuncs =
                names.map(|n| KfuncRef { name: n.to_owned(), func_id: 0, weak: false }).into_iter().collect();
            verify(&program, &MapsView::empty(), &Config::default()).expect(text).facts().unwritten_stack
        };
        let slice = |before: &str| {
            format!(
                "r2 = 0\nr3 = r10\nr3 += -16\ncall kfunc #0\n*(u32 *)(r10 -24) = 0\n{before}\nr1 = r10\nr1 += -16\nr2 = 0\n\
                 r3 = r10\nr3 += -24\nr4 = 4\ncall kfunc #1\nr0 = *(u32 *)(r10 -20)\nexit"
            )
        };
        assert!(unwritten(&slice("r5 = 0")));
        assert!(!unwritten(&slice("*(u32 *)(r10 -20) = 7")));
    }

    #[test]
    fn functions_that_do_not_exist_or_are_not_followed_are_refused_by_kind() {
        assert_eq!(verdict("call kfunc #1\nr0 = 0\nexit", &["bpf_rcu_read_lock"]), Some(Kind::BadReference));
        assert_eq!(verdict("call kfunc #0\nr0 = 0\nexit", &["bpf_no_such_function"]), Some(Kind::Unsupported));
    }
}
