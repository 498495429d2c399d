//! Events to user space: perf events, ring buffers, trace output.

use super::row::*;

pub(super) const ROWS: &[HelperProto] = &[
    xdp(6, "bpf_trace_printk", &[MEM_IN, SIZE], Ret::Integer).gpl(),
    xdp(22, "bpf_perf_event_read", &[MAP, ANY], Ret::Integer).gpl(),
    xdp(25, "bpf_perf_event_output", &[CTX, MAP, ANY, MEM_IN, SIZE_OR_ZERO], Ret::Integer).gpl(),
    xdp(55, "bpf_perf_event_read_value", &[MAP, ANY, MEM_OUT, SIZE], Ret::Integer).gpl(),
    xdp(130, "bpf_ringbuf_output", &[MAP, MEM_IN, SIZE_OR_ZERO, ANY], Ret::Integer),
    xdp(131, "bpf_ringbuf_reserve", &[MAP, ALLOC_SIZE, ANY], Ret::AllocMemOrNull),
    xdp(132, "bpf_ringbuf_submit", &[RECORD_RELEASE, ANY], Ret::Void),
    xdp(133, "bpf_ringbuf_discard", &[RECORD_RELEASE, ANY], Ret::Void),
    xdp(134, "bpf_ringbuf_query", &[MAP, ANY], Ret::Integer),
    xdp(177, "bpf_trace_vprintk", &[MEM_IN, SIZE, MEM_IN_OR_NULL, SIZE_OR_ZERO], Ret::Integer).gpl(),
    xdp(
        198,
        "bpf_ringbuf_reserve_dynptr",
        &[MAP, ANY, ANY, dynptr(DynptrKind::Ringbuf, FuncAccess::Init)],
        Ret::Integer,
    ),
    xdp(199, "bpf_ringbuf_submit_dynptr", &[dynptr(DynptrKind::Ringbuf, FuncAccess::Release), ANY], Ret::Void),
    xdp(200, "bpf_ringbuf_discard_dynptr", &[dynptr(DynptrKind::Ringbuf, FuncAccess::Release), ANY], Ret::Void),
    xdp(209, "bpf_user_ringbuf_drain", &[MAP, func(Callback::UserRingbuf), CALLBACK_CTX, ANY], Ret::Integer),
];
