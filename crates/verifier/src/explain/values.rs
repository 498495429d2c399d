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
