//! `xway load`, `unload`, `status`, `clean`.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use xway_abi::Errno;
use xway_control::Service;
use xway_hook::kernel;
use xway_hook::{
    AttachRequest, Attached, AttachmentInfo, Choice, Hook, HookError, HookKind, Kernel, LoadRequest, Mode, Objects,
    Outcome, PRIORITY, ProgId, Replace, Verdicts, Via,
};
use xway_kernel::{KernelProg, run_statistics};
use xway_object::{Initial, Object, Program, SlotRef};
use xway_verifier::{Config, MapsView, verify};

use super::{failure, prog};
use crate::args_kernel as args;
use crate::commands::{service, verify};
use crate::failure::Failure;
use crate::finding::{Code, Files};
use crate::load;
use crate::print::{self, Paint};

/// The mode as the hook knows it.
pub const fn mode(asked: args::Mode) -> Mode {
    match asked {
        args::Mode::Auto => Mode::Auto,
        args::Mode::Native => Mode::Native,
        args::Mode::Generic => Mode::Generic,
        args::Mode::Offload => Mode::Offload,
    }
}

/// The mode that `--hook` asks for, or `-m`.
pub const fn mode_of(place: &args::Hook, asked: args::Mode) -> Mode {
    match place.hook {
        Some(args::Place::Native) => Mode::Native,
        Some(args::Place::Generic) => Mode::Generic,
        _ => mode(asked),
    }
}

/// `xway load`
pub fn load(args: &args::Load, as_json: bool) -> Result<(), Failure> {
    let image = load::image(&args.select)?;
    let chosen = load::choose(&image.object, &args.select)?;
    let replace = match &args.replace {
        _ if args.force => Replace::Any,
        None => Replace::Never,
        Some(text) => text.parse().map_or_else(|_| Replace::Name(text.clone()), Replace::Id),
    };
    let mut place = Place::of(&args.place)?;
    let mode = mode_of(&args.place, args.mode);
    // Who is to run it in its device must know it from the start.
    let device = (mode == Mode::Offload).then(|| args.interface.clone());
    let request = LoadRequest { programs: vec![chosen.name.clone()], pins: args.pins.clone(), device };
    let explained = |e| diagnosed(e, &image.object, &chosen, args);
    let objects = place.hook().load(&image, &request).map_err(explained)?;
    // Not before the program is accepted: a port may take packets from the host as soon as it is open.
    let opened = place.open(&args.interface)?;
    let program = objects.programs.first().map(|(_, id)| *id).unwrap_or(ProgId(0));
    // Where its author said how it runs beside others, that is what it does unless told otherwise.
    let config = image.object.run_config(&chosen.name);
    let request = AttachRequest {
        mode,
        replace,
        queue: args.queue,
        priority: args.priority.or(config.priority).unwrap_or(PRIORITY),
        chain_on: args.chain_on.or(config.chain_on.map(Verdicts)).unwrap_or(Verdicts::PASS),
        chain: args.priority.is_some() || args.chain_on.is_some(),
        ..AttachRequest::new(&args.interface, program)
    };
    let mut attached = match place.hook().attach(&request) {
        Ok(attached) => attached,
        Err(e) => return Err(place.give_up(opened.as_slice(), explained(e))),
    };
    let hook = place.hook();
    attached.warnings.extend(opened.iter().map(Opened::note));
    attached.warnings.extend(nothing_to_pin(args, &objects));
    if hook.kind() == HookKind::Kernel {
        attached.outcomes.extend(emptied(&image.object, &objects));
    }
    let here = hook.attachments(Some(&args.interface)).map_err(failure)?;
    let gone = || Failure::no(format!("{}: the program was taken away by somebody at once", args.interface));
    let attachment = here.into_iter().find(|a| a.program.id == attached.program).ok_or_else(gone)?;
    let done = Done { attachment, attached, objects };
    if as_json {
        print::json(&print::document("load", done.json()));
    } else {
        print::text(&done.text());
    }
    Ok(())
}

/// A directory that was named and is not used.
fn nothing_to_pin(args: &args::Load, objects: &Objects) -> Option<String> {
    let dir = args.pins.as_ref().filter(|_| objects.pinned.is_empty() && objects.shared.is_empty())?;
    Some(format!("nothing is pinned in {}: the object declares no maps", dir.display()))
}

/// PROG_ARRAYs that the object fills and that nothing holds for a user behind this command. Programs that use them, pinned or attached,
/// and what a chain or a dispatcher pins of its own do not count: Linux empties the array all the same.
pub fn emptied(object: &Object, objects: &Objects) -> Option<Outcome> {
    let held = |name: &str| {
        let pins = objects.pinned.iter().chain(&objects.shared);
        pins.into_iter().any(|path| path.file_name().is_some_and(|file| file == name))
    };
    let filled = |initial: &Initial| match initial {
        Initial::Slots(slots) => slots.iter().any(|(_, slot)| matches!(slot, SlotRef::Program(_))),
        _ => false,
    };
    let lost = object.maps.iter().filter(|def| filled(&def.initial) && !held(&def.name));
    let names: Vec<&str> = lost.map(|def| def.name.as_str()).collect();
    if names.is_empty() {
        return None;
    }
    let reason = format!(
        "Linux empties a PROG_ARRAY when its last descriptor and pin are gone, and nothing pins {}: tail calls through it fall through \
         from the end of this command on; pin it: -p DIR",
        names.join(", ")
    );
    Some(Outcome { what: "program arrays", requested: "filled", effective: "empty", reason })
}

/// A refusal by a hook's verifier, with what ours says to the same program: source lines first, then what only the hook says.
fn diagnosed(error: HookError, object: &Object, program: &Program, args: &args::Load) -> Failure {
    if error.log.is_empty() {
        return failure(error);
    }
    let Some(errno) = error.errno else { return failure(error) };
    let place = args.select.object.display().to_string();
    let ours = verify(program, &MapsView::from(object), &Config::default()).err().map(|refusal| {
        let code = Code { place: &place, object, program };
        verify::refused(&refusal, code, &mut Files::default(), Paint::stderr())
    });
    let lines: Vec<&str> = error.log.lines().collect();
    let log = lines[lines.len().saturating_sub(12)..].join("\n");
    let (name, interface) = (&program.name, &args.interface);
    let (message, hint) = match (args.place.hook == Some(args::Place::User), ours) {
        // The same verifier, in another process.
        (true, Some(ours)) => (format!("{interface}: program {name} is refused\n{ours}"), "mend the program"),
        (true, None) => (
            format!("{interface}: the service refused program {name} with {errno}\nthe service says:\n{log}"),
            "this command accepts the program: the service is another version; xway upgrade puts this one in its place",
        ),
        (false, ours) => (
            format!(
                "{interface}: the kernel's verifier refused program {name} with {errno}\n{}the kernel says:\n{log}",
                ours.as_ref().map(|ours| format!("{ours}\n")).unwrap_or_default()
            ),
            match ours {
                None => "our verifier accepts this program: xway run executes it in user space",
                Some(_) => "mend the program; xway verify says it without the kernel",
            },
        ),
    };
    Failure::no(message).hint(hint)
}

/// Whose hook is asked.
pub enum Place {
    /// Linux.
    Kernel(Kernel),
    /// The engine in the service.
    Service(Service),
}

impl Place {
    /// As the flags say.
    pub fn of(args: &args::Hook) -> Result<Place, Failure> {
        match args.hook {
            Some(args::Place::User) => service::connect(&args.socket).map(Place::Service),
            _ => Ok(Place::Kernel(Kernel::new())),
        }
    }

    /// The hook itself.
    pub fn boxed(self) -> Box<dyn Hook> {
        match self {
            Place::Kernel(kernel) => Box::new(kernel),
            Place::Service(service) => Box::new(service),
        }
    }

    /// The hook, borrowed.
    pub fn hook(&mut self) -> &mut dyn Hook {
        match self {
            Place::Kernel(kernel) => kernel,
            Place::Service(service) => service,
        }
    }

    /// The port of the service that is called so, to be closed.
    fn opened(&mut self, name: &str) -> Result<String, Failure> {
        let Place::Service(service) = self else {
            let hint = format!("xway unload {name} -a --close --hook user closes one of the service");
            return Err(
                Failure::usage("--close: Linux's interfaces are no ports that are opened and closed").hint(hint)
            );
        };
        let there = service.ports().map_err(failure)?;
        there.into_iter().find(|port| xway_engine::is_called(port, name)).ok_or_else(|| {
            Failure::needs(format!("there is no port {name} in this engine"))
                .hint("xway features --hook user lists them")
        })
    }

    /// Opens the port in the service's engine, if it is not open.
    pub fn open(&mut self, name: &str) -> Result<Option<Opened>, Failure> {
        let Place::Service(service) = self else { return Ok(None) };
        let there = service.ports().map_err(failure)?;
        if let Some(port) = there.into_iter().find(|port| xway_engine::is_called(port, name)) {
            let features = service.features(&port).map_err(failure)?;
            let Some(lost) = features.lost() else { return Ok(None) };
            service.open_port(&port).map_err(failure)?;
            return Ok(Some(Opened { port, was: Some(lost.effective.to_string()) }));
        }
        let port = if name.contains(':') { name.to_owned() } else { format!("packet:{name}") };
        service.open_port(&port).map_err(failure)?;
        Ok(Some(Opened { port, was: None }))
    }

    /// A command that has opened ports fails: they are closed again where nothing is attached to them. What was lost and is open again
    /// stays, and is told.
    pub fn give_up(&mut self, opened: &[Opened], failure: Failure) -> Failure {
        for one in opened {
            match self {
                Place::Service(service) if one.was.is_none() => {
                    let idle = service.attachments(Some(&one.port)).is_ok_and(|there| there.is_empty());
                    if !idle || service.close_port(&one.port).is_err() {
                        print::note(&one.note());
                    }
                }
                _ => print::note(&one.note()),
            }
        }
        failure
    }
}

/// A port of the service that a command has opened.
pub struct Opened {
    port: String,
    /// It was open before, and had become this.
    was: Option<String>,
}

impl Opened {
    /// What a person should know.
    pub fn note(&self) -> String {
        let port = &self.port;
        match &self.was {
            Some(was) => format!("port {port} was {was}, and is opened again"),
            None => format!("port {port} was opened for it; xway unload {port} -a --close --hook user closes it"),
        }
    }
}

/// What a load did.
struct Done {
    attachment: AttachmentInfo,
    attached: Attached,
    objects: Objects,
}

impl Done {
    fn text(&self) -> String {
        let AttachmentInfo { port, mode, via, program, .. } = &self.attachment;
        let tag = prog::tag(&program.tag);
        let mut out = format!("{port}: program {} (id {}, tag {tag}) runs ", program.name, program.id.0);
        match via {
            Via::Engine => out.push_str(&format!("in the engine ({})\n", program.engine)),
            via => out.push_str(&format!("in mode {}, held by {}\n", mode.name(), via.name())),
        }
        if let (Via::Engine, Some(reason)) = (via, &program.reason) {
            out.push_str(&format!("  not as machine code: {reason}\n"));
        }
        if let (Some(priority), Some(on)) = (self.attachment.priority, self.attachment.chain_on) {
            out.push_str(&format!("  in a chain, priority {priority}; the next one runs on {on}\n"));
        }
        for (what, choice) in [("mode", &self.attached.mode), ("a", &self.attached.held)] {
            if let Some(reason) = &choice.reason {
                out.push_str(&format!("  asked for {what} {}: {reason}\n", choice.requested));
            }
        }
        out.push_str(&outcomes_text(&self.attached.outcomes));
        if let Some(Choice { effective, reason: Some(reason), .. }) = &self.attached.chain {
            out.push_str(&format!("  chained by {effective}: {reason}\n"));
        }
        if let Some(id) = self.attached.replaced {
            out.push_str(&format!("  in the place of program {id}\n"));
        }
        for (word, paths) in [("shares", &self.objects.shared), ("pinned", &self.objects.pinned)] {
            for path in paths {
                out.push_str(&format!("  {word} {}\n", path.display()));
            }
        }
        self.attached.warnings.iter().for_each(|w| out.push_str(&format!("  note: {w}\n")));
        out
    }

    fn json(&self) -> Value {
        let paths = |all: &[std::path::PathBuf]| all.iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
        json!({
            "attachment": attachment_json(&self.attachment, None),
            "mode": choice_json(&self.attached.mode),
            "held": choice_json(&self.attached.held),
            "replaced": self.attached.replaced,
            "chain": self.attached.chain.as_ref().map(choice_json),
            "outcomes": outcomes_json(&self.attached.outcomes),
            "shared": paths(&self.objects.shared),
            "pinned": paths(&self.objects.pinned),
            "warnings": self.attached.warnings,
        })
    }
}

/// What was asked for and what was done, in JSON documents.
pub fn choice_json(choice: &Choice) -> Value {
    json!({ "requested": choice.requested, "effective": choice.effective, "reason": choice.reason })
}

/// Where a port does something else than it was asked for, a line each.
pub fn outcomes_text(all: &[Outcome]) -> String {
    let line = |o: &Outcome| format!("  asked for {} {}, got {}: {}\n", o.what, o.requested, o.effective, o.reason);
    all.iter().map(line).collect()
}

/// The same in JSON documents.
pub fn outcomes_json(all: &[Outcome]) -> Vec<Value> {
    let one =
        |o: &Outcome| json!({ "what": o.what, "requested": o.requested, "effective": o.effective, "reason": o.reason });
    all.iter().map(one).collect()
}

/// `xway unload`
pub fn unload(args: &args::Unload, as_json: bool) -> Result<(), Failure> {
    let mut place = Place::of(&args.place)?;
    let closes = if args.close { Some(place.opened(&args.interface)?) } else { None };
    let gone = match &closes {
        Some(port) if place.hook().attachments(Some(port)).map_err(failure)?.is_empty() => Vec::new(),
        _ => place.hook().detach(&args.interface, args.id.map(ProgId)).map_err(failure)?,
    };
    if let (Some(port), Place::Service(service)) = (&closes, &mut place) {
        service.close_port(port).map_err(failure)?;
    }
    let gone: Vec<u32> = gone.into_iter().map(|id| id.0).collect();
    if as_json {
        let doc = json!({ "interface": args.interface, "programs": gone, "closed": closes.is_some() });
        print::json(&print::document("unload", doc));
    } else {
        let mut text: String =
            gone.iter().map(|id| format!("{}: program {id} is detached\n", args.interface)).collect();
        text.extend(closes.map(|port| format!("{port} is closed\n")));
        print::text(&text);
    }
    Ok(())
}

/// What a program did while it was measured.
struct Measured {
    packets_per_second: f64,
    nanoseconds_per_run: Option<f64>,
}

/// `xway status`
pub fn status(args: &args::Status, as_json: bool) -> Result<(), Failure> {
    let Everywhere { mut attached, silent } = everywhere(args)?;
    if let Some(queue) = args.queue {
        // A queue's own programs win over the port's.
        let own: Vec<String> = attached.iter().filter(|a| a.queue == Some(queue)).map(|a| a.port.clone()).collect();
        attached.retain(|a| a.queue == Some(queue) || a.queue.is_none() && !own.contains(&a.port));
    }
    let measured = if args.measure.is_zero() { Vec::new() } else { measure(&attached, args)? };
    let rate = |i: usize| measured.get(i).and_then(Option::as_ref);
    let (lost, mut warnings) = (lost_ports(args), full_queues(&attached, args));
    warnings.extend(silent);
    if as_json {
        let all: Vec<Value> = attached.iter().enumerate().map(|(i, a)| attachment_json(a, rate(i))).collect();
        let one = |(port, o): &(String, Outcome)| json!({ "port": port, "state": o.effective, "reason": o.reason });
        let lost: Vec<Value> = lost.iter().map(one).collect();
        print::json(&print::document("status", json!({ "attachments": all, "lost": lost, "warnings": warnings })));
        return Ok(());
    }
    let told = || {
        lost.iter().for_each(|(port, o)| print::note(&format!("{port} is {}: {}", o.effective, o.reason)));
        warnings.iter().for_each(|warning| print::note(warning));
    };
    if attached.is_empty() {
        let place = args.interface.as_deref().map_or_else(|| "any interface".to_owned(), str::to_owned);
        print::text(&format!("no XDP program on {place}\n"));
        told();
        return Ok(());
    }
    let head =
        ["interface", "queue", "priority", "name", "id", "tag", "mode", "engine", "chain on", "packets/s", "held by"];
    let mut rows = vec![[&head[..], &["maps"]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for (i, a) in attached.iter().enumerate() {
        let or = |value: Option<String>, word: &str| value.unwrap_or_else(|| word.to_owned());
        let maps: Vec<String> = a.program.maps.iter().map(|id| id.0.to_string()).collect();
        rows.push(vec![
            a.port.clone(),
            or(a.queue.map(|q| q.to_string()), "all"),
            or(a.priority.map(|p| p.to_string()), "-"),
            a.program.name.clone(),
            a.program.id.0.to_string(),
            prog::tag(&a.program.tag),
            a.mode.name().into(),
            a.program.engine.to_owned(),
            or(a.chain_on.map(|on| on.to_string()), "-"),
            or(rate(i).map(|m| print::scaled(m.packets_per_second).trim_end().to_owned()), "-"),
            match a.via {
                Via::Link(id) => format!("link {id}"),
                via => via.name().to_owned(),
            },
            maps.join(","),
        ]);
    }
    print::text(&print::table(&rows));
    told();
    Ok(())
}

/// Ports of the service that receive no more, or past which packets go, though nobody closed them.
fn lost_ports(args: &args::Status) -> Vec<(String, Outcome)> {
    if matches!(args.place.hook, Some(args::Place::Native | args::Place::Generic)) {
        return Vec::new();
    }
    let Ok(mut service) = Service::connect(&args.place.socket.socket) else { return Vec::new() };
    let asked = |name: &String| args.interface.as_deref().is_none_or(|asked| xway_engine::is_called(name, asked));
    let names = service.ports().unwrap_or_default().into_iter().filter(asked);
    names.filter_map(|name| service.features(&name).ok()?.lost().cloned().map(|outcome| (name, outcome))).collect()
}

/// Ports of the service that were given more than they could send: nothing slows a sender down in front of a hook, so what finds no
/// room is gone.
fn full_queues(attached: &[AttachmentInfo], args: &args::Status) -> Vec<String> {
    let mut ports: Vec<&str> = attached.iter().filter(|a| a.via == Via::Engine).map(|a| a.port.as_str()).collect();
    ports.dedup();
    let Some(mut service) = (!ports.is_empty()).then(|| Service::connect(&args.place.socket.socket).ok()).flatten()
    else {
        return Vec::new();
    };
    let warning = |port: &&str| {
        let counted = service.statistics(port).ok()?;
        let lost: u64 =
            ["tx_full", "redirect_err.ENOSPC", "relay_lost.ENOSPC"].map(|name| counted.get(name)).iter().sum();
        (lost > 0).then(|| {
            let lost = print::grouped(lost);
            format!(
                "{port}: {lost} packets found a queue full and were dropped; xway stats {port} --hook user shows where"
            )
        })
    };
    ports.iter().filter_map(warning).collect()
}

/// Attachments of the kernel and of the service, if one is there; of the one that was asked for.
struct Everywhere {
    attached: Vec<AttachmentInfo>,
    /// Why the service's side is not among them, where there should be one.
    silent: Option<String>,
}

fn everywhere(args: &args::Status) -> Result<Everywhere, Failure> {
    let port = args.interface.as_deref();
    if args.place.hook.is_some() {
        let attached = Place::of(&args.place)?.hook().attachments(port).map_err(failure)?;
        return Ok(Everywhere { attached, silent: None });
    }
    let kernel = Kernel::new().attachments(port);
    let socket = &args.place.socket.socket;
    let (more, silent) = match Service::connect(socket) {
        Ok(mut service) => (service.attachments(port).unwrap_or_default(), None),
        // A machine without a service. Where one was named, or has left its socket, somebody expects it.
        Err(e) if e.errno == Some(Errno::ENOENT) && socket == Path::new(xway_control::SOCKET) => (Vec::new(), None),
        Err(e) => (Vec::new(), Some(format!("only Linux's hook was asked: {e}"))),
    };
    match kernel {
        Ok(mut attached) => {
            attached.extend(more);
            Ok(Everywhere { attached, silent })
        }
        // It is a port of the service alone.
        Err(_) if !more.is_empty() => Ok(Everywhere { attached: more, silent }),
        Err(e) => Err(failure(e)),
    }
}

/// Runs of a program and the time that they took, where they are known.
type Runs = Option<(u64, Duration)>;

/// What each did meanwhile; `None` where it cannot be known: the kernel's counters of runs need `CAP_SYS_ADMIN`.
fn measure(attached: &[AttachmentInfo], args: &args::Status) -> Result<Vec<Option<Measured>>, Failure> {
    let kernel = attached.iter().any(|a| a.via != Via::Engine);
    let on = if kernel { run_statistics().ok() } else { None };
    let mut service = Service::connect(&args.place.socket.socket).ok();
    let mut read = |a: &AttachmentInfo| -> Runs {
        match (a.via, &mut service) {
            (Via::Engine, Some(service)) => Some(service.program_info(a.program.id).ok()?.runs.unwrap_or_default()),
            _ if on.is_some() => {
                let info = KernelProg::by_id(a.program.id.0).and_then(|p| p.info()).ok()?;
                Some((info.run_count, info.run_time))
            }
            _ => None,
        }
    };
    if attached.is_empty() {
        return Ok(Vec::new());
    }
    let start = std::time::Instant::now();
    let before: Vec<_> = attached.iter().map(&mut read).collect();
    std::thread::sleep(args.measure);
    let after: Vec<_> = attached.iter().map(&mut read).collect();
    let secs = start.elapsed().as_secs_f64();
    let between = |(b, a): (&Runs, &Runs)| {
        let (b, a) = ((*b)?, (*a)?);
        let (runs, took) = (a.0.saturating_sub(b.0), a.1.saturating_sub(b.1));
        // The engine counts time only when it is told to.
        let nanoseconds_per_run = (runs > 0 && !took.is_zero()).then(|| took.as_nanos() as f64 / runs as f64);
        Some(Measured { packets_per_second: runs as f64 / secs, nanoseconds_per_run })
    };
    Ok(before.iter().zip(&after).map(between).collect())
}

fn attachment_json(a: &AttachmentInfo, measured: Option<&Measured>) -> Value {
    let user = a.via == Via::Engine;
    let program = match user {
        true => Some(prog::user_json(&a.program)),
        // Everything that the kernel says of a program; it may have gone meanwhile.
        false => KernelProg::by_id(a.program.id.0).and_then(|p| p.info()).ok().as_ref().map(prog::json),
    };
    let interface = a.port.split_once(':').map_or(a.port.as_str(), |(_, rest)| rest);
    let ifindex = kernel::device(interface).ok().map(|d| d.ifindex);
    let mut out = json!({
        "interface": a.port,
        "ifindex": ifindex,
        "queue": a.queue,
        "mode": a.mode.name(),
        "engine": if user { a.program.engine } else { "kernel" },
        "via": a.via.name(),
        "link_id": a.link,
        "priority": a.priority,
        "chain_on": a.chain_on.map(|on| on.names()),
        "program": program,
    });
    out["packets_per_second"] = json!(measured.map(|m| m.packets_per_second));
    out["nanoseconds_per_run"] = json!(measured.and_then(|m| m.nanoseconds_per_run));
    out
}

/// `xway clean`
pub fn clean(args: &args::Clean, as_json: bool) -> Result<(), Failure> {
    let gone = match Place::of(&args.place)? {
        Place::Service(mut service) => service.clean(args.dry_run),
        Place::Kernel(_) => kernel::clean(args.dry_run),
    };
    let gone = gone.map_err(failure)?;
    let paths: Vec<String> = gone.iter().map(|p| p.display().to_string()).collect();
    if as_json {
        print::json(&print::document("clean", json!({ "dry_run": args.dry_run, "removed": paths })));
    } else {
        let word = if args.dry_run { "would remove" } else { "removed" };
        print::text(&paths.iter().map(|p| format!("{word} {p}\n")).collect::<String>());
    }
    Ok(())
}
