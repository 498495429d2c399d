//! Sockets and SYN cookies.

use super::row::*;

pub(super) const ROWS: &[HelperProto] = &[
    xdp(84, "bpf_sk_lookup_tcp", &[CTX, MEM_IN, SIZE_OR_ZERO, ANY, ANY], FOUND_SOCK).reads_packet(),
    xdp(85, "bpf_sk_lookup_udp", &[CTX, MEM_IN, SIZE_OR_ZERO, ANY, ANY], FOUND_SOCK).reads_packet(),
    xdp(86, "bpf_sk_release", &[sock(SockKind::BtfCommon, true)], Ret::Integer),
    xdp(
        99,
        "bpf_skc_lookup_tcp",
        &[CTX, MEM_IN, SIZE_OR_ZERO, ANY, ANY],
        Ret::SockOrNull { kind: SockKind::Common, acquire: true },
    )
    .reads_packet(),
    xdp(100, "bpf_tcp_check_syncookie", &[SOCK, MEM_IN, SIZE, MEM_IN, SIZE], Ret::Integer).reads_packet().gpl(),
    xdp(110, "bpf_tcp_gen_syncookie", &[SOCK, MEM_IN, SIZE, MEM_IN, SIZE], Ret::Integer).reads_packet().gpl(),
    xdp(136, "bpf_skc_to_tcp6_sock", &[SOCK], cast("tcp6_sock")),
    xdp(137, "bpf_skc_to_tcp_sock", &[SOCK], cast("tcp_sock")),
    xdp(138, "bpf_skc_to_tcp_timewait_sock", &[SOCK], cast("tcp_timewait_sock")),
    xdp(139, "bpf_skc_to_tcp_request_sock", &[SOCK], cast("tcp_request_sock")),
    xdp(140, "bpf_skc_to_udp6_sock", &[SOCK], cast("udp6_sock")),
    xdp(178, "bpf_skc_to_unix_sock", &[SOCK], cast("unix_sock")),
    xdp(196, "bpf_skc_to_mptcp_sock", &[sock(SockKind::Common, false)], cast("mptcp_sock")),
    xdp(
        204,
        "bpf_tcp_raw_gen_syncookie_ipv4",
        &[mem(MemAccess::Read, MemSize::Fixed(20)), MEM_IN, SIZE_OR_ZERO],
        Ret::Integer,
    )
    .reads_packet()
    .gpl(),
    xdp(
        205,
        "bpf_tcp_raw_gen_syncookie_ipv6",
        &[mem(MemAccess::Read, MemSize::Fixed(40)), MEM_IN, SIZE_OR_ZERO],
        Ret::Integer,
    )
    .reads_packet()
    .gpl(),
    xdp(
        206,
        "bpf_tcp_raw_check_syncookie_ipv4",
        &[mem(MemAccess::Read, MemSize::Fixed(20)), mem(MemAccess::Read, MemSize::Fixed(20))],
        Ret::Integer,
    )
    .reads_packet()
    .gpl(),
    xdp(
        207,
        "bpf_tcp_raw_check_syncookie_ipv6",
        &[mem(MemAccess::Read, MemSize::Fixed(40)), mem(MemAccess::Read, MemSize::Fixed(20))],
        Ret::Integer,
    )
    .reads_packet()
    .gpl(),
];
