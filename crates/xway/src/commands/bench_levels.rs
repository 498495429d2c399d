//! `xway bench levels`: the same packets stopped, or sent on, at each level of the machine.

use serde_json::{Value, json};
use xway_bench::forward::SideFigures;
use xway_bench::forward::levels::{Level, LevelOptions, LevelRow, Task, levels};

use super::bench_forward::failure;
use crate::args_bench::{BenchLevels, LevelTask};
use crate::failure::Failure;
use crate::print;

/// Runs the command.
pub fn run(args: &BenchLevels, as_json: bool) -> Result<(), Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let task = match args.task {
        LevelTask::Drop => Task::Drop,
        LevelTask::Redirect => Task::Redirect,
    };
    let options = LevelOptions { task, count: args.count, rounds: args.rounds, cpu: args.cpu.unwrap_or(cpus - 1) };
    let rows = levels(&options).map_err(failure)?;
    if as_json {
        let fields = json!({
            "machine": xway_bench::machine_name(),
            "cpu": options.cpu,
            "rounds": options.rounds,
            "count": options.count,
            "task": task.name(),
            "rows": rows.iter().map(row).collect::<Vec<_>>(),
        });
        print::json(&print::document("bench levels", fields));
    } else {
        print::text(&text(&options, &rows, args.markdown));
    }
    Ok(())
}

fn row(row: &LevelRow) -> Value {
    let figures = row.figures.as_ref().ok().map(|f| {
        json!({
            "ns": { "median": f.ns.median, "low": f.ns.low, "high": f.ns.high },
            "pps": f.pps(),
            "packets": f.packets,
            "counted": f.arrived,
            "lost": lost(f),
        })
    });
    json!({ "level": row.level.name(), "figures": figures, "not_measured": row.figures.as_ref().err() })
}

fn lost(figures: &SideFigures) -> u64 {
    figures.lost.iter().map(|(_, count)| count).sum()
}

fn text(options: &LevelOptions, rows: &[LevelRow], markdown: bool) -> String {
    let mut out = format!(
        "{}, CPU {}, {} rounds of {} packets of 64 bytes, {}\n\n",
        xway_bench::machine_name(),
        options.cpu,
        options.rounds,
        print::grouped(options.count),
        options.task.name()
    );
    let native = rows.iter().find(|row| row.level == Level::Native).and_then(|row| row.figures.as_ref().ok());
    let head = ["level", "ns a packet", "low", "high", "Mpps", "of native", "counted", "lost"];
    let mut notes = String::new();
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let cells = match &row.figures {
            Err(why) => {
                notes += &format!("\nnot measured: {}: {}", row.level.name(), why.lines().next().unwrap_or_default());
                vec![String::from("-"); head.len() - 1]
            }
            Ok(f) => vec![
                format!("{:.1}", f.ns.median),
                format!("{:.1}", f.ns.low),
                format!("{:.1}", f.ns.high),
                format!("{:.2}", f.pps() / 1e6),
                native.map_or_else(String::new, |native| format!("{:.2}", f.ns.median / native.ns.median)),
                print::grouped(f.arrived),
                print::grouped(lost(f)),
            ],
        };
        table.push(std::iter::once(row.level.name().to_owned()).chain(cells).collect());
    }
    out += &if markdown { print::markdown(&table) } else { print::table(&table) };
    if notes.is_empty() { out } else { format!("{out}{notes}\n") }
}
