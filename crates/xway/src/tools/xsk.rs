//! The commands with AF_XDP sockets: `xdp-bench xsk-drop` and `xsk-tx`, `xdp-trafficgen xsk-udp`. One socket on one queue of an
//! interface; what it carries is shown as the other commands show theirs.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use xway_engine::{Device as _, Port, PortStats};
use xway_kernel::{Device, XdpMode};
use xway_packet::{Burst, Pool, PoolConfig};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice, AfXdpPort, Copying};
use xway_tools::ToolError;
use xway_tools::measure::Snapshot;
use xway_tools::packets::{Mac, Udp};
use xway_tools::tally::{PerCpu, Tally};

use super::sample::{self, Shown, Source, Style, Times};
use super::{Common, device};
use crate::print;

#[derive(ValueEnum, Debug, Clone, Copy)]
enum CopyMode {
    Auto,
    Copy,
    ZeroCopy,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Attach {
    Native,
    Skb,
    Hw,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
#[value(rename_all = "UPPER")]
enum Clock {
    Monotonic,
    Realtime,
    Tai,
    Boottime,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq)]
enum Policy {
    #[value(name = "SCHED_OTHER")]
    Other,
    #[value(name = "SCHED_FIFO")]
    Fifo,
}

/// Options of every command.
#[derive(Args, Debug)]
pub struct Shared {
    /// Interface
    ifname: String,
    /// Receive queue
    #[arg(short, long, default_value_t = 0)]
    queue: u32,
    /// Bytes of a chunk: a power of two
    #[arg(short, long, default_value_t = 4096)]
    frame_size: u32,
    /// Seconds; 0: until Ctrl-C
    #[arg(short, long, default_value_t = 0)]
    duration: u64,
    /// Packets in one turn
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
    batch_size: u32,
    /// Tell the interrupts whose line in /proc/interrupts has this in it
    #[arg(short = 'I', long)]
    irq_string: Option<String>,
    /// Sleep in poll(2) while nothing comes
    #[arg(short, long)]
    poll: bool,
    /// Let chunks lie anywhere
    #[arg(short, long)]
    unaligned: bool,
    /// Tell the socket's own counters at the end
    #[arg(short = 'x', long)]
    extra_stats: bool,
    /// Tell nothing
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// Tell the turns of the loop at the end
    #[arg(short, long)]
    app_stats: bool,
    /// Whether packets may be copied
    #[arg(short = 'C', long, value_enum, default_value_t = CopyMode::Auto)]
    copy_mode: CopyMode,
    /// The clock of time stamps
    #[arg(short = 'w', long, value_enum, default_value_t = Clock::Monotonic)]
    clock: Clock,
    /// How this process is scheduled
    #[arg(short = 'W', long, value_enum, default_value_t = Policy::Other)]
    policy: Policy,
    /// Its priority, with SCHED_FIFO
    #[arg(short = 'U', long, default_value_t = 0)]
    schpri: u32,
    /// Where the program runs that leads to the socket
    #[arg(short = 'A', long, value_enum, default_value_t = Attach::Native)]
    attach_mode: Attach,
    #[command(flatten)]
    common: Common,
}

/// Options of `xdp-bench xsk-drop` and `xsk-tx`.
#[derive(Args, Debug)]
pub struct Bench {
    /// Seconds between two lines
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
    /// Call the kernel at every turn
    #[arg(short = 'm', long)]
    no_need_wakeup: bool,
    /// Let several sockets have the same memory
    #[arg(short = 'M', long)]
    shared_umem: bool,
    /// Do the driver's work in our calls
    #[arg(short = 'B', long)]
    busy_poll: bool,
    /// Take packets of several buffers
    #[arg(short = 'F', long)]
    frags: bool,
    #[command(flatten)]
    shared: Shared,
}

/// Options of `xdp-trafficgen xsk-udp`.
#[derive(Args, Debug)]
pub struct Generate {
    /// Destination hardware address (all zeros)
    #[arg(short = 'm', long, value_parser = Mac::parse)]
    dst_mac: Option<Mac>,
    /// Source hardware address (the interface's)
    #[arg(short = 'M', long, value_parser = Mac::parse)]
    src_mac: Option<Mac>,
    /// Put the time of sending, nanoseconds, into each packet
    #[arg(short = 'y', long)]
    timestamp: bool,
    /// Put in a VLAN tag
    #[arg(short = 'V', long)]
    vlan_tag: bool,
    /// Its number
    #[arg(short = 'J', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(..4096))]
    vlan_id: u16,
    /// Its priority
    #[arg(short = 'K', long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..8))]
    vlan_pri: u16,
    /// What the payload is filled with: a number of 32 bits, in hexadecimal
    #[arg(short = 'P', long, value_parser = pattern, default_value = "0x12345678")]
    fill_pattern: u32,
    /// Microseconds between the starts of two turns; 0: none
    #[arg(short = 'T', long, default_value_t = 0)]
    tx_cycle_time: u64,
    /// Seconds between two lines
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
    /// Looks for what has been sent, at the end
    #[arg(short = 'O', long, default_value_t = 3)]
    retries: u32,
    /// Length of a packet, bytes
    #[arg(short = 's', long, default_value_t = 64)]
    pkt_size: usize,
    /// Stop after so many packets; 0, and what is no number: never
    #[arg(short = 'c', long, default_value = "0", value_parser = count)]
    pkt_count: u64,
    /// Call the kernel at every turn
    #[arg(long)]
    no_need_wakeup: bool,
    /// Let several sockets have the same memory
    #[arg(long)]
    shared_umem: bool,
    #[command(flatten)]
    shared: Shared,
}

fn pattern(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|e| e.to_string())
}

/// As the tool reads it.
fn count(text: &str) -> Result<u64, std::convert::Infallible> {
    Ok(text.parse().unwrap_or(0))
}

/// What is done with packets.
enum Work {
    Drop,
    /// Addresses changed, back out of the queue they came from.
    Back,
    Send(Sending),
}

struct Sending {
    packet: Vec<u8>,
    /// Where the time of sending goes.
    stamp: Option<(usize, Clock)>,
    cycle: Duration,
    count: Option<u64>,
    retries: u32,
}

/// `xdp-bench xsk-drop`, `xsk-tx`
pub fn bench(args: &Bench, back: bool) -> Result<(), String> {
    let on = device(&args.shared.ifname)?;
    let config = AfXdpConfig {
        need_wakeup: !args.no_need_wakeup,
        busy_poll: args.busy_poll.then_some(args.shared.batch_size as u16),
        frags: args.frags,
        ..args.shared.config()?
    };
    if args.shared_umem {
        eprintln!("Asked for shared memory: one socket has it alone, because one queue is opened");
    }
    let (verb, work) = if back { ("Hairpinning (MAC swap)", Work::Back) } else { ("Dropping", Work::Drop) };
    args.shared.say(&format!("{verb} packets on {} (ifindex {}; queue {})\n", on.name, on.ifindex, args.shared.queue));
    args.shared.run(&on, &config, args.interval, &work)
}

/// `xdp-trafficgen xsk-udp`
pub fn generate(args: &Generate) -> Result<(), String> {
    let on = device(&args.shared.ifname)?;
    let config = AfXdpConfig { need_wakeup: !args.no_need_wakeup, ..args.shared.config()? };
    if args.shared_umem {
        eprintln!("Asked for shared memory: one socket has it alone, because one queue is opened");
    }
    let at_once = Times::every(None).at_once;
    let work = Work::Send(Sending {
        packet: args.packet(&on)?,
        stamp: args.timestamp.then(|| (args.headers(), args.shared.clock)),
        cycle: Duration::from_micros(args.tx_cycle_time),
        // Scripts want it to end when everything is set up, also where nothing can leave.
        count: if at_once { Some(0) } else { Some(args.pkt_count).filter(|n| *n > 0) },
        retries: args.retries,
    });
    args.shared.say(&format!("Transmitting on {} (ifindex {}; queue {})\n", on.name, on.ifindex, args.shared.queue));
    args.shared.run(&on, &config, args.interval, &work)
}

impl Generate {
    /// Bytes in front of the payload.
    const fn headers(&self) -> usize {
        14 + 20 + 8 + if self.vlan_tag { 4 } else { 0 }
    }

    fn packet(&self, on: &Device) -> Result<Vec<u8>, String> {
        let tag = if self.vlan_tag { 4 } else { 0 };
        let room = self.headers() + if self.timestamp { 8 } else { 0 };
        if self.pkt_size < room.max(60) || self.pkt_size > self.shared.frame_size as usize {
            return Err(format!("-s {}: {} to {} bytes", self.pkt_size, room.max(60), self.shared.frame_size));
        }
        // Addresses and ports of nobody: those that are set aside for measuring (RFC 2544).
        let udp = Udp {
            src_mac: self.src_mac.unwrap_or(Mac(on.mac.unwrap_or_default())),
            dst_mac: self.dst_mac.unwrap_or_default(),
            src: Ipv4Addr::new(198, 18, 0, 1).into(),
            dst: Ipv4Addr::new(198, 18, 0, 2).into(),
            src_port: 4096,
            dst_port: 4096,
            hop_limit: 64,
            len: self.pkt_size - tag,
        };
        let mut packet = udp.build().map_err(|e| e.to_string())?;
        let payload = self.headers() - tag;
        let pattern = self.fill_pattern.to_be_bytes();
        packet[payload..].iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern[at % 4]);
        // The payload is another one than the checksum was made of; over IPv4 zero says that there is none.
        packet[payload - 2..payload].fill(0);
        if self.vlan_tag {
            let [high, low] = (self.vlan_pri << 13 | self.vlan_id).to_be_bytes();
            packet.splice(12..12, [0x81, 0, high, low]);
        }
        Ok(packet)
    }
}

impl Clock {
    /// Nanoseconds that it shows.
    fn now(self) -> u64 {
        use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
        let now = match self {
            Clock::Monotonic => clock_gettime(ClockId::Monotonic),
            Clock::Realtime => clock_gettime(ClockId::Realtime),
            Clock::Boottime => clock_gettime(ClockId::Boottime),
            // Every kernel that has AF_XDP has it.
            Clock::Tai => {
                clock_gettime_dynamic(DynamicClockId::Tai).unwrap_or_else(|_| clock_gettime(ClockId::Realtime))
            }
        };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// What was counted, for whoever prints.
#[derive(Default)]
struct Counted {
    received: AtomicU64,
    sent: AtomicU64,
    /// Not sent.
    lost: AtomicU64,
    turns: AtomicU64,
    over: AtomicBool,
}

impl Shared {
    fn config(&self) -> Result<AfXdpConfig, String> {
        if !self.frame_size.is_power_of_two() || !(2048..=4096).contains(&self.frame_size) {
            return Err(format!("-f {}: 2048 or 4096 bytes", self.frame_size));
        }
        if self.unaligned {
            eprintln!(
                "Asked for chunks anywhere, got chunks at multiples of their size: nothing here wants them elsewhere"
            );
        }
        if self.policy == Policy::Fifo {
            // The only one who can say it without a system call of ours.
            let set =
                ["--fifo".to_owned(), "--pid".into(), self.schpri.max(1).to_string(), std::process::id().to_string()];
            let done = std::process::Command::new("chrt").args(set).status();
            if !done.is_ok_and(|status| status.success()) {
                return Err(format!("SCHED_FIFO with priority {}: chrt could not set it", self.schpri));
            }
        }
        let mode = match self.attach_mode {
            Attach::Native => XdpMode::Native,
            Attach::Skb => XdpMode::Generic,
            Attach::Hw => XdpMode::Offload,
        };
        let copying = match self.copy_mode {
            CopyMode::Auto => Copying::Auto,
            CopyMode::Copy => Copying::Copy,
            CopyMode::ZeroCopy => Copying::ZeroCopy,
        };
        Ok(AfXdpConfig {
            queues: Some((self.queue, 1)),
            mode,
            copying,
            even_down: true,
            ..AfXdpConfig::new(&self.ifname)
        })
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            print::text(text);
        }
    }

    fn interrupts(&self) -> Option<u64> {
        let wanted = self.irq_string.as_deref()?;
        let text = std::fs::read_to_string("/proc/interrupts").ok()?;
        let numbers = text.lines().filter(|line| line.contains(wanted)).flat_map(str::split_whitespace);
        Some(numbers.filter_map(|word| word.parse::<u64>().ok()).sum())
    }

    fn run(&self, on: &Device, config: &AfXdpConfig, interval: u32, work: &Work) -> Result<(), String> {
        let words = |e: xway_port_afxdp::OpenError| e.into_port_error(&on.name).to_string();
        let mut socket = AfXdpDevice::open(config).map_err(words)?;
        let shape = PoolConfig { chunk_size: self.frame_size, ..socket.pool_for(1) };
        let mut pool = Pool::new(shape).map_err(|e| e.to_string())?;
        let mut port = socket.open_port(0, &mut pool).map_err(words)?;
        if self.common.verbose > 0 {
            socket.effective().iter().for_each(|effective| eprintln!("{effective}"));
        }
        socket.outcomes().iter().for_each(|o| {
            eprintln!("Asked for {} {}, got {}: {}", o.what, o.requested, o.effective, o.reason);
        });
        let (stop, counted, before) = (super::stopped()?, Counted::default(), self.interrupts());
        let sends = !matches!(work, Work::Drop);
        let shown = Shown {
            received: !matches!(work, Work::Send(_)),
            drops_wanted: true,
            transmitted: sends,
            ..Shown::default()
        };
        let style = Style { title: on.name.clone(), shown, extended: false };
        let times = Times::every(Some(Duration::from_secs(interval.into())));
        let due = (self.duration > 0).then(|| Instant::now() + Duration::from_secs(self.duration));
        let asked = || stop.asked() || due.is_some_and(|due| Instant::now() >= due);
        let done = std::thread::scope(|scope| {
            let (counted, asked, times) = (&counted, &asked, &times);
            let worker = scope.spawn(move || {
                let at_once = times.at_once && !matches!(work, Work::Send(_));
                let done = self.turns(&mut port, &mut pool, work, counted, &|| asked() || at_once);
                counted.over.store(true, Ordering::Release);
                (done, port.stats())
            });
            let said = match self.quiet {
                true => Ok(()),
                false => {
                    // What ends at once has done something first.
                    while times.at_once && !counted.over.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    sample::run(&mut Reading { counted }, &style, *times, asked).map_err(|e| e.to_string())
                }
            };
            let ended =
                worker.join().unwrap_or_else(|_| (Err("the loop ended by itself".into()), PortStats::default()));
            said.map(|()| ended)
        })?;
        let (ended, stats) = done;
        if self.app_stats && !self.quiet {
            print::text(&format!("  {:<20}: {}\n", "Turns", counted.turns.load(Ordering::Relaxed)));
        }
        if self.extra_stats && !self.quiet {
            self.extra(&stats);
        }
        if let (Some(before), Some(now), false) = (before, self.interrupts(), self.quiet) {
            print::text(&format!("  {:<20}: {}\n", "Interrupts", now.saturating_sub(before)));
        }
        ended
    }

    /// The socket's own counters.
    fn extra(&self, stats: &PortStats) {
        let own = [("dropped", stats.dropped), ("oversize", stats.oversize), ("no_frame", stats.no_frame)];
        for (name, number) in own.into_iter().chain(stats.other.iter().copied()) {
            print::text(&format!("  {name:<20}: {number}\n"));
        }
    }

    /// The loop, until somebody asks for its end.
    fn turns(
        &self,
        port: &mut AfXdpPort,
        pool: &mut Pool,
        work: &Work,
        counted: &Counted,
        over: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let words = |e: xway_engine::PortError| e.to_string();
        let (mut burst, mut left) = (Burst::new(), if let Work::Send(s) = work { s.count } else { None });
        let mut next = Instant::now();
        let add = |to: &AtomicU64, n: u64| {
            to.fetch_add(n, Ordering::Relaxed);
        };
        while !over() && left != Some(0) {
            add(&counted.turns, 1);
            match work {
                Work::Drop | Work::Back => {
                    port.rx(0, pool, &mut burst, self.batch_size as usize).map_err(words)?;
                    if burst.is_empty() {
                        self.rest(port);
                        continue;
                    }
                    add(&counted.received, burst.len() as u64);
                }
                Work::Send(sending) => {
                    let most = left.unwrap_or(u64::MAX).min(self.batch_size.into()) as usize;
                    pool.alloc_burst(&mut burst, most);
                    for frame in burst.frames_mut() {
                        frame.fill(&sending.packet).map_err(|_| "a packet is longer than a chunk".to_owned())?;
                        if let Some((at, clock)) = sending.stamp {
                            frame.packet_mut()[at..at + 8].copy_from_slice(&clock.now().to_be_bytes());
                        }
                    }
                }
            }
            if matches!(work, Work::Drop) {
                pool.release_burst(&mut burst);
                continue;
            }
            if matches!(work, Work::Back) {
                burst
                    .frames_mut()
                    .iter_mut()
                    .filter(|f| f.len() >= 12)
                    .for_each(|f| f.packet_mut()[..12].rotate_left(6));
            }
            let sent = port.tx(0, pool, &mut burst);
            pool.release_burst(&mut burst);
            port.flush().map_err(words)?;
            add(&counted.sent, sent.sent.into());
            add(&counted.lost, u64::from(sent.failed) + if matches!(work, Work::Back) { sent.full.into() } else { 0 });
            if let Work::Send(sending) = work {
                left = left.map(|left| left - u64::from(sent.sent));
                next += sending.cycle;
                match next.checked_duration_since(Instant::now()).filter(|_| !sending.cycle.is_zero()) {
                    Some(wait) => std::thread::sleep(wait),
                    // Nothing fits: the kernel sends what waits.
                    None if sent.sent == 0 => std::thread::yield_now(),
                    None => {}
                }
            }
        }
        if let Work::Send(sending) = work {
            for _ in 0..sending.retries {
                port.flush().map_err(words)?;
                port.backlog(0, pool);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        port.close(pool);
        Ok(())
    }

    fn rest(&self, port: &AfXdpPort) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        match port.fd().filter(|_| self.poll) {
            // Woken in time for Ctrl-C.
            Some(fd) => drop(poll(
                &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
                Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }),
            )),
            None => std::thread::yield_now(),
        }
    }
}

/// The loop as something to read from.
struct Reading<'a> {
    counted: &'a Counted,
}

impl Source for Reading<'_> {
    fn read(&mut self) -> Result<Snapshot, ToolError> {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let one = |processed, dropped| PerCpu(vec![Tally { processed, dropped, ..Tally::default() }]);
        let mut snapshot = Snapshot { received: one(of(&self.counted.received), 0), ..Snapshot::default() };
        snapshot.counts.xmit = one(of(&self.counted.sent), of(&self.counted.lost));
        Ok(snapshot)
    }

    fn ended(&self) -> bool {
        self.counted.over.load(Ordering::Acquire)
    }
}
