//! Hints: for the refusals that people meet most often, the check to add, with the program's own names and lines.
//!
//! `docs/verifier.md` lists them; each has a sample under `bpf/verifier-cases/refused/`.

use std::collections::HashMap;

use xway_abi::{ArgKind, DynptrKind, FuncAccess, HelperProto, Ret};
use xway_isa::{AluOp, CallTarget, Cond, Insn, Operand};

use super::arguments::{argument, foreign, length, short};
use super::story::{Check, Story, at};
use super::text::is_word;
use crate::diag::{Diagnostic, Kind, Note, PathStep, place};
use crate::explore::Verifier;
use crate::value::{Base, MemKind, Ptr, Value};

/// Gives the error its hint and the notes that belong to it.
pub(crate) fn give(story: &Story<'_>, v: &Verifier<'_>, error: &mut Diagnostic) {
    let reg = subject(story);
    match (error.kind, reg) {
        (Kind::PacketBounds, Some(r)) => packet(story, error, r),
        (Kind::Stale, Some(r)) => stale(story, v, error, r),
        (Kind::Null, Some(r)) => null(story, error, r),
        (Kind::MapBounds | Kind::MemoryBounds | Kind::StackBounds | Kind::Unbounded, Some(r)) => {
            if let Some(len) = story.length_argument() {
                length(story, v, error, len);
            } else {
                index(story, v, error, r);
            }
        }
        (Kind::PointerArithmetic, Some(r)) => arithmetic(story, error, r),
        (Kind::NotAPointer, Some(r)) => not_a_pointer(story, error, r),
        (Kind::Argument, Some(r)) => argument(story, error, r),
        (Kind::BadCall, _) => foreign(story, error),
        (Kind::Context, Some(_)) if error.message.contains("cannot be written") => {
            error.hint = Some(
                "what a program is given is for reading: keep the number in a variable; bpf_xdp_adjust_head, _meta and _tail \
                 move the packet, bpf_redirect and bpf_redirect_map choose where it goes"
                    .into(),
            );
        }
        (Kind::Uninitialised, _) => uninitialised(story, error, reg),
        (Kind::Leak | Kind::Lock, _) => held(story, error),
        (Kind::Permission, Some(r)) => permission(story, v, error, r),
        _ => {}
    }
}

/// The register that the refusal is about: of a memory argument and its length the memory.
fn subject(story: &Story<'_>) -> Option<usize> {
    let reg = story.way.fail.regs.first().copied()?;
    let before = story.length_argument().map(|r| r - 1).filter(|r| *r > 0);
    Some(before.filter(|r| matches!(story.value(story.last(), *r), Value::Ptr(_))).unwrap_or(reg))
}

/// The name of what the refused instruction reaches, in backquotes; the register when the source does not say.
pub(super) fn called(story: &Story<'_>, reg: usize) -> String {
    let last = story.last();
    let name = match story.insn(last) {
        Some(Insn::Load { .. } | Insn::Store { .. } | Insn::Atomic { .. }) => story.accessed(last),
        _ => None,
    };
    name.or_else(|| story.name(last, reg)).map_or_else(|| format!("r{reg}"), |n| format!("`{n}`"))
}

/// How the check of the whole object is written in C: `(void *)(ip + 1) > data_end`.
fn check_in_c(story: &Story<'_>, reg: usize, end: i64, limit: &str) -> String {
    let last = story.last();
    let text = story.source(last);
    let Value::Ptr(here) = story.value(last, reg) else { return format!("ptr + {end} > {limit}") };
    // A length that is not known is checked as such.
    if let Some(r) = story.length_argument()
        && story.value(last, r).as_const().is_none()
    {
        let named = story.named_pointer(last, reg).filter(|(_, p)| p.id == here.id && p.off == here.off);
        let start =
            named.map(|(name, _)| name).or_else(|| story.argument(last, reg).filter(|a| a.chars().all(is_word)));
        let written = || story.argument(last, r).filter(|a| !a.contains([')', '(']));
        let len = story.name(last, r).or_else(written).unwrap_or_else(|| "len".into());
        return format!("(void *){} + {len} > {limit}", start.unwrap_or_else(|| "ptr".into()));
    }
    if !here.is_fixed()
        && let Some(element) = story.element(last)
    {
        return format!("(void *)(&{element} + 1) > {limit}");
    }
    if let Some(name) = story.accessed(last)
        && text.contains(&format!("{name}->"))
    {
        return format!("(void *)({name} + 1) > {limit}");
    }
    match story.named_pointer(last, reg) {
        // The name of the same place: what an offset is added to is another one.
        Some((name, p)) if p.id == here.id && end > i64::from(p.off) => {
            format!("(void *){name} + {} > {limit}", end - i64::from(p.off))
        }
        _ => format!("ptr + {end} > {limit}"),
    }
}

fn packet(story: &Story<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let Value::Ptr(p) = story.value(last, r) else { return };
    let end_of_packet = story.end_name().unwrap_or_else(|| "data_end".to_owned());
    let limit = if p.base == Base::Meta { "data" } else { end_of_packet.as_str() };
    if p.base == Base::End {
        if !error.message.contains("points behind") {
            return;
        }
        error.hint = Some("nothing lies behind data_end: read through a pointer that counts from data".into());
        return;
    }
    let (off, size) = access(story, last);
    let at = i64::from(p.off) + off;
    // Bytes in front of a place need the place itself.
    let end = (at + size).max(1);
    let me = called(story, r);
    let here = story.at(last);
    let checks = story.checks();
    let same = |c: &&Check| c.ptr.base == p.base && c.ptr.id == p.id;
    let low = p.var.smin().saturating_add(at);
    if p.var.smin() < 0 || low < 0 {
        let from = offset_name(story, r).map_or("the offset".to_owned(), |(n, _)| format!("`{n}`"));
        error.hint = Some(format!(
            "{from} may be negative, so that {me} may lie before the packet (offset {low}): make it unsigned, or before {} add \
             `if ({} < 0) return XDP_PASS;`",
            variable_part(story, r).map_or("it is added".to_owned(), |k| story.at(k)),
            from.trim_matches('`')
        ));
        note_offset(story, error, r);
        return;
    }
    let check = check_in_c(story, r, end, limit);
    // 1: a check of this place that proves too little.
    if let Some(c) = checks.iter().rev().filter(same).find(|c| c.proved > 0) {
        error.notes.push(story.note(c.step, format!("this check proves {} bytes, not {end}", c.proved)));
        error.hint = Some(format!(
            "{} checks `{}`, which proves {} bytes; {here} needs {end}: check `{check}` before it",
            story.at(c.step),
            story.condition(c.step),
            c.proved
        ));
        return;
    }
    // 2: compared, but nothing is proved on this way.
    if let Some(c) = checks.iter().rev().find(same) {
        note_offset(story, error, r);
        if p.var.umax() > crate::branch::PACKET_OFFSET_MAX {
            error
                .notes
                .push(story.note(c.step, "this comparison proves nothing about an offset without a small bound"));
            let from = offset_name(story, r).map_or("the offset".to_owned(), |(n, _)| format!("`{n}`"));
            error.hint = Some(format!(
                "{from} may be as large as {}, and a comparison with {limit} proves something only for offsets below 2^32: \
                 before {} add `if ({} > 1500) return XDP_PASS;`",
                p.var.umax(),
                variable_part(story, r).map_or("it is added".to_owned(), |k| story.at(k)),
                from.trim_matches('`')
            ));
        } else if matches!(story.insn(c.step), Some(Insn::Branch { cond: Cond::Eq | Cond::Ne, .. })) {
            error
                .notes
                .push(story.note(c.step, "whether two addresses are equal says nothing about the bytes between"));
            error.hint = Some(format!(
                "{} compares {me} with {limit} for equality, which proves no bytes: before {here} add `if ({check}) return XDP_PASS;`",
                story.at(c.step)
            ));
        } else if up_to_end(story, c.step) {
            error.notes.push(story.note(c.step, "on this way the pointer may be the end itself"));
            error.hint = Some(format!(
                "{} lets {me} be {limit} itself, behind which nothing lies; {here} needs {} more: check `{check}`",
                story.at(c.step),
                if size == 1 { "a byte".to_owned() } else { format!("{size} bytes") }
            ));
        } else {
            error.notes.push(story.note(c.step, "on this way the comparison says that the bytes are not there"));
            error.hint = Some(format!(
                "{} compares {me} with {limit}, but the way to {here} is the one on which the packet is too short: turn the \
                 check round, `if ({check}) return XDP_PASS;`",
                story.at(c.step)
            ));
        }
        return;
    }
    // 3: another place was checked, then a variable offset was added.
    if !p.is_fixed()
        && let Some(added) = variable_part(story, r)
    {
        let other = checks.iter().rev().find(|c| c.proved > 0);
        error.notes.extend(other.map(|c| story.note(c.step, "this check is about the pointer without the offset")));
        error
            .notes
            .push(story.note(added, "here a variable offset is added: what was proved before does not hold for it"));
        let before = other.map_or(String::new(), |c| {
            format!("`{}` is checked at {}, but ", story.condition(c.step), story.at(c.step))
        });
        error.hint = Some(format!(
            "{before}{} adds a variable offset, and the sum was never compared with {limit}: check `{check}` before {here}",
            story.at(added)
        ));
        return;
    }
    let least = story.state(last).extent.least;
    if p.is_fixed() && p.id == 0 && p.base == Base::Packet && least > 0 && i64::from(least) < end {
        error.hint = Some(format!(
            "on this way the packet is known to have {least} bytes; {here} needs {end}: add `if ({check}) return XDP_PASS;` before it"
        ));
        return;
    }
    let stray = checks.iter().rev().find(|c| c.ptr.base == p.base && c.proved > 0);
    error.notes.extend(stray.map(|c| story.note(c.step, "this check is about another pointer")));
    error.hint = Some(format!(
        "nothing on this way compares {me} with {limit}: add `if ({check}) return XDP_PASS;` before {here}"
    ));
}

/// On the way that is told the comparison at a step says: the pointer is the end or lies before it.
fn up_to_end(story: &Story<'_>, step: usize) -> bool {
    let Some(Insn::Branch { cond, dst, .. }) = story.insn(step) else { return false };
    let Some(jumped) = story.jumped(step) else { return false };
    let is_end = |r: usize| matches!(story.value(step, r), Value::Ptr(p) if p.base == Base::End);
    let (pointer, end) = if is_end(dst.index()) { (Cond::Ge, Cond::Lt) } else { (Cond::Le, Cond::Gt) };
    *cond == if jumped { pointer } else { end }
}

/// Offset and size of the access that a step makes through its pointer.
fn access(story: &Story<'_>, step: usize) -> (i64, i64) {
    match story.insn(step) {
        Some(Insn::Load { size, off, .. } | Insn::Store { size, off, .. } | Insn::Atomic { size, off, .. }) => {
            (i64::from(*off), i64::from(size.bytes()))
        }
        Some(Insn::Call(CallTarget::Helper(_))) => {
            let len = story.length_argument().and_then(|r| story.value(step, r).as_num().map(|n| n.s.umax()));
            (0, len.and_then(|l| i64::try_from(l).ok()).unwrap_or(1))
        }
        _ => (0, 1),
    }
}

/// The step that gave a pointer its variable offset.
fn variable_part(story: &Story<'_>, r: usize) -> Option<usize> {
    story
        .chain(story.last(), r)
        .into_iter()
        .find(|k| matches!(story.insn(*k), Some(Insn::Alu { op: AluOp::Add | AluOp::Sub, src: Operand::Reg(_), .. })))
}

/// The number that was added to a pointer: its name, and what was known of it then.
fn offset_name(story: &Story<'_>, r: usize) -> Option<(String, crate::domain::Scalar)> {
    let k = variable_part(story, r)?;
    let (number, s) = added_number(story, k)?;
    let name =
        story.name(k, number).or_else(|| indexed(&story.source(k))).or_else(|| indexed(&story.source(story.last())))?;
    Some((name, s))
}

/// The register with the number of an addition, and its bounds.
fn added_number(story: &Story<'_>, k: usize) -> Option<(usize, crate::domain::Scalar)> {
    let Some(Insn::Alu { dst, src: Operand::Reg(src), .. }) = story.insn(k) else { return None };
    [dst.index(), src.index()].into_iter().find_map(|r| match story.value(k, r) {
        Value::Num(n) => Some((r, n.s)),
        _ => None,
    })
}

/// The plain identifier in brackets: `i` in `v->table[i]`.
fn indexed(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let inner = rest.split(']').next()?.trim();
    let word = inner.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && inner.starts_with(|c: char| !c.is_ascii_digit());
    word.then(|| inner.to_owned())
}

fn note_offset(story: &Story<'_>, error: &mut Diagnostic, r: usize) {
    if let Some(k) = variable_part(story, r)
        && let Some((_, s)) = added_number(story, k)
    {
        error.notes.push(story.note(k, format!("the offset that is added here is {}", range(&s))));
    }
}

pub(super) fn range(s: &crate::domain::Scalar) -> String {
    match (s.smin(), s.smax()) {
        (i64::MIN, i64::MAX) => "not bounded at all".into(),
        (i64::MIN, hi) => format!("at most {hi}, and may be negative"),
        (lo, i64::MAX) => format!("at least {lo}, without an upper bound"),
        (lo, hi) => format!("{lo} to {hi}"),
    }
}

/// A packet pointer that a call made worthless.
fn stale(story: &Story<'_>, v: &Verifier<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let Value::Num(n) = story.value(last, r) else { return };
    let Some(insn) = v.graph.stale_since(n.def) else { return };
    let Some(moved) = (0..last).rev().find(|k| story.way.steps[*k].pc == insn) else { return };
    let helper = match story.insn(moved) {
        Some(Insn::Call(CallTarget::Helper(id))) => xway_abi::helper(*id).map_or("the call", |h| h.name),
        _ => "the call",
    };
    let me = called(story, r);
    error.notes.push(story.note(moved, format!("{helper} may move the packet: all packet pointers end here")));
    // What the pointer was when it still was one, and which check it had.
    let chain = story.chain(last, r);
    let old = chain.iter().find_map(|k| match story.insn(*k)? {
        Insn::Load { base, .. } if matches!(story.value(*k, base.index()), Value::Ptr(p) if p.base == Base::Ctx) => {
            Some(*k)
        }
        _ => None,
    });
    let check = story.checks().into_iter().rev().find(|c| c.step < moved && c.proved > 0);
    let checked = check.map_or(String::new(), |c| {
        let about =
            old.and_then(|k| super::text::assigned(&story.source(k))).map_or(String::new(), |n| format!(" on `{n}`"));
        format!("`{}` is checked{about} at {}, but ", story.condition(c.step), story.at(c.step))
    });
    error.notes.extend(check.map(|c| story.note(c.step, "this check holds up to the call only")));
    error.hint = Some(format!(
        "{checked}{} goes through {me}, which {helper} invalidated at {}: after the call load data and data_end from the \
         context again and repeat the check",
        story.at(last),
        story.at(moved)
    ));
}

/// A pointer that may be null.
fn null(story: &Story<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let chain = story.chain(last, r);
    let made = chain.last().copied();
    let name = story.name(last, r);
    let me = name.clone().map_or_else(|| format!("r{r}"), |n| format!("`{n}`"));
    let write = name.unwrap_or_else(|| "ptr".into());
    let from = made.map_or(String::new(), |k| {
        let what = match story.insn(k) {
            Some(Insn::Call(CallTarget::Helper(id))) => xway_abi::helper(*id).map_or("the call", |h| h.name),
            _ => "the call",
        };
        error.notes.push(story.note(k, format!("{what} gives null when there is nothing")));
        format!(" ({what} at {})", story.at(k))
    });
    error.hint =
        Some(format!("{me} may be null{from}: add `if (!{write}) return XDP_PASS;` before {}", story.at(last)));
}

/// An offset into something of known size.
fn index(story: &Story<'_>, v: &Verifier<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let Value::Ptr(p) = story.value(last, r) else { return };
    let what = match p.base {
        Base::MapValue(m) => {
            let name = crate::show::map(&m, v.view.maps);
            v.map_spec(&m).map(|s| (format!("a value of {name}"), i64::from(s.value_size)))
        }
        Base::Mem { size, kind, .. } => {
            let what = if kind == MemKind::Record { "the ring buffer record" } else { "the memory" };
            Some((what.to_owned(), i64::from(size)))
        }
        Base::Stack(_) => Some(("the stack".to_owned(), 512)),
        _ => None,
    };
    let Some((what, size)) = what else { return unbounded(story, v, error, r) };
    if error.kind == Kind::Unbounded {
        return unbounded(story, v, error, r);
    }
    let (off, len) = access(story, last);
    let fixed = i64::from(p.off) + off;
    let Some(k) = variable_part(story, r).filter(|_| !p.is_fixed()) else {
        let mend = match p.base {
            Base::Stack(_) => return short(story, v, error, r),
            Base::Mem { kind: MemKind::Record, .. } => "reserve as many as are touched",
            _ => "use the type that the map was declared with",
        };
        error.hint = Some(format!(
            "{what} has {size} bytes, and {} touches bytes {fixed} to {}: {mend}",
            story.at(last),
            fixed + len - 1
        ));
        return;
    };
    let Some((number, s)) = added_number(story, k) else { return };
    let name = offset_name(story, r).map(|(n, _)| n);
    let me = name.as_ref().map_or("the offset".to_owned(), |n| format!("`{n}`"));
    error.notes.push(story.note(k, format!("the offset that is added here is {}", range(&s))));
    if let Some(c) = compared(story, k, number) {
        error.notes.push(story.note(c, "this comparison is not enough"));
    }
    let write = name.unwrap_or_else(|| "i".into());
    let signed = p.var.smin() < 0;
    // So many elements there are from where the array begins; a mask does it where that is a power of two.
    let step = scale(story, k, number);
    let most = (size - fixed - len).checked_div(step).filter(|m| *m >= 0).map(|m| m + 1);
    let most = most.filter(|_| !matches!(p.base, Base::Stack(_)));
    error.hint = Some(if signed && p.var.smax() < size {
        format!(
            "{me} is signed and may be negative ({}): make it unsigned, or before {} add `if ({write} < 0) return XDP_PASS;`",
            range(&s),
            story.at(k)
        )
    } else {
        let room = match p.base {
            Base::Stack(_) => "the array on the stack".to_owned(),
            _ => format!("{what}, which has {size} bytes"),
        };
        format!(
            "{me} makes the offset {} in {room}: before {} {}",
            range(&p.var),
            story.at(k),
            bound_in_c(&write, most, signed)
        )
    });
}

/// How an index is bounded in C, by the number of elements when that is known.
fn bound_in_c(name: &str, most: Option<i64>, signed: bool) -> String {
    let below = if signed { format!("{name} < 0 || ") } else { String::new() };
    match most {
        Some(n) => {
            let mask =
                if n > 1 && n & (n - 1) == 0 { format!(", or mask it, `{name} &= {}`", n - 1) } else { String::new() };
            format!("add `if ({below}{name} >= {n}) return XDP_PASS;`{mask}")
        }
        None => {
            format!(
                "add `if ({below}{name} >= N) return XDP_PASS;` with the array's length N, or mask it, `{name} &= N - 1`"
            )
        }
    }
}

/// Bytes by which the address grows when the variable behind a register that is added grows by one.
fn scale(story: &Story<'_>, k: usize, reg: usize) -> i64 {
    let mut step = 1i64;
    for j in story.chain(k, reg) {
        step = match story.insn(j) {
            // Two halves of one change of width.
            Some(Insn::Alu { op: AluOp::Lsh, src: Operand::Imm(n), .. }) if *n < 24 => step << n,
            Some(Insn::Alu { op: AluOp::Mul, src: Operand::Imm(n), .. }) if *n > 0 => step.saturating_mul((*n).into()),
            _ => step,
        };
        if super::text::assigned(&story.source(j)).is_some() {
            break;
        }
    }
    step
}

/// A number that is added to a pointer without bounds.
fn unbounded(story: &Story<'_>, v: &Verifier<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let Some((number, s)) = added_number(story, last) else { return };
    let size = match story.value(last, r) {
        Value::Ptr(Ptr { base: Base::MapValue(m), off, .. }) => {
            v.map_spec(&m).map(|m| i64::from(m.value_size) - i64::from(off))
        }
        Value::Ptr(Ptr { base: Base::Mem { size, .. }, off, .. }) => Some(i64::from(size) - i64::from(off)),
        Value::Ptr(p) if p.is_packet() => Some(2048),
        _ => None,
    };
    let most = size.map(|size| size / scale(story, last, number)).filter(|m| *m > 0);
    let name = story.name(last, number).or_else(|| indexed(&story.source(last)));
    let me = name.clone().map_or("the number".to_owned(), |n| format!("`{n}`"));
    let write = name.unwrap_or_else(|| "x".into());
    error.notes.extend(story.definition(last, number).map(|k| story.note(k, "the number comes from here")));
    error.hint =
        Some(format!("{me} is {}: before {} {}", range(&s), story.at(last), bound_in_c(&write, most, s.smin() < 0)));
}

/// The last comparison of a number that was added at step `k`.
fn compared(story: &Story<'_>, k: usize, number: usize) -> Option<usize> {
    let chain = story.chain(k, number);
    let since = chain.last().copied().unwrap_or(0);
    (since..k).rev().find(|s| {
        let is_number = |r: usize| matches!(story.value(*s, r), Value::Num(_));
        matches!(story.insn(*s), Some(Insn::Branch { dst, .. }) if is_number(dst.index())
            && story.chain(*s, dst.index()).last() == chain.last())
    })
}

fn arithmetic(story: &Story<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let Value::Ptr(p) = story.value(last, r) else { return };
    let text = story.text(last);
    error.hint = match p.base {
        Base::End => Some(format!(
            "instead of computing with data_end move the constant to the other side: `ptr + n > data_end`, not \
             `ptr > data_end - n` ({})",
            if text.is_empty() { story.at(last) } else { format!("{}: {text}", story.at(last)) }
        )),
        _ if p.is_packet() && error.hint.is_none() => Some(format!(
            "{} is made of a pointer, cut to 32 bits or computed with as a number: keep data in a pointer, \
             `void *data = (void *)(long)ctx->data`, and only add to it and subtract from it",
            called(story, r)
        )),
        _ => return,
    };
}

fn not_a_pointer(story: &Story<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let chain = story.chain(last, r);
    let me = called(story, r);
    // It was a record, a socket, a slice until something released it.
    let mut released = None;
    for k in 0..last {
        let Some(Insn::Call(CallTarget::Helper(id))) = story.insn(k) else { continue };
        let Some(Value::Ptr(p)) = story.value(k, 1).as_ptr().map(|p| Value::Ptr(*p)) else { continue };
        if p.reference != 0 && !story.state(k + 1).refs.iter().any(|x| x.id == p.reference) {
            released = Some((k, xway_abi::helper(*id).map_or("the call", |h| h.name)));
        }
    }
    if let Some((k, name)) = released {
        error.notes.push(story.note(k, format!("{name} gives the memory away")));
        error.hint = Some(format!(
            "{me} was given away by {name} at {}: use it before that call, or keep what is needed in a variable",
            story.at(k)
        ));
        return;
    }
    let Some(origin) = chain.last().copied() else { return };
    error.notes.push(story.note(origin, "the number comes from here"));
    if let Some(Insn::Load { base, .. }) = story.insn(origin)
        && matches!(story.value(origin, base.index()), Value::Ptr(_))
    {
        error.hint = Some(format!(
            "{me} was loaded from memory at {}: an address that was kept there is a plain number when it comes back. Keep an \
             index or an offset instead, and add it to a fresh pointer",
            story.at(origin)
        ));
    }
}

fn uninitialised(story: &Story<'_>, error: &mut Diagnostic, reg: Option<usize>) {
    let last = story.last();
    if matches!(story.insn(last), Some(Insn::Exit)) {
        let func = &story.cfg.funcs[story.state(last).frame().func].name;
        error.hint = Some(format!(
            "every way through {func} needs a `return`: on this one it ends at {} without one",
            story.at(last)
        ));
        return;
    }
    let Some(r) = reg.filter(|r| (1..=5).contains(r)) else {
        if let Some(r) = reg {
            let name = story.name(last, r).map_or_else(|| format!("r{r}"), |n| format!("`{n}`"));
            error.hint = Some(format!("give {name} a value on every way that leads to {}", story.at(last)));
        }
        return;
    };
    if let Some(k) = story.definition(last, r)
        && let Some(Insn::Call(target)) = story.insn(k)
    {
        let what = match target {
            CallTarget::Helper(id) => xway_abi::helper(*id).map_or("the call", |h| h.name),
            _ => "the call",
        };
        error.notes.push(story.note(k, format!("{what} destroys r1 to r5")));
        error.hint = Some(format!(
            "r{r} is lost with the call of {what} at {}: keep what is needed later in r6 to r9 or on the stack",
            story.at(k)
        ));
    }
}

fn held(story: &Story<'_>, error: &mut Diagnostic) {
    let last = story.last();
    let st = story.state(last);
    let step_of = |insn: usize| (0..=last).rev().find(|k| story.way.steps[*k].pc == insn);
    if let Some(lock) = &st.lock {
        if let Some(k) = step_of(lock.insn) {
            error.notes.push(story.note(k, "the lock is taken here"));
            error.hint = Some(format!(
                "the spin lock taken at {} is still held at {}: call bpf_spin_unlock before it",
                story.at(k),
                story.at(last)
            ));
        }
        return;
    }
    let Some((k, what)) = st.refs.first().and_then(|r| Some((step_of(r.insn)?, r.what))) else { return };
    let by = match story.insn(k) {
        Some(Insn::Call(CallTarget::Helper(id))) => xway_abi::helper(*id),
        _ => None,
    };
    let releases = |f: fn(ArgKind) -> bool| {
        let takes = |h: &&HelperProto| h.xdp && h.args.iter().any(|a| f(a.kind));
        xway_abi::helpers().iter().filter(takes).map(|h| h.name).collect::<Vec<_>>().join(" or ")
    };
    let (what, release) = match by {
        Some(h) if h.ret == Ret::AllocMemOrNull => {
            ("the record", releases(|k| matches!(k, ArgKind::AllocMem { release: true })))
        }
        Some(h) if h.takes(ArgKind::Dynptr(DynptrKind::Ringbuf, FuncAccess::Init)) => {
            ("the record", releases(|k| k == ArgKind::Dynptr(DynptrKind::Ringbuf, FuncAccess::Release)))
        }
        Some(_) => ("the socket", releases(|k| matches!(k, ArgKind::Sock { release: true, .. }))),
        None => (what, kfunc_that_ends(story, k, what)),
    };
    error.notes.push(story.note(k, format!("{what} is acquired here")));
    let more =
        if what == "the record" { " (with bpf_ringbuf_reserve_dynptr: even when the reservation failed)" } else { "" };
    let more = if release.contains("dynptr") { more } else { "" };
    error.hint = Some(format!(
        "{what} acquired at {} is still held where the program ends at {}: call {release} on this way too{more}",
        story.at(k),
        story.at(last)
    ));
}

/// The kernel function that ends what the one at step `k` began.
fn kfunc_that_ends(story: &Story<'_>, k: usize, what: &str) -> String {
    let begun = match story.insn(k) {
        Some(Insn::Call(CallTarget::Kfunc { id, .. })) => {
            usize::try_from(*id).ok().and_then(|i| story.program.kfuncs.get(i)).map_or("", |f| f.name.as_str())
        }
        _ => "",
    };
    match what {
        crate::kfunc::RCU => "bpf_rcu_read_unlock".to_owned(),
        crate::kfunc::PREEMPTION => "bpf_preempt_enable".to_owned(),
        _ => match begun.strip_suffix("_new") {
            Some(stem) => format!("{stem}_destroy"),
            None => format!("the function that releases what {begun} gives"),
        },
    }
}

fn permission(story: &Story<'_>, v: &Verifier<'_>, error: &mut Diagnostic, r: usize) {
    let last = story.last();
    let Value::Ptr(Ptr { base: Base::MapValue(m), .. }) = story.value(last, r) else { return };
    let (Some(def), Some(spec)) = (v.view.maps.get(m.index as usize), v.map_spec(&m)) else { return };
    let (flags, name) = (spec.flags, crate::show::map(&m, v.view.maps));
    let write = matches!(story.insn(last), Some(Insn::Store { .. } | Insn::Atomic { .. } | Insn::Call(_)));
    if write && def.name.contains(".rodata") {
        error.hint = Some(format!(
            "{} writes a `const` variable, which lies in {}: take the `const` away, or write a variable of its own",
            story.at(last),
            def.name
        ));
    } else if write && flags & xway_abi::map_flags::RDONLY_PROG != 0 {
        error.hint =
            Some(format!("{name} was declared with BPF_F_RDONLY_PROG: take the flag away, or write to another map"));
    } else if flags & xway_abi::map_flags::WRONLY_PROG != 0 {
        error.hint = Some(format!("{name} was declared with BPF_F_WRONLY_PROG: programs cannot read it"));
    }
}

/// Loops that do not end, or not soon: which loop it is.
pub(crate) fn about_loop(v: &Verifier<'_>, error: &mut Diagnostic, branches: &[(u32, bool)]) {
    let mut turns: HashMap<(u32, bool), u32> = HashMap::new();
    for b in branches {
        *turns.entry(*b).or_default() += 1;
    }
    // The branch that was passed most often; of equals the first in the program.
    let Some(((insn, taken), n)) = turns
        .into_iter()
        .max_by_key(|((insn, taken), n)| (*n, -i64::from(*insn), *taken))
        .map(|((i, t), n)| ((i as usize, t), n))
    else {
        return;
    };
    if n < 2 && error.kind == Kind::Budget {
        return;
    }
    let (file, line, source) = place(v.program, insn);
    let place_text = at(v.program, insn);
    error.notes.push(Note {
        insn,
        file,
        line,
        source,
        text: format!("passed {n} times on the way that was walked last"),
    });
    if error.kind == Kind::Budget {
        error.hint = Some(format!(
            "the loop at {place_text} is walked turn by turn ({n} turns on one way): give it a smaller constant bound, move its \
             body into a function for bpf_loop, or raise the budget"
        ));
    } else {
        error.hint = Some(format!(
            "nothing in the loop at {place_text} brings its end nearer: count a variable up to a constant bound, or use \
             bpf_loop or bpf_for"
        ));
    }
    let to = v.cfg.successor(insn, taken);
    let (_, line, source) = place(v.program, insn);
    error.path = vec![PathStep { insn, taken, line, source, to_line: place(v.program, to).1 }];
}

#[cfg(test)]
mod tests {
    use xway_object::KfuncRef;

    use super::*;
    use crate::testing::program;
    use crate::{Config, MapsView, verify};

    #[test]
    fn indices_are_read_from_a_line() {
        assert_eq!(
            (indexed("v->t[i] = 1;").as_deref(), indexed("v->t[i + 1]"), indexed("t[3]")),
            (Some("i"), None, None)
        );
    }

    #[test]
    fn a_bound_has_a_mask_where_it_is_a_power_of_two() {
        assert_eq!(bound_in_c("i", Some(64), false), "add `if (i >= 64) return XDP_PASS;`, or mask it, `i &= 63`");
        assert_eq!(bound_in_c("i", Some(60), false), "add `if (i >= 60) return XDP_PASS;`");
        assert_eq!(bound_in_c("i", Some(1), true), "add `if (i < 0 || i >= 1) return XDP_PASS;`");
        assert!(bound_in_c("i", None, true).starts_with("add `if (i < 0 || i >= N) return XDP_PASS;` with"));
    }

    #[test]
    fn bounds_are_told_without_the_ends_of_64_bits() {
        use crate::domain::Scalar;
        let of = |lo, hi| range(&Scalar::between_signed(lo, hi));
        assert_eq!((of(-3, 7).as_str(), range(&Scalar::unknown()).as_str()), ("-3 to 7", "not bounded at all"));
        assert_eq!(of(i64::MIN, 7), "at most 7, and may be negative");
        assert_eq!(of(-3, i64::MAX), "at least -3, without an upper bound");
    }

    /// The hint for a program that ends while it holds what this kernel function gives.
    fn held_from(name: &str, call: &str) -> String {
        let mut program = program(&format!("{call}call kfunc #0\nr0 = 0\nexit"));
        program.kfuncs = vec![KfuncRef { name: name.to_owned(), func_id: 0, weak: false }];
        let refused = verify(&program, &MapsView::empty(), &Config::default()).unwrap_err();
        refused.errors[0].hint.clone().unwrap_or_default()
    }

    #[test]
    fn what_is_held_is_released_by_its_own_function() {
        assert!(held_from("bpf_rcu_read_lock", "").contains("call bpf_rcu_read_unlock on this way"));
        assert!(held_from("bpf_preempt_disable", "").contains("call bpf_preempt_enable on this way"));
        let iterator = "r1 = r10\nr1 += -8\nr2 = 0\nr3 = 10\n";
        assert!(held_from("bpf_iter_num_new", iterator).contains("call bpf_iter_num_destroy on this way"));
    }
}
