//! `xway bench prog --counters`: what processor and kernel counted, beside the times.

use serde_json::{Map, Value, json};
use xway_bench::counters::{Counters, EVENTS, Reading};
use xway_bench::{Counted, Row};

use crate::print;

/// A table behind the table of times, and what could not be counted; empty where nobody asked.
pub fn text(rows: &[Row]) -> String {
    shown(rows, "", print::table)
}

/// The same as Markdown.
pub fn markdown(rows: &[Row]) -> String {
    shown(rows, "\n", print::markdown)
}

fn shown(rows: &[Row], behind: &str, table: impl Fn(&[Vec<String>]) -> String) -> String {
    let Some(cells) = cells(rows) else { return String::new() };
    let some = cells[0].len() > 2;
    let table = if some { format!("{behind}{}", table(&cells)) } else { String::new() };
    let heading = "\ncounted for a packet, less an empty program; events of the kernel (page-faults and what follows) for a million\n";
    let why = |event: &Value| {
        let of = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        format!("not available: {}: {}\n", of("name"), of("reason"))
    };
    let missing: String = missing().as_array().into_iter().flatten().map(why).collect();
    format!("{heading}{table}{behind}{missing}")
}

/// Events that are counted in packets, not in millions of them.
fn is_of_processor(name: &str) -> bool {
    !["page-faults", "context-switches", "cpu-migrations"].contains(&name)
}

fn cells(rows: &[Row]) -> Option<Vec<Vec<String>>> {
    let sides = |row: &Row| -> Vec<(String, Counted)> {
        let all = row.kernel.iter().chain(&row.ours);
        all.filter_map(|side| Some((side.side.clone(), side.counted?))).collect()
    };
    let all: Vec<_> =
        rows.iter().flat_map(|row| sides(row).into_iter().map(|(side, c)| (&row.case.name, side, c))).collect();
    let first = all.first()?;
    let there: Vec<usize> = (0..EVENTS.len()).filter(|n| first.2.program[*n].is_some()).collect();
    let mut head = vec!["case".to_owned(), "side".to_owned()];
    head.extend(there.iter().map(|n| EVENTS[*n].name.to_owned()));
    let per_cycle = per_cycle(&first.2.program).is_some();
    head.extend(per_cycle.then(|| "instructions a cycle".to_owned()));
    let mut table = vec![head];
    for (case, side, counted) in &all {
        let mut line = vec![(*case).clone(), side.clone()];
        for n in &there {
            let net = counted.program[*n].unwrap_or_default() - counted.empty[*n].unwrap_or_default();
            let scale = if is_of_processor(EVENTS[*n].name) { 1.0 } else { 1e6 };
            line.push(format!("{:.2}", (net * scale).max(0.0)));
        }
        // Of the whole loop: of a difference it would be none.
        line.extend(per_cycle.then(|| self::per_cycle(&counted.program).map_or("-".into(), |n| format!("{n:.2}"))));
        table.push(line);
    }
    Some(table)
}

fn per_cycle(reading: &Reading) -> Option<f64> {
    let of = |name: &str| EVENTS.iter().position(|e| e.name == name).and_then(|n| reading[n]);
    Some(of("instructions")? / of("cycles").filter(|cycles| *cycles > 0.0)?)
}

/// One side's counts for each packet, by event.
pub fn json(counted: &Counted) -> Value {
    let of = |(n, event): (usize, &xway_bench::counters::Event)| {
        Some((event.name.to_owned(), json!({ "empty": counted.empty[n]?, "program": counted.program[n]? })))
    };
    Value::Object(EVENTS.iter().enumerate().filter_map(of).collect::<Map<_, _>>())
}

/// Events that cannot be counted here, with the reason.
pub fn missing() -> Value {
    let all = Counters::open().missing();
    all.into_iter().map(|(name, why)| json!({ "name": name, "reason": why })).collect()
}
