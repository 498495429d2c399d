//! Kernel objects that somebody else made: listed by id, opened by id or by the path they are pinned at.
//!
//! Every object has a number that is never given twice while the machine runs. Listing needs `CAP_SYS_ADMIN`.
#![allow(unsafe_code)] // bpf(2) takes addresses: each call here says which buffers stand behind them.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use xway_abi::Errno;

use crate::KernelError;
use crate::sys::{Attr, Cmd, bpf, bpf_fd};

/// Kinds of objects that have numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ObjectKind {
    /// Programs.
    Program,
    /// Maps.
    Map,
    /// Type information.
    Btf,
    /// Attachments.
    Link,
}

impl ObjectKind {
    const fn next(self) -> Cmd {
        match self {
            ObjectKind::Program => Cmd::ProgGetNextId,
            ObjectKind::Map => Cmd::MapGetNextId,
            ObjectKind::Btf => Cmd::BtfGetNextId,
            ObjectKind::Link => Cmd::LinkGetNextId,
        }
    }

    const fn open(self) -> Cmd {
        match self {
            ObjectKind::Program => Cmd::ProgGetFdById,
            ObjectKind::Map => Cmd::MapGetFdById,
            ObjectKind::Btf => Cmd::BtfGetFdById,
            ObjectKind::Link => Cmd::LinkGetFdById,
        }
    }

    const fn step(self) -> &'static str {
        match self {
            ObjectKind::Program => "opening a program by its id",
            ObjectKind::Map => "opening a map by its id",
            ObjectKind::Btf => "opening type information by its id",
            ObjectKind::Link => "opening a link by its id",
        }
    }
}

/// All ids of a kind, rising. Objects may come and go meanwhile. Error: `EPERM` without the privilege.
pub fn ids(kind: ObjectKind) -> Result<Vec<u32>, KernelError> {
    let mut found = Vec::new();
    let mut last = 0;
    loop {
        let mut attr = Attr::new();
        attr.u32(0, last).min_len(12);
        // SAFETY: the command takes no addresses.
        match unsafe { bpf(kind.next(), &mut attr) } {
            Ok(_) => last = attr.get_u32(4),
            Err(Errno::ENOENT) => return Ok(found),
            Err(errno) => return Err(KernelError::Call { step: "listing the kernel's BPF objects", errno }),
        }
        found.push(last);
    }
}

/// A descriptor of the object with this id. Errors: `ENOENT` when it is gone, `EPERM`.
pub fn open(kind: ObjectKind, id: u32) -> Result<OwnedFd, KernelError> {
    let mut attr = Attr::new();
    attr.u32(0, id).min_len(12);
    // SAFETY: the command takes no addresses and returns a new descriptor.
    unsafe { bpf_fd(kind.open(), &mut attr) }.map_err(|errno| KernelError::Call { step: kind.step(), errno })
}

/// Gives an object a name in the BPF file system (`BPF_OBJ_PIN`): it lives until the file is removed. Errors: `EEXIST`;
/// `EPERM` or `EINVAL` where no BPF file system is mounted.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> Result<(), KernelError> {
    let name = c_path(path)?;
    let mut attr = Attr::new();
    attr.input(0, name.as_bytes_with_nul()).u32(8, object.as_raw_fd() as u32).min_len(16);
    // SAFETY: the path ends with a zero.
    unsafe { bpf(Cmd::ObjPin, &mut attr) }.map(drop).map_err(|errno| KernelError::Path {
        step: "pinning at",
        path: path.display().to_string(),
        errno,
    })
}

/// A descriptor of the object that is pinned at `path` (`BPF_OBJ_GET`); of which kind it is, its information tells.
pub fn pinned(path: &Path) -> Result<OwnedFd, KernelError> {
    let name = c_path(path)?;
    let mut attr = Attr::new();
    attr.input(0, name.as_bytes_with_nul()).min_len(16);
    // SAFETY: the path ends with a zero; the command returns a new descriptor.
    unsafe { bpf_fd(Cmd::ObjGet, &mut attr) }.map_err(|errno| KernelError::Path {
        step: "opening the pin",
        path: path.display().to_string(),
        errno,
    })
}

/// What is pinned at `path`: its kind, and its number. `None`: something else than a program, a map or a link, or nothing that this
/// process may see.
pub fn pinned_object(path: &Path) -> Option<(ObjectKind, u32)> {
    let fd = pinned(path).ok()?;
    let kinds = [(ObjectKind::Program, "bpf-prog", "prog_id:"), (ObjectKind::Map, "bpf-map", "map_id:")];
    let kinds = kinds.into_iter().chain([(ObjectKind::Link, "bpf-link", "link_id:")]);
    let (kind, _, field) = kinds.into_iter().find(|(_, name, _)| is_kind(fd.as_fd(), name))?;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let id = text.lines().find_map(|line| line.strip_prefix(field))?.trim().parse().ok()?;
    Some((kind, id))
}

/// Whether a descriptor is of this kind: `bpf-prog`, `bpf-map`, `bpf-link`. The name of its inode tells; for links, kernels
/// differ in the dash.
pub(crate) fn is_kind(object: BorrowedFd<'_>, kind: &str) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd())).unwrap_or_default();
    link.to_string_lossy().replace('_', "-") == format!("anon-inode:{kind}")
}

fn c_path(path: &Path) -> Result<CString, KernelError> {
    let refuse =
        |_| KernelError::Path { step: "reading the path", path: path.display().to_string(), errno: Errno::EINVAL };
    CString::new(path.as_os_str().as_bytes()).map_err(refuse)
}

/// Reads what the kernel says about an object (`BPF_OBJ_GET_INFO_BY_FD`) into `out`.
///
/// Bytes that the kernel does not know stay as they were, so an older kernel leaves later fields zero.
///
/// # Safety
/// An address field of the kind's structure in `out` must be zero, or be that of a buffer that the caller owns until the
/// call is over and that has the length which the count field beside it states.
pub(crate) unsafe fn info_by_fd(object: BorrowedFd<'_>, out: &mut [u8], step: &'static str) -> Result<(), KernelError> {
    let len = out.len() as u32;
    let mut attr = Attr::new();
    attr.u32(0, object.as_raw_fd() as u32).u32(4, len).output(8, out);
    // SAFETY: the buffer holds `info_len` bytes; its address fields are the caller's promise.
    unsafe { bpf(Cmd::ObjGetInfoByFd, &mut attr) }.map(drop).map_err(|errno| KernelError::Call { step, errno })
}

/// A structure that the kernel has filled, read by offset.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub(crate) fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b))
    }

    /// A name of at most 16 bytes that ends with a zero.
    pub(crate) fn name(&self, at: usize) -> String {
        let field = self.0.get(at..at + 16).unwrap_or_default();
        let len = field.iter().position(|b| *b == 0).unwrap_or(field.len());
        String::from_utf8_lossy(&field[..len]).into_owned()
    }
}
