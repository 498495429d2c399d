//! The branches that lead to a finding, in words: one note for each source line, or for each instruction without one.

use std::sync::Arc;

use xway_isa::Insn;

use super::Code;

/// Places that are shown; those nearest to the finding.
const SHOWN_MAX: usize = 8;

/// A place on the way where the program decided.
pub struct Branch {
    /// The branch instruction; where several stand in one line the last one.
    pub insn: usize,
    /// Where it led.
    pub words: String,
}

/// Where instructions are: a source line, or themselves.
#[derive(Clone, PartialEq, Eq)]
enum At {
    Line(Arc<str>, u32),
    Insn(usize),
}

/// The last branches of a path in program order, and whether earlier ones are left out.
///
/// A condition of several parts is several branches of one line, and a loop passes the same line again and again: only
/// where they leave the line counts.
pub fn branches(path: &[(usize, bool)], code: Code<'_>) -> (Vec<Branch>, bool) {
    let at = |insn: usize| match code.line(insn) {
        Some(l) => At::Line(l.file.clone(), l.line),
        None => At::Insn(insn),
    };
    // From the end: place, last branch, where it led each time.
    let mut places: Vec<(At, usize, Vec<At>)> = Vec::new();
    let mut left_out = false;
    for (insn, taken) in path.iter().rev() {
        let (place, to) = (at(*insn), at(target(*insn, *taken, code)));
        if place == to {
            continue;
        }
        match places.iter().position(|p| p.0 == place) {
            Some(known) => places[known].2.push(to),
            None if places.len() < SHOWN_MAX => places.push((place, *insn, vec![to])),
            None => left_out = true,
        }
    }
    places.sort_unstable_by_key(|p| p.1);
    let shown = places.into_iter().map(|(place, insn, to)| Branch { insn, words: words(&place, insn, &to, code) });
    (shown.collect(), left_out)
}

/// Where a branch leads.
fn target(insn: usize, taken: bool, code: Code<'_>) -> usize {
    match xway_isa::decode_at(&code.program.insns, insn) {
        Ok(Insn::Branch { off, .. } | Insn::MayGoto { off }) if taken => {
            usize::try_from(insn as i64 + 1 + i64::from(off)).unwrap_or(insn + 1)
        }
        _ => insn + 1,
    }
}

/// `to`: where it led, the last time first.
fn words(place: &At, insn: usize, to: &[At], code: Code<'_>) -> String {
    let name = |to: &At| match (to, place) {
        (At::Line(file, line), At::Line(own, _)) if file == own => format!("line {line}"),
        (At::Line(file, line), _) => format!("{}:{line}", file.rsplit('/').next().unwrap_or_default()),
        (At::Insn(to), _) => format!("instruction {to}"),
    };
    let Some(last) = to.first() else { return String::new() };
    let how = match (last, place) {
        (At::Insn(t), At::Insn(_)) if *t == target(insn, true, code) => "jumps to",
        (At::Insn(_), At::Insn(_)) => "does not jump, goes on at",
        _ => "goes on at",
    };
    let mut out = format!("{how} {}", name(last));
    let same = to.iter().take_while(|t| *t == last).count();
    if same > 1 {
        out.push_str(&format!(", {same} times"));
    }
    if let Some(before) = to.get(same) {
        let times = to.iter().filter(|t| *t == before).count();
        out.push_str(&format!(" (before: {times} {} at {})", if times == 1 { "time" } else { "times" }, name(before)));
    }
    out
}
