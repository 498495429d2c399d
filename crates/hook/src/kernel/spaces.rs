//! Network namespaces of the machine: what is attached in any of them.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use xway_kernel::devices;

use crate::{Blame, HookError, explain};

/// Ids of all programs on interfaces, in every namespace that a process lives in or that has a name.
///
/// # Errors
/// A namespace that may not be entered: then what runs there is not known.
pub(super) fn programs() -> Result<BTreeSet<u32>, HookError> {
    let mut found = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for path in places() {
        // A process may have ended, a name may have been taken away.
        let Ok(file) = File::open(&path) else { continue };
        if file.metadata().is_ok_and(|m| seen.insert((m.dev(), m.ino()))) {
            found.extend(attached(&file)?);
        }
    }
    Ok(found)
}

fn places() -> Vec<PathBuf> {
    let list = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let processes = list("/proc").filter(|e| e.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()));
    let mut all: Vec<PathBuf> = processes.map(|e| e.path().join("ns/net")).collect();
    all.extend(list("/run/netns").map(|e| e.path()));
    all
}

/// A thread of its own goes in, and ends there.
fn attached(space: &File) -> Result<Vec<u32>, HookError> {
    let work = || {
        match move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)) {
            Ok(()) => {}
            // A name whose namespace has gone is a plain file.
            Err(rustix::io::Errno::INVAL) => return Ok(Vec::new()),
            Err(e) => return Err(HookError::new(Blame::Machine, format!("entering a network namespace: {e}"))),
        }
        let all = devices().map_err(|e| explain::plain(&e))?;
        Ok(all.iter().flat_map(|d| d.attached().map(|(_, id)| id)).collect())
    };
    let ended = |_| HookError::new(Blame::Machine, "asking a network namespace: the thread ended");
    std::thread::scope(|scope| scope.spawn(work).join().map_err(ended)?)
}
