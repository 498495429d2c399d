//! `xdp-bench`: what the kernel's hook carries; the commands, options, lines and exit codes of the tool of that name.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use xway_abi::Verdict;
use xway_kernel::{Device, XdpMode};
use xway_tools::ToolError;
use xway_tools::measure::{Action, ByCpu, Measure, Setup, Snapshot, Touch};

use super::sample::{self, Shown, Source, Style, Times};
use super::{Common, device, parsed, xsk};
use crate::print;

/// Measure XDP on an interface.
#[derive(Parser, Debug)]
#[command(name = "xdp-bench", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Drop all packets on an interface
    Drop(Basic),
    /// Pass all packets to the network stack
    Pass(Basic),
    /// Send packets back out of the interface they came from
    Tx(Basic),
    /// Redirect by the number of the interface
    Redirect(Redirect),
    /// Redirect to another CPU through a CPUMAP
    RedirectCpu(RedirectCpu),
    /// Redirect through a DEVMAP
    RedirectMap(RedirectMap),
    /// Redirect to several interfaces through a DEVMAP
    RedirectMulti(RedirectMulti),
    /// Drop packets in an application, behind an AF_XDP socket
    XskDrop(xsk::Bench),
    /// Send packets back from an application, behind an AF_XDP socket
    XskTx(xsk::Bench),
}

const COMMANDS: [&str; 10] =
    ["drop", "pass", "tx", "redirect", "redirect-cpu", "redirect-map", "redirect-multi", "xsk-drop", "xsk-tx", "help"];

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Operation {
    #[value(alias = "no_touch")]
    NoTouch,
    #[value(alias = "touch")]
    ReadData,
    ParseIp,
    SwapMacs,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq)]
enum Load {
    Dpa,
    LoadBytes,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq)]
enum Mode {
    Native,
    Skb,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq)]
enum Program {
    NoTouch,
    Touch,
    RoundRobin,
    L4Proto,
    L4Filter,
    L4Hash,
    L4Sport,
    L4Dport,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq)]
enum Remote {
    Disabled,
    Drop,
    Pass,
    Redirect,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq)]
enum Egress {
    Forward,
    Drop,
}

/// Options of every command.
#[derive(Args, Debug)]
struct Shared {
    /// Seconds between two lines
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
    /// All figures, by CPU
    #[arg(short, long)]
    extended: bool,
    /// Where the program runs
    #[arg(short, long = "xdp-mode", visible_alias = "mode", value_enum, default_value_t = Mode::Native)]
    mode: Mode,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct Basic {
    /// Interface
    ifname: String,
    /// What is done to a packet before its verdict (no-touch; tx: swap-macs)
    #[arg(short, long, value_enum, visible_alias = "program-mode")]
    packet_operation: Option<Operation>,
    /// How the packet is read and written: in place, or by helpers that copy
    #[arg(short, long, value_enum, default_value_t = Load::Dpa)]
    load_mode: Load,
    /// Count for each receive queue too
    #[arg(short, long)]
    rxq_stats: bool,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Args, Debug)]
struct Redirect {
    /// From this interface
    ifname_in: String,
    /// To this one
    ifname_out: String,
    /// How the packet is read and written
    #[arg(short, long, value_enum, default_value_t = Load::Dpa)]
    load_mode: Load,
    /// Count successful redirects too, which costs something for every packet
    #[arg(short, long)]
    stats: bool,
    #[command(flatten)]
    shared: Shared,
}

/// A program behind the map.
#[derive(Args, Debug)]
struct Behind {
    /// Run a program behind the map
    #[arg(short = 'X', long)]
    load_egress: bool,
    /// What it does
    #[arg(short = 'A', long, value_enum, default_value_t = Egress::Forward)]
    egress_action: Egress,
}

impl Behind {
    fn verdict(&self) -> Option<Verdict> {
        self.load_egress.then_some(match self.egress_action {
            Egress::Forward => Verdict::Pass,
            Egress::Drop => Verdict::Drop,
        })
    }
}

#[derive(Args, Debug)]
struct RedirectMap {
    /// From this interface
    ifname_in: String,
    /// To this one
    ifname_out: String,
    #[command(flatten)]
    behind: Behind,
    /// Count successful redirects too, which costs something for every packet
    #[arg(short, long)]
    stats: bool,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Args, Debug)]
struct RedirectMulti {
    /// From the first to all of the others
    #[arg(required = true, num_args = 2..)]
    ifnames: Vec<String>,
    #[command(flatten)]
    behind: Behind,
    /// Count successful redirects too, which costs something for every packet
    #[arg(short, long)]
    stats: bool,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Args, Debug)]
struct RedirectCpu {
    /// Interface
    ifname: String,
    /// A CPU to send packets to; can be given several times
    #[arg(short, long, required = true)]
    cpu: Vec<u32>,
    /// How the CPU is chosen
    #[arg(short, long, value_enum, default_value_t = Program::L4Hash)]
    program_mode: Program,
    /// What is done on the other CPU
    #[arg(short, long, value_enum, default_value_t = Remote::Disabled)]
    remote_action: Remote,
    /// Where packets are redirected on the other CPU
    #[arg(short = 'D', long)]
    redirect_device: Option<String>,
    /// Length of a CPU's queue, packets
    #[arg(short, long, default_value_t = 2048)]
    qsize: u32,
    /// Take the queues away and make them anew at every interval
    #[arg(short = 'x', long)]
    stress_mode: bool,
    /// Count successful redirects too, which costs something for every packet
    #[arg(short, long)]
    stats: bool,
    #[command(flatten)]
    shared: Shared,
}

/// Runs the tool.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let cli: Cli = match parsed("xdp-bench", &COMMANDS, arguments) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match measure(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => super::wrong(&words),
    }
}

fn measure(command: &Command) -> Result<(), String> {
    let (setup, shared, stress) = match command {
        Command::Drop(args) => basic(Action::Drop, args)?,
        Command::Pass(args) => basic(Action::Pass, args)?,
        Command::Tx(args) => basic(Action::Tx, args)?,
        Command::Redirect(args) => {
            let load_bytes = args.load_mode == Load::LoadBytes;
            let outputs = vec![device(&args.ifname_out)?];
            let setup =
                Setup { outputs, load_bytes, successes: args.stats, ..moved(Action::Redirect, &args.ifname_in)? };
            (setup, &args.shared, false)
        }
        Command::RedirectMap(args) => {
            let (outputs, behind) = (vec![device(&args.ifname_out)?], args.behind.verdict());
            let setup =
                Setup { outputs, behind, successes: args.stats, ..moved(Action::RedirectMap, &args.ifname_in)? };
            (setup, &args.shared, false)
        }
        Command::RedirectMulti(args) => {
            let outputs = args.ifnames.iter().map(|name| device(name)).collect::<Result<Vec<_>, _>>()?;
            let input = args.ifnames.first().map_or("", String::as_str);
            let behind = args.behind.verdict();
            let setup = Setup { outputs, behind, successes: args.stats, ..moved(Action::RedirectMulti, input)? };
            (setup, &args.shared, false)
        }
        Command::RedirectCpu(args) => by_cpu(args)?,
        Command::XskDrop(args) => return xsk::bench(args, false),
        Command::XskTx(args) => return xsk::bench(args, true),
    };
    let mode = if shared.mode == Mode::Skb { XdpMode::Generic } else { XdpMode::Native };
    let setup = Setup { mode, ..setup };
    let stop = super::stopped()?;
    let style = style(&setup, shared.extended);
    let measure = Measure::open(setup).map_err(|e| refused(&e, shared))?;
    say(measure.setup());
    let mut running = Running { measure, stress };
    let times = Times::every(Some(Duration::from_secs(shared.interval.into())));
    sample::run(&mut running, &style, times, &|| stop.asked()).map_err(|e| e.to_string())
}

/// Packets that leave have their addresses changed, as a switch demands it.
fn moved(action: Action, input: &str) -> Result<Setup, String> {
    Ok(Setup { touch: Touch::SwapMacs, ..Setup::new(action, device(input)?) })
}

type Prepared<'a> = (Setup, &'a Shared, bool);

fn basic(action: Action, args: &Basic) -> Result<Prepared<'_>, String> {
    let touch = match args.packet_operation {
        None if action == Action::Tx => Touch::SwapMacs,
        None | Some(Operation::NoTouch) => Touch::NoTouch,
        Some(Operation::ReadData) => Touch::ReadData,
        Some(Operation::ParseIp) => Touch::ParseIp,
        Some(Operation::SwapMacs) => Touch::SwapMacs,
    };
    let load_bytes = args.load_mode == Load::LoadBytes;
    let setup = Setup { touch, load_bytes, by_queue: args.rxq_stats, ..Setup::new(action, device(&args.ifname)?) };
    Ok((setup, &args.shared, false))
}

fn by_cpu(args: &RedirectCpu) -> Result<Prepared<'_>, String> {
    let by = match args.program_mode {
        Program::NoTouch => ByCpu::NoTouch,
        Program::Touch => ByCpu::Touch,
        Program::RoundRobin => ByCpu::RoundRobin,
        Program::L4Proto => ByCpu::Protocol,
        Program::L4Filter => ByCpu::ProtocolFiltered,
        Program::L4Hash => ByCpu::Hash,
        Program::L4Sport => ByCpu::SourcePort,
        Program::L4Dport => ByCpu::DestinationPort,
    };
    let behind = match args.remote_action {
        Remote::Disabled => None,
        Remote::Drop => Some(Verdict::Drop),
        Remote::Pass => Some(Verdict::Pass),
        Remote::Redirect => Some(Verdict::Redirect),
    };
    let outputs: Vec<Device> = match (&args.redirect_device, args.remote_action) {
        (Some(name), Remote::Redirect) => vec![device(name)?],
        (None, Remote::Redirect) => {
            return Err("-r redirect needs to know where to: -D IFNAME".into());
        }
        (Some(_), _) => return Err("-D only goes with -r redirect".into()),
        (None, _) => Vec::new(),
    };
    let setup = Setup {
        outputs,
        behind,
        cpus: args.cpu.clone(),
        queue_len: args.qsize,
        successes: args.stats,
        ..Setup::new(Action::RedirectCpu(by), device(&args.ifname)?)
    };
    Ok((setup, &args.shared, args.stress_mode))
}

fn style(setup: &Setup, extended: bool) -> Style {
    let plain = matches!(setup.action, Action::Drop | Action::Pass | Action::Tx);
    let cpus = matches!(setup.action, Action::RedirectCpu(_));
    let native = setup.mode == XdpMode::Native;
    let shown = Shown {
        received: true,
        redirected: setup.successes && !plain,
        drops_wanted: setup.action == Action::Drop,
        redirects: !plain,
        transmitted: native && !plain && (!cpus || setup.behind == Some(Verdict::Redirect)),
        cpus,
        behind: cpus && setup.behind.is_some(),
        devices: false,
    };
    let from = &setup.input.name;
    let title = match setup.outputs.as_slice() {
        _ if plain => "Summary".to_owned(),
        [to] => format!("{from}->{}", to.name),
        [] => format!("{from}->?"),
        _ => format!("{from}->(all)"),
    };
    Style { title, shown, extended }
}

/// What is going on, in one line.
fn say(setup: &Setup) {
    let one = |d: &Device| {
        let kind = if d.kind.is_empty() { String::new() } else { format!("; driver {}", d.kind) };
        format!("{} (ifindex {}{kind})", d.name, d.ifindex)
    };
    let input = one(&setup.input);
    let text = match setup.action {
        Action::Drop => format!("Dropping packets on {input}"),
        Action::Pass => format!("Passing packets on {input}"),
        Action::Tx => format!("Hairpinning (XDP_TX) packets on {input}"),
        Action::Redirect | Action::RedirectMap => {
            format!("Redirecting from {input} to {}", setup.outputs.first().map(one).unwrap_or_default())
        }
        Action::RedirectMulti | Action::RedirectCpu(_) => return,
    };
    print::text(&format!("{text}\n"));
}

/// What the kernel said, and what to try.
fn refused(error: &ToolError, shared: &Shared) -> String {
    let errno = match error {
        ToolError::Kernel(e) => e.errno(),
        ToolError::Hook(e) => e.errno,
        _ => None,
    };
    let hint = match errno {
        Some(xway_abi::Errno::EBUSY) => "\nA program is attached there: xway status, xway unload",
        Some(xway_abi::Errno::EOPNOTSUPP) if shared.mode == Mode::Native => "\nThe driver has no native XDP: -m skb",
        Some(xway_abi::Errno::EPERM) => "\nRun as root",
        _ => "",
    };
    format!("Couldn't attach XDP program: {error}{hint}")
}

/// A measurement as something to read from.
struct Running {
    measure: Measure,
    stress: bool,
}

impl Source for Running {
    fn read(&mut self) -> Result<Snapshot, ToolError> {
        self.measure.read()
    }

    fn between(&mut self) -> Result<(), ToolError> {
        if self.stress { self.measure.stress() } else { Ok(()) }
    }
}
