//! What has no safe wrapper: busy polling, and ethtool's requests.
#![allow(unsafe_code)] // setsockopt and ioctl take addresses

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Lets the driver's work be done in our system calls, at most `budget` packets in each.
pub(crate) fn prefer_busy_poll(fd: BorrowedFd<'_>, budget: u16) -> io::Result<()> {
    const SO_PREFER_BUSY_POLL: i32 = 69;
    const SO_BUSY_POLL_BUDGET: i32 = 70;
    /// Microseconds that a call may look for packets.
    const BUSY_POLL_US: i32 = 20;
    for (option, value) in
        [(SO_PREFER_BUSY_POLL, 1), (libc::SO_BUSY_POLL, BUSY_POLL_US), (SO_BUSY_POLL_BUDGET, i32::from(budget))]
    {
        // SAFETY: the kernel reads one int from the address, which outlives the call.
        let result = unsafe {
            let value = (&raw const value).cast();
            libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, value, size_of::<i32>() as u32)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Receive queues that an interface has now (`ETHTOOL_GCHANNELS`); `None` where its driver cannot say.
pub(crate) fn channels(socket: BorrowedFd<'_>, name: &str) -> Option<u32> {
    /// `struct ethtool_channels`: the command, then maxima and present numbers of rx, tx, other and combined queues.
    type Channels = [u32; 9];
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    const RX: usize = 5;
    const COMBINED: usize = 8;
    let mut channels: Channels = [0; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    let result = ethtool(socket, name, &mut channels);
    let count = channels[RX] + channels[COMBINED];
    (result.is_ok() && count > 0).then_some(count)
}

/// One of ethtool's requests: `words` begins with the command and is the structure that the command asks for; the kernel reads and writes
/// no more of it than that, which the caller vouches for by its length.
pub(crate) fn ethtool<const N: usize>(socket: BorrowedFd<'_>, name: &str, words: &mut [u32; N]) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::NotFound.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the request reads the name, and reads and writes the structure behind the address in it, whose length belongs to
    // the command; both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
