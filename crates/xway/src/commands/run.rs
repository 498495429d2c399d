//! `xway run`: a program over the packets of a port, and what came of them.

use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use xway_abi::MapType;
use xway_door::{Access, Group};
use xway_engine::{
    CaptureConfig, Desk, End, Limits, Needs, Port, PortError, PortErrorKind, Report, Stop, TxPolicy, VerdictSet,
    Worker, WorkerConfig,
};
use xway_hook::user;
use xway_xsk::{Policy, Server, WorkerQueues};

use super::watch::beside::{Beside, Written};
use super::watch::top;
use super::{kernel, watch};
use crate::args;
use crate::args_watch;
use crate::events::{self, Delivered};
use crate::failure::Failure;
use crate::losses::{self, Seen};
use crate::port_wraps::Wrap;
use crate::ports::{self, PassName, PortName};
use crate::print::{self, grouped, scaled, table};
use crate::session::Session;
use crate::{contents, interrupt, progress};

/// Runs the command.
pub fn run(args: &args::Run, as_json: bool) -> Result<(), Failure> {
    let name = PortName::parse(&args.input)?;
    if let Some(output) = &args.output {
        not_over_itself(&name, output)?;
    }
    let session = Session::open(&args.select, &args.environment, true)?;
    let executor = session.executor();
    let pass = args.pass.as_deref().map(PassName::parse).transpose()?;
    let wraps = args.wrap.iter().map(|text| Wrap::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let ports::Opened { ports, inputs, pool, mut notes } = ports::open(&name, pass.as_ref(), args.memory())?;
    let (input, rest): (Vec<_>, Vec<_>) = ports.into_iter().enumerate().partition(|(at, _)| *at < inputs);
    let wrapped = input.into_iter().map(|(_, port)| wraps.iter().try_fold(port, |port, wrap| wrap.around(port)));
    let mut ports: Vec<Box<dyn Port>> = wrapped.collect::<Result<_, _>>()?;
    ports.extend(rest.into_iter().map(|(_, port)| port));
    let needs = Needs::of_program(&session.program);
    if let Some(how) = needs.writes.filter(|_| args.read_only) {
        let message = format!("packets are read-only, and program {} needs {how}", session.image.name);
        return Err(Failure::no(message).hint("a program that only reads, or no --read-only"));
    }
    for port in &ports[..inputs] {
        let lacking = needs.lacking(&port.capabilities());
        if !lacking.is_empty() {
            let (port, program, lacking) = (port.name(), &session.image.name, lacking.join(", "));
            let message =
                format!("{port}: packets of several buffers come in there, and program {program} lacks {lacking}");
            return Err(Failure::no(message).hint("SEC(\"xdp.frags\") in the source, or no frags=yes at the port"));
        }
    }
    let served = args.xsk.as_deref().map(|path| serve(path, args, &*ports[0], inputs, &session)).transpose()?;
    if let Some((server, _)) = &served {
        notes.push(format!("{name}: AF_XDP-style sockets at {}", server.path().display()));
    }
    notes.iter().for_each(|note| print::note(note));
    let stop = Stop::new().map_err(|e| Failure::needs(format!("no file descriptor left: {e}")))?;
    interrupt::catch(&stop)?;

    let seen = Seen::default();
    let mut config = WorkerConfig::new(stop);
    config.limits = Limits { count: args.count, timeout: args.timeout };
    config.maps = session.instance.maps().to_vec();
    config.burst = args.burst.unwrap_or(args.memory().profile.burst());
    config.tx = TxPolicy { batch_frames: args.tx_batch, bytes_max: args.tx_limit };
    config.subscriber = Some(Box::new(seen.subscriber()));
    config.events_per_second = losses::EVENTS_PER_SECOND;
    if let Some(path) = &args.output {
        config.recorder = Some(ports::recorder(path, ports[0].name())?);
    }
    config.inputs = (0..inputs).map(|port| (port, port as u32)).collect();
    config.desk = served.as_ref().map(|(_, desk)| desk.clone());
    if ports.len() > inputs {
        config.pass_to = (0..inputs).map(|port| (port, inputs)).collect();
    }
    if matches!(name, PortName::Capture(_) | PortName::Played(_) | PortName::Sim(_)) {
        // There are no other interfaces in a capture or in memory: what is redirected leaves, wherever to.
        config.redirect_fallback = Some(0);
    }
    let (profile, live, memory) = (args.memory().profile.name(), config.live.clone(), pool.memory());
    let memory = json!({
        "profile": profile,
        "burst": config.burst,
        "chunks": pool.config().frames,
        "chunk_bytes": pool.config().chunk_size,
        "packet_bytes": pool.capacity(),
        "bytes": memory.bytes,
        "pages_requested": memory.requested.name(),
        "pages_effective": memory.effective.name(),
        "pages_reason": memory.reason,
        "node": memory.placement.to_string(),
    });
    let beside = args.beside.dump.as_deref().map(|file| beside(file, &args.beside, &ports, &mut config)).transpose()?;
    let stop = config.stop.clone();
    let port = ports.first().map_or_else(String::new, |port| port.name().to_owned());
    let worker = Worker::new(ports, executor, pool, config);
    let picture = match args.top {
        true if as_json => {
            return Err(Failure::usage("--top is a picture, -j a document").hint("leave one of them out"));
        }
        true => Some(top::of_run(port, session.image.name.clone(), worker.watched(), stop)?),
        false => None,
    };
    let events = events::Reader::open(&session.instance)?.in_background();
    let bar = if picture.is_some() { progress::none() } else { progress::start(live) };
    let report = worker.run();
    drop(served);
    bar.finish();
    picture.map_or(Ok(()), top::OfRun::finish)?;
    let dumped = beside.map(Beside::finish).transpose()?;
    let events = events.finish();

    let maps = if args.environment.dump_maps { contents::dump(&session.instance) } else { Vec::new() };
    let errors = losses::errors(&report, &seen);
    let outcome = Outcome { args, session: &session, name: &name, notes, memory, errors, events, dumped, report };
    if as_json {
        print::json(&print::document("run", outcome.json(&maps)));
    } else {
        print::text(&outcome.text());
        if let Some(dumped) = outcome.dumped {
            print::text(&dumped.text());
        }
        if args.environment.dump_maps {
            print::text(&format!("\n{}", contents::text(&maps)));
            outcome.events.iter().for_each(|e| print::text(&e.text()));
        }
        outcome.errors.iter().filter(|e| !e.ends_the_run()).for_each(|e| print::warn(&e.text()));
    }
    outcome.exit(as_json)
}

/// A capture that is read is not written over: there would be nothing left to run again.
fn not_over_itself(input: &PortName, output: &Path) -> Result<(), Failure> {
    let files = match input {
        PortName::Capture(file) => std::slice::from_ref(file),
        PortName::Played(played) => &played.paths,
        _ => &[],
    };
    let number = |what: Metadata| what.is_file().then(|| (what.dev(), what.ino()));
    let which = |path: &Path| match path.as_os_str() == "-" {
        // Standard input may be a file by a redirection.
        true => std::io::stdin().as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata()),
        false => std::fs::metadata(path),
    };
    let to = std::fs::metadata(output).ok().and_then(number);
    if to.is_some() && files.iter().any(|file| which(file).ok().and_then(number) == to) {
        let why = format!("-o {}: this is the input, which would be gone", output.display());
        return Err(Failure::usage(why).hint("another name behind -o"));
    }
    Ok(())
}

/// Serves sockets on the queues of the input, of which each is a port. Programs find them in their XSKMAPs.
fn serve(
    path: &Path,
    args: &args::Run,
    port: &dyn Port,
    queues: usize,
    session: &Session,
) -> Result<(Server, Desk), Failure> {
    let group = args.xsk_group.as_deref().map(Group::named).transpose();
    let group = group.map_err(|e| Failure::usage(format!("--xsk-group: {e}")))?;
    let access = Access { gid: group.as_ref().map(Group::gid), ..Access::default() };
    let desk = Desk::new().map_err(|e| Failure::needs(format!("no file descriptor left: {e}")))?;
    let (port, ifindex) = (port.name().to_owned(), port.ifindex());
    let queues = WorkerQueues { desk: desk.clone(), port, ifindex, queues: queues as u32 };
    let server =
        Server::listen(path, Arc::new(queues), Policy { access, ..Policy::default() }).map_err(Failure::needs)?;
    let maps = session.instance.maps().iter().filter(|map| map.map_type() == MapType::Xskmap);
    maps.for_each(|map| server.fill_map(map.clone()));
    Ok((server, desk))
}

/// Packets that wait for the capture beside a run: copies lie in the run's own memory, of which this is a small part.
const BESIDE_ROOM: usize = 256;

/// Begins the capture beside a run.
fn beside(
    file: &Path,
    args: &args_watch::Beside,
    ports: &[Box<dyn Port>],
    config: &mut WorkerConfig,
) -> Result<Beside, Failure> {
    if file == Path::new("-") {
        return Err(Failure::usage("--dump -: standard output has the report").hint("-o FIFO, or xway dump -w -"));
    }
    let words: Vec<String> = args.dump_filter.iter().cloned().collect();
    let classic = watch::filter(&words)?;
    let filter = match classic.is_empty() {
        true => None,
        false => Some(user::filter(&classic).map_err(kernel::failure)?),
    };
    let capture = config.capture(CaptureConfig {
        verdicts: VerdictSet(args.dump_verdict.map_or(u32::MAX, |set| set.0)),
        filter,
        every: args.dump_sample,
        room: BESIDE_ROOM,
        ..CaptureConfig::default()
    });
    let names = ports.iter().map(|port| (port.ifindex(), port.name().to_owned())).collect();
    Beside::start(file, user::Watched::new(capture, names))
}

struct Outcome<'a> {
    args: &'a args::Run,
    session: &'a Session,
    name: &'a PortName,
    notes: Vec<String>,
    memory: Value,
    report: Report,
    errors: Vec<losses::Error>,
    events: Vec<Delivered>,
    dumped: Option<Written>,
}

impl Outcome<'_> {
    /// Verdicts in their order with packets and bytes, the invalid ones last.
    fn verdicts(&self) -> Vec<(&'static str, u64, u64)> {
        let c = &self.report.counters;
        let mut rows: Vec<_> =
            xway_abi::Verdict::ALL.iter().map(|v| (v.name(), c.verdict(*v), c.verdict_bytes[*v as usize])).collect();
        rows.push(("INVALID", c.invalid, c.invalid_bytes));
        rows
    }

    /// Packets per second over all, nanoseconds a packet in the program.
    fn rates(&self) -> (f64, f64) {
        let c = &self.report.counters;
        let seconds = self.report.elapsed.as_secs_f64();
        let pps = if seconds > 0.0 { c.rx as f64 / seconds } else { 0.0 };
        let ns = if c.rx > 0 { c.run_ns as f64 / c.rx as f64 } else { 0.0 };
        (pps, ns)
    }

    fn json(&self, maps: &[Value]) -> Value {
        let c = &self.report.counters;
        let (pps, ns_per_packet) = self.rates();
        let rounded = |v: f64| (v * 100.0).round() / 100.0;
        let packets: serde_json::Map<String, Value> =
            self.verdicts().into_iter().map(|(name, packets, _)| (name.into(), json!(packets))).collect();
        let bytes: serde_json::Map<String, Value> =
            self.verdicts().into_iter().map(|(name, _, bytes)| (name.into(), json!(bytes))).collect();
        let mut doc = json!({
            "program": self.session.program_json(),
            "input": self.name.to_string(),
            "output": self.args.output.as_ref().map(|p| p.display().to_string()),
            "port": self.notes,
            "memory": self.memory,
            "end": end_name(&self.report.end),
            "packets": c.rx,
            "bytes": c.rx_bytes,
            "verdicts": packets,
            "verdict_bytes": bytes,
            "losses": losses::counters_json(&self.report),
            "errors": self.errors.iter().map(losses::Error::json).collect::<Vec<_>>(),
            "events": self.events.iter().map(Delivered::json).collect::<Vec<_>>(),
            "insns": c.insns,
            "elapsed_ns": self.report.elapsed.as_nanos() as u64,
            "ns_per_packet": rounded(ns_per_packet),
            "pps": rounded(pps),
        });
        if let Some(dumped) = self.dumped {
            doc["dump"] = dumped.json();
        }
        self.session.engine_json(&mut doc);
        if self.session.code().is_some() {
            // Machine code does not count.
            doc["insns"] = Value::Null;
        }
        if self.args.environment.dump_maps {
            doc["maps"] = json!(maps);
        }
        doc
    }

    fn text(&self) -> String {
        let c = &self.report.counters;
        let mut rows = vec![["verdict", "packets", "bytes", "%"].map(String::from).to_vec()];
        for (name, packets, bytes) in self.verdicts() {
            let share = if c.rx > 0 { packets as f64 * 100.0 / c.rx as f64 } else { 0.0 };
            rows.push(vec![name.into(), grouped(packets), grouped(bytes), format!("{share:.1}")]);
        }
        let total: u64 = self.verdicts().iter().map(|v| v.2).sum();
        rows.push(vec![
            "total".into(),
            grouped(c.rx),
            grouped(total),
            if c.rx > 0 { "100.0".into() } else { "0.0".into() },
        ]);
        let (pps, ns) = self.rates();
        let mut out = format!("{}, {}\n\n{}\n", self.session.title(), self.name, table(&rows));
        let end = match self.report.end {
            End::Stopped => ", stopped",
            End::Timeout => ", time is up",
            End::Count => ", count reached",
            End::Failed(PortError { kind: PortErrorKind::Output, .. }) => ", output failed",
            End::Failed(_) => ", input failed",
            End::Input => "",
        };
        out.push_str(&format!(
            "{} packets in {:.3} s{end}: {}packets/s, {ns:.1} ns a packet in the program ({})\n",
            grouped(c.rx),
            self.report.elapsed.as_secs_f64(),
            scaled(pps),
            self.session.how(),
        ));
        for events in self.events.iter().filter(|e| e.total + e.lost > 0) {
            out.push_str(&format!("events: {} through {}\n", grouped(events.total), events.map));
        }
        if let Some(path) = self.args.output.as_ref().filter(|_| self.report.record_error.is_none()) {
            out.push_str(&format!("written: {}\n", path.display()));
        }
        out
    }

    /// The exit code: what stopped the input comes first, then what the program did wrong.
    fn exit(&self, as_json: bool) -> Result<(), Failure> {
        let failed = match (&self.report.end, &self.report.record_error) {
            (End::Failed(error), _) | (_, Some(error)) => Some(ports::port_failure(error)),
            _ => None,
        };
        if let Some(failure) = failed {
            // The document has it in `errors`; a second document would be one too many.
            return Err(if as_json { failure.said() } else { failure });
        }
        if let Some(leak) = &self.report.leak {
            return Err(Failure::no(format!("{leak}: this is a bug of xway, please report it")));
        }
        if self.report.counters.exceptions > 0 { Err(Failure::silent()) } else { Ok(()) }
    }
}

fn end_name(end: &End) -> &'static str {
    match end {
        End::Input => "input",
        End::Count => "count",
        End::Timeout => "timeout",
        End::Stopped => "stopped",
        End::Failed(_) => "failed",
    }
}
