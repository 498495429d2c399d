//! Samples of packets for whoever watches: at the entry of a hook or at its exit, by verdict, one of so many.
//!
//! The forwarding path never waits for a watcher, and never lacks a frame because of one. A frame that the program drops is handed
//! over as it is, while its pool has plenty. Of any other a copy is made in the worker's own pool, which is small: whoever gets the frame
//! next may write into it (the other end of a wire, a card, an application), and a reference would keep it from being received
//! into for as long as the watcher likes. What finds no room is counted as lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};

use xway_abi::Verdict;
use xway_maps::Guard;
use xway_packet::{Burst, Frame, Pool, Redirect};

use crate::chain::VerdictSet;
use crate::exec::{Executor, FaultError, Results};
use crate::program::LoadedProgram;

/// Where packets are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CaptureAt {
    /// As they came in, before any program.
    Entry,
    /// As the programs left them, with the verdict.
    #[default]
    Exit,
}

/// What is captured.
#[derive(Clone)]
pub struct CaptureConfig {
    /// Where.
    pub at: CaptureAt,
    /// Of this port only.
    pub ifindex: Option<u32>,
    /// Of this queue only.
    pub queue: Option<u32>,
    /// At the exit, those with these verdicts; codes that are no verdicts count as ABORTED.
    pub verdicts: VerdictSet,
    /// At the exit, those that the program with this name decided about.
    pub program: Option<String>,
    /// Those for which this program returns something else than 0. It must leave the packet as it is.
    pub filter: Option<Arc<dyn LoadedProgram>>,
    /// One of so many that fit.
    pub every: u32,
    /// Packets that wait for the watcher at most.
    pub room: usize,
}

impl Default for CaptureConfig {
    /// Everything, at the exit; 1024 packets wait.
    fn default() -> CaptureConfig {
        CaptureConfig {
            at: CaptureAt::Exit,
            ifindex: None,
            queue: None,
            verdicts: VerdictSet(u32::MAX),
            program: None,
            filter: None,
            every: 1,
            room: 1024,
        }
    }
}

/// A captured packet. It is a frame of one of the engine's pools and goes home when it is dropped: a watcher that keeps many makes
/// the engine run out of frames for copies, not of those that it forwards.
#[derive(Debug)]
pub struct Captured {
    /// The packet, with where it came in and what the device knew.
    pub frame: Frame,
    /// What became of it, at the exit; `Err` holds a code that is no verdict.
    pub verdict: Option<Result<Verdict, u32>>,
    /// Name of the program that decided, at the exit.
    pub program: String,
    /// Why the program was stopped, when it was.
    pub fault: Option<String>,
    /// Worker that saw it.
    pub worker: u32,
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
}

/// What a worker and a watcher share.
#[derive(Default)]
struct Shared {
    lost: AtomicU64,
    closed: AtomicBool,
    /// Packets that wait, about: so that a full queue is known before anything is made for it.
    waiting: AtomicUsize,
}

/// The watcher's end. Dropping it ends the capture.
pub struct Capture {
    packets: Receiver<Captured>,
    shared: Arc<Shared>,
}

impl Capture {
    /// The next packet, waiting for it up to this time.
    pub fn next(&self, wait: Duration) -> Option<Captured> {
        if wait.is_zero() {
            return self.packets.try_recv().ok().inspect(|_| self.fetched());
        }
        match self.packets.recv_timeout(wait) {
            Ok(packet) => {
                self.fetched();
                Some(packet)
            }
            Err(RecvTimeoutError::Timeout) => None,
            // Nobody will send any more; the time is kept all the same, so that nobody asks without end.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(wait);
                None
            }
        }
    }

    fn fetched(&self) {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Packets that were not captured since the last call, because there was no room for them.
    pub fn lost(&self) -> u64 {
        self.shared.lost.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }
}

/// What is known about a frame where it is captured.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen<'a> {
    /// As [`Captured::verdict`].
    pub verdict: Option<Result<Verdict, u32>>,
    /// As [`Captured::program`].
    pub program: &'a str,
    /// As [`Captured::fault`].
    pub fault: Option<&'a FaultError>,
}

/// One worker's end. Made by [`crate::WorkerConfig::capture`] and by [`crate::Engine::capture`].
pub struct Tap {
    config: CaptureConfig,
    filter: Option<Box<dyn Executor>>,
    results: Results,
    packets: SyncSender<Captured>,
    shared: Arc<Shared>,
    worker: u32,
    /// Packets to go until one is taken.
    skip: u32,
    /// What was chosen of the current burst, a bit for each frame.
    picked: u64,
}

/// A bit for each frame of a burst.
const _: () = assert!(Burst::MAX <= u64::BITS as usize);

/// The first is the lowest bit.
fn bits(all: impl Iterator<Item = bool>) -> u64 {
    all.take(Burst::MAX).enumerate().fold(0, |bits, (index, is)| bits | u64::from(is) << index)
}

/// Makes a capture: the watcher's end, and one for each worker.
pub(crate) fn open(config: CaptureConfig, workers: u32) -> (Capture, Vec<Tap>) {
    let (sender, packets) = sync_channel(config.room.max(1));
    let shared = Arc::new(Shared::default());
    let tap = |worker| Tap {
        filter: config.filter.as_ref().map(|program| program.executor(worker)),
        config: config.clone(),
        results: Results::of_bursts(),
        packets: sender.clone(),
        shared: shared.clone(),
        worker,
        skip: 0,
        picked: 0,
    };
    let taps = (0..workers).map(tap).collect();
    (Capture { packets, shared }, taps)
}

impl Tap {
    /// The watcher is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn at(&self) -> CaptureAt {
        self.config.at
    }

    /// Whether every frame that ends in one way or another is looked at.
    pub(crate) fn wants_all(&self) -> bool {
        let CaptureConfig { ifindex: None, queue: None, program: None, verdicts, .. } = &self.config else {
            return false;
        };
        Verdict::ALL.iter().all(|verdict| verdicts.has(*verdict))
    }

    /// Whether frames of this queue are looked at.
    pub(crate) fn watches(&self, ifindex: u32, queue: u32) -> bool {
        self.config.ifindex.is_none_or(|only| only == ifindex) && self.config.queue.is_none_or(|only| only == queue)
    }

    /// Whether this verdict, by this program, is one of those that are captured.
    pub(crate) fn wants(&self, verdict: Option<Verdict>, program: &str) -> bool {
        self.config.verdicts.has(verdict.unwrap_or(Verdict::Aborted))
            && self.config.program.as_ref().is_none_or(|only| only == program)
    }

    /// Chooses among the frames of a burst: a bit for each that is `wanted`, that the filter matches and whose turn has come. The
    /// filter runs once over the whole burst, and not at all when none is wanted: one that does not match costs no copy.
    pub(crate) fn pick(&mut self, frames: &mut [Frame], guard: &Guard, wanted: impl Fn(&Tap, usize, &Frame) -> bool) {
        let mut picked = bits(frames.iter().enumerate().map(|(index, frame)| wanted(self, index, frame)));
        if picked != 0
            && let Some(filter) = &mut self.filter
        {
            self.results.clear();
            // A program that begins forgets the targets of the one before; this one only looks.
            let mut targets = [Redirect::None; Burst::MAX];
            targets.iter_mut().zip(&*frames).for_each(|(target, frame)| *target = frame.redirect());
            filter.run(frames, guard, &mut self.results);
            targets.iter().zip(frames).for_each(|(target, frame)| frame.set_redirect(*target));
            picked &= bits(self.results.rets().iter().map(|ret| *ret as u32 != 0));
        }
        self.picked = if self.config.every > 1 { self.turns(picked) } else { picked };
    }

    /// One of so many.
    fn turns(&mut self, picked: u64) -> u64 {
        let (mut left, mut taken) = (picked, 0);
        // As many as the turn is away go by at once.
        while left.count_ones() > self.skip {
            (0..self.skip).for_each(|_| left &= left - 1);
            taken |= left & left.wrapping_neg();
            left &= left - 1;
            self.skip = self.config.every - 1;
        }
        self.skip -= left.count_ones();
        taken
    }

    /// What [`Tap::pick`] chose, by position in the burst.
    pub(crate) fn picked(&self) -> u64 {
        self.picked
    }

    /// Whether it chose the frame at this position.
    pub(crate) fn has_picked(&self, index: usize) -> bool {
        self.picked >> index & 1 != 0
    }

    /// Takes a copy of a frame.
    pub(crate) fn copy(&mut self, frame: &Frame, pool: &mut Pool, seen: Seen<'_>) {
        if self.is_full() {
            return self.lost(1);
        }
        let Ok(copy) = pool.copy(frame) else { return self.lost(1) };
        if let Some(back) = self.take(copy, seen) {
            pool.release(back);
        }
    }

    /// Takes a frame itself; gives it back when there is no room for it.
    pub(crate) fn take(&mut self, frame: Frame, seen: Seen<'_>) -> Option<Frame> {
        if self.is_closed() {
            return Some(frame);
        }
        if self.is_full() {
            self.lost(1);
            return Some(frame);
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time_ns = since.as_nanos() as u64;
        let Seen { verdict, program, fault } = seen;
        let (program, fault) = (program.to_owned(), fault.map(|fault| fault.to_string()));
        // Waits for nobody: a watcher that was interrupted while it fetched holds nothing that is needed here.
        let captured = Captured { frame, verdict, program, fault, worker: self.worker, time_ns };
        // Counted before it can be fetched.
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        match self.packets.try_send(captured) {
            Ok(()) => None,
            Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) => {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                self.lost(1);
                Some(back.frame)
            }
        }
    }

    fn is_full(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) >= self.config.room.max(1)
    }

    pub(crate) fn lost(&self, count: u64) {
        self.shared.lost.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_so_many_is_taken_across_bursts() {
        let config = CaptureConfig { every: 10, ..CaptureConfig::default() };
        let mut tap = open(config, 1).1.remove(0);
        // The first of each ten that fit, whatever lies between them.
        assert_eq!(tap.turns(0b1111), 0b0001);
        assert_eq!(tap.turns(0), 0);
        assert_eq!(tap.turns(u64::MAX), 1 << 6 | 1 << 16 | 1 << 26 | 1 << 36 | 1 << 46 | 1 << 56);
        assert_eq!(tap.turns(0b1010_1010), 1 << 5);
        let mut all = open(CaptureConfig::default(), 1).1.remove(0);
        assert_eq!(all.turns(0b1011), 0b1011);
    }
}
