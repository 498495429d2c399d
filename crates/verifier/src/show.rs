//! Values in words, for people. The log's own format is in [`crate::log`].

use xway_object::MapDef;

use crate::graph::Graph;
use crate::value::{Base, MapRef, Value};

/// A value in one word or two, inside messages: its kind as the log names it.
pub(crate) fn value(v: &Value) -> String {
    crate::log::value(v, &[], 0)
}

/// A map by its name; one that a look-up gave by the name of the map that holds it.
pub(crate) fn map(m: &MapRef, maps: &[MapDef]) -> String {
    let name = maps.get(m.index as usize).map_or_else(|| m.index.to_string(), |d| d.name.clone());
    if m.inner { format!("the map inside {name}") } else { format!("map {name}") }
}

/// What is known about a value, for people.
pub(crate) fn describe(v: &Value, graph: &Graph, maps: &[MapDef]) -> String {
    let map = |m: &MapRef| map(m, maps);
    match v {
        Value::Uninit => "was never written on this path".to_owned(),
        Value::Lost => "is not known: what makes it was refused".to_owned(),
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
