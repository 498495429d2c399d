//! Packets as text, both ways.
//!
//! * A [`Description`] says what a packet is in a few words (`ipv4 = { dst = "192.0.2.7" }, udp = { dport = 53 }`);
//!   [`Description::build`] makes the bytes, lengths and checksums included. What is written down explicitly (`checksum`,
//!   `len`) is taken as it is, so that broken packets can be described too.
//! * [`literal`] reads bytes that are given directly: hexadecimal, base64, addresses, numbers with a byte order.
//! * [`dissect`] names the header fields of a packet with their place, and [`diff`] shows two packets side by side with the
//!   fields that differ. Both take any bytes and never fail: what cannot be read is shown as payload.
//!
//! The crate knows nothing of programs, verdicts or files. Everything here is for people and tests, not for the hot path.
#![forbid(unsafe_code)]

mod build;
mod checksum;
mod describe;
mod diff;
mod dissect;
pub mod literal;

pub use build::BuildError;
pub use checksum::internet as internet_checksum;
pub use describe::{Arp, Description, Ethernet, EthernetField, Icmp, Ipv4, Ipv6, Mac, Payload, Tcp, Udp, Vlan, Vlans};
pub use diff::{Difference, diff, hex_rows};
pub use dissect::{Field, Layer, dissect, summary};
