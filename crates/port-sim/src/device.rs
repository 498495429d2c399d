//! The same ports as devices, whose queues an engine shares out to its workers.

use std::sync::Arc;

use xway_engine::{Capabilities, Device, Port, PortError, PortErrorKind};
use xway_packet::ring::RingError;
use xway_packet::{Burst, Pool};

use crate::pair::{End, Home, PairConfig, ends};
use crate::port::SimPort;
use crate::sink::Sink;
use crate::traffic::Traffic;

/// A device in memory.
pub struct SimDevice {
    name: String,
    ifindex: u32,
    queues: u32,
    kind: Kind,
}

enum Kind {
    Generated {
        traffic: Arc<Traffic>,
        count: Option<u64>,
        sink: Sink,
        burst: usize,
        frags: bool,
    },
    /// Ends that are not open, by queue, and whether frames of several buffers go between them.
    Ends(Home, bool),
}

impl SimDevice {
    /// A device each of whose `queues` receives `count` packets of the traffic, or packets without end, and counts in one
    /// sink what is sent.
    pub fn generated(name: &str, ifindex: u32, traffic: Traffic, count: Option<u64>, queues: u32) -> (SimDevice, Sink) {
        let sink = Sink::default();
        let kind =
            Kind::Generated { traffic: Arc::new(traffic), count, sink: sink.clone(), burst: Burst::MAX, frags: false };
        (SimDevice { name: format!("sim:{name}"), ifindex, queues: queues.max(1), kind }, sink)
    }

    /// The same, with packets that are longer than a frame in several buffers, as [`SimPort::with_frags`].
    pub fn with_frags(mut self, on: bool) -> SimDevice {
        if let Kind::Generated { frags, .. } = &mut self.kind {
            *frags = on;
        }
        self
    }

    /// The same, receiving at most so many packets at a time, as [`SimPort::in_bursts_of`].
    pub fn in_bursts_of(mut self, most: usize) -> SimDevice {
        if let Kind::Generated { burst, .. } = &mut self.kind {
            *burst = most;
        }
        self
    }

    /// Two devices, `sim:NAME.0` and `sim:NAME.1`: what one sends on a queue the other receives on the queue with the same
    /// number. A queue that is closed keeps what it was sent and can be opened again.
    ///
    /// # Errors
    /// As [`crate::pair`].
    pub fn pair(name: &str, config: PairConfig) -> Result<(SimDevice, SimDevice), RingError> {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for queue in 0..config.queues.max(1) {
            let (near, far) = ends(PairConfig { queues: 1, ..config }, queue)?;
            a.push(Some(near));
            b.push(Some(far));
        }
        let device = |number: usize, ends: Vec<Option<End>>| SimDevice {
            name: format!("sim:{name}.{number}"),
            ifindex: config.ifindexes[number],
            queues: ends.len() as u32,
            kind: Kind::Ends(Home::new(ends), config.frags),
        };
        Ok((device(0, a), device(1, b)))
    }
}

impl Device for SimDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        match &self.kind {
            Kind::Generated { frags, .. } => SimPort::offers_with(*frags),
            Kind::Ends(_, frags) => End::offers(*frags),
        }
    }

    fn rx_queues(&self) -> u32 {
        self.queues
    }

    fn open_queue(&mut self, queue: u32, _: &mut Pool) -> Result<Box<dyn Port>, PortError> {
        let failed = |why: String| PortError::new(&*self.name, PortErrorKind::Input, why);
        if queue >= self.queues {
            return Err(failed(format!("queue {queue}: there are {}, numbered from 0", self.queues)));
        }
        let name = self.name.trim_start_matches("sim:");
        Ok(Box::new(match &self.kind {
            Kind::Generated { traffic, count, sink, burst, frags } => {
                SimPort::generated_queues(name, self.ifindex, traffic.clone(), *count, self.queues, sink.clone())
                    .in_bursts_of(*burst)
                    .with_frags(*frags)
            }
            Kind::Ends(home, _) => {
                let end = home.take(queue as usize).ok_or_else(|| failed(format!("queue {queue} is open")))?;
                SimPort::end(name, self.ifindex, end, Some(home.clone()))
            }
        }))
    }
}
