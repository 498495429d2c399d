//! One socket, as the worker of its queue sees it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use parking_lot::{Mutex, MutexGuard};
use xway_abi::xsk::tx_metadata::{CHECKSUM, LAUNCH_TIME, TIMESTAMP};
use xway_abi::{Errno, xsk};
use xway_engine::{Sent, SocketTarget};
use xway_packet::offload::complete_checksum;
use xway_packet::ring::XdpDesc;
use xway_packet::ring::spsc::{Consumer, Producer};
use xway_packet::{Backing, Burst, Frame, Pool, SharedMemory};
use xway_xsk_client::Statistics;
use xway_xsk_client::rings::{Rings, Sizes};

use crate::bell::{self, Bell};
use crate::umem::{Umem, lacking};
use crate::zero::Loans;

/// How packets get to the application.
#[derive(Clone, Debug)]
pub enum Mode {
    /// They are copied to and from its own memory.
    Copy(Arc<Umem>),
    /// It maps the memory of the queue's pool, and is lent so many chunks of it.
    ZeroCopy(u32),
}

/// What a socket is made of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Interface index and queue.
    pub bound: (u32, u32),
    /// Entries of its rings.
    pub sizes: Sizes,
    /// How packets get to the application.
    pub mode: Mode,
    /// Share of the queue's sending in relation to others, 1 to 255.
    pub weight: u32,
    /// The application gets so many first bytes of each packet; `None`: all. With copies only.
    pub snap: Option<u32>,
}

/// Memory of a pool, for an application that maps it.
#[derive(Debug)]
pub(crate) struct Joined {
    /// Until it is sent.
    pub(crate) fd: Mutex<Option<OwnedFd>>,
    pub(crate) len: u64,
    pub(crate) chunk_size: u32,
}

/// What goes to the application, and is not needed here.
#[derive(Debug)]
pub struct HandedOver {
    /// The memory file of the rings.
    pub rings: OwnedFd,
    /// The end of the bell that wakes the application.
    pub notice: OwnedFd,
}

/// A socket. Only the worker of its queue delivers to it and collects from it, and it never waits for anybody: what it works
/// on lies in a cell that nobody else opens, and others read the counters that it publishes and leave word in flags.
pub struct Xsk {
    id: u64,
    bound: (u32, u32),
    pub(crate) weight: u32,
    /// Rung by the application.
    kick: OwnedFd,
    /// Rung by us.
    notice: Bell,
    handed_over: Option<HandedOver>,
    /// The worker's part. A mutex only because the language wants one: it is opened with `try_lock`, by the worker.
    inner: Mutex<Inner>,
    published: Published,
    /// The application's own memory, where it has some, and so nothing of the pool's. Kept here so that it is not the worker who
    /// gives it back to the system.
    umem: Option<Arc<Umem>>,
    /// Set when a socket without copies has met its pool.
    joined: OnceLock<Result<Joined, (Errno, &'static str)>>,
    /// The application is gone: what it has is taken back at the next call.
    closing: AtomicBool,
    settled: AtomicBool,
}

/// The counters, for whoever asks: written by the worker after each burst, one after the other.
#[derive(Default)]
struct Published([AtomicU64; 8]);

impl Published {
    fn write(&self, statistics: &Statistics) {
        for (word, number) in self.0.iter().zip(statistics.numbers()) {
            word.store(number, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Statistics {
        Statistics::from_numbers(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

pub(crate) struct Inner {
    fill: Consumer<u64>,
    completion: Producer<u64>,
    rx: Producer<XdpDesc>,
    tx: Consumer<XdpDesc>,
    memory: Memory,
    counts: Statistics,
    /// So many bytes of a packet are copied at most.
    snap: usize,
    /// Packets that the application was not told of.
    untold: bool,
    /// Bytes that the socket may still send in its turn.
    pub(crate) deficit: u64,
}

enum Memory {
    Copy(Arc<Umem>),
    /// Until it meets its pool.
    Waiting(u32),
    Lent(Loans),
    Closed,
}

impl Xsk {
    /// Makes the rings. The application is told nothing yet.
    ///
    /// # Errors
    /// `EINVAL` for ring sizes that make no sense; `ENOMEM`, `EMFILE`, `ENFILE`: what the system lacks.
    pub fn new(shape: &Shape) -> Result<Xsk, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if !shape.sizes.valid() {
            return Err(Errno::EINVAL);
        }
        let mut rings = SharedMemory::create(shape.sizes.bytes()).map_err(lacking)?;
        let file = rings.take_fd();
        let laid = Rings::over(&Arc::new(rings), shape.sizes).map_err(|_| Errno::EINVAL)?;
        let (notice, far) = Bell::pair().map_err(lacking)?;
        let attached = || {
            Ok::<_, xway_packet::ring::RingError>(Inner {
                fill: Consumer::attach(laid.fill)?,
                completion: Producer::attach(laid.completion)?,
                rx: Producer::attach(laid.rx)?,
                tx: Consumer::attach(laid.tx)?,
                memory: match &shape.mode {
                    Mode::Copy(umem) => Memory::Copy(umem.clone()),
                    Mode::ZeroCopy(chunks) => Memory::Waiting(*chunks),
                },
                counts: Statistics::default(),
                snap: shape.snap.map_or(usize::MAX, |bytes| bytes as usize),
                untold: false,
                deficit: 0,
            })
        };
        Ok(Xsk {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            bound: shape.bound,
            weight: shape.weight.clamp(1, 255),
            kick: bell::kick().map_err(lacking)?,
            notice,
            handed_over: file.map(|rings| HandedOver { rings, notice: far }),
            inner: Mutex::new(attached().map_err(|_| Errno::EINVAL)?),
            published: Published::default(),
            umem: match &shape.mode {
                Mode::Copy(umem) => Some(umem.clone()),
                Mode::ZeroCopy(_) => None,
            },
            joined: OnceLock::new(),
            closing: AtomicBool::new(false),
            settled: AtomicBool::new(false),
        })
    }

    /// Gives away what goes to the application, once.
    pub fn hand_over(&mut self) -> Option<HandedOver> {
        self.handed_over.take()
    }

    /// The memory file of the rings, until it is given away.
    pub fn rings_fd(&self) -> Option<BorrowedFd<'_>> {
        self.handed_over.as_ref().map(|over| over.rings.as_fd())
    }

    /// What the application rings to wake the queue's worker.
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// The application's end of what wakes it, until it is given away.
    pub fn notice_fd(&self) -> Option<BorrowedFd<'_>> {
        self.handed_over.as_ref().map(|over| over.notice.as_fd())
    }

    /// Its counters, as they were after the worker's last burst.
    pub fn statistics(&self) -> Statistics {
        self.published.read()
    }

    /// The worker's part. Two workers meet here only when a program behind a CPUMAP sends to the socket of another worker's queue;
    /// then one of them is refused.
    fn open(&self) -> Option<MutexGuard<'_, Inner>> {
        (0..MEETING_SPINS).find_map(|_| {
            let inner = self.inner.try_lock();
            if inner.is_none() {
                std::hint::spin_loop();
            }
            inner
        })
    }

    /// What became of meeting the pool; `None` before it.
    pub(crate) fn joined(&self) -> Option<&Result<Joined, (Errno, &'static str)>> {
        self.joined.get()
    }

    /// The application is gone. The next call of the worker takes back what it had.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        if self.umem.is_some() {
            self.settled.store(true, Ordering::Release);
        }
    }

    /// Whether a closed socket has nothing of the pool's any more.
    pub fn settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// What is due before packets: meeting the pool, paying, settling. False when the socket is closed.
    fn ready(&self, inner: &mut Inner, pool: &mut Pool) -> bool {
        if self.closing.load(Ordering::Acquire) {
            if let Memory::Lent(loans) = &mut inner.memory {
                loans.settle(pool);
            }
            inner.memory = Memory::Closed;
            self.settled.store(true, Ordering::Release);
            return false;
        }
        match &mut inner.memory {
            Memory::Copy(_) => true,
            Memory::Lent(_) => true,
            Memory::Waiting(chunks) => {
                let chunks = *chunks;
                let met = join(pool);
                if met.is_ok() {
                    let config = pool.config();
                    // Half of the pool stays for the queue itself.
                    let count = chunks.clamp(1, (config.frames / 2).max(1)).min(inner.completion.entries());
                    let mut loans = Loans::new(pool, count);
                    loans.pay(pool, &mut inner.completion);
                    inner.completion.submit();
                    inner.memory = Memory::Lent(loans);
                }
                let met_well = met.is_ok();
                let _ = self.joined.set(met);
                met_well
            }
            Memory::Closed => false,
        }
    }

    /// Takes packets to send while `allowed` says so for their lengths and there is room, and says how many it took.
    pub(crate) fn take(&self, pool: &mut Pool, burst: &mut Burst, quantum: Option<u64>) -> usize {
        let Some(mut inner) = self.open() else { return 0 };
        if !self.ready(&mut inner, pool) {
            return 0;
        }
        let inner = &mut *inner;
        inner.deficit = inner.deficit.saturating_add(quantum.unwrap_or(0));
        let before = burst.len();
        let waiting = inner.tx.available(burst.room() as u32).min(burst.room() as u32);
        inner.tx.fetch(waiting);
        if inner.completion.room(waiting) > 0 {
            inner.completion.fetch(waiting);
        }
        // What is looked at is bounded, not only what is taken: others on this worker wait meanwhile.
        for _ in 0..burst.room() {
            let Some(desc) = inner.tx.take() else {
                inner.counts.tx_ring_empty_descs += u64::from(burst.len() == before);
                // Who has nothing to send saves nothing up.
                inner.deficit = 0;
                break;
            };
            if u64::from(desc.len) > inner.deficit && valid_len(desc.len) {
                inner.tx.untake(1);
                break;
            }
            match inner.memory.packet(pool, desc, &mut inner.completion) {
                Taken::Packet(frame) => {
                    inner.deficit -= u64::from(desc.len);
                    if let Err(frame) = burst.push(frame) {
                        pool.release(frame);
                    }
                }
                Taken::Invalid => {
                    inner.counts.tx_invalid_descs += 1;
                    inner.deficit = inner.deficit.saturating_sub(BAD_COST);
                }
                Taken::Unsupported(desc) => {
                    // Its chunk comes back as if it were sent; the counter says that it was not.
                    inner.counts.tx_unsupported += 1;
                    inner.deficit = inner.deficit.saturating_sub(BAD_COST);
                    let _ = inner.completion.stage(desc.addr);
                }
                Taken::Later => {
                    inner.tx.untake(1);
                    break;
                }
            }
        }
        inner.tx.release();
        inner.memory.pay(pool, &mut inner.completion);
        inner.completion.submit();
        if burst.len() > before && inner.tx.flags() != 0 {
            inner.tx.set_flags(0);
        }
        self.published.write(&inner.statistics());
        burst.len() - before
    }

    fn give(&self, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let count = burst.len();
        let refuse = |pool: &mut Pool, burst: &mut Burst, errno| {
            pool.release_burst(burst);
            Sent::none(count, errno)
        };
        let Some(mut inner) = self.open() else { return refuse(pool, burst, Errno::EBUSY) };
        if !self.ready(&mut inner, pool) {
            return refuse(pool, burst, Errno::EBADF);
        }
        if !inner.memory.is_of(pool) {
            // The application maps its queue's memory and no other.
            return refuse(pool, burst, Errno::EINVAL);
        }
        let inner = &mut *inner;
        let mut sent = Sent::default();
        // One look at the application's indices for the burst: each later one would take a cache line from it.
        let fill = inner.fill.available(count as u32).min(count as u32 + BAD_MAX);
        let mut room = Room { rx: inner.rx.room(count as u32), fill };
        inner.rx.fetch((count as u32).min(room.rx));
        inner.fill.fetch((count as u32).min(room.fill));
        for frame in burst.drain() {
            match inner.give_one(pool, frame, &mut room) {
                Ok(()) => sent.sent += 1,
                Err(errno) if errno == Errno::ENOBUFS => sent.full += 1,
                Err(errno) => {
                    sent.failed += 1;
                    sent.errno = Some(errno);
                }
            }
        }
        if sent.full > 0 {
            // The application sees that it does not keep up without having to ask.
            inner.completion.set_flags(inner.completion.flags().wrapping_add(sent.full));
        }
        inner.fill.release();
        inner.untold |= inner.rx.submit() > 0;
        self.published.write(&inner.statistics());
        sent
    }
}

/// A length that a packet can have at all; others are counted as invalid whosever turn it is.
fn valid_len(len: u32) -> bool {
    len <= xway_packet::layout::CHUNK_MAX
}

/// Duplicates what an application needs to map the pool.
fn join(pool: &Pool) -> Result<Joined, (Errno, &'static str)> {
    const NO_FILE: (Errno, &str) = (Errno::EOPNOTSUPP, "the queue's memory is not a file that can be mapped");
    let config = pool.config();
    if config.backing != Backing::Memfd {
        return Err(NO_FILE);
    }
    let fd = pool.memory_fd().ok_or(NO_FILE)?.try_clone_to_owned();
    let fd = Mutex::new(Some(fd.map_err(|e| (lacking(e), "no file descriptor is left in the server"))?));
    let len = u64::from(config.frames) * u64::from(config.chunk_size);
    Ok(Joined { fd, len, chunk_size: config.chunk_size })
}

/// What a burst finds in the rings.
struct Room {
    /// Free slots of RX.
    rx: u32,
    /// Entries of FILL.
    fill: u32,
}

impl Room {
    /// The next entry of FILL.
    #[inline]
    fn take(&mut self, fill: &mut Consumer<u64>) -> Option<u64> {
        self.fill = self.fill.checked_sub(1)?;
        fill.take()
    }
}

/// Addresses of FILL that cannot be, and that are passed over for one burst; the others are for the next one.
const BAD_MAX: u32 = Burst::MAX as u32;

/// What a descriptor that cannot be sent costs of a socket's share, bytes: a short packet.
const BAD_COST: u64 = 64;

/// How long a worker waits for another one that delivers to the same socket: about the time of a burst.
const MEETING_SPINS: u32 = 4096;

enum Taken {
    Packet(Frame),
    Invalid,
    /// It asks for what cannot be done.
    Unsupported(XdpDesc),
    /// Neither pool nor COMPLETION have room now.
    Later,
}

impl Memory {
    /// Whether frames of this pool may be delivered.
    fn is_of(&self, pool: &Pool) -> bool {
        !matches!(self, Memory::Lent(loans) if !loans.are_of(pool))
    }

    /// Gives back through COMPLETION the chunks that are owed, when they are lent ones.
    fn pay(&mut self, pool: &mut Pool, completion: &mut Producer<u64>) {
        if let Memory::Lent(loans) = self {
            loans.pay(pool, completion);
        }
    }

    /// The packet that a descriptor of TX stands for.
    fn packet(&mut self, pool: &mut Pool, desc: XdpDesc, completion: &mut Producer<u64>) -> Taken {
        match self {
            Memory::Copy(umem) => {
                let known = desc.options & !xsk::TX_METADATA == 0;
                if !known || desc.len < xway_packet::ETH_HLEN || !umem.holds(desc.addr, desc.len) {
                    return Taken::Invalid;
                }
                if desc.len > pool.capacity() {
                    return Taken::Invalid;
                }
                if completion.room(1) == 0 {
                    return Taken::Later;
                }
                // Read once: the application may change it while we look.
                let asked = match desc.options & xsk::TX_METADATA {
                    0 => None,
                    _ => match umem.tx_metadata(desc.addr) {
                        Some(asked) if asked.flags & !(TIMESTAMP | CHECKSUM | LAUNCH_TIME) == 0 => Some(asked),
                        _ => return Taken::Invalid,
                    },
                };
                if asked.is_some_and(|asked| asked.flags & (TIMESTAMP | LAUNCH_TIME) != 0) {
                    return Taken::Unsupported(desc);
                }
                let sum = asked.filter(|asked| asked.flags & CHECKSUM != 0);
                let sum = sum.map(|asked| (usize::from(asked.csum_start), usize::from(asked.csum_offset)));
                if sum.is_some_and(|(start, offset)| start + offset + 2 > desc.len as usize) {
                    return Taken::Invalid;
                }
                let Ok(mut frame) = pool.alloc() else { return Taken::Later };
                if frame.set_len(desc.len as usize).is_err() {
                    pool.release(frame);
                    return Taken::Invalid;
                }
                // From here on the packet is ours alone.
                umem.read(desc.addr, frame.packet_mut());
                if let Some((start, offset)) = sum {
                    complete_checksum(frame.packet_mut(), start, offset);
                }
                let _ = completion.stage(desc.addr);
                Taken::Packet(frame)
            }
            Memory::Lent(loans) => {
                let frame = (desc.options == 0).then(|| loans.packet(pool, desc.addr, desc.len)).flatten();
                frame.map_or(Taken::Invalid, Taken::Packet)
            }
            Memory::Waiting(_) | Memory::Closed => Taken::Later,
        }
    }
}

impl Inner {
    fn statistics(&self) -> Statistics {
        let refused = self.fill.refused() + self.tx.refused() + self.rx.refused() + self.completion.refused();
        Statistics { refused_indices: refused, ..self.counts }
    }

    /// Delivers one frame. `ENOBUFS` when there is no room.
    fn give_one(&mut self, pool: &mut Pool, frame: Frame, room: &mut Room) -> Result<(), Errno> {
        let refuse = |pool: &mut Pool, frame, errno| {
            pool.release(frame);
            Err(errno)
        };
        if room.rx == 0 {
            self.counts.rx_ring_full += 1;
            return refuse(pool, frame, Errno::ENOBUFS);
        }
        // A packet of several buffers is one here, where it fits a chunk, as on Linux without XDP_USE_SG.
        let len = frame.total_len().min(self.snap) as u32;
        let address = match &mut self.memory {
            Memory::Copy(umem) => {
                if len as usize > umem.room() {
                    self.counts.rx_dropped += 1;
                    return refuse(pool, frame, Errno::ENOSPC);
                }
                let place = loop {
                    let Some(address) = room.take(&mut self.fill) else {
                        self.counts.rx_fill_ring_empty_descs += 1;
                        return refuse(pool, frame, Errno::ENOBUFS);
                    };
                    match umem.place(address) {
                        Some(place) => break place,
                        None => self.counts.rx_invalid_descs += 1,
                    }
                };
                umem.write(place, frame.meta(), &[]);
                let (mut at, mut left) = (place, len as usize);
                for part in frame.parts() {
                    let part = &part[..part.len().min(left)];
                    umem.write(at, &[], part);
                    (at, left) = (at + part.len() as u64, left - part.len());
                }
                pool.release(frame);
                place
            }
            Memory::Lent(_) if frame.has_frags() => {
                self.counts.rx_dropped += 1;
                return refuse(pool, frame, Errno::ENOSPC);
            }
            Memory::Lent(loans) => {
                let returned = loop {
                    let Some(address) = room.take(&mut self.fill) else {
                        self.counts.rx_fill_ring_empty_descs += 1;
                        return refuse(pool, frame, Errno::ENOBUFS);
                    };
                    match loans.take_back(pool, address) {
                        Some(frame) => break frame,
                        None => self.counts.rx_invalid_descs += 1,
                    }
                };
                pool.release(returned);
                match loans.lend(pool, frame) {
                    Ok(address) => address,
                    Err(frame) => {
                        // The chunk that was given is owed.
                        self.counts.rx_dropped += 1;
                        pool.release(frame);
                        loans.owe();
                        return Err(Errno::ENOMEM);
                    }
                }
            }
            Memory::Waiting(_) | Memory::Closed => return refuse(pool, frame, Errno::EBADF),
        };
        // There is room, and only this side puts entries in.
        room.rx -= 1;
        let _ = self.rx.stage(XdpDesc { addr: address, len, options: 0 });
        Ok(())
    }
}

impl SocketTarget for Xsk {
    fn id(&self) -> u64 {
        self.id
    }

    fn bound_to(&self) -> (u32, u32) {
        self.bound
    }

    fn deliver(&self, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.give(pool, burst)
    }

    fn room(&self) -> usize {
        let Some(mut inner) = self.open() else { return 0 };
        match inner.memory {
            // The next delivery makes it ready, or finds it closed.
            Memory::Waiting(_) | Memory::Closed => usize::MAX,
            Memory::Copy(_) | Memory::Lent(_) => {
                let wanted = Burst::MAX as u32;
                inner.rx.room(wanted).min(inner.fill.available(wanted)) as usize
            }
        }
    }

    fn flush(&self) {
        let Some(mut inner) = self.open() else { return };
        if !std::mem::take(&mut inner.untold) {
            return;
        }
        // Either the application's look after raising its flag sees the packets, or this sees the flag.
        fence(Ordering::SeqCst);
        if inner.rx.flags() & xsk::RING_NEED_WAKEUP != 0 {
            self.notice.ring();
        }
    }

    fn collect(&self, pool: &mut Pool, burst: &mut Burst) {
        self.take(pool, burst, Some(u64::from(u32::MAX)));
    }

    fn close(&self, pool: &mut Pool) {
        Xsk::close(self);
        if let Some(mut inner) = self.open() {
            self.ready(&mut inner, pool);
        }
    }

    fn may_sleep(&self) -> bool {
        let Some(mut inner) = self.open() else { return false };
        if inner.tx.flags() == 0 {
            inner.tx.set_flags(xsk::RING_NEED_WAKEUP);
            fence(Ordering::SeqCst);
        }
        let empty = inner.tx.available(1) == 0;
        if !empty {
            inner.tx.set_flags(0);
        }
        empty && (!self.closing.load(Ordering::Acquire) || self.settled())
    }
}
