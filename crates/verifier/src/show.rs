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

#[cfg(test)]
mod tests {
    use crate::testing::check;

    /// What is said of the values involved in the first refusal.
    fn said(text: &str) -> Vec<String> {
        let refused = check(text, &[]).expect_err(text);
        refused.errors[0].values.iter().map(|(_, text)| text.clone()).collect()
    }

    #[test]
    fn numbers_are_told_as_a_person_would() {
        let at = |bound: &str| {
            said(&format!("r2 = *(u32 *)(r1 +16)\n{bound}\nr3 = r10\nr3 += r2\nr0 = *(u8 *)(r3 +0)\nexit"))
        };
        assert!(at("r2 = -600")[0].contains("points to the stack, at offset -600"), "{:?}", at("r2 = -600"));
        let number = |make: &str| said(&format!("r2 = *(u32 *)(r1 +16)\n{make}\nr0 = *(u8 *)(r2 +0)\nexit")).remove(0);
        assert!(number("r2 = -7").starts_with("is the number -7"));
        assert!(number("r2 &= 6").starts_with("is a number from 0 to 6, bits "), "{}", number("r2 &= 6"));
        let wide = "call bpf_ktime_get_ns\nr0 = *(u8 *)(r0 +0)\nexit";
        assert!(said(wide)[0].starts_with("is a number of which nothing is known"), "{:?}", said(wide));
        let half = "call bpf_ktime_get_ns\nif r0 > 9 goto +1\nr0 = 9\nif r0 s> 7 goto +1\nr0 = -2\nr0 <<= 1\nr0 = *(u8 *)(r0 +0)\nexit";
        assert!(said(half)[0].contains("number"), "{:?}", said(half));
    }

    #[test]
    fn pointers_say_where_how_far_and_whether_they_may_be_null() {
        let packet = said("r2 = *(u32 *)(r1 +0)\nr2 += 3\nr0 = *(u8 *)(r2 +0)\nexit").remove(0);
        assert!(
            packet.contains("points to the packet, at offset 3; 0 bytes are proved to lie before the end"),
            "{packet}"
        );
        let variable = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +16)\nr3 &= 7\nr2 += r3\nr0 = *(u8 *)(r2 +1)\nexit";
        let variable = said(variable).remove(0);
        assert!(variable.contains("points to the packet, at offset 0 plus 0 to 7;"), "{variable}");
        let stale = "r6 = r1\nr7 = *(u32 *)(r1 +0)\nr2 = 0\ncall bpf_xdp_adjust_head\nr0 = *(u8 *)(r7 +0)\nexit";
        let stale = said(stale).remove(0);
        assert!(stale.contains("was a packet pointer until the call at instruction 3 moved the packet"), "{stale}");
    }
}
