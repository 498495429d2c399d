//! Clocks, numbers, strings, loops, locks, timers and dynptrs.

use super::row::*;

pub(super) const ROWS: &[HelperProto] = &[
    xdp(5, "bpf_ktime_get_ns", &[], Ret::Integer),
    xdp(7, "bpf_get_prandom_u32", &[], Ret::Integer),
    xdp(8, "bpf_get_smp_processor_id", &[], Ret::CpuNumber).fastcall(),
    xdp(42, "bpf_get_numa_node_id", &[], Ret::Integer),
    xdp(93, "bpf_spin_lock", &[SPIN_LOCK], Ret::Void).with(Effect::Locks),
    xdp(94, "bpf_spin_unlock", &[SPIN_LOCK], Ret::Void).with(Effect::Unlocks),
    xdp(105, "bpf_strtol", &[MEM_IN, SIZE, ANY, LONG_OUT], Ret::Integer),
    xdp(106, "bpf_strtoul", &[MEM_IN, SIZE, ANY, LONG_OUT], Ret::Integer),
    xdp(118, "bpf_jiffies64", &[], Ret::Integer),
    xdp(125, "bpf_ktime_get_boot_ns", &[], Ret::Integer),
    xdp(160, "bpf_ktime_get_coarse_ns", &[], Ret::Integer),
    xdp(165, "bpf_snprintf", &[MEM_BUF_OR_NULL, SIZE_OR_ZERO, CONST_STR, MEM_IN_OR_NULL, SIZE_OR_ZERO], Ret::Integer)
        .gpl(),
    xdp(169, "bpf_timer_init", &[TIMER, MAP, ANY], Ret::Integer).gpl(),
    xdp(170, "bpf_timer_set_callback", &[TIMER, func(Callback::Timer)], Ret::Integer).gpl(),
    xdp(171, "bpf_timer_start", &[TIMER, ANY, ANY], Ret::Integer).gpl(),
    xdp(172, "bpf_timer_cancel", &[TIMER], Ret::Integer).gpl(),
    xdp(181, "bpf_loop", &[ANY, func(Callback::Loop), CALLBACK_CTX, ANY], Ret::Integer),
    xdp(182, "bpf_strncmp", &[MEM_IN, SIZE, CONST_STR], Ret::Integer),
    xdp(
        197,
        "bpf_dynptr_from_mem",
        &[MEM_BUF, SIZE_OR_ZERO, ANY, dynptr(DynptrKind::Local, FuncAccess::Init)],
        Ret::Integer,
    ),
    xdp(201, "bpf_dynptr_read", &[MEM_OUT, SIZE_OR_ZERO, DYNPTR, ANY, ANY], Ret::Integer),
    xdp(202, "bpf_dynptr_write", &[DYNPTR, ANY, MEM_IN, SIZE_OR_ZERO, ANY], Ret::Integer).with(Effect::StoresPacket),
    xdp(203, "bpf_dynptr_data", &[DYNPTR, ANY, ALLOC_SIZE], Ret::DynptrDataOrNull),
    xdp(208, "bpf_ktime_get_tai_ns", &[], Ret::Integer),
];
