//! One AF_XDP socket: four rings over memory that it was told.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpOptionsFlags, XdpRingOffset, XdpStatistics,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt,
};
use xway_abi::xsk;
use xway_packet::SharedMemory;
use xway_packet::ring::spsc::{Consumer, Producer};
use xway_packet::ring::{Plain, RingMemory, RingOffsets, XdpDesc};

use crate::config::{AfXdpConfig, Copying};
use crate::error::OpenError;
use crate::sys;

/// Memory that is registered with the kernel, or that another socket has registered.
pub(crate) enum Memory<'a> {
    /// Start, length, bytes of a chunk.
    New(u64, u64, u32),
    /// As this socket has it.
    Of(BorrowedFd<'a>),
}

/// One socket.
pub(crate) struct Socket {
    fd: Arc<OwnedFd>,
    pub(crate) rx: Consumer<XdpDesc>,
    pub(crate) tx: Producer<XdpDesc>,
    pub(crate) fill: Producer<u64>,
    pub(crate) completion: Consumer<u64>,
    pub(crate) zero_copy: bool,
}

impl Socket {
    /// Opens a socket and binds it to a queue.
    pub(crate) fn open(
        config: &AfXdpConfig,
        ifindex: u32,
        queue: u32,
        memory: &Memory<'_>,
    ) -> Result<Socket, OpenError> {
        let failed = OpenError::system::<Errno>;
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(failed("an AF_XDP socket"))?;
        if let Memory::New(addr, len, chunk_size) = *memory {
            let flags = XdpUmemRegFlags::empty();
            let register = XdpUmemReg { addr, len, chunk_size, headroom: 0, flags, tx_metadata_len: 0 };
            sockopt::set_xdp_umem_reg(&fd, register).map_err(failed("registering packet memory"))?;
        }
        let entries = config.entries;
        sockopt::set_xdp_umem_fill_ring_size(&fd, entries).map_err(failed("FILL ring"))?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, entries).map_err(failed("COMPLETION ring"))?;
        sockopt::set_xdp_rx_ring_size(&fd, entries).map_err(failed("RX ring"))?;
        sockopt::set_xdp_tx_ring_size(&fd, entries).map_err(failed("TX ring"))?;
        let offsets = sockopt::xdp_mmap_offsets(&fd).map_err(failed("offsets of the rings"))?;
        let rx = Consumer::attach(ring(&fd, xsk::pgoff::RX_RING, &offsets.rx, entries)?);
        let tx = Producer::attach(ring(&fd, xsk::pgoff::TX_RING, &offsets.tx, entries)?);
        let fill = Producer::attach(ring(&fd, xsk::pgoff::FILL_RING, &offsets.fr, entries)?);
        let completion = Consumer::attach(ring(&fd, xsk::pgoff::COMPLETION_RING, &offsets.cr, entries)?);
        let (Ok(rx), Ok(tx), Ok(fill), Ok(completion)) = (rx, tx, fill, completion) else {
            return Err(OpenError::Memory { why: "a new socket's rings are not empty" });
        };
        if let Some(budget) = config.busy_poll {
            sys::prefer_busy_poll(fd.as_fd(), budget).map_err(OpenError::system("busy polling"))?;
        }
        // The kernel lets go of a closed socket's queue a moment after the close.
        let mut bound = bind_to(&fd, config, ifindex, queue, memory);
        for _ in 0..REBIND_TRIES {
            if !matches!(bound, Err(OpenError::QueueTaken { .. })) {
                break;
            }
            std::thread::sleep(REBIND_WAIT);
            bound = bind_to(&fd, config, ifindex, queue, memory);
        }
        bound?;
        let options = sockopt::xdp_options(&fd).unwrap_or(XdpOptionsFlags::empty());
        let zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        Ok(Socket { fd: Arc::new(fd), rx, tx, fill, completion, zero_copy })
    }

    /// For others to share its memory, as long as it is open.
    pub(crate) fn share(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.fd)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Counters of the kernel.
    pub(crate) fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.fd).ok()
    }

    /// The socket's pending error, which is forgotten by asking.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        sockopt::socket_error(&self.fd).ok()?.err()
    }

    /// Asks the kernel to receive.
    pub(crate) fn call_rx(&self) {
        // Nothing is read by this, whatever it says.
        let _ = recv(&self.fd, &mut [0u8; 0], RecvFlags::DONTWAIT);
    }

    /// Asks the kernel to send what is in the TX ring. It sends some and says `EAGAIN` when there is more.
    pub(crate) fn call_tx(&mut self) -> Result<(), Errno> {
        loop {
            let before = self.tx.pending();
            match send(&self.fd, &[], SendFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR) if self.tx.pending() < before => {}
                // No progress: the device's queue is full. What waits is sent with the next call.
                Err(Errno::AGAIN | Errno::INTR | Errno::BUSY | Errno::NOBUFS) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// How often, and how long apart, a queue is asked for that somebody has.
const REBIND_TRIES: u32 = 50;
const REBIND_WAIT: Duration = Duration::from_millis(10);

fn bind_to(fd: &OwnedFd, config: &AfXdpConfig, ifindex: u32, queue: u32, memory: &Memory<'_>) -> Result<(), OpenError> {
    let mut flags = SocketAddrXdpFlags::empty();
    let bound = match memory {
        Memory::New(..) => {
            flags.set(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, config.need_wakeup);
            flags.set(SocketAddrXdpFlags::XDP_USE_SG, config.frags);
            flags.set(SocketAddrXdpFlags::XDP_COPY, config.copying == Copying::Copy);
            flags.set(SocketAddrXdpFlags::XDP_ZEROCOPY, config.copying == Copying::ZeroCopy);
            bind(fd, &SocketAddrXdp::new(flags, ifindex, queue))
        }
        // The other flags are those of the first socket.
        Memory::Of(first) => {
            flags = SocketAddrXdpFlags::XDP_SHARED_UMEM;
            let addr = SocketAddrXdp::new(flags, ifindex, queue);
            bind(fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: *first })
        }
    };
    let interface = config.interface.clone();
    bound.map_err(|errno| match errno {
        Errno::BUSY => OpenError::QueueTaken { interface, queue },
        Errno::OPNOTSUPP if config.copying == Copying::ZeroCopy => {
            OpenError::NoZeroCopy { interface, queue, why: "the driver cannot do it".into() }
        }
        Errno::INVAL | Errno::OPNOTSUPP if config.frags => OpenError::NoFrags { interface },
        Errno::NETDOWN => OpenError::Down { interface },
        errno => OpenError::system("binding the socket to its queue")(errno),
    })
}

fn ring<T: Plain>(fd: &OwnedFd, page: u64, at: &XdpRingOffset, entries: u32) -> Result<RingMemory<T>, OpenError> {
    let flags = at.flags.ok_or(OpenError::Memory { why: "this kernel's rings have no flags; Linux 5.4 has them" })?;
    let [producer, consumer, flags, desc] = [at.producer, at.consumer, flags, at.desc].map(|offset| offset as usize);
    let offsets = RingOffsets { producer, consumer, flags, desc };
    let memory = SharedMemory::map(fd.as_fd(), page, offsets.size::<T>(entries));
    let memory = memory.map_err(OpenError::system("mapping a ring"))?;
    RingMemory::over(Arc::new(memory), 0, offsets, entries).map_err(|_| OpenError::Entries { entries })
}
