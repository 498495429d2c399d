//! Ports in memory: the fastest there are, for benchmarks, tests and embedding.
//!
//! A [`SimPort`] receives from one of two sources and sends to one of two ends:
//!
//! ```text
//!   Traffic -> [ generated port ] -> Sink          generated(): packets come from memory; what is sent or passed is counted,
//!                                                  looked at if wanted, and given back to its pool
//!
//!   [ end a ] <=== rings of frames ===> [ end b ]  pair(): what one end sends the other receives, the very same frames
//! ```
//!
//! [`SimDevice`] is the same with queues that an engine shares out to its workers.
//!
//! No packet is copied between the ends of a pair: the frame itself changes hands, within a worker as between workers. A full
//! ring drops at the sender, counted. The receiver sleeps on a descriptor that senders touch only when it sleeps.
//!
//! ```
//! use xway_engine::{Port, Rx};
//! use xway_packet::{Burst, Pool, PoolConfig};
//! use xway_port_sim::{Pattern, SimPort, Traffic};
//!
//! let traffic = Traffic::udp(100, 64, Pattern::Scan, 1)?;
//! let (mut port, sink) = SimPort::generated("a", 10, traffic, Some(1000));
//! let (mut pool, mut burst) = (Pool::new(PoolConfig::new(256))?, Burst::new());
//! let mut state = Rx::More;
//! while state != Rx::End {
//!     state = port.rx(0, &mut pool, &mut burst, 64)?;
//!     port.tx(0, &mut pool, &mut burst);
//! }
//! assert_eq!(sink.sent().frames, 1000);
//! pool.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod device;
mod pair;
mod port;
mod sink;
mod traffic;

pub use device::SimDevice;
pub use pair::{PairConfig, pair};
pub use port::SimPort;
pub use sink::{Seen, Sink};
pub use traffic::{Pattern, Traffic, TrafficError};
