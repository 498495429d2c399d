//! The threads that serve connections, for the one that looks after them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Whether a thread does what takes as long as its connection's other end wants.
#[derive(Debug)]
pub struct Pulse {
    begun: Instant,
    /// Since so many milliseconds behind the beginning; 0: it does not.
    exposed: AtomicU64,
}

/// What takes no time takes so long only when somebody wants it.
pub const STUCK: Duration = Duration::from_millis(500);

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse { begun: Instant::now(), exposed: AtomicU64::new(0) }
    }
}

impl Pulse {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64 + 1
    }

    /// What comes now usually takes no time.
    pub fn expose(&self) {
        self.exposed.store(self.now(), Ordering::Release);
    }

    /// It is done.
    pub fn cover(&self) {
        self.exposed.store(0, Ordering::Release);
    }

    fn stuck(&self) -> bool {
        let since = self.exposed.load(Ordering::Acquire);
        since != 0 && u128::from(self.now().saturating_sub(since)) >= STUCK.as_millis()
    }
}

/// One thread.
struct Running {
    connection: u64,
    thread: JoinHandle<()>,
    pulse: Arc<Pulse>,
    /// Nobody counts on it any more.
    given_up: bool,
}

type Work = Box<dyn FnOnce() + Send>;

/// Threads, each of which serves one connection. None of the calls here waits for a connection.
pub struct Threads {
    name: &'static str,
    most: usize,
    running: Vec<Running>,
    /// No thread could be started for it.
    waiting: Option<(u64, Arc<Pulse>, Work)>,
}

/// Most threads that are held up, on kernels that cannot refuse descriptors ([`crate::refuse_rights`]); beyond that nobody is
/// taken in. Each has a descriptor.
const HELD_UP_MAX: usize = 128;

impl Threads {
    /// At most so many with this name at a time, without those that are held up.
    pub fn new(name: &'static str, most: usize) -> Threads {
        Threads { name, most, running: Vec::new(), waiting: None }
    }

    /// Whether one more may be started.
    pub fn room(&self) -> bool {
        let held_up = self.running.iter().filter(|running| running.given_up).count();
        self.waiting.is_none() && self.running.len() - held_up < self.most && held_up < HELD_UP_MAX
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.running.len() + usize::from(self.waiting.is_some())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts one for the connection with this number; when the system has none to give, as soon as it has. `work` has the connection,
    /// and is dropped only in the thread. Around what may take as long as the other end wants (receiving, and closing at the end)
    /// it exposes the pulse.
    pub fn start(&mut self, connection: u64, pulse: Arc<Pulse>, work: impl FnOnce() + Send + 'static) {
        self.spawn(connection, pulse, Box::new(work));
    }

    fn spawn(&mut self, connection: u64, pulse: Arc<Pulse>, work: Work) {
        // It must not be dropped here when there is no thread for it.
        let place = Arc::new(Mutex::new(Some(work)));
        let theirs = place.clone();
        let thread = std::thread::Builder::new().name(self.name.into()).spawn(move || {
            let work = theirs.lock().take();
            if let Some(work) = work {
                work();
            }
        });
        match thread {
            Ok(thread) => self.running.push(Running { connection, thread, pulse, given_up: false }),
            Err(_) => self.waiting = place.lock().take().map(|work| (connection, pulse, work)),
        }
    }

    /// Forgets threads that have ended, starts what could not be started, and gives the connections of those that are found to be held
    /// up now: what others need of theirs has to be taken away without them.
    pub fn look_after(&mut self) -> Vec<u64> {
        let ended = self.running.extract_if(.., |running| running.thread.is_finished());
        ended.for_each(|running| drop(running.thread.join()));
        if let Some((connection, pulse, work)) = self.waiting.take() {
            self.spawn(connection, pulse, work);
        }
        let found = self.running.iter_mut().filter(|running| !running.given_up && running.pulse.stuck());
        let give_up = |running: &mut Running| {
            running.given_up = true;
            running.connection
        };
        found.map(give_up).collect()
    }

    /// Waits for the threads, for so long at most. Those that are held up are left to themselves, and told.
    pub fn end(&mut self, most: Duration, mut held_up: impl FnMut(u64)) {
        if let Some((.., work)) = self.waiting.take() {
            // Closed by the end of the process.
            std::mem::forget(work);
        }
        let until = Instant::now() + most;
        loop {
            self.look_after().into_iter().for_each(&mut held_up);
            if self.running.iter().all(|running| running.given_up) || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_is_held_up_is_told_once_and_takes_no_room() {
        let mut threads = Threads::new("held", 2);
        let (release, held) = mpsc::channel::<()>();
        let pulse = Arc::new(Pulse::default());
        let theirs = pulse.clone();
        threads.start(7, pulse, move || {
            theirs.expose();
            let _ = held.recv();
            theirs.cover();
        });
        let (finish, waits) = mpsc::channel::<()>();
        // It waits too, and says that it should.
        threads.start(8, Arc::default(), move || assert!(waits.recv().is_err()));
        assert!(!threads.room());
        let mut told = Vec::new();
        while told.is_empty() {
            told = threads.look_after();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(told, [7]);
        assert!(threads.room() && threads.look_after().is_empty());
        drop(finish);
        // Nobody waits for the one that is held up.
        threads.end(Duration::from_secs(600), |connection| panic!("{connection} is told twice"));
        assert!(!threads.is_empty());
        drop(release);
        while !threads.is_empty() {
            assert!(threads.look_after().is_empty());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
