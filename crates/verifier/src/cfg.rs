//! The shape of the program, checked before anything is executed: functions, jumps, reachability, which registers are
//! still wanted where, and at which instructions it pays to compare states.

use std::collections::BTreeMap;

use xway_isa::{CallTarget, DecodeErrorKind, Imm64, Insn, Operand, Reg};
use xway_object::Program;

use crate::diag::{Fail, fail};

/// Most slots of a program (`BPF_COMPLEXITY_LIMIT_INSNS`).
pub const INSNS_MAX: usize = 1_000_000;

/// One function of the program.
#[derive(Clone, Debug)]
pub struct Func {
    /// First slot.
    pub start: usize,
    /// The slot after its last.
    pub end: usize,
    /// Verified on its own.
    pub global: bool,
    /// Name for messages.
    pub name: String,
    /// Functions that it calls, with the call instruction.
    pub calls: Vec<(usize, usize)>,
    /// Callbacks whose address it takes.
    pub takes: Vec<usize>,
}

/// The checked shape.
#[derive(Clone, Debug)]
pub struct Cfg {
    /// One entry for each slot, `None` for second halves.
    pub insns: Vec<Option<Insn>>,
    /// Slots that are no instruction; a stand-in of the same shape has their place.
    pub wrong: BTreeMap<usize, DecodeErrorKind>,
    /// Functions by rising start; the first is the program.
    pub funcs: Vec<Func>,
    /// For each slot the registers (bit n: rn) that may be read before they are written.
    pub live: Vec<u16>,
    /// For each slot: several ways lead here, so states are compared here.
    pub prune: Vec<bool>,
}

impl Cfg {
    /// Checks the shape of `program`.
    pub fn new(program: &Program) -> Result<Cfg, Fail> {
        let n = program.insns.len();
        if n == 0 {
            return fail!(NoExit, "the program has no instructions");
        }
        if n > INSNS_MAX {
            return fail!(Budget, "the program has {n} instructions, more than {INSNS_MAX}");
        }
        let decoded = crate::malformed::decode(&program.insns)
            .map_err(|e| Fail::new(crate::diag::Kind::BadInstruction, e.kind.to_string()).at(e.at))?;
        let insns = decoded.insns;
        let funcs = functions(program, &insns)?;
        let mut cfg = Cfg { insns, wrong: decoded.wrong, funcs, live: vec![0; n], prune: vec![false; n] };
        for f in 0..cfg.funcs.len() {
            cfg.check_function(program, f)?;
        }
        cfg.liveness();
        Ok(cfg)
    }

    /// The function that starts at this slot.
    pub fn func_at(&self, start: usize) -> Option<usize> {
        self.funcs.binary_search_by_key(&start, |f| f.start).ok()
    }

    /// The instruction at a slot that starts one.
    pub fn insn(&self, pc: usize) -> Option<&Insn> {
        self.insns.get(pc).and_then(Option::as_ref)
    }

    /// Where a jump leads when it is taken, and when it is not.
    pub fn successor(&self, pc: usize, taken: bool) -> usize {
        let next = pc + self.insn(pc).map_or(1, Insn::slots);
        match self.insn(pc) {
            Some(Insn::Branch { off, .. } | Insn::MayGoto { off }) if taken => {
                (pc as i64 + 1 + i64::from(*off)) as usize
            }
            _ => next,
        }
    }

    /// Jumps stay inside, every instruction is reached, the end is no fall-through.
    fn check_function(&mut self, program: &Program, f: usize) -> Result<(), Fail> {
        let (start, end) = (self.funcs[f].start, self.funcs[f].end);
        let last = (start..end).rev().find(|i| self.insns[*i].is_some()).unwrap_or(start);
        let ends = match self.insns[last] {
            Some(Insn::Exit | Insn::Jump { .. }) => true,
            Some(Insn::Call(CallTarget::Kfunc { id, .. })) => crate::kfunc::throws(program, id),
            _ => false,
        };
        if !ends {
            return fail!(NoExit, "the function ends without an exit or a jump").map_err(|e| e.at(last));
        }
        let mut seen = vec![false; end - start];
        let mut ways = vec![0u8; end - start];
        let mut work = vec![start];
        while let Some(pc) = work.pop() {
            if std::mem::replace(&mut seen[pc - start], true) {
                continue;
            }
            let insn = self.insns[pc].expect("only starts of instructions are queued");
            let thrown = pc == last && matches!(insn, Insn::Call(_));
            for to in successors(&insn, pc).filter(|_| !thrown) {
                let inside = to >= start as i64 && to < end as i64;
                if !inside || self.insns[to as usize].is_none() {
                    return fail!(BadJump, "the jump leads to {to}, which is no instruction of the same function")
                        .map_err(|e| e.at(pc));
                }
                let i = to as usize - start;
                ways[i] = ways[i].saturating_add(1);
                if to as usize <= pc {
                    ways[i] = 2;
                }
                work.push(to as usize);
            }
            if matches!(insn, Insn::MayGoto { .. } | Insn::Call(CallTarget::Kfunc { .. })) {
                ways[pc - start] = 2;
            }
        }
        for pc in start..end {
            if self.insns[pc].is_some() && !seen[pc - start] {
                return fail!(Unreachable, "no way leads to this instruction").map_err(|e| e.at(pc));
            }
            self.prune[pc] = ways[pc - start] > 1;
        }
        Ok(())
    }

    /// Which registers may still be read, by walking backwards until nothing changes. A call of a local function reads
    /// what that function reads of its arguments.
    fn liveness(&mut self) {
        let preds: Vec<Vec<u32>> = {
            let mut p = vec![Vec::new(); self.insns.len()];
            for (pc, insn) in self.insns.iter().enumerate() {
                let Some(insn) = insn else { continue };
                for to in successors(insn, pc) {
                    if let Some(list) = usize::try_from(to).ok().and_then(|t| p.get_mut(t)) {
                        list.push(pc as u32);
                    }
                }
            }
            p
        };
        let mut callers = vec![Vec::new(); self.funcs.len()];
        for f in &self.funcs {
            for (insn, callee) in &f.calls {
                callers[*callee].push(*insn);
            }
        }
        let mut queued = vec![true; self.insns.len()];
        let mut work: Vec<usize> = (0..self.insns.len()).filter(|i| self.insns[*i].is_some()).collect();
        while let Some(pc) = work.pop() {
            queued[pc] = false;
            let Some(insn) = self.insns[pc] else { continue };
            let mut out = 0;
            for to in successors(&insn, pc) {
                out |= usize::try_from(to).ok().and_then(|t| self.live.get(t)).copied().unwrap_or(0);
            }
            let (reads, writes) = self.uses(&insn, pc);
            let live = (out & !writes) | reads;
            if live == self.live[pc] {
                continue;
            }
            self.live[pc] = live;
            let mut again: Vec<usize> = preds[pc].iter().map(|p| *p as usize).collect();
            if let Some(f) = self.func_at(pc) {
                again.extend(&callers[f]);
            }
            for p in again {
                if !std::mem::replace(&mut queued[p], true) {
                    work.push(p);
                }
            }
        }
    }

    /// Registers that an instruction reads and writes.
    pub fn uses(&self, insn: &Insn, pc: usize) -> (u16, u16) {
        let bit = |r: Reg| 1u16 << r.index();
        let operand = |o: Operand| if let Operand::Reg(r) = o { bit(r) } else { 0 };
        match *insn {
            Insn::Alu { dst, src, .. } => (bit(dst) | operand(src), 0),
            Insn::Mov { dst, src, .. } => (operand(src), bit(dst)),
            Insn::AddrSpaceCast { dst, src, .. } => (bit(src), bit(dst)),
            Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => (bit(dst), 0),
            Insn::LoadImm64 { dst, .. } => (0, bit(dst)),
            Insn::Load { dst, base, .. } | Insn::LoadAcquire { dst, base, .. } => (bit(base), bit(dst)),
            Insn::Store { base, src, .. } => (bit(base) | operand(src), 0),
            Insn::Atomic { op, base, src, .. } => {
                let r0 = if op == xway_isa::AtomicOp::CmpXchg { 1 } else { 0 };
                (bit(base) | bit(src) | r0, 0)
            }
            Insn::StoreRelease { base, src, .. } => (bit(base) | bit(src), 0),
            Insn::Jump { .. } | Insn::MayGoto { .. } => (0, 0),
            Insn::Branch { dst, src, .. } => (bit(dst) | operand(src), 0),
            Insn::Call(CallTarget::Helper(id)) => {
                let args = xway_abi::helper(id).map_or(5, |p| p.args.len());
                (((1 << args) - 1) << 1, 0x3f)
            }
            Insn::Call(CallTarget::Local(rel)) => {
                let callee = usize::try_from(pc as i64 + 1 + i64::from(rel)).unwrap_or(usize::MAX);
                // A global function is called by its signature, which may ask for more than its code reads.
                let global = self.func_at(callee).is_some_and(|f| self.funcs[f].global);
                let reads = if global { 0x3e } else { self.live.get(callee).map_or(0x3e, |l| l & 0x3e) };
                (reads, 0x3f)
            }
            Insn::Call(CallTarget::Kfunc { .. }) => (0x3e, 0x3f),
            Insn::Exit => (1, 0),
            Insn::LegacyLoad { .. } => (0x40, 0x3f),
        }
    }
}

/// Where execution may go on after an instruction, inside its function.
pub(crate) fn successors(insn: &Insn, pc: usize) -> impl Iterator<Item = i64> + use<> {
    let next = (pc + insn.slots()) as i64;
    let to = |off: i64| pc as i64 + 1 + off;
    let (a, b) = match *insn {
        Insn::Exit => (None, None),
        Insn::Jump { off, .. } => (Some(to(off.into())), None),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => (Some(next), Some(to(off.into()))),
        _ => (Some(next), None),
    };
    a.into_iter().chain(b)
}

/// Finds the functions: those that the object names, and every target of a local call or callback reference.
fn functions(program: &Program, insns: &[Option<Insn>]) -> Result<Vec<Func>, Fail> {
    let mut starts = vec![0];
    let mut edges = Vec::new();
    for (pc, insn) in insns.iter().enumerate() {
        let (rel, call) = match insn {
            Some(Insn::Call(CallTarget::Local(rel))) => (*rel, true),
            Some(Insn::LoadImm64 { imm: Imm64::Func(rel), .. }) => (*rel, false),
            _ => continue,
        };
        let to = pc as i64 + 1 + i64::from(rel);
        match usize::try_from(to).ok().filter(|t| insns.get(*t).is_some_and(Option::is_some)) {
            Some(t) => {
                starts.push(t);
                edges.push((pc, t, call));
            }
            None => {
                return fail!(BadReference, "the function at {to} does not exist").map_err(|e| e.at(pc));
            }
        }
    }
    for s in &program.subprogs {
        if insns.get(s.start).is_some_and(Option::is_some) {
            starts.push(s.start);
        }
    }
    starts.sort_unstable();
    starts.dedup();
    if starts.len() > 256 {
        return fail!(Budget, "the program has {} functions, more than 256", starts.len());
    }
    let mut funcs: Vec<Func> = starts
        .iter()
        .enumerate()
        .map(|(i, start)| {
            let known = program.subprogs.iter().find(|s| s.start == *start);
            Func {
                start: *start,
                end: starts.get(i + 1).copied().unwrap_or(insns.len()),
                global: i > 0 && known.is_some_and(|s| s.global),
                name: known.map_or_else(|| format!("func{i}"), |s| s.name.clone()),
                calls: Vec::new(),
                takes: Vec::new(),
            }
        })
        .collect();
    for (pc, to, call) in edges {
        let from = starts.partition_point(|s| *s <= pc) - 1;
        let target = starts.binary_search(&to).unwrap_or(0);
        if call {
            funcs[from].calls.push((pc, target));
        } else {
            funcs[from].takes.push(target);
        }
    }
    Ok(funcs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::Kind;

    fn cfg(text: &str) -> Result<Cfg, Fail> {
        Cfg::new(&crate::testing::program(text))
    }

    #[test]
    fn shapes_that_are_refused() {
        for (text, kind) in [
            ("r0 = 0", Kind::NoExit),
            ("goto +5\nr0 = 0\nexit", Kind::BadJump),
            ("goto +1\nr0 = 0\nexit", Kind::Unreachable),
            ("r0 = 0\nif r0 == 0 goto +1\nr1 = 5 ll\nexit", Kind::BadJump),
            ("call pc+7\nexit", Kind::BadReference),
        ] {
            assert_eq!(cfg(text).unwrap_err().kind, kind, "{text}");
        }
    }

    #[test]
    fn registers_live_until_their_last_read() {
        let c = cfg("r6 = r1\nr0 = 0\nif r6 == 0 goto +1\nr0 = r7\nexit").unwrap();
        assert_eq!(c.live[0], 1 << 1 | 1 << 7);
        assert_eq!(c.live[2], 1 << 6 | 1 << 7 | 1);
        assert_eq!(c.live[4], 1);
        assert!(c.prune[4] && !c.prune[3]);
    }
}
