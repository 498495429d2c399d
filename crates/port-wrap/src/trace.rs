//! A line for each packet.

use std::io::Write;

use xway_engine::{Port, PortError, PortErrorKind, PortStats, Rx, Sent};
use xway_packet::{Burst, Frame, Pool};

use crate::as_inner;

/// Writes one line for each packet: direction, port, queue, number and what is in it. For looking, not for speed.
pub struct Trace<W> {
    inner: Box<dyn Port>,
    to: W,
    /// Why the last line could not be written; told at the next doorbell.
    failed: Option<std::io::Error>,
}

impl<W: Write + Send> Trace<W> {
    /// Wraps a port; lines go to `to`.
    pub fn new(inner: Box<dyn Port>, to: W) -> Trace<W> {
        Trace { inner, to, failed: None }
    }

    fn lines(&mut self, way: &str, queue: u32, frames: &[Frame]) {
        for frame in frames {
            let summary = xway_packet_text::summary(frame.packet());
            let (name, id, len) = (self.inner.name(), frame.packet_id(), frame.total_len());
            if let Err(error) = writeln!(self.to, "{way} {name} queue {queue} #{id} {len} bytes: {summary}") {
                self.failed = Some(error);
                return;
            }
        }
    }
}

impl<W: Write + Send> Port for Trace<W> {
    as_inner!();

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        let before = burst.len();
        let state = self.inner.rx(queue, pool, burst, budget)?;
        self.lines("rx", queue, &burst.frames()[before..]);
        Ok(state)
    }

    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.lines("tx", queue, burst.frames());
        self.inner.tx(queue, pool, burst)
    }

    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.lines("pass", queue, burst.frames());
        self.inner.pass(queue, pool, burst)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.inner.flush()?;
        match self.failed.take() {
            None => Ok(()),
            Some(error) => Err(PortError::new(self.inner.name(), PortErrorKind::Output, error)),
        }
    }

    fn stats(&mut self) -> PortStats {
        self.inner.stats()
    }
}
