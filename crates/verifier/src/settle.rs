//! What a state is stripped of before it is compared, and what one that ends at a checkpoint hands on.

use std::rc::Rc;

use crate::cfg::Cfg;
use crate::graph::Graph;
use crate::state::{Byte, Frame, Slot, State};
use crate::value::{Base, Num, Value};

/// What the old state relies on, the new one relies on too.
pub(crate) fn propagate(graph: &mut Graph, old: &State, new: &State, late: bool) {
    let mut link = |from, to| {
        if late {
            graph.link_late(from, to);
        } else if graph.is_marked(from) {
            graph.mark_for(to, graph.cause(from));
        }
    };
    link(old.extent.def, new.extent.def);
    link(old.extent.beyond_def, new.extent.beyond_def);
    let mut flows = Vec::new();
    for (o, n) in old.frames.iter().zip(&new.frames) {
        for (a, b) in o.regs.iter().zip(&n.regs) {
            if let (Value::Num(a), Value::Num(b)) = (a, b) {
                link(a.def, b.def);
                flows.push((a.def, b.def));
            }
        }
        for (a, b) in o.stack.iter().zip(&n.stack) {
            link(a.live, b.live);
            link(a.zeros, b.zeros);
            if a.bytes.contains(&Byte::Zero) {
                let same = a.bytes.iter().zip(&b.bytes).all(|(x, y)| *x != Byte::Zero || *y == Byte::Zero);
                flows.push((a.zeros, if same { b.zeros } else { crate::graph::NONE }));
            }
            if a.spill_len() > 0
                && let Value::Num(x) = a.spill
            {
                // A slot that was not spilled as a number of this length flows in as something unknown.
                let from = match b.spill {
                    Value::Num(y) if b.spill_len() == a.spill_len() => y.def,
                    _ => crate::graph::NONE,
                };
                link(x.def, from);
                // A longer number is looked at as far as a read of this slot would ([`Slot::as_scalar`]).
                if let Value::Num(y) = b.spill
                    && b.spill_len() > a.spill_len()
                {
                    link(x.def, y.def);
                }
                // Or as zeros.
                link(x.def, b.zeros);
                flows.push((x.def, from));
            }
        }
        // Slots that only the old state has were never written in the new one.
        for a in o.stack.iter().skip(n.stack.len()) {
            flows.push((a.zeros, crate::graph::NONE));
            if let (Value::Num(x), true) = (a.spill, a.spill_len() > 0) {
                flows.push((x.def, crate::graph::NONE));
            }
        }
    }
    for (place, value) in flows {
        graph.flow(place, value);
    }
}

/// Forgets registers that nobody will read, and links that link nothing.
pub(crate) fn clean(st: &mut State, cfg: &Cfg) {
    let last = st.frames.len() - 1;
    let (mut links, mut ids): (Vec<u32>, Vec<u32>) = Default::default();
    for i in 0..=last {
        let at = if i == last { st.pc } else { st.frames[i + 1].callsite };
        let live = live_regs(cfg, &st.frames[i], at, i == last);
        let frame = &st.frames[i];
        let dead = (0..10).any(|r| live >> r & 1 == 0 && frame.regs[r] != Value::Uninit);
        if dead {
            let frame = Rc::make_mut(&mut st.frames[i]);
            for r in (0..10).filter(|r| live >> r & 1 == 0) {
                frame.regs[r] = Value::Uninit;
            }
        }
        let frame = &st.frames[i];
        let spills = frame.stack.iter().filter(|s| s.spill_len() > 0).map(|s| &s.spill);
        let values = frame.regs.iter().chain(spills);
        links.extend(values.clone().filter_map(|v| v.as_num()).map(|n| n.link).filter(|l| *l != 0));
        if !st.extent.beyond.is_empty() {
            ids.extend(values.filter_map(|v| v.as_ptr()).filter(|p| p.base == Base::Packet).map(|p| p.id));
        }
    }
    links.sort_unstable();
    st.extent.clean(&links, &ids);
    let alone = links.chunk_by(|a, b| a == b).filter(|same| same.len() == 1).map(|same| same[0]);
    let alone: Vec<u32> = alone.filter(|link| !st.extent.names(*link)).collect();
    if alone.is_empty() {
        return;
    }
    st.replace(|v| match v {
        Value::Num(n) if alone.binary_search(&n.link).is_ok() => Some(Value::Num(Num { link: 0, delta: 0, ..*n })),
        _ => None,
    });
}

/// Registers of a frame that may still be read when it goes on at `at`.
pub(crate) fn live_regs(cfg: &Cfg, frame: &Frame, at: usize, running: bool) -> u16 {
    if running {
        return cfg.live[at] | 1 << 10;
    }
    // A frame that waits for a call: what is live behind it, and its arguments while a helper calls back.
    let after = cfg.live.get(at + 1).copied().unwrap_or(0) & 0x3c0;
    let args = if frame.callback_loop != 0 { cfg.live[at] } else { 0 };
    after | args | 1 << 10
}

/// True when the checkpoint's paths read, or may still come to read, a stack byte that was written there and is not
/// written here: their memory is then the state's unwritten memory.
pub(crate) fn hands_on_unwritten(graph: &Graph, old: &State, new: &State, open: bool) -> bool {
    let written = |b: &Byte| !matches!(b, Byte::Uninit);
    old.frames.iter().zip(&new.frames).any(|(o, n)| {
        o.stack.iter().enumerate().any(|(i, a)| {
            let fresh = Slot::default();
            let b = n.stack.get(i).unwrap_or(&fresh);
            (open || graph.is_marked(a.live)) && a.bytes.iter().zip(&b.bytes).any(|(x, y)| written(x) && !written(y))
        })
    })
}

#[cfg(test)]
mod tests {
    use xway_isa::Reg;

    use super::*;
    use crate::domain::Scalar;
    use crate::graph::NONE;
    use crate::meter::Meter;
    use crate::state::tests::state;
    use crate::value::Num;

    fn number(link: u32, delta: i64) -> Value {
        Value::Num(Num { link, delta, ..Num::new(Scalar::unknown(), NONE) })
    }

    #[test]
    fn registers_that_nobody_reads_are_forgotten_and_links_of_one() {
        let cfg = Cfg::new(&crate::testing::program("r0 = r6\nr0 += r7\nexit")).ok().unwrap();
        let meter = Meter::default();
        let mut st = state(&meter);
        st.set(Reg::R6, number(1, 2));
        st.set(Reg::R7, number(3, 4));
        st.set(Reg::R8, number(1, 0));
        clean(&mut st, &cfg);
        assert_eq!(*st.reg(Reg::R8), Value::Uninit, "not read");
        // The link with r8 links nothing any more.
        assert_eq!((*st.reg(Reg::R6), *st.reg(Reg::R7)), (number(0, 0), number(0, 0)));
        st.set(Reg::R6, number(5, 2));
        st.set(Reg::R7, number(5, 4));
        clean(&mut st, &cfg);
        assert_eq!((*st.reg(Reg::R6), *st.reg(Reg::R7)), (number(5, 2), number(5, 4)));
    }

    #[test]
    fn a_caller_keeps_what_is_read_behind_the_call() {
        let cfg = Cfg::new(&crate::testing::program("call f\nr0 += r6\nexit\nf: r0 = 1\nexit")).ok().unwrap();
        let meter = Meter::default();
        let frame = state(&meter).frames[0].clone();
        assert_eq!(live_regs(&cfg, &frame, 0, false), 1 << 6 | 1 << 10);
        assert_eq!(live_regs(&cfg, &frame, 1, true), 1 | 1 << 6 | 1 << 10);
    }

    #[test]
    fn what_the_old_state_relies_on_the_new_one_does() {
        let (meter, mut graph) = (Meter::default(), Graph::default());
        let of = |graph: &mut Graph| {
            let def = graph.constant(1);
            let mut st = state(&meter);
            st.set(Reg::R6, Value::num(Scalar::constant(1), def));
            (st, def)
        };
        let ((old, a), (new, b)) = (of(&mut graph), of(&mut graph));
        propagate(&mut graph, &old, &new, false);
        assert!(!graph.is_marked(b), "nothing was relied on");
        graph.mark(a);
        propagate(&mut graph, &old, &new, false);
        assert!(graph.is_marked(b));
        // Later marks follow where the old state is not finished.
        let ((old, a), (new, b)) = (of(&mut graph), of(&mut graph));
        propagate(&mut graph, &old, &new, true);
        assert!(!graph.is_marked(b));
        graph.mark(a);
        assert!(graph.is_marked(b));
    }

    #[test]
    fn unwritten_bytes_are_handed_on_where_written_ones_are_read() {
        let (meter, graph) = (Meter::default(), Graph::default());
        let (mut old, new) = (state(&meter), state(&meter));
        old.frame_mut().slot_mut(0).bytes = [Byte::Misc; 8];
        assert!(hands_on_unwritten(&graph, &old, &new, true));
        assert!(!hands_on_unwritten(&graph, &old, &new, false), "nobody reads the slot");
        assert!(!hands_on_unwritten(&graph, &new, &old, true));
    }
}
