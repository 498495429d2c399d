//! Checkpoints, and ending paths that can show nothing new.
//!
//! A state is *included* in a checkpoint's when every run that starts from the state also starts from the checkpoint's.
//! What was proved from the checkpoint then holds for the state. Three cases:
//!
//! * The checkpoint is **finished**: all paths from it were walked. What must be compared is known: live registers, stack
//!   slots that were read, and of numbers only those whose bounds were relied on ([`crate::graph`]).
//! * It is **open**: it lies on the path that is being walked. The path would go round for ever, unless something counts
//!   down: an iterator, `may_goto`, a callback loop. Only at those instructions, and only for the same iterator, frame or
//!   callback loop, the path ends, and then everything is compared, because what matters is not yet known.
//! * It is **tied**: finished, but one of its paths ended in an open checkpoint. It is compared like an open one until
//!   that one is finished, too. Which checkpoints are tied is found as Tarjan's algorithm finds strongly connected
//!   components: each keeps the lowest depth of an open checkpoint that its paths ended in.

use std::rc::Rc;

use xway_isa::{CallTarget, Insn, Reg};

use crate::cfg::Cfg;
use crate::diag::{Fail, fail};
use crate::explore::{NOWHERE, Verifier, weight};
use crate::graph::Graph;
use crate::include::Inclusion;
use crate::state::{Frame, State};
use crate::value::Value;

/// A state that was met at an instruction.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub state: State,
    parent: u32,
    /// Number of checkpoints above it on its path.
    depth: u32,
    /// Paths from it that are not yet walked to their end.
    open: u32,
    /// Lowest depth of an open checkpoint that a path from here ended in.
    low: u32,
    /// Length of the list of tied checkpoints when this one was made.
    tied_from: usize,
    tied: bool,
    /// Comparisons that failed and that ended a path.
    misses: u32,
    hits: u32,
    /// No longer in the list of its instruction.
    dropped: bool,
}

/// All checkpoints of one walk.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    all: Vec<Checkpoint>,
    at: Vec<Vec<u32>>,
    /// Finished checkpoints that depend on an open one.
    tied: Vec<u32>,
    bytes: usize,
    kept: u64,
    /// Checkpoints ever made.
    pub made: u64,
    /// Most checkpoints kept at once.
    pub peak: u64,
}

impl Checkpoints {
    pub fn new(insns: usize) -> Checkpoints {
        let at = vec![Vec::new(); insns];
        Checkpoints { all: Vec::new(), at, tied: Vec::new(), bytes: 0, kept: 0, made: 0, peak: 0 }
    }

    /// Forgets everything but the counters.
    pub fn clear(&mut self) {
        self.all.clear();
        self.at.iter_mut().for_each(Vec::clear);
        self.tied.clear();
        self.bytes = 0;
        self.kept = 0;
    }

    /// Bytes taken, roughly.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// One more path leads on from this checkpoint.
    pub fn path_added(&mut self, point: u32) {
        if point != NOWHERE {
            self.all[point as usize].open += 1;
        }
    }

    /// A path from this checkpoint has ended; checkpoints without open paths are finished.
    pub fn path_ended(&mut self, mut point: u32) {
        while point != NOWHERE {
            let c = &mut self.all[point as usize];
            c.open -= 1;
            if c.open > 0 {
                return;
            }
            let (low, depth, from, parent) = (c.low, c.depth, c.tied_from, c.parent);
            if low < depth {
                c.tied = true;
                self.tied.push(point);
                self.ends_in(parent, low);
            } else {
                for t in self.tied.split_off(from) {
                    self.all[t as usize].tied = false;
                }
            }
            point = parent;
        }
    }

    /// A path from `point` ended in an open checkpoint at this depth.
    fn ends_in(&mut self, point: u32, depth: u32) {
        if point != NOWHERE {
            let c = &mut self.all[point as usize];
            c.low = c.low.min(depth);
        }
    }

    fn add(&mut self, state: State, parent: u32, pc: usize) -> u32 {
        let depth = if parent == NOWHERE { 0 } else { self.all[parent as usize].depth + 1 };
        self.bytes += weight(&state) + 64;
        let c = Checkpoint {
            state,
            parent,
            depth,
            open: 1,
            low: u32::MAX,
            tied_from: self.tied.len(),
            tied: false,
            misses: 0,
            hits: 0,
            dropped: false,
        };
        self.all.push(c);
        let i = (self.all.len() - 1) as u32;
        self.at[pc].push(i);
        self.made += 1;
        self.kept += 1;
        self.peak = self.peak.max(self.kept);
        i
    }

    /// Drops checkpoints that were often compared in vain. Dropping one never makes the analysis wrong, only longer.
    fn trim(&mut self, pc: usize) {
        let all = &mut self.all;
        let (mut freed, mut count) = (0, 0);
        self.at[pc].retain(|i| {
            let c = &mut all[*i as usize];
            let keep = c.misses <= c.hits * 8 + 32;
            if !keep {
                freed += weight(&c.state);
                count += 1;
                c.dropped = true;
                // Only its registers go; the node stays for the tree.
                c.state.frames = Vec::new();
                c.state.refs = Vec::new();
            }
            keep
        });
        self.bytes -= freed.min(self.bytes);
        self.kept -= count;
    }
}

/// What makes a loop through an instruction end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Countdown {
    None,
    /// The iterator whose address is in r1.
    Iterator,
    /// The frame's `may_goto` counter.
    MayGoto,
    /// The callback loop of the frame's call instruction.
    Callback,
}

impl Verifier<'_> {
    /// Compares the state with the checkpoints here and leaves a new one when it pays. True when the path ends.
    pub fn at_prune_point(&mut self, st: &mut State) -> Result<bool, Fail> {
        let pc = st.pc;
        let countdown = self.countdown(st);
        clean(st, &self.cfg);
        let here = std::mem::take(&mut self.points.at[pc]);
        let outcome = self.compare_all(st, &here, countdown);
        let added = std::mem::replace(&mut self.points.at[pc], here);
        debug_assert!(added.is_empty());
        let (ended, looping) = outcome?;
        if ended {
            return Ok(true);
        }
        self.points.trim(pc);
        let forced = countdown != Countdown::None;
        let far = st.jumps_since >= 2 && st.insns_since >= 8;
        // In a loop that is being unrolled a checkpoint at every turn costs more than it saves.
        let spaced = !looping || st.jumps_since >= 20 || st.insns_since >= 100;
        if forced || (far && spaced) {
            if forced {
                self.widen(st, pc, countdown);
            }
            self.checkpoint(st);
        }
        Ok(false)
    }

    /// (path ends, an open checkpoint with the same frames was met here).
    fn compare_all(&mut self, st: &State, here: &[u32], countdown: Countdown) -> Result<(bool, bool), Fail> {
        let mut looping = false;
        for &i in here.iter().rev() {
            let c = &self.points.all[i as usize];
            let (is_open, tied) = (c.open > 0, c.tied);
            let old = &c.state;
            if is_open {
                looping = true;
                let counts = countdown != Countdown::None && same_countdown(old, st, countdown);
                if !counts {
                    if countdown == Countdown::None && same_state(old, st) && self.no_progress(old, st) {
                        return fail!(
                            InfiniteLoop,
                            "the loop can go round for ever: nothing changes from one turn to the next"
                        )
                        .map_err(|e| e.hint("make every turn change what the loop's condition looks at"));
                    }
                    self.points.all[i as usize].misses += 1;
                    continue;
                }
            }
            let exact = is_open || tied;
            if !Inclusion::new(&self.graph, &self.cfg, exact).state(old, st) {
                self.points.all[i as usize].misses += 1;
                continue;
            }
            let (depth, low) = (c.depth, c.low);
            self.points.all[i as usize].hits += 1;
            if is_open {
                self.points.ends_in(st.parent, depth);
            } else if tied {
                self.points.ends_in(st.parent, low);
            }
            let c = &self.points.all[i as usize];
            propagate(&mut self.graph, &c.state, st, exact);
            return Ok((true, looping));
        }
        Ok((false, looping))
    }

    fn countdown(&self, st: &State) -> Countdown {
        match self.cfg.insn(st.pc) {
            Some(Insn::MayGoto { .. }) => Countdown::MayGoto,
            Some(Insn::Call(CallTarget::Helper(id))) if crate::func::calls_back(*id) => Countdown::Callback,
            Some(Insn::Call(CallTarget::Kfunc { id, .. })) if crate::kfunc::is_iter_next(self.program, *id) => {
                Countdown::Iterator
            }
            _ => Countdown::None,
        }
    }

    /// Leaves the state here for later comparison. Numbers and slots of both get nodes that stand for this place.
    fn checkpoint(&mut self, st: &mut State) {
        let graph = &mut self.graph;
        st.for_each(|v| match v {
            Value::Num(n) => {
                n.def = graph.copy(n.def);
                true
            }
            _ => false,
        });
        for frame in &mut st.frames {
            if !frame.stack.is_empty() {
                for slot in &mut Rc::make_mut(frame).stack {
                    slot.live = graph.copy(slot.live);
                }
            }
        }
        st.extent.def = graph.copy(st.extent.def);
        let parent = st.parent;
        st.insns_since = 0;
        st.jumps_since = 0;
        let point = self.points.add(st.clone(), parent, st.pc);
        // The path that is being walked belongs to the new checkpoint now, which itself is one open path of its parent.
        st.parent = point;
    }

    /// Nothing that counts down lies between the two states: no iterator, `may_goto`, callback loop or fresh frame.
    fn no_progress(&self, old: &State, new: &State) -> bool {
        old.frames.iter().zip(&new.frames).all(|(o, n)| {
            let iterates = o.stack.iter().any(|s| matches!(s.spill, Value::Iter(_)));
            o.uid == n.uid
                && o.callback_loop == 0
                && n.callback_loop == 0
                && !iterates
                && !self.cfg.has_may_goto(o.func)
        })
    }

    /// Forgets bounds of numbers that change from turn to turn and on which nothing relied so far, so that the loop
    /// reaches a state that includes the next.
    fn widen(&mut self, st: &mut State, pc: usize, countdown: Countdown) {
        let before =
            self.points.at[pc].iter().rev().map(|i| &self.points.all[*i as usize]).find(|c| {
                c.open > 0 && same_countdown(&c.state, st, countdown) && c.state.frames.len() == st.frames.len()
            });
        let Some(before) = before else { return };
        let graph = &mut self.graph;
        for (f, old) in before.state.frames.iter().enumerate() {
            let mut new: Frame = (*st.frames[f]).clone();
            let mut widen = |o: &Value, n: &mut Value| {
                if let (Value::Num(o), Value::Num(n)) = (o, n)
                    && o.s != n.s
                    && !graph.is_marked(o.def)
                {
                    n.s = n.s.widen(&o.s);
                    n.link = 0;
                    n.def = graph.refined(n.def, o.def);
                }
            };
            for r in 0..10 {
                widen(&old.regs[r], &mut new.regs[r]);
            }
            for (o, n) in old.stack.iter().zip(new.stack.iter_mut()) {
                if o.spill_len() > 0 && o.spill_len() == n.spill_len() {
                    let len = n.spill_len() as u32 * 8;
                    widen(&o.spill, &mut n.spill);
                    if let Value::Num(n) = &mut n.spill {
                        n.s = n.s.truncate(len);
                    }
                }
            }
            if new != *st.frames[f] {
                st.frames[f] = Rc::new(new);
            }
        }
    }
}

/// What the old state relies on, the new one relies on too.
fn propagate(graph: &mut Graph, old: &State, new: &State, late: bool) {
    let mut link = |from, to| {
        if late {
            graph.link_late(from, to);
        } else if graph.is_marked(from) {
            graph.mark(to);
        }
    };
    link(old.extent.def, new.extent.def);
    let mut flows = Vec::new();
    for (o, n) in old.frames.iter().zip(&new.frames) {
        for (a, b) in o.regs.iter().zip(&n.regs) {
            if let (Value::Num(a), Value::Num(b)) = (a, b) {
                link(a.def, b.def);
                flows.push((a.def, b.def));
            }
        }
        for (a, b) in o.stack.iter().zip(&n.stack) {
            link(a.live, b.live);
            if a.spill_len() > 0
                && let Value::Num(x) = a.spill
            {
                // A slot that was not spilled as a number flows in as something unknown.
                let from = match b.spill {
                    Value::Num(y) if b.spill_len() > 0 => y.def,
                    _ => crate::graph::NONE,
                };
                link(x.def, from);
                flows.push((x.def, from));
            }
        }
        // Slots that only the old state has were never written in the new one.
        for a in o.stack.iter().skip(n.stack.len()) {
            if let (Value::Num(x), true) = (a.spill, a.spill_len() > 0) {
                flows.push((x.def, crate::graph::NONE));
            }
        }
    }
    for (place, value) in flows {
        graph.flow(place, value);
    }
}

/// Forgets registers that nobody will read, and links that link nothing.
fn clean(st: &mut State, cfg: &Cfg) {
    let last = st.frames.len() - 1;
    let mut links: Vec<u32> = Vec::new();
    for i in 0..=last {
        let at = if i == last { st.pc } else { st.frames[i + 1].callsite };
        let live = live_regs(cfg, &st.frames[i], at, i == last);
        let frame = &st.frames[i];
        let dead = (0..10).any(|r| live >> r & 1 == 0 && frame.regs[r] != Value::Uninit);
        if dead {
            let frame = Rc::make_mut(&mut st.frames[i]);
            for r in (0..10).filter(|r| live >> r & 1 == 0) {
                frame.regs[r] = Value::Uninit;
            }
        }
        let frame = &st.frames[i];
        let spills = frame.stack.iter().filter(|s| s.spill_len() > 0).map(|s| &s.spill);
        links.extend(frame.regs.iter().chain(spills).filter_map(|v| v.as_num()).map(|n| n.link).filter(|l| *l != 0));
    }
    links.sort_unstable();
    st.extent.clean(&links);
    let extent = st.extent.clone();
    let alone = |l: u32| links.partition_point(|x| *x <= l) - links.partition_point(|x| *x < l) == 1;
    st.for_each(|v| match v {
        Value::Num(n) if n.link != 0 && alone(n.link) && !extent.names(n.link) => {
            n.link = 0;
            n.delta = 0;
            true
        }
        _ => false,
    });
}

/// Registers of a frame that may still be read when it goes on at `at`.
pub(crate) fn live_regs(cfg: &Cfg, frame: &Frame, at: usize, running: bool) -> u16 {
    if running {
        return cfg.live[at] | 1 << 10;
    }
    // A frame that waits for a call: what is live behind it, and its arguments while a helper calls back.
    let after = cfg.live.get(at + 1).copied().unwrap_or(0) & 0x3c0;
    let args = if frame.callback_loop != 0 { cfg.live[at] } else { 0 };
    after | args | 1 << 10
}

fn same_countdown(old: &State, new: &State, countdown: Countdown) -> bool {
    if old.frames.len() != new.frames.len() {
        return false;
    }
    match countdown {
        Countdown::None => false,
        Countdown::MayGoto => old.frame().uid == new.frame().uid,
        Countdown::Callback => {
            old.frame().callback_loop != 0
                && old.frame().callback_loop == new.frame().callback_loop
                && old.frame().uid == new.frame().uid
        }
        Countdown::Iterator => {
            let iter = |s: &State| {
                let Value::Ptr(p) = s.reg(Reg::R1) else { return None };
                crate::kfunc::iter_at(s, p).filter(|i| !i.drained).map(|i| i.id)
            };
            iter(old).is_some() && iter(old) == iter(new)
        }
    }
}

/// Equal in everything but histories.
fn same_state(old: &State, new: &State) -> bool {
    let same_value = |a: &Value, b: &Value| match (a, b) {
        (Value::Num(a), Value::Num(b)) => a.s == b.s,
        (a, b) => a == b,
    };
    old.frames.len() == new.frames.len()
        && old.refs.len() == new.refs.len()
        && old.lock == new.lock
        && old.frames.iter().zip(&new.frames).all(|(o, n)| {
            o.func == n.func
                && o.callsite == n.callsite
                && o.stack.len() == n.stack.len()
                && o.regs.iter().zip(&n.regs).all(|(a, b)| same_value(a, b))
                && o.stack.iter().zip(&n.stack).all(|(a, b)| a.bytes == b.bytes && same_value(&a.spill, &b.spill))
        })
}
