//! A queue for sockets to open.

use std::path::Path;
use std::sync::Arc;

use xway_engine::{Engine, EngineConfig, PortConfig};
use xway_packet::{Backing, PoolConfig};
use xway_port_sim::{Seen, SimDevice, Sink, Traffic};
use xway_xsk::{EngineQueues, Policy, Server};

/// A port of memory whose one queue receives the same packet of 100 bytes for ever, and a server of sockets on it.
pub struct Queue {
    engine: Arc<Engine>,
    server: Server,
    sink: Sink,
}

impl Queue {
    /// `sim:NAME`, served at a path.
    pub fn new(name: &str, path: &Path) -> Queue {
        let traffic = Traffic::replay([&Queue::packet()]).unwrap();
        let engine = Arc::new(Engine::start(EngineConfig::default()).unwrap());
        let (device, sink) = SimDevice::generated(name, 7, traffic, None, 1);
        sink.inspect(true);
        let pool = Some(PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(4096) });
        engine.open(Box::new(device), PortConfig { pool, ..PortConfig::default() }).unwrap();
        let server = Server::listen(path, Arc::new(EngineQueues(engine.clone())), Policy::default()).unwrap();
        Queue { engine, server, sink }
    }

    /// What it receives.
    pub fn packet() -> Vec<u8> {
        (0..100).collect()
    }

    /// Asserts that it has sent `back` so many times and nothing else, and ends it: all frames came home.
    pub fn ends(self, count: u64, back: &[u8]) {
        let sent = self.sink.sent();
        assert_eq!((sent.frames, sent.bytes), (count, count * 100));
        assert_eq!(sent.digest, Seen::digest_of(back).wrapping_mul(count));
        drop(self.server);
        for report in Arc::into_inner(self.engine).unwrap().stop().queues {
            assert_eq!((report.leak, report.counters.balance()), (None, Ok(())));
        }
    }
}
