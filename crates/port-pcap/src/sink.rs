//! A capture as the place where frames go.

use std::path::Path;

use xway_abi::{Errno, Verdict};
use xway_engine::{Capabilities, Port, PortError, PortStats, Recorder, Rx, Sent, Support};
use xway_packet::{Burst, Pool};

use crate::{CaptureError, CaptureRecorder};

/// A port that only takes frames and writes them into a capture file, for PASS and redirects that are to be looked at.
///
/// The file is complete when the port is dropped. A failure to write ends the run at the next doorbell; frames that were not
/// written count as failed.
pub struct PcapSink {
    name: String,
    ifindex: u32,
    recorder: Option<Box<CaptureRecorder>>,
    failure: Option<PortError>,
    stats: PortStats,
}

impl PcapSink {
    /// Begins the file at `path`: pcapng, or pcap when it ends in `.pcap`. Programs know the port by `ifindex`.
    ///
    /// # Errors
    /// As [`CaptureRecorder::create`].
    pub fn create(path: &Path, ifindex: u32) -> Result<PcapSink, CaptureError> {
        let name = format!("pcap:{}", path.display());
        let recorder = Some(Box::new(CaptureRecorder::create(path, &name)?));
        Ok(PcapSink { name, ifindex, recorder, failure: None, stats: PortStats::default() })
    }
}

impl Port for PcapSink {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { redirect_to: Support::Full, multi_buffer_tx: true, ..Capabilities::copying() }
    }

    fn rx(&mut self, _: u32, _: &mut Pool, _: &mut Burst, _: usize) -> Result<Rx, PortError> {
        Ok(Rx::End)
    }

    fn tx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let mut sent = Sent::default();
        for frame in burst.drain() {
            let written = match &mut self.recorder {
                Some(recorder) if self.failure.is_none() => recorder.record(&frame, Ok(Verdict::Pass)),
                _ => Ok(()),
            };
            self.failure = self.failure.take().or(written.err());
            if self.failure.is_none() {
                sent.sent += 1;
                self.stats.tx += 1;
                self.stats.tx_bytes += frame.total_len() as u64;
            } else {
                sent.failed += 1;
                sent.errno = Some(Errno::EIO);
            }
            pool.release(frame);
        }
        sent
    }

    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.tx(queue, pool, burst)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        match self.failure.take() {
            Some(failure) => {
                self.recorder = None;
                Err(failure)
            }
            None => Ok(()),
        }
    }

    fn stats(&mut self) -> PortStats {
        self.stats.clone()
    }
}

impl Drop for PcapSink {
    fn drop(&mut self) {
        // Whoever waits for the file sees by its name whether it is complete: it gets it in `finish` only.
        if let Some(recorder) = self.recorder.take() {
            let _ = recorder.finish();
        }
    }
}
