//! Port names on the command line: `pcap:FILE`, `packet:IFACE`, `tap:NAME?queues=2`, or a bare path of a capture.

use std::fmt;
use std::path::{Path, PathBuf};

use xway_engine::{Discard, Port, PortError, PortErrorKind, Recorder};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_pcap::{CaptureRecorder, PcapPort, PcapSink};
use xway_port_tap::{Offload, Stacked, TapConfig, TapPort};

use crate::capture;
use crate::failure::{Exit, Failure};
use crate::port_options::Options;

/// A port as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortName {
    /// A capture file; `-` is standard input.
    Capture(PathBuf),
    /// A network interface, through AF_PACKET.
    Packet(String),
    /// A TAP device of this host.
    Tap(TapConfig),
}

/// Endings of capture files that may stand without `pcap:`.
const ENDINGS: [&str; 9] =
    [".pcap", ".pcapng", ".cap", ".pcap.gz", ".pcapng.gz", ".cap.gz", ".pcap.zst", ".pcapng.zst", ".cap.zst"];

impl PortName {
    /// Reads a port name.
    pub fn parse(text: &str) -> Result<PortName, Failure> {
        match text.split_once(':') {
            Some(("pcap", "")) => Err(Failure::usage("pcap: names no file; pcap:- is standard input")),
            Some(("pcap", file)) => Ok(PortName::Capture(file.into())),
            Some(("packet", "")) => Err(Failure::usage("packet: names no interface, as in packet:eth0")),
            Some(("packet", interface)) => Ok(PortName::Packet(interface.into())),
            Some(("tap", "")) => Err(Failure::usage("tap: names no interface, as in tap:xw0")),
            Some(("tap", rest)) => tap(text, rest).map(PortName::Tap),
            _ if text == "-" => Ok(PortName::Capture("-".into())),
            _ if ENDINGS.iter().any(|e| text.ends_with(e)) => Ok(PortName::Capture(text.into())),
            _ => Err(Failure::usage(format!("{text:?} is no port"))
                .hint("pcap:FILE for a capture, packet:IFACE for an interface, tap:NAME for a TAP device, pcap:- for standard input")),
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
    options.end()?;
    Ok(config)
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortName::Capture(path) => write!(f, "pcap:{}", path.display()),
            PortName::Packet(interface) => write!(f, "packet:{interface}"),
            PortName::Tap(config) => write!(f, "tap:{}", config.name),
        }
    }
}

/// Opens a port.
pub fn open(name: &PortName) -> Result<Box<dyn Port>, Failure> {
    match name {
        PortName::Capture(path) => match PcapPort::open(path, 0) {
            Ok(port) => Ok(Box::new(port)),
            Err(error) => Err(capture::failure(&error)),
        },
        PortName::Packet(interface) => match PacketPort::open(&PacketConfig::new(interface)) {
            Ok(port) => Ok(Box::new(port)),
            Err(error) => Err(port_failure(&error.into_port_error(&name.to_string()))),
        },
        PortName::Tap(config) => Ok(Box::new(open_tap(config)?)),
    }
}

fn open_tap(config: &TapConfig) -> Result<TapPort, Failure> {
    let failed =
        |error: xway_port_tap::OpenError| port_failure(&error.into_port_error(&format!("tap:{}", config.name)));
    TapPort::open(config).map_err(failed)
}

/// Gives a port the stack side that was asked for. A second port comes back when PASS is to go out of it.
pub fn with_pass(port: Box<dyn Port>, pass: &PassName) -> Result<(Box<dyn Port>, Option<Box<dyn Port>>), Failure> {
    let out: Box<dyn Port> = match pass {
        PassName::Drop => Box::new(Discard::default()),
        PassName::Port(PortName::Tap(config)) => {
            // Both ways: what the host sends out of the TAP leaves by the port.
            let stacked = Stacked::new(port, open_tap(config)?);
            let stacked = stacked.map_err(|e| Failure::needs(format!("no file descriptor left: {e}")))?;
            return Ok((Box::new(stacked), None));
        }
        PassName::Port(PortName::Capture(path)) => match PcapSink::create(path, u32::MAX) {
            Ok(sink) => Box::new(sink),
            Err(error) => return Err(capture::failure(&error)),
        },
        PassName::Port(name @ PortName::Packet(interface)) => {
            match PacketPort::open_sender(&PacketConfig::new(interface)) {
                Ok(port) => Box::new(port),
                Err(error) => return Err(port_failure(&error.into_port_error(&name.to_string()))),
            }
        }
    };
    Ok((port, Some(out)))
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
        assert_eq!(PassName::parse("drop"), Ok(PassName::Drop));
        assert_eq!(PassName::parse("port:packet:e"), Ok(PassName::Port(PortName::Packet("e".into()))));
        assert!(PassName::parse("-").is_err());
        for wrong in ["eth0", "pcap:", "packet:", "", "tap:", "tap:x?queues=0", "tap:x?color=red", "tap:x?offload=all"]
        {
            assert_eq!(PortName::parse(wrong).unwrap_err().exit, crate::failure::Exit::Usage, "{wrong}");
        }
    }
}
