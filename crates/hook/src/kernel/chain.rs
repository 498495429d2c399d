//! Several programs on one interface: by the ecosystem's dispatcher (`dispatcher`) where the kernel takes its programs; else
//! a list of members behind one root that is attached, changed one pointer at a time, which is what stands here.
//!
//! Everything that must outlive the command is pinned below `/sys/fs/bpf/xway/chains/ROOT`, `ROOT` being the root's id: the
//! array behind the root, one behind each member, and a map of the members with what was asked for. A program that was
//! loaded alone cannot hand on; it can be the last of a chain.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use xway_abi::{Errno, MapSpec, MapType};
use xway_kernel::{Device, KernelMap, KernelProg, chain_root};

use super::Source;
use super::attach::{self, Hold, Put, device};
use super::dispatcher::{self, NotPut};
use crate::{AttachRequest, Attached, Blame, Choice, HookError, PRIORITY, ProgId, Replace, Verdicts, explain, pins};

/// Most members: tail calls are limited to 33 for a packet, and programs may want some of their own.
pub const MEMBERS_MAX: usize = 16;
/// Slot 0.
const FIRST: [u8; 4] = [0; 4];

/// One member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    /// Program.
    pub id: u32,
    /// Smaller numbers run first; among equals the one that came first.
    pub priority: u32,
    /// Verdicts behind which the next one runs.
    pub chain_on: Verdicts,
    /// Rises with every member.
    number: u32,
    /// It was loaded alone: it has no array behind it.
    last: bool,
}

impl Member {
    fn bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        let words = [self.priority, self.chain_on.0, self.number, self.last.into()];
        out.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_ne_bytes());
        out
    }

    fn read(key: &[u8], value: &[u8]) -> Option<Member> {
        let word = |at: usize| value.get(at..at + 4)?.first_chunk().map(|b| u32::from_ne_bytes(*b));
        Some(Member {
            id: u32::from_ne_bytes(*key.first_chunk()?),
            priority: word(0)?,
            chain_on: Verdicts(word(4)?),
            number: word(8)?,
            last: word(12)? != 0,
        })
    }

    /// A member that cannot hand on stands behind all others.
    fn order(&self) -> (bool, u32, u32) {
        (self.last, self.priority, self.number)
    }
}

/// A chain of this machine.
pub(super) struct Chain {
    root: u32,
    dir: PathBuf,
    members: KernelMap,
}

fn chains_dir() -> PathBuf {
    Path::new(pins::BPFFS).join("xway/chains")
}

fn refused(error: &xway_kernel::KernelError) -> HookError {
    explain::plain(error)
}

fn errno(what: impl std::fmt::Display) -> impl FnOnce(Errno) -> HookError {
    move |e| HookError::errno(what, e)
}

/// One command changes chains at a time.
fn lock() -> Result<File, HookError> {
    pins::directory(&chains_dir())?;
    let wrong = |e: std::io::Error| HookError::new(Blame::Machine, format!("{}: {e}", chains_dir().display()));
    let dir = File::open(chains_dir()).map_err(wrong)?;
    flock(&dir, FlockOperation::LockExclusive).map_err(|e| wrong(e.into()))?;
    Ok(dir)
}

impl Chain {
    /// The chain behind a root, if this program is one.
    pub fn find(root: u32) -> Option<Chain> {
        let dir = chains_dir().join(root.to_string());
        let members = KernelMap::pinned(&dir.join("members")).ok()?;
        Some(Chain { root, dir, members })
    }

    /// Members in the order in which they run.
    pub fn members(&self) -> Result<Vec<Member>, HookError> {
        let mut all = Vec::new();
        for key in self.members.keys().map_err(errno("reading the members of a chain"))? {
            let value = self.members.get(&key).map_err(errno("reading a member of a chain"))?;
            all.extend(Member::read(&key, &value));
        }
        all.sort_by_key(Member::order);
        Ok(all)
    }

    fn create(frags: bool) -> Result<(Chain, KernelProg), HookError> {
        let spec = MapSpec::new(MapType::Hash, 4, 16, MEMBERS_MAX as u32);
        let members = KernelMap::create("xway_members", &spec).map_err(errno("creating a chain"))?;
        let next = array()?;
        let prog = chain_root(&next, frags).map_err(|e| refused(&e))?;
        let root = prog.info().map_err(|e| refused(&e))?.id;
        let chain = Chain { root, dir: chains_dir().join(root.to_string()), members };
        pins::directory(&chain.dir)?;
        let pinned = xway_kernel::pin(chain.members.as_fd(), &chain.dir.join("members"))
            .and_then(|()| xway_kernel::pin(next.as_fd(), &chain.dir.join("root")));
        match pinned {
            Ok(()) => Ok((chain, prog)),
            Err(e) => {
                chain.remove();
                Err(refused(&e))
            }
        }
    }

    /// The array in front of the member at this place: what it holds is run next.
    fn before(&self, all: &[Member], place: usize) -> Result<KernelMap, HookError> {
        let name = match place.checked_sub(1) {
            None => "root".to_owned(),
            Some(before) => all[before].id.to_string(),
        };
        KernelMap::pinned(&self.dir.join(name)).map_err(|e| refused(&e))
    }

    /// Puts a program in its place. Packets see it from the last step on.
    fn insert(&self, prog: &KernelProg, next: &KernelMap, member: Member) -> Result<(), HookError> {
        let all = self.members()?;
        let place = all.partition_point(|m| m.order() < member.order());
        if let Some(after) = all.get(place) {
            let after = KernelProg::by_id(after.id).map_err(|e| refused(&e))?;
            next.update_fd(&FIRST, after.as_fd(), 0).map_err(errno("chaining to the next program"))?;
        }
        let before = self.before(&all, place)?;
        xway_kernel::pin(next.as_fd(), &self.dir.join(member.id.to_string())).map_err(|e| refused(&e))?;
        let put = self
            .members
            .update(&member.id.to_ne_bytes(), &member.bytes(), 0)
            .and_then(|()| before.update_fd(&FIRST, prog.as_fd(), 0));
        put.map_err(|e| {
            self.forget(member.id);
            HookError::errno("putting a program into a chain", e)
        })
    }

    /// Takes a member out. Packets go round it from the first step on.
    fn take(&self, id: u32) -> Result<(), HookError> {
        let all = self.members()?;
        let place = all.iter().position(|m| m.id == id).ok_or_else(|| HookError::missing(format!("member {id}")))?;
        let before = self.before(&all, place)?;
        let step = match all.get(place + 1) {
            Some(after) => {
                let after = KernelProg::by_id(after.id).map_err(|e| refused(&e))?;
                before.update_fd(&FIRST, after.as_fd(), 0)
            }
            None => before.delete(&FIRST),
        };
        step.map_err(errno("taking a program out of a chain"))?;
        self.forget(id);
        Ok(())
    }

    fn forget(&self, id: u32) {
        // Both may be gone already: whoever looks next sees the same.
        let _ = self.members.delete(&id.to_ne_bytes());
        let _ = std::fs::remove_file(self.dir.join(id.to_string()));
    }

    /// Removes everything that is pinned of it.
    pub fn remove(&self) {
        remove_dir(&self.dir);
    }
}

fn remove_dir(dir: &Path) -> bool {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let _ = std::fs::remove_file(entry.path());
    }
    std::fs::remove_dir(dir).is_ok()
}

fn array() -> Result<KernelMap, HookError> {
    KernelMap::create("xway_next", &MapSpec::new(MapType::ProgArray, 4, 4, 1)).map_err(errno("creating a chain"))
}

/// Puts a program beside others on an interface: into the dispatcher of the ecosystem's protocol where the kernel has what
/// that needs, else into a chain of ours.
pub(super) fn attach(source: &Source, request: &AttachRequest, may_send: bool) -> Result<Attached, HookError> {
    let why = match why_no_dispatcher(request)? {
        Some(why) => why,
        None => match dispatcher::attach(source, request, may_send) {
            Ok(done) => return Ok(done),
            Err(NotPut { error, extension: true }) if has_no_dispatcher(request)? => {
                format!(
                    "the kernel refuses the program as an extension: {}",
                    error.message.lines().next().unwrap_or("")
                )
            }
            Err(NotPut { error, .. }) => return Err(error),
        },
    };
    let mut done = behind_a_root(source, request, may_send)?;
    done.chain = Some(Choice { requested: "dispatcher", effective: "tail calls", reason: Some(why) });
    Ok(done)
}

/// Why a program cannot go into a dispatcher here.
fn why_no_dispatcher(request: &AttachRequest) -> Result<Option<String>, HookError> {
    let device = device(&request.port)?;
    let Some(there) = attach::present(&device, request.mode) else {
        return Ok(xway_kernel::takes_extensions().err().map(|e| {
            let errno = e.errno().map_or_else(|| e.to_string(), |errno| errno.to_string());
            format!("this kernel refuses extension programs ({errno}), which the dispatcher of other tools is made of")
        }));
    };
    if dispatcher::find(&device, there)?.is_some() {
        return Ok(None);
    }
    let what = if Chain::find(there).is_some() { "the chain that is there" } else { "the program that is there" };
    Ok(Some(format!("{what} cannot go into a dispatcher")))
}

fn has_no_dispatcher(request: &AttachRequest) -> Result<bool, HookError> {
    Ok(attach::present(&device(&request.port)?, request.mode).is_none())
}

/// Puts a program into the chain of an interface; makes the chain when there is none.
fn behind_a_root(source: &Source, request: &AttachRequest, may_send: bool) -> Result<Attached, HookError> {
    let _lock = lock()?;
    let device = device(&request.port)?;
    let name = &device.name;
    let present = attach::present(&device, request.mode);
    let image = &source.object.programs[source.index];
    let (chain, new_root) = match present.and_then(Chain::find) {
        Some(chain) => (chain, None),
        None => {
            let (chain, prog) = Chain::create(false)?;
            (chain, Some(prog))
        }
    };
    let made = (|| {
        let members = chain.members()?;
        if members.len() >= MEMBERS_MAX {
            let message = format!("{name}: its chain has {MEMBERS_MAX} programs, which is the most");
            return Err(HookError { errno: Some(Errno::E2BIG), ..HookError::new(Blame::Request, message) });
        }
        let named = |id: u32| KernelProg::by_id(id).and_then(|p| p.info()).map(|i| i.name).unwrap_or_default();
        let mut there: Vec<&Member> = members.iter().collect();
        there.sort_by_key(|m| m.number);
        let there: Vec<(u32, String)> = there.iter().map(|m| (m.id, named(m.id))).collect();
        let old = replaced(name, &there, present.filter(|_| new_root.is_some()), &request.replace)?;
        let next = array()?;
        let loaded = source.kernel.load_chained(&source.object, image, &next, request.chain_on.0, false);
        let prog = loaded.map_err(|e| refused(&e))?;
        let id = prog.info().map_err(|e| refused(&e))?.id;
        let number = members.iter().map(|m| m.number).max().unwrap_or(0) + 1;
        let (priority, chain_on) = (request.priority, request.chain_on);
        let member = Member { id, priority, chain_on, number, last: false };
        if new_root.is_some()
            && let Some(alone) = present
        {
            take_in(&chain, name, alone, priority)?;
        }
        chain.insert(&prog, &next, member)?;
        if let Some(old) = old {
            chain.take(old)?;
        }
        Ok((prog, old))
    })();
    let (prog, old) = match made {
        Ok(made) => made,
        Err(e) => {
            if new_root.is_some() {
                chain.remove();
            }
            return Err(e);
        }
    };
    let put = match &new_root {
        None => Ok(in_place(&device, &chain, request)?),
        Some(root) => {
            let replace = present.map_or(Replace::Never, Replace::Id);
            attach::put(&device, root, &AttachRequest { replace, ..request.clone() }, Hold::Link)
        }
    };
    let put = put.inspect_err(|_| chain.remove())?;
    let id = prog.info().map_err(|e| refused(&e))?.id;
    let mut attached = attach::told(&request.port, put, request.mode, ProgId(id), may_send)?;
    attached.replaced = old;
    Ok(attached)
}

/// The program that was attached alone becomes the last of the chain.
fn take_in(chain: &Chain, name: &str, alone: u32, priority: u32) -> Result<(), HookError> {
    let prog = KernelProg::by_id(alone).map_err(|e| refused(&e))?;
    let info = prog.info().map_err(|e| refused(&e))?;
    if priority >= PRIORITY {
        let message = format!("{name}: program {alone} ({}) was loaded alone, so nothing can run behind it", info.name);
        let hint = format!("run before it: -P {} or less; or load it again with -P", PRIORITY - 1);
        return Err(HookError { errno: Some(Errno::EBUSY), ..HookError::new(Blame::Request, message) }.hint(hint));
    }
    let member = Member { id: alone, priority: PRIORITY, chain_on: Verdicts(0), number: 0, last: true };
    chain
        .members
        .update(&alone.to_ne_bytes(), &member.bytes(), 0)
        .map_err(errno("putting the attached program into a chain"))?;
    // Nothing is in front of it yet but the root.
    let root = KernelMap::pinned(&chain.dir.join("root")).map_err(|e| refused(&e))?;
    root.update_fd(&FIRST, prog.as_fd(), 0).map_err(|e| {
        let what =
            format!("program {alone} ({}) into a chain (programs with and without xdp.frags do not mix)", info.name);
        HookError::errno(what, e)
    })
}

/// The member that the new one replaces, of those that are there (id and name, the newest last); `alone`: the program that
/// is attached and no member.
pub(super) fn replaced(
    name: &str,
    members: &[(u32, String)],
    alone: Option<u32>,
    replace: &Replace,
) -> Result<Option<u32>, HookError> {
    let found = match replace {
        Replace::Never => return Ok(None),
        // The newest: what a person who loads again and again means.
        Replace::Any => members.last(),
        Replace::Id(id) => members.iter().find(|(m, _)| m == id),
        Replace::Name(wanted) => members.iter().find(|(_, name)| name == wanted),
    };
    if found.is_some() || matches!(replace, Replace::Any) {
        return Ok(found.map(|(id, _)| *id));
    }
    let there = match alone {
        Some(alone) => {
            let name = KernelProg::by_id(alone).and_then(|p| p.info()).map(|i| i.name).unwrap_or_default();
            format!("program {alone} ({name}) is attached alone")
        }
        None => {
            let all: Vec<String> = members.iter().map(|(id, name)| format!("{id} ({name})")).collect();
            format!("its chain has {}", if all.is_empty() { "no program".into() } else { all.join(", ") })
        }
    };
    let message = format!("{name}: the program to replace is not in its chain; {there}");
    Err(HookError::new(Blame::Request, message).hint(format!("xway status {name}")))
}

/// The root stays where it is.
fn in_place(device: &Device, chain: &Chain, request: &AttachRequest) -> Result<Put, HookError> {
    let here = attach::status(Some(&device.name))?;
    let found = here.into_iter().find(|a| a.program.id == chain.root);
    let found = found.ok_or_else(|| HookError::missing(format!("chain on {}", device.name)))?;
    let reason = (found.mode != request.mode).then(|| "its chain is attached in this mode".to_owned());
    Ok(Put {
        mode: found.mode,
        hold: Hold::Link,
        via: found.via,
        reason,
        held: None,
        replaced: None,
        notes: Vec::new(),
    })
}

/// Takes one member away; the chain itself when it was the last one. `false`: it is no member of a chain here.
pub(super) fn unload(device: &Device, id: u32) -> Result<bool, HookError> {
    for (_, root) in device.attached() {
        let Some(chain) = Chain::find(root) else {
            // One that is not understood has no programs that could be meant.
            if dispatcher::find(device, root).is_ok_and(|found| found.is_some())
                && dispatcher::unload(device, root, id)?
            {
                return Ok(true);
            }
            continue;
        };
        let _lock = lock()?;
        let members = chain.members()?;
        if members.iter().all(|m| m.id != id) {
            continue;
        }
        if members.len() > 1 {
            chain.take(id)?;
        } else {
            attach::detach(device, root)?;
            chain.remove();
        }
        return Ok(true);
    }
    Ok(false)
}

/// Whether there has ever been a chain.
pub(super) fn any() -> bool {
    chains_dir().exists()
}

/// Removes what is pinned of chains whose root has gone, or is one of the `lost` programs, whose links hold nothing any more; or only
/// tells of it. Gives the paths.
pub(super) fn clean(lost: &HashSet<u32>, dry_run: bool) -> Vec<PathBuf> {
    let mut gone = Vec::new();
    let Ok(_lock) = lock() else { return gone };
    for entry in std::fs::read_dir(chains_dir()).into_iter().flatten().flatten() {
        let root = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let dead = root.is_some_and(|id| {
            lost.contains(&id) || KernelProg::by_id(id).is_err_and(|e| e.errno() == Some(Errno::ENOENT))
        });
        if dead && (dry_run || remove_dir(&entry.path())) {
            gone.push(entry.path());
        }
    }
    gone
}
