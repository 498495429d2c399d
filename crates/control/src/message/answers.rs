//! What is answered and is not what the trait has: bytes, times, and what only a service can tell.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xway_hook::{ChainCode, ChainPart, CodeFunction, Dump, LoadRequest, SourceLine, Statistics, TestAnswer};

use super::Bytes;

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
    #[serde(default)]
    pub lines: Vec<SourceLine>,
    #[serde(default)]
    pub functions: Vec<CodeFunction>,
    #[serde(default)]
    pub chains: Vec<Chain>,
}

/// [`ChainCode`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the chain's.
pub struct Chain {
    pub points: Vec<(String, Option<u32>)>,
    pub programs: Vec<ChainPart>,
    pub jited: Bytes,
    pub lines: Vec<SourceLine>,
    pub functions: Vec<CodeFunction>,
}

impl From<ChainCode> for Chain {
    fn from(c: ChainCode) -> Chain {
        let ChainCode { points, programs, jited, lines, functions } = c;
        Chain { points, programs, jited: Bytes(jited), lines, functions }
    }
}

impl From<Chain> for ChainCode {
    fn from(c: Chain) -> ChainCode {
        let Chain { points, programs, jited, lines, functions } = c;
        ChainCode { points, programs, jited: jited.0, lines, functions }
    }
}

impl From<Dump> for Code {
    fn from(d: Dump) -> Code {
        let xlated = Bytes(xway_isa::slots_to_bytes(&d.xlated));
        let chains = d.chains.into_iter().map(Chain::from).collect();
        Code { xlated, jited: Bytes(d.jited), lines: d.lines, functions: d.functions, chains }
    }
}

impl From<Code> for Dump {
    fn from(c: Code) -> Dump {
        let xlated = xway_isa::slots_from_bytes(&c.xlated.0).unwrap_or_default();
        let chains = c.chains.into_iter().map(ChainCode::from).collect();
        Dump { xlated, jited: c.jited.0, lines: c.lines, functions: c.functions, chains }
    }
}

/// What programs printed, as lines of the kernel's trace log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TraceLines {
    /// The lines.
    pub lines: Vec<String>,
    /// Lines that came when too many waited to be asked for.
    pub lost: u64,
}

/// How an array's values lie in its memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are those of `xway_maps::Shape`.
pub struct Lies {
    pub value_size: u32,
    pub entries: u32,
}

/// What programs wrote for user space.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Records {
    /// The worker that it was written on, for perf event arrays, and the bytes.
    pub records: Vec<(Option<u32>, Bytes)>,
    /// Records that found no room.
    pub lost: u64,
}

/// What is expected to become of everything in an upgrade, told before it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Handover {
    /// Should go on in the new process as it is.
    pub kept: Vec<String>,
    /// Should be there again, with a gap: what, and why not without.
    pub made_again: Vec<(String, String)>,
    /// Will be gone: what, and why.
    pub lost: Vec<(String, String)>,
    /// The same of each port, in fixed words.
    #[serde(default)]
    pub ports: Vec<PortFate>,
}

/// Who answers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct About {
    /// Version of the executable.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// A service manager opened its socket, and has it still when this process has ended: who connects then starts it again.
    #[serde(default)]
    pub managed: bool,
    /// How long this executable has been answering, milliseconds.
    pub age_ms: u64,
    /// What came of an upgrade, where this process began by one.
    pub upgrade: Option<Upgraded>,
}

/// What came of an upgrade, told behind it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Upgraded {
    /// The executable that was to go on.
    pub requested: PathBuf,
    /// Why the old one goes on instead; nothing when the new one does.
    pub failed: Option<String>,
    /// What became of each port.
    #[serde(default)]
    pub ports: Vec<PortFate>,
    /// Packets that were lost by it: while ports were closed, and until they received again.
    #[serde(default)]
    pub lost: Vec<Loss>,
}

/// Packets that were lost.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Loss {
    /// Of which port, or [`Loss::CPUMAP`].
    pub port: String,
    /// Which counter tells of them (docs/counters.md).
    pub counter: String,
    /// How many.
    pub packets: u64,
}

impl Loss {
    /// In the place of a port: of frames that went from worker to worker over CPUMAPs.
    pub const CPUMAP: &str = "cpumap";

    /// What a port has lost between two looks at its counters. What is lost between two processes (`upgrade-…`) is told by the one that
    /// goes on.
    pub(crate) fn between(port: &str, before: &Statistics, after: &Statistics) -> Vec<Loss> {
        let more = after.losses().map(|(counter, number)| (counter, number.saturating_sub(before.get(counter))));
        let lost =
            |(counter, packets): (&str, u64)| Loss { port: port.to_owned(), counter: counter.to_owned(), packets };
        let own = more.filter(|(counter, packets)| *packets > 0 && !counter.starts_with("port.other.upgrade-"));
        own.map(lost).collect()
    }
}

/// What becomes of a port in an upgrade: what is expected of it, or what came.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortFate {
    /// The port.
    pub port: String,
    /// `handed over`: everybody wants that.
    pub requested: String,
    /// `handed over`, `held` or `opened again`.
    pub fate: String,
    /// What stays and what is lost, and why.
    pub reason: String,
}

impl PortFate {
    /// It goes on with everything that waits in it.
    pub const HANDED_OVER: &str = "handed over";
    /// It begins anew; between the two nothing goes past the programs: what comes is dropped, and counted.
    pub const HELD: &str = "held";
    /// It ends and begins anew.
    pub const OPENED_AGAIN: &str = "opened again";

    pub(crate) fn new(port: &str, fate: &str, reason: impl Into<String>) -> PortFate {
        PortFate {
            port: port.to_owned(),
            requested: PortFate::HANDED_OVER.into(),
            fate: fate.to_owned(),
            reason: reason.into(),
        }
    }

    /// Whether nothing that waits in it is lost.
    pub fn goes_on(&self) -> bool {
        self.fate == PortFate::HANDED_OVER
    }

    /// Whether something of it goes to the next executable.
    pub(crate) fn is_packed(&self) -> bool {
        self.fate != PortFate::OPENED_AGAIN
    }
}

/// What a load asks, from the wire.
pub fn load_request(programs: Vec<String>, pins: Option<PathBuf>) -> LoadRequest {
    LoadRequest { programs, pins, device: None }
}
