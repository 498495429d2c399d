//! UNIX sockets that others come to: who may connect, what they may send along, and who is held up by it; files that they name.
//!
//! ```text
//!  path  ── mode, group ([`Access`], [`Group`]) ──> listener ── no descriptors ([`refuse_rights`]) ──> connection
//!                                                                                                         │
//!                         the thread that accepts: never receives, never closes     [`Threads`] <─────────┘
//! ```
//!
//! A UNIX socket brings whatever its sender likes, descriptors too. Those that nobody asked for are closed by the kernel, in the thread
//! that receives them or closes the connection; and closing can take as long as their sender wants: a TCP socket with `SO_LINGER` whose
//! other end reads nothing. Linux 6.16 and later can be told to take none ([`refuse_rights`]): then the sender is refused. For older
//! ones the thread that looks after the others never receives from a connection and never closes one, and a thread that is held up
//! ([`Pulse`]) has nothing that anybody needs ([`Threads`]).
//!
//! They also name files, and what they name is not what it is said to be: [`open`] and [`read`] take regular ones, without waiting.
//!
//! `unsafe` lives in `rights.rs` (one socket option).

mod file;
mod group;
mod listen;
mod rights;
mod threads;

pub use file::{FileError, open, read};
pub use group::Group;
pub use listen::{Access, Listener, Refused, listen, look};
pub use rights::refuse_rights;
pub use threads::{Pulse, STUCK, Threads};
