//! One application.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::read;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use xway_abi::{Errno, xsk};
use xway_engine::SocketTarget;
use xway_xsk_client::rings::Sizes;
use xway_xsk_client::wire::{Answer, BIND_DIRECT, BindRequest, REQUEST, Request, VERSION};

use crate::server::{Hub, Join, Refusal};
use crate::socket::{Joined, Mode, Shape};
use crate::{Umem, Xsk};

/// What one application has.
pub(crate) struct Session {
    hub: Arc<Hub>,
    connection: OwnedFd,
    pid: i32,
    uid: u32,
    greeted: bool,
    umems: Vec<Arc<Umem>>,
    /// Bytes of packet memory.
    memory: u64,
    sockets: Vec<Arc<Xsk>>,
}

impl Session {
    pub(crate) fn new(hub: Arc<Hub>, connection: OwnedFd, pid: i32, uid: u32) -> Session {
        Session { hub, connection, pid, uid, greeted: false, umems: Vec::new(), memory: 0, sockets: Vec::new() }
    }
}

/// Serves an application until it goes, or says what makes no sense.
pub(crate) fn run(mut session: Session) {
    while session.wait() && session.answer().is_some() {}
    for socket in std::mem::take(&mut session.sockets) {
        session.hub.remove(&socket);
    }
}

/// An answer, and the descriptors that go with it.
type Reply<'a> = (Answer, Vec<BorrowedFd<'a>>);

impl Session {
    /// Waits for a request, and passes on the bells of sockets. False when it is over.
    fn wait(&self) -> bool {
        loop {
            let mut fds =
                vec![PollFd::new(&self.connection, PollFlags::IN), PollFd::new(&self.hub.stop, PollFlags::IN)];
            fds.extend(self.sockets.iter().map(|socket| PollFd::from_borrowed_fd(socket.kick_fd(), PollFlags::IN)));
            let _ = poll(&mut fds, None);
            if self.hub.stopping() {
                return false;
            }
            let rung: Vec<bool> = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
            let asked = !fds[0].revents().is_empty();
            for (socket, _) in self.sockets.iter().zip(rung).filter(|(_, rung)| *rung) {
                let _ = read(socket.kick_fd(), &mut [0u8; 8]);
                self.hub.queues.wake(socket.bound_to());
            }
            if asked {
                return true;
            }
        }
    }

    /// Answers one request. `None` when the application is gone or makes no sense.
    fn answer(&mut self) -> Option<()> {
        let mut bytes = [0; REQUEST];
        let (len, whole) = recv(&self.connection, &mut bytes, RecvFlags::TRUNC | RecvFlags::DONTWAIT).ok()?;
        let request = (whole == len).then(|| Request::decode(&bytes[..len])).flatten()?;
        let hello = matches!(request, Request::Hello { .. });
        if !self.greeted && !hello {
            return None;
        }
        let mut keep = Keep::default();
        let (answer, fds) = match self.carry_out(&request, &mut keep) {
            Ok(()) => keep.reply()?,
            Err((errno, reason)) => (Answer::refused(errno, reason), Vec::new()),
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return None;
        }
        // An application that does not read its answers does not make us wait.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.connection, &[IoSlice::new(&answer.encode())], &mut control, flags).ok()?;
        Some(())
    }

    fn carry_out(&mut self, request: &Request, keep: &mut Keep) -> Result<(), Refusal> {
        match request {
            Request::Hello { version: VERSION } => {
                self.greeted = true;
                keep.numbers = vec![u64::from(VERSION)];
            }
            Request::Hello { version } => {
                let why = format!("the server speaks version {VERSION}, the application version {version}");
                return Err((Errno::EPROTO, why));
            }
            Request::Umem { chunks, chunk_size, headroom, tx_metadata_len } => {
                let bytes = u64::from(*chunks) * u64::from(*chunk_size);
                if self.memory.saturating_add(bytes) > self.hub.policy.memory_max {
                    let why = format!("an application may have {} bytes of packet memory", self.hub.policy.memory_max);
                    return Err((Errno::ENOMEM, why));
                }
                let umem = Umem::create(*chunks, *chunk_size, *headroom)
                    .map_err(|errno| (errno, "chunks of 2048 or 4096 bytes, and a headroom that leaves room".into()))?;
                let umem = umem
                    .with_tx_metadata(*tx_metadata_len)
                    .map_err(|errno| (errno, "tx_metadata_len is a multiple of 8, at most 248".into()))?;
                let umem = Arc::new(umem);
                self.memory += bytes;
                self.umems.push(umem.clone());
                keep.numbers = vec![self.umems.len() as u64 - 1];
                keep.umem = Some(umem);
            }
            Request::Bind(bind) => self.bind(bind, keep)?,
            Request::Statistics { socket } => {
                keep.numbers = self.socket(*socket)?.statistics().numbers().to_vec();
            }
            Request::Close { socket } => {
                let closed = self.socket(*socket)?;
                self.sockets.retain(|socket| socket.id() != closed.id());
                self.hub.remove(&closed);
            }
        }
        Ok(())
    }

    fn socket(&self, number: u32) -> Result<Arc<Xsk>, Refusal> {
        let found = self.sockets.iter().find(|socket| socket.id() == u64::from(number));
        found.cloned().ok_or_else(|| (Errno::EBADF, format!("no socket {number} of this application")))
    }

    fn bind(&mut self, bind: &BindRequest, keep: &mut Keep) -> Result<(), Refusal> {
        use xsk::bind::{COPY, SHARED_UMEM, USE_NEED_WAKEUP, USE_SG, ZEROCOPY};
        let refuse = |errno, why: &str| Err((errno, why.to_owned()));
        if self.sockets.len() >= self.hub.policy.sockets_max {
            return refuse(Errno::ENOSPC, "the application has as many sockets as it may");
        }
        let (direct, flags) = (bind.flags & BIND_DIRECT != 0, bind.flags & !BIND_DIRECT);
        let known = u32::from(COPY | SHARED_UMEM | USE_NEED_WAKEUP | USE_SG | ZEROCOPY);
        if flags & !known != 0 {
            return refuse(Errno::EINVAL, "a flag that is not known");
        }
        let has = |flag: u16| flags & u32::from(flag) != 0;
        if has(COPY) && has(ZEROCOPY) {
            return refuse(Errno::EINVAL, "XDP_COPY and XDP_ZEROCOPY exclude each other");
        }
        if has(USE_SG) {
            return refuse(Errno::EOPNOTSUPP, "packets of several descriptors are not served");
        }
        let ifindex = self.hub.queues.find(&bind.interface, bind.queue)?;
        let at = (ifindex, bind.queue);
        let umem = self.umems.get(bind.umem as usize).cloned();
        // Copies are what everybody may have; without, a reason is needed why it is safe.
        let trusted = self.hub.policy.trusted_uids.contains(&self.uid);
        let whole = self.hub.policy.untrusted_bytes.is_none();
        let own = direct && whole && self.hub.policy.own_queue_zero_copy && self.hub.queues.without_program(at);
        let (zero_copy, reason) = match (has(ZEROCOPY), has(COPY), trusted || own) {
            (true, _, false) => {
                let why = "without copies the application would see the packets of others: it must be trusted, or have a queue of its own";
                return refuse(Errno::EPERM, why);
            }
            (true, _, true) => (true, ""),
            (_, true, _) => (false, ""),
            // Not asked: copies, which are never wrong.
            _ => (
                false,
                if trusted || own { "" } else { "copies: the application is not trusted with the engine's memory" },
            ),
        };
        let sizes = Sizes { fill: bind.fill, completion: bind.completion, rx: bind.rx, tx: bind.tx };
        let mode = match (zero_copy, umem) {
            (true, _) => Mode::ZeroCopy(bind.chunks),
            (false, Some(umem)) => Mode::Copy(umem),
            (false, None) => return refuse(Errno::EBADF, "no such packet memory: register it first"),
        };
        let snap = if trusted { None } else { self.hub.policy.untrusted_bytes };
        let cut = snap.map(|bytes| format!("the first {bytes} bytes of each packet: the application is not trusted"));
        let socket = Xsk::new(&Shape { bound: at, sizes, mode, weight: bind.weight, snap });
        let socket =
            Arc::new(socket.map_err(|errno| (errno, "rings of a power of two of entries, at most 32768".into()))?);
        let join = Join { pid: self.pid, zero_copy, direct, shared: has(SHARED_UMEM) };
        self.hub.add(&socket, join)?;
        if zero_copy && let Err(refusal) = self.meet(&socket) {
            self.hub.remove(&socket);
            return Err(refusal);
        }
        self.sockets.push(socket.clone());
        let memory = socket.joined().and_then(|joined| joined.as_ref().ok());
        let (len, chunk_size) = memory.map_or((0, 0), |Joined { len, chunk_size, .. }| (*len, u64::from(*chunk_size)));
        let flags = if zero_copy { ZEROCOPY } else { COPY } | USE_NEED_WAKEUP;
        keep.numbers = vec![socket.id(), u64::from(flags), len, chunk_size];
        keep.reason = cut.unwrap_or_else(|| reason.to_owned());
        keep.socket = Some(socket);
        Ok(())
    }

    /// Waits until the worker of the queue has lent the first chunks.
    fn meet(&self, socket: &Arc<Xsk>) -> Result<(), Refusal> {
        const TRIES: u32 = 2000;
        for _ in 0..TRIES {
            match socket.joined() {
                Some(Ok(_)) => return Ok(()),
                Some(Err(why)) => return Err((Errno::EOPNOTSUPP, (*why).to_owned())),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err((Errno::EAGAIN, "the queue's worker does not answer".into()))
    }
}

/// What an answer is made of, kept until it is sent.
#[derive(Default)]
struct Keep {
    numbers: Vec<u64>,
    reason: String,
    umem: Option<Arc<Umem>>,
    socket: Option<Arc<Xsk>>,
}

impl Keep {
    fn reply(&self) -> Option<Reply<'_>> {
        let mut fds = Vec::new();
        if let Some(umem) = &self.umem {
            fds.push(umem.fd()?);
        }
        if let Some(socket) = &self.socket {
            fds.extend([socket.rings_fd()?, socket.kick_fd(), socket.notice_fd()]);
            if let Some(Ok(joined)) = socket.joined() {
                fds.push(joined.fd.as_fd());
            }
        }
        Some((Answer { reason: self.reason.clone(), ..Answer::done(&self.numbers) }, fds))
    }
}
