//! What programs write for user space, read by the connection that asks for it.
//!
//! A reader of a perf event array is opened with the first request about it, because programs get an error where nobody reads, and goes
//! with the connection. A ring buffer has one reader at a time, whoever asks.

use std::collections::HashMap;
use std::sync::Arc;

use xway_abi::Errno;
use xway_hook::{HookError, MapId};
use xway_maps::{Map, PerfReader, PerfRecord};

use crate::message::{Bytes, Records};

/// Room for events of one CPU, bytes.
const PERF_BYTES: usize = 1 << 20;
/// Records of one answer.
const RECORDS_MAX: usize = 1024;

/// Readers of one connection.
#[derive(Default)]
pub(crate) struct Rings(HashMap<u32, Ring>);

struct Ring {
    map: Arc<Map>,
    perf: Vec<PerfReader>,
}

impl Rings {
    /// Whether events of this map are read already.
    pub fn has(&self, id: u32) -> bool {
        self.0.contains_key(&id)
    }

    /// Begins to read a map's events.
    pub fn open(&mut self, id: u32, map: Arc<Map>) -> Result<(), HookError> {
        let perf = match map.perf() {
            Some(array) => array
                .open_all(map.cpus(), PERF_BYTES)
                .map_err(|e| HookError::errno(format!("{}: opening its rings", MapId(id)), e))?,
            None if map.ringbuf().is_some() => Vec::new(),
            None => {
                let message =
                    format!("{}: events are not read from a map of type {}", MapId(id), map.map_type().name());
                return Err(HookError { errno: Some(Errno::EINVAL), ..HookError::unsupported(message) }
                    .hint("a perf_event_array or a ringbuf"));
            }
        };
        self.0.insert(id, Ring { map, perf });
        Ok(())
    }

    /// Takes out what waits, up to a bound; more is there for the next request.
    pub fn drain(&mut self, id: u32) -> Result<Records, HookError> {
        let mut out = Records::default();
        let Some(Ring { map, perf }) = self.0.get_mut(&id) else { return Ok(out) };
        if let Some(ring) = map.ringbuf() {
            let read = ring.consume(RECORDS_MAX, &mut |record| out.records.push((None, Bytes(record.to_vec()))));
            read.map_err(|e| HookError::errno(format!("{}: reading its ring", MapId(id)), e))?;
        }
        for (cpu, reader) in (0u32..).zip(perf) {
            let room = RECORDS_MAX.saturating_sub(out.records.len());
            reader.read(room, &mut |record| match record {
                PerfRecord::Sample(bytes) => out.records.push((Some(cpu), Bytes(bytes.to_vec()))),
                PerfRecord::Lost(n) => out.lost += n,
            });
        }
        Ok(out)
    }
}
