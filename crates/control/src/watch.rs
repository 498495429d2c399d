//! What one connection watches: events from its first question on, and one capture. Both end with the connection.

use std::time::{Duration, Instant};

use serde_json::Value;
use xway_hook::user::{Watch, Watched};
use xway_hook::{Blame, HookError};
use xway_vm::Listener;

use crate::message::{Capture, Packets, TraceLines};
use crate::server::Shared;

/// Longest wait of one request.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a wait goes without a look at whether the service ends, and at ports that came since.
const LOOK: Duration = Duration::from_millis(50);

/// One connection's.
#[derive(Default)]
pub(crate) struct Watching {
    events: Option<Watch>,
    capture: Option<Watched>,
    printed: Option<Listener>,
}

fn json(value: impl serde::Serialize) -> Result<Value, HookError> {
    serde_json::to_value(value).map_err(|e| HookError::new(Blame::Machine, e))
}

impl Watching {
    /// Events; the first one is waited for without keeping others from being answered.
    pub fn events(&mut self, shared: &Shared, wait_ms: u64) -> Result<Value, HookError> {
        let watch = match &mut self.events {
            Some(watch) => watch,
            none => none.insert(shared.state().engine().watch()),
        };
        let all = waited(shared, wait_ms, |wait| {
            shared.state().engine().attend(watch);
            Some(watch.next(wait)).filter(|all| !all.is_empty())
        });
        json(all.unwrap_or_default())
    }

    /// Begins a capture.
    pub fn capture(&mut self, shared: &Shared, request: Capture) -> Result<Value, HookError> {
        // Frames of the old one come home before the new one takes some.
        self.capture = None;
        self.capture = Some(shared.state().engine().start_capture(&request.into())?);
        json(())
    }

    /// What programs print; the first line is waited for.
    pub fn trace_log(&mut self, shared: &Shared, wait_ms: u64) -> Result<Value, HookError> {
        let printed = self.printed.get_or_insert_with(Listener::new);
        let found = waited(shared, wait_ms, |wait| {
            let (lines, lost) = printed.next(wait);
            (!lines.is_empty() || lost > 0).then_some(TraceLines { lines, lost })
        });
        json(found.unwrap_or_default())
    }

    /// Its packets.
    pub fn captured(&mut self, shared: &Shared, wait_ms: u64) -> Result<Value, HookError> {
        let capture = self.capture.as_mut().ok_or_else(|| HookError::missing("capture of this connection"))?;
        let found = waited(shared, wait_ms, |wait| {
            Some(capture.next(wait)).filter(|found| !found.packets.is_empty() || found.lost > 0)
        });
        json(Packets::from(found.unwrap_or_default()))
    }
}

/// Asks again and again until there is something, the time is over or the service ends.
fn waited<T>(shared: &Shared, wait_ms: u64, mut ask: impl FnMut(Duration) -> Option<T>) -> Option<T> {
    let until = Instant::now() + Duration::from_millis(wait_ms).min(WAIT_MAX);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let found = ask(left.min(LOOK));
        if found.is_some() || left.is_zero() || shared.stop.asked() {
            return found;
        }
    }
}
