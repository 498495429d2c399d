//! Another executable in the place of this one: what goes on, what is made again, what is lost.
//!
//! The process stays the same (`exec`): its number, its parent, the listening socket, at which clients wait instead of being
//! refused. Ports whose packets wait in the kernel go on with them (`handover`). Everything else is made again from the state, as after
//! a restart, and the contents of pinned maps go along. Nothing of this needs the two executables to agree about memory of their own.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use xway_hook::{Blame, Hook, HookError, MapId, User};

use crate::handover::Keeps;
use crate::message::{Handover, Loss, PortFate, Upgraded};
use crate::probe::ask;
use crate::state::volatile;

/// How long an executable may take to say who it is.
const ANSWER: Duration = Duration::from_secs(10);
/// How long it may take to read its configuration and to verify and compile what that names. A client waits longer.
const CHECK: Duration = Duration::from_secs(60);

/// Whether a file can take over, asked before anything ends: it must answer as `xway` does, and say that it would start with the words
/// that this process was started with. Gives what it takes ([`crate::handover::TAKES`]).
pub(crate) fn check(executable: &Path) -> Result<Vec<String>, HookError> {
    let refuse = |why: String| {
        let message = format!("{}: {why}", executable.display());
        Err(HookError::new(Blame::Request, message).hint("the path of another xway, which this user may run"))
    };
    if !executable.is_absolute() {
        return refuse("the path is not absolute".into());
    }
    match ask(executable, &["--version"], ANSWER) {
        Err(e) => return refuse(e),
        Ok(said) if said.success && said.out.starts_with("xway ") => {}
        Ok(_) => return refuse("it does not answer to --version as xway does".into()),
    }
    let refused = match ask(executable, &checking(std::env::args_os().skip(1)), CHECK) {
        Ok(said) if said.success => return taken_by(executable).or_else(refuse),
        Ok(said) => said.why(),
        Err(why) => why,
    };
    let message = format!("{}: it would not start in the place of this one: {refused}", executable.display());
    let hint = "nothing has ended; mend what it names, or upgrade to another executable";
    Err(HookError::new(Blame::Request, message).hint(hint))
}

/// Tells the next executable which one was to go on, and why that one does not: [`came`].
pub(crate) const VARIABLE: &str = "XWAY_UPGRADE";

/// The variable that says it, and what has been lost until now.
pub(crate) fn announce(executable: &Path, failed: Option<&str>, lost: Vec<Loss>) -> (&'static str, String) {
    let (requested, failed) = (executable.to_owned(), failed.map(str::to_owned));
    let said = Upgraded { requested, failed, ports: Vec::new(), lost };
    (VARIABLE, serde_json::to_string(&said).unwrap_or_default())
}

/// What this executable was told: by an older one nothing.
pub(crate) fn came() -> Option<Upgraded> {
    serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()
}

/// The words that a service was started with, as a question: would it start?
fn checking(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    words.chain([OsString::from("--check")]).collect()
}

/// What another executable says that it takes; nothing when it does not know the question.
fn taken_by(executable: &Path) -> Result<Vec<String>, String> {
    let said = ask(executable, &["up", "--takes"], ANSWER)?;
    Ok(if said.success { said.out.split_whitespace().map(str::to_owned).collect() } else { Vec::new() })
}

/// What becomes of a port of which this is kept, when the other executable takes these kinds.
pub(crate) fn fate(port: &str, keeps: Option<&Keeps>, takes: &[String]) -> PortFate {
    let kind = port.split_once(':').map_or("", |(kind, _)| kind);
    let again = |reason: String| PortFate::new(port, PortFate::OPENED_AGAIN, reason);
    let gap = "frames that arrive between the two are not seen by the programs";
    let Some(keeps) = keeps else {
        return again(match kind {
            "afxdp" => format!("the program that brings packets to it is somebody else's (map=): {gap}"),
            "packet" | "tap" => format!("no descriptor was left to keep it by: {gap}"),
            _ => "it starts from its beginning".into(),
        });
    };
    if !takes.iter().any(|takes| takes == kind) {
        let host = if kind == "afxdp" { ", the host's stack gets them" } else { "" };
        return again(format!("the other executable takes no {kind}: ports over: {gap}{host}"));
    }
    let count = keeps.queues();
    let queues = if count == 1 { "its queue".to_owned() } else { format!("its {count} queues") };
    let room = match keeps {
        Keeps::Tap(_) => "the interface's txqueuelen",
        Keeps::Packet(_) => "what their rings hold",
        Keeps::AfXdp(_) => {
            let why = "its UMEM is memory of this process: what lies in its rings is lost, and what arrives before the new executable has \
                       opened its queues is dropped, not passed: both are counted (port.other.upgrade-rings, port.other.upgrade-unsent, \
                       port.other.upgrade-gap)";
            return PortFate::new(port, PortFate::HELD, why);
        }
    };
    let kept =
        format!("{queues} with what waits there, at most {room}: the programs run over it when they are there again");
    PortFate::new(port, PortFate::HANDED_OVER, kept)
}

/// What becomes of everything. `fates` are those of the ports; `pinned` are maps that have a name; `others` is how many connections
/// there are besides this one.
pub(crate) fn outlook(
    hook: &mut User,
    fates: Vec<PortFate>,
    pinned: &HashSet<MapId>,
    sockets: usize,
    others: usize,
    keeps: bool,
) -> Handover {
    let mut out = Handover::default();
    out.kept.push("the process, its number and the control socket: clients that connect meanwhile wait".into());
    for fate in &fates {
        let what = format!("port {}", fate.port);
        match fate.goes_on() {
            true => out.kept.push(format!("{what}: {}", fate.reason)),
            false => out.made_again.push((what, fate.reason.clone())),
        }
    }
    out.ports = fates;
    let attached = hook.attachments(None).unwrap_or_default();
    for a in &attached {
        let what = format!("program {} on {}", a.program.name, a.port);
        out.made_again.push((what, "it is verified and compiled by the new executable".into()));
    }
    let no_state = "there is no state directory (service.state)";
    for map in hook.maps().unwrap_or_default() {
        let what = format!("map {} (number {})", map.name, map.id.0);
        let used = attached.iter().any(|a| a.program.maps.contains(&map.id));
        if hook.live_map(map.id).is_ok_and(|map| map.memory_was_given()) {
            let why = "it is memory of this process: who has it mapped asks for it again, and till then sees what was there last";
            out.lost.push((format!("{what}: its memory in other processes"), why.into()));
        }
        match (pinned.contains(&map.id), volatile(map.map_type)) {
            (true, None) if keeps => out.kept.push(format!("{what}: its contents, read at the end and written again")),
            (true, None) => out.lost.push((what, no_state.into())),
            (true, Some(why)) => out.lost.push((format!("{what}: what it holds"), why.into())),
            (false, _) if used => {
                out.lost
                    .push((format!("{what}: what it holds"), "it is not pinned: xway map pin gives it a name".into()));
            }
            (false, _) => out.lost.push((what, "it is not pinned, and no program uses it".into())),
        }
    }
    if sockets > 0 {
        let why =
            "their rings are shared with this process: applications see the end of their connection and open new ones";
        out.lost.push((format!("{sockets} served AF_XDP sockets"), why.into()));
    }
    if others > 0 {
        let why = "a connection belongs to one process; what it alone held goes with it";
        out.lost.push((format!("{others} other connections"), why.into()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_xway_does_not_take_over() {
        for wrong in ["xway", "/no/such/file", "/bin/true", "/dev/null"] {
            assert!(check(Path::new(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(taken_by(Path::new("/bin/false")), Ok(Vec::new()));
        assert!(taken_by(Path::new("/no/such/file")).is_err());
    }
}
