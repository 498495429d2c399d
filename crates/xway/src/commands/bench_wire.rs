//! `xway bench wire`: `afxdp:` on a veth pair, beside the kernel's native hook and AF_XDP used directly.

use serde_json::{Value, json};
use xway_bench::wire::{WireOptions, WireRow, WireSide, WireTask, wire};

use super::bench_forward::failure;
use crate::args_bench::{BenchWire, WireWork};
use crate::failure::Failure;
use crate::print::{self, grouped};

/// Runs the command.
pub fn run(args: &BenchWire, as_json: bool) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpus = args.cpus.unwrap_or((0, cores - 1));
    let task = match args.task {
        WireWork::Drop => WireTask::Drop,
        WireWork::Forward => WireTask::Forward,
    };
    let options = WireOptions { task, size: args.size, time: args.time, rounds: args.rounds, cpus };
    let rows = wire(&options).map_err(failure)?;
    let ours = rows.iter().find(|row| row.side == WireSide::Ours).map_or(0.0, |row| row.ns.median);
    let ratio = |row: &WireRow| (ours > 0.0).then(|| row.ns.median / ours);
    if as_json {
        let row = |row: &WireRow| -> Value {
            json!({
                "side": row.side.name(),
                "ns": { "median": row.ns.median, "low": row.ns.low, "high": row.ns.high },
                "pps": row.pps(),
                "made": row.made,
                "arrived": row.arrived,
                "lost": row.lost,
                "ratio": ratio(row),
            })
        };
        let fields = json!({
            "machine": xway_bench::machine_name(),
            "cpus": [cpus.0, cpus.1],
            "task": task.name(),
            "size": options.size,
            "time_ms": options.time,
            "rounds": options.rounds,
            "rows": rows.iter().map(row).collect::<Vec<_>>(),
        });
        print::json(&print::document("bench wire", fields));
        return Ok(());
    }
    let heads = ["", "ns a packet", "low", "high", "kpackets/s", "arrived", "of made", "lost", "ours is"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    for row in &rows {
        let ns = [row.ns.median, row.ns.low, row.ns.high].map(|ns| format!("{ns:.0}"));
        let mut cells = vec![row.side.name().to_owned()];
        cells.extend(ns);
        cells.extend([format!("{:.0}", row.pps() / 1e3), grouped(row.arrived), grouped(row.made)]);
        cells.push(row.lost.map_or_else(|| "-".into(), grouped));
        cells.push(ratio(row).map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}x")));
        table.push(cells);
    }
    let head = format!(
        "{}, sender on CPU {}, worker on CPU {}, {} rounds of {} ms each, packets of {} bytes, {}",
        xway_bench::machine_name(),
        cpus.0,
        cpus.1,
        options.rounds,
        options.time,
        options.size,
        task.name()
    );
    print::text(&match args.markdown {
        true => format!("{head}.\n\n{}", print::markdown(&table)),
        false => format!("{head}\n\n{}", print::table(&table)),
    });
    Ok(())
}
