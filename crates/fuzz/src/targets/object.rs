//! Bytes as an object file.

use xway_object::{LoadOptions, Object};

use crate::elf::small_object;

pub fn run(data: &[u8]) {
    // Two CPUs whatever the machine has, so that a finding repeats elsewhere.
    let options = LoadOptions { possible_cpus: Some(2), ..LoadOptions::default() };
    let Ok(object) = Object::parse(data, &options) else { return };
    for program in &object.programs {
        let _ = program.tag();
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut out = super::compiled_objects();
    out.push(small());
    out
}

/// The hand-made object with the types of the BTF seed.
pub fn small() -> Vec<u8> {
    small_object(super::btf::small())
}
