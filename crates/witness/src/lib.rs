//! Packets that make refused programs go wrong.
//!
//! The verifier refuses a program because on some way an access *may* go wrong. Here a packet is looked for with which it
//! *does*: the branches of that way become constraints on the packet's length and bytes ([`walk`](self), formulas that are
//! evaluated and inverted), a guess is mended until it follows the way, and then the access itself is pushed over its limit.
//! Nothing that was computed is believed: a packet counts when the checked interpreter, with fresh maps, stops the program at
//! the refused instruction. So a counterexample is never wrong; it may be missing.
//!
//! ```text
//!   Diagnostic::trace ──> constraints ──> guess ──┐
//!        ^                                        │ follows the way? mend it where it leaves
//!        └───────── another guess <───────────────┤
//!                                                 └─> checked interpreter: faults there? ──> Counterexample
//! ```
#![forbid(unsafe_code)]

mod expr;
mod run;
mod walk;

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_object::{Object, Program};
use xway_verifier::{Counterexample, Decisive, Diagnostic, Kind, Rejection};

use crate::expr::{Constraint, Guess, LEN_MAX};
use crate::run::Runner;
use crate::walk::{Walk, Walked};

/// Limits of a search for one packet.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Runs in the interpreter.
    pub runs: u32,
    /// Walks over the way.
    pub walks: u32,
    /// Time, checked between walks.
    pub time: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        Effort { runs: 20_000, walks: 400, time: Duration::from_millis(200) }
    }
}

/// Shortest Ethernet frame header. Shorter packets are tried only when no longer one goes wrong: a driver gives none.
const ETH_HLEN: usize = 14;

/// Looks for a counterexample to each error of a rejection and puts it there. `program` is the refused one of `object`.
pub fn complete(object: &Arc<Object>, program: &Program, rejection: &mut Rejection, effort: &Effort) {
    for error in &mut rejection.errors {
        if error.counterexample.is_none() {
            error.counterexample = find(object, program, error, effort);
        }
    }
}

/// Looks for a packet with which the program goes wrong where the error says. `None` when none was found.
///
/// Cost: bounded by `effort`. The packet was run twice, the second time with fresh maps and other random numbers.
pub fn find(object: &Arc<Object>, program: &Program, error: &Diagnostic, effort: &Effort) -> Option<Counterexample> {
    if !can_fault(error.kind) {
        return None;
    }
    let mut search = Search {
        runner: Runner::new(object, program, error.insn)?,
        insns: xway_isa::decode(&program.insns).ok()?,
        object,
        way: &error.trace,
        until: Instant::now() + effort.time,
        runs: effort.runs,
        walks: effort.walks,
    };
    let mut guess = search.by_constraints()?;
    guess = search.simplify(guess);
    let fault = Runner::new(object, program, error.insn)?.confirm(&guess.packet)?;
    let decisive = search.decisive(&guess);
    Some(Counterexample { packet: guess.packet, decisive, fault })
}

/// Kinds of refusals that show as a fault of the interpreter.
fn can_fault(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::PacketBounds
            | Kind::MapBounds
            | Kind::MemoryBounds
            | Kind::StackBounds
            | Kind::Null
            | Kind::NotAPointer
            | Kind::Stale
            | Kind::Unbounded
            | Kind::PointerArithmetic
    )
}

struct Search<'a> {
    runner: Runner,
    insns: Vec<Option<xway_isa::Insn>>,
    object: &'a Object,
    way: &'a [u32],
    until: Instant,
    runs: u32,
    walks: u32,
}

impl Search<'_> {
    fn spent(&self) -> bool {
        self.runs == 0 || Instant::now() >= self.until
    }

    fn faults(&mut self, g: &Guess) -> bool {
        self.runs = self.runs.saturating_sub(1);
        self.runner.faults(&g.packet)
    }

    /// A packet that faults, by constraints first, then by trying what packets usually look like.
    fn by_constraints(&mut self) -> Option<Guess> {
        for shortest in [ETH_HLEN, 0] {
            for first in starts(shortest) {
                if let Some(found) = self.mend(first, shortest) {
                    return Some(found);
                }
            }
            if let Some(found) = self.usual(shortest) {
                return Some(found);
            }
        }
        None
    }

    /// Changes a guess until it follows the way, then pushes the access over its limit.
    fn mend(&mut self, mut g: Guess, shortest: usize) -> Option<Guess> {
        if self.way.is_empty() {
            return None;
        }
        let mut seen: Vec<Guess> = Vec::new();
        for _ in 0..64 {
            if self.walks == 0 || self.spent() {
                return None;
            }
            self.walks -= 1;
            let insns = &self.insns;
            let mut walk = Walk::new(insns, &self.object.maps, &g);
            let walked = walk.follow(self.way)?;
            let met = std::mem::take(&mut walk.met);
            drop(walk);
            let next = match walked {
                Walked::Diverged(c) => pick(&g, &[c], &met, shortest, &seen),
                Walked::Arrived(goals) => {
                    if self.faults(&g) {
                        return Some(g);
                    }
                    let candidates = all(&g, &goals, &met, shortest);
                    for c in candidates {
                        if self.spent() {
                            return None;
                        }
                        if self.faults(&c) {
                            return Some(c);
                        }
                    }
                    pick(&g, &goals, &met, shortest, &seen)
                }
            };
            seen.push(g);
            g = next?;
        }
        None
    }

    /// Common packets cut at every length.
    fn usual(&mut self, shortest: usize) -> Option<Guess> {
        let templates: Vec<Guess> = starts(1500).collect();
        for len in (shortest..if shortest == 0 { ETH_HLEN } else { 160 }).chain([256, 512, 1500]) {
            for t in &templates {
                if self.spent() {
                    return None;
                }
                let mut g = t.clone();
                g.packet.resize(len, 0);
                if self.faults(&g) {
                    return Some(g);
                }
            }
        }
        None
    }

    /// Zeroes what need not be there: from the end, byte by byte.
    fn simplify(&mut self, mut g: Guess) -> Guess {
        let zero = Guess { packet: vec![0; g.packet.len()] };
        if self.faults(&zero) {
            return zero;
        }
        for i in 0..g.packet.len() {
            if g.packet[i] == 0 || self.spent() {
                continue;
            }
            let kept = std::mem::replace(&mut g.packet[i], 0);
            if !self.faults(&g) {
                g.packet[i] = kept;
            }
        }
        g
    }

    /// The bytes that cannot be just anything: zero or their complement would not do.
    fn decisive(&mut self, g: &Guess) -> Vec<Decisive> {
        let mut out: Vec<Decisive> = Vec::new();
        let mut g = g.clone();
        for i in 0..g.packet.len() {
            if self.spent() {
                break;
            }
            let byte = g.packet[i];
            let mut decides = false;
            for other in [!byte, 0] {
                g.packet[i] = other;
                decides |= other != byte && !self.faults(&g);
            }
            g.packet[i] = byte;
            if decides {
                match out.last_mut() {
                    Some(d) if (d.offset + d.len) as usize == i => d.len += 1,
                    _ => out.push(Decisive { offset: i as u32, len: 1 }),
                }
            }
        }
        out
    }
}

/// Guesses to begin with: nothing but zeros, then what packets usually are.
fn starts(len: usize) -> impl Iterator<Item = Guess> {
    let eth = |ethertype: [u8; 2], rest: &[u8]| [&[0u8; 12], &ethertype[..], rest].concat();
    let ipv4 = |protocol: u8| {
        let mut h = [0u8; 20];
        (h[0], h[3], h[8], h[9]) = (0x45, 100, 64, protocol);
        h
    };
    let packets = [
        vec![],
        vec![0xff; 64],
        eth([8, 0], &ipv4(17)),
        eth([8, 0], &ipv4(6)),
        eth([8, 0], &ipv4(1)),
        eth([0x86, 0xdd], &[0x60, 0, 0, 0, 0, 60, 17]),
        eth([0x86, 0xdd], &[0x60, 0, 0, 0, 0, 60, 6]),
        eth([0x81, 0], &[0, 5, 8, 0, 0x45]),
    ];
    packets.into_iter().map(move |mut p| {
        p.resize(len, 0);
        Guess { packet: p }
    })
}

fn fits(g: &Guess, met: &[Constraint], shortest: usize) -> bool {
    let len = g.packet.len();
    len >= shortest && len as u64 <= LEN_MAX && met.iter().all(|c| c.met(g) != Some(false))
}

/// All proposals for any of the constraints that break none of those that hold.
fn all(g: &Guess, wanted: &[Constraint], met: &[Constraint], shortest: usize) -> Vec<Guess> {
    let mut out: Vec<Guess> = wanted.iter().flat_map(|c| c.proposals(g)).collect();
    out.retain(|p| fits(p, met, shortest));
    out
}

/// The best proposal that was not tried yet.
fn pick(g: &Guess, wanted: &[Constraint], met: &[Constraint], shortest: usize, seen: &[Guess]) -> Option<Guess> {
    let proposals: Vec<Guess> = wanted.iter().flat_map(|c| c.proposals(g)).filter(|p| !seen.contains(p)).collect();
    let long_enough = |p: &&Guess| p.packet.len() >= shortest;
    proposals.iter().find(|p| fits(p, met, shortest)).or_else(|| proposals.iter().find(long_enough)).cloned()
}
