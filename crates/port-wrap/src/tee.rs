//! A copy of everything in a capture.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use xway_abi::Verdict;
use xway_engine::{Port, PortError, PortErrorKind, PortStats, Rx, Sent};
use xway_packet::{Burst, Frame, Pool};
use xway_port_pcap::{CaptureError, CaptureWriter, Written};

use crate::as_inner;

/// Writes each packet that comes in, goes out or passes into a capture. The file appears under its name when the port is
/// closed. In pcapng the comment says which way a packet went.
pub struct Tee {
    inner: Box<dyn Port>,
    writer: Option<CaptureWriter>,
    /// Why the capture ended early; told at the next doorbell.
    failed: Option<CaptureError>,
}

impl Tee {
    /// Wraps a port; packets go into the capture at `path`.
    ///
    /// # Errors
    /// As [`CaptureWriter::create`].
    pub fn new(inner: Box<dyn Port>, path: &Path) -> Result<Tee, CaptureError> {
        let writer = CaptureWriter::create(path, &[inner.name()])?;
        Ok(Tee { inner, writer: Some(writer), failed: None })
    }

    /// Completes the capture now, instead of when the port is closed.
    ///
    /// # Errors
    /// [`CaptureError::Write`]; the file is then not there.
    pub fn finish(&mut self) -> Result<(), CaptureError> {
        self.writer.take().map_or(Ok(()), CaptureWriter::finish)
    }

    fn write(&mut self, way: &str, verdict: Verdict, queue: u32, frames: &[Frame]) {
        let Some(writer) = &mut self.writer else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        for frame in frames {
            let data = &*frame.contents();
            let packet = Written {
                timestamp_ns: frame.rx_meta().timestamp.unwrap_or(now),
                data,
                original_len: (data.len() as u32).saturating_add(frame.cut()),
                interface: 0,
                queue,
                packet_id: frame.packet_id(),
                verdict: Some(verdict as u32),
                comment: Some(way),
                inbound: false,
            };
            if let Err(error) = writer.write(&packet) {
                self.failed = Some(error);
                self.writer = None;
                return;
            }
        }
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        // Nobody is left to tell; who wants to know calls `finish`.
        let _ = self.finish();
    }
}

impl Port for Tee {
    as_inner!();

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        let before = burst.len();
        let state = self.inner.rx(queue, pool, burst, budget)?;
        self.write("received", Verdict::Pass, queue, &burst.frames()[before..]);
        Ok(state)
    }

    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.write("sent", Verdict::Tx, queue, burst.frames());
        self.inner.tx(queue, pool, burst)
    }

    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.write("passed", Verdict::Pass, queue, burst.frames());
        self.inner.pass(queue, pool, burst)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.inner.flush()?;
        match self.failed.take() {
            None => Ok(()),
            Some(error) => Err(PortError::new(self.inner.name(), PortErrorKind::Output, error)),
        }
    }

    fn stats(&mut self) -> PortStats {
        self.inner.stats()
    }
}
