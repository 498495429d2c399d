//! Linux's own hook: programs on interfaces of this machine, by name, in the network namespace of the calling thread.
//!
//! An attachment must outlive the command that makes it. Where a BPF file system is mounted it is a *link* that is pinned
//! there (nobody else takes it away by accident, and replacing it is one atomic step); elsewhere, and beside programs that
//! others attached over netlink, it is made over netlink, as `ip link` does. Which of the two, [`Attachment::via`] says.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use xway_abi::Errno;
use xway_kernel::{
    Device, Expect, KernelError, KernelProg, LINK_TYPE_XDP, ObjectKind, ProgInfo, XdpLink, XdpMode, device_by_name,
    devices, ids, set_xdp,
};

use super::chain::{self, Chain};
use super::dispatcher;
use crate::{AttachRequest, Attached, Blame, Choice, HookError, Mode, OtherEnd, ProgId, Replace, Via, explain, pins};

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

/// Attaches a program that is loaded. `may_send`: it may return XDP_TX or XDP_REDIRECT, so what the interface then needs is
/// looked at.
pub(super) fn attach(prog: &KernelProg, request: &AttachRequest, may_send: bool) -> Result<Attached, HookError> {
    let device = device(&request.port)?;
    if request.mode == Mode::User {
        let message = format!("{}: mode user is one of the engine's hook", device.name);
        return Err(HookError::unsupported(message).hint("xway load PORT OBJ --hook user; or -m native, -m generic"));
    }
    if let Some(queue) = request.queue {
        let message = format!("{}: Linux has one program for all queues, none for queue {queue} alone", device.name);
        return Err(HookError::unsupported(message).hint("leave --queue out, or take the engine's hook: --hook user"));
    }
    let before = match request.replace {
        Replace::Any => Several::on(&device),
        // Who names a root takes its place for a while, and may give it back.
        _ => Vec::new(),
    };
    let put = put(&device, prog, request, Hold::Link)?;
    before.iter().filter(|several| put.replaced == Some(several.root)).for_each(Several::remove);
    told(&request.port, put, request.mode, request.program, may_send)
}

/// Several programs behind one root. What is pinned of them holds them and one another, so whoever ends the root removes it.
struct Several {
    root: u32,
    chain: Option<Chain>,
    dispatcher: Option<dispatcher::Present>,
}

impl Several {
    fn behind(device: &Device, root: u32) -> Several {
        // A dispatcher that is not understood can still be taken away as a whole.
        Several { root, chain: Chain::find(root), dispatcher: dispatcher::find(device, root).ok().flatten() }
    }

    fn on(device: &Device) -> Vec<Several> {
        device.attached().map(|(_, root)| Several::behind(device, root)).collect()
    }

    fn remove(&self) {
        self.chain.iter().for_each(Chain::remove);
        self.dispatcher.iter().for_each(dispatcher::Present::forget);
    }
}

/// What was done, in the words of the trait.
pub(super) fn told(port: &str, put: Put, asked: Mode, program: ProgId, may_send: bool) -> Result<Attached, HookError> {
    let device = device(port)?;
    let peer = OtherEnd::of(&device);
    let mut warnings = explain::warnings(&device, put.mode, peer.as_ref(), may_send);
    warnings.extend(put.notes);
    let reason = put.reason.filter(|_| put.mode != asked);
    let mode = Choice { requested: asked.name(), effective: put.mode.name(), reason };
    let held = Choice { requested: put.hold.name(), effective: put.via.name(), reason: put.held };
    let outcomes = Vec::new();
    Ok(Attached { mode, held, via: put.via, replaced: put.replaced, chain: None, program, outcomes, warnings })
}

/// What is to hold a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// A link; netlink where there can be none.
    Link,
    /// The interface itself: other tools, which know of no link, can exchange the program.
    Netlink,
}

impl Hold {
    const fn name(self) -> &'static str {
        match self {
            Hold::Link => "link",
            Hold::Netlink => "netlink",
        }
    }
}

/// Where a program was put.
pub(super) struct Put {
    pub mode: Mode,
    pub hold: Hold,
    pub via: Via,
    /// Why the mode is another one.
    pub reason: Option<String>,
    /// Why it is not held by a link.
    pub held: Option<String>,
    pub replaced: Option<u32>,
    /// What a person should know about how it was done.
    pub notes: Vec<String>,
}

/// How one mode took the program.
struct PutIn {
    via: Via,
    held: Option<String>,
    replaced: Option<u32>,
    notes: Vec<String>,
}

impl PutIn {
    fn new(via: Via) -> PutIn {
        PutIn { via, held: None, replaced: None, notes: Vec::new() }
    }
}

pub(super) fn put(device: &Device, prog: &KernelProg, request: &AttachRequest, hold: Hold) -> Result<Put, HookError> {
    let modes: &[Mode] = match request.mode {
        // Whoever is there decides: the two modes exclude each other.
        Mode::Auto if device.generic.is_some() => &[Mode::Generic],
        Mode::Auto if device.native.is_some() => &[Mode::Native],
        Mode::Auto => &[Mode::Native, Mode::Generic],
        Mode::Native => &[Mode::Native],
        Mode::Generic => &[Mode::Generic],
        Mode::Offload => &[Mode::Offload],
        Mode::User => &[],
    };
    let mut reason = match (request.mode, modes) {
        (Mode::Auto, [Mode::Generic]) => Some("a generic program is attached; the modes exclude each other".to_owned()),
        _ => None,
    };
    let mut refused = None;
    for &mode in modes {
        match put_in(device, prog, mode, request, hold) {
            Ok(PutIn { via, held, replaced, notes }) => {
                return Ok(Put { mode, hold, via, reason, held, replaced, notes });
            }
            Err(e) => {
                reason = Some(match (e.errno, &e.hint) {
                    (Some(Errno::EOPNOTSUPP), Some(_)) => "the driver has no native XDP".to_owned(),
                    // What it is, and the command that mends it.
                    (_, Some(hint)) => format!("{}; {hint}", e.message),
                    (_, None) => e.message.clone(),
                });
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

fn put_in(
    device: &Device,
    prog: &KernelProg,
    mode: Mode,
    request: &AttachRequest,
    hold: Hold,
) -> Result<PutIn, HookError> {
    let explained = |e: KernelError| explain::attach(&e, device, mode);
    let there = present(device, mode);
    let Some(old) = there else {
        if let Replace::Id(_) | Replace::Name(_) = &request.replace {
            let message = format!("{}: nothing is attached in mode {}", device.name, mode.name());
            return Err(HookError::new(Blame::Request, message).hint("leave --replace out"));
        }
        // The kernel has one of the two modes at a time.
        let other = match mode {
            Mode::Native => device.generic,
            Mode::Generic => device.native,
            _ => None,
        };
        return match other.filter(|_| request.replace == Replace::Any) {
            Some(other) => in_the_place_of(other, device, prog, mode, hold),
            None => alone(device, prog, mode, hold).map_err(explained),
        };
    };
    allowed(device, old, &request.replace)?;
    let before = KernelProg::by_id(old).map_err(|e| explain::plain(&e))?;
    match find_link(device, old).map_err(|e| explain::plain(&e))? {
        Some((link, id)) => {
            link.replace_expecting(prog, &before).map_err(explained)?;
            Ok(PutIn { replaced: Some(old), ..PutIn::new(Via::Link(id)) })
        }
        None => {
            set_xdp(device.ifindex, Some(prog), xdp(mode), Expect::Program(&before)).map_err(explained)?;
            let held = format!("program {old} was attached over netlink, and its place was taken in one step");
            let held = (hold == Hold::Link).then_some(held);
            Ok(PutIn { held, replaced: Some(old), ..PutIn::new(Via::Netlink) })
        }
    }
}

/// Attaches where nothing is.
fn alone(device: &Device, prog: &KernelProg, mode: Mode, hold: Hold) -> Result<PutIn, KernelError> {
    let no_link = match hold {
        Hold::Link => match link(device, prog, mode)? {
            Ok(id) => return Ok(PutIn::new(Via::Link(id))),
            Err(why) => Some(why),
        },
        Hold::Netlink => None,
    };
    set_xdp(device.ifindex, Some(prog), xdp(mode), Expect::Nothing)?;
    Ok(PutIn { held: no_link, ..PutIn::new(Via::Netlink) })
}

/// Attaches in one mode where a program runs in the other one. Linux has no step for both: the old one is taken away first, and put
/// back when the new one is refused.
fn in_the_place_of(old: u32, device: &Device, prog: &KernelProg, mode: Mode, hold: Hold) -> Result<PutIn, HookError> {
    let before = KernelProg::by_id(old).map_err(|e| explain::plain(&e))?;
    let linked = find_link(device, old).map_err(|e| explain::plain(&e))?.is_some();
    let old_mode = if mode == Mode::Native { Mode::Generic } else { Mode::Native };
    let old_hold = if linked { Hold::Link } else { Hold::Netlink };
    detach(device, old)?;
    match alone(device, prog, mode, hold) {
        Ok(put) => {
            let note = format!(
                "program {old} ran in mode {}, and Linux has one mode at a time: it was taken away first, so packets in between \
                 met no program",
                old_mode.name()
            );
            Ok(PutIn { replaced: Some(old), notes: vec![note], ..put })
        }
        Err(refused) => {
            let gone = Device { native: None, generic: None, ..device.clone() };
            let mut refused = explain::attach(&refused, &gone, mode);
            refused.message.push_str(&match alone(device, &before, old_mode, old_hold) {
                Ok(_) => format!("; program {old} was taken away for it and runs again in mode {}", old_mode.name()),
                Err(e) => format!("; program {old} was taken away for it, and could not be put back: {e}"),
            });
            Err(refused)
        }
    }
}

/// Name of the program that an `afxdp:` port attaches to its interface.
const REDIRECT: &str = xway_abi::xsk::AFXDP_PROGRAM;

pub(super) fn allowed(device: &Device, old: u32, replace: &Replace) -> Result<(), HookError> {
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
    let hint = match name().as_str() {
        // Without it the port would receive nothing any more, and would not know.
        REDIRECT => format!(
            "it belongs to a port afxdp:{0} that takes packets there: attach to that port (xway load afxdp:{0} OBJ --hook user), or \
             close it where it is open (xway unload afxdp:{0} -a --close --hook user), or end the process that it belongs to",
            device.name
        ),
        _ => format!("replace it: --replace {old}, or take it away: xway unload {} -a", device.name),
    };
    let mut refused = HookError::new(Blame::Request, message).hint(hint);
    refused.errno = Some(Errno::EBUSY);
    Err(refused)
}

/// Takes programs away from an interface: the one with this id, or all. Gives the ids. One member of a chain is taken out of
/// it; a chain that is taken away as a whole goes with its members.
pub fn unload(interface: &str, id: Option<u32>) -> Result<Vec<u32>, HookError> {
    let device = device(interface)?;
    if let Some(id) = id
        && chain::unload(&device, id)?
    {
        return Ok(vec![id]);
    }
    let chosen: Vec<_> = device.attached().filter(|(_, there)| id.is_none_or(|id| id == *there)).collect();
    if chosen.is_empty() {
        let what = match id {
            Some(id) => format!("{interface}: program {id} is not attached"),
            None => format!("{interface}: nothing is attached"),
        };
        return Err(HookError::new(Blame::Request, what).hint(format!("xway status {interface}")));
    }
    let mut gone = Vec::new();
    for (_, id) in chosen {
        let several = Several::behind(&device, id);
        let members = several.chain.as_ref().map(Chain::members).transpose()?.unwrap_or_default();
        detach(&device, id)?;
        several.remove();
        match several {
            Several { chain: Some(_), .. } => gone.extend(members.iter().map(|m| m.id)),
            Several { dispatcher: Some(dispatcher), .. } => gone.extend(dispatcher.ids()),
            _ => gone.push(id),
        }
    }
    Ok(gone)
}

/// Takes the program with this id away from an interface, whatever holds it.
pub(super) fn detach(device: &Device, id: u32) -> Result<(), HookError> {
    let before = KernelProg::by_id(id).map_err(|e| explain::plain(&e))?;
    let mode = device.attached().find(|(_, there)| *there == id).map_or(XdpMode::Any, |(mode, _)| mode);
    match find_link(device, id).map_err(|e| explain::plain(&e))? {
        Some((link, link_id)) => {
            link.detach().map_err(|e| explain::plain(&e))?;
            remove_pin(link_id);
            Ok(())
        }
        None => set_xdp(device.ifindex, None, mode, Expect::Program(&before))
            .map_err(|e| explain::attach(&e, device, Mode::Auto)),
    }
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
            found.push(Attachment { device: device.clone(), mode: self::mode(mode), via, program });
        }
    }
    Ok(found)
}

/// Removes pins of links whose interface or program has gone, and what is left of the chains behind them. Gives the paths.
pub fn clean(dry_run: bool) -> Result<Vec<PathBuf>, HookError> {
    let pinned = std::fs::read_dir(links_dir()).into_iter().flatten().flatten().filter_map(|entry| {
        let path = entry.path();
        let info = XdpLink::pinned(&path).and_then(|link| link.info()).ok()?;
        Some((path, info))
    });
    let (dead, alive): (Vec<_>, Vec<_>) = pinned.partition(|(_, info)| info.ifindex.is_none());
    // A pin is all that such a link's program is still there by.
    let lost = dead.iter().map(|(_, info)| info.prog_id).filter(|id| alive.iter().all(|(_, info)| info.prog_id != *id));
    let mut gone = if chain::any() { chain::clean(&lost.collect(), dry_run) } else { Vec::new() };
    gone.extend(dispatcher::clean(dry_run));
    gone.extend(dead.into_iter().map(|(path, _)| path).filter(|path| dry_run || std::fs::remove_file(path).is_ok()));
    Ok(gone)
}

/// Where the interface with this number is that runs this program: the namespace and the interface's name, if it is one of another
/// namespace that may be entered.
pub fn elsewhere(ifindex: u32, program: u32) -> Option<(PathBuf, String)> {
    let runs = |d: &Device| d.ifindex == ifindex && d.attached().any(|(_, id)| id == program);
    super::spaces::each_device(runs).into_iter().next().map(|(path, device)| (path, device.name))
}

/// An interface by its name.
pub fn device(name: &str) -> Result<Device, HookError> {
    device_by_name(name).map_err(|e| {
        if e.errno() != Some(Errno::ENODEV) {
            return explain::plain(&e);
        }
        let have: Vec<String> = devices().unwrap_or_default().into_iter().map(|d| d.name).collect();
        let error = HookError::no_device(format!("{name}: no such interface"));
        match name.contains(':') {
            true => error.hint("that is the name of a port of the engine: the same with --hook user asks the service"),
            false => error.hint(format!("one of: {}", have.join(", "))),
        }
    })
}

/// What is attached in a mode; in any of them for [`Mode::Auto`].
pub(super) fn present(device: &Device, mode: Mode) -> Option<u32> {
    match mode {
        Mode::Native => device.native,
        Mode::Generic => device.generic,
        Mode::Offload => device.offloaded,
        Mode::User => None,
        Mode::Auto => device.native.or(device.generic),
    }
}

/// The mode in the words of the trait.
pub(super) const fn mode(mode: XdpMode) -> Mode {
    match mode {
        XdpMode::Native => Mode::Native,
        XdpMode::Generic => Mode::Generic,
        _ => Mode::Offload,
    }
}

const fn xdp(mode: Mode) -> XdpMode {
    match mode {
        Mode::Auto | Mode::User => XdpMode::Any,
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

/// Attaches with a pinned link. Inner error: links cannot be used here for this reason, and nothing was attached.
fn link(device: &Device, prog: &KernelProg, mode: Mode) -> Result<Result<u32, String>, KernelError> {
    if let Err(e) = pins::directory(&links_dir()) {
        return Ok(Err(format!("a link must be pinned to outlive the command: {e}")));
    }
    let link = match XdpLink::attach(prog, device.ifindex, xdp(mode)) {
        Ok(link) => link,
        // Netlink says in words what is wrong, and kernels before 5.9 have no links for XDP.
        Err(e) => return Ok(Err(format!("the kernel made no link: {e}"))),
    };
    let id = link.info()?.id;
    match xway_kernel::pin(link.as_fd(), &links_dir().join(id.to_string())) {
        Ok(()) => Ok(Ok(id)),
        // Without a pin it would go with this process: given up here, made over netlink by the caller.
        Err(e) => Ok(Err(format!("the link could not be pinned: {e}"))),
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
