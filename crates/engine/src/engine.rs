//! The engine: workers, ports and programs, changed while packets flow.
//!
//! ```text
//! Engine (control, any thread)                         worker thread
//!   lock                                                 loop:
//!   make what is new: pool, port, executor                 take commands     <- the quiescent point
//!   post a command, ring the bell  ───────────────────>    for each queue: relay, receive, process
//!   wait for the answer            <───────────────────    nothing to do for long: sleep until the bell
//!   drop what is old
//! ```
//!
//! Nothing is made and nothing is freed on the packets' way: a worker exchanges one pointer for another between two bursts, and
//! what it gives back is dropped by the thread that asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xway_maps::Map;
use xway_packet::{Leak, Pool, PoolConfig, PoolError};

use crate::chain::{ProgramCounters, ProgramMeters};
use crate::core::{Core, Way};
use crate::counters::Meters;
use crate::crew::Member;
use crate::event::Events;
use crate::lane::{Hook, Lane, Pass, PassTo};
use crate::outbox::Outbox;
use crate::ring::Inbox;
use crate::slot::{AttachError, AttachFlags, Attached, Slot};
use crate::{Capabilities, Counters, Device, LoadedProgram, PortError, PortStats, Stop};

/// Shape of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Workers: threads that serve queues. Programs see their numbers as CPU numbers.
    pub workers: u32,
    /// CPUs that the workers are bound to, in their order; those without one go where the system puts them.
    pub cpus: Vec<usize>,
    /// Rounds without work before a worker sleeps.
    pub idle_polls: u32,
    /// Frames that wait at most between two workers, for each queue and direction.
    pub ring_len: usize,
    /// Measure the time that programs take (`kernel.bpf_stats_enabled`): two readings of the clock a burst.
    pub timed: bool,
}

impl Default for EngineConfig {
    /// One worker, bound to no CPU.
    fn default() -> EngineConfig {
        EngineConfig { workers: 1, cpus: Vec::new(), idle_polls: 1000, ring_len: 2048, timed: false }
    }
}

/// How a port is opened.
#[derive(Clone, Debug, Default)]
pub struct PortConfig {
    /// Which queue on which worker. `None`: all queues, queue n on worker n modulo their number.
    pub queues: Option<Vec<(u32, u32)>>,
    /// Shape of the pools; `None`: what the device wants.
    pub pool: Option<PoolConfig>,
    /// Where PASS goes.
    pub pass: PassTo,
}

/// Where a program is attached: to a port, or to one of its queues, whose programs win over those of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HookPoint {
    /// Interface index of the port.
    pub ifindex: u32,
    /// The queue; `None` for the port.
    pub queue: Option<u32>,
}

/// Why the engine did not do what it was asked. Nothing was changed then, unless the error says so.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The system refused a thread or a descriptor.
    #[error("starting a worker: {0}")]
    System(std::io::Error),
    /// A worker could not be bound to its CPU.
    #[error("binding a worker to CPU {cpu}: {cause}; name a CPU that is online and allowed")]
    Cpu {
        /// The CPU.
        cpu: usize,
        /// What the system said.
        cause: std::io::Error,
    },
    /// There is no such worker.
    #[error("worker {worker}: there are {workers}, numbered from 0")]
    NoWorker {
        /// Number asked for.
        worker: u32,
        /// How many there are.
        workers: u32,
    },
    /// A worker's thread has ended: a bug, or the engine was stopped.
    #[error("worker {worker} is gone")]
    WorkerGone {
        /// Its number.
        worker: u32,
    },
    /// No open port has this interface index.
    #[error("no port with interface index {ifindex} is open")]
    NoPort {
        /// The index.
        ifindex: u32,
    },
    /// Another port has this interface index.
    #[error("{name} has interface index {ifindex}, and so has {other}, which is open")]
    PortTaken {
        /// The new port.
        name: String,
        /// The index.
        ifindex: u32,
        /// The open port.
        other: String,
    },
    /// The port has no such queue, or it is not open.
    #[error("{name}: no queue {queue}; it has {queues}")]
    NoQueue {
        /// The port.
        name: String,
        /// Number asked for.
        queue: u32,
        /// How many the port has.
        queues: u32,
    },
    /// The queue is open.
    #[error("{name}: queue {queue} is served by worker {worker}; remove it there first")]
    QueueTaken {
        /// The port.
        name: String,
        /// The queue.
        queue: u32,
        /// Who serves it.
        worker: u32,
    },
    /// The device could not open the queue.
    #[error(transparent)]
    Port(PortError),
    /// The queue's pool could not be made.
    #[error("{name}: {cause}")]
    Pool {
        /// The port.
        name: String,
        /// Why.
        cause: PoolError,
    },
    /// The rules of attaching forbid it.
    #[error("{name}: {cause}")]
    Attach {
        /// The port.
        name: String,
        /// The rule.
        cause: AttachError,
    },
}

/// What became of a queue that is closed.
#[derive(Debug)]
pub struct QueueReport {
    /// Name of the port.
    pub port: String,
    /// Its interface index.
    pub ifindex: u32,
    /// The queue.
    pub queue: u32,
    /// The worker that served it.
    pub worker: u32,
    /// What was counted.
    pub counters: Counters,
    /// What the port counted.
    pub stats: PortStats,
    /// What the pool counted.
    pub pool: xway_packet::Counters,
    /// Set when frames did not come home.
    pub leak: Option<Leak>,
    /// Why the queue had stopped receiving, if it had.
    pub error: Option<PortError>,
}

/// A queue as it stands.
#[derive(Clone, Debug)]
pub struct QueueState {
    /// Name of the port.
    pub port: String,
    /// Its interface index.
    pub ifindex: u32,
    /// The queue.
    pub queue: u32,
    /// The worker that serves it.
    pub worker: u32,
    /// What was counted since it was opened.
    pub counters: Counters,
    /// The programs that run on it, in their order, and what each did here: id, name, counters.
    pub programs: Vec<(u32, String, ProgramCounters)>,
    /// Whether the programs are the queue's own; else they are the port's.
    pub own_programs: bool,
}

/// A port as it stands.
#[derive(Clone)]
pub struct PortState {
    /// Its name.
    pub name: String,
    /// Its interface index.
    pub ifindex: u32,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Queues that the device has.
    pub queues: u32,
    /// Programs attached to the port.
    pub programs: Vec<Attached>,
    /// Programs attached to single queues.
    pub queue_programs: Vec<(u32, Vec<Attached>)>,
}

/// Workers, ports and programs. Any thread may call it; calls wait for each other, packets wait for none of them.
///
/// Dropping it stops it as [`Engine::stop`] does.
pub struct Engine {
    config: EngineConfig,
    control: Mutex<Control>,
}

struct Control {
    members: Vec<Member>,
    ports: Vec<PortEntry>,
}

struct PortEntry {
    name: String,
    ifindex: u32,
    device: Box<dyn Device>,
    config: PortConfig,
    slot: Slot,
    /// Programs of single queues, also of those that are not open now.
    queue_slots: Vec<(u32, Slot)>,
    queues: Vec<QueueEntry>,
}

struct QueueEntry {
    queue: u32,
    worker: u32,
    meters: Arc<Meters>,
    inbox: Arc<Inbox>,
    /// Counters of the programs that run on it, by id.
    programs: Vec<(u32, String, Arc<ProgramMeters>)>,
}

impl PortEntry {
    fn queue_count(&self) -> u32 {
        self.device.rx_queues().max(self.device.tx_queues())
    }

    /// The programs that run on a queue, and whether they are its own.
    fn slot(&self, queue: u32) -> (&Slot, bool) {
        let own = self.queue_slots.iter().find(|(number, slot)| *number == queue && !slot.is_empty());
        own.map_or((&self.slot, false), |(_, slot)| (slot, true))
    }

    /// What runs a queue's programs, with their counters: a program that ran there before goes on counting.
    fn executor(&self, queue: u32, worker: u32, old: &[(u32, String, Arc<ProgramMeters>)]) -> (Hook, Programs) {
        let mut programs = Vec::new();
        let executor = self.slot(queue).0.executor(worker, &mut |attached| {
            let id = attached.program.id();
            let known = old.iter().find(|(known, ..)| *known == id);
            let meters = known.map_or_else(Arc::default, |(.., meters)| meters.clone());
            programs.push((id, attached.program.name().to_owned(), meters.clone()));
            meters
        });
        (Hook::new(executor), programs)
    }
}

type Programs = Vec<(u32, String, Arc<ProgramMeters>)>;

impl Engine {
    /// Starts the workers. They sleep until they get queues.
    ///
    /// # Errors
    /// The system has no thread or descriptor left, or a CPU does not exist. Workers that were started have ended then.
    pub fn start(config: EngineConfig) -> Result<Engine, EngineError> {
        let mut control = Control { members: Vec::new(), ports: Vec::new() };
        for number in 0..config.workers.max(1) {
            let mut core = Core::new(Stop::new().map_err(EngineError::System)?, Events::new(None, 0));
            core.idle_polls = config.idle_polls;
            core.timed = config.timed;
            match Member::start(number, config.cpus.get(number as usize).copied(), core) {
                Ok(member) => control.members.push(member),
                Err(error) => {
                    control.dismiss();
                    return Err(error);
                }
            }
        }
        Ok(Engine { config, control: Mutex::new(control) })
    }

    /// Number of workers.
    pub fn workers(&self) -> u32 {
        self.config.workers.max(1)
    }

    // -- ports ------------------------------------------------------------------------------------------------------------

    /// Opens a port: its queues start to receive. Frames pass until a program is attached.
    ///
    /// # Errors
    /// The interface index is taken, a worker or a queue does not exist, or the device refuses a queue; those opened before
    /// are closed again.
    pub fn open(&self, device: Box<dyn Device>, config: PortConfig) -> Result<(), EngineError> {
        let mut control = self.control.lock();
        let (name, ifindex) = (device.name().to_owned(), device.ifindex());
        if let Some(other) = control.ports.iter().find(|port| port.ifindex == ifindex) {
            return Err(EngineError::PortTaken { name, ifindex, other: other.name.clone() });
        }
        let workers = control.members.len() as u32;
        let all = device.rx_queues().max(device.tx_queues());
        let queues = config.queues.clone().unwrap_or_else(|| (0..all).map(|queue| (queue, queue % workers)).collect());
        control.ports.push(PortEntry {
            name,
            ifindex,
            device,
            config,
            slot: Slot::default(),
            queue_slots: Vec::new(),
            queues: Vec::new(),
        });
        let opened =
            queues.iter().try_for_each(|&(queue, worker)| self.open_queue(&mut control, ifindex, queue, worker));
        if opened.is_err() {
            let _ = control.close_port(ifindex);
        }
        opened
    }

    /// Closes a port: it receives no more, what waits for it is sent, its frames come home.
    ///
    /// # Errors
    /// No such port is open.
    pub fn close(&self, ifindex: u32) -> Result<Vec<QueueReport>, EngineError> {
        self.control.lock().close_port(ifindex)
    }

    /// Opens one more queue of an open port, on this worker.
    ///
    /// # Errors
    /// There is no such port, queue or worker, or the queue is open, or the device refuses.
    pub fn add_queue(&self, ifindex: u32, queue: u32, worker: u32) -> Result<(), EngineError> {
        self.open_queue(&mut self.control.lock(), ifindex, queue, worker)
    }

    /// Closes a queue of an open port. Frames that others have for it are sent first.
    ///
    /// # Errors
    /// There is no such port, or the queue is not open.
    pub fn remove_queue(&self, ifindex: u32, queue: u32) -> Result<QueueReport, EngineError> {
        let mut control = self.control.lock();
        let at = control.port(ifindex)?;
        control.close_queue(at, queue)
    }

    /// Changes where PASS goes for frames of a port.
    ///
    /// # Errors
    /// No such port is open.
    pub fn set_pass(&self, ifindex: u32, pass: PassTo) -> Result<(), EngineError> {
        let mut control = self.control.lock();
        let at = control.port(ifindex)?;
        control.ports[at].config.pass = pass;
        let answers: Vec<_> = (control.members.iter())
            .map(|member| {
                member.send(move |core| {
                    let own = core.lanes.iter_mut().filter(|lane| lane.port.ifindex() == ifindex);
                    own.for_each(|lane| lane.pass_to = pass);
                })
            })
            .collect();
        answers.into_iter().try_for_each(|answer| answer.wait())?;
        control.rewire(None)
    }

    fn open_queue(&self, control: &mut Control, ifindex: u32, queue: u32, worker: u32) -> Result<(), EngineError> {
        let at = control.port(ifindex)?;
        let workers = control.members.len() as u32;
        let member = control.members.get(worker as usize).ok_or(EngineError::NoWorker { worker, workers })?;
        let entry = &mut control.ports[at];
        let name = entry.name.clone();
        let queues = entry.queue_count();
        if queue >= queues {
            return Err(EngineError::NoQueue { name, queue, queues });
        }
        if let Some(open) = entry.queues.iter().find(|open| open.queue == queue) {
            return Err(EngineError::QueueTaken { name, queue, worker: open.worker });
        }
        let shape = entry.config.pool.unwrap_or_else(|| entry.device.pool(queue));
        let mut pool = Pool::new(shape).map_err(|cause| EngineError::Pool { name, cause })?;
        let port = entry.device.open_queue(queue, &mut pool).map_err(EngineError::Port)?;
        let inbox = Arc::new(Inbox::new(ifindex, self.config.ring_len, member.mail.wake.clone()));
        let meters = Arc::new(Meters::default());
        let (hook, programs) = entry.executor(queue, worker, &[]);
        let (receiving, pass_to) = (queue < entry.device.rx_queues(), entry.config.pass);
        entry.queues.push(QueueEntry { queue, worker, meters: meters.clone(), inbox: inbox.clone(), programs });
        let (index, maps) = (member.number, control.maps(worker));
        let old = control.members[index as usize].ask(move |core| {
            let lane = Lane {
                port,
                queue,
                pool: 0,
                hook: 0,
                outbox: Outbox::default(),
                receiving,
                pass_to,
                pass: Pass::Stack,
                meters,
                inbox: Some(inbox),
                error: None,
            };
            core.add(lane, pool, hook);
            core.set_maps(maps)
        })?;
        drop(old);
        control.rewire(None)
    }

    // -- programs ---------------------------------------------------------------------------------------------------------

    /// Attaches a program in place of whatever is there, atomically on each worker: a frame sees the old one or the new one.
    ///
    /// # Errors
    /// No such port or queue, or the flags forbid it, with Linux's errno.
    pub fn attach(
        &self,
        point: HookPoint,
        program: Arc<dyn LoadedProgram>,
        flags: AttachFlags,
    ) -> Result<(), EngineError> {
        self.control.lock().change(point, |slot| slot.attach(Attached::new(program), flags))
    }

    /// Puts a program into the chain of a hook.
    ///
    /// # Errors
    /// No such port or queue; `EEXIST` when the program is in the chain, `E2BIG` when that is full.
    pub fn chain(&self, point: HookPoint, attached: Attached) -> Result<(), EngineError> {
        self.control.lock().change(point, |slot| slot.add(attached))
    }

    /// Exchanges one program of a chain for another, which takes over its place and its verdicts.
    ///
    /// # Errors
    /// No such port or queue; `ENOENT` when the old program is not there.
    pub fn exchange(&self, point: HookPoint, old: u32, program: Arc<dyn LoadedProgram>) -> Result<(), EngineError> {
        self.control.lock().change(point, |slot| slot.exchange(old, program))
    }

    /// Takes one program out of a chain.
    ///
    /// # Errors
    /// No such port or queue; `ENOENT` when the program is not there.
    pub fn unchain(&self, point: HookPoint, id: u32) -> Result<(), EngineError> {
        self.control.lock().change(point, |slot| slot.remove(id))
    }

    /// Takes all programs off a hook; a queue without programs of its own has those of its port again.
    ///
    /// # Errors
    /// No such port or queue; `EEXIST` when another program than the expected one is attached.
    pub fn detach(&self, point: HookPoint, expected: Option<u32>) -> Result<(), EngineError> {
        self.control.lock().change(point, |slot| slot.detach(expected))
    }

    // -- watching ---------------------------------------------------------------------------------------------------------

    /// The open ports.
    pub fn ports(&self) -> Vec<PortState> {
        let control = self.control.lock();
        let own = |port: &PortEntry| {
            let some = port.queue_slots.iter().filter(|(_, slot)| !slot.is_empty());
            some.map(|(queue, slot)| (*queue, slot.entries().to_vec())).collect()
        };
        let state = |port: &PortEntry| PortState {
            name: port.name.clone(),
            ifindex: port.ifindex,
            capabilities: port.device.capabilities(),
            queues: port.queue_count(),
            programs: port.slot.entries().to_vec(),
            queue_programs: own(port),
        };
        control.ports.iter().map(state).collect()
    }

    /// The open queues with their counters, which grow while they are read. No worker notices.
    pub fn queues(&self) -> Vec<QueueState> {
        let control = self.control.lock();
        let mut states = Vec::new();
        for port in &control.ports {
            states.extend(port.queues.iter().map(|queue| QueueState {
                port: port.name.clone(),
                ifindex: port.ifindex,
                queue: queue.queue,
                worker: queue.worker,
                counters: queue.meters.read(),
                programs: queue.programs.iter().map(|(id, name, m)| (*id, name.clone(), m.read())).collect(),
                own_programs: port.slot(queue.queue).1,
            }));
        }
        states
    }

    /// What the ports and pools themselves counted, by interface index and queue. Asks the workers, between two bursts.
    ///
    /// # Errors
    /// A worker is gone.
    pub fn port_stats(&self) -> Result<Vec<(u32, u32, PortStats, xway_packet::Counters)>, EngineError> {
        let control = self.control.lock();
        let ask = |core: &mut Core| -> Vec<(u32, u32, PortStats, xway_packet::Counters)> {
            let Core { lanes, pools, .. } = core;
            let stats =
                |lane: &mut Lane| (lane.port.ifindex(), lane.queue, lane.port.stats(), pools[lane.pool].counters());
            lanes.iter_mut().map(stats).collect()
        };
        let answers: Vec<_> = control.members.iter().map(|member| member.send(ask)).collect();
        let mut all = Vec::new();
        for answer in answers {
            all.extend(answer.wait()?);
        }
        all.sort_by_key(|&(ifindex, queue, ..)| (ifindex, queue));
        Ok(all)
    }

    /// Stops: nothing more is received, what is under way is carried out, every queue is closed. Returns what became of each.
    ///
    /// Frames that are still on their way between workers after a second are given up; the pools of their queues say so.
    pub fn stop(self) -> Vec<QueueReport> {
        self.control.lock().stop()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.control.lock().stop();
    }
}

/// How long a stop waits for frames that are on their way.
const DRAIN_MAX: Duration = Duration::from_secs(1);

impl Control {
    fn port(&self, ifindex: u32) -> Result<usize, EngineError> {
        let found = self.ports.iter().position(|port| port.ifindex == ifindex);
        found.ok_or(EngineError::NoPort { ifindex })
    }

    /// Maps of all programs that run on a worker.
    fn maps(&self, worker: u32) -> Vec<Arc<Map>> {
        let mut maps: Vec<Arc<Map>> = Vec::new();
        for port in &self.ports {
            for queue in port.queues.iter().filter(|queue| queue.worker == worker) {
                for attached in port.slot(queue.queue).0.entries() {
                    let new =
                        attached.program.maps().iter().filter(|map| maps.iter().all(|known| known.id() != map.id()));
                    let new: Vec<_> = new.cloned().collect();
                    maps.extend(new);
                }
            }
        }
        maps
    }

    /// Changes a slot, and what runs on the queues that it concerns.
    fn change(
        &mut self,
        point: HookPoint,
        change: impl FnOnce(&Slot) -> Result<Slot, AttachError>,
    ) -> Result<(), EngineError> {
        let at = self.port(point.ifindex)?;
        let port = &mut self.ports[at];
        let (name, queues) = (port.name.clone(), port.queue_count());
        let failed = |cause| EngineError::Attach { name: name.clone(), cause };
        match point.queue {
            None => port.slot = change(&port.slot).map_err(failed)?,
            Some(queue) if queue >= queues => return Err(EngineError::NoQueue { name, queue, queues }),
            Some(queue) => match port.queue_slots.iter_mut().find(|(number, _)| *number == queue) {
                Some((_, slot)) => *slot = change(slot).map_err(failed)?,
                None => port.queue_slots.push((queue, change(&Slot::default()).map_err(failed)?)),
            },
        }
        // What is new is made before the first worker hears of it, what is old is dropped after the last one has.
        let mut answers = Vec::new();
        for number in 0..self.ports[at].queues.len() {
            let port = &self.ports[at];
            let (queue, worker) = (port.queues[number].queue, port.queues[number].worker);
            if point.queue.is_some_and(|only| only != queue) || (point.queue.is_none() && port.slot(queue).1) {
                continue;
            }
            let (mut hook, programs) = port.executor(queue, worker, &port.queues[number].programs);
            let (ifindex, maps) = (port.ifindex, self.maps(worker));
            self.ports[at].queues[number].programs = programs;
            answers.push(self.members[worker as usize].send(move |core| {
                if let Some(lane) = core.lane(ifindex, queue) {
                    std::mem::swap(&mut core.hooks[core.lanes[lane].hook], &mut hook);
                }
                (hook, core.set_maps(maps))
            }));
        }
        answers.into_iter().try_for_each(|answer| answer.wait().map(drop))
    }

    /// Tells every worker which ports there are and how to reach them. Queues of `without` are reached no more.
    fn rewire(&self, without: Option<(u32, u32)>) -> Result<(), EngineError> {
        let mut answers = Vec::new();
        for member in &self.members {
            let ways = self.ports.iter().filter_map(|port| {
                let open = port.queues.iter().filter(|queue| without != Some((port.ifindex, queue.queue)));
                let open: Vec<&QueueEntry> = open.collect();
                // Workers spread over the queues of a port that is not theirs.
                let chosen = open.get(member.number as usize % open.len().max(1))?;
                Some(Way { ifindex: port.ifindex, inbox: chosen.inbox.clone() })
            });
            let ways: Vec<Way> = ways.collect();
            answers.push(member.send(move |core| core.rewire(ways)));
        }
        answers.into_iter().try_for_each(|answer| answer.wait())
    }

    /// Closes a queue: first nobody sends to it, then its worker gives it up.
    fn close_queue(&mut self, at: usize, queue: u32) -> Result<QueueReport, EngineError> {
        let port = &self.ports[at];
        let (ifindex, name, queues) = (port.ifindex, port.name.clone(), port.queue_count());
        let Some(number) = port.queues.iter().position(|open| open.queue == queue) else {
            return Err(EngineError::NoQueue { name, queue, queues });
        };
        self.rewire(Some((ifindex, queue)))?;
        let entry = self.ports[at].queues.remove(number);
        let taken =
            self.members[entry.worker as usize].ask(move |core| core.lane(ifindex, queue).map(|at| core.remove(at)));
        self.rewire(None)?;
        let taken = taken?.ok_or(EngineError::NoQueue { name: name.clone(), queue, queues })?;
        Ok(finish(vec![Closing { name, ifindex, entry, taken }]).remove(0))
    }

    fn close_port(&mut self, ifindex: u32) -> Result<Vec<QueueReport>, EngineError> {
        let at = self.port(ifindex)?;
        let open: Vec<u32> = self.ports[at].queues.iter().map(|queue| queue.queue).collect();
        let mut reports = Vec::new();
        for queue in open {
            reports.push(self.close_queue(at, queue)?);
        }
        self.ports.remove(at);
        self.rewire(None)?;
        Ok(reports)
    }

    fn stop(&mut self) -> Vec<QueueReport> {
        let quiet = |member: &Member| member.ask(|core| core.lanes.iter_mut().for_each(|lane| lane.receiving = false));
        let alive = self.members.iter().all(|member| quiet(member).is_ok());
        let deadline = Instant::now() + DRAIN_MAX;
        // A frame may be handed on once more by the worker that takes it, so nothing is under way only when every worker has
        // looked into its inboxes after the last of them was found empty.
        let empty =
            |control: &Control| control.ports.iter().flat_map(|port| &port.queues).all(|queue| queue.inbox.is_empty());
        while alive && Instant::now() < deadline {
            let before = empty(self);
            let turned = self.members.iter().all(|member| member.ask(|_| ()).is_ok());
            if !turned || (before && empty(self)) {
                break;
            }
        }
        let mut closing = Vec::new();
        for port in std::mem::take(&mut self.ports) {
            for entry in port.queues {
                let (ifindex, queue) = (port.ifindex, entry.queue);
                let member = &self.members[entry.worker as usize];
                if let Ok(Some(taken)) = member.ask(move |core| core.lane(ifindex, queue).map(|at| core.remove(at))) {
                    closing.push(Closing { name: port.name.clone(), ifindex, entry, taken });
                }
            }
        }
        self.dismiss();
        finish(closing)
    }

    fn dismiss(&mut self) {
        for member in self.members.drain(..) {
            let _ = member.ask(|core| core.leaving = true);
            member.join();
        }
    }
}

struct Closing {
    name: String,
    ifindex: u32,
    entry: QueueEntry,
    taken: (Lane, Pool, Hook),
}

/// Closes ports first, because they may hold frames of each other's pools, then the pools.
fn finish(closing: Vec<Closing>) -> Vec<QueueReport> {
    let mut pools = Vec::new();
    for Closing { name, ifindex, entry, taken: (mut lane, pool, _hook) } in closing {
        let report = QueueReport {
            port: name,
            ifindex,
            queue: entry.queue,
            worker: entry.worker,
            counters: Counters::default(),
            stats: lane.port.stats(),
            pool: xway_packet::Counters::default(),
            leak: None,
            error: lane.error.take(),
        };
        pools.push((report, pool, entry.meters));
    }
    let close = |(mut report, mut pool, meters): (QueueReport, Pool, Arc<Meters>)| {
        await_frames(&mut pool);
        report.counters = meters.read();
        report.pool = pool.counters();
        report.leak = pool.close().err();
        report
    };
    pools.into_iter().map(close).collect()
}

/// Frames of a queue that is closed while others run may still be under way: gives them some time.
fn await_frames(pool: &mut Pool) {
    let deadline = Instant::now() + DRAIN_MAX;
    while pool.counters().outstanding > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(200));
    }
}
