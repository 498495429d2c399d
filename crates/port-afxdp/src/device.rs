//! The interface with its queues.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use xway_abi::Errno;
use xway_engine::{Capabilities, Device, MemoryModel, Outcome, Port, PortError, Support};
use xway_kernel::{XdpMode, device_by_name, driver_features};
use xway_packet::{Backing, Pool, PoolConfig};

use crate::attach::Redirect;
use crate::config::{AfXdpConfig, Copying};
use crate::error::OpenError;
use crate::gate::{self, Kept, Numbers, Shelf, locked};
use crate::port::AfXdpPort;
use crate::socket::{Memory, Socket};
use crate::sys;

/// What was asked for, what came of it, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effective {
    /// The queue.
    pub queue: u32,
    /// Mode asked for.
    pub requested_mode: XdpMode,
    /// Mode that the redirect program runs in; `None` when the program is somebody else's.
    pub mode: Option<XdpMode>,
    /// Copying asked for.
    pub requested_copying: Copying,
    /// Whether packets reach us without a copy.
    pub zero_copy: bool,
    /// Why the program is not where it was wanted first.
    pub mode_reason: Option<String>,
    /// Why packets are copied, when that was not asked for.
    pub copying_reason: Option<String>,
}

impl Effective {
    /// Where it is not what was asked for, or the second best of it.
    fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        let of = |what, requested, effective, reason: &Option<String>| {
            reason.clone().map(|reason| Outcome { what, requested, effective, reason })
        };
        let mode = self.mode.map_or("program not ours", XdpMode::name);
        let mode = of("mode", self.requested_mode.name(), mode, &self.mode_reason);
        let copying = of("copying", self.requested_copying.name(), Copying::Copy.name(), &self.copying_reason);
        mode.into_iter().chain(copying)
    }
}

impl std::fmt::Display for Effective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let copying = if self.zero_copy { "zero-copy" } else { "copy" };
        let mode = self.mode.map_or("program not ours", XdpMode::name);
        write!(f, "queue {}: {mode} (asked: {}), ", self.queue, self.requested_mode.name())?;
        write!(f, "{copying} (asked: {})", self.requested_copying.name())?;
        let reasons: Vec<&str> =
            [&self.mode_reason, &self.copying_reason].into_iter().flatten().map(|r| &**r).collect();
        if reasons.is_empty() { Ok(()) } else { write!(f, ": {}", reasons.join("; ")) }
    }
}

/// An interface behind AF_XDP sockets; see the crate's documentation.
///
/// The redirect program is attached when the first queue is opened. It is detached when the device and all its ports are
/// dropped; when the process ends in any way the kernel does it.
pub struct AfXdpDevice {
    name: String,
    ifindex: u32,
    config: AfXdpConfig,
    /// First queue and number of queues that are open to us.
    queues: (u32, u32),
    /// All queues of the interface.
    have: u32,
    /// Whether the driver says that it can do zero-copy; `None` when it cannot be asked.
    can_zero_copy: Option<bool>,
    redirect: Shelf,
    /// Memory that is registered: where it starts, and the sockets that have it.
    memories: Vec<(usize, Weak<OwnedFd>)>,
    effective: Vec<Effective>,
}

impl AfXdpDevice {
    /// What such a port can do: where the driver does without copies and where not, opened for packets of several buffers or not.
    pub const fn offers(zero_copy: bool, frags: bool) -> Capabilities {
        Capabilities {
            tx: Support::Full,
            redirect_to: Support::Full,
            multi_buffer: frags,
            multi_buffer_tx: frags,
            zero_copy,
            memory: MemoryModel::Shared,
            ..Capabilities::copying()
        }
    }

    /// Looks at the interface in the network namespace that the calling thread is in. Nothing is changed yet.
    ///
    /// # Errors
    /// [`OpenError`]: no such interface, down, or no such queues.
    pub fn open(config: &AfXdpConfig) -> Result<AfXdpDevice, OpenError> {
        let interface = config.interface.clone();
        if !config.entries.is_power_of_two() || !AfXdpConfig::ENTRIES.contains(&config.entries) {
            return Err(OpenError::Entries { entries: config.entries });
        }
        let device = match device_by_name(&interface) {
            Ok(device) => device,
            Err(error) if error.errno() == Some(Errno::ENODEV) => return Err(OpenError::NoInterface { interface }),
            Err(error) => return Err(error.into()),
        };
        if !device.up && !config.even_down {
            return Err(OpenError::Down { interface });
        }
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(OpenError::system("a socket to ask about interfaces"))?;
        let have = sys::channels(socket.as_fd(), &interface).unwrap_or(device.rx_queues).max(1);
        let (first, count) = config.queues.unwrap_or((0, have));
        if count == 0 || first.checked_add(count).is_none_or(|end| end > have) {
            let queue = first.saturating_add(count).saturating_sub(1).max(first);
            return Err(OpenError::NoQueue { interface, queue, have });
        }
        let features = driver_features(device.ifindex).ok().flatten();
        const XSK_ZEROCOPY: u64 = 1 << 3;
        Ok(AfXdpDevice {
            name: format!("afxdp:{interface}"),
            ifindex: device.ifindex,
            config: config.clone(),
            queues: (first, count),
            have,
            can_zero_copy: features.map(|features| features.xdp & XSK_ZEROCOPY != 0),
            redirect: Shelf::default(),
            memories: Vec::new(),
            effective: Vec::new(),
        })
    }

    /// Goes on with the program that another process has left on the interface ([`Kept::parts`]): what finds no socket is dropped and
    /// counted until the queues are open here and [`Kept::open`] says so.
    ///
    /// # Errors
    /// [`OpenError`]: it is another interface's, for other queues, or in another mode than is asked for.
    pub fn adopt(&mut self, parts: (Vec<OwnedFd>, Numbers)) -> Result<(), OpenError> {
        let redirect = gate::adopt(&self.config, self.ifindex, self.queues, parts)?;
        *locked(&self.redirect) = Some(Arc::new(redirect));
        Ok(())
    }

    /// What another process can go on with; `None` where the program is somebody else's.
    pub fn keep(&self) -> Option<Kept> {
        self.config.map.is_none().then(|| Kept::new(&self.redirect, &self.config, self.queues, self.have))
    }

    /// What came of the queues opened so far.
    pub fn effective(&self) -> &[Effective] {
        &self.effective
    }

    /// Shape of a pool that all queues of `count` can share, with room for full rings and for frames on their way.
    pub fn pool_for(&self, count: u32) -> PoolConfig {
        // FILL and TX full, and as much again under way between ports.
        let frames = self.config.entries.saturating_mul(4).saturating_mul(count.max(1));
        let pool = PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(frames.clamp(256, 1 << 20)) };
        // The kernel fills the buffers of a long packet to their ends.
        PoolConfig { tailroom: if self.config.frags { 0 } else { pool.tailroom }, ..pool }
    }

    /// Opens a queue over the memory of a pool; a pool that another queue uses is shared with it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_port(&mut self, queue: u32, pool: &mut Pool) -> Result<AfXdpPort, OpenError> {
        let interface = &self.config.interface;
        if queue >= self.queues.1 {
            return Err(OpenError::NoQueue { interface: interface.clone(), queue, have: self.queues.1 });
        }
        let number = self.queues.0 + queue;
        let known = locked(&self.redirect).clone();
        let redirect = match known {
            Some(redirect) => redirect,
            None => {
                let redirect = Arc::new(match &self.config.map {
                    Some(path) => Redirect::pinned(path)?,
                    None => Redirect::attach(&self.config, self.ifindex, self.have)?,
                });
                *locked(&self.redirect) = Some(redirect.clone());
                redirect
            }
        };
        let shape = *pool.config();
        if shape.backing != Backing::Memfd {
            return Err(OpenError::Memory {
                why: "its chunks do not lie as the kernel wants them (use Backing::Memfd)",
            });
        }
        let (start, _) = pool.memory_range();
        let start = start.as_ptr().expose_provenance();
        self.memories.retain(|(_, socket)| socket.strong_count() > 0);
        let known = self.memories.iter().find(|(at, _)| *at == start).and_then(|(_, socket)| socket.upgrade());
        let len = u64::from(shape.frames) * u64::from(shape.chunk_size);
        let memory = match &known {
            Some(first) => Memory::Of(first.as_fd()),
            None => Memory::New(start as u64, len, shape.chunk_size),
        };
        let socket = Socket::open(&self.config, self.ifindex, number, &memory)?;
        self.memories.push((start, socket.share()));
        self.effective.push(Effective {
            queue: number,
            requested_mode: self.config.mode,
            mode: redirect.mode,
            requested_copying: self.config.copying,
            zero_copy: socket.zero_copy,
            mode_reason: redirect.reason.clone(),
            copying_reason: self.copying_reason(&redirect, socket.zero_copy),
        });
        let capabilities = self.can(socket.zero_copy);
        let at = (queue, number);
        let mut port = AfXdpPort::new(&self.name, self.ifindex, at, socket, redirect.clone(), shape, capabilities);
        // Before packets come: one that found no frame to lie in would be lost.
        port.refill(pool);
        match port.fd().map_or(Ok(()), |fd| redirect.add(number, fd)) {
            Ok(()) => Ok(port),
            Err(error) => {
                self.effective.pop();
                port.close(pool);
                Err(error)
            }
        }
    }

    /// What a queue can do.
    const fn can(&self, zero_copy: bool) -> Capabilities {
        AfXdpDevice::offers(zero_copy, self.config.frags)
    }

    /// Why packets are copied.
    fn copying_reason(&self, redirect: &Redirect, zero_copy: bool) -> Option<String> {
        if zero_copy || self.config.copying == Copying::Copy {
            return None;
        }
        let why = match (redirect.mode, self.can_zero_copy) {
            (Some(XdpMode::Generic), _) => "generic mode always copies",
            (_, Some(false)) => "the driver does not offer xsk-zerocopy",
            _ => "the kernel chose to copy",
        };
        Some(why.to_owned())
    }
}

impl Device for AfXdpDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        self.can(self.can_zero_copy.unwrap_or(false) && self.config.copying != Copying::Copy)
    }

    /// Of the queues that were opened; what is the same for all of them is told once. And whether somebody took the program away, which
    /// the kernel is asked for each time.
    fn outcomes(&self) -> Vec<Outcome> {
        let mut all: Vec<Outcome> = Vec::new();
        for outcome in self.effective.iter().flat_map(Effective::outcomes) {
            if !all.contains(&outcome) {
                all.push(outcome);
            }
        }
        let redirect = locked(&self.redirect).clone();
        let gone = redirect.and_then(|redirect| redirect.gone(&self.config.interface));
        all.extend(gone.map(|why| Outcome::lost(Outcome::DETACHED, why)));
        all
    }

    fn rx_queues(&self) -> u32 {
        self.queues.1
    }

    fn pool(&self, _: u32) -> PoolConfig {
        self.pool_for(1)
    }

    fn numa_node(&self) -> Option<u32> {
        xway_numa::of_interface(&self.config.interface)
    }

    fn open_queue(&mut self, queue: u32, pool: &mut Pool) -> Result<Box<dyn Port>, PortError> {
        match self.open_port(queue, pool) {
            Ok(port) => Ok(Box::new(port)),
            Err(error) => Err(error.into_port_error(&self.name)),
        }
    }
}
