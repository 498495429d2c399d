//! `xway map event_pipe`: what programs write for user space, as it comes.

use serde_json::{Value, json};
use xway_abi::MapType;
use xway_kernel::{KernelPerf, KernelRing};
use xway_packet_text::hex_rows;

use super::entries::Typed;
use super::map;
use super::watch::Watch;
use crate::args_kernel::Rest;
use crate::failure::Failure;
use crate::print;

/// Runs the command. As text each event is printed when it comes, as JSON all of them at the end.
pub fn run(rest: &Rest, as_json: bool) -> Result<(), Failure> {
    let (typed, rest) = map::typed(rest)?;
    let mut watch = Watch::parse(&rest)?;
    let mut source = Source::open(&typed)?;
    let (mut events, mut lost) = (Vec::new(), 0);
    while let Some(time) = watch.next() {
        if !source.wait(&typed, time)? {
            continue;
        }
        lost += source.drain(&mut |cpu, data| {
            if !watch.take() {
                return;
            }
            match as_json {
                true => events.push(json!({ "cpu": cpu, "size": data.len(), "data": spaced(data) })),
                false => print::text(&text(cpu, data)),
            }
        });
    }
    if as_json {
        let doc = json!({ "id": typed.info.id, "events": events, "lost": lost });
        print::json(&print::document("map event_pipe", doc));
    } else if lost > 0 {
        print::text(&format!("{lost} events found no room and are lost\n"));
    }
    Ok(())
}

enum Source {
    Perf(KernelPerf),
    Ring(KernelRing),
}

impl Source {
    fn open(typed: &Typed) -> Result<Source, Failure> {
        let refused = |e| typed.refused("opening its rings", e);
        match typed.map.spec().map_type {
            MapType::PerfEventArray => KernelPerf::open(&typed.map).map(Source::Perf).map_err(refused),
            MapType::Ringbuf => KernelRing::open(&typed.map).map(Source::Ring).map_err(refused),
            other => Err(Failure::usage(format!(
                "{}: events are not read from a map of type {}",
                typed.name(),
                other.name()
            ))
            .hint("a perf_event_array or a ringbuf")),
        }
    }

    fn wait(&self, typed: &Typed, time: std::time::Duration) -> Result<bool, Failure> {
        let ready = match self {
            Source::Perf(perf) => perf.wait(time),
            Source::Ring(_) => KernelRing::wait(&typed.map, time),
        };
        ready.map_err(|e| typed.refused("waiting for events", e))
    }

    /// Gives the number of events that were lost.
    fn drain(&mut self, visit: &mut dyn FnMut(Option<u32>, &[u8])) -> u64 {
        match self {
            Source::Perf(perf) => perf.drain(&mut |event| visit(Some(event.cpu), &event.data)),
            Source::Ring(ring) => {
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
