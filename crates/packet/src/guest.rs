//! Packets in the caller's own memory, made into frames for as long as a call lasts.
#![allow(unsafe_code)] // lets a descriptor point into borrowed memory
//!
//! The invariant: **a descriptor points into borrowed memory only inside [`Guests::host`]**, which holds the borrows, and no
//! frame leaves it: when the work is done, or unwinds, each frame must be back in its place, else the process ends.

use std::ops::Range;
use std::ptr::NonNull;

use crate::arena::{Bounds, Desc};
use crate::burst::Burst;
use crate::config::{PoolConfig, PoolError};
use crate::frame::{Frame, RxMeta};
use crate::layout::{CHUNK_MAX, CHUNK_MIN, FRAME_RESERVE};
use crate::pool::Pool;
use crate::redirect::Redirect;

/// One packet in a buffer of the caller's: where it lies, where it came from, and after a run where it is to go.
#[derive(Debug)]
pub struct Guest<'b> {
    memory: &'b mut [u8],
    meta: u32,
    data: u32,
    end: u32,
    ifindex: u32,
    queue: u32,
    rx: RxMeta,
    redirect: Redirect,
}

/// A packet that does not fit its buffer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GuestError {
    /// The range is not inside of the buffer.
    #[error("packet at {start}..{end} of a buffer of {len} bytes")]
    Outside {
        /// First byte.
        start: usize,
        /// The byte behind the last.
        end: usize,
        /// Length of the buffer.
        len: usize,
    },
    /// Too little room in front: Linux keeps 40 bytes there for itself, so programs rely on the limit.
    #[error("{0} bytes in front of the packet: at least {FRAME_RESERVE}, and 256 for what drivers give")]
    Headroom(usize),
    /// The packet ends further behind the buffer's start than chunks of packet memory are long: proofs rely on that length.
    #[error(
        "the packet ends {0} bytes behind the buffer's start: at most {CHUNK_MAX}; hand over the part of the buffer around it"
    )]
    Far(usize),
}

impl<'b> Guest<'b> {
    /// The packet at `packet` in `memory`. What is in front of it is headroom, less the [`FRAME_RESERVE`] bytes that belong to
    /// nobody; what is behind it is tailroom, up to [`CHUNK_MAX`] bytes behind the buffer's start: no packet is longer.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn new(memory: &'b mut [u8], packet: Range<usize>) -> Result<Guest<'b>, GuestError> {
        let len = memory.len();
        if packet.start > packet.end || packet.end > len || len > i32::MAX as usize {
            return Err(GuestError::Outside { start: packet.start, end: packet.end, len });
        }
        if packet.start < FRAME_RESERVE as usize {
            return Err(GuestError::Headroom(packet.start));
        }
        if packet.end > CHUNK_MAX as usize {
            return Err(GuestError::Far(packet.end));
        }
        let (data, end) = (packet.start as u32, packet.end as u32);
        let (rx, redirect) = (RxMeta::default(), Redirect::None);
        Ok(Guest { memory, meta: data, data, end, ifindex: 0, queue: 0, rx, redirect })
    }

    /// Says which interface and queue it came from.
    pub fn with_ingress(mut self, ifindex: u32, queue: u32) -> Guest<'b> {
        (self.ifindex, self.queue) = (ifindex, queue);
        self
    }

    /// Says what the device knew about it.
    pub fn with_rx_meta(mut self, rx: RxMeta) -> Guest<'b> {
        self.rx = rx;
        self
    }

    /// The packet's bytes.
    pub fn packet(&self) -> &[u8] {
        &self.memory[self.range()]
    }

    /// Where it lies in the buffer; a run may have moved both ends.
    pub fn range(&self) -> Range<usize> {
        self.data as usize..self.end as usize
    }

    /// The metadata that programs have put in front of it.
    pub fn meta(&self) -> &[u8] {
        &self.memory[self.meta as usize..self.data as usize]
    }

    /// The target that a redirect helper chose.
    pub fn redirect(&self) -> Redirect {
        self.redirect
    }
}

/// Descriptors for packets in borrowed memory, up to [`Burst::MAX`] at a time.
#[derive(Debug)]
pub struct Guests {
    frames: Vec<Frame>,
    places: Vec<Place>,
    _pool: Pool,
}

/// A descriptor and the memory that it has when no guest is there.
#[derive(Debug)]
struct Place {
    desc: NonNull<Desc>,
    base: NonNull<u8>,
    size: u32,
    fresh: Bounds,
}

// SAFETY: the pointers are those of the frames beside them, which may move to another thread; they are only compared, or
// written through those frames.
unsafe impl Send for Guests {}

impl Guests {
    /// Makes the descriptors. Cost: one allocation and one mapping that is never touched.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<Guests, PoolError> {
        let mut pool = Pool::new(PoolConfig { chunk_size: CHUNK_MIN, ..PoolConfig::compact(Burst::MAX as u32) })?;
        let mut frames = Vec::with_capacity(Burst::MAX);
        frames.extend(std::iter::from_fn(|| pool.alloc().ok()).take(Burst::MAX));
        let place = |frame: &Frame| {
            let desc = frame.handle().desc();
            Place { desc: frame.handle().raw(), base: desc.base, size: desc.chunk_size, fresh: desc.fresh }
        };
        Ok(Guests { places: frames.iter().map(place).collect(), frames, _pool: pool })
    }

    /// Does `work` over frames that stand for the first [`Burst::MAX`] guests, and writes back what became of them. Returns
    /// how many there were. Cost: some 20 loads and stores for each.
    ///
    /// `work` gets the frames to change, not to keep: one that is not in its place afterwards ends the process, because it
    /// would reach into memory that the caller has lent for this call only.
    pub fn host<R>(&mut self, guests: &mut [Guest<'_>], work: impl FnOnce(&mut [Frame]) -> R) -> (usize, R) {
        let count = guests.len().min(self.frames.len());
        for (frame, guest) in self.frames.iter_mut().zip(guests.iter_mut()) {
            frame.reset();
            frame.set_ingress(guest.ifindex, guest.queue);
            frame.set_rx_meta(guest.rx);
            let memory = NonNull::from(&mut *guest.memory).cast::<u8>();
            // As far as a packet may grow; `new` has checked that it ends before that.
            let len = guest.memory.len().min(CHUNK_MAX as usize) as u32;
            let fresh = Bounds { data: guest.data, data_end: guest.data, data_meta: guest.data, hard_end: len };
            // SAFETY: `len` bytes from `memory` are borrowed exclusively by the guest until this call ends, and `Visit` takes
            // the descriptor back before that. The packet starts inside of them: `Guest::new`, and programs keep it there.
            let desc = unsafe { frame.handle_mut().stand_for(memory, len, fresh) };
            (desc.at.data_end, desc.at.data_meta) = (guest.end, guest.meta);
        }
        let visit = Visit { frames: &mut self.frames, places: &self.places, count };
        let result = work(&mut visit.frames[..count]);
        for (frame, guest) in visit.frames.iter().zip(guests.iter_mut()) {
            guest.redirect = frame.redirect();
            (guest.data, guest.end) = (frame.data(), frame.data_end());
            guest.meta = guest.data - frame.meta_len();
        }
        drop(visit);
        (count, result)
    }
}

/// Gives descriptors their own memory back, also when the work panics.
struct Visit<'a> {
    frames: &'a mut Vec<Frame>,
    places: &'a [Place],
    count: usize,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        for (frame, place) in self.frames.iter_mut().zip(self.places).take(self.count) {
            if frame.handle().raw() != place.desc {
                eprintln!("a frame over borrowed memory was kept");
                std::process::abort();
            }
            // SAFETY: the chunk that the descriptor was made with, which nobody else has had.
            unsafe { frame.handle_mut().stand_for(place.base, place.size, place.fresh) };
            frame.reset();
        }
    }
}
