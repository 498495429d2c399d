//! What messages say of the data path: sockets that are served, steering.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A path at which sockets are served.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ServedPath {
    /// Where.
    pub path: PathBuf,
    /// Who is there.
    pub sockets: Vec<ServedSocket>,
}

/// One application's socket.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ServedSocket {
    /// Its number.
    pub id: u64,
    /// The application's process.
    pub pid: i32,
    /// The port that it is bound to, and the queue there.
    pub port: String,
    /// The queue.
    pub queue: u32,
    /// Whether it goes without copies.
    pub zero_copy: bool,
    /// Whether it gets what comes past all programs.
    pub direct: bool,
    /// Counters by name: those of `XDP_STATISTICS`, and the indices that were refused.
    pub counters: Vec<(String, u64)>,
}

impl ServedSocket {
    pub(crate) fn of(info: &xway_xsk::SocketInfo, port: String) -> ServedSocket {
        let s = &info.statistics;
        let counters = [
            ("rx_dropped", s.rx_dropped),
            ("rx_invalid_descs", s.rx_invalid_descs),
            ("tx_invalid_descs", s.tx_invalid_descs),
            ("rx_ring_full", s.rx_ring_full),
            ("rx_fill_ring_empty_descs", s.rx_fill_ring_empty_descs),
            ("tx_ring_empty_descs", s.tx_ring_empty_descs),
            ("refused_indices", s.refused_indices),
            ("tx_unsupported", s.tx_unsupported),
        ];
        ServedSocket {
            id: info.id,
            pid: info.pid,
            port,
            queue: info.bound.1,
            zero_copy: info.zero_copy,
            direct: info.direct,
            counters: counters.map(|(name, n)| (name.to_owned(), n)).into(),
        }
    }
}

/// What steers the packets of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Steered {
    /// Rules, as they can be said again, in the order in which they are tried.
    pub rules: Vec<String>,
    /// Key of the hash, as `6d:5a:…`; none when there is no hash.
    pub key: Option<String>,
    /// Queues by the low bits of the hash.
    pub indirection: Vec<u32>,
}

impl From<&xway_engine::steer::Steering> for Steered {
    fn from(steering: &xway_engine::steer::Steering) -> Steered {
        let hex = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
        Steered {
            rules: steering.rules().map(ToString::to_string).collect(),
            key: steering.rss().map(|rss| hex(rss.key())),
            indirection: steering.rss().map(|rss| rss.indirection().to_vec()).unwrap_or_default(),
        }
    }
}
