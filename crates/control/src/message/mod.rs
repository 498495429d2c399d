//! What can be asked, and how it is written.
//!
//! Each request is an object with the member `do`; the answer is `{"ok": …}` or `{"error": …}`. Bytes are base64, map types and
//! flags are Linux's numbers. What the trait of hooks has in a form that can be written stands here as it is there.

mod answers;
mod maps;

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xway_abi::Errno;
use xway_hook::{Blame, HookError, ObjectId};

pub use crate::data_path::{ServedPath, ServedSocket, Steered};
pub use crate::watching::{Capture, Packets};
pub use answers::{
    About, Chain, Code, Handover, Lies, Loss, PortFate, Records, Tested, TraceLines, Upgraded, load_request,
};
pub use maps::{Attach, Map, Part, Spec, Types, map_types};

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
        object: ObjectId,
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
    ProgramTypes {
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
        object: ObjectId,
        path: PathBuf,
    },
    Pinned {
        path: PathBuf,
    },
    Unpin {
        path: PathBuf,
    },
    /// All names, each with whether anything else keeps its object.
    Pins,
    /// Takes those names away whose objects nothing else keeps; `dry_run` only tells which.
    Clean {
        dry_run: bool,
    },
    Release {
        object: ObjectId,
    },
    Attach {
        request: Attach,
    },
    Detach {
        port: String,
        program: Option<u32>,
    },
    LinkDetach {
        link: u32,
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
    /// What programs print, from a connection's first question on.
    TraceLog {
        wait_ms: u64,
    },
    /// Who answers, and what came of an upgrade.
    About,
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
    /// What programs wrote into a perf event array or a ring buffer since the last time; the first is waited for.
    MapEvents {
        id: u32,
        wait_ms: u64,
    },
    /// A descriptor of a map: behind the answer comes one byte with it.
    Share {
        map: u32,
        read_only: bool,
    },
    /// The memory in which an array's values lie: behind the answer comes one byte with its descriptor.
    MapMemory {
        id: u32,
        write: bool,
    },
    /// Ends this process for another executable, which goes on with its socket and state; `dry_run` only tells what would be lost.
    Upgrade {
        executable: PathBuf,
        dry_run: bool,
    },
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
            About, Attachments, Dump, Events, Features, MapInfo, MapLookup, MapLookupBatch, MapNextKey, MapTypes, Maps,
            Pins, Ports, ProgramInfo, Programs, Share, Sockets, Statistics, Upgrade,
        };
        !matches!(
            self,
            About
                | Maps
                | MapInfo { .. }
                | MapTypes { .. }
                | MapLookup { .. }
                | MapNextKey { .. }
                | MapLookupBatch { .. }
                | Programs
                | Pins
                | ProgramInfo { .. }
                | Request::ProgramTypes { .. }
                | Dump { .. }
                | Attachments { .. }
                | Features { .. }
                | Statistics { .. }
                | Events { .. }
                | Ports
                | Sockets
                | Share { read_only: true, .. }
                | Request::MapMemory { write: false, .. }
                | Upgrade { dry_run: true, .. }
                | Request::Apply { dry_run: true, .. }
                | Request::Clean { dry_run: true }
        ) && !matches!(self, Request::Steer { words, .. } if words.is_empty())
    }
}

/// What a message asks for, when nothing else of it matters.
#[derive(Deserialize)]
pub(crate) struct Asked {
    /// The request's name.
    #[serde(rename = "do")]
    pub name: String,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use xway_hook::{
        Attached, AttachmentInfo, Choice, HookEvent, MapId, Mode, Objects, Outcome, PortFeatures, PortMemory, ProgId,
        ProgramInfo, ProgramStatistics, QueueMemory, QueueStatistics, Statistics, Verdicts, Via,
    };

    use super::*;

    /// It is written so, and read again as it was.
    fn check<T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(value: T, form: Value) {
        assert_eq!(serde_json::to_value(&value).unwrap(), form);
        assert_eq!(serde_json::from_value::<T>(form).unwrap(), value);
    }

    fn program() -> ProgramInfo {
        ProgramInfo {
            id: ProgId(3),
            name: "count".into(),
            tag: [1, 2, 3, 4, 5, 6, 7, 8],
            maps: vec![MapId(1)],
            engine: "jit",
            reason: None,
            gpl_compatible: true,
            runs: Some((5, Duration::from_nanos(700))),
        }
    }

    /// Other programs speak this, and other versions of this one: a name that changes here must not change there.
    #[test]
    fn the_traits_data_has_its_form_on_the_wire() {
        let counted = json!({ "id": 3, "name": "count", "tag": [1, 2, 3, 4, 5, 6, 7, 8], "maps": [1], "engine": "jit",
            "reason": null, "gpl_compatible": true, "runs": [5, 700] });
        check(program(), counted.clone());
        check(ObjectId::Map(MapId(7)), json!({ "map": 7 }));
        check(ObjectId::Program(ProgId(7)), json!({ "program": 7 }));
        let objects = Objects {
            programs: vec![("p".into(), ProgId(1))],
            maps: vec![("m".into(), MapId(2))],
            shared: vec!["/a".into()],
            pinned: vec!["/b".into()],
        };
        let form = json!({ "programs": [["p", 1]], "maps": [["m", 2]], "shared": ["/a"], "pinned": ["/b"] });
        check(objects, form);
        let differs = Outcome { what: "copying", requested: "auto", effective: "copy", reason: "so".into() };
        let differing = json!({ "what": "copying", "requested": "auto", "effective": "copy", "reason": "so" });
        let attached = Attached {
            mode: Choice::met("auto"),
            held: Choice::met("engine"),
            via: Via::Engine,
            replaced: Some(9),
            chain: Some(Choice { requested: "chain", effective: "chain", reason: Some("so".into()) }),
            program: ProgId(3),
            outcomes: vec![differs.clone()],
            warnings: vec!["w".into()],
        };
        let met = |word| json!({ "requested": word, "effective": word, "reason": null });
        let form = json!({ "mode": met("auto"), "held": met("engine"), "replaced": 9,
            "chain": { "requested": "chain", "effective": "chain", "reason": "so" }, "program": 3,
            "outcomes": [differing.clone()], "warnings": ["w"] });
        check(attached, form);
        let attachment = AttachmentInfo {
            port: "tap:a".into(),
            queue: Some(1),
            mode: Mode::User,
            program: program(),
            via: Via::Engine,
            link: Some(7),
            priority: Some(50),
            chain_on: Some(Verdicts::PASS),
        };
        let form = json!({ "port": "tap:a", "queue": 1, "program": counted, "link": 7, "priority": 50, "chain_on": 4 });
        check(attachment, form);
        let queue = QueueMemory {
            bytes: 4096,
            pages_requested: "huge".into(),
            pages_effective: "base".into(),
            pages_reason: Some("so".into()),
            node: "0".into(),
            ..QueueMemory::default()
        };
        let memory = PortMemory {
            model: "copied".into(),
            packets_a_chunk: 1,
            headroom: Some(256),
            queues: vec![queue],
            ..PortMemory::default()
        };
        let features = PortFeatures {
            port: "tap:a".into(),
            ifindex: 5,
            kind: "tap".into(),
            rx_queues: 2,
            tx_queues: 1,
            xdp: vec!["basic".into()],
            rx_metadata: vec![],
            verdicts: vec![("DROP".into(), "full".into())],
            memory: Some(memory),
            outcomes: vec![differs],
        };
        let form = json!({ "port": "tap:a", "ifindex": 5, "kind": "tap", "rx_queues": 2, "tx_queues": 1, "xdp": ["basic"],
            "rx_metadata": [], "verdicts": [["DROP", "full"]], "memory": { "model": "copied", "packets_a_chunk": 1,
            "frags": false, "zero_copy": false, "writable": false, "headroom": 256, "tailroom": null,
            "queues": [{ "queue": 0, "bytes": 4096, "pages_requested": "huge", "pages_effective": "base", "pages_reason": "so",
            "node": "0" }] },
            "outcomes": [differing] });
        check(features, form);
        let statistics = Statistics {
            counters: vec![("rx_packets".into(), 1)],
            queues: vec![QueueStatistics { queue: 0, worker: 1, counters: vec![] }],
            programs: vec![ProgramStatistics { id: 3, name: "p".into(), runs: 2, ..ProgramStatistics::default() }],
        };
        let form = json!({ "counters": [["rx_packets", 1]], "queues": [{ "queue": 0, "worker": 1, "counters": [] }],
            "programs": [{ "id": 3, "name": "p", "runs": 2, "verdicts": [0, 0, 0, 0, 0], "chained": 0, "invalid": 0,
            "faults": 0 }] });
        check(statistics, form);
        let event = HookEvent { kind: "attach", text: "t".into(), time_ns: 1, packets: 2, ..HookEvent::default() };
        let form = json!({ "kind": "attach", "port": null, "text": "t", "time_ns": 1, "program": null, "queue": null,
            "packets": 2, "suppressed": 0 });
        check(event, form);
        // A word of a later version.
        let later = json!({ "requested": "later", "effective": "auto", "reason": null });
        assert_eq!(serde_json::from_value::<Choice>(later).unwrap().requested, "other");
    }
}
