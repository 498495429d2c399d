//! Ports made of memory for the engine's tests, and programs in Rust.
#![allow(dead_code)] // each test file uses its part

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

/// The test's side of a device made of memory.
#[derive(Clone)]
pub struct Wire {
    ifindex: u32,
    tx: Support,
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
            flood: AtomicBool::new(false),
            hold: AtomicBool::new(false),
        };
        Wire {
            ifindex,
            tx: Support::Full,
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
        Ok(Box::new(WireQueue { name: self.name.clone(), wire: self.wire.clone(), queue, stats: PortStats::default() }))
    }
}

struct WireQueue {
    name: String,
    wire: Wire,
    queue: u32,
    stats: PortStats,
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
        let shared = &*wire.shared;
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
            let Some(packet) = waiting.front() else { return Ok(Rx::Idle) };
            let Ok(mut frame) = pool.alloc() else {
                self.stats.no_frame += 1;
                return Ok(Rx::More);
            };
            frame.fill(packet).unwrap();
            frame.set_ingress(self.wire.ifindex, self.queue);
            burst.push(frame).unwrap();
            self.stats.rx += 1;
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
        let count = burst.len();
        wire.shared.sent.lock().unwrap().extend(burst.frames().iter().map(|frame| frame.packet().to_vec()));
        wire.shared.sent_count.fetch_add(count as u64, Ordering::SeqCst);
        pool.release_burst(burst);
        Sent::all(count)
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
        self.wire.shared.passed.lock().unwrap().extend(burst.frames().iter().map(|frame| frame.packet().to_vec()));
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
