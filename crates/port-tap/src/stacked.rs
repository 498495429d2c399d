//! Any port with a TAP as its stack side.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use xway_engine::{Backlog, Capabilities, Port, PortError, PortStats, Rx, Sent, Support};
use xway_packet::{Burst, Pool};

use crate::{TapPort, Way};

/// A queue of a port whose PASS goes into the host's stack through a TAP, and whose host answers: what the host sends out of the TAP
/// leaves by the port, unseen by the program, as a driver sends what its stack hands down.
pub struct Stacked {
    wire: Box<dyn Port>,
    stack: TapPort,
    /// Keeps the TAP's way into the host open.
    way: Option<Arc<Way>>,
    /// Readable when either is; `None` when the wire has nothing to wait for.
    any: Option<OwnedFd>,
    /// From the host, on the way out.
    out: Burst,
    /// What the host sent and the wire did not take.
    full: u64,
    failed: u64,
}

impl Stacked {
    /// Puts the TAP behind the port.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new(wire: Box<dyn Port>, stack: TapPort) -> std::io::Result<Stacked> {
        let any = match (wire.fd(), stack.fd()) {
            (Some(wire), Some(stack)) => {
                let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                epoll::add(&any, wire, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
                epoll::add(&any, stack, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
                Some(any)
            }
            _ => None,
        };
        Ok(Stacked { wire, stack, way: None, any, out: Burst::new(), full: 0, failed: 0 })
    }

    /// As [`Stacked::new`], with a TAP of an [`crate::Injector`]: frames enter the host as packets of the port's own interface.
    /// The host's answers leave by that interface without us.
    ///
    /// # Errors
    /// As [`Stacked::new`].
    pub fn injecting(wire: Box<dyn Port>, stack: TapPort, way: Arc<Way>) -> std::io::Result<Stacked> {
        Ok(Stacked { way: Some(way), ..Stacked::new(wire, stack)? })
    }

    /// Sends what the host has, and says whether there was anything.
    fn send_from_host(&mut self, queue: u32, pool: &mut Pool) -> Result<bool, PortError> {
        if self.way.is_some() {
            return Ok(false);
        }
        let received = self.stack.rx(queue, pool, &mut self.out, Burst::MAX);
        let count = self.out.len() as u32;
        if count > 0 {
            let sent = self.wire.tx(queue, pool, &mut self.out);
            pool.release_burst(&mut self.out);
            self.full += u64::from(sent.full);
            self.failed += u64::from(count.saturating_sub(sent.sent + sent.full));
            self.wire.flush()?;
        }
        received.map(|_| count > 0)
    }
}

impl Port for Stacked {
    fn name(&self) -> &str {
        self.wire.name()
    }

    fn ifindex(&self) -> u32 {
        self.wire.ifindex()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { pass: Support::Full, ..self.wire.capabilities() }
    }

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        let received = self.wire.rx(queue, pool, burst, budget)?;
        let sent = self.send_from_host(queue, pool)?;
        Ok(if sent && received == Rx::Idle { Rx::More } else { received })
    }

    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.wire.tx(queue, pool, burst)
    }

    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.stack.tx(queue, pool, burst)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.wire.flush()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self.way {
            Some(_) => self.wire.fd(),
            None => self.any.as_ref().map(|any| any.as_fd()),
        }
    }

    fn backlog(&mut self, queue: u32, pool: &mut Pool) -> Option<Backlog> {
        self.wire.backlog(queue, pool)
    }

    fn close(&mut self, pool: &mut Pool) {
        self.wire.close(pool);
    }

    fn progress(&self) -> Option<(u64, u64)> {
        self.wire.progress()
    }

    fn stats(&mut self) -> PortStats {
        let mut stats = self.wire.stats();
        let stack = self.stack.stats();
        let lost = [
            ("from the host, queue full", self.full),
            ("from the host, not sent", self.failed),
            ("from the host, longer than a frame", stack.oversize),
        ];
        stats.other.extend(lost.into_iter().filter(|&(_, count)| count > 0));
        stats.other.extend(stack.other);
        stats.no_frame += stack.no_frame;
        stats
    }
}
