//! What programs count themselves, in the form that every program can share: values with two members, `packets` and `bytes`.
//!
//! An interface's counters say what came in and what left it; which of it was whose only the program knows. So every map of an attached
//! program whose values are such structures (`struct counter` of `bpf/include/counter.h`) is shown beside the port's counters, on any
//! hook, under the map's name and the entry's key.

use serde_json::{Value, json};
use xway_abi::MapType;
use xway_hook::{Hook, MapId};
use xway_object::Btf;

use crate::values::{self, Shape};

/// Entries of one map that are looked at, at most: what is shown is for people.
const ENTRIES_MAX: usize = 256;
/// Bytes of a value: two numbers of eight.
const BYTES: usize = 16;

/// Numbers of the programs on a port, by name: `program.counters.5.packets`. Entries that counted nothing are left out, and so is what
/// cannot be read: a map that has gone meanwhile is no failure of whoever watches.
pub fn read(hook: &mut dyn Hook, port: &str) -> Vec<(String, u64)> {
    let mut seen: Vec<MapId> = Vec::new();
    for attached in hook.attachments(Some(port)).unwrap_or_default() {
        seen.extend(attached.program.maps.iter().filter(|map| !seen.contains(map)).copied().collect::<Vec<_>>());
    }
    seen.into_iter().filter_map(|map| numbers(hook, map)).flatten().collect()
}

fn numbers(hook: &mut dyn Hook, map: MapId) -> Option<Vec<(String, u64)>> {
    use MapType::{Array, Hash, LruHash, LruPercpuHash, PercpuArray, PercpuHash};
    let info = hook.map_info(map).ok()?;
    let plain = matches!(info.map_type, Array | Hash | LruHash | LruPercpuHash | PercpuArray | PercpuHash);
    if !plain || info.value_size as usize != BYTES {
        return None;
    }
    let types = hook.map_types(map).ok()??;
    let btf = Btf::parse(types.btf).ok()?;
    if !is_counter(Shape::new(Some(&btf), types.value, BYTES)) {
        return None;
    }
    let key_shape = Shape::new(Some(&btf), types.key, info.key_size as usize);
    let (mut out, mut key) = (Vec::new(), None);
    for _ in 0..ENTRIES_MAX {
        let Ok(Some(next)) = hook.map_next_key(map, key.as_deref()) else { break };
        let value = hook.map_lookup(map, &next, 0).unwrap_or_default();
        let word = |at: usize| -> u64 {
            let cpus = value.chunks_exact(BYTES).filter_map(|cpu| cpu.get(at..)?.first_chunk());
            cpus.map(|bytes| u64::from_ne_bytes(*bytes)).fold(0, u64::wrapping_add)
        };
        let label = match values::decode(key_shape, &next) {
            Value::String(text) => text,
            other => other.to_string(),
        };
        for (member, number) in [("packets", word(0)), ("bytes", word(8))] {
            if number > 0 {
                out.push((format!("program.{}.{label}.{member}", info.name), number));
            }
        }
        key = Some(next);
    }
    Some(out)
}

/// Whether a type is two numbers of eight bytes, `packets` and `bytes`, in this order and nothing else.
fn is_counter(shape: Shape<'_>) -> bool {
    let mut bytes = [0; BYTES];
    (bytes[0], bytes[7], bytes[8], bytes[15]) = (1, 2, 3, 4);
    let number = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
    values::decode(shape, &bytes) == json!({ "packets": number(0), "bytes": number(8) })
}
