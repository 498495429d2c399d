//! Maps that outlive the command: pinned by name in the BPF file system, and found again by the next load.

use std::path::{Component, Path, PathBuf};

use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_kernel::{KernelMap, KernelObject, ObjectKind};
use xway_object::{MapDef, MapKind, Object, Pinning};

use crate::{Blame, HookError, explain};

/// Where the BPF file system is mounted by convention.
pub const BPFFS: &str = "/sys/fs/bpf";

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const MAGIC: u64 = 0xcafe_4a11;

/// Whether a directory lies in a BPF file system.
pub fn is_bpffs(dir: &Path) -> bool {
    let mut at = Some(dir);
    // A directory that is still to be made lies where its nearest ancestor lies.
    while let Some(path) = at {
        if let Ok(stat) = rustix::fs::statfs(path) {
            return stat.f_type as u64 == MAGIC;
        }
        at = path.parent();
    }
    false
}

/// Linux's longest name of a file (`NAME_MAX`).
const NAME_MAX: usize = 255;

/// What to try where a path is in no BPF file system: one below the usual place, where that is mounted; else to mount it.
pub fn instead(what: &str) -> String {
    match is_bpffs(Path::new(BPFFS)) {
        true => format!("{what} below {BPFFS}"),
        false => format!("{what} below {BPFFS}; mount -t bpf bpf {BPFFS}"),
    }
}

/// Refuses a path that leads to a name which a BPF file system does not take: one that is too long, or has a dot. Linux keeps dots for
/// itself and says `EPERM` to whoever asks for one, which is what it says without the privilege too.
pub fn named(path: &Path) -> Result<(), HookError> {
    if let Some(name) = path.iter().find(|name| name.len() > NAME_MAX) {
        let short = &name.to_string_lossy().chars().take(12).collect::<String>();
        let message = format!("{short}…: a name of {} bytes; a file system takes {NAME_MAX}", name.len());
        return Err(HookError::new(Blame::Request, message).hint("a shorter one"));
    }
    let Some(name) = dotted(path) else { return Ok(()) };
    let message = format!("{}: names in a BPF file system have no dots, and {name} has one", path.display());
    let refused = HookError { errno: Some(Errno::EPERM), ..HookError::new(Blame::Request, message) };
    Err(refused.hint(format!("another name: {}", name.replace('.', "_"))))
}

/// The first name on the way that has a dot and cannot be in a BPF file system. What is there already is: where such a file system is
/// mounted another one says how names are.
fn dotted(path: &Path) -> Option<String> {
    let there = path.ancestors().find(|at| rustix::fs::statfs(*at).is_ok())?;
    if !is_bpffs(there) {
        return None;
    }
    let missing = path.strip_prefix(there).ok()?.components();
    let names = missing.filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy()),
        _ => None,
    });
    names.into_iter().find(|name| name.contains('.')).map(|name| name.into_owned())
}

/// Pins that one process looks at, of all BPF file systems together.
const SEEN_MAX: usize = 1 << 16;
/// How deeply directories of pins are looked into.
const DEPTH_MAX: usize = 16;

/// All pins in the BPF file systems that are mounted here, with what they hold. Cost: one descriptor opened for each.
pub fn everywhere() -> Vec<(ObjectKind, u32, PathBuf)> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        if let (Some(place), Some("bpf")) = (words.next(), words.next()) {
            // What would end the word stands there as an octal number.
            let place = place.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
            below(Path::new(&place), DEPTH_MAX, &mut found);
        }
    }
    found.sort_by(|a, b| a.2.cmp(&b.2));
    found.dedup();
    found
}

/// What a file pins, in a word.
pub(crate) fn kind(path: &Path) -> Option<&'static str> {
    xway_kernel::pinned_object(path).map(|(kind, _)| match kind {
        ObjectKind::Program => "program",
        ObjectKind::Map => "map",
        ObjectKind::Link => "link",
        ObjectKind::Btf => "btf",
    })
}

fn below(dir: &Path, depth: usize, found: &mut Vec<(ObjectKind, u32, PathBuf)>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        // Symbolic links lead to what is found anyway.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => below(&path, depth - 1, found),
            Ok(kind) if kind.is_file() && found.len() < SEEN_MAX => {
                found.extend(xway_kernel::pinned_object(&path).map(|(kind, id)| (kind, id, path)));
            }
            _ => {}
        }
    }
}

/// Makes a directory for pins, if it is not there.
pub fn directory(dir: &Path) -> Result<(), HookError> {
    if !is_bpffs(dir) {
        let message = format!("{}: not in a BPF file system, so nothing can be pinned there", dir.display());
        return Err(HookError::new(Blame::Machine, message).hint(instead("a directory")));
    }
    if dir.exists() && !dir.is_dir() {
        let message = format!("{}: a file is there; pins need a directory", dir.display());
        let refused = HookError { errno: Some(Errno::EINVAL), ..HookError::new(Blame::Request, message) };
        return Err(
            refused.hint("name a directory, which is made when it is not there; a single map: xway map pin WHICH PATH")
        );
    }
    named(dir)?;
    std::fs::create_dir_all(dir).map_err(|e| HookError::new(Blame::Machine, format!("{}: {e}", dir.display())))
}

/// Whether a map is pinned when a directory is given: those whose author said so, or all that an author declared.
pub fn wanted(def: &MapDef, all: bool) -> bool {
    def.kind == MapKind::User && (all || def.pinning != Pinning::None)
}

/// The map that is pinned at `path`, if there is one. It must be what the object declares.
pub fn find(path: &Path, def: &MapDef) -> Result<Option<KernelMap>, HookError> {
    let map = match KernelMap::pinned(path) {
        Ok(map) => map,
        Err(e) if e.errno() == Some(Errno::ENOENT) => return Ok(None),
        Err(e) => return Err(explain::plain(&e)),
    };
    same(path, def, map.spec(), "")?;
    Ok(Some(map))
}

/// Whether the map that is pinned at `path` is what an object declares: what libbpf compares. Everything else (the template of inner
/// maps, locks and timers in values) the verifier meets as the map has it. `place`: what commands say of the hook that the pin is on.
pub fn same(path: &Path, def: &MapDef, have: &MapSpec, place: &str) -> Result<(), HookError> {
    let want = &def.spec;
    // Linux adds this one itself.
    let kept = match want.map_type {
        MapType::Devmap | MapType::DevmapHash => !map_flags::RDONLY_PROG,
        _ => u32::MAX,
    };
    let entries = want.max_entries == have.max_entries || want.max_entries == 0;
    let same = have.map_type == want.map_type
        && have.key_size == want.key_size
        && have.value_size == want.value_size
        && entries
        && (have.flags ^ want.flags) & kept == 0
        && have.map_extra == want.map_extra;
    if same {
        return Ok(());
    }
    let describe = |spec: &MapSpec| {
        let extra = if spec.map_extra == 0 { String::new() } else { format!(", extra {:#x}", spec.map_extra) };
        let MapSpec { map_type, key_size, value_size, max_entries, flags, .. } = spec;
        format!(
            "{} with keys of {key_size} and values of {value_size} bytes, {max_entries} entries, flags {flags:#x}{extra}",
            map_type.name()
        )
    };
    let message = format!(
        "map {}: the one pinned at {} is another kind of map: {}; the object wants {}",
        def.name,
        path.display(),
        describe(have),
        describe(want)
    );
    let refused = HookError { errno: Some(Errno::EINVAL), ..HookError::new(Blame::Request, message) };
    Err(refused.hint(format!("xway map unpin {}{place} when nothing uses it any more", path.display())))
}

/// Pins the maps of a loaded object that are not pinned yet; gives the paths that are new.
pub fn pin(dir: &Path, object: &Object, loaded: &KernelObject, all: bool) -> Result<Vec<PathBuf>, HookError> {
    let mut made = Vec::new();
    for (def, map) in object.maps.iter().zip(&loaded.maps).filter(|(def, _)| wanted(def, all)) {
        let path = dir.join(&def.name);
        match xway_kernel::pin(std::os::fd::AsFd::as_fd(map), &path) {
            Ok(()) => made.push(path),
            Err(e) if e.errno() == Some(Errno::EEXIST) => {}
            Err(e) => return Err(explain::plain(&e)),
        }
    }
    Ok(made)
}
