//! Virtual addresses: what a register holds instead of a pointer.
//!
//! ```text
//!  63            40 39                             0
//! +----------------+--------------------------------+
//! | region number  | BIAS + offset in the region    |
//! +----------------+--------------------------------+
//! ```
//!
//! The bias keeps a negative offset inside the region's number, where the bounds check catches it, instead of letting it
//! slide into the neighbour. Addresses depend on nothing but the run itself, so a run can be repeated exactly. A number
//! that is no pointer may spell a valid address; it then reaches memory that the program was granted anyway, and nothing
//! else.

const FRAMES: u64 = crate::env::FRAMES as u64;

/// Bits of the offset part.
pub(crate) const SHIFT: u32 = 40;
/// Offset zero of every region.
pub(crate) const BIAS: u64 = 1 << 38;

/// Region 0: null and small numbers.
pub(crate) const NULL: u64 = 0;
/// The context, `struct xdp_md`.
pub(crate) const CTX: u64 = 1;
/// The packet; offsets count from the start of the headroom. A slice of a dynptr may lie in a further buffer: its number stands above
/// the place in its chunk.
pub(crate) const PACKET: u64 = 2;
/// Bits of a place in a chunk.
pub(crate) const PART_SHIFT: u32 = 32;
/// The memory of a raw program.
pub(crate) const RAW: u64 = 3;
/// Handles of maps: offset = index of the map handle.
pub(crate) const MAP: u64 = 4;
/// Code: offset = instruction index.
pub(crate) const CODE: u64 = 5;
/// What a call leaves in r1 to r5.
pub(crate) const CLOBBERED: u64 = 6;
/// Objects that a program may hold but not look into (the current task).
pub(crate) const OPAQUE: u64 = 7;
/// Stack of frame 0; the other frames follow.
pub(crate) const STACK: u64 = 8;
/// Copies of keys and records for callbacks, one for each depth of calls; read-only.
pub(crate) const COPY: u64 = STACK + FRAMES;
/// Dynptrs that callbacks are handed, one for each depth of calls.
pub(crate) const HANDLE: u64 = COPY + FRAMES;
/// First region that is granted during a run: map values, ring records.
pub(crate) const GRANT: u64 = HANDLE + FRAMES;
/// Regions that one run may be granted.
pub(crate) const GRANTS_MAX: usize = (1 << 24) - GRANT as usize;

/// The value that a call leaves in r1 to r5.
pub(crate) const POISON: u64 = at(CLOBBERED, 0);

/// The address of `off` in `region`.
pub(crate) const fn at(region: u64, off: u64) -> u64 {
    (region << SHIFT) | (BIAS.wrapping_add(off) & ((1 << SHIFT) - 1))
}

/// The region that an address lies in.
#[inline(always)]
pub(crate) const fn region(addr: u64) -> u64 {
    addr >> SHIFT
}

/// The offset in its region; a negative one becomes huge and fails every bounds check.
#[inline(always)]
pub(crate) const fn offset(addr: u64) -> u64 {
    (addr & ((1 << SHIFT) - 1)).wrapping_sub(BIAS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_region_and_offset() {
        for off in [0, 1, 511, 1 << 20] {
            let a = at(PACKET, off);
            assert_eq!((region(a), offset(a)), (PACKET, off));
        }
    }

    #[test]
    fn a_negative_offset_stays_in_its_region_and_is_huge() {
        let a = at(STACK, 0).wrapping_sub(8);
        assert_eq!(region(a), STACK);
        assert!(offset(a) > 1 << 60);
    }
}
