//! A program on a network interface.
#![allow(unsafe_code)] // bpf(2) takes addresses: each call here says which buffers stand behind them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::sys::{Attr, Cmd, bpf, bpf_fd};
use crate::{KernelError, KernelProg, consts};

/// Where in the kernel the program runs (`XDP_FLAGS_…_MODE`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum XdpMode {
    /// Native where the driver can, otherwise generic; the kernel decides.
    Any,
    /// Generic: after the kernel has built its packet structure (`XDP_FLAGS_SKB_MODE`).
    Generic,
    /// Native: in the driver (`XDP_FLAGS_DRV_MODE`).
    Native,
}

/// A program that is attached to an interface (`BPF_LINK_CREATE`); dropping the link detaches it.
#[derive(Debug)]
pub struct XdpLink {
    fd: OwnedFd,
}

impl XdpLink {
    /// Attaches `prog` to interface number `ifindex` of the calling thread's network namespace.
    ///
    /// Errors: `EBUSY` when another program is attached, `EOPNOTSUPP` when the driver has no native hook, `ENODEV` or
    /// `EINVAL` when there is no such interface.
    pub fn attach(prog: &KernelProg, ifindex: u32, mode: XdpMode) -> Result<XdpLink, KernelError> {
        let flags = match mode {
            XdpMode::Any => 0,
            XdpMode::Generic => 1 << 1,
            XdpMode::Native => 1 << 2,
        };
        let mut attr = Attr::new();
        attr.u32(0, prog.as_fd().as_raw_fd() as u32).u32(4, ifindex).u32(8, consts::ATTACH_XDP).u32(12, flags);
        // SAFETY: this form of the command takes no addresses; it returns a new descriptor.
        let fd = unsafe { bpf_fd(Cmd::LinkCreate, &mut attr) }
            .map_err(|errno| KernelError::Call { step: "attaching to an interface", errno })?;
        Ok(XdpLink { fd })
    }

    /// Replaces the program under traffic; no packet sees none (`BPF_LINK_UPDATE`).
    pub fn replace(&self, prog: &KernelProg) -> Result<(), KernelError> {
        let mut attr = Attr::new();
        attr.u32(0, self.fd.as_raw_fd() as u32).u32(4, prog.as_fd().as_raw_fd() as u32).min_len(16);
        // SAFETY: the command takes no addresses.
        unsafe { bpf(Cmd::LinkUpdate, &mut attr) }
            .map(drop)
            .map_err(|errno| KernelError::Call { step: "replacing an attached program", errno })
    }
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
