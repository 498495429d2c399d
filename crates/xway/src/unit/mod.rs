//! `xway test`: unit tests for XDP programs.
//!
//! [`format`] is the file, [`case`] runs one case and compares, [`report`] writes what came of it, [`compile`] makes objects
//! of C sources.

pub mod case;
mod compile;
pub mod format;
pub mod report;
