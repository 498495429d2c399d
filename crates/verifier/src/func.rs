//! Functions of the program: calls, returns, callbacks, functions that are analysed on their own, stack in a chain.

use std::rc::Rc;

use xway_abi::{ArgKind, Callback, HelperProto};
use xway_isa::{CallTarget, Insn, Reg};
use xway_object::{Program, ProgramKind};

use crate::call::CallArgs;
use crate::cfg::Cfg;
use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::{Flow, Verifier};
use crate::graph::NONE;
use crate::signature::{Param, Signature};
use crate::state::{FRAMES_MAX, Frame, FrameKind, STACK_MAX, State};
use crate::value::{Base, MapRef, MemKind, Object, Ptr, Trust, Value};

/// Bytes of stack above a function that tail-calls, of its callers together; Linux wants less. The program that is called keeps
/// those frames and has as many of its own, 33 times over.
const ABOVE_TAIL_CALL: i64 = 256;

/// The prototype of the helper that an instruction calls.
fn helper_of(insn: &Insn) -> Option<&'static HelperProto> {
    match insn {
        Insn::Call(CallTarget::Helper(id)) => xway_abi::helper(*id),
        _ => None,
    }
}

/// True for helpers that call a function of the program before they return.
pub(crate) fn calls_back(id: u32) -> bool {
    xway_abi::helper(id).is_some_and(xway_abi::HelperProto::calls_back)
}

/// True when the program calls `bpf_loop`, whose number of turns may be part of what makes it safe.
pub(crate) fn has_counted_loops(cfg: &Cfg) -> bool {
    cfg.insns.iter().flatten().filter_map(helper_of).any(|p| p.takes(ArgKind::Func(Callback::Loop)))
}

/// For each function whether it may move the packet, itself or through functions that it calls or hands out.
pub(crate) fn packet_movers(cfg: &Cfg, program: &Program) -> Vec<bool> {
    let moves = |insn: &Insn| match insn {
        // Behind a tail call another program may do anything to the packet before it returns to the caller.
        Insn::Call(CallTarget::Helper(id)) => {
            xway_abi::helper(*id).is_none_or(|p| p.changes_packet || p.is_tail_call())
        }
        Insn::Call(CallTarget::Kfunc { id, .. }) => crate::kfunc::moves_packet(program, *id),
        _ => false,
    };
    let mut out: Vec<bool> = cfg.funcs.iter().map(|f| cfg.insns[f.start..f.end].iter().flatten().any(moves)).collect();
    // As often as there are functions: then every chain has been followed.
    for _ in 0..cfg.funcs.len() {
        for i in 0..cfg.funcs.len() {
            let f = &cfg.funcs[i];
            let inner = f.calls.iter().map(|c| c.1).chain(f.takes.iter().copied()).any(|c| out[c]);
            out[i] |= inner;
        }
    }
    out
}

/// A caller of the running function can release the reference: a pointer or a dynptr that carries it lies in its frame.
fn left_to_caller(st: &State, reference: u32) -> bool {
    let carries = |v: &Value| match v {
        Value::Ptr(p) => p.reference == reference,
        Value::Dynptr(d) => d.reference == reference,
        _ => false,
    };
    let callers = &st.frames[..st.depth()];
    callers.iter().any(|f| f.regs.iter().any(carries) || f.stack.iter().any(|s| carries(&s.spill)))
}

impl Verifier<'_> {
    /// The states in which a function that is analysed on its own starts.
    pub fn entry(&mut self, func: usize) -> Result<Vec<State>, Fail> {
        let mut st = self.fresh(func, FrameKind::Entry);
        if func > 0 {
            let Some(sig) = self.signature(func) else { return Ok(Vec::new()) };
            for (i, param) in sig.params.iter().enumerate() {
                let v = match param {
                    Param::Number => Value::num(Scalar::unknown(), NONE),
                    Param::Ctx => Value::Ptr(Ptr::to(Base::Ctx)),
                    Param::Trusted { name, nullable } => {
                        Value::Ptr(self.kernel_pointer(name, Trust::Trusted, *nullable)?)
                    }
                    Param::Untrusted(Some(name)) => Value::Ptr(self.kernel_pointer(name, Trust::Untrusted, false)?),
                    Param::Untrusted(None) => Value::Ptr(Ptr::to(Base::Object(Object::UNKNOWN))),
                    Param::Arena => Value::Ptr(Ptr::to(Base::Arena)),
                    Param::Wrong(_) => return Ok(Vec::new()),
                    Param::Mem { size, nullable } => {
                        let base = Base::Mem { size: *size, kind: MemKind::Arg, read_only: false };
                        let id = if *nullable { self.id() } else { 0 };
                        Value::Ptr(Ptr { nullable: *nullable, id, ..Ptr::to(base) })
                    }
                };
                st.frame_mut().regs[i + 1] = v;
            }
        } else if self.program.kind == ProgramKind::Raw {
            let size = self.config.raw_input;
            let base = Base::Mem { size, kind: MemKind::Input, read_only: false };
            st.set(Reg::R1, Value::Ptr(Ptr::to(base)));
            st.set(Reg::R2, Value::num(Scalar::constant(size.into()), NONE));
        } else {
            st.set(Reg::R1, Value::Ptr(Ptr::to(Base::Ctx)));
        }
        Ok(vec![st])
    }

    /// The signature of a function that can be analysed on its own; `None` for static ones and for those whose
    /// parameters are not simple: they are walked through at every call.
    pub fn signature(&mut self, func: usize) -> Option<Rc<Signature>> {
        if let Some(known) = self.signatures.get(&func) {
            return known.clone();
        }
        let mut read = || {
            let (f, btf) = (&self.cfg.funcs[func], self.view.btf?);
            let sub = self.program.subprogs.iter().find(|s| s.start == f.start && s.global && func > 0)?;
            let tags = self.arg_tags.get_or_insert_with(|| crate::signature::tags(btf));
            Signature::read(btf, tags, sub.func_id).map(Rc::new)
        };
        let sig = read();
        self.signatures.insert(func, sig.clone());
        sig
    }

    /// `call` of a function of the program.
    pub fn call_local(&mut self, st: &mut State, target: usize, next: usize) -> Result<Flow, Fail> {
        let Some(func) = self.cfg.func_at(target) else {
            return fail!(BadReference, "no function starts at {target}");
        };
        self.facts.arguments(st.pc, &st.frame().regs, st.depth());
        if let Some(sig) = self.signature(func) {
            if st.lock.is_some() {
                return fail!(Lock, "a global function is called while a spin lock is held");
            }
            if st.refs.iter().any(|r| r.what == crate::kfunc::PREEMPTION) {
                return fail!(Lock, "a global function is called while preemption is held off");
            }
            self.call_global(st, func, &sig)?;
            return Ok(Flow::Next(next));
        }
        self.enter(st, func, FrameKind::Call, |_, _| ())?;
        Ok(Flow::Next(target))
    }

    /// A global function was proved for all arguments of its types: only the arguments are checked here.
    fn call_global(&mut self, st: &mut State, func: usize, sig: &Signature) -> Result<(), Fail> {
        let name = self.cfg.funcs[func].name.clone();
        for (i, param) in sig.params.iter().enumerate() {
            let reg = Reg::new(i as u8 + 1).expect("at most five parameters");
            let v = *self.read(st, reg)?;
            let wrong = |what: &str| {
                fail!(Argument, "argument {} of {name} must be {what}", i + 1).map_err(|e: Fail| e.reg(i + 1))
            };
            match (param, &v) {
                (Param::Number, Value::Num(_)) => {}
                (Param::Number, _) => return wrong("a number"),
                (Param::Ctx, Value::Ptr(p)) if p.base == Base::Ctx && p.off == 0 && p.is_fixed() => {}
                (Param::Ctx, _) => return wrong("the context"),
                (Param::Mem { nullable: true, .. }, Value::Num(n)) if n.s.as_const() == Some(0) => {
                    self.graph.mark(n.def);
                }
                (Param::Mem { size, nullable }, Value::Ptr(p)) if !p.nullable || *nullable => {
                    let p = Ptr { nullable: false, ..*p };
                    if p.is_packet() && self.moves_packet[func] {
                        return fail!(Stale, "{name} is given packet memory and may move the packet before it uses it")
                            .map_err(|e: Fail| {
                                e.reg(i + 1).hint("declare the function static, or copy the bytes to the stack")
                            });
                    }
                    self.check_memory(st, true, &p, *size, xway_abi::MemAccess::ReadWrite).map_err(|e| e.reg(i + 1))?;
                }
                (Param::Untrusted(_), _) => self.facts.kernel_object("arguments that point anywhere"),
                (Param::Arena, Value::Num(_) | Value::Ptr(Ptr { base: Base::Arena, .. })) => {}
                (Param::Arena, _) => return wrong("an address of the arena"),
                (Param::Trusted { nullable: true, .. }, Value::Num(n)) if n.s.as_const() == Some(0) => {
                    self.graph.mark(n.def);
                }
                (Param::Trusted { name: want, nullable }, Value::Ptr(p)) if !p.nullable || *nullable => {
                    let Base::Object(o) = p.base else { return wrong(&format!("a trusted struct {want}")) };
                    let ty = self.kernel_struct(want)?;
                    let trusted = p.reference != 0 || matches!(o.trust, Trust::Trusted | Trust::Rcu | Trust::Plain);
                    if !trusted || !self.is_object_of(p, &o, ty, false) {
                        return wrong(&format!("a trusted struct {want}"));
                    }
                }
                (Param::Trusted { name: want, .. }, _) => return wrong(&format!("a trusted struct {want}")),
                (Param::Wrong(why), _) => {
                    return fail!(Argument, "argument {} of {name} has {why}", i + 1).map_err(|e: Fail| e.reg(i + 1));
                }
                (Param::Mem { size, .. }, _) => return wrong(&format!("a pointer to {size} bytes")),
            }
        }
        self.facts.global_called[func] = true;
        if self.moves_packet[func] {
            self.packet_moves(st);
        }
        let result = if sig.void { Value::Uninit } else { Value::num(Scalar::unknown(), NONE) };
        let regs = &mut st.frame_mut().regs;
        regs[0] = result;
        regs[1..6].fill(Value::Uninit);
        Ok(())
    }

    /// Pushes a frame; `args` sets its registers from the caller's. Without callback the caller's r0 to r5 are gone.
    fn enter(
        &mut self,
        st: &mut State,
        func: usize,
        kind: FrameKind,
        args: impl FnOnce(&Frame, &mut Frame),
    ) -> Result<(), Fail> {
        if st.frames.len() >= FRAMES_MAX {
            return fail!(StackDepth, "more than {FRAMES_MAX} frames deep ({} is called)", self.cfg.funcs[func].name)
                .map_err(|e| e.hint("recursion is not possible; flatten the chain of calls"));
        }
        let uid = self.id();
        let mut frame = Frame::new(func, st.frames.len(), st.pc, uid, kind, &self.meter);
        if kind == FrameKind::Call {
            frame.regs[1..6].copy_from_slice(&st.frame().regs[1..6]);
            st.frame_mut().regs[..6].fill(Value::Uninit);
        } else {
            args(st.frame(), &mut frame);
        }
        st.frames.push(Rc::new(frame));
        st.pc = self.cfg.funcs[func].start;
        Ok(())
    }

    /// `exit`
    pub fn exit(&mut self, st: &mut State) -> Result<Flow, Fail> {
        let func = st.frame().func;
        let void = match st.frame().kind {
            // A caller that reads r0 of a function which sets none is refused there.
            FrameKind::Call => true,
            FrameKind::Entry => func > 0 && self.signature(func).is_some_and(|s| s.void),
            _ => false,
        };
        let r0 = if void && matches!(st.reg(Reg::R0), Value::Uninit) {
            Value::Uninit
        } else {
            *self
                .read(st, Reg::R0)
                .map_err(|e| Fail { message: "the function ends without a return value in r0".into(), ..e })?
        };
        match st.frame().kind {
            FrameKind::Entry => {
                self.nothing_held(st, "the program ends")?;
                match &r0 {
                    Value::Num(n) if st.frame().func == 0 => self.exits.push(n.def),
                    Value::Num(_) => {}
                    _ if st.frame().func == 0 => {
                        self.facts.address_seen();
                        self.exits.push(NONE);
                    }
                    _ if void => {}
                    _ => return fail!(ReturnValue, "a global function returns a pointer").map_err(|e| e.reg(0)),
                }
                Ok(Flow::End)
            }
            FrameKind::Async => {
                self.nothing_held(st, "the callback ends")?;
                self.check_return(&r0, 0)?;
                Ok(Flow::End)
            }
            FrameKind::Call => {
                let depth = st.depth();
                if matches!(r0, Value::Ptr(p) if p.base == Base::Stack(depth as u8)) {
                    return fail!(ReturnValue, "a pointer to the function's own stack is returned")
                        .map_err(|e| e.reg(0));
                }
                let next = st.frame().callsite + 1;
                let gone = st.frames.pop();
                st.set(Reg::R0, r0);
                self.frame_gone(st, gone.as_deref());
                Ok(Flow::Next(next))
            }
            FrameKind::Callback { ret_max, .. } => {
                self.check_return(&r0, ret_max)?;
                let uid = st.frame().uid;
                // What it acquired it may leave to its caller, on whose stack it put the pointer.
                let own = st.refs.iter().filter(|r| r.id > uid).count();
                self.meter.work(own * st.values() / 4);
                if let Some(r) = st.refs.iter().find(|r| r.id > uid && !left_to_caller(st, r.id)) {
                    return fail!(Leak, "the callback ends while {} is not released", r.what).map_err(|e| e.at(r.insn));
                }
                if st.lock.is_some() {
                    return fail!(Lock, "the callback ends while a spin lock is held");
                }
                let callsite = st.frame().callsite;
                let gone = st.frames.pop();
                self.frame_gone(st, gone.as_deref());
                Ok(Flow::Next(callsite))
            }
        }
    }

    /// Fails when a tail call would leave something behind: what the running function has acquired, or, where the whole
    /// program is left, anything. What a caller holds stays with the caller.
    pub fn may_leave(&self, st: &State) -> Result<(), Fail> {
        let uid = st.frame().uid;
        match st.frame().kind {
            FrameKind::Call if st.lock.is_none() && st.refs.iter().all(|r| r.id < uid) => Ok(()),
            _ => self.nothing_held(st, "a tail call"),
        }
    }

    /// A tail call inside a called function that succeeds: the other program's end is the function's, with any result and
    /// with the packet moved.
    pub fn tail_call_returns(&mut self, st: &State) -> Result<(), Fail> {
        if !matches!(st.frame().kind, FrameKind::Call | FrameKind::Callback { .. }) {
            return Ok(());
        }
        let mut after = st.clone();
        self.packet_moves(&mut after);
        let (called, callsite) = (after.frame().kind == FrameKind::Call, after.frame().callsite);
        let gone = after.frames.pop();
        self.frame_gone(&mut after, gone.as_deref());
        if called {
            after.set(Reg::R0, Value::num(Scalar::unknown(), NONE));
        }
        after.pc = if called { callsite + 1 } else { callsite };
        after.jumps_since += 1;
        self.push(after)
    }

    /// The innermost frame is gone, and with it what lay on its stack or was lent to it: slices that may lie in a buffer there, and the
    /// key that a callback was shown. Pointers that its callers have of these are worthless.
    fn frame_gone(&mut self, st: &mut State, gone: Option<&Frame>) {
        let Some(gone) = gone else { return };
        let depth = st.frames.len() as u8;
        let slices = gone.stack.iter().any(|s| s.shared);
        if !slices && !matches!(gone.kind, FrameKind::Callback { keyed: true, .. }) {
            return;
        }
        let mut seen = false;
        st.replace(|v| {
            let ends = match v {
                Value::Ptr(Ptr { base: Base::Mem { kind: MemKind::Slice | MemKind::PacketSlice, .. }, .. }) => slices,
                Value::Ptr(Ptr { base: Base::Mem { kind: MemKind::MapKey(at), .. }, .. }) => *at == depth,
                _ => false,
            };
            seen |= ends;
            ends.then(|| Value::num(Scalar::unknown(), NONE))
        });
        if seen {
            self.facts.address_seen();
        }
    }

    fn check_return(&mut self, r0: &Value, max: u64) -> Result<(), Fail> {
        match r0 {
            Value::Num(n) if n.s.umax() <= max => {
                self.graph.mark(n.def);
                Ok(())
            }
            _ => fail!(
                ReturnValue,
                "a callback returns 0{}; here {}",
                if max > 0 { " or 1" } else { "" },
                crate::show::value(r0)
            )
            .map_err(|e| e.reg(0)),
        }
    }

    /// A helper that calls a function of the program: never, once, or many times.
    pub fn call_back(
        &mut self,
        st: &mut State,
        proto: &HelperProto,
        args: &CallArgs,
        start: usize,
        kind: Callback,
        next: usize,
    ) -> Result<Flow, Fail> {
        let Some(func) = self.cfg.func_at(start) else {
            return fail!(BadReference, "no function starts at {start}");
        };
        if kind.is_async() {
            self.queue_async(func, args)?;
            self.after_call(st, proto, args)?;
            return Ok(Flow::Next(next));
        }
        if !matches!(kind, Callback::Loop | Callback::MapElem) {
            return fail!(Unsupported, "{} is not supported", proto.name);
        }
        if st.frame().callback_loop == 0 {
            let id = self.id();
            st.frame_mut().callback_loop = id;
        }
        let turns = st.frame().callback_turns;
        if let (Callback::Loop, Value::Num(n)) = (kind, *st.reg(Reg::R1))
            && u64::from(turns) >= n.s.umax()
        {
            self.graph.mark(n.def);
            st.frame_mut().callback_loop = 0;
            st.frame_mut().callback_turns = 0;
            self.after_call(st, proto, args)?;
            return Ok(Flow::Next(next));
        }
        // The function may run once more ...
        let map = args.map;
        self.called_back[func] = true;
        let mut body = st.clone();
        if self.count_turns && kind == Callback::Loop {
            body.frame_mut().callback_turns = turns.saturating_add(1);
        }
        let id = self.id();
        let depth = body.depth() as u8 + 1;
        let value = map.map(|m| self.callback_map_args(&m, id, depth));
        let ret_max = kind.max_return();
        self.enter(
            &mut body,
            func,
            FrameKind::Callback { ret_max, keyed: kind == Callback::MapElem },
            |caller, frame| match (kind, value) {
                (Callback::MapElem, Some([m, k, v])) => {
                    frame.regs[1] = m;
                    frame.regs[2] = k;
                    frame.regs[3] = v;
                    frame.regs[4] = caller.regs[3];
                }
                _ => {
                    frame.regs[1] = Value::num(Scalar::of_bits(32), NONE);
                    frame.regs[2] = caller.regs[3];
                }
            },
        )?;
        self.note_branch(&mut body, st.pc, true);
        self.note_branch(st, st.pc, false);
        self.push(body)?;
        // ... or the helper returns. That is walked first: it shows which numbers the loop must keep apart.
        st.frame_mut().callback_loop = 0;
        st.frame_mut().callback_turns = 0;
        self.after_call(st, proto, args)?;
        Ok(Flow::Next(next))
    }

    /// map, key, value as a callback gets them whose frame is the one with this number.
    fn callback_map_args(&self, m: &MapRef, id: u32, depth: u8) -> [Value; 3] {
        let key_size = self.map_spec(m).map_or(0, |s| s.key_size);
        let key = Base::Mem { size: key_size, kind: MemKind::MapKey(depth), read_only: true };
        [
            Value::Ptr(Ptr::to(Base::Map(*m))),
            Value::Ptr(Ptr::to(key)),
            Value::Ptr(Ptr { id, ..Ptr::to(Base::MapValue(*m)) }),
        ]
    }

    /// A function that runs later is analysed once for each map that it can be called for.
    fn queue_async(&mut self, func: usize, args: &CallArgs) -> Result<(), Fail> {
        let Some(map) = args.map else { return fail!(Argument, "the timer does not lie in a map value") };
        if self.async_done.contains(&(func, map.index)) {
            return Ok(());
        }
        self.async_done.push((func, map.index));
        let mut st = self.fresh(func, FrameKind::Async);
        let id = self.id();
        let [m, key, v] = self.callback_map_args(&map, id, 0);
        let regs = &mut st.frame_mut().regs;
        (regs[1], regs[2], regs[3]) = (m, key, v);
        self.push(st)
    }

    /// The first tail call in a function, dead ones included.
    fn tail_call_in(&self, func: usize) -> Option<usize> {
        let f = &self.cfg.funcs[func];
        let leaves = |i: &Insn| helper_of(i).is_some_and(HelperProto::is_tail_call);
        (f.start..f.end).find(|pc| self.cfg.insn(*pc).is_some_and(leaves))
    }

    /// Stack of the deepest chain of calls, each frame rounded up as Linux rounds it.
    pub fn check_stack_depth(&mut self) -> Result<(), Fail> {
        let own = |v: &Self, f: usize| {
            // The counter of may_goto is not counted, as Linux does not since 6.16.
            (v.facts.stack[f] + 15) / 16 * 16
        };
        // A timer's function has a stack of its own.
        let later = |c: usize| self.async_done.iter().any(|a| a.0 == c) && !self.called_back[c];
        let callees: Vec<Vec<usize>> = self
            .cfg
            .funcs
            .iter()
            .map(|f| {
                let taken = f.takes.iter().copied().filter(|c| !later(*c));
                let mut all: Vec<usize> = f.calls.iter().map(|c| c.1).chain(taken).collect();
                all.sort_unstable();
                all.dedup();
                all
            })
            .collect();
        // How much the chains of so many frames need at most that end in each function. A chain may begin anywhere.
        let mut level: Vec<Option<i64>> = (0..callees.len()).map(|f| Some(own(self, f))).collect();
        let mut deepest = 0;
        for depth in 1..=FRAMES_MAX {
            let mut next = vec![None; callees.len()];
            for (f, total) in level.iter().enumerate().filter_map(|(f, t)| Some((f, (*t)?))) {
                let above = total - own(self, f);
                if above >= ABOVE_TAIL_CALL
                    && let Some(at) = self.tail_call_in(f)
                {
                    return fail!(
                        StackDepth,
                        "the callers of this function have {above} bytes of stack; a tail call needs less than \
                         {ABOVE_TAIL_CALL} above it"
                    )
                    .map_err(|e| {
                        e.at(at).hint(
                            "move large variables of the callers into a per-CPU array map, or tail-call before them",
                        )
                    });
                }
                deepest = deepest.max(total);
                if total > STACK_MAX {
                    return fail!(
                        StackDepth,
                        "a chain of {depth} calls needs {total} bytes of stack, more than {STACK_MAX}"
                    )
                    .map_err(|e| {
                        e.at(self.cfg.funcs[f].start)
                            .hint("move large variables into a per-CPU array map, or split the work by tail calls")
                    });
                }
                if depth == FRAMES_MAX && !callees[f].is_empty() {
                    return fail!(StackDepth, "calls are more than {FRAMES_MAX} frames deep, or recursive")
                        .map_err(|e| e.at(self.cfg.funcs[f].start));
                }
                for c in &callees[f] {
                    next[*c] = next[*c].max(Some(total + own(self, *c)));
                }
            }
            level = next;
        }
        self.facts.stack_chain = deepest as u32;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::behind;

    #[test]
    fn a_function_knows_what_its_caller_gives() {
        let text = "r1 = 5\ncall f\nexit\nf: r0 = r1\nr0 += 1\nexit";
        assert_eq!(behind(text, 4), "frame1: R0=6");
    }
}
