//! Dropping by lists, on any hook: packets from listed addresses, and packets to listed ports of TCP and UDP.
//!
//! [`load`] puts the program (`bpf/tools/filter.bpf.c`) on ports; the ports of one call share their lists. [`Lists`]
//! are then changed and read while packets flow, by whoever finds them: at a port, or by pins.
//!
//! A rule is there from one moment to the next: its counter first, then the one entry that leads to it. The counter's
//! number is claimed in the map itself, so that two commands at the same time never get the same one.

mod lists;
mod owner;
mod rule;

use std::path::{Path, PathBuf};

use xway_hook::{
    Attached, AttachmentInfo, Blame, Hook, HookError, HookKind, LoadRequest, MapId, Mode, ObjectId, ProgId,
};

pub use lists::{Added, Count, Listed, Lists, Rule};
pub use owner::Owner;
pub use rule::{Net, Subject, Transport};

use crate::attach::{How, everywhere};
use crate::{ToolError, objects};

/// Name of the program, which is the name that others see.
pub const PROGRAM: &str = "xway_filter";

/// The program's maps; pins have these names.
const MAPS: [&str; 5] = ["filter_net4", "filter_net6", "filter_ports", "filter_rules", "filter_counts"];

/// What becomes of packets, in the order of the program's counters.
pub const OUTCOMES: [&str; 7] = ["unlisted", "dropped", "allowed", "not_ip", "malformed", "tags", "headers"];

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Where in Linux the program runs.
    pub mode: Mode,
    /// Run together with other programs of the ports, at this place; `None`: alone.
    pub priority: Option<u32>,
    /// Lists that are pinned in this directory are used, and new ones pinned there.
    pub pins: Option<PathBuf>,
    /// Whose the pins are, on Linux.
    pub owner: Option<Owner>,
}

/// What a load did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// The ports, and what attaching did there.
    pub ports: Vec<(String, Attached)>,
    /// Lists that were there already.
    pub shared: Vec<PathBuf>,
    /// Lists that were pinned now.
    pub pinned: Vec<PathBuf>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// Filters on these ports, all of them or none.
///
/// # Errors
/// A port that is not there or has a program already; an owner without pins or on another hook than Linux's; what the
/// hook refuses.
pub fn load(hook: &mut dyn Hook, ports: &[String], options: &Options) -> Result<Loaded, ToolError> {
    let refused = |message: &str, hint: &str| Err(HookError::new(Blame::Request, message).hint(hint).into());
    match &options.owner {
        Some(_) if hook.kind() != HookKind::Kernel => {
            let hint = "the group in the service's configuration ([service] group) may change its lists";
            return refused("only pins of the kernel's hook have an owner", hint);
        }
        Some(_) if options.pins.is_none() => {
            return refused("an owner is given pins, and none are asked for", "-p /sys/fs/bpf/filter beside --owner");
        }
        _ => {}
    }
    let request = LoadRequest { programs: vec![PROGRAM.to_owned()], pins: options.pins.clone(), device: None };
    let made = hook.load(&objects::image("filter")?, &request)?;
    let missing = || ToolError::Object { name: "filter", why: format!("it has no program {PROGRAM}") };
    let program = made.program(PROGRAM).ok_or_else(missing)?;
    let how = How { mode: options.mode, priority: options.priority };
    let owned = own(&made.pinned, options).and_then(|()| everywhere(hook, ports, program, how));
    let ports = owned.inspect_err(|_| {
        // Nothing stays behind of what did not come to be; the refusal is the one to tell.
        made.pinned.iter().for_each(|pin| drop(hook.unpin(pin)));
    })?;
    let shut_out = options.owner.iter().zip(&options.pins).flat_map(|(owner, dir)| owner.shut_out(dir)).collect();
    Ok(Loaded { ports, shared: made.shared, pinned: made.pinned, warnings: shut_out })
}

fn own(pins: &[PathBuf], options: &Options) -> Result<(), ToolError> {
    options.owner.iter().try_for_each(|owner| pins.iter().try_for_each(|pin| owner.give(pin)))
}

/// Filters on one port, or on all.
///
/// # Errors
/// What the hook refuses.
pub fn attached(hook: &mut dyn Hook, port: Option<&str>) -> Result<Vec<AttachmentInfo>, ToolError> {
    let mut all = hook.attachments(port)?;
    all.retain(|a| a.program.name == PROGRAM);
    Ok(all)
}

/// The filter of a port, or the only one that there is.
///
/// # Errors
/// There is none, or there are several and no port was named; what the hook refuses.
pub fn lists_at(hook: &mut dyn Hook, port: Option<&str>) -> Result<Lists, ToolError> {
    let mut found: Vec<Lists> = Vec::new();
    let all = attached(hook, port)?;
    for attachment in &all {
        let lists = Lists::of(hook, attachment)?;
        if !found.contains(&lists) {
            found.push(lists);
        }
    }
    match (found.as_slice(), port) {
        ([only], _) => Ok(*only),
        ([], port) => Err(none(port)),
        (_, _) => {
            let names: Vec<&str> = all.iter().map(|a| a.port.as_str()).collect();
            let message = format!("there are several filters, on {}", names.join(", "));
            Err(HookError::new(Blame::Request, message).hint("name the port of one").into())
        }
    }
}

fn none(port: Option<&str>) -> ToolError {
    let message = port.map_or_else(|| "no port has a filter".to_owned(), |p| format!("{p}: no filter is attached"));
    HookError::new(Blame::Request, message).hint("xway filter load PORT puts one there").into()
}

/// What was taken away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unloaded {
    /// Ports and programs.
    pub programs: Vec<(String, ProgId)>,
    /// Pins.
    pub pins: Vec<PathBuf>,
}

/// Takes filters away from ports and leaves other programs there; with a directory, their pins too. A port without a
/// filter: nothing is done.
///
/// # Errors
/// A port has no filter; what the hook refuses.
pub fn unload(hook: &mut dyn Hook, ports: &[String], pins: Option<&Path>) -> Result<Unloaded, ToolError> {
    let mut there = Vec::new();
    for port in ports {
        let here = attached(hook, Some(port))?;
        if here.is_empty() {
            return Err(none(Some(port)));
        }
        there.extend(here.into_iter().map(|a| (port, a.program.id)));
    }
    let mut gone = Unloaded { programs: Vec::new(), pins: Vec::new() };
    for (port, id) in there {
        gone.programs.extend(hook.detach(port, Some(id))?.into_iter().map(|id| (port.clone(), id)));
    }
    for path in pins.iter().flat_map(|dir| MAPS.map(|name| dir.join(name))) {
        if hook.pinned(&path).is_ok() {
            hook.unpin(&path)?;
            gone.pins.push(path);
        }
    }
    Ok(gone)
}

/// The lists that are pinned in a directory.
///
/// # Errors
/// They are not there, or may not be opened.
pub fn lists_pinned(hook: &mut dyn Hook, dir: &Path) -> Result<Lists, ToolError> {
    let mut found = [MapId(0); MAPS.len()];
    for (name, id) in MAPS.iter().zip(&mut found) {
        match hook.pinned(&dir.join(name))? {
            ObjectId::Map(map) => *id = map,
            ObjectId::Program(_) => {
                let message = format!("{}: a program is pinned there, not a list", dir.join(name).display());
                return Err(HookError::new(Blame::Request, message)
                    .hint("name the directory of a filter's lists")
                    .into());
            }
        }
    }
    Ok(Lists::new(found))
}
