//! Program types and attach types of XDP (`enum bpf_prog_type`, `enum bpf_attach_type`), and limits of program load.

use crate::Errno;

/// `BPF_PROG_TYPE_XDP`.
pub const PROG_TYPE_XDP: u32 = 6;
/// `BPF_F_STRICT_ALIGNMENT` of program load.
pub const F_STRICT_ALIGNMENT: u32 = 1 << 0;
/// `BPF_F_ANY_ALIGNMENT` of program load.
pub const F_ANY_ALIGNMENT: u32 = 1 << 1;
/// `BPF_F_TEST_RND_HI32` of program load: random upper halves after 32-bit writes that the verifier thinks dead.
pub const F_TEST_RND_HI32: u32 = 1 << 2;
/// `BPF_F_SLEEPABLE` of program load.
pub const F_SLEEPABLE: u32 = 1 << 4;
/// `BPF_F_XDP_HAS_FRAGS` of program load: the program copes with packets of several buffers.
pub const F_XDP_HAS_FRAGS: u32 = 1 << 5;
/// `BPF_F_XDP_DEV_BOUND_ONLY` of program load: bound to one device, as the metadata kfuncs want it.
pub const F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;

/// Stack of one chain of calls, bytes (`MAX_BPF_STACK`).
pub const MAX_STACK: u32 = 512;
/// Frames of BPF-to-BPF calls, the main program included (`MAX_CALL_FRAMES`).
pub const MAX_CALL_FRAMES: u32 = 8;
/// Tail calls in one run (`MAX_TAIL_CALL_CNT`).
pub const MAX_TAIL_CALLS: u32 = 33;
/// Instructions that Linux's verifier looks at before it gives up (`BPF_COMPLEXITY_LIMIT_INSNS`).
pub const LINUX_VERIFIER_BUDGET: u32 = 1_000_000;
/// Maps that one program may use (`MAX_USED_MAPS`).
pub const MAX_USED_MAPS: usize = 64;
/// Turns that `bpf_loop` and other bounded loops of the kernel make at most (`BPF_MAX_LOOPS`).
pub const MAX_LOOPS: u32 = 8 * 1024 * 1024;
/// What `bpf_loop` gives for more: -E2BIG in 32 bits, as in the loop that Linux makes of the call.
pub const TOO_MANY_TURNS: u64 = Errno::E2BIG.as_ret() & 0xffff_ffff;

/// Where an XDP program may be attached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum XdpAttach {
    /// In a devmap entry: runs when a redirected frame is about to leave (`BPF_XDP_DEVMAP`).
    Devmap = 33,
    /// In a cpumap entry: runs on the target CPU (`BPF_XDP_CPUMAP`).
    Cpumap = 35,
    /// On a device (`BPF_XDP`).
    Device = 37,
}

#[cfg(test)]
mod tests {
    use super::XdpAttach;

    #[test]
    fn attach_types_have_linux_numbers() {
        assert_eq!([XdpAttach::Devmap as u32, XdpAttach::Cpumap as u32, XdpAttach::Device as u32], [33, 35, 37]);
    }
}
