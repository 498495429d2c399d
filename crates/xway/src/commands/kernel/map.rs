//! `xway map`: maps in the kernel.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use serde_json::{Value, json};
use xway_abi::{Errno, MapType, map_flags};
use xway_kernel::{KernelMap, ObjectKind, ids};

use super::entries::{Typed, refused as refused_errno};
use super::which::{self, Which};
use super::{pinning, prog, refused};
use crate::args_kernel::{self as args, Rest};
use crate::contents;
use crate::failure::Failure;
use crate::print;

/// Entries that are shown of one map.
const SHOWN_MAX: usize = 1 << 20;

/// Runs the command.
pub fn run(args: &args::Map, as_json: bool) -> Result<(), Failure> {
    match args {
        args::Map::Show(rest) => show(rest, as_json),
        args::Map::Dump(rest) => dump(rest, as_json),
        args::Map::Lookup(rest) => lookup(rest, as_json),
        args::Map::Update(rest) => update(rest, as_json),
        args::Map::Delete(rest) => delete(rest, as_json),
        args::Map::Getnext(rest) => getnext(rest, as_json),
        args::Map::Pin(rest) => pin(rest, as_json),
        args::Map::Freeze(rest) => freeze(rest, as_json),
        args::Map::Create(rest) => super::map_create::run(rest, as_json),
        args::Map::Push(rest) => push(rest, as_json),
        args::Map::Pop(rest) => pop(rest, as_json),
        args::Map::Peek(rest) => peek(rest, as_json),
        args::Map::EventPipe(rest) => super::event_pipe::run(rest, as_json),
    }
}

fn show(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let found = match Which::only(&rest.words)? {
        Some(which @ (Which::Id(_) | Which::Pinned(_))) => vec![open(&which)?],
        which => {
            let found: Vec<KernelMap> = all(which.as_ref())?.into_iter().map(|(_, map)| map).collect();
            if let (Some(which), true) = (&which, found.is_empty()) {
                return Err(Failure::no(format!("no map with {which} in the kernel")).hint("xway map show"));
            }
            found
        }
    };
    let described: Vec<Value> = found.iter().map(describe).collect::<Result<_, _>>()?;
    if as_json {
        print::json(&print::document("map show", json!({ "maps": described })));
    } else {
        print::text(&described.iter().map(text).collect::<String>());
    }
    Ok(())
}

/// What the kernel says of a map; field names are bpftool's.
fn describe(map: &KernelMap) -> Result<Value, Failure> {
    let info = map.info().map_err(|e| refused_errno("asking about a map", e))?;
    let fdinfo = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).unwrap_or_default();
    let field = |name: &str| fdinfo.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    Ok(json!({
        "id": info.id,
        "type": map.spec().map_type.name(),
        "name": info.name,
        "flags": info.flags,
        "bytes_key": info.key_size,
        "bytes_value": info.value_size,
        "max_entries": info.max_entries,
        "bytes_memlock": field("memlock:").and_then(|v| v.parse::<u64>().ok()),
        "frozen": field("frozen:").map(|v| v == "1"),
        "btf_id": info.btf_id,
    }))
}

fn text(map: &Value) -> String {
    let plain = |name: &str| match &map[name] {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    let frozen = if map["frozen"] == json!(true) { "  frozen" } else { "" };
    format!(
        "{}: {}  name {}  flags {:#x}{frozen}\n  key {} B  value {} B  max_entries {}  memlock {} B\n",
        plain("id"),
        plain("type"),
        plain("name"),
        map["flags"].as_u64().unwrap_or(0),
        plain("bytes_key"),
        plain("bytes_value"),
        plain("max_entries"),
        plain("bytes_memlock"),
    )
}

fn dump(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = typed(rest)?;
    nothing_more(&rest)?;
    let mut doc = json!({
        "name": typed.info.name,
        "id": typed.info.id,
        "type": typed.map.spec().map_type.name(),
        "max_entries": typed.info.max_entries,
    });
    let keys = match typed.map.keys() {
        Ok(keys) => Some(keys),
        Err(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOTSUPP) => None,
        Err(e) => return Err(typed.refused("listing its keys", e)),
    };
    let mut entries = Vec::new();
    for key in keys.iter().flatten().take(SHOWN_MAX) {
        match typed.map.get(key) {
            Ok(value) => entries.push(typed.entry(key, &value)),
            // Slots without an object, and elements that left meanwhile.
            Err(Errno::ENOENT) => {}
            // What a map gives out through other ways only (sockets).
            Err(Errno::EOPNOTSUPP | Errno::ENOTSUPP) => {
                entries.push(json!({ "key": typed.show_key(key), "value": null }));
            }
            Err(e) => return Err(typed.refused("reading an entry", e)),
        }
    }
    let left = keys.as_ref().map_or(0, |k| k.len().saturating_sub(SHOWN_MAX));
    doc["entries"] = if keys.is_some() { json!(entries) } else { Value::Null };
    if left > 0 {
        doc["entries_left_out"] = json!(left);
    }
    match as_json {
        true => print::json(&print::document("map dump", doc)),
        false => print::text(&contents::text(&[doc])),
    }
    Ok(())
}

fn lookup(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = typed(rest)?;
    let key = typed.key(after(&rest, "key")?)?;
    let value = typed.map.get(&key).map_err(|e| typed.refused("the look-up", e))?;
    let entry = typed.entry(&key, &value);
    if as_json {
        print::json(&print::document("map lookup", entry));
    } else {
        let value = entry.get("value").or_else(|| entry.get("values")).cloned().unwrap_or_default();
        print::text(&format!("{} = {}\n", bare(&entry["key"]), bare(&value)));
    }
    Ok(())
}

fn update(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = typed(rest)?;
    let at = rest.iter().position(|w| w == "value");
    let at = at
        .ok_or_else(|| Failure::usage("the word value is missing").hint("… key KEY value VALUE [any|exist|noexist]"))?;
    let (key, value) = (&rest[..at], &rest[at + 1..]);
    let (value, flags) = match value.split_last() {
        Some((flag, value)) if flag == "any" && !value.is_empty() => (value, map_flags::ANY),
        Some((flag, value)) if flag == "noexist" && !value.is_empty() => (value, map_flags::NOEXIST),
        Some((flag, value)) if flag == "exist" && !value.is_empty() => (value, map_flags::EXIST),
        _ => (value, map_flags::ANY),
    };
    // Queues, stacks and bloom filters have no keys.
    let key = if typed.info.key_size == 0 { Vec::new() } else { typed.key(after(key, "key")?)? };
    if let Some(object) = object(&typed, value)? {
        typed.map.update_fd(&key, object.as_fd(), flags).map_err(|e| typed.refused("the update", e))?;
        return done("map update", as_json, json!({ "id": typed.info.id }));
    }
    let value = typed.value(value)?;
    typed.map.update(&key, &value, flags).map_err(|e| typed.refused("the update", e))?;
    done("map update", as_json, json!({ "id": typed.info.id }))
}

/// The map or program that the words name, where the values of a map are such.
fn object(typed: &Typed, words: &[String]) -> Result<Option<OwnedFd>, Failure> {
    let named = |what| match Which::needed(words, what)? {
        (which, rest) if rest.is_empty() => Ok(which),
        (_, rest) => Err(Failure::usage(format!("{}: not expected here", rest[0]))),
    };
    let fd = match typed.map.spec().map_type {
        MapType::ProgArray => prog::open(&named("prog")?)?.as_fd().try_clone_to_owned(),
        MapType::ArrayOfMaps | MapType::HashOfMaps => open(&named("map")?)?.as_fd().try_clone_to_owned(),
        _ => return Ok(None),
    };
    fd.map(Some).map_err(|e| Failure::needs(format!("{}: {e}", typed.name())))
}

fn delete(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = typed(rest)?;
    let key = typed.key(after(&rest, "key")?)?;
    typed.map.delete(&key).map_err(|e| typed.refused("the removal", e))?;
    done("map delete", as_json, json!({ "id": typed.info.id }))
}

fn getnext(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = typed(rest)?;
    let key = if rest.is_empty() { None } else { Some(typed.key(after(&rest, "key")?)?) };
    let mut next = vec![0; typed.info.key_size as usize];
    typed.map.next_key(key.as_deref(), &mut next).map_err(|e| match e {
        Errno::ENOENT => Failure::no(format!("{}: no further key", typed.name())),
        e => typed.refused("asking for a key", e),
    })?;
    let shown = typed.show_key(&next);
    if as_json {
        let key = key.map(|k| typed.show_key(&k));
        print::json(&print::document("map getnext", json!({ "key": key, "next_key": shown })));
    } else {
        print::text(&format!("{}\n", bare(&shown)));
    }
    Ok(())
}

fn pin(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = typed(rest)?;
    pinning::pin("map", typed.map.as_fd(), typed.info.id, &pinning::path("map", &rest)?, as_json)
}

fn push(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = keyless(rest)?;
    let value = typed.value(after(&rest, "value")?)?;
    typed.map.update(&[], &value, map_flags::ANY).map_err(|e| typed.refused("the push", e))?;
    done("map push", as_json, json!({ "id": typed.info.id }))
}

fn pop(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = keyless(rest)?;
    nothing_more(&rest)?;
    let mut out = vec![0; typed.map.user_value_size()];
    typed.map.lookup_and_delete(&[], &mut out, 0).map_err(|e| empty(&typed, "the pop", e))?;
    value("map pop", &typed, &out, as_json)
}

fn peek(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = keyless(rest)?;
    nothing_more(&rest)?;
    let out = typed.map.get(&[]).map_err(|e| empty(&typed, "the look", e))?;
    value("map peek", &typed, &out, as_json)
}

fn empty(typed: &Typed, step: &str, errno: Errno) -> Failure {
    match errno {
        Errno::ENOENT => Failure::no(format!("{}: it is empty", typed.name())),
        errno => typed.refused(step, errno),
    }
}

fn value(command: &str, typed: &Typed, bytes: &[u8], as_json: bool) -> Result<(), Failure> {
    let shown = typed.entry(&[], bytes)["value"].take();
    match as_json {
        true => print::json(&print::document(command, json!({ "id": typed.info.id, "value": shown }))),
        false => print::text(&format!("{}\n", bare(&shown))),
    }
    Ok(())
}

/// A map without keys.
fn keyless(rest: &Rest) -> Result<(Typed, Vec<String>), Failure> {
    let (typed, rest) = typed(rest)?;
    match typed.info.key_size {
        0 => Ok((typed, rest)),
        _ => Err(Failure::usage(format!("{}: it has keys, so nothing is pushed or popped", typed.name()))
            .hint("xway map update, lookup and delete")),
    }
}

fn freeze(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = typed(rest)?;
    nothing_more(&rest)?;
    typed.map.freeze().map_err(|e| typed.refused("freezing", e))?;
    done("map freeze", as_json, json!({ "id": typed.info.id }))
}

fn done(command: &str, as_json: bool, fields: Value) -> Result<(), Failure> {
    if as_json {
        print::json(&print::document(command, fields));
    }
    Ok(())
}

pub(super) fn typed(rest: &Rest) -> Result<(Typed, Vec<String>), Failure> {
    let (which, rest) = Which::needed(&rest.words, "map")?;
    Ok((Typed::new(open(&which)?)?, rest))
}

pub(super) fn open(which: &Which) -> Result<KernelMap, Failure> {
    match which {
        Which::Id(id) => KernelMap::by_id(*id).map_err(refused),
        Which::Pinned(path) => KernelMap::pinned(path).map_err(refused),
        Which::Name(_) => which::one(all(Some(which))?, which, "map"),
        Which::Tag(_) => {
            Err(Failure::usage(format!("{which}: maps have no tags")).hint("id N, name NAME or pinned PATH"))
        }
    }
}

/// All maps, or those with a name, with their ids. Maps of types that are not known are left out.
fn all(which: Option<&Which>) -> Result<Vec<(u32, KernelMap)>, Failure> {
    let mut found = Vec::new();
    for id in ids(ObjectKind::Map).map_err(refused)? {
        let map = match KernelMap::by_id(id) {
            Ok(map) => map,
            // It went away meanwhile, or has a type that XDP knows nothing of.
            Err(e) if matches!(e.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => continue,
            Err(e) => return Err(refused(e)),
        };
        let wanted = match which {
            // The kernel keeps 15 characters of a name.
            Some(Which::Name(name)) => map.info().is_ok_and(|i| i.name == name.chars().take(15).collect::<String>()),
            _ => true,
        };
        found.extend(wanted.then_some((id, map)));
    }
    Ok(found)
}

/// The words behind a keyword, which must come first.
fn after<'w>(words: &'w [String], keyword: &str) -> Result<&'w [String], Failure> {
    match words.split_first() {
        Some((first, rest)) if first == keyword => Ok(rest),
        _ => Err(Failure::usage(format!("the word {keyword} is missing"))
            .hint(format!("… {keyword} {}", keyword.to_uppercase()))),
    }
}

fn nothing_more(words: &[String]) -> Result<(), Failure> {
    words.first().map_or(Ok(()), |extra| Err(Failure::usage(format!("{extra}: not expected here"))))
}

fn bare(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_needed() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(after(&words("key 1 2"), "key").unwrap(), words("1 2"));
        assert!(after(&words("1 2"), "key").is_err() && after(&[], "key").is_err());
    }
}
