//! The other end of a veth, wherever it lies, and commands that are run there.

use std::path::PathBuf;

use xway_kernel::{Device, devices};

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
    /// other end lies where this process may not look, or several could be it. Cost: one namespace to enter for each of the machine
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
        let mut found = spaces::each_device(is);
        match found.len() {
            // Two of them lead to an interface of this number: which one leads here is not known.
            1 => found.pop().map(|(space, device)| OtherEnd { device, space: Some(space) }),
            _ => None,
        }
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
