//! Port names on the command line: `pcap:FILE?loop=3`, `packet:IFACE`, `tap:NAME?queues=2`, `afxdp:IFACE`, `sim:a?flows=100`, or a
//! bare path of a capture.

use std::path::Path;

use xway_engine::{Device, Discard, MemoryModel, Port, PortError, PortErrorKind, Profile, Recorder};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice};
use xway_port_packet::{PacketDevice, PacketPort};
use xway_port_pcap::{CaptureRecorder, PcapPort, PcapSink};
use xway_port_sim::SimPort;
use xway_port_tap::{Injector, Stacked, TapConfig, TapDevice};
use xway_ports::Sim;

pub use xway_ports::PortName;

use xway_kernel::XdpMode;
use xway_packet::{Backing, Pool, PoolConfig};

use crate::capture;
use crate::failure::{Exit, Failure};

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
            port => Ok(PassName::Port(PortName::parse(port)?)),
        }
    }
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

/// Memory that the kernel or an application maps.
const SHARED_POOL: PoolConfig = PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(8192) };

/// The memory that packets get.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// How much.
    pub profile: Profile,
    /// Bytes of a chunk, where that was said.
    pub chunk_size: Option<u32>,
    /// Other processes may map it.
    pub shared: bool,
}

impl Memory {
    fn pool(&self, asked: PoolConfig) -> Result<Pool, Failure> {
        let shape = self.profile.pool(asked);
        Pool::new(self.chunk_size.map_or(shape, |bytes| shape.in_chunks_of(bytes))).map_err(Failure::needs)
    }
}

/// Opens the input, each queue a port, and where PASS goes.
pub fn open(name: &PortName, pass: Option<&PassName>, memory: Memory) -> Result<Opened, Failure> {
    let failed = |error: PortError| port_failure(&error);
    let name = &name.clone().within(memory.profile);
    if let PortName::AfXdp(config) = name {
        return open_afxdp(name, config, pass, memory);
    }
    let pool = memory.pool(if memory.shared { SHARED_POOL } else { PoolConfig::default() })?;
    let ports: Vec<Box<dyn Port>> = match name {
        PortName::Capture(path) => vec![Box::new(PcapPort::open(path, 0).map_err(|e| capture::failure(&e))?)],
        PortName::Played(played) => {
            let port = PcapPort::play(&played.paths, played.playback(), 0);
            vec![Box::new(port.map_err(|e| capture::failure(&e))?)]
        }
        PortName::Sim(sim) => vec![Box::new(open_sim(sim)?)],
        PortName::Packet(config) => {
            let ports = PacketDevice::open(config).and_then(|mut device| device.take_all());
            let ports = ports.map_err(|e| failed(e.into_port_error(&name.to_string())))?;
            ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect()
        }
        PortName::Tap(config) => {
            let mut device = open_tap(config)?;
            device.take_all().into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect()
        }
        PortName::AfXdp(_) => Vec::new(),
    };
    with_pass(Opened { inputs: ports.len(), ports, pool, notes: Vec::new() }, pass, memory)
}

/// Opens queues of an interface. Without a place for PASS it goes back to the interface's own host.
fn open_afxdp(
    name: &PortName,
    config: &AfXdpConfig,
    pass: Option<&PassName>,
    memory: Memory,
) -> Result<Opened, Failure> {
    let failed = |e: xway_port_afxdp::OpenError| port_failure(&e.into_port_error(&name.to_string()));
    let mut device = AfXdpDevice::open(config).map_err(failed)?;
    let inputs = device.rx_queues();
    let shape = PoolConfig { node: device.numa_node(), ..device.pool_for(inputs) };
    let mut pool = memory.pool(shape)?;
    let ports = (0..inputs).map(|queue| device.open_port(queue, &mut pool).map(|port| Box::new(port) as Box<dyn Port>));
    let ports = ports.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let notes = device.effective().iter().map(|effective| format!("{name}: {effective}")).collect();
    let mut opened = Opened { inputs: ports.len(), ports, pool, notes };
    if pass.is_some() {
        return with_pass(opened, pass, memory);
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
pub fn with_pass(opened: Opened, pass: Option<&PassName>, memory: Memory) -> Result<Opened, Failure> {
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
                pool = memory.pool(SHARED_POOL)?;
            }
            let entries = config.entries.min(memory.profile.ring_entries_max());
            let config = AfXdpConfig { entries, ..config.clone() };
            let mut device = AfXdpDevice::open(&config).map_err(failed)?;
            ports.push(Box::new(device.open_port(0, &mut pool).map_err(failed)?));
        }
        Some(PassName::Port(out @ PortName::Packet(config))) => {
            if config.queues > 1 {
                return Err(Failure::usage(format!("--pass {out}: it only sends, so it has no queues")));
            }
            let port = PacketPort::open_sender(config);
            ports.push(Box::new(port.map_err(|e| failed(e.into_port_error(&out.to_string())))?));
        }
    }
    Ok(Opened { ports, inputs, pool, notes })
}

/// Interface index of `sim:` ports on the command line.
const SIM_IFINDEX: u32 = 1;

fn open_sim(sim: &Sim) -> Result<SimPort, Failure> {
    if sim.queues > 1 {
        return Err(Failure::usage(format!("{sim}: one queue here")).hint("a service (xway up) opens several"));
    }
    Ok(SimPort::generated(&sim.name, SIM_IFINDEX, sim.traffic()?, sim.count).0.with_frags(sim.frags))
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
    fn where_pass_goes() {
        assert_eq!(PassName::parse("drop"), Ok(PassName::Drop));
        let packet = PassName::Port(PortName::Packet(xway_port_packet::PacketConfig::new("e")));
        assert_eq!(PassName::parse("port:packet:e"), Ok(packet));
        assert!(PassName::parse("-").is_err());
        assert!(PassName::parse("eth0").unwrap_err().hint.is_some());
    }
}
