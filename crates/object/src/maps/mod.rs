//! Maps as objects declare them: three conventions for the author's own, and one array map per data section.

mod btf_maps;
mod data;
mod legacy;
mod special;

pub use special::special_fields;

use std::collections::HashMap;

use xway_abi::{MapSpec, MapType};

use crate::btf::Btf;
use crate::elf::{Elf, Section};
use crate::{MapDef, ObjectError};

/// All maps of an object and where references to them lead.
#[derive(Default)]
pub(crate) struct Maps {
    pub defs: Vec<MapDef>,
    /// Index by section and offset of the declaring variable.
    at: HashMap<(usize, u64), usize>,
    /// Index by data section.
    of_section: HashMap<usize, usize>,
    /// Initial entries that wait for the programs to be known: (map, key, section, offset of the target).
    pub pending: Vec<PendingSlot>,
    /// Legacy declarations: map, first map of its section, numbers that refer to other maps.
    links: Vec<(usize, usize, legacy::Links)>,
}

/// An initial entry as its relocation tells it.
#[derive(Clone, Debug)]
pub(crate) struct PendingSlot {
    /// Map that holds the entry.
    pub map: usize,
    /// Key.
    pub key: u32,
    /// What is referred to.
    pub target: Target,
}

/// The target of an initial entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// Function or map variable at this section and offset.
    Place(usize, u64),
    /// Map.
    Map(usize),
}

/// What a load needs to know besides the file.
pub(crate) struct Context<'a> {
    pub elf: &'a Elf<'a>,
    pub btf: Option<&'a Btf>,
    /// For PERF_EVENT_ARRAY maps without a size.
    pub cpus: u32,
}

impl Maps {
    pub fn find(cx: &Context<'_>, notes: &mut Vec<String>) -> Result<Maps, ObjectError> {
        let mut maps = Maps::default();
        for section in &cx.elf.sections {
            match section.name {
                ".maps" => btf_maps::collect(cx, section, &mut maps)?,
                // libbpf took every section of this name and of these names below it.
                "maps" => legacy::collect(cx, section, &mut maps)?,
                name if name.starts_with("maps/") => legacy::collect(cx, section, &mut maps)?,
                _ => {}
            }
        }
        legacy::link_inner(&mut maps)?;
        data::collect(cx, &mut maps, notes)?;
        for def in &mut maps.defs {
            finish(&mut def.spec, cx.cpus);
            if let Some(btf) = cx.btf {
                special::fill(btf, def, notes);
            }
        }
        Ok(maps)
    }

    /// The map that a variable at this place declares.
    pub fn declared_at(&self, section: usize, offset: u64) -> Option<usize> {
        self.at.get(&(section, offset)).copied()
    }

    /// The map that holds a data section.
    pub fn of_section(&self, section: usize) -> Option<usize> {
        self.of_section.get(&section).copied()
    }

    fn declare(&mut self, section: &Section<'_>, offset: u64, def: MapDef) -> Result<usize, ObjectError> {
        if self.defs.iter().any(|m| m.name == def.name) {
            return Err(map_error(&def.name, section, "a second map of this name"));
        }
        let index = self.defs.len();
        if index >= MAX_MAPS {
            return Err(map_error(&def.name, section, format!("more than {MAX_MAPS} maps")));
        }
        self.at.insert((section.index, offset), index);
        self.defs.push(def);
        Ok(index)
    }
}

/// What a loader fills in before it creates the map.
fn finish(spec: &mut MapSpec, cpus: u32) {
    match spec.map_type {
        MapType::PerfEventArray => {
            for size in [&mut spec.key_size, &mut spec.value_size] {
                *size = if *size == 0 { 4 } else { *size };
            }
            if spec.max_entries == 0 {
                spec.max_entries = cpus;
            }
        }
        // A ring is a power of two and whole pages; the author's number is a wish.
        MapType::Ringbuf | MapType::UserRingbuf if spec.max_entries != 0 => {
            let pages = spec.max_entries.checked_next_multiple_of(PAGE).and_then(u32::checked_next_power_of_two);
            spec.max_entries = pages.unwrap_or(spec.max_entries);
        }
        MapType::ArrayOfMaps | MapType::HashOfMaps | MapType::ProgArray if spec.value_size == 0 => spec.value_size = 4,
        _ => {}
    }
    if let Some(inner) = &mut spec.inner {
        finish(inner, cpus);
    }
}

const PAGE: u32 = 4096;

/// The most maps that an object may declare; Linux lets one program use 64.
const MAX_MAPS: usize = 4096;

fn map_error(map: &str, section: &Section<'_>, why: impl Into<String>) -> ObjectError {
    ObjectError::Map { map: map.to_owned(), section: section.name.to_owned(), why: why.into() }
}

/// The map type with this number, or an error that names it.
fn map_type(map: &str, section: &Section<'_>, number: u32) -> Result<MapType, ObjectError> {
    MapType::from_u32(number).ok_or_else(|| map_error(map, section, format!("unknown map type {number}")))
}
