//! The program that hands packets to sockets.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::thread::{MembarrierCommand, membarrier};
use xway_abi::{Errno, MapSpec, MapType, Verdict};
use xway_isa::Slot;
use xway_kernel::{KernelError, KernelMap, KernelProg, ProgSpec, XdpLink, XdpMode, consts};

use crate::AfXdpConfig;
use crate::error::OpenError;

/// A map of sockets, and the program that redirects to it.
pub(crate) struct Redirect {
    map: KernelMap,
    /// Where the program runs; `None` when it is somebody else's.
    pub(crate) mode: Option<XdpMode>,
    /// Why it is not where it was wanted.
    pub(crate) reason: Option<String>,
    /// Keeps it attached; the kernel detaches it when the last holder of the link is gone, however the process ends.
    link: Option<XdpLink>,
}

impl Drop for Redirect {
    /// The interface is free at once: a process that was forked a moment ago may hold the link until it executes something.
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            // It fails where somebody took the interface away, which detaches too.
            let _ = link.detach();
        }
    }
}

impl Redirect {
    /// Loads and attaches our own.
    pub(crate) fn attach(config: &AfXdpConfig, ifindex: u32, queues: u32) -> Result<Redirect, OpenError> {
        let AfXdpConfig { interface, mode, .. } = config;
        let mode = *mode;
        let spec = MapSpec::new(MapType::Xskmap, 4, 4, queues);
        let map = KernelMap::create("xway_xsks", &spec).map_err(|errno| KernelError::Map {
            name: "xway_xsks".into(),
            step: "creating it",
            errno,
        })?;
        let insns = program(&map);
        let flags = if config.frags { consts::F_XDP_HAS_FRAGS } else { 0 };
        let program = KernelProg::load(&ProgSpec { flags, ..ProgSpec::xdp(xway_abi::xsk::AFXDP_PROGRAM, &insns) })?;
        let first = if mode == XdpMode::Any { XdpMode::Native } else { mode };
        let (link, effective, reason) = match XdpLink::attach(&program, ifindex, first) {
            Ok(link) => (link, first, None),
            Err(error) if mode == XdpMode::Any && error.errno() == Some(Errno::EOPNOTSUPP) => {
                let link = XdpLink::attach(&program, ifindex, XdpMode::Generic).map_err(|e| refused(interface, e))?;
                (link, XdpMode::Generic, Some("the driver has no native hook".to_owned()))
            }
            Err(error) => return Err(refused(interface, error)),
        };
        Ok(Redirect { map, mode: Some(effective), reason, link: Some(link) })
    }

    /// Uses a map that somebody else's program redirects to.
    pub(crate) fn pinned(path: &Path) -> Result<Redirect, OpenError> {
        Ok(Redirect { map: KernelMap::pinned(path)?, mode: None, reason: None, link: None })
    }

    /// Lets packets of a queue go to a socket.
    pub(crate) fn add(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), OpenError> {
        let failed = |errno| KernelError::Map { name: "xway_xsks".into(), step: "putting a socket in", errno };
        Ok(self.map.update_fd(&queue.to_ne_bytes(), socket, 0).map_err(failed)?)
    }

    /// Packets of a queue go to the host again. The kernel does it by itself when the socket goes; doing it first loses none. When this
    /// returns what was on its way to the socket is in its ring, and nothing more comes.
    pub(crate) fn remove(&self, queue: u32) {
        // Not there is as good.
        let _ = self.map.delete(&queue.to_ne_bytes());
        // It waits until every run of the program that has seen the entry is over (an RCU grace period). A kernel without it only takes
        // away the promise of the last sentence.
        let _ = membarrier(MembarrierCommand::Global);
    }
}

fn refused(interface: &str, error: KernelError) -> OpenError {
    match error.errno() {
        Some(Errno::EBUSY | Errno::EEXIST) => OpenError::ProgramThere { interface: interface.to_owned() },
        Some(Errno::EPERM | Errno::EACCES) => OpenError::Privilege,
        _ => OpenError::Kernel(error),
    }
}

/// `return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS)`: what has no socket passes.
fn program(map: &KernelMap) -> [Slot; 6] {
    const RX_QUEUE_INDEX: i16 = 16;
    const BPF_PSEUDO_MAP_FD: u8 = 1;
    const REDIRECT_MAP: i32 = 51;
    let slot = |opcode, dst, src, off, imm| Slot { opcode, dst, src, off, imm };
    [
        slot(0x61, 2, 1, RX_QUEUE_INDEX, 0),
        slot(0x18, 1, BPF_PSEUDO_MAP_FD, 0, map.as_fd().as_raw_fd()),
        slot(0, 0, 0, 0, 0),
        slot(0xb7, 3, 0, 0, Verdict::Pass as i32),
        slot(0x85, 0, 0, 0, REDIRECT_MAP),
        slot(0x95, 0, 0, 0, 0),
    ]
}
