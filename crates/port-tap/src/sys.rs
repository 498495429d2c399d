//! The ioctls of TAP devices, behind functions that are safe to call.
#![allow(unsafe_code)] // ioctls take addresses of structures

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `TUN_F_*`: what the host may leave to us.
pub(crate) const F_CSUM: u32 = 1;
pub(crate) const F_TSO4: u32 = 2;
pub(crate) const F_TSO6: u32 = 4;

/// Makes the descriptor of `/dev/net/tun` a queue of the interface, which is made when there is none.
pub(crate) fn set_interface(fd: BorrowedFd<'_>, name: &str, multi_queue: bool) -> io::Result<()> {
    let mut request = request_for(name)?;
    let queues = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queues) as i16;
    interface_ioctl(fd, libc::TUNSETIFF, &mut request)
}

/// The interface that a descriptor is a queue of, and whether that has several; `EBADFD` where it is none of a TAP device as
/// [`set_interface`] makes them.
pub(crate) fn interface_of(fd: BorrowedFd<'_>) -> io::Result<(String, bool)> {
    let mut request = request_for("")?;
    interface_ioctl(fd, libc::TUNGETIFF, &mut request)?;
    // SAFETY: TUNGETIFF fills this member.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    let ours = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if flags & ours != ours {
        return Err(io::Error::from_raw_os_error(libc::EBADFD));
    }
    let name = request.ifr_name.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect();
    Ok((name, flags & libc::IFF_MULTI_QUEUE != 0))
}

/// Sets the length of the virtio-net header, bytes.
pub(crate) fn set_header_len(fd: BorrowedFd<'_>, len: i32) -> io::Result<()> {
    // SAFETY: the request reads one int from the address, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as libc::Ioctl, &raw const len) })
}

/// Says what the host may leave to us (`TUN_F_*`).
pub(crate) fn set_offload(fd: BorrowedFd<'_>, features: u32) -> io::Result<()> {
    // SAFETY: the argument is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as libc::Ioctl, libc::c_ulong::from(features)) })
}

/// Brings an interface up. The descriptor is any socket.
pub(crate) fn bring_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = request_for(name)?;
    interface_ioctl(socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut request)?;
    // SAFETY: SIOCGIFFLAGS fills this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as i16;
    interface_ioctl(socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut request)
}

fn request_for(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn interface_ioctl(fd: BorrowedFd<'_>, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the requests used here read from and write to this structure only.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), number, &raw mut *request) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
