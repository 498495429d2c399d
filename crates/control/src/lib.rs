//! The engine as a service: one process that owns ports and programs, and a socket over which others ask it.
//!
//! ```text
//! xway up -c FILE ──▶ Server ── Mutex<State> ── hook::User ── engine ── ports
//!                       ▲            │
//!   Unix socket, 0660   │            └─ journal: what must be there again after a restart
//!                       │
//! Service (a Hook) ─────┘  one message, one answer; the same trait as the kernel and the engine in a process
//! ```
//!
//! A message is a header of eight bytes (length, version) and one JSON object. What a server does not know is refused by its
//! name, unless it is zero: so a newer client can talk to an older server as long as it asks for nothing new, as bpf(2) does
//! it with the tail of its attributes.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | the declarative file: ports, programs, limits |
//! | [`plan`] | what must be done so that the engine is what a file says |
//! | [`wire`] | messages on a socket: bounded in size and time |
//! | [`message`], `watching` | what can be asked |
//! | [`metrics`] | counters for Prometheus |
//! | `watch` | events and captures of one connection |
//! | `peer` | who asks, and what that one may |
//! | `log` | what the service says of itself |
//! | `journal` | what outlives the process |
//! | `reinject` | what passes on an `afxdp:` port goes back into its host |
//! | `rings` | what programs write for user space |
//! | `share` | descriptors of maps, over the socket |
//! | `data_path` | what messages say of served sockets and steering |
//! | `activate` | a socket that was opened before |
//! | `upgrade`, `handover`, `probe` | another executable: what becomes of everything; the descriptors that go along; asking it |
//! | `state`, `server` | the service itself |
//! | [`client`] | the other end: [`Service`] |
#![forbid(unsafe_code)]

mod activate;
pub mod client;
pub mod config;
mod data_path;
mod handover;
mod journal;
mod log;
pub mod message;
pub mod metrics;
mod notify;
mod peer;
pub mod plan;
mod ports;
mod probe;
mod reinject;
mod rings;
mod server;
mod share;
mod state;
mod upgrade;
mod watch;
mod watching;
pub mod wire;

pub use client::Service;
pub use config::Config;
pub use handover::TAKES;
pub use log::LogFormat;
pub use server::{End, Server, ServerError};

/// Where the socket lies when nobody says otherwise.
pub const SOCKET: &str = "/run/xway/control.sock";
