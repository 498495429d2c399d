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

/// Events of the processor that bpftool's verb of this name counts.
const EVENTS: [&str; 6] = ["cycles", "instructions", "l1d_loads", "llc_misses", "itlb_misses", "dtlb_misses"];

/// The words behind the program.
fn duration(words: &[String]) -> Result<Duration, Failure> {
    let (mut time, mut words) = (Duration::from_secs(1), words);
    while let Some((word, rest)) = words.split_first() {
        words = match (word.as_str(), rest) {
            ("duration", [value, rest @ ..]) => {
                time = args::seconds(value).map_err(|e| Failure::usage(format!("duration {value}: {e}")))?;
                rest
            }
            ("duration", []) => {
                return Err(Failure::usage("duration: how many seconds is missing").hint("duration SECS"));
            }
            (event, _) if EVENTS.contains(&event) => {
                let message = format!("{event}: events of the processor are not counted here, runs and their time are");
                return Err(Failure::usage(message).hint("leave it out; bpftool prog profile counts them"));
            }
            (other, _) => {
                return Err(Failure::usage(format!("{other}: not expected here")).hint("duration SECS"));
            }
        };
    }
    Ok(time)
}

/// Runs the command.
pub fn run(rest_args: &HookRest, as_json: bool) -> Result<(), Failure> {
    let (which, rest) = Which::needed(&rest_args.words, "prog")?;
    let time = duration(&rest)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_that_is_wrong_is_named() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(duration(&[]).unwrap(), Duration::from_secs(1));
        assert_eq!(duration(&words("duration 0.5")).unwrap(), Duration::from_millis(500));
        for (text, wrong) in [
            ("duration 1 cycles", "cycles: events of the processor"),
            ("llc_misses", "llc_misses: events of the processor"),
            ("duration 1 nonsense", "nonsense: not expected"),
            ("duration", "duration: how many"),
            ("duration x", "duration x: "),
        ] {
            let said = duration(&words(text)).unwrap_err().message;
            assert!(said.starts_with(wrong), "{text}: {said}");
        }
    }
}
