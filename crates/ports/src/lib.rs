//! Ports by their names: `packet:eth0`, `tap:xw0?queues=2`, `afxdp:eth0?mode=native`, `pcap:a.pcap?loop=3`, `sim:a?flows=100`.
//!
//! The command line and the service's configuration mean the same by them: a kind, what it is of, and behind a `?` options, which
//! are not part of the name (`tap:xw0?queues=2` is called `tap:xw0` once it is open). What a kind can do and which options it has
//! is told in docs/ports. This crate reads names; who opens the port says with which memory, and what becomes of its packets.
//!
//! ```
//! # use xway_ports::PortName;
//! let port = PortName::parse("tap:xw0?queues=2")?;
//! assert_eq!(port.to_string(), "tap:xw0");
//! assert!(PortName::parse("tap:xw0?colour=red").unwrap_err().to_string().contains("there is no option \"colour\""));
//! # Ok::<(), xway_ports::NameError>(())
//! ```
#![forbid(unsafe_code)]

mod known;
mod memory;
mod name;
mod options;

pub use known::{OPTIONS, PortOption};
pub use memory::{Played, Sim};
pub use name::PortName;
pub use options::{NameError, Options};
