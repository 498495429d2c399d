//! Walking all paths: the work list, checkpoints, what is counted, and what becomes of errors.
//!
//! Paths are walked depth first. At a branch whose outcome is open the jump is put on the stack and the walk goes on with
//! the instruction below, as Linux does. At instructions to which several ways lead ([`crate::cfg::Cfg::prune`]) the state is
//! compared with the checkpoints left there ([`crate::prune`]); a path whose state is included in one of them ends.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Instant;

use xway_isa::{CallTarget, Insn};
use xway_object::Program;

use crate::api::{Config, MapsView, Stats};
use crate::cfg::Cfg;
use crate::checkpoints::Checkpoints;
use crate::diag::{Diagnostic, Fail, PathStep, fail, place};
use crate::facts::Collector;
use crate::graph::{Def, Graph};
use crate::guess::Guesses;
use crate::log::Log;
use crate::meter::{Meter, push};
use crate::signature::Signature;
use crate::state::{Frame, FrameKind, REFS_MAX, Salvage, State};

/// "No checkpoint", "no branch".
pub(crate) const NOWHERE: u32 = u32::MAX;

/// The analysis of one program.
pub(crate) struct Verifier<'a> {
    pub program: &'a Program,
    pub view: MapsView<'a>,
    pub config: &'a Config,
    pub cfg: Cfg,
    pub graph: Graph,
    pub points: Checkpoints,
    pub pending: Vec<State>,
    pub facts: Collector,
    pub errors: Vec<Diagnostic>,
    pub stats: Stats,
    pub log: Log,
    /// Branches of all paths: (earlier branch, instruction, taken).
    pub paths: Vec<(u32, u32, bool)>,
    /// Instructions that had been visited when the last checkpoint was left.
    pub last_point: u64,
    /// Last identity given out.
    pub last_id: u32,
    /// Bytes that pending states hold beside their frames.
    pub pending_bytes: usize,
    /// What the analysis costs.
    pub meter: Meter,
    /// Turns of `bpf_loop` are counted, and its loops end with the last one. Without it they may go on for ever.
    pub count_turns: bool,
    /// Instructions that may be visited.
    budget: u64,
    /// Work that may be done, [`Meter::done`].
    work_max: u64,
    /// Work at which the search for more errors than the first one ends.
    more_until: u64,
    /// Errors after which the walk stops.
    errors_max: usize,
    /// r0 at the program's exits.
    pub exits: Vec<Def>,
    /// Entry of the functions that run later (timer callbacks), already queued.
    pub async_done: Vec<(usize, u32)>,
    /// Functions that a helper calls before it returns.
    pub called_back: Vec<bool>,
    /// For each instruction what kind of memory it was seen to reach, 0 for none yet.
    pub access_kinds: Vec<u8>,
    /// Casts of addresses that may not be reached, and why.
    pub casts: BTreeMap<usize, &'static str>,
    /// Decided branches that are walked both ways.
    pub guesses: Guesses,
    /// Something was guessed before the first error, which may be no answer then.
    pub guessed_before: bool,
    /// Functions that may move the packet, directly or through others.
    pub moves_packet: Vec<bool>,
    /// Tags of their parameters, once they were read.
    pub arg_tags: Option<crate::signature::Tags<'a>>,
    /// Signatures of functions that were looked for.
    pub signatures: HashMap<usize, Option<Rc<Signature>>>,
    /// Structures of the kernel that were looked for, by name.
    pub structs: HashMap<String, u32>,
    /// Functions of the kernel, the same.
    pub funcs: HashMap<String, u32>,
    /// The function that is being analysed on its own.
    pub root: usize,
    /// Instructions that were refused and behind which the way went on.
    pub salvaged: u64,
    /// For each error the function under analysis and the last branch of the way.
    pub origins: Vec<(usize, u32)>,
    /// Last branch of the way that was given up because a limit was reached.
    last_path: u32,
}

/// What an instruction leads to.
pub(crate) enum Flow {
    /// The slot at which the path goes on.
    Next(usize),
    /// The path ends here, all is well.
    End,
}

impl<'a> Verifier<'a> {
    pub fn new(program: &'a Program, view: MapsView<'a>, config: &'a Config, cfg: Cfg) -> Self {
        let n = cfg.insns.len();
        let funcs = cfg.funcs.len();
        let moves_packet = crate::func::packet_movers(&cfg, program);
        let meter = Meter::default();
        meter.base(n * INSN_BYTES);
        Verifier {
            program,
            view,
            config,
            points: Checkpoints::new(n),
            facts: Collector::new(n, funcs),
            cfg,
            graph: Graph::default(),
            pending: Vec::new(),
            errors: Vec::new(),
            stats: Stats::default(),
            log: Log::default(),
            paths: Vec::new(),
            last_point: 0,
            last_id: 0,
            pending_bytes: 0,
            meter,
            count_turns: true,
            budget: config.budget,
            work_max: config.budget.saturating_mul(WORK_PER_INSN).saturating_add(WORK_LEAST),
            more_until: u64::MAX,
            errors_max: config.errors_max,
            exits: Vec::new(),
            async_done: Vec::new(),
            called_back: vec![false; funcs],
            moves_packet,
            access_kinds: vec![0; n],
            casts: BTreeMap::new(),
            guesses: Guesses::new(n, config.apart),
            guessed_before: false,
            arg_tags: None,
            signatures: HashMap::new(),
            structs: HashMap::new(),
            funcs: HashMap::new(),
            root: 0,
            salvaged: 0,
            origins: Vec::new(),
            last_path: NOWHERE,
        }
    }

    /// Walks loops of `bpf_loop` as if they had no last turn, and gives up early.
    pub fn without_turns(mut self) -> Self {
        self.count_turns = false;
        self.budget /= 4;
        self.work_max /= 4;
        // Any error is answered by walking again.
        self.errors_max = 1;
        self
    }

    /// Goes on with what an earlier analysis of the program has left of the limits.
    pub fn after(mut self, spent: &Stats) -> Self {
        self.budget = self.budget.saturating_sub(spent.visited);
        self.work_max = self.work_max.saturating_sub(spent.work);
        self
    }

    /// Decides every branch that can be decided.
    pub fn without_guesses(mut self) -> Self {
        self.guesses = Guesses::new(self.cfg.insns.len(), u32::MAX);
        self
    }

    /// A fresh identity.
    pub fn id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    /// Analyses the program and each global function. Errors are left in `errors`.
    pub fn run(&mut self) {
        let started = Instant::now();
        if let Err(fail) = self.check_references() {
            self.report(fail, 0, NOWHERE, None);
            return;
        }
        // A global function may be called first by one that stands behind it, so the list is gone through until nothing
        // new was called.
        let mut done = vec![false; self.cfg.funcs.len()];
        let wanted = |v: &Self, f: usize| f == 0 || (v.cfg.funcs[f].global && v.facts.global_called[f]);
        while let Some(f) = (0..done.len()).find(|f| !done[*f] && wanted(self, *f)) {
            done[f] = true;
            self.root = f;
            let walked = self.entry(f).and_then(|states| states.into_iter().try_for_each(|s| self.explore(s)));
            if let Err(fail) = walked {
                if !self.errors.is_empty() && fail.message.is_empty() {
                    break;
                }
                let path = self.last_path;
                self.report(fail, self.cfg.funcs[f].start, path, None);
            }
            if self.enough_errors() {
                break;
            }
        }
        if self.errors.is_empty()
            && let Err(fail) = self.check_stack_depth()
        {
            self.report(fail, 0, NOWHERE, None);
        }
        self.stats.states = self.points.made;
        self.stats.peak_states = self.points.peak;
        self.meter.note(self.memory());
        self.stats.work = self.meter.done(self.stats.visited);
        self.stats.peak_bytes = self.meter.peak() as u64;
        self.stats.time = started.elapsed();
    }

    /// A state with one frame at the start of a function.
    pub fn fresh(&mut self, func: usize, kind: FrameKind) -> State {
        let uid = self.id();
        State {
            frames: vec![Rc::new(Frame::new(func, 0, 0, uid, kind, &self.meter))],
            refs: Vec::new(),
            lock: None,
            extent: crate::extent::Extent::default(),
            shifted: None,
            quotient: None,
            pc: self.cfg.funcs[func].start,
            parent: NOWHERE,
            path: NOWHERE,
            insns_since: 0,
            jumps_since: 0,
            salvage: Salvage::None,
        }
    }

    /// Walks all paths from `first`. Fails only when limits are reached; other errors are recorded and end their path.
    fn explore(&mut self, first: State) -> Result<(), Fail> {
        self.points.clear();
        self.pending.clear();
        self.pending_bytes = 0;
        self.guesses.clear();
        self.pending.push(first);
        while let Some(state) = self.pending.pop() {
            self.guesses_done();
            self.pending_bytes = self.pending_bytes.saturating_sub(state.bytes());
            if self.config.log {
                self.log_state_switch(&state);
            }
            self.walk(state)?;
            if self.enough_errors() {
                break;
            }
        }
        Ok(())
    }

    /// Follows one path to its end.
    fn walk(&mut self, mut st: State) -> Result<(), Fail> {
        loop {
            self.stats.visited += 1;
            if self.stats.visited > self.budget || self.stats.visited & 0x1f == 0 {
                self.within_limits(&st)?;
            }
            let Some(insn) = self.cfg.insn(st.pc).copied() else {
                return fail!(BadJump, "execution runs into the middle of an instruction").map_err(|e| e.at(st.pc));
            };
            let pc = st.pc;
            let pruned = if self.is_prune_point(&insn, pc) {
                st.quotient = None;
                self.at_prune_point(&mut st)
            } else {
                Ok(false)
            };
            let flow = match pruned {
                Ok(true) => {
                    if self.config.log {
                        self.log_pruned(pc);
                    }
                    Ok(Flow::End)
                }
                Ok(false) if self.guess_is_over(&st) => {
                    self.guess_failed(&st);
                    return Ok(());
                }
                Ok(false) => {
                    st.insns_since += 1;
                    self.facts.reached[pc] = true;
                    let before = if self.config.log { self.log_insn(&st, &insn) } else { None };
                    let flow = self.step(&mut st, &insn);
                    if let Some(before) = before {
                        self.log_effect(&before, &st, &insn, flow.as_ref().ok());
                    }
                    flow
                }
                Err(fail) => Err(fail),
            };
            match flow {
                Ok(Flow::Next(next)) => st.pc = next,
                Ok(Flow::End) => {
                    self.points.path_ended(st.parent);
                    return Ok(());
                }
                Err(_) if self.guesses.is_guessing() => {
                    self.guess_failed(&st);
                    return Ok(());
                }
                Err(fail) => {
                    let next = if self.errors.len() + 1 < self.errors_max && !self.guesses.were_made() {
                        let mut on = st.clone();
                        self.salvage(&mut on, &insn, &fail).map(|next| (on, next))
                    } else {
                        None
                    };
                    if self.is_news(&st, &fail) {
                        self.report(fail, pc, st.path, Some(&st));
                    }
                    match next {
                        Some((on, next)) => (st, st.pc) = (on, next),
                        None => {
                            self.points.path_ended(st.parent);
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// No more errors are looked for: there are as many as are wanted, or the first one is no answer because something was guessed.
    fn enough_errors(&self) -> bool {
        self.errors.len() >= self.errors_max || (!self.errors.is_empty() && self.guesses.were_made())
    }

    /// Fails when the analysis has visited, done or held as much as it may.
    fn within_limits(&mut self, st: &State) -> Result<(), Fail> {
        let memory = self.memory();
        self.meter.note(memory);
        let work = self.meter.done(self.stats.visited);
        if work > self.more_until {
            // There is an answer; no more is looked for.
            return fail!(Budget, "");
        }
        let exceeded = if self.stats.visited > self.budget {
            format!("the analysis visited {} instructions and is not done", self.stats.visited - 1)
        } else if work > self.work_max {
            format!(
                "the analysis visited {} instructions, did as much work as {} take, and is not done",
                self.stats.visited,
                work / crate::meter::PER_INSN
            )
        } else if memory > self.config.memory {
            format!("the analysis needs more than {} MiB of memory", self.config.memory >> 20)
        } else if st.refs.len() > REFS_MAX {
            format!("more than {REFS_MAX} references are held at once")
        } else {
            return Ok(());
        };
        self.last_path = st.path;
        fail!(Budget, "{exceeded}").map_err(|e| e.at(st.pc).hint(BUDGET_HINT))
    }

    fn is_prune_point(&self, insn: &Insn, pc: usize) -> bool {
        self.cfg.prune[pc]
            || match insn {
                Insn::Call(CallTarget::Helper(id)) => crate::func::calls_back(*id),
                _ => false,
            }
    }

    /// Puts another path on the stack.
    pub fn push(&mut self, st: State) -> Result<(), Fail> {
        if self.pending.len() >= 100_000 {
            return fail!(Budget, "more than 100000 branches are open at once").map_err(|e| e.hint(BUDGET_HINT));
        }
        self.points.path_added(st.parent);
        self.pending_bytes += st.bytes();
        self.meter.work(STATE_WORK);
        push(&mut self.pending, st);
        Ok(())
    }

    /// Notes a branch on the state's path.
    pub fn note_branch(&mut self, st: &mut State, pc: usize, taken: bool) {
        push(&mut self.paths, (st.path, pc as u32, taken));
        st.path = (self.paths.len() - 1) as u32;
    }

    /// Bytes that the analysis holds: what grows with it exactly, and a hundred for each instruction of the program.
    fn memory(&self) -> usize {
        let states = self.pending.capacity() * size_of::<State>() + self.pending_bytes;
        let paths = self.paths.capacity() * size_of::<(u32, u32, bool)>() + self.exits.capacity() * size_of::<Def>();
        self.meter.bytes()
            + states
            + self.points.bytes()
            + self.graph.bytes()
            + paths
            + self.log.text.capacity()
            + self.facts.call_bytes()
            + self.cfg.insns.len() * INSN_BYTES
    }

    /// Records an error, unless one of its kind is known at this place.
    pub fn report(&mut self, fail: Fail, pc: usize, path: u32, st: Option<&State>) {
        let insn = fail.at.unwrap_or(pc);
        if self.errors.iter().any(|e| e.insn == insn) {
            return;
        }
        let mut values = Vec::new();
        if let Some(st) = st {
            for r in &fail.regs {
                values
                    .push((format!("r{r}"), crate::show::describe(&st.frame().regs[*r], &self.graph, self.view.maps)));
            }
        }
        let diag = Diagnostic { path: self.path_steps(path), values, ..Diagnostic::new(self.program, insn, fail) };
        if self.config.log {
            self.log.text.push_str(&format!("{}\n", diag.message));
        }
        if self.errors.is_empty() {
            self.guessed_before = self.guesses.were_made();
            self.more_until = self.meter.done(self.stats.visited).saturating_add(self.work_max / MORE_SHARE);
        }
        self.errors.push(diag);
        self.origins.push((self.root, path));
    }

    /// Adds to each error what is computed only for errors: the shortest way, notes, hints.
    pub fn explain(&mut self) {
        // What explains has states of its own.
        self.points.clear();
        self.pending = Vec::new();
        self.pending_bytes = 0;
        let mut errors = std::mem::take(&mut self.errors);
        for (error, (func, path)) in errors.iter_mut().zip(&self.origins) {
            crate::explain::complete(self, error, *func, &self.branches(*path));
        }
        self.errors = errors;
    }

    /// All branches that lead to `path`, in order: (instruction, jumped).
    fn branches(&self, mut path: u32) -> Vec<(u32, bool)> {
        let mut out = Vec::new();
        while path != NOWHERE {
            let (before, insn, taken) = self.paths[path as usize];
            out.push((insn, taken));
            path = before;
        }
        out.reverse();
        out
    }

    /// The branches that lead to `path`, the last 64 of them.
    fn path_steps(&self, mut path: u32) -> Vec<PathStep> {
        let mut steps = Vec::new();
        while path != NOWHERE && steps.len() < 64 {
            let (before, insn, taken) = self.paths[path as usize];
            let (_, line, source) = place(self.program, insn as usize);
            let to_line = place(self.program, self.cfg.successor(insn as usize, taken)).1;
            steps.push(PathStep { insn: insn as usize, taken, line, source, to_line });
            path = before;
        }
        steps.reverse();
        steps
    }
}

const BUDGET_HINT: &str =
    "bound the loops more tightly, move their bodies into functions called with bpf_loop, or raise the budget";

/// Work that may be done for each instruction that may be visited, of which visiting it is eleven: it bounds the time, whatever an
/// input needs.
const WORK_PER_INSN: u64 = 14;
/// Part of the work behind the first error that looks for others.
const MORE_SHARE: u64 = 16;
/// Work that every analysis may do, so that small budgets count instructions alone.
const WORK_LEAST: u64 = 200_000;
/// What copying a state costs beside its frames, in values.
const STATE_WORK: usize = 4;
/// Bytes for each instruction of the program: it decoded, its live registers, who leads to it, what was seen at it.
const INSN_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use crate::testing::{check, program};
    use crate::{Config, Kind, MapsView, verify};

    fn with(text: &str, config: &Config) -> Result<crate::Verified, crate::Rejection> {
        verify(&program(text), &MapsView::empty(), config)
    }

    #[test]
    fn the_budget_counts_instructions_exactly() {
        let text = "r0 = 0\nr0 += 1\nr0 += 1\nexit";
        let of = |budget| with(text, &Config { budget, ..Config::default() });
        assert_eq!(of(4).map(|p| p.stats().visited).ok(), Some(4));
        let refused = of(3).unwrap_err();
        assert_eq!(refused.errors[0].kind, Kind::Budget);
        assert!(refused.errors[0].message.contains("visited 3 instructions"), "{}", refused.errors[0].message);
    }

    #[test]
    fn the_walk_stops_at_as_many_errors_as_are_wanted() {
        let text = "r6 = *(u32 *)(r1 +12)\nif r6 == 0 goto a\nif r6 == 1 goto b\nr0 = r7\nexit\na: r0 = r8\nexit\n\
                    b: r0 = r9\nexit";
        for most in [1, 2, 3] {
            let refused = with(text, &Config { errors_max: most, ..Config::default() }).unwrap_err();
            assert_eq!(refused.errors.len(), most);
            assert_eq!(refused.errors[0].insn, 3, "the way below comes first");
        }
    }

    #[test]
    fn an_instruction_is_told_once_however_many_ways_lead_to_it() {
        let text = "r6 = *(u32 *)(r1 +12)\nif r6 == 0 goto +1\nr7 = 1\nr8 = r1\nr0 = r9\nexit";
        assert_eq!(check(text, &[]).unwrap_err().errors.len(), 1);
    }

    #[test]
    fn memory_has_a_limit_of_its_own() {
        let turns = "r6 = 0\nr0 = 0\nagain: *(u64 *)(r10 -8) = r6\nr6 += 1\nr7 = *(u32 *)(r1 +12)\nif r7 == 3 goto +1\n\
                     r0 = 1\nif r6 < 1000 goto again\nr0 = *(u64 *)(r10 -8)\nexit";
        assert!(with(turns, &Config::default()).is_ok());
        let refused = with(turns, &Config { memory: 20_000, ..Config::default() }).unwrap_err();
        assert_eq!(refused.errors[0].kind, Kind::Budget);
        assert!(refused.errors[0].message.contains("memory"), "{}", refused.errors[0].message);
    }
}
