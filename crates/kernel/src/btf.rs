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
