//! `xdp-trafficgen`: packets made in the kernel; the commands, options, lines and exit codes of the tool of that name.

use std::ffi::OsString;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use xway_kernel::XdpMode;
use xway_tools::ToolError;
use xway_tools::measure::Snapshot;
use xway_tools::packets::{Mac, Udp};
use xway_tools::stream::{Setup, Stream};
use xway_tools::traffic::{Generator, probe, takes_frames};

use super::sample::{self, Shown, Source, Style, Times};
use super::{Common, device, parsed, xsk};
use crate::print;

/// Make traffic in the kernel.
#[derive(Parser, Debug)]
#[command(name = "xdp-trafficgen", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Send UDP over IPv6
    Udp(UdpArgs),
    /// Send one TCP stream over IPv6
    Tcp(TcpArgs),
    /// Ask whether the kernel can make traffic
    Probe(Probe),
    /// Send UDP over IPv4 from an AF_XDP socket
    XskUdp(xsk::Generate),
}

const COMMANDS: [&str; 5] = ["udp", "tcp", "probe", "xsk-udp", "help"];

#[derive(Args, Debug)]
struct Probe {
    /// Whether this interface can send it, too
    #[arg(short, long)]
    interface: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct UdpArgs {
    /// Interface that packets leave by
    ifname: String,
    /// Destination hardware address (all zeros)
    #[arg(short = 'm', long, value_parser = Mac::parse)]
    dst_mac: Option<Mac>,
    /// Source hardware address (the interface's)
    #[arg(short = 'M', long, value_parser = Mac::parse)]
    src_mac: Option<Mac>,
    /// Destination address
    #[arg(short = 'a', long, default_value = "fe80::2")]
    dst_addr: Ipv6Addr,
    /// Source address
    #[arg(short = 'A', long, default_value = "fe80::1")]
    src_addr: Ipv6Addr,
    /// Destination port, the first one with -d
    #[arg(short = 'p', long, default_value_t = 1)]
    dst_port: u16,
    /// Source port
    #[arg(short = 'P', long, default_value_t = 1)]
    src_port: u16,
    /// Destination ports in turn
    #[arg(short = 'd', long, default_value_t = 1)]
    dyn_ports: u16,
    /// Stop after so many packets
    #[arg(short = 'n', long)]
    num_packets: Option<u64>,
    /// Length of a packet, bytes
    #[arg(short = 's', long, default_value_t = 64)]
    pkt_size: usize,
    /// Threads that send, each on a CPU of its own as far as they suffice
    #[arg(short = 't', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Seconds between two lines
    #[arg(short = 'I', long, value_parser = clap::value_parser!(u32).range(1..))]
    interval: Option<u32>,
    /// Hop limit
    #[arg(short = 'l', long, default_value_t = 1)]
    hop_limit: u8,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum Mode {
    Native,
    Skb,
    Hw,
}

#[derive(Args, Debug)]
struct TcpArgs {
    /// Interface that leads to the receiver
    #[arg(short, long)]
    interface: String,
    /// The receiver: an IPv6 address, or a name that has one
    hostname: String,
    /// Its port
    #[arg(short = 'p', long, default_value_t = 10_000)]
    dst_port: u16,
    /// Stop after so many segments
    #[arg(short = 'n', long)]
    num_packets: Option<u64>,
    /// Seconds between two lines
    #[arg(short = 'I', long, value_parser = clap::value_parser!(u32).range(1..))]
    interval: Option<u32>,
    /// Seconds to wait for the connection
    #[arg(short = 't', long, default_value_t = 2)]
    timeout: u32,
    /// Where the program runs that takes the receiver's answers
    #[arg(short, long, value_enum, default_value_t = Mode::Native)]
    mode: Mode,
    #[command(flatten)]
    common: Common,
}

/// Runs the tool.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let cli: Cli = match parsed("xdp-trafficgen", &COMMANDS, arguments) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match &cli.command {
        Command::Udp(args) => udp(args),
        Command::Tcp(args) => tcp(args),
        Command::Probe(args) => ask(args),
        Command::XskUdp(args) => xsk::generate(args),
    };
    done.map_or_else(|words| super::wrong(&words), |()| ExitCode::SUCCESS)
}

fn ask(args: &Probe) -> Result<(), String> {
    probe().map_err(|e| e.to_string())?;
    print::text("Kernel supports live packet mode for XDP BPF_PROG_RUN.\n");
    let Some(name) = &args.interface else { return Ok(()) };
    sends(name).map(|words| print::text(&words))
}

/// Whether an interface takes frames from the hook; in words.
fn sends(name: &str) -> Result<String, String> {
    match takes_frames(&device(name)?).map_err(|e| e.to_string())? {
        Some(true) => Ok(format!("Interface {name} supports sending packets via XDP.\n")),
        Some(false) => Err(format!("Interface {name} does not support sending packets via XDP.")),
        None => Ok(format!("Couldn't query XDP features for interface {name}: this kernel cannot say\n")),
    }
}

fn udp(args: &UdpArgs) -> Result<(), String> {
    let out = device(&args.ifname)?;
    sends(&args.ifname)?;
    let packet = Udp {
        src_mac: args.src_mac.unwrap_or(Mac(out.mac.unwrap_or_default())),
        dst_mac: args.dst_mac.unwrap_or_default(),
        src: args.src_addr.into(),
        dst: args.dst_addr.into(),
        src_port: args.src_port,
        dst_port: args.dst_port,
        hop_limit: args.hop_limit,
        len: args.pkt_size,
    };
    let ports = packet.ports(args.dyn_ports);
    let stop = super::stopped()?;
    let bytes = packet.build().map_err(|e| e.to_string())?;
    let generator = Generator::open(&out, vec![bytes], Some(ports)).map_err(|e| e.to_string())?;
    print::text(&format!("Transmitting on {} (ifindex {})\n", out.name, out.ifindex));
    let shown = Shown { transmitted: true, drops_wanted: true, ..Shown::default() };
    let style = Style { title: format!("lo->{}", out.name), shown, extended: false };
    let times = Times { at_once: false, ..Times::every(args.interval.map(|s| Duration::from_secs(s.into()))) };
    // Scripts want it to end when everything is set up; then a packet or two have gone, as with the tool itself.
    let count = if std::env::var_os("XDP_SAMPLE_IMMEDIATE_EXIT").is_some() {
        Some(args.num_packets.unwrap_or(1).min(1 << 14))
    } else {
        args.num_packets
    };
    let running = AtomicUsize::new(args.threads as usize);
    let failed = Mutex::new(None);
    let mut source = Sending { generator: &generator, running: &running };
    std::thread::scope(|scope| {
        for thread in 0..args.threads {
            let (generator, running, failed, stop) = (&generator, &running, &failed, &stop);
            // The rest goes to the first threads, one each.
            let (threads, place) = (u64::from(args.threads), u64::from(thread));
            let share = count.map(|all| all / threads + u64::from(place < all % threads));
            scope.spawn(move || {
                bind(thread);
                if let Err(e) = generator.send(share, None, &|| stop.asked()) {
                    failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(e.to_string());
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        let done = sample::run(&mut source, &style, times, &|| stop.asked());
        stop.ask();
        done
    })
    .map_err(|e| e.to_string())?;
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

/// The first IPv6 address of a name.
fn resolved(name: &str, port: u16) -> Result<SocketAddrV6, String> {
    let all = (name, port).to_socket_addrs().map_err(|e| format!("{name}: {e}"))?;
    let six = |a| if let SocketAddr::V6(six) = a { Some(six) } else { None };
    all.into_iter().find_map(six).ok_or_else(|| format!("{name} has no IPv6 address"))
}

fn tcp(args: &TcpArgs) -> Result<(), String> {
    let out = device(&args.interface)?;
    sends(&args.interface)?;
    let setup = Setup {
        mode: match args.mode {
            Mode::Native => XdpMode::Native,
            Mode::Skb => XdpMode::Generic,
            Mode::Hw => XdpMode::Offload,
        },
        to: resolved(&args.hostname, args.dst_port)?,
        patience: Duration::from_secs(args.timeout.into()),
        device: out,
    };
    let stop = super::stopped()?;
    let stream = Stream::open(&setup).map_err(|e| e.to_string())?;
    let (own, port) = stream.own();
    print::text(&format!("Connected to {} port {} from {own} port {port}\n", setup.to.ip(), setup.to.port()));
    let shown = Shown { transmitted: true, drops_wanted: true, ..Shown::default() };
    let style = Style { title: format!("lo->{}", setup.device.name), shown, extended: false };
    let times = Times { at_once: false, ..Times::every(args.interval.map(|s| Duration::from_secs(s.into()))) };
    let (running, failed) = (AtomicUsize::new(1), Mutex::new(None));
    let mut source = Flowing { stream: &stream, running: &running };
    std::thread::scope(|scope| {
        let (stream, running, failed, asked) = (&stream, &running, &failed, &stop);
        scope.spawn(move || {
            if let Err(e) = stream.send(args.num_packets, &|| asked.asked()) {
                failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(e.to_string());
            }
            running.store(0, Ordering::Release);
        });
        let done = sample::run(&mut source, &style, times, &|| stop.asked());
        stop.ask();
        done
    })
    .map_err(|e| e.to_string())?;
    let state = stream.state().map_err(|e| e.to_string())?;
    if state.over {
        eprintln!("The receiver has closed the connection");
    }
    if args.common.verbose > 0 {
        let bytes = state.acked;
        eprintln!("{bytes} bytes acknowledged, sent again from the last one {} times", state.again);
    }
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A stream as something to read from.
struct Flowing<'a> {
    stream: &'a Stream,
    running: &'a AtomicUsize,
}

impl Source for Flowing<'_> {
    fn read(&mut self) -> Result<Snapshot, ToolError> {
        Ok(Snapshot { counts: self.stream.counts()?, ..Snapshot::default() })
    }

    fn ended(&self) -> bool {
        self.running.load(Ordering::Acquire) == 0
    }
}

/// Binds the calling thread to the CPU with this place among those that it may run on.
fn bind(place: u32) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut own = CpuSet::new();
    own.set(cpus[place as usize % cpus.len().max(1)]);
    // Without it the thread sends as well, only from anywhere.
    let _ = sched_setaffinity(None, &own);
}

/// A generator as something to read from.
struct Sending<'a> {
    generator: &'a Generator,
    running: &'a AtomicUsize,
}

impl Source for Sending<'_> {
    fn read(&mut self) -> Result<Snapshot, ToolError> {
        Ok(Snapshot { counts: self.generator.counts()?, ..Snapshot::default() })
    }

    fn ended(&self) -> bool {
        self.running.load(Ordering::Acquire) == 0
    }
}
