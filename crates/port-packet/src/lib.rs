//! A Linux network interface as a packet port, through a packet socket (`packet(7)`).
//!
//! It works on every interface that carries Ethernet frames and needs nothing but `CAP_NET_RAW`; it is the port to try a
//! program on live traffic with, not the fastest one. The kernel copies each arriving packet into a ring that is shared
//! with this process, the port copies it into a frame of the pool. A ring is of slots (`TPACKET_V2`), where each packet is to be had
//! at once, or of blocks (`TPACKET_V3`), where many cost little: see [`Layout`].
//!
//! A [`PacketDevice`] has one such ring for each queue, and the kernel shares packets out among them (`PACKET_FANOUT`): by flow,
//! unless another [`Fanout`] is asked for.
//!
//! ## What the verdicts mean here
//!
//! A packet socket is given a *copy*. The packet itself goes on to the host's network stack, whatever the program decides,
//! and that settles what a verdict can do:
//!
//! | verdict | effect |
//! |---|---|
//! | `DROP`, `ABORTED`, unknown | our copy is dropped and counted; **the host still gets the packet** |
//! | `PASS` | our copy is released: the host already has the packet, as it was *before* the program changed it |
//! | `TX` | the frame is sent out of the same interface; the host still gets the original |
//! | `REDIRECT` | the frame is sent out of the interface that was chosen, when the worker has a port for it; the host still gets the original |
//!
//! To put a program *between* two interfaces, so that its verdicts rule, give both to a worker as ports without addresses
//! of their own and let PASS go out of the other one (`WorkerConfig::pass_to`, `xway run --pass`): what is passed reaches the other side as the
//! program left it, what is dropped does not.
//!
//! ## What programs see
//!
//! Whole packets, as on the wire:
//!
//! - A VLAN tag that the interface took out is put back in.
//! - A checksum that the sender left to its hardware (every packet from the other end of a veth pair) is completed, so that
//!   programs see, and targets receive, correct packets.
//! - Packets that are longer than a frame are not cut but counted as `oversize`; unsegmented TCP of a sender on the same
//!   machine (up to 64 KiB, never on a wire) is counted as `gso`. `ethtool -K IFACE tso off gso off` on the sender's side
//!   makes it send packets of ordinary size.
//! - Packets that the host itself sends out of the interface are not received.
//!
//! What arrives faster than it is read is dropped by the kernel and counted in `dropped`.
//!
//! `unsafe` lives in two files: `sys.rs` (system calls that have no safe wrapper) and `ring.rs` (the shared ring).

mod config;
mod device;
mod error;
mod port;
mod receive;
mod ring;
mod sys;

pub use config::{Fanout, Layout, PacketConfig};
pub use device::{Kept, PacketDevice};
pub use error::OpenError;
pub use port::PacketPort;
pub use ring::Place;
