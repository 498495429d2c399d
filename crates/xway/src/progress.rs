//! The progress bar: on a terminal, for inputs that take longer than a moment.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use xway_engine::Live;

use crate::print::{grouped, scaled};

/// How long a run may take without a bar.
const PATIENCE: Duration = Duration::from_secs(1);
const REFRESH: Duration = Duration::from_millis(200);

/// Shows progress until it is finished.
pub struct Progress(Option<(Sender<()>, JoinHandle<()>)>);

/// Shows nothing: something else does.
pub const fn none() -> Progress {
    Progress(None)
}

/// Starts to show how far a worker has come, if standard error is a terminal. The bar appears after a second.
pub fn start(live: Arc<Live>) -> Progress {
    if !std::io::stderr().is_terminal() {
        return Progress(None);
    }
    let (end, ended) = channel::<()>();
    let thread = std::thread::spawn(move || {
        let started = Instant::now();
        if ended.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let bar = bar(live.progress().map(|(_, total)| total));
        loop {
            let elapsed = started.elapsed().as_secs_f64();
            let rate = live.rx() as f64 / elapsed;
            let mut message = format!("{} packets, {}packets/s", grouped(live.rx()), scaled(rate));
            match live.progress() {
                Some((done, total)) => {
                    bar.set_length(total);
                    bar.set_position(done.min(total));
                    // From the whole run so far: the bar itself was not there from the start.
                    let left = elapsed * total.saturating_sub(done) as f64 / done.max(1) as f64;
                    message.push_str(&format!(", {} left", HumanDuration(Duration::from_secs_f64(left.min(1e9)))));
                }
                None => bar.tick(),
            }
            bar.set_message(message);
            if ended.recv_timeout(REFRESH) != Err(RecvTimeoutError::Timeout) {
                bar.finish_and_clear();
                return;
            }
        }
    });
    Progress(Some((end, thread)))
}

impl Progress {
    /// Takes the bar away.
    pub fn finish(self) {
        if let Some((end, thread)) = self.0 {
            drop(end);
            // A bar that failed to draw is no reason to lose the result.
            let _ = thread.join();
        }
    }
}

fn bar(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{bar:20} {percent:>3}%  {msg}"),
        None => (ProgressBar::new_spinner(), "{spinner} {elapsed}  {msg}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
