//! Two ends that hand each other frames.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use xway_engine::{Backlog, Capabilities, Rx, Sent};
use xway_packet::ring::{RingError, frames};
use xway_packet::{Burst, Pool};

use crate::port::SimPort;

/// Shape of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairConfig {
    /// Queues in each direction.
    pub queues: u32,
    /// Frames that a queue holds, a power of two.
    pub queue_len: u32,
    /// Interface indices of the two ends, not 0.
    pub ifindexes: [u32; 2],
    /// Frames of several buffers may go from one end to the other; both ask for programs made for them then.
    pub frags: bool,
}

impl Default for PairConfig {
    /// One queue of 1024 frames in each direction.
    fn default() -> Self {
        PairConfig { queues: 1, queue_len: 1024, ifindexes: [1, 2], frags: false }
    }
}

/// Two ports, `sim:NAME.0` and `sim:NAME.1`. What one sends on a queue the other receives on the queue with the same number.
///
/// # Errors
/// [`RingError::Entries`]; [`RingError::Memory`] when the kernel has no descriptor left.
pub fn pair(name: &str, config: PairConfig) -> Result<(SimPort, SimPort), RingError> {
    let (a, b) = ends(config, 0)?;
    let port = |number: usize, end| SimPort::end(&format!("{name}.{number}"), config.ifindexes[number], end, None);
    Ok((port(0, a), port(1, b)))
}

/// Two ends whose queues are numbered from `first`.
pub(crate) fn ends(config: PairConfig, first: u32) -> Result<(End, End), RingError> {
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for _ in 0..config.queues.max(1) {
        there.push(frames::ring(config.queue_len)?);
        back.push(frames::ring(config.queue_len)?);
    }
    let bell = || Bell::new().map(Arc::new).map_err(|cause| RingError::Memory { bytes: 8, cause });
    let (bell_a, bell_b) = (bell()?, bell()?);
    let (out_a, in_b) = there.into_iter().unzip();
    let (out_b, in_a) = back.into_iter().unzip();
    let a = End::new(first, out_a, in_a, bell_a.clone(), bell_b.clone());
    let b = End::new(first, out_b, in_b, bell_b, bell_a);
    Ok((End { frags: config.frags, ..a }, End { frags: config.frags, ..b }))
}

/// Where ends are while no port has them.
#[derive(Clone)]
pub(crate) struct Home(Arc<Mutex<Vec<Option<End>>>>);

impl Home {
    pub(crate) fn new(ends: Vec<Option<End>>) -> Home {
        Home(Arc::new(Mutex::new(ends)))
    }

    /// The end of this queue, if no port has it.
    pub(crate) fn take(&self, queue: usize) -> Option<End> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).get_mut(queue)?.take()
    }

    pub(crate) fn give_back(&self, end: End) {
        let mut ends = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(place) = ends.get_mut(end.first as usize) {
            *place = Some(end);
        }
    }
}

/// Wakes one end.
struct Bell {
    fd: OwnedFd,
    /// The descriptor is readable and must be read before the next sleep.
    rung: AtomicBool,
}

impl Bell {
    fn new() -> std::io::Result<Bell> {
        Ok(Bell { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, rung: AtomicBool::new(false) })
    }

    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        // It can only fail when it is readable anyway.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        if self.rung.swap(false, Ordering::Acquire) {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}

pub(crate) struct End {
    /// Number of the first of its queues.
    first: u32,
    out: Vec<frames::FrameSender>,
    input: Vec<frames::FrameReceiver>,
    bell: Arc<Bell>,
    peer: Arc<Bell>,
    /// Queues that something was sent on since the last doorbell.
    sent: Vec<bool>,
    /// Queues whose sender was asked to wake us.
    armed: Vec<bool>,
    /// Whether frames of several buffers go here.
    frags: bool,
    /// Lengths of frames that were sent and that the other end may not have taken yet, oldest first; for each queue. Empty until
    /// somebody wants to know.
    lens: Vec<Option<VecDeque<u32>>>,
}

impl End {
    fn new(
        first: u32,
        out: Vec<frames::FrameSender>,
        input: Vec<frames::FrameReceiver>,
        bell: Arc<Bell>,
        peer: Arc<Bell>,
    ) -> End {
        let lens = out.iter().map(|_| None).collect();
        End {
            first,
            lens,
            sent: vec![false; out.len()],
            armed: vec![false; out.len()],
            out,
            input,
            bell,
            peer,
            frags: false,
        }
    }

    /// What an end can do: who receives no frames of several buffers is sent none.
    pub(crate) const fn offers(frags: bool) -> Capabilities {
        Capabilities { multi_buffer: frags, multi_buffer_tx: frags, ..SimPort::offers() }
    }

    pub(crate) fn frags(&self) -> bool {
        self.frags
    }

    pub(crate) fn queues(&self) -> u32 {
        self.out.len() as u32
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }

    pub(crate) fn rx(&mut self, ifindex: u32, queue: u32, burst: &mut Burst, budget: usize) -> Rx {
        let at = queue.wrapping_sub(self.first) as usize;
        let Some(input) = self.input.get_mut(at) else { return Rx::End };
        if std::mem::take(&mut self.armed[at]) {
            input.awake();
        }
        let before = burst.len();
        let got = input.receive(burst, budget);
        for frame in &mut burst.frames_mut()[before..] {
            frame.arrive(ifindex, queue);
        }
        if got > 0 {
            return Rx::More;
        }
        if self.out[at].is_closed() && input.is_empty() {
            return Rx::End; // the other end is gone, and nothing will come
        }
        self.bell.silence();
        self.armed[at] = true;
        if input.may_sleep() { Rx::Idle } else { Rx::More }
    }

    /// Sends a burst: what became of the frames, and the bytes of those that were sent.
    pub(crate) fn send(&mut self, queue: u32, burst: &mut Burst, pool: &mut Pool) -> (Sent, u64) {
        let at = queue.wrapping_sub(self.first) as usize % self.out.len();
        let lens = |burst: &Burst| burst.frames().iter().map(|frame| frame.total_len() as u64).sum::<u64>();
        let before = lens(burst);
        if let Some(known) = &mut self.lens[at] {
            known.extend(burst.frames().iter().map(|frame| frame.total_len() as u32));
        }
        let sent = self.out[at].send(burst) as u32;
        if let Some(known) = &mut self.lens[at] {
            known.truncate(known.len() - burst.len());
        }
        let (full, left) = (burst.len() as u32, lens(burst));
        self.sent[at] |= sent > 0;
        pool.release_burst(burst);
        (Sent { sent, full, failed: 0, errno: None }, before - left)
    }

    /// What the other end has not taken yet. From the first time on that it is asked for, lengths are kept; what was sent before counts
    /// as frames without bytes.
    pub(crate) fn backlog(&mut self, queue: u32) -> Backlog {
        let at = queue.wrapping_sub(self.first) as usize % self.out.len();
        let waiting = self.out[at].len();
        let lens = self.lens[at].get_or_insert_with(VecDeque::new);
        while lens.len() > waiting {
            lens.pop_front();
        }
        Backlog { frames: waiting as u32, bytes: lens.iter().map(|len| u64::from(*len)).sum() }
    }

    /// The doorbell: wakes the other end if it sleeps.
    pub(crate) fn ring(&mut self) {
        for (sent, out) in self.sent.iter_mut().zip(&self.out) {
            if std::mem::take(sent) && out.must_wake() {
                self.peer.ring();
            }
        }
    }
}
