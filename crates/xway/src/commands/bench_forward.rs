//! `xway bench drop|pass|tx|redirect|redirect-map|redirect-multi`: packets through the whole engine, beside the kernel.

use serde_json::{Value, json};
use xway_bench::forward::{Action, ForwardError, ForwardOptions, ForwardReport, Operation, SideFigures, forward};
use xway_packet::Burst;
use xway_port_pcap::CaptureReader;
use xway_port_sim::{Pattern, Traffic};

use crate::args_bench::{BenchForward, FlowPattern, LoadMode, PacketOperation, Versus};
use crate::capture;
use crate::failure::Failure;
use crate::print::{self, grouped};

/// Sizes of bursts of `--sweep`.
const BURSTS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Runs the command.
pub fn run(action: Action, args: &BenchForward, as_json: bool) -> Result<(), Failure> {
    if args.filter && !matches!(action, Action::Drop | Action::RedirectCpu) {
        return Err(Failure::usage(format!("{} has no filter", action.name())).hint("bench drop, bench redirect-cpu"));
    }
    if args.techniques && action != Action::RedirectCpu {
        let why = format!("{} is measured as a whole: what its program is worth, bench prog shows", action.name());
        return Err(Failure::usage(why).hint("bench redirect-cpu --techniques, bench prog --techniques"));
    }
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let options = ForwardOptions {
        load_bytes: args.load == LoadMode::LoadBytes,
        count: args.count,
        rounds: args.rounds,
        cpu: args.cpu.unwrap_or(cpus - 1),
        burst: args.burst,
        kernel: args.vs == Some(Versus::Kernel),
        breakdown: args.breakdown,
        techniques: args.techniques,
        filter: args.filter,
        ..ForwardOptions::new(action, operation(action, args.operation))
    };
    let (traffic, words) = traffic(args)?;
    let bursts = if args.sweep { &BURSTS[..] } else { &[options.burst] };
    let measured = |&burst: &u32| {
        let options = ForwardOptions { burst, ..options.clone() };
        forward(&options, &traffic).map(|report| (options, report)).map_err(failure)
    };
    let reports = bursts.iter().map(measured).collect::<Result<Vec<_>, _>>()?;
    let command = format!("bench {}", action.name());
    match (as_json, args.sweep, &reports[..]) {
        (true, true, all) => {
            let rows: Vec<Value> = all.iter().map(|(options, report)| fields(options, &words, report)).collect();
            print::json(&print::document(&command, json!({ "sweep": rows })));
        }
        (false, true, all) => print::text(&sweep(all, &words, args.markdown)),
        (true, false, [(options, report), ..]) => {
            print::json(&print::document(&command, fields(options, &words, report)));
        }
        (false, false, [(options, report), ..]) => print::text(&text(options, args, &words, report)),
        (_, false, []) => {}
    }
    match reports.iter().find_map(|(_, report)| report.kernel.as_ref().err()) {
        Some(why) if options.kernel => Err(Failure::needs(format!("the kernel was not measured: {why}"))
            .hint("run as root, or leave out --vs kernel")
            .said()),
        _ => Ok(()),
    }
}

/// A line for each size of burst.
fn sweep(reports: &[(ForwardOptions, ForwardReport)], traffic: &str, markdown: bool) -> String {
    let Some((options, first)) = reports.first() else { return String::new() };
    let mut heads = ["bursts of", "ns", "Mpps", "lost", "kernel ns", "x"].map(String::from).to_vec();
    heads.extend(first.techniques.iter().map(|(name, _)| format!("ns, {name}")));
    let mut rows = vec![heads];
    for (options, report) in reports {
        let ours = &report.ours;
        let lost: u64 = ours.lost.iter().map(|(_, n)| n).sum();
        let kernel = report.kernel.as_ref().ok().map(|side| format!("{:.1}", side.ns.median));
        let mut row = vec![
            options.burst.to_string(),
            format!("{:.1}", ours.ns.median),
            format!("{:.1}", ours.pps() / 1e6),
            grouped(lost),
            kernel.unwrap_or_else(|| "-".into()),
            report.ratio().map_or_else(|| "-".into(), |ratio| format!("{ratio:.1}")),
        ];
        row.extend(report.techniques.iter().map(|(_, ns)| format!("{:.1}", ns.median)));
        rows.push(row);
    }
    let table = if markdown { print::markdown(&rows) } else { print::table(&rows) };
    format!("{}\n{table}", head(options, traffic, first))
}

/// What is measured, in words.
fn head(options: &ForwardOptions, traffic: &str, report: &ForwardReport) -> String {
    format!(
        "{}, CPU {}, {} rounds of {} packets\n{} -p {}{}, {traffic}; program {}, {}; {} packets compared\n",
        xway_bench::machine_name(),
        options.cpu,
        options.rounds,
        grouped(options.count),
        options.action.name(),
        options.operation.name(),
        if options.filter { " with a filter" } else { "" },
        report.program,
        report.engine,
        grouped(report.compared),
    )
}

/// What is asked for; by default packets that leave again have their addresses changed, as a switch demands it.
fn operation(action: Action, asked: Option<PacketOperation>) -> Operation {
    match asked {
        Some(PacketOperation::NoTouch) => Operation::NoTouch,
        Some(PacketOperation::ReadData) => Operation::ReadData,
        Some(PacketOperation::ParseIp) => Operation::ParseIp,
        Some(PacketOperation::SwapMacs) => Operation::SwapMacs,
        None if matches!(action, Action::Drop | Action::Pass) => Operation::NoTouch,
        None => Operation::SwapMacs,
    }
}

/// The packets, and what they are in words.
fn traffic(args: &BenchForward) -> Result<(Traffic, String), Failure> {
    let Some(path) = &args.pcap else {
        let pattern = match args.pattern {
            FlowPattern::Single | FlowPattern::Scan => Pattern::Scan,
            FlowPattern::Uniform => Pattern::Uniform,
            FlowPattern::Zipf => Pattern::Zipf,
        };
        let flows = if args.pattern == FlowPattern::Single { 1 } else { args.flows };
        let traffic = Traffic::udp(flows, args.size as usize, pattern, 1).map_err(Failure::usage)?;
        return Ok((traffic, format!("{} of {} bytes", many(flows.into(), "flow"), args.size)));
    };
    let mut reader = CaptureReader::open(path).map_err(|e| capture::failure(&e))?;
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_with(|record| record.data.to_vec()).map_err(|e| capture::failure(&e))? {
        packets.push(packet);
    }
    let count = packets.len();
    let traffic = Traffic::replay(packets).map_err(|e| Failure::input(e).at(path.display()))?;
    Ok((traffic, format!("{} of {}", many(count as u64, "packet"), path.display())))
}

fn many(count: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(count), if count == 1 { "" } else { "s" })
}

pub(super) fn failure(error: ForwardError) -> Failure {
    match error {
        ForwardError::Pin(_) => Failure::usage(error).hint("--cpu with the number of a core that there is"),
        ForwardError::Program(_) | ForwardError::Pool(_) | ForwardError::System(_) => Failure::needs(error),
        ForwardError::Wrong { .. } => Failure::no(error),
    }
}

fn fields(options: &ForwardOptions, traffic: &str, report: &ForwardReport) -> Value {
    let stages: Vec<Value> = report.stages.iter().map(|s| json!({ "name": s.name, "ns": s.ns })).collect();
    let ns = |s: &xway_bench::Stat| json!({ "median": s.median, "low": s.low, "high": s.high });
    let without: Vec<Value> =
        report.techniques.iter().map(|(name, stat)| json!({ "name": name, "ns": ns(stat) })).collect();
    let pool = &report.pool;
    let mut doc = figures(report);
    doc["machine"] = json!(xway_bench::machine_name());
    doc["cpu"] = json!(options.cpu);
    doc["rounds"] = json!(options.rounds);
    doc["count"] = json!(options.count);
    doc["burst"] = json!(options.burst);
    doc["operation"] = json!(options.operation.name());
    doc["load_mode"] = json!(if options.load_bytes { "load-bytes" } else { "dpa" });
    doc["filter"] = json!(options.filter);
    doc["traffic"] = json!(traffic);
    doc["breakdown"] = json!(stages);
    doc["techniques"] = json!(without);
    doc["pool"] = json!({
        "fast": pool.fast, "ring": pool.ring, "slow": pool.slow, "recycled": pool.recycled,
        "returned": pool.returned, "refused": pool.refused, "outstanding_max": pool.outstanding_max,
        "recycle_hit_rate": pool.recycle_hit_rate(),
    });
    doc
}

/// What was measured, on both sides.
pub(super) fn figures(report: &ForwardReport) -> Value {
    json!({
        "program": report.program,
        "engine": report.engine,
        "compared": report.compared,
        "ours": side(&report.ours),
        "kernel": report.kernel.as_ref().ok().map(side),
        "kernel_not_measured": report.kernel.as_ref().err(),
        "ratio": report.ratio(),
        "kernel_sender_ns": report.kernel_sender.map(|s| json!({ "median": s.median, "low": s.low, "high": s.high })),
        "sender_ratio": report.sender_ratio(),
    })
}

fn side(side: &SideFigures) -> Value {
    let lost: serde_json::Map<_, _> = side.lost.iter().map(|(cause, n)| (cause.clone(), json!(n))).collect();
    json!({
        "ns": { "median": side.ns.median, "low": side.ns.low, "high": side.ns.high },
        "pps": side.pps(),
        "packets": side.packets,
        "arrived": side.arrived,
        "lost": lost,
    })
}

fn text(options: &ForwardOptions, args: &BenchForward, traffic: &str, report: &ForwardReport) -> String {
    let mut out = head(options, traffic, report) + "\n";
    if options.burst < Burst::MAX as u32 {
        out += &format!("  our bursts: {} at most\n\n", options.burst);
    }
    out += &format!("  {:<30}{:>12}{:>10}{:>22}\n", "", "Mpps", "ns", "arrived");
    let line = |name: &str, side: &SideFigures| {
        format!("  {name:<30}{:>12.2}{:>10.2}{:>22}\n", side.pps() / 1e6, side.ns.median, grouped(side.arrived))
    };
    out += &line("xway, sim ports", &report.ours);
    for (name, ns) in &report.techniques {
        out += &format!("  {:<30}{:>12.2}{:>10.2}\n", format!("  {name}"), 1e3 / ns.median.max(1e-9), ns.median);
    }
    match &report.kernel {
        Ok(kernel) => {
            out += &line("kernel, live frames", kernel);
            if let Some(ratio) = report.ratio() {
                out += &format!("  {:<30}{ratio:>11.1}x\n", "");
            }
            if let (Some(sender), Some(ratio)) = (report.kernel_sender, report.sender_ratio()) {
                let (mpps, ns) = (1e3 / sender.median, sender.median);
                out += &format!("  {:<30}{mpps:>12.2}{ns:>10.2}{:>22}\n", "kernel, the sender alone", "thrown away");
                out += &format!("  {:<30}{ratio:>11.1}x\n", "");
            }
        }
        Err(why) if options.kernel => out += &format!("  kernel: not measured: {why}\n"),
        Err(_) => {}
    }
    if args.rxq_stats {
        out += &format!("\n  queue 0{:>35} packets\n", grouped(report.ours.packets));
    }
    if !report.stages.is_empty() {
        out += "\n  where our nanoseconds go\n";
        for stage in &report.stages {
            out += &format!("    {:<48}{:>8.2}\n", stage.name, stage.ns);
        }
    }
    if args.extended {
        out += &extended(report);
    }
    out
}

fn extended(report: &ForwardReport) -> String {
    let pool = &report.pool;
    let mut out = format!(
        "\n  pool: {} fast, {} ring, {} slow; {} refused; {:.2} % recycled\n",
        grouped(pool.fast),
        grouped(pool.ring),
        grouped(pool.slow),
        grouped(pool.refused),
        pool.recycle_hit_rate().unwrap_or(0.0) * 100.0,
    );
    let kernel = report.kernel.as_ref().ok().map(|k| ("kernel", &k.lost));
    for (who, lost) in [("xway", &report.ours.lost)].into_iter().chain(kernel) {
        match lost.is_empty() {
            true => out += &format!("  lost, {who}: none\n"),
            false => lost.iter().for_each(|(cause, n)| out += &format!("  lost, {who}: {} {cause}\n", grouped(*n))),
        }
    }
    out
}
