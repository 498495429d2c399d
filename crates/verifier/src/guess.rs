//! Branches that are decided, and walked both ways all the same.
//!
//! When what is known about a number decides a branch, the analysis relies on it: from then on states in which the number
//! differs are kept apart. Often nothing depends on it. In
//!
//! ```c
//! for (i = 0; i < 100; i++)
//!         if (matches(i)) hits += i;
//! return hits > 7 ? XDP_DROP : XDP_PASS;
//! ```
//!
//! the first way through has `hits` = 0, which decides the last comparison; then every sum that `hits` can have is a state of
//! its own, in each of the hundred turns. So when a decided branch has kept states apart often enough, the way that
//! cannot be taken is walked first, as a *guess*. When it leads to no error the branch was open for any number, and
//! nothing was relied on. When it does, all that the guess left behind is taken back, and the branch is decided as before.
//!
//! Why this is sound: a number on which nothing relied may be *any* number in a state that is pruned. On the guessed way the
//! number keeps its bounds, which contradict the branch; whatever relies on them there marks the number, and then a pruned
//! state has those bounds, too, and never takes that way. What relies on nothing holds for any number.
//!
//! Branches that end a loop are not guessed: their counters matter. A guess may still cost knowledge, because numbers on
//! which nothing relied are widened in loops. A refusal after a guess is therefore no answer: the program is
//! analysed again without ([`crate::verify`]).

use crate::explore::Verifier;
use crate::facts::Collector;
use crate::graph::{Cause, Def, NONE};
use crate::state::State;

/// Instructions that one guess may visit.
const VISITS_MAX: u64 = 4_000;
/// Guesses within guesses.
const NESTED_MAX: usize = 8;
/// Instructions that guesses may visit in any analysis, and in addition the half of all.
const VISITS_LEAST: u64 = 20_000;

/// A branch with one outcome.
pub(crate) struct Decided {
    pub pc: usize,
    /// The outcome.
    pub taken: bool,
    /// The numbers that decide.
    pub defs: [Def; 2],
}

/// What became of guesses at one branch.
#[derive(Default, Debug)]
struct Judged {
    /// How often numbers that decided it kept states apart.
    blame: u32,
    /// The outcome "not taken", "taken" is not guessed any more.
    never: [bool; 2],
    /// It is known whether it ends a loop.
    looked_at: bool,
}

/// A guess that is being walked.
#[derive(Debug)]
struct Guess {
    pc: usize,
    taken: bool,
    depth: usize,
    defs: [Def; 2],
    /// Facts before.
    facts: Box<Collector>,
    /// Bytes that they take.
    bytes: usize,
    /// What there was before: states to walk, with the real way as the last, checkpoints, callbacks, exits, first accesses,
    /// instructions visited.
    pending: usize,
    points: usize,
    callbacks: usize,
    exits: usize,
    accesses: usize,
    visited: u64,
}

/// All guesses of an analysis.
#[derive(Debug)]
pub(crate) struct Guesses {
    /// By instruction: its place in `judged` plus one.
    by_insn: Vec<u32>,
    judged: Vec<Judged>,
    active: Vec<Guess>,
    /// Instructions at which guesses saw the first access of all.
    accesses: Vec<usize>,
    /// Instructions visited by guesses that are over.
    spent: u64,
    apart: u32,
    made: bool,
}

impl Guesses {
    pub fn new(insns: usize, apart: u32) -> Guesses {
        let by_insn = vec![0; insns];
        let (judged, active, accesses) = (Vec::new(), Vec::new(), Vec::new());
        Guesses { by_insn, judged, active, accesses, spent: 0, apart, made: false }
    }

    /// Another function is analysed: what was learnt about branches stays.
    pub fn clear(&mut self) {
        self.active.clear();
        self.accesses.clear();
    }

    /// True when there was a guess: it may have cost knowledge.
    pub fn were_made(&self) -> bool {
        self.made
    }

    /// True while a way is walked that no run may ever take.
    pub fn is_guessing(&self) -> bool {
        !self.active.is_empty()
    }

    /// A number on which something relied for this cause kept two states apart.
    pub fn blame(&mut self, cause: Cause, weight: u32) {
        if let Some(judged) = cause.as_branch().and_then(|n| self.judged.get_mut(n)) {
            judged.blame = judged.blame.saturating_add(weight);
        }
    }

    /// The instruction accesses memory for the first time.
    pub fn first_access(&mut self, pc: usize) {
        if self.is_guessing() {
            self.accesses.push(pc);
        }
    }

    fn of(&mut self, pc: usize) -> usize {
        if self.by_insn[pc] == 0 {
            self.judged.push(Judged::default());
            self.by_insn[pc] = self.judged.len() as u32;
        }
        self.by_insn[pc] as usize - 1
    }
}

impl Verifier<'_> {
    /// The bounds of numbers decided a branch.
    pub fn relied_on(&mut self, decided: &Decided) {
        let cause = Cause::branch(self.guesses.of(decided.pc));
        for d in decided.defs {
            self.graph.mark_for(d, cause);
        }
    }

    /// True when the outcome that cannot be is worth a try.
    pub fn may_guess(&mut self, decided: &Decided) -> bool {
        let graph = &self.graph;
        if decided.defs.iter().all(|d| *d == NONE || graph.is_marked(*d)) {
            return false;
        }
        let n = self.guesses.of(decided.pc);
        let apart = self.guesses.apart;
        let judged = &mut self.guesses.judged[n];
        if judged.blame < apart || judged.never[usize::from(!decided.taken)] {
            return false;
        }
        if !std::mem::replace(&mut judged.looked_at, true) && self.ends_loop(decided.pc) {
            self.guesses.judged[n].never = [true; 2];
            return false;
        }
        let under_way = self.guesses.active.first().map_or(0, |g| self.stats.visited - g.visited);
        self.guesses.active.len() < NESTED_MAX && self.guesses.spent + under_way < self.stats.visited / 2 + VISITS_LEAST
    }

    /// The branch leads back to itself on one side only: what decides it counts the turns of a loop, and they matter.
    fn ends_loop(&self, pc: usize) -> bool {
        let leads_back = |taken: bool| {
            let mut seen = vec![false; self.cfg.insns.len()];
            let mut work = vec![self.cfg.successor(pc, taken)];
            while let Some(at) = work.pop() {
                if at == pc {
                    return true;
                }
                if !std::mem::replace(&mut seen[at], true)
                    && let Some(insn) = self.cfg.insn(at)
                {
                    work.extend(crate::cfg::successors(insn, at).filter_map(|i| usize::try_from(i).ok()));
                }
            }
            false
        };
        leads_back(true) != leads_back(false)
    }

    /// The outcome that cannot be is walked from here on; the real one was put aside just now.
    pub fn guess(&mut self, decided: Decided, st: &State) {
        self.guesses.made = true;
        // The facts are copied.
        let bytes = self.facts.bytes();
        self.meter.work(bytes / 10);
        self.meter.take(bytes);
        self.guesses.active.push(Guess {
            pc: decided.pc,
            taken: !decided.taken,
            depth: st.depth(),
            defs: decided.defs,
            facts: Box::new(self.facts.clone()),
            bytes,
            pending: self.pending.len(),
            points: self.points.all.len(),
            callbacks: self.async_done.len(),
            exits: self.exits.len(),
            accesses: self.guesses.accesses.len(),
            visited: self.stats.visited,
        });
    }

    /// A state was taken from the list: guesses whose real way it is are over, and did no harm.
    pub fn guesses_done(&mut self) {
        while let Some(g) = self.guesses.active.pop_if(|g| self.pending.len() < g.pending) {
            self.meter.give(g.bytes);
            self.facts.branch(g.pc, g.taken);
            self.guess_ends(g.visited);
            if !self.guesses.is_guessing() {
                self.guesses.accesses.clear();
            }
        }
    }

    /// The guess takes too long, or comes back to where it began: that branch ends a loop.
    pub fn guess_is_over(&mut self, st: &State) -> bool {
        let Some(g) = self.guesses.active.last() else { return false };
        let round = g.pc == st.pc && g.depth == st.depth();
        if round {
            let n = self.guesses.by_insn[g.pc] as usize - 1;
            self.guesses.judged[n].never = [true; 2];
        }
        round || self.stats.visited - g.visited > VISITS_MAX
    }

    /// The way that was guessed leads to an error: all that it left behind goes, and what decided is relied on.
    pub fn guess_failed(&mut self, st: &State) {
        let Some(g) = self.guesses.active.pop() else { return };
        self.guess_ends(g.visited);
        self.meter.give(g.bytes);
        self.points.path_ended(st.parent);
        while self.pending.len() > g.pending {
            let Some(state) = self.pending.pop() else { break };
            self.pending_bytes = self.pending_bytes.saturating_sub(state.bytes());
            self.points.path_ended(state.parent);
        }
        self.points.drop_from(g.points);
        self.facts = *g.facts;
        self.async_done.truncate(g.callbacks);
        self.exits.truncate(g.exits);
        for pc in self.guesses.accesses.split_off(g.accesses) {
            self.access_kinds[pc] = 0;
        }
        let n = self.guesses.of(g.pc);
        self.guesses.judged[n].never[usize::from(g.taken)] = true;
        self.relied_on(&Decided { pc: g.pc, taken: !g.taken, defs: g.defs });
    }

    fn guess_ends(&mut self, began: u64) {
        if !self.guesses.is_guessing() {
            self.guesses.spent += self.stats.visited - began;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cfg::Cfg;
    use crate::testing::program;
    use crate::{Config, MapsView, verify};

    /// Sixty turns in which chance decides whether a sum grows, and a comparison of the sum behind them.
    fn summed(behind: &str) -> String {
        format!(
            "r7 = 0\nr8 = 0\nr9 = 1\nagain: call bpf_get_prandom_u32\nif r0 != 0 goto +1\nr7 += r8\nr8 += 1\n\
             if r8 < 60 goto again\nr0 = 2\nif r7 > 7 goto many\nexit\nmany: {behind}\nexit"
        )
    }

    fn visited(text: &str, apart: u32) -> Result<u64, u64> {
        let config = Config { apart, ..Config::default() };
        verify(&program(text), &MapsView::empty(), &config).map(|v| v.stats().visited).map_err(|r| r.stats.visited)
    }

    #[test]
    fn a_branch_that_only_chooses_a_verdict_keeps_no_sums_apart() {
        let text = summed("r0 = 1");
        let with = visited(&text, Config::default().apart).unwrap();
        let without = visited(&text, u32::MAX).unwrap_or_else(|all| all);
        assert!(with * 2 < without, "{with} {without}");
    }

    #[test]
    fn an_error_behind_a_guess_is_no_answer() {
        // Never reached: r9 is 1. A guess alone comes to it.
        let text = summed("if r9 == 1 goto +1\nr0 = r5\nr0 = 1");
        assert!(visited(&text, Config::default().apart).is_ok() && visited(&text, 0).is_ok());
    }

    #[test]
    fn the_branch_that_ends_a_loop_leads_back_on_one_side() {
        let program = program(&summed("r0 = 1"));
        let (config, cfg) = (Config::default(), Cfg::new(&program).ok().unwrap());
        let v = Verifier::new(&program, MapsView::empty(), &config, cfg);
        let ends: Vec<usize> = [4, 7, 9].into_iter().filter(|pc| v.ends_loop(*pc)).collect();
        assert_eq!(ends, [7]);
    }
}
