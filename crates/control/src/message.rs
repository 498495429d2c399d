//! What can be asked, and how it is written.
//!
//! Each request is an object with the member `do`; the answer is `{"ok": …}` or `{"error": …}`. Bytes are base64, map types and
//! flags are Linux's numbers.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xway_abi::{Errno, MapSpec, MapType, SpecialField, SpecialKind};
use xway_hook::{
    AttachRequest, Attached, AttachmentInfo, Blame, Choice, Dump, Elements, HookError, LoadRequest, MapId, MapInfo,
    MapTypes, Mode, ObjectId, Objects, PortFeatures, ProgId, ProgramInfo, Replace, TestAnswer, Verdicts, Via,
};

pub use crate::data_path::{ServedPath, ServedSocket, Steered};
pub use crate::watching::{Capture, Counters, Event, Packets};

/// Bytes, written as base64.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        BASE64.decode(text).map(Bytes).map_err(serde::de::Error::custom)
    }
}

/// A request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
#[allow(missing_docs)] // The requests are the trait's methods, their members its arguments.
pub enum Request {
    MapCreate {
        name: String,
        spec: Spec,
    },
    Maps,
    MapInfo {
        id: u32,
    },
    MapTypes {
        id: u32,
    },
    MapLookup {
        id: u32,
        key: Bytes,
        flags: u64,
    },
    MapUpdate {
        id: u32,
        key: Bytes,
        value: Bytes,
        flags: u64,
    },
    MapStore {
        id: u32,
        key: Bytes,
        object: Object,
        flags: u64,
    },
    MapDelete {
        id: u32,
        key: Bytes,
    },
    MapTake {
        id: u32,
        key: Bytes,
    },
    MapNextKey {
        id: u32,
        key: Option<Bytes>,
    },
    MapLookupBatch {
        id: u32,
        from: Option<Bytes>,
        count: u32,
    },
    MapUpdateBatch {
        id: u32,
        entries: Vec<(Bytes, Bytes)>,
        flags: u64,
    },
    MapDeleteBatch {
        id: u32,
        keys: Vec<Bytes>,
    },
    MapFreeze {
        id: u32,
    },
    Load {
        object: Bytes,
        programs: Vec<String>,
        pins: Option<PathBuf>,
    },
    Programs,
    ProgramInfo {
        id: u32,
    },
    TestRun {
        id: u32,
        data: Bytes,
        ctx: Option<[u8; 24]>,
        repeat: u32,
    },
    Dump {
        id: u32,
    },
    Pin {
        object: Object,
        path: PathBuf,
    },
    Pinned {
        path: PathBuf,
    },
    Unpin {
        path: PathBuf,
    },
    Release {
        object: Object,
    },
    Attach {
        request: Attach,
    },
    Detach {
        port: String,
        program: Option<u32>,
    },
    Attachments {
        port: Option<String>,
    },
    Features {
        port: String,
    },
    Statistics {
        port: String,
    },
    /// The first one of a connection begins to listen.
    Events {
        wait_ms: u64,
    },
    /// Begins a capture, in place of the connection's capture before.
    Capture {
        request: Capture,
    },
    /// Packets of the connection's capture.
    Captured {
        wait_ms: u64,
    },
    /// Names of the open ports.
    Ports,
    OpenPort {
        port: String,
    },
    ClosePort {
        port: String,
    },
    /// Changes which queue packets of a port go to, in ethtool's words; without any, only tells.
    Steer {
        port: String,
        words: String,
    },
    /// Serves AF_XDP-style sockets at a path.
    Serve {
        socket: crate::config::Socket,
    },
    /// Serves them there no more: applications that are connected are cut off, and their frames come home.
    Unserve {
        path: PathBuf,
    },
    /// The sockets that applications have.
    Sockets,
    /// Makes the engine what this file says; `dry_run` only tells what would be done.
    Apply {
        config: String,
        dry_run: bool,
    },
    /// Ends the service.
    Down,
}

impl Request {
    /// Whether it changes anything that others can see. What packets hold is nobody's who may only look: captures count as
    /// changes.
    pub const fn changes(&self) -> bool {
        use Request::{
            Attachments, Dump, Events, Features, MapInfo, MapLookup, MapLookupBatch, MapNextKey, MapTypes, Maps, Ports,
            ProgramInfo, Programs, Sockets, Statistics,
        };
        !matches!(
            self,
            Maps | MapInfo { .. }
                | MapTypes { .. }
                | MapLookup { .. }
                | MapNextKey { .. }
                | MapLookupBatch { .. }
                | Programs
                | ProgramInfo { .. }
                | Dump { .. }
                | Attachments { .. }
                | Features { .. }
                | Statistics { .. }
                | Events { .. }
                | Ports
                | Sockets
                | Request::Apply { dry_run: true, .. }
        ) && !matches!(self, Request::Steer { words, .. } if words.is_empty())
    }
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    /// It was done.
    Ok(T),
    /// It was not.
    Error(Refusal),
}

/// [`HookError`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the error's.
pub struct Refusal {
    pub blame: String,
    pub message: String,
    pub hint: Option<String>,
    pub errno: Option<i32>,
    #[serde(default)]
    pub log: String,
}

impl From<HookError> for Refusal {
    fn from(e: HookError) -> Refusal {
        let blame = match e.blame {
            Blame::Request => "request",
            Blame::Input => "input",
            Blame::Machine => "machine",
        };
        Refusal { blame: blame.into(), message: e.message, hint: e.hint, errno: e.errno.map(|e| e.0), log: e.log }
    }
}

impl From<Refusal> for HookError {
    fn from(r: Refusal) -> HookError {
        let blame = match r.blame.as_str() {
            "input" => Blame::Input,
            "machine" => Blame::Machine,
            _ => Blame::Request,
        };
        HookError { blame, message: r.message, hint: r.hint, errno: r.errno.map(Errno), log: r.log }
    }
}

/// [`MapSpec`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the specification's.
pub struct Spec {
    #[serde(rename = "type")]
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    #[serde(default)]
    pub flags: u32,
    #[serde(default)]
    pub numa_node: u32,
    #[serde(default)]
    pub map_extra: u64,
    #[serde(default)]
    pub inner: Option<Box<Spec>>,
    /// Spin locks and timers in values: kind (0 lock, 1 timer, 2 work queue, 3 pointer), offset.
    #[serde(default)]
    pub special: Vec<(u32, u32)>,
}

impl From<&MapSpec> for Spec {
    fn from(s: &MapSpec) -> Spec {
        let kind = |f: &SpecialField| match f.kind {
            SpecialKind::SpinLock => 0,
            SpecialKind::Timer => 1,
            SpecialKind::Workqueue => 2,
            SpecialKind::Kptr => 3,
            SpecialKind::Other(size) => 16 + size,
        };
        Spec {
            map_type: s.map_type as u32,
            key_size: s.key_size,
            value_size: s.value_size,
            max_entries: s.max_entries,
            flags: s.flags,
            numa_node: s.numa_node,
            map_extra: s.map_extra,
            inner: s.inner.as_deref().map(|i| Box::new(Spec::from(i))),
            special: s.special.iter().map(|f| (kind(f), f.offset)).collect(),
        }
    }
}

impl Spec {
    /// The specification. `EINVAL` for a type that is not known.
    pub fn read(&self) -> Result<MapSpec, HookError> {
        let unknown = || HookError::errno(format!("map type {}", self.map_type), Errno::EINVAL);
        let map_type = MapType::from_u32(self.map_type).ok_or_else(unknown)?;
        let kind = |kind: u32| match kind {
            0 => SpecialKind::SpinLock,
            1 => SpecialKind::Timer,
            2 => SpecialKind::Workqueue,
            3 => SpecialKind::Kptr,
            other => SpecialKind::Other(other.saturating_sub(16)),
        };
        Ok(MapSpec {
            flags: self.flags,
            numa_node: self.numa_node,
            map_extra: self.map_extra,
            inner: self.inner.as_ref().map(|i| i.read().map(Box::new)).transpose()?,
            special: self.special.iter().map(|(k, offset)| SpecialField { kind: kind(*k), offset: *offset }).collect(),
            ..MapSpec::new(map_type, self.key_size, self.value_size, self.max_entries)
        })
    }
}

/// [`ObjectId`] on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // The variants are the ids'.
pub enum Object {
    Map(u32),
    Program(u32),
}

impl From<ObjectId> for Object {
    fn from(id: ObjectId) -> Object {
        match id {
            ObjectId::Map(MapId(id)) => Object::Map(id),
            ObjectId::Program(ProgId(id)) => Object::Program(id),
        }
    }
}

impl From<Object> for ObjectId {
    fn from(id: Object) -> ObjectId {
        match id {
            Object::Map(id) => ObjectId::Map(MapId(id)),
            Object::Program(id) => ObjectId::Program(ProgId(id)),
        }
    }
}

/// [`AttachRequest`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the request's.
pub struct Attach {
    pub port: String,
    pub queue: Option<u32>,
    pub program: u32,
    pub priority: u32,
    pub chain_on: u32,
    /// `never`, `any`, `id:N`, `name:NAME`.
    pub replace: String,
    pub chain: bool,
}

impl From<&AttachRequest> for Attach {
    fn from(r: &AttachRequest) -> Attach {
        let replace = match &r.replace {
            Replace::Never => "never".to_owned(),
            Replace::Any => "any".to_owned(),
            Replace::Id(id) => format!("id:{id}"),
            Replace::Name(name) => format!("name:{name}"),
        };
        Attach {
            port: r.port.clone(),
            queue: r.queue,
            program: r.program.0,
            priority: r.priority,
            chain_on: r.chain_on.0,
            replace,
            chain: r.chain,
        }
    }
}

impl Attach {
    /// The request.
    pub fn read(&self) -> Result<AttachRequest, HookError> {
        let wrong = || HookError::errno(format!("field replace: {}", self.replace), Errno::EINVAL);
        let replace = match self.replace.split_once(':') {
            None if self.replace == "never" => Replace::Never,
            None if self.replace == "any" => Replace::Any,
            Some(("id", id)) => Replace::Id(id.parse().map_err(|_| wrong())?),
            Some(("name", name)) => Replace::Name(name.to_owned()),
            _ => return Err(wrong()),
        };
        Ok(AttachRequest {
            port: self.port.clone(),
            queue: self.queue,
            mode: Mode::Auto,
            program: ProgId(self.program),
            priority: self.priority,
            chain_on: Verdicts(self.chain_on),
            replace,
            chain: self.chain,
        })
    }
}

/// [`MapInfo`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the description's.
pub struct Map {
    pub id: u32,
    pub name: String,
    #[serde(rename = "type")]
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub user_value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    pub frozen: bool,
    pub memory: Option<u64>,
}

impl From<MapInfo> for Map {
    fn from(m: MapInfo) -> Map {
        Map {
            id: m.id.0,
            name: m.name,
            map_type: m.map_type as u32,
            key_size: m.key_size,
            value_size: m.value_size,
            user_value_size: m.user_value_size,
            max_entries: m.max_entries,
            flags: m.flags,
            frozen: m.frozen,
            memory: m.memory,
        }
    }
}

impl Map {
    /// The description; `None` for a type that this end does not know.
    pub fn read(self) -> Option<MapInfo> {
        Some(MapInfo {
            id: MapId(self.id),
            name: self.name,
            map_type: MapType::from_u32(self.map_type)?,
            key_size: self.key_size,
            value_size: self.value_size,
            user_value_size: self.user_value_size,
            max_entries: self.max_entries,
            flags: self.flags,
            frozen: self.frozen,
            memory: self.memory,
        })
    }
}

/// [`MapTypes`] on the wire: type information, type of the key, type of the value.
pub type Types = Option<(Bytes, u32, u32)>;

/// [`MapTypes`] as the trait has them.
pub fn map_types(types: Types) -> Option<MapTypes> {
    types.map(|(btf, key, value)| MapTypes { btf: btf.0, key, value })
}

/// [`Elements`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the elements'.
pub struct Part {
    pub entries: Vec<(Bytes, Bytes)>,
    pub next: Option<Bytes>,
}

impl From<Elements> for Part {
    fn from(e: Elements) -> Part {
        let entries = e.entries.into_iter().map(|(k, v)| (Bytes(k), Bytes(v))).collect();
        Part { entries, next: e.next.map(Bytes) }
    }
}

impl From<Part> for Elements {
    fn from(p: Part) -> Elements {
        let entries = p.entries.into_iter().map(|(k, v)| (k.0, v.0)).collect();
        Elements { entries, next: p.next.map(|n| n.0) }
    }
}

/// [`Objects`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the objects'.
pub struct Loaded {
    pub programs: Vec<(String, u32)>,
    pub maps: Vec<(String, u32)>,
    pub shared: Vec<PathBuf>,
    pub pinned: Vec<PathBuf>,
}

impl From<Objects> for Loaded {
    fn from(o: Objects) -> Loaded {
        Loaded {
            programs: o.programs.into_iter().map(|(name, id)| (name, id.0)).collect(),
            maps: o.maps.into_iter().map(|(name, id)| (name, id.0)).collect(),
            shared: o.shared,
            pinned: o.pinned,
        }
    }
}

impl From<Loaded> for Objects {
    fn from(l: Loaded) -> Objects {
        Objects {
            programs: l.programs.into_iter().map(|(name, id)| (name, ProgId(id))).collect(),
            maps: l.maps.into_iter().map(|(name, id)| (name, MapId(id))).collect(),
            shared: l.shared,
            pinned: l.pinned,
        }
    }
}

/// [`ProgramInfo`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the description's.
pub struct Program {
    pub id: u32,
    pub name: String,
    pub tag: [u8; 8],
    pub maps: Vec<u32>,
    pub engine: String,
    pub reason: Option<String>,
    pub gpl_compatible: bool,
    pub runs: Option<(u64, u64)>,
}

impl From<ProgramInfo> for Program {
    fn from(p: ProgramInfo) -> Program {
        Program {
            id: p.id.0,
            name: p.name,
            tag: p.tag,
            maps: p.maps.into_iter().map(|m| m.0).collect(),
            engine: p.engine.to_owned(),
            reason: p.reason,
            gpl_compatible: p.gpl_compatible,
            runs: p.runs.map(|(count, time)| (count, time.as_nanos() as u64)),
        }
    }
}

impl From<Program> for ProgramInfo {
    fn from(p: Program) -> ProgramInfo {
        ProgramInfo {
            id: ProgId(p.id),
            name: p.name,
            tag: p.tag,
            maps: p.maps.into_iter().map(MapId).collect(),
            engine: word(&p.engine),
            reason: p.reason,
            gpl_compatible: p.gpl_compatible,
            runs: p.runs.map(|(count, nanos)| (count, Duration::from_nanos(nanos))),
        }
    }
}

/// The fixed words of the trait; one that this end does not know is `other`.
pub(crate) fn word(text: &str) -> &'static str {
    const WORDS: [&str; 17] = [
        "jit",
        "interp",
        "auto",
        "engine",
        "chain",
        "program",
        "exception",
        "invalid_verdict",
        "invalid_action",
        "tx_error",
        "redirect_error",
        "pass_error",
        "attach",
        "detach",
        "port",
        "lost",
        "burst function",
    ];
    WORDS.into_iter().find(|w| *w == text).unwrap_or("other")
}

/// [`Choice`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the choice's.
pub struct Chosen {
    pub requested: String,
    pub effective: String,
    pub reason: Option<String>,
}

impl From<Choice> for Chosen {
    fn from(c: Choice) -> Chosen {
        Chosen { requested: c.requested.to_owned(), effective: c.effective.to_owned(), reason: c.reason }
    }
}

impl From<Chosen> for Choice {
    fn from(c: Chosen) -> Choice {
        Choice { requested: word(&c.requested), effective: word(&c.effective), reason: c.reason }
    }
}

/// [`Attached`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the answer's.
pub struct Put {
    pub mode: Chosen,
    pub held: Chosen,
    pub replaced: Option<u32>,
    pub chain: Option<Chosen>,
    pub program: u32,
    pub warnings: Vec<String>,
}

impl From<Attached> for Put {
    fn from(a: Attached) -> Put {
        Put {
            mode: a.mode.into(),
            held: a.held.into(),
            replaced: a.replaced,
            chain: a.chain.map(Chosen::from),
            program: a.program.0,
            warnings: a.warnings,
        }
    }
}

impl From<Put> for Attached {
    fn from(p: Put) -> Attached {
        Attached {
            mode: p.mode.into(),
            held: p.held.into(),
            via: Via::Engine,
            replaced: p.replaced,
            chain: p.chain.map(Choice::from),
            program: ProgId(p.program),
            warnings: p.warnings,
        }
    }
}

/// [`AttachmentInfo`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the description's.
pub struct Attachment {
    pub port: String,
    pub queue: Option<u32>,
    pub program: Program,
    pub priority: Option<u32>,
    pub chain_on: Option<u32>,
}

impl From<AttachmentInfo> for Attachment {
    fn from(a: AttachmentInfo) -> Attachment {
        let chain_on = a.chain_on.map(|v| v.0);
        Attachment { port: a.port, queue: a.queue, program: a.program.into(), priority: a.priority, chain_on }
    }
}

impl From<Attachment> for AttachmentInfo {
    fn from(a: Attachment) -> AttachmentInfo {
        AttachmentInfo {
            port: a.port,
            queue: a.queue,
            mode: Mode::Auto,
            program: a.program.into(),
            via: Via::Engine,
            priority: a.priority,
            chain_on: a.chain_on.map(Verdicts),
        }
    }
}

/// [`TestAnswer`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the answer's.
pub struct Tested {
    pub ret: u32,
    pub data: Bytes,
    pub ctx: Option<[u8; 24]>,
    pub duration_ns: u64,
}

impl From<TestAnswer> for Tested {
    fn from(t: TestAnswer) -> Tested {
        Tested { ret: t.ret, data: Bytes(t.data), ctx: t.ctx, duration_ns: t.duration.as_nanos() as u64 }
    }
}

impl From<Tested> for TestAnswer {
    fn from(t: Tested) -> TestAnswer {
        TestAnswer { ret: t.ret, data: t.data.0, ctx: t.ctx, duration: Duration::from_nanos(t.duration_ns) }
    }
}

/// [`Dump`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the dump's.
pub struct Code {
    pub xlated: Bytes,
    pub jited: Bytes,
}

impl From<Dump> for Code {
    fn from(d: Dump) -> Code {
        Code { xlated: Bytes(xway_isa::slots_to_bytes(&d.xlated)), jited: Bytes(d.jited) }
    }
}

impl From<Code> for Dump {
    fn from(c: Code) -> Dump {
        Dump { xlated: xway_isa::slots_from_bytes(&c.xlated.0).unwrap_or_default(), jited: c.jited.0 }
    }
}

/// [`PortFeatures`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the description's.
pub struct Features {
    pub port: String,
    pub ifindex: u32,
    pub kind: String,
    pub rx_queues: u32,
    pub tx_queues: u32,
    pub xdp: Vec<String>,
    pub rx_metadata: Vec<String>,
    #[serde(default)]
    pub verdicts: Vec<(String, String)>,
}

impl From<PortFeatures> for Features {
    fn from(f: PortFeatures) -> Features {
        let PortFeatures { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts } = f;
        Features { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts }
    }
}

impl From<Features> for PortFeatures {
    fn from(f: Features) -> PortFeatures {
        let Features { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts } = f;
        PortFeatures { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts }
    }
}

/// What a load asks, from the wire.
pub fn load_request(programs: Vec<String>, pins: Option<PathBuf>) -> LoadRequest {
    LoadRequest { programs, pins }
}
