//! Hints about what calls are given: lengths, sizes of keys, memory of the wrong kind, and calls that other programs may make.

use xway_abi::ArgKind;
use xway_isa::{CallTarget, Insn};

use super::advice::{called, range};
use super::story::Story;
use super::text::is_word;
use crate::diag::Diagnostic;
use crate::explore::Verifier;
use crate::value::{Base, Ptr, Value};

/// A length argument of a call.
pub(super) fn length(story: &Story<'_>, v: &Verifier<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let Value::Num(n) = story.value(last, r) else { return };
    let name = story.name(last, r);
    let me = name.clone().map_or_else(|| format!("r{r}"), |n| format!("`{n}`"));
    let write = name.unwrap_or_else(|| "len".into());
    error.notes.extend(story.chain(last, r).last().map(|k| story.note(*k, "the length comes from here")));
    let before = r.saturating_sub(1);
    let room = match story.value(last, before) {
        Value::Ptr(p) if matches!(p.base, Base::Stack(_)) && p.is_fixed() => Some(-i64::from(p.off)),
        Value::Ptr(Ptr { base: Base::Mem { size, .. }, off, .. }) => Some(i64::from(size) - i64::from(off)),
        Value::Ptr(Ptr { base: Base::MapValue(m), off, .. }) => {
            v.map_spec(&m).map(|s| i64::from(s.value_size) - i64::from(off))
        }
        _ => None,
    };
    let takes_zero = match story.insn(last) {
        Some(Insn::Call(CallTarget::Helper(id))) => xway_abi::helper(*id)
            .is_some_and(|h| h.args.get(before).is_some_and(|a| matches!(a.kind, ArgKind::Size { zero_ok: true }))),
        _ => true,
    };
    let most = room.and_then(|n| u64::try_from(n).ok()).unwrap_or((1 << 29) - 1);
    if n.s.umin() == 0 && n.s.umax() <= most && !takes_zero {
        error.hint = Some(format!(
            "{me} may be 0, which the call does not take: add `if ({write} < 1) return XDP_PASS;` before {}",
            story.at(last)
        ));
        return;
    }
    // Of the stack only the end is known, and what lies between may belong to other variables.
    let most = match story.value(last, before) {
        Value::Ptr(Ptr { base: Base::Stack(_), .. }) => {
            let name = story.argument(last, before).filter(|a| a.chars().all(is_word));
            format!("sizeof({})", name.unwrap_or_else(|| "buf".to_owned()))
        }
        _ => room.map_or("sizeof(buf)".to_owned(), |n| n.to_string()),
    };
    let below = match (n.s.smin() < 0, n.s.umin() == 0 && !takes_zero) {
        (_, true) => format!("{write} < 1 || "),
        (true, _) => format!("{write} < 0 || "),
        _ => String::new(),
    };
    error.hint = Some(format!(
        "{me} is {}{}: before {} add `if ({below}{write} > {most}) return XDP_PASS;`",
        range(&n.s),
        room.map_or(String::new(), |n| format!(", and there is room for {n} bytes")),
        story.at(last)
    ));
}

/// Packet memory where a call takes none.
pub(super) fn argument(story: &Story<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let Value::Ptr(p) = story.value(last, r) else { return };
    if p.is_packet() && error.message.contains("packet memory") {
        let me = called(story, r);
        error.hint = Some(format!(
            "{me} points into the packet, which this call does not take: copy the bytes into a variable on the stack (after \
             their check against data_end) and pass its address at {}",
            story.at(last)
        ));
        error.notes.extend(story.chain(last, r).last().map(|k| story.note(*k, "the packet pointer comes from here")));
    }
}

/// A variable on the stack that is smaller than what a call reads or writes there.
pub(super) fn short(story: &Story<'_>, v: &Verifier<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let (Value::Ptr(p), Some(Insn::Call(CallTarget::Helper(id)))) = (story.value(last, r), story.insn(last)) else {
        return;
    };
    let kind = xway_abi::helper(*id).and_then(|h| h.args.get(r.checked_sub(1)?)).map(|a| a.kind);
    let map = (1..r).find_map(|m| match story.value(last, m) {
        Value::Ptr(Ptr { base: Base::Map(m), .. }) => v.map_spec(&m).map(|s| (crate::show::map(&m, v.view.maps), s)),
        _ => None,
    });
    let Some((name, spec)) = map else { return };
    let (what, size) = match kind {
        Some(ArgKind::MapKey) => ("key", spec.key_size),
        Some(ArgKind::MapValue(_)) => ("value", spec.value_size),
        _ => return,
    };
    let has = -i64::from(p.off);
    if has < i64::from(size) {
        let me = story.argument(last, r).map_or_else(|| format!("r{r}"), |a| format!("`{a}`"));
        error.hint = Some(format!(
            "a {what} of {name} has {size} bytes, and behind {me} the stack has {has}: pass a variable of the {what}'s type"
        ));
    }
}

/// A call that programs for other hooks may make.
pub(super) fn foreign(story: &Story<'_>, error: &mut Diagnostic) {
    let Some(Insn::Call(CallTarget::Helper(id))) = story.insn(story.last()) else { return };
    let Some(name) = xway_abi::helper(*id).map(|h| h.name) else { return };
    let Some(stem) = name.strip_prefix("bpf_skb_") else { return };
    let like = match stem {
        "pull_data" => "packet bytes are there already: compare with data_end and read them".to_owned(),
        "change_head" | "adjust_room" | "vlan_push" | "vlan_pop" => {
            "use bpf_xdp_adjust_head, and write the header".into()
        }
        "change_tail" => "use bpf_xdp_adjust_tail".into(),
        _ => {
            let own = format!("bpf_xdp_{stem}");
            let there = xway_abi::helpers().iter().any(|h| h.xdp && h.name == own);
            if there { format!("use {own}") } else { "XDP has none like it".into() }
        }
    };
    error.hint = Some(format!("{name} works on socket buffers, which do not exist yet where XDP runs: {like}"));
}

#[cfg(test)]
mod tests {
    use crate::testing::check;

    fn hint(text: &str) -> String {
        check(text, &[]).expect_err(text).errors.swap_remove(0).hint.unwrap_or_default()
    }

    /// `bpf_xdp_load_bytes(ctx, 0, buf, length)` into 16 bytes of the stack.
    fn load_bytes(length: &str) -> String {
        hint(&format!(
            "r7 = *(u32 *)(r1 +16)\n{length}\nr2 = 0\n*(u64 *)(r10 -8) = 0\n*(u64 *)(r10 -16) = 0\nr3 = r10\nr3 += -16\n\
             r4 = r7\ncall bpf_xdp_load_bytes\nr0 = 0\nexit"
        ))
    }

    #[test]
    fn a_length_is_told_its_room_and_the_missing_check() {
        let long = load_bytes("r7 &= 63");
        assert!(long.contains("and there is room for 16 bytes") && long.contains("add `if ("), "{long}");
        let empty = load_bytes("r7 &= 15");
        assert!(empty.contains("may be 0, which the call does not take"), "{empty}");
        let signed = load_bytes("r7 <<= 32\nr7 s>>= 32\nif r7 s> 16 goto +7");
        assert!(signed.contains("< 1 ||") || signed.contains("< 0 ||"), "{signed}");
    }

    #[test]
    fn calls_of_other_hooks_are_told_what_stands_in_for_them() {
        let told = |call: &str| hint(&format!("r2 = 0\nr3 = 0\nr4 = 0\nr5 = 0\ncall {call}\nr0 = 0\nexit"));
        assert!(told("bpf_skb_load_bytes").ends_with("use bpf_xdp_load_bytes"));
        assert!(told("bpf_skb_pull_data").contains("compare with data_end"));
        assert!(told("bpf_skb_vlan_push").contains("bpf_xdp_adjust_head"));
        assert!(told("bpf_skb_ecn_set_ce").ends_with("XDP has none like it"));
    }
}
