//! Where frames come from and where they go back to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::frame::{ETH_HLEN, FRAME_RESERVE, Frame, Slot};
use crate::memory::Mapping;

/// How a pool is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Number of chunks, 1 to 2^24.
    pub frames: u32,
    /// Size of a chunk, bytes: 2048 or 4096.
    pub chunk_size: u32,
    /// Bytes before a received packet, 256 at least (`XDP_PACKET_HEADROOM`).
    pub headroom: u32,
    /// Bytes at the end that no packet reaches: 320 on Linux (`skb_shared_info`, aligned).
    pub tailroom: u32,
    /// Most frames that may be out at once; an allocation beyond is refused.
    pub max_outstanding: u32,
}

impl PoolConfig {
    /// 4 KiB chunks with Linux's reserves and no limit but their number.
    pub const fn new(frames: u32) -> PoolConfig {
        PoolConfig { frames, chunk_size: 4096, headroom: 256, tailroom: 320, max_outstanding: frames }
    }
}

/// Why a pool cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolError {
    /// A number in the configuration is out of range.
    #[error("pool: {field} = {value} is out of range ({range})")]
    Config {
        /// Field of [`PoolConfig`].
        field: &'static str,
        /// Its value.
        value: u32,
        /// What is allowed.
        range: &'static str,
    },
    /// The system gave no memory.
    #[error("pool: {bytes} bytes of packet memory could not be mapped: {source}")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The system's answer.
        source: rustix::io::Errno,
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

/// What a pool has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Allocations from the owner's stack.
    pub fast: u64,
    /// Allocations that had to fetch frames from the return queue first.
    pub ring: u64,
    /// Allocations that took a chunk for the first time.
    pub slow: u64,
    /// Allocations refused.
    pub refused: u64,
    /// Frames that the owner gave back.
    pub recycled: u64,
    /// Frames that came home through the return queue.
    pub returned: u64,
    /// Frames that are out now.
    pub outstanding: u32,
}

/// The part of a pool that frames know: its memory and the way back.
#[derive(Debug)]
pub(crate) struct Home {
    returned: ArrayQueue<Box<Slot>>,
    closed: AtomicBool,
    returned_total: AtomicU64,
    memory: Mapping,
}

impl Home {
    /// Takes a slot back from any thread. After the pool is closed the slot is freed instead.
    pub(crate) fn take_back(&self, slot: Box<Slot>) {
        self.returned_total.fetch_add(1, Ordering::Relaxed);
        if !self.closed.load(Ordering::Acquire) {
            // The queue has a place for every slot that exists, so this cannot fail; were it to, the slot is freed and
            // its chunk rests unused until the mapping goes.
            let _ = self.returned.push(slot);
        }
        // Closing may have drained the queue between the load and the push.
        if self.closed.load(Ordering::Acquire) {
            while self.returned.pop().is_some() {}
        }
    }
}

/// The frames of one RX queue. One owner allocates and releases without atomic operations; others return frames by
/// dropping them.
#[derive(Debug)]
pub struct Pool {
    #[expect(clippy::vec_box, reason = "a slot keeps its address for life: compiled code will hold it as the context")]
    free: Vec<Box<Slot>>,
    /// Chunks from here on have not been used yet: they take no memory until they are.
    fresh: u32,
    config: PoolConfig,
    counters: Counters,
    home: Arc<Home>,
}

impl Pool {
    /// Maps the memory; chunks are touched only when they are first used.
    ///
    /// # Errors
    /// [`PoolError`] for a configuration out of range or when there is no memory.
    pub fn new(config: PoolConfig) -> Result<Pool, PoolError> {
        check(&config)?;
        let bytes = config.frames as usize * config.chunk_size as usize;
        let memory = Mapping::new(bytes).map_err(|source| PoolError::Memory { bytes, source })?;
        let home = Home {
            returned: ArrayQueue::new(config.frames as usize),
            closed: AtomicBool::new(false),
            returned_total: AtomicU64::new(0),
            memory,
        };
        Ok(Pool { free: Vec::new(), fresh: 0, config, counters: Counters::default(), home: Arc::new(home) })
    }

    /// How the pool was made.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// An empty frame.
    ///
    /// # Errors
    /// [`Refused`], counted, when `max_outstanding` frames are out.
    pub fn alloc(&mut self) -> Result<Frame, Refused> {
        if self.counters.outstanding >= self.config.max_outstanding || self.free.is_empty() {
            return self.alloc_cold();
        }
        self.counters.fast += 1;
        self.hand_out()
    }

    #[cold]
    fn alloc_cold(&mut self) -> Result<Frame, Refused> {
        let fetched = self.fetch_returned();
        if self.counters.outstanding >= self.config.max_outstanding {
            self.counters.refused += 1;
            return Err(Refused { outstanding: self.counters.outstanding });
        }
        if !self.free.is_empty() {
            if fetched > 0 {
                self.counters.ring += 1;
            } else {
                self.counters.fast += 1;
            }
            return self.hand_out();
        }
        if self.fresh < self.config.frames {
            let (size, at) = (self.config.chunk_size, self.fresh as usize * self.config.chunk_size as usize);
            self.fresh += 1;
            self.counters.slow += 1;
            let base = self.home.memory.at(at, size as usize);
            let home = Arc::clone(&self.home);
            self.free.push(Slot::new(base, size, self.config.headroom, self.config.tailroom, home));
        }
        self.hand_out()
    }

    fn hand_out(&mut self) -> Result<Frame, Refused> {
        match self.free.pop() {
            Some(slot) => {
                self.counters.outstanding += 1;
                Ok(Frame::new(slot))
            }
            None => {
                self.counters.refused += 1;
                Err(Refused { outstanding: self.counters.outstanding })
            }
        }
    }

    /// Takes a frame back on the owner's side. A frame of another pool goes to its own home.
    pub fn release(&mut self, frame: Frame) {
        if !frame.belongs_to(&self.home) {
            return;
        }
        self.counters.recycled += 1;
        self.counters.outstanding -= 1;
        self.free.push(frame.into_slot());
    }

    /// The counters, with the frames that others have returned by now counted in.
    pub fn counters(&mut self) -> Counters {
        self.fetch_returned();
        Counters { returned: self.home.returned_total.load(Ordering::Relaxed), ..self.counters }
    }

    /// Ends the pool and says whether every frame came home. Its memory goes when the last frame does.
    ///
    /// # Errors
    /// [`Leak`] with the number of frames that are still out.
    pub fn close(mut self) -> Result<(), Leak> {
        match self.counters().outstanding {
            0 => Ok(()),
            outstanding => Err(Leak { outstanding }),
        }
    }

    fn fetch_returned(&mut self) -> usize {
        let mut fetched = 0;
        while let Some(slot) = self.home.returned.pop() {
            self.free.push(slot);
            fetched += 1;
        }
        self.counters.outstanding -= fetched as u32;
        fetched
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.home.closed.store(true, Ordering::Release);
        // Slots hold the home alive: let go of those that are here. Slots that are out go by themselves.
        while self.home.returned.pop().is_some() {}
    }
}

fn check(c: &PoolConfig) -> Result<(), PoolError> {
    let bad = |field, value, range| Err(PoolError::Config { field, value, range });
    if c.frames == 0 || c.frames > 1 << 24 {
        return bad("frames", c.frames, "1 to 16777216");
    }
    if !matches!(c.chunk_size, 2048 | 4096) {
        return bad("chunk_size", c.chunk_size, "2048 or 4096");
    }
    if c.headroom < 256 || c.headroom > 1024 {
        return bad("headroom", c.headroom, "256 to 1024");
    }
    if c.tailroom > 512 || FRAME_RESERVE.max(c.headroom) + ETH_HLEN + c.tailroom > c.chunk_size {
        return bad("tailroom", c.tailroom, "0 to 512");
    }
    if c.max_outstanding == 0 || c.max_outstanding > c.frames {
        return bad("max_outstanding", c.max_outstanding, "1 to the number of frames");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameFull, Redirect};
    use xway_abi::Errno;

    fn pool(frames: u32) -> Pool {
        Pool::new(PoolConfig::new(frames)).expect("a small pool")
    }

    #[test]
    fn frames_come_home_by_hand_and_by_themselves() {
        let mut p = pool(3);
        let (a, b, c) = (p.alloc().unwrap(), p.alloc().unwrap(), p.alloc().unwrap());
        assert_eq!(p.alloc().unwrap_err(), Refused { outstanding: 3 });
        p.release(a);
        drop(b);
        std::thread::spawn(move || drop(c)).join().unwrap();
        let d = p.alloc().unwrap();
        let e = p.alloc().unwrap();
        let counters = p.counters();
        assert_eq!((counters.outstanding, counters.refused, counters.slow), (2, 1, 3));
        assert_eq!((counters.recycled, counters.returned), (1, 2));
        p.release(d);
        p.release(e);
        p.close().expect("all home");
    }

    #[test]
    fn a_missing_frame_is_a_leak_and_its_memory_stays_good() {
        let mut p = pool(2);
        let mut f = p.alloc().unwrap();
        f.fill(&[7; 60]).unwrap();
        assert_eq!(p.close(), Err(Leak { outstanding: 1 }));
        assert_eq!(f.packet(), [7; 60]);
    }

    #[test]
    fn a_frame_of_another_pool_goes_to_its_own_home() {
        let (mut p, mut q) = (pool(1), pool(1));
        let f = p.alloc().unwrap();
        q.release(f);
        q.close().expect("nothing was out");
        p.close().expect("came home");
    }

    #[test]
    fn max_outstanding_refuses_before_the_chunks_run_out() {
        let mut p = Pool::new(PoolConfig { max_outstanding: 1, ..PoolConfig::new(8) }).unwrap();
        let f = p.alloc().unwrap();
        assert!(p.alloc().is_err());
        drop(f);
        assert!(p.alloc().is_ok());
    }

    #[test]
    fn a_used_frame_is_handed_out_clean() {
        let mut p = pool(1);
        let mut f = p.alloc().unwrap();
        f.fill(&[1; 100]).unwrap();
        f.adjust_head(-8).unwrap();
        f.set_redirect(Redirect::Ifindex(3));
        f.set_ingress(4, 5);
        p.release(f);
        let f = p.alloc().unwrap();
        assert_eq!((f.len(), f.data(), f.redirect(), f.ingress_ifindex()), (0, 256, Redirect::None, 0));
    }

    #[test]
    fn the_moves_have_linux_limits() {
        let mut p = pool(1);
        let mut f = p.alloc().unwrap();
        assert_eq!(f.fill(&[0; 3521]), Err(FrameFull { len: 3521, room: 3520 }));
        f.fill(&(0..100).collect::<Vec<u8>>()).unwrap();

        assert_eq!(f.adjust_head(-217), Err(Errno::EINVAL));
        f.adjust_head(-216).unwrap();
        assert_eq!((f.data(), f.len()), (40, 316));
        assert_eq!(f.adjust_head(303), Err(Errno::EINVAL));
        f.adjust_head(216).unwrap();
        assert_eq!(f.packet()[..3], [0, 1, 2]);

        assert_eq!(f.adjust_tail(-87), Err(Errno::EINVAL));
        f.adjust_tail(-86).unwrap();
        f.adjust_tail(6).unwrap();
        assert_eq!(f.packet()[12..], [12, 13, 0, 0, 0, 0, 0, 0]);
        assert_eq!(f.adjust_tail(3520 - 20 + 1), Err(Errno::EINVAL));
        f.adjust_tail(3520 - 20).unwrap();

        assert_eq!(f.adjust_meta(-3), Err(Errno::EACCES));
        assert_eq!(f.adjust_meta(4), Err(Errno::EINVAL));
        assert_eq!(f.adjust_meta(-217), Err(Errno::EINVAL));
        f.adjust_meta(-8).unwrap();
        f.accessible_mut()[..8].copy_from_slice(b"metadata");
        f.adjust_head(-4).unwrap();
        assert_eq!(f.meta(), b"metadata");
        assert_eq!(f.adjust_head(-(216 - 8 - 4 + 1)), Err(Errno::EINVAL));
        for delta in [i32::MIN, i32::MAX] {
            assert!(f.adjust_head(delta).is_err() && f.adjust_tail(delta).is_err() && f.adjust_meta(delta).is_err());
        }
    }

    #[test]
    fn a_configuration_out_of_range_is_named() {
        let bad = Pool::new(PoolConfig { chunk_size: 3000, ..PoolConfig::new(1) });
        assert!(matches!(bad, Err(PoolError::Config { field: "chunk_size", .. })));
        assert!(Pool::new(PoolConfig { headroom: 128, ..PoolConfig::new(1) }).is_err());
        assert!(Pool::new(PoolConfig::new(0)).is_err());
    }
}
