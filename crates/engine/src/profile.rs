//! How much memory the engine takes: one word for many numbers.

use xway_packet::{Backing, Burst, Pages, PoolConfig, layout};

/// A word for the sizes of bursts, rings, chunks and pools.
///
/// | | standard | small |
/// |---|---|---|
/// | packets received at once | 64 | 16 |
/// | a ring between two workers, frames | 2,048 | 256 |
/// | a chunk | 4 KiB, one packet a page | 2 KiB, two; packets of 1,792 bytes |
/// | chunks of a queue, where its device does not need more | 1,024 | 256 |
/// | descriptors of an AF_XDP ring, at most | 32,768 | 256 |
/// | pages | of 2 MiB where they can be had | ordinary ones |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Profile {
    /// For throughput.
    #[default]
    Standard,
    /// For devices with little memory and small caches.
    Small,
}

impl Profile {
    /// The words, with what they mean.
    pub const NAMES: [(&'static str, Profile); 2] = [("standard", Profile::Standard), ("small", Profile::Small)];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Standard => "standard",
            Profile::Small => "small",
        }
    }

    /// Most packets that are received at once.
    pub const fn burst(self) -> u32 {
        match self {
            Profile::Standard => Burst::MAX as u32,
            Profile::Small => 16,
        }
    }

    /// Frames that a ring between two workers holds.
    pub const fn ring_len(self) -> u32 {
        match self {
            Profile::Standard => 2048,
            Profile::Small => 256,
        }
    }

    /// Most descriptors of a ring that a device shares.
    pub const fn ring_entries_max(self) -> u32 {
        match self {
            Profile::Standard => 1 << 15,
            Profile::Small => 256,
        }
    }

    /// The pool that a queue gets whose device asks for this one. Memory that others map has as many chunks as its device needs.
    pub fn pool(self, asked: PoolConfig) -> PoolConfig {
        if self == Profile::Standard {
            return asked;
        }
        let frames = if asked.backing == Backing::Memfd { asked.frames } else { asked.frames.min(256) };
        let small =
            PoolConfig { frames, max_outstanding: asked.max_outstanding.min(frames), pages: Pages::Base, ..asked };
        small.in_chunks_of(layout::CHUNK_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_is_smaller_and_still_takes_packets_of_a_usual_size() {
        let bytes = |pool: PoolConfig| u64::from(pool.frames) * u64::from(pool.chunk_size);
        let (standard, small) =
            (Profile::Standard.pool(PoolConfig::default()), Profile::Small.pool(PoolConfig::default()));
        assert_eq!(standard, PoolConfig::default());
        assert_eq!((bytes(standard), bytes(small)), (4 << 20, 512 << 10));
        assert!(small.capacity() >= 1514 + 4 && small.max_outstanding == small.frames);
        let shared = PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(4096) };
        assert_eq!(Profile::Small.pool(shared).frames, 4096, "rings of a device are filled");
        assert!(Profile::Small.burst() < Profile::Standard.burst());
        assert!(Profile::NAMES.iter().all(|(name, profile)| profile.name() == *name));
    }
}
