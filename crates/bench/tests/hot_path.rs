//! The path of a packet: no allocation and no system call. Through one worker: DROP, PASS, TX, REDIRECT, a chain and a broadcast.
//! Between workers: a CPUMAP, frames handed to the owner of a port, steering. To sockets that are served, from a program through an
//! XSKMAP or past all programs, to the application and back, with copies and without. And what programs cost that ask for more than their
//! packet (`asking`).
//!
//! A counting allocator sees every allocation of the threads that are watched; strace sees every system call of theirs between two marks.
#![allow(unsafe_code)] // a global allocator

#[path = "hot_path/asking.rs"]
mod asking;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use asking::{ASKING, Asking};
use xway_engine::steer::{KEY_PUBLISHED, Rss, Steering};
use xway_engine::{
    AttachFlags, Attached, Engine, EngineConfig, HookPoint, PortConfig, SocketEntry, SocketTarget, VerdictSet,
};
use xway_engine::{Executor, ExecutorInfo, Limits, Linked, LoadedProgram, Port, Results, Stop, Worker, WorkerConfig};
use xway_maps::Guard;
use xway_object::{Object, Select};
use xway_packet::ring::XdpDesc;
use xway_packet::ring::spsc::{Consumer, Producer};
use xway_packet::{Backing, Burst, Frame, Pool, PoolConfig, SharedMemory};
use xway_port_sim::{Pattern, SimDevice, SimPort, Sink, Traffic};
use xway_testkit::Needs;
use xway_verifier::Config;
use xway_vm::Instance;
use xway_xsk::{Mode, Shape, Umem, Xsk};
use xway_xsk_client::rings::{Rings, Sizes};

struct Counting;

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Workers of an engine that are watched, by thread; 0 for none.
static WORKERS: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];
/// Allocations of theirs.
static OF_WORKERS: AtomicU64 = AtomicU64::new(0);

fn seen() {
    // A thread that is ending has no cells any more, and nothing to count.
    let _ = COUNTING.try_with(|on| on.get().then(|| COUNT.with(|count| count.set(count.get() + 1))));
    let is = |worker: &AtomicU32, thread: u32| worker.load(Ordering::Relaxed) == thread;
    if !WORKERS.iter().all(|worker| is(worker, 0)) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        if WORKERS.iter().any(|worker| is(worker, thread)) {
            OF_WORKERS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Threads of the engine that runs in this process.
fn workers() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let number = |entry: std::fs::DirEntry| {
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        name.starts_with("xway-worker").then(|| entry.file_name().to_string_lossy().parse().unwrap())
    };
    tasks.flatten().filter_map(number).collect()
}

// SAFETY: every call is handed to the system's allocator unchanged; counting touches cells of the thread only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        seen();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        seen();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        seen();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bursts before everything is warm, and bursts that are watched.
const WARM: u64 = 200;
const WATCHED: u64 = 2000;

/// Runs a program and calls `mark` at the first watched burst and behind the last one.
struct Watched<F> {
    inner: Box<dyn Executor>,
    bursts: u64,
    mark: F,
}

impl<F: FnMut(bool) + Send> Executor for Watched<F> {
    fn run(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        self.bursts += 1;
        if self.bursts == WARM {
            (self.mark)(true);
        }
        if self.bursts == WARM + WATCHED {
            (self.mark)(false);
        }
        self.inner.run(frames, guard, results);
    }

    fn info(&self) -> ExecutorInfo {
        self.inner.info()
    }
}

/// Programs of `bpf/forward` and where their packets arrive: nowhere, at the first port, at the second.
const PROGRAMS: [(&str, usize); 5] = [
    ("drop_no_touch", 0),
    ("drop_parse_ip", 0),
    ("tx_swap_macs", 1),
    ("redirect_swap_macs", 2),
    ("redirect_map_swap_macs", 2),
];

fn run(name: &str, arrives: usize, mark: impl FnMut(bool) + Send + 'static) {
    let object = Object::parse(xway_bench::forward::object().unwrap(), &Default::default()).unwrap();
    let image = object.select(&Select::Name(name.into())).and_then(xway_object::Program::as_xdp).unwrap();
    let instance = Instance::verified(Arc::new(object), 1, Config::default()).unwrap();
    let value = [12u32.to_ne_bytes(), [0xff; 4]].concat();
    instance.map("ports").unwrap().update(&[0; 4], &value, 0).unwrap();
    let linked = Linked::new(instance.link(&image).unwrap());
    assert_eq!(linked.choice().name(), "jit", "{:?}", linked.choice().reason);
    through_a_worker(name, &linked, arrives, mark);
}

/// Runs one that asks for more, in a network namespace of its own: nobody changes its routes meanwhile.
fn ask(asking: Asking, mark: impl FnMut(bool) + Send + 'static) {
    // SAFETY: this thread was made for this and ends behind it; it shares its descriptors with the others as before, and nothing of its
    // memory goes by the network that it sees.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
    through_a_worker(asking.name, &asking.linked(), 0, mark);
}

/// Packets through one worker; where they arrive.
fn through_a_worker(name: &str, linked: &Linked, arrives: usize, mark: impl FnMut(bool) + Send + 'static) {
    let traffic = Traffic::udp(100, 64, Pattern::Uniform, 1).unwrap();
    let count = (WARM + WATCHED + 100) * 64;
    let (input, first) = SimPort::generated("in", 10, traffic.clone(), Some(count));
    let second = Sink::default();
    let output = SimPort::generated_queues("out", 12, Arc::new(traffic), Some(0), 1, second.clone());
    let ports: Vec<Box<dyn Port>> = vec![Box::new(input), Box::new(output)];
    let executor = Watched { inner: linked.executor(0), bursts: 0, mark };
    let mut config = WorkerConfig::new(Stop::new().unwrap());
    config.maps = linked.maps().to_vec();
    config.limits = Limits { count: Some(count), timeout: None };
    let pool = Pool::new(PoolConfig::new(256)).unwrap();
    let report = Worker::new(ports, Box::new(executor), pool, config).run();
    assert_eq!((report.counters.rx, report.leak), (count, None));
    let aborted = report.counters.verdict(xway_abi::Verdict::Aborted);
    assert_eq!((aborted, report.counters.exceptions), (0, 0), "{name}");
    let arrived = [first.sent().frames, second.sent().frames];
    let expected = [1, 2].map(|sink| if arrives == sink { count } else { 0 });
    assert_eq!(arrived, expected, "{name}");
}

/// Bursts of 64 packets to a socket and back: what the worker of its queue does with it, and what the application does with the rings,
/// which is awake.
fn serve(copies: bool, mut mark: impl FnMut(bool)) {
    const ENTRIES: u32 = 256;
    let mut pool = Pool::new(PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(4 * ENTRIES) }).unwrap();
    let sizes = Sizes { fill: ENTRIES, completion: ENTRIES, rx: ENTRIES, tx: ENTRIES };
    let mode = match copies {
        true => Mode::Copy(Arc::new(Umem::create(ENTRIES, 2048, 0).unwrap())),
        false => Mode::ZeroCopy(ENTRIES),
    };
    let socket = Xsk::new(&Shape { bound: (1, 0), sizes, mode, weight: 1, snap: None }).unwrap();
    let memory = SharedMemory::map(socket.rings_fd().unwrap(), 0, sizes.bytes()).unwrap();
    let rings = Rings::over(&Arc::new(memory), sizes).unwrap();
    let (mut fill, mut rx) = (Producer::attach(rings.fill).unwrap(), Consumer::attach(rings.rx).unwrap());
    let (mut tx, mut completion) = (Producer::attach(rings.tx).unwrap(), Consumer::attach(rings.completion).unwrap());
    let (mut burst, mut free) = (Burst::new(), [0u64; ENTRIES as usize]);
    // The first call lends what is lent.
    socket.collect(&mut pool, &mut burst);
    let chunks: Vec<u64> = (0..u64::from(ENTRIES)).map(|chunk| chunk * 2048).collect();
    let lent = completion.pop_slice(&mut free);
    fill.push_slice(if copies { &chunks } else { &free[..lent] });
    let mut descs = [XdpDesc::default(); 64];
    for round in 0..WARM + WATCHED {
        if round == WARM {
            mark(true);
        }
        assert_eq!(pool.alloc_burst(&mut burst, 64), 64);
        for frame in burst.frames_mut() {
            frame.set_len(64).unwrap();
        }
        assert_eq!(socket.deliver(&mut pool, &mut burst).sent, 64);
        socket.flush();
        assert_eq!(rx.pop_slice(&mut descs), 64);
        assert_eq!(tx.push_slice(&descs), 64);
        socket.collect(&mut pool, &mut burst);
        assert_eq!(burst.len(), 64);
        pool.release_burst(&mut burst);
        let back = completion.pop_slice(&mut free);
        assert_eq!(fill.push_slice(&free[..back]), back);
    }
    mark(false);
    socket.close();
    socket.collect(&mut pool, &mut burst);
    pool.close().unwrap();
}

/// Ways of a packet for which it takes an engine.
const WAYS: [&str; 8] =
    ["pass", "chain", "broadcast", "cpumap", "relay", "steering", "xskmap with copies", "xskmap without copies"];

/// Two workers, or one where one does everything, that pass 64 packets at a time on in this way without end. `mark` is told when
/// everything is warm, and when as many bursts as are watched have gone by since then.
fn go(way: &str, mark: impl FnMut(bool)) {
    let object = Object::parse(xway_bench::forward::object().unwrap(), &Default::default()).unwrap();
    let instance = Instance::verified(Arc::new(object), 2, Config::default()).unwrap();
    let program = |name: &str| {
        let image = instance.object().select(&Select::Name(name.into())).and_then(xway_object::Program::as_xdp);
        let linked = Linked::new(instance.link(&image.unwrap()).unwrap());
        assert_eq!(linked.choice().name(), "jit", "{:?}", linked.choice().reason);
        Arc::new(linked)
    };
    for (key, ifindex) in [12u32, 14].into_iter().enumerate() {
        let value = [ifindex.to_ne_bytes(), [0xff; 4]].concat();
        instance.map("ports").unwrap().update(&(key as u32).to_ne_bytes(), &value, 0).unwrap();
    }
    let entry = [2048u32.to_ne_bytes(), [0; 4]].concat();
    instance.map("cpus").unwrap().update(&[0; 4], &entry, 0).unwrap();

    // Who serves the ports, and where the packets arrive.
    let (names, ours, others): (&[&str], u32, u32) = match way {
        "pass" => (&["pass_no_touch"], 0, 0),
        "chain" => (&["pass_no_touch", "tx_swap_macs"], 0, 0),
        "broadcast" => (&["redirect_multi_swap_macs"], 0, 0),
        // To worker 0, which passes them; where they pass to is worker 1's.
        "cpumap" => (&["redirect_cpu_no_touch"], 1, 1),
        "relay" => (&["redirect_swap_macs"], 0, 1),
        "steering" => (&["tx_swap_macs"], 0, 0),
        _ => (&["redirect_xsk"], 0, 0),
    };
    let engine = Engine::start(EngineConfig { workers: 2, idle_polls: u32::MAX, ..EngineConfig::default() }).unwrap();
    let traffic = Traffic::udp(100, 64, Pattern::Uniform, 1).unwrap();
    let queues = if way == "steering" { 2 } else { 1 };
    let (input, first) = SimDevice::generated("in", 10, traffic.clone(), None, queues);
    let outputs = [12, 14].map(|ifindex| SimDevice::generated("out", ifindex, traffic.clone(), Some(0), 1));
    let pool = Some(PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(4096) });
    let on = |queues| PortConfig { queues: Some(queues), pool, ..PortConfig::default() };
    // Programs before queues: no packet goes another way.
    engine.open(Box::new(input), on(Vec::new())).unwrap();
    let [second, third] = outputs.map(|(device, sink)| {
        engine.open(Box::new(device), on(vec![(0, others)])).unwrap();
        sink
    });
    let point = HookPoint { ifindex: 10, queue: None };
    for (priority, name) in (0..).zip(names) {
        let attached = Attached { program: program(name), priority, chain_on: VerdictSet::PASS };
        match names.len() {
            1 => engine.attach(point, attached.program, AttachFlags::default()).map(drop).unwrap(),
            _ => engine.chain(point, attached).unwrap(),
        }
    }
    if queues == 2 {
        let steering = Steering::new().with_rss(Rss::equal(&KEY_PUBLISHED, 2));
        engine.set_steering(10, Some(steering)).unwrap();
    }
    for queue in 0..queues {
        engine.add_queue(10, queue, ours + queue).unwrap();
    }
    let application = way.starts_with("xskmap").then(|| {
        let application = Application::new(way.ends_with("with copies"));
        let socket = application.socket.clone();
        instance.map("xsks").unwrap().set_socket(0, SocketEntry::new(socket.clone())).unwrap();
        engine.bind(10, 0, Some(socket), false).unwrap();
        application
    });
    // The answer to a change is out before its worker has tidied up behind it: since then each queue has received.
    let deadline = Instant::now() + Duration::from_secs(120);
    while engine.queues().iter().any(|queue| queue.ifindex == 10 && queue.counters.rx == 0) {
        assert!(Instant::now() < deadline, "{way}: a queue receives nothing");
        std::thread::sleep(Duration::from_micros(200));
    }
    watch(way, mark, application, || match way {
        "pass" | "cpumap" => first.passed().frames,
        "chain" | "steering" => first.sent().frames,
        "broadcast" => second.sent().frames.min(third.sent().frames),
        _ => second.sent().frames,
    });
    if way.starts_with("xskmap") {
        engine.bind(10, 0, None, false).unwrap();
    }
    for report in engine.stop().queues {
        assert_eq!((report.leak, report.counters.balance()), (None, Ok(())), "{way}");
    }
}

/// Looks how many packets have come through, until they are enough.
fn watch(way: &str, mut mark: impl FnMut(bool), application: Option<Application>, arrived: impl Fn() -> u64) {
    let (mut application, deadline) = (application, Instant::now() + Duration::from_secs(120));
    let mut taken = 0;
    let mut until = |bursts: u64| {
        loop {
            let arrived = match &mut application {
                Some(application) => {
                    taken += application.take();
                    taken
                }
                None => arrived(),
            };
            if arrived >= bursts * 64 {
                return arrived / 64;
            }
            assert!(Instant::now() < deadline, "{way}: {arrived} packets");
            if application.is_none() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    };
    let warm = until(WARM);
    mark(true);
    until(warm + WATCHED);
    mark(false);
    if let Some(application) = application {
        application.socket.close();
    }
}

/// Who has a socket on the queue, and gives back what it gets.
struct Application {
    socket: Arc<Xsk>,
    fill: Producer<u64>,
    rx: Consumer<XdpDesc>,
    completion: Consumer<u64>,
    copies: bool,
}

impl Application {
    const ENTRIES: u32 = 256;

    fn new(copies: bool) -> Application {
        let entries = Application::ENTRIES;
        let sizes = Sizes { fill: entries, completion: entries, rx: entries, tx: entries };
        let mode = match copies {
            true => Mode::Copy(Arc::new(Umem::create(entries, 2048, 0).unwrap())),
            false => Mode::ZeroCopy(entries),
        };
        let socket = Arc::new(Xsk::new(&Shape { bound: (10, 0), sizes, mode, weight: 1, snap: None }).unwrap());
        let memory = SharedMemory::map(socket.rings_fd().unwrap(), 0, sizes.bytes()).unwrap();
        let rings = Rings::over(&Arc::new(memory), sizes).unwrap();
        let mut fill = Producer::attach(rings.fill).unwrap();
        let (rx, completion) = (Consumer::attach(rings.rx).unwrap(), Consumer::attach(rings.completion).unwrap());
        if copies {
            let chunks: Vec<u64> = (0..u64::from(entries)).map(|chunk| chunk * 2048).collect();
            fill.push_slice(&chunks);
        }
        Application { socket, fill, rx, completion, copies }
    }

    /// Takes what came and gives its chunks back; says how many packets those were.
    fn take(&mut self) -> u64 {
        let (mut descs, mut free) = ([XdpDesc::default(); 64], [0u64; 64]);
        let count = self.rx.pop_slice(&mut descs);
        for (chunk, desc) in free.iter_mut().zip(&descs[..count]) {
            // Of the application's own memory a chunk is named by its start.
            *chunk = if self.copies { desc.addr / 2048 * 2048 } else { desc.addr };
        }
        assert_eq!(self.fill.push_slice(&free[..count]), count);
        // What was lent at the start.
        let lent = self.completion.pop_slice(&mut free);
        assert_eq!(self.fill.push_slice(&free[..lent]), lent);
        count as u64
    }
}

fn built(test: &str) -> Needs {
    Needs::of(test).that(xway_bench::suite::missing().is_none(), "clang when it is built")
}

#[test]
fn no_packet_is_worth_an_allocation() {
    if !built("bench::no_packet_is_worth_an_allocation").met() {
        return;
    }
    for (name, arrives) in PROGRAMS {
        COUNT.with(|count| count.set(0));
        run(name, arrives, |on| COUNTING.with(|counting| counting.set(on)));
        assert_eq!(COUNT.with(Cell::get), 0, "{name}: allocations in {WATCHED} bursts");
    }
    for copies in [true, false] {
        COUNT.with(|count| count.set(0));
        serve(copies, |on| COUNTING.with(|counting| counting.set(on)));
        assert_eq!(COUNT.with(Cell::get), 0, "sockets, copies {copies}: allocations in {WATCHED} bursts");
    }
    for way in WAYS {
        OF_WORKERS.store(0, Ordering::SeqCst);
        go(way, |on| watch_threads(if on { workers() } else { Vec::new() }));
        assert_eq!(OF_WORKERS.load(Ordering::SeqCst), 0, "{way}: allocations in {WATCHED} bursts");
    }
    what_programs_ask_for_has_its_price();
    // The instruments work.
    COUNTING.with(|counting| counting.set(true));
    drop(std::hint::black_box(vec![1u8]));
    COUNTING.with(|counting| counting.set(false));
    assert_eq!(COUNT.with(Cell::get), 2);
    watch_threads(vec![rustix::thread::gettid().as_raw_nonzero().get() as u32]);
    drop(std::hint::black_box(vec![1u8]));
    watch_threads(Vec::new());
    assert!(OF_WORKERS.load(Ordering::SeqCst) >= 2);
}

/// Behind all others, and in no test of its own, which would run at the same time: what a trie has let go of is freed when no guard sees
/// it any more, by whoever unpins next.
fn what_programs_ask_for_has_its_price() {
    if !built("bench::what_programs_ask_for_has_its_price").root().met() {
        return;
    }
    for asking in ASKING {
        let counted = std::thread::spawn(move || {
            ask(asking, |on| COUNTING.with(|counting| counting.set(on)));
            COUNT.with(Cell::get)
        });
        let (count, packets) = (counted.join().unwrap(), WATCHED * 64);
        println!("{}: {count} calls of the allocator for {packets} packets", asking.name);
        assert!(count <= asking.allocations * packets, "{}: {count} for {packets} packets", asking.name);
    }
}

/// From now on allocations of these threads are counted.
fn watch_threads(threads: Vec<u32>) {
    for (at, place) in WORKERS.iter().enumerate() {
        place.store(threads.get(at).copied().unwrap_or(0), Ordering::SeqCst);
    }
}

/// Set where strace looks on.
const TRACED: &str = "XWAY_TRACED";

/// What the test below runs again, under strace.
fn traced() {
    // What strace sees of this: a write.
    let marks = || {
        let mut null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        move |on: bool| null.write_all(if on { b"XWAY-BEGIN".as_slice() } else { b"XWAY-END" }).unwrap()
    };
    for (name, arrives) in PROGRAMS {
        run(name, arrives, marks());
    }
    serve(true, marks());
    serve(false, marks());
    for way in WAYS {
        let mut null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        go(way, |on| {
            let threads: Vec<String> = workers().iter().map(u32::to_string).collect();
            let begin = format!("XWAY-BEGIN {}", threads.join(" "));
            null.write_all(if on { begin.as_bytes() } else { b"XWAY-END" }).unwrap();
        });
    }
    if rustix::process::geteuid().is_root() {
        for asking in ASKING {
            std::thread::spawn(move || ask(asking, marks())).join().unwrap();
        }
    }
}

#[test]
fn no_packet_is_worth_a_system_call() {
    if std::env::var_os(TRACED).is_some() {
        return traced();
    }
    if !built("bench::no_packet_is_worth_a_system_call").command("strace").met() {
        return;
    }
    let file = std::env::temp_dir().join(format!("xway-strace-{}", std::process::id()));
    let mut strace = Command::new("strace");
    strace.args(["-f", "-s", "64", "-o"]).arg(&file).arg(std::env::current_exe().unwrap());
    strace.args(["--exact", "no_packet_is_worth_a_system_call", "--test-threads", "1"]).env(TRACED, "1");
    let output = strace.output().unwrap();
    let calls = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    // Lines begin with the thread's number. Watched is whoever writes the mark, or those that it names.
    let mut inside: Vec<String> = Vec::new();
    let mut sections: Vec<Vec<&str>> = vec![Vec::new()];
    for line in calls.lines() {
        let thread = line.split_whitespace().next().unwrap_or_default();
        if let Some((_, named)) = line.split_once("XWAY-BEGIN") {
            let named = named.split('"').next().unwrap_or_default().split_whitespace();
            inside = named.map(str::to_owned).collect();
            if inside.is_empty() {
                inside.push(thread.to_owned());
            }
        } else if line.contains("XWAY-END") {
            inside.clear();
            sections.push(Vec::new());
        } else if inside.iter().any(|named| named == thread) && line.contains('(') && !line.contains(" resumed>") {
            // Where another thread comes in between, a call has two lines: it is the first one that counts.
            sections.last_mut().unwrap().push(line);
        }
    }
    let asked = if rustix::process::geteuid().is_root() { &ASKING[..] } else { &[] };
    const NONE: (u64, &[&str]) = (0, &[]);
    let names = PROGRAMS.iter().map(|(name, _)| (*name, NONE)).chain([("sockets, copies", NONE), ("sockets", NONE)]);
    let names = names.chain(WAYS.iter().map(|way| (*way, NONE)));
    let names: Vec<_> = names.chain(asked.iter().map(|asking| (asking.name, asking.system_calls))).collect();
    assert_eq!(sections.len(), names.len() + 1);
    for ((name, (most, known)), calls) in names.iter().zip(&sections) {
        let first = calls.iter().take(20).copied().collect::<Vec<_>>().join("\n");
        let named = |call: &&str| known.iter().any(|known| call.contains(&format!(" {known}(")));
        assert!(calls.iter().all(named), "{name}, in {WATCHED} bursts:\n{first}");
        assert!(calls.len() as u64 <= most * WATCHED, "{name}: {} in {WATCHED} bursts:\n{first}", calls.len());
    }
}
