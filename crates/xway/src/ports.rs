//! Port names on the command line: `pcap:FILE?loop=3`, `packet:IFACE`, `tap:NAME?queues=2`, `afxdp:IFACE`, `sim:a?flows=100`, or a
//! bare path of a capture.

use std::fmt;
use std::path::{Path, PathBuf};

use xway_engine::{Device, Discard, MemoryModel, Port, PortError, PortErrorKind, Recorder};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice, Copying};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_pcap::{CaptureRecorder, PcapPort, PcapSink};
use xway_port_tap::{Injector, Offload, Stacked, TapConfig, TapDevice};

use xway_kernel::XdpMode;
use xway_packet::{Backing, Pool, PoolConfig};

use crate::capture;
use crate::failure::{Exit, Failure};
use crate::port_memory::{Played, Sim};
use crate::port_options::Options;

/// A port as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortName {
    /// A capture file; `-` is standard input.
    Capture(PathBuf),
    /// Capture files that are played in another way than once.
    Played(Played),
    /// Packets from memory.
    Sim(Sim),
    /// A network interface, through AF_PACKET.
    Packet(String),
    /// A TAP device of this host.
    Tap(TapConfig),
    /// A network interface, through AF_XDP sockets.
    AfXdp(AfXdpConfig),
}

/// Endings of capture files that may stand without `pcap:`.
const ENDINGS: [&str; 9] =
    [".pcap", ".pcapng", ".cap", ".pcap.gz", ".pcapng.gz", ".cap.gz", ".pcap.zst", ".pcapng.zst", ".cap.zst"];

impl PortName {
    /// Reads a port name.
    pub fn parse(text: &str) -> Result<PortName, Failure> {
        match text.split_once(':') {
            Some(("pcap", "")) => Err(Failure::usage("pcap: names no file; pcap:- is standard input")),
            Some(("pcap", file)) => Ok(match Played::parse(text, file)? {
                Some(played) => PortName::Played(played),
                None => PortName::Capture(file.into()),
            }),
            Some(("sim", rest)) => Sim::parse(text, rest).map(PortName::Sim),
            Some(("packet", "")) => Err(Failure::usage("packet: names no interface, as in packet:eth0")),
            Some(("packet", interface)) => Ok(PortName::Packet(interface.into())),
            Some(("tap", "")) => Err(Failure::usage("tap: names no interface, as in tap:xw0")),
            Some(("tap", rest)) => tap(text, rest).map(PortName::Tap),
            Some(("afxdp", "")) => Err(Failure::usage("afxdp: names no interface, as in afxdp:eth0")),
            Some(("afxdp", rest)) => afxdp(text, rest).map(PortName::AfXdp),
            _ if text == "-" => Ok(PortName::Capture("-".into())),
            _ if ENDINGS.iter().any(|e| text.ends_with(e)) => Ok(PortName::Capture(text.into())),
            _ => Err(Failure::usage(format!("{text:?} is no port"))
                .hint("pcap:FILE for a capture, afxdp:IFACE or packet:IFACE for an interface, tap:NAME for a TAP device, sim:NAME for \
                       packets from memory, pcap:- for standard input")),
        }
    }
}

/// Where PASS goes, as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PassName {
    /// Nowhere: what passes is counted and gone.
    Drop,
    /// Out of, or into, this port.
    Port(PortName),
}

impl PassName {
    /// Reads the value of `--pass`: a port, `port:PORT`, or `drop`.
    pub fn parse(text: &str) -> Result<PassName, Failure> {
        match text.strip_prefix("port:").unwrap_or(text) {
            "drop" => Ok(PassName::Drop),
            "-" | "pcap:-" => Err(Failure::usage("--pass: standard output is for results").hint("--pass pcap:FILE")),
            port => PortName::parse(port).map(PassName::Port),
        }
    }
}

fn tap(text: &str, rest: &str) -> Result<TapConfig, Failure> {
    let (name, mut options) = Options::split(text, rest);
    let mut config = TapConfig::new(name);
    config.queues = options.number("queues", 1..=TapConfig::QUEUES_MAX)?.unwrap_or(config.queues);
    let words = [("none", Offload::None), ("csum", Offload::Checksum), ("tso", Offload::Segmentation)];
    config.offload = options.choice("offload", &words)?.unwrap_or(config.offload);
    config.frags = options.yes("frags")?;
    options.end()?;
    Ok(config)
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortName::Capture(path) => write!(f, "pcap:{}", path.display()),
            PortName::Played(played) => played.fmt(f),
            PortName::Sim(sim) => sim.fmt(f),
            PortName::Packet(interface) => write!(f, "packet:{interface}"),
            PortName::Tap(config) => write!(f, "tap:{}", config.name),
            PortName::AfXdp(config) => write!(f, "afxdp:{}", config.interface),
        }
    }
}

fn afxdp(text: &str, rest: &str) -> Result<AfXdpConfig, Failure> {
    let (name, mut options) = Options::split(text, rest);
    let mut config = AfXdpConfig::new(name);
    if let Some(value) = options.take("queues") {
        // `queues=4`: the first four. `queues=2-3`: these.
        let (first, last) = value.split_once('-').unwrap_or(("0", value));
        let range = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
        let range = range.map(|(first, last)| (first, if value.contains('-') { last.wrapping_add(1) } else { last }));
        let range = range.filter(|(first, end)| first < end).map(|(first, end)| (first, end - first));
        let wrong =
            || Failure::usage(format!("{text}: queues={value} is neither a number of queues nor a range like 2-3"));
        config.queues = Some(range.ok_or_else(wrong)?);
    }
    let modes = [("auto", XdpMode::Any), ("native", XdpMode::Native), ("generic", XdpMode::Generic)];
    config.mode = options.choice("mode", &modes)?.unwrap_or(config.mode);
    let copying = [("auto", Copying::Auto), ("yes", Copying::Copy), ("no", Copying::ZeroCopy)];
    config.copying = options.choice("copy", &copying)?.unwrap_or(config.copying);
    config.need_wakeup = options.choice("wakeup", &[("yes", true), ("no", false)])?.unwrap_or(config.need_wakeup);
    config.busy_poll = options.number("busy-poll", 1..=u16::MAX)?;
    config.entries = options.number("ring", AfXdpConfig::ENTRIES)?.unwrap_or(config.entries);
    config.map = options.take("map").map(PathBuf::from);
    config.frags = options.yes("frags")?;
    options.end()?;
    Ok(config)
}

/// Open ports of a run, and the memory for their packets.
pub struct Opened {
    /// The memory.
    pub pool: Pool,
    /// What was asked for, what came of it, and why, where that is not the same on every machine.
    pub notes: Vec<String>,
    /// One for each queue of the input, then perhaps the one that PASS goes out of.
    pub ports: Vec<Box<dyn Port>>,
    /// How many of them are the input.
    pub inputs: usize,
}

/// Opens the input, each queue a port, and where PASS goes.
pub fn open(name: &PortName, pass: Option<&PassName>) -> Result<Opened, Failure> {
    let failed = |error: PortError| port_failure(&error);
    let new_pool = |shape| Pool::new(shape).map_err(Failure::needs);
    if let PortName::AfXdp(config) = name {
        return open_afxdp(name, config, pass);
    }
    let pool = new_pool(PoolConfig::default())?;
    let ports: Vec<Box<dyn Port>> = match name {
        PortName::Capture(path) => vec![Box::new(PcapPort::open(path, 0).map_err(|e| capture::failure(&e))?)],
        PortName::Played(played) => {
            let port = PcapPort::play(&played.paths, played.playback(), 0);
            vec![Box::new(port.map_err(|e| capture::failure(&e))?)]
        }
        PortName::Sim(sim) => vec![Box::new(sim.open()?)],
        PortName::Packet(interface) => {
            let port = PacketPort::open(&PacketConfig::new(interface));
            vec![Box::new(port.map_err(|e| failed(e.into_port_error(&name.to_string())))?)]
        }
        PortName::Tap(config) => {
            let mut device = open_tap(config)?;
            device.take_all().into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect()
        }
        PortName::AfXdp(_) => Vec::new(),
    };
    with_pass(Opened { inputs: ports.len(), ports, pool, notes: Vec::new() }, pass)
}

/// Opens queues of an interface. Without a place for PASS it goes back to the interface's own host.
fn open_afxdp(name: &PortName, config: &AfXdpConfig, pass: Option<&PassName>) -> Result<Opened, Failure> {
    let failed = |e: xway_port_afxdp::OpenError| port_failure(&e.into_port_error(&name.to_string()));
    let mut device = AfXdpDevice::open(config).map_err(failed)?;
    let inputs = device.rx_queues();
    let mut pool = Pool::new(device.pool_for(inputs)).map_err(Failure::needs)?;
    let ports = (0..inputs).map(|queue| device.open_port(queue, &mut pool).map(|port| Box::new(port) as Box<dyn Port>));
    let ports = ports.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let notes = device.effective().iter().map(|effective| format!("{name}: {effective}")).collect();
    let mut opened = Opened { inputs: ports.len(), ports, pool, notes };
    if pass.is_some() {
        return with_pass(opened, pass);
    }
    let generic = device.effective().iter().any(|effective| effective.mode == Some(XdpMode::Generic));
    let injector = match generic {
        // Packets that are put back would come here again.
        true => Err("the interface is in generic mode".to_owned()),
        false => Injector::open(device.ifindex(), inputs).map_err(|e| e.to_string()),
    };
    match injector {
        Ok(injector) => {
            let (mut tap, way) = injector.split();
            let way = std::sync::Arc::new(way);
            let stack = |(port, stack)| Stacked::injecting(port, stack, way.clone());
            let ports = opened.ports.into_iter().zip(tap.take_all()).map(stack).collect::<Result<Vec<_>, _>>();
            let ports = ports.map_err(|e| Failure::needs(format!("no file descriptor left: {e}")))?;
            opened.ports = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect();
            opened.notes.push(format!(
                "{name}: PASS goes back into the host as packets of {}, through {}",
                config.interface,
                tap.name()
            ));
        }
        Err(why) => {
            opened.notes.push(format!("{name}: PASS is dropped and counted: {why}; --pass says where it is to go"))
        }
    }
    Ok(opened)
}

/// Puts where PASS goes behind the ports.
pub fn with_pass(opened: Opened, pass: Option<&PassName>) -> Result<Opened, Failure> {
    let Opened { mut ports, inputs, mut pool, notes } = opened;
    let failed = |error: PortError| port_failure(&error);
    match pass {
        None => {}
        Some(PassName::Drop) => ports.push(Box::new(Discard::default())),
        Some(PassName::Port(PortName::Tap(config))) => {
            // Both ways: what the host sends out of the TAP leaves by the port. Each queue has one of the TAP's.
            let mut device = open_tap(&TapConfig { queues: inputs as u32, ..config.clone() })?;
            let stack = |(port, stack)| match Stacked::new(port, stack) {
                Ok(port) => Ok(Box::new(port) as Box<dyn Port>),
                Err(e) => Err(Failure::needs(format!("no file descriptor left: {e}"))),
            };
            ports = ports.into_iter().zip(device.take_all()).map(stack).collect::<Result<_, _>>()?;
        }
        Some(PassName::Port(PortName::Capture(path))) => {
            ports.push(Box::new(PcapSink::create(path, u32::MAX).map_err(|e| capture::failure(&e))?));
        }
        Some(PassName::Port(PortName::Played(_))) => {
            return Err(Failure::usage("--pass: a capture that is written has no options").hint("--pass pcap:FILE"));
        }
        Some(PassName::Port(PortName::Sim(_))) => {
            return Err(Failure::usage("--pass: what goes into memory is gone").hint("--pass drop"));
        }
        Some(PassName::Port(out @ PortName::AfXdp(config))) => {
            let failed = |e: xway_port_afxdp::OpenError| port_failure(&e.into_port_error(&out.to_string()));
            if ports[0].capabilities().memory != MemoryModel::Shared {
                pool = Pool::new(PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(8192) })
                    .map_err(Failure::needs)?;
            }
            let mut device = AfXdpDevice::open(config).map_err(failed)?;
            ports.push(Box::new(device.open_port(0, &mut pool).map_err(failed)?));
        }
        Some(PassName::Port(out @ PortName::Packet(interface))) => {
            let port = PacketPort::open_sender(&PacketConfig::new(interface));
            ports.push(Box::new(port.map_err(|e| failed(e.into_port_error(&out.to_string())))?));
        }
    }
    Ok(Opened { ports, inputs, pool, notes })
}

fn open_tap(config: &TapConfig) -> Result<TapDevice, Failure> {
    let failed = |e: xway_port_tap::OpenError| port_failure(&e.into_port_error(&format!("tap:{}", config.name)));
    TapDevice::open(config).map_err(failed)
}

/// A recorder that writes a capture file.
pub fn recorder(path: &Path, input: &str) -> Result<Box<dyn Recorder>, Failure> {
    match CaptureRecorder::create(path, input) {
        Ok(recorder) => Ok(Box::new(recorder)),
        Err(error) => Err(capture::failure(&error)),
    }
}

/// A port's failure with its exit code.
pub fn port_failure(error: &PortError) -> Failure {
    let exit = match error.kind {
        PortErrorKind::Missing => Exit::Needs,
        PortErrorKind::Input | PortErrorKind::Output => Exit::Input,
    };
    Failure { exit, message: message(error), hint: None, said: false, refusal: None }
}

/// What went wrong on a port. Errors of files name the file themselves.
pub fn message(error: &PortError) -> String {
    let cause = error.cause.to_string();
    let device = error.port.split_once(':').map_or(error.port.as_str(), |(_, device)| device);
    if cause.contains(device) { cause } else { error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_mistakes() {
        let capture = |p: &str| PortName::Capture(p.into());
        assert_eq!(PortName::parse("pcap:x y"), Ok(capture("x y")));
        assert_eq!(PortName::parse("dir/x.pcapng.zst"), Ok(capture("dir/x.pcapng.zst")));
        assert_eq!(PortName::parse("-"), Ok(capture("-")));
        assert_eq!(PortName::parse("packet:eth0"), Ok(PortName::Packet("eth0".into())));
        assert_eq!(PortName::parse("pcap:-").map(|p| p.to_string()), Ok("pcap:-".into()));
        let tap = TapConfig { queues: 2, offload: Offload::Segmentation, ..TapConfig::new("xw0") };
        assert_eq!(PortName::parse("tap:xw0?queues=2&offload=tso"), Ok(PortName::Tap(tap)));
        let queues = |text| match PortName::parse(text) {
            Ok(PortName::AfXdp(config)) => config.queues,
            other => panic!("{other:?}"),
        };
        assert_eq!(queues("afxdp:eth0"), None);
        assert_eq!(queues("afxdp:eth0?queues=4&mode=native&copy=no&busy-poll=64"), Some((0, 4)));
        assert_eq!(queues("afxdp:eth0?queues=2-3"), Some((2, 2)));
        let played =
            Played { paths: vec!["a.pcap".into(), "b.pcap".into()], loops: 3, speed: Some(1500), frags: false };
        assert_eq!(PortName::parse("pcap:a.pcap,b.pcap?loop=3&speed=1.5"), Ok(PortName::Played(played)));
        assert_eq!(PortName::parse("sim:a?flows=9&pattern=zipf").map(|p| p.to_string()), Ok("sim:a".into()));
        assert_eq!(PassName::parse("drop"), Ok(PassName::Drop));
        assert_eq!(PassName::parse("port:packet:e"), Ok(PassName::Port(PortName::Packet("e".into()))));
        assert!(PassName::parse("-").is_err());
        for wrong in [
            "eth0",
            "pcap:",
            "packet:",
            "",
            "tap:",
            "tap:x?queues=0",
            "tap:x?color=red",
            "tap:x?offload=all",
            "afxdp:",
            "afxdp:e?queues=3-1",
            "afxdp:e?ring=9",
            "pcap:x?loop=a",
            "pcap:x?speed=0",
            "pcap:-?loop=2",
            "pcap:a,",
            "sim:",
            "sim:a?size=59",
            "sim:a?pattern=odd",
        ] {
            assert_eq!(PortName::parse(wrong).unwrap_err().exit, crate::failure::Exit::Usage, "{wrong}");
        }
    }
}
