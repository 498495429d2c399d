//! Helper calls: what the prototype demands, what the call leaves behind.

use std::rc::Rc;

use xway_abi::{Arg, ArgKind, Callback, Effect, HelperProto, MapType, Ret, map_flags};
use xway_isa::Reg;

use crate::api::{CallFact, KeyPlace};
use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::{Flow, Verifier};
use crate::graph::{Def, NONE};
use crate::state::{Byte, Frame, Reference, State};
use crate::value::{Base, Dynptr, MapRef, MemKind, Object, Ptr, Trust, Value};

/// Why no program that calls this helper is accepted, although Linux accepts some: read from what its prototype asks for.
pub fn unsupported(proto: &HelperProto) -> Option<&'static str> {
    let why = |a: &Arg| match a.kind {
        ArgKind::KptrDest | ArgKind::KptrSource => {
            Some("pointers to objects of the kernel in map values are not followed")
        }
        ArgKind::Func(Callback::UserRingbuf) => Some("the callback's dynptr is not followed"),
        ArgKind::Func(Callback::Vma) => Some("the callback's view of an address space is not followed"),
        _ => None,
    };
    proto.args.iter().find_map(why)
}

/// True when what the helper takes or gives is an object of the kernel: such a program can be proved, and nothing but a kernel
/// can run it. Linking it for the engine fails.
pub fn needs_kernel_objects(proto: &HelperProto) -> bool {
    let takes = |a: &Arg| !a.nullable && matches!(a.kind, ArgKind::BtfPtr(_) | ArgKind::PercpuBtfPtr);
    matches!(proto.ret, Ret::BtfPtr { .. } | Ret::PercpuBtfPtr { .. }) || proto.args.iter().any(takes)
}

/// What the arguments of one call turned out to be.
#[derive(Default)]
pub(crate) struct CallArgs {
    /// The map argument.
    pub map: Option<MapRef>,
    /// Where the key lies.
    pub key: Option<KeyPlace>,
    /// The key, when it is a constant of four bytes.
    pub key_const: Option<u32>,
    /// Bounds of each argument that is a length.
    pub sizes: [Option<(u64, u64)>; 5],
    /// The constant length of memory to be allocated.
    pub alloc: Option<u32>,
    /// The callback's first instruction and its kind.
    pub callback: Option<(usize, Callback)>,
    /// The reference that the call releases.
    pub release: u32,
    /// The reference of the socket argument.
    pub reference: u32,
    /// The per-CPU object argument.
    pub object: Option<Object>,
    /// A dynptr argument that is used.
    pub dynptr: Option<Dynptr>,
    /// Slot that the call makes a dynptr: frame, slot of the first half, kind.
    pub init: Option<(usize, usize, xway_abi::DynptrKind)>,
}

impl Verifier<'_> {
    /// `call helper`
    pub fn call_helper(&mut self, st: &mut State, id: u32, next: usize) -> Result<Flow, Fail> {
        let proto = self.allowed_helper(st, id)?;
        self.facts.arguments(st.pc, &st.frame().regs, st.depth());
        let mut args = CallArgs::default();
        for (i, arg) in proto.args.iter().enumerate() {
            self.check_arg(st, proto, i, *arg, &mut args).map_err(|e| {
                let mut e = e.reg(i + 1);
                e.message = format!("argument {} of {}: {}", i + 1, proto.name, e.message);
                e
            })?;
        }
        self.facts.call(
            CallFact {
                insn: st.pc,
                helper: id,
                map: args.map.filter(|m| !m.inner).map(|m| m.index),
                key: args.key,
                key_const: args.key_const,
                sizes: args.sizes,
            },
            proto.is_tail_call(),
        );
        if proto.is_tail_call() {
            self.may_leave(st)?;
            self.tail_call_returns(st)?;
        }
        if let Some((start, kind)) = args.callback {
            return self.call_back(st, proto, &args, start, kind, next);
        }
        self.effect(st, proto, &args)?;
        self.after_call(st, proto, &args)?;
        Ok(Flow::Next(next))
    }

    fn allowed_helper(&mut self, st: &State, id: u32) -> Result<&'static HelperProto, Fail> {
        if let Some(p) = self.program.poisons.iter().find(|p| p.insn == st.pc) {
            return fail!(BadReference, "{}", p.reason);
        }
        let Some(proto) = xway_abi::helper(id) else {
            return fail!(BadCall, "there is no helper with number {id}");
        };
        if !proto.xdp {
            return fail!(BadCall, "{} cannot be called by XDP programs", proto.name);
        }
        if proto.might_sleep {
            return fail!(BadCall, "{} may sleep, and XDP programs must not", proto.name);
        }
        if proto.gpl_only && !self.view.gpl() {
            return fail!(
                BadCall,
                "{} may only be called by programs with a licence compatible with the GPL",
                proto.name
            )
            .map_err(|e| e.hint("declare it: char LICENSE[] SEC(\"license\") = \"GPL\";"));
        }
        if matches!(self.program.kind, xway_object::ProgramKind::Raw) {
            return fail!(BadCall, "programs over plain memory call no helpers ({})", proto.name);
        }
        if st.lock.is_some() && proto.effect != Effect::Unlocks {
            return fail!(Lock, "{} is called while a spin lock is held", proto.name)
                .map_err(|e| e.hint("only memory of the element may be used until bpf_spin_unlock"));
        }
        Ok(proto)
    }

    /// Fails when references or a lock are held.
    pub fn nothing_held(&self, st: &State, what: &str) -> Result<(), Fail> {
        if let Some(lock) = &st.lock {
            return fail!(Lock, "{what} while the spin lock taken at instruction {} is held", lock.insn)
                .map_err(|e| e.hint("call bpf_spin_unlock on every path"));
        }
        if let Some(r) = st.refs.first() {
            let (_, line, _) = crate::diag::place(self.program, r.insn);
            let at = if line > 0 { format!("line {line}") } else { format!("instruction {}", r.insn) };
            return fail!(Leak, "{what} while {} from {at} is not released", r.what)
                .map_err(|e| e.hint("release it on every path, error paths included"));
        }
        Ok(())
    }

    /// What the call does beside its arguments and its result.
    fn effect(&mut self, st: &mut State, proto: &HelperProto, args: &CallArgs) -> Result<(), Fail> {
        match proto.effect {
            Effect::Locks => {
                if let Some(l) = &st.lock {
                    return fail!(Lock, "a second spin lock is taken; instruction {} took one already", l.insn);
                }
                let Value::Ptr(p) = *st.reg(Reg::R1) else { return Ok(()) };
                st.lock = Some(crate::state::Lock { ptr: p, insn: st.pc });
            }
            Effect::Unlocks => {
                let Value::Ptr(p) = *st.reg(Reg::R1) else { return Ok(()) };
                match &st.lock {
                    Some(l) if l.ptr.base == p.base && l.ptr.id == p.id => st.lock = None,
                    Some(_) => return fail!(Lock, "the lock that is released is not the one that is held"),
                    None => return fail!(Lock, "no spin lock is held"),
                }
            }
            Effect::ChangesMap => {
                let spec = args.map.and_then(|m| self.map_spec(&m));
                if let (Some(m), true) = (args.map, spec.is_some_and(|s| s.flags & map_flags::RDONLY_PROG != 0)) {
                    let name = crate::show::map(&m, self.view.maps);
                    return fail!(Permission, "{name} is changed, which programs can only read")
                        .map_err(|e| e.reg(1).hint("take BPF_F_RDONLY_PROG away from the map, or change another one"));
                }
            }
            Effect::None
            | Effect::StoresPacket
            | Effect::Finds
            | Effect::Peeks
            | Effect::TailCall
            | Effect::Redirects
            | Effect::RedirectsOr(_) => {}
        }
        if args.release != 0 {
            self.release(st, args.release)?;
        }
        Ok(())
    }

    /// A reference ends: whatever carries it is a plain number from now on.
    pub fn release(&mut self, st: &mut State, reference: u32) -> Result<(), Fail> {
        let before = st.refs.len();
        st.refs.retain(|r| r.id != reference);
        if st.refs.len() == before {
            return fail!(Leak, "the reference was released before");
        }
        self.note_addresses(st, |p| p.reference == reference);
        st.replace(|v| match v {
            Value::Ptr(p) if p.reference == reference => Some(Value::num(Scalar::unknown(), NONE)),
            _ => None,
        });
        for i in 0..st.frames.len() {
            let holds = |s: &crate::state::Slot| matches!(s.spill, Value::Dynptr(d) if d.reference == reference);
            if st.frames[i].stack.iter().any(holds) {
                for slot in st.frame_at(i).stack.iter_mut().filter(|s| holds(s)) {
                    slot.bytes = [Byte::Misc; 8];
                    slot.spill = Value::Uninit;
                }
            }
        }
        Ok(())
    }

    /// Registers and memory after the call: r1 to r5 are gone, r0 is the result.
    pub fn after_call(&mut self, st: &mut State, proto: &HelperProto, args: &CallArgs) -> Result<(), Fail> {
        if proto.changes_packet {
            self.packet_moves(st);
        }
        let result = self.result(st, proto, args)?;
        self.make_dynptr(st, args);
        let regs = &mut st.frame_mut().regs;
        regs[0] = result;
        regs[1..6].fill(Value::Uninit);
        Ok(())
    }

    /// Makes the dynptr that an argument asks for.
    pub(crate) fn make_dynptr(&mut self, st: &mut State, args: &CallArgs) {
        if let Some((frame, slot, kind)) = args.init {
            let id = self.id();
            let reference = match args.dynptr {
                // A copy stands for the record of the one that it was made of: whichever is given back, both end.
                Some(original) => original.reference,
                None if kind == xway_abi::DynptrKind::Ringbuf => {
                    st.refs.push(Reference { id, insn: st.pc, what: "the ring buffer record" });
                    id
                }
                None => 0,
            };
            for part in 0..2u8 {
                let s = st.frame_at(frame).slot_mut(slot - usize::from(part));
                s.bytes = [Byte::Special; 8];
                s.spill = Value::Dynptr(Dynptr { kind, id, reference, part });
            }
        }
    }

    /// Pointers that are about to become numbers: those that are kept for later may be used as such, by callers too.
    pub(crate) fn note_addresses(&mut self, st: &State, ends: impl Fn(&Ptr) -> bool) {
        let last = st.depth();
        let kept = |(i, frame): (usize, &Rc<Frame>)| {
            let at = if i == last { st.pc } else { st.frames[i + 1].callsite };
            let live = self.cfg.live.get(at + 1).copied().unwrap_or(0);
            let wanted = |r: usize| live >> r & 1 != 0 && frame.regs[r].as_ptr().is_some_and(&ends);
            (0..10).any(wanted) || frame.stack.iter().any(|s| s.spilled_ptr().is_some_and(&ends))
        };
        if st.frames.iter().enumerate().any(kept) {
            self.facts.address_seen();
        }
    }

    /// Every packet pointer becomes a worthless number.
    pub fn packet_moves(&mut self, st: &mut State) {
        self.facts.packet_moved();
        st.extent.forget();
        let stale = self.graph.stale(st.pc);
        self.note_addresses(st, Ptr::is_packet);
        st.replace(|v| match v {
            Value::Ptr(p) if p.is_packet() => Some(Value::num(Scalar::unknown(), stale)),
            _ => None,
        });
    }

    fn result(&mut self, st: &mut State, proto: &HelperProto, args: &CallArgs) -> Result<Value, Fail> {
        let nullable = |v: &mut Self, base| Ptr { nullable: true, id: v.id(), ..Ptr::to(base) };
        Ok(match proto.ret {
            Ret::Integer => Value::num(Scalar::unknown(), self.verdict_of(st, proto.effect)),
            Ret::CpuNumber => Value::num(Scalar::between(0, u64::from(xway_abi::CPUS_MAX) - 1), NONE),
            Ret::LengthOrError => {
                let most = args.sizes.iter().flatten().map(|s| s.1).max();
                let most = most.and_then(|n| i64::try_from(n).ok()).unwrap_or(i64::MAX);
                Value::num(Scalar::between_signed(-4095, most), NONE)
            }
            // A tail call that fails, too: r0 then holds whatever was there.
            Ret::Void => Value::Uninit,
            Ret::MapValueOrNull => self.looked_up(st, proto, args)?,
            Ret::AllocMemOrNull => {
                let size = args.alloc.unwrap_or(0);
                let mut p = nullable(self, Base::Mem { size, kind: MemKind::Record, read_only: false });
                p.reference = p.id;
                st.refs.push(Reference { id: p.id, insn: st.pc, what: "the ring buffer record" });
                Value::Ptr(p)
            }
            Ret::DynptrDataOrNull => {
                let size = args.alloc.unwrap_or(0);
                let mut p = nullable(self, Base::Mem { size, kind: MemKind::Slice, read_only: false });
                p.reference = args.dynptr.map_or(0, |d| d.owner());
                Value::Ptr(p)
            }
            Ret::SockOrNull { kind, acquire } => {
                let mut p = nullable(self, Base::Sock(kind));
                if acquire {
                    p.reference = p.id;
                    st.refs.push(Reference { id: p.id, insn: st.pc, what: "the socket" });
                }
                Value::Ptr(p)
            }
            Ret::BtfPtr { name, nullable, trusted } => {
                let trust = if trusted { Trust::Trusted } else { Trust::Plain };
                let mut p = self.kernel_pointer(name, trust, nullable)?;
                // Another view of a socket ends with the socket.
                p.reference = args.reference;
                self.facts.kernel_object(proto.name);
                Value::Ptr(p)
            }
            Ret::PercpuBtfPtr { nullable } => {
                let Some(o) = args.object else { return fail!(Argument, "{} needs a per-CPU variable", proto.name) };
                self.facts.kernel_object(proto.name);
                let id = if nullable { self.id() } else { 0 };
                Value::Ptr(Ptr { nullable, id, ..Ptr::to(Base::Object(Object { trust: Trust::Plain, ..o })) })
            }
            Ret::KptrOrNull => return fail!(Unsupported, "objects of the kernel cannot be kept in maps"),
        })
    }

    /// Result of a look-up.
    fn looked_up(&mut self, st: &mut State, proto: &HelperProto, args: &CallArgs) -> Result<Value, Fail> {
        let Some(map) = args.map else { return fail!(Argument, "{} needs a map", proto.name) };
        let Some(spec) = self.map_spec(&map) else { return fail!(BadReference, "the map has no description") };
        let (map_type, entries, flags, has_inner) = (spec.map_type, spec.max_entries, spec.flags, spec.inner.is_some());
        let id = self.id();
        let base = match map_type {
            MapType::ArrayOfMaps | MapType::HashOfMaps => {
                if map.inner || !has_inner {
                    return fail!(BadReference, "the map of maps has no description of its inner maps");
                }
                Base::Map(MapRef { inner: true, uid: id, ..map })
            }
            // `struct bpf_xdp_sock`: the queue number.
            MapType::Xskmap => Base::Mem { size: 4, kind: MemKind::XskSocket, read_only: true },
            MapType::Sockmap | MapType::Sockhash => {
                st.refs.push(Reference { id, insn: st.pc, what: "the socket" });
                let p = Ptr { nullable: true, id, reference: id, ..Ptr::to(Base::Sock(xway_abi::SockKind::Sock)) };
                return Ok(Value::Ptr(p));
            }
            _ => Base::MapValue(map),
        };
        // The maps inside a map have the template's number of entries where `map_meta_equal` asks for it: plain arrays,
        // unless they say that they may differ.
        let in_array = match map_type {
            MapType::Array => !map.inner || flags & map_flags::INNER_MAP == 0,
            MapType::PercpuArray => !map.inner,
            _ => false,
        };
        let certain = in_array && proto.effect == Effect::Finds && args.key_const.is_some_and(|k| k < entries);
        Ok(Value::Ptr(Ptr { nullable: !certain, id, ..Ptr::to(base) }))
    }

    /// Redirect helpers give known actions.
    fn verdict_of(&mut self, st: &State, effect: Effect) -> Def {
        match effect {
            Effect::Redirects => self.graph.verdict_set(0b10001),
            Effect::RedirectsOr(arg) => {
                let fallback = match st.frame().regs[usize::from(arg) + 1] {
                    Value::Num(n) if let Some(flags) = n.s.as_const() => {
                        self.graph.mark(n.def);
                        1 << (flags & 3)
                    }
                    _ => 0b1111,
                };
                self.graph.verdict_set(0b10001 | fallback)
            }
            _ => NONE,
        }
    }

    /// The kind that an argument must have does not fit.
    pub(crate) fn wrong_arg(&self, v: &Value, want: &ArgKind) -> Fail {
        let got = crate::show::value(v);
        Fail::new(crate::diag::Kind::Argument, format!("{got} is given where {} is wanted", words(want)))
    }
}

/// An argument kind in words.
fn words(kind: &ArgKind) -> &'static str {
    match kind {
        ArgKind::Anything => "a value",
        ArgKind::Ctx => "the context",
        ArgKind::ConstMap => "a map",
        ArgKind::MapKey => "a pointer to a key",
        ArgKind::MapValue(_) => "a pointer to a value",
        ArgKind::Mem(..) => "a pointer to memory",
        ArgKind::Size { .. } => "a length",
        ArgKind::AllocSize => "a constant length",
        ArgKind::AllocMem { .. } => "a ring buffer record",
        ArgKind::SpinLock => "a pointer to a bpf_spin_lock in a map value",
        ArgKind::Timer => "a pointer to a bpf_timer in a map value",
        ArgKind::Func(_) => "a static function",
        ArgKind::CallbackCtx => "a pointer to the stack, or null",
        ArgKind::ConstStr => "a string in a read-only map",
        ArgKind::Dynptr(..) => "a dynptr on the stack",
        ArgKind::KptrDest | ArgKind::KptrSource => "a pointer to a kernel object in a map value",
        ArgKind::Sock { .. } => "a socket",
        ArgKind::BtfPtr(_) | ArgKind::PercpuBtfPtr => "an object of the kernel",
        ArgKind::Scalar => "a number",
        ArgKind::ConstScalar => "a constant",
        ArgKind::ConstSize => "a constant length",
        ArgKind::Ignored => "anything",
        ArgKind::Iter(..) => "an iterator on the stack",
        ArgKind::IrqFlag(_) => "an interrupt state on the stack",
        ArgKind::ResSpinLock => "a pointer to a bpf_res_spin_lock",
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::behind;

    #[test]
    fn a_call_leaves_its_result_and_destroys_its_arguments() {
        let text = "r6 = r1\ncall bpf_get_prandom_u32\nr6 = r0\nr0 = 0\nexit";
        assert_eq!(behind(text, 1), "R0=scalar()");
        let text = "call bpf_get_prandom_u32\nr0 = r1\nexit";
        assert!(crate::testing::check(text, &[]).is_err_and(|r| r.errors[0].kind == crate::Kind::Uninitialised));
    }
}
