//! Packet memory: pools, frames, bursts and rings.
//!
//! A [`Pool`] owns one mapping, cut into chunks of equal size, and belongs to one thread, normally the worker of one receive
//! queue. A [`Frame`] owns one chunk together with the descriptor of the packet in it: where the packet starts and ends,
//! where it came from, what the device knew about it, and where a redirect helper wants it to go. A frame is not `Clone`:
//! whoever holds it is the only one who can touch the packet, so "who owns this packet" is answered by the type checker.
//!
//! ```text
//! one chunk (4 KiB by default)
//!
//! hard_start                                                                       hard_end        chunk end
//! 0        40             data_meta       data                       data_end      size-320        size
//! |--------|-----------------|-------------|---------------------------|------------|---------------|
//! |reserved|   free headroom |  metadata   |          packet           |  tailroom  |   reserved    |
//! |--------|-----------------|-------------|---------------------------|------------|---------------|
//!   what Linux keeps for its own xdp_frame                               what Linux keeps for skb_shared_info
//! ```
//!
//! The two reserved ends are unused here; they exist so that `bpf_xdp_adjust_head`, `_meta` and `_tail` have the limits that
//! they have on Linux and a program behaves the same in both places (see [`layout`]).
//!
//! Life of a frame:
//!
//! - The pool's owner allocates with [`Pool::alloc`] and gives back with [`Pool::release`]. Both are plain stack operations: no
//!   atomic instruction.
//! - Any other thread just drops the frame. It goes home through a lock-free queue that the owner empties when its own
//!   stack runs dry. A burst that is released by another thread goes home with one atomic operation.
//! - [`Pool::close`] proves that every frame came home. A pool that is dropped while frames are away stays mapped until the
//!   last of them is gone, so a frame never dangles.
//!
//! - A frame that several look at becomes a [`SharedFrame`]; only then it has a count. One that a device or another process has
//!   by address is lent ([`Pool::lend`]), and only what was lent comes back.
//! - Between threads and processes frames, addresses and descriptors travel through [`ring`]s.
//!
//! `unsafe` lives in six files: `memory.rs` (the mapping), `arena.rs` (the one-owner-per-chunk rule), `pool.rs` (which numbers
//! may become handles), `share.rs` (several readers of one chunk),
//! `ring/memory.rs` (rings in memory that others write) and `ring/frames.rs` (frames in a ring). The return
//! queue and the rings' algorithms are safe code, checked by loom in every interleaving.

mod arena;
mod burst;
mod config;
mod counters;
pub mod descriptor;
mod frags;
mod frame;
mod guest;
pub mod layout;
mod lent;
mod memory;
pub mod offload;
mod pool;
pub mod prefetch;
mod pressure;
mod redirect;
#[doc(hidden)]
pub mod returns;
pub mod ring;
mod share;
mod shared;
mod sync;

pub use burst::Burst;
pub use config::{Backing, Leak, MemoryReport, Pages, PoolConfig, PoolError, Refused};
pub use counters::Counters;
pub use frags::Parts;
pub use frame::{Frame, FrameFull, RxMeta, Vlan};
pub use guest::{Guest, GuestError, Guests};
pub use layout::{ETH_HLEN, FRAME_RESERVE};
pub use pool::{Pool, Tally};
pub use pressure::{Pressure, PressureAt};
pub use redirect::Redirect;
pub use share::SharedFrame;
pub use shared::SharedMemory;
/// On which NUMA node memory lies: [`MemoryReport::placement`].
pub use xway_numa::Placement;
