//! `xway test`: unit tests for XDP programs.
//!
//! [`mod@format`] is the file, [`mod@case`] runs one case and compares, [`mod@report`] writes what came of it, [`mod@compile`] makes objects
//! of C sources.

pub mod case;
mod compile;
pub mod format;
pub mod report;
