//! The kernel's side: test-runs with live frames, in a network namespace of their own.

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use xway_abi::Errno;
use xway_kernel::{KernelMap, KernelObject, KernelProg, TestInput, XdpLink, XdpMode};
use xway_object::Object;

use super::{Action, ForwardError, ForwardOptions, INGRESS, Round, TARGET, timed};
use crate::Outcome;

/// Why the kernel was not measured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unmeasured(pub String);

impl Unmeasured {
    pub(crate) fn at(what: &str) -> impl Fn(&dyn std::fmt::Display) -> Unmeasured + '_ {
        move |why| Unmeasured(format!("{what}: {why}"))
    }
}

pub(super) struct Kernel {
    object: Object,
    loaded: KernelObject,
    program: String,
    action: Action,
    packet: Vec<u8>,
    /// Where packets come in; 0 where that need be no interface of its own.
    ingress: u32,
    /// Programs at the other ends.
    links: Vec<XdpLink>,
}

/// Number of the second interface of a broadcast.
const SECOND: u32 = 14;

impl Kernel {
    /// Makes the namespace, enters it with this thread, and loads the program there.
    pub(super) fn new(options: &ForwardOptions, packet: &[u8], program: &str) -> Result<Kernel, Unmeasured> {
        let space = Space::enter()?;
        let bytes = super::object().ok_or_else(|| Unmeasured("no built-in programs".into()))?;
        let object = Object::parse(bytes, &Default::default()).map_err(|e| Unmeasured(e.to_string()))?;
        let wanted = |p: &xway_object::Program| [program, "far_end", options.far_program()].contains(&p.name.as_str());
        let loaded = KernelObject::load_some(&object, wanted).map_err(|e| Unmeasured::at("loading")(&e))?;
        let mut links = Vec::new();
        let ends: &[u32] = match options.action {
            Action::Drop | Action::Pass | Action::RedirectCpu => &[],
            Action::Tx => &[INGRESS],
            Action::Redirect | Action::RedirectMap => &[INGRESS, TARGET],
            Action::RedirectMulti => &[INGRESS, TARGET, SECOND],
        };
        for &near in ends {
            space.veth(near)?;
            let far = loaded.program(&object, "far_end").ok_or_else(|| Unmeasured("no program far_end".into()))?;
            let link = XdpLink::attach(far, near + 1, XdpMode::Native);
            links.push(link.map_err(|e| Unmeasured::at("the other end of a veth pair")(&e))?);
        }
        if let Some(ports) = loaded.map(&object, "ports") {
            for (key, ifindex) in (0u32..).zip(ends.iter().filter(|&&ifindex| ifindex != INGRESS)) {
                let value = [ifindex.to_ne_bytes(), [0xff; 4]].concat();
                ports.update(&key.to_ne_bytes(), &value, 0).map_err(|e| Unmeasured::at("map ports")(&e))?;
            }
        }
        if options.action == Action::RedirectCpu
            && let Some(cpus) = loaded.map(&object, "cpus")
        {
            let far = options.far_program();
            let far = loaded.program(&object, far).ok_or_else(|| Unmeasured(format!("no program {far}")))?;
            let value = [2048u32.to_ne_bytes(), (far.as_fd().as_raw_fd() as u32).to_ne_bytes()].concat();
            cpus.update(&[0; 4], &value, 0).map_err(|e| Unmeasured::at("map cpus")(&e))?;
        }
        if let Some(denied) = loaded.map(&object, "denied") {
            for key in options.denied() {
                denied.update(&key, &[1, 0, 0, 0], 0).map_err(|e| Unmeasured::at("map denied")(&e))?;
            }
        }
        Ok(Kernel {
            object,
            loaded,
            program: program.to_owned(),
            action: options.action,
            packet: packet.to_vec(),
            ingress: if links.is_empty() { 0 } else { INGRESS },
            links,
        })
    }

    /// One packet, not carried out: the kernel must come to the same verdict and the same packet.
    pub(super) fn compare(&self, expected: &Outcome) -> Result<(), ForwardError> {
        let wrong = |what: String| ForwardError::Program(format!("the kernel, {}: {what}", self.program));
        let program = self.loaded.program(&self.object, &self.program);
        let Some(program) = program else { return Ok(()) }; // refused: said where it is measured
        let out = program.test_run(&TestInput::packet(&self.packet)).map_err(|errno| wrong(errno.text().to_owned()))?;
        if out.ret != expected.ret {
            return Err(wrong(format!("returns {}, the interpreter {}", out.ret, expected.ret)));
        }
        match out.data == expected.packet {
            true => Ok(()),
            false => Err(wrong("makes another packet of it than the interpreter".to_owned())),
        }
    }

    pub(super) fn round(&self, count: u64) -> Result<Round, Unmeasured> {
        let program = self.loaded.program(&self.object, &self.program);
        let program = program.ok_or_else(|| Unmeasured(format!("the kernel refused {}", self.program)))?;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let (before, ns) = whole(|| Ok((self.arrived()?, self.timed(program, count))))?;
        let packets = u64::from(count);
        if self.action == Action::RedirectCpu {
            return self.settled(ns, packets, before);
        }
        let (arrived, expected) = match self.action {
            // Nothing leaves a trace but the test-run's own word that it ran so often.
            Action::Drop | Action::Pass => (packets, packets),
            Action::RedirectMulti => (self.arrived()? - before, packets * 2),
            _ => (self.arrived()? - before, packets),
        };
        let missing = expected.saturating_sub(arrived);
        let lost = if missing > 0 { vec![("not at the other end".to_owned(), missing)] } else { Vec::new() };
        Ok(Round { ns, packets, arrived, lost })
    }

    /// Nanoseconds for each of the packets of some rounds when nobody is at the other ends: the device takes them and throws them away, so
    /// only the sender's work is in it, without what it costs to put a packet into the pair's ring. `None` where nothing is sent. The
    /// last thing to be measured: the programs at the other ends are gone afterwards.
    pub(super) fn senders(&mut self, count: u64, rounds: u32) -> Result<Option<Vec<f64>>, Unmeasured> {
        if self.links.is_empty() {
            return Ok(None);
        }
        self.links.clear();
        let program = self.loaded.program(&self.object, &self.program);
        let program = program.ok_or_else(|| Unmeasured(format!("the kernel refused {}", self.program)))?;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let round = |_| {
            let ((), ns) = whole(|| Ok(((), self.timed(program, count))))?;
            Ok(ns)
        };
        (0..rounds.max(1)).map(round).collect::<Result<Vec<f64>, Unmeasured>>().map(Some)
    }

    fn timed(&self, program: &KernelProg, count: u32) -> (f64, Result<(), Errno>) {
        timed(count.into(), || program.live_run(&self.packet, count, Self::BATCH, self.ingress))
    }

    /// The other CPU goes on for a while when the test-run has ended.
    fn settled(&self, ns: f64, packets: u64, before: u64) -> Result<Round, Unmeasured> {
        let mut arrived = self.arrived()? - before;
        for _ in 0..50 {
            std::thread::sleep(std::time::Duration::from_millis(2));
            let now = self.arrived()? - before;
            if now == arrived {
                break;
            }
            arrived = now;
        }
        let lost = packets.saturating_sub(arrived);
        let ns = ns * packets as f64 / arrived.max(1) as f64;
        Ok(Round { ns, packets, arrived, lost: vec![("queue full".to_owned(), lost)] })
    }

    /// As the engine's bursts.
    const BATCH: u32 = 64;

    fn arrived(&self) -> Result<u64, Unmeasured> {
        let map: &KernelMap =
            self.loaded.map(&self.object, "arrived").ok_or_else(|| Unmeasured("no map arrived".into()))?;
        let bytes = map.get(&[0; 4]).map_err(|e| Unmeasured::at("map arrived")(&e))?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).sum())
    }
}

/// A network namespace that this thread is in and that has no name any more: it goes with the thread, however that ends.
pub(crate) struct Space;

impl Space {
    pub(crate) fn enter() -> Result<Space, Unmeasured> {
        let name = format!("xwbench-{}", std::process::id());
        ip(&["netns", "add", &name])?;
        let path = format!("/run/netns/{name}");
        let enter = |path: &str| {
            let file = std::fs::File::open(path)?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok::<_, std::io::Error>(())
        };
        let entered = enter(&path).map_err(|e| Unmeasured(format!("{path}: {e}")));
        // The thread keeps it from now on.
        ip(&["netns", "del", &name])?;
        entered?;
        for which in ["all", "default"] {
            // Without IPv6 no neighbour discovery arrives among the packets; a kernel without it has none to switch off.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        }
        ip(&["link", "set", "lo", "up"])?;
        Ok(Space)
    }

    /// A pair whose near end has this number and whose far end the next one.
    pub(crate) fn veth(&self, near: u32) -> Result<(), Unmeasured> {
        let (a, b) = (format!("xwb{near}"), format!("xwb{}", near + 1));
        let (near, far) = (near.to_string(), (near + 1).to_string());
        ip(&["link", "add", &a, "index", &near, "type", "veth", "peer", "name", &b, "index", &far])?;
        ip(&["link", "set", &a, "up"])?;
        ip(&["link", "set", &b, "up"])
    }
}

pub(super) fn ip(args: &[&str]) -> Result<(), Unmeasured> {
    let command = || format!("ip {}", args.join(" "));
    let output = Command::new("ip").args(args).output().map_err(|e| Unmeasured(format!("{}: {e}", command())))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Unmeasured(format!("{}: {}", command(), said.trim())))
}

/// A round without an interruption, and what was asked before it: a signal ends the kernel's run (a stop and a continuation do as well), what it
/// took is then no measure of anything, and all of it is done again.
pub(super) fn whole<T>(
    round: impl Fn() -> Result<(T, (f64, Result<(), Errno>)), Unmeasured>,
) -> Result<(T, f64), Unmeasured> {
    const MOST: u32 = 1000;
    let mut attempt = 1;
    loop {
        match round()? {
            (before, (ns, Ok(()))) => return Ok((before, ns)),
            (_, (_, Err(Errno::EINTR))) if attempt < MOST => {
                attempt += 1;
                // What is on its way to another CPU arrives before the next one begins to count.
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            (_, (_, Err(errno))) => {
                return Err(Unmeasured(format!("test run with live frames: {errno} ({})", errno.text())));
            }
        }
    }
}
