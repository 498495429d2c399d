//! `xway trafficgen`: packets out of an interface, made in the kernel, or out of a port of ours; and whether they arrived.

use std::time::{Duration, Instant};

use serde_json::json;
use xway_engine::{Choice, Counters, Limits, Native, Port, Stop, Worker, WorkerConfig};
use xway_hook::kernel;
use xway_kernel::Device;
use xway_packet::{Pool, PoolConfig};
use xway_port_pcap::CaptureReader;
use xway_port_sim::{SimPort, Traffic};
use xway_port_wrap::RateConfig;
use xway_tools::objects;
use xway_tools::packets::{Mac, Udp};
use xway_tools::traffic::{Generator, takes_frames};

use super::kernel::{failure, tool_failure};
use crate::args_tools::Trafficgen;
use crate::failure::Failure;
use crate::port_wraps::Wrap;
use crate::ports::{self, Opened, PassName};
use crate::print::{self, grouped, scaled};
use crate::session::{self, Trust};
use crate::{capture, interrupt};

/// Without a count and a time it would never end by itself.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for what is on its way when the last packet has been sent.
const SETTLE: Duration = Duration::from_secs(5);
/// Most packets of a capture.
const PACKETS_MAX: usize = 1 << 20;

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    /// Packets that were made.
    made: u64,
    /// Packets that the interface took.
    sent: u64,
    /// Packets that it did not take.
    lost: u64,
    elapsed: Duration,
}

/// Runs the verb.
pub fn run(args: &Trafficgen, as_json: bool) -> Result<(), Failure> {
    let stop = Stop::new().map_err(|e| Failure::needs(format!("no file descriptor left: {e}")))?;
    let check = args.check.as_deref().map(|name| kernel::device(name).map_err(failure)).transpose()?;
    let before = check.as_ref().map(received).transpose()?;
    let timeout = args.timeout.or(args.count.is_none().then_some(TIMEOUT));
    let (done, hook) = match args.port.contains(':') {
        true => (from_port(args, timeout, &stop)?, "user"),
        false => (from_kernel(args, timeout, &stop)?, "kernel"),
    };
    let arrived = match (&check, before) {
        (Some(device), Some(before)) => Some(settled(device, before, done.sent)?),
        _ => None,
    };
    report(args, hook, &done, arrived, as_json)
}

fn report(args: &Trafficgen, hook: &str, done: &Done, arrived: Option<u64>, as_json: bool) -> Result<(), Failure> {
    let pps = done.sent as f64 / done.elapsed.as_secs_f64().max(1e-9);
    let missing = arrived.map_or(0, |arrived| done.sent.saturating_sub(arrived));
    if as_json {
        print::json(&print::document(
            "trafficgen",
            json!({
                "port": args.port,
                "hook": hook,
                "asked": args.count,
                "made": done.made,
                "sent": done.sent,
                "lost": done.lost,
                "arrived": arrived,
                "checked_at": args.check,
                "elapsed_ns": done.elapsed.as_nanos() as u64,
                "pps": (pps * 100.0).round() / 100.0,
            }),
        ));
    } else {
        let mut out = format!(
            "{}: {} packets sent in {:.3} s: {}packets/s; {} were not taken\n",
            args.port,
            grouped(done.sent),
            done.elapsed.as_secs_f64(),
            scaled(pps),
            grouped(done.lost)
        );
        match (&args.check, arrived) {
            (Some(name), Some(arrived)) => out.push_str(&format!("{name}: {} arrived\n", grouped(arrived))),
            _ => out.push_str("whether they arrived was not asked: --check IFACE\n"),
        }
        print::text(&out);
    }
    if missing > 0 {
        let failure = Failure::no(format!("{} of {} packets did not arrive", grouped(missing), grouped(done.sent)));
        return Err(if as_json { failure.said() } else { failure });
    }
    Ok(())
}

/// Packets that an interface has received.
fn received(device: &Device) -> Result<u64, Failure> {
    let all = xway_kernel::device_counters(device.ifindex).map_err(|e| failure(xway_hook::explain::plain(&e)))?;
    Ok(all.iter().find(|(name, _)| name == "rx_packets").map_or(0, |(_, n)| *n))
}

/// The same since `before`, when all of them have come or no more do.
fn settled(device: &Device, before: u64, expected: u64) -> Result<u64, Failure> {
    let (mut last, mut changed) = (0, Instant::now());
    loop {
        let now = received(device)?.saturating_sub(before);
        if now >= expected || (now == last && changed.elapsed() > SETTLE) {
            return Ok(now);
        }
        if now != last {
            (last, changed) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The datagram that is asked for.
fn datagram(args: &Trafficgen, own: Option<[u8; 6]>) -> Udp {
    Udp {
        src_mac: args.src_mac.unwrap_or(Mac(own.unwrap_or_default())),
        dst_mac: args.dst_mac.unwrap_or_default(),
        src: args.src,
        dst: args.dst,
        src_port: args.src_port,
        dst_port: args.dst_port,
        hop_limit: args.hop_limit,
        len: args.size,
    }
}

/// The packets of a capture.
fn recorded(path: &std::path::Path) -> Result<Vec<Vec<u8>>, Failure> {
    let mut reader = CaptureReader::open(path).map_err(|e| capture::failure(&e))?;
    let mut all = Vec::new();
    while let Some(packet) = reader.next_with(|r| r.data.to_vec()).map_err(|e| capture::failure(&e))? {
        if all.len() == PACKETS_MAX {
            return Err(Failure::input(format!("{}: more than {PACKETS_MAX} packets", path.display())));
        }
        all.push(packet);
    }
    if all.is_empty() {
        return Err(Failure::input(format!("{}: it has no packet", path.display())));
    }
    Ok(all)
}

fn from_kernel(args: &Trafficgen, timeout: Option<Duration>, stop: &Stop) -> Result<Done, Failure> {
    let out = kernel::device(&args.port).map_err(failure)?;
    if takes_frames(&out).map_err(tool_failure)? == Some(false) {
        let words = format!("{}: the interface takes no frames from XDP now", out.name);
        let hint = match out.kind.as_str() {
            "veth" => {
                let end = xway_hook::OtherEnd::of(&out);
                let on = |end: &str| format!("ethtool -K {end} gro on");
                format!("{}; or a native program there", xway_hook::at_other_end(&out.name, end.as_ref(), on))
            }
            _ => format!("packet:{} sends through a socket", out.name),
        };
        return Err(Failure::needs(words).hint(hint));
    }
    let (packets, ports) = match &args.pcap {
        Some(path) => (recorded(path)?, None),
        None => {
            let udp = datagram(args, out.mac);
            (vec![udp.build().map_err(tool_failure)?], Some(udp.ports(args.flows)))
        }
    };
    let generator = Generator::open(&out, packets, ports).map_err(tool_failure)?;
    interrupt::catch(stop)?;
    let start = Instant::now();
    let over = || stop.asked() || timeout.is_some_and(|timeout| start.elapsed() >= timeout);
    generator.send(args.count, args.rate, &over).map_err(tool_failure)?;
    let elapsed = start.elapsed();
    let (made, xmit) = (generator.made().map_err(tool_failure)?.sum(), generator.counts().map_err(tool_failure)?.xmit);
    Ok(Done { made: made.processed, sent: xmit.sum().processed, lost: xmit.sum().dropped, elapsed })
}

fn from_port(args: &Trafficgen, timeout: Option<Duration>, stop: &Stop) -> Result<Done, Failure> {
    let name = PassName::parse(&args.port)?;
    let interface = args.port.split_once(':').map_or("", |(_, rest)| rest);
    let own = kernel::device(interface).ok().and_then(|d| d.mac);
    let packets = match &args.pcap {
        Some(path) => recorded(path)?,
        None => {
            let one = datagram(args, own);
            let flow = |n: u16| Udp { dst_port: one.dst_port.wrapping_add(n), ..one }.build();
            (0..args.flows).map(flow).collect::<Result<_, _>>().map_err(tool_failure)?
        }
    };
    let traffic = Traffic::replay(packets).map_err(Failure::input)?;
    let (source, _) = SimPort::generated("traffic", u32::MAX, traffic, args.count);
    let rate = RateConfig { rx_pps: args.rate.map(|pps| pps as f64), tx_pps: None };
    let source: Box<dyn Port> = match args.rate {
        Some(_) => Wrap::Rate(rate).around(Box::new(source))?,
        None => Box::new(source),
    };
    let pool = Pool::new(PoolConfig::default()).map_err(Failure::needs)?;
    let opened = Opened { ports: vec![source], inputs: 1, pool, notes: Vec::new() };
    let Opened { ports, pool, notes, .. } = ports::with_pass(opened, Some(&name), ports::Memory::default())?;
    notes.iter().for_each(|note| print::warn(note));
    // Everything passes, and PASS goes out of the port.
    let image = objects::image("measure").map_err(tool_failure)?;
    let object = xway_object::Object::clone(&image.object);
    let instance = session::instance(object, Trust::Verified, "the built-in program")?;
    let idle = image.object.programs.iter().find(|p| p.name == "idle").and_then(|p| p.as_xdp().ok());
    let idle = idle.ok_or_else(|| Failure::no("the built-in program idle is missing"))?;
    let program = session::link(&instance, &idle, "the built-in program")?;
    let executor = Choice::compiled(&program, &xway_jit::Options::default()).code;
    let executor: Box<dyn xway_engine::Executor> = match executor {
        Some(code) => Box::new(Native::new(program.clone(), code, 0)),
        None => Box::new(xway_engine::Checked::new(program.clone(), 0)),
    };
    interrupt::catch(stop)?;
    let mut config = WorkerConfig::new(stop.clone());
    config.limits = Limits { count: args.count, timeout };
    config.maps = instance.maps().to_vec();
    config.inputs = vec![(0, 0)];
    config.pass_to = vec![(0, 1)];
    let report = Worker::new(ports, executor, pool, config).run();
    if let xway_engine::End::Failed(error) = &report.end {
        return Err(ports::port_failure(error));
    }
    let Counters { rx, passed, pass_lost, .. } = &report.counters;
    Ok(Done { made: *rx, sent: *passed, lost: pass_lost.total(), elapsed: report.elapsed })
}
