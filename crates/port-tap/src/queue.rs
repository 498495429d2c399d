//! One queue: one descriptor of the device.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use rustix::io::{Errno, readv, writev};
use xway_packet::offload::{Segments, VnetHeader, complete_checksum};
use xway_packet::{ETH_HLEN, Frame, Pool};

/// The longest packet that a host can hand over, with its headers.
const LONGEST: usize = 65536 + 256;

/// One queue of the device.
pub(crate) struct Queue {
    pub(crate) fd: OwnedFd,
    /// Whether a packet may have several buffers.
    pub(crate) frags: bool,
    /// Takes what a frame has no room for, and a long packet while it is cut.
    long: Box<[u8]>,
    /// A long packet in `long` that is not cut to its end yet.
    cutting: Option<Cutting>,
}

struct Cutting {
    segments: Segments,
    len: usize,
    next: usize,
}

/// How one receive call ended.
pub(crate) enum Received {
    /// The frame holds a packet.
    Packet,
    /// Nothing waits.
    Nothing,
    /// A packet was lost.
    Lost(Loss),
    /// The device is gone.
    Failed(Errno),
}

/// Why a packet was not received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// Longer than a frame.
    Oversize,
    /// To be cut in a way that is not known here.
    Gso,
    /// Less than an Ethernet header.
    Runt,
    /// Longer than a frame, and there were not enough for all of it.
    NoFrame,
}

impl Queue {
    pub(crate) fn new(fd: OwnedFd, frags: bool) -> Queue {
        Queue { fd, frags, long: vec![0; LONGEST].into(), cutting: None }
    }

    /// Receives one packet into the frame, and into further ones of the pool if it may have several.
    pub(crate) fn receive(&mut self, frame: &mut Frame, pool: &mut Pool) -> Received {
        if self.cutting.is_some() {
            return self.cut(frame);
        }
        let room = frame.capacity();
        if frame.set_len(room).is_err() {
            return Received::Lost(Loss::Oversize);
        }
        let mut header = [0; VnetHeader::LEN];
        // What does not fit the frame goes where the packet would stand if its start were in `long` too.
        let rest = self.long.get_mut(room..).unwrap_or_default();
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(frame.packet_mut()), IoSliceMut::new(rest)];
        let read = match readv(&self.fd, &mut parts) {
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            // The interface is down: nothing comes until somebody brings it up.
            Err(Errno::FAULT | Errno::IO) => return Received::Nothing,
            Err(errno) => return Received::Failed(errno),
        };
        let Some(len) = read.checked_sub(VnetHeader::LEN).filter(|&len| len >= ETH_HLEN as usize) else {
            return Received::Lost(Loss::Runt);
        };
        let header = VnetHeader::parse(&header);
        if header.is_long() {
            let head = len.min(room);
            self.long[..head].copy_from_slice(&frame.packet()[..head]);
            let Some(segments) = Segments::of(&header, &self.long[..len]) else { return Received::Lost(Loss::Gso) };
            self.cutting = Some(Cutting { segments, len, next: 0 });
            return self.cut(frame);
        }
        if len > room && self.frags {
            return self.spread(frame, room, len, header, pool);
        }
        if frame.set_len(len).is_err() {
            return Received::Lost(Loss::Oversize);
        }
        if header.needs_checksum() {
            complete_checksum(frame.packet_mut(), header.csum_start.into(), header.csum_offset.into());
        }
        Received::Packet
    }

    /// A packet whose first bytes lie in the frame and the others in `long`, where those would be: into several buffers.
    fn spread(&mut self, frame: &mut Frame, room: usize, len: usize, header: VnetHeader, pool: &mut Pool) -> Received {
        if header.needs_checksum() {
            self.long[..room].copy_from_slice(frame.packet());
            complete_checksum(&mut self.long[..len], header.csum_start.into(), header.csum_offset.into());
            frame.packet_mut().copy_from_slice(&self.long[..room]);
        }
        match pool.append(frame, &self.long[room..len]) {
            Ok(()) => Received::Packet,
            Err(_) => Received::Lost(Loss::NoFrame),
        }
    }

    /// The next packet of the long one.
    fn cut(&mut self, frame: &mut Frame) -> Received {
        let Some(Cutting { segments, len, next }) = &mut self.cutting else { return Received::Nothing };
        let index = *next;
        *next += 1;
        let fits = frame.set_len(segments.len_of(index)).is_ok();
        if fits {
            segments.write(&self.long[..*len], index, frame.packet_mut());
        }
        if *next == segments.count() {
            self.cutting = None;
        }
        if fits { Received::Packet } else { Received::Lost(Loss::Oversize) }
    }

    /// Sends one packet to the host.
    pub(crate) fn send(&self, frame: &Frame) -> Result<(), Errno> {
        let header = [0; VnetHeader::LEN];
        let mut slices = [IoSlice::new(&header); Frame::FRAGS_MAX + 2];
        let mut used = 1;
        for (slice, part) in slices[1..].iter_mut().zip(frame.parts()) {
            *slice = IoSlice::new(part);
            used += 1;
        }
        loop {
            match writev(&self.fd, &slices[..used]) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}
