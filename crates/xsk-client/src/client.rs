//! The connection to the server.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, send, socket_with,
};
use xway_abi::xsk;
use xway_packet::SharedMemory;

use crate::error::ClientError;
use crate::memory::Memory;
use crate::rings::{Rings, Sizes};
use crate::socket::{Socket, Statistics};
use crate::wire::{ANSWER, Answer, BIND_DIRECT, BindRequest, Request, VERSION};

/// A connection. Everything that was made over it goes when it is dropped, however the process ends.
pub struct Connection {
    fd: OwnedFd,
}

/// Packet memory for sockets with copies.
#[derive(Debug)]
pub struct Umem {
    number: u32,
    tx_metadata_len: u32,
    pub(crate) memory: Arc<Memory>,
}

/// How a socket is bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Interface or port.
    pub interface: String,
    /// Queue.
    pub queue: u32,
    /// `sxdp_flags`: [`xway_abi::xsk::bind`].
    pub flags: u16,
    /// Everything that arrives on the queue comes to this socket, past all programs.
    pub direct: bool,
    /// Entries of the rings.
    pub sizes: Sizes,
    /// Chunks wanted without copies.
    pub chunks: u32,
    /// Share of the queue's sending in relation to other sockets.
    pub weight: u32,
}

impl Bind {
    /// With copies where need be, rings of 2048.
    pub fn new(interface: impl Into<String>, queue: u32) -> Bind {
        let sizes = Sizes { fill: 2048, completion: 2048, rx: 2048, tx: 2048 };
        let flags = xsk::bind::USE_NEED_WAKEUP;
        Bind { interface: interface.into(), queue, flags, direct: false, sizes, chunks: 2048, weight: 1 }
    }
}

impl Connection {
    /// Connects to the server's socket.
    ///
    /// # Errors
    /// No server, no permission, or another version.
    pub fn open(path: impl AsRef<Path>) -> Result<Connection, ClientError> {
        const WHAT: &str = "connecting to the server";
        let address = SocketAddrUnix::new(path.as_ref()).map_err(ClientError::system(WHAT))?;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(ClientError::system(WHAT))?;
        connect(&fd, &address).map_err(ClientError::system(WHAT))?;
        let mut connection = Connection { fd };
        connection.ask(WHAT, &Request::Hello { version: VERSION }, 0)?;
        Ok(connection)
    }

    /// Packet memory of `chunks` chunks of `chunk_size` bytes, with `headroom` bytes in front of received packets beyond the 256
    /// that there always are.
    ///
    /// # Errors
    /// The server refuses: sizes that make no sense (`EINVAL`), too much memory (`ENOMEM`).
    pub fn umem(&mut self, chunks: u32, chunk_size: u32, headroom: u32) -> Result<Umem, ClientError> {
        self.umem_with(chunks, chunk_size, headroom, 0)
    }

    /// The same, with `tx_metadata_len` bytes in front of packets to send for what is asked for them ([`crate::TxRequest`]): at least
    /// 24, at most 248, a multiple of eight (`XDP_UMEM_TX_METADATA_LEN`).
    ///
    /// # Errors
    /// As [`Connection::umem`].
    pub fn umem_with(
        &mut self,
        chunks: u32,
        chunk_size: u32,
        headroom: u32,
        tx_metadata_len: u32,
    ) -> Result<Umem, ClientError> {
        const WHAT: &str = "registering packet memory";
        let request = Request::Umem { chunks, chunk_size, headroom, tx_metadata_len };
        let (answer, mut fds) = self.ask(WHAT, &request, 1)?;
        let memory = map(WHAT, fds.pop(), chunks as usize * chunk_size as usize)?;
        let memory = Memory::new(memory, chunk_size);
        Ok(Umem { number: answer.numbers[0] as u32, tx_metadata_len, memory: Arc::new(memory) })
    }

    /// A socket on a queue.
    ///
    /// # Errors
    /// The server refuses, with Linux's errno: `ENODEV` no such port, `EINVAL` no such queue, `EBUSY` somebody has it, `EPERM` not
    /// without copies, `EOPNOTSUPP` not possible without copies.
    pub fn bind(&mut self, umem: &Umem, bind: &Bind) -> Result<Socket, ClientError> {
        const WHAT: &str = "binding a socket";
        let sizes = bind.sizes;
        let request = Request::Bind(BindRequest {
            interface: bind.interface.clone(),
            queue: bind.queue,
            flags: u32::from(bind.flags) | if bind.direct { BIND_DIRECT } else { 0 },
            umem: umem.number,
            fill: sizes.fill,
            completion: sizes.completion,
            rx: sizes.rx,
            tx: sizes.tx,
            chunks: bind.chunks,
            weight: bind.weight,
        });
        let (answer, fds) = self.ask(WHAT, &request, 3)?;
        let [number, flags, len, chunk_size, ..] = answer.numbers;
        let mut fds = fds.into_iter();
        let rings = Arc::new(map(WHAT, fds.next(), sizes.bytes())?);
        let (Some(kick), Some(notice)) = (fds.next(), fds.next()) else {
            return Err(ClientError::protocol(WHAT, "descriptors are missing"));
        };
        let rings = Rings::over(&rings, sizes).map_err(|e| ClientError::protocol(WHAT, e))?;
        let zero_copy = flags as u16 & xsk::bind::ZEROCOPY != 0;
        let memory = match zero_copy {
            false => umem.memory.clone(),
            true => {
                let shared = map(WHAT, fds.next(), len as usize)?;
                if !chunk_size.is_power_of_two() || chunk_size > len {
                    return Err(ClientError::protocol(WHAT, format!("chunks of {chunk_size} bytes")));
                }
                Arc::new(Memory::new(shared, chunk_size as u32))
            }
        };
        let mut socket = Socket::new(number as u32, rings, memory, kick, notice, zero_copy, answer.reason)
            .map_err(|e| ClientError::protocol(WHAT, e))?;
        socket.set_tx_metadata_len(if zero_copy { 0 } else { umem.tx_metadata_len });
        Ok(socket)
    }

    /// Counters of a socket, as `XDP_STATISTICS` has them.
    ///
    /// # Errors
    /// The server is gone.
    pub fn statistics(&mut self, socket: &Socket) -> Result<Statistics, ClientError> {
        let request = Request::Statistics { socket: socket.number() };
        let (answer, _) = self.ask("asking for statistics", &request, 0)?;
        Ok(Statistics::from_numbers(answer.numbers))
    }

    /// Closes a socket: its chunks are the server's again.
    ///
    /// # Errors
    /// The server is gone.
    pub fn close(&mut self, socket: Socket) -> Result<(), ClientError> {
        self.ask("closing a socket", &Request::Close { socket: socket.number() }, 0).map(drop)
    }

    fn ask(
        &mut self,
        what: &'static str,
        request: &Request,
        descriptors: usize,
    ) -> Result<(Answer, Vec<OwnedFd>), ClientError> {
        send(&self.fd, &request.encode(), SendFlags::NOSIGNAL).map_err(ClientError::system(what))?;
        let mut bytes = [0; ANSWER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(self.fd.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
            .map_err(ClientError::system(what))?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let answer = bytes.get(..received.bytes).and_then(Answer::decode);
        let answer = answer.ok_or_else(|| ClientError::protocol(what, "the answer is none"))?;
        if let Some(errno) = answer.errno {
            return Err(ClientError::Refused { what, errno, reason: answer.reason });
        }
        if fds.len() < descriptors {
            return Err(ClientError::protocol(what, format!("{} descriptors of {descriptors} came", fds.len())));
        }
        Ok((answer, fds))
    }
}

/// Maps memory of the server's, which must be sealed: a file that can shrink could end this process.
fn map(what: &'static str, fd: Option<OwnedFd>, len: usize) -> Result<SharedMemory, ClientError> {
    let fd = fd.ok_or_else(|| ClientError::protocol(what, "the memory's descriptor is missing"))?;
    let seals = rustix::fs::fcntl_get_seals(&fd).map_err(ClientError::system(what))?;
    if !seals.contains(rustix::fs::SealFlags::SHRINK) {
        return Err(ClientError::protocol(what, "the memory is not sealed"));
    }
    let have = rustix::fs::fstat(&fd).map_err(ClientError::system(what))?.st_size;
    if len == 0 || u64::try_from(have).is_ok_and(|have| have < len as u64) {
        return Err(ClientError::protocol(what, format!("{len} bytes of memory were promised, {have} are there")));
    }
    SharedMemory::map(fd.as_fd(), 0, len).map_err(ClientError::system(what))
}
