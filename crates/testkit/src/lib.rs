//! What the tests of the house share, and nothing but tests may use.
//!
//! - [`skip`] and [`Needs`]: a test that cannot run on this machine says so, by name, and is counted.
//! - [`Rng`]: a seeded generator, so that a failing run can be repeated from its seed.
//! - [`clang`]: BPF C to object files, from a path or from text in the test.
//! - [`packets`]: frames built layer by layer with right (or deliberately wrong) lengths and checksums, and the
//!   [mixed set](packets::mixed_set) of named frames that every whole-program test runs over.
//! - [`capture`]: the demonstration capture, and pcapng files for tests.
//! - [`Lab`] and [`traffic`]: network namespaces with veth pairs, and small clients and servers in them.
//! - [`as_user`]: what another user may do. [`lingering`]: what a hostile one sends along.
//! - [`stay_on_cpu_0`], [`stay_on_this_cpu`]: for tests that compare per-CPU values with the kernel's.
//! - [`rounds`]: how often tests that do the same again and again do it.
//! - [`diff_bytes`]: a readable comparison of two byte strings.
//!
//! The library depends on no other crate of the house. Tests that set crates against each other or against the running
//! kernel stand in this crate's `tests/` folder.

#![forbid(unsafe_code)]

pub mod capture;
pub mod clang;
mod cpu;
mod diff;
mod lab;
mod lingering;
pub mod packets;
mod people;
mod rng;
mod skip;
pub mod traffic;

/// Rounds of a test that does the same again and again: what `XWAY_ROUNDS` says, else as many as take a moment.
pub fn rounds() -> u32 {
    let said = std::env::var("XWAY_ROUNDS").ok();
    said.map_or(60, |text| text.parse().unwrap_or_else(|_| panic!("XWAY_ROUNDS={text}: not a number")))
}

pub use cpu::{stay_on_cpu_0, stay_on_this_cpu};
pub use diff::{diff_bytes, hex};
pub use lab::{Lab, LabError, Namespace};
pub use lingering::{LINGERS, lingering};
pub use people::as_user;
pub use rng::Rng;
pub use skip::{Needs, has_command, is_root, kernel_at_least, skip};
