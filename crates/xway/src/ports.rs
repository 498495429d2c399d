//! Port names on the command line: `pcap:FILE`, `packet:IFACE`, or a bare path of a capture.

use std::fmt;
use std::path::{Path, PathBuf};

use xway_engine::{Port, PortError, PortErrorKind, Recorder};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_pcap::{CaptureRecorder, PcapPort};

use crate::capture;
use crate::failure::{Exit, Failure};

/// A port as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortName {
    /// A capture file; `-` is standard input.
    Capture(PathBuf),
    /// A network interface, through AF_PACKET.
    Packet(String),
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
            _ if text == "-" => Ok(PortName::Capture("-".into())),
            _ if ENDINGS.iter().any(|e| text.ends_with(e)) => Ok(PortName::Capture(text.into())),
            _ => Err(Failure::usage(format!("{text:?} is no port"))
                .hint("pcap:FILE for a capture, packet:IFACE for an interface, pcap:- for standard input")),
        }
    }

    /// Reads the name of a port that can send.
    pub fn interface(text: &str) -> Result<PortName, Failure> {
        match PortName::parse(text)? {
            PortName::Capture(_) => Err(Failure::usage(format!("{text}: nothing can be sent to a capture"))
                .hint("packet:IFACE; -o FILE writes a capture")),
            port => Ok(port),
        }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortName::Capture(path) => write!(f, "pcap:{}", path.display()),
            PortName::Packet(interface) => write!(f, "packet:{interface}"),
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
    }
}

/// Opens a port for sending only.
pub fn open_sender(name: &PortName) -> Result<Box<dyn Port>, Failure> {
    let PortName::Packet(interface) = name else { return open(name) };
    match PacketPort::open_sender(&PacketConfig::new(interface)) {
        Ok(port) => Ok(Box::new(port)),
        Err(error) => Err(port_failure(&error.into_port_error(&name.to_string()))),
    }
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
        for wrong in ["eth0", "pcap:", "packet:", "", "tap:x"] {
            assert_eq!(PortName::parse(wrong).unwrap_err().exit, crate::failure::Exit::Usage, "{wrong}");
        }
    }
}
