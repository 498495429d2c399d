//! Where states were met: the checkpoints of one walk, and which of them are finished.

use crate::explore::NOWHERE;
use crate::meter::push;
use crate::state::State;

/// Open checkpoints that stay where a loop counts down, however often they were compared.
const OPEN_KEPT: usize = 8;

/// A state that was met at an instruction.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub state: State,
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

    pub fn add(&mut self, state: State, parent: u32, pc: usize) -> u32 {
        self.passed[pc] = 0;
        // Eight for its place in the list of its instruction.
        self.bytes += state.bytes() + 8;
        let c = Checkpoint {
            state,
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
    use super::*;
    use crate::state::{Frame, FrameKind, tests::state};

    fn points() -> (Checkpoints, crate::meter::Meter) {
        (Checkpoints::new(4), crate::meter::Meter::default())
    }

    #[test]
    fn a_checkpoint_is_finished_when_all_its_paths_are() {
        let (mut points, meter) = points();
        let top = points.add(state(&meter), NOWHERE, 0);
        let below = points.add(state(&meter), top, 1);
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
        let top = points.add(state(&meter), NOWHERE, 0);
        points.path_added(top);
        let below = points.add(state(&meter), top, 1);
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
        let root = points.add(state(&meter), NOWHERE, 0);
        points.path_added(root);
        points.path_added(root);
        // A loop within the loop of the root: a path from below ends in it, and it ends in the root.
        let inner = points.add(state(&meter), root, 1);
        points.path_added(inner);
        let below = points.add(state(&meter), inner, 2);
        points.ends_in(below, inner, 1);
        points.path_ended(below);
        points.ends_in(inner, root, 1);
        points.path_ended(inner);
        assert!(points.all[below as usize].tied && points.all[inner as usize].tied);
        // Beside it, as deep as it was: the root is still open.
        let beside = points.add(state(&meter), root, 3);
        points.ends_in(beside, points.all[below as usize].low, 1);
        points.path_ended(beside);
        assert!(points.all[beside as usize].tied, "it leads to the root by way of what is tied to it");
        points.path_ended(root);
        assert!(points.all.iter().all(|c| !c.tied), "all are finished with the root");
    }

    #[test]
    fn checkpoints_that_are_compared_in_vain_go() {
        let (mut points, meter) = points();
        for _ in 0..12 {
            points.add(state(&meter), NOWHERE, 0);
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
            points.add(st, NOWHERE, pc);
        }
        points.drop_from(1);
        assert_eq!((points.at[0].as_slice(), points.at[1].len()), (&[0][..], 0));
        assert!(points.all[2].state.frames.is_empty());
        let held = points.bytes();
        points.drop_from(1);
        assert_eq!(points.bytes(), held, "once");
    }
}
