//! Programs, ports and everything else that is answered, on the wire.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xway_hook::{
    Attached, AttachmentInfo, Choice, Dump, LoadRequest, MapId, Mode, Objects, Outcome, PortFeatures, PortMemory,
    ProgId, ProgramInfo, QueueMemory, TestAnswer, Verdicts, Via,
};

use super::Bytes;

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
    const WORDS: [&str; 28] = [
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
        "pass",
        "host",
        "drop",
        "mode",
        "native",
        "generic",
        "offload",
        "program not ours",
        "copying",
        "copy",
        "zero-copy",
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

/// [`Outcome`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the outcome's.
pub struct Differs {
    pub what: String,
    #[serde(flatten)]
    pub chosen: Chosen,
}

impl From<Outcome> for Differs {
    fn from(o: Outcome) -> Differs {
        let (requested, effective) = (o.requested.to_owned(), o.effective.to_owned());
        Differs { what: o.what.to_owned(), chosen: Chosen { requested, effective, reason: Some(o.reason) } }
    }
}

impl From<Differs> for Outcome {
    fn from(d: Differs) -> Outcome {
        let Differs { what, chosen: Chosen { requested, effective, reason } } = d;
        let (requested, effective) = (word(&requested), word(&effective));
        Outcome { what: word(&what), requested, effective, reason: reason.unwrap_or_default() }
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
    #[serde(default)]
    pub outcomes: Vec<Differs>,
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
            outcomes: a.outcomes.into_iter().map(Differs::from).collect(),
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
            outcomes: p.outcomes.into_iter().map(Outcome::from).collect(),
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
    #[serde(default)]
    pub memory: Option<Memory>,
    #[serde(default)]
    pub outcomes: Vec<Differs>,
}

/// [`PortMemory`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // The fields are the description's.
pub struct Memory {
    pub model: String,
    pub packets_a_chunk: u32,
    pub frags: bool,
    pub zero_copy: bool,
    pub writable: bool,
    pub headroom: Option<u32>,
    pub tailroom: Option<u32>,
    pub queues: Vec<Pool>,
}

/// [`QueueMemory`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // The fields are the description's.
pub struct Pool {
    pub queue: u32,
    pub bytes: u64,
    pub pages_requested: String,
    pub pages_effective: String,
    pub pages_reason: Option<String>,
    pub node: String,
}

impl From<QueueMemory> for Pool {
    fn from(m: QueueMemory) -> Pool {
        let QueueMemory { queue, bytes, pages_requested, pages_effective, pages_reason, node } = m;
        Pool { queue, bytes, pages_requested, pages_effective, pages_reason, node }
    }
}

impl From<Pool> for QueueMemory {
    fn from(m: Pool) -> QueueMemory {
        let Pool { queue, bytes, pages_requested, pages_effective, pages_reason, node } = m;
        QueueMemory { queue, bytes, pages_requested, pages_effective, pages_reason, node }
    }
}

impl From<PortMemory> for Memory {
    fn from(m: PortMemory) -> Memory {
        let PortMemory { model, packets_a_chunk, frags, zero_copy, writable, headroom, tailroom, queues } = m;
        let queues = queues.into_iter().map(Pool::from).collect();
        Memory { model, packets_a_chunk, frags, zero_copy, writable, headroom, tailroom, queues }
    }
}

impl From<Memory> for PortMemory {
    fn from(m: Memory) -> PortMemory {
        let Memory { model, packets_a_chunk, frags, zero_copy, writable, headroom, tailroom, queues } = m;
        let queues = queues.into_iter().map(QueueMemory::from).collect();
        PortMemory { model, packets_a_chunk, frags, zero_copy, writable, headroom, tailroom, queues }
    }
}

impl From<PortFeatures> for Features {
    fn from(f: PortFeatures) -> Features {
        let PortFeatures { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts, memory, outcomes } =
            f;
        let (memory, outcomes) = (memory.map(Memory::from), outcomes.into_iter().map(Differs::from).collect());
        Features { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts, memory, outcomes }
    }
}

impl From<Features> for PortFeatures {
    fn from(f: Features) -> PortFeatures {
        let Features { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts, memory, outcomes } = f;
        let (memory, outcomes) = (memory.map(PortMemory::from), outcomes.into_iter().map(Outcome::from).collect());
        PortFeatures { port, ifindex, kind, rx_queues, tx_queues, xdp, rx_metadata, verdicts, memory, outcomes }
    }
}

/// What programs wrote for user space.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Records {
    /// The worker that it was written on, for perf event arrays, and the bytes.
    pub records: Vec<(Option<u32>, Bytes)>,
    /// Records that found no room.
    pub lost: u64,
}

/// What becomes of everything in an upgrade.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Handover {
    /// Goes on in the new process as it is.
    pub kept: Vec<String>,
    /// Is there again, with a gap: what, and why not without.
    pub made_again: Vec<(String, String)>,
    /// Is gone: what, and why.
    pub lost: Vec<(String, String)>,
}

/// What a load asks, from the wire.
pub fn load_request(programs: Vec<String>, pins: Option<PathBuf>) -> LoadRequest {
    LoadRequest { programs, pins }
}
