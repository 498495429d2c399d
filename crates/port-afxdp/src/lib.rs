//! A Linux network interface as a packet port, through AF_XDP sockets.
//!
//! The kernel's driver writes packets into the pool's own memory, and takes them from there to send: no copy is made on our
//! side, and with a driver that can do zero-copy none at all. Taking is exclusive: what arrives on a queue that is open here
//! comes here and *not* to the host's stack, unless PASS puts it back (`--pass`).
//!
//! ```text
//!  kernel                                          this process
//!  driver --> redirect program --> XSKMAP[queue] --> RX ring ----> frame --> program --> verdict
//!     ^         (loaded by us, on a link)                            |
//!     |                                     FILL ring <-- pool <-----+ DROP
//!     +---- TX ring <------------------------------------------------+ TX, REDIRECT
//!     +---> COMPLETION ring --> pool
//!
//!  one pool chunk = one UMEM chunk; it belongs to the kernel from FILL to RX and from TX to COMPLETION
//! ```
//!
//! [`AfXdpDevice`] is the interface: it loads the redirect program when its first queue is opened and holds it by a link, so that
//! it goes with the process, however that ends. Each queue is an [`AfXdpPort`] with a socket of its own. Queues whose frames are
//! of the same pool share one registered memory (`XDP_SHARED_UMEM`).
//!
//! Another process can take the interface over without a moment in which packets go past both to the host: [`Kept`], [`AfXdpDevice::adopt`].
//!
//! What was asked for, what came of it and why is in [`Effective`]: native or generic, with or without copies.
//!
//! [`Card`] is what the interface's card steers packets to its queues by: ethtool's rules.
//!
//! `unsafe` lives in `sys.rs` (socket options and ethtool's requests, which have no safe wrapper). Memory is registered with the kernel by
//! address; it belongs to the pool, and [`xway_packet::Pool::lend`] keeps account of who may write to which chunk.

mod attach;
mod card;
mod config;
mod device;
mod error;
mod gate;
mod marks;
mod port;
mod socket;
mod sys;

pub use card::{Card, CardError};
pub use config::{AfXdpConfig, Copying};
pub use device::{AfXdpDevice, Effective};
pub use error::OpenError;
pub use gate::{Kept, Numbers};
pub use port::AfXdpPort;
