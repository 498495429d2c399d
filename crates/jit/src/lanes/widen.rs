//! Loads side by side as one: the wide load stands in front of the first of them, and their bytes are its bytes.
//!
//! Of the stack the narrow loads stay for whoever uses them alone; what is put together from several, or stored again, takes the
//! bytes of the wide one. What nobody took goes with the other dead loads.
//!
//! Of the packet no narrow load stays: a byte that the program has loaded once is read once, whoever uses it. Another process may
//! write there meanwhile, and a byte that was checked must be the one that counts.

use cranelift_codegen::ir::{self, Block, Inst, InstBuilder, Value, types};

use super::memory::{self, Access, Effect};
use super::value::{self, Lane};
use super::{Pass, before, replace};
use crate::lower::region;

/// A load that may be part of a wide one.
struct Narrow {
    access: Access,
    inst: Inst,
    /// Its place among them in the block.
    order: usize,
    /// Number of the stretch without calls that it stands in.
    stretch: u32,
}

impl Pass {
    /// Finds the wide loads of a block and emits them. All bytes of one are loaded by the block itself, so the program has
    /// proved all of them before the first.
    pub(super) fn widen(&mut self, func: &mut ir::Function, block: Block) {
        let mut found: Vec<Narrow> = vec![];
        let mut stored: Vec<Access> = vec![];
        let mut stretch = 0;
        for inst in func.layout.block_insts(block) {
            let Some(access) = memory::access(func, inst) else {
                if memory::effect(func, inst) == Effect::Anything {
                    stored.clear();
                    stretch += 1;
                }
                continue;
            };
            if !access.is_load {
                stored.push(access);
            } else if !access.signed
                && access.len < 8
                && func.dfg.value_type(func.dfg.first_result(inst)) == types::I64
                && !stored.iter().any(|s| s.may_meet(&access))
            {
                found.push(Narrow { access, inst, order: found.len(), stretch });
            }
        }
        found.sort_by_key(|n| (n.stretch, n.access.region, n.access.base.as_u32(), n.access.off, n.order));
        let mut rest = &found[..];
        while let Some(first) = rest.first() {
            let key = |n: &Narrow| (n.stretch, n.access.region, n.access.base);
            let mut end = first.access.off;
            let count = rest
                .iter()
                .take_while(|n| {
                    let joins = key(n) == key(first) && n.access.off <= end;
                    end = end.max(n.access.off + n.access.len as i64);
                    joins
                })
                .count();
            self.widen_run(func, &rest[..count]);
            rest = &rest[count..];
        }
    }

    /// Loads without a gap between them.
    fn widen_run(&mut self, func: &mut ir::Function, run: &[Narrow]) {
        let end = run.iter().map(|n| n.access.off + n.access.len as i64).max().unwrap_or(0);
        let mut off = run[0].access.off;
        while off < end {
            let Some(len) = [8i64, 4, 2].into_iter().find(|len| off + len <= end) else { break };
            let inside = |n: &&Narrow| n.access.off >= off && n.access.off + n.access.len as i64 <= off + len;
            let parts: Vec<&Narrow> = run.iter().filter(inside).collect();
            // Who compares or computes with a part alone gains nothing by the wide one.
            let joined = |n: &&&Narrow| !self.alone[func.dfg.first_result(n.inst)];
            if parts.iter().filter(joined).count() > 1 {
                self.widen_one(func, Access { off, len: len as usize, ..run[0].access }, &parts);
            }
            off += len;
        }
    }

    fn widen_one(&mut self, func: &mut ir::Function, wide: Access, parts: &[&Narrow]) {
        let first = parts.iter().min_by_key(|n| n.order).expect("two at least");
        let v: Value = memory::load(&mut before(func, first.inst), &wide);
        for part in parts {
            let mut lanes = [Lane::ZERO; 8];
            for (n, lane) in lanes.iter_mut().enumerate().take(part.access.len) {
                let index = (part.access.off - wide.off) as usize + n;
                *lane = Lane::Byte { root: v, index: index as u8 };
            }
            let narrow = func.dfg.first_result(part.inst);
            self.lanes.insert(narrow, lanes);
            if wide.region == region::PACKET {
                let cut = cut(func, part, v, part.access.off - wide.off);
                self.lanes.insert(cut, lanes);
                self.whole[cut] = self.whole[narrow];
                replace(func, part.inst, cut);
            }
        }
        self.loads.insert(v, wide);
        self.lanes.insert(v, value::loaded(v, &wide));
    }
}

/// The bytes of a part from so many bytes on in the wide load.
fn cut(func: &mut ir::Function, part: &Narrow, wide: Value, from: i64) -> Value {
    let mut at = before(func, part.inst);
    let v = if from == 0 { wide } else { at.ins().ushr_imm_u(wide, 8 * from) };
    let bits = 8 * part.access.len as u32;
    at.ins().band_imm_u(v, (1i64 << bits) - 1)
}
