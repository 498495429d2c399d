//! `xway bench machine`: what things cost here.

use serde_json::{Value, json};
use xway_bench::MeasureError;
use xway_bench::machine::{Cost, costs};

use crate::args_bench::BenchMachine;
use crate::failure::Failure;
use crate::print;

/// Runs the command.
pub fn run(args: &BenchMachine, as_json: bool) -> Result<(), Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpu = args.cpu.unwrap_or(cpus - 1);
    let all = costs(cpu).map_err(failure)?;
    if as_json {
        let rows: Vec<Value> = all.iter().map(row).collect();
        let fields = json!({ "machine": xway_bench::machine_name(), "cpu": cpu, "unit": "ns", "rows": rows });
        print::json(&print::document("bench machine", fields));
    } else if args.markdown {
        let mut table = vec![["what", "ns", ""].map(str::to_owned).to_vec()];
        table.extend(all.iter().map(|c| vec![format!("{}: {}", c.group, c.name), ns(c), c.note.clone()]));
        print::text(&format!("{}, CPU {cpu}.\n\n{}", xway_bench::machine_name(), print::markdown(&table)));
    } else {
        print::text(&text(cpu, &all));
    }
    Ok(())
}

fn row(cost: &Cost) -> Value {
    json!({ "group": cost.group, "name": cost.name, "ns": cost.ns, "note": cost.note })
}

fn ns(cost: &Cost) -> String {
    cost.ns.map_or("-".to_owned(), |ns| if ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") })
}

fn text(cpu: u32, all: &[Cost]) -> String {
    let mut out = format!("{}, CPU {cpu}\n", xway_bench::machine_name());
    let mut rest = all;
    while let Some(first) = rest.first() {
        let len = rest.iter().take_while(|c| c.group == first.group).count();
        let (group, more) = rest.split_at(len);
        let line = |cost: &Cost| {
            let ns = ns(cost);
            let note = if cost.note.is_empty() { String::new() } else { format!("({})", cost.note) };
            format!("  {:<48}{ns:>9} ns  {note}", cost.name).trim_end().to_owned() + "\n"
        };
        out += &format!("\n{}\n{}", first.group, group.iter().map(line).collect::<String>());
        rest = more;
    }
    out
}

fn failure(error: MeasureError) -> Failure {
    match error {
        MeasureError::Wrong(_) => Failure::no(error),
        _ => Failure::usage(error).hint("--cpu with the number of a core that there is"),
    }
}
