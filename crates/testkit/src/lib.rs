//! What the tests of the house share, and nothing but tests may use.
//!
//! - [`skip`] and [`Needs`]: a test that cannot run on this machine says so, by name, and is counted.
//! - [`Rng`]: a seeded generator, so that a failing run can be repeated from its seed.
//! - [`clang`]: BPF C to object files, from a path or from text in the test.
//! - [`packets`]: frames built layer by layer with right (or deliberately wrong) lengths and checksums, and the
//!   [mixed set](packets::mixed_set) of named frames that every whole-program test runs over.
//! - [`diff`]: a readable comparison of two byte strings.
//!
//! The library depends on no other crate of the house. Tests that set crates against each other or against the running
//! kernel stand in this crate's `tests/` folder.

pub mod clang;
mod diff;
pub mod packets;
mod rng;
mod skip;

pub use diff::{diff_bytes, hex};
pub use rng::Rng;
pub use skip::{Needs, has_command, is_root, kernel_at_least, skip};
