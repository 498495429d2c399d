//! The pool: one mapping, cut into chunks, allocated by one thread and given back by any.
#![allow(unsafe_code)] // makes handles from chunk numbers

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::arena::Arena;
use crate::burst::Burst;
use crate::config::{Leak, PoolConfig, PoolError, Refused};
use crate::frame::Frame;

/// What a pool has done, in frames. `fast + ring + slow` is the number of successful allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Allocations from the owner's own stack: no atomic operation.
    pub fast: u64,
    /// Allocations that first had to collect what other threads gave back.
    pub ring: u64,
    /// Allocations of a chunk that was never used before: its pages are touched for the first time.
    pub slow: u64,
    /// Frames that the owner gave back.
    pub recycled: u64,
    /// Frames that came home through the return queue.
    pub returned: u64,
    /// Frames that are away now. Frames in the return queue count until the owner collects them.
    pub outstanding: u32,
    /// The most that were ever away at the same time.
    pub outstanding_max: u32,
    /// Allocations refused: no chunk left or the limit reached.
    pub refused: u64,
}

/// Packet memory of one owner.
///
/// The owner is whoever has the `Pool` by `&mut`; it can move to another thread. Frames can be anywhere.
pub struct Pool {
    arena: NonNull<Arena>,
    config: PoolConfig,
    limit: u32,
    /// Chunks at home, last in first out: the most recently used is the one most likely in cache.
    free: Vec<u32>,
    /// Chunks from this number on were never used.
    fresh: u32,
    counters: Counters,
}

// SAFETY: the pool is the only one to use its stack and the taking side of the return list, and neither belongs to a
// thread. What others reach of the arena are atomics.
unsafe impl Send for Pool {}

impl Pool {
    /// Maps the memory.
    ///
    /// # Errors
    /// A configuration that makes no sense, or the kernel has no memory. Never panics.
    pub fn new(config: PoolConfig) -> Result<Pool, PoolError> {
        let arena = Arena::create(&config)?;
        Ok(Pool {
            arena,
            config,
            limit: config.max_outstanding.min(config.frames),
            free: Vec::with_capacity(config.frames as usize),
            fresh: 0,
            counters: Counters::default(),
        })
    }

    /// An empty frame, its packet of length 0 at the configured headroom.
    ///
    /// # Errors
    /// [`Refused`], counted, when as many frames are out as there are or may be.
    #[inline]
    pub fn alloc(&mut self) -> Result<Frame, Refused> {
        let number = match self.free.pop() {
            Some(number) if self.counters.outstanding < self.limit => {
                self.counters.fast += 1;
                number
            }
            home => self.alloc_cold(home)?,
        };
        self.counters.outstanding += 1;
        self.counters.outstanding_max = self.counters.outstanding_max.max(self.counters.outstanding);
        // SAFETY: the number comes from the free stack or the unused range.
        let mut frame = Frame::new(unsafe { self.arena().handle(number) });
        frame.reset();
        Ok(frame)
    }

    /// Fills a burst up to `count` more frames (at most to its end) and says how many it got. The first that is refused is
    /// counted once.
    pub fn alloc_burst(&mut self, burst: &mut Burst, count: usize) -> usize {
        let before = burst.len();
        for _ in 0..count.min(burst.room()) {
            let Ok(frame) = self.alloc() else { break };
            if let Err(frame) = burst.push(frame) {
                self.release(frame);
            }
        }
        burst.len() - before
    }

    /// A copy of a frame of any pool: packet, metadata, ingress and receive metadata; not its redirect target. The packet
    /// stands where it stands in the original, so it has the same room around it.
    ///
    /// # Errors
    /// [`Refused`], counted, when there is no frame, or when the chunks of this pool are too small for it.
    pub fn copy(&mut self, of: &Frame) -> Result<Frame, Refused> {
        let mut frame = self.alloc()?;
        if frame.copy_from(of).is_err() {
            self.release(frame);
            self.counters.refused += 1;
            return Err(Refused { outstanding: self.counters.outstanding });
        }
        Ok(frame)
    }

    /// Takes a frame back. One of another pool is sent home to that pool.
    #[inline]
    pub fn release(&mut self, frame: Frame) {
        if frame.handle().arena() != self.arena {
            drop(frame);
            return;
        }
        self.free.push(frame.into_handle().into_number());
        self.counters.recycled += 1;
        self.counters.outstanding -= 1;
    }

    /// Takes all frames of a burst back.
    pub fn release_burst(&mut self, burst: &mut Burst) {
        for frame in burst.drain() {
            self.release(frame);
        }
    }

    /// Collects what other threads gave back, and says whether anything was there.
    pub fn collect(&mut self) -> bool {
        // SAFETY: the arena lives at least as long as the pool.
        let taken = unsafe { self.arena.as_ref() }.returns.take(&mut self.free);
        self.came_home(taken);
        taken > 0
    }

    /// The counters. Costs a look at the return queue, so that `outstanding` is up to date.
    pub fn counters(&mut self) -> Counters {
        self.collect();
        self.counters
    }

    /// The configuration that the pool was made with.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The longest packet that a fresh frame can hold.
    pub fn capacity(&self) -> u32 {
        self.config.capacity()
    }

    /// Whether the frame is one of this pool's.
    pub fn owns(&self, frame: &Frame) -> bool {
        frame.handle().arena() == self.arena
    }

    /// The memory file behind the pool, `None` when the memory is anonymous. Chunks lie one after the other from offset 0.
    /// Whoever maps it sees and changes packets while programs read them: only for peers that are trusted with that.
    pub fn memory_fd(&self) -> Option<BorrowedFd<'_>> {
        self.arena().memory().fd()
    }

    /// Ends the pool and proves that every frame came home.
    ///
    /// # Errors
    /// [`Leak`] with the number of frames that are still away. They stay valid; the memory goes when the last one is dropped.
    pub fn close(mut self) -> Result<(), Leak> {
        match self.counters().outstanding {
            0 => Ok(()),
            outstanding => Err(Leak { outstanding }),
        }
    }

    /// Allocation when the stack is empty or, with `home` from the stack, when the limit is reached.
    #[cold]
    fn alloc_cold(&mut self, home: Option<u32>) -> Result<u32, Refused> {
        self.free.extend(home);
        if self.collect()
            && let Some(number) = self.free.pop()
        {
            self.counters.ring += 1;
            return Ok(number);
        }
        if self.counters.outstanding < self.limit && self.fresh < self.config.frames {
            self.counters.slow += 1;
            self.fresh += 1;
            return Ok(self.fresh - 1);
        }
        self.counters.refused += 1;
        Err(Refused { outstanding: self.counters.outstanding })
    }

    fn came_home(&mut self, count: usize) {
        self.counters.returned += count as u64;
        self.counters.outstanding -= count as u32;
    }

    fn arena(&self) -> &Arena {
        // SAFETY: the arena lives at least as long as the pool.
        unsafe { self.arena.as_ref() }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut taken = Vec::new();
        // SAFETY: the arena lives at least as long as the pool.
        let returns = unsafe { &self.arena.as_ref().returns };
        let home = returns.close(&mut taken) as u32;
        // Once this is settled another thread may free the arena. Only references to its atomics are left by then.
        if returns.door().settle(self.counters.outstanding - home) {
            // SAFETY: `settle` says that no chunk is away, so there is no handle and there will be none; the pool's own
            // pointer is not used again.
            unsafe { Arena::free(self.arena) };
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("config", &self.config).field("stats", &self.counters).finish_non_exhaustive()
    }
}
