//! Ports around ports: each takes any port and is one, so they stack.
//!
//! ```text
//! worker <-> Trace <-> Tee <-> Fault <-> Rate <-> the port itself
//! ```
//!
//! | wrapper | what it does |
//! |---|---|
//! | [`Trace`] | writes one line for each packet that comes in, goes out or passes |
//! | [`Tee`] | writes each packet to a capture |
//! | [`Fault`] | loses, doubles, damages and reorders packets, and lets the pool seem empty; the same seed does the same |
//! | [`Rate`] | lets so many packets a second in and out |
//! | [`Cable`] | can be pulled: the port fails then, as a device does that goes down |
//!
//! [`WrappedDevice`] puts them around each queue of a device that an engine serves.
//!
//! What a wrapper does to packets is counted in the port's own counters, under a name of its own: what came in is still what
//! the engine got and each named loss together.
//!
//! ```
//! use xway_engine::{Port, Rx};
//! use xway_packet::{Burst, Pool, PoolConfig};
//! use xway_port_sim::{Pattern, SimPort, Traffic};
//! use xway_port_wrap::{Fault, FaultConfig};
//!
//! let (port, _) = SimPort::generated("a", 1, Traffic::udp(1, 64, Pattern::Scan, 1)?, Some(1000));
//! let config = FaultConfig { loss: 0.1, seed: 7, ..FaultConfig::default() };
//! let mut port = Fault::new(Box::new(port), config)?;
//! let (mut pool, mut burst) = (Pool::new(PoolConfig::new(256))?, Burst::new());
//! let mut received = 0;
//! while port.rx(0, &mut pool, &mut burst, 64)? != Rx::End || !burst.is_empty() {
//!     received += burst.len();
//!     pool.release_burst(&mut burst);
//! }
//! assert!((850..950).contains(&received));
//! pool.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cable;
mod device;
mod fault;
mod rate;
mod tee;
mod trace;

pub use cable::Cable;
pub use device::WrappedDevice;
pub use fault::{Fault, FaultConfig, FaultError};
pub use rate::{Rate, RateConfig};
pub use tee::Tee;
pub use trace::Trace;

/// The methods of a port that a wrapper leaves as they are. Named are its sides that hold frames back, which go home when it closes.
macro_rules! as_inner {
    ($($side:ident),*) => {
        fn name(&self) -> &str {
            self.inner.name()
        }

        fn ifindex(&self) -> u32 {
            self.inner.ifindex()
        }

        fn queues(&self) -> u32 {
            self.inner.queues()
        }

        fn capabilities(&self) -> xway_engine::Capabilities {
            self.inner.capabilities()
        }

        fn frame_max(&self) -> u32 {
            self.inner.frame_max()
        }

        fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.inner.fd()
        }

        fn progress(&self) -> Option<(u64, u64)> {
            self.inner.progress()
        }

        fn backlog(&mut self, queue: u32, pool: &mut xway_packet::Pool) -> Option<xway_engine::Backlog> {
            self.inner.backlog(queue, pool)
        }

        fn close(&mut self, pool: &mut xway_packet::Pool) {
            $(self.$side.go_home(pool);)*
            self.inner.close(pool);
        }
    };
}
pub(crate) use as_inner;
