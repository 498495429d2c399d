//! Port names of the configuration, and the devices behind them.

use std::fmt;
use std::path::PathBuf;

use xway_engine::steer::{Change, Steering};
use xway_engine::{Device, OneQueue, PortConfig, TxPolicy};
use xway_hook::{Blame, HookError};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_pcap::PcapPort;
use xway_port_tap::{TapConfig, TapDevice};

use xway_port_sim::{Pattern, SimDevice, Traffic};

use crate::config::Port;
use crate::reinject::Reinjecting;

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
    /// Packets from memory; what they send is counted and gone.
    Sim(Sim),
}

/// Packets from memory: `sim:NAME?flows=N&size=BYTES&pattern=scan|uniform|zipf&count=N&queues=N&frags=yes|no`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sim {
    /// The name with its options: two ports of the same name are one.
    name: String,
    flows: u32,
    size: u32,
    pattern: Pattern,
    count: Option<u64>,
    queues: u32,
    frags: bool,
}

impl Sim {
    fn parse(text: &str) -> Result<Sim, String> {
        let (name, options) = text.split_once('?').unwrap_or((text, ""));
        if name.is_empty() {
            return Err("sim: names no port, as in sim:a".into());
        }
        let mut sim = Sim {
            name: text.into(),
            flows: 1,
            size: 64,
            pattern: Pattern::default(),
            count: None,
            queues: 1,
            frags: false,
        };
        for option in options.split('&').filter(|o| !o.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let number = |least: u64, most: u64| {
                let number = value.parse().ok().filter(|n: &u64| (least..=most).contains(n));
                number.ok_or_else(|| format!("{key}={value} is no number from {least} to {most}"))
            };
            match key {
                "flows" => sim.flows = number(1, Traffic::FLOWS_MAX.into())? as u32,
                "size" => sim.size = number(60, 65_535)? as u32,
                "count" => sim.count = Some(number(1, u64::MAX)?),
                "queues" => sim.queues = number(1, 1024)? as u32,
                "frags" => sim.frags = yes(key, value)?,
                "pattern" => {
                    sim.pattern = match value {
                        "scan" => Pattern::Scan,
                        "uniform" => Pattern::Uniform,
                        "zipf" => Pattern::Zipf,
                        _ => return Err(format!("pattern={value} is not one of scan, uniform, zipf")),
                    }
                }
                _ => {
                    return Err(format!(
                        "there is no option {key:?}; options: flows, size, count, queues, frags, pattern"
                    ));
                }
            }
        }
        Ok(sim)
    }
}

fn yes(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("{key}={value} is not one of yes, no")),
    }
}

impl PortName {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<PortName, String> {
        match text.split_once(':') {
            Some(("packet", interface)) if !interface.is_empty() => Ok(PortName::Packet(interface.into())),
            Some(("afxdp", interface)) if !interface.is_empty() => Ok(PortName::AfXdp(interface.into())),
            Some(("tap", name)) if !name.is_empty() => Ok(PortName::Tap(name.into())),
            Some(("pcap", file)) if !file.is_empty() => Ok(PortName::Capture(file.into())),
            Some(("sim", rest)) => Sim::parse(rest).map(PortName::Sim),
            _ => Err("not a port; packet:IFACE or afxdp:IFACE for an interface, tap:NAME, pcap:FILE for a capture, sim:NAME \
                      for packets from memory"
                .into()),
        }
    }

    /// Opens it. A port that is no interface of this machine gets `number` for an interface index. `stack`: frames that pass
    /// are for the host.
    pub fn open(&self, number: u32, stack: bool) -> Result<Box<dyn Device>, HookError> {
        let failed = |why: String| HookError::new(Blame::Machine, why);
        Ok(match self {
            PortName::Packet(interface) => {
                let port = PacketPort::open(&PacketConfig::new(interface))
                    .map_err(|e| failed(e.into_port_error(&self.to_string()).to_string()))?;
                Box::new(OneQueue::new(Box::new(port)))
            }
            PortName::AfXdp(interface) => {
                let device = AfXdpDevice::open(&AfXdpConfig::new(interface));
                let device = device.map_err(|e| failed(e.into_port_error(&self.to_string()).to_string()))?;
                if stack { Box::new(Reinjecting::new(device)) } else { Box::new(device) }
            }
            PortName::Tap(name) => {
                let device = TapDevice::open(&TapConfig::new(name));
                Box::new(device.map_err(|e| failed(e.into_port_error(&self.to_string()).to_string()))?)
            }
            PortName::Capture(path) => {
                let port = PcapPort::open(path, number).map_err(|e| failed(format!("{self}: {e}")))?;
                Box::new(OneQueue::new(Box::new(port)))
            }
            PortName::Sim(sim) => {
                let traffic = Traffic::udp(sim.flows, sim.size as usize, sim.pattern, 1);
                let traffic = traffic.map_err(|e| HookError::new(Blame::Input, format!("{self}: {e}")))?;
                Box::new(
                    SimDevice::generated(&sim.name, number, traffic, sim.count, sim.queues).0.with_frags(sim.frags),
                )
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
            PortName::Sim(sim) => write!(f, "sim:{}", sim.name),
        }
    }
}

/// The words that make a port's steering again, when something more was said: its rules as they are now, and of what was said about the
/// hash what still counts.
pub(crate) fn said(before: &[String], words: &str, now: Option<&Steering>) -> Vec<String> {
    let Some(now) = now else { return Vec::new() };
    let mut out: Vec<String> = now.rules().map(ToString::to_string).collect();
    let (mut queues, mut key, mut hash) = (false, false, Vec::new());
    for said in before.iter().map(String::as_str).chain([words.trim()]).rev() {
        let counts = match Change::parse(said) {
            Ok(Change::Off) => break,
            Ok(Change::Spread { queues: q, key: k }) => {
                let first = q.is_none() && k.is_none();
                let counts = first || q.is_some() && !queues || k.is_some() && !key;
                (queues, key) = (queues || q.is_some(), key || k.is_some());
                counts
            }
            _ => false,
        };
        hash.extend(counts.then(|| said.to_owned()));
    }
    out.extend(hash.into_iter().rev().filter(|_| now.rss().is_some()));
    out
}

/// How the engine opens a port of the configuration.
pub(crate) fn shape(port: &Port) -> PortConfig {
    let tx = TxPolicy { batch_frames: port.tx_batch, bytes_max: port.tx_limit };
    PortConfig { queues: port.queues.clone(), tx, ..PortConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_about_steering_can_be_said_again() {
        let (mut words, mut now) = (Vec::new(), Steering::default());
        for text in [
            "equal 2",
            "flow-type ether action 0 loc 4",
            "hkey symmetric",
            "equal 3",
            "flow-type ether action 1 loc 9",
            "delete 4",
            "weight 1 3",
        ] {
            now = now.changed(Change::parse(text).unwrap(), 4).unwrap().0;
            words = said(&words, text, Some(&now));
            let again = words.iter().fold(Steering::default(), |steering, text| {
                steering.changed(Change::parse(text).unwrap(), 4).unwrap().0
            });
            assert_eq!(again.rules().collect::<Vec<_>>(), now.rules().collect::<Vec<_>>(), "{words:?}");
            let hash = |s: &Steering| s.rss().map(|r| (*r.key(), r.indirection().to_vec()));
            assert_eq!(hash(&again), hash(&now), "{words:?}");
        }
        assert_eq!(words.len(), 3, "{words:?}");
        now = now.changed(Change::Off, 4).unwrap().0;
        assert_eq!(said(&words, "off", Some(&now)).len(), 1);
        assert_eq!(said(&words, "off", None), [""; 0]);
    }
}
