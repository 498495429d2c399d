//! `detours`: the test that every packet meets stands in front of those that few pass.
//!
//! Programs ask for VLAN tags first and then whether it is IP. What has a tag comes back to that same question with the type
//! behind the tag, so the questions about tags are a detour of the way that nearly all packets go:
//!
//! ```text
//! if type == 0x88a8 goto tag                 if type == 8 goto moved
//! if type == 0x8100 goto tag                 if type == 0x88a8 goto tag
//! last: r0 = 2                               if type == 0x8100 goto tag
//!       if type != 8 goto out        ──>     last: r0 = 2; if type != 8 goto out
//! ip: ...                                    ip: ...; tag: ...
//! tag: type = ...; goto last                 moved: r0 = 2; goto ip
//! ```
//!
//! Tests of one number against several others exclude each other, so their order is nobody's business. A test comes to the front only
//! where what the others lead to comes back to it: cases of equal rank stay as they are. A program that asks for a second tag asks the
//! same numbers once more, of a copy that it has masked to 16 bits; on this way they are answered. So what stands between the tests
//! may move and mask numbers, and goes with the one that is asked first. Registers hold the number that is tested as long as no mask
//! takes a bit of it, which where it was loaded says.

use xway_isa::{AluOp, Cond, MovExt, Operand, Reg, Width};

use super::{Block, End, Func, Kind, Op, Plan};

/// Blocks in a row that are looked at.
const BLOCKS_MAX: usize = 12;
/// Operations between them.
const OPS_MAX: usize = 8;
/// Blocks that a detour may have.
const DETOUR_MAX: usize = 16;
/// Operations that are looked at for the bits of a number.
const STEPS_MAX: u32 = 64;

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

/// The test that comes first.
struct Last {
    number: i32,
    equal: usize,
    /// Its instruction.
    at: usize,
    /// What stands between the first test and it.
    ops: Vec<Op>,
    /// Blocks in between.
    between: Vec<usize>,
}

fn straighten(func: &mut Func) {
    // One test has none that comes back to it.
    if func.blocks.iter().filter(|block| Test::of(&block.end).is_some()).nth(1).is_none() {
        return;
    }
    // Tests in between, which are behind the last one now; of blocks that are made here, too.
    let mut passed = vec![false; func.blocks.len()];
    let mut before = vec![vec![]; func.blocks.len()];
    for (n, block) in func.blocks.iter().enumerate() {
        block.end.successors().for_each(|to| before[to].push(n));
    }
    // Blocks by where they stand: what is made here stands behind the test that it was made of.
    let mut order: Vec<usize> = vec![];
    for n in 0..func.blocks.len() {
        order.push(n);
        let Some(first) = Test::of(&func.blocks[n].end).filter(|_| !passed[n]) else { continue };
        let Some(last) = last_test(func, &before, n, &first) else { continue };
        // One that others come to as well is asked there first, too.
        last.between.into_iter().for_each(|n| passed[n] = before[n].len() == 1);
        let here = (func.blocks[n].end.clone(), func.blocks[n].end_at);
        let mut add = |block: Block| {
            passed.push(false);
            before.push(vec![n]);
            order.push(func.blocks.len());
            func.insns += block.ops.len() + 1;
            func.blocks.push(block);
            func.blocks.len() - 1
        };
        let rest = add(Block { ops: vec![], end: here.0, end_at: here.1 });
        let taken = match last.ops.is_empty() {
            true => last.equal,
            false => add(Block { ops: last.ops, end: End::Jump(last.equal), end_at: last.at }),
        };
        before[last.equal].push(if taken == last.equal { n } else { taken });
        let src = Operand::Imm(last.number);
        func.blocks[n].end = End::Branch { width: first.width, cond: Cond::Eq, dst: first.reg, src, taken, fall: rest };
        func.blocks[n].end_at = last.at;
    }
    if order.iter().enumerate().any(|(at, n)| at != *n) {
        func.put_in_order(&order);
    }
}

/// The last of the tests behind this one, if whatever the others lead to comes back to it.
fn last_test(func: &Func, before: &[Vec<usize>], n: usize, first: &Test) -> Option<Last> {
    let mut same = Same::of(func, before, n, first.reg);
    let (mut seen, mut between, mut ops) = (vec![*first], vec![], vec![]);
    let mut at = first.other;
    for _ in 0..BLOCKS_MAX {
        let block = &func.blocks[at];
        if ops.len() + block.ops.len() > OPS_MAX || !block.ops.iter().all(|op| same.goes_on(&op.kind)) {
            return None;
        }
        ops.extend(block.ops.iter().cloned());
        if let End::Jump(to) = block.end {
            at = to;
            continue;
        }
        let test = Test::of(&block.end)?;
        if !same.holds(test.reg) || test.width != first.width && same.bits >= 32 {
            return None;
        }
        if !seen.iter().any(|s| s.number == test.number) {
            if seen.iter().all(|s| comes_to(func, s.equal, at)) {
                return Some(Last { number: test.number, equal: test.equal, at: block.end_at, ops, between });
            }
            seen.push(test);
        }
        between.push(at);
        at = test.other;
    }
    None
}

/// Registers that hold the number that is tested.
struct Same {
    /// Bit n for register n.
    held: u16,
    /// The number is below two to this power.
    bits: u32,
}

impl Same {
    /// At the end of a block.
    fn of(func: &Func, before: &[Vec<usize>], n: usize, reg: Reg) -> Same {
        let ops = &func.blocks[n].ops;
        let bits = Bits { func, before, left: STEPS_MAX }.of(n, ops.len(), reg);
        // Back to where it came from.
        let (mut from, mut origin) = (ops.len(), reg);
        while let Some(set) = ops[..from].iter().rposition(|op| op.kind.sets(origin)) {
            let mut copy = Same { held: 0, bits };
            let source = match ops[set].kind {
                Kind::Mov { src: Operand::Reg(source), .. } => source,
                Kind::Alu { dst, .. } | Kind::Truncate { dst, .. } => dst,
                _ => break,
            };
            // What is masked there may have had more bits than what is left.
            copy.bits = Bits { func, before, left: STEPS_MAX }.of(n, set, source);
            copy.held = 1 << source.index();
            if !copy.goes_on(&ops[set].kind) || !copy.holds(origin) {
                break;
            }
            (from, origin) = (set, source);
        }
        let mut same = Same { held: 1 << origin.index(), bits };
        for op in &ops[from..] {
            if !same.goes_on(&op.kind) {
                let set = (0..10).filter_map(Reg::new).filter(|r| op.kind.sets(*r));
                set.for_each(|r| same.held &= !(1 << r.index()));
            }
        }
        same
    }

    fn holds(&self, reg: Reg) -> bool {
        self.held >> reg.index() & 1 != 0
    }

    /// Behind an operation; false for those that may do more than set a register to a number.
    fn goes_on(&mut self, kind: &Kind) -> bool {
        let (dst, holds) = match *kind {
            Kind::Mov { width, dst, src: Operand::Reg(src), ext: MovExt::None } => {
                (dst, self.holds(src) && (width == Width::W64 || self.bits <= 32))
            }
            Kind::Alu { width, op: AluOp::And, dst, src: Operand::Imm(mask) } => {
                let kept = if width == Width::W32 { u64::from(mask as u32) } else { mask as u64 };
                (dst, self.holds(dst) && low_bits(self.bits) & !kept == 0)
            }
            Kind::Truncate { dst, bits } => (dst, self.holds(dst) && self.bits <= u32::from(bits)),
            Kind::Mov { dst, .. }
            | Kind::Alu { dst, .. }
            | Kind::Neg { dst, .. }
            | Kind::Swap { dst, .. }
            | Kind::Const { dst, .. } => (dst, false),
            _ => return false,
        };
        let bit = 1 << dst.index();
        self.held = if holds { self.held | bit } else { self.held & !bit };
        true
    }
}

/// All bits below this one.
fn low_bits(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// How many bits a register may have set, from the lowest.
struct Bits<'a> {
    func: &'a Func,
    before: &'a [Vec<usize>],
    left: u32,
}

impl Bits<'_> {
    /// In front of an operation of a block.
    fn of(&mut self, block: usize, n: usize, reg: Reg) -> u32 {
        if self.left == 0 {
            return 64;
        }
        self.left -= 1;
        let ops = &self.func.blocks[block].ops;
        let Some(set) = ops[..n].iter().rposition(|op| op.kind.sets(reg)) else {
            // A function is called with any number, and ends that hundreds of ways lead to are not asked for each of them.
            let ways: &[usize] = if block == 0 { &[] } else { &self.before[block] };
            if ways.len() > STEPS_MAX as usize {
                return 64;
            }
            return ways.iter().map(|from| self.of(*from, self.func.blocks[*from].ops.len(), reg)).max().unwrap_or(64);
        };
        let mut own = |src: Operand| match src {
            Operand::Reg(r) => self.of(block, set, r),
            Operand::Imm(i) => u64::BITS - (i as u64).leading_zeros(),
        };
        let (width, bits) = match ops[set].kind {
            Kind::Load { size, signed: false, part: None, .. } => (Width::W64, 8 * size.bytes()),
            Kind::Truncate { bits, .. } | Kind::Swap { bits, .. } => (Width::W64, bits.into()),
            Kind::Mov { width, src, ext: MovExt::None, .. } => (width, own(src)),
            Kind::Alu { width, op, dst, src } => {
                let bits = match (op, src) {
                    (AluOp::And, _) => own(Operand::Reg(dst)).min(own(src)),
                    (AluOp::Or | AluOp::Xor, _) => own(Operand::Reg(dst)).max(own(src)),
                    (AluOp::Lsh, Operand::Imm(by @ 0..64)) => own(Operand::Reg(dst)).saturating_add(by as u32).min(64),
                    (AluOp::Rsh, Operand::Imm(_)) => own(Operand::Reg(dst)),
                    _ => 64,
                };
                (width, bits)
            }
            _ => (Width::W64, 64),
        };
        if width == Width::W32 { bits.min(32) } else { bits }
    }
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
