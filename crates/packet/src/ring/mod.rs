//! Rings: how packets, addresses and descriptors go from one thread or process to another.
//!
//! Two kinds:
//!
//! - [`spsc`]: one producer, one consumer, in the memory layout of AF_XDP's rings. The same code drives rings that the kernel
//!   made for a socket, rings in a memory file that we share with another process, and rings between two of our threads. The
//!   other side is not trusted: each index that it publishes is checked before it is used (see [`spsc::Producer`]).
//! - [`mpsc`]: many producers, one consumer, within this process. [`frames`] sends whole frames through one of these, owned all
//!   the way: a ring that is dropped sends what is left in it home. [`credit`] limits what its consumer may hold.
//!
//! ```text
//! spsc: 32-bit indices that only grow and wrap; slot = index & (entries - 1)
//!
//!            consumer                    producer
//!               |                           |
//!     ..free....|##########entries##########|....free....        producer - consumer <= entries, always
//!               taken by                    written by
//!               one side                    the other
//! ```
//!
//! Each side keeps its own index to itself and a copy of the other side's last one. It looks at shared memory only when the
//! copy says that the ring is full (or empty), and publishes its own index once for many entries. A burst of 64 through a ring
//! costs about one cache line each way for the indices, and the lines that the entries lie in.
//!
//! Entries are read and written as relaxed atomics, which costs nothing on the machines that matter and makes it harmless that
//! the other side writes at the same time: a torn descriptor is wrong, never undefined. Every length is a power of two.

pub mod credit;
mod entry;
pub mod frames;
mod memory;
pub mod mpsc;
pub mod spsc;

pub use entry::{Entry, Plain, XdpDesc};
pub use memory::{RingMemory, RingOffsets};

/// The most entries in a ring.
pub const ENTRIES_MAX: u32 = 1 << 24;

/// Why a ring could not be made or attached to.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The number of entries is no power of two, or too large.
    #[error("{0} entries: a ring has a power of two of them, at most {ENTRIES_MAX}")]
    Entries(u32),
    /// A part of the ring would lie outside of the memory, or not at a multiple of its size.
    #[error(
        "the {part} of a ring of {entries} entries at offset {offset} does not fit {len} bytes of memory, or is not aligned"
    )]
    Place {
        /// Which part.
        part: &'static str,
        /// Where it would be.
        offset: usize,
        /// Entries in the ring.
        entries: u32,
        /// Bytes of memory.
        len: usize,
    },
    /// The indices in the memory cannot be those of a ring of this length.
    #[error("producer {producer} and consumer {consumer} are further apart than the {entries} entries of the ring")]
    Indices {
        /// The producer's index.
        producer: u32,
        /// The consumer's index.
        consumer: u32,
        /// Entries in the ring.
        entries: u32,
    },
    /// The kernel refused the memory.
    #[error("cannot map {bytes} bytes for a ring: {cause}")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// What the kernel said.
        cause: std::io::Error,
    },
}

/// Checks a number of entries.
fn check_entries(entries: u32) -> Result<(), RingError> {
    if entries.is_power_of_two() && entries <= ENTRIES_MAX { Ok(()) } else { Err(RingError::Entries(entries)) }
}
