//! What must be done so that the engine is what a file says.

use std::collections::BTreeMap;
use std::fmt;

use xway_engine::is_called;

use crate::config::{Config, Port, Program, Socket};

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Take a program away.
    Detach(Program),
    /// Close a port.
    Close(Port),
    /// Open a port.
    Open(Port),
    /// Send PASS elsewhere.
    Pass(Port),
    /// Send packets to queues by other rules.
    Steer(Port),
    /// Put a new version in the place of a program: no frame sees none, and maps that are pinned stay.
    Replace(Program),
    /// Attach a program.
    Attach(Program),
    /// Serve sockets.
    Serve(Socket),
    /// Serve them no more.
    Unserve(Socket),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Detach(p) => write!(f, "detach program {} from {}", p.name, place(p)),
            Step::Close(p) => write!(f, "close port {}", p.name),
            Step::Open(p) => write!(f, "open port {}", p.name),
            Step::Pass(p) => {
                write!(f, "send PASS of {} to {}", p.name, p.pass_to.as_deref().unwrap_or("its stack side"))
            }
            Step::Serve(s) => write!(f, "serve sockets at {}", s.path.display()),
            Step::Unserve(s) => write!(f, "serve no more sockets at {}", s.path.display()),
            Step::Steer(p) if p.steer.is_empty() => write!(f, "steer packets of {} no more", p.name),
            Step::Steer(p) => write!(f, "steer packets of {}: {}", p.name, p.steer.join("; ")),
            Step::Replace(p) => {
                write!(f, "replace program {} on {} by {}", p.name, place(p), p.object.display())
            }
            Step::Attach(p) => {
                let (object, priority) = (p.object.display(), p.priority);
                write!(f, "attach program {} ({object}) to {}, priority {priority}", p.name, place(p))
            }
        }
    }
}

fn place(program: &Program) -> String {
    match program.queue {
        Some(queue) => format!("{} queue {queue}", program.port),
        None => program.port.clone(),
    }
}

/// What stands in an object file now: programs by their names in the configuration.
pub type Digests = BTreeMap<String, String>;

/// The steps from one configuration to another, in the order in which they can be done. Where a program stays in its place and
/// only what it is made of differs (`digests`), it is replaced and not taken away. `lost`: ports, by their names in `now`, that receive no
/// more though they are open; they are opened again.
pub fn steps(now: &Config, now_digests: &Digests, want: &Config, want_digests: &Digests, lost: &[String]) -> Vec<Step> {
    let (mut away, mut here) = (Vec::new(), Vec::new());
    let reopened = |name: &str| {
        let find = |c: &Config| c.ports.iter().find(|p| is_called(&p.name, name)).map(Port::as_opened);
        find(now) != find(want) || lost.iter().any(|lost| is_called(lost, name))
    };
    // Applications go before the queues that they are bound to.
    away.extend(now.sockets.iter().filter(|old| !want.sockets.contains(old)).cloned().map(Step::Unserve));
    for old in &now.programs {
        let stays = want.programs.iter().find(|new| new.name == old.name && same_place(old, new));
        if stays.is_none() || reopened(&old.port) {
            away.push(Step::Detach(old.clone()));
        }
    }
    for old in now.ports.iter().filter(|p| reopened(&p.name)) {
        away.push(Step::Close(old.clone()));
    }
    for new in want.ports.iter().filter(|p| reopened(&p.name)) {
        here.push(Step::Open(new.clone()));
    }
    for new in &want.ports {
        let old = now.ports.iter().find(|p| p.name == new.name).filter(|p| !reopened(&p.name));
        if old.map_or(new.pass_to.is_some(), |old| old.pass_to != new.pass_to) {
            here.push(Step::Pass(new.clone()));
        }
        if old.map_or(&[][..], |old| &old.steer) != new.steer {
            here.push(Step::Steer(new.clone()));
        }
    }
    for new in &want.programs {
        let old = now.programs.iter().find(|old| old.name == new.name && same_place(old, new));
        match old.filter(|_| !reopened(&new.port)) {
            None => here.push(Step::Attach(new.clone())),
            Some(old) => {
                let other = now_digests.get(&old.name) != want_digests.get(&new.name)
                    || old.function != new.function
                    || old.pins() != new.pins();
                if other {
                    here.push(Step::Replace(new.clone()));
                }
            }
        }
    }
    here.extend(want.sockets.iter().filter(|new| !now.sockets.contains(new)).cloned().map(Step::Serve));
    away.extend(here);
    away
}

/// What a service that runs cannot change, in words: it stays until the service starts again.
pub fn kept(now: &Config, want: &Config) -> Vec<String> {
    let (old, new) = (&now.service, &want.service);
    let differs = [
        ("service.workers", old.workers != new.workers),
        ("service.cpus", old.cpus != new.cpus),
        ("service.burst", old.burst() != new.burst()),
        ("service.profile", old.profile != new.profile),
        ("service.stage", old.stage != new.stage),
        ("limits", now.limits != want.limits),
    ];
    let words = |name| format!("leave {name} as it is until the service starts again with this file");
    differs.into_iter().filter(|(_, other)| *other).map(|(name, _)| words(name)).collect()
}

fn same_place(a: &Program, b: &Program) -> bool {
    (&a.port, a.queue, a.priority, &a.chain_on) == (&b.port, b.queue, b.priority, &b.chain_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[[port]]
name = "packet:a"
[[port]]
name = "packet:b"
pass_to = "packet:a"
[[program]]
name = "one"
port = "packet:a"
object = "one.o"
[[program]]
name = "two"
port = "packet:b"
object = "two.o"
"#;

    fn read(text: &str) -> Config {
        Config::parse(text).unwrap()
    }

    fn told(now: &str, want: &str, changed: &[&str]) -> Vec<String> {
        told_lost(now, want, changed, &[])
    }

    fn told_lost(now: &str, want: &str, changed: &[&str], lost: &[String]) -> Vec<String> {
        let digests = |c: &Config, changed: &[&str]| -> Digests {
            let digest = |p: &Program| (p.name.clone(), changed.contains(&p.name.as_str()).to_string());
            c.programs.iter().map(digest).collect()
        };
        let (now, want) = (read(now), read(want));
        steps(&now, &digests(&now, &[]), &want, &digests(&want, changed), lost).iter().map(Step::to_string).collect()
    }

    #[test]
    fn a_port_that_is_lost_is_opened_again_with_what_is_on_it() {
        let steps = told_lost(FILE, FILE, &[], &["packet:b".to_owned()]);
        let expected = [
            "detach program two from packet:b",
            "close port packet:b",
            "open port packet:b",
            "send PASS of packet:b to packet:a",
            "attach program two (two.o) to packet:b, priority 50",
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn what_needs_a_new_start_is_said() {
        let kept = |now: &str, want: &str| kept(&read(now), &read(want));
        assert_eq!(kept("", "[service]\nsocket = \"/tmp/x\"\nburst = 64"), [""; 0], "the same numbers");
        let said = kept("", "[service]\nworkers = 2\nprofile = \"small\"\nstage = false\n[limits]\nconnections = 3");
        let names: Vec<&str> = said.iter().map(|words| words.split(' ').nth(1).unwrap()).collect();
        assert_eq!(names, ["service.workers", "service.burst", "service.profile", "service.stage", "limits"]);
    }

    #[test]
    fn from_nothing_and_back() {
        let up = told("", FILE, &[]);
        assert_eq!(up[0], "open port packet:a");
        assert_eq!(up[2], "send PASS of packet:b to packet:a");
        assert_eq!(up[3], "attach program one (one.o) to packet:a, priority 50");
        assert_eq!(up.len(), 5);
        let down = told(FILE, "", &[]);
        assert_eq!(down[0], "detach program one from packet:a");
        assert_eq!(down[3], "close port packet:b");
    }

    #[test]
    fn what_is_the_same_is_left_alone() {
        assert_eq!(told(FILE, FILE, &[]), [""; 0]);
        assert_eq!(told(FILE, FILE, &["two"]), ["replace program two on packet:b by two.o"]);
        let moved = FILE.replacen("port = \"packet:a\"\nobject", "port = \"packet:b\"\nobject", 1);
        assert_eq!(
            told(FILE, &moved, &[]),
            ["detach program one from packet:a", "attach program one (one.o) to packet:b, priority 50"]
        );
        let rule = "name = \"packet:a\"\nsteer = [\"flow-type ether action 0\", \"equal 2\"]";
        let steered = FILE.replacen("name = \"packet:a\"", rule, 1);
        let words = ["steer packets of packet:a: flow-type ether action 0; equal 2"];
        assert_eq!(told(FILE, &steered, &[]), words);
        assert_eq!(told(&steered, FILE, &[]), ["steer packets of packet:a no more"]);
        // What a port is opened with takes closing and opening it.
        for field in ["queues = [[0, 0]]", "chunk = 2048", "read_only = true", "tx_batch = 8", "tx_limit = 65536"] {
            let other = FILE.replacen("name = \"packet:a\"", &format!("name = \"packet:a\"\n{field}"), 1);
            let steps = told(FILE, &other, &[]);
            assert_eq!(steps[..2], ["detach program one from packet:a", "close port packet:a"], "{field}");
            assert_eq!(steps.len(), 4, "{steps:?}");
            assert_eq!(told(&other, &other, &[]), [""; 0], "{field}");
        }
    }
}
