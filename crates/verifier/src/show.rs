//! Values and states in words: short ones in the format of Linux's verifier log, longer ones for people.

use xway_object::MapDef;

use crate::domain::Scalar;
use crate::graph::Graph;
use crate::state::{Byte, Frame, State};
use crate::value::{Base, MapRef, Num, Ptr, Value};

/// A number's bounds as the log prints them, without the parts that say nothing.
pub(crate) fn scalar(s: &Scalar) -> String {
    if let Some(x) = s.as_const() {
        return format!("{}", x as i64);
    }
    let mut parts = Vec::new();
    let w = &s.whole;
    if w.smin != i64::MIN {
        parts.push(format!("smin={}", w.smin));
    }
    if w.smax != i64::MAX {
        parts.push(format!("smax={}", w.smax));
    }
    if w.umin != 0 {
        parts.push(format!("umin={}", w.umin));
    }
    if w.umax != u64::MAX {
        parts.push(format!("umax={}", w.umax));
    }
    let h = &s.half;
    if i64::from(h.smin as i32) != w.smin && h.smin != i64::from(i32::MIN) {
        parts.push(format!("smin32={}", h.smin));
    }
    if i64::from(h.smax as i32) != w.smax && h.smax != i64::from(i32::MAX) {
        parts.push(format!("smax32={}", h.smax));
    }
    if h.umin != w.umin && h.umin != 0 {
        parts.push(format!("umin32={}", h.umin));
    }
    if h.umax != w.umax && h.umax != u64::from(u32::MAX) {
        parts.push(format!("umax32={}", h.umax));
    }
    if s.tnum.mask != u64::MAX {
        parts.push(format!("var_off={}", s.tnum));
    }
    parts.join(",")
}

fn num(n: &Num) -> String {
    if n.s.as_const().is_some() {
        return scalar(&n.s);
    }
    let mut inside = scalar(&n.s);
    if n.link != 0 {
        let delta = if n.delta == 0 { String::new() } else { format!("{:+}", n.delta) };
        inside = format!("id={}{delta}{}{inside}", n.link, if inside.is_empty() { "" } else { "," });
    }
    format!("scalar({inside})")
}

fn ptr(p: &Ptr) -> String {
    if let Base::Stack(_) = p.base
        && p.is_fixed()
    {
        return format!("fp{}", if p.off == 0 { "0".to_owned() } else { p.off.to_string() });
    }
    let mut parts = Vec::new();
    if p.id != 0 {
        parts.push(format!("id={}", p.id));
    }
    if p.reference != 0 {
        parts.push(format!("ref_obj_id={}", p.reference));
    }
    if p.off != 0 {
        parts.push(format!("off={}", p.off));
    }
    if matches!(p.base, Base::Packet | Base::Meta) {
        parts.push(format!("r={}", p.range));
    }
    if !p.is_fixed() {
        parts.push(scalar(&p.var));
    }
    format!("{}({})", p.kind_name(), parts.join(","))
}

/// A value as the log prints it.
pub(crate) fn value(v: &Value) -> String {
    match v {
        Value::Uninit => "?".to_owned(),
        Value::Num(n) => num(n),
        Value::Ptr(p) => ptr(p),
        Value::Iter(i) => {
            let (kind, state) = (format!("{:?}", i.kind).to_lowercase(), if i.drained { "drained" } else { "active" });
            format!("iter_{kind}(ref_id={},state={state})", i.id)
        }
        Value::Dynptr(d) => format!("dynptr_{:?}(id={})", d.kind, d.id).to_lowercase(),
    }
}

/// One frame's registers and stack as the log prints them.
pub(crate) fn frame(f: &Frame, index: usize) -> String {
    let mut out = if index > 0 { format!("frame{index}:") } else { String::new() };
    for (i, v) in f.regs.iter().enumerate().filter(|(_, v)| **v != Value::Uninit) {
        out.push_str(&format!(" R{i}={}", value(v)));
    }
    for (i, s) in f.stack.iter().enumerate().filter(|(_, s)| s.bytes != [Byte::Uninit; 8]) {
        let at = 8 * (i + 1);
        if s.bytes[0] == Byte::Spill || s.bytes[0] == Byte::Special {
            out.push_str(&format!(" fp-{at}={}", value(&s.spill)));
        } else {
            let bytes: String = s
                .bytes
                .iter()
                .rev()
                .map(|b| match b {
                    Byte::Uninit => '?',
                    Byte::Misc => 'm',
                    Byte::Zero => '0',
                    Byte::Spill => 'r',
                    Byte::Special => 'i',
                })
                .collect();
            out.push_str(&format!(" fp-{at}={bytes}"));
        }
    }
    out
}

/// The running frame as the log prints it.
pub(crate) fn state(st: &State) -> String {
    frame(st.frame(), st.depth())
}

/// What is known about a value, for people.
pub(crate) fn describe(v: &Value, graph: &Graph, maps: &[MapDef]) -> String {
    let map = |m: &MapRef| {
        maps.get(m.index as usize).map_or_else(|| format!("map {}", m.index), |d| format!("map {}", d.name))
    };
    match v {
        Value::Uninit => "was never written on this path".to_owned(),
        Value::Num(n) => {
            if let Some(insn) = graph.stale_since(n.def) {
                return format!("was a packet pointer until the call at instruction {insn} moved the packet");
            }
            match n.s.as_const() {
                Some(x) => format!("is the number {}", x as i64),
                None if n.s.is_unknown() => "is a number of which nothing is known".to_owned(),
                None => {
                    let (lo, hi) = (n.s.smin(), n.s.smax());
                    let bits = if n.s.tnum.mask == u64::MAX { String::new() } else { format!(", bits {}", n.s.tnum) };
                    if lo == i64::MIN || hi == i64::MAX {
                        format!("is a number from {} to {} (unsigned){bits}", n.s.umin(), n.s.umax())
                    } else {
                        format!("is a number from {lo} to {hi}{bits}")
                    }
                }
            }
        }
        Value::Ptr(p) => {
            let what = match p.base {
                Base::Ctx => "the context".to_owned(),
                Base::Packet => "the packet".to_owned(),
                Base::Meta => "the metadata before the packet".to_owned(),
                Base::End => "the end of the packet".to_owned(),
                Base::Stack(_) => "the stack".to_owned(),
                Base::MapValue(m) => format!("a value of {}", map(&m)),
                Base::Map(m) => format!("{} itself", map(&m)),
                Base::Mem { size, .. } => format!("{size} bytes of memory"),
                Base::Sock(_) => "a socket".to_owned(),
                Base::Func(_) => "a function".to_owned(),
                Base::Object(_) => "an object of the kernel or of the program".to_owned(),
                Base::Arena => "an arena".to_owned(),
            };
            let mut at = format!("points to {what}, at offset {}", p.off);
            if !p.is_fixed() {
                at.push_str(&format!(" plus {} to {}", p.var.smin(), p.var.smax()));
            }
            if matches!(p.base, Base::Packet | Base::Meta) {
                at.push_str(&format!("; {} bytes are proved to lie before the end", p.range));
            }
            if p.nullable {
                at.push_str("; it may be null");
            }
            at
        }
        Value::Iter(_) => "is an iterator".to_owned(),
        Value::Dynptr(_) => "is a dynptr".to_owned(),
    }
}
