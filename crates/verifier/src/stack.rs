//! The stack, slot by slot and byte by byte.

use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::Verifier;
use crate::graph::NONE;
use crate::state::{Byte, STACK_MAX, Slot, State};
use crate::value::{Base, Ptr, Value};

/// The slot that holds the byte at `off` (negative), and the byte's place in it.
pub(crate) const fn slot_of(off: i64) -> (usize, usize) {
    (((-off - 1) / 8) as usize, (off & 7) as usize)
}

impl Verifier<'_> {
    /// First and last offset that an access may start at; fails unless all of it lies on the stack.
    pub fn stack_extent(&mut self, st: &State, frame: usize, p: &Ptr, off: i64, size: u32) -> Result<(i64, i64), Fail> {
        let at = i64::from(p.off) + off;
        let (lo, hi) = (at.saturating_add(p.var.smin()), at.saturating_add(p.var.smax()));
        if lo < -STACK_MAX || hi.saturating_add(size.into()) > 0 {
            let place = if p.is_fixed() { format!("{lo}") } else { format!("{lo} to {hi}") };
            return fail!(
                StackBounds,
                "access of {} at offset {place} from the frame pointer: the stack is 512 bytes below it",
                crate::memory::bytes(size)
            )
            .map_err(|e| e.hint("a stack array is too large or its index is not bounded"));
        }
        self.facts.stack_use(st.frames[frame].func, -lo);
        Ok((lo, hi))
    }

    /// Reads from a frame's stack.
    pub fn stack_read(&mut self, st: &mut State, frame: usize, p: &Ptr, off: i64, size: u32) -> Result<Value, Fail> {
        self.check_aligned(p, off, size, true)?;
        let (lo, hi) = self.stack_extent(st, frame, p, off, size)?;
        if lo != hi {
            self.stack_use_range(st, frame, lo, hi + i64::from(size))?;
            return Ok(Value::num(Scalar::of_bits(size * 8), NONE));
        }
        let (i, first) = slot_of(lo);
        let Some(slot) = st.frames[frame].stack.get(i).copied() else {
            self.facts.unwritten_read();
            return Ok(Value::num(Scalar::of_bits(size * 8), NONE));
        };
        self.graph.mark(slot.live);
        let len = size as usize;
        let bytes = &slot.bytes[first..first + len];
        if bytes.contains(&Byte::Uninit) {
            self.facts.unwritten_read();
        }
        if bytes.contains(&Byte::Special) {
            return fail!(Argument, "an iterator or dynptr on the stack cannot be read");
        }
        match slot.spill {
            Value::Ptr(_) if bytes.contains(&Byte::Spill) => {
                if len == 8 {
                    Ok(slot.spill)
                } else {
                    fail!(StackBounds, "{len} bytes of a pointer are read; a pointer is read back as a whole (8 bytes)")
                }
            }
            Value::Lost if bytes.contains(&Byte::Spill) => Ok(Value::Lost),
            // All that the number has lies in the bytes that are read: it is the same number, and what is learnt of the one holds
            // for the other.
            Value::Num(mut n)
                if first == 0
                    && (slot.spill_len() == len || slot.spill_len() > len && n.s.truncate(size * 8) == n.s) =>
            {
                if n.link == 0 && n.s.as_const().is_none() {
                    (n.link, n.delta) = (self.id(), 0);
                    st.frame_at(frame).slot_mut(i).spill = Value::Num(n);
                }
                Ok(Value::Num(n))
            }
            Value::Num(n) if bytes.contains(&Byte::Spill) => {
                // Part of a number: the bytes are those of the number shifted down.
                let whole = first + len <= slot.spill_len();
                let shift = Scalar::constant(8 * first as u64);
                let s = if whole {
                    n.s.alu(xway_isa::AluOp::Rsh, &shift, xway_isa::Width::W64).truncate(size * 8)
                } else {
                    Scalar::of_bits(size * 8)
                };
                let def = if whole { self.graph.op(n.def, NONE) } else { NONE };
                Ok(Value::num(s, def))
            }
            _ if bytes.iter().all(|b| *b == Byte::Zero) => {
                let def = if slot.zeros == NONE { self.graph.constant(0) } else { self.graph.copy(slot.zeros) };
                Ok(Value::num(Scalar::constant(0), def))
            }
            _ => Ok(Value::num(Scalar::of_bits(size * 8), NONE)),
        }
    }

    /// Writes to a frame's stack; `None` is unknown data.
    pub fn stack_write(
        &mut self,
        st: &mut State,
        frame: usize,
        p: &Ptr,
        off: i64,
        size: u32,
        v: Option<Value>,
    ) -> Result<(), Fail> {
        self.check_aligned(p, off, size, true)?;
        let (lo, hi) = self.stack_extent(st, frame, p, off, size)?;
        for i in slot_of(hi + i64::from(size) - 1).0..=slot_of(lo).0 {
            self.end_dynptr(st, frame, i);
        }
        if lo != hi {
            // Whatever is written, a pointer or a part of one included, is data from now on.
            self.written_in_part(st, frame, lo, hi + i64::from(size));
            return self.stack_clobber(st, frame, lo, hi + i64::from(size));
        }
        let running = st.depth();
        let (i, first) = slot_of(lo);
        let slot = st.frame_at(frame).slot_mut(i);
        if slot.bytes.contains(&Byte::Special) {
            return fail!(
                Argument,
                "the slot at offset {lo} holds an iterator or dynptr, which only its functions may change"
            );
        }
        if slot.shared {
            // Others may write here, too: what is kept is some data, and a pointer cannot be.
            if matches!(v, Some(Value::Ptr(_))) {
                return fail!(Argument, "the buffer of a dynptr's slice cannot keep a pointer");
            }
            return self.stack_clobber(st, frame, lo, lo + i64::from(size));
        }
        let len = size as usize;
        if slot.spilled_ptr().is_some() && len < 8 {
            self.facts.address_seen();
        }
        match v {
            Some(Value::Ptr(q)) => {
                if len != 8 {
                    return fail!(StackBounds, "a pointer can only be kept on the stack as a whole (8 bytes)");
                }
                if frame != running && matches!(q.base, Base::Stack(_)) {
                    return fail!(Argument, "a pointer to a stack cannot be kept in a caller's stack");
                }
                *slot = Slot { bytes: [Byte::Spill; 8], spill: Value::Ptr(q), ..Slot::default() };
            }
            Some(Value::Num(n)) if first == 0 => {
                demote(slot, first, len);
                slot.bytes[..len].fill(Byte::Spill);
                slot.spill = Value::Num(n);
                if len == 8 {
                    slot.live = NONE;
                }
            }
            other => {
                let zero = other.and_then(|v| v.as_const()) == Some(0);
                let slot = st.frame_at(frame).slot_mut(i);
                if let (true, Some(Value::Num(n))) = (zero, other) {
                    // The zero is kept as such, and its history with it.
                    slot.zeros = if slot.zeros == NONE { n.def } else { self.graph.op(slot.zeros, n.def) };
                }
                demote(slot, first, len);
                slot.bytes[first..first + len].fill(if zero { Byte::Zero } else { Byte::Misc });
                if len == 8 {
                    slot.live = NONE;
                }
            }
        }
        Ok(())
    }

    /// The bytes from `lo` up to `hi` are read by a call; fails on iterators and dynptrs.
    pub fn stack_use_range(&mut self, st: &mut State, frame: usize, lo: i64, hi: i64) -> Result<(), Fail> {
        for i in slot_of(hi - 1).0..=slot_of(lo).0 {
            let Some(slot) = st.frames[frame].stack.get(i).copied() else {
                self.facts.unwritten_read();
                continue;
            };
            if slot.bytes[part(i, lo, hi)].contains(&Byte::Uninit) {
                self.facts.unwritten_read();
            }
            if slot.spilled_ptr().is_some() {
                self.facts.address_seen();
            }
            self.graph.mark(slot.live);
            if slot.bytes.contains(&Byte::Special) {
                return fail!(Argument, "an iterator or dynptr on the stack cannot be read");
            }
        }
        Ok(())
    }

    /// Some of the bytes from `lo` up to `hi` are written, which ones is not known: they count as written, as in Linux, and yet those
    /// that were not before may be read as they were.
    pub fn written_in_part(&mut self, st: &State, frame: usize, lo: i64, hi: i64) {
        let unwritten = |i: usize| match st.frames[frame].stack.get(i) {
            Some(slot) => slot.bytes[part(i, lo, hi)].contains(&Byte::Uninit),
            None => true,
        };
        if (slot_of(hi - 1).0..=slot_of(lo).0).any(unwritten) {
            self.facts.unwritten_read();
        }
    }

    /// A slot is about to be overwritten: a dynptr in it that stands for no reference ends. Slices of local memory
    /// end with it; those that cannot be written, and those of the packet, do not (Linux draws this line; the memory is there).
    pub fn end_dynptr(&mut self, st: &mut State, frame: usize, i: usize) {
        let Some(Value::Dynptr(d)) = st.frames[frame].stack.get(i).map(|s| s.spill) else { return };
        if d.reference != 0 {
            return;
        }
        let other = if d.part == 0 { i.saturating_sub(1) } else { i + 1 };
        for half in [i, other] {
            *st.frame_at(frame).slot_mut(half) = Slot::default();
        }
        self.note_addresses(st, |p| p.is_writable_slice() && p.reference == d.id);
        st.replace(|v| match v {
            Value::Ptr(p) if p.is_writable_slice() && p.reference == d.id => Some(Value::num(Scalar::unknown(), NONE)),
            _ => None,
        });
    }

    /// These bytes of the stack have a second name from now on.
    pub fn share_stack(&mut self, st: &mut State, frame: usize, p: &Ptr, size: u32) -> Result<(), Fail> {
        if size == 0 {
            return Ok(());
        }
        let (lo, hi) = self.stack_extent(st, frame, p, 0, size)?;
        let end = hi + i64::from(size);
        self.stack_clobber(st, frame, lo, end)?;
        for i in slot_of(end - 1).0..=slot_of(lo).0 {
            st.frame_at(frame).slot_mut(i).shared = true;
        }
        Ok(())
    }

    /// The bytes from `lo` up to `hi` get unknown data.
    pub fn stack_clobber(&mut self, st: &mut State, frame: usize, lo: i64, hi: i64) -> Result<(), Fail> {
        for i in slot_of(hi - 1).0..=slot_of(lo).0 {
            let slot = st.frame_at(frame).slot_mut(i);
            if slot.bytes.contains(&Byte::Special) {
                return fail!(Argument, "an iterator or dynptr on the stack can only be changed by its own functions");
            }
            let bytes = part(i, lo, hi);
            let (first, end) = (bytes.start, bytes.end);
            if slot.spilled_ptr().is_some() && end - first < 8 {
                self.facts.address_seen();
            }
            demote(slot, first, end - first);
            slot.bytes[first..end].fill(Byte::Misc);
        }
        Ok(())
    }
}

/// The bytes of slot `i` that lie between the offsets `lo` and `hi`.
fn part(i: usize, lo: i64, hi: i64) -> std::ops::Range<usize> {
    let base = -8 * (i as i64 + 1);
    (lo - base).clamp(0, 8) as usize..(hi - base).clamp(0, 8) as usize
}

/// Bytes `first..first + len` are about to be overwritten: what is left of a spilled value is plain data.
fn demote(slot: &mut Slot, first: usize, len: usize) {
    let spill = slot.spill_len();
    if spill > 0 && len > 0 && first < spill {
        slot.bytes[..spill].fill(Byte::Misc);
        slot.spill = Value::Uninit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_name_slots_and_bytes() {
        assert_eq!(slot_of(-8), (0, 0));
        assert_eq!(slot_of(-1), (0, 7));
        assert_eq!(slot_of(-9), (1, 7));
        assert_eq!(slot_of(-512), (63, 0));
    }

    #[test]
    fn what_is_written_in_part_may_be_read_unwritten() {
        let unwritten = |text: &str| crate::testing::check(text, &[]).expect(text).facts().unwritten_stack;
        let somewhere = "r2 = *(u32 *)(r1 +16)\nr2 &= 7\nr3 = r10\nr3 += -8\nr3 += r2\n*(u8 *)(r3 +0) = 1\nr0 = *(u8 *)(r10 -8)\nexit";
        assert!(unwritten(somewhere));
        assert!(!unwritten(&format!("*(u64 *)(r10 -8) = 0\n{somewhere}")));
        let filled = |length: &str| {
            format!(
                "r4 = *(u32 *)(r1 +16)\n{length}\nr2 = 0\nr3 = r10\nr3 += -8\ncall bpf_xdp_load_bytes\nr0 = *(u8 *)(r10 -1)\nexit"
            )
        };
        assert!(unwritten(&filled("r4 &= 7\nr4 += 1")));
        assert!(!unwritten(&filled("r4 = 8")));
    }

    #[test]
    fn overwriting_part_of_a_spill_leaves_data() {
        let spilled = Slot { bytes: [Byte::Spill; 8], spill: Value::num(Scalar::constant(7), NONE), ..Slot::default() };
        let mut s = spilled;
        demote(&mut s, 4, 4);
        assert_eq!((s.bytes, s.spill), ([Byte::Misc; 8], Value::Uninit));
        let mut s = spilled;
        s.bytes[4..].fill(Byte::Misc);
        demote(&mut s, 4, 4);
        assert_eq!(s.spill_len(), 4);
    }
}
