//! Loads and stores: which memory a pointer may touch.

use xway_abi::{CtxValue, SockKind, XdpAttach, map_flags};
use xway_isa::{AtomicOp, Operand, Reg, Size};

use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::Verifier;
use crate::graph::NONE;
use crate::state::State;
use crate::value::{Base, MapRef, MemKind, Ptr, Value};

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
}

impl Access {
    fn verb(self) -> &'static str {
        if self == Access::Read { "read" } else { "write" }
    }
}

impl Verifier<'_> {
    /// `dst = *(size *)(base + off)`
    pub fn load(
        &mut self,
        st: &mut State,
        size: Size,
        signed: bool,
        dst: Reg,
        base: Reg,
        off: i16,
    ) -> Result<(), Fail> {
        self.writable(dst)?;
        let p = self.pointer(st, base)?;
        self.facts.access(st.pc, &p, off.into(), st.depth());
        self.one_kind_here(st.pc, &p).map_err(|e| e.reg(base.index()))?;
        let mut v = self.read_memory(st, &p, off.into(), size.bytes()).map_err(|e| e.reg(base.index()))?;
        if signed {
            v = match v {
                Value::Num(n) => {
                    let def = self.graph.op(n.def, NONE);
                    Value::num(n.s.sign_extend(size.bytes() * 8, 64), def)
                }
                Value::Lost => v,
                _ => {
                    return fail!(Context, "a sign-extending load cannot load a pointer")
                        .map_err(|e| e.reg(base.index()));
                }
            };
        }
        st.set(dst, v);
        Ok(())
    }

    /// `*(size *)(base + off) = src`
    pub fn store(&mut self, st: &mut State, size: Size, base: Reg, off: i16, src: Operand) -> Result<(), Fail> {
        let value = self.operand(st, src)?;
        let p = self.pointer(st, base)?;
        self.facts.access(st.pc, &p, off.into(), st.depth());
        self.one_kind_here(st.pc, &p).map_err(|e| e.reg(base.index()))?;
        let value = match value {
            Value::Num(n) => {
                let s = n.s.truncate(size.bytes() * 8);
                if s == n.s { Value::Num(n) } else { Value::num(s, self.graph.op(n.def, NONE)) }
            }
            v => v,
        };
        if let (Value::Num(n), Operand::Reg(r), Base::Stack(_)) = (value, src, p.base)
            && n.link == 0
            && n.s.as_const().is_none()
            && n.s.truncate(size.bytes() * 8) == n.s
            && *st.reg(r) == value
        {
            // The spilled copy and the register stay the same number.
            let linked = crate::value::Num { link: self.id(), ..n };
            st.set(r, Value::Num(linked));
            return self
                .write_memory(st, &p, off.into(), size.bytes(), Some(Value::Num(linked)))
                .map_err(|e| e.reg(base.index()));
        }
        self.write_memory(st, &p, off.into(), size.bytes(), Some(value)).map_err(|e| e.reg(base.index()))
    }

    /// Atomic read-modify-write.
    pub fn atomic(
        &mut self,
        st: &mut State,
        size: Size,
        op: AtomicOp,
        base: Reg,
        off: i16,
        src: Reg,
    ) -> Result<(), Fail> {
        let numbers = matches!(self.read(st, src)?, Value::Num(_))
            && (op != AtomicOp::CmpXchg || matches!(self.read(st, Reg::R0)?, Value::Num(_)));
        if !numbers {
            self.facts.address_seen();
        }
        let p = self.atomic_pointer(st, base, off, size)?;
        let old = self.read_memory(st, &p, off.into(), size.bytes()).map_err(|e| e.reg(base.index()))?;
        self.write_memory(st, &p, off.into(), size.bytes(), None).map_err(|e| e.reg(base.index()))?;
        // What is fetched is what was there before, a spilled pointer included; what is there now is some number.
        if !matches!(old, Value::Num(_)) {
            self.facts.address_seen();
        }
        match op {
            AtomicOp::CmpXchg => st.set(Reg::R0, old),
            AtomicOp::Xchg
            | AtomicOp::Add { fetch: true }
            | AtomicOp::Or { fetch: true }
            | AtomicOp::And { fetch: true }
            | AtomicOp::Xor { fetch: true } => {
                self.writable(src)?;
                st.set(src, old);
            }
            _ => {}
        }
        Ok(())
    }

    /// `dst = load_acquire(base + off)`
    pub fn load_acquire(&mut self, st: &mut State, size: Size, dst: Reg, base: Reg, off: i16) -> Result<(), Fail> {
        self.writable(dst)?;
        let p = self.atomic_pointer(st, base, off, size)?;
        self.one_kind_here(st.pc, &p).map_err(|e| e.reg(base.index()))?;
        let v = self.read_memory(st, &p, off.into(), size.bytes()).map_err(|e| e.reg(base.index()))?;
        st.set(dst, v);
        Ok(())
    }

    /// `store_release(base + off, src)`
    pub fn store_release(&mut self, st: &mut State, size: Size, base: Reg, off: i16, src: Reg) -> Result<(), Fail> {
        self.read(st, src)?;
        self.atomic_pointer(st, base, off, size)?;
        self.store(st, size, base, off, Operand::Reg(src))
    }

    /// Atomics work on memory that is the program's own, at aligned addresses (`check_atomic_rmw`).
    fn atomic_pointer(&mut self, st: &State, base: Reg, off: i16, size: Size) -> Result<Ptr, Fail> {
        let p = self.pointer(st, base)?;
        if matches!(p.base, Base::Ctx | Base::Packet | Base::Meta | Base::End | Base::Sock(_) | Base::Map(_)) {
            return fail!(Argument, "atomic operations on {} are not possible", p.kind_name())
                .map_err(|e| e.reg(base.index()));
        }
        self.check_aligned(&p, off.into(), size.bytes(), true).map_err(|e| e.reg(base.index()))?;
        self.facts.access(st.pc, &p, off.into(), st.depth());
        Ok(p)
    }

    /// One instruction cannot reach the context or a socket on one path and other memory on another: what is read there is
    /// not what lies in memory, so that the instruction is translated for the one or for the other
    /// (`reg_type_mismatch` of Linux's verifier).
    fn one_kind_here(&mut self, pc: usize, p: &Ptr) -> Result<(), Fail> {
        let kind = match p.base {
            Base::Ctx => 2,
            Base::Sock(SockKind::Sock) => 3,
            Base::Sock(SockKind::Common) => 4,
            Base::Sock(SockKind::Tcp) => 5,
            Base::Sock(_) => 6,
            Base::Mem { kind: MemKind::XskSocket, .. } => 7,
            Base::Object(_) | Base::Map(_) => 8,
            Base::Arena => 9,
            _ => 1,
        };
        let seen = &mut self.access_kinds[pc];
        if *seen != 0 && *seen != kind {
            return fail!(Argument, "this instruction reaches {} here and other memory on another path", p.kind_name())
                .map_err(|e| e.hint("access them by statements of their own"));
        }
        if *seen == 0 {
            *seen = kind;
            self.guesses.first_access(pc);
        }
        Ok(())
    }

    /// The pointer in a register that is used as an address.
    pub fn pointer(&self, st: &State, r: Reg) -> Result<Ptr, Fail> {
        match self.read(st, r)? {
            Value::Ptr(p) if p.nullable => fail!(Null, "{r} may be null here ({})", p.kind_name()).map_err(|e| {
                e.reg(r.index()).hint(format!("check it first: `if (!ptr) return XDP_PASS;` before the use of {r}"))
            }),
            Value::Ptr(p) => Ok(*p),
            Value::Num(n) => {
                if let Some(insn) = self.graph.stale_since(n.def) {
                    let name = self.call_name(insn);
                    let (_, line, _) = crate::diag::place(self.program, insn);
                    let at = if line > 0 { format!("line {line}") } else { format!("instruction {insn}") };
                    return fail!(Stale, "{r} was a packet pointer until {name} at {at} moved the packet").map_err(
                        |e| {
                            e.reg(r.index()).hint(format!(
                                "after {name} load data and data_end from the context again and repeat the bounds check"
                            ))
                        },
                    );
                }
                fail!(NotAPointer, "{r} is a number and is used as an address").map_err(|e| e.reg(r.index()))
            }
            _ => fail!(NotAPointer, "{r} is used as an address").map_err(|e| e.reg(r.index())),
        }
    }

    fn call_name(&self, insn: usize) -> String {
        match self.cfg.insn(insn) {
            Some(xway_isa::Insn::Call(xway_isa::CallTarget::Helper(id))) => {
                xway_abi::helper(*id).map_or_else(|| format!("helper {id}"), |h| h.name.to_owned())
            }
            _ => "the call".to_owned(),
        }
    }

    /// Reads `size` bytes at `p + off`.
    pub fn read_memory(&mut self, st: &mut State, p: &Ptr, off: i64, size: u32) -> Result<Value, Fail> {
        let unknown = Value::num(Scalar::of_bits(size * 8), NONE);
        match p.base {
            Base::Ctx => self.read_context(p, off, size),
            Base::Stack(frame) => self.stack_read(st, frame.into(), p, off, size),
            Base::MapValue(m) => {
                self.check_region(p, off, size, Access::Read)?;
                Ok(self.constant_at(&m, p, off, size).unwrap_or(unknown))
            }
            Base::Sock(kind) => {
                check_socket(kind, p, off, size)?;
                Ok(unknown)
            }
            Base::End => {
                self.check_end(st, p, off, size, Access::Read)?;
                Ok(unknown)
            }
            Base::Object(o) => self.object_read(p, &o, off, size),
            Base::Map(m) => self.map_object_read(p, &m, off, size),
            Base::Arena => Ok(unknown),
            _ => {
                self.check_region(p, off, size, Access::Read)?;
                Ok(unknown)
            }
        }
    }

    /// Writes `size` bytes at `p + off`; `None` is unknown data.
    pub fn write_memory(&mut self, st: &mut State, p: &Ptr, off: i64, size: u32, v: Option<Value>) -> Result<(), Fail> {
        match p.base {
            Base::Ctx => fail!(Context, "the context cannot be written"),
            Base::Sock(_) => fail!(Permission, "a socket cannot be written"),
            Base::Object(o) => self.object_write(p, &o, off, size),
            Base::Arena => Ok(()),
            Base::Stack(frame) => self.stack_write(st, frame.into(), p, off, size, v),
            Base::End => self.check_end(st, p, off, size, Access::Write),
            _ => {
                if matches!(v, Some(Value::Ptr(_))) {
                    self.facts.address_seen();
                }
                self.check_region(p, off, size, Access::Write)
            }
        }
    }

    /// Fails unless `size` bytes at `p + off` may be accessed. For everything but stack, context and sockets.
    pub fn check_region(&mut self, p: &Ptr, off: i64, size: u32, access: Access) -> Result<(), Fail> {
        self.check_aligned(p, off, size, false)?;
        match p.base {
            Base::Packet | Base::Meta => self.check_packet(p, off, size, access),
            Base::MapValue(m) => self.check_map_value(&m, p, off, size, access),
            Base::Mem { size: len, kind, read_only } => {
                if access == Access::Write && (read_only || matches!(kind, MemKind::MapKey(_))) {
                    return fail!(Permission, "this memory is read-only");
                }
                // Linux gives out its one number whole, and nothing that it lies in (`bpf_xdp_sock_is_valid_access`).
                if kind == MemKind::XskSocket && (!p.is_fixed() || i64::from(p.off) + off != 0 || size != 4) {
                    return fail!(Argument, "of a socket the queue number can be read, as four bytes at offset 0");
                }
                let what = if kind == MemKind::Record { "the ring buffer record" } else { "the memory" };
                check_bounds(p, off, size, len.into(), access).map_err(|why| {
                    Fail::new(crate::diag::Kind::MemoryBounds, format!("{why} of {what}, which has {len} bytes"))
                        .hint("bound the offset, or make the memory larger")
                })?;
                if kind == MemKind::PacketSlice {
                    self.facts.packet_access(0, access == Access::Write);
                }
                Ok(())
            }
            Base::End => fail!(PacketBounds, "data_end points behind the packet: nothing can be accessed through it"),
            Base::Map(_) => fail!(Permission, "a map cannot be accessed directly")
                .map_err(|e| e.hint("look an element up with bpf_map_lookup_elem")),
            Base::Func(_) => fail!(Permission, "a function's instructions cannot be accessed"),
            Base::Object(o) if access == Access::Read => self.object_read(p, &o, off, size).map(|_| ()),
            Base::Object(o) => self.object_write(p, &o, off, size),
            Base::Arena => fail!(Argument, "{} is no plain memory", p.kind_name()),
            Base::Ctx | Base::Sock(_) | Base::Stack(_) => fail!(Argument, "{} is no plain memory", p.kind_name()),
        }
    }

    fn check_packet(&mut self, p: &Ptr, off: i64, size: u32, access: Access) -> Result<(), Fail> {
        let at = i64::from(p.off) + off;
        let end = at + i64::from(size);
        let area = if p.base == Base::Packet { "packet" } else { "metadata" };
        let limit = if p.base == Base::Packet { "data_end" } else { "data" };
        let low = p.var.smin().saturating_add(at);
        if p.var.smin() < 0 || low < 0 {
            return fail!(
                PacketBounds,
                "{} of {} at offset {low} of the {area} may lie before its start",
                access.verb(),
                bytes(size)
            )
            .map_err(|e| e.hint("make the offset unsigned, or check that it is not negative"));
        }
        // In front of the place that the variable part leads to bytes are inside where the place is: which one of which nothing is
        // proved may not be.
        if end > i64::from(p.range) || (at < 0 && p.range == 0) {
            let (needed, proved) = (end.max(1), p.range);
            let missing = if p.is_fixed() {
                format!("`if (ptr + {needed} > {limit}) return …`")
            } else {
                format!(
                    "`if (ptr + {needed} > {limit}) return …` on the pointer with the variable offset already added"
                )
            };
            return fail!(
                PacketBounds,
                "{} of {} at offset {at}{} of the {area}: {}, {proved} are proved",
                access.verb(),
                bytes(size),
                if p.is_fixed() { "" } else { " plus a variable part" },
                if needed == 1 { "1 byte is needed".into() } else { format!("{needed} bytes are needed") }
            )
            .map_err(|e| e.hint(format!("before this access check {missing}")));
        }
        if p.base == Base::Packet {
            let last = p.var.umax().saturating_add_signed(end);
            self.facts.packet_access(last, access == Access::Write);
        } else {
            self.facts.meta_access(access == Access::Write);
        }
        Ok(())
    }

    fn check_map_value(&mut self, m: &MapRef, p: &Ptr, off: i64, size: u32, access: Access) -> Result<(), Fail> {
        let Some(spec) = self.map_spec(m) else {
            return fail!(BadReference, "the map has no description");
        };
        let name = crate::show::map(m, self.view.maps);
        let denied = match access {
            Access::Read => map_flags::WRONLY_PROG,
            Access::Write => map_flags::RDONLY_PROG,
        };
        let device = spec.map_type.is_read_only_to_programs();
        if spec.flags & denied != 0 || (device && access == Access::Write) {
            return fail!(
                Permission,
                "{} of a value of {name}, which programs cannot {}",
                access.verb(),
                access.verb()
            );
        }
        check_bounds(p, off, size, spec.value_size.into(), access).map_err(|why| {
            Fail::new(
                crate::diag::Kind::MapBounds,
                format!("{why} of the value of {name}, which has {} bytes", spec.value_size),
            )
            .hint("bound the index before it is used, for example `if (i >= N) return …` or `i &= N - 1`")
        })?;
        let (lo, hi) = extent(p, off, size);
        for f in &spec.special {
            let (start, end) = (i64::from(f.offset), i64::from(f.offset + f.kind.size()));
            if lo < end && start < hi {
                return fail!(Permission, "{:?} at offset {start} of {name} cannot be accessed directly", f.kind);
            }
        }
        Ok(())
    }

    /// What a frozen read-only map holds there.
    fn constant_at(&mut self, m: &MapRef, p: &Ptr, off: i64, size: u32) -> Option<Value> {
        if !p.is_fixed() {
            return None;
        }
        let at = usize::try_from(i64::from(p.off) + off).ok()?;
        let bytes = self.map_constant(m)?.get(at..at + size as usize)?;
        let mut word = [0u8; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let x = u64::from_le_bytes(word);
        let def = self.graph.constant(x);
        Some(Value::num(Scalar::constant(x), def))
    }

    fn read_context(&mut self, p: &Ptr, off: i64, size: u32) -> Result<Value, Fail> {
        if !p.is_fixed() || p.off != 0 {
            return fail!(
                Context,
                "the context pointer was moved (offset {}); fields are read from the original",
                p.off
            )
            .map_err(|e| e.hint("keep the context pointer as it came in r1"));
        }
        let base = match xway_abi::ctx_field(off, size, self.place()).map(|f| f.value) {
            Some(CtxValue::PacketStart) => Base::Packet,
            Some(CtxValue::PacketEnd) => Base::End,
            Some(CtxValue::MetaStart) => Base::Meta,
            Some(CtxValue::Scalar) => return Ok(Value::num(Scalar::of_bits(32), NONE)),
            None => {
                let elsewhere = xway_abi::ctx_field(off, size, XdpAttach::Devmap).is_some();
                return fail!(
                    Context,
                    "{size} bytes at offset {off} are no field of struct xdp_md that this program may read"
                )
                .map_err(|e| {
                    e.hint(if elsewhere {
                        "egress_ifindex exists only in programs of a device map (section xdp/devmap)"
                    } else {
                        "the fields are 32 bits each, at offsets 0 to 20"
                    })
                });
            }
        };
        if base == Base::Meta {
            self.facts.meta_used();
        }
        Ok(Value::Ptr(Ptr::to(base)))
    }

    /// Fails unless the address is a multiple of `size`, where that is demanded.
    pub fn check_aligned(&self, p: &Ptr, off: i64, size: u32, always: bool) -> Result<(), Fail> {
        // The slots of the stack are tracked in aligned units; elsewhere x86-64 does not mind.
        let strict = always || self.config.strict_alignment || matches!(p.base, Base::Stack(_));
        let pad = if matches!(p.base, Base::Packet | Base::Meta) { 2 } else { 0 };
        let low = p.var.tnum.add(crate::domain::Tnum::constant((i64::from(p.off) + off + pad) as u64), 64);
        if strict && low.max() & u64::from(size - 1) != 0 {
            return fail!(
                Alignment,
                "access of {size} bytes at offset {}{} of {}, which is not a multiple of {size}",
                i64::from(p.off) + off,
                if p.is_fixed() { "" } else { " plus a variable part" },
                p.kind_name()
            );
        }
        Ok(())
    }
}

/// `1 byte`, `4 bytes`.
pub(crate) fn bytes(n: u32) -> String {
    format!("{n} byte{}", if n == 1 { "" } else { "s" })
}

/// First byte and the byte after the last one that an access may touch.
fn extent(p: &Ptr, off: i64, size: u32) -> (i64, i64) {
    let at = i64::from(p.off) + off;
    (at.saturating_add(p.var.smin()), at.saturating_add(p.var.smax()).saturating_add(size.into()))
}

/// The access lies within `len` bytes, or why not.
fn check_bounds(p: &Ptr, off: i64, size: u32, len: i64, access: Access) -> Result<(), String> {
    let (lo, hi) = extent(p, off, size);
    if lo < 0 {
        return Err(format!("{} of {} may start at offset {lo}, before the start", access.verb(), bytes(size)));
    }
    if hi > len {
        return Err(format!("{} of {} may end at offset {hi}, behind the end", access.verb(), bytes(size)));
    }
    Ok(())
}

/// Socket structures are read field by field (`bpf_sock_is_valid_access` and its relatives for the other kinds).
fn check_socket(kind: SockKind, p: &Ptr, off: i64, size: u32) -> Result<(), Fail> {
    let at = i64::from(p.off) + off;
    let inside = p.is_fixed()
        && at >= 0
        && at % i64::from(size) == 0
        && match kind {
            SockKind::Sock => sock_field(at, size),
            // The fields from `type` to `priority` are those of a full socket only.
            SockKind::Common => sock_field(at, size) && !(8..24).contains(&at),
            SockKind::Tcp => match at {
                80 | 88 => size == 8,
                0..112 => size == 4,
                _ => false,
            },
            SockKind::BtfCommon => false,
        };
    if inside { Ok(()) } else { fail!(Context, "{size} bytes at offset {at} are no field of this socket") }
}

/// A field of `struct bpf_sock`, or where it may be read in parts, an aligned part of one.
fn sock_field(at: i64, size: u32) -> bool {
    match at {
        // bound_dev_if, mark, priority: as a whole.
        0..4 | 16..24 => size == 4,
        // dst_port is two bytes and a gap behind it.
        48 => size <= 4,
        49 => size == 1,
        50..52 => false,
        4..80 => size <= 4,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::behind;

    #[test]
    fn a_load_gives_a_number_of_its_size() {
        let start = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 14\nr0 = 0\nif r4 > r3 goto +1\n";
        let text = format!("{start}r0 = *(u16 *)(r2 +12)\nexit");
        let number = "R0=scalar(smin=smin32=0,smax=umax=smax32=umax32=0xffff,var_off=(0x0; 0xffff))";
        assert_eq!(behind(&text, 6), format!("{number} R2=pkt(r=14)"));
    }

    #[test]
    fn what_is_spilled_comes_back() {
        let text = "*(u64 *)(r10 -8) = r1\nr6 = *(u64 *)(r10 -8)\nr0 = *(u32 *)(r6 +16)\nexit";
        assert_eq!(behind(text, 1), "R6=ctx() R10=fp0 fp-8=ctx()");
    }
}
