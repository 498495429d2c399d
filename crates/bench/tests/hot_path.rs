//! The path of a packet: no allocation and no system call, for DROP, TX and REDIRECT through the whole worker, and through sockets that
//! are served, to the application and back, with copies and without.
//!
//! A counting allocator sees every allocation of the thread; strace sees every system call between two marks.
#![allow(unsafe_code)] // a global allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;

use xway_engine::SocketTarget;
use xway_engine::{Executor, ExecutorInfo, Limits, Linked, LoadedProgram, Port, Results, Stop, Worker, WorkerConfig};
use xway_maps::Guard;
use xway_object::{Object, Select};
use xway_packet::ring::XdpDesc;
use xway_packet::ring::spsc::{Consumer, Producer};
use xway_packet::{Backing, Burst, Frame, Pool, PoolConfig, SharedMemory};
use xway_port_sim::{Pattern, SimPort, Sink, Traffic};
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

fn seen() {
    // A thread that is ending has no cells any more, and nothing to count.
    let _ = COUNTING.try_with(|on| on.get().then(|| COUNT.with(|count| count.set(count.get() + 1))));
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
    // The instrument works.
    COUNTING.with(|counting| counting.set(true));
    drop(std::hint::black_box(vec![1u8]));
    COUNTING.with(|counting| counting.set(false));
    assert_eq!(COUNT.with(Cell::get), 2);
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
    strace.args(["-f", "-o"]).arg(&file).arg(std::env::current_exe().unwrap());
    strace.args(["--exact", "no_packet_is_worth_a_system_call", "--test-threads", "1"]).env(TRACED, "1");
    let output = strace.output().unwrap();
    let calls = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    // Lines begin with the thread's number.
    let mut inside: Option<&str> = None;
    let (mut watched, mut wrong) = (0, Vec::new());
    for line in calls.lines() {
        let thread = line.split_whitespace().next().unwrap_or_default();
        if line.contains("XWAY-BEGIN") {
            inside = Some(thread);
        } else if line.contains("XWAY-END") {
            inside = None;
            watched += 1;
        } else if inside == Some(thread) && line.contains('(') {
            wrong.push(line);
        }
    }
    assert_eq!(watched, PROGRAMS.len() + 2);
    assert!(wrong.is_empty(), "system calls in {WATCHED} bursts:\n{}", wrong.join("\n"));
}
