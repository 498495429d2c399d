//! What a pool is made of, and why making one can fail.

use xway_numa::Placement;

use crate::layout;
use crate::pressure::PressureAt;

/// Where a pool's memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backing {
    /// Private anonymous memory.
    #[default]
    Anonymous,
    /// A memory file that can be mapped by a second process or registered with a device; see [`crate::Pool::memory_fd`].
    Memfd,
}

/// What kind of pages the memory should have. Bigger ones cost fewer misses of the TLB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pages {
    /// Ordinary pages; the kernel is not asked for others.
    Base,
    /// Ordinary pages that the kernel may join (`madvise(MADV_HUGEPAGE)`).
    Joined,
    /// Pages of 2 MiB from the machine's reserve (`vm.nr_hugepages`) when there are enough, joined ones when not. A pool of less
    /// than 2 MiB does not ask for the reserve.
    #[default]
    Huge,
}

impl Pages {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Pages::Base => "base",
            Pages::Joined => "joined",
            Pages::Huge => "huge",
        }
    }
}

/// What kind of memory a pool got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryReport {
    /// Bytes mapped.
    pub bytes: usize,
    /// Whether it is a memory file that others can map.
    pub memfd: bool,
    /// Pages asked for.
    pub requested: Pages,
    /// Pages got. [`Pages::Joined`] is what the kernel was asked for; how much of it is joined is in `/proc/self/smaps`.
    pub effective: Pages,
    /// Why the two differ, and what to try; `None` when they do not.
    pub reason: Option<String>,
    /// On which NUMA node it lies.
    pub placement: Placement,
}

/// Shape and limits of a [`crate::Pool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Number of chunks. Memory is reserved at once and touched only when a chunk is first used.
    pub frames: u32,
    /// Bytes per chunk: a power of two between [`layout::CHUNK_MIN`] and [`layout::CHUNK_MAX`].
    pub chunk_size: u32,
    /// Bytes in front of a fresh packet, at least [`layout::HEADROOM`].
    pub headroom: u32,
    /// Bytes at the end of a chunk that programs cannot reach; [`layout::TAIL_RESERVE`] is what Linux has.
    pub tailroom: u32,
    /// At most this many frames may be away at the same time; allocation is refused and counted beyond it. Values above
    /// `frames` mean `frames`.
    pub max_outstanding: u32,
    /// Where the memory comes from.
    pub backing: Backing,
    /// What kind of pages it should have.
    pub pages: Pages,
    /// The NUMA node that its pages should come from; `None`: wherever they are touched first. What became of it is in
    /// [`MemoryReport::placement`].
    pub node: Option<u32>,
    /// From when on programs see pressure.
    pub pressure: PressureAt,
    /// Whether the pool can take device metadata in front of the packet; without it `bpf_xdp_adjust_meta` fails.
    pub metadata: bool,
}

impl Default for PoolConfig {
    /// 1024 chunks.
    fn default() -> Self {
        PoolConfig::new(1024)
    }
}

impl PoolConfig {
    /// 4 KiB chunks with Linux's reserves and no limit but their number.
    pub const fn new(frames: u32) -> PoolConfig {
        PoolConfig {
            frames,
            chunk_size: layout::CHUNK,
            headroom: layout::HEADROOM,
            tailroom: layout::TAIL_RESERVE,
            max_outstanding: frames,
            backing: Backing::Anonymous,
            pages: Pages::Huge,
            node: None,
            pressure: PressureAt::DEFAULT,
            metadata: true,
        }
    }

    /// Chunks of 2 KiB without a tailroom: half the memory, room for packets of 1792 bytes.
    pub const fn compact(frames: u32) -> Self {
        PoolConfig::new(frames).in_chunks_of(layout::CHUNK_MIN)
    }

    /// The same pool with chunks of another size; those of 2 KiB, two to a page, have no tailroom.
    pub const fn in_chunks_of(self, chunk_size: u32) -> Self {
        let tailroom = if chunk_size == layout::CHUNK_MIN { 0 } else { self.tailroom };
        PoolConfig { chunk_size, tailroom, ..self }
    }

    /// The longest packet that a fresh frame can hold.
    pub const fn capacity(&self) -> u32 {
        self.chunk_size.saturating_sub(self.headroom).saturating_sub(self.tailroom)
    }

    /// Bytes from one chunk to the next. Chunks whose distance is a power of two would have all their packets in one set of
    /// the first-level cache, which holds fewer than a burst: one line between them spreads packets over all sets. Memory that
    /// others map keeps the layout that they expect.
    pub(crate) fn stride(&self) -> usize {
        let between = match self.backing {
            Backing::Anonymous => 64,
            Backing::Memfd => 0,
        };
        self.chunk_size as usize + between
    }

    /// How many bytes later than others the packet of this chunk starts and may end. Where chunks have to lie a power of two apart
    /// this spreads packets over the sets of the caches; it is taken out of the tailroom, so that packets are as long as ever.
    pub(crate) const fn shift(&self, number: u32) -> u32 {
        match self.backing {
            Backing::Anonymous => 0,
            Backing::Memfd => number % (self.tailroom / 64 + 1) * 64,
        }
    }

    /// Whether a pool can have this shape, as far as that is known before its memory is asked for.
    ///
    /// # Errors
    /// The first number that cannot be, with what it can.
    pub fn check(&self) -> Result<(), PoolError> {
        let size = self.chunk_size;
        if !size.is_power_of_two() || !(layout::CHUNK_MIN..=layout::CHUNK_MAX).contains(&size) {
            return Err(PoolError::ChunkSize(size));
        }
        if self.frames == 0 || self.frames > FRAMES_MAX || u64::from(self.frames) * u64::from(size) > BYTES_MAX {
            return Err(PoolError::Frames { frames: self.frames, chunk_size: size });
        }
        if self.headroom < layout::HEADROOM {
            return Err(PoolError::Headroom(self.headroom));
        }
        if self.capacity() < layout::ETH_HLEN {
            return Err(PoolError::NoRoom { chunk_size: size, headroom: self.headroom, tailroom: self.tailroom });
        }
        Ok(())
    }
}

/// Frames per pool are indexed with 32 bits, two values of which mean "end of list" and "closed".
const FRAMES_MAX: u32 = 1 << 24;
const BYTES_MAX: u64 = 1 << 40;

/// Why a pool could not be made or closed.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The chunk size is not one of those possible.
    #[error("chunk size {0}: must be a power of two from {min} to {max}", min = layout::CHUNK_MIN, max = layout::CHUNK_MAX)]
    ChunkSize(u32),
    /// No frames, or more than a pool can number or an address space should hold.
    #[error("{frames} frames of {chunk_size} bytes: a pool has 1 to {FRAMES_MAX} frames and at most 1 TiB")]
    Frames {
        /// Frames asked for.
        frames: u32,
        /// Bytes per frame.
        chunk_size: u32,
    },
    /// Programs rely on at least 256 bytes in front of the packet.
    #[error("headroom {0}: programs may rely on at least {min} bytes", min = layout::HEADROOM)]
    Headroom(u32),
    /// Headroom and tailroom leave no space for a packet.
    #[error("headroom {headroom} and tailroom {tailroom} leave no room for a packet in {chunk_size} bytes")]
    NoRoom {
        /// Bytes per chunk.
        chunk_size: u32,
        /// Bytes in front.
        headroom: u32,
        /// Bytes behind.
        tailroom: u32,
    },
    /// The kernel refused the memory.
    #[error("cannot map {bytes} bytes of packet memory: {cause}")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// What the kernel said.
        cause: std::io::Error,
    },
}

/// An allocation was refused: as many frames are out as may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no frame: {outstanding} are out, and no more may be")]
pub struct Refused {
    /// Frames that are out.
    pub outstanding: u32,
}

/// Frames that did not come home.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{outstanding} frames did not come home to their pool")]
pub struct Leak {
    /// Their number.
    pub outstanding: u32,
}
