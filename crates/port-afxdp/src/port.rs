//! One queue as a port.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use xway_abi::{Errno, xsk};
use xway_engine::{Backlog, Capabilities, Lost, Port, PortError, PortErrorKind, PortStats, Rx, Sent};
use xway_packet::ring::XdpDesc;
use xway_packet::{Burst, Frame, Pool, PoolConfig};

use crate::attach::Redirect;
use crate::gate::locked;
use crate::marks::Marks;
use crate::socket::Socket;

/// A queue of an interface behind an AF_XDP socket.
pub struct AfXdpPort {
    name: String,
    ifindex: u32,
    /// Number of the queue at the port, and at the interface.
    queue: u32,
    number: u32,
    capabilities: Capabilities,
    /// Gone after [`Port::close`].
    socket: Option<Socket>,
    redirect: Arc<Redirect>,
    chunk_size: u64,
    /// Chunks that the kernel has.
    marks: Marks,
    /// Frames wanted in the FILL ring, and how many are there or on their way to us.
    fill_target: u32,
    filled: u32,
    /// Buffers that were given to send and have not come back, and their bytes.
    sending: u32,
    sending_bytes: u64,
    /// Whether the TX ring has something that the kernel was not told of.
    rung: bool,
    failure: Option<Lost>,
    empty_calls: u32,
    stats: PortStats,
    oversize: u64,
    invalid: u64,
    /// Packets that lay in the RX ring when the port was closed.
    unread: u64,
    /// Packets that were given to send, and of which nothing says that they were sent when the port was closed.
    unsent: u64,
    packet_id: u64,
    /// The parts that have come so far of a packet of several.
    begun: Option<Frame>,
    /// Further parts of a packet that is lost are on their way.
    skipping: bool,
}

/// Empty receive calls between two looks whether the interface is still there.
const LOOK_EVERY: u32 = 256;

impl AfXdpPort {
    pub(crate) fn new(
        name: &str,
        ifindex: u32,
        (queue, number): (u32, u32),
        socket: Socket,
        redirect: Arc<Redirect>,
        pool: PoolConfig,
        capabilities: Capabilities,
    ) -> AfXdpPort {
        AfXdpPort {
            name: name.to_owned(),
            ifindex,
            queue,
            number,
            capabilities,
            // A quarter of the pool at most: the others are for frames under way and on their way out.
            fill_target: socket.fill.entries().min(pool.frames / 4).max(1),
            socket: Some(socket),
            redirect,
            chunk_size: u64::from(pool.chunk_size),
            marks: Marks::new(pool.frames),
            filled: 0,
            sending: 0,
            sending_bytes: 0,
            rung: false,
            failure: None,
            empty_calls: 0,
            stats: PortStats::default(),
            oversize: 0,
            invalid: 0,
            unread: 0,
            unsent: 0,
            packet_id: 0,
            begun: None,
            skipping: false,
        }
    }

    /// Gives the kernel frames to receive into.
    pub(crate) fn refill(&mut self, pool: &mut Pool) {
        let Some(socket) = &mut self.socket else { return };
        let (chunk_size, marks) = (self.chunk_size, &mut self.marks);
        let mut dry = false;
        let missing = self.fill_target.saturating_sub(self.filled);
        let given = socket.fill.push_some(missing as usize, || {
            let lent = pool.alloc().ok().and_then(|frame| pool.lend(frame).ok());
            dry |= lent.is_none();
            marks.add(lent? / chunk_size);
            lent
        });
        self.filled += given as u32;
        self.stats.no_frame += u64::from(dry);
        if given > 0 && socket.fill.flags() & xsk::RING_NEED_WAKEUP != 0 {
            socket.call_rx();
        }
    }

    /// Takes back what was sent.
    fn reap(&mut self, pool: &mut Pool) {
        let Some(socket) = &mut self.socket else { return };
        if self.sending == 0 {
            return;
        }
        let (chunk_size, marks) = (self.chunk_size, &mut self.marks);
        let (mut invalid, mut bytes) = (0, 0);
        let count = socket.completion.pop_each(self.sending as usize, |address| {
            match marks.remove(address / chunk_size).then(|| pool.reclaim(address)).flatten() {
                Some(frame) => {
                    bytes += frame.len() as u64;
                    pool.release(frame);
                }
                None => invalid += 1,
            }
        });
        self.sending_bytes = self.sending_bytes.saturating_sub(bytes);
        self.sending -= count as u32;
        self.invalid += invalid;
    }

    /// Makes a frame of what the kernel received.
    fn received(&mut self, desc: XdpDesc, pool: &mut Pool) -> Option<Frame> {
        let ours = self.marks.remove(desc.addr / self.chunk_size);
        let Some(mut frame) = ours.then(|| pool.reclaim(desc.addr)).flatten() else {
            self.invalid += 1;
            return None;
        };
        let data = (desc.addr % self.chunk_size) as u32;
        let end = data.saturating_add(desc.len);
        let more = desc.options & xsk::PKT_CONTD != 0;
        let fits = frame.place(data, data, end).is_ok() && (!more || self.capabilities.multi_buffer);
        if self.skipping || !fits {
            self.oversize += u64::from(!self.skipping);
            self.skipping = more;
            pool.release(frame);
            self.begun.take().into_iter().for_each(|begun| pool.release(begun));
            return None;
        }
        if let Some(mut begun) = self.begun.take() {
            if let Err(frame) = begun.push_part(frame) {
                self.oversize += 1;
                self.skipping = more;
                pool.release(frame);
                pool.release(begun);
                return None;
            }
            frame = begun;
        }
        if more {
            self.begun = Some(frame);
            return None;
        }
        self.packet_id += 1;
        frame.set_ingress(self.ifindex, self.queue);
        frame.set_packet_id(self.packet_id);
        self.stats.rx += 1;
        self.stats.rx_bytes += frame.total_len() as u64;
        Some(frame)
    }

    /// Tells the kernel of what is in the TX ring.
    fn ring_bell(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        self.rung = false;
        // With zero-copy the driver looks by itself unless it says otherwise; copies are made in our call only.
        if socket.zero_copy && socket.tx.flags() & xsk::RING_NEED_WAKEUP == 0 {
            return;
        }
        match socket.call_tx() {
            Ok(()) => {}
            Err(rustix::io::Errno::NXIO | rustix::io::Errno::NODEV) => self.failure = Some(Lost::Removed),
            // Down: what is in the ring waits.
            Err(rustix::io::Errno::NETDOWN) => {}
            Err(errno) => self.failure = Some(Lost::Other(errno.raw_os_error())),
        }
    }

    /// Sends what waits, as far as the device takes it in a moment, and counts the rest: what closing the socket loses.
    fn send_the_rest(&mut self, pool: &mut Pool) {
        const TRIES: u32 = 20;
        const WAIT: std::time::Duration = std::time::Duration::from_millis(1);
        for _ in 0..TRIES {
            self.reap(pool);
            if self.sending == 0 || self.failure.is_some() {
                break;
            }
            self.ring_bell();
            let Some(socket) = &mut self.socket else { return };
            // Copies are sent when they are taken. Without, only COMPLETION says so.
            if !socket.zero_copy && socket.tx.pending() == 0 {
                break;
            }
            std::thread::sleep(WAIT);
        }
        let Some(socket) = &mut self.socket else { return };
        let mut left = 0;
        socket.tx.pending_each(|desc| left += u64::from(desc.options & xsk::PKT_CONTD == 0));
        self.unsent += if socket.zero_copy { u64::from(self.sending) } else { left };
    }

    fn failed(&self, lost: Lost) -> PortError {
        PortError::new(&*self.name, PortErrorKind::Missing, lost)
    }

    /// Why nothing more will come, if that is so.
    fn lost(&mut self) -> Option<Lost> {
        self.empty_calls = (self.empty_calls + 1) % LOOK_EVERY;
        if self.empty_calls != 0 {
            return None;
        }
        match self.socket.as_ref()?.take_error()? {
            rustix::io::Errno::NETDOWN | rustix::io::Errno::NODEV | rustix::io::Errno::NXIO => Some(Lost::Removed),
            errno => Some(Lost::Other(errno.raw_os_error())),
        }
    }
}

impl Port for AfXdpPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn rx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        self.reap(pool);
        let budget = budget.min(burst.room());
        let mut taken = [XdpDesc::default(); Burst::MAX];
        let Some(socket) = &mut self.socket else { return Ok(Rx::End) };
        let count = socket.rx.pop_slice(&mut taken[..budget]);
        for desc in &taken[..count] {
            if let Some(frame) = self.received(*desc, pool)
                && let Err(frame) = burst.push(frame)
            {
                pool.release(frame);
            }
        }
        self.filled = self.filled.saturating_sub(count as u32);
        self.refill(pool);
        if self.sending > 0 && count == 0 {
            // A device whose queue was full is asked again.
            self.ring_bell();
        }
        if let Some(lost) = self.failure.or_else(|| if count == 0 { self.lost() } else { None }) {
            return Err(self.failed(lost));
        }
        Ok(if count == 0 { Rx::Idle } else { Rx::More })
    }

    fn tx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.reap(pool);
        let mut result = Sent::default();
        let Some(socket) = &mut self.socket else {
            let count = burst.len();
            pool.release_burst(burst);
            return Sent::none(count, Errno::ENETDOWN);
        };
        for frame in burst.drain() {
            let parts = if frame.has_frags() { frame.frag_count() as u32 + 1 } else { 1 };
            // The COMPLETION ring must have room for all that is under way, or frames would not come back.
            if socket.tx.room(parts) < parts || self.sending + parts > socket.completion.entries() {
                result.full += 1;
                pool.release(frame);
                continue;
            }
            // Frames of another worker's pool do not lie in the memory that the kernel knows.
            let frame = match pool.owns_parts(&frame) {
                true => Ok(frame),
                false => pool.copy(&frame).map_err(|_| frame),
            };
            let frame = match frame {
                Ok(frame) => frame,
                Err(frame) => {
                    pool.release(frame);
                    result.failed += 1;
                    result.errno = Some(Errno::ENOMEM);
                    continue;
                }
            };
            self.stats.tx_bytes += frame.total_len() as u64;
            self.sending_bytes += frame.total_len() as u64;
            let mut left = parts;
            for part in frame.into_parts() {
                left -= 1;
                let (len, options) = (part.len() as u32, if left > 0 { xsk::PKT_CONTD } else { 0 });
                // It is this pool's, and has no further part.
                let Ok(addr) = pool.lend(part) else { continue };
                self.marks.add(addr / self.chunk_size);
                // There is room: see above.
                let _ = socket.tx.stage(XdpDesc { addr, len, options });
            }
            self.sending += parts;
            self.rung = true;
            result.sent += 1;
            self.stats.tx += 1;
        }
        socket.tx.submit();
        result
    }

    fn backlog(&mut self, _: u32, pool: &mut Pool) -> Option<Backlog> {
        self.reap(pool);
        Some(Backlog { frames: self.sending, bytes: self.sending_bytes })
    }

    fn pass(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let count = burst.len();
        pool.release_burst(burst);
        Sent::none(count, Errno::EOPNOTSUPP)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        if self.rung {
            self.ring_bell();
        }
        match self.failure {
            Some(lost) => Err(self.failed(lost)),
            None => Ok(()),
        }
    }

    fn close(&mut self, pool: &mut Pool) {
        if self.socket.is_none() {
            return;
        }
        self.send_the_rest(pool);
        // Behind this no packet comes any more, so what is counted here is all.
        self.redirect.remove(self.number);
        let _ = self.stats();
        let Some(mut socket) = self.socket.take() else { return };
        while let Some(desc) = socket.rx.take() {
            self.unread += u64::from(desc.options & xsk::PKT_CONTD == 0);
        }
        // Closing waits until the driver has let go of the queue; what it was given is ours again after that.
        drop(socket);
        locked(&self.redirect.lost).leave(self.number, (self.unread, self.unsent));
        self.begun.take().into_iter().for_each(|begun| pool.release(begun));
        for number in self.marks.drain() {
            if let Some(frame) = pool.reclaim(number * self.chunk_size) {
                pool.release(frame);
            }
        }
        (self.filled, self.sending, self.sending_bytes) = (0, 0, 0);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(Socket::fd)
    }

    fn stats(&mut self) -> PortStats {
        if let Some(now) = self.socket.as_ref().and_then(Socket::statistics) {
            self.stats.dropped = now.rx_dropped + now.rx_ring_full.unwrap_or(0);
            self.stats.other = vec![
                ("fill-ring-empty", now.rx_fill_ring_empty_descs.unwrap_or(0)),
                ("invalid-descriptors", now.rx_invalid_descs + now.tx_invalid_descs + self.invalid),
            ];
            let (gap, (rings, unsent)) = locked(&self.redirect.lost).of(self.number);
            // Between the process before and this one: nobody received, and what it left in its rings.
            self.stats.other.extend([("upgrade-gap", gap), ("upgrade-rings", rings), ("upgrade-unsent", unsent)]);
            self.stats.other.retain(|&(_, count)| count > 0);
        }
        self.stats.oversize = self.oversize;
        let mut stats = self.stats.clone();
        stats.other.extend([("unread", self.unread), ("unsent", self.unsent)].into_iter().filter(|(_, n)| *n > 0));
        stats
    }
}
