//! Filter expressions over packets, in the language that tcpdump made known.
//!
//! ```text
//! "tcp port 80 and net 10.0.0.0/8"
//!        │  libpcap, loaded when it is needed        [`compile`]
//!        ▼
//! classic BPF: two registers, sixteen words of memory [`Classic`], [`check`]
//!        │  our translation                           [`translate`]
//!        ▼
//! eBPF for XDP, which the verifier proves and the compiler compiles like any other program
//! ```
//!
//! The translation is checked against the kernel's own (`SO_ATTACH_FILTER`), against an interpreter of classic BPF, and by a
//! property: whatever [`check`] accepts, the verifier accepts.
//!
//! What an accepted program does is what the kernel does with it on a socket:
//! - a load outside the packet ends it with 0, "no match"; so does a division by zero;
//! - numbers in packets are big-endian; a shift uses the low five bits of its count;
//! - memory that was not written reads as zero, as do both registers at the start.
//!
//! Two things differ. Negative offsets, by which Linux's filters reach what is known beside the packet (`inbound`, `ifindex`, a
//! VLAN tag that the device took away), mean nothing before the stack has seen the packet: they are refused by name. And a frame of
//! several buffers is looked at in its first one; its length is that of all.
mod classic;
mod libpcap;
mod tcpdump;
mod translate;

pub use classic::{CheckError, Classic, MEMORY, PROGRAM_MAX, check};
pub use libpcap::{FilterError, compile};
pub use translate::translate;

use xway_isa::Slot;

/// From an expression to eBPF: [`compile`], [`check`] and [`translate`] in one.
///
/// # Errors
/// libpcap is missing, or what it says to the expression; a part of it that only exists behind the network stack.
pub fn program(expression: &str) -> Result<Vec<Slot>, FilterError> {
    let classic = compile(expression)?;
    translate(&classic).map_err(|cause| FilterError::Untranslated { expression: expression.to_owned(), cause })
}
