//! What programs send to user space: ring buffers and perf event arrays, read by whoever runs the program.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use xway_maps::{Map, PerfReader, PerfRecord};
use xway_vm::Instance;

use crate::failure::Failure;

/// Room for events of one CPU, bytes.
const PERF_BYTES: usize = 1 << 20;
/// Records of one map that are kept; further ones are counted.
const KEPT_MAX: usize = 1000;
/// Bytes of one record that are kept.
const RECORD_MAX: usize = 4096;
/// Records that are read in one go.
const BATCH: usize = 4096;
/// How often a run's buffers are emptied.
const PERIOD: Duration = Duration::from_millis(10);

/// What came out of one map.
pub struct Delivered {
    /// Map.
    pub map: String,
    /// Records in all.
    pub total: u64,
    /// Events that found the buffer full (perf event arrays; a ring buffer tells the program instead).
    pub lost: u64,
    /// The first records.
    pub records: Vec<Vec<u8>>,
}

impl Delivered {
    /// For the document: the numbers, and the records as byte literals.
    pub fn json(&self) -> Value {
        let hex = |r: &Vec<u8>| format!("hex:{}", r.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "));
        json!({
            "map": self.map,
            "total": self.total,
            "lost": self.lost,
            "records": self.records.iter().map(hex).collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let lost = if self.lost > 0 { format!(", {} lost", self.lost) } else { String::new() };
        let mut out = format!("events of {}: {}{lost}\n", self.map, self.total);
        for record in &self.records {
            out.push_str(&format!("  {} bytes: {}\n", record.len(), hex_line(record)));
        }
        if self.total > self.records.len() as u64 {
            out.push_str(&format!("  ({} further ones)\n", self.total - self.records.len() as u64));
        }
        out
    }
}

fn hex_line(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

/// Reads the events of an instance.
pub struct Reader {
    sources: Vec<Source>,
}

struct Source {
    map: Arc<Map>,
    perf: Vec<PerfReader>,
    delivered: Delivered,
}

impl Reader {
    /// Opens readers on every map that delivers events. Before the first run, because programs get an error where nobody
    /// reads.
    pub fn open(instance: &Instance) -> Result<Reader, Failure> {
        let mut sources = Vec::new();
        for (def, map) in instance.object().maps.iter().zip(instance.maps()) {
            let perf = match map.perf() {
                Some(array) => array
                    .open_all(map.cpus(), PERF_BYTES)
                    .map_err(|e| Failure::needs(format!("map {}: no reader can be opened: {e}", def.name)))?,
                None if map.ringbuf().is_some() => Vec::new(),
                None => continue,
            };
            let delivered = Delivered { map: def.name.clone(), total: 0, lost: 0, records: Vec::new() };
            sources.push(Source { map: map.clone(), perf, delivered });
        }
        Ok(Reader { sources })
    }

    /// Takes out what waits.
    fn drain(&mut self) {
        for source in &mut self.sources {
            let Source { map, perf, delivered } = source;
            if let Some(ring) = map.ringbuf() {
                // Nobody else reads, so it is never busy.
                while ring.consume(BATCH, &mut |record| delivered.add(record)).is_ok_and(|n| n == BATCH) {}
            }
            for reader in perf {
                let mut visit = |record: PerfRecord<'_>| match record {
                    PerfRecord::Sample(bytes) => delivered.add(bytes),
                    PerfRecord::Lost(n) => delivered.lost += n,
                };
                while reader.read(BATCH, &mut visit) == BATCH {}
            }
        }
    }

    /// Everything that was delivered until now.
    pub fn finish(mut self) -> Vec<Delivered> {
        self.drain();
        self.sources.into_iter().map(|s| s.delivered).collect()
    }

    /// Reads on a thread of its own while a run goes on.
    pub fn in_background(mut self) -> Background {
        if self.sources.is_empty() {
            return Background(None);
        }
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                self.drain();
            }
            self.finish()
        });
        Background(Some((end, thread)))
    }
}

impl Delivered {
    fn add(&mut self, record: &[u8]) {
        self.total += 1;
        if self.records.len() < KEPT_MAX {
            self.records.push(record[..record.len().min(RECORD_MAX)].to_vec());
        }
    }
}

/// A reader at work.
pub struct Background(Option<(Sender<()>, JoinHandle<Vec<Delivered>>)>);

impl Background {
    /// Everything that was delivered.
    pub fn finish(self) -> Vec<Delivered> {
        let Some((end, thread)) = self.0 else { return Vec::new() };
        drop(end);
        thread.join().unwrap_or_default()
    }
}
