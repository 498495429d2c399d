//! Applications that do with their descriptors what hurts most. Nobody waits for them: no worker, no other application, and not the
//! server when it ends.

#[path = "common/site.rs"]
mod site;
#[path = "../../engine/tests/common/mod.rs"]
mod wire;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{
    FallocateFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fcntl_setfl, ftruncate,
};
use rustix::io::Errno;
use site::{Raw, Site};
use wire::eventually;
use xway_abi::xsk::RING_NEED_WAKEUP;
use xway_abi::xsk::bind::{COPY, SHARED_UMEM, ZEROCOPY};
use xway_packet::ring::XdpDesc;
use xway_packet::ring::spsc::{Consumer, Producer};
use xway_packet::{Pages, SharedMemory};
use xway_testkit::{LINGERS, kernel_at_least, lingering, skip};
use xway_xsk::{Access, Policy};
use xway_xsk_client::rings::{Rings, Sizes};
use xway_xsk_client::wire::{BindRequest, Request, VERSION};

const SIZES: Sizes = Sizes { fill: 64, completion: 64, rx: 64, tx: 64 };

fn may_wait(fd: &OwnedFd) {
    fcntl_setfl(fd, fcntl_getfl(fd).unwrap() - OFlags::NONBLOCK).unwrap();
}

/// Takes what makes a write to an event descriptor wait, if it is one.
fn fill_up(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes());
}

/// Both bells may wait, are as full as they get, and are asked for with every packet; packets come all the same, and the server
/// answers, notices the end of the application and ends itself.
#[test]
fn a_bell_that_is_full_and_may_wait_holds_nobody_up() {
    let site = Site::new("full", Policy::default());
    let raw = Raw::open(&site.path);
    let (_, memory) = raw.umem(64);
    let (answer, fds) = raw.bind(COPY);
    assert_eq!((answer.errno, fds.len(), memory.len()), (None, 3, 1), "{}", answer.reason);
    let [rings, kick, notice] = &fds[..] else { unreachable!() };
    let shared = Arc::new(SharedMemory::map(std::os::fd::AsFd::as_fd(rings), 0, SIZES.bytes()).unwrap());
    let laid = Rings::over(&shared, SIZES).unwrap();
    let (mut fill, mut rx) = (Producer::attach(laid.fill).unwrap(), Consumer::attach(laid.rx).unwrap());
    for bell in [kick, notice] {
        may_wait(bell);
        fill_up(bell);
    }
    rx.set_flags(RING_NEED_WAKEUP);
    let mut came = 0;
    for _ in 0..100 {
        fill.push_slice(&(0..20).map(|n| n * 2048).collect::<Vec<u64>>());
        site.wire.send(0, 20);
        came += 20;
        let mut packets = [XdpDesc::default(); 20];
        let mut got = 0;
        eventually(|| {
            got += rx.pop_slice(&mut packets);
            got == 20
        });
    }
    assert_eq!(came, 2000);
    let socket = answer.numbers[0] as u32;
    let (statistics, _) = raw.ask(&Request::Statistics { socket }).unwrap();
    assert_eq!(statistics.errno, None);
    drop(raw);
    eventually(|| site.server().sockets().is_empty());
    site.end();
}

/// The application reads its own kicks, so that whoever else reads them waits for ever.
#[test]
fn kicks_that_somebody_else_reads_hold_nobody_up() {
    let site = Site::new("kicks", Policy::default());
    let raw = Raw::open(&site.path);
    raw.umem(64);
    let (_, fds) = raw.bind(COPY);
    may_wait(&fds[1]);
    let (kick, again) = (fds[1].try_clone().unwrap(), fds[1].try_clone().unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let ends = over.clone();
    let reader = std::thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            let _ = rustix::io::read(&again, &mut [0u8; 8]);
        }
    });
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
    }
    drop((raw, fds));
    eventually(|| site.server().sockets().is_empty());
    over.store(true, Ordering::Relaxed);
    rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
    reader.join().unwrap();
    site.end();
}

/// Nobody who has memory of the server's can take pages away from under it, or make a seal that keeps others from mapping it.
#[test]
fn memory_stays_as_it_is() {
    let site = Site::new("sealed", Policy::default());
    let raw = Raw::open(&site.path);
    let (_, mut memory) = raw.umem(64);
    let (answer, mut fds) = raw.bind(ZEROCOPY);
    assert_eq!((answer.errno, fds.len()), (None, 4), "{}", answer.reason);
    for fd in [memory.pop().unwrap(), fds.remove(0), fds.pop().unwrap()] {
        let seals = fcntl_get_seals(&fd).unwrap();
        assert_eq!(seals, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
        for len in [0, 4096, 1 << 30] {
            assert_eq!(ftruncate(&fd, len), Err(Errno::PERM));
        }
        assert_eq!(fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE), Err(Errno::PERM));
    }
    drop(raw);
    site.end();
}

/// Takes all pages away from under a memory file.
fn punch(fd: &OwnedFd, len: u64) {
    fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len).unwrap();
}

/// Pages that an application takes away come again, empty, when they are touched: with copies its packets are lost to it, and without
/// what it did to the packets of its own queue is as if it had written zeros.
#[test]
fn holes_harm_only_who_makes_them() {
    let site = Site::new("holes", Policy::default());
    for flags in [COPY, ZEROCOPY] {
        let raw = Raw::open(&site.path);
        let (_, memory) = raw.umem(64);
        let (answer, fds) = raw.bind(flags);
        assert_eq!(answer.errno, None, "{}", answer.reason);
        let rings_len = SIZES.bytes() as u64;
        let (pool, len) = match flags {
            COPY => (&memory[0], 64 * 2048),
            _ => (&fds[3], answer.numbers[2]),
        };
        for _ in 0..50 {
            site.wire.send(0, 20);
            punch(pool, len);
            punch(&fds[0], rings_len);
        }
        let socket = answer.numbers[0] as u32;
        assert_eq!(raw.ask(&Request::Statistics { socket }).unwrap().0.errno, None);
        drop(raw);
        eventually(|| site.server().sockets().is_empty());
    }
    site.end();
}

/// The queue's memory is of the reserve of huge pages: who is not trusted gets no descriptor of it, because a page that it took away
/// might not come again.
#[test]
fn who_is_not_trusted_gets_no_pages_of_the_reserve() {
    let policy = Policy { trusted_uids: Vec::new(), own_queue_zero_copy: true, ..Policy::default() };
    let site = Site::with_pages("reserve", policy, Pages::Huge);
    if site.pages() != Pages::Huge {
        site.end();
        let name = "xsk::who_is_not_trusted_gets_no_pages_of_the_reserve";
        return skip(name, "a page of 2 MiB in the reserve (sysctl vm.nr_hugepages=1)");
    }
    let raw = Raw::open(&site.path);
    raw.umem(64);
    let (answer, fds) = raw.bind(ZEROCOPY);
    assert_eq!((answer.errno, fds.len()), (Some(xway_abi::Errno::EOPNOTSUPP), 0), "{}", answer.reason);
    assert!(answer.reason.contains("reserve of huge pages"), "{}", answer.reason);
    assert_eq!(raw.bind(COPY).0.errno, None);
    drop(raw);
    site.end();
}

/// As on kernels that cannot refuse descriptors.
const OLD: Access = Access { mode: 0o660, gid: None, rights: true };

/// Where the kernel can refuse them none comes, and who tried goes on.
#[test]
fn descriptors_are_refused() {
    if !kernel_at_least(6, 16) {
        return skip("xsk::descriptors_are_refused", "Linux 6.16, which has SO_PASSRIGHTS");
    }
    let site = Site::new("rights", Policy::default());
    let raw = Raw::unconnected().connect(&site.path);
    let (near, _far) = lingering();
    let hello = Request::Hello { version: VERSION };
    assert_eq!(raw.send(&hello.encode(), &[&near]), Err(Errno::PERM), "before it is taken in");
    assert_eq!(raw.ask(&hello).unwrap().0.errno, None);
    assert_eq!(raw.send(&hello.encode(), &[&near]), Err(Errno::PERM));
    raw.umem(64);
    assert_eq!(raw.bind(COPY).1.len(), 3, "what it gets, it gets");
    // Nobody else has it.
    std::thread::spawn(move || drop(near));
    drop(raw);
    site.end();
}

/// A descriptor that nobody asked for is closed by whoever receives the message. Its application's sockets go all the same, with and
/// without copies, others are served meanwhile, and the server can end.
#[test]
fn descriptors_that_are_slow_to_close_hold_nobody_up() {
    let mut site = Site::new("lingers", Policy { access: OLD, ..Policy::default() });
    let mut ends = Vec::new();
    for flags in [COPY, ZEROCOPY] {
        // Whoever is last waits: where that is us it is not the test, and it is tried again.
        let held_up = (0..10).any(|_| {
            let raw = Raw::open(&site.path);
            raw.umem(64);
            let (answer, _fds) = raw.bind(flags | SHARED_UMEM);
            assert_eq!(answer.errno, None, "{}", answer.reason);
            let (near, far) = lingering();
            // The first request takes the server longer, mostly, than it takes us to be no longer the last one who has it.
            let bind = BindRequest { interface: "wire7".into(), flags: SHARED_UMEM.into(), ..BindRequest::default() };
            let bind = BindRequest { fill: 1 << 15, completion: 1 << 15, rx: 1 << 15, tx: 1 << 15, ..bind };
            let socket = answer.numbers[0] as u32;
            raw.send(&Request::Bind(bind).encode(), &[]).unwrap();
            raw.send(&Request::Statistics { socket }.encode(), &[&near]).unwrap();
            let ours = std::thread::spawn(move || drop(near));
            ends.push(far);
            let since = Instant::now();
            while !ours.is_finished() && since.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !ours.is_finished() {
                // The next try wants the same queue.
                drop(raw);
                eventually(|| site.server().sockets().is_empty());
                return false;
            }
            eventually(|| site.server().sockets().is_empty());
            // The next one has the queue.
            let other = Raw::open(&site.path);
            other.umem(64);
            assert_eq!(other.bind(flags).0.errno, None);
            drop((raw, other));
            true
        });
        assert!(held_up, "the server was never the last one");
        eventually(|| site.server().sockets().is_empty());
    }
    let began = Instant::now();
    site.server = None;
    assert!(began.elapsed() < LINGERS);
    site.end();
}

/// The same from connections that are not taken in, or that wait to be when the server ends.
#[test]
fn whoever_is_turned_away_holds_nobody_up() {
    let mut site = Site::new("away", Policy { access: OLD, connections_max: 1, ..Policy::default() });
    let first = Raw::open(&site.path);
    let hello = Request::Hello { version: VERSION }.encode();
    let mut ends = Vec::new();
    let mut connect = || {
        let raw = Raw::unconnected().connect(&site.path);
        let (near, far) = lingering();
        raw.send(&hello, &[&near]).unwrap();
        // Closed with the connection, unless that is closed already.
        let _ = raw.send(&hello, &[&near]);
        // Whoever is last waits: where that is us it is not the test.
        std::thread::spawn(move || drop(near));
        ends.push(far);
    };
    (0..3).for_each(|_| connect());
    let away = Raw::unconnected().connect(&site.path);
    let (answer, _) = away.ask(&Request::Hello { version: VERSION }).expect("words, not silence");
    assert_eq!(answer.errno, Some(xway_abi::Errno::ENOSPC));
    assert!(answer.reason.contains("all applications together may have 1 connections"), "{}", answer.reason);
    drop(first);
    let opens = || {
        let raw = Raw::unconnected().connect(&site.path);
        raw.ask(&Request::Hello { version: VERSION }).is_some_and(|(answer, _)| answer.errno.is_none())
    };
    eventually(opens);
    // More than are told why at one time: these wait.
    (0..20).for_each(|_| connect());
    let began = Instant::now();
    site.server = None;
    assert!(began.elapsed() < LINGERS);
    site.end();
}

/// Who asks and never reads loses its connection and nothing else stops.
#[test]
fn answers_that_nobody_reads_hold_nobody_up() {
    let site = Site::new("unread", Policy::default());
    let raw = Raw::open(&site.path);
    raw.umem(64);
    let (answer, _fds) = raw.bind(COPY);
    let statistics = Request::Statistics { socket: answer.numbers[0] as u32 }.encode();
    let mut asked = 0;
    while raw.send(&statistics, &[]).is_ok() {
        asked += 1;
        assert!(asked < 100_000, "it is never cut off");
    }
    eventually(|| site.server().sockets().is_empty());
    // Few answers are kept for it.
    let kept = std::iter::from_fn(|| raw.hear()).count();
    assert!(kept <= 16, "{kept}");
    let other = Raw::open(&site.path);
    other.umem(64);
    assert_eq!(other.bind(COPY).0.errno, None);
    drop(other);
    site.end();
}
