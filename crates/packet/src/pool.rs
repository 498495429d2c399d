//! The pool: one mapping, cut into chunks, allocated by one thread and given back by any.
#![allow(unsafe_code)] // makes handles from chunk numbers

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::vec::Drain;

use crate::arena::{Arena, Homeward};
use crate::burst::Burst;
use crate::config::{Leak, MemoryReport, PoolConfig, PoolError, Refused};
use crate::counters::Counters;
use crate::frame::Frame;
use crate::lent::Lent;
use crate::pressure::{Pressure, Watch};

/// Packet memory of one owner.
///
/// The owner is whoever has the `Pool` by `&mut`; it can move to another thread. Frames can be anywhere.
pub struct Pool {
    arena: NonNull<Arena>,
    config: PoolConfig,
    limit: u32,
    /// Chunks at home, last in first out: the most recently used is the one most likely in cache.
    free: Vec<u32>,
    /// So many on top of these came from other threads, whose cores have their lines. A hint.
    elsewhere: usize,
    /// Frames of other pools, on their way home.
    others: Homeward,
    /// Chunks from this number on were never used.
    fresh: u32,
    /// The distance of chunks is two to the power of this; `None` when it is no power of two.
    shift: Option<u32>,
    counters: Counters,
    watch: Watch,
    lent: Lent,
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
        let limit = config.max_outstanding.min(config.frames);
        Ok(Pool {
            arena,
            config,
            limit,
            watch: Watch::new(config.pressure, limit),
            lent: Lent::default(),
            free: Vec::with_capacity(config.frames as usize),
            elsewhere: 0,
            others: Homeward::new(),
            fresh: 0,
            shift: config.stride().is_power_of_two().then(|| config.stride().ilog2()),
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
        self.left(1);
        // SAFETY: the number comes from the free stack or the unused range.
        let mut frame = Frame::new(unsafe { self.arena().handle(number) });
        frame.reset();
        Ok(frame)
    }

    /// Fills a burst up to `count` more frames (at most to its end) and says how many it got. The first that is refused is
    /// counted once.
    #[inline]
    pub fn alloc_burst(&mut self, burst: &mut Burst, count: usize) -> usize {
        self.alloc_each(burst, count, |_| ())
    }

    /// As [`Pool::alloc_burst`], with something done to each frame on its way: what a port writes into a descriptor that was just
    /// written costs less than in a walk of its own.
    #[inline]
    pub fn alloc_each(&mut self, burst: &mut Burst, count: usize, mut each: impl FnMut(&mut Frame)) -> usize {
        let count = count.min(burst.room());
        let mut ready = count.min(self.free.len()).min((self.limit - self.counters.outstanding) as usize);
        self.counters.fast += ready as u64;
        if ready < count {
            ready = self.refill(ready, count);
        }
        if self.elsewhere > 0 {
            self.fetch(ready);
        }
        // SAFETY: the arena lives at least as long as the pool.
        let arena = unsafe { self.arena.as_ref() };
        // Off the stack, and counted, before `each` is called: a panic there loses frames, but none is there twice, and the arena lives
        // while they are away. (An array, not a `Drain`, which would have to be dropped then: what `each` counts would be in memory for
        // that.)
        self.left(ready as u32);
        let mut numbers = [0; Burst::MAX];
        let numbers = &mut numbers[..ready];
        let rest = self.free.len() - ready;
        numbers.copy_from_slice(&self.free[rest..]);
        self.free.truncate(rest);
        // There is room: ready <= count <= the burst's.
        burst.extend(numbers.iter().rev().map(|&number| {
            // SAFETY: the number comes from the free stack.
            let mut frame = Frame::new(unsafe { arena.handle(number) });
            frame.reset();
            each(&mut frame);
            frame
        }));
        ready
    }

    /// For a burst of `count` frames only the first `ready` are at hand: puts more on the stack, and says how many frames it can get.
    #[cold]
    fn refill(&mut self, ready: usize, count: usize) -> usize {
        let came = self.collect();
        let below = (self.limit - self.counters.outstanding) as usize;
        let home = count.min(self.free.len()).min(below);
        let fresh = (count - home).min(below - home).min((self.config.frames - self.fresh) as usize);
        // On top of those that were used, so that these are the first of the next burst.
        self.free.extend((self.fresh..self.fresh + fresh as u32).rev());
        self.fresh += fresh as u32;
        let waited = usize::from(came && home > ready);
        self.counters.ring += waited as u64;
        self.counters.fast += (home - ready - waited) as u64;
        self.counters.slow += fresh as u64;
        self.counters.refused += u64::from(home + fresh < count);
        home + fresh
    }

    /// A copy of a frame of any pool: packet, metadata, ingress and receive metadata; not its redirect target. The packet
    /// stands where it stands in the original, so it has the same room around it.
    ///
    /// # Errors
    /// [`Refused`], counted, when there is no frame, or when the chunks of this pool are too small for it.
    pub fn copy(&mut self, of: &Frame) -> Result<Frame, Refused> {
        let mut frame = self.alloc()?;
        if frame.copy_from(of).is_ok() && self.copy_parts(&mut frame, of)? {
            return Ok(frame);
        }
        self.release(frame);
        self.counters.refused += 1;
        Err(Refused { outstanding: self.counters.outstanding })
    }

    /// Copies the buffers behind the first; says no when a chunk is too small for one.
    fn copy_parts(&mut self, to: &mut Frame, of: &Frame) -> Result<bool, Refused> {
        for bytes in of.parts().skip(1) {
            let mut part = self.alloc()?;
            if part.fill_part(bytes).is_err() || to.push_part(part).is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A frame whose packet is `bytes`, in as many buffers as that takes: the first at the default headroom, the others in a whole
    /// chunk each.
    ///
    /// # Errors
    /// [`Refused`], counted, when there are not enough frames, or when it takes more than [`Frame::FRAGS_MAX`] besides the first.
    pub fn frame_of(&mut self, bytes: &[u8]) -> Result<Frame, Refused> {
        let mut frame = self.alloc()?;
        let (first, rest) = bytes.split_at(bytes.len().min(frame.capacity()));
        let fits = frame.fill(first).is_ok();
        match self.append(&mut frame, rest) {
            Ok(()) if fits => Ok(frame),
            Ok(()) | Err(_) => {
                self.release(frame);
                Err(Refused { outstanding: self.counters.outstanding })
            }
        }
    }

    /// Puts `bytes` behind what a packet has, in as many further buffers as that takes: none for no bytes.
    ///
    /// # Errors
    /// [`Refused`], counted, when there are not enough frames, or when it takes more than [`Frame::FRAGS_MAX`]. The packet ends
    /// somewhere then: it is to be given back.
    pub fn append(&mut self, frame: &mut Frame, bytes: &[u8]) -> Result<(), Refused> {
        let chunks = bytes.chunks(self.config.chunk_size as usize);
        if chunks.len() > 0 && frame.frag_count() + chunks.len() > Frame::FRAGS_MAX {
            self.counters.refused += 1;
            return Err(Refused { outstanding: self.counters.outstanding });
        }
        let mut last = frame;
        for bytes in chunks {
            let mut part = self.alloc()?;
            // A chunk holds what is as long as a chunk.
            let _ = part.fill_part(bytes);
            last = last.last_part();
            last.set_next_part(Some(part));
        }
        Ok(())
    }

    /// Asks for what will be written of the next `count` chunks, so that all of it comes at the same time from the cores that had it.
    fn fetch(&mut self, count: usize) {
        let count = count.min(self.elsewhere);
        self.elsewhere -= count;
        for &number in self.free.iter().rev().take(count) {
            let start =
                number as usize * self.config.stride() + (self.config.headroom + self.config.shift(number)) as usize;
            self.arena().fetch(number, start);
        }
    }

    /// Takes a frame back. One of another pool is sent home to that pool.
    #[inline]
    pub fn release(&mut self, frame: Frame) {
        let mut tally = Tally::default();
        self.release_into(frame, &mut tally);
        self.settle(tally);
    }

    /// Takes a frame back as [`Pool::release`], and leaves the counting to [`Pool::settle`]: for a loop that gives back some of its
    /// frames. Until then they count as outstanding.
    // A call for each dropped packet would cost more than what it does.
    #[inline(always)]
    pub fn release_into(&mut self, frame: Frame, tally: &mut Tally) {
        if frame.handle().arena() != self.arena || frame.has_frags() {
            return self.release_rare(frame, tally);
        }
        // Within its capacity, which is the number of frames there are.
        self.free.push(frame.into_handle().into_only_number());
        tally.0 += 1;
    }

    /// Takes back each buffer of a packet that has several, or one of another pool: that goes home to its own, with those before and
    /// after it.
    #[cold]
    fn release_rare(&mut self, mut frame: Frame, tally: &mut Tally) {
        let next = frame.take_next_part();
        if frame.handle().arena() == self.arena {
            self.free.push(frame.into_handle().into_only_number());
            tally.0 += 1;
        } else {
            self.others.add(frame.into_handle());
        }
        if let Some(next) = next {
            self.release_rare(next, tally);
        }
    }

    /// Counts what [`Pool::release_into`] took back, and sends home what it was given of other pools.
    #[inline]
    pub fn settle(&mut self, tally: Tally) {
        self.others.leave();
        self.counters.recycled += u64::from(tally.0);
        self.home(tally.0);
    }

    /// Takes the next `count` frames back: as [`Pool::release_into`] for each, without a look at each where all are this pool's and
    /// have one buffer.
    #[inline]
    pub fn release_run(&mut self, frames: &mut Drain<'_, Frame>, count: usize, tally: &mut Tally) {
        let run = frames.as_slice().get(..count).unwrap_or(frames.as_slice());
        let plain = run.iter().all(|frame| frame.handle().arena() == self.arena && !frame.has_frags());
        let count = run.len();
        if plain {
            // Within its capacity, which is the number of frames there are.
            self.free.extend(frames.take(count).map(|frame| frame.into_handle().into_only_number()));
            tally.0 += count as u32;
        } else {
            frames.take(count).for_each(|frame| self.release_into(frame, tally));
        }
    }

    /// Takes all frames of a burst back.
    #[inline]
    pub fn release_burst(&mut self, burst: &mut Burst) {
        let (mut tally, count) = (Tally::default(), burst.len());
        self.release_run(&mut burst.drain(), count, &mut tally);
        self.settle(tally);
    }

    /// Takes many frames back: as [`Pool::release`] for each, with the counters added once. Those of another pool go home with one
    /// atomic operation for each run.
    #[inline]
    pub fn release_all(&mut self, frames: impl Iterator<Item = Frame>) {
        let mut tally = Tally::default();
        for frame in frames {
            self.release_into(frame, &mut tally);
        }
        self.settle(tally);
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

    /// The longest packet that fits several frames of this pool.
    pub fn frame_max(&self) -> usize {
        self.config.capacity() as usize + Frame::FRAGS_MAX * self.config.chunk_size as usize
    }

    /// Whether the frame is one of this pool's. Of several buffers the first is meant.
    pub fn owns(&self, frame: &Frame) -> bool {
        frame.handle().arena() == self.arena
    }

    /// Whether all buffers of the frame are this pool's.
    pub fn owns_parts(&self, frame: &Frame) -> bool {
        self.owns(frame) && frame.next_part().is_none_or(|next| self.owns_parts(next))
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

    /// What kind of memory it is: asked for, got, and why. Reads a file of the kernel's: not for the path of a packet.
    pub fn memory(&self) -> MemoryReport {
        self.arena().memory().report()
    }

    /// Where the memory starts, and its length: what a device or a socket registers, once.
    pub fn memory_range(&self) -> (NonNull<u8>, usize) {
        let memory = self.arena().memory();
        (memory.start(), memory.len())
    }

    /// The most frames that may be away at the same time.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// How close the pool is to its limit.
    pub fn pressure(&self) -> Pressure {
        self.watch.level()
    }

    /// Hands a frame to a device or a peer that knows it by address: the offset of its packet in the memory. It counts as
    /// outstanding until [`Pool::reclaim`].
    ///
    /// # Errors
    /// Gives back a frame of another pool, which has no address here, and one of several buffers, which has no single one: see
    /// [`Frame::into_parts`].
    pub fn lend(&mut self, frame: Frame) -> Result<u64, Frame> {
        if !self.owns(&frame) || frame.has_frags() {
            return Err(frame);
        }
        let data = frame.data();
        let number = frame.into_handle().into_number();
        self.lent.add(number, self.config.frames);
        Ok(u64::from(number) * self.config.stride() as u64 + u64::from(data))
    }

    /// Takes back the frame that an address lies in, with the packet that the frame had. The address may come from a peer that
    /// is not trusted: any address inside of the chunk is as good as any other, and one whose chunk is not lent is refused and
    /// counted in [`Counters::foreign`].
    pub fn reclaim(&mut self, address: u64) -> Option<Frame> {
        let number = match self.shift {
            Some(shift) => address >> shift,
            None => address / self.config.stride() as u64,
        };
        let number = u32::try_from(number).ok()?;
        if !self.lent.remove(number) {
            self.counters.foreign += 1;
            return None;
        }
        // SAFETY: the chunk's handle was given up in `lend`, and its mark is gone, so it is in nobody's hands.
        let handle = unsafe { self.arena().handle(number) };
        // Whoever had it wrote into it or read it, and the next packet will be written there.
        handle.fetch();
        Some(Frame::new(handle))
    }

    /// Takes back all that is lent, for the end of the device or peer. Says how many frames those were.
    pub fn reclaim_all(&mut self) -> u32 {
        let mut count = 0;
        while let Some(number) = self.lent.any() {
            self.lent.remove(number);
            // SAFETY: as in `reclaim`.
            let frame = Frame::new(unsafe { self.arena().handle(number) });
            self.release(frame);
            count += 1;
        }
        count
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
        self.elsewhere = (self.elsewhere + count).min(self.free.len());
        self.home(count as u32);
    }

    /// So many more frames are away.
    #[inline]
    fn left(&mut self, count: u32) {
        let counters = &mut self.counters;
        counters.outstanding += count;
        counters.outstanding_max = counters.outstanding_max.max(counters.outstanding);
        // SAFETY: the arena lives at least as long as the pool.
        self.watch.look(counters.outstanding, unsafe { &self.arena.as_ref().pressure });
    }

    /// So many fewer frames are away.
    #[inline]
    fn home(&mut self, count: u32) {
        self.counters.outstanding -= count;
        // SAFETY: the arena lives at least as long as the pool.
        self.watch.look(self.counters.outstanding, unsafe { &self.arena.as_ref().pressure });
    }

    fn arena(&self) -> &Arena {
        // SAFETY: the arena lives at least as long as the pool.
        unsafe { self.arena.as_ref() }
    }
}

/// Buffers that are back in their pool and not counted yet.
#[derive(Default, Debug)]
#[must_use = "until `Pool::settle` has it, the pool thinks that the frames are away"]
pub struct Tally(u32);

impl Drop for Pool {
    fn drop(&mut self) {
        // Nobody can give these back any more.
        self.reclaim_all();
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
