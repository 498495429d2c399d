//! Ports with endless traffic behind bad wires.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use xway_engine::{Engine, HookPoint, PassTo, Port, PortConfig, PortError, PortErrorKind};
use xway_packet::{Backing, Pages, PoolConfig};
use xway_port_sim::{Pattern, SimDevice, Sink, Traffic};
use xway_port_wrap::{Cable, Fault, FaultConfig, WrappedDevice};

/// The ports that the programs of `bpf/forward` know, and one more.
pub const PORTS: [u32; 3] = [10, 12, 14];
pub const QUEUES: u64 = 2;
pub const WORKERS: u64 = 3;

/// Numbers that look random and are the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    pub fn point(&mut self, ifindex: u32) -> HookPoint {
        HookPoint { ifindex, queue: (self.below(3) == 0).then_some(self.below(QUEUES) as u32) }
    }
}

/// Ports with endless traffic behind bad wires, and what came out of all of them.
#[derive(Default)]
pub struct Yard {
    /// What left ports that are closed.
    left: u64,
    /// What leaves the port with this index, as it is open now.
    sinks: [Option<Sink>; PORTS.len()],
    /// Of the port with this index, as it is open now.
    cables: [Arc<AtomicBool>; PORTS.len()],
}

impl Yard {
    pub fn open(&mut self, engine: &Engine, ifindex: u32, random: &mut Random) {
        let seed = random.below(1 << 40);
        let sizes = [60, 90, 300, 1500];
        let size = sizes[random.below(sizes.len() as u64) as usize];
        let traffic = Traffic::udp(100, size, Pattern::Uniform, seed | 1).unwrap();
        let (inner, sink) = SimDevice::generated(&format!("d{ifindex}"), ifindex, traffic, None, QUEUES as u32);
        let at = PORTS.iter().position(|&port| port == ifindex).unwrap();
        // As a number, because the test itself must not grow with what it does.
        self.left += self.sinks[at].replace(sink).as_ref().map_or(0, count);
        let cut = Arc::new(AtomicBool::new(false));
        self.cables[at] = cut.clone();
        let device = WrappedDevice::new(Box::new(inner), move |port, queue| {
            let (name, seed) = (port.name().to_owned(), seed + u64::from(queue));
            let bad = FaultConfig { loss: 0.1, duplicate: 0.1, corrupt: 0.1, reorder: 0.1, no_frame: 0.1, seed };
            let inner = Fault::new(port, bad).map_err(|e| PortError::new(name, PortErrorKind::Input, e))?;
            Ok(Box::new(Cable::new(Box::new(inner), cut.clone())) as Box<dyn Port>)
        });
        // Small pools, so that they run dry; a memory file, so that applications can map them.
        let shape = PoolConfig { backing: Backing::Memfd, pages: Pages::Base, ..PoolConfig::new(512) };
        let config = PortConfig {
            queues: Some((0..QUEUES as u32).map(|queue| (queue, random.below(WORKERS) as u32)).collect()),
            pool: Some(PoolConfig { max_outstanding: 300, ..shape }),
            pass: [PassTo::Stack, PassTo::Drop, PassTo::Port(PORTS[0])][random.below(3) as usize],
            ..PortConfig::default()
        };
        engine.open(Box::new(device), config).unwrap();
    }

    pub fn cable(&self, ifindex: u32) -> &AtomicBool {
        &self.cables[PORTS.iter().position(|&port| port == ifindex).unwrap()]
    }

    /// Frames that left ports so far.
    pub fn left(&self) -> u64 {
        self.left + self.sinks.iter().flatten().map(count).sum::<u64>()
    }
}

fn count(sink: &Sink) -> u64 {
    sink.sent().frames + sink.passed().frames
}
