//! A second foreign reader, `aya-obj`, over the packaged objects: the same programs, maps and first contents.
//!
//! It is only asked about objects that it opens; it refuses a whole file for one section name that it does not know.

use std::collections::BTreeSet;

use xway_object::{Initial, LoadOptions, MapKind, Object};
use xway_testkit::Needs;

const DIR: &str = "/usr/lib/x86_64-linux-gnu/bpf";

#[test]
fn programs_and_maps_agree() {
    if !Needs::of("aya::programs_and_maps_agree").file(DIR).met() {
        return;
    }
    let mut compared = 0;
    for entry in std::fs::read_dir(DIR).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let Ok(theirs) = aya_obj::Object::parse(&bytes) else { continue };
        let ours = Object::parse(&bytes, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let programs: BTreeSet<&str> = ours.programs.iter().map(|p| &*p.name).collect();
        assert_eq!(programs, theirs.programs.keys().map(|n| &**n).collect(), "{}", path.display());
        for (name, map) in &theirs.maps {
            let def =
                ours.maps.iter().find(|m| m.name == *name).unwrap_or_else(|| panic!("{}: {name}", path.display()));
            assert_eq!((def.spec.key_size, def.spec.value_size), (map.key_size(), map.value_size()), "{name}");
            assert_eq!((def.spec.map_type as u32, def.spec.max_entries), (map.map_type(), map.max_entries()), "{name}");
            if let (MapKind::Rodata | MapKind::Data, Initial::Data(bytes)) = (def.kind, &def.initial) {
                assert_eq!(bytes.as_slice(), map.data(), "{name}");
            }
        }
        compared += 1;
    }
    println!("{compared} objects compared");
    assert!(compared >= 10, "only {compared} objects were compared");
}
