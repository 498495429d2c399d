//! `pin` and `unpin`, for every kind of object.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use serde_json::json;
use xway_kernel::{KernelMap, KernelProg, ObjectKind, XdpLink};

use super::attach::Place;
use super::{called, failure, refused};
use crate::args_kernel::HookRest;
use crate::failure::Failure;
use crate::print;

/// The one path behind the object's words.
pub fn path(kind: &str, rest: &[String]) -> Result<PathBuf, Failure> {
    let [path] = rest else {
        return Err(Failure::usage(format!("one path is expected behind the {kind}"))
            .hint(format!("xway {kind} pin WHICH /sys/fs/bpf/NAME")));
    };
    Ok(PathBuf::from(path))
}

/// Pins an object and says so.
pub fn pin(kind: &str, object: BorrowedFd<'_>, id: u32, path: &Path, as_json: bool) -> Result<(), Failure> {
    in_bpffs(path)?;
    xway_kernel::pin(object, path).map_err(refused)?;
    if as_json {
        let doc = json!({ "id": id, "path": path.display().to_string() });
        print::json(&print::document(&format!("{kind} pin"), doc));
    }
    Ok(())
}

/// Refuses places where nothing can be pinned.
pub fn in_bpffs(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    match xway_hook::pins::is_bpffs(&parent) {
        true => xway_hook::pins::named(path).map_err(failure),
        false => Err(Failure::needs(format!("{}: not in a BPF file system", path.display()))
            .hint(xway_hook::pins::instead("a path"))),
    }
}

/// `unpin`: the path must lead to an object of the kind. What else keeps the object goes on keeping it.
pub fn unpin(kind: &str, args: &HookRest, as_json: bool) -> Result<(), Failure> {
    let path = match args.words.as_slice() {
        [path] => Path::new(path),
        [word, path] if word == "pinned" => Path::new(path),
        _ => {
            let message = format!("one path is expected: that of the {}'s pin", called(kind));
            return Err(
                Failure::usage(message).hint(format!("xway {kind} unpin PATH; xway {kind} show -f has the paths"))
            );
        }
    };
    let mut place = Place::of(&args.place)?;
    let (found, id) = match &mut place {
        Place::Service(service) => {
            let all = service.pins().map_err(failure)?;
            let missing = || {
                let hint = format!("xway {kind} show -f --hook user has the paths");
                Failure::no(format!("there is no pin at {}", path.display())).hint(hint)
            };
            let object = all.into_iter().find(|pin| pin.path == path).ok_or_else(missing)?.object;
            (object.kind(), object.number())
        }
        Place::Kernel(_) => in_kernel(kind, path)?,
    };
    if found != called(kind) {
        let other = if found == "program" { "prog" } else { found };
        return Err(Failure::no(format!("{}: it is a {found}, not a {}", path.display(), called(kind)))
            .hint(format!("xway {other} unpin {}", path.display())));
    }
    place.hook().unpin(path).map_err(failure)?;
    if as_json {
        let doc = json!({ "id": id, "path": path.display().to_string() });
        print::json(&print::document(&format!("{kind} unpin"), doc));
    }
    Ok(())
}

/// What a file pins, and its number.
fn in_kernel(kind: &str, path: &Path) -> Result<(&'static str, u32), Failure> {
    if let Some((found, id)) = xway_kernel::pinned_object(path) {
        let found = match found {
            ObjectKind::Program => "program",
            ObjectKind::Map => "map",
            ObjectKind::Link => "link",
            ObjectKind::Btf => "btf",
        };
        return Ok((found, id));
    }
    // The same question once more, for its reason.
    let why = match kind {
        "map" => KernelMap::pinned(path).err(),
        "link" => XdpLink::pinned(path).err(),
        _ => KernelProg::pinned(path).err(),
    };
    let failed = why.map_or_else(|| Failure::no(format!("{}: no pin", path.display())), refused);
    Err(if failed.hint.is_some() { failed } else { failed.hint(format!("xway {kind} show -f has the paths")) })
}
