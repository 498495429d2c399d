//! Packets through the whole engine, from port to port, beside the kernel moving frames by itself.
//!
//! Our side is what `xway run` does: a port in memory, a pool, the burst loop, verdicts, counters, a port to send to. The
//! kernel's side is `BPF_PROG_TEST_RUN` with live frames: the kernel makes frames, runs the same program over them in batches
//! of 64 and carries the verdicts out, on one core as we do. What it transmits goes into a veth pair whose other end counts and
//! drops in native mode on the same core; that is the least the kernel can transmit into, and its cost is in the figure.
//!
//! Redirecting to another CPU takes two cores on both sides: the figure is time over packets that arrived there, and packets that
//! found the queue full are counted as lost.
//!
//! Both sides take turns, round after round; medians are reported. After each round what arrived is counted, on both sides;
//! before anything is timed, our side's packets are compared byte for byte with what the checked interpreter makes of each.

mod cpu;
pub(crate) mod kernel;
pub mod levels;
mod ours;
mod stages;

use std::sync::Arc;
use std::time::Instant;

pub use kernel::Unmeasured;
pub use ours::ForwardError;
pub use stages::Stage;
use xway_port_sim::Traffic;

use crate::measure::{Stat, pin};

/// Where packets come in, in both worlds.
pub const INGRESS: u32 = 10;
/// Where they are redirected to.
pub const TARGET: u32 = 12;

/// What becomes of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// DROP.
    Drop,
    /// PASS: to the stack side; in the kernel into its network stack.
    Pass,
    /// TX.
    Tx,
    /// REDIRECT by interface index.
    Redirect,
    /// REDIRECT through a DEVMAP.
    RedirectMap,
    /// REDIRECT through a CPUMAP, to worker (and CPU) 0.
    RedirectCpu,
    /// REDIRECT to every port of a DEVMAP but the one that the packet came in on.
    RedirectMulti,
}

impl Action {
    /// As `xdp-bench` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Drop => "drop",
            Action::Pass => "pass",
            Action::Tx => "tx",
            Action::Redirect => "redirect",
            Action::RedirectMap => "redirect-map",
            Action::RedirectCpu => "redirect-cpu",
            Action::RedirectMulti => "redirect-multi",
        }
    }

    /// What its programs return.
    pub(crate) const fn verdict(self) -> xway_abi::Verdict {
        match self {
            Action::Drop => xway_abi::Verdict::Drop,
            Action::Pass => xway_abi::Verdict::Pass,
            Action::Tx => xway_abi::Verdict::Tx,
            _ => xway_abi::Verdict::Redirect,
        }
    }
}

/// What is done to a packet before that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Nothing.
    NoTouch,
    /// Its EtherType is read.
    ReadData,
    /// Its IP header is looked at.
    ParseIp,
    /// Its addresses change places.
    SwapMacs,
}

impl Operation {
    /// As `xdp-bench` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::NoTouch => "no-touch",
            Operation::ReadData => "read-data",
            Operation::ParseIp => "parse-ip",
            Operation::SwapMacs => "swap-macs",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct ForwardOptions {
    /// What becomes of packets.
    pub action: Action,
    /// What is done before.
    pub operation: Operation,
    /// Packets are read and written through `bpf_xdp_load_bytes` and `_store_bytes`, not in place.
    pub load_bytes: bool,
    /// Packets in a round.
    pub count: u64,
    /// Rounds.
    pub rounds: u32,
    /// Core.
    pub cpu: u32,
    /// Packets that our port receives at a time, at most.
    pub burst: u32,
    /// Whether to measure the kernel.
    pub kernel: bool,
    /// Whether to measure the stages of our side.
    pub breakdown: bool,
    /// Whether to measure our side also without what it does that others do not: [`Action::RedirectCpu`] only.
    pub techniques: bool,
    /// A filter looks at each packet: where it comes in ([`Action::Drop`]), or behind the CPUMAP ([`Action::RedirectCpu`]).
    pub filter: bool,
}

/// Addresses that the filter knows: none of them sends anything.
const DENIED: u32 = 50_000;

impl ForwardOptions {
    /// Nothing but what happens to packets; a round has none of them yet.
    pub const fn new(action: Action, operation: Operation) -> ForwardOptions {
        ForwardOptions {
            action,
            operation,
            load_bytes: false,
            count: 0,
            rounds: 1,
            cpu: 0,
            burst: xway_packet::Burst::MAX as u32,
            kernel: false,
            breakdown: false,
            techniques: false,
            filter: false,
        }
    }

    /// Function in `bpf/forward` that runs where packets come in.
    fn program(&self) -> String {
        if self.filter && self.action == Action::Drop {
            return "drop_filter".to_owned();
        }
        let name = |text: &str| text.replace('-', "_");
        let load = if self.load_bytes && self.operation != Operation::NoTouch { "_load_bytes" } else { "" };
        format!("{}_{}{load}", name(self.action.name()), name(self.operation.name()))
    }

    /// Function that runs behind the CPUMAP.
    const fn far_program(&self) -> &'static str {
        if self.filter { "far_filter" } else { "far_cpu" }
    }

    /// Keys of the filter's table: addresses of a network that is for documentation only, and on.
    fn denied(&self) -> impl Iterator<Item = [u8; 4]> {
        let count = if self.filter { DENIED } else { 0 };
        (0..count).map(|n| (u32::from_be_bytes([203, 0, 113, 0]) + n).to_be_bytes())
    }
}

/// One side's figures.
#[derive(Clone, PartialEq, Debug)]
pub struct SideFigures {
    /// Nanoseconds for each packet.
    pub ns: Stat,
    /// Packets that the program ran over, in all rounds.
    pub packets: u64,
    /// Packets that arrived where they were sent, in all rounds; for DROP those that were dropped by it.
    pub arrived: u64,
    /// Lost on the way, by cause.
    pub lost: Vec<(String, u64)>,
}

impl SideFigures {
    /// Packets a second.
    pub fn pps(&self) -> f64 {
        if self.ns.median > 0.0 { 1e9 / self.ns.median } else { 0.0 }
    }
}

/// What was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct ForwardReport {
    /// Function in `bpf/forward`.
    pub program: String,
    /// How our side runs it: `jit`, or `interp` with the reason.
    pub engine: String,
    /// Packets compared byte for byte before the first round.
    pub compared: u64,
    /// Our side.
    pub ours: SideFigures,
    /// The kernel's, or why not.
    pub kernel: Result<SideFigures, String>,
    /// The kernel's nanoseconds for each packet that it sends, without what the other end of the pair does with it; `None` where it sends
    /// none. It throws them away at the device, so that a little of the sending is not in it either.
    pub kernel_sender: Option<Stat>,
    /// Our nanoseconds for each packet without one technique, in turns with the others: what is left out, and the figure.
    pub techniques: Vec<(&'static str, Stat)>,
    /// Where our side's time goes, when that was asked for.
    pub stages: Vec<Stage>,
    /// What the pool did, over all rounds.
    pub pool: xway_packet::Counters,
}

impl ForwardReport {
    /// How many times as many packets a second as the kernel.
    pub fn ratio(&self) -> Option<f64> {
        let kernel = self.kernel.as_ref().ok()?;
        (self.ours.ns.median > 0.0).then(|| kernel.ns.median / self.ours.ns.median)
    }

    /// The same, beside the kernel's sender alone.
    pub fn sender_ratio(&self) -> Option<f64> {
        let sender = self.kernel_sender?;
        (self.ours.ns.median > 0.0).then(|| sender.median / self.ours.ns.median)
    }
}

/// The object with the programs.
pub fn object() -> Option<&'static [u8]> {
    crate::suite::object("forward")
}

/// The built-in program for this, verified and compiled.
///
/// # Errors
/// It was not built, or cannot be brought to life.
pub(crate) fn linked(
    action: Action,
    operation: Operation,
    traffic: &Traffic,
) -> Result<Arc<xway_engine::Linked>, ForwardError> {
    Ok(ours::Ours::new(&ForwardOptions::new(action, operation), traffic)?.linked)
}

/// Measures.
///
/// # Errors
/// The core cannot be had, the program cannot be brought to life, or what arrived is not what was sent.
pub fn forward(options: &ForwardOptions, traffic: &Traffic) -> Result<ForwardReport, ForwardError> {
    // A thread of its own: the kernel's side enters a network namespace.
    std::thread::scope(|scope| match scope.spawn(|| measured(options, traffic)).join() {
        Ok(report) => report,
        Err(_) => Err(ForwardError::Program("the measuring thread ended early".into())),
    })
}

fn measured(options: &ForwardOptions, traffic: &Traffic) -> Result<ForwardReport, ForwardError> {
    let ours = ours::Ours::new(options, traffic)?;
    let kernel = match options.kernel {
        true => kernel::Kernel::new(options, traffic.packet(0), &ours.program),
        false => Err(Unmeasured("not asked for".into())),
    };
    pin(options.cpu)?;
    let compared = ours.compare()?;
    if let Ok(kernel) = &kernel {
        kernel.compare(&ours.expected()?)?;
    }
    let mut ours_side = Rounds::default();
    let mut kernel_side = kernel.map(|kernel| (kernel, Rounds::default()));
    let mut pool = xway_packet::Counters::default();
    let mut each_looked_up = Rounds::default();
    for _ in 0..options.rounds.max(1) {
        let (round, counters) = ours.round(options.count, options.cpu)?;
        ours_side.add(round);
        pool = sum(pool, counters);
        if options.techniques && options.action == Action::RedirectCpu {
            each_looked_up.add(ours.round_to_cpu(options.count, options.cpu, false)?.0);
        }
        if let Ok((kernel, rounds)) = &mut kernel_side {
            match kernel.round(options.count) {
                Ok(round) => {
                    believable(&round, ours.copies())?;
                    rounds.add(round);
                }
                Err(why) => kernel_side = Err(why),
            }
        }
    }
    let kernel_sender = match &mut kernel_side {
        Ok((kernel, _)) => kernel.senders(options.count, options.rounds).ok().flatten().map(Stat::of),
        Err(_) => None,
    };
    let techniques = Some(each_looked_up).filter(|rounds| !rounds.ns.is_empty());
    let techniques = techniques.map(|rounds| ("each packet's goal looked up", Stat::of(rounds.ns)));
    let stages = if options.breakdown { stages::stages(&ours, ours_side.median())? } else { Vec::new() };
    Ok(ForwardReport {
        program: ours.program.clone(),
        engine: ours.engine(),
        compared,
        ours: ours_side.figures(),
        kernel: kernel_side.map(|(_, rounds)| rounds.figures()).map_err(|why| why.0),
        kernel_sender,
        techniques: techniques.into_iter().collect(),
        stages,
        pool,
    })
}

/// One round of one side.
struct Round {
    ns: f64,
    packets: u64,
    arrived: u64,
    lost: Vec<(String, u64)>,
}

/// Whether a round of the kernel's is what it is taken for: it may lose packets, which are counted, but not all of them, and none comes
/// that was not sent.
fn believable(round: &Round, copies: u64) -> Result<(), ForwardError> {
    let expected = round.packets * copies;
    match round.arrived {
        0 if expected > 0 => Err(ForwardError::Wrong { what: "the kernel's packets that arrived", expected, got: 0 }),
        got if got > expected => Err(ForwardError::Wrong { what: "the kernel's packets that arrived", expected, got }),
        _ => Ok(()),
    }
}

#[derive(Default)]
struct Rounds {
    ns: Vec<f64>,
    packets: u64,
    arrived: u64,
    lost: Vec<(String, u64)>,
}

impl Rounds {
    fn add(&mut self, round: Round) {
        self.ns.push(round.ns);
        self.packets += round.packets;
        self.arrived += round.arrived;
        for (cause, count) in round.lost {
            match self.lost.iter_mut().find(|(known, _)| *known == cause) {
                Some((_, sum)) => *sum += count,
                None => self.lost.push((cause, count)),
            }
        }
    }

    fn median(&self) -> f64 {
        Stat::of(self.ns.clone()).median
    }

    fn figures(self) -> SideFigures {
        SideFigures { ns: Stat::of(self.ns), packets: self.packets, arrived: self.arrived, lost: self.lost }
    }
}

fn sum(a: xway_packet::Counters, b: xway_packet::Counters) -> xway_packet::Counters {
    xway_packet::Counters {
        fast: a.fast + b.fast,
        ring: a.ring + b.ring,
        slow: a.slow + b.slow,
        recycled: a.recycled + b.recycled,
        returned: a.returned + b.returned,
        outstanding: b.outstanding,
        outstanding_max: a.outstanding_max.max(b.outstanding_max),
        refused: a.refused + b.refused,
        foreign: a.foreign + b.foreign,
    }
}

/// Nanoseconds for each of `count` packets that `what` handles.
fn timed<T>(count: u64, what: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = what();
    (start.elapsed().as_nanos() as f64 / count.max(1) as f64, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_nobody_sent_and_rounds_without_any_are_noticed() {
        let round = |arrived| Round { ns: 1.0, packets: 100, arrived, lost: Vec::new() };
        assert!(believable(&round(100), 1).is_ok() && believable(&round(1), 1).is_ok());
        assert!(believable(&round(200), 2).is_ok() && believable(&round(201), 2).is_err());
        assert!(believable(&round(101), 1).is_err() && believable(&round(0), 1).is_err());
    }
}
