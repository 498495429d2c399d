//! The port.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use xway_abi::Errno;
use xway_engine::{Capabilities, Lost, Port, PortError, PortErrorKind, PortStats, Rx, Sent, Support};
use xway_packet::{Burst, Frame, Pool, SharedFrame};

use crate::config::{Layout, PacketConfig};
use crate::error::OpenError;
use crate::receive::{Loss, receive};
use crate::ring::{BLOCK, End, Place, Ring};
use crate::sys;

/// One queue of an interface: a packet socket with its ring. See the crate's documentation for what the verdicts mean on it.
pub struct PacketPort {
    name: String,
    interface: String,
    ifindex: u32,
    /// Which queue of its interface it is.
    queue: u32,
    /// Receives: bound to all protocols. `None` for a port that only sends.
    receiver: Option<Receiver>,
    /// Sends: bound to no protocol, so that nothing is queued on it.
    sender: OwnedFd,
    stats: PortStats,
    gso: u64,
    runt: u64,
    joining: u64,
    unread: u64,
    packet_id: u64,
    /// Tells the device that the port is there.
    _alive: Option<Arc<()>>,
}

pub(crate) struct Receiver {
    ring: Ring,
    socket: OwnedFd,
    /// Where the ring was given up, once it is.
    end: End,
    /// Marks in the ring of packets that the other members got as well.
    doubles: u32,
    /// Packets that were put into the ring and taken out of it, as numbers that go round; `None` where another process began to count.
    put_taken: Option<(u32, u32)>,
}

/// What a socket lets in that is bound and not yet a member of its group. It would get what the members get too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Everything: it is to be alone.
    Open,
    /// Nothing.
    Shut,
    /// One byte of each packet, so that packets can be counted that were its own and came before the gate was open.
    Marks,
}

impl Receiver {
    /// A socket with its ring that receives what comes in on the interface and passes the gate, until it [begins](Receiver::begin).
    pub(crate) fn open(config: &PacketConfig, ifindex: u32, gate: Gate) -> Result<Receiver, OpenError> {
        let failed = OpenError::system;
        let (slots, slot_size) = config.shape()?;
        let socket = sys::packet_socket().map_err(failed("packet socket"))?;
        let fd = socket.as_fd();
        // Everything before the bind, so that no packet of another interface or kind is ever received.
        let version = if config.layout == Layout::Slots { TPACKET_V2 } else { TPACKET_V3 };
        sys::set_number(fd, libc::PACKET_VERSION, version).map_err(failed("ring version"))?;
        sys::set_number(fd, libc::PACKET_VNET_HDR, 1).map_err(failed("offload state of packets"))?;
        sys::set_number(fd, libc::PACKET_IGNORE_OUTGOING, 1).map_err(failed("leaving out sent packets"))?;
        let (parts, part_size) = ask_for_ring(fd, config.layout, slots, slot_size).map_err(failed("receive ring"))?;
        let end = End::default();
        let ring = Ring::map(fd, config.layout, parts as usize, part_size as usize, end.clone());
        let ring = ring.map_err(failed("mapping the receive ring"))?;
        if config.promiscuous {
            sys::set_promiscuous(fd, ifindex).map_err(failed("promiscuous mode"))?;
        }
        if gate != Gate::Open {
            let bytes = u32::from(gate == Gate::Marks);
            sys::close_gate(fd, bytes).map_err(failed("a filter that lets nothing in"))?;
        }
        sys::bind(fd, ifindex, libc::ETH_P_ALL as u16).map_err(failed("binding to the interface"))?;
        Ok(Receiver { ring, socket, end, doubles: 0, put_taken: Some((0, 0)) })
    }

    /// Goes on with the socket that another process received with: what came meanwhile lies in its ring.
    pub(crate) fn adopt(
        config: &PacketConfig,
        ifindex: u32,
        (socket, place): (OwnedFd, Place),
    ) -> Result<Receiver, OpenError> {
        let failed = OpenError::system;
        let (slots, slot_size) = config.shape()?;
        let bound = sys::bound(socket.as_fd()).map_err(failed("a socket that was handed over"))?;
        let version =
            sys::number(socket.as_fd(), libc::PACKET_VERSION).map_err(failed("asking for the ring's version"))?;
        let wanted = if config.layout == Layout::Slots { TPACKET_V2 } else { TPACKET_V3 };
        if bound != (ifindex, libc::ETH_P_ALL as u16) || version != wanted {
            let other = format!("it receives from interface {} now, by rings of version {}", bound.0, version + 1);
            return Err(failed("a socket that was handed over")(std::io::Error::other(other)));
        }
        let (.., parts, part_size) = parts(config.layout, slots, slot_size);
        let end = End::default();
        let ring = Ring::map(socket.as_fd(), config.layout, parts as usize, part_size as usize, end.clone());
        let mut ring = ring.map_err(failed("mapping the receive ring that was handed over"))?;
        ring.go_on(place).map_err(failed("the place in the receive ring that was handed over"))?;
        Ok(Receiver { ring, socket, end, doubles: 0, put_taken: None })
    }

    /// The socket once more, and where its ring ends.
    pub(crate) fn keep(&self) -> std::io::Result<(OwnedFd, End)> {
        Ok((self.socket.try_clone()?, self.end.clone()))
    }

    /// The group that it is a member of.
    pub(crate) fn group(&self) -> Result<u16, OpenError> {
        let number = sys::number(self.socket.as_fd(), libc::PACKET_FANOUT);
        number.map(|number| number as u16).map_err(OpenError::system("asking for the group that shares packets out"))
    }

    /// Becomes a member of the group with this id, or of a new one; says the group's id.
    pub(crate) fn join(&self, config: &PacketConfig, group: Option<u16>) -> Result<u16, OpenError> {
        let joined = sys::join_fanout(self.socket.as_fd(), config.fanout.number(), group);
        joined.map_err(OpenError::system("joining the group that shares packets out (PACKET_FANOUT)"))
    }

    /// The same while packets flow, with [`Gate::Marks`]: the share of a member that has not begun is lost, but known.
    ///
    /// Linux has no way to join and begin at once. What was let in before it is a member came to the others as well (but for what comes
    /// between the two calls here, which is counted as if it had not).
    pub(crate) fn join_in_traffic(&mut self, config: &PacketConfig, group: Option<u16>) -> Result<u16, OpenError> {
        self.drops().map_err(OpenError::system("asking for the packets of the ring"))?;
        self.doubles = self.put_taken.map_or(0, |(put, _)| put);
        self.join(config, group)
    }

    /// Packets that found the ring full since the last call.
    fn drops(&mut self) -> std::io::Result<u32> {
        let (put, dropped) = sys::statistics(self.socket.as_fd())?;
        if let Some((sum, _)) = &mut self.put_taken {
            *sum = sum.wrapping_add(put);
        }
        Ok(dropped)
    }

    /// A packet was taken out of the ring.
    fn took(&mut self) {
        if let Some((_, taken)) = &mut self.put_taken {
            *taken = taken.wrapping_add(1);
        }
    }

    /// Whether somebody goes on with the ring when this is dropped: the ring's part, this one's, theirs.
    fn is_kept(&self) -> bool {
        Arc::strong_count(&self.end) > 2
    }

    /// Packets that lie in the ring, when nobody will take them. Asked for last, after [`Receiver::drops`].
    fn unread(&mut self) -> u64 {
        if let Some((put, taken)) = self.put_taken {
            return u64::from(put.wrapping_sub(taken));
        }
        // What the first reader left is not known as a number.
        let mut count = 0;
        while let Some(slot) = self.ring.take() {
            count += u64::from(!slot.header().outgoing && !slot.header().is_mark());
        }
        count
    }

    /// Receives from now on.
    pub(crate) fn begin(&self) -> Result<(), OpenError> {
        sys::open_gate(self.socket.as_fd()).map_err(OpenError::system("taking the filter away"))
    }
}

/// Numbers of `enum tpacket_versions` in linux/if_packet.h.
const TPACKET_V2: i32 = 1;
const TPACKET_V3: i32 = 2;

impl PacketPort {
    /// Opens an interface for sending only: nothing is received, so nothing is lost when nobody reads.
    ///
    /// # Errors
    /// As [`PacketPort::open`].
    pub fn open_sender(config: &PacketConfig) -> Result<PacketPort, OpenError> {
        PacketPort::new(config, find_interface(&config.interface)?, None)
    }

    /// Opens an interface of the network namespace that the calling thread is in, with one queue whatever the configuration says:
    /// [`crate::PacketDevice`] opens several.
    ///
    /// # Errors
    /// [`OpenError`]: the interface is missing, down or of another kind, or the process may not.
    pub fn open(config: &PacketConfig) -> Result<PacketPort, OpenError> {
        config.shape()?;
        let ifindex = find_interface(&config.interface)?;
        PacketPort::new(config, ifindex, Some(Receiver::open(config, ifindex, Gate::Open)?))
    }

    pub(crate) fn new(
        config: &PacketConfig,
        ifindex: u32,
        receiver: Option<Receiver>,
    ) -> Result<PacketPort, OpenError> {
        let failed = OpenError::system;
        let interface = config.interface.clone();
        let sender = sys::packet_socket().map_err(failed("packet socket"))?;
        sys::set_number(sender.as_fd(), libc::PACKET_QDISC_BYPASS, config.qdisc_bypass.into())
            .map_err(failed("queueing discipline bypass"))?;
        sys::set_send_buffer(sender.as_fd(), SEND_BUFFER).map_err(failed("send buffer"))?;
        sys::bind(sender.as_fd(), ifindex, 0).map_err(failed("binding to the interface"))?;

        Ok(PacketPort {
            name: format!("packet:{interface}"),
            interface,
            ifindex,
            queue: 0,
            receiver,
            sender,
            stats: PortStats::default(),
            gso: 0,
            runt: 0,
            joining: 0,
            unread: 0,
            packet_id: 0,
            _alive: None,
        })
    }

    /// What another process can go on with; `None` for a port that only sends.
    pub(crate) fn keep(&self) -> std::io::Result<Option<(OwnedFd, End)>> {
        self.receiver.as_ref().map(Receiver::keep).transpose()
    }

    /// As this queue of a device, which knows by `alive` how long the port lives.
    pub(crate) fn of_device(self, queue: u32, alive: Arc<()>) -> PacketPort {
        PacketPort { queue, _alive: Some(alive), ..self }
    }

    /// Why nothing more will come, if that is so. Costs a system call, so it is asked only when nothing came.
    fn lost(&self, receiver: &Receiver) -> Option<Lost> {
        let errno = sys::take_error(receiver.socket.as_fd()).unwrap_or_else(|error| error.raw_os_error().unwrap_or(0));
        match errno {
            0 => None,
            libc::ENETDOWN | libc::ENODEV | libc::ENXIO => {
                let index = sys::interface_index(self.sender.as_fd(), &self.interface);
                Some(if matches!(index, Ok(Some(index)) if index == self.ifindex) { Lost::Down } else { Lost::Removed })
            }
            errno => Some(Lost::Other(errno)),
        }
    }

    fn receive_from(
        &mut self,
        receiver: &mut Receiver,
        pool: &mut Pool,
        burst: &mut Burst,
        budget: usize,
    ) -> Result<Rx, PortError> {
        let budget = budget.min(burst.room());
        let before = burst.len();
        for _ in 0..budget * LOOKS_PER_FRAME {
            if burst.len() - before == budget {
                break;
            }
            if !receiver.ring.is_ready() {
                if burst.len() == before
                    && let Some(lost) = self.lost(receiver)
                {
                    return Err(PortError::new(&*self.name, PortErrorKind::Missing, lost));
                }
                return Ok(Rx::Idle);
            }
            let Ok(mut frame) = pool.alloc() else {
                self.stats.no_frame += 1;
                break;
            };
            let Some(slot) = receiver.ring.take() else {
                pool.release(frame);
                break;
            };
            let received = receive(&slot, &mut frame);
            drop(slot);
            receiver.took();
            self.packet_id += 1;
            match received {
                Ok(()) => {
                    frame.set_ingress(self.ifindex, self.queue);
                    frame.set_packet_id(self.packet_id);
                    self.stats.rx += 1;
                    self.stats.rx_bytes += frame.len() as u64;
                    if let Err(frame) = burst.push(frame) {
                        pool.release(frame);
                    }
                    continue;
                }
                Err(Loss::Oversize) => self.stats.oversize += 1,
                Err(Loss::Gso) => self.gso += 1,
                Err(Loss::Runt) => self.runt += 1,
                Err(Loss::Outgoing) => {}
                Err(Loss::Joining) if receiver.doubles > 0 => receiver.doubles -= 1,
                Err(Loss::Joining) => self.joining += 1,
            }
            pool.release(frame);
        }
        Ok(Rx::More)
    }
}

/// Bytes that may wait to be sent.
const SEND_BUFFER: i32 = 4 << 20;

/// Packets that one receive call looks at per frame it may deliver: bounds the time spent on packets that are not received.
const LOOKS_PER_FRAME: usize = 4;

impl PacketPort {
    /// What every such port can do.
    pub const fn offers() -> Capabilities {
        Capabilities {
            drop: Support::CopyOnly,
            pass: Support::CopyOnly,
            tx: Support::Full,
            redirect_from: Support::CopyOnly,
            redirect_to: Support::Full,
            rx_timestamp: true,
            ..Capabilities::copying()
        }
    }

    /// Hands packets to the kernel, which copies them.
    fn send<T>(&mut self, frames: &[T], packet: impl Fn(&T) -> &[u8]) -> Sent {
        let mut result = Sent::default();
        let mut at = 0;
        while at < frames.len() {
            match sys::send_many(self.sender.as_fd(), frames[at..].iter().map(&packet)) {
                Ok(count) => {
                    let sent = &frames[at..at + count];
                    self.stats.tx += count as u64;
                    self.stats.tx_bytes += sent.iter().map(|frame| packet(frame).len() as u64).sum::<u64>();
                    result.sent += count as u32;
                    at += count;
                }
                Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
                    libc::EINTR => {}
                    // No room: the rest has none either.
                    libc::EAGAIN | libc::ENOBUFS => {
                        result.full += (frames.len() - at) as u32;
                        at = frames.len();
                    }
                    // This one cannot be sent (too long, or the interface is down); the next may.
                    errno => {
                        result.failed += 1;
                        result.errno = Some(Errno(errno));
                        at += 1;
                    }
                },
            }
        }
        result
    }
}

impl Port for PacketPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        PacketPort::offers()
    }

    fn rx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        // Taken out so that the port's counters can be written while a packet in its ring is read.
        let Some(mut receiver) = self.receiver.take() else { return Ok(Rx::End) };
        let received = self.receive_from(&mut receiver, pool, burst, budget);
        self.receiver = Some(receiver);
        received
    }

    fn tx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let sent = self.send(burst.frames(), Frame::packet);
        pool.release_burst(burst);
        sent
    }

    fn shares(&self) -> bool {
        true
    }

    fn tx_shared(&mut self, _: u32, frames: &[SharedFrame]) -> Sent {
        self.send(frames, |frame| frame.packet())
    }

    fn pass(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        // The host has had the packet since before the program ran.
        let count = burst.len();
        pool.release_burst(burst);
        Sent::all(count)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.receiver.as_ref().map(|receiver| receiver.socket.as_fd())
    }

    fn close(&mut self, _: &mut Pool) {
        let Some(mut receiver) = self.receiver.take() else { return };
        if let Ok(dropped) = receiver.drops() {
            self.stats.dropped += u64::from(dropped);
        }
        if !receiver.is_kept() {
            self.unread += receiver.unread();
        }
    }

    fn stats(&mut self) -> PortStats {
        if let Some(receiver) = &mut self.receiver
            && let Ok(dropped) = receiver.drops()
        {
            self.stats.dropped += u64::from(dropped);
        }
        self.stats.other =
            vec![("gso", self.gso), ("runt", self.runt), ("joining", self.joining), ("unread", self.unread)];
        self.stats.other.retain(|&(_, count)| count > 0);
        self.stats.clone()
    }
}

/// Index of an interface that can be used.
pub(crate) fn find_interface(name: &str) -> Result<u32, OpenError> {
    let failed = OpenError::system;
    let socket = sys::packet_socket().map_err(failed("packet socket"))?;
    let fd = socket.as_fd();
    let interface = name.to_owned();
    let ifindex = sys::interface_index(fd, name).map_err(failed("interface index"))?;
    let Some(ifindex) = ifindex else { return Err(OpenError::NoInterface { interface }) };
    let hardware = sys::interface_hardware(fd, name).map_err(failed("hardware type of the interface"))?;
    if !matches!(hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
        return Err(OpenError::NotEthernet { interface, hardware });
    }
    if !sys::interface_up(fd, name).map_err(failed("state of the interface"))? {
        return Err(OpenError::Down { interface });
    }
    Ok(ifindex)
}

/// Asks for a ring of so much memory, and says how many parts of which size change hands in it.
fn ask_for_ring(fd: BorrowedFd<'_>, layout: Layout, slots: u32, slot_size: u32) -> std::io::Result<(u32, u32)> {
    let (block, blocks, parts, part_size) = parts(layout, slots, slot_size);
    match layout {
        Layout::Slots => {
            let (tp_block_size, tp_block_nr, tp_frame_size, tp_frame_nr) = (block, blocks, slot_size, slots);
            sys::set_slots(fd, &libc::tpacket_req { tp_block_size, tp_block_nr, tp_frame_size, tp_frame_nr })?;
            Ok((parts, part_size))
        }
        Layout::Blocks => {
            let request = libc::tpacket_req3 {
                tp_block_size: block,
                tp_block_nr: blocks,
                tp_frame_size: slot_size,
                tp_frame_nr: slots,
                tp_retire_blk_tov: BLOCK_AGE_MS,
                tp_sizeof_priv: 0,
                tp_feature_req_word: 0,
            };
            sys::set_blocks(fd, &request)?;
            Ok((parts, part_size))
        }
    }
}

/// Bytes of a block, how many there are, and the parts that change hands with their size.
fn parts(layout: Layout, slots: u32, slot_size: u32) -> (u32, u32, u32, u32) {
    let memory = slots * slot_size;
    // A ring of blocks has four at least: one is filled while others are read.
    let block = BLOCK.min(if layout == Layout::Slots { memory } else { memory / 4 });
    let blocks = memory / block;
    match layout {
        Layout::Slots => (block, blocks, slots, slot_size),
        Layout::Blocks => (block, blocks, blocks, block),
    }
}

/// Milliseconds after which a block is handed over that is not full: the fewest that the kernel knows.
const BLOCK_AGE_MS: u32 = 1;
