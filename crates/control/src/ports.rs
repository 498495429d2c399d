//! Port names of the configuration, and the devices behind them.

use std::fmt;
use std::path::PathBuf;

use xway_engine::{Device, OneQueue, PortConfig};
use xway_hook::{Blame, HookError};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_pcap::PcapPort;
use xway_port_tap::{TapConfig, TapDevice};

use crate::config::Port;

/// A port as it is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PortName {
    /// A network interface, through AF_PACKET.
    Packet(String),
    /// A network interface, through AF_XDP: what arrives comes here and not to the host's stack.
    AfXdp(String),
    /// A TAP device, made for it.
    Tap(String),
    /// A capture file, played once.
    Capture(PathBuf),
}

impl PortName {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<PortName, String> {
        match text.split_once(':') {
            Some(("packet", interface)) if !interface.is_empty() => Ok(PortName::Packet(interface.into())),
            Some(("afxdp", interface)) if !interface.is_empty() => Ok(PortName::AfXdp(interface.into())),
            Some(("tap", name)) if !name.is_empty() => Ok(PortName::Tap(name.into())),
            Some(("pcap", file)) if !file.is_empty() => Ok(PortName::Capture(file.into())),
            _ => {
                Err("not a port; packet:IFACE or afxdp:IFACE for an interface, tap:NAME, pcap:FILE for a capture"
                    .into())
            }
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
            PortName::AfXdp(interface) => {
                let device = AfXdpDevice::open(&AfXdpConfig::new(interface));
                Box::new(device.map_err(|e| failed(e.into_port_error(&self.to_string()).to_string()))?)
            }
            PortName::Tap(name) => {
                let device = TapDevice::open(&TapConfig::new(name));
                Box::new(device.map_err(|e| failed(e.into_port_error(&self.to_string()).to_string()))?)
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
            PortName::AfXdp(interface) => write!(f, "afxdp:{interface}"),
            PortName::Tap(name) => write!(f, "tap:{name}"),
            PortName::Capture(path) => write!(f, "pcap:{}", path.display()),
        }
    }
}

/// How the engine opens a port of the configuration.
pub(crate) fn shape(port: &Port) -> PortConfig {
    PortConfig { queues: port.queues.clone(), ..PortConfig::default() }
}
