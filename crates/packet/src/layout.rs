//! The geometry of a frame that programs can observe through `bpf_xdp_adjust_head`, `_meta` and `_tail`.
//!
//! The numbers are those of Linux 6.18 on a 64-bit machine with 64-byte cache lines. Tests ask the running kernel for them.

/// Bytes at the start of a chunk that a program can never reach: Linux keeps its `struct xdp_frame` there.
pub const FRAME_RESERVE: u32 = 40;

/// Bytes in front of a received packet (`XDP_PACKET_HEADROOM`).
pub const HEADROOM: u32 = 256;

/// Bytes at the end of a chunk that a program can never reach: Linux keeps `struct skb_shared_info` there, rounded up to
/// whole cache lines.
pub const TAIL_RESERVE: u32 = 320;

/// The shortest packet that an adjustment may leave: one Ethernet header (`ETH_HLEN`).
pub const ETH_HLEN: u32 = 14;

/// The longest metadata area in front of a packet. Linux stores the length in one byte and wants a multiple of four, so
/// 252 is the largest that works.
pub const META_MAX: u32 = 255;

/// Metadata length must be a multiple of this.
pub const META_ALIGN: u32 = 4;

/// Default chunk size: one page, as most drivers give XDP.
pub const CHUNK: u32 = 4096;

/// Smallest chunk size.
pub const CHUNK_MIN: u32 = 2048;

/// Largest chunk size.
pub const CHUNK_MAX: u32 = 128 * 1024;
