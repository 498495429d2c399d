//! What went wrong with packets: every counter of a loss, and the events that explain them.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use xway_abi::Errno;
use xway_engine::{End, Event, EventKind, PortErrorKind, Report, Subscriber, Tally};

/// Events of each kind that are looked at per second.
pub const EVENTS_PER_SECOND: u32 = 1000;
/// Different messages that are kept.
const MESSAGES_MAX: usize = 32;

/// Different events that were seen, each with its first packet.
#[derive(Default, Clone)]
pub struct Seen(Arc<Mutex<Vec<First>>>);

/// Events of one kind with one cause.
#[derive(Clone)]
struct First {
    kind: &'static str,
    /// What makes two events the same: for a fault the instruction, else the message.
    cause: String,
    /// The first event's words.
    message: String,
    /// The same for programs, where the event is a fault.
    fault: Option<Value>,
    /// The first event's packet.
    packet: u64,
    count: u64,
}

impl Seen {
    /// What the worker tells its events to.
    pub fn subscriber(&self) -> impl Subscriber + use<> {
        let seen = self.0.clone();
        move |event: &Event<'_>| {
            let mut frames = 1;
            let (kind, message) = match event.kind {
                EventKind::Exception { fault: Some(fault) } => ("fault", fault.to_string()),
                // Returned by the program itself: the counter says it.
                EventKind::Exception { fault: None } => return,
                EventKind::InvalidAction { code } => ("invalid_action", format!("the program returned {code}")),
                EventKind::RedirectError { errno, target } => {
                    ("redirect_error", format!("redirect to {target:?}: {errno} ({})", errno.text()))
                }
                EventKind::TxError { errno, ifindex, count } => {
                    frames = u64::from(count);
                    let why = if errno == Errno::ENOSPC { "the queue was full" } else { errno.text() };
                    ("tx_error", format!("TX on interface {ifindex}: {errno} ({why})"))
                }
            };
            let fault = match event.kind {
                EventKind::Exception { fault: Some(fault) } => fault.downcast_ref::<xway_vm::Fault>(),
                _ => None,
            };
            let cause = fault.map_or_else(|| message.clone(), |f| format!("{} {}", f.program, f.insn));
            let mut seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(first) = seen.iter_mut().find(|f| f.kind == kind && f.cause == cause) {
                first.count += frames;
            } else if seen.len() < MESSAGES_MAX {
                let fault = fault.map(crate::fault::json);
                seen.push(First { kind, cause, message, fault, packet: event.packet_id, count: frames });
            }
        }
    }

    fn of(&self, kind: &str) -> Vec<First> {
        let seen = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.iter().filter(|f| f.kind == kind).cloned().collect()
    }
}

/// One kind of trouble.
pub struct Error {
    /// `fault`, `invalid_action`, `redirect_error`, `tx_error`, `lost`, `input`, `output`, `leak`.
    kind: &'static str,
    /// Packets concerned.
    count: u64,
    /// What happened.
    message: String,
    /// The fault's parts.
    fault: Option<Value>,
    /// First packet that it was seen on.
    packet: Option<u64>,
}

impl Error {
    /// The command's last message says it already.
    pub fn ends_the_run(&self) -> bool {
        matches!(self.kind, "input" | "output")
    }

    /// For standard error.
    pub fn text(&self) -> String {
        let packets = match self.count {
            0 => String::new(),
            1 => "1 packet: ".into(),
            n => format!("{} packets: ", crate::print::grouped(n)),
        };
        let packet = match self.packet.filter(|p| *p > 0) {
            None => String::new(),
            Some(p) if self.message.contains('\n') => format!("\n  first at packet {p}"),
            Some(p) => format!(" (first at packet {p})"),
        };
        format!("{packets}{}{packet}", self.message)
    }

    /// For the document.
    pub fn json(&self) -> Value {
        let mut out = json!({ "kind": self.kind, "count": self.count, "message": self.message, "packet": self.packet });
        if let Some(fault) = &self.fault {
            out["fault"] = fault.clone();
        }
        out
    }
}

/// Everything that went wrong in a run. Nothing is lost that is not in here.
pub fn errors(report: &Report, seen: &Seen) -> Vec<Error> {
    let c = &report.counters;
    let mut out = Vec::new();
    let events = |out: &mut Vec<Error>, kind: &'static str, total: u64, otherwise: &str| {
        if total == 0 {
            return;
        }
        let heard = seen.of(kind);
        let told: u64 = heard.iter().map(|f| f.count).sum();
        out.extend(heard.into_iter().map(|f| Error {
            kind,
            count: f.count,
            message: f.message,
            fault: f.fault,
            packet: Some(f.packet),
        }));
        // Events come at a bounded rate; the counter knows them all.
        if total > told {
            let message =
                if told > 0 { format!("{otherwise} (not looked at one by one)") } else { otherwise.to_owned() };
            out.push(Error { kind, count: total - told, message, fault: None, packet: None });
        }
    };
    events(&mut out, "fault", c.exceptions, "the program was stopped");
    events(&mut out, "invalid_action", c.invalid, "the program returned a value that is no verdict");
    events(&mut out, "redirect_error", c.redirect_err.total(), "redirect failed");
    events(&mut out, "tx_error", c.tx_full + c.tx_err.total(), "TX, but not sent");
    let mut lost = |count: u64, message: String| {
        if count > 0 {
            out.push(Error { kind: "lost", count, message, fault: None, packet: None });
        }
    };
    let reasons = |tally: &Tally<Errno>| {
        let list: Vec<String> = tally.entries().iter().map(|(errno, n)| format!("{errno} {n}")).collect();
        list.join(", ")
    };
    lost(c.pass_lost.total(), format!("PASS, but not delivered: {}", reasons(&c.pass_lost)));
    lost(c.copies_lost.total(), format!("copies of a broadcast not sent: {}", reasons(&c.copies_lost)));
    lost(c.socket_lost.total(), format!("from sockets, but not sent: {}", reasons(&c.socket_lost)));
    for (name, stats) in &report.ports {
        lost(stats.dropped, format!("{name}: lost before they were read; the input was faster than the program"));
        lost(stats.oversize, format!("{name}: not received, because they are longer than a frame"));
        lost(stats.truncated, format!("{name}: received cut, the frame holds less than the wire had"));
        for (what, count) in &stats.other {
            lost(*count, format!("{name}: {what}"));
        }
    }
    let ended = match &report.end {
        End::Failed(error) => Some(error),
        _ => None,
    };
    for error in ended.into_iter().chain(&report.record_error) {
        let kind = if error.kind == PortErrorKind::Output { "output" } else { "input" };
        let message = crate::ports::message(error);
        // What cannot be written ends the run, and is the capture's error too.
        if !out.iter().any(|told: &Error| told.kind == kind && told.message == message) {
            out.push(Error { kind, count: 0, message, fault: None, packet: None });
        }
    }
    if let Err((received, ended)) = c.balance() {
        let message =
            format!("{received} packets received, but {ended} accounted for: a bug of xway, please report it");
        out.push(Error { kind: "leak", count: received.abs_diff(ended), message, fault: None, packet: None });
    }
    if let Some(leak) = &report.leak {
        out.push(Error { kind: "leak", count: 0, message: leak.to_string(), fault: None, packet: None });
    }
    out
}

/// Every counter of a loss by name, also those that are zero.
pub fn counters_json(report: &Report) -> Value {
    let c = &report.counters;
    let tally = |t: &Tally<Errno>| {
        let mut table: serde_json::Map<String, Value> =
            t.entries().iter().map(|(errno, n)| (errno.to_string(), json!(n))).collect();
        if t.others() > 0 {
            table.insert("other".into(), json!(t.others()));
        }
        Value::Object(table)
    };
    let codes: serde_json::Map<String, Value> =
        c.invalid_codes.entries().iter().map(|(code, n)| (code.to_string(), json!(n))).collect();
    let ports: Vec<Value> = report
        .ports
        .iter()
        .map(|(name, s)| {
            let other: serde_json::Map<String, Value> = s.other.iter().map(|(k, n)| ((*k).into(), json!(n))).collect();
            json!({
                "port": name, "rx": s.rx, "rx_bytes": s.rx_bytes, "tx": s.tx, "tx_bytes": s.tx_bytes,
                "dropped": s.dropped, "truncated": s.truncated, "oversize": s.oversize, "no_frame": s.no_frame,
                "other": other,
            })
        })
        .collect();
    json!({
        "faults": c.exceptions,
        "invalid_codes": codes,
        "pass_lost": tally(&c.pass_lost),
        "tx_full": c.tx_full,
        "tx_err": tally(&c.tx_err),
        "redirect_err": tally(&c.redirect_err),
        "copies_lost": tally(&c.copies_lost),
        "socket_lost": tally(&c.socket_lost),
        "ports": ports,
    })
}
