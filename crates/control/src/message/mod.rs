//! What can be asked, and how it is written.
//!
//! Each request is an object with the member `do`; the answer is `{"ok": …}` or `{"error": …}`. Bytes are base64, map types and
//! flags are Linux's numbers.

mod answers;
mod maps;

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xway_abi::Errno;
use xway_hook::{Blame, HookError};

pub use crate::data_path::{ServedPath, ServedSocket, Steered};
pub use crate::watching::{Capture, Counters, Event, Packets};
pub(crate) use answers::word;
pub use answers::{
    Attachment, Chosen, Code, Differs, Features, Handover, Loaded, Program, Put, Records, Tested, load_request,
};
pub use maps::{Attach, Map, Object, Part, Spec, Types, map_types};

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
            Attachments, Dump, Events, Features, MapInfo, MapLookup, MapLookupBatch, MapNextKey, MapTypes, Maps, Ports,
            ProgramInfo, Programs, Share, Sockets, Statistics, Upgrade,
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
                | Share { read_only: true, .. }
                | Upgrade { dry_run: true, .. }
                | Request::Apply { dry_run: true, .. }
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
