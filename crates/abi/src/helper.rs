//! The vocabulary in which helper and kfunc prototypes are written. The tables themselves stand beside it.
//!
//! A prototype is read by three parties: the verifier (may this call be made with these arguments?), the interpreter
//! (turn addresses into slices, then call) and the compiler (inline or direct call). None of them knows a helper by name
//! except for what a prototype cannot say.

use crate::MapType;

/// How a helper uses memory that an argument points to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemAccess {
    /// Read: must be initialised. (Linux minds uninitialised stack only where the loader lacks CAP_PERFMON.)
    Read,
    /// Written entirely: may be uninitialised before (`MEM_UNINIT`).
    Write,
    /// Read and written.
    ReadWrite,
}

/// Where the length of a memory argument comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemSize {
    /// Constant.
    Fixed(u32),
    /// Constant, and the address must be a multiple of it (`MEM_ALIGNED`).
    FixedAligned(u32),
    /// The next argument, which is [`ArgKind::Size`].
    NextArg,
}

/// Kinds of socket pointers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SockKind {
    /// `struct bpf_sock`, full.
    Sock,
    /// `struct sock_common`.
    Common,
    /// `struct bpf_tcp_sock`.
    Tcp,
    /// Anything that is a BTF-typed socket (`ARG_PTR_TO_BTF_ID_SOCK_COMMON`).
    BtfCommon,
}

/// What memory a dynptr stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DynptrKind {
    /// Any kind.
    Any,
    /// Local memory (of a map value).
    Local,
    /// Ring buffer record; must be submitted or discarded.
    Ringbuf,
    /// The packet.
    Xdp,
}

/// Loops whose state lies on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IterKind {
    /// Numbers from a start up to an end (`struct bpf_iter_num`).
    Num,
    /// Bits that are set in memory (`struct bpf_iter_bits`).
    Bits,
}

impl IterKind {
    /// Length of the state on the stack, bytes; it is aligned to eight.
    pub const fn size(self) -> u32 {
        match self {
            IterKind::Num => 8,
            IterKind::Bits => 16,
        }
    }
}

/// How a call uses a dynptr, an iterator or a saved interrupt state on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FuncAccess {
    /// Must be initialised.
    Use,
    /// Becomes initialised by the call.
    Init,
    /// Must be initialised; the call releases it.
    Release,
}

/// The kind of function that a helper calls back: what it gets in r1… and what it may return.
///
/// Source: the `set_…_callback_state` functions of Linux's verifier and the helpers' descriptions in `linux/bpf.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Callback {
    /// `bpf_loop`: (index, ctx); returns 0 to go on, 1 to stop.
    Loop,
    /// `bpf_for_each_map_elem`: (map, key, value, ctx); returns 0 to go on, 1 to stop.
    MapElem,
    /// `bpf_timer_set_callback`: (map, key, value), run later; returns 0.
    Timer,
    /// `bpf_find_vma`: (task, vma, ctx); returns 0.
    Vma,
    /// `bpf_user_ringbuf_drain`: (dynptr, ctx); returns 0 to go on, 1 to stop.
    UserRingbuf,
}

impl Callback {
    /// The largest value that the function may return; the smallest is 0.
    pub const fn max_return(self) -> u64 {
        match self {
            Callback::Loop | Callback::MapElem | Callback::UserRingbuf => 1,
            Callback::Timer | Callback::Vma => 0,
        }
    }

    /// True when the function runs after the helper has returned.
    pub const fn is_async(self) -> bool {
        matches!(self, Callback::Timer)
    }
}

/// What an argument must be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArgKind {
    /// Any initialised value.
    Anything,
    /// The program's context.
    Ctx,
    /// A map, known at load time.
    ConstMap,
    /// Memory of the map's key size.
    MapKey,
    /// Memory of the map's value size.
    MapValue(MemAccess),
    /// Memory.
    Mem(MemAccess, MemSize),
    /// Length of the preceding memory argument.
    Size {
        /// Zero is allowed.
        zero_ok: bool,
    },
    /// Constant length of memory that the helper allocates (`ARG_CONST_ALLOC_SIZE_OR_ZERO`).
    AllocSize,
    /// Memory that a helper allocated (ring buffer record).
    AllocMem {
        /// The call releases it.
        release: bool,
    },
    /// A pointer to a `struct bpf_spin_lock` in a map value.
    SpinLock,
    /// A pointer to a `struct bpf_timer` in a map value.
    Timer,
    /// A static subprogram with this signature.
    Func(Callback),
    /// Stack memory handed to a callback, or null.
    CallbackCtx,
    /// Null-terminated read-only string in a frozen map.
    ConstStr,
    /// Dynptr on the stack.
    Dynptr(DynptrKind, FuncAccess),
    /// Place of a kptr in a map value.
    KptrDest,
    /// A kptr of the type that the destination holds; the call releases it.
    KptrSource,
    /// A socket.
    Sock {
        /// Kind.
        kind: SockKind,
        /// The call releases it.
        release: bool,
    },
    /// A kernel object of a named BTF type, for example `task_struct`.
    BtfPtr(&'static str),
    /// Per-CPU kernel variable.
    PercpuBtfPtr,
    /// A number (kfuncs).
    Scalar,
    /// A number known at load time (kfuncs, `__k`).
    ConstScalar,
    /// Length of the preceding memory argument, known at load time (kfuncs, `__szk`).
    ConstSize,
    /// Not looked at by the verifier, may be uninitialised (kfuncs, `__ign`).
    Ignored,
    /// Iterator on the stack (kfuncs).
    Iter(IterKind, FuncAccess),
    /// Eight bytes of stack that hold the interrupt state (kfuncs, `__irq_flag`).
    IrqFlag(FuncAccess),
    /// A pointer to a `struct bpf_res_spin_lock` in a map value or an allocated object (kfuncs).
    ResSpinLock,
}

/// One argument of a prototype.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arg {
    /// What it must be.
    pub kind: ArgKind,
    /// Null is allowed too.
    pub nullable: bool,
}

/// What a helper returns in r0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ret {
    /// A number.
    Integer,
    /// A number below the number of CPUs.
    CpuNumber,
    /// A negative errno, or a length of at most the size argument (`do_refine_retval_range` of Linux's verifier).
    LengthOrError,
    /// Nothing; r0 must not be read.
    Void,
    /// Pointer to the value of the map argument, or null.
    MapValueOrNull,
    /// Ring buffer record of the constant size argument, or null; must be released.
    AllocMemOrNull,
    /// Memory of the constant size argument (dynptr data), or null.
    DynptrDataOrNull,
    /// Socket or null.
    SockOrNull {
        /// Kind.
        kind: SockKind,
        /// The program must release it.
        acquire: bool,
    },
    /// Kernel object of a named BTF type.
    BtfPtr {
        /// Type.
        name: &'static str,
        /// May be null.
        nullable: bool,
        /// Trusted (may be passed on to helpers).
        trusted: bool,
    },
    /// Per-CPU kernel variable or memory.
    PercpuBtfPtr {
        /// May be null.
        nullable: bool,
    },
    /// The kptr that was exchanged, or null; must be released.
    KptrOrNull,
}

/// What a call does beyond what its arguments and its result say.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Nothing.
    None,
    /// Finds the element of a key: a constant key inside an array is certain to be found (`can_elide_value_nullness`).
    Finds,
    /// Changes which elements a map has, or what they hold: not for maps that programs can only read.
    ChangesMap,
    /// Takes the spin lock that its argument points to; until it is given back no other helper may be called.
    Locks,
    /// Gives the spin lock back.
    Unlocks,
    /// Stores bytes into the packet, or may where it is given a dynptr of one.
    StoresPacket,
    /// The program is left for another one. The call returns only where that failed.
    TailCall,
    /// The result is `XDP_REDIRECT` or `XDP_ABORTED`.
    Redirects,
    /// The result is `XDP_REDIRECT`, or the action in the lower two bits of this argument (0: r1), or `XDP_ABORTED`.
    RedirectsOr(u8),
    /// Gives the first value of a queue or stack, and asks a Bloom filter for the one that it is given.
    Peeks,
}

/// One helper of Linux.
///
/// `ret`, `args` and the flags are stated for the helpers that an XDP program may call (`xdp`), in the form that such a
/// program gets; the others carry their number and name only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelperProto {
    /// Number (`enum bpf_func_id`).
    pub id: u32,
    /// Name with its `bpf_` prefix.
    pub name: &'static str,
    /// Result.
    pub ret: Ret,
    /// Arguments r1…; shorter than five when the rest is ignored.
    pub args: &'static [Arg],
    /// Needs a licence compatible with the GPL.
    pub gpl_only: bool,
    /// Moves or replaces packet data: every packet pointer becomes invalid.
    ///
    /// `bpf_tail_call` has it not set, because it returns only where it failed; but to the caller of a subprogram a
    /// tail call inside it looks like a call that has moved the packet (Linux 6.18 says so too).
    pub changes_packet: bool,
    /// May be given packet memory (`pkt_access`).
    pub pkt_access: bool,
    /// May sleep, and so is refused in every XDP program although its prototype is known to them.
    pub might_sleep: bool,
    /// What it does beside.
    pub effect: Effect,
    /// Leaves r1 to r5 alone as far as it does not use them (`bpf_fastcall`): spills around the call may be dropped.
    pub fastcall: bool,
    /// An XDP program may call it (Linux 6.18, all capabilities).
    pub xdp: bool,
}

impl HelperProto {
    /// True when the call leaves for another program (`bpf_tail_call`).
    pub const fn is_tail_call(&self) -> bool {
        matches!(self.effect, Effect::TailCall)
    }

    /// True when a program that calls it may be answered with `XDP_REDIRECT`.
    pub const fn redirects(&self) -> bool {
        matches!(self.effect, Effect::Redirects | Effect::RedirectsOr(_))
    }

    /// True when it calls a function of the program again and again before it returns.
    pub fn calls_back(&self) -> bool {
        self.args.iter().any(|a| matches!(a.kind, ArgKind::Func(c) if !c.is_async()))
    }

    /// What the call does with a map's value, an [`ArgKind::MapValue`] of `access`, when the map is of this type (`resolve_map_arg_type`);
    /// `None` where it may be one of several.
    pub const fn value_access(&self, access: MemAccess, map: Option<MapType>) -> MemAccess {
        match (self.effect, map) {
            (Effect::Peeks, Some(MapType::BloomFilter)) => MemAccess::Read,
            (Effect::Peeks, None) => MemAccess::ReadWrite,
            _ => access,
        }
    }

    /// True for a prototype that was made from a kernel function's: those have no number.
    pub const fn is_kfunc(&self) -> bool {
        self.id == 0
    }

    /// True when the arguments hold one of this kind.
    pub fn takes(&self, kind: ArgKind) -> bool {
        self.args.iter().any(|a| a.kind == kind)
    }

    /// The argument in register `r1` + `n`, `None` when the prototype ignores it.
    pub const fn arg(&self, n: usize) -> Option<Arg> {
        if n < self.args.len() { Some(self.args[n]) } else { None }
    }
}
