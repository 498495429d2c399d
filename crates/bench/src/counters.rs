//! What the processor and the kernel count while a thread runs: instructions, cycles, cache misses, page faults.
#![allow(unsafe_code)] // perf_event_open(2) takes an address.
//!
//! Counters of the processor are there where Linux has a driver for them, which most virtual machines do not give; those of the
//! kernel are there always. Each is opened by itself, so that one that is missing takes none of the others away, and it is said
//! why.

use std::os::fd::{FromRawFd, OwnedFd};

use xway_abi::Errno;

/// What is counted: `type` and `config` of `struct perf_event_attr` (`linux/perf_event.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// In tables and JSON.
    pub name: &'static str,
    kind: u32,
    config: u64,
}

/// A miss of a load in a cache: `PERF_TYPE_HW_CACHE`, `PERF_COUNT_HW_CACHE_OP_READ`, `..._RESULT_MISS`.
const fn misses(name: &'static str, cache: u64) -> Event {
    Event { name, kind: 3, config: cache | 1 << 16 }
}

const fn hardware(name: &'static str, config: u64) -> Event {
    Event { name, kind: 0, config }
}

const fn software(name: &'static str, config: u64) -> Event {
    Event { name, kind: 1, config }
}

/// All of them, in the order of the columns.
pub const EVENTS: [Event; 9] = [
    hardware("instructions", 1),
    hardware("cycles", 0),
    hardware("branch-misses", 5),
    misses("L1-icache-misses", 1),
    misses("L1-dcache-misses", 0),
    misses("LLC-misses", 2),
    software("page-faults", 2),
    software("context-switches", 3),
    software("cpu-migrations", 4),
];

/// Counters of the calling thread, in its own code and the kernel's, as far as they can be had.
#[derive(Debug)]
pub struct Counters {
    open: Vec<(Event, Result<OwnedFd, Errno>)>,
}

/// What was counted so far, by [`EVENTS`]; `None` where nothing is.
pub type Reading = [Option<f64>; EVENTS.len()];

impl Counters {
    /// Opens them; they count from now on. Those that cannot be had are in [`Counters::missing`].
    pub fn open() -> Counters {
        Counters { open: EVENTS.iter().map(|event| (*event, open(*event))).collect() }
    }

    /// Events that are not counted, each with the reason.
    pub fn missing(&self) -> Vec<(&'static str, String)> {
        let why = |(event, fd): &(Event, Result<OwnedFd, Errno>)| {
            let errno = *fd.as_ref().err()?;
            let hint = match errno {
                Errno::ENOENT | Errno::EOPNOTSUPP | Errno::ENODEV => {
                    ": this processor, or the virtual machine, has none"
                }
                Errno::EACCES | Errno::EPERM => ": needs CAP_PERFMON, or a lower kernel.perf_event_paranoid",
                _ => "",
            };
            Some((event.name, format!("{errno} ({}){hint}", errno.text())))
        };
        self.open.iter().filter_map(why).collect()
    }

    /// What was counted so far. Where the processor has fewer counters than are open, they take turns, and what a counter would have
    /// seen is estimated from the time that it ran. Cost: a system call for each.
    pub fn read(&self) -> Reading {
        std::array::from_fn(|n| value(self.open[n].1.as_ref().ok()?))
    }
}

/// The distance between two readings for each of so many packets.
pub fn each(before: &Reading, after: &Reading, packets: u32) -> Reading {
    std::array::from_fn(|n| Some((after[n]? - before[n]?) / f64::from(packets.max(1))))
}

/// Count, time that it was open, time that it ran.
fn value(fd: &OwnedFd) -> Option<f64> {
    let mut bytes = [0; 24];
    let len = rustix::io::read(fd, &mut bytes).ok()?;
    let [count, open, ran] = std::array::from_fn(|n| u64::from_ne_bytes(bytes.as_chunks::<8>().0[n]));
    match (len, ran) {
        (24, 1..) => Some(count as f64 * (open as f64 / ran as f64)),
        // It has had no turn yet, which for a counter of the kernel means that nothing has happened.
        (24, 0) => Some(count as f64),
        _ => None,
    }
}

/// A counter of this thread on whatever CPU it runs.
fn open(event: Event) -> Result<OwnedFd, Errno> {
    /// `PERF_FORMAT_TOTAL_TIME_ENABLED`, `PERF_FORMAT_TOTAL_TIME_RUNNING`
    const TIMES: u64 = 1 | 2;
    const FD_CLOEXEC: u64 = 8;
    // `struct perf_event_attr`, first version: type and size, config, period, sample type, read format, flags, wake-ups.
    let mut attr = [0u64; 8];
    attr[0] = u64::from(event.kind) | (size_of_val(&attr) as u64) << 32;
    attr[1] = event.config;
    attr[4] = TIMES;
    // SAFETY: the structure is as long as its second field says and lives during the call, which only reads it.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0i64, -1i64, -1i64, FD_CLOEXEC) };
    if fd < 0 {
        return Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)));
    }
    // SAFETY: the call has just opened it, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What cannot be counted is named, and what the kernel counts by itself is counted.
    #[test]
    fn each_event_is_counted_or_missing_with_a_reason() {
        let counters = Counters::open();
        let before = counters.read();
        // More than any allocator keeps (glibc: 32 MiB), so it is memory that nobody has touched: faults.
        const PAGES: usize = 64;
        let mut memory = vec![0u8; 40 << 20];
        memory.iter_mut().step_by(4096).take(PAGES).for_each(|byte| *byte = std::hint::black_box(1));
        std::hint::black_box(&memory);
        let after = counters.read();
        let counted = each(&before, &after, PAGES as u32);
        let missing = counters.missing();
        for (event, counted) in EVENTS.iter().zip(counted) {
            let why = missing.iter().find(|(name, _)| *name == event.name);
            assert_eq!(counted.is_none(), why.is_some(), "{event:?}");
            assert!(why.is_none_or(|(_, why)| !why.is_empty()));
            assert!(counted.is_none_or(|n| n.is_finite() && n >= 0.0), "{event:?}: {counted:?}");
        }
        if let Some(faults) = counted[EVENTS.iter().position(|e| e.name == "page-faults").unwrap()] {
            // Of huge pages one fault brings many.
            assert!(faults > 0.0, "{faults}");
        }
    }

    #[test]
    fn differences_are_for_each_packet() {
        let of = |n: f64| std::array::from_fn(|at| (at != 3).then_some(n));
        let each = each(&of(100.0), &of(300.0), 50);
        assert_eq!((each[0], each[3]), (Some(4.0), None));
    }
}
