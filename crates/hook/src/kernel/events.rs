//! What Linux tells of XDP: its tracepoints, in the words of the trait.
//!
//! Only what goes wrong is listened to. Nobody waits for us: the kernel writes into rings of fixed size, counts what finds no
//! room, and this end takes a bounded number of events at a time.

use std::collections::HashMap;
use std::time::Duration;

use xway_abi::{Errno, Verdict};
use xway_kernel::{KernelTrace, TraceError, TraceEvent, devices};

use crate::{Blame, HookError, HookEvent};

/// Tracepoints that tell of packets that were lost.
const TRACEPOINTS: [&str; 5] =
    ["xdp_exception", "xdp_redirect_err", "xdp_devmap_xmit", "xdp_cpumap_enqueue", "xdp_bulk_tx"];
/// Events that one call gives at most; further ones are counted as lost.
const EVENTS_MAX: usize = 1024;

/// Tracepoints that are listened to.
#[derive(Debug)]
pub(super) struct Events {
    trace: KernelTrace,
    /// Names of interfaces, as they were when they were first met.
    names: HashMap<u32, String>,
}

impl Events {
    pub fn open() -> Result<Events, HookError> {
        let trace = KernelTrace::open("xdp", &TRACEPOINTS).map_err(refused)?;
        Ok(Events { trace, names: HashMap::new() })
    }

    pub fn next(&mut self, wait: Duration) -> Result<Vec<HookEvent>, HookError> {
        let failed = |errno| HookError::errno("waiting for tracepoints", errno);
        self.trace.wait(wait).map_err(failed)?;
        let (mut all, names, mut lost) = (Vec::new(), &mut self.names, 0);
        lost += self.trace.drain(&mut |event| {
            if let Some(told) = told(&event, &mut |ifindex| name(names, ifindex)) {
                if all.len() < EVENTS_MAX { all.push(told) } else { lost += 1 }
            }
        });
        if lost > 0 {
            let text = format!("{lost} events were lost: this listener does not keep up");
            all.push(HookEvent { packets: lost, ..HookEvent::new("lost", None, text) });
        }
        Ok(all)
    }
}

fn refused(error: TraceError) -> HookError {
    let (errno, hint) = match &error {
        TraceError::Tracefs { cause, .. } => {
            (cause.raw_os_error().map(Errno), "as root: mount -t tracefs nodev /sys/kernel/tracing")
        }
        TraceError::Refused { errno, .. } => (Some(*errno), "as root, or with CAP_PERFMON"),
        TraceError::Unknown(_) | TraceError::Format(_) => (Some(Errno::EOPNOTSUPP), "a kernel from 5.6 on has it"),
    };
    HookError { errno, ..HookError::new(Blame::Machine, error) }.hint(hint)
}

fn name(names: &mut HashMap<u32, String>, ifindex: u32) -> String {
    let found = || devices().unwrap_or_default().into_iter().find(|d| d.ifindex == ifindex).map(|d| d.name);
    let name = names.entry(ifindex).or_insert_with(|| found().unwrap_or_else(|| format!("interface {ifindex}")));
    name.clone()
}

/// An event in words; `None` for one that tells of success.
fn told(event: &TraceEvent, name: &mut dyn FnMut(u32) -> String) -> Option<HookEvent> {
    let number = |field: &str| event.get(field).unwrap_or(0);
    let ifindex = |field: &str| number(field).clamp(0, i64::from(u32::MAX)) as u32;
    let program = format!("program {}", number("prog_id"));
    let errno = Errno(number("err").unsigned_abs().min(4095) as i32);
    let new = |kind, port, text, packets: i64| HookEvent {
        queue: Some(event.cpu),
        packets: packets.max(0) as u64,
        ..HookEvent::new(kind, port, text)
    };
    Some(match &*event.name {
        "xdp_exception" => {
            let act = number("act") as u64;
            let (kind, text) = match Verdict::from_ret(act) {
                Some(Verdict::Aborted) => ("exception", format!("{program} returned XDP_ABORTED")),
                Some(verdict) => ("tx_error", format!("{program}: XDP_{} could not be carried out", verdict.name())),
                None => ("invalid_action", format!("{program} returned {act}, which is no verdict")),
            };
            let port = Some(name(ifindex("ifindex")));
            HookEvent { program: Some(program), ..new(kind, port, text, 1) }
        }
        "xdp_redirect_err" => {
            let to = match (number("map_id"), ifindex("to_ifindex")) {
                (0, to) => name(to),
                (map, _) => format!("map {map}, entry {}", number("map_index")),
            };
            let (port, text) = (name(ifindex("ifindex")), format!("{program} redirected to {to}: {errno}"));
            HookEvent { program: Some(program), ..new("redirect_error", Some(port), text, 1) }
        }
        "xdp_devmap_xmit" if number("drops") > 0 => {
            let (to, drops) = (name(ifindex("to_ifindex")), number("drops"));
            let text = format!("{drops} redirected packets could not be sent on {to}: {}", why(errno));
            new("redirect_error", Some(name(ifindex("from_ifindex"))), text, drops)
        }
        "xdp_cpumap_enqueue" if number("drops") > 0 => {
            let (cpu, drops) = (number("to_cpu"), number("drops"));
            let text = format!("{drops} packets found the queue to CPU {cpu} full (map {})", number("map_id"));
            new("redirect_error", None, text, drops)
        }
        "xdp_bulk_tx" if number("drops") > 0 => {
            let drops = number("drops");
            let text = format!("{drops} packets could not be sent back: {}", why(errno));
            new("tx_error", Some(name(ifindex("ifindex"))), text, drops)
        }
        _ => return None,
    })
}

/// A full queue has no errno there.
fn why(errno: Errno) -> String {
    if errno.0 == 0 { "the queue was full".to_owned() } else { errno.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, fields: &[(&str, i64)]) -> TraceEvent {
        TraceEvent { cpu: 1, name: name.into(), fields: fields.iter().map(|(n, v)| ((*n).into(), *v)).collect() }
    }

    fn text(name: &str, fields: &[(&str, i64)]) -> Option<(&'static str, String, u64)> {
        let told = told(&event(name, fields), &mut |ifindex| format!("eth{ifindex}"))?;
        Some((told.kind, told.text, told.packets))
    }

    #[test]
    fn tracepoints_are_told_in_words() {
        let aborted = text("xdp_exception", &[("prog_id", 7), ("act", 0), ("ifindex", 2)]);
        assert_eq!(aborted, Some(("exception", "program 7 returned XDP_ABORTED".into(), 1)));
        let unknown = text("xdp_exception", &[("prog_id", 7), ("act", 99), ("ifindex", 2)]);
        assert_eq!(unknown, Some(("invalid_action", "program 7 returned 99, which is no verdict".into(), 1)));
        let fields = [("prog_id", 7), ("ifindex", 2), ("err", -100), ("to_ifindex", 3), ("map_id", 0)];
        let told = text("xdp_redirect_err", &fields).unwrap();
        assert_eq!((told.0, told.1.as_str()), ("redirect_error", "program 7 redirected to eth3: ENETDOWN"));
        let fields = [("from_ifindex", 2), ("to_ifindex", 3), ("drops", 5), ("sent", 1), ("err", 0)];
        let told = text("xdp_devmap_xmit", &fields).unwrap();
        assert_eq!(
            (told.1.as_str(), told.2),
            ("5 redirected packets could not be sent on eth3: the queue was full", 5)
        );
        assert_eq!(text("xdp_devmap_xmit", &[("drops", 0), ("sent", 9)]), None, "success is no event");
        assert_eq!(text("xdp_cpumap_enqueue", &[("drops", 2), ("to_cpu", 1), ("map_id", 4)]).unwrap().2, 2);
        assert_eq!(text("xdp_bulk_tx", &[("drops", 3), ("ifindex", 2), ("err", -6)]).unwrap().0, "tx_error");
        assert_eq!(text("something_new", &[]), None);
    }
}
