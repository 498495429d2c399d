//! Where states were met: the checkpoints of one walk, and which of them are finished.

use crate::explore::NOWHERE;
use crate::graph::{Def, NONE};
use crate::meter::push;
use crate::state::{Frame, State};
use crate::value::{Base, Ptr, Value};

/// Open checkpoints that stay where a loop counts down, however often they were compared.
const OPEN_KEPT: usize = 8;

/// A state that was met at an instruction.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub state: State,
    /// Of the state: another one's is another state's.
    pub digest: u64,
    /// Where the last state that was compared with this one, finished, was not included.
    pub differs: Option<Differs>,
    parent: u32,
    /// Paths from it that are not yet walked to their end.
    pub open: u32,
    /// The earliest checkpoint that a path from here ended in which was open then, or that such a one's paths ended in. A number in
    /// the order in which checkpoints are made: where it stands on a path would say nothing once it is closed.
    pub low: u32,
    /// Most frames that such a checkpoint has.
    pub low_frames: usize,
    /// Length of the list of tied checkpoints when this one was made.
    tied_from: usize,
    pub tied: bool,
    /// Comparisons that failed and that ended a path.
    pub misses: u32,
    pub hits: u32,
    /// No longer in the list of its instruction.
    dropped: bool,
}

/// A register of a finished checkpoint that the next state most likely differs in as the last one did: to look at a number that is kept here
/// is faster than to go to the checkpoint's frames, which are in no cache when there are many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Differs {
    reg: u8,
    kept: Kept,
    /// What the comparison that failed was blocked by.
    pub blocked: Def,
}

/// What the register has.
#[derive(Clone, Copy, Debug)]
enum Kept {
    /// A number between these, on which something relied.
    Number(u64, u64),
    /// The start of the packet and so many bytes.
    Packet(i32),
}

impl Differs {
    /// What a comparison found in a register of the checkpoint's running frame, when it is of a kind that is kept.
    pub fn in_register(frame: &Frame, reg: usize, blocked: Def) -> Option<Differs> {
        let kept = match &frame.regs[reg] {
            // Blocked by it: its bounds matter from now on.
            Value::Num(n) if blocked != NONE && n.def == blocked => Kept::Number(n.s.umin(), n.s.umax()),
            Value::Ptr(p) if at_start(p) => Kept::Packet(p.off),
            _ => return None,
        };
        Some(Differs { reg: reg as u8, kept, blocked })
    }

    /// True when a state with this running frame is not included for the same reason.
    pub fn from(&self, frame: &Frame) -> bool {
        match (&frame.regs[usize::from(self.reg)], self.kept) {
            (Value::Num(n), Kept::Number(least, most)) => n.s.umin() < least || n.s.umax() > most,
            (Value::Ptr(p), Kept::Packet(off)) => at_start(p) && p.off != off,
            _ => false,
        }
    }
}

/// A place that is a fixed distance behind the packet's start, and nothing else is that place.
fn at_start(p: &Ptr) -> bool {
    p.base == Base::Packet && p.id == 0 && !p.nullable && p.is_fixed()
}

impl Checkpoint {
    /// Only its registers go; the node stays for the tree.
    fn forget(&mut self) {
        self.dropped = true;
        self.state.frames = Vec::new();
        self.state.refs = Vec::new();
        self.state.extent = crate::extent::Extent::default();
    }
}

/// All checkpoints of one walk.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    pub all: Vec<Checkpoint>,
    /// By instruction.
    pub at: Vec<Vec<u32>>,
    /// By instruction: how often it was met since a checkpoint was left there.
    passed: Vec<u32>,
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
        let passed = vec![0; insns];
        Checkpoints { all: Vec::new(), at, passed, tied: Vec::new(), bytes: 0, kept: 0, made: 0, peak: 0 }
    }

    /// Forgets everything but the counters.
    pub fn clear(&mut self) {
        self.all.clear();
        self.at.iter_mut().for_each(Vec::clear);
        self.passed.fill(0);
        self.tied.clear();
        self.bytes = 0;
        self.kept = 0;
    }

    /// Bytes taken, frames excepted.
    pub fn bytes(&self) -> usize {
        let lists = self.all.capacity() * size_of::<Checkpoint>() + self.tied.capacity() * 4;
        self.bytes + lists
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
            let (low, from, parent) = (c.low, c.tied_from, c.parent);
            let frames = c.low_frames;
            if low < point {
                c.tied = true;
                self.tied.push(point);
                self.ends_in(parent, low, frames);
            } else {
                for t in self.tied.split_off(from) {
                    self.all[t as usize].tied = false;
                }
            }
            point = parent;
        }
    }

    /// A path from `point` ended in an open checkpoint that has so many frames, or in what is tied to it.
    pub fn ends_in(&mut self, point: u32, low: u32, frames: usize) {
        if point != NOWHERE {
            let c = &mut self.all[point as usize];
            c.low = c.low.min(low);
            c.low_frames = c.low_frames.max(frames);
        }
    }

    /// Counts an arrival at an instruction; how many there were since a checkpoint was left there, this one included.
    pub fn passed(&mut self, pc: usize) -> u32 {
        self.passed[pc] = self.passed[pc].saturating_add(1);
        self.passed[pc]
    }

    pub fn add(&mut self, state: State, digest: u64, parent: u32, pc: usize) -> u32 {
        self.passed[pc] = 0;
        // Eight for its place in the list of its instruction.
        self.bytes += state.bytes() + 8;
        let c = Checkpoint {
            state,
            digest,
            differs: None,
            parent,
            open: 1,
            low: u32::MAX,
            low_frames: 0,
            tied_from: self.tied.len(),
            tied: false,
            misses: 0,
            hits: 0,
            dropped: false,
        };
        push(&mut self.all, c);
        let i = (self.all.len() - 1) as u32;
        self.at[pc].push(i);
        self.made += 1;
        self.kept += 1;
        self.peak = self.peak.max(self.kept);
        i
    }

    /// Drops all checkpoints from this one on: they are not what they seemed to be.
    pub fn drop_from(&mut self, first: usize) {
        for i in first..self.all.len() {
            let c = &mut self.all[i];
            if c.dropped {
                continue;
            }
            let list = &mut self.at[c.state.pc];
            // The youngest stand at the end.
            list.truncate(list.partition_point(|p| (*p as usize) < first));
            self.bytes -= c.state.bytes().min(self.bytes);
            self.kept -= 1;
            c.forget();
        }
    }

    /// Drops checkpoints that were often compared in vain. Dropping one never makes the analysis wrong, only longer. Where a
    /// loop counts down the last open ones stay: they tell how its turns differ.
    pub fn trim(&mut self, pc: usize, counts_down: bool) {
        let all = &mut self.all;
        let (mut freed, mut count) = (0, 0);
        let open = if counts_down { self.at[pc].iter().filter(|i| all[**i as usize].open > 0).count() } else { 0 };
        let mut old = open.saturating_sub(OPEN_KEPT);
        self.at[pc].retain(|i| {
            let c = &mut all[*i as usize];
            let turn = counts_down && c.open > 0;
            let recent = turn && old == 0;
            old -= usize::from(turn && old > 0);
            let keep = recent || c.misses <= c.hits * 8 + 32;
            if !keep {
                freed += c.state.bytes();
                count += 1;
                c.forget();
            }
            keep
        });
        self.bytes -= freed.min(self.bytes);
        self.kept -= count;
    }
}

#[cfg(test)]
mod tests {
    use xway_isa::Reg;

    use super::*;
    use crate::domain::Scalar;
    use crate::state::{FrameKind, tests::state};

    fn points() -> (Checkpoints, crate::meter::Meter) {
        (Checkpoints::new(4), crate::meter::Meter::default())
    }

    #[test]
    fn a_checkpoint_is_finished_when_all_its_paths_are() {
        let (mut points, meter) = points();
        let top = points.add(state(&meter), 0, NOWHERE, 0);
        let below = points.add(state(&meter), 0, top, 1);
        assert_eq!(points.peak, 2);
        points.path_added(below);
        points.path_ended(below);
        assert_eq!((points.all[1].open, points.all[0].open), (1, 1), "one path is left");
        points.path_ended(below);
        assert_eq!((points.all[1].open, points.all[0].open), (0, 0), "the last one ends its parent's, too");
        assert!(!points.all[0].tied && !points.all[1].tied);
    }

    #[test]
    fn what_ended_in_an_open_checkpoint_is_tied_until_that_is_finished() {
        let (mut points, meter) = points();
        let top = points.add(state(&meter), 0, NOWHERE, 0);
        points.path_added(top);
        let below = points.add(state(&meter), 0, top, 1);
        points.ends_in(below, 0, 1);
        points.path_ended(below);
        assert!(points.all[below as usize].tied, "it depends on the one above");
        assert_eq!((points.all[top as usize].low, points.all[top as usize].open), (0, 1));
        points.path_ended(top);
        assert!(!points.all[below as usize].tied && !points.all[top as usize].tied);
    }

    #[test]
    fn what_ended_in_a_closed_one_that_is_tied_is_tied_as_long_as_that_is() {
        let (mut points, meter) = points();
        let root = points.add(state(&meter), 0, NOWHERE, 0);
        points.path_added(root);
        points.path_added(root);
        // A loop within the loop of the root: a path from below ends in it, and it ends in the root.
        let inner = points.add(state(&meter), 0, root, 1);
        points.path_added(inner);
        let below = points.add(state(&meter), 0, inner, 2);
        points.ends_in(below, inner, 1);
        points.path_ended(below);
        points.ends_in(inner, root, 1);
        points.path_ended(inner);
        assert!(points.all[below as usize].tied && points.all[inner as usize].tied);
        // Beside it, as deep as it was: the root is still open.
        let beside = points.add(state(&meter), 0, root, 3);
        points.ends_in(beside, points.all[below as usize].low, 1);
        points.path_ended(beside);
        assert!(points.all[beside as usize].tied, "it leads to the root by way of what is tied to it");
        points.path_ended(root);
        assert!(points.all.iter().all(|c| !c.tied), "all are finished with the root");
    }

    #[test]
    fn what_differed_once_is_looked_at_first() {
        let meter = crate::meter::Meter::default();
        let with = |value| {
            let mut st = state(&meter);
            st.set(Reg::R6, value);
            st.frame().clone()
        };
        let number = |least, most, def| Value::num(Scalar::between(least, most), def);
        let packet = |off| Value::Ptr(Ptr { off, ..Ptr::to(Base::Packet) });
        // Another number, of which nothing was relied on, says nothing.
        assert!(Differs::in_register(&with(number(2, 5, 7)), 6, 8).is_none());
        assert!(Differs::in_register(&with(number(2, 5, NONE)), 6, NONE).is_none());
        let bounds = Differs::in_register(&with(number(2, 5, 7)), 6, 7).unwrap();
        for (least, most, differs) in [(2, 5, false), (3, 4, false), (1, 4, true), (3, 6, true), (8, 9, true)] {
            assert_eq!(bounds.from(&with(number(least, most, NONE))), differs, "{least} to {most}");
        }
        let start = Differs::in_register(&with(packet(4)), 6, NONE).unwrap();
        assert!(!start.from(&with(packet(4))) && start.from(&with(packet(5))));
        // Of what is of another kind the comparison itself decides, and of places that other ones may stand for.
        assert!(!bounds.from(&with(packet(4))) && !start.from(&with(Value::Lost)));
        let place = Value::Ptr(Ptr { id: 3, ..Ptr::to(Base::Packet) });
        assert!(!start.from(&with(place)) && Differs::in_register(&with(place), 6, NONE).is_none());
    }

    #[test]
    fn checkpoints_that_are_compared_in_vain_go() {
        let (mut points, meter) = points();
        for _ in 0..12 {
            points.add(state(&meter), 0, NOWHERE, 0);
        }
        points.all.iter_mut().for_each(|c| c.misses = 33);
        points.all[0].hits = 1;
        // Where a loop counts down eight of the open ones stay, the youngest.
        points.trim(0, true);
        assert_eq!(points.at[0], [0, 4, 5, 6, 7, 8, 9, 10, 11]);
        points.trim(0, false);
        assert_eq!(points.at[0], [0], "one hit pays for eight misses");
    }

    #[test]
    fn what_a_guess_left_behind_is_dropped() {
        let (mut points, meter) = points();
        for pc in [0, 1, 0] {
            let mut st = state(&meter);
            st.pc = pc;
            st.frames[0] = std::rc::Rc::new(Frame::new(0, 0, 0, 0, FrameKind::Entry, &meter));
            points.add(st, 0, NOWHERE, pc);
        }
        points.drop_from(1);
        assert_eq!((points.at[0].as_slice(), points.at[1].len()), (&[0][..], 0));
        assert!(points.all[2].state.frames.is_empty());
        let held = points.bytes();
        points.drop_from(1);
        assert_eq!(points.bytes(), held, "once");
    }
}
