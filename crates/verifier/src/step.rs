//! One instruction: which transfer function it belongs to.

use xway_abi::{MapType, XdpAttach};
use xway_isa::{CallTarget, Imm64, Insn, Reg};
use xway_object::ProgramKind;

use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::{Flow, Verifier};
use crate::graph::NONE;
use crate::state::State;
use crate::value::{Base, MapRef, Ptr, Value};

impl Verifier<'_> {
    /// Applies one instruction to the state.
    pub fn step(&mut self, st: &mut State, insn: &Insn) -> Result<Flow, Fail> {
        let pc = st.pc;
        if let Some(why) = self.cfg.wrong.get(&pc) {
            return fail!(BadInstruction, "{why}");
        }
        let next = pc + insn.slots();
        match *insn {
            Insn::Alu { width, op, dst, src } => self.alu(st, width, op, dst, src)?,
            Insn::Mov { width, dst, src, ext } => self.mov(st, width, dst, src, ext)?,
            Insn::Neg { width, dst } => self.neg(st, width, dst)?,
            Insn::Endian { order, bits, dst } => self.endian(st, order, bits, dst)?,
            Insn::LoadImm64 { dst, imm } => self.load_imm(st, pc, dst, imm)?,
            Insn::Load { size, signed, dst, base, off } => self.load(st, size, signed, dst, base, off)?,
            Insn::LoadAcquire { size, dst, base, off } => self.load_acquire(st, size, dst, base, off)?,
            Insn::Store { size, base, off, src } => self.store(st, size, base, off, src)?,
            Insn::StoreRelease { size, base, off, src } => self.store_release(st, size, base, off, src)?,
            Insn::Atomic { size, op, base, off, src } => self.atomic(st, size, op, base, off, src)?,
            Insn::Jump { off, .. } => {
                st.jumps_since += 1;
                return Ok(Flow::Next((pc as i64 + 1 + i64::from(off)) as usize));
            }
            Insn::Branch { width, cond, dst, src, off } => {
                st.jumps_since += 1;
                return self.branch(st, width, cond, dst, src, (pc as i64 + 1 + i64::from(off)) as usize);
            }
            Insn::MayGoto { off } => {
                st.jumps_since += 1;
                let mut exit = st.clone();
                exit.pc = (pc as i64 + 1 + i64::from(off)) as usize;
                self.note_branch(&mut exit, pc, true);
                // What follows the loop is walked first: it shows which numbers the loop must keep apart.
                let mut body = st.clone();
                body.pc = next;
                body.frame_mut().goto_turns += 1;
                self.note_branch(&mut body, pc, false);
                self.push(body)?;
                *st = exit;
                return Ok(Flow::Next(st.pc));
            }
            Insn::Call(target) => {
                st.jumps_since += 1;
                return match target {
                    CallTarget::Helper(id) => self.call_helper(st, id, next),
                    CallTarget::Local(rel) => self.call_local(st, (pc as i64 + 1 + i64::from(rel)) as usize, next),
                    CallTarget::Kfunc { id, .. } => self.call_kfunc(st, id, next),
                };
            }
            Insn::Exit => return self.exit(st),
            Insn::AddrSpaceCast { dst, src, spaces } => {
                if let Some(why) = self.casts.get(&pc) {
                    return fail!(BadInstruction, "{why}");
                }
                self.writable(dst)?;
                self.read(st, src)?;
                self.facts.kernel_object(ARENA);
                // To the program's own addresses; the other way it is a number.
                let v =
                    if spaces == 1 { Value::Ptr(Ptr::to(Base::Arena)) } else { Value::num(Scalar::unknown(), NONE) };
                st.set(dst, v);
            }
            Insn::LegacyLoad { .. } => legacy_load()?,
        }
        Ok(Flow::Next(next))
    }

    /// Fails unless the register was written.
    pub fn read<'s>(&self, st: &'s State, r: Reg) -> Result<&'s Value, Fail> {
        match st.reg(r) {
            Value::Uninit => fail!(Uninitialised, "{r} is read but was never written on this path").map_err(|e| {
                let hint = if (1..=5).contains(&r.index()) {
                    "calls destroy r1 to r5: keep what is needed later in r6 to r9 or on the stack"
                } else {
                    "set it on every path that leads here"
                };
                e.reg(r.index()).hint(hint)
            }),
            Value::Lost => Err(Fail::consequence()),
            v => Ok(v),
        }
    }

    /// Fails for the frame pointer.
    pub fn writable(&self, r: Reg) -> Result<(), Fail> {
        if r == Reg::FP { fail!(FramePointer, "r10 is the frame pointer and cannot be written") } else { Ok(()) }
    }

    fn load_imm(&mut self, st: &mut State, pc: usize, dst: Reg, imm: Imm64) -> Result<(), Fail> {
        self.writable(dst)?;
        let value = match imm {
            Imm64::Value(x) => Value::num(Scalar::constant(x), self.graph.constant(x)),
            Imm64::MapIdxValue { idx: i, .. } if self.is_arena(i) => {
                self.map_ref(i)?;
                self.facts.kernel_object(ARENA);
                Value::num(Scalar::unknown(), NONE)
            }
            Imm64::MapIdx(i) => Value::Ptr(Ptr::to(Base::Map(self.map_ref(i)?))),
            Imm64::MapIdxValue { idx, off } => {
                let map = self.map_ref(idx)?;
                Value::Ptr(Ptr { off: off as i32, ..Ptr::to(Base::MapValue(map)) })
            }
            Imm64::Func(rel) => Value::Ptr(Ptr::to(Base::Func((pc as i64 + 1 + i64::from(rel)) as u32))),
            // Refused before anything was walked.
            Imm64::MapFd(_) | Imm64::MapFdValue { .. } | Imm64::BtfId { .. } => {
                return fail!(BadReference, "the reference cannot be resolved");
            }
        };
        st.set(dst, value);
        Ok(())
    }

    /// Every reference must resolve, those in code that no path reaches included: a linker would stop at them.
    ///
    /// Casts of addresses that mean nothing here are noted: Linux minds them where execution comes.
    pub fn check_references(&mut self) -> Result<(), Fail> {
        let arena = self.uses_arena();
        for (pc, insn) in self.cfg.insns.iter().enumerate() {
            let checked = match insn {
                Some(Insn::LoadImm64 { imm, .. }) => self.check_reference(*imm),
                Some(Insn::LegacyLoad { .. }) => legacy_load(),
                Some(Insn::AddrSpaceCast { spaces, .. }) => {
                    if !matches!(*spaces, 1 | 0x1_0000) {
                        self.casts.insert(pc, "addresses can be cast between address spaces 0 and 1 only");
                    } else if !arena {
                        self.casts.insert(pc, "addr_space_cast needs an arena, and the program refers to none");
                    }
                    Ok(())
                }
                Some(Insn::Call(CallTarget::Kfunc { off, .. })) if *off != 0 => {
                    fail!(Unsupported, "functions of kernel modules cannot be called")
                }
                Some(Insn::Call(CallTarget::Kfunc { id, .. })) => match usize::try_from(*id) {
                    Ok(i) if i < self.program.kfuncs.len() => Ok(()),
                    _ => fail!(BadReference, "kernel function {id} of the program's list does not exist"),
                },
                _ => Ok(()),
            };
            checked.map_err(|e| e.at(pc))?;
        }
        Ok(())
    }

    fn check_reference(&self, imm: Imm64) -> Result<(), Fail> {
        let map = |index: i32| match usize::try_from(index).ok().and_then(|i| self.view.maps.get(i)) {
            Some(def) => Ok(&def.spec),
            None => fail!(BadReference, "the program refers to map {index}, which does not exist"),
        };
        match imm {
            Imm64::Value(_) | Imm64::Func(_) => Ok(()),
            Imm64::MapIdx(i) => map(i).map(|_| ()),
            Imm64::MapIdxValue { idx, off } => {
                let spec = map(idx)?;
                let array = spec.map_type == MapType::Array && spec.max_entries == 1 && off < spec.value_size;
                if array || spec.map_type == MapType::Arena {
                    return Ok(());
                }
                fail!(BadReference, "the address of a value needs an array map of one entry and an offset inside it")
            }
            Imm64::MapFd(_) | Imm64::MapFdValue { .. } => {
                fail!(BadReference, "the program refers to a map by file descriptor; maps are given by index")
            }
            Imm64::BtfId { .. } => fail!(Unsupported, "kernel variables cannot be read in user space"),
        }
    }

    fn map_ref(&mut self, index: i32) -> Result<MapRef, Fail> {
        let i = u32::try_from(index).unwrap_or(u32::MAX);
        self.facts.map_used(i);
        Ok(MapRef { index: i, inner: false, uid: 0 })
    }

    /// The description of a map.
    pub fn map_spec(&self, m: &MapRef) -> Option<&xway_abi::MapSpec> {
        let spec = &self.view.maps.get(m.index as usize)?.spec;
        if m.inner { spec.inner.as_deref() } else { Some(spec) }
    }

    /// True when the map with this index is an arena.
    fn is_arena(&self, index: i32) -> bool {
        let def = usize::try_from(index).ok().and_then(|i| self.view.maps.get(i));
        def.is_some_and(|d| d.spec.map_type == MapType::Arena)
    }

    /// True when some instruction refers to an arena.
    fn uses_arena(&self) -> bool {
        self.cfg.insns.iter().flatten().any(|insn| match insn {
            Insn::LoadImm64 { imm: Imm64::MapIdx(i) | Imm64::MapIdxValue { idx: i, .. }, .. } => self.is_arena(*i),
            _ => false,
        })
    }

    /// The bytes of a map that nobody can change any more.
    pub fn map_constant(&self, m: &MapRef) -> Option<&[u8]> {
        self.view.maps.get(m.index as usize).filter(|_| !m.inner)?.constant()
    }

    /// Where the program is to be attached.
    pub fn place(&self) -> XdpAttach {
        match self.program.kind {
            ProgramKind::XdpDevmap { .. } => XdpAttach::Devmap,
            ProgramKind::XdpCpumap { .. } => XdpAttach::Cpumap,
            _ => XdpAttach::Device,
        }
    }
}

/// What a program that uses an arena needs.
const ARENA: &str = "arena";

/// Instructions that decode and that no XDP program may have, in dead code neither.
fn legacy_load() -> Result<(), Fail> {
    fail!(BadInstruction, "legacy packet loads (BPF_LD_ABS, BPF_LD_IND) cannot be used by XDP programs")
        .map_err(|e| e.hint("read through data and data_end of the context instead"))
}

#[cfg(test)]
mod tests {
    use crate::Kind;
    use crate::testing::check;

    #[test]
    fn legacy_loads_are_refused_in_dead_code_too() {
        let text = "r6 = r1\nr0 = 2\nif r0 == 2 goto +1\nr0 = *(u8 *)skb[r6 + 2]\nexit";
        assert_eq!(check(text, &[]).unwrap_err().errors[0].kind, Kind::BadInstruction);
    }
}
