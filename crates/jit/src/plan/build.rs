//! From instructions and facts to a [`Plan`].

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use xway_isa::{ByteOrder, CallTarget, Imm64, Insn};
use xway_object::MapDef;
use xway_verifier::{AccessFact, ArgsFact, CallFact, Place, Region, Verified};
use xway_vm::{Callee, Program};

use super::{Block, Call, CtxField, End, Func, Kind, Op, Plan};
use crate::Refusal;

/// The longest function, instructions: register allocation takes more than proportional time.
pub(crate) const FUNCTION_MAX: usize = 20_000;

/// Facts by instruction.
struct Index<'a> {
    accesses: FxHashMap<usize, &'a AccessFact>,
    args: FxHashMap<usize, &'a ArgsFact>,
    calls: FxHashMap<usize, &'a CallFact>,
    dead: &'a [usize],
    maps: &'a [MapDef],
}

/// Makes the plan. Refuses what there is no native code for.
pub(crate) fn build(program: &Program, proof: &Verified) -> Result<Plan, Refusal> {
    let facts = proof.facts();
    let index = Index {
        accesses: facts.accesses.iter().map(|f| (f.insn, f)).collect(),
        args: facts.args.iter().map(|f| (f.insn, f)).collect(),
        calls: facts.calls.iter().map(|f| (f.insn, f)).collect(),
        dead: &facts.dead,
        maps: proof.maps(),
    };
    let starts = function_starts(program.insns());
    let mut funcs = Vec::with_capacity(starts.len());
    for (n, start) in starts.iter().enumerate() {
        let stack = facts.functions.iter().position(|f| f == start).and_then(|i| facts.stack.get(i));
        let end = starts.get(n + 1).copied().unwrap_or(program.insns().len());
        let mut func = Builder { program, index: &index, starts: &starts, start: *start, end }.function()?;
        func.stack = stack.copied().unwrap_or(512).next_multiple_of(8).min(512);
        funcs.push(func);
    }
    let taken: Vec<usize> = (funcs.iter().flat_map(|f| &f.blocks).flat_map(|b| &b.ops))
        .filter_map(|op| if let Kind::Func { func, .. } = op.kind { Some(func) } else { None })
        .collect();
    for func in taken {
        funcs[func].callback = true;
    }
    let redirect = |v: &xway_abi::Verdict| *v == xway_abi::Verdict::Redirect;
    let redirects = facts.tail_calls
        || facts.verdicts.as_ref().is_none_or(|v| v.iter().any(redirect))
        || facts.helpers.iter().any(|h| matches!(h, 23 | 51));
    let chooses = facts.tail_calls || facts.helpers.iter().any(|h| matches!(h, 23 | 51));
    Ok(Plan {
        funcs,
        tail_calls: facts.tail_calls,
        redirects,
        redirects_by_verdict: redirects && !chooses,
        scout: None,
    })
}

/// First slots of the functions: the program, what is called, what is called back.
fn function_starts(insns: &[Option<Insn>]) -> Vec<usize> {
    let mut starts = BTreeSet::from([0]);
    for (at, insn) in insns.iter().enumerate() {
        let off = match insn {
            Some(Insn::Call(CallTarget::Local(off)) | Insn::LoadImm64 { imm: Imm64::Func(off), .. }) => *off,
            _ => continue,
        };
        if let Ok(start) = usize::try_from(at as i64 + 1 + i64::from(off)) {
            starts.insert(start);
        }
    }
    starts.into_iter().collect()
}

struct Builder<'a> {
    program: &'a Program,
    index: &'a Index<'a>,
    starts: &'a [usize],
    start: usize,
    end: usize,
}

impl Builder<'_> {
    fn insn(&self, at: usize) -> Option<&Insn> {
        self.program.insns().get(at).and_then(Option::as_ref).filter(|_| at < self.end)
    }

    fn is_dead(&self, at: usize) -> bool {
        self.index.dead.binary_search(&at).is_ok()
    }

    fn function(&self) -> Result<Func, Refusal> {
        let name = self.program.function(self.start).to_owned();
        // Blocks begin at the entry, at targets of jumps, and behind them.
        let mut leaders = BTreeSet::from([self.start]);
        for at in self.start..self.end {
            let Some(insn) = self.insn(at) else { continue };
            let next = at + insn.slots();
            match *insn {
                Insn::Jump { off, .. } => {
                    leaders.extend([target(at, off), next]);
                }
                Insn::Branch { off, .. } | Insn::MayGoto { off } => {
                    leaders.extend([target(at, off.into()), next]);
                }
                Insn::Exit => {
                    leaders.insert(next);
                }
                _ => {}
            }
        }
        leaders.retain(|l| self.insn(*l).is_some());
        let leaders: Vec<usize> = leaders.into_iter().collect();
        let block_at = |slot: usize| leaders.binary_search(&slot).ok();
        let mut func = Func {
            name,
            start: self.start,
            insns: 0,
            blocks: Vec::with_capacity(leaders.len()),
            stack: 0,
            zeroed: 0,
            slots: Default::default(),
            callback: false,
            may_goto: false,
        };
        for (n, leader) in leaders.iter().enumerate() {
            let stop = leaders.get(n + 1).copied().unwrap_or(self.end);
            let mut block = Block { ops: Vec::new(), end: End::Unreachable, end_at: *leader };
            let mut at = *leader;
            let mut open = true;
            while open && at < stop {
                let Some(insn) = self.insn(at) else { break };
                if self.is_dead(at) {
                    open = false;
                    break;
                }
                block.end_at = at;
                func.insns += 1;
                let to = |off: i32| block_at(target(at, off));
                let fall = block_at(at + insn.slots());
                let end = match *insn {
                    Insn::Jump { off, .. } => to(off).map(End::Jump),
                    Insn::Branch { width, cond, dst, src, off } => (to(off.into()).zip(fall))
                        .map(|(taken, fall)| End::Branch { width, cond, dst, src, taken, fall }),
                    Insn::MayGoto { off } => {
                        func.may_goto = true;
                        to(off.into()).zip(fall).map(|(out, fall)| End::MayGoto { out, fall })
                    }
                    Insn::Exit => Some(End::Exit),
                    _ => {
                        if let Some(kind) = self.op(insn, at)? {
                            block.ops.push(Op { at, kind });
                        }
                        at += insn.slots();
                        continue;
                    }
                };
                block.end = end.ok_or(Refusal::OtherProgram)?;
                open = false;
            }
            if open {
                block.end = block_at(at).map_or(End::Unreachable, End::Jump);
            }
            func.blocks.push(block);
        }
        if func.insns > FUNCTION_MAX {
            return Err(Refusal::TooLong { name: func.name, insns: func.insns, max: FUNCTION_MAX });
        }
        Ok(func)
    }

    /// Helpers that look behind numbers: in compiled code nobody can tell whether a program may read there.
    fn check_pointers(&self, at: usize, proto: &xway_abi::HelperProto) -> Result<(), Refusal> {
        let refuse = |what: &str| Err(Refusal::NotYet { insn: at, what: format!("{} {what}", proto.name) });
        let format = match proto.id {
            113 | 115 => return refuse("(reading through any number)"),
            6 | 177 => 0,
            165 => 2,
            _ => return Ok(()),
        };
        let text = match self.args(at)[format] {
            Some(Place { region: Region::MapValue(map), off: Some(off) }) => self.constant(map, off),
            _ => None,
        };
        match text {
            Some(text) if !reads_memory(text) => Ok(()),
            Some(_) => refuse("with a conversion that reads memory (%s, %pI4, ...)"),
            None => refuse("with a format that is not a constant in a read-only map"),
        }
    }

    /// The bytes from here on of a map that nobody can change.
    fn constant(&self, map: u32, off: i32) -> Option<&[u8]> {
        self.index.maps.get(map as usize)?.constant()?.get(usize::try_from(off).ok()?..)
    }

    fn place(&self, at: usize) -> Result<Place, Refusal> {
        // An instruction that some run reaches has its fact; one without a fact must not be translated.
        self.index.accesses.get(&at).map(|f| f.place).ok_or(Refusal::OtherProgram)
    }

    fn args(&self, at: usize) -> [Option<Place>; 5] {
        self.index.args.get(&at).map_or([None; 5], |f| f.args)
    }

    fn op(&self, insn: &Insn, at: usize) -> Result<Option<Kind>, Refusal> {
        Ok(Some(match *insn {
            Insn::Alu { width, op, dst, src } => Kind::Alu { width, op, dst, src },
            Insn::Mov { width, dst, src, ext } => Kind::Mov { width, dst, src, ext },
            Insn::Neg { width, dst } => Kind::Neg { width, dst },
            Insn::Endian { order, bits, dst } => {
                // Generated code is for little-endian machines.
                match order {
                    ByteOrder::ToLe if bits == 64 => return Ok(None),
                    ByteOrder::ToLe => Kind::Truncate { dst, bits },
                    ByteOrder::ToBe | ByteOrder::Swap => Kind::Swap { dst, bits },
                }
            }
            Insn::LoadImm64 { dst, imm } => match imm {
                Imm64::Value(value) => Kind::Const { dst, value },
                Imm64::MapIdx(i) => Kind::Map { dst, map: i as u32 },
                Imm64::MapIdxValue { idx, off } => Kind::Value { dst, map: idx as u32, off },
                Imm64::Func(off) => {
                    let func = self.starts.binary_search(&target(at, off)).map_err(|_| Refusal::OtherProgram)?;
                    Kind::Func { dst, func }
                }
                _ => return Err(Refusal::NotYet { insn: at, what: "a reference of this kind".into() }),
            },
            Insn::Load { size, signed, dst, base, off } => {
                let place = self.place(at)?;
                match place {
                    Place { region: Region::Context, off: Some(field) } => {
                        let field = match field {
                            0 => CtxField::Data,
                            4 => CtxField::DataEnd,
                            8 => CtxField::DataMeta,
                            12 => CtxField::IngressIfindex,
                            16 => CtxField::RxQueue,
                            20 => CtxField::EgressIfindex,
                            _ => return Err(Refusal::MixedContext { insn: at }),
                        };
                        Kind::Ctx { dst, base, field, signed }
                    }
                    // The verifier lets no instruction reach the context here and other memory there, so what is mixed is
                    // memory on every path.
                    Place { region: Region::Context, .. } => return Err(Refusal::MixedContext { insn: at }),
                    place => Kind::Load { size, signed, dst, base, off, place, part: None },
                }
            }
            Insn::Store { size, base, off, src } => Kind::Store { size, base, off, src, place: self.place(at)? },
            Insn::Atomic { size, op, base, off, src } => {
                Kind::Atomic { size, op, base, off, src, place: self.place(at)? }
            }
            Insn::LoadAcquire { size, dst, base, off } => {
                Kind::LoadAcquire { size, dst, base, off, place: self.place(at)? }
            }
            Insn::StoreRelease { size, base, off, src } => {
                Kind::StoreRelease { size, base, off, src, place: self.place(at)? }
            }
            Insn::Call(CallTarget::Local(off)) => {
                let func = self.starts.binary_search(&target(at, off)).map_err(|_| Refusal::OtherProgram)?;
                Kind::Local { func, args: self.args(at), inline: false }
            }
            Insn::Call(_) => match self.program.callee(at) {
                Some(Callee::Helper(proto)) => {
                    let fact = self.index.calls.get(&at).ok_or(Refusal::OtherProgram)?;
                    self.check_pointers(at, proto)?;
                    Kind::Helper(Call {
                        proto,
                        map: fact.map,
                        key_const: fact.key_const,
                        sizes: fact.sizes,
                        args: self.args(at),
                        turns: None,
                    })
                }
                Some(Callee::Kfunc(which)) => Kind::Kfunc { which, args: self.args(at) },
                Some(Callee::Nothing(why)) => return Err(Refusal::NotYet { insn: at, what: why.to_owned() }),
                None => return Err(Refusal::OtherProgram),
            },
            Insn::AddrSpaceCast { .. } | Insn::LegacyLoad { .. } => {
                return Err(Refusal::NotYet { insn: at, what: insn.to_string() });
            }
            Insn::Jump { .. } | Insn::Branch { .. } | Insn::MayGoto { .. } | Insn::Exit => return Ok(None),
        }))
    }
}

/// The slot that a jump goes to; what is outside finds no block.
fn target(at: usize, off: i32) -> usize {
    usize::try_from(at as i64 + 1 + i64::from(off)).unwrap_or(usize::MAX)
}

/// Whether a format has a conversion whose value is an address to be looked behind.
fn reads_memory(format: &[u8]) -> bool {
    let text = format.split(|b| *b == 0).next().unwrap_or_default();
    let mut rest = text.iter().copied();
    while rest.any(|b| b == b'%') {
        let mut c = rest.next();
        while matches!(c, Some(b'0'..=b'9' | b'+' | b'-' | b' ')) {
            c = rest.next();
        }
        match c {
            Some(b's') => return true,
            Some(b'p') if matches!(rest.clone().next(), Some(b'i' | b'I' | b'k' | b'u')) => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::reads_memory;

    #[test]
    fn conversions_that_look_behind_addresses_are_found() {
        for text in ["%s", "a %5s", "%d %pI4", "%pks", "100%% %-8s"] {
            assert!(reads_memory(text.as_bytes()), "{text}");
        }
        for text in ["", "%d", "%llx %p", "100%%s", "%d\0%s", "%"] {
            assert!(!reads_memory(text.as_bytes()), "{text}");
        }
    }
}
