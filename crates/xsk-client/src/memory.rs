//! Bytes of chunks.
#![allow(unsafe_code)] // turns "who owns the chunk" into slices
//!
//! The invariant of this file: **a chunk of one memory is in one place: a [`Chunk`] in the application's hands, idle at one socket, or
//! away through the rings of one socket; only what is in hand or idle is made a slice, and the server neither reads nor writes it
//! then.** [`Chunks`] keeps the first part: it knows where each chunk is and believes the server only what can be. The second part is
//! the server's word: an application that does not trust the server has no business mapping its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xway_packet::SharedMemory;

/// Packet memory as the application sees it.
#[derive(Debug)]
pub(crate) struct Memory {
    shared: SharedMemory,
    chunk_size: u32,
    /// Whether a socket has got the chunks.
    claimed: AtomicBool,
}

impl Memory {
    pub(crate) fn new(shared: SharedMemory, chunk_size: u32) -> Memory {
        Memory { shared, chunk_size: chunk_size.max(1).next_power_of_two(), claimed: AtomicBool::new(false) }
    }

    /// Number of chunks.
    fn chunks(&self) -> u32 {
        (self.shared.len() / self.chunk_size as usize) as u32
    }

    fn start(&self, number: u32) -> *mut u8 {
        // SAFETY: numbers are below the number of chunks: `Chunks` has an entry for each, and looks them up.
        unsafe { self.shared.start().as_ptr().add(number as usize * self.chunk_size as usize) }
    }
}

/// Where a chunk is, for one socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// In the application's hands, or at another socket.
    Elsewhere,
    /// Here, and nobody looks at it.
    Idle,
    /// In a ring of this socket, or in the server's hands.
    Away,
}

/// The chunks of one socket.
#[derive(Debug)]
pub(crate) struct Chunks {
    memory: Arc<Memory>,
    /// A chunk is two to the power of this.
    shift: u32,
    at: Vec<At>,
    idle: Vec<u32>,
}

impl Chunks {
    /// With `lent`, chunks come from the server. Without, they are the application's from the start; the first socket on a memory
    /// gets them.
    pub(crate) fn new(memory: Arc<Memory>, lent: bool) -> Chunks {
        let count = memory.chunks();
        let all = !lent && !memory.claimed.swap(true, Ordering::AcqRel);
        let start = if lent {
            At::Away
        } else if all {
            At::Idle
        } else {
            At::Elsewhere
        };
        let idle = if all { (0..count).rev().collect() } else { Vec::new() };
        Chunks { at: vec![start; count as usize], idle, shift: memory.chunk_size.ilog2(), memory }
    }

    pub(crate) fn chunk_size(&self) -> u32 {
        self.memory.chunk_size
    }

    /// Idle chunks.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// The server gave a chunk back; `None` when it was not away.
    #[inline]
    pub(crate) fn arrive(&mut self, address: u64) -> Option<u32> {
        let number = u32::try_from(address >> self.shift).ok()?;
        let at = self.at.get_mut(number as usize)?;
        (*at == At::Away).then(|| {
            *at = At::Idle;
            number
        })
    }

    /// Puts a chunk that has arrived to the idle ones.
    #[inline]
    pub(crate) fn rest(&mut self, number: u32) {
        self.idle.push(number);
    }

    /// Takes an idle chunk out; it still counts as idle until it leaves or is handed out.
    #[inline]
    pub(crate) fn pick(&mut self) -> Option<u32> {
        self.idle.pop()
    }

    /// A chunk goes to the server: gives its address.
    #[inline]
    pub(crate) fn leave(&mut self, number: u32) -> u64 {
        self.at[number as usize] = At::Away;
        u64::from(number) << self.shift
    }

    /// A chunk goes to the application.
    pub(crate) fn hand_out(&mut self, number: u32) -> Chunk {
        self.at[number as usize] = At::Elsewhere;
        Chunk { memory: self.memory.clone(), number }
    }

    /// A chunk comes from the application; it is given back when it is of another memory.
    pub(crate) fn take_in(&mut self, chunk: Chunk) -> Result<u32, Chunk> {
        if !Arc::ptr_eq(&chunk.memory, &self.memory) {
            return Err(chunk);
        }
        self.at[chunk.number as usize] = At::Idle;
        Ok(chunk.number)
    }

    /// Asks for the line at this offset of a chunk, to be written, so that the lines of many packets are on their way at once.
    #[inline]
    pub(crate) fn fetch(&self, number: u32, offset: u32) {
        let at = self.memory.start(number).wrapping_add((offset & (self.memory.chunk_size - 1)) as usize);
        xway_packet::prefetch::to_write(at);
    }

    /// Part of an idle chunk; `None` when it is not idle or the part is not inside.
    #[inline]
    pub(crate) fn part(&mut self, number: u32, offset: u32, len: u32) -> Option<&mut [u8]> {
        let idle = self.at.get(number as usize) == Some(&At::Idle);
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.memory.chunk_size);
        // SAFETY: the chunk is idle here, so nobody else reaches its bytes (the invariant above) while `self` is borrowed; the part is
        // inside of it, and mapped bytes are initialised.
        (idle && inside).then(|| unsafe {
            std::slice::from_raw_parts_mut(self.memory.start(number).add(offset as usize), len as usize)
        })
    }
}

/// One chunk in the application's hands.
///
/// Dropping it loses it until the socket is closed: give it back with [`crate::Socket::give_back`], or send it.
#[derive(Debug)]
pub struct Chunk {
    memory: Arc<Memory>,
    number: u32,
}

impl Chunk {
    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the chunk lies inside the mapping (numbers are checked where chunks are made), its bytes are initialised, and
        // only this chunk reaches them (the invariant above).
        unsafe { std::slice::from_raw_parts(self.memory.start(self.number), self.memory.chunk_size as usize) }
    }

    /// All its bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start(self.number), self.memory.chunk_size as usize) }
    }

    /// Where it lies in the UMEM, bytes.
    pub fn address(&self) -> u64 {
        u64::from(self.number) * u64::from(self.memory.chunk_size)
    }

    /// Makes a packet of it that starts `offset` bytes into it; `None` when it does not fit.
    pub fn into_packet(self, offset: u32, len: u32) -> Option<Packet> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.memory.chunk_size);
        fits.then_some(Packet { chunk: self, offset, len })
    }
}

/// A packet in a chunk.
#[derive(Debug)]
pub struct Packet {
    pub(crate) chunk: Chunk,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

impl Packet {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.chunk.bytes()[self.offset as usize..][..self.len as usize]
    }

    /// Its bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (offset, len) = (self.offset as usize, self.len as usize);
        &mut self.chunk.bytes_mut()[offset..][..len]
    }

    /// Bytes from its start to the end of its chunk: how long it can be.
    pub fn room(&self) -> usize {
        self.chunk.bytes().len() - self.offset as usize
    }

    /// Makes it longer or shorter; false, and nothing changed, when it would not fit its chunk.
    pub fn set_len(&mut self, len: usize) -> bool {
        let fits = len <= self.room();
        self.len = if fits { len as u32 } else { self.len };
        fits
    }

    /// What stands in front of it in its chunk: the metadata of programs ends where the packet starts.
    pub fn in_front(&self) -> &[u8] {
        &self.chunk.bytes()[..self.offset as usize]
    }

    /// The chunk alone.
    pub fn into_chunk(self) -> Chunk {
        self.chunk
    }
}
