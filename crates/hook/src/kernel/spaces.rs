//! Network namespaces of the machine: what is attached in any of them, and which interfaces there are.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use xway_kernel::{Device, devices};

use crate::{Blame, HookError, explain};

/// Ids of all programs on interfaces, in every namespace that a process lives in or that has a name.
///
/// # Errors
/// A namespace that may not be entered: then what runs there is not known.
pub(super) fn programs() -> Result<BTreeSet<u32>, HookError> {
    let mut found = BTreeSet::new();
    for (_, file) in spaces() {
        found.extend(interfaces(&file)?.iter().flat_map(|d| d.attached().map(|(_, id)| id)));
    }
    Ok(found)
}

/// Interfaces of all namespaces that may be entered, the calling thread's own left out, for which `is` holds.
pub(crate) fn each_device(is: impl Fn(&Device) -> bool) -> Vec<(PathBuf, Device)> {
    let own = std::fs::metadata("/proc/thread-self/ns/net").map(|m| (m.dev(), m.ino())).ok();
    let there = spaces().filter(|(_, file)| file.metadata().ok().map(|m| (m.dev(), m.ino())) != own);
    let of = |(path, file): (PathBuf, File)| {
        let all = interfaces(&file).unwrap_or_default().into_iter();
        all.filter(|d| is(d)).map(|d| (path.clone(), d)).collect::<Vec<_>>()
    };
    there.flat_map(of).collect()
}

/// Each namespace once, by its name where it has one.
fn spaces() -> impl Iterator<Item = (PathBuf, File)> {
    let mut seen = BTreeSet::new();
    places().into_iter().filter_map(move |path| {
        // A process may have ended, a name may have been taken away.
        let file = File::open(&path).ok()?;
        let new = file.metadata().is_ok_and(|m| seen.insert((m.dev(), m.ino())));
        new.then_some((path, file))
    })
}

fn places() -> Vec<PathBuf> {
    let list = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let processes = list("/proc").filter(|e| e.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()));
    let mut all: Vec<PathBuf> = list("/run/netns").map(|e| e.path()).collect();
    all.extend(processes.map(|e| e.path().join("ns/net")));
    all
}

/// A thread of its own goes in, and ends there.
fn interfaces(space: &File) -> Result<Vec<Device>, HookError> {
    let work = || {
        match move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)) {
            Ok(()) => {}
            // A name whose namespace has gone is a plain file.
            Err(rustix::io::Errno::INVAL) => return Ok(Vec::new()),
            Err(e) => return Err(HookError::new(Blame::Machine, format!("entering a network namespace: {e}"))),
        }
        devices().map_err(|e| explain::plain(&e))
    };
    let ended = |_| HookError::new(Blame::Machine, "asking a network namespace: the thread ended");
    std::thread::scope(|scope| scope.spawn(work).join().map_err(ended)?)
}
