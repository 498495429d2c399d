//! A tracer that holds every fact of a proof against what a run really does.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use xway_abi::ArgKind;
use xway_isa::{CallTarget, Imm64, Insn, Size};
use xway_verifier::{AccessFact, CallFact, Facts, KeyPlace, Place, Region, Verified};
use xway_vm::{Callee, Program, RegionKind, Seen, Step, Tracer};

/// Offsets of pointers stay below, as the verifier sees to.
const FAR: u64 = 1 << 30;
/// Functions that call each other, callbacks among them.
const FRAMES: u64 = 16;

/// Holds the facts of one program against its runs.
pub struct Checker<'p> {
    facts: &'p Facts,
    program: &'p Program,
    accesses: HashMap<usize, Place>,
    calls: HashMap<usize, &'p CallFact>,
    args: HashMap<usize, [Option<Place>; 5]>,
    decided: HashMap<usize, bool>,
    seen: RefCell<Run>,
}

/// What is remembered of a run.
#[derive(Default)]
struct Run {
    /// Which map an element belongs to, learned where the program gets it.
    values: HashMap<u64, u32>,
    /// By depth of calls: the function that is active there, and what its last instruction still has to show.
    active: Vec<(usize, Next)>,
    wrong: Option<String>,
    checked: u64,
}

#[derive(Clone, Copy, Default)]
enum Next {
    #[default]
    Nothing,
    /// A branch that the facts decide: (instruction, where it must go).
    Goes(usize, usize),
    /// The register then points to a value of this map, or is null.
    Value(usize, u32),
}

impl<'p> Checker<'p> {
    /// For runs of `program`, which was linked plainly.
    pub fn new(proof: &'p Verified, program: &'p Arc<Program>) -> Checker<'p> {
        let facts = proof.facts();
        Checker {
            facts,
            program,
            accesses: facts.accesses.iter().map(|AccessFact { insn, place }| (*insn, *place)).collect(),
            calls: facts.calls.iter().map(|c| (c.insn, c)).collect(),
            args: facts.args.iter().map(|a| (a.insn, a.args)).collect(),
            decided: facts.decided.iter().copied().collect(),
            seen: RefCell::default(),
        }
    }

    /// To be called before each run.
    pub fn begin(&self) {
        let run = &mut *self.seen.borrow_mut();
        run.values.clear();
        run.active.clear();
    }

    /// The first fact that did not hold, in words, and how many were checked.
    pub fn outcome(self) -> (Option<String>, u64) {
        let run = self.seen.into_inner();
        (run.wrong, run.checked)
    }

    fn function(&self, insn: usize) -> usize {
        self.facts.functions.partition_point(|start| *start <= insn) - 1
    }

    /// Everything that must hold before this instruction.
    fn check(&self, run: &mut Run, step: &Step<'_>) -> Result<(), String> {
        let at = step.insn;
        self.follow_up(run, step)?;
        run.checked += 1;
        if self.facts.dead.binary_search(&at).is_ok() {
            return Err("it is said to be dead".into());
        }
        let Some(insn) = self.program.insns()[at] else { return Err("it is no instruction".into()) };
        let next = match insn {
            Insn::Load { size, base, off, .. } | Insn::LoadAcquire { size, base, off, .. } => {
                self.access(run, step, base.index(), off, size, false)?;
                Next::Nothing
            }
            Insn::Store { size, base, off, .. }
            | Insn::StoreRelease { size, base, off, .. }
            | Insn::Atomic { size, base, off, .. } => {
                self.access(run, step, base.index(), off, size, true)?;
                Next::Nothing
            }
            Insn::Branch { off, .. } => match self.decided.get(&at) {
                Some(true) => Next::Goes(at, (at as i64 + 1 + i64::from(off)) as usize),
                Some(false) => Next::Goes(at, at + 1),
                None => Next::Nothing,
            },
            Insn::LoadImm64 { dst, imm: Imm64::MapIdxValue { idx, .. } } => Next::Value(dst.index(), idx as u32),
            Insn::Call(target) => self.call(run, step, target)?,
            _ => Next::Nothing,
        };
        run.active.last_mut().expect("this function is active").1 = next;
        Ok(())
    }

    /// What the last instruction of this function left to show.
    fn follow_up(&self, run: &mut Run, step: &Step<'_>) -> Result<(), String> {
        let function = self.function(step.insn);
        run.active.truncate(step.depth);
        let entered = run.active.len() < step.depth;
        if entered {
            run.active.resize(step.depth, (function, Next::Nothing));
        }
        let here = run.active.last_mut().expect("at least this function is active");
        let next = std::mem::take(&mut here.1);
        here.0 = function;
        match next {
            Next::Goes(from, to) if to != step.insn => {
                Err(format!("the branch at {from} is said to go to {to} always"))
            }
            Next::Value(reg, map) => {
                let seen = step.seen(reg, 0);
                if seen.kind != RegionKind::MapValue {
                    return Ok(());
                }
                let known = *run.values.entry(seen.which).or_insert(map);
                if known == map { Ok(()) } else { Err(format!("an element of map {known} came from map {map}")) }
            }
            _ => Ok(()),
        }
    }

    fn access(&self, run: &Run, step: &Step<'_>, base: usize, off: i16, size: Size, write: bool) -> Result<(), String> {
        let seen = step.seen(base, off.into());
        let Some(place) = self.accesses.get(&step.insn) else {
            return Err("no fact says where it reaches".into());
        };
        self.holds(run, step, place, &seen, "it reaches")?;
        let end = seen.off + i64::from(size.bytes());
        match (seen.kind, place.region) {
            (RegionKind::Packet, Region::Meta) if !self.facts.meta_used => {
                Err("metadata is said not to be used".into())
            }
            (RegionKind::Packet, Region::Meta) if write && !self.facts.meta_written => {
                Err("metadata is said not to be written".into())
            }
            (RegionKind::Packet, Region::Meta) => Ok(()),
            (RegionKind::Packet, Region::Packet) if end > i64::from(self.facts.packet_bytes) => {
                Err(format!("byte {end} of the packet, and {} is said to be the last", self.facts.packet_bytes))
            }
            (RegionKind::Packet, _) if write && !self.facts.packet_written => {
                Err("the packet is said not to be written".into())
            }
            (RegionKind::Stack, _) => {
                let owner = run.active[seen.which as usize - 1].0;
                if -seen.off > i64::from(self.facts.stack[owner]) {
                    return Err(format!("byte {} of a stack of {}", -seen.off, self.facts.stack[owner]));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What is seen is what the fact says.
    fn holds(&self, run: &Run, step: &Step<'_>, place: &Place, seen: &Seen, what: &str) -> Result<(), String> {
        let own = seen.which == step.depth as u64;
        let (fits, off) = match place.region {
            Region::Context => (seen.kind == RegionKind::Context, seen.off),
            Region::Packet => (seen.kind == RegionKind::Packet, seen.off),
            Region::Meta => (seen.kind == RegionKind::Packet, seen.off + i64::from(step.meta_len())),
            Region::Stack => (seen.kind == RegionKind::Stack && own, seen.off),
            Region::OuterStack => (seen.kind == RegionKind::Stack && !own, seen.off),
            Region::MapValue(map) => {
                let known = run.values.get(&seen.which).is_none_or(|m| *m == map);
                (seen.kind == RegionKind::MapValue && known, seen.off)
            }
            Region::InnerMapValue(_) => (seen.kind == RegionKind::MapValue, seen.off),
            Region::Map(map) => (seen.kind == RegionKind::Handle && seen.which == map.into(), seen.off),
            Region::InnerMap(_) | Region::Func(_) => (seen.kind == RegionKind::Handle, seen.off),
            Region::Record => (seen.kind == RegionKind::Record, seen.off),
            // The context can be neither of these: an instruction reaches it or it does not.
            Region::Other | Region::Mixed => (seen.kind != RegionKind::Context || what != "it reaches", seen.off),
        };
        let counted = !matches!(place.region, Region::Other | Region::Mixed | Region::Func(_) | Region::InnerMap(_));
        if fits && (!counted || place.off.is_none_or(|o| i64::from(o) == off)) {
            return Ok(());
        }
        Err(format!("{what} {seen:?}, said to be {place:?} (depth {}, meta {})", step.depth, step.meta_len()))
    }

    fn call(&self, run: &Run, step: &Step<'_>, target: CallTarget) -> Result<Next, String> {
        let Some(args) = self.args.get(&step.insn) else { return Err("no fact about its arguments".into()) };
        let kinds: &[xway_abi::Arg] = match self.program.callee(step.insn) {
            Some(Callee::Helper(proto)) => proto.args,
            _ => &[],
        };
        for (i, place) in args.iter().enumerate().take(kinds.len()) {
            let seen = step.seen(i + 1, 0);
            match place {
                Some(place) if step.number(i + 1) != 0 => {
                    self.holds(run, step, place, &seen, &format!("argument {} is", i + 1))?;
                }
                // What was a packet pointer before the packet moved is a number; addresses may have become numbers. A product of the
                // program's may look like an address far from all that there is.
                None if matches!(seen.kind, RegionKind::Stack | RegionKind::MapValue | RegionKind::Record)
                    && seen.off.unsigned_abs() < FAR
                    && (seen.kind != RegionKind::Stack || seen.which <= FRAMES)
                    && !self.facts.addresses =>
                {
                    return Err(format!("argument {} is {seen:?}, said to be no pointer", i + 1));
                }
                _ => {}
            }
        }
        let CallTarget::Helper(id) = target else {
            if matches!(self.program.callee(step.insn), Some(Callee::Kfunc(_))) && self.facts.kfuncs.is_empty() {
                return Err("no kernel function is said to be called".into());
            }
            return Ok(Next::Nothing);
        };
        let Some(fact) = self.calls.get(&step.insn) else { return Err("no fact about the call".into()) };
        if fact.helper != id || !self.facts.helpers.contains(&id) {
            return Err(format!("helper {id} is said not to be called"));
        }
        let mut next = Next::Nothing;
        for (i, arg) in kinds.iter().enumerate() {
            let reg = i + 1;
            match arg.kind {
                ArgKind::ConstMap => {
                    let map = step.seen(reg, 0).which;
                    let own = map < self.program.maps().len() as u64;
                    if fact.map.is_some_and(|m| u64::from(m) != map) {
                        return Err(format!("map {map}, said to be {:?}", fact.map));
                    }
                    if own && !self.facts.maps.contains(&(map as u32)) {
                        return Err(format!("map {map} is said not to be used"));
                    }
                    if own && matches!(id, 1 | 195) {
                        next = Next::Value(0, map as u32);
                    }
                }
                ArgKind::MapKey => self.key(step, reg, fact)?,
                ArgKind::Size { .. } | ArgKind::ConstSize => {
                    let n = step.number(reg);
                    let Some((low, high)) = fact.sizes[i] else { return Err(format!("no bounds of length {reg}")) };
                    if n < low || n > high {
                        return Err(format!("a length of {n}, said to be {low} to {high}"));
                    }
                }
                _ => {}
            }
        }
        Ok(next)
    }

    fn key(&self, step: &Step<'_>, reg: usize, fact: &CallFact) -> Result<(), String> {
        let seen = step.seen(reg, 0);
        let own = seen.which == step.depth as u64;
        let fits = match fact.key {
            Some(KeyPlace::Stack(off)) => seen.kind == RegionKind::Stack && own && seen.off == i64::from(off),
            Some(KeyPlace::OuterStack) => seen.kind == RegionKind::Stack && !own,
            Some(KeyPlace::Packet) => seen.kind == RegionKind::Packet,
            Some(KeyPlace::MapValue) => seen.kind == RegionKind::MapValue,
            Some(KeyPlace::Other) | None => true,
        };
        if !fits {
            return Err(format!("the key is {seen:?}, said to be {:?}", fact.key));
        }
        let mut bytes = [0; 4];
        if let Some(key) = fact.key_const
            && (!step.read(reg, &mut bytes) || u32::from_ne_bytes(bytes) != key)
        {
            return Err(format!("the key is {bytes:02x?}, said to be {key:#x}"));
        }
        Ok(())
    }
}

impl Tracer for Checker<'_> {
    fn step(&self, step: &Step<'_>) {
        // A program that was reached by a tail call has facts of its own.
        if step.program.id() != self.program.id() {
            return;
        }
        let run = &mut *self.seen.borrow_mut();
        if run.wrong.is_none()
            && let Err(why) = self.check(run, step)
        {
            let text = self.program.insns()[step.insn].map_or(String::new(), |i| i.to_string());
            run.wrong = Some(format!("instruction {} ({text}): {why}", step.insn));
        }
    }
}
