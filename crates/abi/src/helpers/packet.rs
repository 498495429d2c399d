//! The packet, its checksums and where it goes.

use super::row::*;

pub(super) const ROWS: &[HelperProto] = &[
    xdp(23, "bpf_redirect", &[ANY, ANY], Ret::Integer).with(Effect::Redirects),
    xdp(28, "bpf_csum_diff", &[MEM_IN_OR_NULL, SIZE_OR_ZERO, MEM_IN_OR_NULL, SIZE_OR_ZERO, ANY], Ret::Integer)
        .reads_packet(),
    xdp(44, "bpf_xdp_adjust_head", &[CTX, ANY], Ret::Integer).moves_packet(),
    xdp(54, "bpf_xdp_adjust_meta", &[CTX, ANY], Ret::Integer).moves_packet(),
    xdp(65, "bpf_xdp_adjust_tail", &[CTX, ANY], Ret::Integer).moves_packet(),
    xdp(69, "bpf_fib_lookup", &[CTX, mem(MemAccess::ReadWrite, MemSize::NextArg), SIZE, ANY], Ret::Integer).gpl(),
    xdp(163, "bpf_check_mtu", &[CTX, ANY, mem(MemAccess::ReadWrite, MemSize::FixedAligned(4)), ANY, ANY], Ret::Integer)
        .gpl(),
    xdp(188, "bpf_xdp_get_buff_len", &[CTX], Ret::Integer),
    xdp(189, "bpf_xdp_load_bytes", &[CTX, ANY, MEM_OUT, SIZE], Ret::Integer),
    xdp(190, "bpf_xdp_store_bytes", &[CTX, ANY, MEM_IN, SIZE], Ret::Integer).with(Effect::StoresPacket),
];
