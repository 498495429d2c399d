//! `bpf_ktime_get_ns` from the processor's counter.
#![allow(unsafe_code)] // the instruction that reads the counter is an intrinsic that the standard library calls unsafe
//!
//! `clock_gettime` reads the same counter, and scales it by numbers that the kernel publishes to it alone. Here a worker reads
//! the clock and the counter together at most once a millisecond (`scale`, at the start of a burst), and generated code
//! goes on from there by itself. **The contract**: each call reads the counter, so time passes within a burst; a worker never
//! sees time go back; it differs from `CLOCK_MONOTONIC` by what the kernel's clock is slewed in a millisecond (at most 0.5
//! microseconds) and by what a read takes. The read is not ordered with memory accesses, as the kernel's is.
//!
//! Only where the counter is one that counts at a constant rate, in every sleep state, the same on all cores, and Linux
//! itself uses it as its clock source; else the helper asks the system ([`source`] says why).

use std::cell::Cell;
use std::sync::OnceLock;

use xway_vm::Host;
use xway_vm::host::Clock;

/// From the counter to nanoseconds: `ns + ((counter - start) * scale >> 64)`. A scale of 0 says that the helper has to be asked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scale {
    pub scale: u64,
    pub start: u64,
    pub ns: u64,
    /// Where the stub leaves what it read.
    pub now: u64,
}

impl Scale {
    fn at(&self, counter: u64) -> u64 {
        let ticks = counter.wrapping_sub(self.start);
        self.ns.wrapping_add(((u128::from(ticks) * u128::from(self.scale)) >> 64) as u64)
    }
}

/// Code of the stub that stores the counter into the environment, whose address is in rdi, and leaves all registers alone.
pub(crate) const STUB: [u8; 18] = [
    0x50,
    0x52, // push rax; push rdx
    0x0f,
    0x31, // rdtsc
    0x48,
    0xc1,
    0xe2,
    0x20, // shl rdx, 32
    0x48,
    0x09,
    0xd0, // or rax, rdx
    0x48,
    0x89,
    0x47,
    crate::env::offsets::CLOCK_NOW as u8, // mov [rdi + now], rax
    0x5a,
    0x58, // pop rdx; pop rax
    0xc3, // ret
];

/// Where compiled programs have their time from: `Ok`: the processor's counter; else why they ask the system.
pub fn source() -> Result<(), &'static str> {
    static SOURCE: OnceLock<Result<(), &'static str>> = OnceLock::new();
    *SOURCE.get_or_init(|| {
        if !cfg!(target_arch = "x86_64") {
            return Err("this processor's counter is not read by compiled programs");
        }
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let flags = cpu.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
        if !["constant_tsc", "nonstop_tsc"].iter().all(|f| flags.split_whitespace().any(|have| have == *f)) {
            return Err("the processor's counter does not count at a constant rate");
        }
        match read("/sys/devices/system/clocksource/clocksource0/current_clocksource").trim() {
            "tsc" => Ok(()),
            _ => Err("Linux does not use the processor's counter as its clock"),
        }
    })
}

fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads a register and touches no memory; every x86-64 processor has it.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// What a thread knows of its clock.
#[derive(Clone, Copy)]
struct Anchor {
    now: Scale,
    /// Counter and clock some time ago, from which the rate is found.
    past: (u64, u64),
}

thread_local! {
    static ANCHOR: Cell<Option<Anchor>> = const { Cell::new(None) };
}

/// Nanoseconds after which clock and counter are read together again.
const FRESH_NS: u64 = 1_000_000;
/// Nanoseconds over which the rate is found.
const PAST_NS: u64 = 1_000_000_000;

/// The scale for a burst that starts now; 0 where the host's clock is not the machine's or the counter will not do.
/// Cost: a read of the counter, and of the clock once a millisecond.
pub(crate) fn scale(host: &dyn Host) -> Scale {
    if !host.is_machine() || source().is_err() {
        return Scale::default();
    }
    let anchor = ANCHOR.get();
    if let Some(anchor) = anchor
        && anchor.now.at(counter()).wrapping_sub(anchor.now.ns) < FRESH_NS
    {
        return anchor.now;
    }
    let next = next(anchor, together(host), || {
        std::thread::sleep(std::time::Duration::from_micros(200));
        together(host)
    });
    ANCHOR.set(Some(next));
    next.now
}

/// Counter and clock at the same moment: the closest of a few reads.
fn together(host: &dyn Host) -> (u64, u64) {
    let read = |_| {
        let before = counter();
        let ns = host.clock_ns(Clock::Monotonic);
        let took = counter().wrapping_sub(before);
        (took, before.wrapping_add(took / 2), ns)
    };
    (0..4).map(read).min().map_or((0, 0), |(_, ticks, ns)| (ticks, ns))
}

/// The next anchor, from the last one and a reading. `later` gives a second reading where there is no last one.
fn next(last: Option<Anchor>, (ticks, ns): (u64, u64), later: impl FnOnce() -> (u64, u64)) -> Anchor {
    let rate = |from: (u64, u64), to: (u64, u64)| {
        let ticks = u128::from(to.0.wrapping_sub(from.0)).max(1);
        u64::try_from((u128::from(to.1.saturating_sub(from.1)) << 64) / ticks).unwrap_or(0)
    };
    let Some(last) = last else {
        let (start, ns2) = later();
        let now = Scale { scale: rate((ticks, ns), (start, ns2)), start, ns: ns2, now: 0 };
        return Anchor { now, past: (ticks, ns) };
    };
    let mut scale = rate(last.past, (ticks, ns));
    let shown = last.now.at(ticks);
    // Ahead of the clock: stay, and go slower until the next reading, so that nobody sees time go back.
    let ahead = shown.saturating_sub(ns).min(FRESH_NS / 2);
    scale -= (u128::from(scale) * u128::from(ahead) / u128::from(FRESH_NS)) as u64;
    let past = if ns.wrapping_sub(last.past.1) > PAST_NS { (ticks, ns) } else { last.past };
    // From a past that is too near no rate can be told.
    let scale = if past == (ticks, ns) || ns.wrapping_sub(last.past.1) < FRESH_NS / 8 {
        scale.max(last.now.scale / 2)
    } else {
        scale
    };
    Anchor { now: Scale { scale, start: ticks, ns: shown.max(ns), now: 0 }, past }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_vm::SystemHost;

    #[test]
    fn scaled_time_follows_a_clock_that_is_slewed_and_never_goes_back() {
        // 4 ticks a nanosecond, then 2 in a thousand fewer, then more.
        let (mut ticks, mut ns) = (1_000_000u64, 5_000_000_000u64);
        let step = |ticks: &mut u64, ns: &mut u64, per_ms: u64| {
            *ticks += 4_000_000;
            *ns += per_ms;
        };
        let mut second = (ticks, ns);
        step(&mut second.0, &mut second.1, 1_000_000);
        let mut anchor = next(None, (ticks, ns), || second);
        (ticks, ns) = second;
        let mut shown = anchor.now.at(ticks);
        for turn in 0..3_000 {
            step(&mut ticks, &mut ns, [1_000_000, 999_500, 1_000_500][turn / 1_000]);
            let before = anchor.now.at(ticks);
            assert!(before >= shown, "turn {turn}");
            anchor = next(Some(anchor), (ticks, ns), || unreachable!("there is a last one"));
            shown = anchor.now.at(ticks);
            assert!(shown >= before, "turn {turn}: {shown} after {before}");
            assert!(shown.abs_diff(ns) <= 2_000, "turn {turn}: {shown} is not {ns}");
        }
    }

    #[test]
    fn the_machine_is_followed_where_its_counter_will_do() {
        let host = SystemHost::new();
        let Ok(()) = source() else {
            assert_eq!(scale(&host).scale, 0);
            return;
        };
        let mut last = 0;
        for _ in 0..1_000 {
            let scale = scale(&host);
            let before = host.clock_ns(Clock::Monotonic);
            let ours = scale.at(counter());
            let after = host.clock_ns(Clock::Monotonic);
            assert!(ours >= last, "{ours} after {last}");
            // Far more than the contract: the thread may have been away between the reads.
            assert!(ours + 1_000_000 > before && ours < after + 1_000_000, "{before} {ours} {after}");
            last = ours;
        }
    }

    #[test]
    fn another_host_keeps_its_own_clock() {
        assert_eq!(scale(&xway_vm::FixedHost::new(1)).scale, 0);
    }
}
