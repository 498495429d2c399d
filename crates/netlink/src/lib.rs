//! Netlink's framing: a socket, a request with its answers, messages, attributes, and the words of the kernel when it
//! refuses.
//!
//! What the messages mean is their users' business. Answers come from the kernel, but every length in them is checked: what
//! does not parse is passed over. Layouts: `linux/netlink.h`, `linux/genetlink.h`.
//!
//! ```no_run
//! use xway_netlink::{F_DUMP, Protocol, Socket, attributes};
//! const RTM_GETLINK: u16 = 18;
//! let mut socket = Socket::open(Protocol::Route, 0)?;
//! socket.request(RTM_GETLINK, F_DUMP, &[0; 16], |link| {
//!     println!("{} attributes", attributes(&link[16..]).count());
//! })?;
//! # Ok::<(), xway_netlink::NetlinkError>(())
//! ```
#![allow(unsafe_code)] // One socket option that rustix does not have.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with};
use xway_abi::Errno;

const F_REQUEST: u16 = 1;
const F_ACK: u16 = 4;
/// The request asks for a whole table (`NLM_F_DUMP`).
pub const F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// In an error message: attributes follow the header (`NLM_F_ACK_TLVS`), the request is not repeated (`NLM_F_CAPPED`).
const F_ACK_TLVS: u16 = 0x200;
const F_CAPPED: u16 = 0x100;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLA_TYPE_MASK: u16 = 0x3fff;
/// The attribute holds attributes.
pub const NLA_F_NESTED: u16 = 0x8000;
const HEADER: usize = 16;

/// A request that the kernel refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{errno} ({}){}", errno.text(), if said.is_empty() { String::new() } else { format!(": {said}") })]
pub struct NetlinkError {
    /// Its number.
    pub errno: Errno,
    /// The kernel's or the driver's own explanation, empty when there is none.
    pub said: String,
}

/// Which part of the kernel is talked to.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    /// Links, addresses, routes (`NETLINK_ROUTE`).
    Route,
    /// Families with names (`NETLINK_GENERIC`).
    Generic,
}

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket that hears these groups of announcements (bit n - 1 for group n), 0 for none. Answers are waited for
    /// five seconds at most.
    pub fn open(protocol: Protocol, groups: u32) -> Result<Socket, NetlinkError> {
        let opened = || -> rustix::io::Result<OwnedFd> {
            let flags = SocketFlags::CLOEXEC;
            let protocol = match protocol {
                Protocol::Route => None, // 0 is NETLINK_ROUTE.
                Protocol::Generic => Some(netlink::GENERIC),
            };
            let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
            bind(&fd, &SocketAddrNetlink::new(0, groups))?;
            let timeout = Some(Duration::from_secs(5));
            rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Recv, timeout)?;
            Ok(fd)
        };
        let fd = opened().map_err(refused)?;
        let on: libc::c_int = 1;
        // SAFETY: the option takes an int, whose address and length are given; without the option (old kernels) only the
        // kernel's words are missing, so the result does not matter.
        unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_EXT_ACK,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            );
        }
        Ok(Socket { fd, sequence: 0, buffer: vec![0; 64 << 10] })
    }

    /// Sends a request and hands every answer's body to `visit`. `flags` is 0 or [`F_DUMP`].
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        mut visit: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = F_REQUEST | if flags & F_DUMP != 0 { flags } else { F_ACK | flags };
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        message.extend_from_slice(&self.sequence.to_ne_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(body);
        sendto(&self.fd, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).map_err(refused)?;
        loop {
            let len = match recv(&self.fd, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(NetlinkError { errno: Errno::EIO, said: String::new() }),
                Ok((len, _)) => len.min(self.buffer.len()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(refused(e)),
            };
            for message in messages(&self.buffer[..len]) {
                // Others are left over from a request that was given up.
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return acknowledged(&message),
                    _ => visit(message.body),
                }
            }
        }
    }

    /// Hands the kind of every announcement that has come to `visit`, without waiting.
    ///
    /// # Errors
    /// Announcements were lost (`ENOBUFS`) or cannot be read: everything may have changed.
    pub fn announcements(&mut self, mut visit: impl FnMut(u16)) -> Result<(), NetlinkError> {
        loop {
            match recv(&self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Ok((len, _)) => messages(&self.buffer[..len.min(self.buffer.len())]).for_each(|m| visit(m.kind)),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(refused(e)),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn refused(error: rustix::io::Errno) -> NetlinkError {
    NetlinkError { errno: Errno(error.raw_os_error()), said: String::new() }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = word(bytes, 0)? as usize;
        if len < HEADER || len > bytes.len() {
            return None;
        }
        let message = Message {
            kind: half(bytes, 4)?,
            flags: half(bytes, 6)?,
            sequence: word(bytes, 8)?,
            body: &bytes[HEADER..len],
        };
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn acknowledged(message: &Message<'_>) -> Result<(), NetlinkError> {
    let code = word(message.body, 0).unwrap_or(0) as i32;
    if code == 0 {
        return Ok(());
    }
    let mut said = String::new();
    if message.flags & F_ACK_TLVS != 0 {
        // Behind the code: the request's header, and the request itself unless it was left out.
        let request = word(message.body, 4).unwrap_or(0) as usize;
        let skip = 4 + if message.flags & F_CAPPED != 0 { HEADER } else { request.next_multiple_of(4).max(HEADER) };
        for (kind, value) in attributes(message.body.get(skip..).unwrap_or_default()) {
            if kind == NLMSGERR_ATTR_MSG {
                let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
                said = String::from_utf8_lossy(&value[..end]).into_owned();
            }
        }
    }
    Err(NetlinkError { errno: Errno(code.wrapping_neg()), said })
}

/// Attributes (`struct nlattr`): type (without its flags) and value.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = half(bytes, 0)? as usize;
        if len < 4 || len > bytes.len() {
            return None;
        }
        let found = (half(bytes, 2)? & NLA_TYPE_MASK, &bytes[4..len]);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(found)
    })
}

/// Appends an attribute, padded to four bytes.
pub fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// A number of two bytes at this place.
pub fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

/// A number of four bytes at this place.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_back_and_cut_ones_are_passed_over() {
        let mut out = Vec::new();
        attribute(&mut out, 1, b"abc");
        attribute(&mut out, 2 | NLA_F_NESTED, &[7; 4]);
        let all: Vec<_> = attributes(&out).collect();
        assert_eq!(all, [(1, &b"abc"[..]), (2, &[7; 4][..])]);
        for cut in 0..out.len() {
            assert!(attributes(&out[..cut]).count() <= 1 + usize::from(cut >= 8));
        }
        assert_eq!(attributes(&[0, 0, 1, 0]).count(), 0, "a length below the header");
    }

    #[test]
    fn whatever_the_bytes_reading_ends() {
        // A small generator: lengths that are plausible, so that messages and attributes really come out.
        let mut state = 7u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let byte = (state >> 33) as u8;
            if byte > 40 { 0 } else { byte }
        };
        let mut found = 0;
        for round in 0..20_000 {
            let bytes: Vec<u8> = (0..round % 120).map(|_| byte()).collect();
            found += messages(&bytes).map(|m| attributes(m.body).count()).sum::<usize>();
            found += attributes(&bytes).count();
        }
        assert!(found > 0);
    }

    #[test]
    fn a_refusal_carries_the_words_of_the_kernel() {
        let mut body = (-22i32).to_ne_bytes().to_vec();
        body.extend_from_slice(&[0; HEADER]);
        attribute(&mut body, NLMSGERR_ATTR_MSG, b"too large MTU\0");
        let message = Message { kind: NLMSG_ERROR, flags: F_ACK_TLVS | F_CAPPED, sequence: 1, body: &body };
        let error = acknowledged(&message).unwrap_err();
        assert_eq!(error.to_string(), "EINVAL (invalid argument): too large MTU");
        let cut = Message { kind: NLMSG_ERROR, flags: F_ACK_TLVS, sequence: 1, body: &body[..6] };
        assert_eq!(acknowledged(&cut).unwrap_err().errno, Errno::EINVAL);
    }
}
