//! System calls of packet sockets that have no safe wrapper, behind functions that have.
#![allow(unsafe_code)] // setsockopt, getsockopt, bind, ioctl and sendmmsg take addresses of structures

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A packet socket that receives nothing until it is bound to a protocol.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is passed.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds to an interface; with a protocol of 0 the socket only sends.
pub(crate) fn bind(fd: BorrowedFd<'_>, ifindex: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex as i32;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a sockaddr_ll of the stated length and outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Interface and protocol that a packet socket is bound to; `EAFNOSUPPORT` where it is none.
pub(crate) fn bound(fd: BorrowedFd<'_>) -> io::Result<(u32, u16)> {
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of an address into the structure, which outlives the call.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &mut len) })?;
    if c_int::from(address.sll_family) != libc::AF_PACKET {
        return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    }
    Ok((address.sll_ifindex as u32, u16::from_be(address.sll_protocol)))
}

/// An option of the packet level that is a number.
pub(crate) fn number(fd: BorrowedFd<'_>, option: c_int) -> io::Result<c_int> {
    let mut number: c_int = 0;
    get_option(fd, libc::SOL_PACKET, option, &mut number)?;
    Ok(number)
}

/// Sets an option of the packet level that is a number.
pub(crate) fn set_number(fd: BorrowedFd<'_>, option: c_int, value: c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, option, &value)
}

/// Sets the send buffer; beyond the system's limit when the process may.
pub(crate) fn set_send_buffer(fd: BorrowedFd<'_>, bytes: c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
        .or_else(|_| set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
}

/// Asks for a receive ring of slots (`TPACKET_V2`).
pub(crate) fn set_slots(fd: BorrowedFd<'_>, request: &libc::tpacket_req) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, request)
}

/// Asks for a receive ring of blocks (`TPACKET_V3`).
pub(crate) fn set_blocks(fd: BorrowedFd<'_>, request: &libc::tpacket_req3) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, request)
}

/// Until [`open_gate`] lets in so many bytes of each packet; with 0 no packet at all.
pub(crate) fn close_gate(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    // Classic BPF: return how many bytes of a packet are kept.
    let mut none = libc::sock_filter { code: libc::BPF_RET as u16, jt: 0, jf: 0, k: bytes };
    let program = libc::sock_fprog { len: 1, filter: &raw mut none };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Lets packets in.
pub(crate) fn open_gate(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)
}

/// Makes a socket that is bound a member of a fanout group; `id`: of one that is there, `None` for a new one. Says the group's id.
pub(crate) fn join_fanout(fd: BorrowedFd<'_>, how: u32, id: Option<u16>) -> io::Result<u16> {
    let unique = if id.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
    let type_flags = how | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING | unique;
    set_number(fd, libc::PACKET_FANOUT, (type_flags << 16 | u32::from(id.unwrap_or(0))) as c_int)?;
    if let Some(id) = id {
        return Ok(id);
    }
    let mut made: c_int = 0;
    get_option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &mut made)?;
    Ok(made as u16)
}

/// Lets the interface receive what is addressed to others, as long as the socket lives.
pub(crate) fn set_promiscuous(fd: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: ifindex as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Packets put into the ring and packets dropped because it was full, since the last call.
pub(crate) fn statistics(fd: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    get_option(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats)?;
    // The first number has the second in it.
    Ok((stats.tp_packets.wrapping_sub(stats.tp_drops), stats.tp_drops))
}

/// The socket's pending error, which is forgotten by asking; 0 for none.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> io::Result<i32> {
    let mut error: c_int = 0;
    get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error)?;
    Ok(error)
}

/// Index of an interface, `None` when there is none of this name.
pub(crate) fn interface_index(fd: BorrowedFd<'_>, name: &str) -> io::Result<Option<u32>> {
    let Some(mut request) = request_for(name) else { return Ok(None) };
    match interface_ioctl(fd, libc::SIOCGIFINDEX as _, &mut request) {
        // SAFETY: SIOCGIFINDEX fills this member.
        Ok(()) => Ok(Some(unsafe { request.ifr_ifru.ifru_ifindex } as u32)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an interface is administratively up.
pub(crate) fn interface_up(fd: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let mut request = request_for(name).ok_or(io::ErrorKind::InvalidInput)?;
    interface_ioctl(fd, libc::SIOCGIFFLAGS as _, &mut request)?;
    // SAFETY: SIOCGIFFLAGS fills this member.
    let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(flags & libc::IFF_UP != 0)
}

/// Hardware type of an interface (`ARPHRD_*`).
pub(crate) fn interface_hardware(fd: BorrowedFd<'_>, name: &str) -> io::Result<u16> {
    let mut request = request_for(name).ok_or(io::ErrorKind::InvalidInput)?;
    interface_ioctl(fd, libc::SIOCGIFHWADDR as _, &mut request)?;
    // SAFETY: SIOCGIFHWADDR fills this member.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

/// Most packets in one call of [`send_many`].
pub(crate) const SEND_MAX: usize = 64;

/// Sends the packets, at most [`SEND_MAX`], in order until one fails, and says how many were sent. The error is that of the
/// first packet; errors of later ones come back with the next call.
pub(crate) fn send_many<'a>(fd: BorrowedFd<'_>, packets: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
    // SAFETY: all-zero bytes are valid iovec and mmsghdr values: null addresses with zero lengths.
    let (mut parts, mut headers): ([libc::iovec; SEND_MAX], [libc::mmsghdr; SEND_MAX]) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut count = 0;
    for ((packet, part), header) in packets.zip(&mut parts).zip(&mut headers) {
        // The kernel only reads what an outgoing message points to.
        *part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast::<c_void>(), iov_len: packet.len() };
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    // SAFETY: the first `count` headers point to parts that point to packets, all of which outlive the call; without an
    // address or control data the other members are null with length zero.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
    check(sent).map(|sent| sent as usize)
}

fn request_for(name: &str) -> Option<libc::ifreq> {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= request.ifr_name.len() || bytes.contains(&0) {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Some(request)
}

fn interface_ioctl(fd: BorrowedFd<'_>, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the interface requests used here read the name from and write their answer into this structure.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), number, request) }).map(drop)
}

fn set_option<T>(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads at most `len` bytes from `value`, which outlives the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const *value).cast(), len) }).map(drop)
}

fn get_option<T>(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`; the types used here are made of plain numbers.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut *value).cast(), &mut len) }).map(drop)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
