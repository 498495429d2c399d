//! Netlink, as far as XDP needs it: a request, its answers, and the words of the kernel when it refuses.
//!
//! Answers come from the kernel, but every length in them is checked: what does not parse is passed over.
//! Layouts: `linux/netlink.h`, `linux/genetlink.h`.
#![allow(unsafe_code)] // One socket option that rustix does not have.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with};
use xway_abi::Errno;

use crate::KernelError;

const F_REQUEST: u16 = 1;
const F_ACK: u16 = 4;
pub(crate) const F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// In an error message: attributes follow the header (`NLM_F_ACK_TLVS`), the request is not repeated (`NLM_F_CAPPED`).
const F_ACK_TLVS: u16 = 0x200;
const F_CAPPED: u16 = 0x100;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLA_TYPE_MASK: u16 = 0x3fff;
pub(crate) const NLA_F_NESTED: u16 = 0x8000;
const HEADER: usize = 16;

/// Which part of the kernel is talked to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    /// Links, addresses, routes (`NETLINK_ROUTE`).
    Route,
    /// Families with names (`NETLINK_GENERIC`).
    Generic,
}

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    pub(crate) fn open(protocol: Protocol) -> Result<Socket, KernelError> {
        let opened = || -> rustix::io::Result<OwnedFd> {
            let flags = SocketFlags::CLOEXEC;
            let protocol = match protocol {
                Protocol::Route => None, // 0 is NETLINK_ROUTE.
                Protocol::Generic => Some(netlink::GENERIC),
            };
            let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
            bind(&fd, &SocketAddrNetlink::new(0, 0))?;
            let timeout = Some(Duration::from_secs(5));
            rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Recv, timeout)?;
            Ok(fd)
        };
        let fd = opened().map_err(|e| call("opening a netlink socket", Errno(e.raw_os_error())))?;
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
        Ok(Socket { fd, sequence: 0 })
    }

    /// The number of a generic family; `None`: the running kernel has no such family.
    pub(crate) fn family(&mut self, name: &str, step: &'static str) -> Result<Option<u16>, KernelError> {
        const CTRL: u16 = 0x10;
        let mut body = vec![3, 1, 0, 0]; // CTRL_CMD_GETFAMILY, version 1.
        attribute(&mut body, 2, &[name.as_bytes(), &[0]].concat());
        let mut family = None;
        let asked = self.request(CTRL, 0, &body, step, |answer| {
            let id = attributes(answer.get(4..).unwrap_or_default()).find(|(kind, _)| *kind == 1);
            family = id.and_then(|(_, value)| half(value, 0));
        });
        match asked {
            Err(e) if e.errno() == Some(Errno::ENOENT) => Ok(None),
            Err(e) => Err(e),
            Ok(()) => Ok(family),
        }
    }

    /// Sends a request and hands every answer's body to `visit`. `flags` is 0 or [`F_DUMP`].
    pub(crate) fn request(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        step: &'static str,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<(), KernelError> {
        self.sequence += 1;
        let flags = F_REQUEST | if flags & F_DUMP != 0 { flags } else { F_ACK | flags };
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        message.extend_from_slice(&self.sequence.to_ne_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(body);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &message, SendFlags::empty(), &kernel).map_err(|e| call(step, Errno(e.raw_os_error())))?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let len = match recv(&self.fd, &mut buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => len.min(buffer.len()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(call(step, Errno(e.raw_os_error()))),
            };
            for message in messages(&buffer[..len]) {
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return acknowledged(&message, step),
                    _ => visit(message.body),
                }
            }
        }
    }
}

fn call(step: &'static str, errno: Errno) -> KernelError {
    KernelError::Call { step, errno }
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

fn acknowledged(message: &Message<'_>, step: &'static str) -> Result<(), KernelError> {
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
    Err(KernelError::Netlink { step, errno: Errno(-code), said })
}

/// Attributes: type (without its flags) and value.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
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
pub(crate) fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
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
    fn a_refusal_carries_the_words_of_the_kernel() {
        let mut body = (-22i32).to_ne_bytes().to_vec();
        body.extend_from_slice(&[0; HEADER]);
        attribute(&mut body, NLMSGERR_ATTR_MSG, b"too large MTU\0");
        let message = Message { kind: NLMSG_ERROR, flags: F_ACK_TLVS | F_CAPPED, sequence: 1, body: &body };
        let error = acknowledged(&message, "attaching").unwrap_err();
        assert_eq!(error.to_string(), "attaching failed with EINVAL (invalid argument): too large MTU");
        let cut = Message { kind: NLMSG_ERROR, flags: F_ACK_TLVS, sequence: 1, body: &body[..6] };
        assert_eq!(acknowledged(&cut, "x").unwrap_err().errno(), Some(Errno::EINVAL));
    }
}
