//! `xway bench dispatch`: from a port's burst to its program.

use serde_json::{Value, json};
use xway_bench::Stat;
use xway_bench::dispatch::{DispatchError, DispatchOptions, Line, dispatch};

use crate::args_bench::BenchMemory;
use crate::failure::Failure;
use crate::print;

/// Runs the command.
pub fn run(args: &BenchMemory, as_json: bool) -> Result<(), Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpu = args.cpu.unwrap_or(cpus - 1);
    let bursts = u32::try_from(args.count / 64).unwrap_or(u32::MAX).max(1);
    let lines = dispatch(&DispatchOptions { bursts, rounds: args.rounds, cpu }).map_err(|e| match e {
        DispatchError::Pin(_) => Failure::usage(e).hint("--cpu with the number of a core that there is"),
        _ => Failure::no(e),
    })?;
    if as_json {
        let fields = json!({
            "machine": xway_bench::machine_name(),
            "cpu": cpu,
            "rounds": args.rounds,
            "unit": "ns per packet",
            "rows": lines.iter().map(row).collect::<Vec<_>>(),
        });
        print::json(&print::document("bench dispatch", fields));
        return Ok(());
    }
    let mut table = vec![["", "bursts of 64", "packets alone"].map(str::to_owned).to_vec()];
    table.extend(lines.iter().map(|l| {
        let ns = |stat: &Stat| format!("{:.2}", stat.median);
        vec![l.name.clone(), ns(&l.ns[0]), ns(&l.ns[1])]
    }));
    let machine = xway_bench::machine_name();
    print::text(&format!("{machine}, CPU {cpu}, {} rounds; ns a packet\n\n{}", args.rounds, print::table(&table)));
    Ok(())
}

fn row(line: &Line) -> Value {
    let stat = |s: &Stat| json!({ "median": s.median, "low": s.low, "high": s.high });
    json!({ "name": line.name, "burst_64": stat(&line.ns[0]), "burst_1": stat(&line.ns[1]) })
}
