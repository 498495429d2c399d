//! What is wrong with a program, shown in its source: refusals of the verifier and faults of the checked interpreter.
//!
//! A [`Finding`] is the fault itself; [`Code`] is the program that it is about. [`render`] puts both together in the way
//! that compilers show their errors: the line, the branches that lead to it, what was known, what to try. Where the
//! object has line information the lines are C, read from the file on disk when it is there and is still the same, from
//! the object otherwise; where it has none they are instructions, numbered as in a disassembly.

mod files;
mod lines;
mod path;

pub use files::Files;

use annotate_snippets::{Level, Renderer};
use serde_json::{Value, json};
use xway_object::{LineInfo, Object, Program};
use xway_verifier::{Counterexample, Decisive, Diagnostic, Note, PathStep};

use crate::print::Paint;

/// Something wrong at one instruction.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The machine-readable kind.
    pub kind: String,
    /// What is wrong.
    pub message: String,
    /// First slot of the instruction.
    pub insn: usize,
    /// Branches on the way: instruction, jumped or not.
    pub path: Vec<(usize, bool)>,
    /// Other places of the story: instruction, what happens there.
    pub notes: Vec<(usize, String)>,
    /// What was known about the values involved.
    pub known: Vec<String>,
    /// A packet with which it goes wrong, in words.
    pub packet: Option<String>,
    /// What to try.
    pub hint: Option<String>,
}

impl Finding {
    /// A refusal.
    pub fn of(d: &Diagnostic) -> Finding {
        Finding {
            kind: d.kind.name().into(),
            message: d.message.clone(),
            insn: d.insn,
            path: d.path.iter().map(|s| (s.insn, s.taken)).collect(),
            notes: d.notes.iter().map(|n| (n.insn, n.text.clone())).collect(),
            known: d.values.iter().map(|(name, words)| format!("{name} {words}")).collect(),
            packet: d.counterexample.as_ref().map(packet),
            hint: d.hint.clone(),
        }
    }
}

impl Finding {
    /// Why the checked interpreter stopped a program.
    pub fn of_fault(f: &xway_vm::Fault) -> Finding {
        Finding {
            kind: f.kind.name().into(),
            message: f.kind.to_string(),
            insn: f.insn,
            path: Vec::new(),
            notes: f
                .callers
                .iter()
                .map(|c| (c.insn, format!("{} calls the function that is stopped", c.function)))
                .collect(),
            known: f.known.iter().map(|(name, words)| format!("{name} {words}")).collect(),
            packet: None,
            hint: Some("xway verify shows every such access before the program runs".into()),
        }
    }
}

/// A packet in words: its length, the bytes that decide, what happens.
fn packet(c: &Counterexample) -> String {
    let bytes = |d: &Decisive| {
        let (from, to) = (d.offset as usize, (d.offset + d.len) as usize);
        let hex: Vec<String> = c.packet[from..to.min(c.packet.len())].iter().map(|b| format!("{b:02x}")).collect();
        match d.len {
            1 => format!("byte {from} is {}", hex.concat()),
            _ => format!("bytes {from} to {} are {}", to - 1, hex.join(" ")),
        }
    };
    let decisive: Vec<String> = c.decisive.iter().map(bytes).collect();
    let which = if decisive.is_empty() { String::new() } else { format!(" in which {}", decisive.join(" and ")) };
    format!("a packet of {} bytes{which} makes it go wrong: {}", c.packet.len(), c.fault)
}

/// The program that findings are about.
#[derive(Clone, Copy)]
pub struct Code<'a> {
    /// What the file is called in messages.
    pub place: &'a str,
    /// The object, for the names of maps.
    pub object: &'a Object,
    /// The program.
    pub program: &'a Program,
}

impl<'a> Code<'a> {
    /// The source line of an instruction: the last entry at or before it, in its function, that names a line.
    pub fn line(&self, insn: usize) -> Option<&'a LineInfo> {
        let start = self.function(insn).map_or(0, |f| f.start);
        let after = self.program.line_info.partition_point(|l| l.insn <= insn);
        let own = self.program.line_info[..after].iter().rev().take_while(|l| l.insn >= start);
        own.into_iter().find(|l| l.line > 0 && !l.file.is_empty())
    }

    /// The function that an instruction stands in.
    pub fn function(&self, insn: usize) -> Option<&'a xway_object::Subprog> {
        self.program.subprogs.iter().find(|s| (s.start..s.start + s.len).contains(&insn))
    }
}

/// A refusal in JSON: what is wrong and where.
pub fn brief_json(d: &Diagnostic) -> Value {
    json!({
        "kind": d.kind.name(),
        "insn": d.insn,
        "file": d.file,
        "line": d.line,
        "source": d.source,
        "message": d.message,
        "hint": d.hint,
    })
}

/// The same with everything that is known about it.
pub fn json(d: &Diagnostic) -> Value {
    let mut out = brief_json(d);
    let known = |(name, words): &(String, String)| json!({ "value": name, "known": words });
    out["known"] = d.values.iter().map(known).collect();
    let note = |n: &Note| json!({ "insn": n.insn, "file": n.file, "line": n.line, "source": n.source, "text": n.text });
    out["notes"] = d.notes.iter().map(note).collect();
    let step = |s: &PathStep| json!({ "insn": s.insn, "taken": s.taken, "line": s.line, "to_line": s.to_line, "source": s.source });
    out["path"] = d.path.iter().map(step).collect();
    let packet = |c: &Counterexample| {
        json!({
            "packet": c.packet.iter().map(|b| format!("{b:02x}")).collect::<String>(),
            "length": c.packet.len(),
            "decisive": c.decisive.iter().map(|d| json!({ "offset": d.offset, "length": d.len })).collect::<Vec<_>>(),
            "fault": c.fault,
        })
    };
    out["counterexample"] = d.counterexample.as_ref().map(packet).unwrap_or_default();
    out
}

/// A finding as text; ends with a newline.
pub fn render(finding: &Finding, code: Code<'_>, files: &mut Files, paint: Paint) -> String {
    let shown = lines::show(finding, code, files);
    let mut group = Level::ERROR.primary_title(&*finding.message).id(&*finding.kind).elements(shown.snippets);
    for note in shown.notes.iter() {
        group = group.element(Level::NOTE.message(clean(note)));
    }
    for known in &finding.known {
        group = group.element(Level::NOTE.with_name("known").message(clean(known)));
    }
    if let Some(packet) = &finding.packet {
        group = group.element(Level::NOTE.with_name("packet").message(clean(packet)));
    }
    if let Some(hint) = &finding.hint {
        group = group.element(Level::HELP.message(clean(hint)));
    }
    let renderer = if paint.is_on() { Renderer::styled() } else { Renderer::plain() };
    renderer.render(&[group]) + "\n"
}

/// Text that came with an object, without what would steer a terminal.
fn clean(text: &str) -> String {
    annotate_snippets::normalize_untrusted_str(text)
}
