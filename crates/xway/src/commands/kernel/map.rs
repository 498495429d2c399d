//! `xway map`: maps of the kernel, or of the service's engine.

use serde_json::{Value, json};
use xway_abi::{Errno, MapType, map_flags};
use xway_hook::{Hook, HookError, HookKind, MapId, MapInfo, ObjectId};
use xway_kernel::ObjectKind;

use super::attach::Place;
use super::entries::Typed;
use super::pinned::Pinned;
use super::which::{self, Which};
use super::{failure, failure_of, pinning, programs};
use crate::args_kernel::{self as args, HookRest as Rest, ShowRest};
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
        args::Map::Unpin(rest) => pinning::unpin("map", rest, as_json),
        args::Map::Freeze(rest) => freeze(rest, as_json),
        args::Map::Create(rest) => super::map_create::run(rest, as_json),
        args::Map::Push(rest) => push(rest, as_json),
        args::Map::Pop(rest) => pop(rest, as_json),
        args::Map::Peek(rest) => peek(rest, as_json),
        args::Map::EventPipe(rest) => super::event_pipe::run(rest, as_json),
    }
}

fn show(rest: &ShowRest, as_json: bool) -> Result<(), Failure> {
    let pinned = Pinned::of(ObjectKind::Map, rest)?;
    let mut place = Place::of(&rest.place)?;
    let hook = place.hook();
    let found = match Which::only(&rest.words)? {
        Some(which @ (Which::Id(_) | Which::Pinned(_))) => {
            let id = open(hook, &which)?;
            vec![hook.map_info(id).map_err(failure)?]
        }
        Some(which @ Which::Tag(_)) => return Err(no_tags(&which)),
        which => {
            let found = all(hook, which.as_ref())?;
            if let (Some(which), true) = (&which, found.is_empty()) {
                return Err(which::none(which, "map", hook.kind()));
            }
            found
        }
    };
    // The engine's types have no numbers.
    let types = |id: MapId| match &place {
        Place::Kernel(kernel) => kernel.map_btf_id(id),
        Place::Service(_) => None,
    };
    let one = |info: &MapInfo| pinned.json(info.id.0, describe(info, types(info.id)));
    let described: Vec<Value> = found.iter().map(one).collect();
    if as_json {
        print::json(&print::document("map show", json!({ "maps": described })));
    } else {
        let lines = |(info, doc): (&MapInfo, &Value)| text(doc) + &pinned.text(info.id.0);
        print::text(&found.iter().zip(&described).map(lines).collect::<String>());
    }
    Ok(())
}

/// What is known of a map; field names are bpftool's.
fn describe(info: &MapInfo, types: Option<u32>) -> Value {
    json!({
        "id": info.id.0,
        "type": info.map_type.name(),
        "name": info.name,
        "flags": info.flags,
        "bytes_key": info.key_size,
        "bytes_value": info.value_size,
        "max_entries": info.max_entries,
        "bytes_memlock": info.memory,
        "bytes_per_entry": per_entry(info),
        "placement": info.placement,
        "frozen": info.frozen,
        "btf_id": types,
    })
}

/// Memory for each entry that there is room for. Rings have bytes in the place of entries.
fn per_entry(info: &MapInfo) -> Option<u64> {
    let ring = matches!(info.map_type, MapType::Ringbuf | MapType::UserRingbuf);
    let entries = u64::from(info.max_entries);
    info.memory.filter(|_| entries > 0 && !ring).map(|bytes| bytes.div_ceil(entries))
}

fn text(map: &Value) -> String {
    let plain = |name: &str| match &map[name] {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    let placed = map["placement"].as_str().map_or(String::new(), |words| format!("  on {words}"));
    let frozen = if map["frozen"] == json!(true) { "  frozen" } else { "" };
    let each = map["bytes_per_entry"].as_u64().map_or(String::new(), |bytes| format!(" ({bytes} B an entry)"));
    format!(
        "{}: {}  name {}  flags {:#x}{frozen}\n  key {} B  value {} B  max_entries {}  memlock {} B{each}{placed}\n",
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
    let (mut typed, rest) = typed(rest)?;
    nothing_more(&rest)?;
    let id = typed.info.id;
    let mut doc = json!({
        "name": typed.info.name,
        "id": id.0,
        "type": typed.info.map_type.name(),
        "max_entries": typed.info.max_entries,
    });
    let keys = keys(&mut typed)?;
    let mut entries = Vec::new();
    for key in keys.iter().flatten().take(SHOWN_MAX) {
        match typed.hook.map_lookup(id, key, 0) {
            Ok(value) => entries.push(typed.entry(key, &value)),
            Err(e) => match e.errno {
                // Slots without an object, and elements that left meanwhile.
                Some(Errno::ENOENT) => {}
                // What a map gives out through other ways only (sockets).
                Some(Errno::EOPNOTSUPP | Errno::ENOTSUPP) => {
                    entries.push(json!({ "key": typed.show_key(key), "value": null }));
                }
                _ => return Err(typed.refused("reading an entry", e)),
            },
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

/// Every key, in the order of the map; `None`: the map has no keys that can be walked. It may change meanwhile, so no more than
/// it has room for are asked for.
fn keys(typed: &mut Typed) -> Result<Option<Vec<Vec<u8>>>, Failure> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    while keys.len() <= typed.info.max_entries as usize {
        match typed.hook.map_next_key(typed.info.id, keys.last().map(Vec::as_slice)) {
            Ok(Some(key)) => keys.push(key),
            Ok(None) => break,
            Err(e) if matches!(e.errno, Some(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOTSUPP)) => return Ok(None),
            Err(e) => return Err(typed.refused("listing its keys", e)),
        }
    }
    Ok(Some(keys))
}

fn lookup(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (mut typed, rest) = keyed(rest)?;
    let key = typed.key(after(&rest, "key")?)?;
    let found = typed.hook.map_lookup(typed.info.id, &key, 0);
    let value = found.map_err(|e| typed.refused("the look-up", e))?;
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
    let (mut typed, rest) = typed(rest)?;
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
    let id = typed.info.id;
    let done = match object(&mut typed, value)? {
        Some(object) => typed.hook.map_store(id, &key, object, flags),
        None => {
            let value = typed.value(value)?;
            typed.hook.map_update(id, &key, &value, flags)
        }
    };
    done.map_err(|e| typed.refused("the update", e))?;
    self::done("map update", as_json, json!({ "id": id.0 }))
}

/// The map or program that the words name, where the values of a map are such.
fn object(typed: &mut Typed, words: &[String]) -> Result<Option<ObjectId>, Failure> {
    let named = |what| match Which::needed(words, what)? {
        (which, rest) if rest.is_empty() => Ok(which),
        (_, rest) => Err(Failure::usage(format!("{}: not expected here", rest[0]))),
    };
    Ok(match typed.info.map_type {
        MapType::ProgArray => Some(ObjectId::Program(programs::open(&mut *typed.hook, &named("prog")?)?)),
        MapType::ArrayOfMaps | MapType::HashOfMaps => Some(ObjectId::Map(open(&mut *typed.hook, &named("map")?)?)),
        _ => None,
    })
}

fn delete(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (mut typed, rest) = keyed(rest)?;
    let key = typed.key(after(&rest, "key")?)?;
    let gone = typed.hook.map_delete(typed.info.id, &key);
    gone.map_err(|e| {
        let array = matches!(typed.info.map_type, MapType::Array | MapType::PercpuArray);
        let always = array && e.errno == Some(Errno::EINVAL);
        let failed = typed.refused("the removal", e);
        match always {
            true => {
                failed.hint("elements of an array are always there: xway map update WHICH key KEY value 0 clears one")
            }
            false => failed,
        }
    })?;
    done("map delete", as_json, json!({ "id": typed.info.id.0 }))
}

fn getnext(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (mut typed, rest) = typed(rest)?;
    let key = if rest.is_empty() { None } else { Some(typed.key(after(&rest, "key")?)?) };
    let next = typed.hook.map_next_key(typed.info.id, key.as_deref());
    let next = next.map_err(|e| typed.refused("asking for a key", e))?;
    let next = next.ok_or_else(|| Failure::no(format!("{}: no further key", typed.name())))?;
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
    let (mut typed, rest) = typed(rest)?;
    let path = pinning::path("map", &rest)?;
    if typed.hook.kind() == HookKind::Kernel {
        pinning::in_bpffs(&path)?;
    }
    let id = typed.info.id;
    typed.hook.pin(ObjectId::Map(id), &path).map_err(failure)?;
    done("map pin", as_json, json!({ "id": id.0, "path": path.display().to_string() }))
}

fn push(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (mut typed, rest) = keyless(rest)?;
    let value = typed.value(after(&rest, "value")?)?;
    let pushed = typed.hook.map_update(typed.info.id, &[], &value, map_flags::ANY);
    pushed.map_err(|e| typed.refused("the push", e))?;
    done("map push", as_json, json!({ "id": typed.info.id.0 }))
}

fn pop(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (mut typed, rest) = keyless(rest)?;
    nothing_more(&rest)?;
    let taken = typed.hook.map_take(typed.info.id, &[]);
    let out = taken.map_err(|e| empty(&mut typed, "the pop", e))?;
    value("map pop", &typed, &out, as_json)
}

fn peek(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (mut typed, rest) = keyless(rest)?;
    nothing_more(&rest)?;
    let seen = typed.hook.map_lookup(typed.info.id, &[], 0);
    let out = seen.map_err(|e| empty(&mut typed, "the look", e))?;
    value("map peek", &typed, &out, as_json)
}

fn empty(typed: &mut Typed, step: &str, error: HookError) -> Failure {
    match error.errno {
        Some(Errno::ENOENT) => Failure::no(format!("{}: it is empty", typed.name())),
        _ => typed.refused(step, error),
    }
}

fn value(command: &str, typed: &Typed, bytes: &[u8], as_json: bool) -> Result<(), Failure> {
    let shown = typed.entry(&[], bytes)["value"].take();
    match as_json {
        true => print::json(&print::document(command, json!({ "id": typed.info.id.0, "value": shown }))),
        false => print::text(&format!("{}\n", bare(&shown))),
    }
    Ok(())
}

/// A map with keys.
fn keyed(rest: &Rest) -> Result<(Typed, Vec<String>), Failure> {
    let (typed, rest) = typed(rest)?;
    match typed.info.key_size {
        0 => Err(Failure::usage(format!("{}: it has no keys", typed.name())).hint("xway map push, peek and pop")),
        _ => Ok((typed, rest)),
    }
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
    let (mut typed, rest) = typed(rest)?;
    nothing_more(&rest)?;
    let frozen = typed.hook.map_freeze(typed.info.id);
    frozen.map_err(|e| {
        // It may have been frozen since it was looked at.
        let already = typed.hook.map_info(typed.info.id).is_ok_and(|info| info.frozen);
        match e.errno {
            Some(errno @ (Errno::EPERM | Errno::EBUSY)) if already => {
                Failure::no(format!("{}: it is frozen already ({errno})", typed.name()))
            }
            Some(Errno::EBUSY) => {
                Failure::no(format!("{}: somebody has its values mapped for writing (EBUSY)", typed.name()))
                    .hint("freeze it when that process has ended, or has given its memory back")
            }
            _ => typed.refused("freezing", e),
        }
    })?;
    done("map freeze", as_json, json!({ "id": typed.info.id.0 }))
}

fn done(command: &str, as_json: bool, fields: Value) -> Result<(), Failure> {
    if as_json {
        print::json(&print::document(command, fields));
    }
    Ok(())
}

/// The hook that the words are for.
pub(super) fn hook(rest: &Rest) -> Result<Box<dyn Hook>, Failure> {
    Place::of(&rest.place).map(Place::boxed)
}

pub(super) fn typed(rest: &Rest) -> Result<(Typed, Vec<String>), Failure> {
    let mut hook = hook(rest)?;
    let (which, rest) = Which::needed(&rest.words, "map")?;
    let id = open(&mut *hook, &which)?;
    Ok((Typed::new(hook, id)?, rest))
}

/// The one map that is meant.
pub(super) fn open(hook: &mut dyn Hook, which: &Which) -> Result<MapId, Failure> {
    let on = hook.kind();
    match which {
        Which::Id(id) => Ok(hook.map_info(MapId(*id)).map_err(|e| failure_of("map", on, e))?.id),
        Which::Pinned(path) => match hook.pinned(path).map_err(|e| failure_of("map", on, e))? {
            ObjectId::Map(id) => Ok(id),
            ObjectId::Program(_) => Err(Failure::no(format!("{which}: it is a program"))),
        },
        Which::Name(_) => {
            let found = all(hook, Some(which))?.into_iter().map(|info| (info.id.0, info.id)).collect();
            which::one(found, which, "map", on)
        }
        Which::Tag(_) => Err(no_tags(which)),
    }
}

fn no_tags(which: &Which) -> Failure {
    Failure::usage(format!("{which}: maps have no tags")).hint("id N, name NAME or pinned PATH")
}

/// All maps, or those with a name.
fn all(hook: &mut dyn Hook, which: Option<&Which>) -> Result<Vec<MapInfo>, Failure> {
    let wanted = |info: &MapInfo| match which {
        // The kernel keeps 15 characters of a name.
        Some(Which::Name(name)) => info.name == name.chars().take(15).collect::<String>(),
        _ => true,
    };
    Ok(hook.maps().map_err(failure)?.into_iter().filter(wanted).collect())
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
