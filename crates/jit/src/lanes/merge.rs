//! Stores side by side as wide ones.
//!
//! Stores wait, as long as nothing looks at the bytes that they write, and are written together at the last moment: in front
//! of what looks, at a call, at the end of the block.

use cranelift_codegen::cursor::FuncCursor;
use cranelift_codegen::ir::{self, Block, Inst, InstBuilder, Value, types};

use super::memory::{self, Access, Effect, Known};
use super::value::{self, From, Lane, Lanes};
use super::{Pass, before};

/// Stores of one group: each is held against all that wait.
const WAITING_MAX: usize = 256;

/// Stores from one start that wait. No two have a byte in common.
struct Group {
    stores: Vec<(Inst, Access, Lanes)>,
}

impl Pass {
    /// Stores of a block. `known` is what is known at its start.
    pub(super) fn stores(&mut self, func: &mut ir::Function, block: Block, mut known: Known) {
        let mut open: Vec<Group> = Vec::new();
        let mut next = func.layout.first_inst(block);
        while let Some(inst) = next {
            next = func.layout.next_inst(inst);
            if let Some(access) = memory::access(func, inst) {
                // What meets it has to be there first.
                let full = |g: &Group| g.stores.len() == WAITING_MAX;
                let meets = |g: &Group| full(g) || g.stores.iter().any(|s| s.1.may_meet(&access));
                for group in open.extract_if(.., |g| meets(g)) {
                    self.write(func, group, inst, &known);
                }
                if access.is_load {
                    let lanes = self.lanes_of(func, func.dfg.first_result(inst));
                    known.load(&access, lanes);
                    continue;
                }
                let lanes = self.lanes_of(func, func.dfg.inst_args(inst)[0]);
                known.store(&access, lanes);
                let of = |g: &&mut Group| (g.stores[0].1.region, g.stores[0].1.base) == (access.region, access.base);
                match open.iter_mut().find(of) {
                    Some(group) => group.stores.push((inst, access, lanes)),
                    None => open.push(Group { stores: vec![(inst, access, lanes)] }),
                }
                continue;
            }
            let effect = memory::effect(func, inst);
            if effect != Effect::Nothing || func.dfg.insts[inst].opcode().is_terminator() {
                let waited = !open.is_empty();
                for group in open.drain(..) {
                    self.write(func, group, inst, &known);
                }
                // What reads memory of no kind has a point in front of it that the stores were made before (`Body::shared`), and are
                // not any more. Without one Cranelift would leave out those that are overwritten behind it.
                if waited && effect == Effect::Looks {
                    before(func, inst).ins().sequence_point();
                }
            }
            if effect == Effect::Anything {
                known.forget();
            }
        }
    }

    /// Writes a group in front of an instruction, in as few stores as its bytes allow.
    fn write(&mut self, func: &mut ir::Function, mut group: Group, at: Inst, known: &Known) {
        if group.stores.len() < 2 {
            return;
        }
        group.stores.sort_by_key(|s| s.1.off);
        let mut rest = &group.stores[..];
        while let Some(&(_, first, _)) = rest.first() {
            let taken = [8, 4, 2].into_iter().find_map(|len| {
                let count = cover(rest, first.off, len)?;
                (count > 1).then_some(())?;
                let access = Access { len, ..first };
                let lanes: Vec<Lane> = rest[..count].iter().flat_map(|s| s.2[..s.1.len].to_vec()).collect();
                self.wide(func, &access, &lanes, count, at, known).then_some(count)
            });
            for (inst, ..) in &rest[..taken.unwrap_or(0)] {
                func.layout.remove_inst(*inst);
            }
            rest = &rest[taken.unwrap_or(1)..];
        }
    }

    /// One store in the place of several, where it is cheaper.
    fn wide(
        &mut self,
        func: &mut ir::Function,
        access: &Access,
        lanes: &[Lane],
        stores: usize,
        at: Inst,
        known: &Known,
    ) -> bool {
        let pieces = value::pieces(lanes);
        let values = pieces.iter().filter(|p| matches!(p.from, From::Value { .. })).count();
        // Each piece costs a shift, a cut and an addition.
        if pieces.len() == 1 || stores >= 2 * values + usize::from(pieces.len() > values) {
            let mut cursor = before(func, at);
            let v = match pieces[..] {
                // What stands above is not stored.
                [value::Piece { from: From::Value { root, index: 0 }, .. }] => whole_word(&mut cursor, root),
                _ => value::build(&mut cursor, &pieces, &self.loads),
            };
            memory::store(&mut cursor, access, v);
            return true;
        }
        let Some(from) = self.contiguous(lanes, known) else { return false };
        let mut cursor = before(func, at);
        let v = memory::load(&mut cursor, &from);
        memory::store(&mut cursor, access, v);
        self.loads.insert(v, from);
        self.lanes.insert(v, value::loaded(v, &from));
        true
    }
}

/// How many stores, side by side, make up exactly these bytes.
fn cover(stores: &[(Inst, Access, Lanes)], off: i64, len: usize) -> Option<usize> {
    let mut end = off;
    for (n, (_, access, _)) in stores.iter().enumerate() {
        if access.off != end {
            return None;
        }
        end += access.len as i64;
        if end >= off + len as i64 {
            return (end == off + len as i64).then_some(n + 1);
        }
    }
    None
}

fn whole_word(at: &mut FuncCursor<'_>, v: Value) -> Value {
    if at.func.dfg.value_type(v).bytes() < 8 { at.ins().uextend(types::I64, v) } else { v }
}
