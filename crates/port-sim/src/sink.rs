//! Where frames end that leave a generated port: counted, and looked at if somebody wants to know what arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use xway_packet::Frame;

/// What came to one side of a sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// A sum over the contents of all frames that does not depend on their order; 0 while nobody asks for it. See
    /// [`Seen::digest_of`].
    pub digest: u64,
}

impl Seen {
    /// What `digest` grows by for a packet (it wraps around).
    pub fn digest_of(packet: &[u8]) -> u64 {
        let mut words = packet.chunks_exact(8);
        let mut hash = packet.len() as u64 ^ 0x9e37_79b9_7f4a_7c15;
        let mut mix = |word: u64| {
            hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
            hash ^= hash >> 32;
        };
        for word in &mut words {
            mix(word.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)));
        }
        mix(words.remainder().iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)));
        hash
    }
}

#[derive(Default)]
struct Side {
    frames: AtomicU64,
    bytes: AtomicU64,
    digest: AtomicU64,
}

/// Counts of a generated port, to be read from any thread. Clones look at the same counts.
#[derive(Clone, Default)]
pub struct Sink {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    sent: Side,
    passed: Side,
    inspect: AtomicBool,
}

/// Which side.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Sent,
    Passed,
}

impl Sink {
    /// What was sent: TX, and REDIRECT to the port.
    pub fn sent(&self) -> Seen {
        read(&self.shared.sent)
    }

    /// What went to the port's stack side: PASS.
    pub fn passed(&self) -> Seen {
        read(&self.shared.passed)
    }

    /// From now on the contents of frames are looked at, or no longer.
    pub fn inspect(&self, on: bool) {
        self.shared.inspect.store(on, Ordering::Relaxed);
    }

    /// Counts the frames of a burst. One writer at a time for each port; several ports may share a sink.
    #[inline]
    pub(crate) fn take<'f>(&self, way: Way, frames: impl ExactSizeIterator<Item = &'f Frame> + Clone) -> (u64, u64) {
        let side = match way {
            Way::Sent => &self.shared.sent,
            Way::Passed => &self.shared.passed,
        };
        let count = frames.len() as u64;
        let bytes = frames.clone().map(|frame| frame.total_len() as u64).sum::<u64>();
        side.frames.fetch_add(count, Ordering::Relaxed);
        side.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.shared.inspect.load(Ordering::Relaxed) {
            let digest = frames.fold(0u64, |sum, frame| sum.wrapping_add(Seen::digest_of(&frame.contents())));
            side.digest.fetch_add(digest, Ordering::Relaxed);
        }
        (count, bytes)
    }
}

fn read(side: &Side) -> Seen {
    Seen {
        frames: side.frames.load(Ordering::Relaxed),
        bytes: side.bytes.load(Ordering::Relaxed),
        digest: side.digest.load(Ordering::Relaxed),
    }
}
