//! `xway bench aborted`: what programs that abort can cost, and what watching costs.

use serde_json::{Value, json};
use xway_bench::aborted::{AbortedOptions, Line, aborted};
use xway_bench::forward::ForwardError;

use crate::args_bench::BenchMemory;
use crate::failure::Failure;
use crate::print;

/// Runs the command.
pub fn run(args: &BenchMemory, as_json: bool) -> Result<(), Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let options = AbortedOptions { count: args.count, rounds: args.rounds, cpu: args.cpu.unwrap_or(cpus - 1) };
    let lines = aborted(&options).map_err(failure)?;
    if as_json {
        let fields = json!({
            "machine": xway_bench::machine_name(),
            "cpu": options.cpu,
            "rounds": options.rounds,
            "unit": "ns a packet",
            "rows": lines.iter().map(row).collect::<Vec<_>>(),
        });
        print::json(&print::document("bench aborted", fields));
    } else {
        print::text(&text(&options, &lines));
    }
    Ok(())
}

fn failure(error: ForwardError) -> Failure {
    match error {
        ForwardError::Pin(_) => Failure::usage(error).hint("--cpu with the number of a core that there is"),
        ForwardError::Pool(_) | ForwardError::System(_) => Failure::needs(error).hint("more free memory"),
        ForwardError::Program(_) | ForwardError::Wrong { .. } => Failure::no(error),
    }
}

fn row(line: &Line) -> Value {
    json!({
        "name": line.name,
        "ns": { "median": line.ns.median, "low": line.ns.low, "high": line.ns.high },
        "packets": line.packets,
        "events_told": line.events.0,
        "events_left_out": line.events.1,
        "captured": line.captured.0,
        "capture_lost": line.captured.1,
    })
}

fn text(options: &AbortedOptions, lines: &[Line]) -> String {
    let out = format!(
        "{}, CPU {}, {} rounds of {} packets\n\n",
        xway_bench::machine_name(),
        options.cpu,
        options.rounds,
        print::grouped(options.count)
    );
    let base = lines.first().map_or(1.0, |line| line.ns.median).max(f64::MIN_POSITIVE);
    let head = ["", "ns a packet", "of the first", "events told", "captured", "no room"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for line in lines {
        let (told, captured, lost) = (line.events.0, line.captured.0, line.captured.1);
        table.push(vec![
            line.name.to_owned(),
            format!("{:.1}", line.ns.median),
            format!("{:.2}", line.ns.median / base),
            print::grouped(told),
            print::grouped(captured),
            print::grouped(lost),
        ]);
    }
    out + &print::table(&table)
}
