//! Flags and codes of helpers (`linux/bpf.h`), attaching (`linux/if_link.h`) and RX metadata (`net/xdp.h`).

/// `bpf_redirect_map`.
pub mod redirect {
    /// The low bits of the flags: verdict to return when the key has no entry, 0 to 3 (`XDP_ABORTED` to `XDP_TX`).
    pub const MISS_VERDICT_MASK: u64 = 0x3;
    /// Send to all entries of the map.
    pub const BROADCAST: u64 = 1 << 3;
    /// With [`BROADCAST`]: not back to the port that the frame came in on.
    pub const EXCLUDE_INGRESS: u64 = 1 << 4;
}

/// `bpf_perf_event_output` and its relatives.
pub mod perf {
    /// Index of the map entry.
    pub const INDEX_MASK: u64 = 0xffff_ffff;
    /// The entry of the CPU that runs the program.
    pub const CURRENT_CPU: u64 = INDEX_MASK;
    /// Number of packet bytes to append to the sample, shifted by [`CTXLEN_SHIFT`].
    pub const CTXLEN_MASK: u64 = 0xf_ffff << CTXLEN_SHIFT;
    /// Position of the packet length.
    pub const CTXLEN_SHIFT: u32 = 32;
}

/// Ring buffers.
pub mod ringbuf {
    /// Submit, discard, output: do not wake the reader.
    pub const NO_WAKEUP: u64 = 1 << 0;
    /// Submit, discard, output: wake the reader even if it is behind.
    pub const FORCE_WAKEUP: u64 = 1 << 1;
    /// Query: bytes not yet consumed.
    pub const AVAIL_DATA: u64 = 0;
    /// Query: size of the ring.
    pub const RING_SIZE: u64 = 1;
    /// Query: consumer position.
    pub const CONS_POS: u64 = 2;
    /// Query: producer position.
    pub const PROD_POS: u64 = 3;
    /// Record header: reserved and not yet submitted.
    pub const BUSY_BIT: u32 = 1 << 31;
    /// Record header: to be skipped by the reader.
    pub const DISCARD_BIT: u32 = 1 << 30;
    /// Length of a record's header, bytes.
    pub const HEADER: u32 = 8;
    /// Most samples that one `bpf_user_ringbuf_drain` takes (`BPF_MAX_USER_RINGBUF_SAMPLES`).
    pub const MAX_USER_SAMPLES: u32 = 128 * 1024;
}

/// Timers.
pub mod timer {
    /// Start: the time is absolute.
    pub const ABS: u64 = 1 << 0;
    /// Start: stay on this CPU.
    pub const CPU_PIN: u64 = 1 << 1;
    /// Length of `struct bpf_timer` in a map value, bytes.
    pub const SIZE: u32 = 16;
}

/// Length of `struct bpf_spin_lock` in a map value, bytes.
pub const SPIN_LOCK_SIZE: u32 = 4;
/// Length of `struct bpf_dynptr` on the stack, bytes.
pub const DYNPTR_SIZE: u32 = 16;

/// `bpf_fib_lookup`: flags, result codes and the layout of its parameter, `struct bpf_fib_lookup`.
pub mod fib {
    /// Look in one table, without rules.
    pub const DIRECT: u32 = 1 << 0;
    /// From the view of a packet that leaves.
    pub const OUTPUT: u32 = 1 << 1;
    /// Do not look for the neighbour.
    pub const SKIP_NEIGH: u32 = 1 << 2;
    /// With [`DIRECT`]: the table is given at [`TBID`].
    pub const TBID_GIVEN: u32 = 1 << 3;
    /// Give the source address too.
    pub const SRC: u32 = 1 << 4;
    /// The mark at [`MARK`] takes part in policy rules.
    pub const MARK_GIVEN: u32 = 1 << 5;
    /// All flags of Linux 6.18; others give `-EINVAL`.
    pub const ALL: u32 = 0x3f;

    /// Found, with the neighbour.
    pub const RET_SUCCESS: i64 = 0;
    /// The route is a black hole.
    pub const RET_BLACKHOLE: i64 = 1;
    /// The route says unreachable.
    pub const RET_UNREACHABLE: i64 = 2;
    /// The route says prohibited.
    pub const RET_PROHIBIT: i64 = 3;
    /// Not to be forwarded: local, broadcast, multicast, or no route.
    pub const RET_NOT_FWDED: i64 = 4;
    /// Forwarding is off on the interface that it came in on.
    pub const RET_FWD_DISABLED: i64 = 5;
    /// The route wants an encapsulation.
    pub const RET_UNSUPP_LWT: i64 = 6;
    /// The neighbour's address is not known.
    pub const RET_NO_NEIGH: i64 = 7;
    /// Longer than the route's MTU.
    pub const RET_FRAG_NEEDED: i64 = 8;
    /// No source address can be found.
    pub const RET_NO_SRC_ADDR: i64 = 9;

    /// Length of the structure, bytes.
    pub const SIZE: usize = 64;
    /// `family`, 1 byte: AF_INET (2) or AF_INET6 (10).
    pub const FAMILY: usize = 0;
    /// `l4_protocol`, 1 byte.
    pub const L4_PROTOCOL: usize = 1;
    /// `sport`, 2 bytes, big-endian.
    pub const SPORT: usize = 2;
    /// `dport`, 2 bytes, big-endian.
    pub const DPORT: usize = 4;
    /// In `tot_len`, out `mtu_result`, 2 bytes.
    pub const TOT_LEN: usize = 6;
    /// `ifindex`, 4 bytes: in the input device, out the output device.
    pub const IFINDEX: usize = 8;
    /// In `tos` (1 byte) or `flowinfo` (4 bytes, big-endian); out `rt_metric`, 4 bytes.
    pub const TOS: usize = 12;
    /// `ipv4_src` or `ipv6_src`, 4 or 16 bytes.
    pub const SRC_ADDR: usize = 16;
    /// `ipv4_dst` or `ipv6_dst`; out the gateway when there is one.
    pub const DST_ADDR: usize = 32;
    /// Out `h_vlan_proto`, 2 bytes.
    pub const VLAN_PROTO: usize = 48;
    /// Out `h_vlan_TCI`, 2 bytes.
    pub const VLAN_TCI: usize = 50;
    /// In `tbid`, 4 bytes, in the place of the VLAN fields.
    pub const TBID: usize = 48;
    /// In `mark`, 4 bytes, in the place of the source MAC address.
    pub const MARK: usize = 52;
    /// Out `smac`, 6 bytes.
    pub const SMAC: usize = 52;
    /// Out `dmac`, 6 bytes.
    pub const DMAC: usize = 58;
}

/// `bpf_check_mtu`.
pub mod mtu {
    /// Check the segments of a GSO packet. XDP has none: refused with `-EINVAL`.
    pub const CHK_SEGS: u64 = 1 << 0;
    /// Fits.
    pub const RET_SUCCESS: i64 = 0;
    /// Too long.
    pub const RET_FRAG_NEEDED: i64 = 1;
    /// A segment is too long.
    pub const RET_SEGS_TOOBIG: i64 = 2;
}

/// Socket look-ups.
pub mod socket {
    /// The network namespace that the program runs in, as 32 bits.
    pub const CURRENT_NETNS: i32 = -1;
    /// `struct bpf_sock_tuple` for IPv4: two addresses, two ports.
    pub const TUPLE4_SIZE: u32 = 12;
    /// `struct bpf_sock_tuple` for IPv6.
    pub const TUPLE6_SIZE: u32 = 36;
}

/// Attaching (`XDP_FLAGS_*`).
pub mod attach {
    /// Fail when a program is there already.
    pub const UPDATE_IF_NOEXIST: u32 = 1 << 0;
    /// Generic XDP, after the socket buffer was made.
    pub const SKB_MODE: u32 = 1 << 1;
    /// In the driver.
    pub const DRV_MODE: u32 = 1 << 2;
    /// In the device.
    pub const HW_MODE: u32 = 1 << 3;
    /// Replace the expected program only.
    pub const REPLACE: u32 = 1 << 4;
}

/// Bits of the hash type that `bpf_xdp_metadata_rx_hash` gives (`enum xdp_rss_hash_type`).
pub mod rss {
    /// IPv4 addresses.
    pub const L3_IPV4: u32 = 1 << 0;
    /// IPv6 addresses.
    pub const L3_IPV6: u32 = 1 << 1;
    /// Options or extension headers were there.
    pub const L3_DYNHDR: u32 = 1 << 2;
    /// Ports.
    pub const L4: u32 = 1 << 3;
    /// TCP.
    pub const L4_TCP: u32 = 1 << 4;
    /// UDP.
    pub const L4_UDP: u32 = 1 << 5;
    /// SCTP.
    pub const L4_SCTP: u32 = 1 << 6;
    /// IPsec.
    pub const L4_IPSEC: u32 = 1 << 7;
    /// ICMP.
    pub const L4_ICMP: u32 = 1 << 8;
}
