//! The port.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use xway_abi::Errno;
use xway_engine::{Capabilities, Lost, Port, PortError, PortErrorKind, PortStats, Rx, Sent, Support};
use xway_packet::{Burst, Frame, Pool, SharedFrame};

use crate::error::OpenError;
use crate::receive::{Loss, receive};
use crate::ring::{Ring, SLOT_OVERHEAD};
use crate::sys;

/// How an interface is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketConfig {
    /// Name of the interface.
    pub interface: String,
    /// Packets that the kernel may hold for us: a power of two from 64 to 65536.
    pub slots: u32,
    /// Longest packet to receive, in bytes; longer ones are counted. The pool's capacity is the right value.
    pub packet_max: u32,
    /// Receive also what is addressed to others. XDP does not ask for that, so it is off unless wanted.
    pub promiscuous: bool,
    /// Send past the interface's queueing discipline, as XDP does. Off, the discipline shapes and may drop what is sent.
    pub qdisc_bypass: bool,
}

impl PacketConfig {
    /// 4096 slots for packets of 3520 bytes (what a 4 KiB frame holds).
    pub fn new(interface: impl Into<String>) -> PacketConfig {
        PacketConfig {
            interface: interface.into(),
            slots: 4096,
            packet_max: 3520,
            promiscuous: false,
            qdisc_bypass: true,
        }
    }
}

/// An interface behind a packet socket; see the crate's documentation for what the verdicts mean on it.
pub struct PacketPort {
    name: String,
    interface: String,
    ifindex: u32,
    /// Receives: bound to all protocols. `None` for a port that only sends.
    receiver: Option<Receiver>,
    /// Sends: bound to no protocol, so that nothing is queued on it.
    sender: OwnedFd,
    stats: PortStats,
    gso: u64,
    runt: u64,
    packet_id: u64,
}

struct Receiver {
    ring: Ring,
    socket: OwnedFd,
}

impl PacketPort {
    /// Opens an interface for sending only: nothing is received, so nothing is lost when nobody reads.
    ///
    /// # Errors
    /// As [`PacketPort::open`].
    pub fn open_sender(config: &PacketConfig) -> Result<PacketPort, OpenError> {
        let sender = sys::packet_socket().map_err(OpenError::system("packet socket"))?;
        let ifindex = check_interface(sender.as_fd(), &config.interface)?;
        PacketPort::new(config, ifindex, None)
    }

    /// Opens an interface of the network namespace that the calling thread is in.
    ///
    /// # Errors
    /// [`OpenError`]: the interface is missing, down or of another kind, or the process may not.
    pub fn open(config: &PacketConfig) -> Result<PacketPort, OpenError> {
        let failed = OpenError::system;
        let (slots, slot_size) = ring_shape(config)?;
        let socket = sys::packet_socket().map_err(failed("packet socket"))?;
        let fd = socket.as_fd();
        let ifindex = check_interface(fd, &config.interface)?;

        // Everything before the bind, so that no packet of another interface or kind is ever received.
        sys::set_number(fd, libc::PACKET_VERSION, 1).map_err(failed("ring version 2"))?; // TPACKET_V2
        sys::set_number(fd, libc::PACKET_VNET_HDR, 1).map_err(failed("offload state of packets"))?;
        sys::set_number(fd, libc::PACKET_IGNORE_OUTGOING, 1).map_err(failed("leaving out sent packets"))?;
        sys::set_rx_ring(fd, &ring_request(slots, slot_size)).map_err(failed("receive ring"))?;
        let ring = Ring::map(fd, slots as usize, slot_size as usize).map_err(failed("mapping the receive ring"))?;
        if config.promiscuous {
            sys::set_promiscuous(fd, ifindex).map_err(failed("promiscuous mode"))?;
        }
        sys::bind(fd, ifindex, libc::ETH_P_ALL as u16).map_err(failed("binding to the interface"))?;

        PacketPort::new(config, ifindex, Some(Receiver { ring, socket }))
    }

    fn new(config: &PacketConfig, ifindex: u32, receiver: Option<Receiver>) -> Result<PacketPort, OpenError> {
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
            receiver,
            sender,
            stats: PortStats::default(),
            gso: 0,
            runt: 0,
            packet_id: 0,
        })
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
        queue: u32,
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
            self.packet_id += 1;
            match received {
                Ok(()) => {
                    frame.set_ingress(self.ifindex, queue);
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

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        // Taken out so that the port's counters can be written while a packet in its ring is read.
        let Some(mut receiver) = self.receiver.take() else { return Ok(Rx::End) };
        let received = self.receive_from(&mut receiver, queue, pool, burst, budget);
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

    fn stats(&mut self) -> PortStats {
        if let Some(receiver) = &self.receiver
            && let Ok((_, dropped)) = sys::statistics(receiver.socket.as_fd())
        {
            self.stats.dropped += u64::from(dropped);
        }
        self.stats.other = vec![("gso", self.gso), ("runt", self.runt)];
        self.stats.other.retain(|&(_, count)| count > 0);
        self.stats.clone()
    }
}

/// Index of an interface that can be used.
fn check_interface(fd: BorrowedFd<'_>, name: &str) -> Result<u32, OpenError> {
    let failed = OpenError::system;
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

/// Number and size of the ring's slots.
fn ring_shape(config: &PacketConfig) -> Result<(u32, u32), OpenError> {
    let refuse = |why| Err(OpenError::Ring { slots: config.slots, packet_max: config.packet_max, why });
    if !config.slots.is_power_of_two() || !(64..=65536).contains(&config.slots) {
        return refuse("the number of slots must be a power of two from 64 to 65536");
    }
    if !(64..=65536).contains(&config.packet_max) {
        return refuse("packets must be 64 to 65536 bytes long");
    }
    Ok((config.slots, (config.packet_max + SLOT_OVERHEAD).next_power_of_two()))
}

fn ring_request(slots: u32, slot_size: u32) -> libc::tpacket_req {
    // Blocks are what the kernel allocates at once: big enough for the largest slot, small enough to be had.
    const BLOCK: u32 = 256 << 10;
    let block = BLOCK.min(slots * slot_size);
    libc::tpacket_req {
        tp_block_size: block,
        tp_block_nr: slots * slot_size / block,
        tp_frame_size: slot_size,
        tp_frame_nr: slots,
    }
}
