//! The verbs that watch: packets, events, numbers.

pub mod beside;
pub mod dump;
mod in_front;
pub mod monitor;
pub mod top;

use std::time::{Duration, Instant};

use xway_engine::Stop;
use xway_filter::{Classic, FilterError};

use crate::args_kernel::{Hook, Place};
use crate::failure::Failure;
use crate::interrupt;

/// The service, unless the kernel's hook is asked for.
pub(super) fn service_first(place: &Hook) -> Hook {
    Hook { hook: Some(place.hook.unwrap_or(Place::User)), socket: place.socket.clone() }
}

/// A filter expression as classic BPF; no words match every packet.
pub fn filter(words: &[String]) -> Result<Vec<Classic>, Failure> {
    let expression = words.join(" ");
    if expression.trim().is_empty() {
        return Ok(Vec::new());
    }
    let classic = xway_filter::compile(&expression).map_err(refused)?;
    let untranslated = |cause| FilterError::Untranslated { expression: expression.clone(), cause };
    xway_filter::check(&classic).map_err(untranslated).map_err(refused)?;
    Ok(classic)
}

fn refused(error: FilterError) -> Failure {
    let hint = error.hint();
    match error {
        FilterError::Missing { .. } => Failure::needs(error),
        _ => Failure::usage(error),
    }
    .hint(hint)
}

/// When a watch ends: asked to, or after some time.
pub(super) struct Until {
    stop: Stop,
    end: Option<Instant>,
}

impl Until {
    /// Catches Ctrl-C.
    pub fn new(timeout: Option<Duration>) -> Result<Until, Failure> {
        let stop = Stop::new().map_err(|e| Failure::needs(format!("cannot watch: {e}")))?;
        interrupt::catch(&stop)?;
        Ok(Until { stop, end: timeout.map(|timeout| Instant::now() + timeout) })
    }

    /// Ends with something else.
    pub const fn of(stop: Stop) -> Until {
        Until { stop, end: None }
    }

    /// Time until somebody must look again, at most `most`; `None`: it is over.
    pub fn left(&self, most: Duration) -> Option<Duration> {
        let left = self.end.map_or(most, |end| end.saturating_duration_since(Instant::now()).min(most));
        (!self.stop.asked() && (!left.is_zero() || most.is_zero())).then_some(left)
    }
}

/// The time of day, UTC.
pub(super) fn clock(time_ns: u64) -> String {
    let (secs, micros) = (time_ns / 1_000_000_000 % 86_400, time_ns / 1000 % 1_000_000);
    format!("{:02}:{:02}:{:02}.{micros:06}", secs / 3600, secs / 60 % 60, secs % 60)
}

/// Whether a port is the one that was named: `packet:eth0` may be called `eth0`.
pub(super) fn is_port(name: &str, wanted: &str) -> bool {
    name == wanted || name.split_once(':').is_some_and(|(_, rest)| rest == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_names_are_read() {
        assert_eq!(clock(1_700_000_000_123_456_789), "22:13:20.123456");
        assert!(is_port("packet:eth0", "eth0") && is_port("eth0", "eth0") && !is_port("packet:eth0", "th0"));
        assert!(filter(&[]).unwrap().is_empty() && filter(&[" ".into()]).unwrap().is_empty());
    }
}
