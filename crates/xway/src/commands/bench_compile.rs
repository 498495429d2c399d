//! `xway bench compile`: how long it takes until a proved program is machine code.

use std::sync::Arc;

use serde_json::{Value, json};
use xway_bench::compile_time::{Class, Made, Row, measure, summary};
use xway_object::Object;

use crate::args_bench::BenchCompile;
use crate::commands::bench_verify;
use crate::failure::Failure;
use crate::load;
use crate::print::{self, grouped};

/// Runs the command.
pub fn run(args: &BenchCompile, as_json: bool) -> Result<(), Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpu = args.cpu.unwrap_or(cpus - 1);
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    let measured = |name: &str, object: Object| {
        measure(name, &Arc::new(object), args.rounds, cpu)
            .map_err(|e| Failure::usage(e).hint("--cpu with the number of a core that there is"))
    };
    for path in &args.objects {
        match load::read(path, None) {
            Ok(object) => rows.extend(measured(&path.display().to_string(), object)?),
            Err(failure) => left_out.push((path.display().to_string(), failure)),
        }
    }
    let unread = left_out.first().map(|(_, failure)| failure.clone());
    if args.objects.is_empty() {
        for (name, bytes) in xway_bench::suite::objects() {
            rows.extend(measured(name, load::parse(bytes, None)?)?);
        }
        for input in xway_bench::hard::large() {
            let mut made = measured(input.name, input.object)?;
            made.iter_mut().for_each(|row| row.generated = true);
            rows.extend(made);
        }
    }
    if rows.is_empty() {
        if let Some(failure) = unread {
            return Err(failure);
        }
        let why = xway_bench::suite::missing().unwrap_or("no object holds an XDP program");
        return Err(Failure::needs(why).hint("name object files"));
    }
    rows.sort_by_key(|row: &Row| row.insns);
    if as_json {
        print::json(&print::document("bench compile", document(&rows, &left_out, cpu)));
    } else if args.markdown {
        print::text(&print::markdown(&sizes(&rows)));
    } else {
        print::text(&text(&rows, &left_out, cpu));
    }
    let wrong = rows.iter().find_map(|row| Some((row, row.made.as_ref().ok()?.ran.differs.as_ref()?)));
    if let Some((row, what)) = wrong {
        let what = format!("{}:{}: machine code differs from the interpreter: {what}", row.object, row.program);
        return Err(Failure::no(what).said());
    }
    // What was named and could not be read is not done, nor is what was not compiled.
    if let Some(failure) = unread {
        return Err(failure.said());
    }
    match rows.iter().filter(|row| row.made.is_err()).count() {
        0 => Ok(()),
        n => Err(Failure::no(format!("{n} of {} programs not compiled", rows.len())).said()),
    }
}

fn document(rows: &[Row], left_out: &[(String, Failure)], cpu: u32) -> Value {
    let (classes, all) = summary(rows);
    json!({
        "machine": xway_bench::machine_name(),
        "cpu": cpu,
        "unit": "microseconds",
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "left_out": left_out.iter().map(|(name, f)| json!({ "object": name, "reason": print::failure_json(f) })).collect::<Vec<_>>(),
        "sizes": classes.iter().map(class).collect::<Vec<_>>(),
        "all": class(&all),
    })
}

fn row(row: &Row) -> Value {
    let made = row.made.as_ref().ok();
    let stat = |s: xway_bench::Stat| json!({ "median": s.median, "low": s.low, "high": s.high });
    json!({
        "object": row.object,
        "program": row.program,
        "insns": row.insns,
        "generated": row.generated,
        "reason": row.made.as_ref().err(),
        "cold": made.map(|m| m.cold),
        "time": made.map(|m| stat(m.micros)),
        "back_end": made.map(|m| stat(m.back_end)),
        "code_bytes": made.map(|m| m.code_len),
        "staged": made.map(|m| m.staged),
        "checked": made.map(|m| json!({
            "packets": m.ran.packets, "compared": m.ran.not_compared.is_none(), "not_compared": m.ran.not_compared, "differs": m.ran.differs,
        })),
    })
}

fn class(class: &Class) -> Value {
    json!({
        "from_insns": class.from,
        "programs": class.programs,
        "insns": class.insns,
        "cold": class.cold,
        "time": class.micros,
        "back_end": class.back_end,
        "ms_per_1000_insns": class.ms_per_1000(),
        "cold_ms_per_1000_insns": class.cold_ms_per_1000(),
    })
}

const TITLES: [&str; 7] =
    ["instructions", "programs", "together", "ms", "of it Cranelift", "ms for 1,000", "cold, ms for 1,000"];

/// Programs by size, and all.
fn sizes(rows: &[Row]) -> Vec<Vec<String>> {
    let (classes, all) = summary(rows);
    let line = |name: String, class: &Class| {
        vec![
            name,
            class.programs.to_string(),
            grouped(class.insns as u64),
            format!("{:.2}", class.micros / 1e3),
            format!("{:.2}", class.back_end / 1e3),
            format!("{:.1}", class.ms_per_1000()),
            format!("{:.1}", class.cold_ms_per_1000()),
        ]
    };
    let mut lines = vec![TITLES.map(str::to_owned).to_vec()];
    for (n, class) in classes.iter().enumerate() {
        let name = match classes.get(n + 1) {
            Some(next) => format!("{} to {}", grouped(class.from as u64), grouped(next.from as u64 - 1)),
            None => format!("from {}", grouped(class.from as u64)),
        };
        lines.push(line(name, class));
    }
    let name = if rows.iter().any(|row| row.generated) { "all but generated ones" } else { "all" };
    lines.push(line(name.to_owned(), &all));
    lines
}

fn text(rows: &[Row], left_out: &[(String, Failure)], cpu: u32) -> String {
    let titles = ["program", "insns", "ms", "of it Cranelift", "ms for 1,000", "cold, ms", "bytes", ""];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for row in rows {
        let short = row.object.rsplit('/').next().unwrap_or(&row.object);
        let made = |f: &dyn Fn(&Made) -> String| row.made.as_ref().map_or(String::new(), f);
        let refused = |why: &String| format!("not compiled: {}", why.lines().next().unwrap_or_default());
        lines.push(vec![
            format!("{short}:{}", row.program),
            grouped(row.insns as u64),
            made(&|m| format!("{:.3}", m.micros.median / 1e3)),
            made(&|m| format!("{:.3}", m.back_end.median / 1e3)),
            made(&|m| format!("{:.1}", m.micros.median / row.insns.max(1) as f64)),
            made(&|m| format!("{:.3}", m.cold / 1e3)),
            made(&|m| grouped(m.code_len as u64)),
            row.made.as_ref().map_or_else(refused, |m| {
                let why = m.ran.not_compared.as_ref().map(|why| format!("not compared: {why}"));
                [m.staged.then(|| "with look-ahead".to_owned()), why]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(", ")
            }),
        ]);
    }
    let mut out = format!("{}, CPU {cpu}\n\n{}", xway_bench::machine_name(), print::table(&lines));
    for (name, failure) in left_out {
        out += &bench_verify::left(name, failure);
    }
    out + "\n" + &print::table(&sizes(rows))
}
