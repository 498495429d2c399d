//! What only one thread at a time does: what is open and attached, and telling the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_maps::Map;
use xway_packet::{MemoryReport, Pool};

use super::{EngineError, HookPoint, PortConfig, QueueReport, Stopped};
use crate::chain::ProgramMeters;
use crate::core::{Core, Crew, Way};
use crate::counters::Meters;
use crate::crew::Member;
use crate::hub::Hub;
use crate::inbox::Inbox;
use crate::lane::{Hook, Lane};
use crate::slot::{AttachError, Slot};
use crate::steer::Steering;
use crate::{Capabilities, Counters, Device, Support};

pub(super) struct Control {
    pub(super) crew: Arc<Crew>,
    pub(super) hub: Arc<Hub>,
    pub(super) members: Vec<Member>,
    /// What came over CPUMAPs, by worker.
    pub(super) cpu_meters: Vec<Arc<Meters>>,
    /// The maps that workers know.
    pub(super) maps: Vec<Arc<Map>>,
    /// What was attached, and frames on their way still need.
    pub(super) retired: Vec<Slot>,
    pub(super) ports: Vec<PortEntry>,
}

pub(super) struct PortEntry {
    pub(super) name: String,
    pub(super) ifindex: u32,
    pub(super) device: Box<dyn Device>,
    pub(super) config: PortConfig,
    pub(super) slot: Slot,
    /// Programs of single queues, also of those that are not open now.
    pub(super) queue_slots: Vec<(u32, Slot)>,
    pub(super) queues: Vec<QueueEntry>,
    pub(super) steering: Option<Arc<Steering>>,
}

pub(super) struct QueueEntry {
    pub(super) queue: u32,
    pub(super) worker: u32,
    pub(super) meters: Arc<Meters>,
    pub(super) inbox: Inbox,
    /// The longest frame that it sends.
    pub(super) frame_max: u32,
    /// What its pool lies in.
    pub(super) memory: MemoryReport,
    /// Counters of the programs that run on it, by id.
    pub(super) programs: Vec<(u32, String, Arc<ProgramMeters>)>,
}

impl PortEntry {
    pub(super) fn queue_count(&self) -> u32 {
        self.device.rx_queues().max(self.device.tx_queues())
    }

    /// The programs that run on a queue, and whether they are its own.
    pub(super) fn slot(&self, queue: u32) -> (&Slot, bool) {
        let own = self.queue_slots.iter().find(|(number, slot)| *number == queue && !slot.is_empty());
        own.map_or((&self.slot, false), |(_, slot)| (slot, true))
    }

    /// Its programs and those of its queues.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        std::iter::once(&self.slot).chain(self.queue_slots.iter().map(|(_, slot)| slot))
    }

    /// What the port can do, opened as it is.
    pub(super) fn capabilities(&self) -> Capabilities {
        let can = self.device.capabilities();
        Capabilities { writable: can.writable && !self.config.read_only, ..can }
    }

    /// What runs a queue's programs, with their counters: a program that ran there before goes on counting.
    pub(super) fn executor(
        &self,
        queue: u32,
        worker: u32,
        old: &[(u32, String, Arc<ProgramMeters>)],
    ) -> (Hook, Programs) {
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

pub(super) type Programs = Vec<(u32, String, Arc<ProgramMeters>)>;

/// Frames of a worker's own pool: copies for broadcasts of what came over CPUMAPs.
pub(super) const OWN_FRAMES: u32 = 256;

/// The longest ring between two workers.
pub(super) const RING_MAX: u32 = 1 << 20;

/// How long a change, or a stop, waits for frames that are on their way.
const DRAIN_MAX: Duration = Duration::from_secs(1);

impl Control {
    pub(super) fn new() -> Control {
        let (crew, members, cpu_meters, maps, retired, ports) = Default::default();
        Control { crew, hub: Hub::new(), members, cpu_meters, maps, retired, ports }
    }

    pub(super) fn port(&self, ifindex: u32) -> Result<usize, EngineError> {
        let found = self.ports.iter().position(|port| port.ifindex == ifindex);
        found.ok_or(EngineError::NoPort { ifindex })
    }

    /// Changes a slot, and what runs on the queues that it concerns.
    pub(super) fn change(
        &mut self,
        point: HookPoint,
        change: impl FnOnce(&Slot) -> Result<Slot, AttachError>,
    ) -> Result<(), EngineError> {
        let at = self.port(point.ifindex)?;
        let port = &mut self.ports[at];
        let (name, queues) = (port.name.clone(), port.queue_count());
        let capabilities = port.capabilities();
        let failed = |cause| EngineError::Attach { name: name.clone(), cause };
        let change = |slot: &Slot| {
            let new = change(slot).map_err(failed)?;
            for program in new.entries().iter().map(|entry| &entry.program) {
                let (needs, known_as) = (program.needs(), program.name().to_owned());
                let (missing, lacking) = (needs.missing(&capabilities), needs.lacking(&capabilities));
                if !missing.is_empty() {
                    return Err(EngineError::Needs { name: name.clone(), program: known_as, missing });
                }
                if !lacking.is_empty() {
                    return Err(EngineError::Lacks { name: name.clone(), program: known_as, lacking });
                }
            }
            Ok(new)
        };
        let slot = match point.queue {
            None => &mut port.slot,
            Some(queue) if queue >= queues => return Err(EngineError::NoQueue { name, queue, queues }),
            Some(queue) => {
                let known = port.queue_slots.iter().position(|(number, _)| *number == queue);
                let at = known.unwrap_or_else(|| {
                    port.queue_slots.push((queue, Slot::default()));
                    port.queue_slots.len() - 1
                });
                &mut port.queue_slots[at].1
            }
        };
        // What is new is made before the first worker hears of it, what is old is dropped after the last one has.
        let new = change(slot)?;
        // Programs of both kinds find their maps meanwhile.
        self.retired.push(std::mem::replace(slot, new));
        self.tell_maps()?;
        let mut answers = Vec::new();
        for number in 0..self.ports[at].queues.len() {
            let port = &self.ports[at];
            let (queue, worker) = (port.queues[number].queue, port.queues[number].worker);
            if point.queue.is_some_and(|only| only != queue) || (point.queue.is_none() && port.slot(queue).1) {
                continue;
            }
            let (mut hook, programs) = port.executor(queue, worker, &port.queues[number].programs);
            let ifindex = port.ifindex;
            self.ports[at].queues[number].programs = programs;
            answers.push(self.members[worker as usize].send(move |core| {
                if let Some(lane) = core.lane(ifindex, queue) {
                    std::mem::swap(&mut core.hooks[core.lanes[lane].hook], &mut hook);
                }
                hook
            }));
        }
        answers.into_iter().try_for_each(|answer| answer.wait().map(drop))?;
        let port = &self.ports[at];
        let slot = match point.queue {
            None => &port.slot,
            Some(queue) => port.queue_slots.iter().find(|(own, _)| *own == queue).map_or(&port.slot, |(_, slot)| slot),
        };
        let ids = slot.entries().iter().map(|entry| entry.program.id()).collect();
        let names: Vec<&str> = slot.entries().iter().map(|entry| entry.program.name()).collect();
        self.hub.attached(port.ifindex, point.queue, ids, names.join("+"));
        self.let_go(DRAIN_MAX)
    }

    /// Tells every worker which ports there are and how to reach them. Queues of `without` are reached no more.
    pub(super) fn rewire(&self, without: Option<(u32, u32)>) -> Result<(), EngineError> {
        let mut answers = Vec::new();
        for member in &self.members {
            let ways = self.ports.iter().filter_map(|port| {
                let open = port.queues.iter().filter(|queue| without != Some((port.ifindex, queue.queue)));
                let open: Vec<&QueueEntry> = open.collect();
                // Workers spread over the queues of a port that is not theirs.
                let chosen = open.get(member.number as usize % open.len().max(1))?;
                Some(Way {
                    ifindex: port.ifindex,
                    inbox: chosen.inbox.clone(),
                    takes: port.device.capabilities().redirect_to != Support::None,
                    frame_max: chosen.frame_max,
                    parts: port.device.capabilities().multi_buffer_tx,
                    pass: port.config.pass,
                    queues: open.iter().map(|queue| (queue.queue, queue.inbox.clone())).collect(),
                    steering: port.steering.clone(),
                })
            });
            let ways: Vec<Way> = ways.collect();
            answers.push(member.send(move |core| core.rewire(ways)));
        }
        answers.into_iter().try_for_each(|answer| answer.wait())
    }

    /// Closes a queue: first nobody sends to it, then its worker gives it up.
    pub(super) fn close_queue(&mut self, at: usize, queue: u32) -> Result<QueueReport, EngineError> {
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

    pub(super) fn close_port(&mut self, ifindex: u32) -> Result<Vec<QueueReport>, EngineError> {
        let at = self.port(ifindex)?;
        let open: Vec<u32> = self.ports[at].queues.iter().map(|queue| queue.queue).collect();
        let mut reports = Vec::new();
        for queue in open {
            reports.push(self.close_queue(at, queue)?);
        }
        let port = self.ports.remove(at);
        self.rewire(None)?;
        self.retired.extend(port.queue_slots.into_iter().map(|(_, slot)| slot));
        self.retired.push(port.slot);
        self.let_go(DRAIN_MAX)?;
        Ok(reports)
    }

    pub(super) fn stop(&mut self) -> Stopped {
        let quiet = |member: &Member| member.ask(|core| core.lanes.iter_mut().for_each(|lane| lane.receiving = false));
        let alive = self.members.iter().all(|member| quiet(member).is_ok());
        if alive {
            let _ = self.await_quiet(DRAIN_MAX, |core| core.handed());
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
        let cpus = self.cpu_meters.iter().map(|meters| meters.read()).collect();
        Stopped { queues: finish(closing), cpus }
    }

    pub(super) fn dismiss(&mut self) {
        // Once the last of them has heard this nobody hands on anything, so that what is left can be counted.
        for member in &self.members {
            let _ = member.ask(Core::park_cpus);
        }
        for member in self.members.drain(..) {
            let _ = member.ask(|core| {
                core.give_up_cpus();
                core.leaving = true;
            });
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
    for Closing { name, ifindex, entry, taken: (mut lane, mut pool, _hook) } in closing {
        lane.port.close(&mut pool);
        // What it had not been asked for when it was closed is among them.
        let stats = lane.port.stats();
        if let Some(socket) = lane.bound.take() {
            socket.close(&mut pool);
        }
        let report = QueueReport {
            port: name,
            ifindex,
            queue: entry.queue,
            worker: entry.worker,
            counters: Counters::default(),
            stats,
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
