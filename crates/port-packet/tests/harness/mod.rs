//! A worker with a program written in Rust, for tests of ports with live traffic.
#![allow(dead_code)] // each test file uses its part

use std::net::Ipv4Addr;
use std::time::Duration;

use xway_abi::Verdict;
use xway_engine::{End, Executor, ExecutorInfo, Port, Report, Results, Stop, Worker, WorkerConfig};
use xway_maps::Guard;
use xway_packet::{Frame, Pool, PoolConfig};
use xway_testkit::{Lab, Namespace};

/// Addresses of two hosts on one wire.
pub const LEFT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A host with an address on `l0`, and a namespace with the other end of its cable, `r0`.
pub fn cable(label: &str) -> (Lab, Namespace, Namespace) {
    let lab = Lab::new(label).unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", &format!("{LEFT}/24")).unwrap();
    (lab, left, right)
}

/// What an IPv4 packet carries.
pub fn ip_protocol(frame: &Frame) -> Option<u8> {
    let packet = frame.packet();
    (packet.get(12..14) == Some(&[8, 0])).then(|| packet.get(23).copied()).flatten()
}

/// A program in Rust.
pub struct Program<F>(pub F);

impl<F: FnMut(&mut Frame) -> Verdict + Send> Executor for Program<F> {
    fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
        for frame in frames {
            results.push((self.0)(frame) as u64, 0);
        }
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: "test".into(), engine: "rust" }
    }
}

/// Runs a program on the ports that `open` gives, while `work` goes on outside. With more than one traffic is received on all:
/// what passes on the first goes out of the second, what passes on the others goes out of the first.
pub fn run<T: Send>(
    open: impl FnOnce(&mut Pool) -> Vec<Box<dyn Port>> + Send,
    program: impl FnMut(&mut Frame) -> Verdict + Send + 'static,
    work: impl FnOnce() -> T,
) -> (Report, T) {
    run_in(PoolConfig::new(256), open, program, work)
}

/// As [`run`], with this packet memory.
pub fn run_in<T: Send>(
    memory: PoolConfig,
    open: impl FnOnce(&mut Pool) -> Vec<Box<dyn Port>> + Send,
    program: impl FnMut(&mut Frame) -> Verdict + Send + 'static,
    work: impl FnOnce() -> T,
) -> (Report, T) {
    let stop = Stop::new().unwrap();
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let worker = scope.spawn({
            let stop = stop.clone();
            move || {
                let mut pool = Pool::new(memory).unwrap();
                let ports = open(&mut pool);
                let mut config = WorkerConfig::new(stop);
                config.inputs = (0..ports.len()).map(|port| (port, 0)).collect();
                if ports.len() > 1 {
                    config.pass_to = (0..ports.len()).map(|port| (port, usize::from(port == 0))).collect();
                }
                config.limits.timeout = Some(Duration::from_secs(120));
                ready.send(()).unwrap();
                Worker::new(ports, Box::new(Program(program)), pool, config).run()
            }
        });
        is_ready.recv().unwrap();
        let out = work();
        // What the kernel has queued for us is still to be counted.
        std::thread::sleep(Duration::from_millis(200));
        stop.ask();
        let report = worker.join().unwrap();
        assert!(matches!(report.end, End::Stopped), "{:?}", report.end);
        assert_eq!(report.counters.balance(), Ok(()));
        assert_eq!(report.leak, None);
        (report, out)
    })
}
