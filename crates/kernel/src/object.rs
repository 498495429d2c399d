//! A whole object in the kernel: its maps with their first contents, then its programs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use xway_abi::{MapSpec, MapType};
use xway_isa::{Slot, op};
use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding, Kind};
use xway_object::{Initial, MapDef, Object, Program, ProgramKind, SlotRef, Subprog};

use crate::prog::{FuncInfo, LineInfo};
use crate::{KernelError, KernelMap, KernelProg, MapBtf, ProgSpec, consts, load_btf, possible_cpus, vmlinux};

/// An object in the kernel, with the indices of [`Object`].
#[derive(Debug)]
pub struct KernelObject {
    /// One map for each of [`Object::maps`].
    pub maps: Vec<KernelMap>,
    /// One program for each of [`Object::programs`], or why the kernel has none.
    pub programs: Vec<Result<KernelProg, KernelError>>,
    /// The object's types, where it has any that the kernel takes.
    pub btf: Option<OwnedFd>,
}

impl KernelObject {
    /// Creates all maps and loads all programs.
    ///
    /// A map that cannot be created or filled fails the load. A program that is refused does not: its entry holds the
    /// reason, and a PROG_ARRAY that names it keeps that slot empty.
    pub fn load(object: &Object) -> Result<KernelObject, KernelError> {
        KernelObject::load_some(object, |_| true)
    }

    /// As [`KernelObject::load`], only for programs that `want` names; the others' entries say that they were not asked
    /// for.
    pub fn load_some(object: &Object, want: impl Fn(&Program) -> bool) -> Result<KernelObject, KernelError> {
        KernelObject::load_sharing(object, want, |_| Ok(None))
    }

    /// As [`KernelObject::load_some`], with maps that are there already: where `shared` gives one, it is used as it is, and
    /// nothing is written into it.
    pub fn load_sharing(
        object: &Object,
        want: impl Fn(&Program) -> bool,
        shared: impl FnMut(&MapDef) -> Result<Option<KernelMap>, KernelError>,
    ) -> Result<KernelObject, KernelError> {
        KernelObject::load_in(0, object, want, shared)
    }

    /// As [`KernelObject::load_sharing`], for the device of the interface with this number, whose driver compiles the programs and
    /// has their maps; 0: for the CPU.
    pub fn load_in(
        device: u32,
        object: &Object,
        want: impl Fn(&Program) -> bool,
        mut shared: impl FnMut(&MapDef) -> Result<Option<KernelMap>, KernelError>,
    ) -> Result<KernelObject, KernelError> {
        let btf = object_btf(object);
        let mut maps = Vec::new();
        let mut ours = Vec::new();
        for def in &object.maps {
            let found = shared(def)?;
            ours.push(found.is_none());
            maps.push(found.map_or_else(|| create(def, btf.as_ref(), device), Ok)?);
        }
        for ((def, map), _) in object.maps.iter().zip(&maps).zip(&ours).filter(|(_, ours)| **ours) {
            fill(object, def, map, &maps)?;
        }
        let fds: Vec<RawFd> = maps.iter().map(|m| m.as_fd().as_raw_fd()).collect();
        let load = |program: &Program| match want(program) {
            true => load_program(object, program, &fds, btf.as_ref(), How { device, ..How::default() }),
            false => Err(cannot_load(program, "it was not asked for")),
        };
        let programs: Vec<_> = object.programs.iter().map(load).collect();
        for ((def, map), _) in object.maps.iter().zip(&maps).zip(&ours).filter(|(_, ours)| **ours) {
            fill_programs(object, def, map, &programs)?;
        }
        Ok(KernelObject { maps, programs, btf })
    }

    /// Loads one more program that uses this object's maps and types, as the object's own were loaded.
    ///
    /// With a `log_level` other than 0 there is one attempt with that log, successful or not; see
    /// [`ProgSpec::log_level`].
    pub fn load_more(&self, object: &Object, program: &Program, log_level: u32) -> Result<KernelProg, KernelError> {
        let fds: Vec<RawFd> = self.maps.iter().map(|m| m.as_fd().as_raw_fd()).collect();
        load_program(object, program, &fds, self.btf.as_ref(), How { log_level, ..How::default() })
    }

    /// Loads a program of this object as an extension program, which can stand in for `function` (a type) of `target`.
    ///
    /// Objects without types get the ones that the kernel asks for: every function takes the context and gives a verdict.
    pub fn load_extension(
        &self,
        object: &Object,
        program: &Program,
        (target, function): (&KernelProg, u32),
    ) -> Result<KernelProg, KernelError> {
        let fds: Vec<RawFd> = self.maps.iter().map(|m| m.as_fd().as_raw_fd()).collect();
        let how = How { replaces: Some((target.as_fd(), function)), ..How::default() };
        let typed =
            self.btf.is_some() && !program.subprogs.is_empty() && program.subprogs.iter().all(|f| f.func_id != 0);
        if typed {
            return load_program(object, program, &fds, self.btf.as_ref(), how);
        }
        let (typed, btf) = with_types(program)?;
        load_program(object, &typed, &fds, Some(&btf), how)
    }

    /// Loads a program of this object as a member of a chain: it runs as it is, and behind the verdicts that `chain_on` names
    /// (bit n for the verdict n) the program in slot 0 of `next`, a PROG_ARRAY, is run; an empty slot leaves the verdict.
    ///
    /// The program becomes a function that a few instructions in front of it call, so its own tail calls come back to them.
    /// `frags`: as the other members of the chain, which the kernel asks for.
    pub fn load_chained(
        &self,
        object: &Object,
        program: &Program,
        next: &KernelMap,
        chain_on: u32,
        frags: bool,
    ) -> Result<KernelProg, KernelError> {
        let mut fds: Vec<RawFd> = self.maps.iter().map(|m| m.as_fd().as_raw_fd()).collect();
        let next_index = fds.len() as i32;
        fds.push(next.as_fd().as_raw_fd());
        let mut member = crate::chain::member(program, next_index, chain_on);
        member.kind = ProgramKind::Xdp { frags };
        let main = program.subprogs.first().map_or(0, |f| f.func_id);
        let upload = |(bytes, id): (Vec<u8>, u32)| Some((load_btf(&bytes).ok()?, id));
        let loaded = object.btf.as_ref().and_then(|btf| {
            let typed = btf.for_kernel_with_static(main).and_then(upload);
            typed.or_else(|| btf.for_older_kernel_with_static(main).and_then(upload))
        });
        if let Some((_, id)) = &loaded {
            // The first function is the new one; the second was the main one and is called now.
            member.subprogs.iter_mut().take(2).for_each(|f| f.func_id = *id);
        }
        load_program(object, &member, &fds, loaded.as_ref().map(|(btf, _)| btf), How::default())
    }

    /// The map with this name in the object.
    pub fn map(&self, object: &Object, name: &str) -> Option<&KernelMap> {
        object.maps.iter().position(|def| def.name == name).map(|i| &self.maps[i])
    }

    /// The program with this name in the object, if the kernel took it.
    pub fn program(&self, object: &Object, name: &str) -> Option<&KernelProg> {
        let index = object.programs.iter().position(|p| p.name == name)?;
        self.programs[index].as_ref().ok()
    }
}

/// The object's types, if the kernel takes them: what needs them then fails with the kernel's own words.
fn object_btf(object: &Object) -> Option<OwnedFd> {
    let btf = object.btf.as_ref()?;
    // A kernel that does not know some of the kinds takes what is like them; its own log is about the first attempt.
    load_btf(&btf.for_kernel()).or_else(|_| load_btf(&btf.for_older_kernel())).ok()
}

fn create(def: &MapDef, btf: Option<&OwnedFd>, device: u32) -> Result<KernelMap, KernelError> {
    let mut spec = def.spec.clone();
    if spec.map_type == MapType::PerfEventArray && spec.max_entries == 0 {
        // The convention of objects: a buffer for each CPU.
        spec.max_entries = possible_cpus();
    }
    let make = |name: &str, spec: &MapSpec, device: u32, (key_type, value_type), template: Option<&KernelMap>| {
        let typed = btf.filter(|_| takes_types(spec.map_type) && (key_type | value_type) != 0);
        let typed = typed.map(|btf| MapBtf { btf: btf.as_fd(), key_type, value_type });
        // Types that the kernel finds fault with (a key declared with another size) are left out, as other loaders do.
        let untyped = || KernelMap::create_like(device, name, spec, None, template);
        match typed {
            Some(_) => KernelMap::create_like(device, name, spec, typed, template).or_else(|_| untyped()),
            None => untyped(),
        }
    };
    let inner_types = (def.inner_key_type, def.inner_value_type);
    let template = spec.inner.as_deref().map(|inner| make("", inner, 0, inner_types, None)).transpose();
    template
        .and_then(|template| make(&def.name, &spec, device, (def.key_type, def.value_type), template.as_ref()))
        .map_err(|errno| map_error(def, "creating it", errno))
}

/// Map types that may be created with types of key and value.
fn takes_types(map_type: MapType) -> bool {
    use MapType::{
        ArrayOfMaps, CgroupArray, Cpumap, Devmap, DevmapHash, HashOfMaps, PerfEventArray, ProgArray, Sockhash, Sockmap,
        StackTrace, Xskmap,
    };
    !matches!(
        map_type,
        PerfEventArray
            | CgroupArray
            | StackTrace
            | ArrayOfMaps
            | HashOfMaps
            | Devmap
            | DevmapHash
            | Cpumap
            | Xskmap
            | Sockmap
            | Sockhash
            | ProgArray
    )
}

/// Everything but programs, which do not exist yet.
fn fill(object: &Object, def: &MapDef, map: &KernelMap, maps: &[KernelMap]) -> Result<(), KernelError> {
    match &def.initial {
        Initial::None => {}
        Initial::Data(bytes) => {
            map.update(&[0; 4], bytes, 0).map_err(|errno| map_error(def, "writing its first content", errno))?;
        }
        Initial::Slots(slots) => {
            for (key, target) in slots {
                let SlotRef::Map(index) = target else { continue };
                let inner = maps.get(*index).ok_or_else(|| no_such(def, *key, *index, object.maps.len()))?;
                map.update_fd(&key.to_ne_bytes(), inner.as_fd(), 0)
                    .map_err(|errno| map_error(def, "putting in an inner map", errno))?;
            }
        }
    }
    if def.frozen {
        map.freeze().map_err(|errno| map_error(def, "freezing it", errno))?;
    }
    Ok(())
}

fn fill_programs(
    object: &Object,
    def: &MapDef,
    map: &KernelMap,
    programs: &[Result<KernelProg, KernelError>],
) -> Result<(), KernelError> {
    let Initial::Slots(slots) = &def.initial else { return Ok(()) };
    for (key, target) in slots {
        let SlotRef::Program(index) = target else { continue };
        let program = programs.get(*index).ok_or_else(|| no_such(def, *key, *index, object.programs.len()))?;
        if let Ok(program) = program {
            map.update_fd(&key.to_ne_bytes(), program.as_fd(), 0)
                .map_err(|errno| map_error(def, "putting in a program", errno))?;
        }
    }
    Ok(())
}

/// How a program is loaded.
#[derive(Clone, Copy, Default)]
struct How<'a> {
    /// [`ProgSpec::log_level`].
    log_level: u32,
    /// [`ProgSpec::replaces`].
    replaces: Option<(BorrowedFd<'a>, u32)>,
    /// [`ProgSpec::device`].
    device: u32,
}

/// A program from an object without types, with the least that the kernel asks of an extension program.
fn with_types(program: &Program) -> Result<(Program, OwnedFd), KernelError> {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let context = b.structure("xdp_md", 24, &[("data", int, 0)]);
    let pointer = b.ptr(context);
    let prototype = b.prototype(int, &[("ctx", pointer)]);
    let mut out = program.clone();
    if out.subprogs.is_empty() {
        let len = out.insns.len();
        out.subprogs.push(Subprog { name: out.name.clone(), start: 0, len, global: true, func_id: 0 });
    }
    for (i, f) in out.subprogs.iter_mut().enumerate() {
        // Functions behind the first are verified where they are called, whatever they take.
        let linkage = if i == 0 { FuncLinkage::Global } else { FuncLinkage::Static };
        let name = if f.name.is_empty() { format!("function_{i}") } else { f.name.clone() };
        f.func_id = b.func(&name, prototype, linkage);
    }
    out.line_info.clear();
    Ok((out, load_btf(&b.to_bytes())?))
}

fn load_program(
    object: &Object,
    program: &Program,
    fds: &[RawFd],
    btf: Option<&OwnedFd>,
    how: How<'_>,
) -> Result<KernelProg, KernelError> {
    let attach_type = match program.kind {
        ProgramKind::Xdp { .. } | ProgramKind::Unknown => consts::ATTACH_XDP,
        ProgramKind::XdpDevmap { .. } => consts::ATTACH_XDP_DEVMAP,
        ProgramKind::XdpCpumap { .. } => consts::ATTACH_XDP_CPUMAP,
        // Runs at a tracepoint; libbpf's two names for it.
        ProgramKind::Other("raw_tp" | "raw_tracepoint") => 0,
        ProgramKind::Raw => return Err(cannot_load(program, "the kernel has no programs over plain memory")),
        ProgramKind::Other(hook) => {
            return Err(cannot_load(program, &format!("it is for another hook ({hook})")));
        }
    };
    let insns = resolve(program, fds)?;
    let func = |f: &xway_object::Subprog| FuncInfo { insn: f.start as u32, type_id: f.func_id };
    // The kernel wants a record for every function or for none.
    let known = btf.is_some() && program.subprogs.iter().all(|f| f.func_id != 0);
    let funcs: Vec<_> = program.subprogs.iter().filter(|_| known).map(func).collect();
    let lines: Vec<_> = program.line_info.iter().filter(|_| known).map(line).collect();
    // An extension takes both from the program that it extends.
    let (prog_type, attach_type) = match program.kind {
        _ if how.replaces.is_some() => (consts::PROG_TYPE_EXT, 0),
        ProgramKind::Other(_) => (consts::PROG_TYPE_RAW_TRACEPOINT, attach_type),
        _ => (consts::PROG_TYPE_XDP, attach_type),
    };
    let frags = program.kind.frags() && how.replaces.is_none();
    KernelProg::load(&ProgSpec {
        prog_type,
        attach_type,
        flags: if frags { consts::F_XDP_HAS_FRAGS } else { 0 },
        license: object.license.as_deref().unwrap_or(""),
        kernel_version: object.version.unwrap_or(0),
        btf: btf.filter(|_| known).map(AsFd::as_fd),
        funcs: &funcs,
        lines: &lines,
        log_level: how.log_level,
        replaces: how.replaces,
        device: how.device,
        ..ProgSpec::xdp(&program.name, &insns)
    })
}

fn line(l: &xway_object::LineInfo) -> LineInfo {
    LineInfo { insn: l.insn as u32, file_off: l.file_off, text_off: l.text_off, line: l.line, col: l.col }
}

/// The program's slots with what only this kernel and this load know: descriptors for the indices of maps, type ids for
/// those of kernel functions and variables.
///
/// The kernel would take map indices as they are (`fd_array`), but then they would become part of the program's tag, and
/// the same program would have another tag than under other loaders.
fn resolve(program: &Program, fds: &[RawFd]) -> Result<Vec<Slot>, KernelError> {
    let mut insns = program.insns.clone();
    let mut at = 0;
    while at < insns.len() {
        let slot = insns[at];
        if slot.is_wide() && matches!(slot.src, 5 | 6) {
            let fd = fds.get(slot.imm as usize);
            insns[at].imm = *fd.ok_or_else(|| cannot_load(program, &format!("it names map number {}", slot.imm)))?;
            insns[at].src = if slot.src == 5 { 1 } else { 2 };
        } else if slot.opcode == op::CALL && slot.src == 2 {
            let name = program.kfuncs.get(slot.imm as usize).map(|k| k.name.as_str());
            insns[at].imm = kernel_id(program, "kernel function", name, |k| matches!(k, Kind::Func { .. }))?;
        } else if slot.is_wide() && slot.src == 3 {
            let name = program.ksyms.get(slot.imm as usize).map(|k| k.name.as_str());
            insns[at].imm = kernel_id(program, "kernel variable", name, |k| matches!(k, Kind::Var { .. }))?;
        }
        at += if slot.is_wide() { 2 } else { 1 };
    }
    Ok(insns)
}

fn kernel_id(
    program: &Program,
    what: &'static str,
    name: Option<&str>,
    want: impl Fn(&Kind<'_>) -> bool,
) -> Result<i32, KernelError> {
    let name = name.ok_or_else(|| cannot_load(program, &format!("it names a {what} that its list does not have")))?;
    let id = vmlinux().and_then(|btf| btf.find(name, |t| want(&t.kind)));
    id.map(|id| id as i32).ok_or_else(|| KernelError::NoSymbol {
        program: program.name.clone(),
        what,
        name: name.into(),
    })
}

fn map_error(def: &MapDef, step: &'static str, errno: xway_abi::Errno) -> KernelError {
    KernelError::Map { name: def.name.clone(), step, errno }
}

fn no_such(def: &MapDef, key: u32, index: usize, have: usize) -> KernelError {
    let why = format!("entry {key} refers to number {index} of {have}");
    KernelError::Object { what: "map", name: def.name.clone(), why }
}

fn cannot_load(program: &Program, why: &str) -> KernelError {
    KernelError::Object { what: "program", name: program.name.clone(), why: why.to_owned() }
}
