//! What a register or a stack slot holds.

use xway_abi::{IterKind, SockKind};

use crate::domain::Scalar;
use crate::graph::Def;

/// The content of a register.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Value {
    /// Never written, or clobbered by a call.
    #[default]
    Uninit,
    /// What a refused instruction would have left. Who reads it is refused for the same reason, and nothing more is said.
    Lost,
    /// A number.
    Num(Num),
    /// A pointer.
    Ptr(Ptr),
    /// First of the slots of an open-coded iterator (stack only).
    Iter(Iter),
    /// One of the two slots of a dynptr (stack only).
    Dynptr(Dynptr),
}

/// A number with its history.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Num {
    /// What is known.
    pub s: Scalar,
    /// Numbers with the same non-zero link differ only by their `delta`; a check on one helps the others.
    pub link: u32,
    /// Distance to the others of the link.
    pub delta: i64,
    /// Where it comes from.
    pub def: Def,
}

/// A pointer: an object, a constant offset into it and a variable one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ptr {
    /// What it points into.
    pub base: Base,
    /// Constant part of the offset.
    pub off: i32,
    /// Variable part of the offset; exactly zero when there is none.
    pub var: Scalar,
    /// Packet pointers: those with the same `id` have the same variable part. Nullable pointers: those with the same
    /// `id` are null together. Values with a spin lock: the same element.
    pub id: u32,
    /// Packet pointers: this many bytes after the place with `off` = 0 are known to lie inside the packet.
    pub range: u32,
    /// May be null.
    pub nullable: bool,
    /// The reference that it stands for, 0 for none. Slices of a dynptr without one carry the dynptr's identity.
    pub reference: u32,
}

/// Objects that a pointer may point into.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Base {
    /// The `xdp_md` context.
    Ctx,
    /// The packet, from `data`.
    Packet,
    /// The metadata area, from `data_meta`.
    Meta,
    /// The end of the packet.
    End,
    /// The stack of a frame, from its frame pointer.
    Stack(u8),
    /// The value of a map element.
    MapValue(MapRef),
    /// A map itself.
    Map(MapRef),
    /// Memory of a known size: a ring buffer record, a dynptr's slice, an argument of a global function, a map key.
    Mem {
        /// Length in bytes.
        size: u32,
        /// What it is.
        kind: MemKind,
        /// Must not be written.
        read_only: bool,
    },
    /// A socket.
    Sock(SockKind),
    /// A subprogram, by its first instruction.
    Func(u32),
    /// Something that BTF describes.
    Object(Object),
    /// Memory of an arena: reads and writes anywhere are caught by the one who runs the program.
    Arena,
}

/// An object of the kernel, or one of a type of the program's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its structure, by number in the BTF that `own` names. 0: memory of which nothing is known.
    pub ty: u32,
    /// The structure is one of the program's BTF; otherwise of the kernel's.
    pub own: bool,
    /// How far the pointer may be believed.
    pub trust: Trust,
}

/// How far a pointer to an object may be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// The object lives while the program runs, or as long as its reference is held (`PTR_TRUSTED`).
    Trusted,
    /// It lives as long as the RCU read side does (`MEM_RCU`).
    Rcu,
    /// It may be looked at; older functions take it (no flag).
    Plain,
    /// It may be looked at, and reads of a bad address give zero (`PTR_UNTRUSTED`).
    Untrusted,
    /// A variable of which each CPU has one (`MEM_PERCPU`).
    PerCpu,
    /// An address of user space (`MEM_USER`).
    User,
    /// Allocated by the program, which owns it (`MEM_ALLOC`).
    Owned,
}

impl Object {
    /// Memory of which only the address is known.
    pub const UNKNOWN: Object = Object { ty: 0, own: false, trust: Trust::Untrusted };

    /// True when the pointer may be dereferenced although the object may be gone.
    pub const fn is_foreign(&self) -> bool {
        !matches!(self.trust, Trust::Owned)
    }
}

/// Kinds of sized memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemKind {
    /// Ring buffer record from `bpf_ringbuf_reserve`.
    Record,
    /// Key shown to the callback whose frame has this number, for as long as that runs.
    MapKey(u8),
    /// Memory of a dynptr.
    Slice,
    /// Part of the packet seen through a dynptr.
    PacketSlice,
    /// Argument of a global function.
    Arg,
    /// A raw program's input memory.
    Input,
    /// The number that an open-coded iterator yields.
    IterItem,
    /// What a program sees of an AF_XDP socket.
    XskSocket,
}

/// A map of the program, or an inner map of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRef {
    /// Index in the object's map list.
    pub index: u32,
    /// An inner map of that map.
    pub inner: bool,
    /// Which look-up gave the inner map; 0 otherwise.
    pub uid: u32,
}

/// State of an open-coded iterator.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Iter {
    /// What it goes through.
    pub kind: IterKind,
    /// Which creation it stems from.
    pub id: u32,
    /// The last `next` gave null.
    pub drained: bool,
    /// How often it went on, on this path.
    pub turns: u32,
    /// Slot of several: 0 is the first.
    pub part: u8,
}

/// State of a dynptr on the stack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Dynptr {
    /// What memory it stands for.
    pub kind: xway_abi::DynptrKind,
    /// Identity; slices carry it.
    pub id: u32,
    /// The reference that it stands for, 0 for none.
    pub reference: u32,
    /// Slot of two: 0 is the first.
    pub part: u8,
}

impl Dynptr {
    /// What its slices carry.
    pub const fn owner(&self) -> u32 {
        if self.reference != 0 { self.reference } else { self.id }
    }
}

impl Num {
    /// A number without links.
    pub const fn new(s: Scalar, def: Def) -> Num {
        Num { s, link: 0, delta: 0, def }
    }
}

impl Ptr {
    /// A pointer to the start of `base`.
    pub const fn to(base: Base) -> Ptr {
        Ptr { base, off: 0, var: Scalar::constant(0), id: 0, range: 0, nullable: false, reference: 0 }
    }

    /// True for pointers that die when the packet moves.
    pub const fn is_packet(&self) -> bool {
        matches!(self.base, Base::Packet | Base::Meta | Base::End | Base::Mem { kind: MemKind::PacketSlice, .. })
    }

    /// True for local memory that a dynptr lets the program write.
    pub const fn is_writable_slice(&self) -> bool {
        matches!(self.base, Base::Mem { kind: MemKind::Slice, read_only: false, .. })
    }

    /// True when the offset is one constant.
    pub fn is_fixed(&self) -> bool {
        self.var == Scalar::constant(0)
    }

    /// `end` bounds it: data_end bounds packet pointers, the unmoved `data` bounds metadata pointers.
    pub fn is_bounded_by(&self, end: &Ptr) -> bool {
        match (end.base, self.base) {
            (Base::End, Base::Packet) => true,
            (Base::Packet, Base::Meta) => end.off == 0 && end.is_fixed() && end.id == 0,
            _ => false,
        }
    }

    /// The kind in Linux's words, as its log prints it.
    pub fn kind_name(&self) -> String {
        let name = match self.base {
            Base::Ctx => "ctx",
            Base::Packet => "pkt",
            Base::Meta => "pkt_meta",
            Base::End => "pkt_end",
            Base::Stack(_) => "fp",
            Base::MapValue(_) => "map_value",
            Base::Map(_) => "map_ptr",
            Base::Mem { kind: MemKind::Record, .. } => "ringbuf_mem",
            Base::Mem { kind: MemKind::MapKey(_), .. } => "map_key",
            Base::Mem { .. } => "mem",
            Base::Sock(SockKind::Tcp) => "tcp_sock",
            Base::Sock(SockKind::Common) => "sock_common",
            Base::Sock(_) => "sock",
            Base::Func(_) => "func",
            Base::Object(o) => match o.trust {
                Trust::Trusted => "trusted_ptr",
                Trust::Rcu => "rcu_ptr",
                Trust::Plain => "ptr",
                Trust::Untrusted => "untrusted_ptr",
                Trust::PerCpu => "percpu_ptr",
                Trust::User => "user_ptr",
                Trust::Owned => "ptr_alloc",
            },
            Base::Arena => "arena",
        };
        if self.nullable { format!("{name}_or_null") } else { name.to_owned() }
    }
}

impl Value {
    /// A number without links.
    pub const fn num(s: Scalar, def: Def) -> Value {
        Value::Num(Num::new(s, def))
    }

    /// The number, if it is one.
    pub const fn as_num(&self) -> Option<&Num> {
        if let Value::Num(n) = self { Some(n) } else { None }
    }

    /// The pointer, if it is one.
    pub const fn as_ptr(&self) -> Option<&Ptr> {
        if let Value::Ptr(p) = self { Some(p) } else { None }
    }

    /// The one number that it can be.
    pub const fn as_const(&self) -> Option<u64> {
        if let Value::Num(n) = self { n.s.as_const() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_with_the_packet() {
        let slice = |kind, read_only| Ptr::to(Base::Mem { size: 8, kind, read_only });
        for base in [Base::Packet, Base::Meta, Base::End] {
            assert!(Ptr::to(base).is_packet(), "{base:?}");
        }
        assert!(slice(MemKind::PacketSlice, true).is_packet());
        assert!(!slice(MemKind::Slice, false).is_packet() && !Ptr::to(Base::Ctx).is_packet());
        assert!(slice(MemKind::Slice, false).is_writable_slice());
        assert!(!slice(MemKind::Slice, true).is_writable_slice() && !slice(MemKind::Record, false).is_writable_slice());
    }

    #[test]
    fn an_offset_is_fixed_when_its_variable_part_is_zero() {
        let p = Ptr { off: 12, ..Ptr::to(Base::Packet) };
        assert!(p.is_fixed());
        assert!(!Ptr { var: Scalar::between(0, 1), ..p }.is_fixed());
        assert_eq!(Ptr { nullable: true, ..Ptr::to(Base::Ctx) }.kind_name(), "ctx_or_null");
    }

    #[test]
    fn slices_belong_to_the_reference_behind_their_dynptr() {
        let dynptr = Dynptr { kind: xway_abi::DynptrKind::Local, id: 4, reference: 0, part: 0 };
        assert_eq!((dynptr.owner(), Dynptr { reference: 9, ..dynptr }.owner()), (4, 9));
    }
}
