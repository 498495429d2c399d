//! `struct xdp_md` on the command line: its bytes, or a JSON file with its fields.

use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::payload;

/// Fields in order, each 32 bits.
const FIELDS: [&str; 6] = ["data", "data_end", "data_meta", "ingress_ifindex", "rx_queue_index", "egress_ifindex"];

/// Reads a context. Fields that a JSON file leaves out are what a test run wants them to be: `data_end` the length of the
/// data, everything else 0.
pub fn read(text: &str, data_len: usize) -> Result<Vec<u8>, Failure> {
    let bytes = payload::bytes("--ctx-in", text)?;
    if !text.ends_with(".json") {
        return Ok(bytes);
    }
    let wrong = |what: String| Failure::input(format!("--ctx-in: {text}: {what}"));
    let json: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(format!("not JSON: {e}")))?;
    let table = json.as_object().ok_or_else(|| wrong(format!("expected a table with {}", FIELDS.join(", "))))?;
    let mut words = [0u32; FIELDS.len()];
    words[1] = data_len as u32;
    for (key, value) in table {
        let Some(at) = FIELDS.iter().position(|f| f == key) else {
            return Err(wrong(format!("struct xdp_md has no field {key:?}; there are {}", FIELDS.join(", "))));
        };
        let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
        words[at] = number.ok_or_else(|| wrong(format!("{key}: {value} is no number of 32 bits")))?;
    }
    Ok(words.iter().flat_map(|w| w.to_ne_bytes()).collect())
}

/// One field of a context.
pub fn word(ctx: &[u8], at: usize) -> u32 {
    ctx.get(at * 4..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b))
}

/// The fields by name.
pub fn fields(ctx: &[u8]) -> Value {
    let table: Map<String, Value> =
        FIELDS.iter().enumerate().map(|(at, name)| ((*name).into(), json!(word(ctx, at)))).collect();
    Value::Object(table)
}
