//! An AF_XDP socket and nothing around it: the least that an application in copy mode can do for each packet.
//!
//! What comes is described in RX; its chunk goes to FILL again, or to TX with its addresses exchanged and from COMPLETION to FILL. The
//! kernel is called where it says that it wants to be, and in copy mode for whatever is to be sent.
#![allow(unsafe_code)] // packets in a mapping that the kernel writes

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt,
};
use xway_abi::xsk;
use xway_packet::SharedMemory;
use xway_packet::ring::spsc::{Consumer, Producer};
use xway_packet::ring::{Plain, RingMemory, RingOffsets, XdpDesc};

const ENTRIES: u32 = 2048;
const CHUNK: u64 = 2048;
/// As many packets at a time as an engine's burst.
const BATCH: usize = 64;
/// Where the two addresses of an Ethernet header are.
const ADDRESSES: usize = 12;

pub(super) struct Direct {
    fd: OwnedFd,
    rx: Consumer<XdpDesc>,
    tx: Producer<XdpDesc>,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    memory: SharedMemory,
    /// Packets in TX, or sent and not back yet.
    sending: u32,
}

impl Direct {
    /// A socket on a queue, in copy mode, with as many chunks as FILL and TX hold together.
    pub(super) fn open(ifindex: u32, queue: u32) -> io::Result<Direct> {
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let len = 2 * u64::from(ENTRIES) * CHUNK;
        let memory = SharedMemory::private(len as usize)?;
        let addr = memory.start().as_ptr().expose_provenance() as u64;
        let flags = XdpUmemRegFlags::empty();
        let register = XdpUmemReg { addr, len, chunk_size: CHUNK as u32, headroom: 0, flags, tx_metadata_len: 0 };
        sockopt::set_xdp_umem_reg(&fd, register)?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, ENTRIES)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, ENTRIES)?;
        sockopt::set_xdp_rx_ring_size(&fd, ENTRIES)?;
        sockopt::set_xdp_tx_ring_size(&fd, ENTRIES)?;
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        let wrong = |error: xway_packet::ring::RingError| io::Error::other(error);
        let rx = Consumer::attach(ring(&fd, xsk::pgoff::RX_RING, &offsets.rx)?).map_err(wrong)?;
        let tx = Producer::attach(ring(&fd, xsk::pgoff::TX_RING, &offsets.tx)?).map_err(wrong)?;
        let mut fill = Producer::attach(ring(&fd, xsk::pgoff::FILL_RING, &offsets.fr)?).map_err(wrong)?;
        let completion = Consumer::attach(ring(&fd, xsk::pgoff::COMPLETION_RING, &offsets.cr)?).map_err(wrong)?;
        let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(&fd, &SocketAddrXdp::new(flags, ifindex, queue))?;
        let mut number = 0;
        fill.push_some(ENTRIES as usize, || {
            number += 1;
            Some((number - 1) * CHUNK)
        });
        Ok(Direct { fd, rx, tx, fill, completion, memory, sending: 0 })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Gives back what has come, and says how much that was.
    pub(super) fn drop_all(&mut self) -> u64 {
        let mut came = [XdpDesc::default(); BATCH];
        let count = self.rx.pop_slice(&mut came);
        let mut each = came[..count].iter();
        // As many chunks are away as FILL has entries, so there is room.
        self.fill.push_some(count, || each.next().map(|desc| desc.addr / CHUNK * CHUNK));
        self.call_rx();
        count as u64
    }

    /// Sends back what has come, and says how much that was.
    pub(super) fn forward(&mut self) -> u64 {
        if self.sending > 0 {
            let mut chunks = [0; BATCH];
            let back = self.completion.pop_slice(&mut chunks);
            let mut each = chunks[..back].iter();
            self.fill.push_some(back, || each.next().map(|addr| addr / CHUNK * CHUNK));
            self.sending -= back as u32;
        }
        let mut came = [XdpDesc::default(); BATCH];
        // COMPLETION must have room for all that is sent.
        let room = self.tx.room(BATCH as u32).min(ENTRIES - self.sending).min(BATCH as u32) as usize;
        let count = self.rx.pop_slice(&mut came[..room]);
        for desc in &came[..count] {
            self.swap(desc);
        }
        self.tx.push_slice(&came[..count]);
        self.sending += count as u32;
        if self.sending > 0 {
            // Some are sent in each call; what is left is sent in the next one.
            let _ = send(&self.fd, &[], SendFlags::DONTWAIT);
        }
        self.call_rx();
        count as u64
    }

    fn call_rx(&self) {
        if self.fill.flags() & xsk::RING_NEED_WAKEUP != 0 {
            let _ = recv(&self.fd, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }

    /// Exchanges the addresses of a packet.
    fn swap(&self, desc: &XdpDesc) {
        let at = desc.addr as usize;
        if desc.len as usize >= ADDRESSES && at.checked_add(ADDRESSES).is_some_and(|end| end <= self.memory.len()) {
            // SAFETY: the bytes lie inside the mapping, by the check above. The kernel has handed the chunk over with this entry of RX and
            // gets it back with one of TX: until then it is ours, and nobody else in this process knows the mapping.
            let addresses = unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr().add(at), ADDRESSES) };
            let (to, from) = addresses.split_at_mut(ADDRESSES / 2);
            to.swap_with_slice(from);
        }
    }
}

fn ring<T: Plain>(fd: &OwnedFd, page: u64, at: &XdpRingOffset) -> io::Result<RingMemory<T>> {
    let flags = at.flags.ok_or_else(|| io::Error::other("rings without flags, before Linux 5.4"))?;
    let [producer, consumer, flags, desc] = [at.producer, at.consumer, flags, at.desc].map(|offset| offset as usize);
    let offsets = RingOffsets { producer, consumer, flags, desc };
    let memory = SharedMemory::map(fd.as_fd(), page, offsets.size::<T>(ENTRIES))?;
    RingMemory::over(Arc::new(memory), 0, offsets, ENTRIES).map_err(io::Error::other)
}
