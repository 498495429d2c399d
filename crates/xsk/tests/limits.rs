//! What applications can take from a server, in a process of its own: descriptors are counted.

#[path = "common/site.rs"]
mod site;
#[path = "../../engine/tests/common/mod.rs"]
mod wire;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use site::{Raw, Site};
use wire::eventually;
use xway_abi::Errno;
use xway_abi::xsk::bind::{COPY, SHARED_UMEM, ZEROCOPY};
use xway_xsk::Policy;
use xway_xsk_client::wire::{Request, VERSION};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// How long the thread that takes applications in has run so far. (The file is opened before descriptors are short.)
struct Running(File);

impl Running {
    fn of_the_server() -> Running {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
        let named = |path: &PathBuf| std::fs::read(path.join("comm")).is_ok_and(|name| name == b"xsk-server\n");
        let mut servers: Vec<_> = threads.filter(named).collect();
        assert_eq!(servers.len(), 1, "one server in this process: {servers:?}");
        Running(File::open(servers.remove(0).join("stat")).unwrap())
    }

    fn time(&self) -> Duration {
        let mut bytes = [0; 1024];
        let len = self.0.read_at(&mut bytes, 0).unwrap();
        let text = std::str::from_utf8(&bytes[..len]).unwrap();
        // Behind the name in brackets (`proc_pid_stat(5)`): `utime` and `stime` are the 12th and the 13th, in hundredths of a second.
        let (_, behind) = text.rsplit_once(") ").unwrap();
        behind.split(' ').skip(11).take(2).map(|ticks| Duration::from_millis(10 * ticks.parse::<u64>().unwrap())).sum()
    }
}

/// One after the other: they count what the process has.
#[test]
fn what_applications_take_is_bounded() {
    memories_are_bounded_in_number_and_cost_no_descriptor();
    all_together_have_no_more_than_there_is();
    connections_without_a_socket_are_bounded();
    who_says_nothing_is_not_waited_for();
    a_server_without_descriptors_says_so_and_does_not_spin();
}

fn memories_are_bounded_in_number_and_cost_no_descriptor() {
    let site = Site::new("many", Policy { sockets_max: 3, ..Policy::default() });
    let raw = Raw::open(&site.path);
    let before = descriptors();
    for _ in 0..64 {
        let (answer, fds) = raw.umem(1);
        assert_eq!((answer.errno, fds.len()), (None, 1), "{}", answer.reason);
    }
    let (answer, _) = raw.umem(1);
    assert_eq!(answer.errno, Some(Errno::ENOSPC));
    assert!(answer.reason.contains("may have 64 packet memories"), "{}", answer.reason);
    // A mapping needs no descriptor.
    eventually(|| descriptors() == before);
    for flags in [COPY, ZEROCOPY] {
        let (answer, fds) = raw.bind(flags | SHARED_UMEM);
        assert_eq!((answer.errno, fds.len()), (None, if flags == COPY { 3 } else { 4 }), "{}", answer.reason);
        drop(fds);
        // Two bells.
        eventually(|| descriptors() == before + 2);
        let socket = answer.numbers[0] as u32;
        assert_eq!(raw.ask(&Request::Close { socket }).unwrap().0.errno, None);
        eventually(|| descriptors() == before);
    }
    drop(raw);
    site.end();
}

fn all_together_have_no_more_than_there_is() {
    let policy = Policy { memory_total: 1 << 20, sockets_total: 2, connections_max: 3, ..Policy::default() };
    let site = Site::new("together", policy);
    let (one, two) = (Raw::open(&site.path), Raw::open(&site.path));
    assert_eq!(one.umem(256).0.errno, None);
    let (answer, _) = two.umem(512);
    assert_eq!(answer.errno, Some(Errno::ENOMEM));
    assert!(answer.reason.contains("all applications together may have 1048576 bytes"), "{}", answer.reason);
    assert_eq!(two.umem(64).0.errno, None);
    for raw in [&one, &two] {
        let (answer, _) = raw.bind(COPY | SHARED_UMEM);
        // The queue itself is the first one's.
        let errno = if std::ptr::eq(raw, &one) { None } else { Some(Errno::EBUSY) };
        assert_eq!(answer.errno, errno, "{}", answer.reason);
    }
    drop(one);
    eventually(|| two.umem(256).0.errno.is_none());
    drop(two);
    site.end();
    // Root, when it is not trusted, is a user like others.
    let policy = Policy { trusted_uids: Vec::new(), connections_max: 4, ..Policy::default() };
    let site = Site::new("half", policy);
    let _own = (Raw::open(&site.path), Raw::open(&site.path));
    let third = Raw::unconnected().connect(&site.path);
    let (answer, _) = third.ask(&Request::Hello { version: VERSION }).unwrap();
    assert!(answer.reason.contains("may have 2 connections, of 4 for all"), "{}", answer.reason);
    site.end();
}

fn connections_without_a_socket_are_bounded() {
    let site = Site::new("idle", Policy { trusted_uids: Vec::new(), idle_max: 2, ..Policy::default() });
    let (one, two) = (Raw::open(&site.path), Raw::open(&site.path));
    let refused = || Raw::unconnected().connect(&site.path).ask(&Request::Hello { version: VERSION }).unwrap().0;
    assert_eq!(refused().errno, Some(Errno::ENOSPC));
    assert!(
        refused().reason.contains("may have 2 connections without a socket, of 64 for all"),
        "{}",
        refused().reason
    );
    // With a socket it is none of these, until it gives its last one up while there are enough of them.
    one.umem(64);
    let (answer, _fds) = one.bind(COPY);
    assert_eq!(answer.errno, None, "{}", answer.reason);
    let three = Raw::open(&site.path);
    assert_eq!(refused().errno, Some(Errno::ENOSPC));
    let socket = answer.numbers[0] as u32;
    assert_eq!(one.ask(&Request::Close { socket }).unwrap().0.errno, None);
    assert!(one.hear().is_none(), "it ends");
    drop(two);
    eventually(|| refused().errno.is_none());
    drop((one, three));
    site.end();
}

fn who_says_nothing_is_not_waited_for() {
    let site = Site::new("silent", Policy::default());
    let raw = Raw::unconnected().connect(&site.path);
    let began = Instant::now();
    assert!(raw.hear().is_none());
    assert!(began.elapsed() < Duration::from_secs(20));
    site.end();
}

/// Takes descriptors until there are none, or so many.
fn take_all(most: usize) -> Vec<OwnedFd> {
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let mut taken: Vec<OwnedFd> = std::iter::from_fn(|| null.try_clone().ok()).take(most).collect();
    taken.push(null);
    taken
}

fn a_server_without_descriptors_says_so_and_does_not_spin() {
    let site = Site::new("none", Policy::default());
    let held = Raw::open(&site.path);
    let running = Running::of_the_server();
    let mut others: Vec<_> = (0..4).map(|_| Raw::unconnected()).collect();
    let usual = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors() as u64 + 40), ..usual }).unwrap();
    let mut taken = take_all(usize::MAX);
    // An application that is there is told what is wrong.
    let (answer, _) = held.umem(1);
    assert_eq!(answer.errno, Some(Errno::EMFILE));
    assert!(answer.reason.contains("LimitNOFILE"), "{}", answer.reason);
    assert_eq!(held.umem(0).0.errno, Some(Errno::EINVAL));
    // So is one that comes, and the next one.
    for _ in 0..2 {
        let raw = others.pop().unwrap().connect(&site.path);
        let (answer, _) = raw.ask(&Request::Hello { version: VERSION }).expect("words, not silence");
        assert_eq!(answer.errno, Some(Errno::EMFILE));
        assert!(answer.reason.contains("LimitNOFILE"), "{}", answer.reason);
        // Closed there: its descriptor is free.
        assert!(raw.hear().is_none());
        std::mem::forget(raw);
    }
    // Without even that one to spare it waits, and does not burn a core.
    taken.extend(std::iter::from_fn(|| taken[0].try_clone().ok()).collect::<Vec<_>>());
    let raw = others.pop().unwrap().connect(&site.path);
    let (before, since) = (running.time(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let (burnt, past) = (running.time() - before, since.elapsed());
    assert!(burnt < past / 4, "{burnt:?} of {past:?}");
    // What comes free is enough again.
    taken.clear();
    let (answer, _) = raw.ask(&Request::Hello { version: VERSION }).unwrap();
    assert_eq!(answer.errno, None, "{}", answer.reason);
    setrlimit(Resource::Nofile, usual).unwrap();
    assert_eq!(held.umem(1).0.errno, None);
    drop((raw, held));
    site.end();
}
