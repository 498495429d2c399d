//! `xway bench map`: single operations on maps.

use serde_json::{Value, json};
use xway_abi::MapType;
use xway_bench::Stat;
use xway_bench::maps::memory::{self, MemoryRow};
use xway_bench::maps::threads::{self, ThreadsRow};
use xway_bench::maps::{MapError, MapRow, Subject, measure};
use xway_kernel::KernelError;

use crate::args_bench::{BenchMap, BenchedMap};
use crate::commands::bench_kernel;
use crate::failure::Failure;
use crate::print::{self, grouped};

/// Runs the command.
pub fn run(args: &BenchMap, as_json: bool) -> Result<(), Failure> {
    let kernel = bench_kernel::wanted(args.vs)?;
    if !args.threads.is_empty() {
        return by_threads(args, kernel, as_json);
    }
    if args.memory {
        return memory_of(args, kernel, as_json);
    }
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpu = args.cpu.unwrap_or(cpus - 1);
    let mut rows = Vec::new();
    let text = !as_json && !args.markdown;
    if text {
        print::text(&heading(kernel, cpu, args.rounds));
    }
    for subject in subjects(args)? {
        let measured = measure(subject, kernel, args.rounds, cpu).map_err(|e| failure(&subject, &e))?;
        if text {
            print::text(&measured.iter().map(line).collect::<String>());
        }
        rows.extend(measured);
    }
    if as_json {
        let fields = json!({
            "machine": xway_bench::machine_name(),
            "cpu": cpu,
            "rounds": args.rounds,
            "unit": "ns per operation",
            "rows": rows.iter().map(row).collect::<Vec<_>>(),
        });
        print::json(&print::document("bench map", fields));
    } else if args.markdown {
        let machine = xway_bench::machine_name();
        print::text(&format!("{machine}, CPU {cpu}, {} rounds; ns an operation.\n\n", args.rounds));
        print::text(&print::markdown(&cells(kernel, &rows)));
    }
    Ok(())
}

/// `--threads`: what an operation costs a core when so many work on one map.
fn by_threads(args: &BenchMap, kernel: bool, as_json: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for subject in subjects(args)? {
        let measured = threads::measure(subject, kernel, args.rounds, &args.threads);
        rows.extend(measured.map_err(|e| failure(&subject, &e))?);
    }
    let machine = xway_bench::machine_name();
    if as_json {
        let fields = json!({
            "machine": machine,
            "rounds": args.rounds,
            "unit": "ns per operation and core",
            "rows": rows.iter().map(threads_row).collect::<Vec<_>>(),
        });
        print::json(&print::document("bench map", fields));
        return Ok(());
    }
    let mut head = vec!["map", "operation", "threads", "ours, program"];
    head.extend(["kernel, program", "x"].into_iter().filter(|_| kernel));
    let mut table = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for row in &rows {
        let mut line = vec![name(&row.subject), row.op.name().to_owned(), row.threads.to_string(), ns(&row.ours)];
        line.extend(row.kernel.into_iter().flat_map(|k| [ns(&k), format!("{:.1}", ratio(&k, &row.ours))]));
        table.push(line);
    }
    let heading = format!("{machine}, {} rounds; ns an operation takes each core", args.rounds);
    match args.markdown {
        true => print::text(&format!("{heading}.\n\n{}", print::markdown(&table))),
        false => print::text(&format!("{heading}\n\n{}", print::table(&table))),
    }
    Ok(())
}

/// `--memory`: bytes for each element.
fn memory_of(args: &BenchMap, kernel: bool, as_json: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for subject in subjects(args)? {
        for value_size in &args.values {
            rows.extend(memory::measure(subject, *value_size, kernel).map_err(|e| failure(&subject, &e))?);
        }
    }
    if as_json {
        let fields = json!({
            "machine": xway_bench::machine_name(),
            "unit": "bytes",
            "rows": rows.iter().map(memory_row).collect::<Vec<_>>(),
        });
        print::json(&print::document("bench map", fields));
        return Ok(());
    }
    let mut head = vec!["map", "value", "elements", "ours, MiB", "bytes each"];
    head.extend(["kernel, MiB", "bytes each", "ratio"].into_iter().filter(|_| kernel));
    let mut table = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    let mib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 20));
    for row in &rows {
        let grows = if row.growing && row.subject.map_type != MapType::LpmTrie { ", growing" } else { "" };
        let (ours, theirs) = row.each();
        let mut line = vec![name(&row.subject) + grows, format!("{} B", row.value_size), grouped(row.elements.into())];
        line.extend([mib(row.ours), format!("{ours:.1}")]);
        let ratio = row.ratio().map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        line.extend(row.kernel.zip(theirs).into_iter().flat_map(|(all, each)| [mib(all), format!("{each:.1}")]));
        line.extend(Some(ratio).filter(|_| kernel));
        table.push(line);
    }
    let heading = format!("{}; bytes for each element", xway_bench::machine_name());
    match args.markdown {
        true => print::text(&format!("{heading}.\n\n{}", print::markdown(&table))),
        false => print::text(&format!("{heading}\n\n{}", print::table(&table))),
    }
    Ok(())
}

fn memory_row(row: &MemoryRow) -> Value {
    json!({
        "type": row.subject.map_type.name(),
        "key_bytes": row.subject.key_size,
        "value_bytes": row.value_size,
        "entries": row.subject.entries,
        "growing": row.growing,
        "elements": row.elements,
        "ours_bytes": row.ours,
        "kernel_bytes": row.kernel,
        "ratio": row.ratio(),
    })
}

fn threads_row(row: &ThreadsRow) -> Value {
    json!({
        "type": row.subject.map_type.name(),
        "key_bytes": row.subject.key_size,
        "entries": row.subject.entries,
        "operation": row.op.name(),
        "threads": row.threads,
        "ours_program": stat(&row.ours),
        "kernel_program": row.kernel.as_ref().map(stat),
    })
}

fn stat(s: &Stat) -> Value {
    json!({ "median": s.median, "low": s.low, "high": s.high })
}

/// Every combination that makes sense: arrays have keys of 4 bytes, tries by default those of IPv4 prefixes.
fn subjects(args: &BenchMap) -> Result<Vec<Subject>, Failure> {
    let mut all = Vec::new();
    for kind in &args.types {
        let (map_type, by_default) = match kind {
            BenchedMap::Array => (MapType::Array, &[4][..]),
            BenchedMap::Hash => (MapType::Hash, &[4, 16][..]),
            BenchedMap::LruHash => (MapType::LruHash, &[4, 16][..]),
            BenchedMap::LpmTrie => (MapType::LpmTrie, &[8][..]),
            BenchedMap::PercpuArray => (MapType::PercpuArray, &[4][..]),
            BenchedMap::PercpuHash => (MapType::PercpuHash, &[4, 16][..]),
            BenchedMap::LruPercpuHash => (MapType::LruPercpuHash, &[4, 16][..]),
        };
        let fixed = matches!(map_type, MapType::Array | MapType::PercpuArray) || args.keys.is_empty();
        let keys = if fixed { by_default } else { &args.keys };
        if map_type == MapType::LpmTrie
            && let Some(size) = keys.iter().find(|size| !ADDRESSES.contains(size))
        {
            let why = format!("--key {size}: a trie's key is a prefix length of 4 bytes and an address of 2 to 256");
            return Err(
                Failure::usage(why).hint("--key 8 for IPv4, 20 for IPv6; other types with a --type of their own")
            );
        }
        let sizes = args.entries.iter().flat_map(|entries| keys.iter().map(move |key_size| (*entries, *key_size)));
        all.extend(sizes.map(|(entries, key_size)| Subject { map_type, key_size, entries }));
    }
    Ok(all)
}

/// Keys that tries may have. Addresses of a byte have too few prefixes to measure anything.
const ADDRESSES: std::ops::RangeInclusive<u32> = 6..=260;

fn heading(kernel: bool, cpu: u32, rounds: u32) -> String {
    let theirs = if kernel { "   kernel program     x   kernel user     x" } else { "" };
    let machine = xway_bench::machine_name();
    format!(
        "{machine}, CPU {cpu}, {rounds} rounds; ns an operation\n\n  {:<34}{:<16}{:>12}{:>12}{theirs}\n",
        "map", "operation", "ours program", "ours user"
    )
}

fn name(s: &Subject) -> String {
    format!("{}, {} x {} B", s.map_type.name(), grouped(s.entries.into()), s.key_size)
}

/// The table, a line for each operation.
fn cells(kernel: bool, rows: &[MapRow]) -> Vec<Vec<String>> {
    let mut head = vec!["map", "operation", "ours, program", "ours, user"];
    head.extend(["kernel, program", "x", "kernel, user", "x"].into_iter().filter(|_| kernel));
    let mut table = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for row in rows {
        let mut line = vec![name(&row.subject), row.op.name().to_owned(), ns(&row.program), ns(&row.user)];
        for (theirs, ours) in [(row.kernel_program, row.program), (row.kernel_user, row.user)] {
            line.extend(theirs.into_iter().flat_map(|t| [ns(&t), format!("{:.1}", ratio(&t, &ours))]));
        }
        table.push(line);
    }
    table
}

fn ratio(theirs: &Stat, ours: &Stat) -> f64 {
    if ours.median > 0.0 { theirs.median / ours.median } else { 0.0 }
}

fn line(row: &MapRow) -> String {
    let map = name(&row.subject);
    let mut out = format!("  {map:<34}{:<16}{:>12}{:>12}", row.op.name(), ns(&row.program), ns(&row.user));
    let pairs = [(row.kernel_program, row.program, 17), (row.kernel_user, row.user, 14)];
    for (theirs, ours, width) in pairs {
        if let Some(theirs) = theirs {
            out += &format!("{:>width$}{:>6.1}", ns(&theirs), ratio(&theirs, &ours));
        }
    }
    out + "\n"
}

fn ns(stat: &Stat) -> String {
    if stat.median < 100.0 { format!("{:.1}", stat.median) } else { format!("{:.0}", stat.median) }
}

fn row(row: &MapRow) -> Value {
    json!({
        "type": row.subject.map_type.name(),
        "key_bytes": row.subject.key_size,
        "entries": row.subject.entries,
        "operation": row.op.name(),
        "ours_program": stat(&row.program),
        "ours_user": stat(&row.user),
        "kernel_program": row.kernel_program.as_ref().map(stat),
        "kernel_user": row.kernel_user.as_ref().map(stat),
    })
}

/// What is smaller than what was asked for.
const LESS: &str = "fewer --entries";

fn failure(subject: &Subject, error: &MapError) -> Failure {
    let failure = match error {
        MapError::Pin(_) => Failure::usage(error).hint("--cpu or --threads for cores that there are"),
        MapError::Create(_) => Failure::usage(error).hint("other --entries or --key"),
        MapError::Kernel { what, errno } => {
            bench_kernel::refused(error, &KernelError::Call { step: what, errno: *errno }, LESS)
        }
        MapError::Program(kernel) => bench_kernel::refused(error, kernel, LESS),
        MapError::Ours { .. } | MapError::Wrong { .. } | MapError::Failed { .. } | MapError::Thread => {
            Failure::no(error)
        }
    };
    failure.at(format!("{}, {} entries", subject.map_type.name(), subject.entries))
}
