//! AF_XDP-style sockets that the engine serves: receive and drop, send, receive and send back.
//!
//! Everything is as it is in use: an engine with a port in memory on one core, a server, an application with the client crate on
//! another core, rings and memory between them in sealed files. The figure is the application's: packets that it got, or that the port
//! sent for it, per second. Before anything is timed, contents are compared; after it, what was sent is counted at the port.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use xway_abi::xsk;
use xway_engine::{AttachFlags, Engine, EngineConfig, HookPoint, Linked, PortConfig};
use xway_maps::Map;
use xway_object::{Object, Select};
use xway_packet::{Backing, PoolConfig};
use xway_port_sim::{Seen, SimDevice, Sink, Traffic};
use xway_verifier::Config;
use xway_vm::Instance;
use xway_xsk::{EngineQueues, Policy, Server};
use xway_xsk_client::{Bind, Connection, Fate, Socket};

use crate::forward::{Action, ForwardOptions, Operation, forward};
use crate::measure::{MeasureError, Stat, pin};

/// What the application does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Gives back every packet that comes.
    Drop,
    /// Sends packets that it makes.
    Push,
    /// Sends back every packet that comes, with its addresses exchanged.
    Forward,
}

impl Work {
    /// As the command calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Work::Drop => "xsk-drop",
            Work::Push => "xsk-push",
            Work::Forward => "xsk-fwd",
        }
    }

    /// How many times the kernel's live-frame drop rate is wanted of it, without copies and on another core.
    pub const fn goal(self) -> f64 {
        match self {
            Work::Drop | Work::Push => 2.0,
            Work::Forward => 1.5,
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// What the application does.
    pub work: Work,
    /// Bytes of a packet.
    pub size: u32,
    /// Packets in a round.
    pub count: u64,
    /// Rounds.
    pub rounds: u32,
    /// Whether packets are copied.
    pub copy: bool,
    /// Whether a program sends packets to the socket, through an XSKMAP; otherwise the queue is the socket's, past all programs.
    pub program: bool,
    /// Cores of the engine and of the application.
    pub cpus: (u32, u32),
    /// Whether to measure the kernel dropping live frames, in turns.
    pub kernel: bool,
}

/// What was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct SocketReport {
    /// Nanoseconds for each packet.
    pub ns: Stat,
    /// Packets in all rounds.
    pub packets: u64,
    /// Packets compared before the first round.
    pub compared: u64,
    /// Packets that the port had for the application while it had no room, in all rounds.
    pub missed: u64,
    /// The kernel's nanoseconds for each frame that it drops, or why it was not measured.
    pub kernel: Result<Stat, String>,
}

impl SocketReport {
    /// Packets a second, in relation to the kernel's live-frame drop rate.
    pub fn ratio(&self) -> Option<f64> {
        let kernel = self.kernel.as_ref().ok()?;
        (self.ns.median > 0.0).then(|| kernel.median / self.ns.median)
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A core cannot be had.
    #[error(transparent)]
    Pin(#[from] MeasureError),
    /// Engine, server or client could not be set up.
    #[error("{0}")]
    Setup(String),
    /// What arrived is not what was sent.
    #[error("{0}")]
    Wrong(String),
}

fn setup(error: impl std::fmt::Display) -> SocketError {
    SocketError::Setup(error.to_string())
}

/// Measures.
///
/// # Errors
/// Something could not be set up, or packets did not arrive as they were sent.
pub fn sockets(options: &SocketOptions) -> Result<SocketReport, SocketError> {
    // A thread of its own, because it is pinned.
    std::thread::scope(|scope| match scope.spawn(|| measured(options)).join() {
        Ok(report) => report,
        Err(_) => Err(SocketError::Setup("the measuring thread ended early".into())),
    })
}

const IFINDEX: u32 = 10;
const ENTRIES: u32 = 2048;
const FLOWS: u32 = 64;

fn measured(options: &SocketOptions) -> Result<SocketReport, SocketError> {
    pin(options.cpus.1)?;
    let traffic = Traffic::udp(FLOWS, options.size as usize, xway_port_sim::Pattern::Scan, 1).map_err(setup)?;
    let mut site = Site::new(options, &traffic)?;
    let compared = site.compare(&traffic)?;
    let (mut ours, mut kernel) =
        (Vec::new(), if options.kernel { Ok(Vec::new()) } else { Err("not asked for".to_owned()) });
    let mut missed = 0;
    for _ in 0..options.rounds.max(1) {
        let before = site.missed()?;
        ours.push(site.round(options.count)?);
        missed += site.missed()? - before;
        if let Ok(rounds) = &mut kernel {
            match kernel_round(options, &traffic) {
                Ok(ns) => rounds.push(ns),
                Err(why) => kernel = Err(why),
            }
        }
    }
    site.end()?;
    let packets = options.count * ours.len() as u64;
    Ok(SocketReport { ns: Stat::of(ours), packets, compared, missed, kernel: kernel.map(Stat::of) })
}

/// The kernel drops frames of its own making on one core: the rate that sockets are held against.
fn kernel_round(options: &SocketOptions, traffic: &Traffic) -> Result<f64, String> {
    let drop = ForwardOptions {
        count: options.count.min(4_000_000),
        cpu: options.cpus.1,
        kernel: true,
        ..ForwardOptions::new(Action::Drop, Operation::NoTouch)
    };
    let report = forward(&drop, traffic).map_err(|e| e.to_string())?;
    report.kernel.map(|side| side.ns.median)
}

/// An engine, a server and an application.
struct Site {
    work: Work,
    size: usize,
    socket: Socket,
    connection: Connection,
    server: Option<Server>,
    engine: Arc<Engine>,
    sink: Sink,
}

impl Site {
    fn new(options: &SocketOptions, traffic: &Traffic) -> Result<Site, SocketError> {
        let (engine_cpu, _) = options.cpus;
        let config = EngineConfig { cpus: vec![engine_cpu as usize], idle_polls: u32::MAX, ..EngineConfig::default() };
        let engine = Arc::new(Engine::start(config).map_err(setup)?);
        // Who only sends gets nothing.
        let arrivals = if options.work == Work::Push { Some(0) } else { None };
        let (device, sink) = SimDevice::generated("bench", IFINDEX, traffic.clone(), arrivals, 1);
        let pool = PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(4 * ENTRIES) };
        let port = PortConfig { pool: Some(pool), ..PortConfig::default() };
        engine.open(Box::new(device), port).map_err(setup)?;
        let path = socket_path();
        let server = Server::listen(&path, Arc::new(EngineQueues(engine.clone())), Policy::default()).map_err(setup)?;
        if options.program {
            server.fill_map(attach(&engine)?);
        }
        let mut connection = Connection::open(&path).map_err(setup)?;
        let umem = connection.umem(2 * ENTRIES, 2048, 0).map_err(setup)?;
        let mode = if options.copy { xsk::bind::COPY } else { xsk::bind::ZEROCOPY };
        let flags = mode | xsk::bind::USE_NEED_WAKEUP;
        let name = engine.ports().first().map(|port| port.name.clone()).unwrap_or_default();
        let bind = Bind {
            flags,
            direct: options.work != Work::Push && !options.program,
            chunks: ENTRIES,
            ..Bind::new(name, 0)
        };
        let socket = connection.bind(&umem, &bind).map_err(setup)?;
        let (work, size) = (options.work, options.size as usize);
        Ok(Site { work, size, socket, connection, server: Some(server), engine, sink })
    }

    /// Packets that found no room at the socket.
    fn missed(&mut self) -> Result<u64, SocketError> {
        let s = self.connection.statistics(&self.socket).map_err(setup)?;
        Ok(s.rx_ring_full + s.rx_fill_ring_empty_descs)
    }

    /// Looks at each packet: those that come are of the traffic, those that leave are counted and have the digest that they should.
    fn compare(&mut self, traffic: &Traffic) -> Result<u64, SocketError> {
        const COUNT: u64 = 20_000;
        let known: std::collections::HashSet<Vec<u8>> =
            (0..traffic.period()).map(|turn| traffic.packet(turn).to_vec()).collect();
        let (mut strange, mut swapped) = (0u64, 0u64);
        self.sink.inspect(self.work != Work::Drop);
        self.run(COUNT, |packet| {
            strange += u64::from(!known.contains(&*packet));
            let mut back = packet.to_vec();
            swap(&mut back);
            swapped = swapped.wrapping_add(Seen::digest_of(&back));
        })?;
        if self.work != Work::Drop {
            let one = Seen::digest_of(&template(self.size));
            let as_sent = |sink: &Sink| match self.work {
                Work::Push => sink.sent().digest == one.wrapping_mul(sink.sent().frames),
                _ => sink.sent().digest == swapped,
            };
            // Frames are counted a moment before they are looked at.
            let deadline = Instant::now() + Duration::from_secs(10);
            while !as_sent(&self.sink) && Instant::now() < deadline {
                std::hint::spin_loop();
            }
            strange += u64::from(!as_sent(&self.sink));
        }
        self.sink.inspect(false);
        match strange {
            0 => Ok(COUNT),
            n => Err(SocketError::Wrong(format!("{n} of {COUNT} packets are not what was sent"))),
        }
    }

    /// Nanoseconds for each of `count` packets.
    fn round(&mut self, count: u64) -> Result<f64, SocketError> {
        let start = Instant::now();
        let done = self.run(count, |_| {})?;
        Ok(start.elapsed().as_nanos() as f64 / done.max(1) as f64)
    }

    /// The application's loop. `look` sees each packet that comes, before it is changed.
    fn run(&mut self, count: u64, mut look: impl FnMut(&mut [u8])) -> Result<u64, SocketError> {
        const BATCH: usize = 64;
        let deadline = Instant::now() + Duration::from_secs(60);
        let sent_before = self.sink.sent().frames;
        let (mut done, mut idle) = (0u64, 0u32);
        let packet = template(self.size);
        while done < count {
            let step = match self.work {
                Work::Drop => {
                    let step = self.socket.process(BATCH, |packet| {
                        look(packet);
                        Fate::Free
                    });
                    self.socket.fill(ENTRIES / 2);
                    step
                }
                Work::Forward => {
                    let step = self.socket.process(BATCH, |packet| {
                        look(packet);
                        swap(packet);
                        Fate::Send
                    });
                    self.socket.flush();
                    self.socket.fill(ENTRIES / 2);
                    step
                }
                Work::Push => {
                    let len = packet.len();
                    let step = self.socket.produce(BATCH, |room| {
                        room[..len].copy_from_slice(&packet);
                        len
                    });
                    self.socket.flush();
                    step
                }
            };
            done += step as u64;
            idle = if step == 0 { idle + 1 } else { 0 };
            if step == 0 {
                std::hint::spin_loop();
                if idle.is_multiple_of(1 << 20) && Instant::now() > deadline {
                    return Err(SocketError::Wrong(format!("{done} of {count} packets came in a minute")));
                }
            }
        }
        if self.work != Work::Drop {
            self.await_sent(sent_before, done, deadline)?;
        }
        Ok(done)
    }

    /// What was sent leaves by the port.
    fn await_sent(&mut self, before: u64, count: u64, deadline: Instant) -> Result<(), SocketError> {
        loop {
            let sent = self.sink.sent().frames - before;
            if sent >= count {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(SocketError::Wrong(format!("{sent} of {count} packets left by the port")));
            }
            self.socket.reap();
            std::hint::spin_loop();
        }
    }

    /// Every frame comes home.
    fn end(self) -> Result<(), SocketError> {
        let Site { socket, connection, server, engine, .. } = self;
        drop((socket, connection, server));
        let Some(engine) = Arc::into_inner(engine) else {
            return Err(SocketError::Setup("the server still has the engine".into()));
        };
        match engine.stop().queues.into_iter().find_map(|queue| queue.leak) {
            Some(leak) => Err(SocketError::Wrong(leak.to_string())),
            None => Ok(()),
        }
    }
}

/// Attaches the program that sends each packet to the socket of its queue; gives the map that it does so by.
fn attach(engine: &Engine) -> Result<Arc<Map>, SocketError> {
    let bytes = crate::forward::object().ok_or_else(|| setup(crate::suite::missing().unwrap_or("not built")))?;
    let object = Object::parse(bytes, &Default::default()).map_err(setup)?;
    let instance = Instance::verified(Arc::new(object), 1, Config::default()).map_err(setup)?;
    let image = instance.object().select(&Select::Name("redirect_xsk".into())).and_then(xway_object::Program::as_xdp);
    let linked = Linked::new(instance.link(&image.map_err(setup)?).map_err(setup)?);
    let map = instance.map("xsks").cloned().ok_or_else(|| setup("the program has no map xsks"))?;
    let point = HookPoint { ifindex: IFINDEX, queue: None };
    engine.attach(point, Arc::new(linked), AttachFlags::default()).map_err(setup)?;
    Ok(map)
}

/// Another one each time: several may be measured in one process.
fn socket_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("xway-bench-xsk-{}-{number}", std::process::id()))
}

/// What is pushed.
fn template(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7) as u8).collect()
}

/// Exchanges the MAC addresses.
fn swap(packet: &mut [u8]) {
    if let Some((to, rest)) = packet.split_at_mut_checked(6)
        && let Some(from) = rest.get_mut(..6)
    {
        to.swap_with_slice(from);
    }
}
