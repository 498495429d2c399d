//! Ctrl-C: the first one asks the work to end and to report, the second one ends at once. Ctrl-\: what a tool wants to do then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xway_engine::Stop;

use crate::failure::Failure;

/// Exit code after a second Ctrl-C: 128 + SIGINT, as shells have it.
const ABANDONED: i32 = 130;

/// What comes so soon behind the first signal is the same wish said twice: `timeout` signals its child and then its whole group, and
/// service managers and wrappers do alike.
const SAME: Duration = Duration::from_millis(500);

/// When the first one came.
#[derive(Default)]
struct First(Option<Instant>);

impl First {
    /// A signal comes: whether it is another one than the first.
    fn again(&mut self, now: Instant) -> bool {
        now.duration_since(*self.0.get_or_insert(now)) >= SAME
    }
}

/// Catches SIGINT, SIGTERM and SIGHUP: the first one asks for a stop. To be called once.
pub fn catch(stop: &Stop) -> Result<(), Failure> {
    let stop = stop.clone();
    let first = Mutex::new(First::default());
    ctrlc::set_handler(move || {
        let again = first.lock().is_ok_and(|mut first| first.again(Instant::now()));
        if again {
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
        let mut first = First::default();
        for signal in signals.forever() {
            match signal {
                SIGHUP => asked.store(true, Ordering::SeqCst),
                _ if first.again(Instant::now()) => std::process::exit(ABANDONED),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wish_said_twice_is_one() {
        let (mut first, start) = (First::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        let said = [0, 0, 499, 500, 9000].map(|ms| first.again(after(ms)));
        assert_eq!(said, [false, false, false, true, true]);
    }
}
