//! The lines that a finding shows, and the marks on them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use annotate_snippets::{Annotation, AnnotationKind, Element, Snippet};
use xway_object::LineInfo;

use super::{Code, Files, Finding, clean, path};
use crate::disasm;

/// Source lines before and after the finding that are shown without a mark.
const AROUND: (usize, usize) = (2, 1);
/// The same for instructions.
const NEIGHBOURS: (usize, usize) = (3, 3);
/// Lines between a mark and the finding; what is farther away becomes a note.
const FAR: usize = 4_000;

/// What is shown of a finding.
pub struct Shown {
    /// Pieces of source.
    pub snippets: Vec<Element<'static>>,
    /// What does not stand in them.
    pub notes: Vec<String>,
}

/// A mark in a line.
struct Mark {
    line: usize,
    /// Byte in the line from 0, when it is known.
    col: Option<usize>,
    label: String,
    primary: bool,
}

/// Consecutive lines of text.
struct Text {
    /// Number of the first one.
    first: usize,
    lines: Vec<String>,
    /// Lines that are shown without a mark.
    visible: RangeInclusive<usize>,
}

/// Puts a finding and its path into source lines, or into instructions.
pub fn show(finding: &Finding, code: Code<'_>, files: &mut Files) -> Shown {
    let (branches, left_out) = path::branches(&finding.path, code);
    let mut notes = Vec::new();
    if left_out {
        notes.push("branches before these are not shown; --json lists the path".into());
    }
    let snippets = match code.line(finding.insn) {
        Some(line) => in_source(finding, line, &branches, code, files, &mut notes),
        None if finding.insn < code.program.insns.len() => in_instructions(finding, &branches, code, &mut notes),
        None => Vec::new(),
    };
    Shown { snippets, notes }
}

/// The places beside the finding itself: what happened there, and where the program went.
fn others(finding: &Finding, branches: &[path::Branch]) -> Vec<(usize, String)> {
    let branches = branches.iter().map(|b| (b.insn, b.words.clone()));
    finding.notes.iter().cloned().chain(branches).collect()
}

fn in_source(
    finding: &Finding,
    line: &LineInfo,
    branches: &[path::Branch],
    code: Code<'_>,
    files: &mut Files,
    notes: &mut Vec<String>,
) -> Vec<Element<'static>> {
    // By file, the finding's own first.
    let mut marks: BTreeMap<(bool, Arc<str>), Vec<Mark>> = BTreeMap::new();
    let mut add = |l: &LineInfo, label: String, primary: bool, notes: &mut Vec<String>| {
        let of_file = marks.entry((l.file != line.file, l.file.clone())).or_default();
        let near = of_file.first().map_or(l.line as usize, |m| m.line);
        if near.abs_diff(l.line as usize) > FAR {
            notes.push(format!("line {}: {label}", l.line));
            return;
        }
        // A branch is its whole statement, unless the finding stands in the same line.
        let precise = primary || (l.file == line.file && l.line == line.line);
        let col = l.col.checked_sub(1).filter(|_| precise).map(|c| c as usize);
        of_file.push(Mark { line: l.line as usize, col, label, primary });
    };
    let (text, _) = disasm::one(code.object, code.program, finding.insn);
    let place =
        code.function(finding.insn).filter(|f| f.start > 0).map_or(String::new(), |f| format!(" in {}", f.name));
    add(line, format!("instruction {}{place}: {text}", finding.insn), true, notes);
    for (insn, words) in others(finding, branches) {
        match code.line(insn) {
            Some(l) => add(l, words, false, notes),
            None => notes.push(format!("instruction {insn}: {words}")),
        }
    }
    marks
        .into_iter()
        .map(|((_, file), marks)| {
            let text = Text::of_file(&file, &marks, code, files);
            text.snippet(&marks).path(clean(&from_here(&file))).into()
        })
        .collect()
}

/// A file below the current directory by the shorter of its names, as compilers show it.
fn from_here(file: &str) -> String {
    let below = std::env::current_dir().ok().and_then(|dir| Path::new(file).strip_prefix(dir).ok().map(Path::to_owned));
    below.map_or_else(|| file.to_owned(), |path| path.display().to_string())
}

fn in_instructions(
    finding: &Finding,
    branches: &[path::Branch],
    code: Code<'_>,
    notes: &mut Vec<String>,
) -> Vec<Element<'static>> {
    let mark = |insn: usize, label: String, primary| Mark { line: insn, col: None, label, primary };
    let place = code.function(finding.insn).filter(|f| f.start > 0).map_or(String::new(), |f| format!("in {}", f.name));
    let mut marks = vec![mark(finding.insn, place, true)];
    for (insn, words) in others(finding, branches) {
        match insn.abs_diff(finding.insn) <= FAR {
            true => marks.push(mark(insn, words, false)),
            false => notes.push(format!("instruction {insn}: {words}")),
        }
    }
    // Where files have their line this has the instruction's number.
    let origin = clean(&format!("{}: program {}", code.place, code.program.name));
    vec![Text::of_instructions(&marks, code).snippet(&marks).path(origin).into()]
}

/// From the first to the last line with a mark, the primary mark's surroundings included.
fn extent(marks: &[Mark], around: (usize, usize)) -> (RangeInclusive<usize>, RangeInclusive<usize>) {
    let lines = || marks.iter().map(|m| m.line);
    let (low, high) = (lines().min().unwrap_or(0), lines().max().unwrap_or(0));
    let visible = match marks.iter().find(|m| m.primary) {
        Some(m) => m.line.saturating_sub(around.0)..=m.line + around.1,
        None => low..=low,
    };
    (low.min(*visible.start())..=high.max(*visible.end()), visible)
}

impl Text {
    fn of_file(file: &Arc<str>, marks: &[Mark], code: Code<'_>, files: &mut Files) -> Text {
        let entries = || code.program.line_info.iter().filter(|l| l.file == *file);
        let mut on_disk = None;
        for m in marks {
            let entry = entries().find(|l| l.line as usize == m.line);
            on_disk = entry.and_then(|l| files.lines(file, code.place, l.line, &l.text));
            if on_disk.is_none() {
                break;
            }
        }
        if let Some(all) = on_disk {
            let (span, visible) = extent(marks, AROUND);
            let (first, last) = ((*span.start()).max(1), (*span.end()).min(all.len()));
            let visible = (*visible.start()).max(1)..=(*visible.end()).min(last);
            return Text { first, lines: all[first - 1..last].to_vec(), visible };
        }
        // Only what the object itself holds: lines without instructions are not among it.
        let (span, visible) = extent(marks, (0, 0));
        let known: BTreeMap<usize, &str> =
            entries().filter(|l| span.contains(&(l.line as usize))).map(|l| (l.line as usize, &*l.text)).collect();
        let text = |n: usize| known.get(&n).filter(|t| !t.trim().is_empty()).map_or("...".into(), |t| (*t).to_owned());
        Text { first: *span.start(), lines: span.map(text).collect(), visible }
    }

    fn of_instructions(marks: &[Mark], code: Code<'_>) -> Text {
        let insns = &code.program.insns;
        let (span, visible) = extent(marks, NEIGHBOURS);
        let (first, last) = (*span.start(), (*span.end()).min(insns.len().saturating_sub(1)));
        let mut lines = Vec::new();
        let mut at = 0;
        while at <= last {
            if at < first {
                at += 1 + usize::from(insns[at].is_wide());
                continue;
            }
            // The second slot of a wide instruction has a number and nothing to show.
            lines.resize(at - first, String::new());
            let (text, slots) = disasm::one(code.object, code.program, at);
            lines.push(format!("({:02x}) {text}", insns[at].opcode));
            at += slots;
        }
        lines.resize(last + 1 - first, String::new());
        Text { first, lines, visible: *visible.start()..=(*visible.end()).min(last) }
    }

    fn snippet(self, marks: &[Mark]) -> Snippet<'static, Annotation<'static>> {
        let mut starts = Vec::with_capacity(self.lines.len());
        let mut whole = String::new();
        for line in &self.lines {
            starts.push(whole.len());
            whole.push_str(line);
            whole.push('\n');
        }
        let mut annotations: Vec<Annotation<'static>> = Vec::new();
        for m in marks {
            let Some((line, start)) = m.line.checked_sub(self.first).and_then(|i| self.lines.get(i).zip(starts.get(i)))
            else {
                continue;
            };
            let (from, to) = accused(line, m.col);
            let kind = if m.primary { AnnotationKind::Primary } else { AnnotationKind::Context };
            let label = (!m.label.is_empty()).then(|| clean(&m.label));
            annotations.push(kind.span(start + from..start + to).label(label));
        }
        let seen = self.visible.filter_map(|n| n.checked_sub(self.first).and_then(|i| starts.get(i)));
        annotations.extend(seen.map(|start| AnnotationKind::Visible.span(*start..*start)));
        Snippet::source(whole).line_start(self.first).annotations(annotations)
    }
}

/// The piece of a line that a column means: a whole statement for its keyword, a word, one character.
fn accused(line: &str, col: Option<usize>) -> (usize, usize) {
    let start = line.len() - line.trim_start().len();
    let end = line.trim_end().trim_end_matches(['{', ';']).trim_end().len().max(start);
    let Some(col) = col.filter(|c| *c < line.len() && line.is_char_boundary(*c) && *c >= start) else {
        return (start, end);
    };
    let rest = &line[col..];
    let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    match &rest[..word] {
        "if" | "for" | "while" | "switch" | "return" | "do" | "else" => (col, end.max(col + word)),
        "" => (col, col + rest.chars().next().map_or(1, char::len_utf8)),
        _ => (col, col + word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_means_a_statement_a_word_or_a_character() {
        let line = "\tif (a->b > end) {";
        let of = |col| {
            let (from, to) = accused(line, col);
            &line[from..to]
        };
        assert_eq!((of(None), of(Some(1))), ("if (a->b > end)", "if (a->b > end)"));
        assert_eq!((of(Some(5)), of(Some(6)), of(Some(10))), ("a", "-", ">"));
        // A column that is not in the line.
        assert_eq!((of(Some(99)), of(Some(0))), ("if (a->b > end)", "if (a->b > end)"));
        assert_eq!(accused("", Some(3)), (0, 0));
        assert_eq!(accused("é = 1;", Some(1)), (0, 6));
    }
}
