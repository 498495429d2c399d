//! Where generated code finds the parts of a frame.
//!
//! A [`Frame`](crate::Frame) is one pointer to its descriptor, so a slice of frames is an array of pointers. The descriptor
//! is aligned to cache lines. Its first line holds the start of the chunk as a pointer and the packet's bounds as 32-bit
//! offsets from it: what safe code makes slices of is checked against the chunk's length whatever generated code wrote there,
//! and a packet pointer costs generated code one more load, from a line that it has anyway, and an addition.
//!
//! All values are offsets in bytes from the start of the descriptor.

use std::mem::offset_of;

use crate::arena::Desc;

/// Pointer to the start of the chunk, 64 bits. Never changes.
pub const BASE: i32 = offset_of!(Desc, base) as i32;
/// Start of the packet, 32 bits, from the start of the chunk.
pub const DATA: i32 = offset_of!(Desc, at.data) as i32;
/// The byte behind the packet, 32 bits.
pub const DATA_END: i32 = offset_of!(Desc, at.data_end) as i32;
/// Start of the metadata, 32 bits; `data + 1` where there can be none.
pub const DATA_META: i32 = offset_of!(Desc, at.data_meta) as i32;
/// Up to where the packet may grow, 32 bits.
pub const HARD_END: i32 = offset_of!(Desc, at.hard_end) as i32;
/// Interface index that the packet arrived on, 32 bits.
pub const INGRESS_IFINDEX: i32 = offset_of!(Desc, from.ingress_ifindex) as i32;
/// Receive queue that it arrived on, 32 bits.
pub const RX_QUEUE: i32 = offset_of!(Desc, from.rx_queue) as i32;
/// Interface index that it is about to leave by, 32 bits.
pub const EGRESS_IFINDEX: i32 = offset_of!(Desc, from.egress_ifindex) as i32;
/// Redirect target: a first word of 0 is none. In the second cache line.
pub const REDIRECT: i32 = offset_of!(Desc, redirect) as i32;
/// The packet's next buffer, a pointer: 0 for a packet of one buffer. In the second cache line.
pub const NEXT: i32 = offset_of!(Desc, next) as i32;

/// How a [`Redirect`](crate::Redirect) lies there: words of 32 bits, the first of which says what the others are. The order of
/// its variants and of their fields.
pub mod redirect {
    /// `Ifindex(ifindex)`
    pub const IFINDEX: u32 = 1;
    /// `Device { map_id, key, ifindex }`
    pub const DEVICE: u32 = 2;
    /// `Cpu { map_id, cpu }`
    pub const CPU: u32 = 4;
    /// `Socket { map_id, key }`
    pub const SOCKET: u32 = 5;
    /// Bytes of a word.
    pub const WORD: i32 = 4;
}

/// Length of a cache line.
pub const LINE: i32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, Redirect};

    #[test]
    fn what_programs_read_shares_the_first_line() {
        for off in [BASE, DATA, DATA_END, DATA_META, HARD_END, INGRESS_IFINDEX, RX_QUEUE, EGRESS_IFINDEX] {
            assert!(off + 4 <= LINE, "{off}");
        }
        assert_eq!(BASE, 0);
        assert_eq!((std::mem::align_of::<Desc>(), std::mem::size_of::<Desc>()), (64, 128));
    }

    #[test]
    fn a_frame_is_a_pointer() {
        assert_eq!(std::mem::size_of::<Frame>(), 8);
        assert_eq!(std::mem::size_of::<Option<Frame>>(), 8);
    }

    #[test]
    fn no_target_is_a_first_word_of_zero() {
        assert_eq!(Redirect::default(), Redirect::None);
        assert_eq!((REDIRECT % 4, std::mem::size_of::<Redirect>()), (0, 16));
    }
}
