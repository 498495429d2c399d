//! `xway stats`: what a port counts in a second, and only what changes.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use xway_engine::Stop;
use xway_hook::GAUGES;

use super::counted;
use super::kernel::attach::Place;
use super::kernel::failure;
use crate::args_kernel::{Every, Stats};
use crate::failure::Failure;
use crate::{interrupt, print};

/// Runs the command.
pub fn run(args: &Stats, as_json: bool) -> Result<(), Failure> {
    let mut hook = Place::of(&args.place)?.boxed();
    let read = || -> Result<Vec<(String, u64)>, Failure> {
        let mut all = hook.statistics(&args.interface).map_err(failure)?.counters;
        all.extend(counted::read(&mut *hook, &args.interface));
        Ok(all)
    };
    watch("stats", &args.interface, &args.every, as_json, read)
}

/// Looks at counters again and again. As text a block is printed for every interval, as JSON all of them at the end, with
/// `--ndjson` a document on a line of its own for every interval.
pub fn watch(
    command: &str,
    port: &str,
    args: &Every,
    as_json: bool,
    mut read: impl FnMut() -> Result<Vec<(String, u64)>, Failure>,
) -> Result<(), Failure> {
    let stop = Stop::new().map_err(|e| Failure::needs(format!("cannot watch: {e}")))?;
    interrupt::catch(&stop)?;
    let (mut before, mut since) = (read()?, Instant::now());
    let mut samples = Vec::new();
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 && wait(args.interval, &stop) {
        left -= 1;
        let now = read()?;
        let secs = since.elapsed().as_secs_f64();
        since = Instant::now();
        let rows = grown(&before, &now, secs, args.all);
        match as_json {
            _ if args.ndjson => {
                let mut doc = sample(secs, &rows);
                doc["port"] = json!(port);
                print::text(&format!("{}\n", print::document(command, doc)));
            }
            true => samples.push(sample(secs, &rows)),
            false => print::text(&text(port, secs, &rows)),
        }
        before = now;
    }
    if as_json && !args.ndjson {
        print::json(&print::document(command, json!({ "port": port, "samples": samples })));
    }
    Ok(())
}

/// `false`: somebody asked for the end.
fn wait(interval: Duration, stop: &Stop) -> bool {
    let until = Instant::now() + interval;
    while !stop.asked() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    false
}

/// A counter, its number, and what was added to it in a second; nothing of that for a gauge, which is what it is now.
pub type Row = (String, u64, Option<f64>);

/// What was added in `secs` seconds, and gauges that have moved; with `all` also where nothing was.
pub fn grown(before: &[(String, u64)], now: &[(String, u64)], secs: f64, all: bool) -> Vec<Row> {
    let changed = |(name, value): &(String, u64)| {
        let old = before.iter().find(|(n, _)| n == name).map_or(0, |(_, old)| *old);
        let gauge = GAUGES.contains(&name.as_str());
        // Counters of a port that was opened again begin anew: what they have now came since.
        let grown = if *value < old { *value } else { value - old };
        let changed = if gauge { *value != old } else { grown > 0 };
        (all || changed).then(|| (name.clone(), *value, (!gauge).then_some(grown as f64 / secs)))
    };
    now.iter().filter_map(changed).collect()
}

/// Rows by name.
pub fn rates_json(rows: &[Row]) -> Value {
    let one = |(name, total, rate): &Row| match rate {
        Some(rate) => (name.clone(), json!({ "total": total, "per_second": rate })),
        None => (name.clone(), json!({ "total": total, "gauge": true })),
    };
    Value::Object(rows.iter().map(one).collect::<Map<_, _>>())
}

fn sample(secs: f64, rows: &[Row]) -> Value {
    json!({ "seconds": secs, "counters": rates_json(rows) })
}

/// A block of rows.
pub fn text(port: &str, secs: f64, rows: &[Row]) -> String {
    if rows.is_empty() {
        return format!("{port}: nothing changed in {secs:.1} s\n");
    }
    let mut table = vec![[port, "a second", "total"].map(str::to_owned).to_vec()];
    for (name, total, rate) in rows {
        let rate = rate.map_or_else(|| "now".to_owned(), |rate| print::scaled(rate).trim_end().to_owned());
        table.push(vec![name.clone(), rate, print::grouped(*total)]);
    }
    print::table(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_is_shown_and_a_port_that_is_opened_again_begins_anew() {
        let named = |all: &[(&str, u64)]| all.iter().map(|&(name, n)| (name.to_owned(), n)).collect::<Vec<_>>();
        let gauge = GAUGES[0];
        let before = named(&[("rx_packets", 10), ("tx_full", 3), ("passed", 9), (gauge, 5), ("old", 1)]);
        let now = named(&[("rx_packets", 30), ("tx_full", 3), ("passed", 2), (gauge, 4), ("new", 8)]);
        let row = |name: &str, total, rate: Option<f64>| (name.to_owned(), total, rate);
        let changed = [
            row("rx_packets", 30, Some(10.0)),
            row("passed", 2, Some(1.0)),
            row(gauge, 4, None),
            row("new", 8, Some(4.0)),
        ];
        assert_eq!(grown(&before, &now, 2.0, false), changed);
        let all = grown(&before, &now, 2.0, true);
        assert_eq!((all.len(), &all[1]), (5, &row("tx_full", 3, Some(0.0))));
        assert!(text("p", 1.0, &[]).contains("p: nothing changed in 1.0 s"));
    }
}
