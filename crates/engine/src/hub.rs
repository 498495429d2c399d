//! Events of all workers, for whoever listens.
//!
//! Nobody listens: a worker reads one flag where something rare happens, and nothing where it does not. Somebody listens: at most
//! so many events of each kind, worker and second are written down; each listener has a bounded queue of its own, and what it
//! does not fetch in time is counted and lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xway_abi::Errno;
use xway_packet::Redirect;

use crate::event::{Event, EventKind, Events, Subscriber};

/// An event as listeners get it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Number of the event in its engine, from 1.
    pub number: u64,
    /// Nanoseconds since the engine started.
    pub time_ns: u64,
    /// The worker; `None` for what control did.
    pub worker: Option<u32>,
    /// Name of the program that ran, or that is attached or detached.
    pub program: String,
    /// Interface index that the frame came in on, or of the port.
    pub ifindex: u32,
    /// Queue that it came in on.
    pub queue: u32,
    /// Number of the packet in its input, 0 when its port does not count.
    pub packet_id: u64,
    /// Events of this kind that this worker did not tell since the last one, because there were too many.
    pub suppressed: u64,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A program was stopped, with the reason, or returned ABORTED by itself.
    Exception {
        /// Why it was stopped: instruction and cause, as the engine that ran it says them.
        fault: Option<String>,
    },
    /// A program returned a code that is no verdict.
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
    /// Frames with the verdict TX could not be sent.
    TxError {
        /// Why.
        errno: Errno,
        /// The port.
        ifindex: u32,
        /// How many frames.
        count: u32,
    },
    /// The programs of a hook changed: these run from now on, by id.
    Attached {
        /// Ids in the order in which they run; empty when the hook is empty now.
        programs: Vec<u32>,
        /// The queue, when it is its own hook.
        queue: Option<u32>,
    },
}

impl What {
    /// Name of the kind, which stays.
    pub fn name(&self) -> &'static str {
        match self {
            What::Exception { .. } => "exception",
            What::InvalidAction { .. } => "invalid_action",
            What::RedirectError { .. } => "redirect_error",
            What::TxError { .. } => "tx_error",
            What::Attached { .. } => "attached",
        }
    }
}

/// Where workers tell and listeners listen.
pub(crate) struct Hub {
    listening: Arc<AtomicBool>,
    listeners: Mutex<Vec<Weak<Queue>>>,
    started: Instant,
    number: AtomicU64,
}

struct Queue {
    events: Mutex<VecDeque<Told>>,
    more: Condvar,
    room: usize,
    lost: AtomicU64,
}

/// Events of each kind that each worker tells in a second.
const EVENTS_PER_SECOND: u32 = 100;

impl Hub {
    pub(crate) fn new() -> Arc<Hub> {
        Arc::new(Hub {
            listening: Arc::default(),
            listeners: Mutex::default(),
            started: Instant::now(),
            number: AtomicU64::new(0),
        })
    }

    /// For a worker.
    pub(crate) fn events(self: &Arc<Hub>, worker: u32) -> Events {
        let teller = Teller { hub: self.clone(), worker };
        Events::while_listening(Box::new(teller), self.listening.clone(), EVENTS_PER_SECOND)
    }

    pub(crate) fn listen(self: &Arc<Hub>, room: usize) -> Listener {
        let (events, lost) = Default::default();
        let queue = Arc::new(Queue { events, more: Condvar::new(), room: room.max(1), lost });
        let mut listeners = self.listeners.lock();
        listeners.push(Arc::downgrade(&queue));
        self.listening.store(true, Ordering::Relaxed);
        Listener { queue, hub: self.clone() }
    }

    /// What control did.
    pub(crate) fn attached(&self, ifindex: u32, queue: Option<u32>, programs: Vec<u32>, name: String) {
        if self.listening.load(Ordering::Relaxed) {
            let what = What::Attached { programs, queue };
            let queue = queue.unwrap_or(0);
            let (worker, packet_id, suppressed) = (None, 0, 0);
            self.tell(Told {
                number: 0,
                time_ns: 0,
                worker,
                program: name,
                ifindex,
                queue,
                packet_id,
                suppressed,
                what,
            });
        }
    }

    fn tell(&self, told: Told) {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let told = Told { number, time_ns: self.started.elapsed().as_nanos() as u64, ..told };
        for queue in self.listeners.lock().iter().filter_map(Weak::upgrade) {
            let mut events = queue.events.lock();
            if events.len() < queue.room {
                events.push_back(told.clone());
                queue.more.notify_one();
            } else {
                queue.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

struct Teller {
    hub: Arc<Hub>,
    worker: u32,
}

impl Subscriber for Teller {
    fn event(&mut self, event: &Event<'_>) {
        let what = match event.kind {
            EventKind::Exception { fault } => What::Exception { fault: fault.map(|fault| fault.to_string()) },
            EventKind::InvalidAction { code } => What::InvalidAction { code },
            EventKind::RedirectError { errno, target } => What::RedirectError { errno, target },
            EventKind::TxError { errno, ifindex, count } => What::TxError { errno, ifindex, count },
        };
        self.hub.tell(Told {
            number: 0,
            time_ns: 0,
            worker: Some(self.worker),
            program: event.program.to_owned(),
            ifindex: event.ifindex,
            queue: event.queue,
            packet_id: event.packet_id,
            suppressed: event.suppressed,
            what,
        });
    }
}

/// Somebody who listens to an engine. Dropping it ends that.
pub struct Listener {
    queue: Arc<Queue>,
    hub: Arc<Hub>,
}

impl Listener {
    /// The next event, waiting for it up to this time.
    pub fn next(&self, wait: Duration) -> Option<Told> {
        let mut events = self.queue.events.lock();
        if events.is_empty() {
            self.queue.more.wait_for(&mut events, wait);
        }
        events.pop_front()
    }

    /// Events that were lost since the last call because the queue was full.
    pub fn lost(&self) -> u64 {
        self.queue.lost.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut listeners = self.hub.listeners.lock();
        listeners.retain(|queue| !std::ptr::eq(queue.as_ptr(), Arc::as_ptr(&self.queue)));
        self.hub.listening.store(!listeners.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_hears_what_fits_and_knows_what_did_not() {
        let hub = Hub::new();
        let mut events = hub.events(3);
        let invalid = |events: &mut Events, code| events.tell("prog", None, EventKind::InvalidAction { code });
        invalid(&mut events, 1);
        let (short, long) = (hub.listen(2), hub.listen(100));
        (10..15).for_each(|code| invalid(&mut events, code));
        hub.attached(7, Some(2), vec![41, 42], "one+two".into());
        let heard = |listener: &Listener| -> Vec<What> {
            std::iter::from_fn(|| listener.next(Duration::ZERO).map(|told| told.what)).collect()
        };
        let (short_heard, short_lost) = (heard(&short), short.lost());
        assert_eq!((short_heard.len(), short_lost, short.lost()), (2, 4, 0));
        let all = heard(&long);
        assert_eq!((all[0].clone(), all.len()), (What::InvalidAction { code: 10 }, 6), "not what came before");
        assert_eq!(all[5], What::Attached { programs: vec![41, 42], queue: Some(2) });
        drop((short, long));
        assert!(!hub.listening.load(Ordering::Relaxed));
        let told = hub.number.load(Ordering::Relaxed);
        invalid(&mut events, 99);
        assert_eq!(hub.number.load(Ordering::Relaxed), told, "nobody listens, nothing is done");
    }

    #[test]
    fn a_flood_of_events_is_told_at_a_bounded_rate() {
        let hub = Hub::new();
        let mut events = hub.events(0);
        let listener = hub.listen(1 << 20);
        (0..100_000).for_each(|_| events.tell("prog", None, EventKind::Exception { fault: None }));
        let mut heard = 0;
        while let Some(told) = listener.next(Duration::ZERO) {
            heard += 1 + told.suppressed;
        }
        // What was suppressed at the end is told with the next event.
        assert!((100..=100_000).contains(&heard) && hub.number.load(Ordering::Relaxed) < 100_000, "{heard}");
    }
}
