//! Events of the engine in this process, for any number of listeners, and captures.
//!
//! A [`Watch`] is made under whatever lock the hook is behind, and waited on without it.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use xway_engine::{
    Capture, CaptureAt, CaptureConfig, Captured, Linked, Listener, LoadedProgram, Told, VerdictSet, What,
};
use xway_object::{Object, Program as Image};
use xway_packet::Redirect;
use xway_verifier::Config;
use xway_vm::Instance;

use super::User;
use crate::{Blame, CapturePoint, CaptureRequest, CapturedPacket, CapturedPackets, HookError, HookEvent};

/// Events that wait for a listener at most; the oldest go first, and are counted.
const EVENTS_MAX: usize = 1024;
/// Packets that wait for a watcher at most, and those that one answer holds.
const PACKETS_MAX: u32 = 4096;
/// Bytes of packets in one answer.
const BYTES_MAX: usize = 4 << 20;

/// Events that wait to be asked for.
#[derive(Debug, Default)]
struct Feed {
    waiting: VecDeque<HookEvent>,
    lost: u64,
}

impl Feed {
    fn tell(&mut self, event: HookEvent) {
        if self.waiting.len() == EVENTS_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(event);
    }
}

/// What control did, told to everybody who watches.
#[derive(Debug, Default)]
pub(super) struct Events {
    feeds: Vec<Weak<Mutex<Feed>>>,
}

impl Events {
    pub fn tell(&mut self, kind: &'static str, port: &str, text: String) {
        let event = HookEvent::new(kind, Some(port.to_owned()), text);
        self.feeds.retain(|feed| feed.upgrade().map(|feed| feed.lock().tell(event.clone())).is_some());
    }

    fn subscribe(&mut self) -> Arc<Mutex<Feed>> {
        let feed = Arc::default();
        self.feeds.push(Arc::downgrade(&feed));
        feed
    }
}

/// Somebody who watches an engine. Dropping it ends that.
pub struct Watch {
    control: Arc<Mutex<Feed>>,
    /// From the engine's first port on.
    engine: Option<Listener>,
    /// Names of ports by their interface index; closed ones stay known.
    names: Vec<(u32, String)>,
}

impl Watch {
    pub(super) fn new(events: &mut Events) -> Watch {
        Watch { control: events.subscribe(), engine: None, names: Vec::new() }
    }

    /// Events since the last call, waiting for the first one at most this long.
    pub fn next(&mut self, wait: Duration) -> Vec<HookEvent> {
        let mut all: Vec<HookEvent> = Vec::new();
        let mut lost = 0;
        {
            let mut feed = self.control.lock();
            all.extend(feed.waiting.drain(..));
            lost += std::mem::take(&mut feed.lost);
        }
        let wait = if all.is_empty() { wait } else { Duration::ZERO };
        match &self.engine {
            Some(listener) => {
                let mut wait = wait;
                while all.len() < EVENTS_MAX
                    && let Some(told) = listener.next(wait)
                {
                    wait = Duration::ZERO;
                    all.extend(self.event(told));
                }
                lost += listener.lost();
            }
            None => std::thread::sleep(wait),
        }
        if lost > 0 {
            let text = format!("{lost} events were lost: this listener does not keep up");
            all.push(HookEvent { packets: lost, ..HookEvent::new("lost", None, text) });
        }
        all
    }

    fn name(&self, ifindex: u32) -> String {
        let known = self.names.iter().find(|(known, _)| *known == ifindex);
        known.map_or_else(|| format!("interface {ifindex}"), |(_, name)| name.clone())
    }

    /// What control did is told by control itself.
    fn event(&self, told: Told) -> Option<HookEvent> {
        let kind = told.what.name();
        let by = if told.program.is_empty() { "a program" } else { told.program.as_str() };
        let (mut ifindex, mut packets) = (told.ifindex, 1);
        let text = match told.what {
            What::Attached { .. } => return None,
            What::Exception { fault: Some(fault) } => format!("{by} was stopped: {fault}"),
            What::Exception { fault: None } => format!("{by} returned XDP_ABORTED"),
            What::InvalidAction { code } => format!("{by} returned {code}, which is no verdict"),
            What::RedirectError { errno, target } => {
                format!("{by} redirected to {}: {errno}", self.target(target))
            }
            What::TxError { errno, ifindex: port, count } => {
                (ifindex, packets) = (port, u64::from(count));
                format!("{count} packets could not be sent: {errno}")
            }
        };
        Some(HookEvent {
            program: (!told.program.is_empty()).then_some(told.program),
            queue: Some(told.queue),
            packets,
            suppressed: told.suppressed,
            ..HookEvent::new(kind, Some(self.name(ifindex)), text)
        })
    }

    fn target(&self, target: Redirect) -> String {
        match target {
            Redirect::None => "nowhere".into(),
            Redirect::Ifindex(ifindex) => self.name(ifindex),
            Redirect::Device { map_id, key, ifindex } => {
                format!("{} (map {map_id}, entry {key})", self.name(ifindex))
            }
            Redirect::Broadcast { map_id, .. } => format!("all of map {map_id}"),
            Redirect::Cpu { map_id, cpu } => format!("CPU {cpu} (map {map_id})"),
            Redirect::Socket { map_id, key } => format!("a socket (map {map_id}, entry {key})"),
        }
    }
}

/// A capture of packets of the engine in this process. Dropping it ends that.
pub struct Watched {
    capture: Capture,
    names: Vec<(u32, String)>,
    snaplen: usize,
}

impl Watched {
    /// Packets of an engine or a worker, whole; `names` of its ports by interface index.
    pub const fn new(capture: Capture, names: Vec<(u32, String)>) -> Watched {
        Watched { capture, names, snaplen: usize::MAX }
    }

    /// Packets since the last call, waiting for the first one at most this long.
    pub fn next(&mut self, wait: Duration) -> CapturedPackets {
        let (mut packets, mut bytes, mut wait) = (Vec::new(), 0, wait);
        while packets.len() < PACKETS_MAX as usize && bytes < BYTES_MAX {
            let Some(captured) = self.capture.next(wait) else { break };
            wait = Duration::ZERO;
            let packet = self.packet(&captured);
            bytes += packet.data.len();
            packets.push(packet);
        }
        CapturedPackets { packets, lost: self.capture.lost() }
    }

    fn packet(&self, captured: &Captured) -> CapturedPacket {
        let frame = &captured.frame;
        let (data, ifindex) = (frame.contents(), frame.ingress_ifindex());
        let known = self.names.iter().find(|(known, _)| *known == ifindex);
        CapturedPacket {
            time_ns: captured.time_ns,
            port: known.map_or_else(|| format!("interface {ifindex}"), |(_, name)| name.clone()),
            queue: frame.rx_queue(),
            packet_id: frame.packet_id(),
            verdict: captured.verdict.map(|verdict| verdict.map_or_else(|code| code, |v| v as u32)),
            program: captured.program.clone(),
            reason: reason(captured),
            data: data[..data.len().min(self.snaplen)].to_vec(),
            len: (data.len() as u32).saturating_add(frame.cut()),
        }
    }
}

/// Why a packet ends here, when it does.
pub fn reason(captured: &Captured) -> Option<String> {
    use xway_abi::Verdict;
    let by = if captured.program.is_empty() { "the program" } else { captured.program.as_str() };
    match captured.verdict? {
        Ok(Verdict::Drop) => Some(format!("dropped: {by} returned XDP_DROP")),
        Ok(Verdict::Aborted) => Some(match &captured.fault {
            Some(fault) => format!("dropped: {by} was stopped: {fault}"),
            None => format!("dropped: {by} returned XDP_ABORTED"),
        }),
        Err(code) => Some(format!("dropped: {by} returned {code}, which is no verdict")),
        Ok(_) => None,
    }
}

/// Makes a program of a filter: translated, verified, compiled like any other.
///
/// # Errors
/// The filter makes no sense, with the reason.
pub fn filter(classic: &[xway_filter::Classic]) -> Result<Arc<dyn LoadedProgram>, HookError> {
    let refused = |why: String| HookError {
        errno: Some(xway_abi::Errno::EINVAL),
        ..HookError::new(Blame::Request, format!("the filter: {why}"))
    };
    let insns = xway_filter::translate(classic).map_err(|e| refused(e.to_string()))?;
    let image = Image { name: "filter".into(), section: "xdp".into(), insns, ..Image::default() };
    let object = Object { programs: vec![image], ..Object::default() };
    let instance = Instance::verified(Arc::new(object), 1, Config::default()).map_err(|e| refused(e.to_string()))?;
    let program = instance.program(0).map_err(|e| refused(e.to_string()))?;
    Ok(Arc::new(Linked::new(program)))
}

impl User {
    /// Begins to watch: what happens from now on is told.
    pub fn watch(&mut self) -> Watch {
        let mut watch = Watch::new(&mut self.events);
        self.attend(&mut watch);
        watch
    }

    /// Tells a watch of ports, and of an engine, that came since. Cheap; to be called before each wait.
    pub fn attend(&self, watch: &mut Watch) {
        let Some(engine) = &self.engine else { return };
        if watch.engine.is_none() {
            watch.engine = Some(engine.listen(EVENTS_MAX));
        }
        for port in engine.ports() {
            watch.names.retain(|(known, _)| *known != port.ifindex);
            watch.names.push((port.ifindex, port.name));
        }
    }

    /// Begins to capture: what matches from now on is kept, as far as there is room.
    ///
    /// # Errors
    /// No such port; the filter makes no sense.
    pub fn start_capture(&mut self, request: &CaptureRequest) -> Result<Watched, HookError> {
        let port = request.port.as_deref().map(|name| self.port(name)).transpose()?;
        let no_port =
            || HookError::no_device("there is no port in this engine").hint("xway apply FILE.toml opens some");
        let engine = self.engine.as_ref().ok_or_else(no_port)?;
        let named = |text: &String| match text.parse::<u32>() {
            Ok(id) => {
                let known = self.handles.find_program(id).map(|p| p.program.name().to_owned());
                known.ok_or_else(|| HookError::no_object("program", id).hint("xway prog show --hook user"))
            }
            // One that is loaded later is captured, too.
            Err(_) => Ok(text.clone()),
        };
        let config = CaptureConfig {
            at: match request.at {
                CapturePoint::Entry => CaptureAt::Entry,
                CapturePoint::Exit => CaptureAt::Exit,
            },
            ifindex: port.map(|port| port.ifindex),
            queue: request.queue,
            verdicts: VerdictSet(request.verdicts.0),
            program: request.program.as_ref().map(named).transpose()?,
            filter: if request.filter.is_empty() { None } else { Some(filter(&request.filter)?) },
            every: request.every.max(1),
            room: request.room.clamp(1, PACKETS_MAX) as usize,
        };
        let names = engine.ports().into_iter().map(|port| (port.ifindex, port.name)).collect();
        let capture = engine.capture(config).map_err(|e| HookError::new(Blame::Machine, e))?;
        Ok(Watched { capture, names, snaplen: request.snaplen.max(1) as usize })
    }
}
