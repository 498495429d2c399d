//! `xway bench prog --fill`, `--table`: what a user's maps hold before they are measured, and how large they are.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use xway_abi::{Errno, MapType, Verdict};
use xway_bench::fill::{Content, Form};
use xway_bench::given::{FlowKey, Given};
use xway_bench::{Case, Filled, Options, Row};
use xway_object::{MapDef, MapKind, Object};

use crate::args_bench::TableSize;
use crate::contents::{self, Described, Filling};
use crate::failure::Failure;
use crate::print::grouped;

/// An argument of `--fill`.
pub struct Fill {
    map: String,
    what: What,
}

enum What {
    /// These entries.
    Entries(Filling),
    /// A key for each flow, all with this value.
    Flows(Option<Value>),
}

/// What may stand behind `NAME=`.
const FORMS: &str =
    "a file as xway map dump -j prints it, flows for a key of each flow, flows:VALUE to give each a value";

/// Reads the arguments `NAME=FILE.json`, `NAME=flows` and `NAME=flows:VALUE`.
pub fn read(arguments: &[String]) -> Result<Vec<Fill>, Failure> {
    arguments.iter().map(|text| one(text)).collect()
}

fn one(text: &str) -> Result<Fill, Failure> {
    let Some((map, what)) = text.split_once('=').filter(|(map, what)| !map.is_empty() && !what.is_empty()) else {
        return Err(Failure::usage(format!("--fill {text}: expected NAME=FILE.json or NAME=flows")).hint(FORMS));
    };
    let json = |value: &str| serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    let what = match what.strip_prefix("flows") {
        Some("") => What::Flows(None),
        Some(value) if value.starts_with(':') => What::Flows(Some(json(&value[1..]))),
        _ if Path::new(what).exists() => What::Entries(Filling::read("--fill", map, what)?),
        // Whoever wrote another word for `flows` is told of it.
        _ => What::Entries(Filling::read("--fill", map, what).map_err(|failure| failure.hint(FORMS))?),
    };
    Ok(Fill { map: map.to_owned(), what })
}

/// Whether an object has one of the maps; who names a map that no object has is told which there are.
pub fn known(fills: &[Fill], tables: &[TableSize], objects: &[(&Path, &Object)]) -> Result<(), Failure> {
    let filled = fills.iter().map(|fill| ("--fill", fill.map.as_str()));
    let sized = tables.iter().filter_map(|table| Some(("--table", table.map.as_deref()?)));
    for (option, map) in filled.chain(sized) {
        if objects.iter().all(|(_, object)| object.map_index(map).is_none()) {
            let names = |(path, object): &(&Path, &Object)| {
                let names: Vec<&str> = object.maps.iter().map(|m| m.name.as_str()).collect();
                let names = if names.is_empty() { "no maps".to_owned() } else { names.join(", ") };
                format!("{} has {names}", path.display())
            };
            let have: Vec<String> = objects.iter().map(names).collect();
            return Err(Failure::usage(format!("{option} {map}: no map of this name")).hint(have.join("; ")));
        }
    }
    Ok(())
}

/// Sizes of the object's maps that `NAME=N` is about.
pub fn sizes(path: &Path, object: &Object, tables: &[TableSize]) -> Result<Vec<(String, u32)>, Failure> {
    let mut sizes = Vec::new();
    for table in tables {
        let Some(map) = table.map.as_ref().and_then(|name| object.map_index(name)) else { continue };
        let def = &object.maps[map];
        if def.kind != MapKind::User {
            let why = format!(
                "--table {}: in {} it is a data section, whose size is the program's",
                def.name,
                path.display()
            );
            return Err(Failure::usage(why));
        }
        sizes.push((def.name.clone(), table.entries));
    }
    Ok(sizes)
}

/// Changes the object's data sections (constants stay constants: the verifier sees what is in them), and gives what goes into its
/// other maps on both sides, whose sizes are these where they are not the object's.
pub fn given(path: &Path, object: &mut Object, fills: &[Fill], sizes: &[(String, u32)]) -> Result<Vec<Given>, Failure> {
    let here = |fill: &&Fill| object.map_index(&fill.map).is_some();
    let here: Vec<&Fill> = fills.iter().filter(here).collect();
    let entries = here.iter().filter_map(|fill| match &fill.what {
        What::Entries(filling) => Some(filling.clone()),
        What::Flows(_) => None,
    });
    let entries = contents::fill_sections(object, &entries.collect::<Vec<_>>())?;
    let mut all = Vec::new();
    for filling in &entries {
        let def = def(object, &filling.map);
        let described = Described { object, def, cpus: xway_kernel::possible_cpus() };
        let content = elements(&described, filling)
            .map_err(|what| Failure::input(format!("{}: map {}: {what}", filling.origin, filling.map)))?;
        let size = sizes.iter().find(|(map, _)| *map == filling.map).map_or(def.spec.max_entries, |(_, size)| *size);
        indices(filling, def, size, &content)?;
        all.push(Given::Elements(Arc::new(content)));
    }
    for fill in here {
        let What::Flows(value) = &fill.what else { continue };
        let def = def(object, &fill.map);
        let wrong = |why: String| Failure::usage(format!("--fill {}=flows: {}: {why}", fill.map, path.display()));
        FlowKey::of(object, def).map_err(|why| {
            wrong(why)
                .hint(format!("--fill {}=FILE.json with keys and values (docs/testing.md has the form)", fill.map))
        })?;
        let described = Described { object, def, cpus: 1 };
        let value = match value {
            Some(value) => described
                .one(value)
                .map_err(|why| wrong(why).hint(format!("a value as in --fill {}", example(&described))))?,
            None => vec![0; def.spec.value_size as usize],
        };
        all.push(Given::Flows { map: fill.map.clone(), value });
    }
    Ok(all)
}

/// An argument that gives each flow a value of the map's type, every part of which is zero.
fn example(described: &Described<'_>) -> String {
    let value = described.shown(&vec![0; described.def.spec.value_size as usize]).to_string();
    let map = &described.def.name;
    match value.len() {
        0..=100 => format!("'{map}=flows:{value}'"),
        _ => format!("'{map}=flows:{{\"MEMBER\": 1}}' (docs/testing.md has the form)"),
    }
}

/// Refuses keys that are no places of an array; which size would do is the largest of them and one.
fn indices(filling: &Filling, def: &MapDef, size: u32, content: &Content) -> Result<(), Failure> {
    use MapType::{Array, ArrayOfMaps, Cpumap, Devmap, PercpuArray, ProgArray, Xskmap};
    let kind = def.spec.map_type;
    if !matches!(kind, Array | ArrayOfMaps | Cpumap | Devmap | PercpuArray | ProgArray | Xskmap) {
        return Ok(());
    }
    let index = |key: &[u8]| key.try_into().map_or(0, u32::from_ne_bytes);
    match content.elements().map(|(key, _)| index(key)).max() {
        Some(last) if last >= size => {
            let why = format!("the index {last} is not below {size}, the size of this {}", kind.name());
            let failure = Failure::input(format!("{}: map {}: {why}", filling.origin, filling.map));
            Err(failure.hint(format!("--table {}={}", filling.map, u64::from(last) + 1)))
        }
        _ => Ok(()),
    }
}

fn def<'a>(object: &'a Object, map: &str) -> &'a MapDef {
    &object.maps[object.map_index(map).expect("it was there before")]
}

/// Entries as bytes for either side.
fn elements(described: &Described<'_>, filling: &Filling) -> Result<Content, String> {
    let mut form = if described.per_cpu() { Form::EachCpu } else { Form::Value };
    let mut all = Vec::with_capacity(filling.entries.len());
    for entry in &filling.entries {
        let (key, value) = described.entry(entry)?;
        let index = |index: usize| (index as u32).to_ne_bytes().to_vec();
        let value = match value {
            contents::Given::Bytes(bytes) => bytes,
            contents::Given::Map(map) => {
                form = Form::Maps;
                index(map)
            }
            contents::Given::Program(program) => {
                form = Form::Programs;
                index(program)
            }
        };
        all.push((key, value));
    }
    Ok(Content::of(&filling.map, form, all))
}

/// The map of an object that `--table N` is about, and its size.
pub fn only_table(path: &Path, object: &Object) -> Result<(String, u32), Failure> {
    let tables = tables(object);
    match tables[..] {
        [map] => Ok((map.name.clone(), map.spec.max_entries)),
        [] => Err(Failure::usage(format!("--table: {} has no hash table and no trie", path.display()))
            .hint("--table NAME=N for a map of another type")),
        [first, ..] => {
            let names: Vec<&str> = tables.iter().map(|map| map.name.as_str()).collect();
            Err(Failure::usage(format!("--table: {} has several: {}", path.display(), names.join(", ")))
                .hint(format!("say which, as in --table {}=N", first.name)))
        }
    }
}

/// What to try where a map did not take an element.
pub fn hint(map: &str, at: usize, count: u32, errno: Errno) -> String {
    match errno {
        Errno::E2BIG => format!("--table {map}={count} makes room for all"),
        Errno::ENOMEM | Errno::ENOSPC => format!("fewer elements, or --table {map}=N with a smaller N"),
        Errno::EPERM => "the program's constants, and maps that are frozen or read-only, cannot be filled".into(),
        Errno::ENODEV | Errno::ENOENT => format!("element {at} names an interface or an object that is not there"),
        Errno::EBADF => format!("what element {at} names cannot be held by this map"),
        Errno::EINVAL => format!("is element {at} a key and a value that this type of map can have?"),
        _ => "xway prog run OBJ --map fills a map of ours alone, and says of each entry what is wrong".into(),
    }
}

/// Under a row: what maps were filled with, what options made of its case, and the verdicts, by which one sees whether what was put in is
/// found, and whether the row still is what its name says. `object` is the user's.
pub fn about(row: &Row, object: Option<&Object>, options: &Options) -> String {
    let mut out = String::new();
    if !row.filled.is_empty() {
        out += &format!("    filled: {}\n", elements_of(row));
    }
    if options.change() {
        out += &format!("    with {}\n", adapted(row, options));
    }
    if options.change() || object.is_some_and(|object| !tables(object).is_empty()) {
        out += &format!("    verdicts: {}\n", verdicts(row));
    }
    out
}

/// Shares of the ring.
fn verdicts(row: &Row) -> String {
    let packets: u64 = row.checked.ours.iter().sum();
    let share = |(code, count): (usize, &u64)| {
        let name = Verdict::from_ret(code as u64).map_or("others", Verdict::name);
        format!("{name} {:.1} %", *count as f64 / packets.max(1) as f64 * 100.0)
    };
    let all = row.checked.ours.iter().enumerate().filter(|(_, count)| **count > 0).map(share);
    all.collect::<Vec<_>>().join(", ")
}

/// The packets and the table that a row had, where options say which.
fn adapted(row: &Row, options: &Options) -> String {
    let flows = row.case.flows;
    let flows = format!("{} flow{}", grouped(flows.into()), if flows == 1 { "" } else { "s" });
    let table = match &row.case.table {
        Some((map, entries)) => format!(", {map} of {}", grouped((*entries).into())),
        None if options.table.is_some() => ", no table whose size --table could say".to_owned(),
        None => String::new(),
    };
    format!("{flows}, {}{table}", row.case.pattern.name())
}

/// What options made of cases, behind a table in Markdown.
pub fn changed(rows: &[Row], options: &Options) -> String {
    let rows = rows.iter().filter(|_| options.change());
    let line = |row: &Row| format!("\n{}: with {}; {}\n", row.case.name, adapted(row, options), verdicts(row));
    rows.map(line).collect()
}

fn elements_of(row: &Row) -> String {
    let one = |Filled { map, elements, cut }: &Filled| {
        let flows = row.case.flows;
        let rest = match cut {
            true => format!(" of {} flows (--table {map}={flows})", grouped(flows.into())),
            false => String::new(),
        };
        format!("{map} {}{rest}", grouped((*elements).into()))
    };
    row.filled.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What maps were filled with, behind a table in Markdown.
pub fn filled(rows: &[Row]) -> String {
    let rows = rows.iter().filter(|row| !row.filled.is_empty());
    rows.map(|row| format!("\nfilled for {}: {}\n", row.case.name, elements_of(row))).collect()
}

/// Tables that nobody filled: what looks into them finds nothing, unless the program itself puts something in.
pub fn empty<'a>(cases: impl Iterator<Item = (&'a Case, &'a Object)>) -> String {
    let mut names: Vec<String> = Vec::new();
    for (case, object) in cases {
        let filled = |map: &&MapDef| case.given.iter().any(|given| given.map() == map.name);
        let empty = tables(object).into_iter().filter(|map| !filled(map));
        names.extend(empty.map(|map| format!("{}:{}", case.object, map.name)));
    }
    names.dedup();
    names.sort();
    names.dedup();
    match names.is_empty() {
        true => String::new(),
        false => format!("\nempty at the start: {} (--fill NAME=FILE.json or NAME=flows)\n", names.join(", ")),
    }
}

/// Maps that look-ups may miss in.
fn tables(object: &Object) -> Vec<&MapDef> {
    use MapType::{Hash, LpmTrie, LruHash, LruPercpuHash, PercpuHash};
    let table = |map: &&MapDef| matches!(map.spec.map_type, Hash | PercpuHash | LruHash | LruPercpuHash | LpmTrie);
    object.maps.iter().filter(table).collect()
}

/// What a map is filled with, in documents.
pub fn json(given: &Given) -> Value {
    let from = if matches!(given, Given::Flows { .. }) { "flows" } else { "file" };
    json!({ "map": given.map(), "from": from })
}
