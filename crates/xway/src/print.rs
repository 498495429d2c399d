//! Writing results: one text or one JSON document on standard output, everything else on standard error.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// Version of every JSON document. It rises when a field changes its meaning or goes away, not when one is added.
pub const SCHEMA_VERSION: u32 = 1;

/// Writes text to standard output. A reader that has gone away (`| head`) ends the program quietly.
pub fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        if error.kind() != std::io::ErrorKind::BrokenPipe {
            warn(&format!("standard output: {error}"));
        }
        std::process::exit(3);
    }
}

/// A document that names its schema and its command; `fields` follow.
pub fn document(command: &str, fields: Value) -> Value {
    let mut doc = Map::new();
    doc.insert("schema_version".into(), json!(SCHEMA_VERSION));
    doc.insert("command".into(), json!(command));
    if let Value::Object(more) = fields {
        doc.extend(more);
    }
    // A benchmark's report is of a machine, and says what things cost there.
    if is_report(command) && doc.contains_key("machine") {
        let costs = xway_bench::machine::short();
        doc.insert("machine_costs".into(), costs.iter().map(|c| json!({ "name": c.name, "ns": c.ns })).collect());
    }
    Value::Object(doc)
}

/// Whether a command measures something that the machine's own costs stand beside.
pub fn is_report(command: &str) -> bool {
    command.starts_with("bench ") && command != "bench machine"
}

/// JSON is indented wherever it goes.
static PRETTY: AtomicBool = AtomicBool::new(false);

/// From now on JSON is indented in pipes too.
pub fn pretty() {
    PRETTY.store(true, Ordering::Relaxed);
}

/// Writes one JSON document: indented for people at a terminal, on one line in a pipe unless [`pretty`] was said.
pub fn json(doc: &Value) {
    let shown = if PRETTY.load(Ordering::Relaxed) || std::io::stdout().is_terminal() {
        format!("{doc:#}")
    } else {
        doc.to_string()
    };
    text(&(shown + "\n"));
}

/// How things are, on standard error: a mode that was chosen, and why.
pub fn note(message: &str) {
    // A closed standard error must not stop the work.
    let _ = writeln!(std::io::stderr(), "xway: {message}");
}

/// A warning on standard error.
pub fn warn(message: &str) {
    // A closed standard error must not stop the work.
    let _ = writeln!(std::io::stderr(), "xway: warning: {message}");
}

/// A failure: in words on standard error, and as the one JSON document where JSON was asked for.
pub fn failure(command: &str, failure: &Failure, as_json: bool) {
    if failure.is_silent() {
        return;
    }
    if let Some(refusal) = &failure.refusal {
        let _ = std::io::stderr().write_all(refusal.text.as_bytes());
    }
    let _ = writeln!(std::io::stderr(), "{failure}");
    if as_json && !failure.said {
        failure_document(command, failure);
    }
}

/// The JSON document of a failure.
pub fn failure_document(command: &str, failure: &Failure) {
    let mut fields = json!({ "error": failure_json(failure) });
    if let Some(refusal) = &failure.refusal {
        fields["refused"] = refusal.json.clone();
    }
    json(&document(command, fields));
}

/// A failure as a JSON value.
pub fn failure_json(failure: &Failure) -> Value {
    json!({
        "exit": failure.exit as u8,
        "kind": failure.exit.kind(),
        "message": failure.message,
        "hint": failure.hint,
    })
}

/// Colours, used for emphasis only: what is red also says so in words.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paint(bool);

impl Paint {
    /// Colours if standard output is a terminal that has them and `NO_COLOR` is not set (no-color.org).
    pub fn stdout() -> Paint {
        Paint(Paint::wanted() && std::io::stdout().is_terminal())
    }

    /// The same for standard error.
    pub fn stderr() -> Paint {
        Paint(Paint::wanted() && std::io::stderr().is_terminal())
    }

    fn wanted() -> bool {
        let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
    }

    /// Whether colours are used.
    pub const fn is_on(self) -> bool {
        self.0
    }

    /// Without colours.
    #[cfg(test)]
    pub fn plain() -> Paint {
        Paint(false)
    }

    /// Green: it is well.
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Red: it is not.
    pub fn bad(self, text: &str) -> String {
        self.paint("31;1", text)
    }

    /// Yellow: something is to be known.
    pub fn notable(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// Dim: secondary.
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// A number with thin groups: `12 345 678` as `12,345,678`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A rate with a unit that keeps three digits: `1.23 M`.
pub fn scaled(value: f64) -> String {
    let (scaled, unit) = match value {
        v if v >= 1e9 => (v / 1e9, " G"),
        v if v >= 1e6 => (v / 1e6, " M"),
        v if v >= 1e3 => (v / 1e3, " k"),
        v => (v, " "),
    };
    let decimals = if scaled >= 100.0 {
        0
    } else if scaled >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.decimals$}{unit}")
}

/// A table in Markdown: the first row is the head.
pub fn markdown(rows: &[Vec<String>]) -> String {
    let mut out = String::new();
    for (n, row) in rows.iter().enumerate() {
        out += &format!("| {} |\n", row.join(" | "));
        if n == 0 {
            out += &format!("|{}\n", "---|".repeat(row.len()));
        }
    }
    out
}

/// Columns of text: the first left-aligned, the others right-aligned.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (c, (cell, w)) in row.iter().zip(&widths).enumerate() {
            line.push_str(&if c == 0 { format!(" {cell:<w$}") } else { format!("  {cell:>w$}") });
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1234567), "1,234,567");
        assert_eq!(scaled(1_234_567.0), "1.23 M");
        assert_eq!(scaled(12_345.0), "12.3 k");
        assert_eq!(scaled(7.0), "7.00 ");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "10".into()], vec!["long".into(), "1".into()]];
        assert_eq!(table(&rows), "  a     10\n  long   1\n");
    }

    #[test]
    fn a_document_names_itself() {
        let doc = document("run", json!({"packets": 1}));
        assert_eq!(doc["schema_version"], SCHEMA_VERSION);
        assert_eq!((doc["command"].as_str(), doc["packets"].as_u64()), (Some("run"), Some(1)));
        assert_eq!(Paint::plain().bad("x"), "x");
    }
}
