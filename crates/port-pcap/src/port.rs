//! A capture as a port: packets come out of it as if they arrived now.

use std::path::Path;

use xway_engine::{Capabilities, Port, PortError, PortErrorKind, PortStats, Rx, Sent, Support};
use xway_packet::{Burst, Pool, RxMeta};

use crate::{CaptureError, CaptureReader};

/// Interface index that packets of a capture have unless the user says otherwise: what a test run on Linux uses too.
pub const DEFAULT_IFINDEX: u32 = 1;

/// A capture that is played once, from its first packet to its last.
///
/// A capture has no wire and no host behind it: frames that pass or are sent end here, counted. What became of them is
/// seen through a [`crate::CaptureRecorder`].
pub struct PcapPort {
    name: String,
    ifindex: u32,
    reader: CaptureReader,
    stats: PortStats,
    /// The error that ended the input, handed out once.
    ended: bool,
}

impl PcapPort {
    /// Opens `path` (`-`: standard input).
    ///
    /// # Errors
    /// As [`CaptureReader::open`].
    pub fn open(path: &Path, ifindex: u32) -> Result<PcapPort, CaptureError> {
        Ok(PcapPort::new(CaptureReader::open(path)?, ifindex))
    }

    /// A port over a capture that is open already. `ifindex` 0 means [`DEFAULT_IFINDEX`].
    pub fn new(reader: CaptureReader, ifindex: u32) -> PcapPort {
        let ifindex = if ifindex == 0 { DEFAULT_IFINDEX } else { ifindex };
        PcapPort { name: format!("pcap:{}", reader.name()), ifindex, reader, stats: PortStats::default(), ended: false }
    }
}

impl Port for PcapPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pass: Support::Full,
            tx: Support::Full,
            redirect_to: Support::Full,
            rx_timestamp: true,
            ..Capabilities::copying()
        }
    }

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        for _ in 0..budget.min(burst.room()) {
            if self.ended {
                return Ok(Rx::End);
            }
            // The frame comes first: without one the packet stays in the file.
            let Ok(mut frame) = pool.alloc() else {
                self.stats.no_frame += 1;
                return Ok(Rx::More);
            };
            let taken = self.reader.next_with(|r| {
                frame.fill(r.data)?;
                frame.set_rx_meta(RxMeta { timestamp: r.timestamp, ..RxMeta::default() });
                frame.set_packet_id(r.number);
                frame.set_cut(r.original_len.saturating_sub(r.data.len() as u32));
                Ok::<_, xway_packet::FrameFull>(r.data.len() as u64)
            });
            match taken {
                Ok(Some(Ok(len))) => {
                    frame.set_ingress(self.ifindex, queue);
                    self.stats.rx += 1;
                    self.stats.rx_bytes += len;
                    self.stats.truncated += u64::from(frame.cut() > 0);
                    if let Err(frame) = burst.push(frame) {
                        // `budget` is no more than the room, so this is another's fault; the frame goes home all the same.
                        pool.release(frame);
                    }
                }
                Ok(Some(Err(_too_long))) => {
                    self.stats.oversize += 1;
                    pool.release(frame);
                }
                Ok(None) => {
                    self.ended = true;
                    pool.release(frame);
                }
                Err(e) => {
                    self.ended = true;
                    pool.release(frame);
                    return Err(PortError::new(self.name.clone(), PortErrorKind::Input, e));
                }
            }
        }
        Ok(if self.ended { Rx::End } else { Rx::More })
    }

    fn tx(&mut self, _queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let count = burst.len();
        for frame in burst.drain() {
            self.stats.tx += 1;
            self.stats.tx_bytes += frame.len() as u64;
            pool.release(frame);
        }
        Sent::all(count)
    }

    fn pass(&mut self, _queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let count = burst.len();
        burst.drain().for_each(|frame| pool.release(frame));
        Sent::all(count)
    }

    fn progress(&self) -> Option<(u64, u64)> {
        self.reader.progress()
    }

    fn stats(&mut self) -> PortStats {
        self.stats.clone()
    }
}
