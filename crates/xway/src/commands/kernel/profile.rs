//! `xway prog profile`: how often a program runs, and how long.

use std::time::{Duration, Instant};

use serde_json::json;
use xway_kernel::run_statistics;

use super::which::Which;
use super::{prog, refused};
use crate::args_kernel::Rest;
use crate::failure::Failure;
use crate::{args, print};

/// Runs the command.
pub fn run(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (which, rest) = Which::needed(&rest.words, "prog")?;
    let time = match rest.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Duration::from_secs(1),
        ["duration", value] => args::seconds(value).map_err(|e| Failure::usage(format!("duration {value}: {e}")))?,
        [other, ..] => return Err(Failure::usage(format!("{other}: not expected here")).hint("duration SECS")),
    };
    let program = prog::open(&which)?;
    let _on = run_statistics().map_err(refused)?;
    let before = program.info().map_err(refused)?;
    let start = Instant::now();
    std::thread::sleep(time);
    let after = program.info().map_err(refused)?;
    let secs = start.elapsed().as_secs_f64();
    let runs = after.run_count.saturating_sub(before.run_count);
    let nanos = after.run_time.saturating_sub(before.run_time).as_nanos() as f64;
    let each = (runs > 0).then(|| nanos / runs as f64);
    if as_json {
        let doc = json!({
            "program": prog::json(&after),
            "seconds": secs,
            "runs": runs,
            "nanoseconds_per_run": each,
            "busy": nanos / 1e9 / secs,
        });
        print::json(&print::document("prog profile", doc));
        return Ok(());
    }
    let each = each.map_or_else(|| "it did not run".to_owned(), |ns| format!("{ns:.0} ns a run"));
    let busy = 100.0 * nanos / 1e9 / secs;
    print::text(&format!(
        "program {} (id {}): {} runs in {secs:.2} s, {} a second, {each}, {busy:.2} % of one CPU\n",
        after.name,
        after.id,
        print::grouped(runs),
        print::scaled(runs as f64 / secs).trim_end()
    ));
    Ok(())
}
