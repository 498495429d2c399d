//! The errno table of `docs/maps.md`: made by asking, the same on both sides, and kept up to date.
//!
//! `XWAY_BLESS=1 cargo test -p xway-testkit --test maps docs` writes it anew.

use std::path::Path;

use xway_abi::{Errno, MapType, map_flags};

use crate::create::{supported, valid};
use crate::subject::{Done, MapUnderTest, World, same_on_both};

const BEGIN: &str = "<!-- errno table: made by a test -->\n";
const END: &str = "<!-- end of errno table -->\n";

const COLUMNS: [&str; 10] = [
    "type",
    "look up what is not there",
    "update, unknown flag",
    "`NOEXIST` on what is there",
    "`EXIST` on what is not",
    "new key when full, index too high",
    "delete what is not there",
    "next key after the last",
    "take what is not there",
    "batches",
];

fn word(done: Done) -> String {
    match done {
        Ok(()) => "ok".into(),
        Err(errno) => errno.to_string(),
    }
}

fn row(world: &dyn World, map_type: MapType) -> String {
    let spec = valid(map_type);
    let map = world.create(&spec).unwrap();
    let key = |n: u32| -> Vec<u8> {
        match map_type {
            MapType::LpmTrie => [32u32.to_ne_bytes(), n.to_be_bytes()].concat(),
            _ => n.to_ne_bytes()[..spec.key_size as usize].to_vec(),
        }
    };
    let value = good_value(world, map_type, &*map);
    let keyed = spec.key_size != 0;
    let missing = word(map.get(&key(1)).map(drop));
    let flag = word(map.update(&key(0), &value, 64));
    let delete = word(map.delete(&key(1)));
    let take = word(map.lookup_and_delete(&key(1), &mut vec![0; map.user_value_size()], 0));
    let exist = if keyed { word(map.update(&key(1), &value, map_flags::EXIST)) } else { "-".into() };
    let filled = map.update(&key(0), &value, 0);
    let noexist =
        if filled.is_ok() && keyed { word(map.update(&key(0), &value, map_flags::NOEXIST)) } else { "-".into() };
    let lru = matches!(map_type, MapType::LruHash | MapType::LruPercpuHash);
    let full = (0..100).map(|n| map.update(&key(n), &value, 0)).find(|done| done.is_err());
    let full = if filled.is_err() {
        "-".into()
    } else if lru {
        "ok: evicts".into()
    } else {
        full.map_or("ok".into(), word)
    };
    let last = match map.keys() {
        Ok(_) => "ENOENT".into(),
        Err(errno) => errno.to_string(),
    };
    let batch = |done: Done| done != Err(Errno::ENOTSUPP);
    let mut batches = Vec::new();
    for (name, has) in [
        ("lookup", batch(map.lookup_batch(None, 0, 0, 0, false).result)),
        ("update", batch(map.update_batch(&[], &[], 0, 0, 0).1)),
        ("delete", batch(map.delete_batch(&[], 0, 0, 0).1)),
        ("take", batch(map.lookup_batch(None, 0, 0, 0, true).result)),
    ] {
        if has {
            batches.push(name);
        }
    }
    let batches = if batches.is_empty() { "none".into() } else { batches.join(", ") };
    [map_type.name().into(), missing, flag, noexist, exist, full, delete, last, take, batches].join(" | ")
}

/// A value that the type takes, where the test has one.
fn good_value(world: &dyn World, map_type: MapType, map: &dyn MapUnderTest) -> Vec<u8> {
    let mut value = vec![0; map.user_value_size()];
    let number = match map_type {
        MapType::Devmap | MapType::DevmapHash => world.device(),
        MapType::Cpumap => 192,
        MapType::ProgArray => world.program(xway_maps::ProgramUse::Xdp, false).0 as u32,
        MapType::PerfEventArray | MapType::CgroupArray | MapType::Xskmap => u32::MAX,
        MapType::ArrayOfMaps | MapType::HashOfMaps => {
            // The descriptor of a map that lives as long as the test.
            let inner = world.create(&xway_abi::MapSpec::new(MapType::Array, 4, 4, 1)).unwrap();
            Box::leak(inner).handle() as u32
        }
        _ => return value,
    };
    value[..4].copy_from_slice(&number.to_ne_bytes());
    value
}

fn rows(world: &dyn World) -> Vec<String> {
    supported().map(|map_type| row(world, map_type)).collect()
}

#[test]
fn the_errno_table_is_what_both_sides_answer() {
    same_on_both("the_errno_table_is_what_both_sides_answer", rows);
    let mut table = format!("| {} |\n|{}\n", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
    for row in rows(&crate::subject::Ours::new()) {
        table.push_str(&format!("| {row} |\n"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/maps.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the table's first mark");
    let (written, after) = rest.split_once(END).expect("the table's last mark");
    if std::env::var_os("XWAY_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(written, table, "docs/maps.md is out of date: run with XWAY_BLESS=1");
    }
}
