//! `afxdp:` on a veth pair beside what the kernel offers for the same: its native hook, and AF_XDP used directly.
//!
//! ```text
//!   sender's core                                      worker's core
//!   live frames ──> far end ══ cable ══ near end ──────> who is measured
//!                     │                     ^                  │ drop: counted where it is done
//!   counts and drops <┘ native program      └── sent back <────┘ forward: counted when it is back at the far end
//! ```
//!
//! Three do the same work in turns, round after round, on one queue:
//!
//! | side | is |
//! |---|---|
//! | the native hook | a program at the near end drops, or exchanges the addresses and sends back, in the driver (`xdp-bench drop`, `tx`) |
//! | AF_XDP, directly | a loop over a socket's four rings that does nothing else (the kernel's `xdpsock`), in this file's `direct` |
//! | `afxdp:` | the engine: port, pool, compiled program, verdicts, counters |
//!
//! The sender never waits: it is a test-run with live frames that leave by the far end, which makes more than anybody here takes. So a
//! figure is what a side takes, not what it is given. What arrives is counted by a program at the far end.

mod direct;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use xway_abi::{Errno, MapSpec, MapType};
use xway_engine::{LoadedProgram, Port, Stop, Worker, WorkerConfig};
use xway_kernel::{KernelMap, KernelObject, KernelProg, ProgSpec, XdpLink, XdpMode};
use xway_object::Object;
use xway_packet::Pool;
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice};
use xway_port_sim::{Pattern, Traffic};

use crate::forward::kernel::Space;
use crate::forward::{self, Action, ForwardError, INGRESS, Operation, Unmeasured};
use crate::measure::{Stat, pin};

/// What is done with packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireTask {
    /// They are dropped where they come in.
    Drop,
    /// They go back with their addresses exchanged.
    Forward,
}

impl WireTask {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            WireTask::Drop => "drop",
            WireTask::Forward => "forward",
        }
    }
}

/// Who does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireSide {
    /// A program in the driver's hook.
    Native,
    /// A loop over the rings of an AF_XDP socket.
    Direct,
    /// The engine with `afxdp:`.
    Ours,
}

impl WireSide {
    /// All of them, in the order of their turns.
    pub const ALL: [WireSide; 3] = [WireSide::Native, WireSide::Direct, WireSide::Ours];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            WireSide::Native => "the kernel, native XDP",
            WireSide::Direct => "AF_XDP directly, copy mode",
            WireSide::Ours => "xway, afxdp:, copy mode",
        }
    }
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct WireOptions {
    /// What is done with packets.
    pub task: WireTask,
    /// Bytes of a packet.
    pub size: u32,
    /// Milliseconds of a round of one side.
    pub time: u32,
    /// Rounds.
    pub rounds: u32,
    /// Cores of the sender, where the driver's half of receiving runs too, and of the worker.
    pub cpus: (u32, u32),
}

/// Figures of one side.
#[derive(Clone, PartialEq, Debug)]
pub struct WireRow {
    /// Who.
    pub side: WireSide,
    /// Nanoseconds between two packets that were dropped, or are back.
    pub ns: Stat,
    /// Packets that were made, in all rounds.
    pub made: u64,
    /// Packets that were dropped, or are back.
    pub arrived: u64,
    /// Packets that the side says that it sent and that are not back; `None` where it does not count them.
    pub lost: Option<u64>,
}

impl WireRow {
    /// Packets a second.
    pub fn pps(&self) -> f64 {
        if self.ns.median > 0.0 { 1e9 / self.ns.median } else { 0.0 }
    }
}

/// Measures all sides.
///
/// # Errors
/// A core cannot be had, the kernel or the process lacks something, or what arrived is more than what was sent.
pub fn wire(options: &WireOptions) -> Result<Vec<WireRow>, ForwardError> {
    // A thread of its own: it enters a network namespace.
    std::thread::scope(|scope| match scope.spawn(|| measured(options)).join() {
        Ok(rows) => rows,
        Err(_) => Err(ForwardError::Program("the measuring thread ended early".into())),
    })
}

fn failed(why: impl std::fmt::Display) -> ForwardError {
    ForwardError::Program(why.to_string())
}

fn measured(options: &WireOptions) -> Result<Vec<WireRow>, ForwardError> {
    let traffic = Traffic::udp(1, options.size as usize, Pattern::Scan, 1).map_err(failed)?;
    let mut stand = Stand::new(options, &traffic).map_err(failed)?;
    pin(options.cpus.0)?;
    if options.task == WireTask::Forward {
        stand.compare()?;
    }
    let mut rounds = WireSide::ALL.map(|side| (side, Vec::new(), Taken::default()));
    for _ in 0..options.rounds.max(1) {
        for (side, ns, sum) in &mut rounds {
            let taken = stand.round(*side)?;
            taken.check()?;
            ns.push(taken.time.as_nanos() as f64 / taken.arrived.max(1) as f64);
            sum.made += taken.made;
            sum.arrived += taken.arrived;
            sum.sent = taken.sent.map(|sent| sum.sent.unwrap_or(0) + sent);
        }
    }
    let row = |(side, ns, sum): (WireSide, Vec<f64>, Taken)| WireRow {
        side,
        ns: Stat::of(ns),
        made: sum.made,
        arrived: sum.arrived,
        lost: sum.sent.map(|sent| sent - sum.arrived),
    };
    Ok(rounds.map(row).into())
}

/// What one round came to.
#[derive(Default)]
struct Taken {
    time: Duration,
    made: u64,
    arrived: u64,
    sent: Option<u64>,
}

impl Taken {
    /// Some packets arrived, and none that was not sent.
    fn check(&self) -> Result<(), ForwardError> {
        let expected = self.sent.unwrap_or(self.made);
        match self.arrived > 0 && self.arrived <= self.made.min(expected) {
            true => Ok(()),
            false => Err(ForwardError::Wrong { what: "packets that arrived", expected, got: self.arrived }),
        }
    }
}

/// The other end of the cable.
const FAR: u32 = INGRESS + 1;

/// Packets that the sender makes between two looks at the clock, and at a time.
const SLICE: u32 = 16_384;
const BATCH: u32 = 64;

/// How long each side sends before the first round, to be looked at.
const COMPARED: Duration = Duration::from_millis(20);

/// Some packets came back, and each as it should.
fn as_they_should_be(side: WireSide, right: u64, wrong: u64) -> Result<(), ForwardError> {
    match (right, wrong) {
        (1.., 0) => Ok(()),
        _ => Err(ForwardError::Program(format!(
            "{}: {wrong} of {} packets that came back are not what was sent with its addresses exchanged",
            side.name(),
            right + wrong
        ))),
    }
}

/// A program that sends packets out with the addresses of this one.
fn writes(packet: &[u8]) -> Result<KernelProg, ForwardError> {
    let words = packet.as_chunks::<4>().0.iter().map(|word| i32::from_ne_bytes(*word));
    let stores = [0, 4, 8].into_iter().zip(words).map(|(at, word)| format!("*(u32 *)(r2 +{at}) = {word}\n"));
    let text = format!(
        "r2 = *(u32 *)(r1 +0)
         r3 = *(u32 *)(r1 +4)
         r4 = r2
         r4 += 14
         if r4 > r3 goto out
         {}
     out:
         r0 = 3
         exit",
        stores.collect::<String>()
    );
    let insns = xway_isa::assemble(&text).map_err(failed)?;
    KernelProg::load(&ProgSpec::xdp("xway_writes", &insns)).map_err(failed)
}

/// A program that counts IPv4 packets: at 0 those that begin as this packet does with its addresses exchanged, at 1 others.
fn looks_at(packet: &[u8]) -> Result<(KernelProg, KernelMap), ForwardError> {
    let swapped = [&packet[6..12], &packet[..6]].concat();
    let words = swapped.as_chunks::<4>().0.iter().map(|word| i32::from_ne_bytes(*word));
    let compares = [0, 4, 8]
        .into_iter()
        .zip(words)
        .map(|(at, word)| format!("r5 = *(u32 *)(r2 +{at})\nif w5 != {word} goto count\n"));
    let text = format!(
        "r2 = *(u32 *)(r1 +0)
         r3 = *(u32 *)(r1 +4)
         r4 = r2
         r4 += 14
         if r4 > r3 goto out
         r5 = *(u16 *)(r2 +12)
         if w5 != {ipv4} goto out
         *(u32 *)(r10 -4) = 1
         {compares}*(u32 *)(r10 -4) = 0
     count:
         r2 = r10
         r2 += -4
         r1 = map[idx:0]
         call bpf_map_lookup_elem
         if r0 == 0 goto out
         r1 = 1
         lock *(u64 *)(r0 +0) += r1
     out:
         r0 = 1
         exit",
        ipv4 = u16::from_ne_bytes([0x08, 0x00]),
        compares = compares.collect::<String>(),
    );
    let insns = xway_isa::assemble_with(&text, &xway_object::HelperNames).map_err(failed)?;
    let seen = KernelMap::create("xway_seen", &MapSpec::new(MapType::Array, 4, 8, 2)).map_err(failed)?;
    let fds = [seen.as_fd().as_raw_fd()];
    let program = KernelProg::load(&ProgSpec { fd_array: &fds, ..ProgSpec::xdp("xway_looks", &insns) });
    Ok((program.map_err(failed)?, seen))
}

/// The cable, and the programs.
struct Stand<'a> {
    options: &'a WireOptions,
    traffic: &'a Traffic,
    object: Object,
    loaded: KernelObject,
    /// How long a round is.
    time: Duration,
    /// Sends packets whose addresses it writes, instead of frames as they came back.
    fresh: Option<KernelProg>,
    /// Counts what is back.
    far: Option<XdpLink>,
    _space: Space,
}

impl Stand<'_> {
    fn new<'a>(options: &'a WireOptions, traffic: &'a Traffic) -> Result<Stand<'a>, Unmeasured> {
        let space = Space::enter()?;
        space.veth(INGRESS)?;
        let bytes = forward::object().ok_or_else(|| Unmeasured("no built-in programs".into()))?;
        let object = Object::parse(bytes, &Default::default()).map_err(|e| Unmeasured(e.to_string()))?;
        let wanted = ["far_end", "tx_no_touch", "tx_swap_macs", "redirect_xsk"];
        let loaded = KernelObject::load_some(&object, |program| wanted.contains(&program.name.as_str()));
        let loaded = loaded.map_err(|e| Unmeasured::at("loading")(&e))?;
        let time = Duration::from_millis(options.time.into());
        let mut stand = Stand { options, traffic, object, loaded, time, fresh: None, far: None, _space: space };
        if options.task == WireTask::Forward {
            stand.count_at_the_far_end()?;
        }
        Ok(stand)
    }

    fn count_at_the_far_end(&mut self) -> Result<(), Unmeasured> {
        let link = XdpLink::attach(self.program("far_end")?, FAR, XdpMode::Native);
        self.far = Some(link.map_err(|e| Unmeasured::at("the far end")(&e))?);
        Ok(())
    }

    /// Before anything is timed: what each side sends back has its addresses exchanged. A program that looks at them is at the far end
    /// meanwhile.
    fn compare(&mut self) -> Result<(), ForwardError> {
        let whole = std::mem::replace(&mut self.time, COMPARED);
        // The kernel uses its frames again as they are: what was exchanged in place once would be exchanged back.
        self.fresh = Some(writes(self.traffic.packet(0))?);
        for side in WireSide::ALL {
            let (program, seen) = looks_at(self.traffic.packet(0))?;
            self.far = None;
            let link = XdpLink::attach(&program, FAR, XdpMode::Native).map_err(failed)?;
            self.round(side)?;
            drop(link);
            let count = |key: u32| {
                let bytes = seen.get(&key.to_ne_bytes()).map_err(failed)?;
                Ok::<_, ForwardError>(bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
            };
            as_they_should_be(side, count(0)?, count(1)?)?;
        }
        (self.time, self.fresh) = (whole, None);
        self.count_at_the_far_end().map_err(failed)
    }

    fn program(&self, name: &str) -> Result<&KernelProg, Unmeasured> {
        self.loaded.program(&self.object, name).ok_or_else(|| Unmeasured(format!("the kernel refused {name}")))
    }

    fn map(&self, name: &str) -> Result<&KernelMap, Unmeasured> {
        self.loaded.map(&self.object, name).ok_or_else(|| Unmeasured(format!("no map {name}")))
    }

    /// What the kernel's programs have counted so far.
    fn counted(&self) -> Result<u64, ForwardError> {
        let bytes = self.map("arrived").map_err(failed)?.get(&[0; 4]).map_err(failed)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).sum())
    }

    /// One turn of one side.
    fn round(&self, side: WireSide) -> Result<Taken, ForwardError> {
        let before = self.counted()?;
        let (time, made, worked) = match side {
            WireSide::Native => {
                let name = if self.options.task == WireTask::Drop { "far_end" } else { "tx_swap_macs" };
                let program = self.program(name).map_err(failed)?;
                let _link = XdpLink::attach(program, INGRESS, XdpMode::Native).map_err(failed)?;
                let (time, made) = self.send()?;
                self.settle()?;
                (time, made, None)
            }
            WireSide::Direct => self.beside(|stop, ready| self.direct(stop, ready))?,
            WireSide::Ours => self.beside(|stop, ready| self.ours(stop, ready))?,
        };
        let counted = self.counted()? - before;
        let (arrived, sent) = match (self.options.task, worked) {
            (WireTask::Drop, Some(dropped)) => (dropped, None),
            (_, sent) => (counted, sent),
        };
        Ok(Taken { time, made, arrived, sent })
    }

    /// Makes packets for the time of a round; how long it really was, and how many.
    fn send(&self) -> Result<(Duration, u64), ForwardError> {
        let packet = self.traffic.packet(0);
        let sender = match &self.fresh {
            Some(sender) => sender,
            None => self.program("tx_no_touch").map_err(failed)?,
        };
        let (start, mut made) = (Instant::now(), 0);
        while start.elapsed() < self.time {
            let ran = sender.live_run(packet, SLICE, BATCH, FAR);
            match ran {
                // A signal, or the process was stopped and went on: some of the slice was made, and no more than all of it.
                Ok(()) | Err(Errno::EINTR) => made += u64::from(SLICE),
                Err(errno) => {
                    return Err(failed(format!("test run with live frames: {errno} ({})", errno.text())));
                }
            }
        }
        Ok((start.elapsed(), made))
    }

    /// Sends while `worker` works on the other core, until it is stopped. It says when it is ready and returns what it dropped or sent.
    fn beside(
        &self,
        worker: impl FnOnce(&AtomicBool, &dyn Fn(Stop)) -> Result<u64, ForwardError> + Send,
    ) -> Result<(Duration, u64, Option<u64>), ForwardError> {
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            let stopped = &stopped;
            let cpu = self.options.cpus.1;
            // In the namespace of this thread, as every thread that it starts.
            let worker = scope.spawn(move || {
                pin(cpu)?;
                worker(stopped, &|stop| drop(tell.send(stop)))
            });
            let sent = match told.recv() {
                // It has its own words for it.
                Err(_) => None,
                Ok(stop) => {
                    let sent = self.send().and_then(|sent| self.settle().map(|()| sent));
                    stopped.store(true, Ordering::Relaxed);
                    stop.ask();
                    Some(sent)
                }
            };
            let worked = worker.join().map_err(|_| failed("the worker ended early"))??;
            let (time, made) = sent.ok_or_else(|| failed("the worker was never ready"))??;
            Ok((time, made, Some(worked)))
        })
    }

    /// Waits until nothing more arrives.
    fn settle(&self) -> Result<(), ForwardError> {
        let mut last = self.counted()?;
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(5));
            let now = self.counted()?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(())
    }

    fn direct(&self, stopped: &AtomicBool, ready: &dyn Fn(Stop)) -> Result<u64, ForwardError> {
        let mut socket = direct::Direct::open(INGRESS, 0).map_err(failed)?;
        let xsks = self.map("xsks").map_err(failed)?;
        xsks.update_fd(&[0; 4], socket.fd(), 0).map_err(failed)?;
        let program = self.program("redirect_xsk").map_err(failed)?;
        let _link = XdpLink::attach(program, INGRESS, XdpMode::Native).map_err(failed)?;
        ready(Stop::new()?);
        let (forward, mut done) = (self.options.task == WireTask::Forward, 0);
        while !stopped.load(Ordering::Relaxed) {
            done += if forward { socket.forward() } else { socket.drop_all() };
        }
        Ok(done)
    }

    fn ours(&self, _: &AtomicBool, ready: &dyn Fn(Stop)) -> Result<u64, ForwardError> {
        let (action, operation) = match self.options.task {
            WireTask::Drop => (Action::Drop, Operation::NoTouch),
            WireTask::Forward => (Action::Tx, Operation::SwapMacs),
        };
        let linked = forward::linked(action, operation, self.traffic)?;
        if let Some(reason) = &linked.choice().reason {
            return Err(failed(reason));
        }
        let mut device = AfXdpDevice::open(&AfXdpConfig::new(format!("xwb{INGRESS}"))).map_err(failed)?;
        let mut pool = Pool::new(device.pool_for(1))?;
        let port: Box<dyn Port> = Box::new(device.open_port(0, &mut pool).map_err(failed)?);
        drop(device);
        let stop = Stop::new()?;
        let mut config = WorkerConfig::new(stop.clone());
        (config.timed, config.idle_polls) = (false, u32::MAX);
        ready(stop);
        let report = Worker::new(vec![port], linked.executor(0), pool, config).run();
        if let Some(leak) = report.leak {
            return Err(ForwardError::Wrong { what: "frames away", expected: 0, got: leak.outstanding.into() });
        }
        if let Err((rx, ended)) = report.counters.balance() {
            return Err(ForwardError::Wrong { what: "frames that ended", expected: rx, got: ended });
        }
        let counters = &report.counters;
        Ok(match self.options.task {
            WireTask::Drop => counters.verdicts[xway_abi::Verdict::Drop as usize],
            WireTask::Forward => counters.tx,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_packets_and_wrong_numbers_are_noticed() {
        assert!(as_they_should_be(WireSide::Ours, 5, 0).is_ok());
        assert_eq!(
            as_they_should_be(WireSide::Ours, 5, 1).expect_err("one is wrong").to_string(),
            "xway, afxdp:, copy mode: 1 of 6 packets that came back are not what was sent with its addresses exchanged"
        );
        assert!(as_they_should_be(WireSide::Ours, 0, 0).is_err(), "none at all");
        let taken = |arrived, sent| Taken { time: Duration::ZERO, made: 100, arrived, sent };
        assert!(taken(100, None).check().is_ok() && taken(90, Some(95)).check().is_ok());
        assert!(
            taken(101, None).check().is_err()
                && taken(96, Some(95)).check().is_err()
                && taken(0, None).check().is_err()
        );
    }
}
