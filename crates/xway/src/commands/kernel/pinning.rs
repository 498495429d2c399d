//! `pin`, for every kind of object.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::refused;
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
        true => Ok(()),
        false => Err(Failure::needs(format!("{}: not in a BPF file system", path.display()))
            .hint("a path below /sys/fs/bpf; mount -t bpf bpf /sys/fs/bpf")),
    }
}
