//! Kernel functions that XDP programs call, by their prototypes: number iterators, packet metadata, dynptrs.

use xway_abi::{Arg, ArgKind, DynptrKind, HelperProto, KfuncClass, KfuncProto, KfuncRet, MemAccess, MemSize, Ret};
use xway_isa::Reg;
use xway_object::Program;

use crate::call::CallArgs;
use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::{Flow, Verifier};
use crate::graph::NONE;
use crate::stack::slot_of;
use crate::state::{Byte, State};
use crate::value::{Base, Iter, MemKind, Ptr, Value};

/// Name of the kernel function with this index.
fn name(program: &Program, index: i32) -> Option<&str> {
    program.kfuncs.get(usize::try_from(index).ok()?).map(|k| k.name.as_str())
}

/// True for the function that advances an iterator.
pub(crate) fn is_iter_next(program: &Program, index: i32) -> bool {
    name(program, index) == Some("bpf_iter_num_next")
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
        if st.lock.is_some() {
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
        self.facts.kfunc(&name);
        match (name.as_str(), proto.class, proto.args) {
            ("bpf_iter_num_new", ..) => self.iter_new(st, next),
            ("bpf_iter_num_next", ..) => self.iter_next(st, next),
            ("bpf_iter_num_destroy", ..) => self.iter_destroy(st, next),
            (_, KfuncClass::Metadata | KfuncClass::Packet | KfuncClass::Dynptr, Some(args)) => {
                self.call_plain(st, proto, args, next)
            }
            _ => fail!(Unsupported, "the kernel function {name} works on things that user space does not have"),
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
            fastcall: false,
            xdp: true,
        };
        let mut args = CallArgs::default();
        for (i, arg) in list.iter().enumerate() {
            self.check_arg(st, &proto, i, *arg, &mut args).map_err(|e| {
                let mut e = e.reg(i + 1);
                e.message = format!("argument {} of {}: {}", i + 1, proto.name, e.message);
                e
            })?;
            let buffer = matches!(arg.kind, ArgKind::Mem(MemAccess::ReadWrite, MemSize::NextArg));
            if buffer && matches!(st.frame().regs[i + 1], Value::Ptr(p) if matches!(p.base, Base::Stack(_))) {
                // The result may be this very memory; the stack is tracked byte by byte and must not have two names.
                return fail!(Unsupported, "{} with a buffer on the stack", kfunc.name)
                    .map_err(|e| e.hint("pass no buffer (NULL), or one in a map value"));
            }
        }
        if let (Some(_), Some(d)) = (args.init, args.dynptr) {
            if d.reference != 0 {
                return fail!(Unsupported, "copies of a ring buffer dynptr");
            }
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
                Value::Ptr(Ptr { nullable: true, id: self.id(), reference: d.reference, ..Ptr::to(base) })
            }
            _ => return fail!(Unsupported, "the result of {}", kfunc.name),
        };
        self.make_dynptr(st, &args);
        self.returned(st, result);
        Ok(Flow::Next(next))
    }

    fn returned(&mut self, st: &mut State, r0: Value) {
        let regs = &mut st.frame_mut().regs;
        regs[0] = r0;
        regs[1..6].fill(Value::Uninit);
    }

    fn iter_place(&mut self, st: &State) -> Result<(Ptr, usize, usize), Fail> {
        let p = self.pointer(st, Reg::R1)?;
        let Base::Stack(frame) = p.base else {
            return fail!(Argument, "an iterator lies on the stack").map_err(|e| e.reg(1));
        };
        if !p.is_fixed() || p.off % 8 != 0 {
            return fail!(Argument, "an iterator lies at a constant, aligned offset of the stack")
                .map_err(|e| e.reg(1));
        }
        let (lo, _) = self.stack_extent(st, frame.into(), &p, 0, 8)?;
        Ok((p, frame.into(), slot_of(lo).0))
    }

    /// The end of the range is exclusive and both are 32-bit; the kernel bounds the number of turns.
    fn iter_new(&mut self, st: &mut State, next: usize) -> Result<Flow, Fail> {
        let (p, frame, slot) = self.iter_place(st)?;
        for r in [Reg::R2, Reg::R3] {
            if !matches!(self.read(st, r)?, Value::Num(_)) {
                return fail!(Argument, "the bounds of the iteration are numbers").map_err(|e| e.reg(r.index()));
            }
        }
        if st.frames[frame].stack.get(slot).is_some_and(|s| s.bytes.contains(&Byte::Special)) {
            return fail!(Argument, "the stack at offset {} holds an iterator or dynptr already", p.off)
                .map_err(|e| e.reg(1));
        }
        let id = self.id();
        st.refs.push(crate::state::Reference { id, insn: st.pc, what: "the iterator" });
        let s = st.frame_at(frame).slot_mut(slot);
        s.bytes = [Byte::Special; 8];
        s.spill = Value::Iter(Iter { id, drained: false, part: 0 });
        self.returned(st, Value::num(Scalar::unknown().truncate(32), NONE));
        Ok(Flow::Next(next))
    }

    fn iter_next(&mut self, st: &mut State, next: usize) -> Result<Flow, Fail> {
        let (p, frame, slot) = self.iter_place(st)?;
        let Some(iter) = iter_at(st, &p) else {
            return fail!(Argument, "there is no initialised iterator at offset {} of the stack", p.off)
                .map_err(|e| e.reg(1));
        };
        let live = st.frames[frame].stack[slot].live;
        self.graph.mark(live);
        if !iter.drained {
            let mut more = st.clone();
            more.pc = next;
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

    fn iter_destroy(&mut self, st: &mut State, next: usize) -> Result<Flow, Fail> {
        let (p, frame, slot) = self.iter_place(st)?;
        let Some(iter) = iter_at(st, &p) else {
            return fail!(Argument, "there is no initialised iterator at offset {} of the stack", p.off)
                .map_err(|e| e.reg(1));
        };
        self.release(st, iter.id)?;
        let s = st.frame_at(frame).slot_mut(slot);
        s.bytes = [Byte::Misc; 8];
        s.spill = Value::Uninit;
        self.returned(st, Value::Uninit);
        Ok(Flow::Next(next))
    }
}
