//! Sums of many neighbouring words of 32 bits: checksums (RFC 1071) as clang unrolls them.
//!
//! Additions of 64 bits may be done in any order, so the words are loaded and widened two at a time with one vector
//! instruction and added in four vectors; the rest of the sum is added to what they give.

use std::collections::HashSet;

use cranelift_codegen::cursor::FuncCursor;
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{self, Block, Inst, InstBuilder, InstructionData, Opcode, Value, ValueDef, types};

use super::memory::{self, Access, Effect};
use super::{Pass, before, replace};

/// Pairs of words that are worth it.
const PAIRS_MIN: usize = 4;
/// Vectors that are added to in turns, so that no addition waits for the one before.
const VECTORS: usize = 4;

/// How often each value is used.
pub(super) fn uses(func: &ir::Function) -> SecondaryMap<Value, u32> {
    let mut uses = SecondaryMap::new();
    for block in func.layout.blocks() {
        for inst in func.layout.block_insts(block) {
            for v in func.dfg.inst_values(inst) {
                uses[func.dfg.resolve_aliases(v)] += 1;
            }
        }
    }
    uses
}

impl Pass {
    /// Sums that end in a block.
    pub(super) fn sums(&mut self, func: &mut ir::Function, block: Block) {
        let mut inner: HashSet<Value> = HashSet::new();
        for inst in func.layout.block_insts(block).filter(|i| is_sum(func, *i)) {
            let args = func.dfg.inst_args(inst).iter().map(|v| func.dfg.resolve_aliases(*v));
            inner.extend(args.filter(|v| self.uses[*v] == 1));
        }
        // Loads since the last store or call, which nothing has changed since.
        let mut fresh: HashSet<Inst> = HashSet::new();
        let mut found = vec![];
        for inst in func.layout.block_insts(block) {
            match memory::access(func, inst) {
                Some(access) if access.is_load => drop(fresh.insert(inst)),
                Some(_) => fresh.clear(),
                None if memory::effect(func, inst) == Effect::Anything => fresh.clear(),
                None => {}
            }
            if fresh.len() >= 2 * PAIRS_MIN && is_sum(func, inst) && !inner.contains(&func.dfg.first_result(inst)) {
                let (words, others) = self.leaves(func, inst, &fresh);
                if words.len() >= 2 * PAIRS_MIN {
                    found.push((inst, words, others));
                }
            }
        }
        for (inst, words, others) in found {
            sum(func, inst, words, others);
        }
    }

    /// What a sum is made of: words that only it uses, and everything else.
    fn leaves(&self, func: &ir::Function, root: Inst, fresh: &HashSet<Inst>) -> (Vec<(Inst, Access)>, Vec<Value>) {
        let (mut words, mut others) = (vec![], vec![]);
        let mut work: Vec<Value> = func.dfg.inst_args(root).to_vec();
        while let Some(v) = work.pop() {
            let v = func.dfg.resolve_aliases(v);
            let inst = match func.dfg.value_def(v) {
                ValueDef::Result(inst, 0) if self.uses[v] == 1 => inst,
                _ => {
                    others.push(v);
                    continue;
                }
            };
            let word = || memory::access(func, inst).filter(|a| a.is_load && a.len == 4 && !a.signed);
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
    words.sort_by_key(|(_, a)| (a.region, a.base.as_u32(), a.off));
    let mut pairs = vec![];
    let mut single = vec![];
    let mut rest = &words[..];
    while let [(inst, access), ..] = rest {
        let next =
            rest.get(1).filter(|(_, b)| (b.region, b.base, b.off) == (access.region, access.base, access.off + 4));
        if next.is_some() {
            pairs.push(*access);
        } else {
            single.push(func.dfg.first_result(*inst));
        }
        rest = &rest[1 + usize::from(next.is_some())..];
    }
    if pairs.len() < PAIRS_MIN {
        return;
    }
    others.extend(single);
    let mut at = before(func, root);
    let mut total = pair_sum(&mut at, &pairs);
    for v in others {
        total = at.ins().iadd(total, v);
    }
    replace(func, root, total);
}

/// The sum of pairs of words, in vectors.
fn pair_sum(at: &mut FuncCursor<'_>, pairs: &[Access]) -> Value {
    let mut sums: Vec<Value> = vec![];
    for (n, pair) in pairs.iter().enumerate() {
        let v = at.ins().uload32x2(pair.flags, pair.base, pair.off as i32);
        match sums.get_mut(n % VECTORS) {
            Some(sum) => *sum = at.ins().iadd(*sum, v),
            None => sums.push(v),
        }
    }
    let all = sums.into_iter().reduce(|a, b| at.ins().iadd(a, b)).expect("pairs");
    let (low, high) = (at.ins().extractlane(all, 0), at.ins().extractlane(all, 1));
    at.ins().iadd(low, high)
}
