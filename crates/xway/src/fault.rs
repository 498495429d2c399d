//! A fault of the checked interpreter in JSON.

use serde_json::{Value, json};
use xway_object::LineInfo;
use xway_vm::Fault;

/// Everything that is known about a fault, in the words that refusals use where they mean the same.
pub fn json(fault: &Fault) -> Value {
    let place = |line: &Option<LineInfo>| match line {
        Some(l) => json!({ "file": &*l.file, "line": l.line, "column": l.col, "source": l.text.trim() }),
        None => Value::Null,
    };
    let caller = |c: &xway_vm::Caller| json!({ "function": c.function, "insn": c.insn, "at": place(&c.line) });
    json!({
        "kind": fault.kind.name(),
        "message": fault.kind.to_string(),
        "program": fault.program,
        "function": fault.function,
        "insn": fault.insn,
        "text": fault.text,
        "at": place(&fault.line),
        "region": fault.kind.region().map(|r| &r.words),
        "known": fault.known.iter().map(|(value, known)| json!({ "value": value, "known": known })).collect::<Value>(),
        "callers": fault.callers.iter().map(caller).collect::<Value>(),
    })
}
