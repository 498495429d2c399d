//! The program that hands packets to sockets.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Mutex;

use rustix::thread::{MembarrierCommand, membarrier};
use xway_abi::{Errno, MapType, Verdict};
use xway_isa::Slot;
use xway_kernel::{KernelError, KernelMap, XdpLink, XdpMode, device_by_name};

use crate::AfXdpConfig;
use crate::error::OpenError;
use crate::gate::{Lost, create, load, locked};

/// A map of sockets, and the program that redirects to it.
pub(crate) struct Redirect {
    pub(crate) map: KernelMap,
    /// Where the program runs; `None` when it is somebody else's.
    pub(crate) mode: Option<XdpMode>,
    /// Why it is not where it was wanted.
    pub(crate) reason: Option<String>,
    /// Keeps it attached; the kernel detaches it when the last holder of the link is gone, however the process ends.
    pub(crate) link: Option<XdpLink>,
    /// What was lost between the process before and this one.
    pub(crate) lost: Mutex<Lost>,
}

impl Drop for Redirect {
    /// The interface is free at once: a process that was forked a moment ago may hold the link until it executes something.
    fn drop(&mut self) {
        let handed_on = locked(&self.lost).handed_on;
        if let Some(link) = self.link.as_ref().filter(|_| !handed_on) {
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
        let map = create("xway_xsks", MapType::Xskmap, 4, queues)?;
        let program = load(config, &program(&map))?;
        let first = if mode == XdpMode::Any { XdpMode::Native } else { mode };
        let (link, effective, reason) = match XdpLink::attach(&program, ifindex, first) {
            Ok(link) => (link, first, None),
            Err(error) if mode == XdpMode::Any && error.errno() == Some(Errno::EOPNOTSUPP) => {
                let link = XdpLink::attach(&program, ifindex, XdpMode::Generic).map_err(|e| refused(interface, e))?;
                (link, XdpMode::Generic, Some("the driver has no native hook".to_owned()))
            }
            Err(error) => return Err(refused(interface, error)),
        };
        Ok(Redirect { map, mode: Some(effective), reason, link: Some(link), lost: Mutex::default() })
    }

    /// Uses a map that somebody else's program redirects to.
    pub(crate) fn pinned(path: &Path) -> Result<Redirect, OpenError> {
        Ok(Redirect { map: KernelMap::pinned(path)?, mode: None, reason: None, link: None, lost: Mutex::default() })
    }

    /// Its program: what has no socket passes.
    pub(crate) fn program(&self) -> [Slot; 6] {
        program(&self.map)
    }

    /// Why packets do not come to the sockets any more, if somebody took the program away.
    pub(crate) fn gone(&self, interface: &str) -> Option<String> {
        let past = "packets go to the host's stack, past the programs here";
        match &self.link {
            // A link outlives what it links: it is then one of no interface.
            Some(link) => link.info().is_ok_and(|info| info.ifindex.is_none()).then(|| {
                format!("somebody took the program that brings packets here from {interface}, or the interface: {past}")
            }),
            None => {
                let device = device_by_name(interface).ok()?;
                let none = device.attached().next().is_none();
                none.then(|| format!("there is no program on {interface} any more that brings packets here: {past}"))
            }
        }
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
