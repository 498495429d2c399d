//! What an attacker can cost who makes programs abort, and what watching costs: the same packets, dropped and aborted, with and
//! without somebody who listens or captures.
//!
//! All cases take turns, round after round; medians are reported. After each round every packet must have ended as the case says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xway_abi::Verdict;
use xway_engine::{
    Capture, CaptureConfig, Event, Limits, Linked, Live, LoadedProgram, Report, Stop, VerdictSet, Worker, WorkerConfig,
};
use xway_filter::Classic;
use xway_object::{Object, Program as Image};
use xway_packet::{Pool, PoolConfig};
use xway_port_sim::{SimPort, Sink, Traffic};
use xway_verifier::Config;
use xway_vm::Instance;

use crate::forward::{ForwardError, INGRESS};
use crate::measure::{Stat, pin};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct AbortedOptions {
    /// Packets in a round.
    pub count: u64,
    /// Rounds.
    pub rounds: u32,
    /// Core of the worker.
    pub cpu: u32,
}

/// One case.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// What the program does, and who watches.
    pub name: &'static str,
    /// Nanoseconds for each packet.
    pub ns: Stat,
    /// Packets in all rounds.
    pub packets: u64,
    /// Events that were told, and that were left out because there were too many.
    pub events: (u64, u64),
    /// Packets that were captured, and that found no room.
    pub captured: (u64, u64),
}

/// Who watches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Nobody,
    /// Somebody who writes every event down.
    Listener,
    /// Somebody who captures so many, and fetches them from another thread.
    Reader {
        every: u32,
    },
    /// Somebody who captures and never fetches.
    Idler,
    /// Somebody whose filter never matches.
    Filter,
    /// Somebody who captures other verdicts.
    OtherVerdict,
}

const CASES: [(&str, Verdict, Who); 13] = [
    ("drop, nobody watches", Verdict::Drop, Who::Nobody),
    ("aborted, nobody watches", Verdict::Aborted, Who::Nobody),
    ("drop, a listener", Verdict::Drop, Who::Listener),
    ("aborted, a listener", Verdict::Aborted, Who::Listener),
    ("drop, captured by verdict TX", Verdict::Drop, Who::OtherVerdict),
    ("drop, a filter that never matches", Verdict::Drop, Who::Filter),
    ("drop, 1/1000 captured", Verdict::Drop, Who::Reader { every: 1000 }),
    ("drop, all captured", Verdict::Drop, Who::Reader { every: 1 }),
    ("drop, all captured, nobody fetches", Verdict::Drop, Who::Idler),
    ("aborted, a listener, all captured", Verdict::Aborted, Who::Reader { every: 1 }),
    // What goes on is copied for a capture; what is dropped is handed over.
    ("tx, nobody watches", Verdict::Tx, Who::Nobody),
    ("tx, 1/1000 captured, as copies", Verdict::Tx, Who::Reader { every: 1000 }),
    ("tx, all captured, as copies", Verdict::Tx, Who::Reader { every: 1 }),
];

/// Events that a listener hears in a second, as the engine has it.
const EVENTS_PER_SECOND: u32 = 100;

/// Measures every case.
///
/// # Errors
/// The core cannot be had; no memory; a packet did not end as it should.
pub fn aborted(options: &AbortedOptions) -> Result<Vec<Line>, ForwardError> {
    let traffic =
        Traffic::udp(64, 60, xway_port_sim::Pattern::Scan, 1).map_err(|e| ForwardError::Program(e.to_string()))?;
    let traffic = Arc::new(traffic);
    let returns = |verdict: Verdict| program(&format!("r0 = {}\nexit", verdict as u32));
    let (aborts, drops, sends) = (returns(Verdict::Aborted)?, returns(Verdict::Drop)?, returns(Verdict::Tx)?);
    let filter = filter()?;
    // Threads that read captures run elsewhere: the worker alone is pinned, in a thread of its own.
    let mut all: Vec<(Vec<f64>, Line)> = CASES
        .iter()
        .map(|(name, ..)| {
            let ns = Stat { median: 0.0, low: 0.0, high: 0.0 };
            (Vec::new(), Line { name, ns, packets: 0, events: (0, 0), captured: (0, 0) })
        })
        .collect();
    for _ in 0..options.rounds.max(1) {
        for ((_, verdict, who), (rounds, line)) in CASES.iter().zip(&mut all) {
            let program = match verdict {
                Verdict::Drop => &drops,
                Verdict::Tx => &sends,
                _ => &aborts,
            };
            let round = Round { options, traffic: &traffic, program, verdict: *verdict, who: *who, filter: &filter };
            round.run(rounds, line)?;
        }
    }
    let finished = |(rounds, line): (Vec<f64>, Line)| Line { ns: Stat::of(rounds), ..line };
    Ok(all.into_iter().map(finished).collect())
}

fn program(text: &str) -> Result<Arc<Linked>, ForwardError> {
    let failed = |why: String| ForwardError::Program(why);
    load(xway_isa::assemble(text).map_err(|e| failed(e.to_string()))?)
}

fn load(insns: Vec<xway_isa::Slot>) -> Result<Arc<Linked>, ForwardError> {
    let failed = |why: String| ForwardError::Program(why);
    let image = Image { name: "verdict".into(), section: "xdp".into(), insns, ..Image::default() };
    let object = Object { programs: vec![image], ..Object::default() };
    let instance = Instance::verified(Arc::new(object), 1, Config::default()).map_err(|e| failed(e.to_string()))?;
    Ok(Arc::new(Linked::new(instance.program(0).map_err(|e| failed(e.to_string()))?)))
}

/// An IPv4 header is looked at, and its protocol is none that there is in the traffic.
fn filter() -> Result<Arc<Linked>, ForwardError> {
    let insn = |code, jt, jf, k| Classic { code, jt, jf, k };
    let classic = [
        insn(0x28, 0, 0, 12),
        insn(0x15, 0, 3, 0x0800),
        insn(0x30, 0, 0, 23),
        insn(0x15, 0, 1, 132),
        insn(0x06, 0, 0, u32::MAX),
        insn(0x06, 0, 0, 0),
    ];
    load(xway_filter::translate(&classic).map_err(|e| ForwardError::Program(e.to_string()))?)
}

struct Round<'a> {
    options: &'a AbortedOptions,
    traffic: &'a Arc<Traffic>,
    program: &'a Arc<Linked>,
    verdict: Verdict,
    who: Who,
    filter: &'a Arc<Linked>,
}

impl Round<'_> {
    fn run(&self, rounds: &mut Vec<f64>, line: &mut Line) -> Result<(), ForwardError> {
        let count = self.options.count;
        let mut config = WorkerConfig::new(Stop::new()?);
        config.limits = Limits { count: Some(count), timeout: None };
        config.timed = false;
        config.events_per_second = EVENTS_PER_SECOND;
        let heard = Arc::new(Mutex::new((0u64, 0u64, Vec::new())));
        let listens = self.who == Who::Listener || self.verdict == Verdict::Aborted && self.who != Who::Nobody;
        if listens {
            let heard = heard.clone();
            config.subscriber = Some(Box::new(move |event: &Event<'_>| {
                // As a hook writes it down for whoever asks.
                let text = format!("{} {} {}", event.kind.name(), event.program, event.packet_id);
                if let Ok(mut heard) = heard.lock() {
                    heard.0 += 1;
                    heard.1 += event.suppressed;
                    heard.2.push(text);
                }
            }));
        }
        let capture = self.capture().map(|capture| config.capture(capture));
        let (live, over) = (config.live.clone(), AtomicBool::new(false));
        let (report, captured) = std::thread::scope(|scope| {
            let fetch = || capture.map_or((0, 0), |capture| self.fetch(&capture, &live, &over));
            let watcher = scope.spawn(fetch);
            // Only the worker's thread moves to the core: whoever fetches stays where there is room.
            let worker = scope.spawn(|| self.work(config));
            let ran = worker.join();
            over.store(true, Ordering::Release);
            (ran, watcher.join().unwrap_or_default())
        });
        let report = report.map_err(|_| ForwardError::Program("the worker ended early".into()))??;
        self.check(&report)?;
        rounds.push(report.elapsed.as_nanos() as f64 / count.max(1) as f64);
        line.packets += count;
        if let Ok(heard) = heard.lock() {
            line.events = (line.events.0 + heard.0, line.events.1 + heard.1);
        }
        line.captured = (line.captured.0 + captured.0, line.captured.1 + captured.1);
        Ok(())
    }

    fn work(&self, config: WorkerConfig) -> Result<Report, ForwardError> {
        pin(self.options.cpu)?;
        let (count, sink) = (Some(self.options.count), Sink::default());
        let port = SimPort::generated_queues("in", INGRESS, self.traffic.clone(), count, 1, sink);
        let pool = Pool::new(PoolConfig::new(4096))?;
        Ok(Worker::new(vec![Box::new(port)], self.program.executor(0), pool, config).run())
    }

    fn capture(&self) -> Option<CaptureConfig> {
        let all = CaptureConfig::default();
        match self.who {
            Who::Nobody | Who::Listener => None,
            Who::Reader { every } => Some(CaptureConfig { every, ..all }),
            Who::Idler => Some(all),
            Who::Filter => Some(CaptureConfig { filter: Some(self.filter.clone()), ..all }),
            Who::OtherVerdict => Some(CaptureConfig { verdicts: VerdictSet(1 << Verdict::Tx as u32), ..all }),
        }
    }

    /// Fetches what is captured, while it comes or at the end; how much, and how much found no room.
    fn fetch(&self, capture: &Capture, live: &Live, over: &AtomicBool) -> (u64, u64) {
        const LOOK: Duration = Duration::from_millis(1);
        while self.who == Who::Idler && live.rx() < self.options.count && !over.load(Ordering::Acquire) {
            std::thread::sleep(LOOK);
        }
        let mut seen = 0;
        loop {
            // Read before the queue: what was put there before the end is still fetched.
            let last = over.load(Ordering::Acquire);
            match capture.next(if last { Duration::ZERO } else { LOOK }) {
                Some(packet) => seen += u64::from(!packet.frame.is_empty()),
                None if last => return (seen, capture.lost()),
                None => {}
            }
        }
    }

    /// Every packet has ended as the program said, and every frame came home.
    fn check(&self, report: &Report) -> Result<(), ForwardError> {
        let (expected, got) = (self.options.count, report.counters.verdict(self.verdict));
        if got != expected {
            return Err(ForwardError::Wrong { what: "packets with the verdict", expected, got });
        }
        match &report.leak {
            Some(leak) => Err(ForwardError::Wrong { what: "frames away", expected: 0, got: leak.outstanding.into() }),
            None => Ok(()),
        }
    }
}
