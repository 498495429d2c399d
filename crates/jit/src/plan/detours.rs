//! `detours`: the test that every packet meets stands in front of those that few pass.
//!
//! Programs ask for VLAN tags first and then whether it is IP. What has a tag comes back to that same question with the type
//! behind the tag, so the questions about tags are a detour of the way that nearly all packets go:
//!
//! ```text
//! if type == 0x88a8 goto tag                 if type == 8 goto ip
//! if type == 0x8100 goto tag                 if type == 0x88a8 goto tag
//! last: if type != 8 goto out        ──>     if type == 0x8100 goto tag
//! ip: ...                                    last: if type != 8 goto out
//! tag: type = ...; goto last                 ip: ...; tag: ...
//! ```
//!
//! Tests of one register against several numbers exclude each other, so their order is nobody's business. Only tests without anything
//! between them are exchanged, and only where what they lead to comes back to the last one: cases of equal rank stay as they are.

use xway_isa::{Cond, Operand, Reg, Width};

use super::{Block, End, Func, Plan};

/// Tests in a row that are looked at.
const TESTS_MAX: usize = 8;
/// Blocks that a detour may have.
const DETOUR_MAX: usize = 16;

impl Plan {
    /// Finds them in every function.
    pub fn straighten(&mut self) {
        self.funcs.iter_mut().for_each(straighten);
    }
}

/// `reg == number`: where it leads, and where anything else does.
#[derive(Clone, Copy)]
struct Test {
    width: Width,
    reg: Reg,
    number: i32,
    equal: usize,
    other: usize,
}

impl Test {
    fn of(end: &End) -> Option<Test> {
        let End::Branch { width, cond, dst, src: Operand::Imm(number), taken, fall } = *end else { return None };
        let (equal, other) = match cond {
            Cond::Eq => (taken, fall),
            Cond::Ne => (fall, taken),
            _ => return None,
        };
        Some(Test { width, reg: dst, number, equal, other })
    }
}

fn straighten(func: &mut Func) {
    // Tests in between, which are behind the last one now; of blocks that are made here, too.
    let mut passed = vec![false; func.blocks.len()];
    let mut entries = vec![0usize; func.blocks.len()];
    func.blocks.iter().flat_map(|b| b.end.successors()).for_each(|to| entries[to] += 1);
    for n in 0..func.blocks.len() {
        let Some(first) = Test::of(&func.blocks[n].end).filter(|_| !passed[n]) else { continue };
        let Some((last, at, between)) = last_test(func, &first) else { continue };
        // One that others come to as well is asked there first, too.
        between.into_iter().for_each(|n| passed[n] = entries[n] == 1);
        let rest = Block { ops: vec![], end: func.blocks[n].end.clone(), end_at: func.blocks[n].end_at };
        let (width, dst, src) = (last.width, last.reg, Operand::Imm(last.number));
        let fall = func.blocks.len();
        func.blocks.push(rest);
        passed.push(false);
        entries.push(1);
        entries[last.equal] += 1;
        func.blocks[n].end = End::Branch { width, cond: Cond::Eq, dst, src, taken: last.equal, fall };
        func.blocks[n].end_at = at;
        func.insns += 1;
    }
}

/// The last of the tests behind this one, if whatever the others lead to comes back to it; its instruction; and the blocks in between.
fn last_test(func: &Func, first: &Test) -> Option<(Test, usize, Vec<usize>)> {
    let (mut seen, mut between) = (vec![*first], vec![]);
    let mut at = first.other;
    while seen.len() < TESTS_MAX {
        let block = &func.blocks[at];
        let test = Test::of(&block.end).filter(|_| block.ops.is_empty())?;
        let alike = (test.width, test.reg) == (first.width, first.reg);
        if !alike || seen.iter().any(|s| s.number == test.number) {
            return None;
        }
        if seen.iter().all(|s| comes_to(func, s.equal, at)) {
            return Some((test, block.end_at, between));
        }
        seen.push(test);
        between.push(at);
        at = test.other;
    }
    None
}

/// Whether a way leads from one block to another, which is not the same.
fn comes_to(func: &Func, from: usize, to: usize) -> bool {
    let (mut seen, mut work) = (vec![from], vec![from]);
    while let Some(block) = work.pop() {
        for next in func.blocks[block].end.successors() {
            if next == to {
                return from != to;
            }
            if !seen.contains(&next) && seen.len() < DETOUR_MAX {
                seen.push(next);
                work.push(next);
            }
        }
    }
    false
}
