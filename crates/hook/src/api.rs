//! What is said to a hook and what it answers: plain data, the same for every implementor. What can be written as it stands
//! is, where a hook is behind a wire.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xway_abi::{MapType, Verdict};
use xway_engine::Outcome;
use xway_isa::Slot;
use xway_object::{LoadOptions, Object, ObjectError};

use crate::words::Word;
use crate::{Mode, words};

/// Which implementor answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HookKind {
    /// The engine in this process.
    User,
    /// The engine in the service, behind its socket.
    Service,
    /// Linux.
    Kernel,
}

impl HookKind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            HookKind::User => "user",
            HookKind::Service => "service",
            HookKind::Kernel => "kernel",
        }
    }
}

/// Number of a map, given once in the life of its hook.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct MapId(pub u32);

/// Number of a program, given once in the life of its hook.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ProgId(pub u32);

impl fmt::Display for MapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "map {}", self.0)
    }
}

impl fmt::Display for ProgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {}", self.0)
    }
}

/// An object that has a number and can be pinned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectId {
    /// A map.
    Map(MapId),
    /// A program.
    Program(ProgId),
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectId::Map(id) => id.fmt(f),
            ObjectId::Program(id) => id.fmt(f),
        }
    }
}

impl ObjectId {
    /// What it is, in a word.
    pub const fn kind(self) -> &'static str {
        match self {
            ObjectId::Map(_) => "map",
            ObjectId::Program(_) => "program",
        }
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            ObjectId::Map(id) => id.0,
            ObjectId::Program(id) => id.0,
        }
    }
}

impl From<MapId> for ObjectId {
    fn from(id: MapId) -> ObjectId {
        ObjectId::Map(id)
    }
}

impl From<ProgId> for ObjectId {
    fn from(id: ProgId) -> ObjectId {
        ObjectId::Program(id)
    }
}

/// A name of an object that the engine keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PinInfo {
    /// The name.
    pub path: PathBuf,
    /// What it stands for.
    pub object: ObjectId,
    /// Whether anything but names keeps the object: an attachment, somebody who holds it, a map or a program that is used itself.
    pub used: bool,
}

/// An object file: its bytes, for hooks that read it themselves, and what they mean here.
#[derive(Clone, Debug)]
pub struct Image {
    /// The file.
    pub bytes: Arc<[u8]>,
    /// What our loader made of it.
    pub object: Arc<Object>,
}

impl Image {
    /// Reads an object file.
    ///
    /// # Errors
    /// The loader's, with place and reason.
    pub fn parse(bytes: &[u8], options: &LoadOptions) -> Result<Image, ObjectError> {
        Ok(Image { bytes: bytes.into(), object: Arc::new(Object::parse(bytes, options)?) })
    }
}

/// What a load is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoadRequest {
    /// Programs by name; those that a PROG_ARRAY of the object holds from the start come along. Empty: all.
    pub programs: Vec<String>,
    /// Directory for pins: maps that the object declares are taken from there, or pinned there when they are new.
    pub pins: Option<PathBuf>,
    /// The interface whose device is to run them ([`crate::Mode::Offload`]), which its driver must know when they are loaded; `None`:
    /// the CPU runs them.
    pub device: Option<String>,
}

/// What a load made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Objects {
    /// Programs by name, in the order of the object.
    pub programs: Vec<(String, ProgId)>,
    /// Maps by name, in the order of the object.
    pub maps: Vec<(String, MapId)>,
    /// Maps that were there already and are used.
    pub shared: Vec<PathBuf>,
    /// Maps that were pinned now.
    pub pinned: Vec<PathBuf>,
}

impl Objects {
    /// The program with this name.
    pub fn program(&self, name: &str) -> Option<ProgId> {
        self.programs.iter().find(|(n, _)| n == name).map(|(_, id)| *id)
    }

    /// The map with this name.
    pub fn map(&self, name: &str) -> Option<MapId> {
        self.maps.iter().find(|(n, _)| n == name).map(|(_, id)| *id)
    }
}

/// What a map is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapInfo {
    /// Its number.
    pub id: MapId,
    /// Its name, at most 15 characters.
    pub name: String,
    /// Type.
    pub map_type: MapType,
    /// Key length, bytes.
    pub key_size: u32,
    /// Value length as programs see it, bytes.
    pub value_size: u32,
    /// Value length in look-ups and updates, bytes: one value for each CPU on per-CPU types, 4 where values are objects.
    pub user_value_size: u32,
    /// Most entries.
    pub max_entries: u32,
    /// Creation flags.
    pub flags: u32,
    /// Nobody outside programs can write any more.
    pub frozen: bool,
    /// Memory that it takes, bytes; `None` where the hook cannot tell.
    pub memory: Option<u64>,
    /// Where that memory lies, in words; `None` where the hook cannot tell.
    pub placement: Option<String>,
}

/// Types of keys and values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapTypes {
    /// Type information (BTF).
    pub btf: Vec<u8>,
    /// Type of the key in it, 0 for none.
    pub key: u32,
    /// Type of the value in it, 0 for none.
    pub value: u32,
}

/// Part of a map, from a batch command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Elements {
    /// Keys and values, side by side.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where to go on; `None`: that was all.
    pub next: Option<Vec<u8>>,
}

/// What a program is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramInfo {
    /// Its number.
    pub id: ProgId,
    /// Its name, at most 15 characters.
    pub name: String,
    /// Linux's tag: the same for the same instructions, on every hook.
    pub tag: [u8; 8],
    /// Maps that it uses.
    pub maps: Vec<MapId>,
    /// What runs it: `jit`, `interp`, `kernel jit`, `kernel interpreter`.
    #[serde(with = "words")]
    pub engine: Word,
    /// Why it is not machine code, when it is not.
    pub reason: Option<String>,
    /// Its licence permits helpers that want the GPL.
    pub gpl_compatible: bool,
    /// Runs and the time they took, where they are counted.
    #[serde(default, with = "words::runs")]
    pub runs: Option<(u64, Duration)>,
}

/// One test run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestRequest<'a> {
    /// The packet, with its metadata in front when a context says so.
    pub data: &'a [u8],
    /// `struct xdp_md`, 24 bytes.
    pub ctx: Option<[u8; 24]>,
    /// Runs, each over what the one before left.
    pub repeat: u32,
}

/// What a test run gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestAnswer {
    /// The return value.
    pub ret: u32,
    /// The packet behind it.
    pub data: Vec<u8>,
    /// The context behind it, when one was given.
    pub ctx: Option<[u8; 24]>,
    /// Mean time of one run.
    pub duration: Duration,
}

/// A program's code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dump {
    /// The instructions that are run: on Linux as its verifier has rewritten them.
    pub xlated: Vec<Slot>,
    /// Machine code; empty where there is none or it may not be seen.
    pub jited: Vec<u8>,
    /// Source lines of `xlated`, by rising number of the slot; empty without types, and on Linux, whose own are asked for there.
    pub lines: Vec<SourceLine>,
    /// Functions of `jited`, by rising offset; empty on Linux, whose own are asked for there. What is in none of them is no code.
    pub functions: Vec<CodeFunction>,
    /// Chains of the engine that the program is a part of and that are one function each: on these ports that runs, and `jited` does not.
    pub chains: Vec<ChainCode>,
}

/// Several programs on one port as one function.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChainCode {
    /// Ports on which it runs, and the queue of queues that have programs of their own. On each it is compiled anew; this is the first one's.
    pub points: Vec<(String, Option<u32>)>,
    /// Its programs, in the order in which they run.
    pub programs: Vec<ChainPart>,
    /// Machine code.
    pub jited: Vec<u8>,
    /// Source lines of all its programs, by rising number of the slot; slots are counted on from program to program.
    pub lines: Vec<SourceLine>,
    /// Functions of `jited`, as those of [`Dump::functions`], with slots as those of `lines`.
    pub functions: Vec<CodeFunction>,
}

/// A program of a chain.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ChainPart {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its first slot.
    pub first: usize,
}

/// A function of machine code.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CodeFunction {
    /// Its name, with a suffix that says what it is compiled to.
    pub name: String,
    /// Its first byte.
    pub offset: usize,
    /// Length, bytes.
    pub len: usize,
    /// Offsets in it, rising, from which on machine code belongs to the instruction in this slot of `xlated`, or to none of this
    /// program.
    pub insns: Vec<(u32, Option<usize>)>,
}

/// The source line of the instructions from one slot up to the next one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SourceLine {
    /// The first slot.
    pub insn: usize,
    /// Function that it stands in.
    pub function: String,
    /// Source file.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1; 0 when it is not known.
    pub col: u32,
    /// The line without the white space around it.
    pub text: String,
}

/// A set of verdicts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Verdicts(pub u32);

impl Verdicts {
    /// What a program is chained on unless told otherwise: PASS, as the ecosystem's convention has it.
    pub const PASS: Verdicts = Verdicts(1 << Verdict::Pass as u32);

    /// Whether a return value is in the set. Codes above 31 never are.
    pub const fn has(self, code: u32) -> bool {
        code < 32 && self.0 >> code & 1 != 0
    }

    /// From names (`pass,tx` or `XDP_PASS`), separated by commas.
    ///
    /// # Errors
    /// The name that is none.
    pub fn parse(text: &str) -> Result<Verdicts, String> {
        let mut set = 0;
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let lower = word.to_lowercase();
            let name = lower.strip_prefix("xdp_").unwrap_or(&lower);
            let found = Verdict::ALL.iter().find(|v| v.name().to_lowercase().trim_start_matches("xdp_") == name);
            let found =
                found.ok_or_else(|| format!("{word}: not a verdict; there are aborted, drop, pass, tx, redirect"))?;
            set |= 1 << *found as u32;
        }
        Ok(Verdicts(set))
    }
}

impl Verdicts {
    /// Names of those that are in it, in the order of their codes.
    pub fn names(self) -> Vec<&'static str> {
        Verdict::ALL.iter().filter(|v| self.has(**v as u32)).map(|v| v.name()).collect()
    }
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names();
        f.write_str(if names.is_empty() { "none".into() } else { names.join(",") }.as_str())
    }
}

/// What happens to a program that is attached already.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Replace {
    /// It stays, and the request is refused.
    #[default]
    Never,
    /// It is replaced, whatever it is.
    Any,
    /// It is replaced if it has this id.
    Id(u32),
    /// It is replaced if it has this name.
    Name(String),
}

/// Priority of a program that does not say: in the middle, as the ecosystem's convention has it.
pub const PRIORITY: u32 = 50;

/// An attachment that is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachRequest {
    /// Interface or port.
    pub port: String,
    /// Receive queue; `None`: all that have no program of their own.
    pub queue: Option<u32>,
    /// Where it runs.
    pub mode: Mode,
    /// The program.
    pub program: ProgId,
    /// Smaller numbers run first.
    pub priority: u32,
    /// Verdicts behind which the next program of the port is asked.
    pub chain_on: Verdicts,
    /// What may be there.
    pub replace: Replace,
    /// Others may run on the same port: the program is put into their chain.
    pub chain: bool,
}

impl AttachRequest {
    /// A program alone on a port.
    pub fn new(port: &str, program: ProgId) -> AttachRequest {
        AttachRequest {
            port: port.to_owned(),
            queue: None,
            mode: Mode::Auto,
            program,
            priority: PRIORITY,
            chain_on: Verdicts::PASS,
            replace: Replace::Never,
            chain: false,
        }
    }
}

/// What was asked for, what was done, and why the two differ.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// Asked for.
    #[serde(with = "words")]
    pub requested: Word,
    /// Done.
    #[serde(with = "words")]
    pub effective: Word,
    /// Why they differ.
    pub reason: Option<String>,
}

impl Choice {
    /// What was asked for is what was done.
    pub const fn met(name: &'static str) -> Choice {
        Choice { requested: name, effective: name, reason: None }
    }
}

/// How an attachment is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Via {
    /// By a link with this id.
    Link(u32),
    /// By the interface itself.
    Netlink,
    /// By the engine's port: the only one behind a wire, and not said there.
    #[default]
    Engine,
}

impl Via {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Via::Link(_) => "link",
            Via::Netlink => "netlink",
            Via::Engine => "engine",
        }
    }
}

/// What attaching did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// The mode.
    pub mode: Choice,
    /// What was to hold it, what does, and why not the former.
    pub held: Choice,
    /// What holds it.
    #[serde(skip)]
    pub via: Via,
    /// The program that was replaced.
    pub replaced: Option<u32>,
    /// How it was chained with others, when that was asked for.
    pub chain: Option<Choice>,
    /// The program that runs: a member of a chain is another one than the one that was loaded.
    pub program: ProgId,
    /// Where the port does something else than it was asked for.
    #[serde(default, with = "words::outcomes")]
    pub outcomes: Vec<Outcome>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// One program on a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttachmentInfo {
    /// Interface or port.
    pub port: String,
    /// Receive queue; `None`: all that have no program of their own.
    pub queue: Option<u32>,
    /// Where it runs: [`Mode::User`] on a port of the engine, which has this place only, and which alone speaks on a wire.
    #[serde(skip, default = "Mode::user")]
    pub mode: Mode,
    /// The program.
    pub program: ProgramInfo,
    /// What holds it.
    #[serde(skip)]
    pub via: Via,
    /// The number by which it is detached ([`crate::Hook::link_detach`]): of Linux's link; on the engine of the attachment itself, which keeps
    /// it when its program is replaced, as a link does.
    #[serde(default)]
    pub link: Option<u32>,
    /// Position among the port's programs: smaller numbers run first. `None`: it is alone.
    pub priority: Option<u32>,
    /// Verdicts behind which the next one is asked. `None`: it is alone.
    pub chain_on: Option<Verdicts>,
}

/// What a port can do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortFeatures {
    /// Its name.
    pub port: String,
    /// Number, as programs see it.
    pub ifindex: u32,
    /// Driver's kind.
    pub kind: String,
    /// Receive queues.
    pub rx_queues: u32,
    /// Transmit queues.
    pub tx_queues: u32,
    /// What it can do, by the kernel's names (`basic`, `redirect`, `ndo-xmit`, `xsk-zerocopy`, `rx-sg`, …).
    pub xdp: Vec<String>,
    /// Metadata that it gives: `timestamp`, `hash`, `vlan-tag`.
    pub rx_metadata: Vec<String>,
    /// Each verdict, and whether it works: `full`, `copy only`, `none`.
    #[serde(default)]
    pub verdicts: Vec<(String, String)>,
    /// How packets lie in memory; `None` where the driver cannot be asked.
    #[serde(default)]
    pub memory: Option<PortMemory>,
    /// Where it does something else than it was asked for when it was opened.
    #[serde(default, with = "words::outcomes")]
    pub outcomes: Vec<Outcome>,
}

impl PortFeatures {
    /// That the port receives no more, or packets pass by, though nobody closed it.
    pub fn lost(&self) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.what == Outcome::PORT)
    }
}

/// The memory that packets of a port lie in: what a program may expect of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PortMemory {
    /// Whose it is: `copied` (into the engine's frames), `shared with the device`.
    pub model: String,
    /// Packets in a chunk: one.
    pub packets_a_chunk: u32,
    /// Packets of several buffers come in: programs must be made for them.
    pub frags: bool,
    /// Packets reach programs without a copy.
    pub zero_copy: bool,
    /// Programs may change packets.
    pub writable: bool,
    /// Bytes in front of a packet; `None`: whatever the pool gives.
    pub headroom: Option<u32>,
    /// Bytes behind it, likewise.
    pub tailroom: Option<u32>,
    /// What each open queue got.
    pub queues: Vec<QueueMemory>,
}

/// What the packets of one queue lie in.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueMemory {
    /// The queue.
    pub queue: u32,
    /// Bytes of its pool.
    pub bytes: u64,
    /// Pages that were asked for: `huge` (2 MiB, of the reserve), `joined` (as the kernel finds some), `base`.
    pub pages_requested: String,
    /// Those that were got.
    pub pages_effective: String,
    /// Why the two differ; `None` when they do not.
    pub pages_reason: Option<String>,
    /// The NUMA node that it lies on, or why on none in particular.
    pub node: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_and_written() {
        let set = Verdicts::parse("pass, XDP_TX").unwrap();
        assert!(set.has(Verdict::Pass as u32) && set.has(Verdict::Tx as u32) && !set.has(Verdict::Drop as u32));
        assert_eq!(Verdicts::parse(&set.to_string()), Ok(set));
        assert!(!Verdicts(u32::MAX).has(32));
        assert!(Verdicts::parse("pas").unwrap_err().contains("pas: not a verdict"));
        assert_eq!(Verdicts(0).to_string(), "none");
    }
}
