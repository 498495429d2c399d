//! One application.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg, sockopt};
use xway_abi::{Errno, xsk};
use xway_door::Pulse;
use xway_engine::SocketTarget;
use xway_xsk_client::rings::Sizes;
use xway_xsk_client::wire::{Answer, BIND_DIRECT, BindRequest, REQUEST, Request, VERSION};

use crate::bell::Ears;
use crate::budget::{Amount, Charge};
use crate::hub::{Hub, Join};
use crate::server::Refusal;
use crate::socket::{HandedOver, Joined, Mode, Shape};
use crate::umem::lacking;
use crate::{Umem, Xsk};

/// What one application has, and what its thread needs. Whatever the application has in the hub is there, so that it can be taken
/// away when this thread is held up; and while it waits it holds nothing that others wait for.
pub(crate) struct Session {
    hub: Weak<Hub>,
    stop: Arc<OwnedFd>,
    connection: OwnedFd,
    /// Number of the connection.
    id: u64,
    pid: i32,
    uid: u32,
    greeted: bool,
    umems: Vec<(Arc<Umem>, Charge)>,
    /// Bytes of packet memory.
    memory: u64,
    /// Why it is not taken in, which is all that it is told.
    refused: Option<Refusal>,
    pulse: Arc<Pulse>,
    pace: Pace,
    _charge: Option<Charge>,
    /// While it has no socket.
    idle: Option<Charge>,
}

impl Session {
    /// For a connection with this number, of this process and user.
    pub(crate) fn new(
        hub: &Arc<Hub>,
        connection: OwnedFd,
        (id, pid, uid): (u64, i32, u32),
        charge: Option<(Charge, Charge)>,
        refused: Option<Refusal>,
        pulse: Arc<Pulse>,
    ) -> Session {
        let (umems, pace) = (Vec::new(), Pace { since: Instant::now(), count: 0 });
        let (hub, stop) = (Arc::downgrade(hub), hub.stop.clone());
        let (greeted, memory) = (false, 0);
        let (_charge, idle) = charge.unzip();
        Session { hub, stop, connection, id, pid, uid, greeted, umems, memory, refused, pulse, pace, _charge, idle }
    }
}

/// How long an application may take to say who it is.
const GREETING: Duration = Duration::from_secs(5);
/// The same when it is only told why it is not taken in.
const TURNING_AWAY: Duration = Duration::from_secs(1);

/// Serves an application until it goes, or says what makes no sense.
pub(crate) fn run(mut session: Session) {
    // Few answers find room that nobody has read: descriptors on their way are counted against us.
    let _ = sockopt::set_socket_send_buffer_size(&session.connection, 0);
    let ears = match session.refused.take() {
        Some(refusal) => Err(refusal),
        None => Ears::new(&session.connection, &session.stop).map_err(|e| shortage(lacking(e))),
    };
    match ears {
        Ok(mut ears) => while session.wait(&mut ears) && session.answer(&mut ears).is_some() {},
        Err(refusal) => session.turn_away(refusal),
    }
    if let Some(hub) = session.hub.upgrade() {
        hub.end(session.id);
    }
    session.umems.clear();
    // Whatever waits in the connection is closed with it.
    session.pulse.expose();
}

/// What is said when the system does not give what is asked of it.
pub(crate) fn shortage(errno: Errno) -> Refusal {
    let why = match errno {
        Errno::EMFILE => "the server has as many files open as it may: raise its LimitNOFILE (ulimit -n)",
        Errno::ENFILE => "the server's machine has as many files open as it may: raise fs.file-max",
        Errno::ENOMEM => "the server's machine has no memory left",
        _ => "the server's machine refuses",
    };
    (errno, why.to_owned())
}

/// Requests of one connection: who asks faster is answered later.
struct Pace {
    since: Instant,
    count: u32,
}

impl Pace {
    /// In a second.
    const MOST: u32 = 2000;

    /// One more; how long to wait before the next one.
    fn step(&mut self) -> Option<Duration> {
        const SECOND: Duration = Duration::from_secs(1);
        if self.since.elapsed() >= SECOND {
            *self = Pace { since: Instant::now(), count: 0 };
        }
        self.count += 1;
        (self.count > Pace::MOST).then(|| SECOND.saturating_sub(self.since.elapsed()))
    }
}

/// An answer, and the descriptors that go with it.
type Reply<'a> = (Answer, Vec<BorrowedFd<'a>>);

impl Session {
    /// Waits for a request, and passes on the bells of sockets. False when it is over.
    fn wait(&mut self, ears: &mut Ears) -> bool {
        let until = (!self.greeted).then(|| Instant::now() + GREETING);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            let heard = ears.listen(left);
            let Some(hub) = self.hub.upgrade().filter(|hub| !hub.stopping()) else { return false };
            if !heard.kicked.is_empty() {
                let sockets = hub.of(self.id);
                let kicked = sockets.iter().filter(|socket| heard.kicked.contains(&socket.id()));
                kicked.for_each(|socket| hub.queues.wake(socket.bound_to()));
            }
            if heard.asked {
                return true;
            }
        }
    }

    /// The next request; `Some(None)` when there is none yet, `None` when the application is gone or makes no sense.
    fn receive(&self) -> Option<Option<Request>> {
        let mut bytes = [0; REQUEST];
        self.pulse.expose();
        // Descriptors that come along are closed here, which may take long.
        let received = recv(&self.connection, &mut bytes, RecvFlags::TRUNC | RecvFlags::DONTWAIT);
        self.pulse.cover();
        match received {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Some(None),
            Err(_) => None,
            Ok((len, whole)) => (whole == len).then(|| Request::decode(&bytes[..len])).flatten().map(Some),
        }
    }

    fn send(&self, (answer, fds): &Reply<'_>) -> Option<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return None;
        }
        // An application that does not read its answers does not make us wait.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.connection, &[IoSlice::new(&answer.encode())], &mut control, flags).ok()?;
        Some(())
    }

    /// Answers one request. `None` when the application is gone or makes no sense.
    fn answer(&mut self, ears: &mut Ears) -> Option<()> {
        let Some(request) = self.receive()? else { return Some(()) };
        let hello = matches!(request, Request::Hello { .. });
        if !self.greeted && !hello {
            return None;
        }
        let hub = self.hub.upgrade()?;
        let mut keep = Keep::default();
        let done = self.carry_out(&hub, ears, &request, &mut keep);
        // Before the answer: whoever has read it may count on it.
        let stays = self.count_idle(&hub);
        match done {
            Ok(()) => self.send(&keep.reply())?,
            Err((errno, reason)) => self.send(&(Answer::refused(errno, reason), Vec::new()))?,
        }
        stays?;
        drop((hub, keep));
        if let Some(pause) = self.pace.step().and_then(|pause| Timespec::try_from(pause).ok()) {
            let _ = poll(&mut [PollFd::new(&*self.stop, PollFlags::IN)], Some(&pause));
        }
        Some(())
    }

    /// Says why not, as the answer to the first request: the application hears it where it expects to hear something.
    fn turn_away(&self, (errno, reason): Refusal) {
        let most = Timespec::try_from(TURNING_AWAY).ok();
        let mut fds = [PollFd::new(&self.connection, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
        let _ = poll(&mut fds, most.as_ref());
        if !fds[0].revents().is_empty() && matches!(self.receive(), Some(Some(_))) {
            let _ = self.send(&(Answer::refused(errno, reason), Vec::new()));
        }
    }

    fn carry_out(&mut self, hub: &Hub, ears: &mut Ears, request: &Request, keep: &mut Keep) -> Result<(), Refusal> {
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
                let umem = self.umem(hub, (*chunks, *chunk_size, *headroom, *tx_metadata_len), keep)?;
                keep.numbers = vec![umem];
            }
            Request::Bind(bind) => self.bind(hub, ears, bind, keep)?,
            Request::Statistics { socket } => {
                keep.numbers = self.socket(hub, *socket)?.statistics().numbers().to_vec();
            }
            Request::Close { socket } => {
                let closed = self.socket(hub, *socket)?;
                ears.remove(closed.kick_fd());
                hub.remove(&closed);
            }
        }
        Ok(())
    }

    /// Counts it among those without a socket, or no longer. `None`: it has given its last one up, and there are enough of those.
    fn count_idle(&mut self, hub: &Hub) -> Option<()> {
        if !hub.of(self.id).is_empty() {
            self.idle = None;
        } else if self.idle.is_none() {
            self.idle = Some(hub.budget.take(self.uid, Amount { idle: 1, ..Amount::default() }).ok()?);
        }
        Some(())
    }

    fn socket(&self, hub: &Hub, number: u32) -> Result<Arc<Xsk>, Refusal> {
        let found = hub.of(self.id).into_iter().find(|socket| socket.id() == u64::from(number));
        found.ok_or_else(|| (Errno::EBADF, format!("no socket {number} of this application")))
    }

    /// Makes packet memory, and says its number.
    fn umem(&mut self, hub: &Hub, asked: (u32, u32, u32, u32), keep: &mut Keep) -> Result<u64, Refusal> {
        let (chunks, chunk_size, headroom, tx_metadata_len) = asked;
        let policy = &hub.policy;
        if self.umems.len() >= policy.umems_max {
            return Err((Errno::ENOSPC, format!("an application may have {} packet memories", policy.umems_max)));
        }
        let bytes = u64::from(chunks) * u64::from(chunk_size);
        if self.memory.saturating_add(bytes) > policy.memory_max {
            return Err((
                Errno::ENOMEM,
                format!("an application may have {} bytes of packet memory", policy.memory_max),
            ));
        }
        let charge = hub.budget.take(self.uid, Amount { memory: bytes, ..Amount::default() })?;
        let umem = Umem::create(chunks, chunk_size, headroom).map_err(|errno| match errno {
            Errno::EINVAL => (errno, "chunks of 2048 or 4096 bytes, and a headroom that leaves room".into()),
            errno => shortage(errno),
        })?;
        let mut umem = umem
            .with_tx_metadata(tx_metadata_len)
            .map_err(|errno| (errno, "tx_metadata_len is a multiple of 8, at most 248".into()))?;
        keep.umem = umem.take_fd();
        self.memory += bytes;
        self.umems.push((Arc::new(umem), charge));
        Ok(self.umems.len() as u64 - 1)
    }

    fn bind(&mut self, hub: &Hub, ears: &Ears, bind: &BindRequest, keep: &mut Keep) -> Result<(), Refusal> {
        use xsk::bind::{COPY, SHARED_UMEM, USE_NEED_WAKEUP, USE_SG, ZEROCOPY};
        let refuse = |errno, why: &str| Err((errno, why.to_owned()));
        if hub.of(self.id).len() >= hub.policy.sockets_max {
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
        let ifindex = hub.queues.find(&bind.interface, bind.queue)?;
        let at = (ifindex, bind.queue);
        let umem = self.umems.get(bind.umem as usize).map(|(umem, _)| umem.clone());
        // Copies are what everybody may have; without, a reason is needed why it is safe.
        let trusted = hub.policy.trusted_uids.contains(&self.uid);
        let whole = hub.policy.untrusted_bytes.is_none();
        let free = hub.queues.without_program(at);
        if direct && !trusted && !free {
            let why = "a program decides what becomes of this queue's packets: only a trusted application may have them past it";
            return refuse(Errno::EPERM, why);
        }
        let own = direct && whole && hub.policy.own_queue_zero_copy && free;
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
        let snap = if trusted { None } else { hub.policy.untrusted_bytes };
        let cut = snap.map(|bytes| format!("the first {bytes} bytes of each packet: the application is not trusted"));
        let rings = if sizes.valid() { sizes.bytes() as u64 } else { 0 };
        let socket = Xsk::new(&Shape { bound: at, sizes, mode, weight: bind.weight, snap });
        let mut socket = socket.map_err(|errno| match errno {
            Errno::EINVAL => (errno, "rings of a power of two of entries, at most 32768".into()),
            errno => shortage(errno),
        })?;
        let handed_over = socket.hand_over();
        let socket = Arc::new(socket);
        let (pid, uid, connection, shared) = (self.pid, self.uid, self.id, has(SHARED_UMEM));
        hub.add(&socket, Join { connection, uid, pid, zero_copy, direct, shared, rings })?;
        let heard = ears.add(socket.kick_fd(), socket.id()).map_err(|e| shortage(lacking(e)));
        let met = heard.and_then(|()| if zero_copy { meet(hub, &socket) } else { Ok(()) });
        let met = met.and_then(|()| if trusted { Ok(()) } else { keeps_its_pages(&socket) });
        if let Err(refusal) = met {
            ears.remove(socket.kick_fd());
            hub.remove(&socket);
            return Err(refusal);
        }
        let memory = socket.joined().and_then(|joined| joined.as_ref().ok());
        let (len, chunk_size) = memory.map_or((0, 0), |Joined { len, chunk_size, .. }| (*len, u64::from(*chunk_size)));
        let flags = if zero_copy { ZEROCOPY } else { COPY } | USE_NEED_WAKEUP;
        keep.numbers = vec![socket.id(), u64::from(flags), len, chunk_size];
        keep.reason = cut.unwrap_or_else(|| reason.to_owned());
        keep.pool = socket.joined().and_then(|joined| joined.as_ref().ok()?.fd.lock().take());
        keep.socket = handed_over.map(|over| (socket, over));
        Ok(())
    }
}

/// Waits until the worker of the queue has lent the first chunks.
fn meet(hub: &Hub, socket: &Arc<Xsk>) -> Result<(), Refusal> {
    const TRIES: u32 = 2000;
    for _ in 0..TRIES {
        match socket.joined() {
            Some(Ok(_)) => return Ok(()),
            Some(Err((errno, why))) => return Err((*errno, (*why).to_owned())),
            None if hub.stopping() => return Err((Errno::ENODEV, "the server ends".into())),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err((Errno::EAGAIN, "the queue's worker does not answer".into()))
}

/// Whoever may write to a memory file may punch holes into it, and nothing can be done about that as long as it may be mapped for
/// writing. A page of the machine's reserve that goes in this way may be somebody else's by the time when the server touches it again,
/// which would be the end of the server (SIGBUS). Other pages come again.
fn keeps_its_pages(socket: &Xsk) -> Result<(), Refusal> {
    let Some(Ok(joined)) = socket.joined() else { return Ok(()) };
    match joined.fd.lock().as_ref().is_some_and(is_of_the_reserve) {
        true => {
            let why = "the queue's memory is of the reserve of huge pages, which only trusted applications get: with copies, or a queue whose memory is not";
            Err((Errno::EOPNOTSUPP, why.to_owned()))
        }
        false => Ok(()),
    }
}

/// Whether a memory file has pages of the machine's reserve (`MFD_HUGETLB`).
fn is_of_the_reserve(fd: &OwnedFd) -> bool {
    /// `HUGETLBFS_MAGIC` of `linux/magic.h`.
    const MAGIC: u32 = 0x9584_58f6;
    rustix::fs::fstatfs(fd).is_ok_and(|is| is.f_type as u32 == MAGIC)
}

/// What an answer is made of, kept until it is sent. Descriptors that only the application needs are closed with it.
#[derive(Default)]
struct Keep {
    numbers: Vec<u64>,
    reason: String,
    umem: Option<OwnedFd>,
    socket: Option<(Arc<Xsk>, HandedOver)>,
    pool: Option<OwnedFd>,
}

impl Keep {
    fn reply(&self) -> Reply<'_> {
        let mut fds: Vec<_> = self.umem.iter().map(AsFd::as_fd).collect();
        if let Some((socket, over)) = &self.socket {
            fds.extend([over.rings.as_fd(), socket.kick_fd(), over.notice.as_fd()]);
            fds.extend(self.pool.iter().map(AsFd::as_fd));
        }
        (Answer { reason: self.reason.clone(), ..Answer::done(&self.numbers) }, fds)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_file_of_the_reserve_is_known_also_where_there_is_none() {
        let plain = memfd_create(c"plain", MemfdFlags::CLOEXEC).unwrap();
        assert!(!is_of_the_reserve(&plain));
        match memfd_create(c"huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) {
            Ok(huge) => assert!(is_of_the_reserve(&huge)),
            Err(e) => {
                xway_testkit::skip("xsk::a_file_of_the_reserve_is_known", &format!("memory files of huge pages: {e}"))
            }
        }
    }
}
