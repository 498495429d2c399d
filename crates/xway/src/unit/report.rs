//! Results of test cases and the forms in which they are written: text, TAP, JUnit, JSON.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::Engine;
use crate::print::Paint;

/// What came of one case.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Case.
    pub name: String,
    /// Empty when it passed; otherwise what differs, each part several lines of text.
    pub problems: Vec<String>,
    /// What ran it.
    pub engine: Ran,
    /// Time that it took, set-up included.
    pub took: Duration,
}

/// What ran a case, and why not what was asked for.
#[derive(Debug, Clone)]
pub struct Ran {
    /// By its name.
    pub effective: &'static str,
    /// What was asked for.
    pub requested: Engine,
    /// Why it is another one.
    pub reason: Option<String>,
}

impl Ran {
    /// In words, where it is another one than was asked for.
    fn instead(&self) -> Option<String> {
        let reason = self.reason.as_ref().filter(|_| self.requested == Engine::Jit)?;
        Some(format!("in the interpreter: {reason}"))
    }
}

/// What came of one file.
#[derive(Debug, Clone)]
pub struct Suite {
    /// File, as it was given.
    pub file: String,
    /// Its cases, in order.
    pub outcomes: Vec<Outcome>,
}

/// Cases that passed and that failed.
pub fn totals(suites: &[Suite]) -> (usize, usize) {
    let all = suites.iter().flat_map(|s| &s.outcomes);
    let failed = all.clone().filter(|o| !o.problems.is_empty()).count();
    (all.count() - failed, failed)
}

/// For people.
pub fn text(suites: &[Suite], paint: Paint) -> String {
    let mut out = String::new();
    for suite in suites {
        let _ = writeln!(out, "{}", suite.file);
        for outcome in &suite.outcomes {
            let mark = if outcome.problems.is_empty() { paint.good("ok    ") } else { paint.bad("FAILED") };
            let took = paint.dim(&format!("({:.1} ms)", outcome.took.as_secs_f64() * 1e3));
            let _ = writeln!(out, "  {mark} {}  {took}", outcome.name);
            for line in outcome.engine.instead().iter().chain(&outcome.problems).flat_map(|p| p.lines()) {
                let _ = writeln!(out, "         {line}");
            }
        }
    }
    let (passed, failed) = totals(suites);
    let _ = writeln!(out, "{passed} passed, {failed} failed");
    out
}

/// Test Anything Protocol, version 14 (testanything.org).
pub fn tap(suites: &[Suite]) -> String {
    let (passed, failed) = totals(suites);
    let mut out = format!("TAP version 14\n1..{}\n", passed + failed);
    let all = suites.iter().flat_map(|s| s.outcomes.iter().map(move |o| (s, o)));
    for (number, (suite, outcome)) in all.enumerate() {
        let word = if outcome.problems.is_empty() { "ok" } else { "not ok" };
        // '#' starts a directive and a backslash escapes it.
        let name = outcome.name.replace('\\', "\\\\").replace('#', "\\#").replace(['\n', '\r'], " ");
        let _ = writeln!(out, "{word} {} - {name}", number + 1);
        if let Some(instead) = outcome.engine.instead() {
            let _ = writeln!(out, "# {}", instead.replace(['\n', '\r'], " "));
        }
        if !outcome.problems.is_empty() {
            let _ = writeln!(out, "  ---\n  file: {}\n  message: |", json!(suite.file));
            for line in outcome.problems.iter().flat_map(|p| p.lines()) {
                let _ = writeln!(out, "    {line}");
            }
            out.push_str("  ...\n");
        }
    }
    out
}

/// JUnit XML, in the form that CI services read.
pub fn junit(suites: &[Suite]) -> String {
    let (passed, failed) = totals(suites);
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(out, "<testsuites tests=\"{}\" failures=\"{failed}\">", passed + failed);
    for suite in suites {
        let bad = suite.outcomes.iter().filter(|o| !o.problems.is_empty()).count();
        let time: f64 = suite.outcomes.iter().map(|o| o.took.as_secs_f64()).sum();
        let file = xml(&suite.file);
        let _ = writeln!(
            out,
            "  <testsuite name=\"{file}\" tests=\"{}\" failures=\"{bad}\" errors=\"0\" skipped=\"0\" time=\"{time:.6}\">",
            suite.outcomes.len()
        );
        for o in &suite.outcomes {
            let _ = write!(
                out,
                "    <testcase classname=\"{file}\" name=\"{}\" time=\"{:.6}\"",
                xml(&o.name),
                o.took.as_secs_f64()
            );
            match o.problems.first().map(|p| p.lines().next().unwrap_or_default()) {
                None => out.push_str("/>\n"),
                Some(first) => {
                    let body = xml(&o.problems.join("\n"));
                    let _ =
                        writeln!(out, ">\n      <failure message=\"{}\">{body}</failure>\n    </testcase>", xml(first));
                }
            }
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

/// Fields of the JSON document.
pub fn json(suites: &[Suite]) -> Value {
    let (passed, failed) = totals(suites);
    let files: Vec<Value> = suites
        .iter()
        .map(|suite| {
            let tests: Vec<Value> = suite
                .outcomes
                .iter()
                .map(|o| {
                    json!({
                        "name": o.name,
                        "result": if o.problems.is_empty() { "passed" } else { "failed" },
                        "problems": o.problems,
                        "duration_ns": o.took.as_nanos() as u64,
                        "engine": o.engine.effective,
                        "engine_requested": o.engine.requested.name(),
                        "engine_reason": o.engine.reason,
                    })
                })
                .collect();
            json!({ "file": suite.file, "tests": tests })
        })
        .collect();
    json!({ "passed": passed, "failed": failed, "files": files })
}

/// Text for XML: markup escaped, characters that XML 1.0 does not allow replaced.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push(c),
            c if (c as u32) < 0x20 || c == '\u{fffe}' || c == '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites() -> Vec<Suite> {
        let outcome = |name: &str, problems: &[&str]| Outcome {
            name: name.into(),
            problems: problems.iter().map(|p| p.to_string()).collect(),
            engine: Ran { effective: "interp", requested: Engine::Jit, reason: Some("it is <long>".into()) },
            took: Duration::from_millis(2),
        };
        vec![Suite {
            file: "a&b.toml".into(),
            outcomes: vec![outcome("good", &[]), outcome("bad # one", &["verdict differs\n<x>\u{1}", "more"])],
        }]
    }

    #[test]
    fn tap_has_a_plan_and_escapes() {
        let tap = tap(&suites());
        assert!(
            tap.starts_with(
                "TAP version 14\n1..2\nok 1 - good\n# in the interpreter: it is <long>\nnot ok 2 - bad \\# one\n\
             # in the interpreter: it is <long>\n  ---\n"
            ),
            "{tap}"
        );
        assert!(tap.ends_with("    more\n  ...\n"), "{tap}");
    }

    #[test]
    fn junit_is_well_formed() {
        let xml = junit(&suites());
        assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
        assert!(xml.contains("name=\"a&amp;b.toml\""), "{xml}");
        assert!(
            xml.contains("message=\"verdict differs\">verdict differs&#10;&lt;x&gt;\u{fffd}&#10;more</failure>"),
            "{xml}"
        );
        assert_eq!(xml.matches("<testcase").count(), 2);
    }

    #[test]
    fn text_and_json_say_the_same() {
        let text = text(&suites(), Paint::plain());
        assert!(text.contains("         in the interpreter: it is <long>\n"), "{text}");
        assert!(
            text.contains("ok     good") && text.contains("FAILED bad # one") && text.ends_with("1 passed, 1 failed\n"),
            "{text}"
        );
        let json = json(&suites());
        assert_eq!((json["passed"].as_u64(), json["failed"].as_u64()), (Some(1), Some(1)));
        assert_eq!(json["files"][0]["tests"][1]["result"], "failed");
        assert_eq!(json["files"][0]["tests"][0]["engine_reason"], "it is <long>");
    }
}
