//! Several programs on one hook, compiled into one burst function.
//!
//! [`xway_vm::run_chain`] says what a chain is and is what this must agree with. Here the main functions of all links stand one
//! behind the other in the loop over frames: from a verdict that chains on to the next program is a jump. There is nothing to
//! look up and no call, whatever the number of links. To change a chain, compile it anew beside the traffic and let the
//! worker take the new code at its next burst.

use std::sync::Arc;

use xway_verifier::Verified;
use xway_vm::Program;

use crate::compiled::build;
use crate::{Compiled, Options, Refusal};

/// Links that a chain may have.
pub const LINKS_MAX: usize = 64;

/// A program in a chain.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// The program.
    pub program: &'a Arc<Program>,
    /// Its proof ([`Program::proof`] has it for programs that were linked behind the verifier).
    pub proof: &'a Verified,
    /// The verdicts after which the next program runs: bit n for verdict n. [`xway_vm::CHAIN_ON_DEFAULT`] is `XDP_PASS` alone.
    pub chain_on: u32,
}

/// Compiles programs, in the order in which they run, into one burst function.
///
/// [`Compiled::run_burst`] then stores for each frame a number of which [`Decided`] tells the verdict and the link that gave it.
/// The main functions are part of the loop as far as they fit into one function of 20,000 instructions; those that do not
/// fit are called directly. Cost: that of compiling the programs one by one.
///
/// # Errors
/// Those of [`crate::compile`] for each program, and [`Refusal::Chain`] for a chain of no programs or of more than
/// [`LINKS_MAX`].
pub fn chain(links: &[Link<'_>], options: &Options) -> Result<Arc<Compiled>, Refusal> {
    if links.is_empty() || links.len() > LINKS_MAX {
        return Err(Refusal::Chain { links: links.len(), max: LINKS_MAX });
    }
    build(links, true, options)
}

/// What a chain's burst function stores for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decided {
    /// The verdict, 32 bits as a program returns them.
    pub verdict: u32,
    /// The link that gave it, by its place; the number of links when all of them chained on.
    pub link: usize,
}

impl Decided {
    /// Reads what [`Compiled::run_burst`] stored. The verdict is in the lower half, so whoever asks only for that need not
    /// look here.
    pub const fn of(stored: u64) -> Decided {
        Decided { verdict: stored as u32, link: (stored >> 32) as usize }
    }
}
