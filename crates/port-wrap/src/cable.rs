//! A cable that can be pulled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xway_abi::Errno;
use xway_engine::{Port, PortError, PortErrorKind, PortStats, Rx, Sent};
use xway_packet::{Burst, Pool};

use crate::as_inner;

/// A port that fails when somebody wants it to: what is to be received stays where it is and the worker is told that the device is
/// gone, what is to be sent fails with `ENETDOWN`. For trying what happens then.
pub struct Cable {
    inner: Box<dyn Port>,
    cut: Arc<AtomicBool>,
}

impl Cable {
    /// Wraps a port, which works for as long as `cut` is false. Any thread may set it.
    pub fn new(inner: Box<dyn Port>, cut: Arc<AtomicBool>) -> Cable {
        Cable { inner, cut }
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }
}

impl Port for Cable {
    as_inner!();

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        match self.is_cut() {
            true => Err(PortError::new(self.inner.name(), PortErrorKind::Missing, "the cable is cut")),
            false => self.inner.rx(queue, pool, burst, budget),
        }
    }

    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        if !self.is_cut() {
            return self.inner.tx(queue, pool, burst);
        }
        let count = burst.len();
        pool.release_burst(burst);
        Sent::none(count, Errno::ENETDOWN)
    }

    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.inner.pass(queue, pool, burst)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.inner.flush()
    }

    fn stats(&mut self) -> PortStats {
        self.inner.stats()
    }
}
