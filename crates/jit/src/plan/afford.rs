//! Which stack bytes become values where not all can: those that pay most for what they cost.
//!
//! A value that lives through a basic block costs the back end something there, whether the block touches it or not: a parameter while
//! the form is built, a place in the register allocator's sets, and, where there are more of them than registers, a live range that is
//! taken apart again and again. A hundred bytes that live from the first of some thousand branches to the last cost the product, and more
//! than that. So the sum over all blocks of the values that live there is bounded, by a multiple of the function's instructions.
//! Bytes that some access touches together are taken or left together; the others stay what they are without `slots`, memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use xway_maps::Map;

use super::slots::{Group, Reach, STACK, Slots, reach, touched};
use super::stack::{Bytes, effect_of_block};
use super::{Func, Kind};

/// Values times the blocks in which they live, for each instruction of a function. Programs that people write have about one of them.
const LIVE_PER_INSN: usize = 4;
/// As many are always had.
const LIVE_MIN: usize = 8192;
/// Blocks that a call counts for: a look-up in its place is about so many.
const CALL: usize = 8;

impl Slots {
    /// Leaves so many of the groups that the rest costs no more than the function's length allows.
    pub(super) fn within_means(self, func: &Func, maps: &[Arc<Map>]) -> Slots {
        let weights: Vec<usize> = func.blocks.iter().map(weight).collect();
        let most = LIVE_MIN.max(LIVE_PER_INSN * func.insns);
        // Nearly always.
        if self.groups.len() * weights.iter().sum::<usize>() <= most {
            return self;
        }
        let mut costs = costs(&self.groups, &living(func, maps), &weights);
        self.add_lent(func, maps, &mut costs);
        let mut parts = parts(&self.groups, func);
        for part in &mut parts {
            part.cost = costs[part.groups.clone()].iter().sum();
        }
        // Most accesses for the cost first.
        parts.sort_by(|a, b| {
            (b.accesses * a.cost).cmp(&(a.accesses * b.cost)).then(a.groups.start.cmp(&b.groups.start))
        });
        let mut left = most;
        parts.retain(|part| match left.checked_sub(part.cost) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        });
        parts.sort_by_key(|part| part.groups.start);
        let groups: Vec<Group> =
            parts.iter().flat_map(|part| self.groups[part.groups.clone()].iter().copied()).collect();
        Slots { left: self.groups.len() - groups.len(), groups }
    }
}

impl Slots {
    /// Adds the calls that look at each group: in front of every one of them it is written out, wherever it lives.
    fn add_lent(&self, func: &Func, maps: &[Arc<Map>], costs: &mut [usize]) {
        for op in func.blocks.iter().flat_map(|b| &b.ops) {
            let Kind::Helper(call) = &op.kind else { continue };
            let Reach::Bytes(all) = reach(call, maps) else { continue };
            for (bytes, _) in all {
                costs[self.overlapping(bytes)].iter_mut().for_each(|cost| *cost += 1);
            }
        }
    }
}

/// Groups that accesses join.
struct Part {
    groups: Range<usize>,
    /// Loads and stores.
    accesses: usize,
    cost: usize,
}

/// What can be taken or left by itself, by rising position.
fn parts(groups: &[Group], func: &Func) -> Vec<Part> {
    let mut accesses: Vec<Range<usize>> =
        func.blocks.iter().flat_map(|b| &b.ops).filter_map(|op| touched(&op.kind)).collect();
    accesses.sort_by_key(|bytes| bytes.start);
    let mut parts: Vec<Part> = Vec::new();
    let mut end = 0;
    let mut next = 0;
    for group in groups.iter().enumerate().map(|(n, g)| (n, g.at..g.at + g.len)) {
        let (n, bytes) = group;
        match parts.last_mut() {
            Some(part) if bytes.start < end => part.groups.end = n + 1,
            _ => parts.push(Part { groups: n..n + 1, accesses: 0, cost: 0 }),
        }
        let part = parts.last_mut().expect("one was pushed");
        while let Some(access) = accesses.get(next).filter(|a| a.start < bytes.end) {
            // What lies in front of all groups, or in a gap between them, is in memory.
            if access.end > bytes.start {
                part.accesses += 1;
                end = end.max(access.end);
            }
            next += 1;
        }
    }
    parts
}

/// How many blocks of the back end a block becomes, about.
fn weight(block: &super::Block) -> usize {
    let calls = |op: &&super::Op| matches!(op.kind, Kind::Helper(_) | Kind::Local { .. } | Kind::Fetch { .. });
    1 + CALL * block.ops.iter().filter(calls).count()
}

/// For each group, the weight of the blocks at whose start it lives.
fn costs(groups: &[Group], living: &[Bytes], weights: &[usize]) -> Vec<usize> {
    let bytes: Vec<Bytes> = groups.iter().map(|g| Bytes::range(g.at as i32 - STACK as i32, g.len as u64)).collect();
    let mut costs = vec![0; groups.len()];
    for (live, weight) in living.iter().zip(weights).filter(|(live, _)| **live != Bytes::NONE) {
        for (cost, bytes) in costs.iter_mut().zip(&bytes) {
            if live.and(*bytes) != Bytes::NONE {
                *cost += weight;
            }
        }
    }
    costs
}

/// For each block, the bytes that some way from its start reads before it writes them.
fn living(func: &Func, maps: &[Arc<Map>]) -> Vec<Bytes> {
    let own: Vec<(Bytes, Bytes)> = func.blocks.iter().map(|block| effect_of_block(block, maps)).collect();
    let mut before = vec![vec![]; func.blocks.len()];
    for (n, block) in func.blocks.iter().enumerate() {
        block.end.successors().for_each(|next| before[next].push(n));
    }
    let mut living: Vec<Bytes> = own.iter().map(|(read, _)| *read).collect();
    let mut work: VecDeque<usize> = backwards(func).into();
    let mut waits = vec![false; func.blocks.len()];
    work.iter().for_each(|n| waits[*n] = true);
    while let Some(n) = work.pop_front() {
        waits[n] = false;
        for &from in &before[n] {
            let more = living[from].or(living[n].without(own[from].1));
            if more != living[from] {
                living[from] = more;
                if !std::mem::replace(&mut waits[from], true) {
                    work.push_back(from);
                }
            }
        }
    }
    living
}

/// The blocks that a run may reach, each behind what follows it but for ways back.
pub(super) fn backwards(func: &Func) -> Vec<usize> {
    let mut seen = vec![false; func.blocks.len()];
    let mut order = Vec::with_capacity(func.blocks.len());
    let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
    let next = |n: usize| func.blocks[n].end.successors().collect::<Vec<_>>();
    if !func.blocks.is_empty() {
        seen[0] = true;
        open.push((0, next(0)));
    }
    while let Some((n, rest)) = open.last_mut() {
        match rest.pop() {
            Some(to) if seen[to] => {}
            Some(to) => {
                seen[to] = true;
                open.push((to, next(to)));
            }
            None => {
                order.push(*n);
                open.pop();
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use xway_isa::{Cond, Operand, Reg, Size, Width};
    use xway_verifier::{Place, Region};

    use super::super::{Block, End, Op, slots};
    use super::*;

    fn access(at: usize, len: Size, store: bool) -> Op {
        let place = Place { region: Region::Stack, off: Some(at as i32 - STACK as i32) };
        let (base, off) = (Reg::FP, at as i16 - STACK as i16);
        let kind = if store {
            Kind::Store { size: len, base, off, src: Operand::Imm(1), place }
        } else {
            Kind::Load { size: len, signed: false, dst: Reg::R0, base, off, place, part: None }
        };
        Op { at: 0, kind }
    }

    fn func(blocks: Vec<(Vec<Op>, End)>) -> Func {
        let insns = blocks.iter().map(|(ops, _)| ops.len() + 1).sum();
        let blocks = blocks.into_iter().map(|(ops, end)| Block { ops, end, end_at: 0 }).collect();
        let (name, slots) = ("test".into(), Slots::default());
        Func { name, start: 0, insns, blocks, stack: 512, zeroed: 0, slots, callback: false, may_goto: false }
    }

    fn branch(taken: usize, fall: usize) -> End {
        End::Branch { width: Width::W64, cond: Cond::Eq, dst: Reg::R1, src: Operand::Imm(0), taken, fall }
    }

    /// `branches` stores of a byte, each behind a branch, to `bytes` bytes in turn that are all read at the end; the first is stored
    /// to twice as often as the others.
    fn ladder(branches: usize, bytes: usize) -> Func {
        let mut blocks = vec![];
        for n in 0..branches {
            let at = blocks.len();
            blocks.push((vec![], branch(at + 2, at + 1)));
            let mut ops = vec![access(8 + n % bytes, Size::B, true)];
            if n % bytes == 0 {
                ops.push(access(8, Size::B, true));
            }
            blocks.push((ops, End::Jump(at + 2)));
        }
        blocks.push(((0..bytes).map(|n| access(8 + n, Size::B, false)).collect(), End::Exit));
        func(blocks)
    }

    fn cost(func: &Func, slots: &Slots) -> usize {
        let weights: Vec<usize> = func.blocks.iter().map(weight).collect();
        costs(&slots.groups, &living(func, &[]), &weights).iter().sum()
    }

    #[test]
    fn values_times_blocks_grow_no_faster_than_instructions() {
        let few = ladder(5, 190);
        let all = slots::groups(&few, &[]).unwrap();
        assert_eq!((all.groups.len(), all.left), (190, 190 - all.groups.len()), "a short function keeps all");
        for branches in [400, 1500, 3000] {
            let func = ladder(branches, 190);
            let kept = slots::groups(&func, &[]).unwrap();
            assert!(
                cost(&func, &kept) <= LIVE_MIN.max(LIVE_PER_INSN * func.insns),
                "{branches}: {}",
                cost(&func, &kept)
            );
            assert_eq!(kept.groups.len() + kept.left, 190);
            assert!(kept.left > 0 && !kept.groups.is_empty(), "{branches}: {kept:?}");
            assert_eq!(kept.groups[0].at, 8, "what is used most stays");
        }
    }

    #[test]
    fn what_calls_look_at_again_and_again_stays_in_memory() {
        let look = || {
            let args = [Some(Place { region: Region::Stack, off: Some(8 - STACK as i32) }), None, None, None, None];
            let sizes = [None, Some((190, 190)), None, Some((0, 0)), None];
            let proto = xway_abi::helper(28).expect("bpf_csum_diff");
            Op {
                at: 0,
                kind: Kind::Helper(super::super::Call { proto, map: None, key_const: None, sizes, args, turns: None }),
            }
        };
        // All in one block: nothing lives at its start.
        let stores = || (0..190).map(|n| access(8 + n, Size::B, true));
        for (calls, all) in [(5, true), (2000, false)] {
            let func = func(vec![(stores().chain((0..calls).map(|_| look())).collect(), End::Exit)]);
            let kept = slots::groups(&func, &[]).unwrap();
            assert_eq!(kept.groups.len() + kept.left, 190);
            assert_eq!(kept.left == 0, all, "{calls}: {}", kept.left);
            assert!(kept.groups.len() * calls <= LIVE_MIN.max(LIVE_PER_INSN * func.insns), "{calls}");
        }
    }

    #[test]
    fn bytes_of_one_access_stay_together() {
        let mut func = ladder(1500, 190);
        // Words over some of the bytes, one across two others.
        for at in [8, 16, 24, 28] {
            func.blocks[0].ops.push(access(at, Size::DW, false));
        }
        let kept = slots::groups(&func, &[]).unwrap();
        for (from, to) in [(8, 16), (16, 24), (24, 36)] {
            let count = kept.overlapping(from..to).len();
            assert!(count == 0 || count == to - from, "{from} to {to}: {count}");
        }
        assert!(kept.left > 0 && !kept.groups.is_empty());
    }

    #[test]
    fn a_value_lives_from_its_store_to_the_last_load() {
        let word = |store| vec![access(0, Size::DW, store)];
        // Stored, passed by, read and stored in a loop, not read any more.
        let blocks = vec![
            (word(true), End::Jump(1)),
            (vec![], End::Jump(2)),
            (word(false), branch(1, 3)),
            (word(true), End::Exit),
        ];
        let func = func(blocks);
        let lives: Vec<bool> = living(&func, &[]).iter().map(|live| *live != Bytes::NONE).collect();
        assert_eq!(lives, [false, true, true, false]);
        let order = backwards(&func);
        assert_eq!((order.len(), order.last()), (4, Some(&0)));
    }
}
