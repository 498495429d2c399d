//! The clocks: the processor's counter, and those that go by ticks, read from words that all threads share.

use std::cell::Cell;
use std::sync::Arc;

use xway_abi::Errno;
use xway_jit::{Compiled, Options, RunEnv, clock, compile};
use xway_maps::Guard;
use xway_object::Program;
use xway_packet::{Frame, Pool, PoolConfig};
use xway_verifier::{Config, MapsView, verify};
use xway_vm::SystemHost;
use xway_vm::host::route::{FibAnswer, FibQuery, Link};
use xway_vm::host::{Clock, Host, Random, Task, Ticks};

fn compiled(text: &str) -> Arc<Compiled> {
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let image = Program { name: "ticks".into(), section: "xdp".into(), insns, ..Program::default() };
    let view = MapsView { maps: &[], btf: None, kernel: None, license: Some("GPL") };
    let proof = verify(&image, &view, &Config::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    compile(&xway_vm::Program::link(&image, &[]).unwrap(), &proof, &Options::default()).unwrap()
}

/// What a program gives for each packet of a burst.
fn burst<const N: usize>(code: &Compiled, host: &dyn Host) -> [u64; N] {
    let mut pool = Pool::new(PoolConfig::new(N as u32)).unwrap();
    let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.alloc().ok()).collect();
    let guard = Guard::pin();
    let mut rets = [0; N];
    code.run_burst(&mut frames, &mut RunEnv::new(&guard, host, 0), &mut rets).unwrap();
    frames.into_iter().for_each(|f| pool.release(f));
    rets
}

/// The machine, with words of its own, which counts how often its ticks are asked for.
struct Counting {
    machine: SystemHost,
    ticks: &'static Ticks,
    asked: Cell<u64>,
    /// How often it was asked who runs, or where, or what an interface is.
    who: Cell<u64>,
}

impl Counting {
    fn new(ticks: &'static Ticks) -> Counting {
        Counting { machine: SystemHost::new(), ticks, asked: Cell::new(0), who: Cell::new(0) }
    }
}

impl Host for Counting {
    fn clock_ns(&self, clock: Clock) -> u64 {
        if clock != Clock::Coarse {
            return self.machine.clock_ns(clock);
        }
        self.asked.set(self.asked.get() + 1);
        self.ticks.advance(1_000_000 * self.asked.get(), 250);
        self.ticks.coarse()
    }

    fn is_machine(&self) -> bool {
        true
    }

    fn jiffies(&self) -> u64 {
        self.asked.set(self.asked.get() + 1);
        self.ticks.jiffies()
    }

    fn ticks(&self) -> Option<&'static Ticks> {
        Some(self.ticks)
    }

    fn random_u32(&self) -> u32 {
        self.machine.random_u32()
    }

    fn generator(&self) -> Option<&Random> {
        self.machine.generator()
    }

    fn numa_node(&self) -> i32 {
        self.who.set(self.who.get() + 1);
        self.machine.numa_node()
    }

    fn task(&self) -> Arc<Task> {
        self.who.set(self.who.get() + 1);
        self.machine.task()
    }

    fn trace(&self, text: &str) {
        self.machine.trace(text);
    }

    fn syncookie_secret(&self) -> [u64; 2] {
        self.machine.syncookie_secret()
    }

    fn fib_lookup(&self, query: &FibQuery) -> Result<FibAnswer, Errno> {
        self.machine.fib_lookup(query)
    }

    fn device(&self, ifindex: u32) -> Result<Link, Errno> {
        self.who.set(self.who.get() + 1);
        self.machine.device(ifindex)
    }
}

#[test]
fn ticks_are_those_of_the_machine() {
    let host = SystemHost::new();
    let (coarse, jiffies) = (compiled("call 160\nexit"), compiled("call 118\nexit"));
    let mut last = [0; 2];
    for _ in 0..20 {
        let before = [host.clock_ns(Clock::Coarse), host.jiffies()];
        let told = [burst::<8>(&coarse, &host), burst::<8>(&jiffies, &host)];
        let after = [host.clock_ns(Clock::Coarse), host.jiffies()];
        for n in 0..2 {
            assert!(told[n].is_sorted() && told[n][0] >= before[n].max(last[n]) && told[n][7] <= after[n], "{told:?}");
            last[n] = told[n][7];
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A tick is seen by the next burst, and within one after so many readings; by other threads, as soon as one has seen it.
#[test]
fn ticks_are_asked_for_now_and_then() {
    static TICKS: Ticks = Ticks::new();
    let host = Counting::new(&TICKS);
    let code = compiled("r6 = 0\nmore: call 160\nr7 = r0\nr6 += 1\nif r6 < 10 goto more\nr0 = r7\nexit");
    // Ten readings for each packet, 64 from one question to the next.
    let told = burst::<20>(&code, &host);
    assert_eq!(host.asked.get(), 4);
    assert!(told.is_sorted());
    assert_eq!([told[0], told[5], told[6], told[19]], [1, 1, 2, 4].map(|n| n * 1_000_000));
    burst::<1>(&code, &host);
    assert_eq!(host.asked.get(), 5);
    // What others have seen is there at once, whoever asks.
    TICKS.advance(77_000_000, 250);
    assert_eq!(burst::<1>(&code, &host), [77_000_000]);
    assert_eq!(burst::<3>(&compiled("call 118\nexit"), &host), [TICKS.jiffies(); 3]);
    // Without a loop once in a burst, however long it is.
    let asked = host.asked.get();
    let code = compiled("call 160\nr6 = r0\ncall 160\nif r6 != r0 goto +1\nr6 = 0\nr0 = r6\nexit");
    assert_eq!(burst::<200>(&code, &host), [0; 200]);
    assert_eq!(host.asked.get(), asked + 1);
    burst::<1>(&code, &host);
    assert_eq!(host.asked.get(), asked + 2);
}

/// The thread and its node: once in a burst, however many packets and readings, and anew in the next one.
#[test]
fn who_runs_is_asked_for_once_in_a_burst() {
    static TICKS: Ticks = Ticks::new();
    let host = Counting::new(&TICKS);
    let task = host.machine.task();
    let pid = u64::from(task.tgid) << 32 | u64::from(task.pid);
    for (burst_number, helper) in [14, 15, 42, 80].into_iter().flat_map(|h| [h; 3]).enumerate() {
        let code = compiled(&format!("call {helper}\nr6 = r0\ncall {helper}\nif r6 != r0 goto +1\nexit\nr0 = 5\nexit"));
        let told = burst::<70>(&code, &host);
        assert!(helper != 14 || told == [pid; 70], "{told:?}");
        assert!(told.iter().all(|ret| *ret == told[0]));
        assert_eq!(host.who.get(), burst_number as u64 + 1);
    }
}

/// An interface, of those that are asked for in turn: once in a burst, and anew in the next one. One that is not there is asked for each time.
#[test]
fn an_interface_is_asked_for_once_in_a_burst() {
    static TICKS: Ticks = Ticks::new();
    let host = Counting::new(&TICKS);
    let mtu = |ifindex: u32| {
        compiled(&format!(
            "*(u64 *)(r10 -8) = 0\nr2 = {ifindex}\nr3 = r10\nr3 += -8\nr4 = 0\nr5 = 0\ncall 163\nif r0 s< 0 goto +1\n\
             r0 = *(u32 *)(r10 -8)\nexit"
        ))
    };
    let (loopback, none) = (mtu(1), mtu(0x7fff_0000));
    for asked in [1, 2] {
        let expected = host.machine.device(1).map_or_else(Errno::as_ret, |link| link.mtu.into());
        assert_eq!(burst::<9>(&loopback, &host), [expected; 9]);
        assert_eq!(host.who.get(), asked);
    }
    assert_eq!(burst::<3>(&none, &host), [Errno::ENODEV.as_ret(); 3]);
    assert_eq!(host.who.get(), 5);
}

/// As on Linux: who takes the difference of a time and an earlier coarse one gets no number of centuries.
#[test]
fn the_coarse_clock_is_not_ahead() {
    static TICKS: Ticks = Ticks::new();
    let host = Counting::new(&TICKS);
    if clock::source().is_err() {
        return;
    }
    // Later than any clock lags, and for as long as this takes.
    TICKS.advance(host.clock_ns(Clock::Monotonic) + 100_000_000_000, 250);
    let behind = compiled("call 160\nr6 = r0\ncall 5\nr0 -= r6\nexit");
    assert_eq!(burst::<4>(&behind, &host), [0; 4]);
    let behind = compiled("call 5\nexit");
    assert_eq!(burst::<4>(&behind, &host), [TICKS.coarse(); 4]);
}

#[test]
fn the_clock_of_the_machine_moves_and_never_goes_back() {
    let host = SystemHost::new();
    for (helper, clock) in [(5, Clock::Monotonic), (125, Clock::Boot)] {
        // The difference of two readings, in nanoseconds.
        let apart = compiled(&format!("call {helper}\nr6 = r0\ncall {helper}\nr0 -= r6\nexit"));
        let once = compiled(&format!("call {helper}\nexit"));
        let mut last = 0;
        for _ in 0..50 {
            let rets = burst::<8>(&apart, &host);
            // A thread may be away for long, but not for minutes.
            assert!(rets.iter().all(|r| *r < 100_000_000_000), "{rets:?}");
            // It is the clock of that name, but for what the counter may be off in the two milliseconds that it is gone on from.
            let before = host.clock_ns(clock);
            let told = burst::<8>(&once, &host);
            let after = host.clock_ns(clock);
            assert!(told.is_sorted() && told[0] >= last, "{told:?} behind {last}");
            assert!(told[0] + 2_000_000 > before && told[7] < after + 2_000_000, "{before} {told:?} {after}");
            last = told[7];
        }
    }
}
