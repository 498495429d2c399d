//! Events: what is rare and worth telling, at a bounded rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use xway_abi::Errno;
use xway_packet::{Frame, Redirect};

use crate::core::EYES;

/// Something that happened to one frame.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// What.
    pub kind: EventKind<'a>,
    /// Name of the program that ran.
    pub program: &'a str,
    /// Interface that the frame came in on.
    pub ifindex: u32,
    /// Queue that it came in on.
    pub queue: u32,
    /// Number of the packet in its input, 0 when its port does not count.
    pub packet_id: u64,
    /// Events of this kind that were not told since the last one, because there were too many.
    pub suppressed: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum EventKind<'a> {
    /// The program was stopped, or returned ABORTED by itself.
    Exception {
        /// Why it was stopped; `None` when it returned ABORTED.
        fault: Option<&'a (dyn std::error::Error + Send + Sync + 'static)>,
    },
    /// The program returned a code that is no verdict.
    InvalidAction {
        /// The code.
        code: u32,
    },
    /// A frame could not be redirected.
    RedirectError {
        /// Why.
        errno: Errno,
        /// Where it should have gone.
        target: Redirect,
    },
    /// Frames with the verdict TX could not be sent. One event for each burst and port.
    TxError {
        /// Why; `ENOSPC` when the port's queue was full.
        errno: Errno,
        /// The port's interface.
        ifindex: u32,
        /// How many frames.
        count: u32,
    },
}

impl EventKind<'_> {
    /// Names of the kinds, which stay.
    pub const NAMES: [&'static str; 4] = ["exception", "invalid_action", "redirect_error", "tx_error"];

    fn number(&self) -> usize {
        match self {
            EventKind::Exception { .. } => 0,
            EventKind::InvalidAction { .. } => 1,
            EventKind::RedirectError { .. } => 2,
            EventKind::TxError { .. } => 3,
        }
    }

    /// Name of the kind.
    pub fn name(&self) -> &'static str {
        Self::NAMES[self.number()]
    }
}

/// Somebody who wants to know. Called on the worker's thread, between bursts.
pub trait Subscriber: Send {
    /// Something happened.
    fn event(&mut self, event: &Event<'_>);
}

impl<F: FnMut(&Event<'_>) + Send> Subscriber for F {
    fn event(&mut self, event: &Event<'_>) {
        self(event)
    }
}

/// Hands events to the subscriber, at most so many of each kind per second. Without a subscriber nothing is done.
pub(crate) struct Events {
    subscriber: Option<Box<dyn Subscriber>>,
    /// Whether anybody wants to know now.
    listening: Arc<AtomicBool>,
    per_second: u32,
    limits: [Limit; 4],
    /// The time, once it was asked for in this round.
    now: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
struct Limit {
    /// Start of the current second; `None` before the first event.
    since: Option<Instant>,
    told: u32,
    suppressed: u64,
}

impl Events {
    pub(crate) fn new(subscriber: Option<Box<dyn Subscriber>>, per_second: u32) -> Events {
        let listening = Arc::new(AtomicBool::new(subscriber.is_some()));
        Events { subscriber, listening, per_second, limits: Default::default(), now: None }
    }

    /// For a subscriber that does not always want to know.
    pub(crate) fn while_listening(
        subscriber: Box<dyn Subscriber>,
        listening: Arc<AtomicBool>,
        per_second: u32,
    ) -> Events {
        Events { subscriber: Some(subscriber), listening, per_second, limits: Default::default(), now: None }
    }

    /// Every queue is served once more. The events of a round have one time: whoever makes programs abort does not make us read
    /// the clock for each packet.
    #[inline]
    pub(crate) fn round(&mut self) {
        self.now = None;
    }

    /// Tells the subscriber, unless there is none or it heard enough. `frame` is who it happened to, when that is still known.
    #[inline]
    pub(crate) fn tell(&mut self, program: &str, frame: Option<&Frame>, kind: EventKind<'_>) {
        if EYES && self.listening.load(Ordering::Relaxed) {
            self.tell_now(program, frame, kind);
        }
    }

    fn tell_now(&mut self, program: &str, frame: Option<&Frame>, kind: EventKind<'_>) {
        let Some(subscriber) = &mut self.subscriber else { return };
        let limit = &mut self.limits[kind.number()];
        let now = *self.now.get_or_insert_with(Instant::now);
        if limit.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1)) {
            (limit.since, limit.told) = (Some(now), 0);
        }
        if limit.told >= self.per_second {
            limit.suppressed += 1;
            return;
        }
        limit.told += 1;
        subscriber.event(&Event {
            kind,
            program,
            ifindex: frame.map_or(0, Frame::ingress_ifindex),
            queue: frame.map_or(0, Frame::rx_queue),
            packet_id: frame.map_or(0, Frame::packet_id),
            suppressed: std::mem::take(&mut limit.suppressed),
        });
    }
}
