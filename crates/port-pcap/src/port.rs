//! Captures as a port: packets come out of them as if they arrived now.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use xway_engine::{Capabilities, Port, PortError, PortErrorKind, PortStats, Rx, Sent, Support};
use xway_packet::{Burst, Frame, Pool, RxMeta};

use crate::{CaptureError, CaptureReader};

/// Interface index that packets of a capture have unless the user says otherwise: what a test run on Linux uses too.
pub const DEFAULT_IFINDEX: u32 = 1;

/// How captures are played.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Playback {
    /// How many times; 0 is without end.
    pub loops: u64,
    /// Packets come when their timestamps say, this many times as fast; `None`: as fast as they are taken.
    pub speed: Option<f64>,
    /// Packets that are longer than a frame come in several buffers (programs must be made for that, `xdp.frags`); without it
    /// they are counted as oversize.
    pub frags: bool,
    /// Regular files alone are opened, and without waiting ([`CaptureReader::open_file`]): somebody else has named them.
    pub files_only: bool,
}

impl Default for Playback {
    /// Once, as fast as packets are taken.
    fn default() -> Self {
        Playback { loops: 1, speed: None, frags: false, files_only: false }
    }
}

impl Playback {
    fn read(self, path: &Path) -> Result<CaptureReader, CaptureError> {
        if self.files_only { CaptureReader::open_file(path) } else { CaptureReader::open(path) }
    }
}

/// Captures that are played one after the other, from the first packet to the last.
///
/// A capture has no wire and no host behind it: frames that pass or are sent end here, counted. What became of them is
/// seen through a [`crate::CaptureRecorder`].
pub struct PcapPort {
    name: String,
    ifindex: u32,
    reader: CaptureReader,
    stats: PortStats,
    /// Files to play, when they can be opened again.
    files: Vec<PathBuf>,
    /// Position in `files` of what is being read.
    at: usize,
    /// Passes left behind this one; `None` without end.
    left: Option<u64>,
    /// Packets so far in this pass: an empty pass is the last.
    in_pass: u64,
    pace: Option<Pace>,
    /// Whether a packet may have several buffers.
    frags: bool,
    /// Whether a file must be a regular one.
    files_only: bool,
    /// A packet that is not due yet.
    waiting: Option<(Frame, Instant)>,
    /// No more packets.
    ended: bool,
}

/// When packets are due.
struct Pace {
    speed: f64,
    /// Where a pass began: on the clock, and in timestamps.
    start: Option<(Instant, u64)>,
}

impl Pace {
    /// When a packet with this timestamp is due. One without a timestamp, or from before the first, is due at once.
    fn due(&mut self, timestamp: Option<u64>, now: Instant) -> Instant {
        let Some(timestamp) = timestamp else { return now };
        let &mut (began, first) = self.start.get_or_insert((now, timestamp));
        let ns = timestamp.saturating_sub(first) as f64 / self.speed;
        began.checked_add(Duration::from_nanos(ns as u64)).unwrap_or(now)
    }
}

impl PcapPort {
    /// Opens `path` (`-`: standard input), to be played once.
    ///
    /// # Errors
    /// As [`CaptureReader::open`].
    pub fn open(path: &Path, ifindex: u32) -> Result<PcapPort, CaptureError> {
        PcapPort::play(&[path.to_owned()], Playback::default(), ifindex)
    }

    /// Opens the first of several captures (at least one), to be played in this order. Standard input can be played once only:
    /// there it ends.
    ///
    /// # Errors
    /// As [`CaptureReader::open`], for the first; the others are opened when their turn comes.
    pub fn play(paths: &[PathBuf], playback: Playback, ifindex: u32) -> Result<PcapPort, CaptureError> {
        let first = paths.first().map_or(Path::new("-"), PathBuf::as_path);
        let mut port = PcapPort::new(playback.read(first)?, ifindex);
        if paths.len() > 1 {
            port.name += &format!(" and {} more", paths.len() - 1);
        }
        port.files = paths.to_vec();
        port.left = playback.loops.checked_sub(1);
        port.frags = playback.frags;
        port.files_only = playback.files_only;
        port.pace = playback.speed.filter(|&speed| speed > 0.0).map(|speed| Pace { speed, start: None });
        Ok(port)
    }

    /// A port over a capture that is open already. `ifindex` 0 means [`DEFAULT_IFINDEX`].
    pub fn new(reader: CaptureReader, ifindex: u32) -> PcapPort {
        PcapPort {
            name: format!("pcap:{}", reader.name()),
            ifindex: if ifindex == 0 { DEFAULT_IFINDEX } else { ifindex },
            reader,
            stats: PortStats::default(),
            files: Vec::new(),
            at: 0,
            left: Some(0),
            in_pass: 0,
            pace: None,
            frags: false,
            files_only: false,
            waiting: None,
            ended: false,
        }
    }

    /// The next packet in a frame; `None` when there is none now.
    fn receive(&mut self, pool: &mut Pool, queue: u32) -> Result<Option<Frame>, PortError> {
        loop {
            // The frame comes first: without one the packet stays in the file.
            let Ok(mut frame) = pool.alloc() else {
                self.stats.no_frame += 1;
                return Ok(None);
            };
            let longest = if self.frags { usize::MAX } else { frame.capacity() };
            let taken = self.reader.next_with(|r| {
                let (first, rest) = r.data.split_at(r.data.len().min(frame.capacity()));
                if r.data.len() > longest || frame.fill(first).is_err() || pool.append(&mut frame, rest).is_err() {
                    return Err(r.data.len());
                }
                frame.set_rx_meta(RxMeta { timestamp: r.timestamp, ..RxMeta::default() });
                frame.set_cut(r.original_len.saturating_sub(r.data.len() as u32));
                Ok(r.data.len() as u64)
            });
            let problem = match taken {
                Ok(Some(Ok(len))) => {
                    frame.set_ingress(self.ifindex, queue);
                    self.stats.rx += 1;
                    self.stats.rx_bytes += len;
                    self.stats.truncated += u64::from(frame.cut() > 0);
                    self.in_pass += 1;
                    frame.set_packet_id(self.stats.rx + self.stats.oversize);
                    return Ok(Some(frame));
                }
                Ok(Some(Err(len))) => {
                    // The file does not take it back: what found too few frames is gone, too.
                    let fits = len <= longest && len <= pool.frame_max();
                    *(if fits { &mut self.stats.no_frame } else { &mut self.stats.oversize }) += 1;
                    None
                }
                Ok(None) => self.next_file().err(),
                Err(error) => Some(error),
            };
            pool.release(frame);
            if let Some(error) = problem {
                self.ended = true;
                return Err(PortError::new(self.name.clone(), PortErrorKind::Input, error));
            }
            if self.ended {
                return Ok(None);
            }
        }
    }

    /// Goes on with the next file, or with the first one again, or ends.
    fn next_file(&mut self) -> Result<(), CaptureError> {
        self.at += 1;
        if self.at >= self.files.len() {
            let again = self.left != Some(0) && self.in_pass > 0 && !self.files.iter().any(|f| f.as_os_str() == "-");
            if !again {
                self.ended = true;
                return Ok(());
            }
            self.left = self.left.map(|left| left - 1);
            (self.at, self.in_pass) = (0, 0);
            if let Some(pace) = &mut self.pace {
                pace.start = None;
            }
        }
        self.reader = Playback { files_only: self.files_only, ..Playback::default() }.read(&self.files[self.at])?;
        Ok(())
    }

    /// Whether a packet may come now; one that may not waits.
    fn due(&mut self, frame: Frame) -> Option<Frame> {
        let Some(pace) = &mut self.pace else { return Some(frame) };
        let now = Instant::now();
        let due = pace.due(frame.rx_meta().timestamp, now);
        if due <= now {
            return Some(frame);
        }
        self.waiting = Some((frame, due));
        None
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
            multi_buffer: self.frags,
            multi_buffer_tx: true,
            ..Capabilities::copying()
        }
    }

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        for _ in 0..budget.min(burst.room()) {
            let next = match self.waiting.take() {
                Some((frame, due)) if due > Instant::now() => {
                    self.waiting = Some((frame, due));
                    return Ok(Rx::Idle);
                }
                Some((frame, _)) => Some(frame),
                None if self.ended => return Ok(Rx::End),
                None => match self.receive(pool, queue)? {
                    Some(frame) => match self.due(frame) {
                        Some(frame) => Some(frame),
                        None => return Ok(Rx::Idle),
                    },
                    None => None,
                },
            };
            let Some(frame) = next else { break };
            if let Err(frame) = burst.push(frame) {
                // `budget` is no more than the room, so this is another's fault; the frame goes home all the same.
                pool.release(frame);
            }
        }
        Ok(if self.ended { Rx::End } else { Rx::More })
    }

    fn tx(&mut self, _queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let count = burst.len();
        for frame in burst.drain() {
            self.stats.tx += 1;
            self.stats.tx_bytes += frame.total_len() as u64;
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
        // Of several files, or passes, the end is not known.
        if self.files.len() > 1 || self.left != Some(0) { None } else { self.reader.progress() }
    }

    fn stats(&mut self) -> PortStats {
        self.stats.clone()
    }
}
