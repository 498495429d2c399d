//! The socket benchmarks really move packets, and say so when they do not.

use xway_bench::sockets::{SocketError, SocketOptions, Work, sockets};
use xway_testkit::Needs;

fn options(work: Work, copy: bool) -> SocketOptions {
    let last = std::thread::available_parallelism().map_or(1, |n| n.get() as u32) - 1;
    SocketOptions { work, size: 64, count: 20_000, rounds: 2, copy, program: false, cpus: (0, last), kernel: false }
}

#[test]
fn each_work_is_done_with_and_without_copies() {
    for copy in [false, true] {
        for work in [Work::Drop, Work::Push, Work::Forward] {
            for size in [64, 1500] {
                let report = sockets(&SocketOptions { size, ..options(work, copy) });
                let report = report.unwrap_or_else(|e| panic!("{}: {e}", work.name()));
                assert_eq!((report.packets, report.compared), (40_000, 20_000), "{}", work.name());
                assert!(report.ns.median > 0.0 && report.ratio().is_none());
                println!("{} {size} copy={copy}: {:.1} ns, {} missed", work.name(), report.ns.median, report.missed);
            }
        }
    }
}

#[test]
fn a_program_sends_packets_to_the_socket() {
    let needs = Needs::of("bench::a_program_sends_packets_to_the_socket");
    if !needs.that(xway_bench::suite::missing().is_none(), "clang when it is built").met() {
        return;
    }
    for copy in [false, true] {
        for work in [Work::Drop, Work::Forward] {
            let report = sockets(&SocketOptions { program: true, ..options(work, copy) });
            let report = report.unwrap_or_else(|e| panic!("{} copy={copy}: {e}", work.name()));
            assert_eq!((report.packets, report.compared), (40_000, 20_000), "{}", work.name());
        }
    }
}

#[test]
fn a_core_that_is_not_there_is_refused() {
    let wrong = SocketOptions { cpus: (0, 4000), ..options(Work::Drop, false) };
    assert!(matches!(sockets(&wrong), Err(SocketError::Pin(_))));
}
