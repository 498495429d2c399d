//! `xway bench dispatch`: from a port's burst to its program.

use serde_json::{Value, json};
use xway_bench::Stat;
use xway_bench::dispatch::{DispatchError, DispatchOptions, Line, Reached, dispatch};

use crate::args_bench::BenchDispatch;
use crate::failure::Failure;
use crate::print;

/// Runs the command.
pub fn run(args: &BenchDispatch, as_json: bool) -> Result<(), Failure> {
    let (args, markdown) = (&args.size, args.markdown);
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
    let machine = xway_bench::machine_name();
    let head = format!("{machine}, CPU {cpu}, {} rounds", args.rounds);
    if markdown {
        let [targets, chains] = [print::markdown(&by_targets(&lines)), print::markdown(&by_chain(&lines))];
        let packets = print::grouped(u64::from(bursts) * 64);
        print::text(&format!("{head} of {packets} packets; ns a packet.\n\n{targets}\n{chains}"));
        return Ok(());
    }
    let mut table = vec![["", "bursts of 64", "packets alone"].map(str::to_owned).to_vec()];
    table.extend(lines.iter().map(|l| vec![l.reached.to_string(), ns(&l.ns[0]), ns(&l.ns[1])]));
    print::text(&format!("{head}; ns a packet\n\n{}", print::table(&table)));
    Ok(())
}

fn ns(stat: &Stat) -> String {
    format!("{:.2}", stat.median)
}

/// Indirect calls beside trees, by the number of targets.
fn by_targets(lines: &[Line]) -> Vec<Vec<String>> {
    let of = |reached| lines.iter().find(|line| line.reached == reached);
    let heads = ["targets, in random order", "bursts of 64: indirect", "tree", "packets alone: indirect", "tree"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    let row = |name: String, indirect: &Line, tree: &Line| {
        vec![name, ns(&indirect.ns[0]), ns(&tree.ns[0]), ns(&indirect.ns[1]), ns(&tree.ns[1])]
    };
    for line in lines {
        if let Reached::Indirect(count) = line.reached
            && let Some(tree) = of(Reached::Tree(count))
        {
            table.push(row(count.to_string(), line, tree));
        }
    }
    if let (Some(one), Some(beyond)) = (of(Reached::Indirect(1)), of(Reached::Beyond)) {
        table.push(row(format!("one that is {}", Reached::Beyond), one, beyond));
    }
    table
}

/// Chains, a column for each number of programs.
fn by_chain(lines: &[Line]) -> Vec<Vec<String>> {
    let mut table = ["programs in a chain", "bursts of 64", "packets alone"].map(|name| vec![name.to_owned()]);
    for line in lines {
        if let Reached::Chain(count) = line.reached {
            let cells = [count.to_string(), ns(&line.ns[0]), ns(&line.ns[1])];
            table.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
        }
    }
    table.to_vec()
}

fn row(line: &Line) -> Value {
    let stat = |s: &Stat| json!({ "median": s.median, "low": s.low, "high": s.high });
    json!({ "name": line.reached.to_string(), "burst_64": stat(&line.ns[0]), "burst_1": stat(&line.ns[1]) })
}
