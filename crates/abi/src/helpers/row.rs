//! The words that rows of the helper and kfunc tables are written in.

pub(crate) use crate::helper::{
    Arg, ArgKind, Callback, DynptrKind, Effect, FuncAccess, HelperProto, IterKind, MemAccess, MemSize, Ret, SockKind,
};

/// A helper that XDP programs may call.
pub(crate) const fn xdp(id: u32, name: &'static str, args: &'static [Arg], ret: Ret) -> HelperProto {
    HelperProto { args, ret, xdp: true, ..foreign(id, name) }
}

/// A helper of other program types.
pub(crate) const fn foreign(id: u32, name: &'static str) -> HelperProto {
    HelperProto {
        id,
        name,
        ret: Ret::Integer,
        args: &[],
        gpl_only: false,
        changes_packet: false,
        pkt_access: false,
        might_sleep: false,
        effect: Effect::None,
        fastcall: false,
        xdp: false,
    }
}

impl HelperProto {
    pub(crate) const fn gpl(mut self) -> Self {
        self.gpl_only = true;
        self
    }

    pub(crate) const fn moves_packet(mut self) -> Self {
        self.changes_packet = true;
        self
    }

    /// Memory arguments may point into the packet.
    pub(crate) const fn reads_packet(mut self) -> Self {
        self.pkt_access = true;
        self
    }

    pub(crate) const fn with(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    pub(crate) const fn sleeps(mut self) -> Self {
        self.might_sleep = true;
        self
    }

    pub(crate) const fn fastcall(mut self) -> Self {
        self.fastcall = true;
        self
    }
}

const fn arg(kind: ArgKind) -> Arg {
    Arg { kind, nullable: false }
}

const fn or_null(kind: ArgKind) -> Arg {
    Arg { kind, nullable: true }
}

pub(crate) const fn mem(access: MemAccess, size: MemSize) -> Arg {
    arg(ArgKind::Mem(access, size))
}

pub(crate) const fn func(callback: Callback) -> Arg {
    arg(ArgKind::Func(callback))
}

pub(crate) const fn dynptr(kind: DynptrKind, access: FuncAccess) -> Arg {
    arg(ArgKind::Dynptr(kind, access))
}

pub(crate) const fn sock(kind: SockKind, release: bool) -> Arg {
    arg(ArgKind::Sock { kind, release })
}

/// Result of a `bpf_skc_to_…` cast.
pub(crate) const fn cast(name: &'static str) -> Ret {
    Ret::BtfPtr { name, nullable: true, trusted: false }
}

pub(crate) const fn iter(kind: IterKind, access: FuncAccess) -> Arg {
    arg(ArgKind::Iter(kind, access))
}

pub(crate) const fn irq(access: FuncAccess) -> Arg {
    arg(ArgKind::IrqFlag(access))
}

pub(crate) const ANY: Arg = arg(ArgKind::Anything);
pub(crate) const CTX: Arg = arg(ArgKind::Ctx);
pub(crate) const MAP: Arg = arg(ArgKind::ConstMap);
pub(crate) const KEY: Arg = arg(ArgKind::MapKey);
pub(crate) const VALUE_IN: Arg = arg(ArgKind::MapValue(MemAccess::Read));
pub(crate) const VALUE_IN_OR_NULL: Arg = or_null(ArgKind::MapValue(MemAccess::Read));
pub(crate) const VALUE_OUT: Arg = arg(ArgKind::MapValue(MemAccess::Write));
pub(crate) const MEM_IN: Arg = mem(MemAccess::Read, MemSize::NextArg);
pub(crate) const MEM_IN_OR_NULL: Arg = or_null(ArgKind::Mem(MemAccess::Read, MemSize::NextArg));
pub(crate) const MEM_OUT: Arg = mem(MemAccess::Write, MemSize::NextArg);
/// Memory that must be initialised although it is only written.
pub(crate) const MEM_BUF: Arg = mem(MemAccess::ReadWrite, MemSize::NextArg);
pub(crate) const MEM_BUF_OR_NULL: Arg = or_null(ArgKind::Mem(MemAccess::ReadWrite, MemSize::NextArg));
pub(crate) const LONG_OUT: Arg = mem(MemAccess::Write, MemSize::FixedAligned(8));
pub(crate) const SIZE: Arg = arg(ArgKind::Size { zero_ok: false });
pub(crate) const SIZE_OR_ZERO: Arg = arg(ArgKind::Size { zero_ok: true });
pub(crate) const ALLOC_SIZE: Arg = arg(ArgKind::AllocSize);
pub(crate) const RECORD_RELEASE: Arg = arg(ArgKind::AllocMem { release: true });
pub(crate) const CONST_STR: Arg = arg(ArgKind::ConstStr);
pub(crate) const CALLBACK_CTX: Arg = or_null(ArgKind::CallbackCtx);
pub(crate) const SPIN_LOCK: Arg = arg(ArgKind::SpinLock);
pub(crate) const TIMER: Arg = arg(ArgKind::Timer);
pub(crate) const DYNPTR: Arg = dynptr(DynptrKind::Any, FuncAccess::Use);
pub(crate) const KPTR_DEST: Arg = arg(ArgKind::KptrDest);
pub(crate) const KPTR_IN: Arg = or_null(ArgKind::KptrSource);
pub(crate) const TASK: Arg = arg(ArgKind::BtfPtr("task_struct"));
pub(crate) const TASK_OR_NULL: Arg = or_null(ArgKind::BtfPtr("task_struct"));
pub(crate) const CGROUP_OR_NULL: Arg = or_null(ArgKind::BtfPtr("cgroup"));
pub(crate) const PERCPU: Arg = arg(ArgKind::PercpuBtfPtr);
pub(crate) const SOCK: Arg = sock(SockKind::BtfCommon, false);
pub(crate) const FOUND_SOCK: Ret = Ret::SockOrNull { kind: SockKind::Sock, acquire: true };
pub(crate) const SCALAR: Arg = arg(ArgKind::Scalar);
pub(crate) const CONST_SCALAR: Arg = arg(ArgKind::ConstScalar);
pub(crate) const CONST_SIZE: Arg = arg(ArgKind::ConstSize);
pub(crate) const IGNORED: Arg = arg(ArgKind::Ignored);
pub(crate) const RES_SPIN_LOCK: Arg = arg(ArgKind::ResSpinLock);
