//! Descriptors of maps over the socket.
//!
//! A map of the engine is memory of this process, so its descriptor is a connection of its own on which this one map can be asked
//! and changed, and nothing else. It is what a descriptor of `bpf(2)` is: it keeps the map alive, it can be given to any process over
//! any UNIX socket (`SCM_RIGHTS`), to one that may not speak to the service as well, and it permits reading alone where it was made so.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::message::Request;

/// What one connection may ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// Everything that its peer may.
    Service,
    /// One map.
    Map { id: u32, read_only: bool },
}

impl Scope {
    /// Why a request is refused, if it is.
    pub fn refuses(self, request: &Request) -> Option<String> {
        let Scope::Map { id, read_only } = self else { return None };
        let of = match request {
            Request::MapInfo { id }
            | Request::MapTypes { id }
            | Request::MapLookup { id, .. }
            | Request::MapUpdate { id, .. }
            | Request::MapDelete { id, .. }
            | Request::MapTake { id, .. }
            | Request::MapNextKey { id, .. }
            | Request::MapLookupBatch { id, .. }
            | Request::MapUpdateBatch { id, .. }
            | Request::MapDeleteBatch { id, .. }
            | Request::MapMemory { id, .. }
            | Request::MapFreeze { id } => Some(*id),
            _ => None,
        };
        match of {
            Some(asked) if asked == id && (!read_only || !request.changes()) => None,
            Some(asked) if asked == id => Some(format!("this descriptor of map {id} is for reading")),
            _ => Some(format!("this is the descriptor of map {id}: other objects are not asked through it")),
        }
    }
}

/// Sends one byte with a descriptor.
pub(crate) fn send(socket: &UnixStream, fd: BorrowedFd<'_>) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(std::io::Error::other("no room for a descriptor"));
    }
    // (Sockets with a time limit are interrupted also where a process is stopped and goes on.)
    while let Err(e) = sendmsg(socket.as_fd(), &[IoSlice::new(b"F")], &mut control, SendFlags::NOSIGNAL) {
        if e != Errno::INTR {
            return Err(e.into());
        }
    }
    Ok(())
}

/// Receives what [`send`] sent.
pub(crate) fn receive(socket: &UnixStream) -> std::io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let got = loop {
        let part = &mut [IoSliceMut::new(&mut byte)];
        match recvmsg(socket.as_fd(), part, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            got => break got?,
        }
    };
    let fds = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.filter(|_| got.bytes == 1 && byte == *b"F").ok_or_else(|| std::io::Error::other("no descriptor came"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Bytes;

    #[test]
    fn a_descriptor_of_a_map_is_for_that_map() {
        let write = Request::MapUpdate { id: 7, key: Bytes(vec![]), value: Bytes(vec![]), flags: 0 };
        let read = Request::MapInfo { id: 7 };
        let scope = |read_only| Scope::Map { id: 7, read_only };
        assert_eq!(Scope::Service.refuses(&Request::Down), None);
        assert_eq!((scope(false).refuses(&write), scope(true).refuses(&read)), (None, None));
        assert!(scope(true).refuses(&write).unwrap().contains("for reading"));
        for other in [Request::MapInfo { id: 8 }, Request::Down, Request::Maps, Request::Ports] {
            assert!(scope(false).refuses(&other).is_some(), "{other:?}");
        }
    }

    #[test]
    fn descriptors_travel() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut inner, given) = UnixStream::pair().unwrap();
        send(&near, given.as_fd()).unwrap();
        let mut got = UnixStream::from(receive(&far).unwrap());
        drop(given);
        std::io::Write::write_all(&mut inner, b"x").unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(&mut got, &mut byte).unwrap();
        assert_eq!(byte, *b"x");
        near.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(receive(&far).is_err());
    }
}
