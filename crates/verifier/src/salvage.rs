//! After an error: going on along the same way, so that one run tells all independent errors of it.
//!
//! What the refused instruction would have left is *lost*: [`Value::Lost`], in registers and on the stack. So is what led
//! to the refusal, with all its copies: a pointer that was not checked is wrong wherever it is used. Whoever reads something lost is refused
//! silently, loses its own result, and the way goes on. So nothing is told that is only a consequence of what was told before.
//!
//! The program is refused already. What is walked here may only cost too much: it ends with [`VISITS_MAX`] instructions.

use xway_abi::{ArgKind, HelperProto};
use xway_isa::{CallTarget, Insn, Reg};

use crate::diag::{Fail, Kind};
use crate::explore::Verifier;
use crate::state::{Byte, Salvage, Slot, State};
use crate::value::{Base, Ptr, Value};

/// Instructions that are walked behind errors, on all ways together.
const VISITS_MAX: u64 = 20_000;

impl Verifier<'_> {
    /// True when the error is worth telling: no consequence of an earlier one on its way.
    pub fn is_news(&self, st: &State, fail: &Fail) -> bool {
        let loose = st.salvage == Salvage::Loose && matches!(fail.kind, Kind::Leak | Kind::Lock);
        let round = st.salvage != Salvage::None && matches!(fail.kind, Kind::InfiniteLoop | Kind::Budget);
        !fail.consequence && !loose && !round
    }

    /// Where the way goes on behind an instruction that was refused; `None` where it ends.
    pub fn salvage(&mut self, st: &mut State, insn: &Insn, fail: &Fail) -> Option<usize> {
        self.salvaged += 1;
        let ends = matches!(fail.kind, Kind::Budget | Kind::InfiniteLoop | Kind::BadInstruction | Kind::StackDepth);
        if ends || self.salvaged > VISITS_MAX {
            return None;
        }
        st.salvage = st.salvage.max(Salvage::Some);
        if matches!(fail.kind, Kind::Leak | Kind::Lock) {
            self.let_go(st);
        }
        let next = st.pc + insn.slots();
        for r in &fail.regs {
            lose(self, st, *r);
        }
        match *insn {
            Insn::Store { base, off, .. } | Insn::StoreRelease { base, off, .. } | Insn::Atomic { base, off, .. } => {
                lose_memory(st, base, off);
            }
            Insn::Branch { off, .. } => {
                let mut jump = st.clone();
                jump.pc = (st.pc as i64 + 1 + i64::from(off)) as usize;
                self.note_branch(&mut jump, st.pc, true);
                self.note_branch(st, st.pc, false);
                self.push(jump).ok()?;
            }
            Insn::Call(CallTarget::Helper(id)) => {
                let proto = xway_abi::helper(id)?;
                if leaves_more(proto) {
                    return None;
                }
                if holds(proto) {
                    self.let_go(st);
                }
                if proto.changes_packet {
                    self.packet_moves(st);
                }
                let regs = &mut st.frame_mut().regs;
                regs[0] = Value::Lost;
                regs[1..6].fill(Value::Uninit);
            }
            _ if insn.result().is_some() => {}
            _ => return None,
        }
        if let Some(r) = insn.result() {
            lost(st, r);
        }
        Some(next)
    }

    /// What is held is not known any more: nothing is said of locks and references on this way.
    fn let_go(&self, st: &mut State) {
        st.refs.clear();
        st.lock = None;
        st.salvage = Salvage::Loose;
    }
}

/// The call makes something on the stack, or calls a function: without it much that follows is no error of its own.
fn leaves_more(proto: &HelperProto) -> bool {
    proto.args.iter().any(|a| matches!(a.kind, ArgKind::Dynptr(..) | ArgKind::Iter(..) | ArgKind::Func(_)))
}

/// The call takes or gives back what must be given back.
fn holds(proto: &HelperProto) -> bool {
    let releases = |k| matches!(k, ArgKind::AllocMem { .. } | ArgKind::SpinLock | ArgKind::Sock { release: true, .. });
    proto.args.iter().any(|a| releases(a.kind))
}

fn lost(st: &mut State, r: Reg) {
    if r != Reg::FP {
        st.set(r, Value::Lost);
    }
}

/// The value that was refused, and all that is wrong with it.
fn lose(v: &Verifier<'_>, st: &mut State, r: usize) {
    let value = st.frame().regs[r];
    let stale = |d| v.graph.stale_since(d);
    let same = |o: &Value| match (&value, o) {
        (Value::Ptr(p), Value::Ptr(q)) if p.is_packet() || p.nullable => p.base == q.base && p.id == q.id,
        // A wrong constant offset into these says nothing about others.
        (Value::Ptr(p @ Ptr { base: Base::Stack(_) | Base::Ctx | Base::Map(_), .. }), _) if p.is_fixed() => false,
        (Value::Ptr(p), Value::Ptr(q)) => p == q,
        (Value::Num(n), Value::Num(m)) => {
            let copy = (n == m && n.s.as_const().is_none()) || (n.link != 0 && n.link == m.link);
            copy || (stale(n.def).is_some() && stale(n.def) == stale(m.def))
        }
        _ => false,
    };
    let mut ended = Vec::new();
    st.replace(|o| {
        same(o).then(|| {
            ended.extend(o.as_ptr().map(|p| p.reference));
            Value::Lost
        })
    });
    st.refs.retain(|r| !ended.contains(&r.id));
    if r < 10 && matches!(value, Value::Num(_) | Value::Uninit) {
        st.frame_mut().regs[r] = Value::Lost;
    }
}

/// A store did not happen: of the slot that it goes to nothing is known; of the whole stack when it may go anywhere.
fn lose_memory(st: &mut State, base: Reg, off: i16) {
    let gone = Slot { bytes: [Byte::Spill; 8], spill: Value::Lost, ..Slot::default() };
    let plain = |s: &Slot| !s.bytes.contains(&Byte::Special);
    match *st.reg(base) {
        Value::Ptr(p) if let Base::Stack(frame) = p.base => {
            let at = i64::from(p.off) + i64::from(off);
            if !p.is_fixed() {
                st.frame_at(frame.into()).stack.iter_mut().filter(|s| plain(s)).for_each(|s| *s = gone);
            } else if (-crate::state::STACK_MAX..0).contains(&at) {
                let slot = st.frame_at(frame.into()).slot_mut(crate::stack::slot_of(at).0);
                if plain(slot) {
                    *slot = gone;
                }
            }
        }
        Value::Lost => {
            for f in 0..st.frames.len() {
                st.frame_at(f).stack.iter_mut().filter(|s| plain(s)).for_each(|s| *s = gone);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use xway_abi::{MapSpec, MapType};
    use xway_object::MapDef;

    use crate::testing::check;

    /// The instructions of all errors, in the order in which they are found.
    fn errors(text: &str) -> Vec<usize> {
        let maps = [
            MapDef::new("array", MapSpec::new(MapType::Hash, 4, 16, 4)),
            MapDef::new("ring", MapSpec::new(MapType::Ringbuf, 0, 0, 4096)),
        ];
        check(text, &maps).expect_err(text).errors.iter().map(|e| e.insn).collect()
    }

    const LOOKUP: &str = "*(u32 *)(r10 -4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\n";

    #[test]
    fn a_straight_line_tells_all_its_errors() {
        // The packet, the stack, the context, a register that was never written, a wrong argument.
        let text = "r6 = r1\nr2 = *(u32 *)(r6 +0)\nr3 = *(u8 *)(r2 +0)\n*(u64 *)(r10 -520) = 1\nr4 = *(u32 *)(r6 +200)\n\
                    r5 = r9\nr1 = 7\ncall bpf_redirect_map\nr0 = 1\nexit";
        assert_eq!(errors(text), [2, 3, 4, 5, 7]);
    }

    #[test]
    fn consequences_are_not_told() {
        // What was read through the bad pointer, its copies, sums with it, what is kept of it, and calls with it.
        let text = "r6 = r1\nr2 = *(u32 *)(r6 +0)\nr7 = r2\nr3 = *(u8 *)(r2 +0)\nr4 = *(u8 *)(r7 +1)\nr3 += 1\n\
                    r5 = r10\nr5 += -8\nr5 += r3\n*(u64 *)(r10 -16) = r3\nr3 = *(u64 *)(r10 -16)\nr3 = *(u8 *)(r3 +0)\n\
                    if r3 > 4 goto +1\nr0 = *(u8 *)(r5 +0)\nr1 = r3\nr2 = 0\ncall bpf_redirect\nexit";
        assert_eq!(errors(text), [3]);
    }

    #[test]
    fn an_index_without_bounds_is_told_once_for_each_sum() {
        let sum = "r2 = r10\nr2 += -8\nr3 = *(u32 *)(r1 +16)\nr3 &= 63\nr2 += r3\n";
        assert_eq!(errors(&format!("{sum}r4 = *(u8 *)(r2 +0)\n*(u8 *)(r2 +1) = 1\nr0 = 0\nexit")), [5]);
        // The frame pointer itself stays what it is.
        assert_eq!(errors("r3 = *(u64 *)(r10 -600)\nr3 = *(u64 *)(r10 +8)\nr0 = 0\nexit"), [0, 1]);
    }

    #[test]
    fn of_a_pointer_that_may_be_null_the_first_use_is_told() {
        let text = format!("{LOOKUP}r7 = r0\n*(u64 *)(r0 +0) = 1\n*(u64 *)(r7 +8) = 1\nr0 = 0\nexit");
        assert_eq!(errors(&text), [7]);
        // What is wrong besides is told: an element that was checked and is too small.
        let other =
            format!("{LOOKUP}*(u64 *)(r0 +0) = 1\n{LOOKUP}if r0 == 0 goto +1\n*(u64 *)(r0 +16) = 1\nr0 = 0\nexit");
        assert_eq!(errors(&other), [6, 14]);
    }

    #[test]
    fn what_a_lost_pointer_holds_is_not_missed_at_the_end() {
        let reserve = "r1 = map[idx:1]\nr2 = 8\nr3 = 0\ncall bpf_ringbuf_reserve\n";
        let null =
            format!("{reserve}r6 = r0\n*(u64 *)(r0 +0) = 1\nr1 = r6\nr2 = 0\ncall bpf_ringbuf_submit\nr0 = 0\nexit");
        assert_eq!(errors(&null), [6]);
        // Another record that is not released is.
        let two = format!("r6 = r1\nr2 = *(u32 *)(r6 +0)\nr2 = *(u8 *)(r2 +0)\n{reserve}r0 = 0\nexit");
        assert_eq!(errors(&two).len(), 2);
    }

    #[test]
    fn loops_behind_an_error_end() {
        let text = "r2 = *(u32 *)(r1 +0)\nr3 = *(u8 *)(r2 +0)\nr4 = 0\nr4 += 1\nif r3 > r4 goto -2\nr0 = 0\nexit";
        assert_eq!(errors(text), [1]);
        let round = "r2 = *(u32 *)(r1 +0)\nr3 = *(u8 *)(r2 +0)\nr0 = 0\nif r3 > 4 goto -2\nexit";
        assert_eq!(errors(round), [1]);
    }
}
