//! Checking one argument of a helper call against its prototype.

use xway_abi::{Arg, ArgKind, DynptrKind, FuncAccess, HelperProto, MapType, MemAccess, MemSize, SockKind, SpecialKind};
use xway_isa::Reg;

use crate::api::KeyPlace;
use crate::call::CallArgs;
use crate::diag::{Fail, fail};
use crate::explore::Verifier;
use crate::memory::Access;
use crate::stack::slot_of;
use crate::state::{Byte, State};
use crate::value::{Base, MapRef, MemKind, Ptr, Value};

/// Longest memory that one length argument may ask for (`BPF_MAX_VAR_SIZ`).
const SIZE_MAX: u64 = 1 << 29;

impl Verifier<'_> {
    /// Fails unless register r(i+1) fits; notes in `args` what later arguments and the result need.
    pub(crate) fn check_arg(
        &mut self,
        st: &mut State,
        proto: &HelperProto,
        i: usize,
        arg: Arg,
        args: &mut CallArgs,
    ) -> Result<(), Fail> {
        if matches!(arg.kind, ArgKind::Ignored) {
            return Ok(());
        }
        let reg = Reg::new(i as u8 + 1).expect("prototypes have at most five arguments");
        let v = *self.read(st, reg)?;
        if matches!(arg.kind, ArgKind::Anything) {
            if matches!(v, Value::Ptr(_)) {
                self.facts.address_seen();
            }
            return Ok(());
        }
        let null = v.as_const() == Some(0);
        if null && arg.nullable {
            if let Value::Num(n) = v {
                self.graph.mark(n.def);
            }
            return Ok(());
        }
        match (arg.kind, &v) {
            (ArgKind::Size { zero_ok }, Value::Num(n)) => {
                self.graph.mark(n.def);
                self.check_size(st, proto, i, &n.s, zero_ok, args)
            }
            (ArgKind::Scalar, Value::Num(_)) => Ok(()),
            (ArgKind::ConstScalar, Value::Num(n)) if n.s.as_const().is_some() => {
                self.graph.mark(n.def);
                Ok(())
            }
            (ArgKind::ConstSize, Value::Num(n)) => {
                self.graph.mark(n.def);
                args.alloc = n.s.as_const().and_then(|x| u32::try_from(x).ok());
                if args.alloc.is_none() {
                    return fail!(Unbounded, "the length must be a constant");
                }
                self.check_size(st, proto, i, &n.s, true, args)
            }
            (ArgKind::AllocSize, Value::Num(n)) => {
                self.graph.mark(n.def);
                match n.s.as_const() {
                    Some(x) if x < SIZE_MAX => {
                        args.alloc = Some(x as u32);
                        Ok(())
                    }
                    Some(x) => fail!(Unbounded, "no ring buffer has a record of {} bytes", x as i64),
                    None => fail!(Unbounded, "the length must be a constant")
                        .map_err(|e| e.hint("reserve the largest size and use part of it")),
                }
            }
            (_, Value::Ptr(p)) if p.nullable && !arg.nullable => {
                fail!(Null, "the pointer may be null ({})", p.kind_name())
                    .map_err(|e| e.hint("compare it with null before the call"))
            }
            (kind, Value::Ptr(p)) => self.check_pointer_arg(st, proto, kind, &v, p, args),
            (kind, _) => Err(self.wrong_arg(&v, &kind)),
        }
    }

    fn check_pointer_arg(
        &mut self,
        st: &mut State,
        proto: &HelperProto,
        kind: ArgKind,
        v: &Value,
        p: &Ptr,
        args: &mut CallArgs,
    ) -> Result<(), Fail> {
        match (kind, p.base) {
            (ArgKind::Ctx, Base::Ctx) if p.off == 0 && p.is_fixed() => Ok(()),
            (ArgKind::ConstMap, Base::Map(m)) => self.check_map_arg(proto, m, args),
            (ArgKind::MapKey, _) => {
                let Some(m) = args.map else { return Err(self.wrong_arg(v, &kind)) };
                let size = self.map_spec(&m).map_or(0, |s| s.key_size);
                self.note_key(st, p, size, &m, args);
                self.check_memory(st, proto.pkt_access, p, size, MemAccess::Read)
            }
            (ArgKind::MapValue(access), _) => {
                let Some(m) = args.map else { return Err(self.wrong_arg(v, &kind)) };
                let (size, map_type) = self.map_spec(&m).map_or((0, MapType::Hash), |s| (s.value_size, s.map_type));
                if matches!(map_type, MapType::Sockmap | MapType::Sockhash) {
                    // What such a map takes is a socket, not the bytes of a value.
                    let socket = matches!(p.base, Base::Sock(_)) && p.off == 0 && p.is_fixed();
                    return if socket { Ok(()) } else { Err(self.wrong_arg(v, &kind)) };
                }
                self.check_memory(st, proto.pkt_access, p, size, proto.value_access(access, Some(map_type)))
            }
            (ArgKind::Mem(access, MemSize::Fixed(size)), _) => self.check_memory(st, proto.pkt_access, p, size, access),
            (ArgKind::Mem(access, MemSize::FixedAligned(size)), _) => {
                self.check_aligned(p, 0, size, true)?;
                self.check_memory(st, proto.pkt_access, p, size, access)
            }
            // Checked together with the length that follows.
            (
                ArgKind::Mem(_, MemSize::NextArg),
                Base::Ctx | Base::Map(_) | Base::End | Base::Func(_) | Base::Sock(_),
            ) => Err(self.wrong_arg(v, &kind)),
            (ArgKind::Mem(_, MemSize::NextArg), _) => {
                let local = proto.takes(ArgKind::Dynptr(DynptrKind::Local, FuncAccess::Init));
                if local && !matches!(p.base, Base::MapValue(_)) {
                    return fail!(Argument, "a dynptr can only stand for memory of a map value");
                }
                Ok(())
            }
            (ArgKind::AllocMem { release }, Base::Mem { kind: MemKind::Record, .. }) if p.off == 0 && p.is_fixed() => {
                if release {
                    args.release = p.reference;
                }
                Ok(())
            }
            (ArgKind::SpinLock, Base::MapValue(m)) => self.check_special(&m, p, SpecialKind::SpinLock),
            (ArgKind::Timer, Base::MapValue(m)) => {
                if args.map.is_none() {
                    args.map = Some(m);
                }
                self.check_special(&m, p, SpecialKind::Timer)
            }
            (ArgKind::Func(callback), Base::Func(start)) => {
                args.callback = Some((start as usize, callback));
                Ok(())
            }
            (ArgKind::CallbackCtx, Base::Stack(_)) => Ok(()),
            (ArgKind::ConstStr, Base::MapValue(m)) => self.check_string(&m, p),
            (ArgKind::Dynptr(kind, access), Base::Stack(frame)) => {
                self.check_dynptr(st, p, frame.into(), kind, access, args)
            }
            (ArgKind::Sock { kind: want, release }, Base::Sock(have)) => {
                let fits = want == have || want == SockKind::BtfCommon;
                if !fits || p.off != 0 || !p.is_fixed() {
                    return Err(self.wrong_arg(v, &kind));
                }
                args.reference = p.reference;
                if release {
                    if p.reference == 0 {
                        return fail!(Leak, "the socket carries no reference that could be released");
                    }
                    args.release = p.reference;
                }
                Ok(())
            }
            (ArgKind::Sock { kind: SockKind::BtfCommon, release }, Base::Object(o)) => {
                let common = self.kernel_struct("sock_common")?;
                if !may_be_passed(p, &o) || !self.is_object_of(p, &o, common, false) {
                    return Err(self.wrong_arg(v, &kind));
                }
                if release && p.reference == 0 {
                    return fail!(Leak, "the socket carries no reference that could be released");
                }
                args.reference = p.reference;
                if release {
                    args.release = p.reference;
                }
                Ok(())
            }
            (ArgKind::BtfPtr(name), Base::Object(o)) => {
                let want = self.kernel_struct(name)?;
                if !may_be_passed(p, &o) || !self.is_object_of(p, &o, want, false) {
                    let have = self.object_name(&o);
                    return fail!(Argument, "struct {have} ({}) is given where struct {name} is wanted", p.kind_name());
                }
                Ok(())
            }
            (ArgKind::PercpuBtfPtr, Base::Object(o)) if o.trust == crate::value::Trust::PerCpu => {
                args.object = Some(o);
                Ok(())
            }
            (ArgKind::KptrDest | ArgKind::KptrSource, _) => {
                fail!(Unsupported, "objects of the kernel cannot be kept in maps")
            }
            _ => Err(self.wrong_arg(v, &kind)),
        }
    }

    fn check_map_arg(&mut self, proto: &HelperProto, m: MapRef, args: &mut CallArgs) -> Result<(), Fail> {
        let Some(spec) = self.map_spec(&m) else { return fail!(BadReference, "the map has no description") };
        if !xway_abi::helper_takes_map(proto.id, spec.map_type) {
            return fail!(MapType, "{} does not work on maps of type {}", proto.name, spec.map_type.name());
        }
        // Of a timer argument the map is known already.
        if args.map.is_some_and(|t| t != m) {
            return fail!(Argument, "the timer does not lie in this map");
        }
        args.map = Some(m);
        Ok(())
    }

    /// A length: it and the memory argument before it.
    fn check_size(
        &mut self,
        st: &mut State,
        proto: &HelperProto,
        i: usize,
        s: &crate::domain::Scalar,
        zero_ok: bool,
        args: &mut CallArgs,
    ) -> Result<(), Fail> {
        if s.smin() < 0 {
            return fail!(Unbounded, "the length may be negative ({} to {})", s.smin(), s.smax())
                .map_err(|e| e.hint("use an unsigned type and check it: `if (len > MAX) return …`, or mask it"));
        }
        if s.umax() >= SIZE_MAX {
            return fail!(Unbounded, "the length has no upper bound")
                .map_err(|e| e.hint("check it: `if (len > MAX) return …`, or mask it: `len &= MAX`"));
        }
        if s.umin() == 0 && !zero_ok {
            return fail!(Unbounded, "the length may be zero").map_err(|e| e.hint("check that it is at least 1"));
        }
        args.sizes[i] = Some((s.umin(), s.umax()));
        let Some(ArgKind::Mem(access, MemSize::NextArg)) = i.checked_sub(1).map(|j| proto.args[j].kind) else {
            return Ok(());
        };
        let reg = Reg::new(i as u8).expect("an argument before this one exists");
        match *self.read(st, reg)? {
            Value::Ptr(p) if p.nullable => fail!(Null, "the memory before it may be null ({})", p.kind_name())
                .map_err(|e| e.hint("compare it with null before the call")),
            Value::Ptr(p) if self.fits_in_packet(st, proto.pkt_access, &p, i + 1, access) => Ok(()),
            Value::Ptr(p) => {
                if let (Base::Stack(frame), MemAccess::Write, true) = (p.base, access, s.umin() < s.umax()) {
                    let (lo, hi) = self.stack_extent(st, frame.into(), &p, 0, s.umax() as u32)?;
                    self.written_in_part(st, frame.into(), lo, hi + s.umax() as i64);
                }
                self.check_memory(st, proto.pkt_access, &p, s.umax() as u32, access)
            }
            // Null was allowed above; then nothing may be read through it. A kernel function's optional buffer may be null
            // whatever its length.
            _ if proto.is_kfunc() || s.as_const() == Some(0) || s.umax() == 0 => Ok(()),
            _ => fail!(Null, "the memory before it is null but the length may be {}", s.umax()),
        }
    }

    /// `size` bytes at `p` may be used in this way by a call.
    pub(crate) fn check_memory(
        &mut self,
        st: &mut State,
        packet_ok: bool,
        p: &Ptr,
        size: u32,
        access: MemAccess,
    ) -> Result<(), Fail> {
        if size == 0 {
            return Ok(());
        }
        let (reads, writes) = match access {
            MemAccess::Read => (true, false),
            MemAccess::Write => (false, true),
            MemAccess::ReadWrite => (true, true),
        };
        match p.base {
            Base::Mem { kind: MemKind::XskSocket, .. } => {
                fail!(Argument, "{} is no plain memory", p.kind_name())
            }
            Base::Stack(frame) => {
                let (lo, hi) = self.stack_extent(st, frame.into(), p, 0, size)?;
                let end = hi + i64::from(size);
                if reads {
                    self.stack_use_range(st, frame.into(), lo, end)?;
                }
                if writes {
                    if lo != hi {
                        self.written_in_part(st, frame.into(), lo, end);
                    }
                    self.stack_clobber(st, frame.into(), lo, end)?;
                }
                Ok(())
            }
            Base::Packet | Base::Meta if !packet_ok => fail!(Argument, "this call cannot be given packet memory")
                .map_err(|e| e.hint("copy the bytes to the stack first")),
            Base::Object(o) if !writes || !o.is_foreign() => {
                if reads {
                    self.object_read(p, &o, 0, size)?;
                }
                if writes { self.object_write(p, &o, 0, size) } else { Ok(()) }
            }
            Base::Ctx | Base::Map(_) | Base::Func(_) | Base::Sock(_) | Base::End | Base::Object(_) | Base::Arena => {
                fail!(Argument, "{} is no plain memory", p.kind_name())
            }
            _ => {
                // The call copies byte by byte: no alignment is asked for.
                if reads {
                    self.check_unaligned(p, size, Access::Read)?;
                }
                if writes {
                    self.check_unaligned(p, size, Access::Write)?;
                }
                Ok(())
            }
        }
    }

    /// A packet pointer and a length whose sum is known to lie inside the packet, although neither bound is a constant.
    fn fits_in_packet(&mut self, st: &State, packet_ok: bool, p: &Ptr, length: usize, access: MemAccess) -> bool {
        let n = Reg::new(length as u8).and_then(|r| self.number(st, r));
        let fits = packet_ok && n.is_some_and(|n| self.length_fits(st, p, &n));
        if fits {
            self.facts.packet_access(crate::extent::PACKET_LEN_MAX as u64, access != MemAccess::Read);
        }
        fits
    }

    fn check_unaligned(&mut self, p: &Ptr, size: u32, access: Access) -> Result<(), Fail> {
        // Split into one access of the first byte and one of the last: together they bound the whole.
        self.check_region(p, 0, 1, access)?;
        self.check_region(p, i64::from(size) - 1, 1, access)?;
        self.check_whole(p, size)
    }

    /// A range may not span a field that is not the program's.
    fn check_whole(&mut self, p: &Ptr, size: u32) -> Result<(), Fail> {
        let Base::MapValue(m) = p.base else { return Ok(()) };
        let Some(spec) = self.map_spec(&m) else { return Ok(()) };
        let lo = i64::from(p.off).saturating_add(p.var.smin());
        let hi = i64::from(p.off).saturating_add(p.var.smax()).saturating_add(size.into());
        match spec.special.iter().find(|f| lo < i64::from(f.offset + f.kind.size()) && i64::from(f.offset) < hi) {
            Some(f) => {
                fail!(Permission, "{:?} at offset {} of the value cannot be accessed directly", f.kind, f.offset)
            }
            None => Ok(()),
        }
    }

    fn check_special(&self, m: &MapRef, p: &Ptr, kind: SpecialKind) -> Result<(), Fail> {
        let found = self
            .map_spec(m)
            .is_some_and(|s| s.special.iter().any(|f| f.kind == kind && i64::from(f.offset) == i64::from(p.off)));
        if found && p.is_fixed() {
            Ok(())
        } else {
            fail!(Argument, "there is no {kind:?} at offset {} of the value (the map's BTF tells)", p.off)
        }
    }

    /// A terminated string in memory that nobody can change.
    pub(crate) fn check_string(&mut self, m: &MapRef, p: &Ptr) -> Result<(), Fail> {
        let terminated = p.is_fixed()
            && usize::try_from(p.off)
                .is_ok_and(|off| self.map_constant(m).and_then(|d| d.get(off..)).is_some_and(|d| d.contains(&0)));
        if terminated {
            Ok(())
        } else {
            fail!(Argument, "the string must lie, with its final zero, in a frozen read-only map")
                .map_err(|e| e.hint("declare it `static const char fmt[] = \"…\";`"))
        }
    }

    pub(crate) fn check_dynptr(
        &mut self,
        st: &mut State,
        p: &Ptr,
        frame: usize,
        kind: DynptrKind,
        access: FuncAccess,
        args: &mut CallArgs,
    ) -> Result<(), Fail> {
        if !p.is_fixed() || p.off % 8 != 0 {
            return fail!(Argument, "a dynptr lies at a constant, aligned offset of the stack");
        }
        let (lo, _) = self.stack_extent(st, frame, p, 0, 16)?;
        let first = slot_of(lo).0;
        let slots = [first, first - 1];
        let held = |st: &State, i: usize| st.frames[frame].stack.get(i).copied().unwrap_or_default();
        match access {
            FuncAccess::Init => {
                slots.iter().for_each(|i| self.end_dynptr(st, frame, *i));
                if slots.iter().any(|i| held(st, *i).shared || held(st, *i).bytes.contains(&Byte::Special)) {
                    return fail!(Argument, "the stack there holds a dynptr or an iterator already");
                }
                self.stack_clobber(st, frame, lo, lo + 16)?;
                args.init = Some((frame, first, kind));
                Ok(())
            }
            FuncAccess::Use | FuncAccess::Release => {
                let (a, b) = (held(st, first), held(st, first - 1));
                self.graph.mark(a.live);
                self.graph.mark(b.live);
                match (a.spill, b.spill) {
                    (Value::Dynptr(d), Value::Dynptr(e)) if d.part == 0 && e.part == 1 && d.id == e.id => {
                        if kind != DynptrKind::Any && kind != d.kind {
                            return fail!(Argument, "the dynptr is of another kind ({:?})", d.kind);
                        }
                        args.dynptr = Some(d);
                        if access == FuncAccess::Release {
                            args.release = d.reference;
                        }
                        Ok(())
                    }
                    _ => fail!(Argument, "there is no initialised dynptr"),
                }
            }
        }
    }

    fn note_key(&mut self, st: &State, p: &Ptr, size: u32, m: &MapRef, args: &mut CallArgs) {
        args.key = match p.base {
            Base::Stack(f) if usize::from(f) != st.depth() => Some(KeyPlace::OuterStack),
            // Somewhere on its own stack: no one place.
            Base::Stack(_) => p.is_fixed().then_some(KeyPlace::Stack(p.off)),
            Base::Packet | Base::Meta => Some(KeyPlace::Packet),
            Base::MapValue(_) => Some(KeyPlace::MapValue),
            _ => Some(KeyPlace::Other),
        };
        let array = self.map_spec(m).is_some_and(|s| {
            matches!(s.map_type, xway_abi::MapType::Array | xway_abi::MapType::PercpuArray) && size == 4
        });
        if let (Base::Stack(f), true, true) = (p.base, array, p.is_fixed())
            && (-512..=-4).contains(&p.off)
            && p.off % 4 == 0
        {
            let (i, first) = slot_of(p.off.into());
            let Some(slot) = st.frames[usize::from(f)].stack.get(i) else { return };
            let zero = slot.bytes[first..first + 4].iter().all(|b| *b == Byte::Zero);
            if zero {
                self.graph.mark(slot.zeros);
                args.key_const = Some(0);
            } else if let Value::Num(n) = slot.spill
                && first == 0
                && slot.spill_len() == 4
                && let Some(x) = n.s.truncate(32).as_const()
            {
                self.graph.mark(n.def);
                args.key_const = Some(x as u32);
            }
        }
    }
}

/// A pointer to an object that a helper may be given: not one that may point anywhere.
fn may_be_passed(p: &Ptr, o: &crate::value::Object) -> bool {
    use crate::value::Trust;
    p.reference != 0 || matches!(o.trust, Trust::Trusted | Trust::Rcu | Trust::Plain)
}

#[cfg(test)]
mod tests {
    use crate::Kind;
    use crate::testing::check;

    #[test]
    fn a_key_lies_on_the_functions_own_stack_or_on_another() {
        use crate::api::KeyPlace;
        let maps = [xway_object::MapDef::new("m", xway_abi::MapSpec::new(xway_abi::MapType::Hash, 8, 8, 4))];
        let key = |text: &str| {
            let proof = check(text, &maps).unwrap_or_else(|r| panic!("{:#?}\n{text}", r.errors));
            let calls = &proof.facts().calls;
            calls.iter().find(|c| c.helper == 1).expect("a look-up").key
        };
        let look = "r1 = map[idx:0]\ncall bpf_map_lookup_elem\nr0 = 0\nexit";
        assert_eq!(key(&format!("r2 = r10\nr2 += -16\n{look}")), Some(KeyPlace::Stack(-16)));
        assert_eq!(key(&format!("r3 = *(u32 *)(r1 +16)\nr3 &= 7\nr2 = r10\nr2 += -16\nr2 += r3\n{look}")), None);
        assert_eq!(key(&format!("r2 = r10\nr2 += -16\ncall f\nexit\nf: {look}")), Some(KeyPlace::OuterStack));
    }

    #[test]
    fn memory_has_as_many_bytes_as_the_length_says() {
        let call = |len: u32| {
            check(
                &format!("r1 = 0\nr2 = 0\nr3 = r10\nr3 += -8\nr4 = {len}\nr5 = 0\ncall bpf_csum_diff\nr0 = 0\nexit"),
                &[],
            )
        };
        assert!(call(8).is_ok());
        assert_eq!(call(16).unwrap_err().errors[0].kind, Kind::StackBounds);
    }
}
