//! Data sections: each becomes an array map with one value, the section's content.

use xway_abi::{MapSpec, MapType, map_flags};

use super::{Context, MAX_MAPS, Maps, map_error};
use crate::btf::Kind;
use crate::elf::{Elf, Place, Section, SymKind};
use crate::{Initial, MapDef, MapKind, ObjectError};

/// The largest data section, bytes. `.bss` takes no room in the file, so its size is only a claim; Linux's arrays end at
/// about this size too.
const MAX_LEN: u64 = 1 << 30;

/// What a section's name makes of it; `None` for sections that hold something else.
fn is_data_section(section: &Section<'_>) -> Option<MapKind> {
    let is = |prefix: &str| section.name.strip_prefix(prefix).is_some_and(|r| r.is_empty() || r.starts_with('.'));
    if !section.alloc || section.executable {
        return None;
    }
    match section.name {
        _ if is(".rodata") => Some(MapKind::Rodata),
        _ if is(".data") => Some(MapKind::Data),
        _ if is(".bss") => Some(MapKind::Bss),
        _ => None,
    }
}

pub(super) fn collect(cx: &Context<'_>, maps: &mut Maps, notes: &mut Vec<String>) -> Result<(), ObjectError> {
    let referred = referred_sections(cx.elf);
    for section in &cx.elf.sections {
        let kind = match is_data_section(section) {
            Some(kind) => kind,
            // A section with a name of its own is data when a program refers to it.
            None if referred[section.index] && is_custom(section) => match (section.nobits, section.writable) {
                (true, _) => MapKind::Bss,
                (false, true) => MapKind::Data,
                (false, false) => MapKind::Rodata,
            },
            None => continue,
        };
        if section.size == 0 {
            continue;
        }
        if !section.nobits && !cx.elf.relocations(section.index).is_empty() {
            notes.push(format!(
                "section `{}`: addresses in its initial values have no meaning in a map and stay as they are",
                section.name
            ));
        }
        let def = definition(cx, section, kind)?;
        let index = maps.defs.len();
        if index >= MAX_MAPS {
            return Err(map_error(&def.name, section, format!("more than {MAX_MAPS} maps")));
        }
        if maps.defs.iter().any(|m| m.name == def.name) {
            return Err(map_error(&def.name, section, "a second map of this name"));
        }
        maps.of_section.insert(section.index, index);
        maps.defs.push(def);
    }
    Ok(())
}

fn definition(cx: &Context<'_>, section: &Section<'_>, kind: MapKind) -> Result<MapDef, ObjectError> {
    if section.size > MAX_LEN {
        return Err(map_error(section.name, section, format!("{} bytes are too many for a map", section.size)));
    }
    let mut spec = MapSpec::new(MapType::Array, 4, section.size as u32, 1).with_flags(map_flags::MMAPABLE);
    if kind == MapKind::Rodata {
        spec.flags |= map_flags::RDONLY_PROG;
    }
    let mut def = MapDef::new(section.name, spec);
    section.name.clone_into(&mut def.section);
    def.kind = kind;
    def.frozen = kind == MapKind::Rodata;
    if !section.nobits {
        def.initial = Initial::Data(section.data.to_vec());
    }
    if let Some(btf) = cx.btf {
        def.value_type = btf.find(section.name, |t| matches!(t.kind, Kind::Datasec { .. })).unwrap_or(0);
    }
    Ok(def)
}

/// Sections that hold something with a meaning of its own never become maps.
fn is_custom(section: &Section<'_>) -> bool {
    section.alloc
        && !section.executable
        && !matches!(section.name, ".maps" | "maps" | "license" | "version" | ".kconfig" | ".ksyms")
        && !section.name.starts_with("maps/")
        && !section.name.starts_with(".struct_ops")
}

/// Which sections the code refers to.
fn referred_sections(elf: &Elf<'_>) -> Vec<bool> {
    let mut out = vec![false; elf.sections.len()];
    for section in elf.sections.iter().filter(|s| s.executable) {
        for r in elf.relocations(section.index) {
            let symbol = &elf.symbols[r.symbol];
            if let (Place::Section(n), SymKind::None | SymKind::Data | SymKind::Section) = (symbol.place, symbol.kind) {
                out[n] = true;
            }
        }
    }
    out
}
