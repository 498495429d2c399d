//! Where the values of a refusal come from, as notes.

use xway_isa::{CallTarget, Insn};

use super::story::Story;
use crate::diag::Diagnostic;
use crate::value::Value;

/// Adds the origin of each register to what is said about its value.
pub(crate) fn tell(story: &Story<'_>, error: &mut Diagnostic) {
    let regs = &story.way.fail.regs;
    for (r, (_, text)) in regs.iter().zip(&mut error.values) {
        let chain = story.chain(story.last(), *r);
        let Some(origin) = chain.last().copied() else { continue };
        // What was a pointer and is a number now has the pointer's name.
        let before = || chain.iter().find_map(|k| super::text::assigned(&story.source(*k)));
        let mut more = match story.name(story.last(), *r).or_else(before) {
            Some(name) => format!("`{name}`: "),
            None => String::new(),
        };
        more.push_str(text);
        match story.insn(origin) {
            Some(Insn::Call(CallTarget::Helper(id))) => {
                let helper = xway_abi::helper(*id).map_or("a helper", |h| h.name);
                more.push_str(&format!("; from {helper} at {}", story.at(origin)));
            }
            Some(Insn::Load { base, .. }) => {
                let from = match story.value(origin, base.index()) {
                    Value::Ptr(p) if p.is_packet() => "read from the packet",
                    Value::Ptr(p) if matches!(p.base, crate::value::Base::MapValue(_)) => "read from a map value",
                    _ => "loaded",
                };
                more.push_str(&format!("; {from} at {}", story.at(origin)));
            }
            _ if origin < story.last() => more.push_str(&format!("; set at {}", story.at(chain[0]))),
            _ => {}
        }
        *text = more;
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::check;

    fn first(text: &str) -> String {
        check(text, &[]).expect_err(text).errors[0].values[0].1.clone()
    }

    #[test]
    fn a_value_says_where_it_comes_from() {
        let helper = first("call bpf_get_prandom_u32\nr0 = *(u8 *)(r0 +0)\nexit");
        assert!(helper.ends_with("; from bpf_get_prandom_u32 at instruction 0"), "{helper}");
        let set = first("r2 = 5\nr0 = *(u8 *)(r2 +0)\nexit");
        assert!(set.ends_with("; set at instruction 0"), "{set}");
        let packet = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 1\nif r4 > r3 goto +2\nr5 = *(u8 *)(r2 +0)\n\
                      r0 = *(u8 *)(r5 +0)\nr0 = 0\nexit";
        assert!(first(packet).ends_with("; read from the packet at instruction 5"), "{}", first(packet));
    }
}
