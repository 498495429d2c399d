//! `xway verify --raw`: instructions by the line, for tools that make or collect programs.
//!
//! Each line of the input is one program, each line of the output is what became of it, in the same order. Nothing that a
//! line holds ends the run: programs that make no sense are refused, lines that are no JSON are answered with an error.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use serde_json::{Value, json};
use xway_verifier::Config;

use crate::failure::Failure;
use crate::raw::{self, Answer, Broken, Runner};

/// Longest line: a program of a million instructions in hexadecimal, and as much again for packet and maps.
const LINE_MAX: u64 = 64 << 20;
/// Answers that are held back while more lines wait, bytes.
const HELD_BACK: usize = 1 << 16;

/// Runs the command.
pub fn run(path: &Path, config: &Config) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return answer(BufReader::new(io::stdin()), "standard input", config);
    }
    let place = path.display().to_string();
    let file = File::open(path).map_err(|e| Failure::file(&place, &e))?;
    answer(BufReader::with_capacity(1 << 16, file), &place, config)
}

/// What was answered.
#[derive(Default)]
struct Counts {
    refused: u64,
    broken: u64,
    traps: u64,
}

fn answer<R: Read>(mut from: BufReader<R>, place: &str, config: &Config) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(HELD_BACK, io::stdout().lock());
    let mut runner = Runner::new().map_err(Failure::needs)?;
    let mut counts = Counts::default();
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let whole = next_line(&mut from, &mut line).map_err(|e| Failure::file(place, &e))?;
        let text = line.trim_ascii();
        match whole {
            Line::End => break,
            Line::Whole if text.is_empty() => continue,
            _ => {}
        }
        let answered = match whole {
            Line::TooLong => Err(Broken(Value::Null, format!("longer than {} MiB", LINE_MAX >> 20))),
            _ => raw::answer(text, &mut runner, config),
        };
        let doc = document(answered, number, &mut counts);
        let written = serde_json::to_writer(&mut out, &doc).map_err(io::Error::from).and_then(|()| {
            out.write_all(b"\n")?;
            // Somebody may wait for this answer before the next question.
            if from.buffer().contains(&b'\n') { Ok(()) } else { out.flush() }
        });
        match written {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => break,
            Err(e) => return Err(Failure::file("standard output", &e)),
        }
    }
    // The reader may be gone by now; what it wanted it has.
    let _ = out.flush();
    finish(&counts, place)
}

fn finish(counts: &Counts, place: &str) -> Result<(), Failure> {
    if counts.traps > 0 {
        crate::print::warn(&format!(
            "{} accepted programs were stopped when they ran: this is a bug of xway's verifier, please report it",
            counts.traps
        ));
    }
    match counts {
        Counts { broken: 0, refused: 0, traps: 0 } => Ok(()),
        Counts { broken: 0, .. } => Err(Failure::silent()),
        _ => {
            Err(Failure::usage(format!("{place}: {} lines are no programs; their answers say why", counts.broken))
                .said())
        }
    }
}

fn document(answered: Result<Answer, Broken>, number: u64, counts: &mut Counts) -> Value {
    match answered {
        Err(Broken(id, why)) => {
            counts.broken += 1;
            let message = format!("line {number}: {why}");
            let error = json!({ "kind": "input", "message": message });
            json!({ "id": id, "line": number, "verdict": null, "error": error, "retval": null })
        }
        Ok(answer) => {
            if answer.error.is_some() {
                counts.refused += 1;
            }
            let verdict = if answer.error.is_some() { "rejected" } else { "accepted" };
            let mut doc = json!({
                "id": answer.id, "verdict": verdict, "error": answer.error, "retval": answer.retval,
                "visited": answer.visited,
            });
            if let Some(why) = answer.not_run {
                doc["not_run"] = why.into();
            }
            if let Some(fault) = answer.trap {
                counts.traps += 1;
                crate::print::warn(&format!("line {number}: accepted, then stopped: {fault}"));
                doc["trap"] = fault.into();
            }
            doc
        }
    }
}

/// What was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Whole,
    TooLong,
    End,
}

/// Reads a line; of one that is too long the rest is skipped.
fn next_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    if from.by_ref().take(LINE_MAX).read_until(b'\n', line)? == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') || (line.len() as u64) < LINE_MAX {
        return Ok(Line::Whole);
    }
    loop {
        let waiting = from.fill_buf()?;
        let (used, done) = match waiting.iter().position(|b| *b == b'\n') {
            Some(at) => (at + 1, true),
            None => (waiting.len(), waiting.is_empty()),
        };
        from.consume(used);
        if done {
            return Ok(Line::TooLong);
        }
    }
}
