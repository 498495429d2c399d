//! Maps declared as data in `SEC("maps")`: each variable is a struct of 32-bit numbers.
//!
//! Several structs have been in use, all beginning with type, key size, value size, entries and flags:
//!
//! | struct | bytes | after the five |
//! |---|---|---|
//! | libbpf's `bpf_map_def` | 20 (16 without flags) | |
//! | that of the kernel's samples | 28 | `inner_map_idx`, `numa_node` |
//! | iproute2's `bpf_elf_map` | 36, first 28 | `id`, `pinning`, `inner_id`, `inner_idx` |
//! | gobpf's | 280 | `pinning`, `namespace[256]` |
//!
//! With BTF the names of the members after the five tell which it is. Without, the length does; of the two with 28 bytes it is iproute2's
//! unless the map is a map of maps or asks for a NUMA node. A variable's length is its symbol's, or for symbols without
//! one the distance to the next. What lies beyond the known members must be zero.

use xway_abi::{MapSpec, map_flags};

use super::{Context, Maps, PendingSlot, Target, map_error, map_type};
use crate::btf::{Btf, Kind};
use crate::elf::{Section, SymKind};
use crate::{MapDef, ObjectError, Pinning};

/// Numbers of a legacy declaration beyond the spec, kept until all maps are known.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Links {
    id: u32,
    inner_id: u32,
    inner_idx: u32,
    inner_map_idx: Option<u32>,
}

pub(super) fn collect(cx: &Context<'_>, section: &Section<'_>, maps: &mut Maps) -> Result<(), ObjectError> {
    let mut variables: Vec<(u64, u64, &str)> = cx
        .elf
        .symbols_in(section.index)
        .filter(|s| matches!(s.kind, SymKind::None | SymKind::Data) && !s.name.is_empty())
        .map(|s| (s.value, s.size, s.name))
        .collect();
    variables.sort_unstable();
    let starts: Vec<u64> = variables.iter().map(|v| v.0).collect();
    if let Some(pair) = variables.windows(2).find(|w| w[0].0 == w[1].0) {
        return Err(map_error(pair[1].2, section, format!("it lies at the same place as `{}`", pair[0].2)));
    }
    let first = maps.defs.len();
    for (i, &(start, size, name)) in variables.iter().enumerate() {
        let end =
            if size != 0 { start.saturating_add(size) } else { starts.get(i + 1).copied().unwrap_or(section.size) };
        let bytes =
            usize::try_from(start).ok().zip(usize::try_from(end).ok()).and_then(|(a, b)| section.data.get(a..b));
        let Some(bytes) = bytes else {
            return Err(map_error(name, section, "it lies outside of its section"));
        };
        let (mut def, links) = Reader { cx, section, name, bytes }.read()?;
        section.name.clone_into(&mut def.section);
        annotate(cx.btf, &mut def);
        let index = maps.declare(section, start, def)?;
        maps.links.push((index, first, links));
    }
    Ok(())
}

struct Reader<'a> {
    cx: &'a Context<'a>,
    section: &'a Section<'a>,
    name: &'a str,
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn read(&self) -> Result<(MapDef, Links), ObjectError> {
        let layout = match self.named_layout() {
            Some(layout) => layout,
            None => self.guessed_layout()?,
        };
        let mut spec = [0u32; 5];
        let (mut pinning, mut numa_node, mut links) = (0, 0, Links::default());
        let mut known = 0;
        for (field, at) in layout {
            let value = self.word(at)?;
            known = known.max(at + 4);
            match field {
                Field::Spec(i) => spec[i] = value,
                Field::Id => links.id = value,
                Field::Pinning => pinning = value,
                Field::InnerId => links.inner_id = value,
                Field::InnerIdx => links.inner_idx = value,
                Field::InnerMapIdx => links.inner_map_idx = Some(value),
                Field::NumaNode => numa_node = value,
                Field::Zero => {
                    if value != 0 {
                        return Err(
                            self.wrong(format!("the declaration sets {value} at byte {at}, which means nothing here"))
                        );
                    }
                }
            }
        }
        if let Some(at) = self.bytes.iter().skip(known).position(|b| *b != 0) {
            let why = format!(
                "its declaration of {} bytes has data at byte {}, after everything that is known",
                self.bytes.len(),
                known + at
            );
            return Err(self.wrong(why));
        }
        let [number, key_size, value_size, max_entries, flags] = spec;
        let mut def = MapDef::new(
            self.name,
            MapSpec::new(map_type(self.name, self.section, number)?, key_size, value_size, max_entries),
        );
        (def.spec.flags, def.spec.numa_node) = (flags, numa_node);
        def.id = (links.id != 0).then_some(links.id);
        def.pinning = match pinning {
            0 => Pinning::None,
            1 => Pinning::ObjectNs,
            2 => Pinning::GlobalNs,
            other => Pinning::Custom(other),
        };
        Ok((def, links))
    }

    /// The layout that the variable's BTF struct has.
    fn named_layout(&self) -> Option<Vec<(Field, usize)>> {
        let btf = self.cx.btf?;
        let var = btf.find(self.name, |t| matches!(t.kind, Kind::Var(..)))?;
        let Kind::Struct(c) = btf
            .resolve(match btf.ty(var).ok()?.kind {
                Kind::Var(ty, _) => ty,
                _ => return None,
            })
            .ok()?
            .1
            .kind
        else {
            return None;
        };
        let mut out = Vec::new();
        for m in c.members() {
            let (at, size) = ((m.bit_offset / 8) as usize, btf.size_of(m.ty).ok()?);
            let field = match (m.name, size) {
                // All structs begin alike; what they call these five differs.
                (_, 4) if at < 20 => Field::Spec(at / 4),
                ("id", 4) => Field::Id,
                ("pinning", 4) => Field::Pinning,
                ("inner_id", 4) => Field::InnerId,
                ("inner_idx", 4) => Field::InnerIdx,
                ("inner_map_idx", 4) => Field::InnerMapIdx,
                ("numa_node", 4) => Field::NumaNode,
                // gobpf's directory for pinning by hand: the caller decides where pins go.
                ("namespace", size) => {
                    out.extend((0..size as usize / 4).map(|i| (Field::Zero, at + 4 * i)));
                    continue;
                }
                (_, 4) => Field::Zero,
                _ => return None,
            };
            out.push((field, at));
        }
        Some(out)
    }

    fn guessed_layout(&self) -> Result<Vec<(Field, usize)>, ObjectError> {
        let len = self.bytes.len();
        if len < 16 {
            return Err(
                self.wrong(format!("its declaration of {len} bytes is shorter than a map definition (16 to 20)"))
            );
        }
        let mut fields: Vec<Field> = (0..5).map(Field::Spec).collect();
        let number = self.word(0)?;
        let of_maps = matches!(number, 12 | 13);
        let numa = len >= 20 && self.word(16)? & map_flags::NUMA_NODE != 0;
        match len {
            36 => fields.extend([Field::Id, Field::Pinning, Field::InnerId, Field::InnerIdx]),
            24 | 28 if of_maps || numa => fields.extend([Field::InnerMapIdx, Field::NumaNode]),
            28 => fields.extend([Field::Id, Field::Pinning]),
            280 => fields.push(Field::Pinning),
            _ => {}
        }
        fields.truncate(len / 4);
        Ok(fields.into_iter().enumerate().map(|(i, f)| (f, i * 4)).collect())
    }

    fn word(&self, at: usize) -> Result<u32, ObjectError> {
        let bytes = self.bytes.get(at..).and_then(|b| b.first_chunk::<4>());
        bytes.map(|b| u32::from_le_bytes(*b)).ok_or_else(|| {
            self.wrong(format!("its declaration of {} bytes is shorter than its type", self.bytes.len()))
        })
    }

    fn wrong(&self, why: String) -> ObjectError {
        map_error(self.name, self.section, why)
    }
}

#[derive(Clone, Copy)]
enum Field {
    /// Type, key size, value size, entries, flags.
    Spec(usize),
    Id,
    Pinning,
    InnerId,
    InnerIdx,
    InnerMapIdx,
    NumaNode,
    /// A member without a meaning; must be zero.
    Zero,
}

/// Key and value types by iproute2's and libbpf's annotation: `struct ____btf_map_NAME { key; value; }`.
fn annotate(btf: Option<&Btf>, def: &mut MapDef) {
    let Some(btf) = btf else { return };
    let Some(id) = btf.find_struct(&format!("____btf_map_{}", def.name)) else { return };
    let Ok(Kind::Struct(c)) = btf.ty(id).map(|t| t.kind) else { return };
    for m in c.members() {
        match m.name {
            "key" if btf.size_of(m.ty) == Ok(def.spec.key_size) => def.key_type = m.ty,
            "value" if btf.size_of(m.ty) == Ok(def.spec.value_size) => def.value_type = m.ty,
            _ => {}
        }
    }
}

/// Finds the inner maps of maps of maps: by position among the declarations, or by iproute2's number; with the latter the
/// inner map also becomes an entry.
pub(super) fn link_inner(maps: &mut Maps) -> Result<(), ObjectError> {
    for (outer, first, links) in maps.links.clone() {
        let def = &maps.defs[outer];
        if !matches!(def.spec.map_type, xway_abi::MapType::ArrayOfMaps | xway_abi::MapType::HashOfMaps) {
            continue;
        }
        let fail = |why: String| ObjectError::Map { map: def.name.clone(), section: def.section.clone(), why };
        let inner = match links.inner_map_idx {
            Some(n) => maps.links.iter().find(|l| l.0 == first + n as usize).map(|l| l.0),
            None => maps.links.iter().find(|l| l.2.id == links.inner_id && l.2.id != 0).map(|l| l.0),
        };
        let Some(inner) = inner.filter(|i| *i != outer) else {
            let wanted = links.inner_map_idx.map_or(format!("id {}", links.inner_id), |n| format!("index {n}"));
            return Err(fail(format!("no map with {wanted}, which its inner maps are to be like")));
        };
        if maps.defs[inner].spec.inner.is_some() || maps.defs[inner].spec.map_type == def.spec.map_type {
            return Err(fail(format!("its inner map `{}` is itself a map of maps", maps.defs[inner].name)));
        }
        let template = &maps.defs[inner];
        let (spec, key, value) = (Box::new(template.spec.clone()), template.key_type, template.value_type);
        let def = &mut maps.defs[outer];
        def.spec.inner = Some(spec);
        (def.inner_key_type, def.inner_value_type) = (key, value);
        if links.inner_map_idx.is_some() {
            continue;
        }
        let fitting: Vec<(usize, u32)> = maps
            .links
            .iter()
            .filter(|l| l.2.id == links.inner_id && l.0 != outer)
            .map(|l| (l.0, l.2.inner_idx))
            .collect();
        for (target, key) in fitting {
            maps.pending.push(PendingSlot { map: outer, key, target: Target::Map(target) });
        }
    }
    Ok(())
}
