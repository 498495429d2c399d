//! The machine itself as a host.

use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use xway_abi::Errno;

use super::netlink::Netlink;
use super::route::{FibAnswer, FibQuery, Link};
use super::{Clock, Host, Random, Task, Ticks, procfs};

/// The machine: its clocks, its random numbers, its routes. Holds one netlink socket, opened when first needed.
///
/// Random numbers come from a generator that `getrandom` seeds once; like the kernel's helper they are not for secrets.
pub struct SystemHost {
    random: Random,
    secret: [u64; 2],
    hz: u64,
    netlink: RefCell<Option<Netlink>>,
    looked: Cell<Looked>,
    trace: RefCell<Sink>,
}

/// Whether the tables' changes were asked for.
#[derive(Clone, Copy, PartialEq)]
enum Looked {
    /// Nobody announces bursts: they are asked for each time.
    Never,
    /// Not since this burst began.
    NotYet,
    /// In this burst.
    Already,
}

/// Takes trace output, a call at a time.
type Sink = Box<dyn FnMut(&str) + Send>;

impl SystemHost {
    /// A host whose trace output goes to standard error, one line a call. A program never waits there: lines for which there is no
    /// room are lost, and how many is in the next line.
    pub fn new() -> SystemHost {
        let mut seed = [0u8; 24];
        // Without entropy the clock must do: nothing here is secret except SYN cookies, which the process then shares
        // with whoever can guess its start to the nanosecond.
        if rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).is_err() {
            seed[..8].copy_from_slice(&clock(ClockId::Realtime).to_ne_bytes());
        }
        let word = |n: usize| seed[n * 8..].first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
        SystemHost {
            random: Random::new(word(0)),
            secret: [word(1), word(2)],
            hz: procfs::kernel_hz(),
            netlink: RefCell::new(None),
            looked: Cell::new(Looked::Never),
            trace: RefCell::new(Box::new(super::printed::line)),
        }
    }

    /// Sends trace output elsewhere.
    pub fn with_trace(mut self, sink: impl FnMut(&str) + Send + 'static) -> SystemHost {
        self.trace = RefCell::new(Box::new(sink));
        self
    }

    /// Shares the SYN cookie secret with another worker's host.
    pub fn with_syncookie_secret(mut self, secret: [u64; 2]) -> SystemHost {
        self.secret = secret;
        self
    }

    /// Routing tables that are up to date: as of now, or as of a moment of this burst. A system call, the first time in a burst.
    #[inline]
    fn tables(&self) -> Result<RefMut<'_, Netlink>, Errno> {
        let mut slot = self.netlink.borrow_mut();
        if slot.is_none() {
            *slot = Some(opened()?);
        }
        let mut netlink = RefMut::map(slot, |slot| slot.as_mut().expect("opened above"));
        let looked = self.looked.get();
        if looked == Looked::NotYet {
            self.looked.set(Looked::Already);
        }
        netlink.renew(looked != Looked::Already)?;
        Ok(netlink)
    }
}

#[cold]
fn opened() -> Result<Netlink, Errno> {
    Netlink::open()
}

/// This machine's.
static TICKS: Ticks = Ticks::new();

impl SystemHost {
    /// The last tick, as of now.
    fn tick(&self) -> &'static Ticks {
        TICKS.advance(clock(ClockId::MonotonicCoarse), self.hz);
        &TICKS
    }
}

impl Default for SystemHost {
    fn default() -> Self {
        SystemHost::new()
    }
}

impl std::fmt::Debug for SystemHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SystemHost").field("hz", &self.hz).finish_non_exhaustive()
    }
}

pub(super) fn clock(id: ClockId) -> u64 {
    let t = clock_gettime(id);
    nanoseconds(t.tv_sec, t.tv_nsec)
}

fn nanoseconds(seconds: i64, rest: i64) -> u64 {
    (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(rest as u64)
}

impl Host for SystemHost {
    fn clock_ns(&self, which: Clock) -> u64 {
        clock(match which {
            Clock::Monotonic => ClockId::Monotonic,
            Clock::Boot => ClockId::Boottime,
            Clock::Coarse => return self.tick().coarse(),
            Clock::Real => ClockId::Realtime,
            Clock::Tai => return tai(),
        })
    }

    fn is_machine(&self) -> bool {
        true
    }

    fn burst_begins(&self) {
        self.looked.set(Looked::NotYet);
    }

    fn jiffies(&self) -> u64 {
        self.tick().jiffies()
    }

    fn ticks(&self) -> Option<&'static Ticks> {
        Some(&TICKS)
    }

    fn random_u32(&self) -> u32 {
        self.random.next_u32()
    }

    fn generator(&self) -> Option<&Random> {
        Some(&self.random)
    }

    fn numa_node(&self) -> i32 {
        procfs::numa_node()
    }

    fn task(&self) -> Arc<Task> {
        procfs::task()
    }

    fn trace(&self, text: &str) {
        if let Ok(mut sink) = self.trace.try_borrow_mut() {
            sink(text);
        }
    }

    fn syncookie_secret(&self) -> [u64; 2] {
        self.secret
    }

    fn fib_lookup(&self, query: &FibQuery) -> Result<FibAnswer, Errno> {
        self.tables()?.tables().lookup(query)
    }

    fn device(&self, ifindex: u32) -> Result<Link, Errno> {
        self.tables()?.tables().link(ifindex).copied().ok_or(Errno::ENODEV)
    }
}

fn tai() -> u64 {
    use rustix::time::{DynamicClockId, clock_gettime_dynamic};
    // The kernel has had this clock since 3.10; the wall clock is at most 37 leap seconds away.
    clock_gettime_dynamic(DynamicClockId::Tai)
        .map_or_else(|_| clock(ClockId::Realtime), |t| nanoseconds(t.tv_sec, t.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_the_tables_are_asked_for_once_in_a_burst() {
        let host = SystemHost::new();
        let looks = || host.netlink.borrow().as_ref().map_or(0, |netlink| netlink.looks);
        let asks = || host.tables().is_ok();
        // Nobody says when bursts begin.
        assert!(asks() && asks());
        assert_eq!(looks(), 2);
        for burst in 3..6 {
            host.burst_begins();
            for _ in 0..64 {
                assert!(asks());
            }
            assert_eq!(looks(), burst);
        }
    }
}
