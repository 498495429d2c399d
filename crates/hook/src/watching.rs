//! What watching a hook gives: numbers, events, packets. Plain data, the same for every implementor.

use serde::{Deserialize, Serialize};
use xway_filter::Classic;

use crate::words::Word;
use crate::{Verdicts, words};

/// What a port counted. `docs/counters.md` says what each name means.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Statistics {
    /// Names and numbers of the whole port, in a fixed order.
    pub counters: Vec<(String, u64)>,
    /// The same for each queue, where the hook counts by queue.
    pub queues: Vec<QueueStatistics>,
    /// What each program of the port did, where the hook counts by program.
    pub programs: Vec<ProgramStatistics>,
}

impl Statistics {
    /// The number with this name; 0 when it was never counted.
    pub fn get(&self, name: &str) -> u64 {
        number(&self.counters, name)
    }

    /// Those of the port's counters that tell of packets that were lost: [`LOSSES`].
    pub fn losses(&self) -> impl Iterator<Item = (&str, u64)> {
        let is_loss = |name: &str| LOSSES.iter().any(|loss| name == *loss || name.split('.').next() == Some(loss));
        self.counters.iter().map(|(name, number)| (name.as_str(), *number)).filter(move |(name, _)| is_loss(name))
    }
}

/// Numbers that say how much there is now and may become smaller; all others only grow.
pub const GAUGES: &[&str] = &["tx_queue.frames", "tx_queue.bytes", "pool.outstanding", "pool.limit"];

/// Counters that are losses, by their name or the part of it before the first point: those of the engine, and Linux's of an
/// interface.
pub const LOSSES: &[&str] = &[
    "invalid",
    "exceptions",
    "pass_lost",
    "pass_drop",
    "tx_full",
    "tx_err",
    "redirect_err",
    "copies_lost",
    "egress_drop",
    "egress_err",
    "socket_lost",
    "relay_lost",
    "steer_drop",
    "steer_lost",
    "cpu_lost",
    "port.dropped",
    "port.oversize",
    "port.no_frame",
    "port.other.joining",
    "port.other.unread",
    "port.other.unsent",
    "port.other.upgrade-gap",
    "port.other.upgrade-rings",
    "port.other.upgrade-unsent",
    "rx_dropped",
    "tx_dropped",
    "rx_errors",
    "tx_errors",
];

/// The number with a name.
fn number(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| known == name).map_or(0, |(_, number)| *number)
}

/// What one receive queue counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueStatistics {
    /// The queue.
    pub queue: u32,
    /// The worker that serves it.
    pub worker: u32,
    /// Names and numbers.
    pub counters: Vec<(String, u64)>,
}

impl QueueStatistics {
    /// The number with this name; 0 when it was never counted.
    pub fn get(&self, name: &str) -> u64 {
        number(&self.counters, name)
    }
}

/// What one program did on a port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProgramStatistics {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Packets that it ran over.
    pub runs: u64,
    /// Of these, those that it decided about, by verdict (ABORTED, DROP, PASS, TX, REDIRECT).
    pub verdicts: [u64; 5],
    /// Of these, those that went on to the next program of the chain.
    pub chained: u64,
    /// Of these, those for which it returned a code that is no verdict.
    pub invalid: u64,
    /// Of these, those for which it was stopped.
    pub faults: u64,
}

/// Something that happened, in words.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HookEvent {
    /// Its kind: `exception`, `invalid_action`, `redirect_error`, `tx_error`, `attach`, `detach`, `port`, `lost`.
    #[serde(with = "words")]
    pub kind: Word,
    /// The port, if it concerns one.
    pub port: Option<String>,
    /// What happened.
    pub text: String,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The program, if one ran.
    pub program: Option<String>,
    /// Receive queue, or CPU on Linux, that it happened on.
    pub queue: Option<u32>,
    /// Packets that it happened to: several can share one event.
    pub packets: u64,
    /// Events of this kind that were not told before this one, because there were too many.
    pub suppressed: u64,
}

impl HookEvent {
    /// Now, about no packet.
    pub fn new(kind: &'static str, port: Option<String>, text: String) -> HookEvent {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        HookEvent { kind, port, text, time_ns: since.as_nanos() as u64, ..HookEvent::default() }
    }
}

/// Where packets are captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CapturePoint {
    /// As they came in, before any program.
    Entry,
    /// As the programs left them, with the verdict.
    #[default]
    Exit,
}

/// What is captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureRequest {
    /// Port; `None`: all.
    pub port: Option<String>,
    /// Receive queue; `None`: all.
    pub queue: Option<u32>,
    /// Where.
    pub at: CapturePoint,
    /// At the exit, packets with these verdicts; codes that are none count as ABORTED.
    pub verdicts: Verdicts,
    /// At the exit, packets that this program decided about: its name or number.
    pub program: Option<String>,
    /// Filter in classic BPF; empty: every packet. It is translated and verified where it runs.
    pub filter: Vec<Classic>,
    /// One of so many that match; 0 counts as 1.
    pub every: u32,
    /// Bytes of each packet at most.
    pub snaplen: u32,
    /// Packets that wait to be fetched at most; the hook has an upper limit of its own.
    pub room: u32,
}

impl Default for CaptureRequest {
    /// Everything, whole, at the exit.
    fn default() -> CaptureRequest {
        CaptureRequest {
            port: None,
            queue: None,
            at: CapturePoint::Exit,
            verdicts: Verdicts(u32::MAX),
            program: None,
            filter: Vec::new(),
            every: 1,
            snaplen: 262_144,
            room: 1024,
        }
    }
}

/// One captured packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CapturedPacket {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Port that it came in on.
    pub port: String,
    /// Receive queue.
    pub queue: u32,
    /// Number of the packet in its input, 0 when its port does not count.
    pub packet_id: u64,
    /// The program's return value, at the exit.
    pub verdict: Option<u32>,
    /// Name of the program that decided, at the exit.
    pub program: String,
    /// Why it ends here, when it does.
    pub reason: Option<String>,
    /// Bytes, at most as many as were asked for.
    pub data: Vec<u8>,
    /// Length of the whole packet.
    pub len: u32,
}

/// Captured packets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CapturedPackets {
    /// In the order in which workers handed them over.
    pub packets: Vec<CapturedPacket>,
    /// Packets that matched and found no room since the last call.
    pub lost: u64,
}
