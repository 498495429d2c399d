//! What can be wrong with a capture.

use std::io;

/// Why a capture cannot be read (further). Packets before the fault have been delivered.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be opened.
    #[error("{path}: {}", said(source))]
    Open {
        /// Its path.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Neither pcap nor pcapng.
    #[error("{name}: not a capture: it begins with {magic:02x?}, which is neither pcap nor pcapng (nor gzip or zstd)")]
    NotACapture {
        /// Name of the input.
        name: String,
        /// First bytes, four at most.
        magic: Vec<u8>,
    },
    /// The file ends inside its first header.
    #[error("{name}: the capture ends inside its first header")]
    NoHeader {
        /// Name of the input.
        name: String,
    },
    /// The file ends inside a record.
    #[error("{name}: the capture is cut: it ends inside the record after packet {packets} (byte {offset})")]
    Cut {
        /// Name of the input.
        name: String,
        /// Complete packets before the cut.
        packets: u64,
        /// Where the incomplete record begins, bytes of uncompressed capture.
        offset: u64,
    },
    /// A record claims more than a capture may hold.
    #[error(
        "{name}: the record after packet {packets} (byte {offset}) claims more than {limit} bytes: the file is damaged"
    )]
    TooLong {
        /// Name of the input.
        name: String,
        /// Complete packets before it.
        packets: u64,
        /// Where it begins.
        offset: u64,
        /// Largest record, bytes.
        limit: usize,
    },
    /// A record's fields contradict each other.
    #[error("{name}: the record after packet {packets} (byte {offset}) is malformed: {what}")]
    Malformed {
        /// Name of the input.
        name: String,
        /// Complete packets before it.
        packets: u64,
        /// Where it begins.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// Packets of another link layer.
    #[error(
        "{name}: packets of link type {number} ({link}); XDP programs need Ethernet frames (link type 1). \
         Capture on one Ethernet interface instead of \"any\", or convert the file"
    )]
    LinkType {
        /// Name of the input.
        name: String,
        /// Number (`LINKTYPE_*`).
        number: i32,
        /// Name of the link type where it is a common one.
        link: &'static str,
    },
    /// Reading failed.
    #[error("{name}: reading failed after packet {packets}: {source}")]
    Read {
        /// Name of the input.
        name: String,
        /// Complete packets before.
        packets: u64,
        /// The system's answer, or the decompressor's.
        source: io::Error,
    },
    /// Writing failed.
    #[error("{path}: writing failed: {}", said(source))]
    Write {
        /// Path of the output.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// The common name of a link type (`LINKTYPE_*` registry).
pub(crate) fn link_name(number: i32) -> &'static str {
    match number {
        0 => "BSD loopback",
        1 => "Ethernet",
        12 | 14 | 101 => "raw IP",
        105 => "802.11",
        108 => "OpenBSD loopback",
        113 => "Linux cooked",
        127 => "802.11 with radiotap",
        276 => "Linux cooked v2",
        _ => "not Ethernet",
    }
}

/// The system's answer in the words of the rest of the program, where these differ.
fn said(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}
