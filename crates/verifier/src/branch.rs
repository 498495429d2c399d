//! Conditional jumps: what each outcome says about numbers and pointers.

use xway_isa::{Cond, Operand, Reg, Width};

use crate::diag::Fail;
use crate::domain::{Scalar, refine};
use crate::explore::{Flow, Verifier};
use crate::graph::{Def, NONE};
use crate::guess::Decided;
use crate::state::State;
use crate::value::{Base, Num, Ptr, Trust, Value};

/// Variable offsets beyond this prove nothing. Linux draws the line at 65,535 (`MAX_PACKET_OFF`), because its packet pointers
/// may be narrow; here addresses have 64 bits, and one of them plus 32 bits never wraps.
pub const PACKET_OFFSET_MAX: u64 = u32::MAX as u64;

impl Verifier<'_> {
    /// `if dst COND src goto target`
    pub fn branch(
        &mut self,
        st: &mut State,
        width: Width,
        cond: Cond,
        dst: Reg,
        src: Operand,
        target: usize,
    ) -> Result<Flow, Fail> {
        let pc = st.pc;
        let left = *self.read(st, dst)?;
        let right = self.operand(st, src)?;
        let src_reg = if let Operand::Reg(r) = src { Some(r) } else { None };
        let mut jump = st.clone();
        let outcome =
            |v: &mut Self, s: &mut State, holds| v.outcome(s, width, cond, (dst, &left), (src_reg, &right), holds);
        let can_jump = outcome(self, &mut jump, true);
        let can_fall = outcome(self, st, false);
        match (can_jump, can_fall) {
            (true, true) => {
                self.facts.branch(pc, true);
                self.facts.branch(pc, false);
                jump.pc = target;
                self.note_branch(&mut jump, pc, true);
                self.note_branch(st, pc, false);
                self.push(jump)?;
                Ok(Flow::Next(pc + 1))
            }
            (jumps, falls) => {
                let decided = Decided { pc, taken: jumps, defs: [history(&left), history(&right)] };
                if jumps != falls && self.may_guess(&decided) {
                    let (mut real, mut other) = if jumps { (jump, st.clone()) } else { (st.clone(), jump) };
                    (real.pc, other.pc) = if jumps { (target, pc + 1) } else { (pc + 1, target) };
                    self.facts.branch(pc, jumps);
                    self.push(real)?;
                    self.guess(decided, &other);
                    let next = other.pc;
                    *st = other;
                    return Ok(Flow::Next(next));
                }
                // The bounds decided: they were relied on.
                self.relied_on(&decided);
                if jumps {
                    self.facts.branch(pc, true);
                    *st = jump;
                    return Ok(Flow::Next(target));
                }
                if falls {
                    self.facts.branch(pc, false);
                    return Ok(Flow::Next(pc + 1));
                }
                // Neither outcome is possible: no run comes here at all.
                Ok(Flow::End)
            }
        }
    }

    /// Applies one outcome to a state. False when it is impossible.
    fn outcome(
        &mut self,
        st: &mut State,
        width: Width,
        cond: Cond,
        (dst, left): (Reg, &Value),
        (src, right): (Option<Reg>, &Value),
        holds: bool,
    ) -> bool {
        match (left, right) {
            (Value::Num(a), Value::Num(b)) => self.compare_numbers(st, width, cond, (dst, a), (src, b), holds),
            (Value::Ptr(p), Value::Num(n)) if n.s.as_const() == Some(0) && width == Width::W64 => {
                let equal = match cond {
                    Cond::Eq => holds,
                    Cond::Ne => !holds,
                    // Unsigned: above zero is not null.
                    Cond::Gt => !holds,
                    Cond::Le => holds,
                    _ => {
                        self.facts.address_seen();
                        return true;
                    }
                };
                // That the number is zero is relied on, even where both outcomes stay open.
                self.graph.mark(n.def);
                self.null_outcome(st, p, equal)
            }
            (Value::Num(n), Value::Ptr(p)) if n.s.as_const() == Some(0) && width == Width::W64 => {
                let equal = match cond {
                    Cond::Eq => holds,
                    Cond::Ne => !holds,
                    _ => {
                        self.facts.address_seen();
                        return true;
                    }
                };
                self.graph.mark(n.def);
                self.null_outcome(st, p, equal)
            }
            (Value::Ptr(a), Value::Ptr(b)) if width == Width::W64 => self.compare_pointers(st, cond, a, b, holds),
            _ => {
                self.facts.address_seen();
                true
            }
        }
    }

    fn compare_numbers(
        &mut self,
        st: &mut State,
        width: Width,
        cond: Cond,
        (dst, a): (Reg, &Num),
        (src, b): (Option<Reg>, &Num),
        holds: bool,
    ) -> bool {
        if src == Some(dst) {
            // A register against itself.
            let always = matches!(cond, Cond::Eq | Cond::Ge | Cond::Le | Cond::SGe | Cond::SLe);
            let never = matches!(cond, Cond::Ne | Cond::Gt | Cond::Lt | Cond::SGt | Cond::SLt);
            if always || never {
                return always == holds;
            }
        }
        let Some((x, y)) = refine(&a.s, &b.s, cond, width, holds) else { return false };
        // Equal numbers get all that is known of both; the history of the second is part of it.
        for (reg, old, new, other) in [(Some(dst), a, x, b), (src, b, y, a)] {
            let Some(reg) = reg else { continue };
            if new == old.s {
                continue;
            }
            let n = Num { s: new, def: self.graph.refined(old.def, other.def), ..*old };
            st.set(reg, Value::Num(n));
            st.sync_links(&n, &mut self.graph);
            self.number_bounded(st, &n);
        }
        true
    }

    /// Two pointers: packet bounds, and a nullable pointer that equals one that is not null.
    fn compare_pointers(&mut self, st: &mut State, cond: Cond, a: &Ptr, b: &Ptr, holds: bool) -> bool {
        let equal = matches!((cond, holds), (Cond::Eq, true) | (Cond::Ne, false));
        if equal && a.nullable && !b.nullable && never_null(b) {
            return self.null_outcome(st, a, false);
        }
        if equal && b.nullable && !a.nullable && never_null(a) {
            return self.null_outcome(st, b, false);
        }
        // Bring it into the form: packet pointer REL end.
        let (packet, end, cond) = if a.is_bounded_by(b) {
            (a, b, cond)
        } else if b.is_bounded_by(a) {
            (b, a, mirror(cond))
        } else {
            if !crate::alu::same_object(a, b) {
                self.facts.address_seen();
            }
            return true;
        };
        let cond = if holds {
            cond
        } else {
            match crate::domain::compare::negate(cond) {
                Some(c) => c,
                None => return true,
            }
        };
        // p REL end + e is p - e REL end: addresses are far from both ends of 64 bits.
        let shifted = Ptr { off: packet.off.saturating_sub(end.off), ..*packet };
        let packet = &shifted;
        if end.base == Base::End && !self.compare_with_end(st, packet, cond) {
            return false;
        }
        let reach = packet.off + proven_extra(cond);
        if end.base == Base::End && matches!(cond, Cond::Le | Cond::Lt | Cond::Eq) {
            // No packet is that long.
            let lowest = i64::from(reach).saturating_add(packet.var.smin());
            if packet.var.smin() >= 0 && lowest > crate::extent::PACKET_LEN_MAX {
                return false;
            }
        }
        match cond {
            // packet <= end, packet < end: everything below lies inside.
            Cond::Le | Cond::Lt | Cond::Eq => {
                prove(st, packet, reach);
                true
            }
            // packet > end although the place was proved to lie inside: impossible.
            Cond::Gt => !(known_inside(packet) && packet.off >= 0 && packet.off as u32 <= packet.range),
            Cond::Ge => !(known_inside(packet) && packet.off >= 0 && (packet.off as u32) < packet.range),
            _ => true,
        }
    }

    /// What earlier comparisons with the end have disproved, and what this one does. False when the outcome is impossible.
    fn compare_with_end(&mut self, st: &mut State, packet: &Ptr, cond: Cond) -> bool {
        match cond {
            Cond::Le | Cond::Eq => !self.is_beyond(st, packet, 0),
            Cond::Lt => !self.is_beyond(st, packet, 1),
            Cond::Gt => {
                self.found_beyond(st, packet, 0);
                true
            }
            Cond::Ge => {
                self.found_beyond(st, packet, 1);
                true
            }
            _ => true,
        }
    }

    /// The pointer turned out to be null, or not. False when that cannot be.
    fn null_outcome(&mut self, st: &mut State, p: &Ptr, null: bool) -> bool {
        if !p.nullable {
            return !null || !never_null_at_all(p);
        }
        let zero = self.graph.constant(0);
        let (id, reference) = (p.id, p.reference);
        let keep_id = keeps_identity(p);
        st.replace(|v| match v {
            Value::Ptr(q) if q.nullable && q.id == id => Some(match null {
                true => Value::num(Scalar::constant(0), zero),
                false => Value::Ptr(Ptr { nullable: false, id: if keep_id { q.id } else { 0 }, ..*q }),
            }),
            _ => None,
        });
        // Memory that belongs to a reference is not the reference: a null slice leaves its dynptr as it is.
        if null && reference != 0 && reference == id {
            st.refs.retain(|r| r.id != reference);
        }
        true
    }
}

/// Where a number comes from.
fn history(v: &Value) -> Def {
    v.as_num().map_or(NONE, |n| n.def)
}

/// `p < end` means that even the byte at `p` lies inside.
fn proven_extra(cond: Cond) -> i32 {
    i32::from(cond == Cond::Lt)
}

/// The range of a place counts: it is a fixed place, or something was proved about it.
fn known_inside(p: &Ptr) -> bool {
    p.range > 0
}

fn never_null(p: &Ptr) -> bool {
    matches!(p.base, Base::MapValue(_) | Base::Mem { .. } | Base::Stack(_) | Base::Sock(_) | Base::Ctx)
}

/// The same comparison with its operands exchanged.
fn mirror(cond: Cond) -> Cond {
    match cond {
        Cond::Gt => Cond::Lt,
        Cond::Ge => Cond::Le,
        Cond::Lt => Cond::Gt,
        Cond::Le => Cond::Ge,
        Cond::SGt => Cond::SLt,
        Cond::SGe => Cond::SLe,
        Cond::SLt => Cond::SGt,
        Cond::SLe => Cond::SGe,
        c => c,
    }
}

/// `reach` bytes from the place that `p` counts from lie inside the packet: every pointer that counts from it knows.
fn prove(st: &mut State, p: &Ptr, reach: i32) {
    // A place before the start may be "below the end" without anything being inside. A variable part without a
    // bound could wrap.
    if p.off < 0 || reach <= 0 || p.var.umax() > PACKET_OFFSET_MAX || p.var.smin() < 0 {
        return;
    }
    // No metadata is that long: the comparison says nothing that could be relied on.
    if p.base == Base::Meta && p.off as u64 + p.var.umax() > u16::MAX.into() {
        return;
    }
    let (id, base, reach) = (p.id, p.base, reach as u32);
    if base == Base::Packet {
        return crate::extent::prove(st, id, reach, true);
    }
    st.replace(|v| match v {
        Value::Ptr(q) if q.id == id && q.base == base && q.range < reach && !q.nullable => {
            Some(Value::Ptr(Ptr { range: reach, ..*q }))
        }
        _ => None,
    });
}

/// Map values with a lock keep their identity: lock and unlock must name the same element.
fn keeps_identity(p: &Ptr) -> bool {
    matches!(p.base, Base::MapValue(_))
}

/// Pointers that a comparison with zero cannot find null. Linux (`reg_not_null`) draws the line here: both ways behind a
/// comparison of the context, the packet or the stack with zero are looked at.
fn never_null_at_all(p: &Ptr) -> bool {
    if let Base::Object(o) = p.base {
        return p.reference != 0 || matches!(o.trust, Trust::Trusted | Trust::Owned);
    }
    matches!(p.base, Base::MapValue(_) | Base::Map(_) | Base::Mem { .. } | Base::Sock(_))
}

#[cfg(test)]
mod tests {
    use crate::testing::behind;

    #[test]
    fn each_way_learns_its_side() {
        let text = "r2 = *(u32 *)(r1 +16)\nr0 = 0\nif r2 > 60 goto +1\nr0 = r2\nexit";
        assert_eq!(behind(text, 2), "R2=scalar(smin=smin32=0,smax=umax=smax32=umax32=60,var_off=(0x0; 0x3f))");
    }

    #[test]
    fn a_comparison_with_the_end_proves_bytes() {
        let start = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 14\nr0 = 0\n";
        let text = format!("{start}if r4 > r3 goto +1\nr0 = *(u8 *)(r2 +13)\nexit");
        assert_eq!(behind(&text, 5), "R3=pkt_end() R4=pkt(off=14,r=14)");
    }
}
