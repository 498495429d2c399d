//! What an object holds once it has been read: plain data, all fields public, also built by hand.

use std::sync::Arc;

use xway_abi::{MapSpec, map_flags};
use xway_isa::Slot;

use crate::{Btf, ObjectError};

/// One object file: its programs, its maps and its types.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// Programs that were found and linked, in file order.
    pub programs: Vec<Program>,
    /// Programs that were found but could not be linked, with the reason. Asking for one by name returns that reason.
    pub rejected: Vec<RejectedProgram>,
    /// Map descriptions. Map references in programs are indices into this list.
    pub maps: Vec<MapDef>,
    /// The object's own types, when it was compiled with `-g`.
    pub btf: Option<Arc<Btf>>,
    /// The types that the object was loaded against ([`crate::LoadOptions::target_btf`]).
    pub target: Option<Arc<Btf>>,
    /// Content of the `license` section.
    pub license: Option<String>,
    /// Content of the `version` section (`LINUX_VERSION_CODE` at compile time; kernels since 5.0 ignore it for XDP).
    pub version: Option<u32>,
    /// The ELF sections, for inspection.
    pub sections: Vec<Section>,
    /// Things that a person may want to know and that are no errors (a skipped section, a default that was taken).
    pub notes: Vec<String>,
}

/// An ELF section, for inspection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Section {
    /// Index in the section header table.
    pub index: usize,
    /// Name.
    pub name: String,
    /// Length in bytes (of `.bss` too, which takes no room in the file).
    pub size: u64,
    /// Holds instructions (`SHF_EXECINSTR`).
    pub executable: bool,
    /// Holds data that is loaded (`SHF_ALLOC`).
    pub alloc: bool,
}

/// What a program is for, from its section name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProgramKind {
    /// XDP on a device: `xdp`, `xdp/…`, `xdp_…`, `xdp.frags`, `prog`, iproute2's numbered sections in an object that
    /// has such a program.
    Xdp {
        /// Takes packets of several buffers (`BPF_F_XDP_HAS_FRAGS`).
        frags: bool,
    },
    /// Second XDP program, run on the egress side of a DEVMAP entry (`BPF_XDP_DEVMAP`).
    XdpDevmap {
        /// Takes packets of several buffers.
        frags: bool,
    },
    /// XDP program run by a CPUMAP entry (`BPF_XDP_CPUMAP`).
    XdpCpumap {
        /// Takes packets of several buffers.
        frags: bool,
    },
    /// Instructions over a plain memory region (r1 = address, r2 = length): conformance vectors.
    Raw,
    /// An executable section whose name says nothing. Run as XDP when it is asked for by name.
    Unknown,
    /// A program for another hook, by libbpf's section prefix (for example `fentry`, `kprobe`, `tc`).
    Other(&'static str),
}

impl ProgramKind {
    /// What a section's name says about the programs in it, and whether they are loaded without being asked for (a name
    /// that begins with `?` says no).
    pub fn of_section(name: &str) -> (ProgramKind, bool) {
        crate::kinds::kind_of_section(name)
    }

    /// True for the three XDP kinds.
    pub const fn is_xdp(self) -> bool {
        matches!(self, ProgramKind::Xdp { .. } | ProgramKind::XdpDevmap { .. } | ProgramKind::XdpCpumap { .. })
    }

    /// Whether packets of several buffers are taken.
    pub const fn frags(self) -> bool {
        match self {
            ProgramKind::Xdp { frags } | ProgramKind::XdpDevmap { frags } | ProgramKind::XdpCpumap { frags } => frags,
            _ => false,
        }
    }

    /// `xdp`, `xdp/devmap`, `xdp/cpumap`, `raw`, `unknown` or the prefix of another hook.
    pub const fn name(self) -> &'static str {
        match self {
            ProgramKind::Xdp { .. } => "xdp",
            ProgramKind::XdpDevmap { .. } => "xdp/devmap",
            ProgramKind::XdpCpumap { .. } => "xdp/cpumap",
            ProgramKind::Raw => "raw",
            ProgramKind::Unknown => "unknown",
            ProgramKind::Other(prefix) => prefix,
        }
    }
}

/// One linked program.
///
/// `insns` holds the main function first, then each subprogram that it needs, directly or through others. References are
/// left in the form that depends on nothing but this object:
///
/// | reference | form |
/// |---|---|
/// | map | `lddw`, source 5 (`BPF_PSEUDO_MAP_IDX`), immediate = index into [`Object::maps`] |
/// | address in a data section's map | `lddw`, source 6 (`BPF_PSEUDO_MAP_IDX_VALUE`), the second immediate is the offset |
/// | subprogram call | `call`, source 1, relative to the next slot |
/// | callback | `lddw`, source 4 (`BPF_PSEUDO_FUNC`), relative to the next slot |
/// | kernel function | `call`, source 2, immediate = index into [`Program::kfuncs`] |
/// | kernel variable | `lddw`, source 3 (`BPF_PSEUDO_BTF_ID`), immediate = index into [`Program::ksyms`] |
#[derive(Clone, Debug)]
pub struct Program {
    /// Name of its function; the section's name where the symbol table names none.
    pub name: String,
    /// Section that it stands in.
    pub section: String,
    /// What it is for.
    pub kind: ProgramKind,
    /// All slots of the linked program.
    pub insns: Vec<Slot>,
    /// The functions in `insns`, in order; the first is the main function. Empty only in programs built by hand, which
    /// then consist of one function.
    pub subprogs: Vec<Subprog>,
    /// Source lines, by rising instruction index. Empty without BTF.
    pub line_info: Vec<LineInfo>,
    /// Kernel functions that calls refer to.
    pub kfuncs: Vec<KfuncRef>,
    /// Kernel variables that loads refer to.
    pub ksyms: Vec<KsymRef>,
    /// Instructions that stand for something that could not be resolved. Reaching one is an error, its presence is not.
    pub poisons: Vec<Poison>,
    /// False for `?xdp`: loaded only when asked for by name.
    pub autoload: bool,
}

impl Default for Program {
    fn default() -> Self {
        Program {
            name: String::new(),
            section: String::new(),
            kind: ProgramKind::Xdp { frags: false },
            insns: Vec::new(),
            subprogs: Vec::new(),
            line_info: Vec::new(),
            kfuncs: Vec::new(),
            ksyms: Vec::new(),
            poisons: Vec::new(),
            autoload: true,
        }
    }
}

/// A function inside a linked program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subprog {
    /// Name.
    pub name: String,
    /// Index of its first slot.
    pub start: usize,
    /// Number of slots.
    pub len: usize,
    /// Not `static`: the kernel verifies it on its own, by its BTF signature.
    pub global: bool,
    /// BTF id of its `FUNC`, 0 when unknown.
    pub func_id: u32,
}

/// Where an instruction comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineInfo {
    /// Index of the first slot that this entry is for; it holds up to the next entry.
    pub insn: usize,
    /// Source file.
    pub file: Arc<str>,
    /// Line, from 1; 0 when the compiler made the instruction up.
    pub line: u32,
    /// Column, from 1; 0 when unknown.
    pub col: u32,
    /// The line's text, with its leading white space; empty when the object does not hold it.
    pub text: Arc<str>,
    /// Offset of the file name in the object's BTF strings, as the kernel wants it.
    pub file_off: u32,
    /// Offset of the text in the object's BTF strings.
    pub text_off: u32,
}

/// A kernel function that a program calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KfuncRef {
    /// Name, without a `___flavour` suffix.
    pub name: String,
    /// BTF id of its declaration in the object, 0 without BTF.
    pub func_id: u32,
    /// Declared `__weak`: the program may test whether it exists.
    pub weak: bool,
}

/// A kernel variable that a program refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KsymRef {
    /// Name.
    pub name: String,
    /// BTF id of its declaration in the object.
    pub var_id: u32,
    /// Declared `__weak`.
    pub weak: bool,
}

/// An instruction that stands for something unresolvable. It is a call of a helper that does not exist, so that a
/// verifier refuses the path that reaches it and prunes the ones that do not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Poison {
    /// Index of its slot.
    pub insn: usize,
    /// What could not be resolved.
    pub reason: String,
}

/// A program that could not be linked.
#[derive(Clone, Debug)]
pub struct RejectedProgram {
    /// Function name.
    pub name: String,
    /// Section.
    pub section: String,
    /// What it would have been.
    pub kind: ProgramKind,
    /// The reason.
    pub error: ObjectError,
}

/// What a map is in its object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MapKind {
    /// Declared by the program's author.
    #[default]
    User,
    /// `.rodata*`: constants.
    Rodata,
    /// `.data*` and data sections with names of their own.
    Data,
    /// `.bss*`.
    Bss,
    /// `.kconfig`: values of kernel configuration externs.
    Kconfig,
}

/// Whether and where a map wants to be pinned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pinning {
    /// Not.
    #[default]
    None,
    /// Under its name (`LIBBPF_PIN_BY_NAME`).
    ByName,
    /// iproute2's `PIN_OBJECT_NS`: below a directory of this object.
    ObjectNs,
    /// iproute2's `PIN_GLOBAL_NS`: below `globals/`.
    GlobalNs,
    /// A number of iproute2 that a configuration file gives a meaning to.
    Custom(u32),
}

/// What a map holds before the first packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Initial {
    /// Nothing (arrays: zeros).
    #[default]
    None,
    /// The value at key 0 of a data section's map; its length is the value size.
    Data(Vec<u8>),
    /// Entries of a map of maps or of a PROG_ARRAY, by rising key.
    Slots(Vec<(u32, SlotRef)>),
}

/// What an initial entry refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotRef {
    /// Index into [`Object::maps`].
    Map(usize),
    /// Index into [`Object::programs`].
    Program(usize),
}

/// A map that an object asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapDef {
    /// Name: the variable's, or the section's for data sections. Not cut to the kernel's 15 bytes.
    pub name: String,
    /// What to create.
    pub spec: MapSpec,
    /// What it is in the object.
    pub kind: MapKind,
    /// Pinning.
    pub pinning: Pinning,
    /// BTF id of the key's type, 0 when unknown.
    pub key_type: u32,
    /// BTF id of the value's type, 0 when unknown. For data sections the `DATASEC`.
    pub value_type: u32,
    /// BTF id of the inner maps' key type (maps of maps), 0 when unknown.
    pub inner_key_type: u32,
    /// BTF id of the inner maps' value type, 0 when unknown.
    pub inner_value_type: u32,
    /// First content.
    pub initial: Initial,
    /// To be frozen after `initial` has been written (`.rodata`, `.kconfig`).
    pub frozen: bool,
    /// iproute2's number of this map; sections named `ID/KEY` refer to it.
    pub id: Option<u32>,
    /// Section that declares it.
    pub section: String,
}

impl MapDef {
    /// What is in the map for ever: the content of an array's only element that neither programs nor, frozen, anybody else can change.
    /// A pointer to a value of a map with more elements may be one to any of them.
    #[inline]
    pub fn constant(&self) -> Option<&[u8]> {
        let fixed = self.frozen && self.spec.flags & map_flags::RDONLY_PROG != 0 && self.spec.max_entries == 1;
        match &self.initial {
            Initial::Data(bytes) if fixed => Some(bytes),
            _ => None,
        }
    }

    /// A map made by hand.
    pub fn new(name: &str, spec: MapSpec) -> MapDef {
        MapDef {
            name: name.to_owned(),
            spec,
            kind: MapKind::User,
            pinning: Pinning::None,
            key_type: 0,
            value_type: 0,
            inner_key_type: 0,
            inner_value_type: 0,
            initial: Initial::None,
            frozen: false,
            id: None,
            section: String::new(),
        }
    }
}
