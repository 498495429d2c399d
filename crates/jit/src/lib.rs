//! Verified programs to machine code, with Cranelift.
//!
//! # The model
//!
//! [`compile`] takes a linked program with its proof ([`xway_verifier::Verified`]) and gives a [`Compiled`]: code that runs a
//! program over all frames of a burst without a call between them, and over a single one. There are no checks in it: registers
//! hold real addresses, and the verifier has proved every use. What cannot be compiled is refused by name, and the engine runs
//! it in the interpreter.
//!
//! ```text
//!   vm::Program + Verified ──plan──> Plan ──passes──> Plan ──lower──> Cranelift ──link──> CodeMemory
//!                                     │ facts: which memory, which map, where the key lies, what is dead
//!   Frames, RunEnv ───────────────────┴────────────── Compiled::run_burst ──> verdicts
//! ```
//!
//! # Files
//!
//! | file | what |
//! |---|---|
//! | `options` | a switch for every pass |
//! | `plan/*` | the intermediate form, and how it is made from instructions and facts |
//! | `lower/*` | from it to Cranelift's form |
//! | `lanes/*` | wide accesses from narrow ones, on Cranelift's form |
//! | `numbering/*` | the mid-end: what is computed twice is computed once |
//! | `means` | which mid-end, and functions too long for any |
//! | `calls/*` | what generated code calls |
//! | `clock` | time from the processor's counter |
//! | `env`, `native` | the worker's environment; helpers on real addresses |
//! | `records` | records of rings that a run holds |
//! | `branches` | where jumps lie, on processors that mind |
//! | `link`, `code` | relocations; memory that is never writable and executable at once |
//! | `units` | what is compiled together |
//! | `compiled` | all of it in order; running |
//! | `outcome` | one packet, as test runs want it |
//! | `chain`, `dispatch` | several programs as one burst function; a tree of jumps to programs that change |
//! | `stage` | memory of large maps, fetched for a whole burst |
//! | `trial` | whether that pays for the packets that come |
//! | `headers` | first lines of cold packets |
//! | `asm`, `dump` | assembly beside source lines |
//! | `profile`, `gdb` | symbols and lines for `perf`; symbols for `gdb` |
//! | `refusal` | why a program is not compiled |
//! | `same` | whether two compilations gave the same code |
//!
//! `docs/design-notes/jit.md` says how they fit together and where a new pass goes.

mod asm;
#[cfg(target_arch = "x86_64")]
mod branches;
mod calls;
mod chain;
pub mod clock;
mod code;
mod compiled;
pub mod dispatch;
pub mod dump;
mod env;
mod gdb;
mod headers;
mod lanes;
mod link;
mod lower;
mod means;
mod native;
mod numbering;
mod options;
mod outcome;
mod plan;
pub mod profile;
mod records;
mod refusal;
mod same;
mod scratch;
mod stage;
mod trial;
mod units;

pub use chain::{Decided, LINKS_MAX, Link, chain};
pub use compiled::{Compiled, Stats, compile, compile_for_aarch64};
pub use env::RunEnv;
pub use link::{Origin, Placed};
pub use options::Options;
pub use refusal::Refusal;
