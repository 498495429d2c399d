//! `xway bench pool` and `xway bench ring`: what packet memory and rings cost.

use serde_json::{Value, json};
use xway_bench::memory::{self, Line, MemoryError, MemoryOptions};

use crate::args_bench::BenchMemory;
use crate::failure::Failure;
use crate::print;

/// Runs `xway bench pool`.
pub fn pool(args: &BenchMemory, as_json: bool) -> Result<(), Failure> {
    let options = options(args);
    show("bench pool", &options, &memory::pool(&options).map_err(failure)?, as_json);
    Ok(())
}

/// Runs `xway bench ring`.
pub fn ring(args: &BenchMemory, as_json: bool) -> Result<(), Failure> {
    let options = options(args);
    show("bench ring", &options, &memory::ring(&options).map_err(failure)?, as_json);
    Ok(())
}

fn options(args: &BenchMemory) -> MemoryOptions {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    MemoryOptions { cpu: args.cpu.unwrap_or(cpus - 1), rounds: args.rounds, count: args.count }
}

fn failure(error: MemoryError) -> Failure {
    match error {
        MemoryError::Pin(_) => Failure::usage(error).hint("--cpu with the number of a core that there is"),
        MemoryError::Pool(_) | MemoryError::Ring(_) => Failure::needs(error).hint("more free memory"),
        MemoryError::Leak(_) | MemoryError::Lost { .. } | MemoryError::Path { .. } | MemoryError::Thread => {
            Failure::no(error)
        }
    }
}

fn show(command: &str, options: &MemoryOptions, lines: &[Line], as_json: bool) {
    if !as_json {
        return print::text(&text(options, lines));
    }
    let fields = json!({
        "machine": xway_bench::machine_name(),
        "cpu": options.cpu,
        "rounds": options.rounds,
        "unit": "ns each",
        "rows": lines.iter().map(row).collect::<Vec<_>>(),
    });
    print::json(&print::document(command, fields));
}

fn row(line: &Line) -> Value {
    let ns = line.ns.map(|s| json!({ "median": s.median, "low": s.low, "high": s.high }));
    json!({
        "group": line.group,
        "name": line.name,
        "bulk": line.bulk,
        "others": line.others,
        "ns": ns,
        "documented_ns": line.documented,
        "note": line.note,
    })
}

fn text(options: &MemoryOptions, lines: &[Line]) -> String {
    let mut out = format!(
        "{}, CPU {}, {} rounds; ns each, taken and given back\n",
        xway_bench::machine_name(),
        options.cpu,
        options.rounds
    );
    let mut group = "";
    for line in lines {
        if group != line.group {
            group = line.group;
            out += &format!("\n{group}\n  {:<34}{:>6}{:>8}{:>10}{:>12}\n", "", "bulk", "others", "ns", "documented");
        }
        let number = |ns: f64| if ns < 100.0 { format!("{ns:.2}") } else { format!("{ns:.0}") };
        let ns = line.ns.map_or("-".to_owned(), |stat| number(stat.median));
        let documented = line.documented.map_or(String::new(), number);
        let row =
            format!("  {:<34}{:>6}{:>8}{ns:>10}{documented:>12}  {}", line.name, line.bulk, line.others, line.note);
        out += row.trim_end();
        out += "\n";
    }
    out
}
