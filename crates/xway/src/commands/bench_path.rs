//! `xway bench path`: every verdict through the whole engine, one row each, beside the kernel.

use serde_json::{Value, json};
use xway_bench::forward::{Action, ForwardOptions, ForwardReport, Operation, forward};
use xway_port_sim::{Pattern, Traffic};

use super::bench_forward::{failure, figures};
use crate::args_bench::{BenchPath, Versus};
use crate::failure::Failure;
use crate::print::{self, grouped};

/// The rows. `redirect-cpu` is not among them: it takes a second core, and what it costs depends on who else is there.
const ROWS: [(&str, Action, Operation); 8] = [
    ("drop, no touch", Action::Drop, Operation::NoTouch),
    ("drop, EtherType read", Action::Drop, Operation::ReadData),
    ("drop, IP header parsed", Action::Drop, Operation::ParseIp),
    ("transmit, addresses swapped", Action::Tx, Operation::SwapMacs),
    ("redirect, addresses swapped", Action::Redirect, Operation::SwapMacs),
    ("redirect through a DEVMAP", Action::RedirectMap, Operation::SwapMacs),
    ("redirect to two ports of a DEVMAP", Action::RedirectMulti, Operation::SwapMacs),
    ("pass (in the kernel: into its stack)", Action::Pass, Operation::NoTouch),
];

/// Runs the command.
pub fn run(args: &BenchPath, as_json: bool) -> Result<(), Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpu = args.cpu.unwrap_or(cpus - 1);
    let kernel = args.vs == Some(Versus::Kernel);
    let traffic = Traffic::udp(1, args.size as usize, Pattern::Scan, 1).map_err(Failure::usage)?;
    let measured = |&(_, action, operation): &(&str, Action, Operation)| {
        let options = ForwardOptions {
            count: args.count,
            rounds: args.rounds,
            cpu,
            kernel,
            ..ForwardOptions::new(action, operation)
        };
        forward(&options, &traffic).map_err(failure)
    };
    let reports = ROWS.iter().map(measured).collect::<Result<Vec<_>, _>>()?;
    if as_json {
        let rows: Vec<Value> = ROWS.iter().zip(&reports).map(row).collect();
        let fields = json!({
            "machine": xway_bench::machine_name(), "cpu": cpu, "rounds": args.rounds, "count": args.count, "size": args.size,
            "rows": rows,
        });
        print::json(&print::document("bench path", fields));
    } else {
        let head = format!(
            "{}, CPU {cpu}, {} rounds of {} packets of {} bytes, medians",
            xway_bench::machine_name(),
            args.rounds,
            grouped(args.count),
            args.size
        );
        let table = cells(&reports, kernel);
        print::text(&match args.markdown {
            true => format!("{head}.\n\n{}", print::markdown(&table)),
            false => format!("{head}\n\n{}", print::table(&table)),
        });
    }
    match reports.iter().find_map(|report| report.kernel.as_ref().err()) {
        Some(why) if kernel => Err(Failure::needs(format!("the kernel was not measured: {why}"))
            .hint("run as root, or leave out --vs kernel")
            .said()),
        _ => Ok(()),
    }
}

fn row(((name, action, operation), report): (&(&str, Action, Operation), &ForwardReport)) -> Value {
    let mut row = figures(report);
    row["name"] = json!(name);
    row["action"] = json!(action.name());
    row["operation"] = json!(operation.name());
    row
}

/// Nanoseconds and millions of packets a second, ours and the kernel's, how far the rounds were apart, and the ratio.
fn cells(reports: &[ForwardReport], kernel: bool) -> Vec<Vec<String>> {
    let head: &[&str] = if kernel {
        &["", "ours ns", "low", "high", "Mpps", "kernel ns", "Mpps", "x"]
    } else {
        &["", "ours ns", "low", "high", "Mpps"]
    };
    let mut table = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    for ((name, ..), report) in ROWS.iter().zip(reports) {
        let ours = &report.ours;
        let mut row = vec![(*name).to_owned()];
        row.extend([ours.ns.median, ours.ns.low, ours.ns.high].map(|ns| format!("{ns:.1}")));
        row.push(format!("{:.1}", ours.pps() / 1e6));
        if kernel {
            let of = |text: Option<String>| text.unwrap_or_else(|| "-".into());
            let theirs = report.kernel.as_ref().ok();
            row.push(of(theirs.map(|side| format!("{:.1}", side.ns.median))));
            row.push(of(theirs.map(|side| format!("{:.1}", side.pps() / 1e6))));
            row.push(of(report.ratio().map(|ratio| format!("{ratio:.1}"))));
        }
        table.push(row);
    }
    table
}
