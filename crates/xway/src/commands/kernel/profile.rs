//! `xway prog profile`: how often a program runs, and how long.

use std::time::{Duration, Instant};

use serde_json::json;
use xway_kernel::{KernelProg, run_statistics};

use super::attach::Place;
use super::which::Which;
use super::{failure, prog, programs, refused};
use crate::args_kernel::HookRest;
use crate::failure::Failure;
use crate::{args, print};

/// Runs the command.
pub fn run(rest_args: &HookRest, as_json: bool) -> Result<(), Failure> {
    let (which, rest) = Which::needed(&rest_args.words, "prog")?;
    let time = match rest.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Duration::from_secs(1),
        ["duration", value] => args::seconds(value).map_err(|e| Failure::usage(format!("duration {value}: {e}")))?,
        [other, ..] => return Err(Failure::usage(format!("{other}: not expected here")).hint("duration SECS")),
    };
    let mut place = Place::of(&rest_args.place)?;
    // The engine counts runs always, and their time for whole queues only.
    let on = matches!(place, Place::Kernel(_)).then(run_statistics).transpose().map_err(refused)?;
    let hook = place.hook();
    let id = programs::open(hook, &which)?;
    let before = hook.program_info(id).map_err(failure)?.runs.unwrap_or_default();
    let start = Instant::now();
    std::thread::sleep(time);
    let info = hook.program_info(id).map_err(failure)?;
    let after = info.runs.unwrap_or_default();
    let secs = start.elapsed().as_secs_f64();
    let runs = after.0.saturating_sub(before.0);
    let nanos = on.is_some().then(|| after.1.saturating_sub(before.1).as_nanos() as f64);
    let each = nanos.filter(|_| runs > 0).map(|n| n / runs as f64);
    if as_json {
        let doc = json!({
            "program": match on {
                Some(_) => KernelProg::by_id(id.0).and_then(|p| p.info()).ok().as_ref().map(prog::json),
                None => Some(prog::user_json(&info)),
            },
            "seconds": secs,
            "runs": runs,
            "nanoseconds_per_run": each,
            "busy": nanos.map(|n| n / 1e9 / secs),
        });
        print::json(&print::document("prog profile", doc));
        return Ok(());
    }
    let each = match (runs, each) {
        (0, _) => "it did not run".to_owned(),
        (_, Some(ns)) => format!("{ns:.0} ns a run"),
        (_, None) => "time is not counted by program in the engine".to_owned(),
    };
    let busy = nanos.map_or_else(String::new, |n| format!(", {:.2} % of one CPU", 100.0 * n / 1e9 / secs));
    print::text(&format!(
        "program {} (id {}): {} runs in {secs:.2} s, {} a second, {each}{busy}\n",
        info.name,
        info.id.0,
        print::grouped(runs),
        print::scaled(runs as f64 / secs).trim_end()
    ));
    Ok(())
}
