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

use crate::diag::{Fail, fail};
use crate::explore::Verifier;
use crate::include::Inclusion;
use crate::settle::{clean, hands_on_unwritten, propagate};
use crate::state::{Frame, State};
use crate::value::Value;

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
        self.meter.work(st.values() / 2);
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
                    let counted = !matches!(countdown, Countdown::None | Countdown::MayGoto);
                    if !counted && same_state(old, st) && self.no_progress(old, st) {
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
            let mut inclusion = Inclusion::new(&self.graph, &self.cfg, exact);
            let included = inclusion.state(old, st);
            self.meter.work(inclusion.compared);
            if !included {
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
            if hands_on_unwritten(&self.graph, &c.state, st, exact) {
                self.facts.unwritten_read();
            }
            self.meter.work(st.values());
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
        self.meter.work(st.values());
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
            o.uid == n.uid && o.callback_loop == 0 && n.callback_loop == 0 && !iterates
        }) && old.goto_turns == new.goto_turns
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

fn same_countdown(old: &State, new: &State, countdown: Countdown) -> bool {
    if old.frames.len() != new.frames.len() {
        return false;
    }
    match countdown {
        Countdown::None => false,
        // Only the way into the loop counts down; a way back from behind it does not.
        Countdown::MayGoto => old.frame().uid == new.frame().uid && old.goto_turns != new.goto_turns,
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
