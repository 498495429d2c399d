//! Capture files as packet ports.
//!
//! [`CaptureReader`] reads pcap and pcapng, plain or packed with gzip or zstd, from a file or a pipe, one packet at a time
//! in constant memory. [`CaptureWriter`] writes pcapng in which each packet carries its verdict the way Wireshark shows
//! it, or a plain pcap of what would leave. A file that is damaged or cut delivers every packet before the damage and
//! then one error that says where it is.
//!
//! [`PcapPort`] is the engine's port over a reader, [`CaptureRecorder`] the engine's record of verdicts over a writer,
//! [`PcapSink`] a port that only takes frames and writes them.
#![forbid(unsafe_code)]

mod error;
mod format;
mod input;
mod port;
mod reader;
mod recorder;
mod sink;
mod writer;

pub use error::CaptureError;
pub use port::{DEFAULT_IFINDEX, PcapPort, Playback};
pub use reader::CaptureReader;
pub use recorder::CaptureRecorder;
pub use sink::PcapSink;
pub use writer::{CaptureWriter, Written};

/// One packet of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The captured bytes.
    pub data: &'a [u8],
    /// Length on the wire; larger than `data` when the capture cut the packet.
    pub original_len: u32,
    /// Nanoseconds since 1970, where the capture says.
    pub timestamp: Option<u64>,
    /// Index of the interface in its section.
    pub interface: u32,
    /// Number of the packet in the capture, from 1.
    pub number: u64,
}
