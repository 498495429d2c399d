//! What the verbs of our own applications say about a program that they attached.

use serde_json::{Value, json};
use xway_hook::Attached;

use super::kernel::attach::{choice_json, outcomes_json, outcomes_text};

/// A line, and one for each thing that is not as it was asked for.
pub fn text(port: &str, program: &str, attached: &Attached, warnings: &[String]) -> String {
    let (mode, held) = (attached.mode.effective, attached.held.effective);
    let place = if held == "engine" { "in the engine".into() } else { format!("in mode {mode}, held by {held}") };
    let mut out = format!("{port}: {program} (id {}) runs {place}\n", attached.program.0);
    for (what, choice) in [("mode", &attached.mode), ("a", &attached.held)] {
        if let Some(reason) = &choice.reason {
            out.push_str(&format!("  asked for {what} {}: {reason}\n", choice.requested));
        }
    }
    out.push_str(&outcomes_text(&attached.outcomes));
    attached.warnings.iter().chain(warnings).for_each(|w| out.push_str(&format!("  note: {w}\n")));
    out
}

/// The same for JSON documents.
pub fn json(port: &str, attached: &Attached, warnings: &[String]) -> Value {
    let warnings: Vec<&String> = attached.warnings.iter().chain(warnings).collect();
    json!({
        "port": port,
        "program": attached.program.0,
        "mode": choice_json(&attached.mode),
        "held": choice_json(&attached.held),
        "chain": attached.chain.as_ref().map(choice_json),
        "outcomes": outcomes_json(&attached.outcomes),
        "warnings": warnings,
    })
}
