//! What hostile bytes are thrown at, in one place for two drivers.
//!
//! A [`Target`] is a function that takes any bytes and must come back, with a result or an error, never with a panic, plus
//! inputs to start from. The drivers are
//!
//! * `cargo fuzz run NAME` in `fuzz/`, guided by coverage, for hours;
//! * `fuzz-smoke` here: seeded mutation with stable Rust, ten seconds each, part of `make test`.
//!
//! Both call the same functions, so what one finds the other repeats from the file.
#![forbid(unsafe_code)]

mod elf;
mod mutate;
mod program;
mod targets;

pub use mutate::mutate;
pub use targets::{TARGETS, Target};

/// The target with this name.
///
/// # Panics
/// There is none of this name: both drivers know them at compile time.
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no fuzz target {name}"))
}
