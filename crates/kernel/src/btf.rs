//! Type information in the kernel: the object's, loaded; the kernel's own, read.
#![allow(unsafe_code)] // bpf(2) takes addresses: each call here says which buffers stand behind them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use xway_object::Btf;

use crate::KernelError;
use crate::ids::{self, Fields, ObjectKind, info_by_fd};
use crate::prog::text;
use crate::sys::{Attr, Cmd, bpf_fd};

const LOG_BYTES: usize = 1 << 16;

/// Loads type information (`BPF_BTF_LOAD`). The log is asked for only when the kernel refuses.
pub fn load_btf(bytes: &[u8]) -> Result<OwnedFd, KernelError> {
    let attempt = |log: &mut [u8]| {
        let mut attr = Attr::new();
        attr.input(0, bytes).u32(16, bytes.len() as u32).min_len(28);
        if !log.is_empty() {
            let len = log.len() as u32;
            attr.output(8, log).u32(20, len).u32(24, 1);
        }
        // SAFETY: both buffers are as long as their length fields say.
        unsafe { bpf_fd(Cmd::BtfLoad, &mut attr) }
    };
    attempt(&mut []).or_else(|errno| {
        let mut log = vec![0; LOG_BYTES];
        attempt(&mut log).map_err(|_| KernelError::Btf { errno, log: text(&log) })
    })
}

/// The type information with this id, as somebody loaded it.
pub fn btf_by_id(id: u32) -> Result<Vec<u8>, KernelError> {
    const STEP: &str = "reading type information";
    let fd = ids::open(ObjectKind::Btf, id)?;
    let mut out = [0u8; 32];
    // SAFETY: both address fields are zero.
    unsafe { info_by_fd(fd.as_fd(), &mut out, STEP) }?;
    let mut bytes = vec![0u8; Fields(&out).u32(8) as usize];
    let mut again = [0u8; 32];
    again[..8].copy_from_slice(&(bytes.as_mut_ptr() as u64).to_ne_bytes());
    again[8..12].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
    // SAFETY: the first address is that of `bytes`, with its length beside it; the other is zero.
    unsafe { info_by_fd(fd.as_fd(), &mut again, STEP) }?;
    Ok(bytes)
}

/// What the kernel says about type information.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BtfInfo {
    /// Its number.
    pub id: u32,
    /// Bytes.
    pub size: u32,
    /// Name: `vmlinux`, or that of a module; empty for what a program brought along.
    pub name: String,
    /// It is the kernel's own, or that of a module.
    pub kernel: bool,
}

/// Describes the type information with this id. Errors: `ENOENT` when it is gone, `EPERM`.
pub fn btf_info(id: u32) -> Result<BtfInfo, KernelError> {
    const NAME_MAX: usize = 128;
    let fd = ids::open(ObjectKind::Btf, id)?;
    let (mut out, mut name) = ([0u8; 32], [0u8; NAME_MAX]);
    out[16..24].copy_from_slice(&(name.as_mut_ptr() as u64).to_ne_bytes());
    out[24..28].copy_from_slice(&(NAME_MAX as u32).to_ne_bytes());
    // SAFETY: the second address is that of `name`, with its length beside it; the first is zero.
    unsafe { info_by_fd(fd.as_fd(), &mut out, "asking about type information") }?;
    let of = Fields(&out);
    Ok(BtfInfo { id: of.u32(12), size: of.u32(8), name: text(&name), kernel: of.u32(28) != 0 })
}

/// The running kernel's own types (`/sys/kernel/btf/vmlinux`); `None` where it offers none. Read once, some megabytes.
pub fn vmlinux() -> Option<Arc<Btf>> {
    static VMLINUX: OnceLock<Option<Arc<Btf>>> = OnceLock::new();
    VMLINUX
        .get_or_init(|| {
            let bytes = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
            Btf::parse(bytes).ok().map(Arc::new)
        })
        .clone()
}
