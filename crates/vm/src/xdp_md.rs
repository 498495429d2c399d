//! The context: `struct xdp_md` as loads see it (`linux/bpf.h`).
//!
//! There is no such structure in memory. A 4-byte load of a pointer field gives a full 64-bit packet pointer, as the kernel
//! rewrites it.

use xway_packet::Frame;

use crate::addr::{PACKET, at};

/// Length of `struct xdp_md`.
pub(crate) const LEN: usize = 24;

/// The value of the field at `off`; `None` when there is none or the access is not one of 4 aligned bytes.
#[inline]
pub(crate) fn load(frame: &Frame, off: u64, len: usize) -> Option<u64> {
    if len != 4 {
        return None;
    }
    Some(match off {
        0 => at(PACKET, frame.data() as u64),
        4 => at(PACKET, frame.data_end() as u64),
        8 => at(PACKET, frame.data_meta() as u64),
        12 => frame.ingress_ifindex().into(),
        16 => frame.rx_queue().into(),
        20 => frame.egress_ifindex().into(),
        _ => return None,
    })
}
