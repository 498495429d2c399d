//! Running programs: the context, the helpers and the checked interpreter.
//!
//! # The model
//!
//! A [`Program`] is linked once: decoded into a dense array, with its maps and helper calls resolved. [`run`] executes it over
//! one [`Frame`](xway_packet::Frame) in the surroundings of an [`Env`], made once per burst, and gives an [`Outcome`]: r0, or
//! the [`Fault`] that stopped it.
//!
//! ```text
//!   object::Program + maps ──link──> Program ─┐
//!   Frame ────────────────────────────────────┼── run ──> Outcome { ret, fault, insns }
//!   Guard, Host, worker number ──> Env ───────┘           Frame: changed packet, redirect target
//! ```
//!
//! The interpreter trusts nothing. Registers hold *virtual addresses*: a region and an offset. Regions are the context, the
//! packet, the stack of each function, and what the run was granted: one map value for each look-up, one ring record for each
//! reservation. Every access is checked against its region; one that fails stops the program and says which instruction, which
//! source line, which region and why. So any program can be run, verified or not, and a verified one must never fault.
//!
//! Helpers are found through the prototype table of `xway_abi`. One marshalling step turns registers into numbers, maps and
//! slices by that table; the implementations see nothing else. What only the machine can answer comes from a [`Host`]. How
//! close each helper comes to Linux is said by [`support`].
//!
//! # Files
//!
//! | file | what |
//! |---|---|
//! | `addr` | virtual addresses |
//! | `rows` | the table of arithmetic and conditions |
//! | `op`, `fuse`, `program` | pre-decoded instructions; fast forms; linking |
//! | `mem`, `words` | loads, stores and grants; the words when they fail |
//! | `interp` | the loop |
//! | `machine` | what helpers ask of a run: one trait, for the interpreter and for generated code |
//! | `call` | from registers to arguments |
//! | `helpers/*` | implementations by subject |
//! | `kfuncs` | kernel functions by name |
//! | `xdp_md` | the context |
//! | `host/*` | the machine: clocks, routes over netlink, a deterministic stand-in |
//! | `chain` | several programs on one hook |
//! | `trace` | watching a run, instruction by instruction |
//! | `testrun` | one packet, as `BPF_PROG_TEST_RUN` runs it |
#![forbid(unsafe_code)]

mod addr;
mod call;
mod chain;
mod env;
mod fault;
mod fuse;
mod helpers;
pub mod host;
mod instance;
mod interp;
mod kfuncs;
pub mod machine;
mod mem;
mod op;
mod owner;
mod program;
mod rows;
mod run;
mod testrun;
mod trace;
mod words;
mod xdp_md;

pub use chain::{CHAIN_END, CHAIN_ON_DEFAULT, chains_on, run_chain};
pub use env::{BUDGET_DEFAULT, Env, Outcome};
pub use fault::{Access, Caller, Fault, FaultKind, Region, RegionKind};
pub use helpers::{Support, Timers, support};
pub use host::{FixedHost, Host, Listener, Printer, Random, SystemHost, told_of_lost_lines};
pub use instance::{Instance, InstanceError, Surroundings};
pub use kfuncs::kfunc_support;
pub use owner::Owner;
pub use program::{Callee, LinkError, Program, SLOTS_MAX};
pub use run::{TAIL_CALLS_MAX, run, run_raw, run_tail};
pub use testrun::{TestRun, TestRunError, TestRunResult, several, test_run, test_run_with};
pub use trace::{Seen, Step, Tracer};
