//! `xway bench verify`: how long it takes until a program is proved.

use serde_json::{Value, json};
use xway_bench::verify::{Answer, Effort, Row, measure, summary};
use xway_bench::{MeasureError, hard};
use xway_object::Object;

use crate::args_bench::BenchVerify;
use crate::commands::bench_kernel;
use crate::failure::Failure;
use crate::load;
use crate::print::{self, grouped};

/// Runs the command.
pub fn run(args: &BenchVerify, as_json: bool) -> Result<(), Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpu = args.cpu.unwrap_or(cpus - 1);
    let effort = Effort { kernel: bench_kernel::wanted(args.vs)?, rounds: args.rounds, cpu };
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    let mut add = |name: &str, object: &Object| {
        let measured = measure(name, object, effort).map_err(failure)?;
        rows.extend(measured);
        Ok::<(), Failure>(())
    };
    for path in &args.objects {
        let name = path.display().to_string();
        match load::read(path, None) {
            Ok(object) => add(&name, &object)?,
            Err(failure) => left_out.push((name, failure)),
        }
    }
    let unread = left_out.first().map(|(_, failure)| failure.clone());
    if args.hard {
        for input in hard::inputs() {
            add(input.name, &input.object)?;
        }
    }
    if args.objects.is_empty() && !args.hard {
        for (name, bytes) in xway_bench::suite::objects() {
            add(name, &load::parse(bytes, None)?)?;
        }
    }
    if rows.is_empty() {
        if let Some(failure) = unread {
            return Err(failure);
        }
        let why = xway_bench::suite::missing().unwrap_or("no object holds an XDP program");
        return Err(Failure::needs(why).hint("name object files"));
    }
    rows.sort_by(|a: &Row, b: &Row| b.ours.micros.median.total_cmp(&a.ours.micros.median));
    if as_json {
        print::json(&print::document("bench verify", document(&rows, &left_out, cpu)));
    } else {
        print::text(&text(&rows, &left_out, cpu, args.top));
    }
    // What was named and could not be read is not done.
    unread.map_or(Ok(()), |failure| Err(failure.said()))
}

fn failure(error: MeasureError) -> Failure {
    match error {
        MeasureError::Wrong(_) => Failure::no(error),
        _ => Failure::usage(error).hint("--cpu with the number of a core that there is"),
    }
}

fn document(rows: &[Row], left_out: &[(String, Failure)], cpu: u32) -> Value {
    let all = summary(rows);
    json!({
        "machine": xway_bench::machine_name(),
        "cpu": cpu,
        "unit": "microseconds",
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "left_out": left_out.iter().map(|(name, f)| json!({ "object": name, "reason": print::failure_json(f) })).collect::<Vec<_>>(),
        "summary": {
            "programs": all.programs,
            "compared": all.compared,
            "ratio_median": all.ratio_median,
            "half_share": all.half_share,
            "ratio_worst": all.ratio_worst,
            "ours_worst": all.ours_worst,
            "peak_bytes": all.peak_bytes,
        },
    })
}

fn row(row: &Row) -> Value {
    let side = |a: &Answer| {
        json!({
            "accepted": a.refused.is_none(), "reason": a.refused, "visited": a.visited,
            "median": a.micros.median, "low": a.micros.low, "high": a.micros.high,
        })
    };
    json!({
        "object": row.object,
        "program": row.program,
        "insns": row.insns,
        "ours": side(&row.ours),
        "work": row.work,
        "peak_bytes": row.peak_bytes,
        "kernel": row.kernel.as_ref().map(side),
        "kernel_verifier": row.kernel_verifier,
        "ratio": row.ratio(),
    })
}

fn text(rows: &[Row], left_out: &[(String, Failure)], cpu: u32, top: usize) -> String {
    let mut lines = vec![
        ["program", "insns", "visited", "kernel", "ours ms", "kernel ms", "its verifier", "ratio", "MiB", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    for row in rows.iter().take(top) {
        let kernel = |f: &dyn Fn(&Answer) -> String| row.kernel.as_ref().map_or(String::new(), f);
        let ms = |us: f64| format!("{:.3}", us / 1e3);
        let short = row.object.rsplit('/').next().unwrap_or(&row.object);
        let refused = |who: &str, a: &Answer| a.refused.as_ref().map(|why| format!("{who}: {}", first(why)));
        let notes = [refused("refused here", &row.ours), row.kernel.as_ref().and_then(|k| refused("kernel", k))];
        lines.push(vec![
            format!("{short}:{}", row.program),
            grouped(row.insns as u64),
            grouped(row.ours.visited),
            kernel(&|k| grouped(k.visited)),
            ms(row.ours.micros.median),
            kernel(&|k| ms(k.micros.median)),
            row.kernel_verifier.map_or(String::new(), ms),
            row.ratio().map_or(String::new(), |r| format!("{r:.2}")),
            (row.peak_bytes >> 20).to_string(),
            notes.into_iter().flatten().collect::<Vec<_>>().join("; "),
        ]);
    }
    let all = summary(rows);
    let mut out = format!("{}, CPU {cpu}; the longest first\n\n{}", xway_bench::machine_name(), print::table(&lines));
    if rows.len() > top {
        out += &format!("… and {} more\n", rows.len() - top);
    }
    for (name, failure) in left_out {
        out += &left(name, failure);
    }
    out += &format!(
        "\n{} programs, at most {:.1} ms and {} MiB\n",
        all.programs,
        all.ours_worst / 1e3,
        all.peak_bytes >> 20
    );
    if let Some(median) = all.ratio_median {
        out += &format!(
            "{} accepted by both: median of ours over the kernel's load {median:.2}, at most half for {:.0} %, worst {:.2}\n",
            all.compared,
            all.half_share * 100.0,
            all.ratio_worst
        );
    }
    out
}

/// A line about an object that could not be read.
pub(super) fn left(name: &str, failure: &Failure) -> String {
    format!("left out: {name}: {}\n", reason(name, failure))
}

/// What is wrong with an object, without its name.
pub(super) fn reason<'a>(name: &str, failure: &'a Failure) -> &'a str {
    failure.message.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&failure.message)
}

/// The start of a reason.
fn first(why: &str) -> String {
    why.lines().next().unwrap_or("").chars().take(60).collect()
}
