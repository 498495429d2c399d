//! What takes two cores: every packet comes back as it should, and every frame comes home. Figures are not asserted.

use std::time::Duration;

use xway_bench::cores::{CoresError, LatencyOptions, WorkersOptions, latency, workers};
use xway_port_sim::{Pattern, Traffic};
use xway_testkit::Needs;

fn last() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32) - 1
}

fn needs(test: &str) -> bool {
    Needs::of(test).that(xway_bench::suite::missing().is_none(), "clang when it is built").met()
}

#[test]
fn each_packet_comes_back_polled_and_woken() {
    if !needs("bench::each_packet_comes_back_polled_and_woken") {
        return;
    }
    for sleep in [false, true] {
        for size in [60, 1500] {
            let options = LatencyOptions { cpus: (0, last()), size, count: 200, rounds: 2, sleep };
            let report = latency(&options).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(report.packets, 400);
            for side in [report.engine, report.rings] {
                let p = [side.min, side.median, side.p99, side.p999, side.max];
                assert!(p[0] > 0.0 && p.is_sorted(), "{p:?}");
            }
        }
    }
}

#[test]
fn one_worker_and_all_of_them_are_counted() {
    if !needs("bench::one_worker_and_all_of_them_are_counted") {
        return;
    }
    let traffic = Traffic::udp(8, 64, Pattern::Scan, 1).unwrap();
    let options = WorkersOptions { cpus: vec![0, last()], time: Duration::from_millis(30), rounds: 2 };
    let report = workers(&options, &traffic).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((report.one.workers, report.all.workers), (1, 2));
    for side in [report.one, report.all] {
        assert!(side.pps.median > 0.0 && side.cpu_ns.median >= 0.0, "{side:?}");
    }
}

#[test]
fn a_core_that_is_not_there_is_refused() {
    if !needs("bench::a_core_that_is_not_there_is_refused") {
        return;
    }
    let options = LatencyOptions { cpus: (0, 4000), size: 64, count: 1, rounds: 1, sleep: false };
    assert!(matches!(latency(&options), Err(CoresError::Pin(_))));
}
