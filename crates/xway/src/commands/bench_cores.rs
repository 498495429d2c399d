//! `xway bench latency` and `xway bench workers`: what takes two cores to measure.

use std::time::Duration;

use serde_json::{Value, json};
use xway_bench::cores::{
    self, CoresError, LatencyOptions, LatencyReport, Percentiles, WorkerFigures, WorkersOptions, WorkersReport,
};
use xway_port_sim::{Pattern, Traffic};

use crate::args_bench::{BenchLatency, BenchWorkers};
use crate::failure::Failure;
use crate::print::{self, grouped};

fn core_count() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

fn failure(error: CoresError) -> Failure {
    match error {
        CoresError::Pin(_) => Failure::usage(error).hint("--cpus with the numbers of cores that there are"),
        CoresError::Engine(_) | CoresError::Program(_) | CoresError::Setup(_) => Failure::needs(error),
        CoresError::Wrong(_) => Failure::no(error),
    }
}

/// Runs `xway bench latency`.
pub fn latency(args: &BenchLatency, as_json: bool) -> Result<(), Failure> {
    let cpus = args.cpus.unwrap_or((0, core_count() - 1));
    let (size, count, rounds, sleep) = (args.size, args.count, args.rounds, args.sleep);
    let options = LatencyOptions { cpus, size, count, rounds, sleep };
    let report = cores::latency(&options).map_err(failure)?;
    if as_json {
        print::json(&print::document("bench latency", latency_fields(&options, &report)));
    } else {
        print::text(&latency_text(&options, &report));
    }
    Ok(())
}

fn mode(options: &LatencyOptions) -> &'static str {
    if options.sleep { "sleeping" } else { "polling" }
}

fn latency_fields(options: &LatencyOptions, report: &LatencyReport) -> Value {
    let side =
        |p: &Percentiles| json!({ "min": p.min, "median": p.median, "p99": p.p99, "p99_9": p.p999, "max": p.max });
    json!({
        "machine": xway_bench::machine_name(),
        "cpus": [options.cpus.0, options.cpus.1],
        "mode": mode(options),
        "size": options.size,
        "packets": report.packets,
        "unit": "ns, there and back",
        "engine": side(&report.engine),
        "rings": side(&report.rings),
        "added_ns": report.engine.median - report.rings.median,
    })
}

fn latency_text(options: &LatencyOptions, report: &LatencyReport) -> String {
    let mut out = format!(
        "{}, engine on CPU {}, sender on CPU {}, {}\n{} packets of {} bytes, one in flight; ns there and back\n\n",
        xway_bench::machine_name(),
        options.cpus.0,
        options.cpus.1,
        mode(options),
        grouped(report.packets),
        options.size,
    );
    let columns = ["least", "median", "p99", "p99.9", "most"].map(|name| format!("{name:>11}"));
    out += &format!("  {:<30}{}\n", "", columns.concat());
    for (name, p) in [("xway, sim ports, TX", &report.engine), ("two rings, no engine (polling)", &report.rings)] {
        let figures = [p.min, p.median, p.p99, p.p999, p.max].map(|ns| format!("{ns:>11.0}"));
        out += &format!("  {name:<30}{}\n", figures.concat());
    }
    let added = report.engine.median - report.rings.median;
    out + &format!("  {:<30}{:>11}{added:>11.0}\n", "the engine adds", "")
}

/// Runs `xway bench workers`.
pub fn workers(args: &BenchWorkers, as_json: bool) -> Result<(), Failure> {
    let cpus = if args.cpus.is_empty() { (0..core_count()).collect() } else { args.cpus.clone() };
    let traffic = Traffic::udp(64, args.size as usize, Pattern::Scan, 1).map_err(Failure::usage)?;
    let options = WorkersOptions { cpus, time: Duration::from_millis(args.time), rounds: args.rounds };
    let report = cores::workers(&options, &traffic).map_err(failure)?;
    if as_json {
        print::json(&print::document("bench workers", workers_fields(&options, args.size, &report)));
    } else {
        print::text(&workers_text(&options, args.size, &report));
    }
    Ok(())
}

fn workers_fields(options: &WorkersOptions, size: u32, report: &WorkersReport) -> Value {
    let stat = |s: &xway_bench::Stat| json!({ "median": s.median, "low": s.low, "high": s.high });
    let side = |f: &WorkerFigures| json!({ "workers": f.workers, "pps": stat(&f.pps), "cpu_ns": stat(&f.cpu_ns), "had_share": f.had });
    json!({
        "machine": xway_bench::machine_name(),
        "cpus": options.cpus,
        "rounds": options.rounds,
        "time_ms": options.time.as_millis() as u64,
        "size": size,
        "one": side(&report.one),
        "all": side(&report.all),
        "gain": report.gain(),
        "gain_by_cpu": report.gain_by_cpu(),
    })
}

fn workers_text(options: &WorkersOptions, size: u32, report: &WorkersReport) -> String {
    let mut out = format!(
        "{}, {} rounds of {} ms, packets of {size} bytes, dropped\n\n  {:<12}{:>10}{:>24}{:>18}\n",
        xway_bench::machine_name(),
        options.rounds,
        options.time.as_millis(),
        "workers",
        "Mpps",
        "CPU ns for a packet",
        "had their cores",
    );
    for side in [&report.one, &report.all] {
        let (mpps, ns, had) = (side.pps.median / 1e6, side.cpu_ns.median, side.had * 100.0);
        out += &format!("  {:<12}{mpps:>10.1}{ns:>24.2}{had:>16.0} %\n", side.workers);
    }
    out += &format!("\n  gain: {:.2} times as many packets a second, ", report.gain());
    out + &format!("{:.2} by the CPU time that they needed\n", report.gain_by_cpu())
}
