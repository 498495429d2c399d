//! The port.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use xway_abi::Errno;
use xway_engine::{Capabilities, Device, Lost, Port, PortError, PortErrorKind, PortStats, Rx, Sent, Support};
use xway_packet::offload::VnetHeader;
use xway_packet::{Burst, Pool};

use crate::error::OpenError;
use crate::queue::{Loss, Queue, Received};
use crate::sys;

/// What the host may leave undone in the packets that it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Offload {
    /// Nothing: the host computes checksums and cuts packets.
    None,
    /// Checksums: completed here.
    #[default]
    Checksum,
    /// Checksums and cutting TCP: both done here.
    Segmentation,
}

impl Offload {
    const fn features(self) -> u32 {
        match self {
            Offload::None => 0,
            Offload::Checksum => sys::F_CSUM,
            Offload::Segmentation => sys::F_CSUM | sys::F_TSO4 | sys::F_TSO6,
        }
    }
}

/// How a TAP device is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapConfig {
    /// Name of the interface. When there is none it is made, brought up, and removed again when the port is dropped.
    pub name: String,
    /// Number of queues, 1 to [`TapConfig::QUEUES_MAX`].
    pub queues: u32,
    /// What the host may leave to us.
    pub offload: Offload,
    /// Packets that are longer than a frame, of an interface with a large MTU, come in several buffers; programs must be made for
    /// that (`xdp.frags`). Without it they are counted as oversize.
    pub frags: bool,
}

impl TapConfig {
    /// `MAX_TAP_QUEUES` of the kernel.
    pub const QUEUES_MAX: u32 = 256;

    /// One queue, checksums done here.
    pub fn new(name: impl Into<String>) -> TapConfig {
        TapConfig { name: name.into(), queues: 1, offload: Offload::default(), frags: false }
    }
}

/// A TAP device with its queues; see the crate's documentation for what the verdicts mean on it.
pub struct TapDevice {
    name: String,
    ifindex: u32,
    frags: bool,
    /// Those that are not open as ports.
    queues: Vec<Option<Queue>>,
}

impl TapDevice {
    /// Opens the interface in the network namespace that the calling thread is in, or makes it.
    ///
    /// # Errors
    /// [`OpenError`]: the process may not, the name is taken by something else, or the system has no TAP driver.
    pub fn open(config: &TapConfig) -> Result<TapDevice, OpenError> {
        let name = &config.name;
        let bad = |c: char| matches!(c, '/' | '%' | ':') || c.is_whitespace() || c.is_control();
        if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.contains(bad) {
            return Err(OpenError::Name { name: name.clone() });
        }
        if !(1..=TapConfig::QUEUES_MAX).contains(&config.queues) {
            return Err(OpenError::Queues { queues: config.queues, max: TapConfig::QUEUES_MAX });
        }
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| OpenError::system("a socket to ask about interfaces")(e.into()))?;
        let existed = netdevice::name_to_index(&socket, name).is_ok();
        let queues = (0..config.queues).map(|_| open_queue(config).map(Some)).collect::<Result<Vec<_>, _>>()?;
        let ifindex = netdevice::name_to_index(&socket, name)
            .map_err(|e| OpenError::system("asking for the interface's index")(e.into()))?;
        if !existed {
            sys::bring_up(socket.as_fd(), name).map_err(OpenError::system("bringing the interface up"))?;
        }
        Ok(TapDevice { name: format!("tap:{name}"), ifindex, frags: config.frags, queues })
    }

    /// Goes on with the queues that another process had ([`TapDevice::descriptors`]): the interface is as it was, and what waits in it
    /// is received.
    ///
    /// # Errors
    /// [`OpenError`]: the descriptors are not the queues that `config` describes.
    pub fn adopt(config: &TapConfig, queues: Vec<OwnedFd>) -> Result<TapDevice, OpenError> {
        let name = &config.name;
        let fits = |fd: &OwnedFd| sys::interface_of(fd.as_fd()).is_ok_and(|of| of == (name.clone(), config.queues > 1));
        if queues.len() != config.queues as usize || !queues.iter().all(fits) {
            return Err(OpenError::Mismatch { name: name.clone(), queues: config.queues });
        }
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| OpenError::system("a socket to ask about interfaces")(e.into()))?;
        let ifindex = netdevice::name_to_index(&socket, name)
            .map_err(|e| OpenError::system("asking for the interface's index")(e.into()))?;
        let queues = queues.into_iter().map(|fd| set_up(fd, config).map(Some)).collect::<Result<Vec<_>, _>>()?;
        Ok(TapDevice { name: format!("tap:{name}"), ifindex, frags: config.frags, queues })
    }

    /// The queues that are not open as ports once more: as long as one of them is there the interface is, and packets wait in it.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn descriptors(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.queues.iter().flatten().map(|queue| queue.fd.try_clone()).collect()
    }

    /// Its interface index.
    pub(crate) fn index(&self) -> u32 {
        self.ifindex
    }

    /// A queue as a port, once; `None` when there is no such queue or it was taken before.
    pub fn take(&mut self, queue: u32) -> Option<TapPort> {
        let taken = self.queues.get_mut(queue as usize)?.take()?;
        Some(TapPort {
            name: self.name.clone(),
            ifindex: self.ifindex,
            queue: taken,
            number: queue,
            stats: PortStats::default(),
            gso: 0,
            runt: 0,
            packet_id: 0,
        })
    }

    /// All queues as ports that were not taken before.
    pub fn take_all(&mut self) -> Vec<TapPort> {
        (0..self.queues.len() as u32).filter_map(|queue| self.take(queue)).collect()
    }
}

impl Device for TapDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { multi_buffer: self.frags, ..CAPABILITIES }
    }

    fn rx_queues(&self) -> u32 {
        self.queues.len() as u32
    }

    fn open_queue(&mut self, queue: u32, _: &mut Pool) -> Result<Box<dyn Port>, PortError> {
        match self.take(queue) {
            Some(port) => Ok(Box::new(port)),
            None => {
                let why = format!("queue {queue} of {} is open, or was: it cannot be opened again", self.queues.len());
                Err(PortError::new(&*self.name, PortErrorKind::Input, why))
            }
        }
    }
}

const CAPABILITIES: Capabilities =
    Capabilities { tx: Support::Full, redirect_to: Support::Full, multi_buffer_tx: true, ..Capabilities::copying() };

/// One queue of a TAP device.
pub struct TapPort {
    name: String,
    ifindex: u32,
    queue: Queue,
    number: u32,
    stats: PortStats,
    gso: u64,
    runt: u64,
    packet_id: u64,
}

impl TapPort {
    /// Opens the interface and gives its first queue.
    ///
    /// # Errors
    /// As [`TapDevice::open`].
    pub fn open(config: &TapConfig) -> Result<TapPort, OpenError> {
        let mut device = TapDevice::open(config)?;
        device.take(0).ok_or(OpenError::Queues { queues: 0, max: TapConfig::QUEUES_MAX })
    }

    fn failed(&self, errno: rustix::io::Errno) -> PortError {
        let lost = match errno {
            rustix::io::Errno::BADFD | rustix::io::Errno::NODEV => Lost::Removed,
            errno => Lost::Other(errno.raw_os_error()),
        };
        PortError::new(&*self.name, PortErrorKind::Missing, lost)
    }
}

fn open_queue(config: &TapConfig) -> Result<Queue, OpenError> {
    let name = || config.name.clone();
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = open("/dev/net/tun", flags, Mode::empty()).map_err(|errno| match errno {
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => OpenError::Privilege { name: name() },
        errno => OpenError::NoDriver { cause: errno.into() },
    })?;
    sys::set_interface(fd.as_fd(), &config.name, config.queues > 1).map_err(|cause| match cause.raw_os_error() {
        Some(libc::EPERM) => OpenError::Privilege { name: name() },
        Some(libc::EBUSY) => OpenError::Busy { name: name() },
        Some(libc::EINVAL | libc::E2BIG) => OpenError::Mismatch { name: name(), queues: config.queues },
        _ => OpenError::System { what: "making the TAP device", cause },
    })?;
    set_up(fd, config)
}

fn set_up(fd: OwnedFd, config: &TapConfig) -> Result<Queue, OpenError> {
    sys::set_header_len(fd.as_fd(), VnetHeader::LEN as i32).map_err(OpenError::system("virtio-net header"))?;
    sys::set_offload(fd.as_fd(), config.offload.features()).map_err(OpenError::system("offloads"))?;
    Ok(Queue::new(fd, config.frags))
}

impl TapPort {
    /// What every such port can do.
    pub const fn offers() -> Capabilities {
        CAPABILITIES
    }
}

impl Port for TapPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { multi_buffer: self.queue.frags, ..CAPABILITIES }
    }

    fn rx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        let budget = budget.min(burst.room());
        for _ in 0..budget {
            let Ok(mut frame) = pool.alloc() else {
                self.stats.no_frame += 1;
                break;
            };
            let received = self.queue.receive(&mut frame, pool);
            if let Received::Packet = received {
                self.packet_id += 1;
                frame.set_ingress(self.ifindex, self.number);
                frame.set_packet_id(self.packet_id);
                self.stats.rx += 1;
                self.stats.rx_bytes += frame.total_len() as u64;
                if let Err(frame) = burst.push(frame) {
                    pool.release(frame);
                }
                continue;
            }
            pool.release(frame);
            match received {
                Received::Packet => {}
                Received::Nothing => return Ok(Rx::Idle),
                Received::Lost(Loss::Oversize) => self.stats.oversize += 1,
                Received::Lost(Loss::NoFrame) => self.stats.no_frame += 1,
                Received::Lost(Loss::Gso) => self.gso += 1,
                Received::Lost(Loss::Runt) => self.runt += 1,
                Received::Failed(errno) => return Err(self.failed(errno)),
            }
        }
        Ok(Rx::More)
    }

    fn tx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let mut result = Sent::default();
        for frame in burst.drain() {
            match self.queue.send(&frame) {
                Ok(()) => {
                    self.stats.tx += 1;
                    self.stats.tx_bytes += frame.total_len() as u64;
                    result.sent += 1;
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => result.full += 1,
                // EIO says that the interface is down.
                Err(errno) => {
                    result.failed += 1;
                    result.errno = Some(match errno {
                        rustix::io::Errno::IO => Errno::ENETDOWN,
                        errno => Errno(errno.raw_os_error()),
                    });
                }
            }
            pool.release(frame);
        }
        result
    }

    fn pass(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let count = burst.len();
        pool.release_burst(burst);
        Sent::none(count, Errno::EOPNOTSUPP)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.fd.as_fd())
    }

    fn stats(&mut self) -> PortStats {
        let mut stats = self.stats.clone();
        stats.other = vec![("gso", self.gso), ("runt", self.runt)];
        stats.other.retain(|&(_, count)| count > 0);
        stats
    }
}
