//! Maps declared as types in `.maps`: each variable is a struct whose members' *types* carry the parameters.
//!
//! ```c
//! struct {
//!     __uint(type, BPF_MAP_TYPE_HASH);      // int (*type)[1]: the number is an array's length
//!     __type(key, __u32);                   // __u32 *key: the type is what is pointed to
//!     __array(values, struct inner);        // struct inner *values[]: pointers set by relocations
//! } name SEC(".maps");
//! ```

use xway_abi::{MapSpec, MapType};

use super::{Context, Maps, PendingSlot, Target, map_error, map_type};
use crate::btf::{Btf, Composite, Kind, VarLinkage};
use crate::elf::{Place, Section};
use crate::{MapDef, ObjectError, Pinning};

pub(super) fn collect(cx: &Context<'_>, section: &Section<'_>, maps: &mut Maps) -> Result<(), ObjectError> {
    let Some(btf) = cx.btf else {
        return Err(map_error("*", section, "these declarations need BTF; compile with `-g`"));
    };
    let datasec = btf.find(section.name, |t| matches!(t.kind, Kind::Datasec { .. }));
    let Some(Kind::Datasec { vars, .. }) = datasec.and_then(|id| btf.ty(id).ok()).map(|t| t.kind) else {
        return Err(map_error("*", section, "its BTF does not describe this section"));
    };
    let mut places = Vec::new();
    for v in vars.iter() {
        let var = btf.ty(v.ty).map_err(|e| map_error("?", section, e.to_string()))?;
        let name = var.name;
        let Kind::Var(ty, linkage) = var.kind else {
            return Err(map_error(name, section, "its BTF entry is not a variable"));
        };
        if linkage == VarLinkage::Extern {
            return Err(map_error(name, section, "extern maps need `bpftool gen object` to link the files first"));
        }
        let symbol = cx.elf.symbols_in(section.index).find(|s| s.name == name);
        let offset = symbol.map_or(u64::from(v.offset), |s| s.value);
        if offset + u64::from(v.size) > section.size {
            return Err(map_error(name, section, "it lies outside of its section"));
        }
        let (_, resolved) = btf.resolve(ty).map_err(|e| map_error(name, section, e.to_string()))?;
        let Kind::Struct(c) = resolved.kind else {
            return Err(map_error(name, section, format!("declared as `{}`, not as a struct", btf.type_name(ty))));
        };
        let declared = Declaration { btf, section, name }.read(c, Level::Outer)?;
        let values_at = declared.values_at;
        let index = maps.declare(section, offset, declared.into_def(name, section))?;
        places.push((offset, u64::from(v.size), index, values_at));
    }
    initial_entries(cx, section, &places, maps)
}

/// Relocations in the section set the pointers of `values`.
fn initial_entries(
    cx: &Context<'_>,
    section: &Section<'_>,
    places: &[(u64, u64, usize, Option<u64>)],
    maps: &mut Maps,
) -> Result<(), ObjectError> {
    for r in cx.elf.relocations(section.index) {
        let holder = places.iter().find(|p| r.offset >= p.0 && r.offset - p.0 < p.1);
        let Some(&(start, _, map, values_at)) = holder else {
            return Err(map_error("?", section, format!("a relocation at offset {:#x} lies in no map", r.offset)));
        };
        let name = maps.defs[map].name.clone();
        let wrong = |why: String| map_error(&name, section, why);
        let at = values_at.and_then(|v| (r.offset - start).checked_sub(v));
        let Some(at) = at.filter(|at| at.is_multiple_of(8)) else {
            return Err(wrong(format!("a relocation at offset {:#x} is not in its `values`", r.offset)));
        };
        let key = (at / 8) as u32;
        if key >= maps.defs[map].spec.max_entries {
            let why = format!("initial entry {key}, but max_entries is {}", maps.defs[map].spec.max_entries);
            return Err(wrong(why));
        }
        let symbol = cx.elf.symbols[r.symbol];
        let Place::Section(target) = symbol.place else {
            return Err(wrong(format!("initial entry {key} refers to `{}`, which is not in this object", symbol.name)));
        };
        let bytes = section.data.get(r.offset as usize..).and_then(|b| b.first_chunk::<8>());
        let implicit = bytes.map_or(0, |b| u64::from_le_bytes(*b));
        let addend = r.addend.map_or(implicit, |a| a as u64);
        let offset = symbol.value.wrapping_add(addend);
        maps.pending.push(PendingSlot { map, key, target: Target::Place(target, offset) });
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Outer,
    Inner,
}

struct Declaration<'a> {
    btf: &'a Btf,
    section: &'a Section<'a>,
    name: &'a str,
}

#[derive(Default)]
struct Parameters {
    map_type: Option<MapType>,
    key_size: Option<u32>,
    value_size: Option<u32>,
    max_entries: u32,
    flags: u32,
    numa_node: u32,
    map_extra: u64,
    pinning: u32,
    key_type: u32,
    value_type: u32,
    inner: Option<Box<Parameters>>,
    /// Offset of `values`, bytes.
    values_at: Option<u64>,
}

impl Declaration<'_> {
    fn read(&self, c: Composite<'_>, level: Level) -> Result<Parameters, ObjectError> {
        let mut p = Parameters::default();
        for m in c.members() {
            match m.name {
                "type" => p.map_type = Some(map_type(self.name, self.section, self.number(m.name, m.ty)?)?),
                "max_entries" => p.max_entries = self.number(m.name, m.ty)?,
                "map_flags" => p.flags = self.number(m.name, m.ty)?,
                "numa_node" => p.numa_node = self.number(m.name, m.ty)?,
                "map_extra" => p.map_extra = self.long(m.name, m.ty)?,
                "pinning" if level == Level::Outer => p.pinning = self.number(m.name, m.ty)?,
                "key_size" => self.set_size(&mut p.key_size, m.name, self.number(m.name, m.ty)?)?,
                "value_size" => self.set_size(&mut p.value_size, m.name, self.number(m.name, m.ty)?)?,
                "key" => {
                    (p.key_type, _) = self.pointee(m.name, m.ty)?;
                    self.set_size(&mut p.key_size, m.name, self.size(p.key_type)?)?;
                }
                "value" => {
                    (p.value_type, _) = self.pointee(m.name, m.ty)?;
                    self.set_size(&mut p.value_size, m.name, self.size(p.value_type)?)?;
                }
                "values" if level == Level::Outer => {
                    p.values_at = Some(u64::from(m.bit_offset / 8));
                    p.inner = self.values(m.ty)?;
                }
                other => return Err(self.wrong(format!("unknown parameter `{other}`"))),
            }
        }
        if p.map_type.is_none() {
            return Err(self.wrong("no `type` is given".to_owned()));
        }
        Ok(p)
    }

    /// `int (*name)[N]` says N.
    fn number(&self, member: &str, ty: u32) -> Result<u32, ObjectError> {
        let (_, target) = self.pointee(member, ty)?;
        match target {
            Kind::Array(a) => Ok(a.len),
            _ => Err(self.wrong(format!("`{member}` is not declared with __uint()"))),
        }
    }

    /// As [`Self::number`], or `enum { name = N }` for numbers of 64 bits.
    fn long(&self, member: &str, ty: u32) -> Result<u64, ObjectError> {
        match self.btf.resolve(ty).map(|t| t.1.kind) {
            Ok(Kind::Enum(e) | Kind::Enum64(e)) => match e.get(0) {
                Some((_, value)) => Ok(value as u64),
                None => Err(self.wrong(format!("`{member}` is an enum without a value"))),
            },
            _ => self.number(member, ty).map(u64::from),
        }
    }

    fn pointee(&self, member: &str, ty: u32) -> Result<(u32, Kind<'_>), ObjectError> {
        let (_, pointer) = self.btf.resolve(ty).map_err(|e| self.wrong(e.to_string()))?;
        let Kind::Ptr(to) = pointer.kind else {
            return Err(self.wrong(format!("`{member}` is not a pointer")));
        };
        let (_, target) = self.btf.resolve(to).map_err(|e| self.wrong(e.to_string()))?;
        Ok((to, target.kind))
    }

    fn size(&self, ty: u32) -> Result<u32, ObjectError> {
        self.btf.size_of(ty).map_err(|e| self.wrong(e.to_string()))
    }

    /// `struct inner *values[]` declares the template of inner maps, `void *values[]` or function pointers say that the
    /// entries are programs.
    fn values(&self, ty: u32) -> Result<Option<Box<Parameters>>, ObjectError> {
        let (_, array) = self.btf.resolve(ty).map_err(|e| self.wrong(e.to_string()))?;
        let Kind::Array(a) = array.kind else { return Err(self.wrong("`values` is not an array".to_owned())) };
        match self.pointee("values", a.element)?.1 {
            Kind::Struct(c) => Ok(Some(Box::new(self.read(c, Level::Inner)?))),
            Kind::FuncProto { .. } | Kind::Void => Ok(None),
            _ => Err(self.wrong("`values` holds neither maps nor functions".to_owned())),
        }
    }

    fn set_size(&self, slot: &mut Option<u32>, member: &str, size: u32) -> Result<(), ObjectError> {
        match slot {
            Some(other) if *other != size => {
                Err(self.wrong(format!("`{member}` says {size} bytes, an earlier parameter says {other}")))
            }
            _ => {
                *slot = Some(size);
                Ok(())
            }
        }
    }

    fn wrong(&self, why: String) -> ObjectError {
        map_error(self.name, self.section, why)
    }
}

impl Parameters {
    fn spec(&self) -> MapSpec {
        let map_type = self.map_type.unwrap_or(MapType::Array);
        let mut spec =
            MapSpec::new(map_type, self.key_size.unwrap_or(0), self.value_size.unwrap_or(0), self.max_entries);
        spec.flags = self.flags;
        // Without BPF_F_NUMA_NODE in the flags the number means nothing, here as in Linux.
        spec.numa_node = self.numa_node;
        spec.map_extra = self.map_extra;
        spec.inner = self.inner.as_ref().map(|i| Box::new(i.spec()));
        spec
    }

    fn into_def(self, name: &str, section: &Section<'_>) -> MapDef {
        let mut def = MapDef::new(name, self.spec());
        section.name.clone_into(&mut def.section);
        (def.key_type, def.value_type) = (self.key_type, self.value_type);
        if let Some(inner) = &self.inner {
            (def.inner_key_type, def.inner_value_type) = (inner.key_type, inner.value_type);
        }
        def.pinning = match self.pinning {
            0 => Pinning::None,
            1 => Pinning::ByName,
            other => Pinning::Custom(other),
        };
        def
    }
}
