//! Port names of the configuration, and the devices behind them.

use std::fmt;
use std::path::PathBuf;

use xway_engine::{Device, OneQueue, PortConfig};
use xway_hook::{Blame, HookError};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_pcap::PcapPort;

use crate::config::Port;

/// A port as it is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PortName {
    /// A network interface, through AF_PACKET.
    Packet(String),
    /// A capture file, played once.
    Capture(PathBuf),
}

impl PortName {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<PortName, String> {
        match text.split_once(':') {
            Some(("packet", interface)) if !interface.is_empty() => Ok(PortName::Packet(interface.into())),
            Some(("pcap", file)) if !file.is_empty() => Ok(PortName::Capture(file.into())),
            _ => Err("not a port; packet:IFACE for an interface, pcap:FILE for a capture".into()),
        }
    }

    /// Opens it.
    pub fn open(&self) -> Result<Box<dyn Device>, HookError> {
        let failed = |why: String| HookError::new(Blame::Machine, why);
        Ok(match self {
            PortName::Packet(interface) => {
                let port = PacketPort::open(&PacketConfig::new(interface))
                    .map_err(|e| failed(e.into_port_error(&self.to_string()).to_string()))?;
                Box::new(OneQueue::new(Box::new(port)))
            }
            PortName::Capture(path) => {
                let port = PcapPort::open(path, 0).map_err(|e| failed(format!("{self}: {e}")))?;
                Box::new(OneQueue::new(Box::new(port)))
            }
        })
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortName::Packet(interface) => write!(f, "packet:{interface}"),
            PortName::Capture(path) => write!(f, "pcap:{}", path.display()),
        }
    }
}

/// How the engine opens a port of the configuration.
pub(crate) fn shape(port: &Port) -> PortConfig {
    PortConfig { queues: port.queues.clone(), ..PortConfig::default() }
}
