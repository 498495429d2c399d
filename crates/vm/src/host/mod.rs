//! What a program may ask of the machine that it runs on, behind one trait.
//!
//! Helpers compute; whatever is not computation (time, randomness, routes, who runs) comes from a [`Host`]. [`SystemHost`]
//! asks the machine, [`FixedHost`] gives the same answers in every run.

mod fixed;
mod netlink;
mod prefixes;
mod printed;
mod procfs;
mod random;
pub mod route;
mod system;
mod ticks;

pub use fixed::FixedHost;
pub use printed::{Listener, Printer, told_of_lost_lines};
pub use random::Random;
pub use system::SystemHost;
pub use ticks::Ticks;

use std::sync::Arc;

use route::{FibAnswer, FibQuery, Link};
use xway_abi::Errno;

/// Clocks that helpers read, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// `CLOCK_MONOTONIC` (`bpf_ktime_get_ns`).
    Monotonic,
    /// `CLOCK_BOOTTIME` (`bpf_ktime_get_boot_ns`).
    Boot,
    /// `CLOCK_MONOTONIC_COARSE` (`bpf_ktime_get_coarse_ns`).
    Coarse,
    /// `CLOCK_REALTIME` (timers).
    Real,
    /// `CLOCK_TAI` (`bpf_ktime_get_tai_ns`).
    Tai,
}

/// Who runs the program: the thread of the worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Task {
    /// Thread id.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Name, zero-terminated as `bpf_get_current_comm` gives it.
    pub comm: [u8; 16],
    /// Ids of the version-2 control group and its ancestors, the root first.
    pub cgroup_ids: Vec<u64>,
    /// Device and inode of the PID name space.
    pub pid_ns: (u64, u64),
}

/// The machine as a program sees it. One per worker; nothing here is shared between threads.
pub trait Host {
    /// Reads a clock.
    fn clock_ns(&self, clock: Clock) -> u64;

    /// Whether its monotonic clock is this machine's, so that generated code may read the processor's counter in its place.
    fn is_machine(&self) -> bool {
        false
    }

    /// A burst of packets begins. What a host looks up for its programs (routes, links) may be as old as the burst; a host that was
    /// never told looks each time.
    fn burst_begins(&self) {}

    /// The kernel's tick counter (`bpf_jiffies64`).
    fn jiffies(&self) -> u64;

    /// The words that `jiffies` and the coarse clock are in, where they are this machine's: generated code then reads these, and asks
    /// only now and then whether there was another tick.
    fn ticks(&self) -> Option<&'static Ticks> {
        None
    }

    /// A pseudo-random number.
    fn random_u32(&self) -> u32;

    /// The generator that `random_u32` asks and nothing else, when it is ours: generated code then makes the numbers itself.
    fn generator(&self) -> Option<&Random> {
        None
    }

    /// NUMA node of the worker; may be as old as the burst.
    fn numa_node(&self) -> i32;

    /// The worker's thread. What may change of it (its name, its control group) may be as old as a second, and as the burst.
    fn task(&self) -> Arc<Task>;

    /// A line from `bpf_trace_printk` or `bpf_trace_vprintk`.
    fn trace(&self, text: &str);

    /// Secret of the SYN cookies; the same for all workers, and for as long as cookies are to be accepted.
    fn syncookie_secret(&self) -> [u64; 2];

    /// Looks up a route and a neighbour.
    fn fib_lookup(&self, query: &FibQuery) -> Result<FibAnswer, Errno>;

    /// An interface, with this index; `ENODEV` when there is none. May be as old as the burst.
    fn device(&self, ifindex: u32) -> Result<Link, Errno>;
}
