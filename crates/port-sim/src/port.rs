//! The port over either kind of source.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use xway_abi::Errno;
use xway_engine::{Backlog, Capabilities, MemoryModel, Port, PortError, PortStats, Rx, Sent, Support};
use xway_packet::{Burst, Frame, Pool, SharedFrame};

use crate::pair::{End, Home};
use crate::sink::{Sink, Way};
use crate::traffic::{Packets, Traffic};

/// A port in memory. See the crate's documentation for the two kinds.
pub struct SimPort {
    name: String,
    ifindex: u32,
    stats: PortStats,
    kind: Kind,
    /// Where an end goes when the port is closed.
    home: Option<Home>,
}

impl Drop for SimPort {
    fn drop(&mut self) {
        if let (Kind::End(end), Some(home)) = (&mut self.kind, &self.home)
            && let Some(end) = end.take()
        {
            home.give_back(end);
        }
    }
}

enum Kind {
    Generated(Generated),
    /// `None` only while it is dropped.
    End(Option<End>),
}

struct Generated {
    traffic: Arc<Traffic>,
    queues: Vec<Queue>,
    sink: Sink,
    /// The most packets that one call receives.
    burst: usize,
    /// Packets that are longer than a frame come in several buffers; without it they are cut.
    frags: bool,
}

/// Where a queue is in the traffic.
#[derive(Clone, Copy)]
struct Queue {
    turn: usize,
    /// Number of the next packet.
    next: u64,
    left: u64,
}

impl SimPort {
    /// A port that receives `traffic`, `count` packets of it or without end, and counts what is sent. `ifindex` is not 0.
    pub fn generated(name: &str, ifindex: u32, traffic: Traffic, count: Option<u64>) -> (SimPort, Sink) {
        let sink = Sink::default();
        let port = SimPort::generated_queues(name, ifindex, Arc::new(traffic), count, 1, sink.clone());
        (port, sink)
    }

    /// The same with several queues, each of which receives `count` packets, and a sink that several ports may share. The
    /// queues start evenly spread over the traffic.
    pub fn generated_queues(
        name: &str,
        ifindex: u32,
        traffic: Arc<Traffic>,
        count: Option<u64>,
        queues: u32,
        sink: Sink,
    ) -> SimPort {
        let queues = u64::from(queues.max(1));
        let start = |number: u64| (traffic.period() as u64 * number / queues) as usize;
        let queue = |number| Queue { turn: start(number), next: 1, left: count.unwrap_or(u64::MAX) };
        let queues = (0..queues).map(queue).collect();
        let generated = Generated { traffic, queues, sink, burst: Burst::MAX, frags: false };
        SimPort::new(name, ifindex, Kind::Generated(generated), None)
    }

    /// The same, receiving packets that are longer than a frame in several buffers; programs must be made for that (`xdp.frags`).
    pub fn with_frags(mut self, on: bool) -> SimPort {
        if let Kind::Generated(generated) = &mut self.kind {
            generated.frags = on;
        }
        self
    }

    /// The same, receiving at most so many packets at a time: what a burst is worth shows in how much a packet costs without one.
    pub fn in_bursts_of(mut self, burst: usize) -> SimPort {
        if let Kind::Generated(generated) = &mut self.kind {
            generated.burst = burst.clamp(1, Burst::MAX);
        }
        self
    }

    pub(crate) fn end(name: &str, ifindex: u32, end: End, home: Option<Home>) -> SimPort {
        SimPort::new(name, ifindex, Kind::End(Some(end)), home)
    }

    fn new(name: &str, ifindex: u32, kind: Kind, home: Option<Home>) -> SimPort {
        SimPort { name: format!("sim:{name}"), ifindex, stats: PortStats::default(), kind, home }
    }

    /// As [`SimPort::offers`], receiving packets of several buffers or none.
    pub(crate) const fn offers_with(frags: bool) -> Capabilities {
        Capabilities { multi_buffer: frags, ..SimPort::offers() }
    }

    /// The most that a port in memory can do; what the pool gives is what programs get.
    pub const fn offers() -> Capabilities {
        Capabilities {
            pass: Support::Full,
            tx: Support::Full,
            redirect_to: Support::Full,
            multi_buffer_tx: true,
            zero_copy: true,
            memory: MemoryModel::Shared,
            ..Capabilities::copying()
        }
    }
}

impl Port for SimPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn queues(&self) -> u32 {
        match &self.kind {
            Kind::Generated(generated) => generated.queues.len() as u32,
            Kind::End(end) => end.as_ref().map_or(1, End::queues),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let frags = match &self.kind {
            Kind::Generated(generated) => generated.frags,
            Kind::End(end) => return End::offers(end.as_ref().is_some_and(End::frags)),
        };
        SimPort::offers_with(frags)
    }

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        Ok(match &mut self.kind {
            Kind::Generated(generated) => generated.rx(self.ifindex, queue, pool, burst, budget, &mut self.stats),
            Kind::End(Some(end)) => {
                let before = burst.len();
                let state = end.rx(self.ifindex, queue, burst, budget);
                let received = &burst.frames()[before..];
                self.stats.rx += received.len() as u64;
                self.stats.rx_bytes += received.iter().map(|frame| frame.total_len() as u64).sum::<u64>();
                state
            }
            Kind::End(None) => Rx::End,
        })
    }

    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let sent = match &mut self.kind {
            Kind::Generated(generated) => generated.take(Way::Sent, pool, burst),
            Kind::End(Some(end)) => end.send(queue, burst, pool),
            Kind::End(None) => (Sent::none(burst.len(), Errno::ENODEV), 0),
        };
        self.stats.tx += u64::from(sent.0.sent);
        self.stats.tx_bytes += sent.1;
        sent.0
    }

    fn backlog(&mut self, queue: u32, _: &mut Pool) -> Option<Backlog> {
        match &mut self.kind {
            Kind::Generated(_) => None,
            Kind::End(end) => end.as_mut().map(|end| end.backlog(queue)),
        }
    }

    fn shares(&self) -> bool {
        matches!(self.kind, Kind::Generated(_))
    }

    fn tx_shared(&mut self, _queue: u32, frames: &[SharedFrame]) -> Sent {
        let Kind::Generated(generated) = &mut self.kind else {
            // The other end of a pair gets frames to keep.
            return Sent::none(frames.len(), Errno::EOPNOTSUPP);
        };
        let (count, bytes) = generated.sink.take(Way::Sent, frames.iter().map(|frame| &**frame));
        self.stats.tx += count;
        self.stats.tx_bytes += bytes;
        Sent::all(frames.len())
    }

    fn pass(&mut self, _queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        match &mut self.kind {
            Kind::Generated(generated) => generated.take(Way::Passed, pool, burst).0,
            // No host is behind the end of a pair: what passes ends here.
            Kind::End(_) => {
                let count = burst.len();
                pool.release_burst(burst);
                Sent::all(count)
            }
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        if let Kind::End(Some(end)) = &mut self.kind {
            end.ring();
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Kind::Generated(_) => None,
            Kind::End(end) => end.as_ref().map(End::fd),
        }
    }

    fn stats(&mut self) -> PortStats {
        self.stats.clone()
    }
}

impl Generated {
    #[inline]
    fn rx(
        &mut self,
        ifindex: u32,
        queue: u32,
        pool: &mut Pool,
        burst: &mut Burst,
        budget: usize,
        stats: &mut PortStats,
    ) -> Rx {
        let Some(at) = self.queues.get_mut(queue as usize) else { return Rx::End };
        let wanted = budget.min(self.burst).min(burst.room()).min(usize::try_from(at.left).unwrap_or(usize::MAX));
        let start = || Play { packets: self.traffic.packets(), at: *at, ingress: (ifindex, queue), bytes: 0, cut: 0 };
        let (play, got) = if self.frags && self.traffic.longest() > pool.capacity() as usize {
            start().long(pool, burst, wanted)
        } else {
            // In a variable that nothing else is shown, so that all of it is in registers while the frames are filled.
            let mut play = start();
            let got = pool.alloc_each(burst, wanted, |frame| play.short(frame));
            (play, got)
        };
        stats.rx += got as u64;
        stats.rx_bytes += play.bytes;
        stats.truncated += play.cut;
        stats.no_frame += u64::from(got < wanted);
        *at = Queue { left: at.left - got as u64, ..play.at };
        if at.left == 0 { Rx::End } else { Rx::More }
    }

    #[inline]
    fn take(&mut self, way: Way, pool: &mut Pool, burst: &mut Burst) -> (Sent, u64) {
        let (frames, bytes) = self.sink.take(way, burst.frames().iter());
        pool.release_burst(burst);
        (Sent::all(frames as usize), bytes)
    }
}

/// The traffic of one burst.
struct Play<'t> {
    packets: Packets<'t>,
    at: Queue,
    /// Interface index and queue.
    ingress: (u32, u32),
    /// That are in frames.
    bytes: u64,
    /// Packets that are longer than their frame.
    cut: u64,
}

impl Play<'_> {
    /// Puts the next packet into a fresh frame, as much of it as goes in.
    #[inline(always)]
    fn short(&mut self, frame: &mut Frame) {
        let (bytes, len) = self.packets.at(self.at.turn);
        let kept = match bytes.first_chunk() {
            Some(line) if len <= line.len() => frame.receive_line(line, len),
            _ => fill(frame, &bytes[..len]),
        };
        if kept < len {
            frame.set_cut((len - kept) as u32);
            self.cut += 1;
        }
        self.arrived(frame, kept);
    }

    /// Receives packets in as many buffers as they need, and says how many there were frames for.
    fn long(mut self, pool: &mut Pool, burst: &mut Burst, wanted: usize) -> (Self, usize) {
        for got in 0..wanted {
            let (bytes, len) = self.packets.at(self.at.turn);
            let Ok(mut frame) = pool.frame_of(&bytes[..len]) else { return (self, got) };
            self.arrived(&mut frame, len);
            if let Err(frame) = burst.push(frame) {
                pool.release(frame); // never: there is room
                return (self, got);
            }
        }
        (self, wanted)
    }

    #[inline(always)]
    fn arrived(&mut self, frame: &mut Frame, kept: usize) {
        self.bytes += kept as u64;
        self.at.turn = if self.at.turn + 1 == self.packets.period() { 0 } else { self.at.turn + 1 };
        frame.set_ingress(self.ingress.0, self.ingress.1);
        frame.set_packet_id(self.at.next);
        self.at.next += 1;
    }
}

/// Makes as much of the packet as there is room for the frame's, and says how much that is. (Out of line: the compiler would make one
/// copy of any length of this and of a line's.)
#[inline(never)]
fn fill(frame: &mut Frame, packet: &[u8]) -> usize {
    let kept = packet.len().min(frame.capacity());
    match frame.fill(&packet[..kept]) {
        Ok(()) => kept,
        Err(_) => 0, // never: it has room
    }
}
