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
    /// The reference that it stands for, 0 for none.
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
}

/// Kinds of sized memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemKind {
    /// Ring buffer record from `bpf_ringbuf_reserve`.
    Record,
    /// Key handed to a callback.
    MapKey,
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

    /// True when the offset is one constant.
    pub fn is_fixed(&self) -> bool {
        self.var == Scalar::constant(0)
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
            Base::Mem { kind: MemKind::MapKey, .. } => "map_key",
            Base::Mem { .. } => "mem",
            Base::Sock(SockKind::Tcp) => "tcp_sock",
            Base::Sock(SockKind::Common) => "sock_common",
            Base::Sock(_) => "sock",
            Base::Func(_) => "func",
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
