//! Ports made of memory for the engine's tests, and programs in Rust.
#![allow(dead_code)] // each test file uses its part

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xway_abi::Errno;
use xway_engine::{
    Capabilities, Device, Executor, ExecutorInfo, LoadedProgram, Port, PortError, PortErrorKind, PortStats, Results,
    Rx, Sent, Support,
};
use xway_maps::{Guard, Map};
use xway_packet::{Burst, Frame, Pool, PoolConfig, SharedFrame};

/// Waits for something that must happen; a minute is for ever.
pub fn eventually(mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "it never happens");
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Number of a packet that a [`Wire`] made, counted for each queue.
pub fn frame_number(packet: &[u8]) -> u32 {
    u32::from_be_bytes([packet[0], packet[1], packet[2], packet[3]])
}

/// What goes wrong, in percent of the packets.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Received packets that are lost.
    pub loss: u32,
    /// That come twice.
    pub duplicate: u32,
    /// Whose bytes are damaged.
    pub corrupt: u32,
    /// Times that there is no frame for a packet.
    pub no_frame: u32,
    /// Sent packets for which there is no room.
    pub tx_full: u32,
    /// That cannot be sent.
    pub tx_fail: u32,
}

/// The test's side of a device made of memory.
#[derive(Clone)]
pub struct Wire {
    ifindex: u32,
    tx: Support,
    faults: Faults,
    /// Sent packets are counted and not kept.
    forgetful: bool,
    frame_max: u32,
    redirect_to: Support,
    /// Sending only reads.
    shares: bool,
    shared: Arc<Shared>,
}

struct Shared {
    queues: Vec<Queue>,
    sent: Mutex<Vec<Vec<u8>>>,
    sent_count: AtomicU64,
    passed: Mutex<Vec<Vec<u8>>>,
    passed_count: AtomicU64,
    lost: AtomicU64,
    duplicated: AtomicU64,
    received: AtomicU64,
    /// Every queue always has packets.
    flood: AtomicBool,
    /// What is sent waits inside `tx` until this is off.
    hold: AtomicBool,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<VecDeque<Vec<u8>>>,
    next: AtomicU32,
    taken: AtomicU32,
    broken: AtomicBool,
}

impl Wire {
    /// A device with so many queues.
    pub fn new(ifindex: u32, queues: u32) -> Wire {
        let shared = Shared {
            queues: (0..queues).map(|_| Queue::default()).collect(),
            sent: Mutex::default(),
            sent_count: AtomicU64::new(0),
            passed: Mutex::default(),
            passed_count: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            duplicated: AtomicU64::new(0),
            received: AtomicU64::new(0),
            flood: AtomicBool::new(false),
            hold: AtomicBool::new(false),
        };
        Wire {
            ifindex,
            tx: Support::Full,
            faults: Faults::default(),
            forgetful: false,
            frame_max: u32::MAX,
            redirect_to: Support::Full,
            shares: false,
            shared: Arc::new(shared),
        }
    }

    /// One that sends no longer frames than these.
    pub fn with_frame_max(self, frame_max: u32) -> Wire {
        Wire { frame_max, ..self }
    }

    /// One whose sending only reads frames.
    pub fn that_shares(self) -> Wire {
        Wire { shares: true, ..self }
    }

    /// One that nothing can be redirected to.
    pub fn without_redirect(self) -> Wire {
        Wire { redirect_to: Support::None, ..self }
    }

    /// One that cannot send what came in on it.
    pub fn without_tx(self) -> Wire {
        Wire { tx: Support::None, ..self }
    }

    /// One that does not keep what is sent to it.
    pub fn forgetful(self) -> Wire {
        Wire { forgetful: true, ..self }
    }

    /// One with faults.
    pub fn with_faults(self, faults: Faults) -> Wire {
        Wire { faults, ..self }
    }

    /// The engine's side.
    pub fn device(&self) -> Box<dyn Device> {
        Box::new(WireDevice { name: format!("wire{}", self.ifindex), wire: self.clone() })
    }

    /// Packets arrive at a queue, numbered on from those before.
    pub fn send(&self, queue: u32, count: u32) {
        let place = &self.shared.queues[queue as usize];
        let mut waiting = place.waiting.lock().unwrap();
        for _ in 0..count {
            waiting.push_back(make(place.next.fetch_add(1, Ordering::SeqCst), queue));
        }
    }

    /// These bytes arrive at a queue.
    pub fn send_packet(&self, queue: u32, packet: &[u8]) {
        let place = &self.shared.queues[queue as usize];
        let mut waiting = place.waiting.lock().unwrap();
        place.next.fetch_add(1, Ordering::SeqCst);
        waiting.push_back(packet.to_vec());
    }

    /// Packets arrive at every queue as fast as they are taken.
    pub fn flood(&self, on: bool) {
        self.shared.flood.store(on, Ordering::SeqCst);
    }

    /// What is sent waits.
    pub fn hold(&self, on: bool) {
        self.shared.hold.store(on, Ordering::SeqCst);
    }

    /// The queue fails from now on.
    pub fn break_queue(&self, queue: usize) {
        self.shared.queues[queue].broken.store(true, Ordering::SeqCst);
    }

    /// Packets that arrived so far.
    pub fn offered(&self) -> u64 {
        self.shared.queues.iter().map(|queue| u64::from(queue.next.load(Ordering::SeqCst))).sum()
    }

    /// Whether everything that arrived was taken.
    pub fn idle(&self) -> bool {
        self.shared.queues.iter().all(|q| q.taken.load(Ordering::SeqCst) == q.next.load(Ordering::SeqCst))
    }

    /// Whether everything that arrived at a queue was taken.
    pub fn queue_is_idle(&self, queue: u32) -> bool {
        let queue = &self.shared.queues[queue as usize];
        queue.taken.load(Ordering::SeqCst) == queue.next.load(Ordering::SeqCst)
    }

    /// Packets that were taken out of the queues.
    pub fn taken(&self) -> u64 {
        self.shared.queues.iter().map(|queue| u64::from(queue.taken.load(Ordering::SeqCst))).sum()
    }

    /// Frames that the engine got.
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::SeqCst)
    }

    /// Packets that a fault lost.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Packets that a fault doubled.
    pub fn duplicated(&self) -> u64 {
        self.shared.duplicated.load(Ordering::SeqCst)
    }

    /// How many reached the stack side.
    pub fn passed_count(&self) -> u64 {
        self.shared.passed_count.load(Ordering::SeqCst)
    }

    /// What was sent, in order.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        self.shared.sent.lock().unwrap().clone()
    }

    /// How many were sent.
    pub fn sent_count(&self) -> u64 {
        self.shared.sent_count.load(Ordering::SeqCst)
    }

    /// What reached the stack side, in order.
    pub fn passed(&self) -> Vec<Vec<u8>> {
        self.shared.passed.lock().unwrap().clone()
    }
}

fn make(number: u32, queue: u32) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[..4].copy_from_slice(&number.to_be_bytes());
    packet[4] = queue as u8;
    packet
}

struct WireDevice {
    name: String,
    wire: Wire,
}

impl Device for WireDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.wire.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pass: Support::Full,
            tx: self.wire.tx,
            redirect_to: self.wire.redirect_to,
            ..Capabilities::copying()
        }
    }

    fn rx_queues(&self) -> u32 {
        self.wire.shared.queues.len() as u32
    }

    fn pool(&self, _: u32) -> PoolConfig {
        PoolConfig::new(512)
    }

    fn open_queue(&mut self, queue: u32, _: &mut Pool) -> Result<Box<dyn Port>, PortError> {
        Ok(Box::new(WireQueue {
            name: self.name.clone(),
            wire: self.wire.clone(),
            queue,
            stats: PortStats::default(),
            dice: 0x9e37 + u64::from(queue),
        }))
    }
}

struct WireQueue {
    name: String,
    wire: Wire,
    queue: u32,
    stats: PortStats,
    dice: u64,
}

impl WireQueue {
    /// Whether something happens that happens in so many of a hundred cases.
    fn happens(&mut self, percent: u32) -> bool {
        if percent == 0 {
            return false;
        }
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % 100 < u64::from(percent)
    }
}

impl Port for WireQueue {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.wire.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::copying()
    }

    fn frame_max(&self) -> u32 {
        self.wire.frame_max
    }

    fn rx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        let wire = self.wire.clone();
        let (shared, faults) = (&*wire.shared, wire.faults);
        let place = &shared.queues[self.queue as usize];
        if place.broken.load(Ordering::SeqCst) {
            return Err(PortError::new(&*self.name, PortErrorKind::Missing, "cable cut"));
        }
        let mut waiting = place.waiting.lock().unwrap();
        if waiting.is_empty() && shared.flood.load(Ordering::SeqCst) {
            for _ in 0..16 {
                waiting.push_back(make(place.next.fetch_add(1, Ordering::SeqCst), self.queue));
            }
        }
        for _ in 0..budget.min(burst.room()) {
            let Some(packet) = waiting.front_mut() else { return Ok(Rx::Idle) };
            let frame = if self.happens(faults.no_frame) { None } else { pool.alloc().ok() };
            let Some(mut frame) = frame else {
                self.stats.no_frame += 1;
                return Ok(Rx::More);
            };
            if self.happens(faults.loss) {
                pool.release(frame);
                waiting.pop_front();
                place.taken.fetch_add(1, Ordering::SeqCst);
                shared.lost.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            if self.happens(faults.corrupt) {
                let at = (self.dice >> 20) as usize % packet.len();
                packet[at] ^= 0x55;
            }
            frame.fill(packet).unwrap();
            frame.set_ingress(self.wire.ifindex, self.queue);
            burst.push(frame).unwrap();
            self.stats.rx += 1;
            shared.received.fetch_add(1, Ordering::SeqCst);
            if self.happens(faults.duplicate) {
                shared.duplicated.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            waiting.pop_front();
            place.taken.fetch_add(1, Ordering::SeqCst);
        }
        Ok(Rx::More)
    }

    fn tx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let wire = self.wire.clone();
        while wire.shared.hold.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut sent = Sent::default();
        let mut kept = wire.shared.sent.lock().unwrap();
        for frame in burst.drain() {
            if self.happens(wire.faults.tx_full) {
                sent.full += 1;
            } else if self.happens(wire.faults.tx_fail) {
                (sent.failed, sent.errno) = (sent.failed + 1, Some(Errno::ENETDOWN));
            } else {
                sent.sent += 1;
                if !wire.forgetful {
                    kept.push(frame.packet().to_vec());
                }
            }
            pool.release(frame);
        }
        wire.shared.sent_count.fetch_add(sent.sent.into(), Ordering::SeqCst);
        sent
    }

    fn shares(&self) -> bool {
        self.wire.shares
    }

    fn tx_shared(&mut self, _: u32, frames: &[SharedFrame]) -> Sent {
        self.wire.shared.sent.lock().unwrap().extend(frames.iter().map(|frame| frame.packet().to_vec()));
        self.wire.shared.sent_count.fetch_add(frames.len() as u64, Ordering::SeqCst);
        Sent::all(frames.len())
    }

    fn pass(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let count = burst.len();
        if !self.wire.forgetful {
            self.wire.shared.passed.lock().unwrap().extend(burst.frames().iter().map(|frame| frame.packet().to_vec()));
        }
        self.wire.shared.passed_count.fetch_add(count as u64, Ordering::SeqCst);
        pool.release_burst(burst);
        Sent::all(count)
    }

    fn stats(&mut self) -> PortStats {
        self.stats.clone()
    }
}

/// What a program in Rust does with one frame: worker, frame, r0.
type Step = dyn Fn(u32, &mut Frame) -> u64 + Send + Sync;

/// A program in Rust.
pub struct Rust {
    id: u32,
    maps: Vec<Arc<Map>>,
    step: Arc<Step>,
}

impl Rust {
    /// A program with an id of its own.
    pub fn new(step: impl Fn(u32, &mut Frame) -> u64 + Send + Sync + 'static) -> Arc<Rust> {
        Rust::with_maps(Vec::new(), step)
    }

    /// The same with maps.
    pub fn with_maps(maps: Vec<Arc<Map>>, step: impl Fn(u32, &mut Frame) -> u64 + Send + Sync + 'static) -> Arc<Rust> {
        static NEXT: AtomicU32 = AtomicU32::new(1000);
        Arc::new(Rust { id: NEXT.fetch_add(1, Ordering::Relaxed), maps, step: Arc::new(step) })
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl LoadedProgram for Rust {
    fn id(&self) -> u32 {
        self.id
    }

    fn name(&self) -> &str {
        "rust"
    }

    fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    fn executor(&self, worker: u32) -> Box<dyn Executor> {
        Box::new(RustExecutor { worker, step: self.step.clone() })
    }
}

struct RustExecutor {
    worker: u32,
    step: Arc<Step>,
}

impl Executor for RustExecutor {
    fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
        frames.iter_mut().for_each(|frame| results.push((self.step)(self.worker, frame), 1));
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: "rust".into(), engine: "rust" }
    }
}
