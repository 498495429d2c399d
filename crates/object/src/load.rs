//! From bytes to an [`Object`]: the order of things.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::btf::{Btf, BtfExt, Kind, VarLinkage};
use crate::core_relo::{Resolution, Resolver};
use crate::elf::{Elf, Place, SymKind, Symbol};
use crate::externs::Externs;
use crate::functions::Functions;
use crate::kinds::{kind_of_section, kind_of_signature, tail_call_slot};
use crate::lines::Lines;
use crate::link::Units;
use crate::maps::{Context, Maps, PendingSlot, Target};
use crate::unit::Unit;
use crate::{
    Initial, LoadOptions, MapKind, Object, ObjectError, Program, ProgramKind, RejectedProgram, Section, SlotRef,
};

/// Everything that is known about an object while its programs are put together.
pub(crate) struct Loader<'d> {
    pub elf: Elf<'d>,
    pub functions: Functions,
    pub maps: Maps,
    pub externs: Externs,
    pub lines: Lines,
    /// CO-RE answers by section: byte offset and answer, sorted.
    pub core: CoreAnswers,
}

/// CO-RE answers by section: byte offset, and answer or what is wrong with the relocation.
type CoreAnswers = HashMap<usize, Vec<(u32, Result<Resolution, String>)>>;

/// Bound on the slots of all linked programs together.
const MAX_TOTAL_INSNS: usize = 4 << 20;

impl Object {
    /// Reads an object file: sections, types, maps, then every program, linked.
    ///
    /// A program that cannot be linked does not spoil the others: it is in [`Object::rejected`] with its reason. An error is
    /// returned for what concerns the whole file: not a BPF object, damaged structure, damaged types, a map declaration
    /// that cannot be understood. Cost: linear in the file and in the code that the programs share; bounded for any input.
    pub fn parse(bytes: &[u8], opts: &LoadOptions) -> Result<Object, ObjectError> {
        let elf = Elf::parse(bytes)?;
        let mut notes = Vec::new();
        let (mut btf, ext) = types(&elf)?;
        let cpus = opts.cpus();
        let mut maps = Maps::find(&Context { elf: &elf, btf: btf.as_ref(), cpus }, &mut notes)?;
        let externs = Externs::find(&elf, btf.as_ref(), opts, &mut maps.defs);
        if let (Some(btf), Some(def)) = (&mut btf, maps.defs.iter_mut().find(|m| m.kind == MapKind::Kconfig)) {
            def.value_type = place_config(btf, &externs.config_places, def.spec.value_size);
        }
        let with_ext = btf.as_ref().zip(ext.as_ref());
        let functions = Functions::find(&elf, with_ext);
        let lines = with_ext.map(|(btf, ext)| Lines::new(btf, ext)).unwrap_or_default();
        let core = with_ext.map(|(btf, ext)| core_answers(&elf, btf, ext, opts)).unwrap_or_default();
        let loader = Loader { elf, functions, maps, externs, lines, core };
        let mut object = Object {
            license: text_section(&loader.elf, "license"),
            version: loader.elf.section("version").and_then(|s| s.data.first_chunk()).map(|b| u32::from_le_bytes(*b)),
            sections: loader.elf.sections.iter().map(public_section).collect(),
            notes,
            ..Object::default()
        };
        let places = loader.programs(btf.as_ref(), &mut object);
        object.maps = loader.maps.defs.clone();
        loader.fill_slots(&places, &mut object)?;
        object.btf = btf.map(Arc::new);
        object.target = opts.target_btf.clone();
        Ok(object)
    }
}

impl Btf {
    /// The types of an object file as they stand in it; `None` when it has none. [`Object::btf`] has data sections laid out.
    ///
    /// # Errors
    /// The file is no object, or its types are damaged.
    pub fn of_object(bytes: &[u8]) -> Result<Option<Btf>, ObjectError> {
        let elf = Elf::parse(bytes)?;
        let Some(section) = elf.section(".BTF").filter(|s| !s.data.is_empty()) else { return Ok(None) };
        Btf::parse(section.data.to_vec()).map(Some).map_err(|error| ObjectError::Btf { section: ".BTF", error })
    }
}

/// The object's types, with data sections laid out as the file has them.
fn types(elf: &Elf<'_>) -> Result<(Option<Btf>, Option<BtfExt>), ObjectError> {
    let Some(section) = elf.section(".BTF").filter(|s| !s.data.is_empty()) else { return Ok((None, None)) };
    let mut btf = Btf::parse(section.data.to_vec()).map_err(|error| ObjectError::Btf { section: ".BTF", error })?;
    place_variables(elf, &mut btf);
    let ext = match elf.section(".BTF.ext").filter(|s| !s.data.is_empty()) {
        Some(s) => Some(BtfExt::parse(s.data).map_err(|error| ObjectError::Btf { section: ".BTF.ext", error })?),
        None => None,
    };
    Ok((Some(btf), ext))
}

/// Compilers leave sizes of data sections and offsets of global variables to the loader. A constant that was merged with
/// others of its content lies in another section than its type says; it is moved out of sight.
fn place_variables(elf: &Elf<'_>, btf: &mut Btf) {
    let mut symbols: HashMap<&str, Vec<&Symbol<'_>>> = HashMap::new();
    for s in elf.symbols.iter().filter(|s| matches!(s.kind, SymKind::Data | SymKind::None)) {
        let same = symbols.entry(s.name).or_default();
        // Two are enough to see that a name is not unique.
        if same.len() < 2 {
            same.push(s);
        }
    }
    let mut changes = Vec::new();
    for (id, ty) in btf.types() {
        let (Kind::Datasec { vars, .. }, Some(section)) = (ty.kind, elf.section(ty.name)) else { continue };
        let offset = |ty: u32| -> Option<u32> {
            let var = btf.ty(ty).ok()?;
            let (symbol, others) = symbols.get(var.name)?.split_first()?;
            match var.kind {
                Kind::Var(_, VarLinkage::Global) if symbol.place == Place::Section(section.index) => {
                    u32::try_from(symbol.value).ok()
                }
                Kind::Var(_, VarLinkage::Static)
                    if others.is_empty() && symbol.place != Place::Section(section.index) =>
                {
                    Some(u32::MAX)
                }
                _ => None,
            }
        };
        let offsets: Vec<(usize, u32)> =
            vars.iter().enumerate().filter_map(|(i, v)| Some((i, offset(v.ty)?))).collect();
        changes.push((id, u32::try_from(section.size).unwrap_or(u32::MAX), offsets));
    }
    for (id, size, offsets) in changes {
        btf.place_datasec(id, size, &offsets);
    }
}

/// Gives the configuration variables the places that they have in their map. Returns the section's type.
fn place_config(btf: &mut Btf, places: &[(String, u32)], size: u32) -> u32 {
    let Some(id) = btf.find(".kconfig", |t| matches!(t.kind, Kind::Datasec { .. })) else { return 0 };
    let Ok(Kind::Datasec { vars, .. }) = btf.ty(id).map(|t| t.kind) else { return 0 };
    let by_name: HashMap<&str, u32> = places.iter().map(|p| (&*p.0, p.1)).collect();
    let offsets: Vec<(usize, u32)> =
        vars.iter().enumerate().filter_map(|(i, v)| Some((i, *by_name.get(btf.ty(v.ty).ok()?.name)?))).collect();
    // A variable that no symbol asks for has no place; then the section's type would not describe the map.
    let complete = offsets.len() == vars.iter().len();
    if complete {
        btf.place_datasec(id, size, &offsets);
    }
    if complete { id } else { 0 }
}

fn core_answers(elf: &Elf<'_>, btf: &Btf, ext: &BtfExt, opts: &LoadOptions) -> CoreAnswers {
    let mut resolver = Resolver::new(btf, opts.target_btf.as_deref());
    let mut out: HashMap<usize, Vec<_>> = HashMap::new();
    for r in &ext.core {
        let Some(section) = btf.string(r.section).and_then(|name| elf.section(name)) else { continue };
        out.entry(section.index).or_default().push((r.offset, resolver.resolve(&r.record)));
    }
    out.values_mut().for_each(|list| list.sort_by_key(|p| p.0));
    out
}

fn text_section(elf: &Elf<'_>, name: &str) -> Option<String> {
    let data = elf.section(name)?.data;
    let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    Some(String::from_utf8_lossy(&data[..end]).into_owned())
}

fn public_section(s: &crate::elf::Section<'_>) -> Section {
    Section { index: s.index, name: s.name.to_owned(), size: s.size, executable: s.executable, alloc: s.alloc }
}

impl Loader<'_> {
    /// Links the programs into `object`. The result tells which function became which program.
    fn programs(&self, btf: Option<&Btf>, object: &mut Object) -> HashMap<usize, Result<usize, ObjectError>> {
        let units: Vec<_> = self.functions.iter().map(|(_, f)| Unit::extract(self, f)).collect();
        let called: HashSet<usize> = units.iter().flatten().flat_map(|u| u.calls.iter().map(|c| c.1)).collect();
        let tail_called: HashSet<usize> = self.maps.pending.iter().filter_map(|p| self.slot_function(p)).collect();
        let is_text = |name: &str| name == ".text" || name.starts_with(".text.");
        let only_text = self.functions.iter().all(|(_, f)| is_text(self.elf.sections[f.section].name));
        let entries: Vec<usize> = self
            .functions
            .iter()
            .filter(|(i, f)| {
                let text = is_text(self.elf.sections[f.section].name);
                tail_called.contains(i)
                    || if text { only_text && f.global && !called.contains(i) } else { f.global || !called.contains(i) }
            })
            .map(|(i, _)| i)
            .collect();
        let kinds = self.kinds(&entries, btf);
        let mut units = Units { functions: &self.functions, units, budget: MAX_TOTAL_INSNS };
        let mut places = HashMap::new();
        for (entry, (kind, autoload)) in entries.into_iter().zip(kinds) {
            let section = self.elf.sections[self.functions.get(entry).section].name;
            let linked = units.link(entry, section);
            let place = match linked {
                Ok(program) => {
                    object.programs.push(Program { kind, autoload, ..program });
                    Ok(object.programs.len() - 1)
                }
                Err(error) => {
                    let name = self.functions.get(entry).name.clone();
                    object.rejected.push(RejectedProgram {
                        name,
                        section: section.to_owned(),
                        kind,
                        error: error.clone(),
                    });
                    Err(error)
                }
            };
            places.insert(entry, place);
        }
        places
    }

    /// Kinds of programs: by section, then by signature, then (targets of tail calls) by the object's other programs.
    fn kinds(&self, entries: &[usize], btf: Option<&Btf>) -> Vec<(ProgramKind, bool)> {
        let first_guess: Vec<(ProgramKind, bool)> = entries
            .iter()
            .map(|e| {
                let f = self.functions.get(*e);
                let name = self.elf.sections[f.section].name;
                let (kind, autoload) = kind_of_section(name);
                let signed = btf.and_then(|btf| kind_of_signature(btf, f.func_id));
                match (kind, signed) {
                    (ProgramKind::Unknown, Some(signed)) => (signed, autoload),
                    // iproute2 uses this name for every hook.
                    (_, Some(signed)) if name == "prog" => (signed, autoload),
                    _ => (kind, autoload),
                }
            })
            .collect();
        let main = first_guess.iter().map(|k| k.0).find(|k| matches!(k, ProgramKind::Xdp { .. }));
        let foreign = first_guess.iter().any(|k| matches!(k.0, ProgramKind::Other(_)));
        let tail = match (main, foreign) {
            (Some(main), _) => main,
            (None, false) => ProgramKind::Xdp { frags: false },
            (None, true) => ProgramKind::Unknown,
        };
        let is_target = |e: usize| {
            let section = self.elf.sections[self.functions.get(e).section].name;
            tail_call_slot(section).is_some() || section.starts_with(".text")
        };
        entries
            .iter()
            .zip(first_guess)
            .map(|(e, (kind, autoload))| match kind {
                ProgramKind::Unknown if is_target(*e) && main.is_some() => (tail, autoload),
                ProgramKind::Unknown
                    if tail_call_slot(self.elf.sections[self.functions.get(*e).section].name).is_some() =>
                {
                    (tail, autoload)
                }
                // A tail-called program must take what its caller takes.
                ProgramKind::Xdp { frags: false } if is_target(*e) => (main.unwrap_or(kind), autoload),
                _ => (kind, autoload),
            })
            .collect()
    }

    /// The function that an initial entry refers to, if it is one.
    fn slot_function(&self, slot: &PendingSlot) -> Option<usize> {
        match slot.target {
            Target::Place(section, offset) if self.elf.sections[section].executable => {
                self.functions.starting_at(section, offset)
            }
            _ => None,
        }
    }

    /// Writes the initial entries of maps of maps and PROG_ARRAYs.
    fn fill_slots(
        &self,
        places: &HashMap<usize, Result<usize, ObjectError>>,
        object: &mut Object,
    ) -> Result<(), ObjectError> {
        let mut slots: Vec<Vec<(u32, SlotRef)>> = vec![Vec::new(); object.maps.len()];
        for p in &self.maps.pending {
            slots[p.map].push((p.key, self.slot(p, places, object)?));
        }
        self.numbered_sections(places, object, &mut slots)?;
        for (def, mut entries) in object.maps.iter_mut().zip(slots) {
            if !entries.is_empty() {
                entries.sort_by_key(|e| e.0);
                def.initial = Initial::Slots(entries);
            }
        }
        Ok(())
    }

    fn slot(
        &self,
        p: &PendingSlot,
        places: &HashMap<usize, Result<usize, ObjectError>>,
        object: &Object,
    ) -> Result<SlotRef, ObjectError> {
        let holder = &object.maps[p.map];
        let wrong = |why: String| ObjectError::Map { map: holder.name.clone(), section: holder.section.clone(), why };
        let holds_programs = holder.spec.map_type == xway_abi::MapType::ProgArray;
        if let Some(function) = self.slot_function(p) {
            return match places.get(&function) {
                _ if !holds_programs => Err(wrong(format!("initial entry {} is a function, not a map", p.key))),
                Some(Ok(index)) => Ok(SlotRef::Program(*index)),
                Some(Err(error)) => Err(error.clone()),
                None => Err(wrong(format!("initial entry {} is no program", p.key))),
            };
        }
        let map = match p.target {
            Target::Map(map) => Some(map),
            Target::Place(section, offset) => self.maps.declared_at(section, offset),
        };
        match map {
            Some(_) if holds_programs => Err(wrong(format!("initial entry {} is a map, not a program", p.key))),
            Some(map) => Ok(SlotRef::Map(map)),
            None => Err(wrong(format!("initial entry {} refers to neither a map nor the start of a function", p.key))),
        }
    }

    /// iproute2's sections `ID/KEY`: the program in it goes into the PROG_ARRAY with that number.
    fn numbered_sections(
        &self,
        places: &HashMap<usize, Result<usize, ObjectError>>,
        object: &mut Object,
        slots: &mut [Vec<(u32, SlotRef)>],
    ) -> Result<(), ObjectError> {
        for (function, f) in self.functions.iter() {
            let section = self.elf.sections[f.section].name;
            let Some((id, key)) = tail_call_slot(section) else { continue };
            let Some(place) = places.get(&function) else { continue };
            let holder =
                object.maps.iter().position(|m| m.id == Some(id) && m.spec.map_type == xway_abi::MapType::ProgArray);
            let Some(holder) = holder else {
                object.notes.push(format!("section `{section}`: no PROG_ARRAY has the id {id}, nothing tail-calls it"));
                continue;
            };
            let program = place.clone()?;
            if key >= object.maps[holder].spec.max_entries {
                let m = &object.maps[holder];
                let why = format!("section `{section}` wants slot {key}, but max_entries is {}", m.spec.max_entries);
                return Err(ObjectError::Map { map: m.name.clone(), section: m.section.clone(), why });
            }
            if slots[holder].iter().any(|s| s.0 == key) {
                object.notes.push(format!("section `{section}`: its slot is already taken"));
                continue;
            }
            slots[holder].push((key, SlotRef::Program(program)));
        }
        Ok(())
    }
}
