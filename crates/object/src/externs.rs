//! Names that an object uses and does not define: kernel configuration, kernel variables, kernel functions.

use std::collections::HashMap;

use xway_abi::{MapSpec, MapType, map_flags};

use crate::btf::{Btf, FuncLinkage, Kind, VarLinkage, essential_name};
use crate::elf::{Elf, Place};
use crate::{Initial, KfuncRef, KsymRef, LoadOptions, MapDef, MapKind, kconfig};

/// What an extern resolves to.
#[derive(Clone, Debug)]
pub(crate) enum Extern {
    /// Offset in the `.kconfig` map.
    Kconfig { map: usize, offset: u32 },
    /// Kernel variable.
    Variable(KsymRef),
    /// Kernel function.
    Function(KfuncRef),
    /// Declared weak and not there: null.
    Absent,
    /// Unusable, and why.
    Failed(String),
}

/// All externs of an object.
#[derive(Default)]
pub(crate) struct Externs {
    by_symbol: HashMap<usize, Extern>,
    /// Places of the configuration variables in their map: BTF name and offset.
    pub config_places: Vec<(String, u32)>,
}

impl Externs {
    pub fn find(elf: &Elf<'_>, btf: Option<&Btf>, opts: &LoadOptions, maps: &mut Vec<MapDef>) -> Externs {
        let mut externs = Externs::default();
        let mut config: Vec<Config<'_>> = Vec::new();
        for (index, s) in elf.symbols.iter().enumerate() {
            if s.place != Place::Undefined || s.name.is_empty() || s.local {
                continue;
            }
            let found = match btf {
                None => Extern::Failed("undefined, and without BTF (`-g`) nothing says what it is".to_owned()),
                Some(btf) => match declaration(btf, s.name) {
                    Some((id, Kind::Var(ty, _))) if in_section(btf, ".kconfig", id) => {
                        config.push(Config { symbol: index, name: s.name, ty, weak: s.weak });
                        continue;
                    }
                    Some((id, Kind::Var(..))) if in_section(btf, ".ksyms", id) => variable(s.name, id, s.weak, opts),
                    Some((id, Kind::Func(..))) if in_section(btf, ".ksyms", id) => function(s.name, id, s.weak, opts),
                    Some((_, Kind::Func(..))) => Extern::Failed(
                        "declared and never defined; kernel functions are declared with `__ksym`".to_owned(),
                    ),
                    _ => Extern::Failed(
                        "declared and never defined; kernel values are declared with `__kconfig` or `__ksym`"
                            .to_owned(),
                    ),
                },
            };
            externs.by_symbol.insert(index, found);
        }
        if let (Some(btf), false) = (btf, config.is_empty()) {
            lay_out(btf, config, opts, maps, &mut externs);
        }
        externs
    }

    pub fn get(&self, symbol: usize) -> Option<&Extern> {
        self.by_symbol.get(&symbol)
    }
}

/// A configuration variable before its place is known.
struct Config<'a> {
    symbol: usize,
    name: &'a str,
    ty: u32,
    weak: bool,
}

fn declaration<'b>(btf: &'b Btf, name: &str) -> Option<(u32, Kind<'b>)> {
    let is_extern =
        |k: &Kind<'_>| matches!(k, Kind::Var(_, VarLinkage::Extern)) || matches!(k, Kind::Func(_, FuncLinkage::Extern));
    let id = btf.find(name, |t| is_extern(&t.kind))?;
    Some((id, btf.ty(id).ok()?.kind))
}

fn in_section(btf: &Btf, section: &str, id: u32) -> bool {
    let datasec = btf.find(section, |t| matches!(t.kind, Kind::Datasec { .. }));
    match datasec.and_then(|d| btf.ty(d).ok()).map(|t| t.kind) {
        Some(Kind::Datasec { vars, .. }) => vars.iter().any(|v| v.ty == id),
        _ => false,
    }
}

fn variable(name: &str, id: u32, weak: bool, opts: &LoadOptions) -> Extern {
    let known = match (&opts.ksyms, &opts.target_btf) {
        (Some(exists), _) => exists(name),
        (None, Some(btf)) => btf.find(name, |t| matches!(t.kind, Kind::Var(..))).is_some(),
        (None, None) => false,
    };
    if weak && !known {
        return Extern::Absent;
    }
    Extern::Variable(KsymRef { name: name.to_owned(), var_id: id, weak })
}

fn function(name: &str, id: u32, weak: bool, opts: &LoadOptions) -> Extern {
    let essential = essential_name(name);
    let known = match (&opts.kfuncs, &opts.target_btf) {
        (Some(exists), _) => exists(essential),
        (None, Some(btf)) => btf.find(essential, |t| matches!(t.kind, Kind::Func(..))).is_some(),
        (None, None) => true,
    };
    match (known, weak) {
        (true, _) => Extern::Function(KfuncRef { name: essential.to_owned(), func_id: id, weak }),
        (false, true) => Extern::Absent,
        (false, false) => {
            Extern::Failed("no such kernel function here (declare it `__weak` to test for it)".to_owned())
        }
    }
}

/// Lays out the configuration variables as libbpf does, by falling alignment and size, and fills in their values.
fn lay_out(btf: &Btf, mut config: Vec<Config<'_>>, opts: &LoadOptions, maps: &mut Vec<MapDef>, externs: &mut Externs) {
    let layout = |c: &Config<'_>| Some((btf.align_of(c.ty).ok()?, btf.size_of(c.ty).ok()?));
    config.sort_by_cached_key(|c| (std::cmp::Reverse(layout(c).unwrap_or((0, 0))), c.name));
    let text = opts.kconfig.as_deref().unwrap_or("");
    let names: Vec<String> = config.iter().map(|c| c.name.to_owned()).collect();
    let values = kconfig::pick(text, names.iter().map(|n| &**n));
    let map = maps.len();
    let mut bytes: Vec<u8> = Vec::new();
    for c in config {
        let Some((align, size)) = layout(&c).filter(|l| l.1 <= MAX_VALUE && bytes.len() < MAX_SECTION) else {
            externs
                .by_symbol
                .insert(c.symbol, Extern::Failed(format!("its type `{}` has no usable size", btf.type_name(c.ty))));
            continue;
        };
        let offset = bytes.len().next_multiple_of(align as usize);
        bytes.resize(offset + size as usize, 0);
        let found = match value_of(&c, &values, opts) {
            Ok(None) => Ok(()),
            Ok(Some(value)) => kconfig::encode(btf, c.ty, &value, &mut bytes[offset..]),
            Err(why) => Err(why),
        };
        let resolved = match found {
            Ok(()) => Extern::Kconfig { map, offset: offset as u32 },
            Err(why) => Extern::Failed(why),
        };
        externs.by_symbol.insert(c.symbol, resolved);
        externs.config_places.push((c.name.to_owned(), offset as u32));
    }
    if bytes.is_empty() {
        return;
    }
    let spec =
        MapSpec::new(MapType::Array, 4, bytes.len() as u32, 1).with_flags(map_flags::RDONLY_PROG | map_flags::MMAPABLE);
    let mut def = MapDef::new(".kconfig", spec);
    def.section = ".kconfig".to_owned();
    (def.kind, def.frozen, def.initial) = (MapKind::Kconfig, true, Initial::Data(bytes));
    maps.push(def);
}

/// The longest configuration value, bytes (libbpf's and Kconfig's own texts are shorter), and the longest section.
const MAX_VALUE: u32 = 64 << 10;
const MAX_SECTION: usize = 1 << 20;

/// The text of a variable's value; `None` leaves it zero.
fn value_of(c: &Config<'_>, values: &HashMap<&str, &str>, opts: &LoadOptions) -> Result<Option<String>, String> {
    match c.name {
        "LINUX_KERNEL_VERSION" => {
            return Ok(Some(opts.kernel_version.unwrap_or(LoadOptions::DEFAULT_KERNEL_VERSION).to_string()));
        }
        // Abilities of tracing programs, which kernels have had since 5.15 and 4.17.
        "LINUX_HAS_BPF_COOKIE" | "LINUX_HAS_SYSCALL_WRAPPER" => return Ok(Some("1".to_owned())),
        _ => {}
    }
    match values.get(c.name) {
        Some(value) => Ok(Some((*value).to_owned())),
        None if c.weak => Ok(None),
        None if c.name.starts_with("CONFIG_") && opts.kconfig.is_none() => {
            Err("the kernel's configuration is not known here (/proc/config.gz); declare it `__weak` to do without"
                .to_owned())
        }
        None if c.name.starts_with("CONFIG_") => {
            Err("the kernel's configuration does not set it; declare it `__weak` to get 0".to_owned())
        }
        None => Err("no configuration value has this name (LINUX_KERNEL_VERSION or CONFIG_…)".to_owned()),
    }
}
