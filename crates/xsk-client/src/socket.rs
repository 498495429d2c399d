//! One socket in the application's hands.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::write;
use rustix::net::{RecvFlags, recv};
use xway_abi::xsk::{self, tx_metadata};
use xway_packet::ring::spsc::{Consumer, Producer};
use xway_packet::ring::{RingError, XdpDesc};

use crate::error::ClientError;
use crate::memory::{Chunk, Chunks, Memory, Packet};
use crate::rings::Rings;

/// Counters of a socket: the six of `struct xdp_statistics`, and one of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Packets dropped for another reason: longer than a chunk.
    pub rx_dropped: u64,
    /// Addresses in FILL that cannot be.
    pub rx_invalid_descs: u64,
    /// Descriptors in TX that cannot be.
    pub tx_invalid_descs: u64,
    /// Packets dropped because RX was full.
    pub rx_ring_full: u64,
    /// Packets dropped because FILL was empty.
    pub rx_fill_ring_empty_descs: u64,
    /// Looks at an empty TX ring.
    pub tx_ring_empty_descs: u64,
    /// Indices that the application published and that cannot be.
    pub refused_indices: u64,
    /// Packets that asked for what no port of the engine can do: a launch time, or the time of sending. They are not sent.
    pub tx_unsupported: u64,
}

impl Statistics {
    /// As numbers of an answer.
    pub fn numbers(&self) -> [u64; 8] {
        [
            self.rx_dropped,
            self.rx_invalid_descs,
            self.tx_invalid_descs,
            self.rx_ring_full,
            self.rx_fill_ring_empty_descs,
            self.tx_ring_empty_descs,
            self.refused_indices,
            self.tx_unsupported,
        ]
    }

    /// From the numbers of an answer.
    pub fn from_numbers(n: [u64; 8]) -> Statistics {
        Statistics {
            rx_dropped: n[0],
            rx_invalid_descs: n[1],
            tx_invalid_descs: n[2],
            rx_ring_full: n[3],
            rx_fill_ring_empty_descs: n[4],
            tx_ring_empty_descs: n[5],
            refused_indices: n[6],
            tx_unsupported: n[7],
        }
    }
}

/// Entries of FILL that may be missing before it is looked at.
const FILL_STEP: u32 = 64;

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Its chunk is free again.
    Free,
    /// It is sent as it is now.
    Send,
}

/// What is asked for a packet that is sent (`struct xsk_tx_metadata`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxRequest {
    /// Complete an Internet checksum: where the bytes start that it covers, and where it stands, counted from there. The field holds
    /// the sum of the pseudo header. Done in software, whatever the port.
    pub checksum: Option<(u16, u16)>,
    /// When to send the packet. No port of the engine can: such a packet is refused and counted in
    /// [`Statistics::tx_unsupported`].
    pub launch_time: Option<u64>,
}

impl TxRequest {
    fn encode(&self) -> [u8; tx_metadata::SIZE] {
        let mut out = [0; tx_metadata::SIZE];
        let mut flags = 0;
        if let Some((start, offset)) = self.checksum {
            flags |= tx_metadata::CHECKSUM;
            out[8..10].copy_from_slice(&start.to_ne_bytes());
            out[10..12].copy_from_slice(&offset.to_ne_bytes());
        }
        if let Some(time) = self.launch_time {
            flags |= tx_metadata::LAUNCH_TIME;
            out[16..24].copy_from_slice(&time.to_ne_bytes());
        }
        out[..8].copy_from_slice(&flags.to_ne_bytes());
        out
    }
}

/// A socket: four rings and the chunks that are free.
pub struct Socket {
    number: u32,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    rx: Consumer<XdpDesc>,
    tx: Producer<XdpDesc>,
    chunks: Chunks,
    /// Packets that came since FILL was looked at, each of which has cost an entry of it, and what was in it then.
    spent: u32,
    filled: u32,
    kick: OwnedFd,
    notice: OwnedFd,
    zero_copy: bool,
    reason: String,
    tx_metadata_len: u32,
    /// Packets that were queued to be sent and have not come back.
    sending: u32,
    /// What the server said was lost when we last asked.
    lost: u32,
}

impl Socket {
    pub(crate) fn new(
        number: u32,
        rings: Rings,
        memory: Arc<Memory>,
        kick: OwnedFd,
        notice: OwnedFd,
        zero_copy: bool,
        reason: String,
    ) -> Result<Socket, RingError> {
        Ok(Socket {
            number,
            fill: Producer::attach(rings.fill)?,
            completion: Consumer::attach(rings.completion)?,
            rx: Consumer::attach(rings.rx)?,
            tx: Producer::attach(rings.tx)?,
            chunks: Chunks::new(memory, zero_copy),
            spent: 0,
            filled: 0,
            kick,
            notice,
            zero_copy,
            reason,
            tx_metadata_len: 0,
            sending: 0,
            lost: 0,
        })
    }

    pub(crate) fn set_tx_metadata_len(&mut self, len: u32) {
        self.tx_metadata_len = len;
    }

    /// Packets for this socket that were lost since the last call because it did not keep up: RX was full, or FILL was empty. Costs a
    /// look at a word that the server writes when it happens, so it may be asked after every burst.
    pub fn lost(&mut self) -> u32 {
        let lost = self.completion.flags();
        lost.wrapping_sub(std::mem::replace(&mut self.lost, lost))
    }

    /// Its number at the server.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether packets come without copies.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Why it is not as was asked, in the server's words; empty when it is.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Takes a free chunk; looks at COMPLETION when there is none.
    pub fn chunk(&mut self) -> Option<Chunk> {
        if self.chunks.idle() == 0 {
            self.reap();
        }
        let number = self.chunks.pick()?;
        Some(self.chunks.hand_out(number))
    }

    /// Chunks that are free, those in COMPLETION included.
    pub fn free(&mut self) -> usize {
        self.reap();
        self.chunks.idle()
    }

    /// Chunks that came back through COMPLETION become free. Says how many.
    pub fn reap(&mut self) -> usize {
        let chunks = &mut self.chunks;
        let entries = self.completion.entries() as usize;
        let count = self.completion.pop_each(entries, |address| {
            if let Some(number) = chunks.arrive(address) {
                chunks.rest(number);
            }
        });
        // Without copies some of them are loans.
        self.sending = self.sending.saturating_sub(count as u32);
        count
    }

    /// Packets that were given to send and that the server has not taken yet. An application that ends before it is 0 may lose them.
    pub fn sending(&mut self) -> u32 {
        self.reap();
        self.sending
    }

    /// A packet that is not wanted any more: its chunk is free again. One of another memory stays with whoever drops it.
    pub fn give_back(&mut self, packet: Packet) {
        self.give_back_chunk(packet.into_chunk());
    }

    /// A chunk that is not wanted any more, or one of another socket on the same memory, is free here.
    pub fn give_back_chunk(&mut self, chunk: Chunk) {
        if let Ok(number) = self.chunks.take_in(chunk) {
            self.chunks.rest(number);
        }
    }

    /// Puts free chunks into FILL until there are about `want` entries in it, and says how many it put. It may be called as often as
    /// is convenient: while less than an eighth of `want` (and less than a burst) can be missing it does not look at the ring, whose
    /// index another core writes.
    pub fn fill(&mut self, want: u32) -> usize {
        let want = want.min(self.fill.entries());
        let missing = want.saturating_sub(self.filled.saturating_sub(self.spent));
        if missing < (want / 8).clamp(1, FILL_STEP) {
            return 0;
        }
        let pending = self.fill.pending();
        let missing = want.saturating_sub(pending);
        if self.chunks.idle() < missing as usize {
            self.reap();
        }
        let chunks = &mut self.chunks;
        let put = self.fill.push_some(missing as usize, || {
            let number = chunks.pick()?;
            Some(chunks.leave(number))
        });
        (self.spent, self.filled) = (0, pending + put as u32);
        if put > 0 && self.fill.flags() & xsk::RING_NEED_WAKEUP != 0 {
            self.ring();
        }
        put
    }

    /// The next packet that came.
    pub fn receive(&mut self) -> Option<Packet> {
        loop {
            let desc = self.rx.pop()?;
            self.spent = self.spent.saturating_add(1);
            let Some(number) = self.chunks.arrive(desc.addr) else { continue };
            let offset = (desc.addr % u64::from(self.chunks.chunk_size())) as u32;
            if let Some(packet) = self.chunks.hand_out(number).into_packet(offset, desc.len) {
                return Some(packet);
            }
        }
    }

    /// Takes up to `count` packets that came, shows each to `f` where it lies, and does what that says: the fast way, without a
    /// handle for each packet. Packets to be sent are shown to the server by [`Socket::flush`]. Says how many packets came; it stops
    /// early when the TX ring is full, because a packet may have to be sent.
    pub fn process(&mut self, count: usize, mut f: impl FnMut(&mut [u8]) -> Fate) -> usize {
        // Packets lie in another core's cache: so many are fetched at once.
        const PART: usize = 32;
        let mut done = 0;
        while done < count {
            // A packet that may have to be sent needs room.
            let part = PART.min(count - done).min(self.tx.room(PART as u32) as usize);
            let mut packets = [(XdpDesc::default(), 0u32); PART];
            let (mut came, mut good) = (0, 0);
            let there = self.rx.available(part as u32).min(part as u32);
            self.rx.fetch(there);
            while came < part {
                let Some(desc) = self.rx.take() else { break };
                came += 1;
                let Some(number) = self.chunks.arrive(desc.addr) else { continue };
                self.chunks.fetch(number, desc.addr as u32);
                packets[good] = (desc, number);
                good += 1;
            }
            self.tx.fetch(good as u32);
            for &(desc, number) in &packets[..good] {
                let offset = (desc.addr & u64::from(self.chunks.chunk_size() - 1)) as u32;
                match self.chunks.part(number, offset, desc.len).map(&mut f) {
                    Some(Fate::Send) => {
                        self.chunks.leave(number);
                        self.sending += 1;
                        let _ = self.tx.stage(XdpDesc { options: 0, ..desc });
                    }
                    Some(Fate::Free) | None => self.chunks.rest(number),
                }
            }
            done += came;
            if came == 0 || came < part {
                break;
            }
        }
        self.rx.release();
        self.spent = self.spent.saturating_add(done as u32);
        done
    }

    /// Makes up to `count` packets in free chunks: `f` writes into the room of one and says how long the packet is. They are shown to
    /// the server by [`Socket::flush`]. Says how many were made; it ends when the TX ring is full or no chunk is free.
    pub fn produce(&mut self, count: usize, mut f: impl FnMut(&mut [u8]) -> usize) -> usize {
        // Where received packets start too.
        const OFFSET: u32 = 256;
        if self.chunks.idle() < count {
            self.reap();
        }
        let mut made = 0;
        while made < count && self.tx.room(1) > 0 {
            let Some(number) = self.chunks.pick() else { break };
            let room = self.chunks.chunk_size().saturating_sub(OFFSET);
            let len = self.chunks.part(number, OFFSET, room).map_or(0, &mut f).min(room as usize);
            let addr = self.chunks.leave(number) + u64::from(OFFSET);
            let _ = self.tx.stage(XdpDesc { addr, len: len as u32, options: 0 });
            self.sending += 1;
            made += 1;
        }
        made
    }

    /// Queues a packet to be sent; [`Socket::flush`] shows it to the server.
    ///
    /// # Errors
    /// Gives it back when the TX ring is full, or when it lies in memory of another socket.
    pub fn send(&mut self, packet: Packet) -> Result<(), Packet> {
        if self.tx.room(1) == 0 {
            return Err(packet);
        }
        self.queue(packet, 0)
    }

    /// Puts a packet into the TX ring, which has room.
    fn queue(&mut self, packet: Packet, options: u32) -> Result<(), Packet> {
        let Packet { chunk, offset, len } = packet;
        let number = self.chunks.take_in(chunk).map_err(|chunk| Packet { chunk, offset, len })?;
        let addr = self.chunks.leave(number) + u64::from(offset);
        let _ = self.tx.stage(XdpDesc { addr, len, options });
        self.sending += 1;
        Ok(())
    }

    /// As [`Socket::send`], with something to be done for the packet. What is asked for is written in front of it.
    ///
    /// # Errors
    /// Gives it back as [`Socket::send`] does, and when there is no room for the request in front of it: the memory was not
    /// registered for that ([`crate::Connection::umem_with`]), or the packet starts too early in its chunk.
    pub fn send_with(&mut self, mut packet: Packet, request: &TxRequest) -> Result<(), Packet> {
        let before = self.tx_metadata_len;
        let at = packet.offset.checked_sub(before).filter(|_| before as usize >= tx_metadata::SIZE);
        let (Some(at), true) = (at, self.tx.room(1) > 0) else { return Err(packet) };
        packet.chunk.bytes_mut()[at as usize..][..tx_metadata::SIZE].copy_from_slice(&request.encode());
        self.queue(packet, xsk::TX_METADATA)
    }

    /// Shows the server what was queued, and rings its bell if it sleeps. Says how many packets those are. Chunks that came back become
    /// free: a COMPLETION ring that nobody empties stops the server from sending.
    pub fn flush(&mut self) -> u32 {
        let count = self.tx.submit();
        if count == 0 && self.tx.room(1) > 0 {
            return 0;
        }
        self.reap();
        // The server looks at the ring once more after it raised the flag; this look must come after the packets are visible.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if count > 0 && self.tx.flags() & xsk::RING_NEED_WAKEUP != 0 {
            self.ring();
        }
        count
    }

    /// Wakes the server.
    pub fn ring(&self) {
        // Full means that it was rung and has not looked yet.
        let _ = write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Waits until a packet came, for `timeout` at most; says whether one is there.
    ///
    /// # Errors
    /// The system refuses, or no packet is left and the server has closed the socket.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, ClientError> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let there = loop {
            // Our word in the RX ring: "ring the bell". The look comes after it.
            self.rx.set_flags(xsk::RING_NEED_WAKEUP);
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            if self.rx.available(1) > 0 {
                break true;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| left.try_into().ok());
            let mut fds = [PollFd::new(&self.notice, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => break self.rx.available(1) > 0,
                Ok(_) => {
                    let read = recv(&self.notice, &mut [0u8; 64], RecvFlags::DONTWAIT);
                    if read.is_ok_and(|(rings, _)| rings == 0) && self.rx.available(1) == 0 {
                        self.rx.set_flags(0);
                        let gone =
                            std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the server has closed the socket");
                        return Err(ClientError::system("waiting for packets")(gone));
                    }
                    // It may have been rung for packets that were taken before we slept: then the wait goes on.
                }
                Err(errno) => return Err(ClientError::system("waiting for packets")(errno)),
            }
        };
        self.rx.set_flags(0);
        Ok(there)
    }

    /// Readable when packets came while [`Socket::wait`] was waiting, and at its end when the server has closed the socket, for event
    /// loops of the application's own: a stream of bytes, of which each rings once.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.notice.as_fd()
    }
}
