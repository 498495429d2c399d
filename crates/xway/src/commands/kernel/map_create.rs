//! `xway map create`: a map of its own, held by its pin.

use std::path::Path;

use serde_json::json;
use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_hook::{HookKind, ObjectId};

use super::which::Which;
use super::{failure, map, pinning};
use crate::args_kernel::HookRest;
use crate::failure::Failure;
use crate::print;

/// Runs the command.
pub fn run(rest: &HookRest, as_json: bool) -> Result<(), Failure> {
    let hint = "xway map create PATH type TYPE key BYTES value BYTES entries N name NAME";
    let [path, words @ ..] = rest.words.as_slice() else {
        return Err(Failure::usage("the path to pin the map at is missing").hint(hint));
    };
    let asked = Asked::parse(words).map_err(|f| f.hint(hint))?;
    let mut hook = map::hook(rest)?;
    let mut spec = asked.spec;
    if let Some(which) = &asked.inner {
        let inner = map::open(&mut *hook, which)?;
        let info = hook.map_info(inner).map_err(failure)?;
        let mut template = MapSpec::new(info.map_type, info.key_size, info.value_size, info.max_entries);
        template.flags = info.flags;
        spec.inner = Some(Box::new(template));
    }
    let path = Path::new(path);
    if hook.kind() == HookKind::Kernel {
        pinning::in_bpffs(path)?;
    }
    let id = hook.map_create(&asked.name, &spec).map_err(|e| {
        let why = e.errno.and_then(|errno| shape(errno, &spec));
        match why {
            Some(why) => failure(e).hint(why),
            None => failure(e),
        }
    })?;
    hook.pin(ObjectId::Map(id), path).map_err(failure)?;
    let name = hook.map_info(id).map_or_else(|_| asked.name.clone(), |info| info.name);
    if name != asked.name {
        print::note(&format!("{}: asked for this name, got {name}: Linux keeps 15 bytes of it", asked.name));
    }
    let id = id.0;
    if as_json {
        let doc = json!({ "id": id, "name": name, "path": path.display().to_string() });
        print::json(&print::document("map create", doc));
    }
    Ok(())
}

/// What maps of a type must be like, where this one is not.
fn shape(errno: Errno, spec: &MapSpec) -> Option<String> {
    use MapType::{
        Array, ArrayOfMaps, BloomFilter, HashOfMaps, LpmTrie, PercpuArray, Queue, Ringbuf, Stack, UserRingbuf,
    };
    let MapSpec { map_type, key_size, value_size, max_entries, flags, .. } = spec;
    let name = map_type.name();
    let ring = matches!(map_type, Ringbuf | UserRingbuf);
    match map_type {
        ArrayOfMaps | HashOfMaps if spec.inner.is_none() => {
            return Some("inner_map WHICH: a map that is like those that it will hold".into());
        }
        _ if errno == Errno::E2BIG => {
            return Some("fewer entries, or smaller ones: there is no room for so many".into());
        }
        _ if errno != Errno::EINVAL => return None,
        _ => {}
    }
    match map_type {
        Ringbuf | UserRingbuf if *key_size != 0 || *value_size != 0 => {
            Some(format!("a {name} has neither keys nor values: key 0 value 0"))
        }
        Ringbuf | UserRingbuf if !max_entries.is_power_of_two() || *max_entries < 4096 => {
            Some(format!("entries of a {name} are bytes: a power of two, 4096 or more"))
        }
        Queue | Stack | BloomFilter if *key_size != 0 => Some(format!("a {name} has no keys: key 0")),
        Array | PercpuArray if *key_size != 4 => Some(format!("keys of an {name} are indices: key 4")),
        LpmTrie if flags & map_flags::NO_PREALLOC == 0 => Some("an lpm_trie is made with flags 1".into()),
        LpmTrie if *key_size < 5 => Some("keys of an lpm_trie begin with four bytes of length: key 8 for IPv4".into()),
        _ if *max_entries == 0 => Some("entries N, more than 0".into()),
        _ if *value_size == 0 && !ring => Some("value BYTES, more than 0".into()),
        _ if *key_size == 0 && !matches!(map_type, Queue | Stack | BloomFilter) && !ring => {
            Some("key BYTES, more than 0".into())
        }
        _ if *flags != 0 => Some(format!("flags {flags:#x}: not all of these are for a {name}")),
        _ => None,
    }
}

struct Asked {
    name: String,
    spec: MapSpec,
    inner: Option<Which>,
}

impl Asked {
    fn parse(mut words: &[String]) -> Result<Asked, Failure> {
        let (mut name, mut map_type, mut inner) = (None, None, None);
        let mut spec = MapSpec::new(MapType::Array, 0, 0, 0);
        while let Some((keyword, rest)) = words.split_first() {
            let (value, mut rest) =
                rest.split_first().ok_or_else(|| Failure::usage(format!("{keyword}: a value is missing")))?;
            let number = || -> Result<u32, Failure> {
                let parsed = match value.strip_prefix("0x") {
                    Some(hex) => u32::from_str_radix(hex, 16).ok(),
                    None => value.parse().ok(),
                };
                parsed.ok_or_else(|| Failure::usage(format!("{keyword} {value}: not a number")))
            };
            match keyword.as_str() {
                "type" => map_type = Some(by_name(value)?),
                "key" => spec.key_size = number()?,
                "value" => spec.value_size = number()?,
                "entries" => spec.max_entries = number()?,
                "flags" => spec.flags = number()?,
                "extra" => spec.map_extra = number()?.into(),
                "name" => name = Some(named(value)?),
                "inner_map" => (inner, rest) = Which::take(&words[1..])?,
                other => return Err(Failure::usage(format!("{other}: not expected here"))),
            }
            words = rest;
        }
        spec.map_type = map_type.ok_or_else(|| Failure::usage("the type is missing"))?;
        let name = name.ok_or_else(|| Failure::usage("the name is missing"))?;
        Ok(Asked { name, spec, inner })
    }
}

/// A name that Linux takes as it is, but for its length.
fn named(name: &str) -> Result<String, Failure> {
    let takes = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    match name.chars().find(|c| !takes(*c)) {
        Some(c) => Err(Failure::usage(format!("name {name}: names have letters, digits, `_` and `.`, and no {c:?}"))),
        None => Ok(name.to_owned()),
    }
}

fn by_name(name: &str) -> Result<MapType, Failure> {
    let all = || (1..=64).filter_map(MapType::from_u32);
    all().find(|t| t.name() == name).ok_or_else(|| {
        let have: Vec<&str> = all().map(MapType::name).collect();
        Failure::usage(format!("type {name}: not known; there are {}", have.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Asked, Failure> {
        Asked::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn words_become_a_specification() {
        let asked = parse("type hash key 4 value 8 entries 1024 name blocked flags 0x1").unwrap();
        assert_eq!((asked.name.as_str(), asked.spec.map_type), ("blocked", MapType::Hash));
        let MapSpec { key_size, value_size, max_entries, flags, .. } = asked.spec;
        assert_eq!((key_size, value_size, max_entries, flags), (4, 8, 1024, 1));
        let asked = parse("type array_of_maps key 4 value 4 entries 1 inner_map id 7 name x").unwrap();
        assert_eq!(asked.inner, Some(Which::Id(7)));
        for wrong in [
            "type hash name a-b key 4 value 4 entries 1",
            "type hash",
            "name x",
            "type nonsense name x",
            "type hash name x key",
            "type hash name x key y",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
