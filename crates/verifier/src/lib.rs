//! The verifier: proves that a program is safe to run without checks, or says why it is not.
//!
//! [`verify`] is a pure function. It walks every path of a program with *abstract* values: instead of a number a register
//! holds what is known about it, instead of an address the object that it points into and the bounds of the offset. A
//! program is accepted when on every path every access lies inside what the program was given, everything is written
//! before it is read where that matters, what was acquired is released, and the path ends. `docs/verifier.md` explains
//! the analysis with examples.
//!
//! From the bottom up:
//!
//! | module | what it holds |
//! |---|---|
//! | `domain` | abstract numbers: known bits (`tnum`), intervals (`range`), both and the 32-bit half (`scalar`), arithmetic, comparisons |
//! | `value`, `state` | register kinds; frames, stack bytes, references, locks |
//! | `extent` | how long the packet is: distances to its end, sums that name the same place |
//! | `graph` | where numbers come from, so that only those on which something relied are compared |
//! | `guess` | decided branches whose other way does no harm: nothing then relies on what decided them |
//! | `malformed` | slots that are no instruction |
//! | `cfg` | jumps, functions, live registers; checked before anything is walked |
//! | `step`, `alu`, `branch`, `memory`, `stack` | one class of instructions each |
//! | `objects` | what BTF describes: objects of the kernel, fields, functions by their types |
//! | `call`, `args`, `func`, `kfunc`, `signature` | helpers by their prototypes, functions, callbacks, kernel functions |
//! | `explore`, `checkpoints`, `prune`, `settle`, `include` | all paths, checkpoints, and when a path shows nothing new |
//! | `meter` | bytes held and work done |
//! | `salvage` | going on behind an error, so that one run tells several |
//! | `explain` | only for refusals: the shortest way, where values come from, hints |
//! | `facts`, `diag`, `show`, `log` | what is handed over: facts, refusals, values in words, the state log |
//!
//! What a helper takes and gives is read from the one table in `xway-abi`.
#![forbid(unsafe_code)]

mod alu;
mod api;
mod args;
mod branch;
mod call;
mod cfg;
mod checkpoints;
mod diag;
pub mod domain;
mod explain;
mod explore;
mod extent;
mod facts;
mod func;
mod graph;
mod guess;
mod include;
mod kfunc;
mod log;
mod malformed;
mod memory;
mod meter;
mod objects;
mod prune;
mod salvage;
mod settle;
mod show;
mod signature;
mod stack;
mod state;
mod step;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod value;

pub use api::{
    AccessFact, ArgsFact, CallFact, Config, Facts, KeyPlace, MapsView, Place, Region, Rejection, Stats, Verified,
};
pub use call::{needs_kernel_objects, unsupported};
pub use diag::{Counterexample, Decisive, Diagnostic, Kind, Note, PathStep};
pub use extent::PACKET_LEN_MAX;
pub use kfunc::kfunc_unsupported;

use xway_object::{Program, ProgramKind};

use crate::cfg::Cfg;
use crate::explore::Verifier;

/// Proves a linked program, or refuses it with reasons.
///
/// Cost: proportional to the instructions visited, which [`Config::budget`] bounds; memory is bounded by
/// [`Config::memory`]. Hostile input is refused, never a panic.
///
/// ```
/// use xway_verifier::{Config, MapsView, verify};
/// let program = xway_object::Program { insns: xway_isa::assemble("r0 = 2\nexit")?, ..Default::default() };
/// let proof = verify(&program, &MapsView::empty(), &Config::default()).expect("a safe program");
/// assert_eq!(proof.facts().verdicts, Some(vec![xway_abi::Verdict::Pass]));
/// # Ok::<(), xway_isa::AsmError>(())
/// ```
pub fn verify(program: &Program, view: &MapsView<'_>, config: &Config) -> Result<Verified, Rejection> {
    let shape = check_kind(program).and_then(|()| Cfg::new(program));
    let cfg = match shape {
        Ok(cfg) => cfg,
        Err(fail) => {
            let error = Diagnostic::new(program, fail.at.unwrap_or(0), fail);
            return Err(Rejection { errors: vec![error], stats: Stats::default(), log: String::new() });
        }
    };
    let mut v = Verifier::new(program, *view, config, cfg);
    if func::has_counted_loops(&v.cfg) {
        // What holds for any number of turns need not be shown turn by turn. What does not may still hold for as many as
        // there are.
        let mut endless = Verifier::new(program, *view, config, v.cfg.clone()).without_turns();
        endless.run();
        if endless.errors.is_empty() {
            v = endless;
        } else {
            let before = endless.stats;
            drop(endless);
            v = v.after(&before);
            v.run();
            v.stats = before.and(&v.stats);
        }
    } else {
        v.run();
    }
    let exhausted = v.errors.iter().any(|e| e.kind == Kind::Budget);
    if !v.errors.is_empty() && !exhausted && v.guessed_before {
        // A number on which nothing relied is forgotten in loops: what is refused now may hold with all branches decided.
        let mut careful = Verifier::new(program, *view, config, v.cfg.clone()).after(&v.stats).without_guesses();
        careful.run();
        careful.stats = v.stats.and(&careful.stats);
        v = careful;
    }
    if !v.errors.is_empty() {
        v.explain();
        return Err(Rejection { errors: v.errors, stats: v.stats, log: v.log.text });
    }
    let exits = std::mem::take(&mut v.exits);
    let verdicts = v.graph.verdicts(&exits);
    let facts = v.facts.finish(&v.cfg, verdicts);
    let insns = malformed::tidy(&program.insns, &v.cfg.insns, &v.cfg.wrong, &v.casts);
    Ok(Verified { insns, maps: view.maps.to_vec(), facts, stats: v.stats, log: v.log.text })
}

fn check_kind(program: &Program) -> Result<(), diag::Fail> {
    match program.kind {
        ProgramKind::Other(prefix) => diag::fail!(Unsupported, "programs of type {prefix} are not XDP"),
        _ => Ok(()),
    }
}
