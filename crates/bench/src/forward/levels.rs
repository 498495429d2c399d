//! The same packets, dropped or sent on at each level of the machine that can do it: our engine, the driver's hook, behind the driver,
//! tc, netfilter, the host's forwarding, a socket.
//!
//! The kernel makes the packets for all of its levels in the same way, as live frames of a test-run that come in on one end of a veth
//! pair in a namespace of their own. At the driver's level the test-run's program decides itself; for all others it passes, and the
//! frames go up the stack as if a driver had handed them over, until somebody stops them or sends them on. So the figure of each level
//! has the making of the frame in it, and the difference between two of them is the way from one to the other.
//!
//! Each level counts for itself what it dropped or what arrived behind it: a round in which that is not what was made is told as lost.

use std::cell::Cell;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use xway_kernel::{KernelMap, KernelObject, KernelProg, ProgSpec, TcxLink, XdpLink, XdpMode, consts};
use xway_object::{HelperNames, Object};
use xway_port_sim::{Pattern, Traffic};

use super::kernel::{Space, ip, whole};
use super::{
    Action, ForwardError, ForwardOptions, INGRESS, Operation, Round, Rounds, SideFigures, TARGET, Unmeasured, timed,
};
use crate::measure::pin;

/// What becomes of the packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// They are dropped.
    Drop,
    /// They leave by another interface.
    Redirect,
}

impl Task {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Task::Drop => "drop",
            Task::Redirect => "redirect",
        }
    }

    /// Who does it, from the bottom up.
    pub const fn levels(self) -> &'static [Level] {
        match self {
            Task::Drop => &[
                Level::Ours,
                Level::Native,
                Level::Generic,
                Level::Tc,
                Level::Netfilter,
                Level::Forward,
                Level::Socket,
            ],
            Task::Redirect => &[Level::Ours, Level::Native, Level::Generic, Level::Tc, Level::Forward],
        }
    }
}

/// Who decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Our engine, between ports in memory.
    Ours,
    /// Linux's hook in the driver.
    Native,
    /// Linux's hook behind the driver.
    Generic,
    /// A classifier where packets enter the host (tcx).
    Tc,
    /// A rule of nftables at the priority of iptables' table `raw`.
    Netfilter,
    /// The host's routes: dropped by one that leads nowhere, or sent on by one that leads out.
    Forward,
    /// A socket whose queue is full.
    Socket,
}

impl Level {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Ours => "xway, packets in memory",
            Level::Native => "XDP, native",
            Level::Generic => "XDP, generic",
            Level::Tc => "tc ingress",
            Level::Netfilter => "netfilter, raw",
            Level::Forward => "routes",
            Level::Socket => "UDP socket that nobody reads",
        }
    }
}

/// What was measured at one level.
#[derive(Clone, PartialEq, Debug)]
pub struct LevelRow {
    /// Which.
    pub level: Level,
    /// Its figures, or why it was not measured.
    pub figures: Result<SideFigures, String>,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct LevelOptions {
    /// What becomes of the packets.
    pub task: Task,
    /// Packets in a round.
    pub count: u64,
    /// Rounds; the levels take turns.
    pub rounds: u32,
    /// Core for everything.
    pub cpu: u32,
}

/// Measures every level of a task, packets of 64 bytes of one flow.
///
/// # Errors
/// The core cannot be had, or our side is not what it should be. What is missing for a level of the kernel stands in its row.
pub fn levels(options: &LevelOptions) -> Result<Vec<LevelRow>, ForwardError> {
    // A thread of its own: it enters a network namespace.
    std::thread::scope(|scope| match scope.spawn(|| measured(options)).join() {
        Ok(rows) => rows,
        Err(_) => Err(ForwardError::Program("the measuring thread ended early".into())),
    })
}

fn measured(options: &LevelOptions) -> Result<Vec<LevelRow>, ForwardError> {
    let traffic = Traffic::udp(1, 64, Pattern::Scan, 1).map_err(|e| ForwardError::Program(e.to_string()))?;
    let action = match options.task {
        Task::Drop => Action::Drop,
        Task::Redirect => Action::Redirect,
    };
    let forward = ForwardOptions {
        count: options.count,
        rounds: options.rounds,
        cpu: options.cpu,
        kernel: true,
        ..ForwardOptions::new(action, Operation::NoTouch)
    };
    let ours = super::ours::Ours::new(&forward, &traffic)?;
    let stand = Stand::new(options.task, traffic.packet(0));
    pin(options.cpu)?;
    ours.compare()?;
    let mut rows: Vec<_> = options.task.levels().iter().map(|level| (*level, Ok(Rounds::default()))).collect();
    for _ in 0..options.rounds.max(1) {
        for (level, rounds) in &mut rows {
            let round = match level {
                Level::Ours => Ok(ours.round(options.count, options.cpu)?.0),
                level => stand.as_ref().map_err(Clone::clone).and_then(|stand| stand.round(*level, options.count)),
            };
            match (rounds.as_mut(), round) {
                (Ok(rounds), Ok(round)) => {
                    super::believable(&round, 1)?;
                    rounds.add(round);
                }
                (Ok(_), Err(why)) => *rounds = Err(why.0),
                (Err(_), _) => {}
            }
        }
    }
    Ok(rows.into_iter().map(|(level, rounds)| LevelRow { level, figures: rounds.map(Rounds::figures) }).collect())
}

/// The kernel's side: interfaces in a namespace, and the programs.
struct Stand {
    task: Task,
    object: Object,
    loaded: KernelObject,
    packet: Vec<u8>,
    /// What counts behind the interface that packets leave by.
    _far: Option<XdpLink>,
}

/// Where the packets are addressed to.
const ADDRESS: &str = "192.168.0.1";
const PORT: u16 = 9;
/// Their hardware address, without which the host takes them for somebody else's.
const MAC: &str = "02:00:00:00:00:02";

impl Stand {
    fn new(task: Task, packet: &[u8]) -> Result<Stand, Unmeasured> {
        let space = Space::enter()?;
        space.veth(INGRESS)?;
        ip(&["link", "set", &format!("xwb{INGRESS}"), "address", MAC])?;
        let bytes = super::object().ok_or_else(|| Unmeasured("no built-in programs".into()))?;
        let object = Object::parse(bytes, &Default::default()).map_err(|e| Unmeasured(e.to_string()))?;
        let loaded = KernelObject::load(&object).map_err(|e| Unmeasured::at("loading")(&e))?;
        for which in ["all", "default", &format!("xwb{INGRESS}")] {
            // Sources of packets that were made up have no way back.
            let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{which}/rp_filter"), "0");
        }
        let start = packet.get(..START).ok_or_else(|| Unmeasured("a packet without an IP header".into()))?;
        let fresh = loaded.map(&object, "fresh").ok_or_else(|| Unmeasured("no map fresh".into()))?;
        fresh.update(&[0; 4], start, 0).map_err(|e| Unmeasured::at("map fresh")(&e))?;
        let mut stand = Stand { task, object, loaded, packet: packet.to_vec(), _far: None };
        if task == Task::Redirect {
            space.veth(TARGET)?;
            let link = XdpLink::attach(stand.program("far_end")?, TARGET + 1, XdpMode::Native);
            stand._far = Some(link.map_err(|e| Unmeasured::at("the other end of a veth pair")(&e))?);
        }
        Ok(stand)
    }

    fn program(&self, name: &str) -> Result<&KernelProg, Unmeasured> {
        self.loaded.program(&self.object, name).ok_or_else(|| Unmeasured(format!("the kernel refused {name}")))
    }

    fn map(&self) -> Result<&KernelMap, Unmeasured> {
        self.loaded.map(&self.object, "arrived").ok_or_else(|| Unmeasured("no map arrived".into()))
    }

    /// What the programs counted: at a level that drops, or behind the one that sends on.
    fn counted(&self) -> Result<u64, Unmeasured> {
        let bytes = self.map()?.get(&[0; 4]).map_err(|e| Unmeasured::at("map arrived")(&e))?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).sum())
    }

    fn round(&self, level: Level, count: u64) -> Result<Round, Unmeasured> {
        let guard = self.put(level)?;
        let maker = match (level, self.task) {
            (Level::Native, Task::Drop) => "far_end",
            (Level::Native, Task::Redirect) => "redirect_no_touch",
            _ => "pass_fresh",
        };
        let (program, count) = (self.program(maker)?, u32::try_from(count).unwrap_or(u32::MAX));
        let run = || timed(count.into(), || program.live_run(&self.packet, count, BATCH, INGRESS));
        let (before, ns) = whole(|| Ok((self.seen(&guard)?, run())))?;
        let packets = u64::from(count);
        let mut arrived = self.seen(&guard)? - before;
        // Behind a veth pair the other end may go on for a while on this core.
        for _ in 0..50 {
            if arrived >= packets {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
            arrived = self.seen(&guard)? - before;
        }
        let missing = packets.saturating_sub(arrived);
        let lost = if missing > 0 { vec![("not counted there".to_owned(), missing)] } else { Vec::new() };
        Ok(Round { ns, packets, arrived, lost })
    }

    /// Puts what decides in its place, until the guard is dropped.
    fn put(&self, level: Level) -> Result<Guard, Unmeasured> {
        let interface = format!("xwb{INGRESS}");
        match (level, self.task) {
            (Level::Ours | Level::Native, _) => Ok(Guard::Nothing),
            (Level::Generic, task) => {
                let name = if task == Task::Drop { "far_end" } else { "redirect_no_touch" };
                let link = XdpLink::attach(self.program(name)?, INGRESS, XdpMode::Generic);
                Ok(Guard::Xdp { _link: link.map_err(|e| Unmeasured::at("attaching, generic")(&e))? })
            }
            (Level::Tc, task) => {
                let text = if task == Task::Drop { COUNTS_AND_SHOOTS.to_owned() } else { redirects() };
                let insns = xway_isa::assemble_with(&text, &HelperNames).map_err(|e| Unmeasured(e.to_string()))?;
                let (prog_type, attach_type) = (consts::PROG_TYPE_SCHED_CLS, consts::ATTACH_TCX_INGRESS);
                let fds = [self.map()?.as_fd().as_raw_fd()];
                let spec = ProgSpec { prog_type, attach_type, fd_array: &fds, ..ProgSpec::xdp("xway_tc", &insns) };
                let link = KernelProg::load(&spec).and_then(|program| TcxLink::attach(&program, INGRESS));
                Ok(Guard::Tc { _link: link.map_err(|e| Unmeasured::at("tc (Linux 6.6 and later)")(&e))? })
            }
            (Level::Netfilter, _) => {
                nft(&format!(
                    "table ip {TABLE} {{\nchain pre {{\ntype filter hook prerouting priority -300\n\
                     ip daddr {ADDRESS} udp dport {PORT} counter drop\n}}\n}}\n"
                ))?;
                Ok(Guard::Rules)
            }
            (Level::Forward, Task::Drop) => {
                ip(&["route", "add", "blackhole", ADDRESS])?;
                Ok(Guard::Route)
            }
            (Level::Forward, Task::Redirect) => {
                let out = format!("xwb{TARGET}");
                for which in [&interface, &out] {
                    let path = format!("/proc/sys/net/ipv4/conf/{which}/forwarding");
                    std::fs::write(&path, "1").map_err(|e| Unmeasured(format!("{path}: {e}")))?;
                }
                ip(&["neigh", "replace", ADDRESS, "lladdr", "02:00:00:00:00:09", "dev", &out])?;
                ip(&["route", "add", ADDRESS, "dev", &out])?;
                Ok(Guard::Route)
            }
            (Level::Socket, _) => {
                ip(&["addr", "replace", &format!("{ADDRESS}/32"), "dev", "lo"])?;
                let socket = UdpSocket::bind((ADDRESS, PORT)).map_err(|e| Unmeasured(format!("a socket: {e}")))?;
                // The least that Linux gives; what is in it stays there.
                let small = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 1);
                small.map_err(|e| Unmeasured(format!("a socket: {e}")))?;
                socket.set_nonblocking(true).map_err(|e| Unmeasured(format!("a socket: {e}")))?;
                Ok(Guard::Socket { socket, taken: Cell::new(0) })
            }
        }
    }

    /// Packets that have come to the level, by its own count.
    fn seen(&self, guard: &Guard) -> Result<u64, Unmeasured> {
        match (guard, self.task) {
            (Guard::Rules, _) => {
                let text = said(Command::new("nft").args(["list", "table", "ip", TABLE]))?;
                let number =
                    text.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
                number.ok_or_else(|| Unmeasured("nft: no counter in its list".into()))
            }
            (Guard::Socket { socket, taken }, _) => {
                // What found room before it was full is counted by taking it.
                while socket.recv(&mut [0; 1]).is_ok() {
                    taken.set(taken.get() + 1);
                }
                Ok(taken.get() + snmp("Udp", "RcvbufErrors")?)
            }
            // What came in and went no further: the host has no count of its own for a route that leads nowhere.
            (Guard::Route, Task::Drop) => Ok(snmp("Ip", "InReceives")? - snmp("Ip", "InDelivers")?),
            _ => self.counted(),
        }
    }
}

/// As the engine's bursts.
const BATCH: u32 = 64;
/// Bytes of a packet that are made anew each time: Ethernet and IPv4.
const START: usize = 34;
const TABLE: &str = "xwaybench";

/// What stands in a level's place, and goes with this.
enum Guard {
    Nothing,
    Xdp { _link: XdpLink },
    Tc { _link: TcxLink },
    Rules,
    Route,
    Socket { socket: UdpSocket, taken: Cell<u64> },
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The namespace goes soon; what cannot be taken away makes the next round fail with its own words.
        let _ = match self {
            Guard::Nothing | Guard::Xdp { .. } | Guard::Tc { .. } => Ok(()),
            Guard::Rules => nft(&format!("delete table ip {TABLE}")),
            Guard::Route => ip(&["route", "del", ADDRESS]),
            Guard::Socket { .. } => ip(&["addr", "del", &format!("{ADDRESS}/32"), "dev", "lo"]),
        };
    }
}

fn said(command: &mut Command) -> Result<String, Unmeasured> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| Unmeasured(format!("{name}: {e}")))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Unmeasured(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()))),
    }
}

fn nft(rules: &str) -> Result<(), Unmeasured> {
    said(Command::new("nft").arg(rules)).map(drop)
}

/// One of the host's counters of a protocol (`/proc/net/snmp`: a line of names, a line of numbers).
fn snmp(protocol: &str, name: &str) -> Result<u64, Unmeasured> {
    let path = "/proc/thread-self/net/snmp";
    let text = std::fs::read_to_string(path).map_err(|e| Unmeasured(format!("{path}: {e}")))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(": "));
    let (names, numbers) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let found = names.split(' ').zip(numbers.split(' ')).find(|(known, _)| *known == name);
    let number = found.and_then(|(_, number)| number.parse().ok());
    number.ok_or_else(|| Unmeasured(format!("{path}: no {protocol} {name}")))
}

/// Adds one to the first value of the first map, and says `TC_ACT_SHOT`.
const COUNTS_AND_SHOOTS: &str = "\
    *(u32 *)(r10 -4) = 0
    r2 = r10
    r2 += -4
    r1 = map[idx:0]
    call bpf_map_lookup_elem
    if r0 == 0 goto +3
    r1 = *(u64 *)(r0 +0)
    r1 += 1
    *(u64 *)(r0 +0) = r1
    r0 = 2
    exit";

/// `return bpf_redirect(TARGET, 0)`
fn redirects() -> String {
    format!("r1 = {TARGET}\nr2 = 0\ncall bpf_redirect\nexit")
}
