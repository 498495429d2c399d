//! `xway dump`: packets of a port, with what became of them.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use xway_abi::Verdict;
use xway_hook::{CaptureRequest, CapturedPacket, CapturedPackets, Hook, Verdicts};
use xway_port_pcap::{CaptureError, CaptureWriter, Written};

use super::in_front::InFront;
use super::{Until, clock, filter, service_first};
use crate::args_kernel;
use crate::args_watch::{At, Dump};
use crate::commands::kernel::attach::Place;
use crate::commands::kernel::failure;
use crate::failure::Failure;
use crate::{capture, print};

/// Longest wait of one question.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the command.
pub fn run(args: &Dump, as_json: bool) -> Result<(), Failure> {
    let kernel = args.place.hook.filter(|place| *place != args_kernel::Place::User);
    let default = if kernel.is_some() { At::Entry } else { At::Exit };
    let request = CaptureRequest {
        port: Some(args.port.clone()),
        queue: args.queue,
        at: args.at.unwrap_or(default).into(),
        verdicts: args.verdict.unwrap_or(Verdicts(u32::MAX)),
        program: args.prog.clone(),
        filter: filter(&args.filter)?,
        every: args.sample,
        snaplen: args.snaplen,
        ..CaptureRequest::default()
    };
    let until = Until::new(args.timeout)?;
    let mut source = match kernel {
        Some(place) => Source::Kernel(Box::new(InFront::open(args, place, &request)?)),
        None => {
            let mut hook = Place::of(&service_first(&args.place)).map_err(|e| beside(e, args))?.boxed();
            hook.capture(&request).map_err(failure)?;
            Source::Engine(hook)
        }
    };
    let mut file = args.write.as_deref().map(File::create).transpose()?;
    let outcome = follow(&mut source, args.count, &until, |packet| match &mut file {
        Some(file) => file.write(packet),
        None => {
            match as_json {
                true => print::text(&format!("{}\n", print::document("dump", json(packet)))),
                false => print::text(&line(packet)),
            }
            Ok(())
        }
    });
    // What was captured before a failure is worth keeping.
    let finished = file.map_or(Ok(()), File::finish);
    let (seen, lost) = outcome?;
    finished?;
    let doc = json!({ "packets": seen, "lost": lost });
    match as_json && args.write.as_deref() != Some(Path::new("-")) {
        true => print::text(&format!("{}\n", print::document("dump", doc))),
        false => eprintln!("{seen} packets captured, {lost} lost because they found no room"),
    }
    Ok(())
}

/// Nobody has asked for the service by name: an interface can be watched without it.
fn beside(failure: Failure, args: &Dump) -> Failure {
    if args.place.hook.is_some() || args.port.contains(':') {
        return failure;
    }
    let hint = failure.hint.clone().unwrap_or_default();
    failure.hint(format!("xway dump {} --hook native for packets of Linux's hook; {hint}", args.port))
}

/// Where packets come from.
enum Source {
    /// The engine in the service.
    Engine(Box<dyn Hook>),
    /// Linux's hook.
    Kernel(Box<InFront>),
}

impl Source {
    fn captured(&mut self, wait: Duration) -> Result<CapturedPackets, Failure> {
        match self {
            Source::Engine(hook) => hook.captured(wait).map_err(failure),
            Source::Kernel(capture) => capture.captured(wait),
        }
    }
}

/// Fetches packets until the end; how many, and how many were lost.
fn follow(
    source: &mut Source,
    count: Option<u64>,
    until: &Until,
    mut each: impl FnMut(&CapturedPacket) -> Result<(), Failure>,
) -> Result<(u64, u64), Failure> {
    let (mut seen, mut lost) = (0, 0);
    while let Some(wait) = until.left(LOOK).filter(|_| count != Some(seen)) {
        let found = source.captured(wait)?;
        lost += found.lost;
        let left = count.map_or(u64::MAX, |count| count - seen);
        for packet in found.packets.iter().take(left.min(usize::MAX as u64) as usize) {
            each(packet)?;
            seen += 1;
        }
    }
    Ok((seen, lost))
}

/// A capture file, or a pipe that somebody reads at once.
pub struct File {
    writer: CaptureWriter,
    /// Ports in the order of their interfaces in the file.
    ports: Vec<String>,
    pipe: bool,
}

fn unwritten(error: CaptureError) -> Failure {
    capture::failure(&error)
}

impl File {
    /// Begins a file, or standard output for `-`.
    pub fn create(path: &Path) -> Result<File, Failure> {
        let pipe = path == Path::new("-");
        let writer = match pipe {
            true => CaptureWriter::stream(Box::new(std::io::stdout()), "standard output", &[]),
            false => CaptureWriter::create(path, &[]),
        };
        Ok(File { writer: writer.map_err(unwritten)?, ports: Vec::new(), pipe })
    }

    /// Appends a packet.
    pub fn write(&mut self, packet: &CapturedPacket) -> Result<(), Failure> {
        let interface = match self.ports.iter().position(|port| *port == packet.port) {
            Some(at) => at as u32,
            None => {
                self.ports.push(packet.port.clone());
                self.writer.add_interface(&packet.port).map_err(unwritten)?
            }
        };
        let by = (!packet.program.is_empty()).then(|| format!("by {}", packet.program));
        let comment = packet.reason.clone().or(by);
        let written = Written {
            timestamp_ns: packet.time_ns,
            data: &packet.data,
            original_len: packet.len,
            interface,
            queue: packet.queue,
            packet_id: packet.packet_id,
            verdict: packet.verdict,
            comment: comment.as_deref(),
            inbound: true,
        };
        self.writer.write(&written).map_err(unwritten)?;
        if self.pipe { self.writer.flush().map_err(unwritten) } else { Ok(()) }
    }

    /// Completes it.
    pub fn finish(self) -> Result<(), Failure> {
        self.writer.finish().map_err(unwritten)
    }
}

fn verdict(code: u32) -> String {
    Verdict::from_ret(code.into()).map_or_else(|| format!("INVALID({code})"), |verdict| verdict.name().to_owned())
}

fn line(packet: &CapturedPacket) -> String {
    let mut out = format!("{} {} q{} ", clock(packet.time_ns), packet.port, packet.queue);
    if let Some(code) = packet.verdict {
        out += &format!("{} ", verdict(code));
    }
    out += &format!("{} bytes, {}", packet.len, xway_packet_text::summary(&packet.data));
    match &packet.reason {
        Some(reason) => out += &format!(" ({reason})"),
        None if !packet.program.is_empty() => out += &format!(" (by {})", packet.program),
        None => {}
    }
    out + "\n"
}

fn json(packet: &CapturedPacket) -> Value {
    json!({
        "time_ns": packet.time_ns,
        "port": packet.port,
        "queue": packet.queue,
        "packet_id": packet.packet_id,
        "verdict": packet.verdict.map(verdict),
        "code": packet.verdict,
        "program": packet.program,
        "reason": packet.reason,
        "length": packet.len,
        "data": BASE64.encode(&packet.data),
        "summary": xway_packet_text::summary(&packet.data),
    })
}
