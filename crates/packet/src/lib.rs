//! Packet memory: pools, frames and bursts.
//!
//! A [`Frame`] has one owner at every moment, and Rust's types say who: it is not `Clone`, and it moves from its [`Pool`]
//! to a port, into a [`Burst`], through a verdict to a target, and home again. A frame that is simply dropped, anywhere
//! and on any thread, goes home by itself through a lock-free queue, so that none is lost; [`Pool::close`] proves it.
//!
//! One frame is one chunk of the pool's single mapping:
//!
//! ```text
//! chunk start                                                                        chunk end
//! |<- FRAME_RESERVE ->|                                                 |<-- tailroom -->|
//! |<------------- headroom ------------->|                              |                |
//! +-------------------+---------+--------+-------------------+----------+----------------+
//! |     reserved      |  room   |  meta  |      packet       |   room   |    reserved    |
//! +-------------------+---------+--------+-------------------+----------+----------------+
//! 0                             data_meta data          data_end     hard_end
//! ```
//!
//! The limits of `adjust_head`, `adjust_meta` and `adjust_tail` are Linux's, so that a program gets the same answer from
//! both: the reserves stand where the kernel keeps its `xdp_frame` and its `skb_shared_info`.

mod burst;
mod frame;
mod memory;
mod pool;
mod redirect;

pub use burst::Burst;
pub use frame::{ETH_HLEN, FRAME_RESERVE, Frame, FrameFull, RxMeta, Vlan};
pub use pool::{Counters, Leak, Pool, PoolConfig, PoolError, Refused};
pub use redirect::Redirect;
