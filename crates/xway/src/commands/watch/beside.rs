//! A capture beside a run: its own thread writes, the run does not wait.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use xway_hook::user::Watched;

use super::dump::File;
use crate::failure::Failure;

/// Longest wait for a packet.
const LOOK: Duration = Duration::from_millis(20);

/// The thread that writes.
pub struct Beside {
    thread: JoinHandle<Result<Written, Failure>>,
    over: Arc<AtomicBool>,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    packets: u64,
    lost: u64,
}

impl Beside {
    /// Begins to write.
    pub fn start(path: &Path, mut captured: Watched) -> Result<Beside, Failure> {
        let mut file = File::create(path)?;
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let write = move || {
            let mut done = Written::default();
            loop {
                // Read before the queue: what was put there before the end is still written.
                let last = ends.load(Ordering::Acquire);
                let found = captured.next(if last { Duration::ZERO } else { LOOK });
                done.lost += found.lost;
                for packet in &found.packets {
                    file.write(packet)?;
                    done.packets += 1;
                }
                if last && found.packets.is_empty() {
                    return file.finish().map(|()| done);
                }
            }
        };
        let thread = std::thread::Builder::new().name("xway-dump".into()).spawn(write);
        Ok(Beside { thread: thread.map_err(|e| Failure::needs(format!("no thread: {e}")))?, over })
    }

    /// The run is over: completes the file.
    pub fn finish(self) -> Result<Written, Failure> {
        self.over.store(true, Ordering::Release);
        self.thread.join().unwrap_or_else(|_| Err(Failure::no("writing the capture failed")))
    }
}

impl Written {
    /// In JSON documents.
    pub fn json(self) -> Value {
        json!({ "packets": self.packets, "lost": self.lost })
    }

    /// In words.
    pub fn text(self) -> String {
        format!("{} packets captured beside the run, {} lost because they found no room\n", self.packets, self.lost)
    }
}
