//! `xway up`, `down`, `apply`, `diff`: the engine as a service.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use xway_abi::Errno;
use xway_control::message::{About, Loss, PortFate, Upgraded};
use xway_control::{Config, End, Server, ServerError, Service};
use xway_engine::Stop;

use super::kernel::failure;
use crate::args_service as args;
use crate::failure::{Exit, Failure};
use crate::{interrupt, load, payload, print};

/// Longest configuration, bytes.
const CONFIG_MAX: u64 = 16 << 20;

/// How long an end may take.
const END_MAX: Duration = Duration::from_secs(30);

/// `xway up`
pub fn up(args: &args::Up, as_json: bool) -> Result<(), Failure> {
    if args.takes {
        print::text(&format!("{}\n", xway_control::TAKES.join(" ")));
        return Ok(());
    }
    let text = args.config.as_deref().map(text).transpose()?.unwrap_or_default();
    let mut config = read(&text, args.config.as_deref())?;
    if let Some(socket) = &args.socket {
        config.service.socket.clone_from(socket);
    }
    if let Some(state) = &args.state {
        config.service.state = Some(state.clone());
    }
    if let Some(log) = args.log {
        config.service.log = log;
    }
    config.service.stage &= !args.code.no_stage;
    if args.check {
        return Server::check(&config, &text, load::options()?).map_err(refused);
    }
    args.code.publish()?;
    let stop = Stop::new().map_err(|e| Failure::needs(format!("cannot wait for an end: {e}")))?;
    let reload = interrupt::catch_and_reload(&stop)?;
    let mut server = Server::start(&config, &text, load::options()?, &stop).map_err(refused)?;
    let file = args.config.as_deref().map(std::path::absolute).transpose();
    let file = file.map_err(|e| Failure::needs(format!("where is the file? {e}")))?;
    server.on_reload(reload, move || match &file {
        Some(file) => written(file).map_err(|e| e.message),
        None => Err("the service was started without a file (-c)".into()),
    });
    let socket = server.path().display().to_string();
    // Whoever waited for it has heard it from the executable before, and may be gone.
    match as_json {
        _ if server.succeeds() => {}
        true => print::json(&print::document("up", json!({ "socket": socket, "notes": server.notes() }))),
        false => print::text(&format!("listening at {socket}\n")),
    }
    let End::Upgrade { executable, variables, parcel } = server.run().map_err(refused)? else { return Ok(()) };
    // The same words, for the other executable; what is open goes with this one, except what was said to stay.
    let spare = parcel.as_ref().and_then(|parcel| parcel.try_clone().ok());
    let exec = |executable: &Path, called: &OsStr, parcel: Option<OwnedFd>, more: Option<(&str, String)>| {
        let mut next = Command::new(executable);
        next.arg0(called).args(std::env::args_os().skip(1)).envs(variables.clone()).envs(more);
        if let Some(parcel) = parcel {
            next.stdin(parcel);
        }
        next.exec()
    };
    let failed = exec(&executable, executable.as_os_str(), parcel, None);
    // It was there when it was asked. Everything is packed, so this one takes over from itself; its file may have another name by now.
    let told = server.stays(&executable, &failed.to_string());
    let called = std::env::args_os().next().unwrap_or_else(|| "xway".into());
    let again = exec(Path::new("/proc/self/exe"), &called, spare, Some(told));
    Err(Failure::needs(format!("{}: it cannot take over: {failed}; nor this one again: {again}", executable.display())))
}

/// `xway upgrade`
pub fn upgrade(args: &args::Upgrade, as_json: bool) -> Result<(), Failure> {
    let own = || std::env::current_exe().map_err(|e| Failure::needs(format!("which executable? {e}")));
    let executable = match &args.executable {
        Some(path) => std::path::absolute(path).map_err(|e| Failure::file(path.display(), &e))?,
        None => own()?,
    };
    let mut service = connect(&args.socket)?;
    // (An older service does not say who it is.)
    let before = service.about().ok();
    let outlook = service.upgrade(&executable, args.dry_run).map_err(failure)?;
    drop(service);
    let came = if args.dry_run { None } else { settled(&args.socket, &executable, before.map(|about| about.pid))? };
    if as_json {
        let pairs = |all: &[(String, String)]| -> Vec<Value> {
            all.iter().map(|(what, why)| json!({ "what": what, "reason": why })).collect()
        };
        let now = |port: &str| came.as_ref()?.ports.iter().find(|fate| fate.port == port);
        let port = |fate: &PortFate| {
            let (port, requested, reason) = (&fate.port, &fate.requested, &fate.reason);
            let mut one = json!({ "port": port, "requested": requested, "expected": fate.fate, "reason": reason });
            if let Some(now) = now(port) {
                one["effective"] = json!(now.fate);
            }
            one
        };
        let mut doc = json!({
            "executable": executable,
            "dry_run": args.dry_run,
            "requested": "handover",
            "expected": {
                "kept": outlook.kept,
                "made_again": pairs(&outlook.made_again),
                "lost": pairs(&outlook.lost),
            },
            "ports": outlook.ports.iter().map(port).collect::<Vec<_>>(),
        });
        if let Some(came) = &came {
            let loss = |of: &Loss| json!({ "port": of.port, "counter": of.counter, "packets": of.packets });
            doc["packets_lost"] = came.lost.iter().map(loss).collect();
        }
        print::json(&print::document("upgrade", doc));
        return Ok(());
    }
    let mut out: String = outlook.kept.iter().map(|what| format!("expected to be kept: {what}\n")).collect();
    for (word, all) in [("made again", &outlook.made_again), ("lost", &outlook.lost)] {
        all.iter().for_each(|(what, why)| out.push_str(&format!("expected to be {word}: {what}: {why}\n")));
    }
    for fate in came.iter().flat_map(|came| &came.ports) {
        let why = if fate.reason.is_empty() { String::new() } else { format!(": {}", fate.reason) };
        out.push_str(&format!("{}: port {}{why}\n", fate.fate, fate.port));
    }
    for loss in came.iter().flat_map(|came| &came.lost) {
        let of = if loss.port == Loss::CPUMAP { "" } else { "port " };
        out.push_str(&format!("lost: {of}{}: {} packets: {}\n", loss.port, loss.packets, loss.counter));
    }
    print::text(&out);
    Ok(())
}

/// How long the other executable is waited for, how often it is asked, how long it must have run, and how long nobody may listen.
const SETTLE: Duration = Duration::from_secs(60);
const SETTLE_LOOK: Duration = Duration::from_millis(50);
const TRIAL_MS: u64 = 1000;
const DEAF: Duration = Duration::from_secs(2);

/// Waits until the other executable has run for a while, and says what came of the ports; `None`: it is one that cannot say it. `pid`: the
/// process before, which must be the same.
fn settled(socket: &args::Socket, executable: &Path, pid: Option<u32>) -> Result<Option<Upgraded>, Failure> {
    let (until, name) = (Instant::now() + SETTLE, executable.display());
    let state =
        "what was applied, attached and pinned is in the state directory (service.state): xway up goes on with it";
    let mut deaf: Option<Instant> = None;
    loop {
        // Whoever connects between the two waits: an answer comes from the one that goes on.
        let answer = match Service::connect(&socket.socket) {
            Ok(mut service) => {
                deaf = None;
                service.about()
            }
            Err(e) => {
                if deaf.get_or_insert_with(Instant::now).elapsed() > DEAF {
                    let message =
                        format!("{name}: it took over and ended: nobody listens at {}", socket.socket.display());
                    return Err(Failure::no(message).hint(format!("the service's log says why; {state}")));
                }
                Err(e)
            }
        };
        match answer {
            Ok(about) if pid.is_some_and(|pid| pid != about.pid) => {
                let message =
                    format!("{name}: it took over and ended: process {} has begun anew in its place", about.pid);
                return Err(Failure::no(message).hint("the service's log says why"));
            }
            Ok(About { upgrade: Some(upgraded), age_ms, .. }) => match &upgraded.failed {
                Some(why) => {
                    let message = format!("{name}: it could not be executed: {why}; the old executable goes on");
                    return Err(Failure::no(message));
                }
                None if age_ms >= TRIAL_MS => return Ok(Some(upgraded)),
                None => {}
            },
            // The one before was older, and told this one nothing.
            Ok(About { age_ms, .. }) if pid.is_none() && age_ms >= TRIAL_MS => return Ok(None),
            Ok(_) => {}
            // It understands requests, and this one not: an older one that goes on.
            Err(e) if e.errno == Some(Errno::EINVAL) => return Ok(None),
            Err(_) => {}
        }
        if Instant::now() > until {
            return Err(Failure::no(format!("{name}: no answer within {SETTLE:?}")).hint("the service's log says more"));
        }
        std::thread::sleep(SETTLE_LOOK);
    }
}

/// `xway down`
pub fn down(args: &args::Down, as_json: bool) -> Result<(), Failure> {
    let mut service = connect(&args.socket)?;
    let about = service.about().map_err(failure)?;
    let process = Pid::from_raw(about.pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    service.down().map_err(failure)?;
    drop(service);
    let until = Instant::now() + END_MAX;
    // A socket that stays is not asked: who connects to it starts the service again.
    let over = || match (&process, about.managed) {
        (_, false) => Service::connect(&args.socket.socket).is_err(),
        (Some(process), true) => poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default())) == Ok(1),
        // It has gone already, or is not among the processes that are seen here.
        (None, true) => true,
    };
    while !over() {
        if Instant::now() > until {
            let message = format!("{}: the service has not ended within 30 seconds", args.socket.socket.display());
            return Err(Failure::no(message));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    if as_json {
        let doc = json!({ "socket": args.socket.socket, "socket_stays": about.managed });
        print::json(&print::document("down", doc));
    } else if about.managed {
        let place = args.socket.socket.display();
        print::note(&format!("{place} stays open at the service manager: the next client starts the service again"));
    }
    Ok(())
}

/// `xway apply`
pub fn apply(args: &args::Apply, as_json: bool) -> Result<(), Failure> {
    let steps = ask(&args.file, &args.socket, args.dry_run)?;
    if as_json {
        let doc = json!({ "dry_run": args.dry_run, "steps": steps });
        print::json(&print::document("apply", doc));
    } else {
        print::text(&told(&steps, if args.dry_run { "would " } else { "" }));
    }
    Ok(())
}

/// `xway diff`
pub fn diff(args: &args::Diff, as_json: bool) -> Result<(), Failure> {
    // 1 says that there are differences, so what apply would refuse is a file that cannot be used.
    let refused = |e: Failure| if e.exit == Exit::No { Failure { exit: Exit::Input, ..e } } else { e };
    let steps = ask(&args.file, &args.socket, true).map_err(refused)?;
    if as_json {
        print::json(&print::document("diff", json!({ "steps": steps })));
    } else {
        print::text(&told(&steps, "would "));
    }
    if steps.is_empty() { Ok(()) } else { Err(Failure::silent()) }
}

fn told(steps: &[String], before: &str) -> String {
    match steps {
        [] => "nothing to do: the engine is what the file says\n".to_owned(),
        steps => steps.iter().map(|s| format!("{before}{s}\n")).collect(),
    }
}

fn ask(file: &Path, socket: &args::Socket, dry_run: bool) -> Result<Vec<String>, Failure> {
    connect(socket)?.apply(&written(file)?, dry_run).map_err(failure)
}

/// A configuration as a service is given it: the file's own place is no longer needed.
fn written(file: &Path) -> Result<String, Failure> {
    let config = read(&text(file)?, Some(file))?;
    toml::to_string(&config).map_err(|e| Failure::input(format!("{}: {e}", file.display())))
}

/// Connects to the service.
pub fn connect(socket: &args::Socket) -> Result<Service, Failure> {
    Service::connect(&socket.socket).map_err(failure)
}

fn text(file: &Path) -> Result<String, Failure> {
    let bytes = payload::file(file, CONFIG_MAX)?;
    String::from_utf8(bytes).map_err(|_| Failure::input(format!("{}: it is no text", file.display())))
}

/// A configuration; its objects lie where the file lies.
fn read(text: &str, file: Option<&Path>) -> Result<Config, Failure> {
    let place = file.map_or_else(String::new, |f| format!("{}: ", f.display()));
    let mut config = Config::parse(text)
        .map_err(|e| Failure::input(format!("{place}{e}")).hint("docs/service.md describes the file"))?;
    let dir = file.and_then(Path::parent).map_or_else(PathBuf::new, Path::to_path_buf);
    let dir =
        std::path::absolute(if dir.as_os_str().is_empty() { Path::new(".") } else { &dir }).unwrap_or(dir.clone());
    config.programs.iter_mut().for_each(|p| p.object = dir.join(&p.object));
    Ok(config)
}

fn refused(error: ServerError) -> Failure {
    match error {
        ServerError::Hook(error) => failure(error),
        ServerError::Config(_) => Failure::input(error),
        ServerError::Running { .. } => Failure::no(error),
        ServerError::Socket { .. } => {
            Failure::needs(error).hint("--socket PATH in a directory that you may write to, or run as root")
        }
    }
}
