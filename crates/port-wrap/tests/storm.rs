//! Everything at once: bad wires on every queue while programs are exchanged, queues go and come, and ports close and open.
//! Nothing may crash, leak or stick, and the books must balance.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_abi::Verdict;
use xway_engine::{
    AttachFlags, Device, Engine, EngineConfig, Executor, ExecutorInfo, HookPoint, LoadedProgram, PassTo, Port,
    PortConfig, PortError, PortErrorKind, QueueReport, Results,
};
use xway_maps::Guard;
use xway_packet::{Frame, PoolConfig, Redirect};
use xway_port_sim::{Pattern, SimDevice, Traffic};
use xway_port_wrap::{Fault, FaultConfig, WrappedDevice};

/// A program that decides by the packet's last byte and a number of its own.
struct Mixed(u32);

impl LoadedProgram for Mixed {
    fn id(&self) -> u32 {
        self.0
    }

    fn name(&self) -> &str {
        "mixed"
    }

    fn executor(&self, _: u32) -> Box<dyn Executor> {
        Box::new(Mixed(self.0))
    }
}

impl Executor for Mixed {
    fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
        for frame in frames {
            let number = frame.packet().iter().fold(self.0 as u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
            let verdict = match number % 8 {
                0 => Verdict::Drop as u64,
                1 => Verdict::Aborted as u64,
                2 | 3 => Verdict::Tx as u64,
                4 => 99,
                5 => Verdict::Pass as u64,
                _ => {
                    frame.set_redirect(Redirect::Ifindex(1 + u32::from(number) % 3));
                    Verdict::Redirect as u64
                }
            };
            if number.is_multiple_of(5) {
                let _ = frame.adjust_head(-8);
            }
            results.push(verdict, 0);
        }
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: "mixed".into(), engine: "test" }
    }
}

/// A device with two queues of endless traffic behind bad wires.
fn device(ifindex: u32, seed: u64) -> Box<dyn Device> {
    let traffic = Traffic::udp(100, 90, Pattern::Uniform, seed).unwrap();
    let (inner, _) = SimDevice::generated(&format!("d{ifindex}"), ifindex, traffic, None, 2);
    Box::new(WrappedDevice::new(Box::new(inner), move |port, queue| {
        let name = port.name().to_owned();
        let seed = seed + u64::from(queue);
        let bad = FaultConfig { loss: 0.1, duplicate: 0.1, corrupt: 0.1, reorder: 0.1, no_frame: 0.1, seed };
        let port = Fault::new(port, bad).map_err(|e| PortError::new(name, PortErrorKind::Input, e))?;
        Ok(Box::new(port) as Box<dyn Port>)
    }))
}

fn open(engine: &Engine, ifindex: u32, seed: u64) {
    // Small pools, so that they run dry; one of the three is on both workers.
    let config = PortConfig {
        queues: Some(vec![(0, ifindex % 2), (1, 1)]),
        pool: Some(PoolConfig { max_outstanding: 150, ..PoolConfig::new(200) }),
        pass: if ifindex == 2 { PassTo::Port(1) } else { PassTo::Stack },
        ..PortConfig::default()
    };
    engine.open(device(ifindex, seed), config).unwrap();
}

/// A closed queue: every frame has its end and is home.
fn closed(report: &QueueReport) -> u64 {
    let what = format!("{} queue {}", report.port, report.queue);
    assert_eq!(report.counters.balance(), Ok(()), "{what}");
    assert_eq!(report.counters.relay_balance(), Ok(()), "{what}");
    assert_eq!((report.leak, report.pool.outstanding), (None, 0), "{what}");
    assert!(report.error.is_none(), "{what}");
    // What the port received, less what its wire lost and more what it doubled, is what the worker got.
    let of = |name: &str| report.stats.other.iter().find(|(known, _)| *known == name).map_or(0, |&(_, n)| n);
    let got = report.stats.rx - of("fault: lost on receive") + of("fault: doubled on receive");
    assert!(got - report.counters.rx <= 1, "{what}: at most the packet that the wire held back is missing");
    report.counters.rx
}

#[test]
fn a_storm_passes() {
    let seconds = std::env::var("XWAY_STORM_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let config = EngineConfig { workers: 2, ..EngineConfig::default() };
    let engine = Engine::start(config).unwrap();
    (1..=3).for_each(|ifindex| open(&engine, ifindex, u64::from(ifindex) * 10));
    let mut received = 0;
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut round = 0u32;
    while Instant::now() < until || round < 30 {
        round += 1;
        let ifindex = 1 + round % 3;
        let point = HookPoint { ifindex, queue: round.is_multiple_of(5).then_some(round % 2) };
        engine.attach(point, Arc::new(Mixed(round)), AttachFlags::default()).unwrap();
        if round.is_multiple_of(7) {
            let report = engine.remove_queue(ifindex, 1).unwrap();
            received += closed(&report);
            engine.add_queue(ifindex, 1, round % 2).unwrap();
        }
        if round.is_multiple_of(11) {
            received += engine.close(ifindex).unwrap().iter().map(closed).sum::<u64>();
            open(&engine, ifindex, u64::from(round));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let before: Vec<u64> = engine.queues().iter().map(|queue| queue.counters.rx).collect();
    std::thread::sleep(Duration::from_millis(200));
    for (queue, before) in engine.queues().iter().zip(before) {
        assert!(queue.counters.rx > before, "{} queue {} is stuck", queue.port, queue.queue);
    }
    let stopped = engine.stop();
    received += stopped.queues.iter().map(closed).sum::<u64>();
    stopped.cpus.iter().for_each(|cpu| assert_eq!(cpu.balance(), Ok(())));
    assert!(received > 10_000, "{received}");
}
