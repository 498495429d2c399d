//! The words that rows of the helper table are written in.

pub(super) use crate::helper::{
    Arg, ArgKind, Callback, DynptrKind, FuncAccess, HelperProto, MemAccess, MemSize, Ret, SockKind,
};

/// A helper that XDP programs may call.
pub(super) const fn xdp(id: u32, name: &'static str, args: &'static [Arg], ret: Ret) -> HelperProto {
    HelperProto { args, ret, xdp: true, ..foreign(id, name) }
}

/// A helper of other program types.
pub(super) const fn foreign(id: u32, name: &'static str) -> HelperProto {
    HelperProto {
        id,
        name,
        ret: Ret::Integer,
        args: &[],
        gpl_only: false,
        changes_packet: false,
        pkt_access: false,
        might_sleep: false,
        fastcall: false,
        xdp: false,
    }
}

impl HelperProto {
    pub(super) const fn gpl(mut self) -> Self {
        self.gpl_only = true;
        self
    }

    pub(super) const fn moves_packet(mut self) -> Self {
        self.changes_packet = true;
        self
    }

    /// Memory arguments may point into the packet.
    pub(super) const fn reads_packet(mut self) -> Self {
        self.pkt_access = true;
        self
    }

    pub(super) const fn sleeps(mut self) -> Self {
        self.might_sleep = true;
        self
    }

    pub(super) const fn fastcall(mut self) -> Self {
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

pub(super) const fn mem(access: MemAccess, size: MemSize) -> Arg {
    arg(ArgKind::Mem(access, size))
}

pub(super) const fn func(callback: Callback) -> Arg {
    arg(ArgKind::Func(callback))
}

pub(super) const fn dynptr(kind: DynptrKind, access: FuncAccess) -> Arg {
    arg(ArgKind::Dynptr(kind, access))
}

pub(super) const fn sock(kind: SockKind, release: bool) -> Arg {
    arg(ArgKind::Sock { kind, release })
}

/// Result of a `bpf_skc_to_…` cast.
pub(super) const fn cast(name: &'static str) -> Ret {
    Ret::BtfPtr { name, nullable: true, trusted: false }
}

pub(super) const ANY: Arg = arg(ArgKind::Anything);
pub(super) const CTX: Arg = arg(ArgKind::Ctx);
pub(super) const MAP: Arg = arg(ArgKind::ConstMap);
pub(super) const KEY: Arg = arg(ArgKind::MapKey);
pub(super) const VALUE_IN: Arg = arg(ArgKind::MapValue(MemAccess::Read));
pub(super) const VALUE_IN_OR_NULL: Arg = or_null(ArgKind::MapValue(MemAccess::Read));
pub(super) const VALUE_OUT: Arg = arg(ArgKind::MapValue(MemAccess::Write));
pub(super) const MEM_IN: Arg = mem(MemAccess::Read, MemSize::NextArg);
pub(super) const MEM_IN_OR_NULL: Arg = or_null(ArgKind::Mem(MemAccess::Read, MemSize::NextArg));
pub(super) const MEM_OUT: Arg = mem(MemAccess::Write, MemSize::NextArg);
/// Memory that must be initialised although it is only written.
pub(super) const MEM_BUF: Arg = mem(MemAccess::ReadWrite, MemSize::NextArg);
pub(super) const MEM_BUF_OR_NULL: Arg = or_null(ArgKind::Mem(MemAccess::ReadWrite, MemSize::NextArg));
pub(super) const LONG_OUT: Arg = mem(MemAccess::Write, MemSize::FixedAligned(8));
pub(super) const SIZE: Arg = arg(ArgKind::Size { zero_ok: false });
pub(super) const SIZE_OR_ZERO: Arg = arg(ArgKind::Size { zero_ok: true });
pub(super) const ALLOC_SIZE: Arg = arg(ArgKind::AllocSize);
pub(super) const RECORD_RELEASE: Arg = arg(ArgKind::AllocMem { release: true });
pub(super) const CONST_STR: Arg = arg(ArgKind::ConstStr);
pub(super) const CALLBACK_CTX: Arg = or_null(ArgKind::CallbackCtx);
pub(super) const SPIN_LOCK: Arg = arg(ArgKind::SpinLock);
pub(super) const TIMER: Arg = arg(ArgKind::Timer);
pub(super) const DYNPTR: Arg = dynptr(DynptrKind::Any, FuncAccess::Use);
pub(super) const KPTR_DEST: Arg = arg(ArgKind::KptrDest);
pub(super) const KPTR_IN: Arg = or_null(ArgKind::KptrSource);
pub(super) const TASK: Arg = arg(ArgKind::BtfPtr("task_struct"));
pub(super) const TASK_OR_NULL: Arg = or_null(ArgKind::BtfPtr("task_struct"));
pub(super) const CGROUP_OR_NULL: Arg = or_null(ArgKind::BtfPtr("cgroup"));
pub(super) const PERCPU: Arg = arg(ArgKind::PercpuBtfPtr);
pub(super) const SOCK: Arg = sock(SockKind::BtfCommon, false);
pub(super) const FOUND_SOCK: Ret = Ret::SockOrNull { kind: SockKind::Sock, acquire: true };
