//! What ports of the engine in this process counted, by the names of `docs/counters.md`.

use xway_engine::{Backlog, Counters, Engine, PortStats, ProgramCounters, QueueReport};

use super::User;
use crate::{HookError, ProgramStatistics, QueueStatistics, Statistics};

/// What a port's driver counts, beside the engine.
pub const PORT_NAMES: &[(&str, &str)] = &[
    ("port.dropped", "Packets lost before the port saw them, because it was not read fast enough."),
    ("port.truncated", "Packets received cut: the frame holds less than the wire had."),
    ("port.oversize", "Packets not received, because they are longer than a frame."),
    ("port.no_frame", "Times that the pool had no frame when there was a packet."),
    ("port.other", "Packets not received for another reason, by the driver's name for it."),
];

/// What waits in a queue to be sent; ports whose queues cannot be looked at (`packet:`, `pcap:`, what goes into a TAP) have no such numbers.
pub const QUEUE_NAMES: &[(&str, &str)] =
    &[("tx_queue.frames", "Frames that wait to be sent, now: a gauge."), ("tx_queue.bytes", "Their bytes: a gauge.")];

/// What workers do for others.
pub const WORKER_NAMES: &[(&str, &str)] = &[(
    "cpumap",
    "Packets that came over CPUMAPs, by the worker that they came to; of all ports together, where there were any.",
)];

/// What a queue's pool of packet memory counts.
pub const POOL_NAMES: &[(&str, &str)] = &[
    ("pool.fast", "Frames allocated from the owner's own stack, without an atomic operation."),
    ("pool.ring", "Frames allocated after collecting what other threads gave back."),
    ("pool.slow", "Frames allocated whose memory was never used before."),
    ("pool.recycled", "Frames that the owner gave back."),
    ("pool.returned", "Frames that came home from other threads."),
    ("pool.refused", "Allocations refused: no frame was left, or the limit was reached."),
    ("pool.foreign", "Addresses that a device or peer gave back and that were not lent to it."),
    ("pool.outstanding", "Frames that are away now: a gauge."),
    ("pool.outstanding_max", "The most frames that were ever away at the same time."),
    ("pool.limit", "The most that may be: beyond it allocations are refused. A gauge."),
];

fn port(stats: &PortStats, out: &mut Vec<(String, u64)>) {
    let numbers = [stats.dropped, stats.truncated, stats.oversize, stats.no_frame];
    out.extend(PORT_NAMES.iter().zip(numbers).map(|((name, _), number)| ((*name).to_owned(), number)));
    out.extend(stats.other.iter().map(|(name, number)| (format!("port.other.{name}"), *number)));
}

fn pool(pool: &xway_packet::Counters, limit: u32, out: &mut Vec<(String, u64)>) {
    let numbers = [
        pool.fast,
        pool.ring,
        pool.slow,
        pool.recycled,
        pool.returned,
        pool.refused,
        pool.foreign,
        pool.outstanding.into(),
        pool.outstanding_max.into(),
        limit.into(),
    ];
    out.extend(POOL_NAMES.iter().zip(numbers).map(|((name, _), number)| ((*name).to_owned(), number)));
}

fn backlog(waits: Option<Backlog>, out: &mut Vec<(String, u64)>) {
    let Some(Backlog { frames, bytes }) = waits else { return };
    out.extend(QUEUE_NAMES.iter().zip([frames.into(), bytes]).map(|((name, _), number)| ((*name).to_owned(), number)));
}

/// Adds numbers by name; names come in the order in which they are first seen.
fn add(sum: &mut Vec<(String, u64)>, more: &[(String, u64)]) {
    for (name, number) in more {
        match sum.iter_mut().find(|(known, _)| known == name) {
            Some((_, total)) => *total += number,
            None => sum.push((name.clone(), *number)),
        }
    }
}

/// What the queues of a port counted to their end, together: the engine's counters and the driver's.
pub fn counted(reports: &[QueueReport]) -> Statistics {
    let (mut sum, mut extra) = (Counters::default(), Vec::new());
    for report in reports {
        sum.merge(&report.counters);
        let mut own = Vec::new();
        port(&report.stats, &mut own);
        add(&mut extra, &own);
    }
    let mut counters = sum.flat();
    counters.extend(extra);
    Statistics { counters, ..Statistics::default() }
}

/// What came of frames that went over CPUMAPs, on all workers together.
fn of_cpus(cpus: &[Counters]) -> Statistics {
    let mut sum = Counters::default();
    cpus.iter().for_each(|cpu| sum.merge(cpu));
    Statistics { counters: sum.flat(), ..Statistics::default() }
}

impl User {
    /// What came of frames that went from worker to worker over CPUMAPs, by the names of a queue's counters.
    pub fn cpumap_statistics(&self) -> Statistics {
        of_cpus(&self.engine.as_deref().map(Engine::cpu_counters).unwrap_or_default())
    }

    /// Closes what is open and ends the workers. Gives [`User::cpumap_statistics`] to their end: frames that still waited for a worker are
    /// given up, and counted.
    pub fn end(&mut self) -> Statistics {
        of_cpus(&self.engine.take().map(|engine| engine.end().cpus).unwrap_or_default())
    }

    pub(super) fn statistics_of(&self, name: &str) -> Result<Statistics, HookError> {
        let ifindex = self.port(name)?.ifindex;
        let queues = self.engine.as_deref().map(Engine::queues).unwrap_or_default();
        // A worker that is gone counts no more; what the engine has is still told.
        let ports = self.engine.as_ref().and_then(|engine| engine.port_stats().ok()).unwrap_or_default();
        let (mut sum, mut extra) = (Counters::default(), Vec::new());
        let mut all = Statistics::default();
        let mut programs: Vec<(u32, String, ProgramCounters)> = Vec::new();
        for queue in queues.into_iter().filter(|queue| queue.ifindex == ifindex) {
            sum.merge(&queue.counters);
            let mut counters = queue.counters.flat();
            if let Some(report) = ports.iter().find(|r| (r.ifindex, r.queue) == (ifindex, queue.queue)) {
                let mut own = Vec::new();
                port(&report.stats, &mut own);
                backlog(report.backlog, &mut own);
                pool(&report.pool, report.pool_limit, &mut own);
                add(&mut extra, &own);
                counters.extend(own);
            }
            for (id, name, counted) in queue.programs {
                match programs.iter_mut().find(|(known, ..)| *known == id) {
                    Some((.., total)) => total.merge(&counted),
                    None => programs.push((id, name, counted)),
                }
            }
            all.queues.push(QueueStatistics { queue: queue.queue, worker: queue.worker, counters });
        }
        all.counters = sum.flat();
        all.counters.extend(extra);
        let cpus = self.engine.as_deref().map(Engine::cpu_counters).unwrap_or_default();
        let came = cpus.iter().enumerate().filter(|(_, cpu)| cpu.cpu_in > 0);
        all.counters.extend(came.map(|(worker, cpu)| (format!("cpumap.{worker}"), cpu.cpu_in)));
        let told = |(id, name, c): (u32, String, ProgramCounters)| {
            let ProgramCounters { runs, chained, verdicts, invalid, faults } = c;
            ProgramStatistics { id, name, runs, verdicts, chained, invalid, faults }
        };
        all.programs = programs.into_iter().map(told).collect();
        Ok(all)
    }
}
