//! `xdpdump`: packets at the kernel's hook, as text or as a capture; the options, lines and exit codes of the tool of that name.
//!
//! That tool traces programs that are attached, which many kernels refuse. Here a program of ours stands in front of them: what comes
//! in is seen, what a program made of it is not.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use xway_engine::{Port, Stop};
use xway_kernel::{Device, KernelProg, XdpMode};
use xway_packet::{Burst, Pool, PoolConfig};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_pcap::{CaptureWriter, Written};
use xway_tools::capture::{self, Capture, SNAP_MAX};

use super::guard::{self, Guard};
use super::{Common, device, loader, parsed};
use crate::print;

/// Show packets at the kernel's hook.
#[derive(Parser, Debug)]
#[command(name = "xdpdump", disable_version_flag = true)]
struct Cli {
    /// Where packets are taken: entry (exit, what the program made of them, cannot be seen on kernels without tracing of programs)
    #[arg(long, value_name = "MODE", value_delimiter = ',', value_enum, default_value = "entry")]
    rx_capture: Vec<Point>,
    /// List interfaces and the programs on them
    #[arg(short = 'D', long)]
    list_interfaces: bool,
    /// Where the program runs that --load-xdp-program loads
    #[arg(long, value_enum, default_value_t = Mode::Native)]
    load_xdp_mode: Mode,
    /// Capture with a program of its own where none is attached, instead of a socket
    #[arg(long)]
    load_xdp_program: bool,
    /// Interface
    #[arg(short, long)]
    interface: Option<String>,
    /// Packets of a CPU that wake this once; 0: as many as fill half a ring (-v says how many)
    #[arg(long, value_name = "EVENTS", default_value_t = 0)]
    perf_wakeup: u32,
    /// Programs, by name or number, of which the attached one must be one
    #[arg(short, long, value_name = "PROG", value_delimiter = ',')]
    program_names: Vec<String>,
    /// Also packets for others
    #[arg(short = 'P', long)]
    promiscuous_mode: bool,
    /// Most bytes of a packet
    #[arg(short, long, default_value_t = 262_144)]
    snapshot_length: u32,
    /// Write pcap, which knows nothing but packets, instead of pcapng
    #[arg(long)]
    use_pcap: bool,
    /// Write packets to a file; `-`: to standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Show the bytes too
    #[arg(short = 'x', long)]
    hex: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq)]
enum Point {
    Entry,
    Exit,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Mode {
    Native,
    Skb,
    Hw,
    Unspecified,
}

/// Runs the tool.
pub fn run(arguments: &[OsString]) -> ExitCode {
    if let [first, rest @ ..] = arguments
        && first == guard::WORD
    {
        return guard::run(rest);
    }
    let cli: Cli = match parsed("xdpdump", &[], arguments) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    dump(&cli).map_or_else(|words| super::wrong(&words), |()| ExitCode::SUCCESS)
}

fn dump(cli: &Cli) -> Result<(), String> {
    if cli.list_interfaces {
        return loader::table(None).map(|text| print::text(&format!("{text}\n")));
    }
    let Some(name) = &cli.interface else { return Err("ERROR: which interface? -i IFNAME".into()) };
    let on = device(name)?;
    let attached = on.attached().next();
    if attached.is_some() {
        named(cli, &on)?;
    }
    if cli.rx_capture.contains(&Point::Exit) {
        return Err(match (attached, cli.load_xdp_program) {
            (None, false) => "ERROR: For legacy capture only \"--rx-capture entry\" is supported!".into(),
            _ => "ERROR: packets behind a program are not captured here, which needs tracing of programs (fexit): \
                --rx-capture entry; xway dump shows them in the engine"
                .into(),
        });
    }
    let stop = super::stopped()?;
    let mut out = Out::new(cli, &on)?;
    let lost = match (attached, cli.load_xdp_program) {
        (None, false) => {
            eprintln!("WARNING: Specified interface does not have an XDP program loaded,");
            eprintln!("         capturing in legacy mode!");
            through_socket(cli, &on, &mut out, &stop)?
        }
        _ => through_hook(cli, &on, &mut out, &stop)?,
    };
    let (count, ring) = (out.count, out.ring);
    out.finish()?;
    eprintln!("\n{count} packets captured\n{lost} packets dropped by {ring}");
    Ok(())
}

/// The attached program is one of those that were asked for.
fn named(cli: &Cli, on: &Device) -> Result<(), String> {
    let programs: Vec<(u32, String)> = loader::programs(&on.name)?;
    for wanted in cli.program_names.iter().filter(|w| *w != "all") {
        let (name, id) = match wanted.split_once('@') {
            None => (wanted.as_str(), None),
            Some((name, id)) => {
                let number = id.parse::<u32>();
                let wrong = |_| format!("ERROR: Can't extract valid program id from \"{wanted}\"!");
                (name, Some(number.map_err(wrong)?))
            }
        };
        if let Some(id) = id.filter(|id| programs.iter().all(|(known, _)| known != id)) {
            return Err(format!("ERROR: Invalid program id supplied, \"{name}@{id}\"!"));
        }
        let number = name.parse::<u32>().ok();
        // The kernel keeps fifteen characters of a name.
        let is = |(known, short): &(u32, String)| {
            id.is_none_or(|id| id == *known)
                && (number == Some(*known) || short == name || short.len() == 15 && name.starts_with(short))
        };
        if !programs.iter().any(is) {
            return Err(match id {
                Some(id) => format!("ERROR: Can't find function '{name}' in interface program {id}!"),
                None => format!("ERROR: Can't find function '{name}' on interface!"),
            });
        }
    }
    Ok(())
}

/// Where packets go.
struct Out<'a> {
    cli: &'a Cli,
    name: String,
    writer: Option<CaptureWriter>,
    count: u64,
    /// What loses packets.
    ring: &'static str,
}

/// One packet, wherever it was taken.
struct Taken<'a> {
    time: Duration,
    data: &'a [u8],
    len: u32,
    queue: u32,
    number: u64,
}

impl<'a> Out<'a> {
    fn new(cli: &'a Cli, on: &Device) -> Result<Out<'a>, String> {
        let writer = cli.write.as_ref().map(|path| {
            let name = path.display().to_string();
            let out: Box<dyn std::io::Write + Send> = match path == Path::new("-") {
                true => Box::new(std::io::stdout()),
                false => Box::new(File::create(path).map_err(|e| format!("ERROR: {name}: {e}"))?),
            };
            let writer = match cli.use_pcap {
                true => CaptureWriter::stream_plain(out, &name),
                false => CaptureWriter::stream(out, &name, &[&on.name]),
            };
            writer.map_err(|e| format!("ERROR: {e}"))
        });
        Ok(Out { cli, name: on.name.clone(), writer: writer.transpose()?, count: 0, ring: "perf ring" })
    }

    /// `at`: what is known of the place, for the line that shows the packet.
    fn take(&mut self, p: &Taken<'_>, at: &str, behind: &str) -> Result<(), String> {
        self.count += 1;
        let data = &p.data[..p.data.len().min(self.cli.snapshot_length as usize)];
        let Some(writer) = &mut self.writer else {
            let captured = if self.cli.hex { format!(", captured {} bytes", data.len()) } else { String::new() };
            let mut text = format!("{at}packet size {} bytes{captured} on {behind}\n", p.len);
            if self.cli.hex {
                text.push_str(&hex(data));
                text.push('\n');
            }
            print::text(&text);
            return Ok(());
        };
        let packet = Written {
            timestamp_ns: p.time.as_nanos() as u64,
            data,
            original_len: p.len,
            interface: 0,
            queue: p.queue,
            packet_id: p.number,
            verdict: None,
            comment: None,
            inbound: true,
        };
        writer.write(&packet).and_then(|()| writer.flush()).map_err(|e| format!("ERROR: {e}"))
    }

    fn finish(self) -> Result<(), String> {
        self.writer.map_or(Ok(()), |writer| writer.finish().map_err(|e| format!("ERROR: {e}")))
    }
}

/// Sixteen bytes a line, with their place and what they are as characters.
fn hex(data: &[u8]) -> String {
    let mut out = String::new();
    for (at, line) in data.chunks(16).enumerate() {
        let bytes: String = line.iter().map(|b| format!("{b:02x} ")).collect();
        let shown: String =
            line.iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { *b as char } else { '.' }).collect();
        out.push_str(&format!("  0x{:04x}:  {bytes:<48} {shown}\n", at * 16));
    }
    out
}

/// As often as Ctrl-C is looked for.
const LOOK: Duration = Duration::from_millis(50);

fn through_hook(cli: &Cli, on: &Device, out: &mut Out<'_>, stop: &Stop) -> Result<u64, String> {
    let mode = match cli.load_xdp_mode {
        Mode::Native => XdpMode::Native,
        Mode::Skb => XdpMode::Generic,
        Mode::Hw => XdpMode::Offload,
        Mode::Unspecified => XdpMode::Any,
    };
    let words = |e: xway_tools::ToolError| format!("ERROR: {e}");
    if on.attached().next().is_none() {
        eprintln!("WARNING: Specified interface does not have an XDP program loaded!");
        eprintln!("         Will load a capture only XDP program!");
    }
    let _promiscuous = match cli.promiscuous_mode {
        true => Some(socket(cli, on)?),
        false => None,
    };
    let wakeup = capture::wakeup(cli.perf_wakeup, cli.snapshot_length);
    if cli.common.verbose > 0 {
        eprintln!("perf-wakeup value uses {wakeup}");
    }
    let capture = Capture::open(on, mode, cli.snapshot_length.min(SNAP_MAX), wakeup).map_err(words)?;
    let seen = capture.behind().unwrap_or_else(|| capture.program());
    let name = KernelProg::by_id(seen).and_then(|p| p.info()).map_or_else(|_| "xdpdump".into(), |i| i.name);
    // The kernel keeps fifteen characters of a name: who asked for one program knows all of it.
    let name = match cli.program_names.as_slice() {
        [one] if capture.behind().is_some() && one != "all" && one.parse::<u32>().is_err() => {
            one.split('@').next().unwrap_or(one).to_owned()
        }
        _ => name,
    };
    // Dropped in the opposite order: what is captured is taken away first.
    let (_guard, mut capture) = match capture.behind() {
        None => (None, capture),
        Some(id) => {
            eprintln!("program {id} has a program of xdpdump in front of it for as long as this runs");
            let guard = Guard::start(on, capture.program(), id);
            let guard = guard.map_err(|e| format!("ERROR: the process that puts program {id} back: {e}"))?;
            (Some(guard), capture)
        }
    };
    eprintln!(
        "listening on {}, ingress XDP program ID {seen} func {name}, capture mode entry, capture size {} bytes",
        on.name, cli.snapshot_length
    );
    let mut lost = 0;
    while !stop.asked() {
        lost += one_turn(&mut capture, &name, out, LOOK)?;
    }
    // What came before Ctrl-C.
    lost += one_turn(&mut capture, &name, out, Duration::ZERO)?;
    Ok(lost)
}

fn one_turn(capture: &mut Capture, name: &str, out: &mut Out<'_>, most: Duration) -> Result<u64, String> {
    let mut failed = Ok(());
    let lost = capture.read(most, &mut |p| {
        let (seconds, nanos) = (p.time.as_secs(), p.time.subsec_nanos());
        let at = format!("{seconds}.{nanos:09}: {name}()@entry: ");
        let behind = format!("if_index {}, rx queue {}, id {}", p.ifindex, p.queue, p.number);
        let taken = Taken { time: p.time, data: &p.data, len: p.len, queue: p.queue, number: p.number };
        if failed.is_ok() {
            failed = out.take(&taken, &at, &behind);
        }
    });
    failed?;
    lost.map_err(|e| format!("ERROR: {e}"))
}

fn socket(cli: &Cli, on: &Device) -> Result<PacketPort, String> {
    let config = PacketConfig { promiscuous: cli.promiscuous_mode, ..PacketConfig::new(&on.name) };
    PacketPort::open(&config).map_err(|e| format!("ERROR: {}", e.into_port_error(&on.name)))
}

/// Without any program: copies of what the interface receives.
fn through_socket(cli: &Cli, on: &Device, out: &mut Out<'_>, stop: &Stop) -> Result<u64, String> {
    out.ring = "kernel";
    let mut port = socket(cli, on)?;
    let mut pool = Pool::new(PoolConfig::default()).map_err(|e| format!("ERROR: {e}"))?;
    eprintln!("listening on {}, link-type EN10MB (Ethernet), capture size {} bytes", on.name, cli.snapshot_length);
    let mut burst = Burst::new();
    while !stop.asked() {
        port.rx(0, &mut pool, &mut burst, 64).map_err(|e| format!("ERROR: {e}"))?;
        if burst.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for frame in burst.drain() {
            let at = format!("{}.{:06}: ", time.as_secs(), time.subsec_micros());
            let behind = format!("if_name \"{}\"", out.name);
            let (data, number) = (frame.packet(), out.count + 1);
            let taken = Taken { time, data, len: data.len() as u32, queue: 0, number };
            out.take(&taken, &at, &behind)?;
            pool.release(frame);
        }
    }
    Ok(port.stats().dropped)
}
