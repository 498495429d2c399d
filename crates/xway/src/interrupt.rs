//! Ctrl-C: the first one asks the work to end and to report, the second one ends at once. Ctrl-\: what a tool wants to do then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xway_engine::Stop;

use crate::failure::Failure;

/// Exit code after a second Ctrl-C: 128 + SIGINT, as shells have it.
const ABANDONED: i32 = 130;

/// Catches SIGINT, SIGTERM and SIGHUP: the first one asks for a stop. To be called once.
pub fn catch(stop: &Stop) -> Result<(), Failure> {
    let stop = stop.clone();
    let again = AtomicBool::new(false);
    ctrlc::set_handler(move || {
        if again.swap(true, Ordering::SeqCst) {
            std::process::exit(ABANDONED);
        }
        stop.ask();
    })
    .map_err(|e| Failure::needs(format!("cannot catch Ctrl-C: {e}")))
}

/// Catches SIGQUIT (Ctrl-\): the flag is set each time, and no core is dumped.
pub fn on_quit() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGQUIT, flag.clone())
        .map_err(|e| Failure::needs(format!("cannot catch Ctrl-\\: {e}")))?;
    Ok(flag)
}
