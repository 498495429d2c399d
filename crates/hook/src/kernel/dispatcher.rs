//! Several programs on one interface by the ecosystem's protocol: a dispatcher whose functions they replace. What is made
//! here, other tools see, add to and take from; what they made, this does.
//!
//! Pins: `/sys/fs/bpf/xdp/dispatch-IFINDEX-DID/progN-prog` and `progN-link`, `DID` being the dispatcher's id (below
//! `LIBXDP_BPFFS` where that is set). Whoever changes them holds a lock on `/sys/fs/bpf/xdp`. A change makes a new
//! dispatcher, which takes the old one's place over netlink if that is still there; else all starts again.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use xway_abi::Errno;
use xway_kernel::dispatcher::{Dispatcher, DispatcherConfig, DispatcherSlot, SLOTS};
use xway_kernel::{Device, KernelError, KernelProg, ProgInfo, consts};

use super::attach::{self, device};
use super::chain::replaced;
use super::{Source, spaces};
use crate::{AttachRequest, Attached, Blame, Choice, HookError, ProgId, Replace, Verdicts, explain, pins};

/// Version of the protocol that a new dispatcher has: what every tool that speaks the protocol understands.
const VERSION: u8 = 2;
/// How often a change starts again because somebody else was faster.
const ATTEMPTS: u32 = 5;

/// A program of a dispatcher.
pub(super) struct Member {
    pub info: ProgInfo,
    pub slot: DispatcherSlot,
    prog: KernelProg,
}

impl Member {
    pub fn chain_on(&self) -> Verdicts {
        Verdicts(self.slot.chain_on)
    }
}

/// A dispatcher on an interface, with its programs in the order in which they run.
pub(super) struct Present {
    id: u32,
    config: DispatcherConfig,
    dir: PathBuf,
    pub members: Vec<Member>,
}

fn refused(error: &KernelError) -> HookError {
    explain::plain(error)
}

fn pins_dir() -> PathBuf {
    let top = std::env::var_os("LIBXDP_BPFFS").map_or_else(|| pins::BPFFS.into(), PathBuf::from);
    top.join("xdp")
}

fn dir_of(device: &Device, id: u32) -> PathBuf {
    pins_dir().join(format!("dispatch-{}-{id}", device.ifindex))
}

/// One tool changes dispatchers at a time.
fn lock() -> Result<File, HookError> {
    let dir = pins_dir();
    pins::directory(&dir)?;
    let wrong = |e: std::io::Error| HookError::new(Blame::Machine, format!("{}: {e}", dir.display()));
    let file = File::open(&dir).map_err(wrong)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|e| wrong(e.into()))?;
    Ok(file)
}

/// The dispatcher behind a program on an interface, if that is one.
///
/// # Errors
/// It is one of another version, or its pins are not there.
pub(super) fn find(device: &Device, root: u32) -> Result<Option<Present>, HookError> {
    let prog = match KernelProg::by_id(root) {
        Ok(prog) => prog,
        Err(e) if e.errno() == Some(Errno::ENOENT) => return Ok(None),
        Err(e) => return Err(refused(&e)),
    };
    let config = match Dispatcher::read(&prog).map_err(|e| refused(&e))? {
        None => return Ok(None),
        Some(config) => config.map_err(|why| foreign(device, root, &why))?,
    };
    let dir = dir_of(device, root);
    let mut members = Vec::new();
    for (i, slot) in config.slots.iter().enumerate() {
        let path = dir.join(format!("prog{i}-prog"));
        let member = KernelProg::pinned(&path).and_then(|prog| Ok((prog.info()?, prog)));
        let (info, prog) = member.map_err(|e| foreign(device, root, &format!("its pins are not there: {e}")))?;
        members.push(Member { info, slot: *slot, prog });
    }
    Ok(Some(Present { id: root, config, dir, members }))
}

fn foreign(device: &Device, root: u32, why: &str) -> HookError {
    let message = format!("{}: program {root} is a dispatcher that cannot be changed: {why}", device.name);
    let hint = format!("take it away as a whole: xway unload {} -a", device.name);
    HookError { errno: Some(Errno::EBUSY), ..HookError::new(Blame::Request, message) }.hint(hint)
}

/// Why a program could not be put into a dispatcher.
pub(super) struct NotPut {
    pub error: HookError,
    /// The kernel takes no such program as an extension; nothing was changed.
    pub extension: bool,
}

impl From<HookError> for NotPut {
    fn from(error: HookError) -> NotPut {
        NotPut { error, extension: false }
    }
}

/// Puts a program into the dispatcher of an interface; makes one when there is none.
pub(super) fn attach(source: &Source, request: &AttachRequest, may_send: bool) -> Result<Attached, NotPut> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match attach_once(source, request, may_send) {
            Err(e)
                if attempt < ATTEMPTS && matches!(e.error.errno, Some(Errno::EBUSY | Errno::EEXIST)) && moved(&e) => {}
            done => return done,
        }
    }
}

/// Somebody else changed the interface between look and step.
fn moved(e: &NotPut) -> bool {
    e.error.blame == Blame::Request && e.error.hint.as_deref().is_some_and(|hint| hint.contains("--replace ID"))
}

fn attach_once(source: &Source, request: &AttachRequest, may_send: bool) -> Result<Attached, NotPut> {
    let _lock = lock()?;
    let device = device(&request.port)?;
    let old = match attach::present(&device, request.mode) {
        Some(root) => find(&device, root)?,
        None => None,
    };
    let image = &source.object.programs[source.index];
    let mut kept: Vec<&Member> = old.iter().flat_map(|o| &o.members).collect();
    let mut there: Vec<(u32, String)> = kept.iter().map(|m| (m.info.id, m.info.name.clone())).collect();
    there.sort(); // Ids rise with time.
    let out = replaced(&device.name, &there, None, &request.replace)?;
    kept.retain(|m| Some(m.info.id) != out);
    if kept.len() >= SLOTS {
        let message = format!("{}: its dispatcher has {SLOTS} programs, which is the most", device.name);
        return Err(HookError { errno: Some(Errno::E2BIG), ..HookError::new(Blame::Request, message) }.into());
    }
    let name: String = image.name.chars().take(15).collect();
    let slot = DispatcherSlot { priority: request.priority, chain_on: request.chain_on.0, frags: image.kind.frags() };
    // The protocol's order: priority, name, then what was loaded before.
    let place = kept.partition_point(|m| (m.slot.priority, m.info.name.as_str()) <= (slot.priority, name.as_str()));
    let version = old.as_ref().map_or(VERSION, |o| o.config.version);
    if old.as_ref().is_some_and(|o| o.config.device_bound) {
        return Err(foreign(&device, old.map_or(0, |o| o.id), "its programs are bound to the device").into());
    }
    let mut slots: Vec<DispatcherSlot> = kept.iter().map(|m| m.slot).collect();
    slots.insert(place, slot);
    let config = DispatcherConfig::new(version, slots);
    let made = build(&config, &kept, |target| source.kernel.load_extension(&source.object, image, target), place)?;
    let id = made.new.as_ref().map(|(_, id)| *id).unwrap_or_default();
    let put = exchange(&device, &made, old.as_ref(), request)?;
    let mut attached = attach::told(&request.port, put, request.mode, ProgId(id), may_send)?;
    attached.replaced = out;
    attached.chain = Some(Choice::met("dispatcher"));
    match made.new {
        Some(_) => Ok(attached),
        None => Err(HookError::new(Blame::Machine, "the member is not there").into()),
    }
}

/// A dispatcher with its functions replaced, not attached yet.
struct Built {
    dispatcher: Dispatcher,
    id: u32,
    /// Programs in their order, with the links that hold them there.
    filled: Vec<(OwnedFd, OwnedFd)>,
    /// The one that is new, and its id.
    new: Option<(KernelProg, u32)>,
}

/// Builds one; `load` makes the new program, which stands at `place`.
fn build(
    config: &DispatcherConfig,
    kept: &[&Member],
    load: impl Fn((&KernelProg, u32)) -> Result<KernelProg, KernelError>,
    place: usize,
) -> Result<Built, NotPut> {
    let attempt = |attach_type: u32| -> Result<Result<Built, KernelError>, NotPut> {
        let dispatcher =
            Dispatcher::load(config, attach_type).map_err(|e| NotPut { error: refused(&e), extension: true })?;
        let id = dispatcher.prog().info().map_err(|e| refused(&e))?.id;
        let mut built = Built { dispatcher, id, filled: Vec::new(), new: None };
        let mut rest = kept.iter();
        for slot in 0..config.slots.len() {
            let held = |prog: &KernelProg| prog.as_fd().try_clone_to_owned().map_err(io);
            if slot == place {
                let prog = load(built.dispatcher.target(slot))
                    .map_err(|e| NotPut { extension: e.errno().is_some(), error: refused(&e) })?;
                let id = prog.info().map_err(|e| refused(&e))?.id;
                let link = built.dispatcher.fill(slot, &prog).map_err(|e| refused(&e))?;
                built.filled.push((held(&prog)?, link));
                built.new = Some((prog, id));
            } else if let Some(member) = rest.next() {
                match built.dispatcher.fill(slot, &member.prog) {
                    Ok(link) => built.filled.push((held(&member.prog)?, link)),
                    Err(e) => return Ok(Err(e)),
                }
            }
        }
        Ok(Ok(built))
    };
    match attempt(consts::ATTACH_XDP)? {
        Ok(built) => Ok(built),
        // Its members were loaded for a dispatcher without attach type, which nothing tells.
        Err(e) if e.errno() == Some(Errno::EINVAL) => attempt(0)?.map_err(|e| refused(&e).into()),
        Err(e) => Err(refused(&e).into()),
    }
}

fn io(error: std::io::Error) -> HookError {
    HookError::new(Blame::Machine, format!("copying a descriptor: {error}"))
}

/// Pins the new dispatcher's programs, puts it in the place of the old one, removes the old one's pins.
fn exchange(
    device: &Device,
    made: &Built,
    old: Option<&Present>,
    request: &AttachRequest,
) -> Result<attach::Put, HookError> {
    let dir = dir_of(device, made.id);
    let pinned = pins::directory(&dir).and_then(|()| {
        made.filled.iter().enumerate().try_for_each(|(i, (prog, link))| {
            xway_kernel::pin(prog.as_fd(), &dir.join(format!("prog{i}-prog")))
                .and_then(|()| xway_kernel::pin(link.as_fd(), &dir.join(format!("prog{i}-link"))))
                .map_err(|e| refused(&e))
        })
    });
    let replace = old.map_or(Replace::Never, |o| Replace::Id(o.id));
    let request = AttachRequest { replace, ..request.clone() };
    let put = pinned.and_then(|()| attach::put(device, made.dispatcher.prog(), &request, attach::Hold::Netlink));
    match (&put, old) {
        (Ok(_), Some(old)) => remove(&old.dir),
        (Ok(_), None) => true,
        (Err(_), _) => remove(&dir),
    };
    put
}

/// Takes one program out of a dispatcher; the dispatcher itself when it was the last one. `false`: it is none of its programs.
pub(super) fn unload(device: &Device, root: u32, id: u32) -> Result<bool, HookError> {
    for attempt in 1.. {
        let _lock = lock()?;
        let Some(present) = find(device, root)?.filter(|p| p.members.iter().any(|m| m.info.id == id)) else {
            return Ok(false);
        };
        let kept: Vec<&Member> = present.members.iter().filter(|m| m.info.id != id).collect();
        if kept.is_empty() {
            attach::detach(device, root)?;
            remove(&present.dir);
            return Ok(true);
        }
        if present.config.device_bound {
            return Err(foreign(device, root, "its programs are bound to the device"));
        }
        let config = DispatcherConfig::new(present.config.version, kept.iter().map(|m| m.slot).collect());
        let none = |_: (&KernelProg, u32)| Err(KernelError::Call { step: "nothing to load", errno: Errno::EINVAL });
        let made = build(&config, &kept, none, usize::MAX).map_err(|e| e.error)?;
        let mode = device.attached().find(|(_, there)| *there == root).map(|(mode, _)| attach::mode(mode));
        let request =
            AttachRequest { mode: mode.unwrap_or_default(), ..AttachRequest::new(&device.name, ProgId(made.id)) };
        match exchange(device, &made, Some(&present), &request) {
            Err(e) if attempt < ATTEMPTS && matches!(e.errno, Some(Errno::EBUSY | Errno::EEXIST)) => {}
            done => return done.map(|_| true),
        }
    }
    Ok(false)
}

impl Present {
    /// Ids of its programs.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|m| m.info.id)
    }

    /// Removes its pins, behind its end.
    pub fn forget(&self) {
        if let Ok(_lock) = lock() {
            remove(&self.dir);
        }
    }
}

/// Removes what is pinned of a dispatcher. Its programs go when nothing runs them any more.
fn remove(dir: &Path) -> bool {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let _ = std::fs::remove_file(entry.path());
    }
    std::fs::remove_dir(dir).is_ok()
}

/// Removes pins of dispatchers that run on no interface of any network namespace that can be found, or only tells of them. Gives the
/// paths.
pub(super) fn clean(dry_run: bool) -> Vec<PathBuf> {
    let mut gone = Vec::new();
    if !pins_dir().exists() {
        return gone;
    }
    let Ok(_lock) = lock() else { return gone };
    // Pins keep a dispatcher alive, so its being there says nothing. Where a namespace cannot be asked nothing is removed.
    let Ok(running) = spaces::programs() else { return gone };
    for entry in std::fs::read_dir(pins_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|n| n.strip_prefix("dispatch-")?.rsplit_once('-')?.1.parse::<u32>().ok());
        if id.is_some_and(|id| !running.contains(&id)) && (dry_run || remove(&entry.path())) {
            gone.push(entry.path());
        }
    }
    gone
}
