//! Faster forms for short sequences that compilers write all the time.
//!
//! A sequence is replaced in its first slot only: the others stay as they are, so jumps into it keep their meaning, and a
//! fast form that cannot do its work does what its first instruction did and leaves the rest to them.

use crate::op::Code::*;
use crate::op::{Code, Op, R};

const STACK: i64 = crate::env::STACK_LEN as i64;

/// Puts fast forms in place. `is_lookup` knows calls of `bpf_map_lookup_elem`, `key_size` the length of a map's keys if the
/// map holds values.
pub(crate) fn fuse(ops: &mut [Op], is_lookup: impl Fn(&Op) -> bool, key_size: impl Fn(i64) -> Option<i64>) {
    for at in 0..ops.len() {
        let rest = &ops[at..];
        if let Some(op) = on_stack(&rest[0]).or_else(|| sequence(rest, &is_lookup, &key_size)) {
            ops[at] = op;
        }
    }
}

/// Loads and stores relative to r10 that lie on the stack.
fn on_stack(op: &Op) -> Option<Op> {
    let (code, base, len) = match op.code {
        LoadB => (StackLoadB, op.src, 1),
        LoadH => (StackLoadH, op.src, 2),
        LoadW => (StackLoadW, op.src, 4),
        LoadDw => (StackLoadDw, op.src, 8),
        StoreXB => (StackStoreB, op.dst, 1),
        StoreXH => (StackStoreH, op.dst, 2),
        StoreXW => (StackStoreW, op.dst, 4),
        StoreXDw => (StackStoreDw, op.dst, 8),
        _ => return None,
    };
    let off = i64::from(op.off) + STACK;
    (base == R::R10 && (0..=STACK - len).contains(&off)).then_some(Op { code, off: off as i32, ..*op })
}

fn sequence(rest: &[Op], is_lookup: &impl Fn(&Op) -> bool, key_size: &impl Fn(i64) -> Option<i64>) -> Option<Op> {
    let op = rest[0];
    if op.code == CallHelper && is_lookup(&op) {
        return Some(Op { code: Lookup, ..op });
    }
    let next = *rest.get(1)?;
    let third = rest.get(2);
    match (op.code, next.code) {
        (Mov64X, Add64K) if next.dst == op.dst => {
            let moved = Op { code: MovAdd, imm: next.imm, ..op };
            Some(match third {
                Some(map)
                    if (op.src, op.dst) == (R::R10, R::R2)
                        && (map.code, map.dst) == (LoadMap, R::R1)
                        && rest.get(4).is_some_and(|call| call.code == CallHelper && is_lookup(call))
                        && key_size(map.imm).is_some_and(|size| (-STACK..=-size).contains(&next.imm)) =>
                {
                    Op { code: LookupOnStack, off: (next.imm + STACK) as i32, imm: map.imm, ..op }
                }
                Some(jump) if jump.code == JGt64X && jump.dst == op.dst => Op { code: MovAddGt, ..moved },
                _ => moved,
            })
        }
        (Lsh64K, Rsh64K) if next.dst == op.dst && op.imm == 32 && next.imm == 32 => Some(Op { code: ZeroExtend, ..op }),
        (LoadW | LoadDw, Add64K | Add64X) => increment(op, next, *third?),
        _ => None,
    }
}

/// A number in memory is loaded, added to and stored again.
fn increment(load: Op, add: Op, store: Op) -> Option<Op> {
    let same_place = (store.dst, store.off) == (load.src, load.off) && load.src != load.dst;
    let same_number = add.dst == load.dst && store.src == load.dst;
    let delta_stays = add.code == Add64K || add.src != load.dst;
    let code: Code = match (load.code, add.code, store.code) {
        (LoadW, Add64K, StoreXW) => IncWK,
        (LoadW, Add64X, StoreXW) => IncWX,
        (LoadDw, Add64K, StoreXDw) => IncDwK,
        (LoadDw, Add64X, StoreXDw) => IncDwX,
        _ => return None,
    };
    (same_place && same_number && delta_stays).then_some(Op { code, ..load })
}
