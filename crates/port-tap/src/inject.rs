//! Frames put into the host's stack as if they had just arrived on an interface.

use xway_isa::Slot;
use xway_kernel::{KernelProg, ProgSpec, TcxLink, consts};

use crate::{OpenError, TapConfig, TapDevice};

/// A TAP device without addresses whose packets enter the host as packets of another interface: with the answer's way, the
/// firewall's rules and the counters of that one.
///
/// What is sent to the TAP is redirected to the other interface's receive side by a small classifier on the TAP
/// (`bpf_redirect(ifindex, BPF_F_INGRESS)`), which goes with the process like the TAP itself. The packets do not meet a *native*
/// XDP program of the interface again; a generic one would see them, so this is not for interfaces in generic mode.
pub struct Injector {
    device: TapDevice,
    link: TcxLink,
}

/// What keeps the way open: drop it after the ports.
#[derive(Debug)]
pub struct Way {
    _link: TcxLink,
}

impl Injector {
    /// Makes a TAP named after the interface with a number of queues, and the way from there into the host.
    ///
    /// # Errors
    /// [`OpenError`]: as for any TAP; [`OpenError::Kernel`] when the kernel is older than 6.6 or refuses the program.
    pub fn open(ifindex: u32, queues: u32) -> Result<Injector, OpenError> {
        let config = TapConfig { queues, ..TapConfig::new(format!("xway-in{ifindex}")) };
        let device = TapDevice::open(&config)?;
        let insns = program(ifindex);
        let (prog_type, attach_type) = (consts::PROG_TYPE_SCHED_CLS, consts::ATTACH_TCX_INGRESS);
        let spec = ProgSpec { prog_type, attach_type, ..ProgSpec::xdp("xway_inject", &insns) };
        let link = KernelProg::load(&spec).and_then(|program| TcxLink::attach(&program, device.index()));
        Ok(Injector { link: link.map_err(OpenError::Kernel)?, device })
    }

    /// The TAP, and what keeps the way from there open.
    pub fn split(self) -> (TapDevice, Way) {
        (self.device, Way { _link: self.link })
    }
}

/// `return bpf_redirect(ifindex, BPF_F_INGRESS)`
fn program(ifindex: u32) -> [Slot; 4] {
    const BPF_F_INGRESS: i32 = 1;
    const REDIRECT: i32 = 23;
    let slot = |opcode, dst, imm| Slot { opcode, dst, src: 0, off: 0, imm };
    [slot(0xb7, 1, ifindex as i32), slot(0xb7, 2, BPF_F_INGRESS), slot(0x85, 0, REDIRECT), slot(0x95, 0, 0)]
}
