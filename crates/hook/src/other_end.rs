//! The other end of a veth, wherever it lies, and commands that are run there.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use xway_kernel::{Device, devices, namespace_number};

use crate::kernel::spaces;

/// The other end of a veth.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OtherEnd {
    /// The interface.
    pub device: Device,
    /// The file of its network namespace; `None`: that of the calling thread.
    pub space: Option<PathBuf>,
}

impl OtherEnd {
    /// Looks for it: in the calling thread's namespace, then in those that have a name or a process. `None`: the device is no veth, the
    /// other end lies where this process may not look. Cost: one namespace to enter for each of the machine
    /// when it lies elsewhere.
    pub fn of(device: &Device) -> Option<OtherEnd> {
        if device.kind != "veth" {
            return None;
        }
        if let Some(number) = device.peer {
            let device = devices().ok()?.into_iter().find(|d| d.ifindex == number)?;
            return Some(OtherEnd { device, space: None });
        }
        let far = device.peer_elsewhere?;
        let is = |d: &Device| d.kind == "veth" && d.ifindex == far && d.peer_elsewhere == Some(device.ifindex);
        // Numbers of interfaces are small: many namespaces have two of these. Only one of them is the one that the kernel means.
        let meant = |space: &PathBuf| {
            let file = File::open(space).ok()?;
            namespace_number(file.as_fd()).ok()?.filter(|number| Some(*number) == device.peer_space)
        };
        let found = spaces::each_device(is).into_iter().find(|(space, _)| meant(space).is_some());
        found.map(|(space, device)| OtherEnd { device, space: Some(space) })
    }

    /// A command as it is given to reach the namespace that this end lies in.
    pub fn command(&self, words: &str) -> String {
        match &self.space {
            None => words.to_owned(),
            Some(space) => format!("nsenter --net={} {words}", space.display()),
        }
    }
}

/// A command for the other end of a veth: with its name where it is found, otherwise with how to find it. `words` gets the name.
pub fn at_other_end(name: &str, end: Option<&OtherEnd>, words: impl Fn(&str) -> String) -> String {
    match end {
        Some(end) => end.command(&words(&end.device.name)),
        None => format!(
            "{} in the namespace of the other end (ip -d link show {name} tells its number behind @if; as root it is found)",
            words("THAT-INTERFACE")
        ),
    }
}
