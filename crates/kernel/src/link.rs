//! A program on a network interface.
#![allow(unsafe_code)] // bpf(2) takes addresses: each call here says which buffers stand behind them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::ids::{self, Fields, ObjectKind, info_by_fd};
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
    /// In the device itself (`XDP_FLAGS_HW_MODE`).
    Offload,
}

impl XdpMode {
    /// `XDP_FLAGS_…_MODE`.
    pub(crate) const fn flags(self) -> u32 {
        match self {
            XdpMode::Any => 0,
            XdpMode::Generic => 1 << 1,
            XdpMode::Native => 1 << 2,
            XdpMode::Offload => 1 << 3,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            XdpMode::Any => "auto",
            XdpMode::Generic => "generic",
            XdpMode::Native => "native",
            XdpMode::Offload => "offload",
        }
    }
}

/// `BPF_LINK_TYPE_XDP`.
pub const LINK_TYPE_XDP: u32 = 6;

/// What the kernel says about a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkInfo {
    /// `enum bpf_link_type`.
    pub link_type: u32,
    /// Its number.
    pub id: u32,
    /// The program behind it.
    pub prog_id: u32,
    /// Interface of an XDP link; `None` for other links and when the interface has gone.
    pub ifindex: Option<u32>,
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
        Ok(XdpLink { fd: link(prog, ifindex, consts::ATTACH_XDP, mode.flags())? })
    }

    /// The link with this id.
    pub fn by_id(id: u32) -> Result<XdpLink, KernelError> {
        Ok(XdpLink { fd: ids::open(ObjectKind::Link, id)? })
    }

    /// The link that somebody else made, by a descriptor of it.
    ///
    /// Errors: `EINVAL` when it is no link's.
    pub fn adopt(fd: OwnedFd) -> Result<XdpLink, KernelError> {
        match ids::is_kind(fd.as_fd(), "bpf-link") {
            true => Ok(XdpLink { fd }),
            false => Err(KernelError::Call { step: "going on with a link", errno: xway_abi::Errno::EINVAL }),
        }
    }

    /// The link that is pinned at `path`.
    pub fn pinned(path: &Path) -> Result<XdpLink, KernelError> {
        let link = XdpLink { fd: ids::pinned(path)? };
        match ids::is_kind(link.as_fd(), "bpf-link") {
            true => Ok(link),
            false => {
                let path = path.display().to_string();
                Err(KernelError::Path { step: "opening as a link", path, errno: xway_abi::Errno::EINVAL })
            }
        }
    }

    /// What the kernel says about it.
    pub fn info(&self) -> Result<LinkInfo, KernelError> {
        let mut out = [0u8; 64];
        // SAFETY: all address fields are zero.
        unsafe { info_by_fd(self.as_fd(), &mut out, "asking about a link") }?;
        let of = Fields(&out);
        let xdp = of.u32(0) == LINK_TYPE_XDP;
        let ifindex = xdp.then(|| of.u32(16)).filter(|i| *i != 0);
        Ok(LinkInfo { link_type: of.u32(0), id: of.u32(4), prog_id: of.u32(8), ifindex })
    }

    /// Detaches, whoever else holds the link (`BPF_LINK_DETACH`).
    pub fn detach(&self) -> Result<(), KernelError> {
        let mut attr = Attr::new();
        attr.u32(0, self.fd.as_raw_fd() as u32);
        // SAFETY: the command takes no addresses.
        unsafe { bpf(Cmd::LinkDetach, &mut attr) }
            .map(drop)
            .map_err(|errno| KernelError::Call { step: "detaching a link", errno })
    }

    /// As [`XdpLink::replace`], if `old` is the program behind it (`BPF_F_REPLACE`); else `EPERM`.
    pub fn replace_expecting(&self, prog: &KernelProg, old: &KernelProg) -> Result<(), KernelError> {
        const BPF_F_REPLACE: u32 = 4;
        let fd = |p: &KernelProg| p.as_fd().as_raw_fd() as u32;
        let mut attr = Attr::new();
        attr.u32(0, self.fd.as_raw_fd() as u32).u32(4, fd(prog)).u32(8, BPF_F_REPLACE).u32(12, fd(old));
        // SAFETY: the command takes no addresses.
        unsafe { bpf(Cmd::LinkUpdate, &mut attr) }
            .map(drop)
            .map_err(|errno| KernelError::Call { step: "replacing an attached program", errno })
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

/// A classifier at the place where packets enter the host from an interface (`BPF_TCX_INGRESS`, Linux 6.6); dropping the link
/// detaches it.
#[derive(Debug)]
pub struct TcxLink {
    _fd: OwnedFd,
}

impl TcxLink {
    /// Attaches a program of type [`consts::PROG_TYPE_SCHED_CLS`] to what interface number `ifindex` receives.
    ///
    /// Errors: `EINVAL` on kernels without tcx, `ENODEV` when there is no such interface.
    pub fn attach(prog: &KernelProg, ifindex: u32) -> Result<TcxLink, KernelError> {
        Ok(TcxLink { _fd: link(prog, ifindex, consts::ATTACH_TCX_INGRESS, 0)? })
    }

    /// As [`TcxLink::attach`], to what the interface sends.
    pub fn attach_egress(prog: &KernelProg, ifindex: u32) -> Result<TcxLink, KernelError> {
        Ok(TcxLink { _fd: link(prog, ifindex, consts::ATTACH_TCX_EGRESS, 0)? })
    }
}

/// A program that the kernel runs whenever it passes one of its tracepoints, with the arguments of its own call; dropping it
/// ends that.
#[derive(Debug)]
pub struct RawTracepoint {
    _fd: OwnedFd,
}

impl RawTracepoint {
    /// Attaches a program of type [`consts::PROG_TYPE_RAW_TRACEPOINT`] to the tracepoint with this name (`xdp_exception`).
    ///
    /// Errors: `ENOENT` when the kernel has no such tracepoint, `EACCES` when the program looks at more arguments than it has,
    /// `EPERM` without `CAP_PERFMON`.
    pub fn attach(prog: &KernelProg, name: &str) -> Result<RawTracepoint, KernelError> {
        let text = [name.as_bytes(), &[0]].concat();
        let mut attr = Attr::new();
        attr.input(0, &text).u32(8, prog.as_fd().as_raw_fd() as u32);
        // SAFETY: the name ends with a zero and lives during the call, which returns a new descriptor.
        unsafe { bpf_fd(Cmd::RawTracepointOpen, &mut attr) }
            .map(|_fd| RawTracepoint { _fd })
            .map_err(|errno| KernelError::Call { step: "attaching to a tracepoint", errno })
    }
}

/// Puts an extension program in the place of a function of `target` (`BPF_LINK_CREATE`), `function` being its type there.
pub(crate) fn replace_function(prog: &KernelProg, target: &KernelProg, function: u32) -> Result<OwnedFd, KernelError> {
    let mut attr = Attr::new();
    let fd = |p: &KernelProg| p.as_fd().as_raw_fd() as u32;
    attr.u32(0, fd(prog)).u32(4, fd(target)).u32(8, 0).u32(12, 0).u32(16, function);
    // SAFETY: this form of the command takes no addresses; it returns a new descriptor.
    unsafe { bpf_fd(Cmd::LinkCreate, &mut attr) }
        .map_err(|errno| KernelError::Call { step: "replacing a function of the dispatcher", errno })
}

fn link(prog: &KernelProg, ifindex: u32, attach_type: u32, flags: u32) -> Result<OwnedFd, KernelError> {
    let mut attr = Attr::new();
    attr.u32(0, prog.as_fd().as_raw_fd() as u32).u32(4, ifindex).u32(8, attach_type).u32(12, flags);
    // SAFETY: this form of the command takes no addresses; it returns a new descriptor.
    unsafe { bpf_fd(Cmd::LinkCreate, &mut attr) }
        .map_err(|errno| KernelError::Call { step: "attaching to an interface", errno })
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
