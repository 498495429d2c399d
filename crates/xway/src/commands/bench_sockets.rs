//! `xway bench xsk-drop|xsk-push|xsk-fwd`: sockets that the engine serves, an application on another core.

use serde_json::json;
use xway_bench::sockets::{SocketError, SocketOptions, SocketReport, Work, sockets};

use crate::args_bench::{BenchSockets, Versus};
use crate::failure::Failure;
use crate::print::{self, grouped};

/// Runs the command.
pub fn run(work: Work, args: &BenchSockets, as_json: bool) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpus = args.cpus.unwrap_or((0, cores - 1));
    let kernel = args.vs == Some(Versus::Kernel);
    let (size, count, rounds, copy) = (args.size, args.count, args.rounds, args.copy);
    let program = args.program;
    if program && work == Work::Push {
        return Err(Failure::usage("--program: nothing comes in where packets are only sent")
            .hint("xway bench xsk-drop --program, or xsk-fwd"));
    }
    let options = SocketOptions { work, size, count, rounds, copy, program, cpus, kernel };
    let report = sockets(&options).map_err(|error| match error {
        SocketError::Pin(_) => Failure::usage(error).hint("--cpus with the numbers of two cores that there are"),
        SocketError::Setup(_) => Failure::needs(error),
        SocketError::Wrong(_) => Failure::no(error),
    })?;
    if as_json {
        print::json(&print::document(&format!("bench {}", work.name()), fields(&options, &report)));
    } else {
        print::text(&text(&options, &report));
    }
    match &report.kernel {
        Err(why) if kernel => Err(Failure::needs(format!("the kernel was not measured: {why}"))
            .hint("run as root, or leave out --vs kernel")
            .said()),
        _ => Ok(()),
    }
}

fn mode(options: &SocketOptions) -> &'static str {
    if options.copy { "copy" } else { "zero-copy" }
}

fn fields(options: &SocketOptions, report: &SocketReport) -> serde_json::Value {
    let stat = |s: &xway_bench::Stat| json!({ "median": s.median, "low": s.low, "high": s.high });
    json!({
        "machine": xway_bench::machine_name(),
        "cpus": [options.cpus.0, options.cpus.1],
        "mode": mode(options),
        "program": options.program,
        "size": options.size,
        "rounds": options.rounds,
        "count": options.count,
        "compared": report.compared,
        "packets": report.packets,
        "missed": report.missed,
        "ns": stat(&report.ns),
        "pps": pps(report.ns.median),
        "kernel_drop_ns": report.kernel.as_ref().ok().map(stat),
        "kernel_not_measured": report.kernel.as_ref().err(),
        "ratio": report.ratio(),
        "goal": options.work.goal(),
    })
}

fn pps(ns: f64) -> f64 {
    if ns > 0.0 { 1e9 / ns } else { 0.0 }
}

fn text(options: &SocketOptions, report: &SocketReport) -> String {
    let (engine, application) = options.cpus;
    let mut out = format!(
        "{}, engine on CPU {engine}, application on CPU {application}, {} rounds of {} packets\n\
         {}, {}{}, {} bytes; {} packets compared\n\n",
        xway_bench::machine_name(),
        options.rounds,
        grouped(options.count),
        options.work.name(),
        mode(options),
        if options.program { ", by a program through an XSKMAP" } else { "" },
        options.size,
        grouped(report.compared),
    );
    out += &format!("  {:<34}{:>10}{:>10}\n", "", "Mpps", "ns");
    let line = |name: &str, ns: f64| format!("  {name:<34}{:>10.2}{ns:>10.2}\n", pps(ns) / 1e6);
    out += &line("xway, socket", report.ns.median);
    match &report.kernel {
        Ok(kernel) => {
            out += &line("kernel, live frames dropped", kernel.median);
            let ratio = report.ratio().unwrap_or_default();
            out += &format!("  {:<34}{ratio:>9.1}x (goal without copies: {})\n", "", options.work.goal());
        }
        Err(why) if options.kernel => out += &format!("  kernel: not measured: {why}\n"),
        Err(_) => {}
    }
    out
}
