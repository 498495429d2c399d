//! Making, finding and removing labs.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use xway_isa::Slot;
use xway_kernel::{Expect, KernelError, KernelProg, ProgSpec, XdpMode, device_by_name, devices, set_xdp};

use crate::plan::{Plan, prefix};

/// Where `ip netns` keeps its names.
const NAMES: &str = "/run/netns";

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A lab of this name is there.
    #[error("lab {0} exists already")]
    Exists(String),
    /// No lab of this name is there.
    #[error("there is no lab {0}")]
    None(String),
    /// `ip` refused.
    #[error("`ip {command}` failed: {said}")]
    Step {
        /// Its arguments.
        command: String,
        /// What it wrote to standard error, or why it could not start.
        said: String,
    },
    /// A namespace could not be entered, or the list of them not be read.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// The reason.
        error: std::io::Error,
    },
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// A lab that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Existing {
    /// Its name.
    pub name: String,
    /// Its hosts, by number.
    pub hosts: Vec<Host>,
}

/// One host of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its number.
    pub number: u8,
    /// Its namespace.
    pub namespace: String,
    /// The end of its wire that should lie in the caller's namespace.
    pub interface: String,
    /// Whether it does.
    pub here: bool,
}

/// Makes a lab. What was made before a failure is removed again.
///
/// # Errors
/// [`LabError::Exists`]; `ip` is missing or refuses (no privilege, an address or a name that is taken).
pub fn up(plan: &Plan, name: &str) -> Result<(), LabError> {
    if existing()?.iter().any(|lab| lab.name == name) {
        return Err(LabError::Exists(name.to_owned()));
    }
    let made = plan
        .steps()
        .iter()
        .try_for_each(|step| ip(step))
        .and_then(|()| (0..plan.hosts()).try_for_each(|host| inside(&plan.namespace(host), || listen("eth0"))?));
    if made.is_err() {
        // The first failure is what counts; a namespace that was not made cannot be removed.
        for host in 0..plan.hosts() {
            let _ = ip(&words(&["netns", "del", &plan.namespace(host)]));
        }
    }
    made
}

/// Removes a lab and says how many hosts it had.
///
/// # Errors
/// [`LabError::None`], or `ip` refuses.
pub fn down(name: &str) -> Result<usize, LabError> {
    let lab = existing()?.into_iter().find(|lab| lab.name == name);
    let lab = lab.ok_or_else(|| LabError::None(name.to_owned()))?;
    for host in &lab.hosts {
        if host.here {
            // A namespace takes its wires along, but only some time later.
            ip(&words(&["link", "del", &host.interface]))?;
        }
        ip(&words(&["netns", "del", &host.namespace]))?;
    }
    Ok(lab.hosts.len())
}

/// All labs of this machine, by name.
///
/// # Errors
/// The list of namespaces, or of interfaces, cannot be read.
pub fn existing() -> Result<Vec<Existing>, LabError> {
    let entries = match std::fs::read_dir(NAMES) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(LabError::Io { what: NAMES.into(), error }),
    };
    let interfaces: Vec<String> = devices()?.into_iter().map(|d| d.name).collect();
    let mut labs: Vec<Existing> = Vec::new();
    for entry in entries.flatten() {
        let Some((name, host)) = entry.file_name().to_str().and_then(|n| host(n, &interfaces)) else { continue };
        match labs.iter_mut().find(|lab| lab.name == name) {
            Some(lab) => lab.hosts.push(host),
            None => labs.push(Existing { name, hosts: vec![host] }),
        }
    }
    labs.sort_by(|a, b| a.name.cmp(&b.name));
    labs.iter_mut().for_each(|lab| lab.hosts.sort_by_key(|host| host.number));
    Ok(labs)
}

/// A lab's name and its host, when the namespace is one's.
fn host(namespace: &str, interfaces: &[String]) -> Option<(String, Host)> {
    let (name, number) = namespace.strip_prefix("xway-")?.rsplit_once('-')?;
    let number: u8 = number.parse().ok()?;
    Plan::new(name, 1, 0, false).ok()?;
    debug_assert!(namespace.starts_with(&prefix(name)));
    let interface = format!("{name}{number}");
    let here = interfaces.contains(&interface);
    Some((name.to_owned(), Host { number, namespace: namespace.to_owned(), interface, here }))
}

/// The first number from 77 on such that no address of this namespace begins with `10.NUMBER.`.
///
/// # Errors
/// `ip` is missing or refuses.
pub fn free_net() -> Result<u8, LabError> {
    let arguments = words(&["-o", "-4", "addr", "show"]);
    let taken = String::from_utf8_lossy(&output(&arguments)?).into_owned();
    let free = |net: &u8| !taken.split_whitespace().any(|word| word.starts_with(&format!("10.{net}.")));
    (77..=255).find(free).ok_or_else(|| LabError::Step {
        command: arguments.join(" "),
        said: "every network from 10.77 to 10.255 is in use".into(),
    })
}

/// Gives the far end of a wire a native program that passes everything: without one a veth takes no frames of XDP_TX and
/// redirects. It stays until the wire goes.
fn listen(interface: &str) -> Result<(), LabError> {
    // r0 = 2 (XDP_PASS); exit
    let insns = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]].map(Slot::from_bytes);
    let program = KernelProg::load(&ProgSpec::xdp("xway_lab_pass", &insns))?;
    let device = device_by_name(interface)?;
    Ok(set_xdp(device.ifindex, Some(&program), XdpMode::Native, Expect::Nothing)?)
}

/// Runs `work` on a thread inside a namespace.
fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
    let failed = |error: std::io::Error| LabError::Io { what: format!("entering namespace {namespace}"), error };
    let file = File::open(format!("{NAMES}/{namespace}")).map_err(failed)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|e| failed(e.into()))?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn ip(arguments: &[String]) -> Result<(), LabError> {
    output(arguments).map(drop)
}

fn output(arguments: &[String]) -> Result<Vec<u8>, LabError> {
    let said = match Command::new("ip").args(arguments).output() {
        Ok(output) if output.status.success() => return Ok(output.stdout),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("{error}; it comes with iproute2"),
    };
    Err(LabError::Step { command: arguments.join(" "), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_others_are_no_hosts() {
        let here = vec!["lab0".to_owned()];
        for foreign in ["lab-0", "xway-lab", "xway-lab-", "xway-lab-x", "xway-lab-256", "xway-Lab-0", "xwlab-1-0-a"] {
            assert_eq!(host(foreign, &here), None, "{foreign}");
        }
        let (name, found) = host("xway-lab-0", &here).unwrap();
        assert_eq!((name.as_str(), found.interface.as_str(), found.here), ("lab", "lab0", true));
        assert!(!host("xway-lab-1", &here).unwrap().1.here);
    }
}
