//! The shortest way to a refusal, and walking a known way again.
//!
//! The analysis walks depth first and keeps nothing but the branches that it took, so that a program which is accepted pays
//! nothing for explanations. When one is needed, a second analysis (the *scout*) walks the program once more: without
//! pruning, shortest ways first, and only where the refused instruction can still be reached. It is the same transfer
//! functions on the same states, so the way that it finds is a way of the analysis.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use xway_isa::{CallTarget, Imm64, Insn};

use crate::cfg::Cfg;
use crate::diag::{Fail, Kind};
use crate::explore::{Flow, Verifier};
use crate::state::State;

/// A way from the start of a function to a refusal, with the state before each instruction.
pub(crate) struct Way {
    /// Instructions in order; the last one is the one that fails.
    pub steps: Vec<Step>,
    /// The refusal itself.
    pub fail: Fail,
}

/// One instruction of a way.
pub(crate) struct Step {
    pub pc: usize,
    /// What was known before it.
    pub state: State,
    /// Both outcomes were possible here.
    pub open: bool,
}

/// Where a search begins and what it looks for.
#[derive(Clone, Copy)]
pub(crate) struct Goal {
    /// Function that is analysed on its own.
    pub func: usize,
    /// The refused instruction.
    pub insn: usize,
    /// The kind of refusal.
    pub kind: Kind,
}

/// States of ways that wait at the same instruction at the same time, at most; more would be copies of a loop's turns.
const WAITING_MAX: u32 = 400;
/// Longest way that is told.
const STEPS_MAX: usize = 20_000;

/// A node of the tree of ways.
struct Node {
    before: u32,
    pc: u32,
    /// Which of the states that the instruction led to: 0 the one that went on, n the n-th that was put aside.
    choice: u8,
}

const ROOT: u32 = u32::MAX;

/// A way that waits to be walked on.
struct Open {
    state: State,
    node: u32,
    steps: u32,
}

/// Looks for the shortest way to the goal, visiting at most `budget` instructions.
pub(crate) fn shortest(scout: &mut Verifier<'_>, goal: Goal, budget: u64) -> Option<Way> {
    let map = Map::new(&scout.cfg, goal.insn);
    let mut nodes: Vec<Node> = Vec::new();
    let mut slab: Vec<Option<Open>> = Vec::new();
    let mut heap = BinaryHeap::new();
    let mut waiting = vec![0u32; scout.cfg.insns.len()];
    let first = scout.entry(goal.func).ok()?.pop()?;
    heap.push((Reverse(0u32), 0u32, 0usize));
    slab.push(Some(Open { state: first, node: ROOT, steps: 0 }));
    let mut left = budget;
    while let Some((_, _, i)) = heap.pop() {
        let Some(Open { state: mut st, mut node, mut steps }) = slab[i].take() else { continue };
        waiting[st.pc] = waiting[st.pc].saturating_sub(1);
        loop {
            left = left.checked_sub(1)?;
            if steps as usize >= STEPS_MAX {
                break;
            }
            let pc = st.pc;
            let insn = *scout.cfg.insn(pc)?;
            let before = node;
            nodes.push(Node { before, pc: pc as u32, choice: 0 });
            node = (nodes.len() - 1) as u32;
            steps += 1;
            let flow = scout.step(&mut st, &insn);
            for (n, aside) in std::mem::take(&mut scout.pending).into_iter().enumerate() {
                let at = aside.pc;
                if !map.leads_on(&aside) || waiting[at] >= WAITING_MAX {
                    continue;
                }
                nodes.push(Node { before, pc: pc as u32, choice: n as u8 + 1 });
                waiting[at] += 1;
                let rest = map.rest(&aside);
                heap.push((Reverse(steps + rest), steps, slab.len()));
                slab.push(Some(Open { state: aside, node: (nodes.len() - 1) as u32, steps }));
            }
            scout.pending_bytes = 0;
            match flow {
                Err(fail) if !fail.consequence && fail.at.unwrap_or(pc) == goal.insn && fail.kind == goal.kind => {
                    return again(scout, goal, &choices(&nodes, node));
                }
                Err(_) | Ok(Flow::End) => break,
                Ok(Flow::Next(next)) => st.pc = next,
            }
            if !map.leads_on(&st) {
                break;
            }
            // Another way has become shorter: this one waits.
            if let Some((Reverse(best), ..)) = heap.peek()
                && *best < steps + map.rest(&st)
            {
                waiting[st.pc] += 1;
                heap.push((Reverse(steps + map.rest(&st)), steps, slab.len()));
                slab.push(Some(Open { state: st, node, steps }));
                break;
            }
        }
    }
    None
}

/// The instructions and choices from the root to a node.
fn choices(nodes: &[Node], mut node: u32) -> Vec<(u32, u8)> {
    let mut out = Vec::new();
    while node != ROOT {
        let n = &nodes[node as usize];
        out.push((n.pc, n.choice));
        node = n.before;
    }
    out.reverse();
    out
}

/// Walks a way once more and keeps the states.
fn again(scout: &mut Verifier<'_>, goal: Goal, way: &[(u32, u8)]) -> Option<Way> {
    walk(scout, goal, |n, pc, _| {
        let (want, choice) = *way.get(n)?;
        (want as usize == pc).then_some(choice.into())
    })
}

/// Walks the branches that the analysis noted: (instruction, jumped).
pub(crate) fn follow(scout: &mut Verifier<'_>, goal: Goal, branches: &[(u32, bool)]) -> Option<Way> {
    let mut next = branches.iter().peekable();
    let insns = scout.cfg.insns.clone();
    walk(scout, goal, move |_, pc, aside| {
        match next.peek() {
            Some((at, taken)) if *at as usize == pc => {
                next.next();
                // `may_goto` walks on with the jump; all others put the jump aside.
                let jump_goes_on = matches!(insns[pc], Some(Insn::MayGoto { .. }));
                Some(if aside > 0 && *taken != jump_goes_on { 1 } else { 0 })
            }
            _ if aside == 0 || calls_helper(insns[pc].as_ref()) => Some(0),
            _ => None,
        }
    })
}

/// A call that may queue a function for later without a choice in the present way.
fn calls_helper(insn: Option<&Insn>) -> bool {
    matches!(insn, Some(Insn::Call(CallTarget::Helper(_))))
}

/// Walks from the start; `choose(number of the step, instruction, ways put aside)` says which state goes on.
fn walk(
    scout: &mut Verifier<'_>,
    goal: Goal,
    mut choose: impl FnMut(usize, usize, usize) -> Option<usize>,
) -> Option<Way> {
    scout.async_done.clear();
    let mut st = scout.entry(goal.func).ok()?.pop()?;
    let mut steps: Vec<Step> = Vec::new();
    while steps.len() < STEPS_MAX {
        let pc = st.pc;
        let insn = *scout.cfg.insn(pc)?;
        let before = st.clone();
        let mut flow = scout.step(&mut st, &insn);
        if let Err(fail) = flow {
            if fail.at.unwrap_or(pc) == goal.insn && fail.kind == goal.kind && !fail.consequence {
                steps.push(Step { pc, state: before, open: false });
                return Some(Way { steps, fail });
            }
            // The analysis went on behind this error as well.
            flow = Ok(Flow::Next(scout.salvage(&mut st, &insn, &fail)?));
        }
        let mut aside = std::mem::take(&mut scout.pending);
        steps.push(Step { pc, state: before, open: !aside.is_empty() });
        match (choose(steps.len() - 1, pc, aside.len())?, flow) {
            (0, Ok(Flow::Next(next))) => st.pc = next,
            (0, _) => return None,
            (n, _) if n <= aside.len() => st = aside.swap_remove(n - 1),
            _ => return None,
        }
    }
    None
}

/// Which instructions can still lead to the goal.
struct Map {
    /// For each slot: the goal, or a call that leads to it, can be reached inside the function.
    useful: Vec<bool>,
    /// Instructions from a slot to the goal inside its function.
    distance: Vec<u32>,
    /// The error may be found after the goal was passed: something was acquired there and is not released.
    late: bool,
}

const FAR: u32 = u32::MAX;

impl Map {
    fn new(cfg: &Cfg, goal: usize) -> Map {
        let n = cfg.insns.len();
        let home = cfg.funcs.iter().rposition(|f| f.start <= goal).unwrap_or(0);
        // Functions from which the goal's function can be entered.
        let mut enters = vec![false; cfg.funcs.len()];
        enters[home] = true;
        for _ in 0..cfg.funcs.len() {
            for f in 0..cfg.funcs.len() {
                let func = &cfg.funcs[f];
                let inner = func.calls.iter().map(|c| c.1).chain(func.takes.iter().copied()).any(|c| enters[c]);
                enters[f] |= inner;
            }
        }
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); n];
        for (pc, insn) in cfg.insns.iter().enumerate() {
            for to in insn.iter().flat_map(|i| crate::cfg::successors(i, pc)) {
                if let Some(list) = usize::try_from(to).ok().and_then(|to| before.get_mut(to)) {
                    list.push(pc as u32);
                }
            }
        }
        let gate = |pc: usize| {
            let target = match cfg.insn(pc) {
                Some(Insn::Call(CallTarget::Local(rel))) => pc as i64 + 1 + i64::from(*rel),
                Some(Insn::LoadImm64 { imm: Imm64::Func(rel), .. }) => pc as i64 + 1 + i64::from(*rel),
                _ => return false,
            };
            usize::try_from(target).ok().and_then(|t| cfg.func_at(t)).is_some_and(|f| enters[f])
        };
        let sources: Vec<usize> = (0..n).filter(|pc| *pc == goal || gate(*pc)).collect();
        let useful = backwards(&before, &sources).iter().map(|d| *d != FAR).collect();
        let late = matches!(cfg.insn(goal), Some(Insn::Call(_)));
        Map { useful, distance: backwards(&before, &[goal]), late }
    }

    /// The goal can be reached from here, or after a return to one of the callers.
    fn leads_on(&self, st: &State) -> bool {
        let behind = |pc: usize| self.useful[pc] || self.useful.get(pc + 1) == Some(&true);
        self.late || self.useful[st.pc] || st.frames.iter().skip(1).any(|f| behind(f.callsite))
    }

    fn rest(&self, st: &State) -> u32 {
        match self.distance[st.pc] {
            FAR => 0,
            d => d,
        }
    }
}

/// For each slot the number of steps to the nearest of `to`.
fn backwards(before: &[Vec<u32>], to: &[usize]) -> Vec<u32> {
    let mut out = vec![FAR; before.len()];
    let mut work = std::collections::VecDeque::new();
    for t in to {
        out[*t] = 0;
        work.push_back(*t);
    }
    while let Some(pc) = work.pop_front() {
        for b in &before[pc] {
            let b = *b as usize;
            if out[b] == FAR {
                out[b] = out[pc] + 1;
                work.push_back(b);
            }
        }
    }
    out
}

/// For each slot: the goal can be reached from there inside its function, or lies in a function that is called behind it.
pub(crate) fn reaches(cfg: &Cfg, goal: usize) -> Vec<bool> {
    let map = Map::new(cfg, goal);
    let home = cfg.funcs.iter().rposition(|f| f.start <= goal).unwrap_or(0);
    let inside = cfg.funcs[home].start..cfg.funcs[home].end;
    (0..cfg.insns.len()).map(|pc| if inside.contains(&pc) { map.distance[pc] != FAR } else { map.useful[pc] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::program;
    use crate::{Config, MapsView, verify};

    /// The way to each error, in the order in which they are told.
    fn ways(text: &str, explain: u64) -> Vec<Vec<u32>> {
        let config = Config { explain, ..Config::default() };
        let refused = verify(&program(text), &MapsView::empty(), &config).unwrap_err();
        refused.errors.into_iter().map(|e| e.trace).collect()
    }

    #[test]
    fn the_shortest_of_two_ways_is_found_and_without_it_the_one_that_was_walked() {
        let text = "r6 = *(u32 *)(r1 +12)\nif r6 == 7 goto bad\nr0 = 0\nr0 += 1\nif r6 == 9 goto bad\nexit\nbad: r0 = r9\nexit";
        assert_eq!(ways(text, 20_000), [[0, 1, 6]]);
        assert_eq!(ways(text, 1), [[0, 1, 2, 3, 4, 6]], "no budget for a search");
        assert_eq!(ways(text, 0), [[0u32; 0]]);
    }

    #[test]
    fn a_way_leads_through_earlier_errors_where_no_other_does() {
        let text = "r2 = *(u32 *)(r1 +0)\nr3 = *(u8 *)(r2 +0)\nif r3 == 4 goto +1\nr4 = r8\nr0 = 0\nexit";
        assert_eq!(ways(text, 20_000), [vec![0, 1], vec![0, 1, 2, 3]]);
    }

    #[test]
    fn what_leads_to_a_goal_in_a_function_is_known_from_its_callers() {
        let text = "r0 = 0\nif r0 == 1 goto +2\ncall f\nexit\nr0 = 2\nexit\nf: r0 = 1\nexit";
        let cfg = Cfg::new(&program(text)).ok().unwrap();
        let map = Map::new(&cfg, 6);
        let useful: Vec<usize> = (0..8).filter(|pc| map.useful[*pc]).collect();
        assert_eq!(useful, [0, 1, 2, 6]);
        assert_eq!((map.distance[6], map.distance[2], map.distance[7]), (0, FAR, FAR));
    }

    #[test]
    fn a_node_tells_its_way_from_the_root() {
        let node = |before, pc, choice| Node { before, pc, choice };
        let nodes = [node(ROOT, 0, 0), node(0, 1, 0), node(0, 1, 1), node(2, 5, 0)];
        assert_eq!(choices(&nodes, 3), [(0, 0), (1, 1), (5, 0)]);
        assert_eq!(choices(&nodes, ROOT), []);
    }
}
