//! A TAP device as a packet port: a network interface of this host whose cable ends in the engine.
//!
//! What the host's stack sends out of the interface is received here; what is sent here arrives at the host as if it came
//! from a wire. So a TAP is a port to try programs with on the host's own traffic, and the place where PASS can go for any
//! other port: `xway run PROG -i afxdp:eth0 --pass tap:xw0` puts what passes into the host's stack.
//!
//! | verdict | effect |
//! |---|---|
//! | `DROP`, `ABORTED`, unknown | the packet is gone |
//! | `PASS` | needs a place to go (`--pass`): behind a TAP there is no stack but the one that sent the packet |
//! | `TX` | the packet arrives back at the host, on the same interface |
//! | `REDIRECT` | it leaves by the port that was chosen |
//!
//! Several queues are several file descriptors of one interface (`IFF_MULTI_QUEUE`); the host spreads its flows over them.
//!
//! Each packet comes with a virtio-net header. What the host may leave undone is chosen with [`Offload`]: nothing, checksums
//! (completed here), or also cutting TCP into packets of the wire's size (done here too, so that one system call brings up to
//! 64 KiB). Programs and targets always see whole, correct packets of ordinary size. What cannot be cut is counted as `gso`.
//!
//! [`Stacked`] is any port with a TAP as its stack side, in both directions.
//!
//! A packet costs one system call in each direction. `unsafe` lives in `sys.rs` (the device's ioctls).

mod error;
mod inject;
mod port;
mod queue;
mod stacked;
mod sys;

pub use error::OpenError;
pub use inject::{Injector, Way};
pub use port::{Offload, TapConfig, TapDevice, TapPort};
pub use stacked::Stacked;
