//! `xway bench drop` and its siblings: what arrives is what was sent, on both sides, for every verdict and operation.

use xway_bench::forward::levels::{LevelOptions, Task, levels};
use xway_bench::forward::{Action, ForwardOptions, Operation, forward};
use xway_bench::memory::{MemoryOptions, pool, ring};
use xway_bench::wire::{WireOptions, WireSide, WireTask, wire};
use xway_port_sim::{Pattern, Traffic};
use xway_testkit::Needs;

const ACTIONS: [Action; 6] =
    [Action::Drop, Action::Pass, Action::Tx, Action::Redirect, Action::RedirectMap, Action::RedirectMulti];
const OPERATIONS: [Operation; 4] = [Operation::NoTouch, Operation::ReadData, Operation::ParseIp, Operation::SwapMacs];

fn options(action: Action, operation: Operation) -> ForwardOptions {
    ForwardOptions { count: 2000, ..ForwardOptions::new(action, operation) }
}

fn needs(test: &str) -> Needs {
    Needs::of(test).that(xway_bench::suite::missing().is_none(), "clang when it is built")
}

#[test]
fn every_program_does_what_its_name_says() {
    if !needs("bench::every_program_does_what_its_name_says").met() {
        return;
    }
    let traffic = Traffic::udp(300, 90, Pattern::Zipf, 5).unwrap();
    for action in ACTIONS {
        for operation in OPERATIONS {
            for load_bytes in [false, true] {
                if load_bytes && action != Action::Tx {
                    continue; // the verdict behind it is the same code
                }
                let options = ForwardOptions { load_bytes, ..options(action, operation) };
                let report = forward(&options, &traffic).unwrap_or_else(|e| panic!("{options:?}: {e}"));
                let copies = if action == Action::RedirectMulti { 2 } else { 1 };
                assert_eq!((report.ours.packets, report.ours.arrived), (2000, 2000 * copies), "{options:?}");
                assert_eq!(report.engine, "jit", "{options:?}");
            }
        }
    }
}

#[test]
fn the_kernel_moves_the_same_packets() {
    let needs = needs("bench::the_kernel_moves_the_same_packets").root().command("ip").kernel(6, 1);
    if !needs.met() {
        return;
    }
    let traffic = Traffic::udp(1, 64, Pattern::Scan, 1).unwrap();
    for action in ACTIONS {
        let options = ForwardOptions { kernel: true, ..options(action, Operation::SwapMacs) };
        let report = forward(&options, &traffic).unwrap();
        let sends = !matches!(action, Action::Drop | Action::Pass);
        assert_eq!(report.kernel_sender.is_some_and(|sender| sender.median > 0.0), sends, "{action:?}");
        let kernel = report.kernel.unwrap_or_else(|why| panic!("{action:?}: {why}"));
        let lost: u64 = kernel.lost.iter().map(|(_, n)| n).sum();
        let copies = if action == Action::RedirectMulti { 2 } else { 1 };
        assert_eq!(kernel.arrived + lost, 2000 * copies, "{action:?}");
        assert!(kernel.arrived > 0, "{action:?}");
    }
}

#[test]
fn every_level_counts_what_came_to_it() {
    let needs = needs("bench::every_level_counts_what_came_to_it").root().command("ip").command("nft").kernel(6, 6);
    if !needs.met() {
        return;
    }
    for task in [Task::Drop, Task::Redirect] {
        let rows = levels(&LevelOptions { task, count: 2000, rounds: 2, cpu: 0 }).unwrap();
        assert_eq!(rows.iter().map(|row| row.level).collect::<Vec<_>>(), task.levels());
        for row in rows {
            let figures = row.figures.unwrap_or_else(|why| panic!("{task:?}, {}: {why}", row.level.name()));
            let lost: u64 = figures.lost.iter().map(|(_, n)| n).sum();
            assert_eq!((figures.packets, figures.arrived + lost), (4000, 4000), "{task:?}, {}", row.level.name());
            assert!(figures.arrived > 0 && figures.ns.median > 0.0, "{task:?}, {}", row.level.name());
            // What is dropped is dropped; only queues on the way out may be full.
            assert!(task == Task::Redirect || lost == 0, "{}: {lost} lost", row.level.name());
        }
    }
}

#[test]
fn on_a_wire_everybody_drops_and_sends_back() {
    let needs = needs("bench::on_a_wire_everybody_drops_and_sends_back").root().command("ip").kernel(6, 1);
    if !needs.met() {
        return;
    }
    let last = std::thread::available_parallelism().map_or(1, |n| n.get()) as u32 - 1;
    for task in [WireTask::Drop, WireTask::Forward] {
        let rows = wire(&WireOptions { task, size: 64, time: 30, rounds: 2, cpus: (0, last) }).unwrap();
        assert_eq!(rows.iter().map(|row| row.side).collect::<Vec<_>>(), WireSide::ALL);
        for row in rows {
            assert!(row.arrived > 0 && row.arrived <= row.made && row.ns.median > 0.0, "{task:?}: {row:?}");
            // Who sends from user space says how much, and no more than that comes back.
            assert_eq!(row.lost.is_some(), task == WireTask::Forward && row.side != WireSide::Native, "{row:?}");
        }
    }
}

#[test]
fn packets_reach_another_worker() {
    if !needs("bench::packets_reach_another_worker").met() {
        return;
    }
    let traffic = Traffic::udp(10, 64, Pattern::Scan, 1).unwrap();
    let last = std::thread::available_parallelism().map_or(1, |n| n.get()) as u32 - 1;
    let options = ForwardOptions { cpu: last, count: 20_000, ..options(Action::RedirectCpu, Operation::ReadData) };
    for (burst, filter) in [(64, false), (1, false), (16, true)] {
        let report = forward(&ForwardOptions { burst, filter, ..options.clone() }, &traffic).unwrap();
        let lost: u64 = report.ours.lost.iter().map(|(_, n)| n).sum();
        assert_eq!((report.ours.packets, report.ours.arrived + lost), (20_000, 20_000));
        assert!(report.ours.arrived > 0);
    }
    // The same filter where the packets come in.
    let here = ForwardOptions { filter: true, count: 20_000, ..ForwardOptions::new(Action::Drop, Operation::NoTouch) };
    let report = forward(&here, &traffic).unwrap();
    assert_eq!((report.program.as_str(), report.ours.arrived), ("drop_filter", 20_000));
}

#[test]
fn stages_have_names_and_figures() {
    if !needs("bench::stages_have_names_and_figures").met() {
        return;
    }
    let traffic = Traffic::udp(1, 64, Pattern::Scan, 1).unwrap();
    let options = ForwardOptions { breakdown: true, ..options(Action::Tx, Operation::SwapMacs) };
    let report = forward(&options, &traffic).unwrap();
    assert!(report.stages.len() >= 4 && report.stages.iter().all(|s| s.ns.is_finite() && !s.name.is_empty()));
    assert_eq!(report.pool.outstanding, 0);
}

#[test]
fn memory_tables_have_a_figure_or_a_reason_in_every_line() {
    let options = MemoryOptions { cpu: 0, rounds: 1, count: 4096 };
    let lines = [pool(&options).unwrap(), ring(&options).unwrap()].concat();
    for name in [
        "fast path",
        "ring path",
        "slow path, first touch",
        "slow path, first touch, two chunks to a page",
        "8,192 chunks in turn, two to a page",
        "refusal, nothing left",
        "hash, VLAN, time: get",
        "value by key: get",
        "SPSC, addresses",
        "SPSC, indices not copied",
        "frames",
    ] {
        assert!(lines.iter().any(|line| line.name == name && line.ns.is_some()), "{name}");
    }
    for line in lines {
        assert!(line.ns.is_some_and(|ns| ns.median.is_finite()) || !line.note.is_empty(), "{line:?}");
    }
}
