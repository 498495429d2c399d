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

/// The same for a service, whom SIGHUP asks to read its file again: the flag is set each time. To be called once, in place of [`catch`].
pub fn catch_and_reload(stop: &Stop) -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let failed = |e: std::io::Error| Failure::needs(format!("cannot catch signals: {e}"));
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let reload = Arc::new(AtomicBool::new(false));
    let (stop, asked) = (stop.clone(), reload.clone());
    let work = move || {
        let mut again = false;
        for signal in signals.forever() {
            match signal {
                SIGHUP => asked.store(true, Ordering::SeqCst),
                _ if std::mem::replace(&mut again, true) => std::process::exit(ABANDONED),
                _ => stop.ask(),
            }
        }
    };
    std::thread::Builder::new().name("xway-signals".into()).spawn(work).map_err(failed)?;
    Ok(reload)
}

/// Catches SIGQUIT (Ctrl-\): the flag is set each time, and no core is dumped.
pub fn on_quit() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGQUIT, flag.clone())
        .map_err(|e| Failure::needs(format!("cannot catch Ctrl-\\: {e}")))?;
    Ok(flag)
}
