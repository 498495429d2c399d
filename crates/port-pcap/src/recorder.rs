//! The record of a run as a capture.

use std::path::Path;

use xway_abi::Verdict;
use xway_engine::{PortError, PortErrorKind, Recorder};
use xway_packet::Frame;

use crate::{CaptureError, CaptureWriter, Written};

/// Writes each frame as its program left it: into pcapng with its verdict, or into plain pcap when it would leave (PASS,
/// TX, REDIRECT).
pub struct CaptureRecorder {
    writer: CaptureWriter,
    name: String,
    /// Time of the last frame that had one: frames without a time of their own stay in order.
    now: u64,
}

impl CaptureRecorder {
    /// Begins the file at `path`; `port` is the name of the port that frames come from.
    ///
    /// # Errors
    /// As [`CaptureWriter::create`].
    pub fn create(path: &Path, port: &str) -> Result<CaptureRecorder, CaptureError> {
        let writer = CaptureWriter::create(path, &[port])?;
        Ok(CaptureRecorder { writer, name: path.display().to_string(), now: 0 })
    }

    fn failed(name: &str, e: CaptureError) -> PortError {
        PortError::new(name, PortErrorKind::Output, e)
    }
}

impl Recorder for CaptureRecorder {
    fn record(&mut self, frame: &Frame, verdict: Result<Verdict, u32>) -> Result<(), PortError> {
        if let Some(timestamp) = frame.rx_meta().timestamp {
            self.now = timestamp;
        }
        let leaves = matches!(verdict, Ok(Verdict::Pass | Verdict::Tx | Verdict::Redirect));
        if self.writer.is_plain() && !leaves {
            return Ok(());
        }
        let data = &*frame.contents();
        let packet = Written {
            timestamp_ns: self.now,
            data,
            original_len: (data.len() as u32).saturating_add(frame.cut()),
            interface: 0,
            queue: frame.rx_queue(),
            packet_id: frame.packet_id(),
            verdict: Some(verdict.map_or_else(|code| code, |v| v as u32)),
            comment: None,
            inbound: false,
        };
        self.writer.write(&packet).map_err(|e| Self::failed(&self.name, e))
    }

    fn finish(self: Box<Self>) -> Result<(), PortError> {
        let CaptureRecorder { writer, name, .. } = *self;
        writer.finish().map_err(|e| Self::failed(&name, e))
    }
}
