//! Linux's own hook: programs on interfaces of this machine, by name, in the network namespace of the calling thread.
//!
//! An attachment must outlive the command that makes it. Where a BPF file system is mounted it is a *link* that is pinned
//! there (nobody else takes it away by accident, and replacing it is one atomic step); elsewhere, and beside programs that
//! others attached over netlink, it is made over netlink, as `ip link` does. Which of the two, [`Attachment::via`] says.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use xway_abi::Errno;
use xway_kernel::{
    Device, Expect, KernelError, KernelObject, KernelProg, LINK_TYPE_XDP, ObjectKind, ProgInfo, XdpLink, XdpMode,
    device_by_name, devices, ids, set_xdp,
};
use xway_object::Object;

use crate::{Blame, HookError, Mode, explain, pins};

/// How an attachment is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    /// By a link with this id.
    Link(u32),
    /// By the interface itself.
    Netlink,
}

impl Via {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Via::Link(_) => "link",
            Via::Netlink => "netlink",
        }
    }
}

/// What is attached to an interface.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The interface.
    pub device: Device,
    /// Where it runs.
    pub mode: Mode,
    /// How it is held.
    pub via: Via,
    /// The program.
    pub program: ProgInfo,
}

/// What [`load`] is asked for.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    /// The object.
    pub object: &'a Object,
    /// Index of the program in it.
    pub program: usize,
    /// Name of the interface.
    pub interface: &'a str,
    /// Where to attach.
    pub mode: Mode,
    /// Directory for the object's maps; `None`: only maps that ask for it are pinned, directly below [`pins::BPFFS`].
    pub pins: Option<&'a Path>,
    /// What may be there already.
    pub replace: Replace,
    /// The program may return XDP_TX or XDP_REDIRECT: what the interface then needs is looked at.
    pub may_send: bool,
}

/// What happens to a program that is attached already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Replace {
    /// It stays, and the load is refused.
    Never,
    /// It is replaced, whatever it is.
    Any,
    /// It is replaced if it has this id.
    Id(u32),
    /// It is replaced if it has this name.
    Name(String),
}

/// What [`load`] did.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The attachment.
    pub attachment: Attachment,
    /// Why the mode is not the one that was asked for.
    pub reason: Option<String>,
    /// Id of the program that was replaced.
    pub replaced: Option<u32>,
    /// Maps that were there already and are used.
    pub shared: Vec<PathBuf>,
    /// Maps that were pinned now.
    pub pinned: Vec<PathBuf>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// Loads a program into the kernel and attaches it. Nothing stays behind when it is refused, but for maps that were
/// pinned.
pub fn load(request: &Load<'_>) -> Result<Loaded, HookError> {
    let device = device(request.interface)?;
    if request.mode == Mode::Offload {
        // The program would have to be compiled for the device by the kernel from the start.
        let message = format!("{}: running programs in the device itself is not supported", device.name);
        return Err(HookError::new(Blame::Machine, message).hint("-m native or -m generic"));
    }
    let program = &request.object.programs[request.program];
    let (dir, all) = match request.pins {
        Some(dir) => (dir.to_owned(), true),
        None => (PathBuf::from(pins::BPFFS), false),
    };
    let wants_pins = request.object.maps.iter().any(|def| pins::wanted(def, all));
    if wants_pins {
        pins::directory(&dir)?;
    }
    let (mut shared, mut refused) = (Vec::new(), None);
    let find = |def: &xway_object::MapDef| {
        if !wants_pins || !pins::wanted(def, all) {
            return Ok(None);
        }
        let path = dir.join(&def.name);
        match pins::find(&path, def) {
            Ok(found) => {
                shared.extend(found.is_some().then_some(path));
                Ok(found)
            }
            Err(e) => {
                refused = Some(e);
                Err(KernelError::Call { step: "sharing a map", errno: Errno::EINVAL })
            }
        }
    };
    let called = tail_called(request.object);
    let want = |p: &xway_object::Program| p.name == program.name || called.contains(&p.name);
    let loaded = match KernelObject::load_sharing(request.object, want, find) {
        Ok(loaded) => loaded,
        Err(e) => return Err(refused.unwrap_or_else(|| explain::plain(&e))),
    };
    let prog = loaded.programs[request.program].as_ref().map_err(explain::plain)?;
    let pinned = if wants_pins { pins::pin(&dir, request.object, &loaded, all)? } else { Vec::new() };

    let put = put(&device, prog, request)?;
    let info = prog.info().map_err(|e| explain::plain(&e))?;
    let device = self::device(request.interface)?;
    let peer = peer(&device);
    let warnings = explain::warnings(&device, put.mode, peer.as_ref(), request.may_send);
    let attachment = Attachment { device, mode: put.mode, via: put.via, program: info };
    Ok(Loaded { attachment, reason: put.reason, replaced: put.replaced, shared, pinned, warnings })
}

/// Programs that stand in a PROG_ARRAY of the object from the start.
fn tail_called(object: &Object) -> Vec<String> {
    let mut out = Vec::new();
    for def in &object.maps {
        if let xway_object::Initial::Slots(slots) = &def.initial {
            for (_, slot) in slots {
                if let xway_object::SlotRef::Program(index) = slot {
                    out.extend(object.programs.get(*index).map(|p| p.name.clone()));
                }
            }
        }
    }
    out
}

struct Put {
    mode: Mode,
    via: Via,
    reason: Option<String>,
    replaced: Option<u32>,
}

fn put(device: &Device, prog: &KernelProg, request: &Load<'_>) -> Result<Put, HookError> {
    let modes: &[Mode] = match request.mode {
        // Whoever is there decides: the two modes exclude each other.
        Mode::Auto if device.generic.is_some() => &[Mode::Generic],
        Mode::Auto if device.native.is_some() => &[Mode::Native],
        Mode::Auto => &[Mode::Native, Mode::Generic],
        Mode::Native => &[Mode::Native],
        Mode::Generic => &[Mode::Generic],
        Mode::Offload => &[Mode::Offload],
    };
    let mut reason = match (request.mode, modes) {
        (Mode::Auto, [Mode::Generic]) => Some("a generic program is attached; the modes exclude each other".to_owned()),
        _ => None,
    };
    let mut refused = None;
    for &mode in modes {
        match put_in(device, prog, mode, request) {
            Ok((via, replaced)) => return Ok(Put { mode, via, reason, replaced }),
            Err(e) => {
                let why = e.hint.as_deref().filter(|_| e.errno == Some(Errno::EOPNOTSUPP));
                reason = Some(why.map_or_else(|| e.message.clone(), |_| "the driver has no native XDP".to_owned()));
                // Only what a mode cannot do is a reason to try the other one.
                let other = matches!(e.errno, Some(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ERANGE | Errno::ENOSPC));
                if !other {
                    return Err(e);
                }
                refused.get_or_insert(e);
            }
        }
    }
    Err(refused.unwrap_or_else(|| HookError::new(Blame::Request, format!("{}: no mode to attach in", device.name))))
}

fn put_in(device: &Device, prog: &KernelProg, mode: Mode, request: &Load<'_>) -> Result<(Via, Option<u32>), HookError> {
    let explained = |e: KernelError| explain::attach(&e, device, mode);
    let there = present(device, mode);
    let Some(old) = there else {
        if let Replace::Id(_) | Replace::Name(_) = &request.replace {
            let message = format!("{}: nothing is attached in mode {}", device.name, mode.name());
            return Err(HookError::new(Blame::Request, message).hint("leave --replace out"));
        }
        return match link(device, prog, mode) {
            Ok(Some(id)) => Ok((Via::Link(id), None)),
            Ok(None) => set_xdp(device.ifindex, Some(prog), xdp(mode), Expect::Nothing)
                .map(|()| (Via::Netlink, None))
                .map_err(explained),
            Err(e) => Err(explained(e)),
        };
    };
    allowed(device, old, &request.replace)?;
    let before = KernelProg::by_id(old).map_err(|e| explain::plain(&e))?;
    match find_link(device, old).map_err(|e| explain::plain(&e))? {
        Some((link, id)) => {
            link.replace_expecting(prog, &before).map_err(explained)?;
            Ok((Via::Link(id), Some(old)))
        }
        None => {
            set_xdp(device.ifindex, Some(prog), xdp(mode), Expect::Program(&before)).map_err(explained)?;
            Ok((Via::Netlink, Some(old)))
        }
    }
}

fn allowed(device: &Device, old: u32, replace: &Replace) -> Result<(), HookError> {
    let name = || KernelProg::by_id(old).and_then(|p| p.info()).map(|i| i.name).unwrap_or_default();
    let ok = match replace {
        Replace::Never => false,
        Replace::Any => true,
        Replace::Id(id) => *id == old,
        Replace::Name(wanted) => *wanted == name(),
    };
    if ok {
        return Ok(());
    }
    let message = format!("{}: program {old} ({}) is attached", device.name, name());
    let mut refused = HookError::new(Blame::Request, message)
        .hint(format!("replace it: --replace {old}, or take it away: xway unload {} -a", device.name));
    refused.errno = Some(Errno::EBUSY);
    Err(refused)
}

/// Takes programs away from an interface: the one with this id, or all. Gives the ids.
pub fn unload(interface: &str, id: Option<u32>) -> Result<Vec<u32>, HookError> {
    let device = device(interface)?;
    let chosen: Vec<_> = device.attached().filter(|(_, there)| id.is_none_or(|id| id == *there)).collect();
    if chosen.is_empty() {
        let what = match id {
            Some(id) => format!("{interface}: program {id} is not attached"),
            None => format!("{interface}: nothing is attached"),
        };
        return Err(HookError::new(Blame::Request, what).hint(format!("xway status {interface}")));
    }
    let mut gone = Vec::new();
    for (mode, id) in chosen {
        let before = KernelProg::by_id(id).map_err(|e| explain::plain(&e))?;
        match find_link(&device, id).map_err(|e| explain::plain(&e))? {
            Some((link, link_id)) => {
                link.detach().map_err(|e| explain::plain(&e))?;
                remove_pin(link_id);
            }
            None => set_xdp(device.ifindex, None, mode, Expect::Program(&before))
                .map_err(|e| explain::attach(&e, &device, Mode::Auto))?,
        }
        gone.push(id);
    }
    Ok(gone)
}

/// What is attached, to one interface or to all.
pub fn status(interface: Option<&str>) -> Result<Vec<Attachment>, HookError> {
    let chosen = match interface {
        Some(name) => vec![device(name)?],
        None => devices().map_err(|e| explain::plain(&e))?,
    };
    let mut found = Vec::new();
    for device in chosen {
        for (mode, id) in device.attached() {
            let program = match KernelProg::by_id(id).and_then(|p| p.info()) {
                Ok(info) => info,
                // It went away between the two questions.
                Err(e) if e.errno() == Some(Errno::ENOENT) => continue,
                Err(e) => return Err(explain::plain(&e)),
            };
            let link = find_link(&device, id).map_err(|e| explain::plain(&e))?;
            let via = link.map_or(Via::Netlink, |(_, id)| Via::Link(id));
            let mode = match mode {
                XdpMode::Native => Mode::Native,
                XdpMode::Generic => Mode::Generic,
                _ => Mode::Offload,
            };
            found.push(Attachment { device: device.clone(), mode, via, program });
        }
    }
    Ok(found)
}

/// Removes pins of links whose interface or program has gone. Gives the paths.
pub fn clean() -> Result<Vec<PathBuf>, HookError> {
    let Ok(entries) = std::fs::read_dir(links_dir()) else { return Ok(Vec::new()) };
    let mut gone = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let dead = XdpLink::pinned(&path).and_then(|link| link.info()).is_ok_and(|info| info.ifindex.is_none());
        if dead && std::fs::remove_file(&path).is_ok() {
            gone.push(path);
        }
    }
    Ok(gone)
}

/// An interface by its name.
pub fn device(name: &str) -> Result<Device, HookError> {
    device_by_name(name).map_err(|e| {
        if e.errno() != Some(Errno::ENODEV) {
            return explain::plain(&e);
        }
        let have: Vec<String> = devices().unwrap_or_default().into_iter().map(|d| d.name).collect();
        let mut error = HookError::new(Blame::Request, format!("{name}: no such interface"));
        error.errno = Some(Errno::ENODEV);
        error.hint(format!("one of: {}", have.join(", ")))
    })
}

/// The other end of a veth, when it lies in this namespace.
fn peer(device: &Device) -> Option<Device> {
    let index = device.peer.filter(|_| device.kind == "veth")?;
    devices().ok()?.into_iter().find(|d| d.ifindex == index)
}

fn present(device: &Device, mode: Mode) -> Option<u32> {
    match mode {
        Mode::Native => device.native,
        Mode::Generic => device.generic,
        Mode::Offload => device.offloaded,
        Mode::Auto => None,
    }
}

const fn xdp(mode: Mode) -> XdpMode {
    match mode {
        Mode::Auto => XdpMode::Any,
        Mode::Native => XdpMode::Native,
        Mode::Generic => XdpMode::Generic,
        Mode::Offload => XdpMode::Offload,
    }
}

/// Pins of links: one file for each, named by the link's id.
fn links_dir() -> PathBuf {
    Path::new(pins::BPFFS).join("xway/links")
}

fn remove_pin(link: u32) {
    // Somebody else's link has no pin of ours; that is as good.
    let _ = std::fs::remove_file(links_dir().join(link.to_string()));
}

/// Attaches with a pinned link. `None`: links cannot be used here, and nothing was attached.
fn link(device: &Device, prog: &KernelProg, mode: Mode) -> Result<Option<u32>, KernelError> {
    if pins::directory(&links_dir()).is_err() {
        return Ok(None);
    }
    let link = match XdpLink::attach(prog, device.ifindex, xdp(mode)) {
        Ok(link) => link,
        // Netlink says in words what is wrong, and kernels before 5.9 have no links for XDP.
        Err(_) => return Ok(None),
    };
    let id = link.info()?.id;
    match xway_kernel::pin(link.as_fd(), &links_dir().join(id.to_string())) {
        Ok(()) => Ok(Some(id)),
        // Without a pin it would go with this process: given up here, made over netlink by the caller.
        Err(_) => Ok(None),
    }
}

/// The link that holds this program on this interface.
fn find_link(device: &Device, prog: u32) -> Result<Option<(XdpLink, u32)>, KernelError> {
    for id in ids(ObjectKind::Link)? {
        let Ok(link) = XdpLink::by_id(id) else { continue };
        let Ok(info) = link.info() else { continue };
        if info.link_type == LINK_TYPE_XDP && info.ifindex == Some(device.ifindex) && info.prog_id == prog {
            return Ok(Some((link, id)));
        }
    }
    Ok(None)
}
