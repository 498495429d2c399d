//! Packet memory of an application, with copies.
#![allow(unsafe_code)] // copies to and from memory that another process writes
//!
//! The invariant of this file: **no reference to the memory is ever made; bytes are copied between it and memory of our own by
//! address, within bounds that were checked.** The file is sealed against shrinking, so each address stays mapped. Bytes may change
//! while they are copied: what arrives is then a mix, which is as good as any other packet that an application may send.

use std::os::fd::{BorrowedFd, OwnedFd};

use xway_abi::Errno;
use xway_abi::xsk::tx_metadata;
use xway_packet::SharedMemory;

/// Bytes in front of each received packet, as the kernel has them (`XDP_PACKET_HEADROOM`).
const PACKET_HEADROOM: u32 = 256;

/// What an application asks for a packet (`struct xsk_tx_metadata`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TxMetadata {
    pub(crate) flags: u64,
    pub(crate) csum_start: u16,
    pub(crate) csum_offset: u16,
}

/// Packet memory that is shared with one application.
#[derive(Debug)]
pub struct Umem {
    memory: SharedMemory,
    chunk_size: u32,
    headroom: u32,
    /// Bytes in front of packets to send that hold what is asked for them.
    tx_metadata_len: u32,
}

impl Umem {
    /// Makes the memory file.
    ///
    /// # Errors
    /// As `XDP_UMEM_REG`: `EINVAL` for a chunk size other than 2048 and 4096, no chunks, or a headroom that leaves no room;
    /// `ENOMEM`, `EMFILE`, `ENFILE`: what the system lacks.
    pub fn create(chunks: u32, chunk_size: u32, headroom: u32) -> Result<Umem, Errno> {
        if !matches!(chunk_size, 2048 | 4096) || chunks == 0 || headroom >= chunk_size - PACKET_HEADROOM {
            return Err(Errno::EINVAL);
        }
        let len = chunks as usize * chunk_size as usize;
        let memory = SharedMemory::create(len).map_err(lacking)?;
        Ok(Umem { memory, chunk_size, headroom, tx_metadata_len: 0 })
    }

    /// With so many bytes in front of packets to send for what is asked for them.
    ///
    /// # Errors
    /// `EINVAL` for what is no multiple of eight, or above 248, as Linux has it.
    pub fn with_tx_metadata(self, len: u32) -> Result<Umem, Errno> {
        if len > tx_metadata::LEN_MAX || !len.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        Ok(Umem { tx_metadata_len: len, ..self })
    }

    /// What is asked for the packet at this address; `None` when there is no room for it in front of the packet in its chunk, or none
    /// was registered. Bits of flags that nobody knows are told as they are.
    pub(crate) fn tx_metadata(&self, address: u64) -> Option<TxMetadata> {
        let before = u64::from(self.tx_metadata_len);
        let offset = address & u64::from(self.chunk_size - 1);
        if before < tx_metadata::SIZE as u64 || offset < before {
            return None;
        }
        let mut bytes = [0; tx_metadata::SIZE];
        self.read(address - before, &mut bytes);
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let flags = bytes.first_chunk().map_or(0, |flags| u64::from_ne_bytes(*flags));
        Some(TxMetadata { flags, csum_start: half(8), csum_offset: half(10) })
    }

    /// Gives the memory file away, to the application: the memory itself stays mapped here.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.memory.take_fd()
    }

    /// The memory file, until it is given away.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.fd()
    }

    /// Bytes of a chunk.
    pub fn chunk_size(&self) -> u32 {
        self.chunk_size
    }

    /// The longest packet that can be received.
    pub(crate) fn room(&self) -> usize {
        (self.chunk_size - PACKET_HEADROOM - self.headroom) as usize
    }

    /// Where a packet is to stand in the chunk that an address of FILL lies in; `None` when there is no such chunk.
    pub(crate) fn place(&self, address: u64) -> Option<u64> {
        let chunk = address & !u64::from(self.chunk_size - 1);
        let inside = chunk < self.memory.len() as u64;
        inside.then_some(chunk + u64::from(PACKET_HEADROOM + self.headroom))
    }

    /// Whether a packet of TX lies within one chunk.
    pub(crate) fn holds(&self, address: u64, len: u32) -> bool {
        let offset = address & u64::from(self.chunk_size - 1);
        address < self.memory.len() as u64 && offset + u64::from(len) <= u64::from(self.chunk_size)
    }

    /// Copies from the memory. The caller has asked [`Umem::holds`]; otherwise nothing is copied.
    pub(crate) fn read(&self, address: u64, to: &mut [u8]) {
        if let Some(from) = self.at(address, to.len()) {
            // SAFETY: `at` gives an address with as many mapped bytes behind it; `to` is our own, so they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        }
    }

    /// Copies into the memory, `meta` in front of `packet`, which starts at the address. Outside of it nothing is copied.
    pub(crate) fn write(&self, address: u64, meta: &[u8], packet: &[u8]) {
        let start = address.wrapping_sub(meta.len() as u64);
        for (address, from) in [(start, meta), (address, packet)] {
            if let Some(to) = self.at(address, from.len()) {
                // SAFETY: as in `read`.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
            }
        }
    }

    fn at(&self, address: u64, len: usize) -> Option<*mut u8> {
        let address = usize::try_from(address).ok()?;
        let inside = address.checked_add(len).is_some_and(|end| end <= self.memory.len());
        // SAFETY: the offset is inside the mapping.
        inside.then(|| unsafe { self.memory.start().as_ptr().add(address) })
    }
}

/// What the system said when something could not be made.
pub(crate) fn lacking(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::ENOMEM, Errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_inside_or_none() {
        let umem = Umem::create(2, 2048, 16).unwrap();
        assert_eq!(umem.room(), 2048 - 256 - 16);
        assert_eq!(
            (umem.place(5), umem.place(4095), umem.place(4096), umem.place(u64::MAX)),
            (Some(272), Some(2320), None, None)
        );
        assert!(umem.holds(2048, 2048) && !umem.holds(2049, 2048) && !umem.holds(4096, 0) && !umem.holds(u64::MAX, 1));
        umem.write(272, &[1; 4], &[2; 8]);
        let mut back = [0; 12];
        umem.read(268, &mut back);
        assert_eq!(back, [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
        umem.read(u64::MAX, &mut back);
        umem.write(u64::MAX - 3, &[1; 4], &[2; 8]);
        assert_eq!(back[0], 1);
        for len in [4, 256, 20] {
            assert_eq!(Umem::create(2, 2048, 0).unwrap().with_tx_metadata(len).err(), Some(Errno::EINVAL));
        }
        let umem = umem.with_tx_metadata(24).unwrap();
        let request = [2u8, 0, 0, 0, 0, 0, 0, 0, 14, 0, 16, 0].map(u8::to_le);
        umem.write(2048 + 40, &[], &request);
        let asked = umem.tx_metadata(2048 + 64).unwrap();
        assert_eq!((asked.flags.to_le(), asked.csum_start.to_le(), asked.csum_offset.to_le()), (2, 14, 16));
        assert_eq!((umem.tx_metadata(2048 + 23), umem.tx_metadata(u64::MAX).map(|asked| asked.flags)), (None, Some(0)));
        for (chunks, size, headroom) in [(0, 2048, 0), (1, 1024, 0), (1, 3000, 0), (1, 2048, 1792), (1, 2048, u32::MAX)]
        {
            assert_eq!(Umem::create(chunks, size, headroom).err(), Some(Errno::EINVAL));
        }
    }
}
