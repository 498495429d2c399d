//! `bpf_ktime_get_ns` and `bpf_ktime_get_boot_ns` from the processor's counter.
#![allow(unsafe_code)] // the instruction that reads the counter is an intrinsic that the standard library calls unsafe
//!
//! `clock_gettime` reads the same counter, and scales it by numbers that the kernel publishes to it alone. Here a worker reads
//! the clock and the counter together at most once a millisecond (`scale`, at the start of a burst), and generated code
//! goes on from there by itself. **The contract**: each call reads the counter, so time passes within a burst; a worker never
//! sees time go back; it differs from `CLOCK_MONOTONIC` by what the kernel's clock is slewed in a millisecond (at most 0.5
//! microseconds) and by what a read takes. The read is not ordered with memory accesses, as the kernel's is.
//!
//! What is told is never behind the coarse clock (`bpf_ktime_get_coarse_ns`), which is the system's: where it would be, it is that one.
//!
//! The counter goes on where the clock stands, or begins anew, while the machine sleeps or a virtual one is moved, and what is known of its
//! rate is not good for long. So no reading is gone on from for more than two milliseconds: later calls of a burst ask the system, and
//! whoever was away begins with what the clock says. Time is never further ahead than that, and runs at half its speed until the clock has
//! caught up.
//!
//! The clock that goes on while the machine sleeps is ahead of the other by how long it has slept: a number that changes when it wakes up, and is read
//! with the clock. A sleep is longer than any reading is gone on from, so no time behind it is made of a number from before it.
//!
//! Only where the counter is one that counts at a constant rate, in every sleep state, the same on all cores, and Linux
//! itself uses it as its clock source; else the helper asks the system ([`source`] says why).

use std::cell::Cell;
use std::sync::OnceLock;

use xway_vm::Host;
use xway_vm::host::Clock;

/// From the counter to nanoseconds: `ns + ((counter - start) * scale >> 64)`, for fewer than `limit` ticks. A scale of 0 says that the
/// helper has to be asked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scale {
    pub scale: u64,
    pub start: u64,
    pub ns: u64,
    /// Where the stub leaves what it read.
    pub now: u64,
    /// Ticks from the start from which on the helper has to be asked.
    pub limit: u64,
    /// The time then. Nobody was told a later one, and what the helper says is not before it.
    pub last: u64,
    /// Nanoseconds that the machine has slept.
    pub slept: u64,
}

impl Scale {
    fn after(&self, ticks: u64) -> u64 {
        self.ns.wrapping_add(times(ticks, self.scale))
    }

    #[cfg(test)]
    fn at(&self, counter: u64) -> u64 {
        self.after(counter.wrapping_sub(self.start))
    }

    /// What generated code gives when the counter and the helper say this.
    #[cfg(test)]
    fn told(&self, counter: u64, clock: u64) -> u64 {
        let within = self.scale != 0 && counter.wrapping_sub(self.start) < self.limit;
        if within { self.at(counter) } else { clock.max(self.last) }
    }
}

/// Ticks in nanoseconds, at a rate.
fn times(ticks: u64, rate: u64) -> u64 {
    ((u128::from(ticks) * u128::from(rate)) >> 64) as u64
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

/// The processor's counter; always 0 where there is none that programs may read.
pub(crate) fn counter() -> u64 {
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
    /// Ticks from its start after which it is old.
    fresh: u64,
    /// The counter's rate. `now` goes slower while it is ahead of the clock.
    rate: u64,
    /// Counter and clock when it was made.
    read: (u64, u64),
    /// Counter and clock some time ago, from which the rate is found.
    past: (u64, u64),
}

thread_local! {
    static ANCHOR: Cell<Option<Anchor>> = const { Cell::new(None) };
}

/// Nanoseconds after which clock and counter are read together again.
const FRESH_NS: u64 = 1_000_000;
/// Nanoseconds for which generated code goes on from a reading at most: a burst may begin in the last of the first thousand of them.
const LIMIT_NS: u64 = 2 * FRESH_NS;
/// Nanoseconds over which the rate is found.
const PAST_NS: u64 = 1_000_000_000;
/// The same in ticks at most, whatever the rate seems to be: a second or two.
const TICKS_MAX: u64 = 1 << 32;

/// The scale for a burst that starts now; 0 where the host's clock is not the machine's or the counter will not do.
/// Cost: a read of the counter, and of the clock once a millisecond.
pub(crate) fn scale(host: &dyn Host) -> Scale {
    if !host.is_machine() || source().is_err() {
        return Scale::default();
    }
    let anchor = ANCHOR.get();
    if let Some(anchor) = anchor
        && !anchor.is_old(counter())
    {
        return anchor.now;
    }
    let mut next = next(anchor, together(host), || {
        std::thread::sleep(std::time::Duration::from_micros(200));
        together(host)
    });
    next.now.slept = slept(anchor.map(|anchor| anchor.now.slept), || clocks(host));
    ANCHOR.set(Some(next));
    next.now
}

/// Nanoseconds of sleep that are not taken for an error of reading the two clocks one behind the other.
const SLEPT_MIN: u64 = 10_000;

/// How long the machine has slept, from what was known last and readings: how long one took, and how far the clocks were apart.
fn slept(last: Option<u64>, read: impl Fn() -> (u64, u64)) -> u64 {
    let (_, apart) = read();
    // Nearly always nothing has happened, and then it is the very same number, so that no time goes back for an error.
    if let Some(last) = last
        && last.abs_diff(apart) < SLEPT_MIN
    {
        return last;
    }
    let (took, apart) = (0..8).map(|_| read()).min().unwrap_or_default();
    match last {
        // It never gets less, and what takes so long shows nothing.
        Some(last) if took >= SLEPT_MIN || apart < last + SLEPT_MIN => last,
        _ => apart,
    }
}

/// How long it took to read both clocks, and how far the one that counts sleep was ahead of the other.
fn clocks(host: &dyn Host) -> (u64, u64) {
    let before = host.clock_ns(Clock::Monotonic);
    let boot = host.clock_ns(Clock::Boot);
    let took = host.clock_ns(Clock::Monotonic).saturating_sub(before);
    (took, boot.saturating_sub(before + took / 2))
}

impl Anchor {
    /// From a reading on. `shown`: what may have been told by now.
    fn new(read: (u64, u64), rate: u64, past: (u64, u64), shown: u64) -> Anchor {
        let ticks = |ns: u64| (u128::from(ns) << 64).checked_div(rate.into()).unwrap_or(0).min(TICKS_MAX.into()) as u64;
        // Ahead of the clock: stay, and go slower until the next reading, so that nobody sees time go back.
        let ahead = shown.saturating_sub(read.1).min(FRESH_NS / 2);
        let slower = (u128::from(rate) * u128::from(ahead) / u128::from(FRESH_NS)) as u64;
        let now = Scale { scale: rate - slower, start: read.0, ns: shown.max(read.1), ..Scale::default() };
        let limit = ticks(LIMIT_NS);
        // A rate that is none stays so: the helper is asked for ever.
        let fresh = if rate == 0 { u64::MAX } else { ticks(FRESH_NS) };
        Anchor { now: Scale { limit, last: now.after(limit), ..now }, fresh, rate, read, past }
    }

    fn is_old(&self, counter: u64) -> bool {
        counter.wrapping_sub(self.now.start) >= self.fresh
    }
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
fn next(last: Option<Anchor>, read: (u64, u64), later: impl FnOnce() -> (u64, u64)) -> Anchor {
    let rate = |from: (u64, u64), to: (u64, u64)| {
        let ticks = u128::from(to.0.wrapping_sub(from.0)).max(1);
        u64::try_from((u128::from(to.1.saturating_sub(from.1)) << 64) / ticks).unwrap_or(0)
    };
    let Some(last) = last else {
        let second = later();
        return Anchor::new(second, rate(read, second), read, second.1);
    };
    let (ticks, ns) = read;
    // The counter went on without the clock, or the other way round: what lies before that says nothing about the rate.
    let (counted, passed) = (times(ticks.wrapping_sub(last.read.0), last.rate), ns.saturating_sub(last.read.1));
    let jumped = counted.abs_diff(passed) > FRESH_NS + passed / 8;
    let past = if jumped { read } else { last.past };
    // Nor can it be told from a past that is too near.
    let known = ns.saturating_sub(past.1) >= FRESH_NS / 8;
    let rate = if known { rate(past, read) } else { last.rate };
    let past = if ns.saturating_sub(past.1) > PAST_NS { read } else { past };
    let shown = last.now.after(ticks.wrapping_sub(last.now.start).min(last.now.limit));
    Anchor::new(read, rate, past, shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_vm::SystemHost;

    /// Errors of reading change nothing, a sleep is seen, and a reading that was interrupted is no sleep.
    #[test]
    fn sleep_is_told_from_errors() {
        use std::cell::Cell;
        let row = |all: &'static [(u64, u64)]| {
            let at = Cell::new(0);
            move || {
                let n = at.get();
                at.set(n + 1);
                all[n.min(all.len() - 1)]
            }
        };
        assert_eq!(slept(None, row(&[(900, 70_000), (50, 5_000), (40, 4_990), (800, 4_000)])), 4_990);
        assert_eq!(slept(Some(5_000), row(&[(50, 5_040)])), 5_000);
        assert_eq!(slept(Some(5_000), row(&[(50, 4_000)])), 5_000);
        // Interrupted once; again and again; a second of sleep, seen between interruptions.
        assert_eq!(slept(Some(5_000), row(&[(900_000, 450_000), (50, 5_010)])), 5_000);
        assert_eq!(slept(Some(5_000), row(&[(900_000, 450_000)])), 5_000);
        assert_eq!(slept(Some(5_000), row(&[(50, 1_000_005_000), (900_000, 0), (60, 1_000_005_010)])), 1_000_005_010);
        // Never less.
        assert_eq!(slept(Some(1_000_005_000), row(&[(50, 5_000)])), 1_000_005_000);
    }

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

    /// A machine whose counter and clock need not agree, and what a worker on it sees.
    struct Sim {
        ticks: u64,
        ns: u64,
        anchor: Option<Anchor>,
        seen: u64,
    }

    impl Sim {
        const TICKS_PER_US: u64 = 4_000;

        /// A worker that knows the rate from two readings, between which the clock seemed to be so many nanoseconds late.
        fn new(late: u64) -> Sim {
            let mut sim = Sim { ticks: 1 << 40, ns: 5_000_000_000, anchor: None, seen: 0 };
            let first = (sim.ticks, sim.ns);
            sim.pass(200);
            let second = (sim.ticks, sim.ns + late);
            sim.anchor = Some(next(None, first, || second));
            sim
        }

        /// Both go on.
        fn pass(&mut self, us: u64) {
            self.ticks = self.ticks.wrapping_add(us * Self::TICKS_PER_US);
            self.ns += us * 1_000;
        }

        /// A burst begins.
        fn burst(&mut self) {
            let anchor = self.anchor.unwrap();
            if anchor.is_old(self.ticks) {
                self.anchor = Some(next(Some(anchor), (self.ticks, self.ns), || unreachable!("there is a last one")));
            }
        }

        /// A program asks: by how much it is told another time than the clock's.
        fn ask(&mut self) -> u64 {
            let now = self.anchor.unwrap().now.told(self.ticks, self.ns);
            assert!(now >= self.seen, "{now} after {}", self.seen);
            self.seen = now;
            now.abs_diff(self.ns)
        }

        /// So many bursts, a tenth of a millisecond apart: the worst that is seen in them, and the last.
        fn bursts(&mut self, count: u64) -> (u64, u64) {
            let (mut worst, mut last) = (0, 0);
            for _ in 0..count {
                self.burst();
                last = self.ask();
                worst = worst.max(last);
                self.pass(100);
            }
            (worst, last)
        }
    }

    /// An hour in which the counter goes on and the clock does not, or the counter begins anew: between bursts or within one.
    #[test]
    fn a_machine_that_slept_is_followed() {
        type Wakes = fn(&mut Sim);
        let wakes: [Wakes; 3] = [
            |sim| sim.ticks += 3_600_000_000 * Sim::TICKS_PER_US,
            |sim| sim.ticks = 1_000_000,
            |sim| sim.ticks = u64::MAX - 1_000_000,
        ];
        for (wake, within) in wakes.into_iter().flat_map(|wake| [(wake, false), (wake, true)]) {
            for before in [1, 5_000, 15_003] {
                let mut sim = Sim::new(0);
                sim.bursts(before);
                sim.burst();
                wake(&mut sim);
                if within {
                    assert!(sim.ask() <= LIMIT_NS);
                }
                assert!(sim.bursts(100).0 <= LIMIT_NS);
                assert!(sim.bursts(20_000).0 <= 2_000);
            }
        }
    }

    /// A rate that is known badly, and a worker that has nothing to do for long.
    #[test]
    fn a_worker_that_was_idle_is_not_ahead() {
        for late in [0, 500, 5_000] {
            let mut sim = Sim::new(late);
            sim.ask();
            sim.pass(600_000_000);
            let (worst, _) = sim.bursts(10_000);
            assert!(worst <= late + 2_000, "{worst}");
            sim.pass(3_000_000);
            sim.burst();
            sim.pass(30_000);
            assert!(sim.ask() <= 2_000, "a burst that lasts");
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
