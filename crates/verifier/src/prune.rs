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
//!   that one is finished, too. What counts down lies in the frames that the open one has, an iterator in those up to its own: they
//!   must be the very same. Deeper ones need not be, so that what was walked in a later turn of a callback, when its numbers were
//!   widened, ends the paths of an earlier turn. Which checkpoints are tied is found as Tarjan's algorithm finds strongly connected
//!   components: each keeps the earliest checkpoint that its paths lead to, and all of a component are finished with its first.
//!
//! Why no run goes round for ever: a round passes along paths and over ends of paths, of which at least one is an end in a checkpoint
//! that was open then. All of them leave the frames and iterators alone that the open ones of the round count with. An iterator or a
//! callback loop counts at that checkpoint's own instruction. The turns of `may_goto` are counted anywhere on the way: along
//! paths they never fall, at an open checkpoint they have risen, and at a tied one they must not be fewer than it
//! has ([`crate::include`]), so that over the round they rise.

use std::rc::Rc;

use xway_isa::{CallTarget, Insn, Reg};

use crate::checkpoints::Differs;
use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::Verifier;
use crate::include::Inclusion;
use crate::settle::{clean, hands_on_unwritten, propagate};
use crate::state::{Byte, Frame, State};
use crate::value::{Base, Num, Ptr, Value};

/// A number that is not widened may take a loop many turns to settle.
const WIDENING_HELD: u32 = 8;
/// Turns after which packet pointers are widened, less two.
const POINTER_TURNS: usize = 3;

/// Instructions of all ways together after which a loop that is being unrolled leaves a checkpoint.
const CHECKPOINT_DUE: u64 = 50;
/// Arrivals at an instruction without that a checkpoint was left there.
const ARRIVALS_MAX: u32 = 8;

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
        let forced = countdown != Countdown::None;
        // Where many ways meet shortly behind another checkpoint, no way alone would ever come from far.
        let far = self.points.passed(pc) >= ARRIVALS_MAX || (st.jumps_since >= 2 && st.insns_since >= 8);
        // In a loop that is being unrolled a checkpoint at every turn costs more than it saves. Where its turns branch the
        // next one is due after as many instructions of all ways together: ways between two checkpoints multiply.
        let due =
            st.jumps_since >= 20 || st.insns_since >= 100 || self.stats.visited - self.last_point >= CHECKPOINT_DUE;
        let looping = || self.points.at[pc].iter().any(|i| self.points.all[*i as usize].open > 0);
        let adds = forced || (far && (due || !looping()));
        if self.compare_here(st, countdown, adds)? {
            return Ok(true);
        }
        self.points.trim(pc, forced);
        if adds {
            // A pointer that was widened stands at its place's start, as it did in the turn before.
            if forced && self.widen(st, pc, countdown) && self.compare_here(st, countdown, false)? {
                return Ok(true);
            }
            self.checkpoint(st);
        }
        Ok(false)
    }

    fn compare_here(&mut self, st: &State, countdown: Countdown, adds: bool) -> Result<bool, Fail> {
        let here = std::mem::take(&mut self.points.at[st.pc]);
        let outcome = self.compare_all(st, &here, countdown, adds);
        let added = std::mem::replace(&mut self.points.at[st.pc], here);
        debug_assert!(added.is_empty());
        outcome
    }

    /// True when the path ends. That a checkpoint was no use counts against it only where another one is left: the turns of
    /// a loop that is being unrolled would remove what the turns before have left.
    fn compare_all(&mut self, st: &State, here: &[u32], countdown: Countdown, adds: bool) -> Result<bool, Fail> {
        let miss = u32::from(adds);
        let digest = std::cell::LazyCell::new(|| digest(st));
        for &i in here.iter().rev() {
            let c = &self.points.all[i as usize];
            let (is_open, tied) = (c.open > 0, c.tied);
            let old = &c.state;
            if is_open {
                let counts = countdown != Countdown::None && same_countdown(old, st, countdown);
                if !counts {
                    let counted = !matches!(countdown, Countdown::None | Countdown::MayGoto);
                    let same = !counted && c.digest == *digest && self.same_state(old, st);
                    if same && self.no_progress(old, st) {
                        return fail!(
                            InfiniteLoop,
                            "the loop can go round for ever: nothing changes from one turn to the next"
                        )
                        .map_err(|e| e.hint("make every turn change what the loop's condition looks at"));
                    }
                    self.points.all[i as usize].misses += miss;
                    continue;
                }
            }
            if let Some(by) = c.differs.filter(|differs| differs.from(st.frame())) {
                self.meter.work(1);
                self.guesses.blame(self.graph.cause(by.blocked), 1);
                self.points.all[i as usize].misses += miss;
                continue;
            }
            let exact = is_open || tied;
            // What counts down lies in these frames.
            let same = if is_open { counting_frames(st, countdown) } else { c.low_frames };
            let mut inclusion = Inclusion::new(&self.graph, &self.cfg, exact.then_some(same));
            let included = inclusion.state(old, st);
            self.meter.work(inclusion.compared);
            if !included {
                let blocked = inclusion.blocked;
                let differs = inclusion.differs.and_then(|reg| Differs::in_register(old.frame(), reg, blocked));
                let c = &mut self.points.all[i as usize];
                c.misses += miss;
                if !exact {
                    c.differs = differs;
                    self.guesses.blame(self.graph.cause(blocked), 1);
                }
                continue;
            }
            let (low, frames) = (c.low, c.low_frames);
            self.points.all[i as usize].hits += 1;
            if is_open {
                self.points.ends_in(st.parent, i, same);
            } else if tied {
                self.points.ends_in(st.parent, low, frames);
            }
            let c = &self.points.all[i as usize];
            if hands_on_unwritten(&self.graph, &c.state, st, exact) {
                self.facts.unwritten_read();
            }
            self.meter.work(st.values());
            propagate(&mut self.graph, &c.state, st, exact);
            return Ok(true);
        }
        Ok(false)
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
        st.replace(|v| v.as_num().map(|n| Value::Num(Num { def: graph.copy(n.def), ..*n })));
        for frame in &mut st.frames {
            if !frame.stack.is_empty() {
                for slot in &mut Rc::make_mut(frame).stack {
                    slot.live = graph.copy(slot.live);
                    if slot.bytes.contains(&Byte::Zero) {
                        slot.zeros = graph.copy(slot.zeros);
                    }
                }
            }
        }
        st.extent.def = graph.copy(st.extent.def);
        st.extent.beyond_def = graph.copy(st.extent.beyond_def);
        let parent = st.parent;
        self.last_point = self.stats.visited;
        st.insns_since = 0;
        st.jumps_since = 0;
        let point = self.points.add(st.clone(), digest(st), parent, st.pc);
        // The path that is being walked belongs to the new checkpoint now, which itself is one open path of its parent.
        st.parent = point;
    }

    /// Nothing that counts down lies between the two states: no `may_goto`, callback loop or fresh frame. Iterators that
    /// went on make the states different.
    fn no_progress(&self, old: &State, new: &State) -> bool {
        // A caller that runs a callback loop makes no turn while the function that it called stays the same activation.
        old.frames
            .iter()
            .zip(&new.frames)
            .all(|(o, n)| (o.uid, o.callback_loop, o.goto_turns) == (n.uid, n.callback_loop, n.goto_turns))
            && new.frame().callback_loop == 0
    }

    /// Equal in everything but histories. What runs is compared first: it is what most often differs.
    fn same_state(&self, old: &State, new: &State) -> bool {
        let same_value = |a: &Value, b: &Value| match (a, b) {
            (Value::Num(a), Value::Num(b)) => a.s == b.s,
            (a, b) => a == b,
        };
        let mut compared = 0;
        let mut same_frame = |(o, n): (&Rc<Frame>, &Rc<Frame>)| {
            let shape = || o.func == n.func && o.callsite == n.callsite && o.stack.len() == n.stack.len();
            Rc::ptr_eq(o, n)
                || shape()
                    && o.regs.iter().zip(&n.regs).all(|(a, b)| same_value(a, b))
                    && o.stack.iter().zip(&n.stack).all(|(a, b)| {
                        compared += 1;
                        a.bytes == b.bytes && same_value(&a.spill, &b.spill)
                    })
        };
        let same = old.frames.len() == new.frames.len()
            && old.refs.len() == new.refs.len()
            && old.lock == new.lock
            && old.frames.iter().zip(&new.frames).rev().all(&mut same_frame);
        self.meter.work(1 + compared);
        same
    }

    /// Forgets bounds of numbers that change from turn to turn and on which nothing relied so far, so that the loop
    /// reaches a state that includes the next. Packet pointers that still move after some turns may be anywhere: true when
    /// there are any.
    fn widen(&mut self, st: &mut State, pc: usize, countdown: Countdown) -> bool {
        let earlier = |i: &u32| {
            let c = &self.points.all[*i as usize];
            let same = c.open > 0 && same_countdown(&c.state, st, countdown);
            (same && c.state.frames.len() == st.frames.len()).then_some(*i)
        };
        let mut turns = self.points.at[pc].iter().rev().filter_map(earlier);
        let Some(before) = turns.next() else { return false };
        // A loop whose turns are counted may know where each of them is.
        let counted = countdown == Countdown::Callback && self.count_turns;
        let pointers = !counted && turns.nth(POINTER_TURNS).is_some();
        let before = &self.points.all[before as usize];
        let mut moved = Moved { last_id: self.last_id, seen: Vec::new() };
        let (graph, guesses) = (&mut self.graph, &mut self.guesses);
        for (f, old) in before.state.frames.iter().enumerate() {
            let mut new: Frame = (*st.frames[f]).clone();
            let mut widen = |o: &Value, n: &mut Value| match (o, n) {
                (Value::Num(o), Value::Num(n)) if o.s != n.s => {
                    if graph.is_marked(o.def) {
                        guesses.blame(graph.cause(o.def), WIDENING_HELD);
                        return;
                    }
                    n.s = n.s.widen(&o.s);
                    n.link = 0;
                    n.def = graph.refined(n.def, o.def);
                }
                (Value::Ptr(o), Value::Ptr(n)) if pointers => moved.anywhere(o, n),
                _ => {}
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
        self.last_id = moved.last_id;
        !moved.seen.is_empty()
    }
}

/// Packet pointers that were widened at one place.
struct Moved {
    last_id: u32,
    /// What each was in the earlier turn, in this one, and what became of it: copies stay copies.
    seen: Vec<(Ptr, Ptr, Ptr)>,
}

impl Moved {
    /// A packet pointer that is not where it was may be anywhere behind the start, with nothing proved.
    fn anywhere(&mut self, old: &Ptr, new: &mut Ptr) {
        let plain = |p: &Ptr| p.base == Base::Packet && !p.nullable && p.reference == 0;
        if !plain(old) || !plain(new) || (old.off == new.off && old.var == new.var) {
            return;
        }
        if let Some(known) = self.seen.iter().find(|s| s.0 == *old && s.1 == *new) {
            *new = known.2;
            return;
        }
        let first = |p: &Ptr| p.var.smin().saturating_add(p.off.into());
        let last = |p: &Ptr| p.var.smax().saturating_add(p.off.into());
        // One comparison with the end bounds an offset by the longest packet; behind that there is room for some steps.
        let far = 2 * crate::extent::PACKET_LEN_MAX;
        let (low, high) = (first(old).min(first(new)), last(old).max(last(new)));
        if low < 0 || high > far {
            return;
        }
        self.last_id += 1;
        let widened = Ptr { var: Scalar::between(0, far as u64), id: self.last_id, ..Ptr::to(Base::Packet) };
        self.seen.push((*old, *new, widened));
        *new = widened;
    }
}

/// A number that is the same for states that are equal in what [`Verifier::same_state`] looks at, and seldom otherwise: the open
/// checkpoints of a loop that is being unrolled are many, and each comparison with one waits for memory. Of numbers the bounds are taken,
/// of pointers where they point to.
fn digest(st: &State) -> u64 {
    let frame = st.frame();
    let fold = |sum: u64, n: u64| (sum ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let value = |sum: u64, v: &Value| match v {
        Value::Num(n) => fold(fold(sum, n.s.umin()), n.s.umax()),
        Value::Ptr(p) => fold(fold(sum, u64::from(p.id) << 32 | u64::from(p.off as u32)), p.var.umin()),
        _ => fold(sum, 1),
    };
    let regs = frame.regs.iter().fold(frame.stack.len() as u64, value);
    frame.stack.iter().map(|slot| &slot.spill).fold(regs, value)
}

/// How many frames the loop's count lies in: an iterator may be that of a caller, and the function that advances it another activation
/// in each turn.
fn counting_frames(st: &State, countdown: Countdown) -> usize {
    match (countdown, st.reg(Reg::R1)) {
        (Countdown::Iterator, Value::Ptr(Ptr { base: Base::Stack(frame), .. })) => usize::from(*frame) + 1,
        _ => st.frames.len(),
    }
}

fn same_countdown(old: &State, new: &State, countdown: Countdown) -> bool {
    if old.frames.len() != new.frames.len() {
        return false;
    }
    match countdown {
        Countdown::None => false,
        // Only the way into the loop counts down; a way back from behind it does not.
        Countdown::MayGoto => {
            let (old, new) = (old.frame(), new.frame());
            old.uid == new.uid && old.goto_turns != new.goto_turns
        }
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

#[cfg(test)]
mod tests {
    use xway_isa::Reg;

    use super::digest;
    use crate::domain::Scalar;
    use crate::graph::Graph;
    use crate::meter::Meter;
    use crate::state::Byte;
    use crate::state::tests::state;
    use crate::testing::log;
    use crate::value::{Base, Ptr, Value};

    /// States that are equal but for their histories have one digest; what a loop counts and where its pointers stand make it another.
    #[test]
    fn equal_states_have_one_digest() {
        let (meter, mut graph) = (Meter::default(), Graph::default());
        let mut of = |turns, off, spilled| {
            let mut st = state(&meter);
            st.set(Reg::R6, Value::num(Scalar::constant(turns), graph.constant(turns)));
            st.set(Reg::R7, Value::Ptr(Ptr { off, ..Ptr::to(Base::Packet) }));
            let slot = st.frame_mut().slot_mut(1);
            slot.bytes = [Byte::Spill; 8];
            slot.spill = Value::num(Scalar::constant(spilled), graph.constant(spilled));
            digest(&st)
        };
        assert_eq!(of(3, 4, 5), of(3, 4, 5));
        let all = [of(3, 4, 5), of(4, 4, 5), of(3, 5, 5), of(3, 4, 6)];
        assert!((1..4).all(|i| !all[..i].contains(&all[i])), "{all:x?}");
    }

    #[test]
    fn a_state_that_is_included_ends_its_way() {
        let text = "r6 = *(u32 *)(r1 +16)\nr0 = 1\nif r6 > 100000 goto +3\nif r6 < 10 goto +2\nr7 = 5\nr7 += 1\n\
                    if w6 s> 77 goto +1\nr0 = 2\nexit";
        assert!(log(text).contains("from 6 to 8: safe"), "{}", log(text));
    }

    /// What lies behind a loop over the packet is walked for a few of its exits, not for each: they come together so shortly behind the
    /// turns' own checkpoints that none of them comes from far.
    #[test]
    fn what_many_ways_lead_to_is_walked_a_few_times() {
        let tail = "r0 *= 3\nr0 ^= r6\n".repeat(100);
        let text = format!(
            "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr6 = 0\nr5 = 0\nturn: r4 = r2\nr4 += 2\nif r4 > r3 goto exit\n\
             r1 = *(u16 *)(r2 +0)\nr6 += r1\nr2 += 2\nr5 += 1\nif r5 != 750 goto turn\nexit: r0 = 0\n{tail}r0 = 2\nexit"
        );
        let visited = crate::testing::check(&text, &[]).unwrap().stats().visited;
        assert!(visited < 20_000, "{visited}: 750 turns of 8 instructions, and not the tail of 200 for each");
    }
}
