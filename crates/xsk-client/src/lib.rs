//! The application's side of AF_XDP-style sockets that Expressway serves.
//!
//! An application that knows AF_XDP knows this: packet memory cut into chunks (the UMEM), and four rings with the kernel's layout.
//! FILL gives chunks to receive into, RX brings packets, TX takes packets to send, COMPLETION brings chunks back. The rings lie in a
//! memory file that the server made, sealed it and handed over; indices, descriptors and flags are `linux/if_xdp.h`'s.
//!
//! ```no_run
//! use xway_xsk_client::{Bind, Connection};
//!
//! let mut connection = Connection::open("/run/xway/xsk.sock")?;
//! let umem = connection.umem(2048, 4096, 0)?;
//! let mut socket = connection.bind(&umem, &Bind::new("eth0", 0))?;
//! socket.fill(1024);
//! loop {
//!     socket.wait(None)?;
//!     while let Some(packet) = socket.receive() {
//!         println!("{} bytes", packet.bytes().len());
//!         socket.give_back(packet);   // its chunk is free again
//!     }
//!     socket.fill(1024);
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), xway_xsk_client::ClientError>(())
//! ```
//!
//! A [`Chunk`] is owned: it is free, or in one of the rings, or in the application's hands, and never in two of these. What a
//! chunk in the application's hands holds, nobody else writes: with copies the server writes to chunks in FILL only; without, the
//! memory is the engine's own, and the engine has lent the chunk.
//!
//! One difference to Linux, without copies only: COMPLETION and RX bring chunks that are now the application's, not necessarily
//! the very ones that it gave. Their number stays the same.
//!
//! `unsafe` lives in `memory.rs` (bytes of chunks).

mod client;
mod error;
mod memory;
pub mod rings;
mod socket;
pub mod wire;

pub use client::{Bind, Connection, Umem};
pub use error::ClientError;
pub use memory::{Chunk, Packet};
pub use socket::{Fate, Socket, Statistics, TxRequest};
