//! Captures and captured packets on the wire.

use serde::{Deserialize, Serialize};
use xway_filter::Classic;
use xway_hook::{CapturePoint, CaptureRequest, CapturedPacket, CapturedPackets, Verdicts};

use crate::message::Bytes;

/// [`CaptureRequest`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the request's.
pub struct Capture {
    pub port: Option<String>,
    pub queue: Option<u32>,
    /// At the entry instead of the exit.
    #[serde(default)]
    pub entry: bool,
    pub verdicts: u32,
    pub program: Option<String>,
    /// Classic BPF: code, jt, jf, k.
    #[serde(default)]
    pub filter: Vec<(u16, u8, u8, u32)>,
    pub every: u32,
    pub snaplen: u32,
    pub room: u32,
}

impl From<&CaptureRequest> for Capture {
    fn from(r: &CaptureRequest) -> Capture {
        Capture {
            port: r.port.clone(),
            queue: r.queue,
            entry: r.at == CapturePoint::Entry,
            verdicts: r.verdicts.0,
            program: r.program.clone(),
            filter: r.filter.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect(),
            every: r.every,
            snaplen: r.snaplen,
            room: r.room,
        }
    }
}

impl From<Capture> for CaptureRequest {
    fn from(c: Capture) -> CaptureRequest {
        CaptureRequest {
            port: c.port,
            queue: c.queue,
            at: if c.entry { CapturePoint::Entry } else { CapturePoint::Exit },
            verdicts: Verdicts(c.verdicts),
            program: c.program,
            filter: c.filter.into_iter().map(|(code, jt, jf, k)| Classic { code, jt, jf, k }).collect(),
            every: c.every,
            snaplen: c.snaplen,
            room: c.room,
        }
    }
}

/// [`CapturedPackets`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the packets'.
pub struct Packets {
    pub packets: Vec<Packet>,
    pub lost: u64,
}

/// [`CapturedPacket`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the packet's.
pub struct Packet {
    pub time_ns: u64,
    pub port: String,
    pub queue: u32,
    pub packet_id: u64,
    pub verdict: Option<u32>,
    pub program: String,
    pub reason: Option<String>,
    pub data: Bytes,
    pub len: u32,
}

impl From<CapturedPackets> for Packets {
    fn from(c: CapturedPackets) -> Packets {
        let packet = |p: CapturedPacket| {
            let CapturedPacket { time_ns, port, queue, packet_id, verdict, program, reason, data, len } = p;
            Packet { time_ns, port, queue, packet_id, verdict, program, reason, data: Bytes(data), len }
        };
        Packets { packets: c.packets.into_iter().map(packet).collect(), lost: c.lost }
    }
}

impl From<Packets> for CapturedPackets {
    fn from(p: Packets) -> CapturedPackets {
        let packet = |p: Packet| {
            let Packet { time_ns, port, queue, packet_id, verdict, program, reason, data, len } = p;
            CapturedPacket { time_ns, port, queue, packet_id, verdict, program, reason, data: data.0, len }
        };
        CapturedPackets { packets: p.packets.into_iter().map(packet).collect(), lost: p.lost }
    }
}
