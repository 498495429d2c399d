//! `xway map event_pipe`: what programs write for user space, as it comes.

use serde_json::{Value, json};
use xway_abi::MapType;
use xway_control::Service;
use xway_control::message::Records;
use xway_hook::{HookKind, MapId};
use xway_kernel::{KernelMap, KernelPerf, KernelRing};
use xway_packet_text::hex_rows;

use super::entries::{self, Typed};
use super::watch::Watch;
use super::{failure, map};
use crate::args_kernel::HookRest;
use crate::commands::service;
use crate::failure::Failure;
use crate::print;

/// Runs the command. What came together is printed at once: as JSON a document on a line, one also when nothing came at all.
pub fn run(words: &HookRest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = map::typed(words)?;
    let mut watch = Watch::parse(&rest)?;
    let mut source = match typed.hook.kind() {
        HookKind::Kernel => Source::open(&typed)?,
        _ => Source::of_service(service::connect(&words.place.socket)?, typed.info.id)?,
    };
    let (mut told, mut lost) = (false, 0);
    while let Some(time) = watch.next() {
        if !source.wait(&typed, time)? {
            continue;
        }
        let mut events = Vec::new();
        let missing = source.drain(&mut |cpu, data| {
            if !watch.take() {
                return;
            }
            match as_json {
                true => events.push(json!({ "cpu": cpu, "size": data.len(), "data": spaced(data) })),
                false => print::text(&text(cpu, data)),
            }
        });
        lost += missing;
        if as_json && (!events.is_empty() || missing > 0) {
            line(&typed, &events, missing);
            told = true;
        }
    }
    if as_json && !told {
        line(&typed, &[], 0);
    } else if !as_json && lost > 0 {
        print::text(&format!("{lost} events found no room and are lost\n"));
    }
    Ok(())
}

fn line(typed: &Typed, events: &[Value], lost: u64) {
    let doc = json!({ "id": typed.info.id.0, "events": events, "lost": lost });
    print::text(&format!("{}\n", print::document("map event_pipe", doc)));
}

enum Source {
    Perf(KernelPerf),
    Ring(KernelMap, KernelRing),
    /// A map of the service, and what came while it was waited for.
    Service(Box<Service>, MapId, Records),
}

impl Source {
    fn open(typed: &Typed) -> Result<Source, Failure> {
        let refused = |e| entries::refused(&format!("{}: opening its rings", typed.name()), e);
        let map = KernelMap::by_id(typed.info.id.0).map_err(super::refused)?;
        match typed.info.map_type {
            MapType::PerfEventArray => KernelPerf::open(&map).map(Source::Perf).map_err(refused),
            MapType::Ringbuf => {
                let ring = KernelRing::open(&map).map_err(refused)?;
                Ok(Source::Ring(map, ring))
            }
            other => Err(Failure::usage(format!(
                "{}: events are not read from a map of type {}",
                typed.name(),
                other.name()
            ))
            .hint("a perf_event_array or a ringbuf")),
        }
    }

    /// The first question opens its rings.
    fn of_service(mut service: Service, id: MapId) -> Result<Source, Failure> {
        let first = service.map_events(id, std::time::Duration::ZERO).map_err(failure)?;
        Ok(Source::Service(Box::new(service), id, first))
    }

    fn wait(&mut self, typed: &Typed, time: std::time::Duration) -> Result<bool, Failure> {
        let ready = match self {
            Source::Perf(perf) => perf.wait(time),
            Source::Ring(map, _) => KernelRing::wait(map, time),
            Source::Service(service, id, came) => {
                if came.records.is_empty() {
                    *came = service.map_events(*id, time).map_err(failure)?;
                }
                return Ok(!came.records.is_empty() || came.lost > 0);
            }
        };
        ready.map_err(|e| entries::refused(&format!("{}: waiting for events", typed.name()), e))
    }

    /// Gives the number of events that were lost.
    fn drain(&mut self, visit: &mut dyn FnMut(Option<u32>, &[u8])) -> u64 {
        match self {
            Source::Perf(perf) => perf.drain(&mut |event| visit(Some(event.cpu), &event.data)),
            Source::Service(_, _, came) => {
                let came = std::mem::take(came);
                came.records.iter().for_each(|(cpu, record)| visit(*cpu, &record.0));
                came.lost
            }
            Source::Ring(_, ring) => {
                ring.drain(&mut |record| visit(None, record));
                0
            }
        }
    }
}

fn spaced(data: &[u8]) -> Value {
    json!(data.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "))
}

fn text(cpu: Option<u32>, data: &[u8]) -> String {
    let place = cpu.map_or_else(String::new, |cpu| format!(" from CPU {cpu}"));
    format!("event of {} bytes{place}:\n{}", data.len(), hex_rows(data))
}
