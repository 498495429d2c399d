//! Is every run that starts from one state also a run of another?

use crate::cfg::Cfg;
use crate::extent::Extent;
use crate::graph::{Def, Graph, NONE};
use crate::settle::live_regs;
use crate::state::{Byte, Frame, Reference, Slot, State};
use crate::value::{Base, MapRef, Num, Ptr, Value};

/// One comparison. Identities (of links, look-ups, packet offsets, references) are numbers without a meaning of their own:
/// they are matched up as they are met.
pub(crate) struct Inclusion<'a> {
    graph: &'a Graph,
    cfg: &'a Cfg,
    /// Compare everything, because it is not yet known what matters.
    exact: bool,
    /// Frames that must be the same activations, in the same callback loops; all others need only be alike.
    same: usize,
    /// Values that were compared.
    pub compared: usize,
    /// The number of the old state that did not include the new one's, although nothing but its bounds was looked at.
    pub blocked: Def,
    /// The running frame's register in which the states differ, when it was one.
    pub differs: Option<usize>,
    ids: Vec<(u32, u32)>,
    /// Places in the packet: (identity in the old state, in the new one, how far the old one lies behind the new one).
    places: Vec<(u32, u32, i64)>,
    links: Vec<(u32, u32, i64)>,
}

impl<'a> Inclusion<'a> {
    /// Compares everything when `same` is given, which is the number of frames that must be the very same.
    pub fn new(graph: &'a Graph, cfg: &'a Cfg, same: Option<usize>) -> Self {
        let (exact, same) = (same.is_some(), same.unwrap_or(0));
        let (ids, places, links) = (Vec::new(), Vec::new(), Vec::new());
        Inclusion { graph, cfg, exact, same, compared: 8, blocked: NONE, differs: None, ids, places, links }
    }

    /// True when `old` includes `new`.
    pub fn state(&mut self, old: &State, new: &State) -> bool {
        if old.frames.len() != new.frames.len() || old.refs.len() != new.refs.len() {
            return false;
        }
        // Often the one thing that differs, and looked at before the frames, which lie elsewhere.
        if old.extent.least > new.extent.least && (self.exact || self.graph.is_marked(old.extent.def)) {
            return false;
        }
        let same_shape = old
            .frames
            .iter()
            .zip(&new.frames)
            .enumerate()
            .all(|(i, (o, n))| {
                o.func == n.func && o.callsite == n.callsite && o.kind == n.kind && self.same_loop(i, o, n)
            })
            // A callback loop that has more turns left may do more.
            && old.frames.iter().zip(&new.frames).all(|(o, n)| o.callback_turns <= n.callback_turns);
        if !same_shape {
            return false;
        }
        // Who holds it is asked by age, when a function ends: what one has acquired itself is not what it was called with.
        let same_holder =
            |o: u32, n: u32| old.frames.iter().zip(&new.frames).all(|(of, nf)| (o > of.uid) == (n > nf.uid));
        let same =
            |(o, n): (&Reference, &Reference)| o.what == n.what && same_holder(o.id, n.id) && self.id(o.id, n.id);
        if !old.refs.iter().zip(&new.refs).all(same) {
            return false;
        }
        let locks = match (&old.lock, &new.lock) {
            (None, None) => true,
            (Some(o), Some(n)) => self.ptr(&o.ptr, &n.ptr),
            _ => false,
        };
        let last = old.frames.len() - 1;
        locks
            && self.extent(&old.extent, &new.extent)
            && (0..=last).all(|i| {
                let at = if i == last { new.pc } else { new.frames[i + 1].callsite };
                let live = live_regs(self.cfg, &new.frames[i], at, i == last);
                // Of the frames the running one is the last.
                self.differs = None;
                self.frame(&old.frames[i], &new.frames[i], live)
            })
    }

    /// The frames run the same kind of callback loop. While the outcome is open the loop must be the very same, and as many
    /// turns of `may_goto` behind the new state: the old one's paths may have counted before it, and not after.
    fn same_loop(&self, i: usize, o: &Frame, n: &Frame) -> bool {
        if i < self.same {
            o.callback_loop == n.callback_loop && o.uid == n.uid && o.goto_turns <= n.goto_turns
        } else {
            (o.callback_loop == 0) == (n.callback_loop == 0)
        }
    }

    /// What the old state knew of the packet's length the new one knows too. Not compared when nothing relied on it.
    fn extent(&mut self, old: &Extent, new: &Extent) -> bool {
        let beyond = (!self.exact && !self.graph.is_marked(old.beyond_def))
            || old.beyond.iter().all(|o| new.beyond.iter().any(|n| n.off <= o.off && self.place(o.id, n.id, 0)));
        if !beyond {
            return false;
        }
        if !self.exact && !self.graph.is_marked(old.def) {
            return true;
        }
        old.least <= new.least
            && old
                .rooms
                .iter()
                .all(|o| new.rooms.iter().any(|n| self.place(o.id, n.id, 0) && self.same_link(o.link, n.link, 0)))
            && old.places.iter().all(|o| {
                new.places.iter().any(|n| {
                    let fits = o.range <= n.range && self.place(o.from, n.from, 0) && self.place(o.id, n.id, 0);
                    fits && self.same_link(o.link, n.link, n.delta.wrapping_sub(o.delta))
                })
            })
    }

    /// Links that must stand for the same number, up to the distance `shift`.
    fn same_link(&mut self, old: u32, new: u32, shift: i64) -> bool {
        self.compared += self.links.len() / 8;
        if let Some(known) = self.links.iter().find(|l| l.0 == old) {
            return known.1 == new && known.2 == shift;
        }
        self.links.push((old, new, shift));
        true
    }

    fn frame(&mut self, old: &Frame, new: &Frame, live: u16) -> bool {
        self.differs = (0..10).find(|r| live >> r & 1 != 0 && !self.value(&old.regs[*r], &new.regs[*r]));
        self.differs.is_none()
            && old.stack.iter().enumerate().all(|(i, o)| {
                let fresh = Slot::default();
                self.slot(o, new.stack.get(i).unwrap_or(&fresh))
            })
            && new.stack.iter().skip(old.stack.len()).all(|n| n.bytes[0] != Byte::Special && !n.shared)
    }

    fn value(&mut self, old: &Value, new: &Value) -> bool {
        self.compared += 1;
        match (old, new) {
            // Behind what is lost no errors are found that are not found without.
            (Value::Uninit, _) | (_, Value::Lost) => true,
            (Value::Num(o), Value::Num(n)) => self.num(o, n),
            (Value::Ptr(o), Value::Ptr(n)) => self.ptr(o, n),
            _ => false,
        }
    }

    fn num(&mut self, old: &Num, new: &Num) -> bool {
        if !self.exact && !self.graph.is_marked(old.def) {
            return true;
        }
        let included = old.s.includes(&new.s) && (old.link == 0 || self.link(old, new));
        if !included {
            self.blocked = old.def;
        }
        included
    }

    /// Numbers that the old state links must be linked in the new one, with the same distances.
    fn link(&mut self, old: &Num, new: &Num) -> bool {
        let shift = new.delta.wrapping_sub(old.delta);
        self.compared += self.links.len() / 8;
        if let Some(known) = self.links.iter().find(|l| l.0 == old.link) {
            return new.link == known.1 && new.link != 0 && shift == known.2;
        }
        self.links.push((old.link, new.link, shift));
        true
    }

    fn ptr(&mut self, old: &Ptr, new: &Ptr) -> bool {
        if old.base == Base::Packet && new.base == Base::Packet && !old.nullable && !new.nullable {
            return self.packet_ptr(old, new);
        }
        let offsets = old.off == new.off && old.nullable == new.nullable && old.var.includes(&new.var);
        // A wider variable part would also need the same identity; packet ranges count from the place that `id` names.
        offsets
            && self.base(&old.base, &new.base)
            && old.range <= new.range
            && self.id(old.id, new.id)
            && self.id(old.reference, new.reference)
    }

    /// Packet pointers count from places. A place of the old state whose offset is not known stands for any place of the new
    /// one that is a fixed distance away, as long as all pointers agree about that distance.
    fn packet_ptr(&mut self, old: &Ptr, new: &Ptr) -> bool {
        let shift = i64::from(new.off) - i64::from(old.off);
        let offsets = if shift == 0 { old.var.includes(&new.var) } else { old.var.includes(&new.var.add_const(shift)) };
        // Nothing is proved by a range of 0, not even that the place lies before the end, of which bytes in front of it would follow. The
        // others count from where the place now lies, not before the packet.
        let ranges = match shift {
            0 => old.range <= new.range,
            _ if old.range == 0 => true,
            _ => new.range > 0 && old.var.smin() >= 0 && i64::from(old.range) + shift <= i64::from(new.range),
        };
        offsets && ranges && self.place(old.id, new.id, shift) && self.id(old.reference, new.reference)
    }

    /// The start of the packet (0) is one place only. What stands at a known distance from it may also be a place of the old
    /// state; all other places match one to one.
    fn place(&mut self, old: u32, new: u32, shift: i64) -> bool {
        if old == 0 {
            return new == 0 && shift == 0;
        }
        self.compared += self.places.len() / 8;
        for (o, n, by) in &self.places {
            if *o == old || (*n == new && new != 0) {
                return (*o, *n, *by) == (old, new, shift);
            }
        }
        self.places.push((old, new, shift));
        true
    }

    fn base(&mut self, old: &Base, new: &Base) -> bool {
        match (old, new) {
            (Base::MapValue(o), Base::MapValue(n)) | (Base::Map(o), Base::Map(n)) => self.map(o, n),
            (o, n) => o == n,
        }
    }

    fn map(&mut self, old: &MapRef, new: &MapRef) -> bool {
        old.index == new.index && old.inner == new.inner && self.id(old.uid, new.uid)
    }

    /// Zero matches zero only; other identities match one to one.
    fn id(&mut self, old: u32, new: u32) -> bool {
        if old == 0 || new == 0 {
            return old == new;
        }
        self.compared += self.ids.len() / 8;
        for (o, n) in &self.ids {
            if *o == old || *n == new {
                return *o == old && *n == new;
            }
        }
        self.ids.push((old, new));
        true
    }

    fn slot(&mut self, old: &Slot, new: &Slot) -> bool {
        self.compared += 1;
        let special = |s: &Slot| s.bytes[0] == Byte::Special;
        if special(old) || special(new) {
            return special(old) && special(new) && self.special(&old.spill, &new.spill);
        }
        // What may be kept here differs, read or not.
        if new.shared && !old.shared {
            return false;
        }
        if !self.exact && !self.graph.is_marked(old.live) {
            return true;
        }
        let len = old.spill_len();
        if len > 0 {
            let fits = match (&old.spill, new.spill_len() == len) {
                (Value::Num(o), true) if matches!(new.spill, Value::Num(_)) => {
                    let Value::Num(n) = &new.spill else { return false };
                    self.num(o, n)
                }
                // Data that was not spilled as a number of this length: what a read of it would give.
                (Value::Num(o), _) if new.spilled_ptr().is_none() => {
                    let got = new.as_scalar(len);
                    (!self.exact && !self.graph.is_marked(o.def)) || (o.link == 0 && o.s.includes(&got))
                }
                (Value::Ptr(o), true) => new.spilled_ptr().is_some_and(|n| self.ptr(o, n)),
                _ => false,
            };
            if !fits {
                return false;
            }
        }
        let zeros = self.exact || self.graph.is_marked(old.zeros);
        (len..8).all(|i| match old.bytes[i] {
            Byte::Uninit => true,
            // A spilled zero would do as well, but nothing would mark its history as relied on.
            Byte::Zero if zeros && new.bytes[i] != Byte::Zero => {
                self.blocked = old.zeros;
                false
            }
            Byte::Misc | Byte::Zero => new.spilled_ptr().is_none(),
            Byte::Spill | Byte::Special => false,
        })
    }

    fn special(&mut self, old: &Value, new: &Value) -> bool {
        match (old, new) {
            (Value::Iter(o), Value::Iter(n)) => {
                let id = if self.exact { o.id == n.id } else { self.id(o.id, n.id) };
                id && o.kind == n.kind && o.drained == n.drained && o.part == n.part
            }
            (Value::Dynptr(o), Value::Dynptr(n)) => {
                o.kind == n.kind && o.part == n.part && self.id(o.id, n.id) && self.id(o.reference, n.reference)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Scalar;

    /// Whether a comparison of everything holds.
    fn holds(compare: impl FnOnce(&mut Inclusion<'_>) -> bool) -> bool {
        let cfg = Cfg::new(&crate::testing::program("r0 = 0\nexit")).ok().unwrap();
        compare(&mut Inclusion::new(&Graph::default(), &cfg, Some(0)))
    }

    fn num(s: Scalar, link: u32, delta: i64) -> Num {
        Num { link, delta, ..Num::new(s, NONE) }
    }

    fn packet(off: i32, var: Scalar, id: u32, range: u32) -> Ptr {
        Ptr { off, var, id, range, ..Ptr::to(Base::Packet) }
    }

    #[test]
    fn a_number_is_included_by_one_that_allows_more() {
        let (few, many) = (num(Scalar::between(2, 5), 0, 0), num(Scalar::between(0, 9), 0, 0));
        assert!(holds(|i| i.num(&many, &few)));
        assert!(!holds(|i| i.num(&few, &many)));
        // What nobody wrote may be anything; a pointer is no number.
        assert!(holds(|i| i.value(&Value::Uninit, &Value::Num(few))));
        assert!(!holds(|i| i.value(&Value::Num(many), &Value::Uninit)));
        assert!(!holds(|i| i.value(&Value::Num(many), &Value::Ptr(Ptr::to(Base::Ctx)))));
    }

    #[test]
    fn what_does_not_matter_is_not_compared() {
        let cfg = Cfg::new(&crate::testing::program("r0 = 0\nexit")).ok().unwrap();
        let mut graph = Graph::default();
        let (matters, does_not) = (graph.constant(1), graph.constant(2));
        graph.mark(matters);
        let mut inclusion = Inclusion::new(&graph, &cfg, None);
        let of = |x, def| Num::new(Scalar::constant(x), def);
        assert!(inclusion.num(&of(2, does_not), &of(7, NONE)));
        assert!(!inclusion.num(&of(1, matters), &of(7, NONE)));
        assert_eq!(inclusion.blocked, matters, "and what was in the way is known");
    }

    #[test]
    fn links_are_kept_with_their_distances() {
        let any = Scalar::unknown();
        let linked = |link, delta| num(any, link, delta);
        // Two numbers that differ by 3 in the old state do so in the new one, whatever the link is called.
        assert!(holds(|i| i.num(&linked(1, 0), &linked(9, 4)) && i.num(&linked(1, 3), &linked(9, 7))));
        assert!(!holds(|i| i.num(&linked(1, 0), &linked(9, 4)) && i.num(&linked(1, 3), &linked(9, 8))));
        assert!(!holds(|i| i.num(&linked(1, 0), &linked(9, 4)) && i.num(&linked(1, 3), &linked(8, 7))));
        // More links than were known are no harm.
        assert!(holds(|i| i.num(&linked(0, 0), &linked(9, 4)) && i.num(&linked(0, 0), &linked(9, 7))));
    }

    #[test]
    fn packet_pointers_are_compared_by_where_they_lie() {
        let (zero, some) = (Scalar::constant(0), Scalar::between(0, 100));
        // A range is a promise: the new state must have at least the old one's.
        assert!(holds(|i| i.ptr(&packet(14, zero, 0, 34), &packet(14, zero, 0, 40))));
        assert!(!holds(|i| i.ptr(&packet(14, zero, 0, 34), &packet(14, zero, 0, 30))));
        // The start of the packet does not move.
        assert!(!holds(|i| i.ptr(&packet(14, zero, 0, 34), &packet(20, zero, 0, 40))));
        // A place whose offset is not known stands for one that lies further, with as much proved behind it.
        assert!(holds(|i| i.ptr(&packet(4, some, 1, 20), &packet(8, Scalar::between(0, 90), 2, 24))));
        assert!(!holds(|i| i.ptr(&packet(4, some, 1, 20), &packet(8, Scalar::between(0, 90), 2, 23))));
        assert!(!holds(|i| i.ptr(&packet(4, some, 1, 20), &packet(8, some, 2, 24))), "up to 104");
        // What is said to lie in front of a place lies inside where the place does.
        assert!(!holds(|i| i.ptr(&packet(4, some, 1, 4), &packet(0, Scalar::between(4, 90), 2, 0))));
        assert!(holds(|i| i.ptr(&packet(4, some, 1, 4), &packet(0, Scalar::between(4, 90), 2, 1))));
        // All pointers of a place agree how far it has moved.
        let both = |second: Ptr| {
            holds(|i| {
                i.ptr(&packet(0, some, 1, 8), &packet(4, Scalar::between(0, 50), 2, 12))
                    && i.ptr(&packet(2, some, 1, 8), &second)
            })
        };
        assert!(both(packet(6, Scalar::between(0, 50), 2, 12)));
        assert!(!both(packet(7, Scalar::between(0, 50), 2, 13)));
        assert!(!both(packet(6, Scalar::between(0, 50), 3, 12)));
    }

    /// Two pointers at a time, each as the old and as the new state describe it, over all packets and places that the new state allows.
    #[test]
    fn included_pointers_promise_nothing_that_a_packet_could_break() {
        let described = |id: u32| {
            let places: &[(u64, u64)] = if id == 0 { &[(0, 0)] } else { &[(0, 6), (2, 4), (3, 9)] };
            let all = places.iter().flat_map(|var| [0, 2, 4].map(|off| (*var, off)));
            all.flat_map(move |(var, off)| [0, 2, 5].map(|range| packet(off, Scalar::between(var.0, var.1), id, range)))
        };
        let all = |ids: [u32; 2]| ids.into_iter().flat_map(described).collect::<Vec<Ptr>>();
        let (old, new) = (all([0, 1]), all([0, 2]));
        let pairs: Vec<(Ptr, Ptr)> = old.iter().flat_map(|o| new.iter().map(|n| (*o, *n))).collect();
        // A range of 0 says nothing.
        let kept = |p: &Ptr, at: i64, len: i64| p.range == 0 || at + i64::from(p.range) <= len;
        let (mut included, mut states) = (0, 0);
        for (o, n) in &pairs {
            for (p, q) in pairs.iter().step_by(7) {
                // One place has one offset, in whichever way it is described.
                if (n.id == q.id && n.var != q.var) || (o.id == p.id && o.var != p.var) {
                    continue;
                }
                if !holds(|i| i.ptr(o, n) && i.ptr(p, q)) {
                    continue;
                }
                included += 1;
                for at in n.var.umin() as i64..=n.var.umax() as i64 {
                    for beside in if n.id == q.id { at..=at } else { q.var.umin() as i64..=q.var.umax() as i64 } {
                        for len in (0..16).filter(|len| kept(n, at, *len) && kept(q, beside, *len)) {
                            let was = |old: &Ptr, new: &Ptr, at: i64| at + i64::from(new.off) - i64::from(old.off);
                            let (first, second) = (was(o, n, at), was(p, q, beside));
                            let fits = |p: &Ptr, at: i64| p.var.contains(at as u64) && kept(p, at, len);
                            let one_place = o.id != p.id || first == second;
                            assert!(
                                fits(o, first) && fits(p, second) && one_place,
                                "{o:?} {n:?}, {p:?} {q:?}: {at} {beside} {len}"
                            );
                            states += 1;
                        }
                    }
                }
            }
        }
        assert!(included > 1_000 && states > 10_000, "{included} {states}");
    }

    #[test]
    fn identities_match_one_to_one() {
        assert!(holds(|i| i.id(1, 5) && i.id(2, 6) && i.id(1, 5)));
        assert!(!holds(|i| i.id(1, 5) && i.id(1, 6)));
        assert!(!holds(|i| i.id(1, 5) && i.id(2, 5)), "two that may differ are not one");
        assert!(!holds(|i| i.id(0, 5)) && !holds(|i| i.id(5, 0)) && holds(|i| i.id(0, 0)));
    }

    #[test]
    fn stack_bytes_are_included_by_what_says_less() {
        let of = |byte| Slot { bytes: [byte; 8], ..Slot::default() };
        let spilled = |v| Slot { bytes: [Byte::Spill; 8], spill: v, ..Slot::default() };
        assert!(holds(|i| i.slot(&of(Byte::Uninit), &of(Byte::Misc))));
        assert!(!holds(|i| i.slot(&of(Byte::Zero), &of(Byte::Misc))));
        assert!(holds(|i| i.slot(&of(Byte::Misc), &of(Byte::Zero))));
        let pointer = spilled(Value::Ptr(Ptr::to(Base::Ctx)));
        assert!(!holds(|i| i.slot(&of(Byte::Misc), &pointer)), "an address is no data");
        assert!(!holds(|i| i.slot(&pointer, &of(Byte::Misc))));
        // A spilled number includes data that a read would find within its bounds.
        let bounded = |most| spilled(Value::num(Scalar::between(0, most), NONE));
        assert!(holds(|i| i.slot(&bounded(0), &of(Byte::Zero))));
        assert!(!holds(|i| i.slot(&bounded(7), &of(Byte::Misc))));
        assert!(holds(|i| i.slot(&bounded(7), &bounded(3))) && !holds(|i| i.slot(&bounded(3), &bounded(7))));
    }
}
