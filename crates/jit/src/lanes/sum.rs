//! Sums of many neighbouring words of 32 or 16 bits: checksums (RFC 1071) as clang unrolls them, and `unroll`.
//!
//! Additions of 64 bits may be done in any order, so the words are loaded 16 bytes at a time and added in vectors;
//! the rest of the sum is added to what they give.

use cranelift_codegen::cursor::FuncCursor;
use cranelift_codegen::ir::{
    self, Block, Inst, InstBuilder, InstructionData, MemFlagsData, Opcode, Value, ValueDef, types,
};
use cranelift_frontend::FunctionBuilder;
use rustc_hash::FxHashSet;

use super::memory::{self, Access, Effect};
use super::{Pass, before, replace};

/// Words that are worth it, and words of 16 bits.
const WORDS_MIN: usize = 8;
const HALVES_MIN: usize = 16;
/// Vectors that are added to in turns, so that no addition waits for the one before.
const VECTORS: usize = 4;

impl Pass {
    /// Sums that end in a block.
    pub(super) fn sums(&mut self, func: &mut ir::Function, block: Block) {
        let word =
            |inst: &Inst| matches!(func.dfg.insts[*inst].opcode(), Opcode::Uload16 | Opcode::Uload32 | Opcode::Load);
        if func.layout.block_insts(block).filter(word).take(WORDS_MIN).count() < WORDS_MIN {
            return;
        }
        let mut inner: FxHashSet<Value> = FxHashSet::default();
        for inst in func.layout.block_insts(block).filter(|i| is_sum(func, *i)) {
            let args = func.dfg.inst_args(inst).iter().map(|v| func.dfg.resolve_aliases(*v));
            inner.extend(args.filter(|v| self.uses[*v] == 1));
        }
        // Loads since the last store or call, which nothing has changed since.
        let mut fresh: FxHashSet<Inst> = FxHashSet::default();
        let mut found = vec![];
        for inst in func.layout.block_insts(block) {
            match memory::access(func, inst) {
                Some(access) if access.is_load => drop(fresh.insert(inst)),
                Some(_) => fresh.clear(),
                None if memory::effect(func, inst) == Effect::Anything => fresh.clear(),
                None => {}
            }
            if fresh.len() >= WORDS_MIN && is_sum(func, inst) && !inner.contains(&func.dfg.first_result(inst)) {
                let (words, others) = self.leaves(func, block, inst, &fresh);
                if words.len() >= WORDS_MIN {
                    found.push((inst, words, others));
                }
            }
        }
        for (inst, words, others) in found {
            sum(func, inst, words, others);
        }
    }

    /// What a sum is made of: words that only it uses, and everything else, to which belongs what other blocks have added up: none of the
    /// words is among that, and each block behind would go through it again.
    fn leaves(
        &self,
        func: &ir::Function,
        block: Block,
        root: Inst,
        fresh: &FxHashSet<Inst>,
    ) -> (Vec<(Inst, Access)>, Vec<Value>) {
        let (mut words, mut others) = (vec![], vec![]);
        let mut work: Vec<Value> = func.dfg.inst_args(root).to_vec();
        while let Some(v) = work.pop() {
            let v = func.dfg.resolve_aliases(v);
            let inst = match func.dfg.value_def(v) {
                ValueDef::Result(inst, 0) if self.uses[v] == 1 && func.layout.inst_block(inst) == Some(block) => inst,
                _ => {
                    others.push(v);
                    continue;
                }
            };
            let word = || memory::access(func, inst).filter(|a| a.is_load && matches!(a.len, 2 | 4) && !a.signed);
            if is_sum(func, inst) {
                work.extend_from_slice(func.dfg.inst_args(inst));
            } else if let Some(access) = word().filter(|_| fresh.contains(&inst)) {
                words.push((inst, access));
            } else {
                others.push(v);
            }
        }
        (words, others)
    }
}

fn is_sum(func: &ir::Function, inst: Inst) -> bool {
    matches!(func.dfg.insts[inst], InstructionData::Binary { opcode: Opcode::Iadd, .. })
        && func.dfg.value_type(func.dfg.first_result(inst)) == types::I64
}

fn sum(func: &mut ir::Function, root: Inst, mut words: Vec<(Inst, Access)>, mut others: Vec<Value>) {
    words.sort_by_key(|(_, a)| (a.len, a.region, a.base.as_u32(), a.off));
    let (halves, words) = words.split_at(words.partition_point(|(_, a)| a.len == 2));
    let mut runs = [vec![], vec![]];
    for ((of, runs), (unit, least)) in [halves, words].into_iter().zip(&mut runs).zip([(8, HALVES_MIN), (2, WORDS_MIN)])
    {
        let (found, left) = neighbours(of, unit);
        let enough = found.iter().map(|r| r.words).sum::<usize>() >= least;
        let alone = if enough { left } else { of.iter().map(|(inst, _)| *inst).collect() };
        others.extend(alone.into_iter().map(|inst| func.dfg.first_result(inst)));
        *runs = if enough { found } else { vec![] };
    }
    let [halves, words] = runs;
    if halves.is_empty() && words.is_empty() {
        return;
    }
    let mut at = before(func, root);
    if !halves.is_empty() {
        others.push(half_sum(&mut at, &halves));
    }
    if !words.is_empty() {
        others.push(word_sum(&mut at, &words));
    }
    let total = others.into_iter().reduce(|a, b| at.ins().iadd(a, b)).expect("a sum of some words");
    replace(func, root, total);
}

/// Of loads of one width, in the order of their places: how many stand side by side, in multiples of `unit`, and those left over.
fn neighbours(mut rest: &[(Inst, Access)], unit: usize) -> (Vec<Run>, Vec<Inst>) {
    let (mut runs, mut left) = (vec![], vec![]);
    while let Some((_, first)) = rest.first() {
        let follows = |(n, (_, a)): &(usize, &(Inst, Access))| {
            (a.region, a.base, a.off) == (first.region, first.base, first.off + (a.len * n) as i64)
        };
        let count = rest.iter().enumerate().take_while(follows).count();
        let words = count / unit * unit;
        if words > 0 {
            runs.push(Run { flags: first.flags, base: first.base, off: first.off as i32, words });
        }
        left.extend(rest[words..count].iter().map(|(inst, _)| *inst));
        rest = &rest[count..];
    }
    (runs, left)
}

/// Words one behind the other: an even number of those of 32 bits, a multiple of eight of those of 16.
pub(crate) struct Run {
    pub flags: MemFlagsData,
    pub base: Value,
    pub off: i32,
    pub words: usize,
}

/// Where instructions are put.
pub(crate) trait Emit {
    /// The next one.
    fn ins(&mut self) -> impl InstBuilder<'_>;
    /// The function that they are in.
    fn func(&mut self) -> &mut ir::Function;
}

impl Emit for FuncCursor<'_> {
    fn ins(&mut self) -> impl InstBuilder<'_> {
        FuncCursor::ins(self)
    }

    fn func(&mut self) -> &mut ir::Function {
        self.func
    }
}

impl Emit for FunctionBuilder<'_> {
    fn ins(&mut self) -> impl InstBuilder<'_> {
        FunctionBuilder::ins(self)
    }

    fn func(&mut self) -> &mut ir::Function {
        self.func
    }
}

/// The sum of all words of some runs, in 64 bits. There is one run at least.
///
/// Four words are one load, added as two numbers of 64 bits, whatever the sums of their lower halves carry into the upper ones;
/// and their upper halves alone are added beside that. The difference of the two is the sum of the lower halves.
pub(crate) fn word_sum(at: &mut impl Emit, runs: &[Run]) -> Value {
    let (mut whole, mut upper, mut pairs) = (Sums::default(), Sums::default(), Sums::default());
    for run in runs {
        let mut done = 0;
        while done < run.words {
            let off = run.off + 4 * done as i32;
            if run.words - done >= 4 {
                let four = at.ins().load(types::I64X2, run.flags, run.base, off);
                whole.add(at, four);
                let high = at.ins().ushr_imm_u(four, 32);
                upper.add(at, high);
                done += 4;
            } else {
                let two = at.ins().uload32x2(run.flags, run.base, off);
                pairs.add(at, two);
                done += 2;
            }
        }
    }
    let mut all = pairs.all(at);
    if let Some((whole, upper)) = whole.all(at).zip(upper.all(at)) {
        let carried = at.ins().ishl_imm_s(upper, 32);
        let lower = at.ins().isub(whole, carried);
        let both = at.ins().iadd(lower, upper);
        all = Some(all.map_or(both, |all| at.ins().iadd(all, both)));
    }
    across(at, all.expect("runs have words"))
}

/// The sum of all words of 16 bits of some runs, in 64 bits. There is one run at least.
///
/// Eight words are one load, of which the upper halves of 32 bits and the lower ones are added apart: a function has fewer loads than would
/// fill 32 bits.
fn half_sum(at: &mut impl Emit, runs: &[Run]) -> Value {
    let (mut lower, mut upper) = (Sums::default(), Sums::default());
    let lows = at.func().dfg.constants.insert([0xff, 0xff, 0, 0].repeat(4).into());
    let lows = at.ins().vconst(types::I32X4, lows);
    for run in runs {
        for off in (0..run.words).step_by(8).map(|n| run.off + 2 * n as i32) {
            let eight = at.ins().load(types::I32X4, run.flags, run.base, off);
            let low = at.ins().band(eight, lows);
            lower.add(at, low);
            let high = at.ins().ushr_imm_u(eight, 16);
            upper.add(at, high);
        }
    }
    let (lower, upper) = lower.all(at).zip(upper.all(at)).expect("runs have words");
    let little = MemFlagsData::new().with_endianness(ir::Endianness::Little);
    let four = at.ins().iadd(lower, upper);
    let two = at.ins().bitcast(types::I64X2, little, four);
    let high = at.ins().ushr_imm_u(two, 32);
    let up = at.ins().ishl_imm_s(two, 32);
    let low = at.ins().ushr_imm_u(up, 32);
    let both = at.ins().iadd(low, high);
    across(at, both)
}

/// The sum of both numbers of a vector.
fn across(at: &mut impl Emit, all: Value) -> Value {
    // The upper number moves down. A lane of floating point is where it is: no instruction takes it from there.
    let little = MemFlagsData::new().with_endianness(ir::Endianness::Little);
    let bytes = at.ins().bitcast(types::I8X16, little, all);
    let halves_change_places =
        at.func().dfg.immediates.push(std::array::from_fn::<u8, 16, _>(|n| n as u8 ^ 8).to_vec().into());
    let high = at.ins().shuffle(bytes, bytes, halves_change_places);
    let high = at.ins().bitcast(types::I64X2, little, high);
    let sum = at.ins().iadd(all, high);
    let sum = at.ins().bitcast(types::F64X2, little, sum);
    let low = at.ins().extractlane(sum, 0);
    at.ins().bitcast(types::I64, MemFlagsData::new(), low)
}

/// A sum of vectors, in several so that no addition waits for the one before.
#[derive(Default)]
struct Sums {
    parts: Vec<Value>,
    turn: usize,
}

impl Sums {
    fn add(&mut self, at: &mut impl Emit, v: Value) {
        match self.parts.get_mut(self.turn % VECTORS) {
            Some(part) => *part = at.ins().iadd(*part, v),
            None => self.parts.push(v),
        }
        self.turn += 1;
    }

    fn all(&self, at: &mut impl Emit) -> Option<Value> {
        self.parts.iter().copied().reduce(|a, b| at.ins().iadd(a, b))
    }
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::cursor::Cursor;

    use super::*;
    use crate::lower::region;

    /// One sum through many blocks.
    #[test]
    fn a_sum_is_not_followed_into_the_blocks_in_front_of_it() {
        let mut func = ir::Function::new();
        let data = ir::AliasRegionData { user_id: region::PACKET, description: "packet".into() };
        let packet = func.dfg.alias_regions.insert(data);
        let flags = MemFlagsData::new().with_notrap().with_alias_region(Some(packet));
        let blocks: Vec<Block> = (0..100).map(|_| func.dfg.make_block()).collect();
        let base = func.dfg.append_block_param(blocks[0], types::I64);
        let mut sum = base;
        let mut at = FuncCursor::new(&mut func);
        for (n, block) in blocks.iter().enumerate() {
            at.insert_block(*block);
            for word in 0..10 {
                let v = FuncCursor::ins(&mut at).uload32(flags, base, 40 * n as i32 + 4 * word);
                sum = FuncCursor::ins(&mut at).iadd(sum, v);
            }
            if let Some(next) = blocks.get(n + 1) {
                FuncCursor::ins(&mut at).jump(*next, &[]);
            }
        }
        let (whole, alone, uses) = super::super::kinds_of_use(&func);
        let pass = Pass { lanes: Default::default(), loads: Default::default(), whole, alone, uses };
        let ValueDef::Result(root, 0) = func.dfg.value_def(sum) else { unreachable!("an addition") };
        let fresh: FxHashSet<Inst> = blocks.iter().flat_map(|b| func.layout.block_insts(*b)).collect();
        let (words, others) = pass.leaves(&func, blocks[99], root, &fresh);
        assert_eq!((words.len(), others.len()), (10, 1));
    }
}
