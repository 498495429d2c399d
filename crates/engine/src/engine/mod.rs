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
use std::time::Duration;

use parking_lot::Mutex;
use xway_packet::{Burst, Pool, PoolConfig};

use crate::capture::{self, Capture, CaptureConfig};
use crate::core::Core;
use crate::counters::Meters;
use crate::crew::Member;
use crate::hub::Listener;
use crate::inbox::Inbox;
use crate::lane::{Lane, Pass, PassTo};
use crate::outbox::Outbox;
use crate::slot::{AttachFlags, Attached, Slot};
use crate::steer::Steering;
use crate::{Counters, Device, LoadedProgram, SocketTarget, Stop};

mod control;
mod retired;
mod types;

use control::{Control, OWN_FRAMES, PortEntry, QueueEntry, RING_MAX};
pub use types::{
    ChainState, EngineConfig, EngineError, HookPoint, PortConfig, PortReport, PortState, QueueReport, QueueState,
    Stopped, Waker, is_called,
};

/// Workers, ports and programs. Any thread may call it; calls wait for each other, packets wait for none of them.
///
/// Dropping it stops it as [`Engine::stop`] does.
pub struct Engine {
    config: EngineConfig,
    control: Mutex<Control>,
}

impl Engine {
    /// Starts the workers. They sleep until they get queues.
    ///
    /// # Errors
    /// The system has no thread or descriptor left, or a CPU does not exist. Workers that were started have ended then.
    pub fn start(config: EngineConfig) -> Result<Engine, EngineError> {
        let mut control = Control::new();
        for number in 0..config.workers.max(1) {
            let stop = Stop::new().map_err(EngineError::System)?;
            let mut core = Core::new(number, stop, control.hub.events(number));
            core.crew = control.crew.clone();
            core.idle_polls = config.idle_polls;
            core.burst = config.burst.clamp(1, Burst::MAX as u32);
            core.timed = config.timed;
            core.looks_up_runs = config.looks_up_runs;
            let own = Pool::new(PoolConfig::new(OWN_FRAMES));
            core.pools.push(own.map_err(|cause| EngineError::Pool { name: format!("worker {number}"), cause })?);
            control.cpu_meters.push(core.cpu_meters.clone());
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

    /// Opens a port: its queues start to receive, unless it is [held](PortConfig::held). Frames pass until a program is attached.
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
            steering: None,
        });
        let opened =
            queues.iter().try_for_each(|&(queue, worker)| self.open_queue(&mut control, ifindex, queue, worker));
        if opened.is_err() {
            let _ = control.close_port(ifindex);
        }
        opened
    }

    /// Lets a port receive that was opened as [held](PortConfig::held). One that receives goes on.
    ///
    /// # Errors
    /// No such port is open.
    pub fn start_port(&self, ifindex: u32) -> Result<(), EngineError> {
        let mut control = self.control.lock();
        let at = control.port(ifindex)?;
        let Control { ports, members, .. } = &mut *control;
        let entry = &mut ports[at];
        if !std::mem::take(&mut entry.config.held) {
            return Ok(());
        }
        let receiving = entry.device.rx_queues();
        entry.queues.iter().filter(|open| open.queue < receiving).try_for_each(|open| {
            let queue = open.queue;
            members[open.worker as usize].ask(move |core| core.start(ifindex, queue))
        })
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
        let shape = entry.config.pool.unwrap_or_else(|| entry.config.profile.pool(entry.device.pool(queue)));
        let shape = entry.config.chunk_size.map_or(shape, |bytes| shape.in_chunks_of(bytes));
        // Its worker touches packets most, where it stays on one CPU; else the hardware that writes them does.
        let cpu = self.config.cpus.get(worker as usize);
        let near = || cpu.map_or_else(|| entry.device.numa_node(), |cpu| xway_numa::of_cpu(*cpu));
        let shape = PoolConfig { node: shape.node.or_else(near), ..shape };
        let mut pool = Pool::new(shape).map_err(|cause| EngineError::Pool { name, cause })?;
        let memory = pool.memory();
        let port = entry.device.open_queue(queue, &mut pool).map_err(EngineError::Port)?;
        let wake = member.mail.wake.clone();
        let ring_len = self.config.ring_len.clamp(2, RING_MAX);
        let (inbox, inlet) = Inbox::new(ring_len, wake).map_err(|_| EngineError::Ring { ring_len })?;
        let meters = Arc::new(Meters::default());
        let (hook, programs) = entry.executor(queue, worker, &[]);
        let tx = entry.config.tx;
        let (receiving, frame_max) = (queue < entry.device.rx_queues() && !entry.config.held, port.frame_max());
        entry.queues.push(QueueEntry { queue, worker, meters: meters.clone(), inbox, frame_max, memory, programs });
        let index = member.number;
        control.members[index as usize].ask(move |core| {
            let lane = Lane {
                port,
                queue,
                pool: 0,
                hook: 0,
                outbox: Outbox::default(),
                tx,
                untold: 0,
                told: None,
                receiving: false,
                // Before it receives it is told.
                pass_to: PassTo::Stack,
                pass: Pass::Stack,
                meters,
                inlet: Some(inlet),
                bound: None,
                steering: None,
                peers: Vec::new(),
                direct: false,
                error: None,
            };
            core.add(lane, pool, hook);
        })?;
        control.rewire(None)?;
        // It receives only now that everybody knows of it and it knows of everybody.
        if !receiving {
            return Ok(());
        }
        control.members[index as usize].ask(move |core| core.start(ifindex, queue))
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

    /// Binds a queue to a socket: the queue sends what the socket has to send and, when `direct`, gives it everything that comes
    /// in, past all programs. `None` unbinds.
    ///
    /// # Errors
    /// No such port, or the queue is not open.
    pub fn bind(
        &self,
        ifindex: u32,
        queue: u32,
        socket: Option<Arc<dyn SocketTarget>>,
        direct: bool,
    ) -> Result<(), EngineError> {
        let control = self.control.lock();
        let port = &control.ports[control.port(ifindex)?];
        let (name, queues) = (port.name.clone(), port.queue_count());
        let open = port.queues.iter().find(|open| open.queue == queue);
        let worker = open.ok_or(EngineError::NoQueue { name, queue, queues })?.worker;
        control.members[worker as usize].ask(move |core| core.bind((ifindex, queue), socket, direct)).map(drop)
    }

    /// What wakes the worker of a queue from its sleep: for sockets that have something to send.
    ///
    /// # Errors
    /// No such port, or the queue is not open.
    pub fn waker(&self, ifindex: u32, queue: u32) -> Result<Waker, EngineError> {
        let control = self.control.lock();
        let port = &control.ports[control.port(ifindex)?];
        let (name, queues) = (port.name.clone(), port.queue_count());
        let open = port.queues.iter().find(|open| open.queue == queue);
        let open = open.ok_or(EngineError::NoQueue { name, queue, queues })?;
        Ok(Waker(open.inbox.wake.clone()))
    }

    /// Steers the packets of a port to its queues from now on; `None` leaves them where they come in.
    ///
    /// # Errors
    /// No such port is open.
    pub fn set_steering(&self, ifindex: u32, steering: Option<Steering>) -> Result<(), EngineError> {
        let mut control = self.control.lock();
        let at = control.port(ifindex)?;
        control.ports[at].steering = steering.map(Arc::new);
        control.rewire(None)
    }

    /// What steers the packets of a port.
    ///
    /// # Errors
    /// No such port is open.
    pub fn steering(&self, ifindex: u32) -> Result<Option<Arc<Steering>>, EngineError> {
        let control = self.control.lock();
        Ok(control.ports[control.port(ifindex)?].steering.clone())
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
            capabilities: port.capabilities(),
            outcomes: port.device.outcomes(),
            queues: port.queue_count(),
            programs: port.slot.entries().to_vec(),
            queue_programs: own(port),
        };
        control.ports.iter().map(state).collect()
    }

    /// The chains that run as one function: of ports, and of queues that have programs of their own. Chains of which a program has no
    /// machine code are none of them.
    pub fn chains(&self) -> Vec<ChainState> {
        let control = self.control.lock();
        let mut found = Vec::new();
        for port in &control.ports {
            let own = port.queue_slots.iter().map(|(queue, slot)| (Some(*queue), slot));
            for (queue, slot) in std::iter::once((None, &port.slot)).chain(own) {
                found.extend(slot.code().map(|code| ChainState {
                    port: port.name.clone(),
                    queue,
                    programs: slot.entries().to_vec(),
                    code: code.clone(),
                }));
            }
        }
        found
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
                memory: queue.memory.clone(),
                engine: port.slot(queue.queue).0.engine(),
            }));
        }
        states
    }

    /// Listens to what happens: exceptions, invalid verdicts, failed redirects, changes of programs. At most `room` events wait
    /// for the listener; what does not fit is counted. Costs the workers nothing while nobody listens.
    pub fn listen(&self, room: usize) -> Listener {
        self.control.lock().hub.listen(room)
    }

    /// Captures packets until the capture is dropped. Workers that nobody captures from look at one length a burst.
    ///
    /// # Errors
    /// A worker is gone.
    pub fn capture(&self, config: CaptureConfig) -> Result<Capture, EngineError> {
        let control = self.control.lock();
        let (capture, taps) = capture::open(config, self.workers());
        let start = |(member, tap): (&Member, _)| member.send(move |core: &mut Core| core.taps.push(tap));
        let answers: Vec<_> = control.members.iter().zip(taps).map(start).collect();
        answers.into_iter().try_for_each(|answer| answer.wait())?;
        Ok(capture)
    }

    /// What came to each worker over CPUMAPs, by their numbers.
    pub fn cpu_counters(&self) -> Vec<Counters> {
        self.control.lock().cpu_meters.iter().map(|meters| meters.read()).collect()
    }

    /// What the ports and pools themselves counted, by interface index and queue. Asks the workers, between two bursts.
    ///
    /// # Errors
    /// A worker is gone.
    pub fn port_stats(&self) -> Result<Vec<PortReport>, EngineError> {
        let mut control = self.control.lock();
        control.let_go(Duration::ZERO)?;
        let ask = |core: &mut Core| -> Vec<PortReport> {
            let Core { lanes, pools, .. } = core;
            let report = |lane: &mut Lane| PortReport {
                ifindex: lane.port.ifindex(),
                queue: lane.queue,
                stats: lane.port.stats(),
                backlog: lane.port.backlog(lane.queue, &mut pools[lane.pool]),
                pool: pools[lane.pool].counters(),
                pool_limit: pools[lane.pool].limit(),
                error: lane.error.as_ref().map(|error| error.cause.to_string()),
            };
            lanes.iter_mut().map(report).collect()
        };
        let answers: Vec<_> = control.members.iter().map(|member| member.send(ask)).collect();
        let mut all = Vec::new();
        for answer in answers {
            all.extend(answer.wait()?);
        }
        all.sort_by_key(|report| (report.ifindex, report.queue));
        Ok(all)
    }

    /// Stops: nothing more is received, what is under way is carried out, every queue is closed. Returns what became of each.
    ///
    /// Frames that are still on their way between workers after a second are given up, and counted (`cpu_lost`).
    pub fn stop(self) -> Stopped {
        self.end()
    }

    /// [`Engine::stop`] where others have the engine too: for them it has no workers and no ports any more.
    pub fn end(&self) -> Stopped {
        self.control.lock().stop()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.control.lock().stop();
    }
}
