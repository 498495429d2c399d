//! Workers as threads, and how they are told what to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::core::Core;
use crate::wake::Wake;
use crate::{End, EngineError};

/// Something that a worker does between two bursts.
pub(crate) type Command = Box<dyn FnOnce(&mut Core) + Send>;

/// Where a worker finds its commands.
pub(crate) struct Mailbox {
    commands: Mutex<Vec<Command>>,
    waiting: AtomicBool,
    /// The worker takes no more commands. Written under the lock.
    gone: AtomicBool,
    pub(crate) wake: Arc<Wake>,
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Arc<Mailbox>> {
        let (commands, waiting, gone) = Default::default();
        Ok(Arc::new(Mailbox { commands, waiting, gone, wake: Arc::new(Wake::new()?) }))
    }

    /// Whether there are commands: one load for each round of a worker.
    #[inline]
    pub(crate) fn waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Vec<Command> {
        let mut commands = self.commands.lock();
        self.waiting.store(false, Ordering::Release);
        std::mem::take(&mut commands)
    }

    pub(crate) fn post(&self, command: Command) {
        let mut commands = self.commands.lock();
        if self.gone.load(Ordering::Relaxed) {
            return; // The command goes, and whoever waits for its answer is told.
        }
        commands.push(command);
        drop(commands);
        self.waiting.store(true, Ordering::Release);
        self.wake.ring();
    }

    /// Posts a command of the worker with this number, whose answer comes later.
    pub(crate) fn send<R: Send + 'static>(
        &self,
        worker: u32,
        command: impl FnOnce(&mut Core) -> R + Send + 'static,
    ) -> Answer<R> {
        let (answer, receiver) = mpsc::sync_channel(1);
        self.post(Box::new(move |core| {
            let _ = answer.send(command(core));
        }));
        Answer { receiver, worker }
    }
}

/// Closes the mailbox when its worker ends, however it ends.
pub(crate) struct Leaving(pub(crate) Arc<Mailbox>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut commands = self.0.commands.lock();
        self.0.gone.store(true, Ordering::Relaxed);
        commands.clear();
    }
}

/// One worker as its engine sees it.
pub(crate) struct Member {
    pub(crate) number: u32,
    pub(crate) mail: Arc<Mailbox>,
    thread: Option<std::thread::JoinHandle<End>>,
}

impl Member {
    /// Starts a worker's thread; `cpu` binds it to one.
    pub(crate) fn start(number: u32, cpu: Option<usize>, mut core: Core) -> Result<Member, EngineError> {
        let mail = Mailbox::new().map_err(EngineError::System)?;
        (core.mail, core.stays) = (Some(mail.clone()), true);
        core.crew.join(mail.clone());
        let leaving = Leaving(mail.clone());
        let (ready, started) = mpsc::sync_channel(1);
        let work = move || {
            let _leaving = leaving;
            let bound = cpu.map_or(Ok(()), bind);
            let ok = bound.is_ok();
            let _ = ready.send(bound);
            if ok { core.work(Instant::now()) } else { End::Stopped }
        };
        let name = format!("xway-worker-{number}");
        let thread = std::thread::Builder::new().name(name).spawn(work).map_err(EngineError::System)?;
        match started.recv() {
            Ok(Ok(())) => Ok(Member { number, mail, thread: Some(thread) }),
            Ok(Err(cause)) => Err(EngineError::Cpu { cpu: cpu.unwrap_or_default(), cause }),
            Err(_) => Err(EngineError::WorkerGone { worker: number }),
        }
    }

    /// Sends a command whose answer comes later.
    pub(crate) fn send<R: Send + 'static>(&self, command: impl FnOnce(&mut Core) -> R + Send + 'static) -> Answer<R> {
        self.mail.send(self.number, command)
    }

    /// Sends a command and waits for its answer: until the end of the worker's burst.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Core) -> R + Send + 'static,
    ) -> Result<R, EngineError> {
        self.send(command).wait()
    }

    /// Waits for the thread to end.
    pub(crate) fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An answer that is on its way.
pub(crate) struct Answer<R> {
    receiver: mpsc::Receiver<R>,
    worker: u32,
}

impl<R> Answer<R> {
    pub(crate) fn wait(self) -> Result<R, EngineError> {
        self.receiver.recv().map_err(|_| EngineError::WorkerGone { worker: self.worker })
    }
}

/// Whether a worker could be bound to this CPU: a thread tries it, and ends.
///
/// # Errors
/// What the system says: the CPU is not there, not online, or not for this process.
pub fn can_bind(cpu: usize) -> std::io::Result<()> {
    let tries = std::thread::Builder::new().name("xway-tries".into()).spawn(move || bind(cpu))?;
    tries.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
}

fn bind(cpu: usize) -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cpu >= CpuSet::MAX_CPU {
        return Err(std::io::Error::from_raw_os_error(xway_abi::Errno::EINVAL.0));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
