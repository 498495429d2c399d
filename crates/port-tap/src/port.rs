//! The port.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::fs::{Mode, OFlags, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use xway_abi::Errno;
use xway_engine::{Capabilities, Port, PortError, PortErrorKind, PortStats, Rx, Sent, Support};
use xway_packet::offload::VnetHeader;
use xway_packet::{Burst, Pool};

use crate::error::{Lost, OpenError};
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
}

impl TapConfig {
    /// `MAX_TAP_QUEUES` of the kernel.
    pub const QUEUES_MAX: u32 = 256;

    /// One queue, checksums done here.
    pub fn new(name: impl Into<String>) -> TapConfig {
        TapConfig { name: name.into(), queues: 1, offload: Offload::default() }
    }
}

/// A TAP device; see the crate's documentation for what the verdicts mean on it.
pub struct TapPort {
    name: String,
    ifindex: u32,
    queues: Vec<Queue>,
    /// Readable when a queue is, for devices with several.
    any: Option<OwnedFd>,
    stats: PortStats,
    gso: u64,
    runt: u64,
    packet_id: u64,
}

impl TapPort {
    /// Opens the interface in the network namespace that the calling thread is in, or makes it.
    ///
    /// # Errors
    /// [`OpenError`]: the process may not, the name is taken by something else, or the system has no TAP driver.
    pub fn open(config: &TapConfig) -> Result<TapPort, OpenError> {
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
        let queues = (0..config.queues).map(|_| open_queue(config)).collect::<Result<Vec<_>, _>>()?;
        let ifindex = netdevice::name_to_index(&socket, name)
            .map_err(|e| OpenError::system("asking for the interface's index")(e.into()))?;
        if !existed {
            sys::bring_up(socket.as_fd(), name).map_err(OpenError::system("bringing the interface up"))?;
        }
        let any = match &queues[..] {
            [_] => None,
            queues => Some(watch(queues).map_err(|e| OpenError::system("watching the queues")(e.into()))?),
        };
        Ok(TapPort {
            name: format!("tap:{name}"),
            ifindex,
            queues,
            any,
            stats: PortStats::default(),
            gso: 0,
            runt: 0,
            packet_id: 0,
        })
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
    sys::set_header_len(fd.as_fd(), VnetHeader::LEN as i32).map_err(OpenError::system("virtio-net header"))?;
    sys::set_offload(fd.as_fd(), config.offload.features()).map_err(OpenError::system("offloads"))?;
    Ok(Queue::new(fd))
}

fn watch(queues: &[Queue]) -> rustix::io::Result<OwnedFd> {
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, queue) in (0..).zip(queues) {
        epoll::add(&any, &queue.fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
    }
    Ok(any)
}

impl Port for TapPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn queues(&self) -> u32 {
        self.queues.len() as u32
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { tx: Support::Full, redirect_to: Support::Full, ..Capabilities::copying() }
    }

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        let budget = budget.min(burst.room());
        for _ in 0..budget {
            let Ok(mut frame) = pool.alloc() else {
                self.stats.no_frame += 1;
                break;
            };
            let Some(from) = self.queues.get_mut(queue as usize) else {
                pool.release(frame);
                return Ok(Rx::Idle);
            };
            let received = from.receive(&mut frame);
            if let Received::Packet = received {
                self.packet_id += 1;
                frame.set_ingress(self.ifindex, queue);
                frame.set_packet_id(self.packet_id);
                self.stats.rx += 1;
                self.stats.rx_bytes += frame.len() as u64;
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
                Received::Lost(Loss::Gso) => self.gso += 1,
                Received::Lost(Loss::Runt) => self.runt += 1,
                Received::Failed(errno) => return Err(self.failed(errno)),
            }
        }
        Ok(Rx::More)
    }

    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let mut result = Sent::default();
        // Frames of other ports come with their queue's number, which this one may not have.
        let to = &self.queues[queue as usize % self.queues.len()];
        for frame in burst.drain() {
            match to.send(frame.packet()) {
                Ok(()) => {
                    self.stats.tx += 1;
                    self.stats.tx_bytes += frame.len() as u64;
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
        match &self.any {
            Some(any) => Some(any.as_fd()),
            None => self.queues.first().map(|queue| queue.fd.as_fd()),
        }
    }

    fn stats(&mut self) -> PortStats {
        let mut stats = self.stats.clone();
        stats.other = vec![("gso", self.gso), ("runt", self.runt)];
        stats.other.retain(|&(_, count)| count > 0);
        stats
    }
}
