//! Map contents as JSON: filling maps before a run (`--map`, test files) and showing them afterwards (`--dump-maps`).
//!
//! The form is a list of entries `{"key": …, "value": …}`, the same in both directions; on per-CPU maps `"values"` holds one
//! value for each CPU. `docs/testing.md` describes it.

use std::sync::Arc;

use serde_json::{Map as Table, Value, json};
use xway_abi::{Errno, MapType, map_flags};
use xway_maps::Map;
use xway_object::{Initial, MapDef, MapKind, Object};
use xway_vm::Instance;

use crate::failure::Failure;
use crate::payload;
use crate::values::{self, Shape};

/// Largest file of map contents, bytes.
const FILE_MAX: u64 = 256 << 20;
/// Arrays of up to this many entries are shown in full; of larger ones, only entries that are not zero.
const ARRAY_FULL: u32 = 256;
/// Most entries that one map shows.
const SHOWN_MAX: usize = 100_000;

/// Entries for one map.
#[derive(Debug, Clone)]
pub struct Filling {
    /// Where it comes from, for messages.
    pub origin: String,
    /// Map.
    pub map: String,
    /// Its entries.
    pub entries: Vec<Value>,
}

impl Filling {
    /// Reads the argument of `--map`: `NAME=FILE.json`.
    pub fn argument(text: &str) -> Result<Filling, Failure> {
        let Some((map, file)) = text.split_once('=') else {
            return Err(Failure::usage(format!("--map {text}: expected NAME=FILE.json")));
        };
        Filling::read("--map", map, file)
    }

    /// Reads a file that an option names.
    pub fn read(option: &str, map: &str, file: &str) -> Result<Filling, Failure> {
        let bytes = payload::file(file.as_ref(), FILE_MAX).map_err(|f| f.at(format!("{option} {map}")))?;
        let wrong = |what: String| Failure::input(format!("{option} {map}: {file}: {what}"));
        let json: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(format!("not JSON: {e}")))?;
        let entries = match json {
            Value::Array(list) => list,
            // What --dump-maps prints for one map, and the value of a data section alone.
            Value::Object(mut table) => match table.remove("entries") {
                Some(Value::Array(list)) => list,
                Some(_) => return Err(wrong("\"entries\" is no list".into())),
                None => vec![json!({ "key": 0, "value": table })],
            },
            _ => {
                return Err(wrong("expected a list of {\"key\": …, \"value\": …}".into())
                    .hint("docs/testing.md shows the form"));
            }
        };
        Ok(Filling { origin: file.to_owned(), map: map.to_owned(), entries })
    }

    fn failure(&self, what: impl std::fmt::Display) -> Failure {
        Failure::input(format!("{}: map {}: {what}", self.origin, self.map))
    }
}

/// Changes what data sections hold before the maps are made: after that, constants cannot be written any more.
/// Fillings of other maps are returned.
pub fn fill_sections(object: &mut Object, fillings: &[Filling]) -> Result<Vec<Filling>, Failure> {
    let mut rest = Vec::new();
    for filling in fillings {
        let index = index_of(object, filling)?;
        if object.maps[index].kind == MapKind::User {
            rest.push(filling.clone());
            continue;
        }
        let btf = object.btf.clone();
        let def = &mut object.maps[index];
        let size = def.spec.value_size as usize;
        let mut bytes = match &def.initial {
            Initial::Data(bytes) => bytes.clone(),
            _ => vec![0; size],
        };
        bytes.resize(size, 0);
        for entry in &filling.entries {
            let (_, value) = parts(entry).map_err(|e| filling.failure(e))?;
            let Some(value) = value.get("value") else { return Err(filling.failure("an entry without \"value\"")) };
            let shape = Shape::new(btf.as_deref(), def.value_type, size);
            bytes = values::encode(shape, value, &bytes).map_err(|e| filling.failure(e))?;
        }
        def.initial = Initial::Data(bytes);
    }
    Ok(rest)
}

/// Writes entries into live maps.
pub fn fill(instance: &Instance, fillings: &[Filling]) -> Result<(), Failure> {
    for filling in fillings {
        let index = index_of(instance.object(), filling)?;
        let (def, map) = (&instance.object().maps[index], &instance.maps()[index]);
        let typed = Typed { instance, def, map };
        for entry in &filling.entries {
            typed.put(entry).map_err(|e| filling.failure(e))?;
        }
    }
    Ok(())
}

fn index_of(object: &Object, filling: &Filling) -> Result<usize, Failure> {
    object.map_index(&filling.map).ok_or_else(|| {
        let have: Vec<&str> = object.maps.iter().map(|m| m.name.as_str()).collect();
        let have = if have.is_empty() { "it has none".into() } else { format!("it has {}", have.join(", ")) };
        Failure::usage(format!("{}: the object has no map {:?}; {have}", filling.origin, filling.map))
    })
}

/// Key, if the entry has one, and the table with everything.
fn parts(entry: &Value) -> Result<(Option<&Value>, &Table<String, Value>), String> {
    let table =
        entry.as_object().ok_or_else(|| format!("{entry} is no entry; expected {{\"key\": …, \"value\": …}}"))?;
    // `formatted` is what bpftool adds to its dumps.
    if let Some(key) = table.keys().find(|k| !matches!(k.as_str(), "key" | "value" | "values" | "formatted")) {
        return Err(format!("an entry has key, value and values, not {key:?}"));
    }
    Ok((table.get("key"), table))
}

/// A map that need not live yet, as its object describes it: from JSON to bytes.
#[derive(Clone, Copy)]
pub struct Described<'a> {
    /// Where maps and programs have their names.
    pub object: &'a Object,
    /// Its description.
    pub def: &'a MapDef,
    /// How many values a per-CPU map has for each key.
    pub cpus: u32,
}

/// The value of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Given {
    /// What the system call side takes.
    Bytes(Vec<u8>),
    /// The object's map of this index.
    Map(usize),
    /// The object's program of this index.
    Program(usize),
}

impl<'a> Described<'a> {
    fn shape(&self, type_id: u32, size: u32) -> Shape<'a> {
        Shape::new(self.object.btf.as_deref(), type_id, size as usize)
    }

    fn value_shape(&self) -> Shape<'a> {
        self.shape(self.def.value_type, self.def.spec.value_size)
    }

    /// Length of one CPU's value in what the system call side copies.
    fn step(&self) -> usize {
        self.def.spec.value_size.next_multiple_of(8) as usize
    }

    /// Whether it has a value for each CPU.
    pub fn per_cpu(&self) -> bool {
        matches!(self.def.spec.map_type, MapType::PercpuHash | MapType::PercpuArray | MapType::LruPercpuHash)
    }

    /// Whether its elements have no keys.
    pub fn keyless(&self) -> bool {
        matches!(self.def.spec.map_type, MapType::Queue | MapType::Stack | MapType::BloomFilter)
    }

    /// The bytes of a key.
    pub fn key(&self, key: &Value) -> Result<Vec<u8>, String> {
        let shape = self.shape(self.def.key_type, self.def.spec.key_size);
        values::encode(shape, key, &[]).map_err(|e| format!("key {key}: {e}"))
    }

    /// The bytes of one value.
    pub fn one(&self, value: &Value) -> Result<Vec<u8>, String> {
        values::encode(self.value_shape(), value, &[]).map_err(|e| format!("value {value}: {e}"))
    }

    /// One value as it is written in files.
    pub fn shown(&self, value: &[u8]) -> Value {
        values::decode(self.value_shape(), value)
    }

    /// Key (none where there are none) and value of an entry.
    pub fn entry(&self, entry: &Value) -> Result<(Vec<u8>, Given), String> {
        let (key, table) = parts(entry)?;
        let value = self.value(table)?;
        if self.keyless() {
            return Ok((Vec::new(), value));
        }
        Ok((self.key(key.ok_or_else(|| format!("{entry} has no key"))?)?, value))
    }

    /// What the system call side takes for an entry's value.
    fn value(&self, table: &Table<String, Value>) -> Result<Given, String> {
        let padded = |value: &Value| -> Result<Vec<u8>, String> {
            let mut bytes = self.one(value)?;
            bytes.resize(self.step(), 0);
            Ok(bytes)
        };
        match (table.get("value"), table.get("values")) {
            (Some(_), Some(_)) => Err("an entry has value or values, not both".into()),
            (None, None) => Err("an entry without \"value\"".into()),
            (Some(value), None) if self.per_cpu() => Ok(Given::Bytes(padded(value)?.repeat(self.cpus as usize))),
            (Some(value), None) => self.reference(value).unwrap_or_else(|| self.one(value).map(Given::Bytes)),
            (None, Some(_)) if !self.per_cpu() => Err("\"values\" is for per-CPU maps; give \"value\"".into()),
            (None, Some(list)) => {
                let list = list.as_array().ok_or("\"values\" is no list")?;
                let cpus = self.cpus as usize;
                if list.len() > cpus {
                    return Err(format!("{} values for {cpus} CPUs", list.len()));
                }
                let mut out = Vec::new();
                for value in list {
                    // bpftool prints {"cpu": N, "value": …}.
                    out.extend(padded(value.get("value").unwrap_or(value))?);
                }
                out.resize(self.step() * cpus, 0);
                Ok(Given::Bytes(out))
            }
        }
    }

    /// Values of maps that hold maps or programs are their names.
    fn reference(&self, value: &Value) -> Option<Result<Given, String>> {
        let name = || value.as_str().ok_or_else(|| format!("value {value}: expected a name"));
        let found = |index: Option<usize>, what| index.ok_or_else(|| format!("value {value}: no {what} has this name"));
        match self.def.spec.map_type {
            MapType::ArrayOfMaps | MapType::HashOfMaps => {
                Some(name().and_then(|name| found(self.object.map_index(name), "map")).map(Given::Map))
            }
            MapType::ProgArray => {
                let index = |name: &str| self.object.programs.iter().position(|p| p.name == name);
                Some(name().and_then(|name| found(index(name), "program")).map(Given::Program))
            }
            _ => None,
        }
    }
}

/// A live map with what the object says about it.
#[derive(Clone, Copy)]
pub struct Typed<'a> {
    /// Where it lives.
    pub instance: &'a Instance,
    /// Its description.
    pub def: &'a MapDef,
    /// The map.
    pub map: &'a Map,
}

impl<'a> Typed<'a> {
    /// The map with this name.
    pub fn named(instance: &'a Instance, name: &str) -> Option<Typed<'a>> {
        let index = instance.object().map_index(name)?;
        Some(Typed { instance, def: &instance.object().maps[index], map: &instance.maps()[index] })
    }

    fn described(&self) -> Described<'a> {
        Described { object: self.instance.object(), def: self.def, cpus: self.map.cpus() }
    }

    fn shape(&self, type_id: u32, size: usize) -> Shape<'a> {
        Shape::new(self.instance.object().btf.as_deref(), type_id, size)
    }

    fn per_cpu(&self) -> bool {
        self.described().per_cpu()
    }

    /// The bytes of a key.
    pub fn key(&self, key: &Value) -> Result<Vec<u8>, String> {
        self.described().key(key)
    }

    /// Writes one entry.
    fn put(&self, entry: &Value) -> Result<(), String> {
        let (key, value) = self.described().entry(entry)?;
        let value = self.bytes_of(value)?;
        let refused = |errno: Errno| format!("entry {entry}: {errno} ({})", errno.text());
        if self.described().keyless() {
            return self.map.push(&value, map_flags::ANY).map_err(refused);
        }
        self.map.update(&key, &value, map_flags::ANY).map_err(refused)
    }

    /// What the map takes: descriptors of what it holds.
    fn bytes_of(&self, value: Given) -> Result<Vec<u8>, String> {
        let fd = match value {
            Given::Bytes(bytes) => return Ok(bytes),
            Given::Map(index) => self.instance.map_fd(index).ok_or("there is no such map")?,
            Given::Program(index) => self.instance.program_fd(index).map_err(|e| e.to_string())?,
        };
        Ok(fd.to_ne_bytes().to_vec())
    }

    /// A key as JSON. Indices are numbers, also where the object says nothing about them.
    fn show_key(&self, key: &[u8]) -> Value {
        use MapType::{Array, ArrayOfMaps, Cpumap, Devmap, DevmapHash, PercpuArray, ProgArray, Xskmap};
        let index = matches!(
            self.map.map_type(),
            Array | PercpuArray | ProgArray | ArrayOfMaps | Devmap | DevmapHash | Cpumap | Xskmap
        );
        match key.first_chunk() {
            Some(bytes) if index && self.def.key_type == 0 => json!(u32::from_ne_bytes(*bytes)),
            _ => values::decode(self.shape(self.def.key_type, self.map.key_size()), key),
        }
    }

    /// What the value at a key is compared with: JSON, brought into the form in which it would be read back.
    pub fn normal(&self, expected: &Value, present: &[u8]) -> Result<Value, String> {
        if let Some(reference) = self.described().reference(expected) {
            return reference.and_then(|given| self.bytes_of(given)).map(|_| expected.clone());
        }
        let shape = self.shape(self.def.value_type, self.map.value_size());
        let bytes = values::encode(shape, expected, present).map_err(|e| format!("value {expected}: {e}"))?;
        Ok(values::decode(shape, &bytes))
    }

    /// The bytes of the value of the first CPU.
    pub fn bytes(&self, key: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; self.map.user_value_size()];
        self.map.lookup(key, &mut bytes, 0)?;
        bytes.truncate(self.map.value_size());
        Ok(bytes)
    }

    /// The value of the first CPU, from its bytes.
    pub fn first(&self, bytes: &[u8]) -> Value {
        if self.per_cpu() {
            return values::decode(self.shape(self.def.value_type, self.map.value_size()), bytes);
        }
        self.show(bytes)
    }

    /// Number of entries; `None` for types whose entries cannot be listed.
    pub fn count(&self) -> Option<u64> {
        self.map.keys().ok().map(|k| k.len() as u64)
    }

    fn show(&self, bytes: &[u8]) -> Value {
        let shape = self.shape(self.def.value_type, self.map.value_size());
        let id = || bytes.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
        match self.map.map_type() {
            MapType::ArrayOfMaps | MapType::HashOfMaps => {
                self.instance.map_name(id()).map_or_else(|| json!(format!("map id {}", id())), |n| json!(n))
            }
            MapType::ProgArray => {
                self.instance.program_name(id()).map_or_else(|| json!(format!("program id {}", id())), |n| json!(n))
            }
            _ if self.per_cpu() => {
                let step = self.described().step();
                bytes.chunks(step).map(|v| values::decode(shape, v.get(..self.map.value_size()).unwrap_or(v))).collect()
            }
            _ => values::decode(shape, bytes),
        }
    }

    /// The whole map as JSON.
    pub fn dump(&self) -> Value {
        let mut out = json!({
            "name": self.def.name,
            "type": self.map.map_type().name(),
            "max_entries": self.map.spec().max_entries,
        });
        let keys = match self.map.keys() {
            Ok(keys) => keys,
            Err(_) => {
                out["entries"] = Value::Null;
                out["note"] = json!("entries of this type cannot be listed");
                return out;
            }
        };
        let array = matches!(self.map.map_type(), MapType::Array | MapType::PercpuArray);
        let sparse = array && self.map.spec().max_entries > ARRAY_FULL;
        let (mut entries, mut zeros, mut more) = (Vec::new(), 0u64, 0u64);
        let mut bytes = vec![0; self.map.user_value_size()];
        for key in keys {
            if self.map.lookup(&key, &mut bytes, 0).is_err() {
                // Slots without an object (and elements that left meanwhile) have nothing to show.
                continue;
            }
            if sparse && bytes.iter().all(|b| *b == 0) {
                zeros += 1;
                continue;
            }
            if entries.len() == SHOWN_MAX {
                more += 1;
                continue;
            }
            let shown = self.show_key(&key);
            let field = if self.per_cpu() { "values" } else { "value" };
            entries.push(json!({ "key": shown, field: self.show(&bytes) }));
        }
        out["entries"] = json!(entries);
        if zeros > 0 {
            out["zero_entries_left_out"] = json!(zeros);
        }
        if more > 0 {
            out["entries_left_out"] = json!(more);
        }
        out
    }
}

/// All maps that the author declared, and the data sections.
pub fn dump(instance: &Instance) -> Vec<Value> {
    let all = instance.object().maps.iter().zip(instance.maps());
    all.map(|(def, map): (&MapDef, &Arc<Map>)| Typed { instance, def, map }.dump()).collect()
}

/// Dumps for people.
pub fn text(dumps: &[Value]) -> String {
    let mut out = String::new();
    for map in dumps {
        let entries = map["entries"].as_array();
        let count = entries.map_or("entries cannot be listed".into(), |e| match e.len() {
            0 => "empty".into(),
            1 => "1 entry".into(),
            n => format!("{n} entries"),
        });
        out.push_str(&format!("map {} ({}): {count}\n", plain(&map["name"]), plain(&map["type"])));
        for entry in entries.into_iter().flatten() {
            let value = entry.get("value").or_else(|| entry.get("values")).unwrap_or(&Value::Null);
            out.push_str(&format!("  {} = {}\n", plain(&entry["key"]), plain(value)));
        }
        for (field, words) in
            [("zero_entries_left_out", "entries that are zero"), ("entries_left_out", "further entries")]
        {
            if let Some(n) = map[field].as_u64() {
                out.push_str(&format!("  ({n} {words} left out)\n"));
            }
        }
    }
    out
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}
