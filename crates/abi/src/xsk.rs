//! AF_XDP sockets: numbers and layouts of `linux/if_xdp.h`.

/// Name of the program that an `afxdp:` port attaches to its interface, by which others know whose it is.
pub const AFXDP_PROGRAM: &str = "xway_redirect";

/// Address family.
pub const AF_XDP: u16 = 44;
/// Level of socket options.
pub const SOL_XDP: i32 = 283;

/// Bind flags (`sxdp_flags`).
pub mod bind {
    /// Share the memory of another socket.
    pub const SHARED_UMEM: u16 = 1 << 0;
    /// Copy, even if the driver could do without.
    pub const COPY: u16 = 1 << 1;
    /// Fail rather than copy.
    pub const ZEROCOPY: u16 = 1 << 2;
    /// Set the wake-up flag in the rings.
    pub const USE_NEED_WAKEUP: u16 = 1 << 3;
    /// Packets of several descriptors.
    pub const USE_SG: u16 = 1 << 4;
}

/// Socket options.
pub mod option {
    /// Offsets of the rings' fields in their mappings.
    pub const MMAP_OFFSETS: i32 = 1;
    /// Number of RX descriptors.
    pub const RX_RING: i32 = 2;
    /// Number of TX descriptors.
    pub const TX_RING: i32 = 3;
    /// Register memory.
    pub const UMEM_REG: i32 = 4;
    /// Number of fill entries.
    pub const UMEM_FILL_RING: i32 = 5;
    /// Number of completion entries.
    pub const UMEM_COMPLETION_RING: i32 = 6;
    /// Counters.
    pub const STATISTICS: i32 = 7;
    /// What was negotiated.
    pub const OPTIONS: i32 = 8;
}

/// Offsets for `mmap`.
pub mod pgoff {
    /// RX ring.
    pub const RX_RING: u64 = 0;
    /// TX ring.
    pub const TX_RING: u64 = 0x8000_0000;
    /// Fill ring.
    pub const FILL_RING: u64 = 0x1_0000_0000;
    /// Completion ring.
    pub const COMPLETION_RING: u64 = 0x1_8000_0000;
}

/// Ring flag: the kernel waits for a system call.
pub const RING_NEED_WAKEUP: u32 = 1 << 0;
/// Negotiated: no copies ([`option::OPTIONS`]).
pub const OPTIONS_ZEROCOPY: u32 = 1 << 0;
/// Descriptor option: the packet goes on in the next descriptor.
pub const PKT_CONTD: u32 = 1 << 0;
/// Descriptor option of TX: `struct xsk_tx_metadata` stands in front of the packet.
pub const TX_METADATA: u32 = 1 << 1;

/// What `struct xsk_tx_metadata` asks for: 64 bits of flags, then `csum_start` and `csum_offset` of 16 bits each, then, eight bytes
/// further, the launch time of 64 bits.
pub mod tx_metadata {
    /// Tell when the packet was sent.
    pub const TIMESTAMP: u64 = 1 << 0;
    /// Complete the checksum.
    pub const CHECKSUM: u64 = 1 << 1;
    /// Send the packet at this time.
    pub const LAUNCH_TIME: u64 = 1 << 2;
    /// Length of the structure.
    pub const SIZE: usize = 24;
    /// The most that may be registered for it in front of each packet, bytes; a multiple of eight.
    pub const LEN_MAX: u32 = 248;
}
/// Length of `struct xdp_desc`: address (8 bytes), length (4), options (4).
pub const DESC_SIZE: usize = 16;
/// Memory flag: chunks need not be aligned.
pub const UMEM_UNALIGNED_CHUNK: u32 = 1 << 0;
