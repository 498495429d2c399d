//! AF_XDP-style sockets that the engine serves to other processes.
//!
//! ```text
//!  application (xway-xsk-client)                       engine
//!   UNIX socket  ------- UMEM, bind, statistics ------> Server        control: one thread for each application
//!   rings, UMEM  <====== shared, sealed memory ======>  Xsk           the four rings, seen by the queue's worker
//!                                                       Group         the sockets of one queue, with fair turns to send
//! ```
//!
//! A packet comes to a socket from a program, through an XSKMAP that holds it, or from a queue that is bound to it past all programs.
//! What it sends leaves by the queue that it is bound to; sockets of one queue take turns by deficit round robin, in bytes.
//!
//! ## Whom to trust
//!
//! Nobody on the other side. The rings lie in memory that the application writes at any time:
//!
//! - Indices are believed only when they move forward within the ring ([`xway_packet::ring::spsc`]); others are counted.
//! - Each address and length is checked before it is used; what cannot be is counted and skipped, as Linux does it.
//! - With copies, programs and ports work on pool frames that the application cannot reach. A packet is read from the UMEM once.
//! - Without copies the application maps the pool of its queue and can change packets while a program reads them. So this is
//!   for applications that the server trusts ([`Policy::trusted_uids`]), and for those whose queue is theirs alone: bound
//!   past all programs, with traffic steered to it ([`Policy::own_queue_zero_copy`]). Chunks are *lent*: each one that comes
//!   back is checked against what the socket was lent, and what it still has when it goes comes home.
//! - An application that stops loses its own packets. One that dies is noticed by its connection.
//! - No call on a descriptor that an application has too can wait (`bell.rs`). Where a descriptor that an application sent, and that
//!   nobody asked for, is closed, the thread that does it may be held for as long as the application likes. Where Linux can
//!   refuse them nobody can send any ([`xway_door`]); elsewhere it is never the thread of a worker that does it, nor one that others wait
//!   for, and what the application has comes home without it (`sessions.rs`).
//! - Everything that an application can ask for is counted, for it, for its user and for all together (`budget.rs`).
//!
//! `unsafe` lives in `umem.rs` (copies to and from memory that others write).

mod bell;
mod budget;
mod group;
mod hub;
mod policy;
mod server;
mod session;
mod sessions;
mod socket;
mod umem;
mod zero;

pub use group::Group;
pub use policy::Policy;
pub use server::{EngineQueues, Queues, Refusal, Server, ServerError, SocketInfo, WorkerQueues};
pub use socket::{HandedOver, Mode, Shape, Xsk};
pub use umem::Umem;
pub use xway_door::Access;
