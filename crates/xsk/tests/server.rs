//! Applications over the real connection, an engine behind it: they send, receive, cheat and die.

#[path = "common/application.rs"]
mod application;
#[path = "common/site.rs"]
mod site;
#[path = "../../engine/tests/common/mod.rs"]
mod wire;

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use site::{IFINDEX, Site};
use wire::{Rust, eventually};
use xway_abi::xsk::bind::ZEROCOPY;
use xway_abi::{Errno, MapSpec, MapType, Verdict, xsk};
use xway_engine::{AttachFlags, HookPoint};
use xway_maps::{Env, Map};
use xway_packet::Redirect;
use xway_testkit::{Needs, as_user};
use xway_xsk::{Access, Policy};
use xway_xsk_client::rings::Sizes;
use xway_xsk_client::wire::{REQUEST, Request, VERSION};
use xway_xsk_client::{Bind, ClientError, Connection, Fate, Socket};

const WAIT: Option<Duration> = Some(Duration::from_secs(20));

fn bind(flags: u16, direct: bool) -> Bind {
    let sizes = Sizes { fill: 64, completion: 64, rx: 64, tx: 64 };
    Bind { flags: flags | xsk::bind::USE_NEED_WAKEUP, direct, sizes, chunks: 64, ..Bind::new("wire7", 0) }
}

fn open(site: &Site, bind: &Bind) -> Result<(Connection, Socket), ClientError> {
    let mut connection = Connection::open(&site.path)?;
    let umem = connection.umem(128, 2048, 0)?;
    let socket = connection.bind(&umem, bind)?;
    Ok((connection, socket))
}

/// Receives so many packets and sends them back.
fn echo(socket: &mut Socket, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    while got.len() < count {
        socket.fill(32);
        assert!(socket.wait(WAIT).unwrap(), "{} of {count} came", got.len());
        while let Some(packet) = socket.receive() {
            got.push(packet.bytes().to_vec());
            socket.send(packet).expect("a ring as long as RX has room");
        }
        socket.flush();
    }
    got
}

fn refused(result: Result<(Connection, Socket), ClientError>) -> (Errno, String) {
    match result {
        Err(ClientError::Refused { errno, reason, .. }) => (errno, reason),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// A queue bound to a socket with no program at all, with and without copies: what arrives comes, what is sent leaves.
#[test]
fn a_queue_can_go_straight_to_a_socket() {
    for flags in [xsk::bind::COPY, xsk::bind::ZEROCOPY] {
        let site = Site::new("straight", Policy::default());
        let (mut connection, mut socket) = open(&site, &bind(flags, true)).unwrap();
        assert_eq!(socket.zero_copy(), flags == xsk::bind::ZEROCOPY);
        socket.fill(32);
        for round in 0..10 {
            site.wire.send(0, 20);
            let got = echo(&mut socket, 20);
            let numbers: Vec<_> = got.iter().map(|packet| wire::frame_number(packet)).collect();
            assert_eq!(numbers, (round * 20..round * 20 + 20).collect::<Vec<_>>());
            eventually(|| site.wire.sent_count() == u64::from(round * 20 + 20));
        }
        assert_eq!(site.wire.sent().len(), 200);
        let statistics = connection.statistics(&socket).unwrap();
        assert_eq!((statistics.rx_dropped, statistics.rx_ring_full, statistics.tx_invalid_descs), (0, 0, 0));
        let listed = site.server().sockets();
        assert_eq!((listed.len(), listed[0].direct, listed[0].pid), (1, true, std::process::id() as i32));
        connection.close(socket).unwrap();
        assert!(site.server().sockets().is_empty());
        site.end();
    }
}

/// A program chooses what comes to the socket through an XSKMAP; everything else passes.
#[test]
fn a_program_delivers_through_a_map() {
    let site = Site::new("map", Policy::default());
    let map = Map::create(&MapSpec::new(MapType::Xskmap, 4, 4, 4), &Env::default()).unwrap();
    site.server().fill_map(map.clone());
    let id = map.id();
    let program = Rust::with_maps(vec![map.clone()], move |_, frame| {
        if wire::frame_number(frame.packet()).is_multiple_of(2) {
            frame.set_redirect(Redirect::Socket { map_id: id, key: 0 });
            Verdict::Redirect as u64
        } else {
            Verdict::Pass as u64
        }
    });
    let point = HookPoint { ifindex: IFINDEX, queue: None };
    site.engine.attach(point, program, AttachFlags::default()).unwrap();
    let (connection, mut socket) = open(&site, &bind(xsk::bind::COPY, false)).unwrap();
    socket.fill(32);
    site.wire.send(0, 20);
    let numbers: Vec<_> = echo(&mut socket, 10).iter().map(|packet| wire::frame_number(packet)).collect();
    assert_eq!(numbers, (0..20).step_by(2).collect::<Vec<_>>());
    eventually(|| site.wire.passed().len() == 10 && site.wire.sent_count() == 10);
    drop((socket, connection));
    // Gone: the entry is empty, the redirect fails and is counted, the others pass on.
    eventually(|| site.server().sockets().is_empty());
    site.wire.send(0, 10);
    eventually(|| site.wire.idle() && site.wire.passed().len() == 15);
    site.end();
}

#[test]
fn what_is_not_allowed_is_refused_with_linux_errno() {
    let policy = Policy { trusted_uids: Vec::new(), sockets_max: 2, memory_max: 1 << 20, ..Policy::default() };
    let site = Site::new("refused", policy);
    use xsk::bind::{COPY, SHARED_UMEM, USE_SG, ZEROCOPY};
    let try_it = |bind: &Bind| refused(open(&site, bind)).0;
    assert_eq!(try_it(&Bind { interface: "nothing".into(), ..bind(0, false) }), Errno::ENODEV);
    assert_eq!(try_it(&Bind { queue: 1, ..bind(0, false) }), Errno::EINVAL);
    assert_eq!(try_it(&bind(COPY | ZEROCOPY, false)), Errno::EINVAL);
    assert_eq!(try_it(&bind(1 << 9, false)), Errno::EINVAL);
    assert_eq!(try_it(&bind(USE_SG, false)), Errno::EOPNOTSUPP);
    let sizes = Sizes { fill: 3, completion: 64, rx: 64, tx: 64 };
    assert_eq!(try_it(&Bind { sizes, ..bind(0, false) }), Errno::EINVAL);
    // Without copies, and not trusted: with traffic of others on the queue, and alone on it when the policy does not say so.
    let (errno, reason) = refused(open(&site, &bind(ZEROCOPY, false)));
    assert_eq!(errno, Errno::EPERM);
    assert!(reason.contains("packets of others"), "{reason}");
    assert_eq!(try_it(&bind(ZEROCOPY, true)), Errno::EPERM);
    let (mut connection, _first) = open(&site, &bind(0, false)).unwrap();
    assert_eq!(try_it(&bind(0, false)), Errno::EBUSY);
    let umem = connection.umem(1, 2048, 0).unwrap();
    let _second = connection.bind(&umem, &bind(SHARED_UMEM, true)).unwrap();
    assert_eq!(try_it(&bind(SHARED_UMEM, true)), Errno::EBUSY);
    let third = connection.bind(&umem, &bind(SHARED_UMEM, false)).err().unwrap();
    assert!(third.to_string().contains("as many sockets as it may"), "{third}");
    let large = connection.umem(1024, 2048, 0).err().unwrap();
    assert!(large.to_string().contains("ENOMEM"), "{large}");
    drop((connection, _first, _second));
    site.end();
}

/// An application that is not trusted may go without copies on a queue that is its own, as long as no program is there.
#[test]
fn a_queue_of_its_own_may_go_without_copies() {
    let policy = Policy { trusted_uids: Vec::new(), own_queue_zero_copy: true, ..Policy::default() };
    let site = Site::new("own", policy);
    assert_eq!(refused(open(&site, &bind(xsk::bind::ZEROCOPY, false))).0, Errno::EPERM);
    let (connection, socket) = open(&site, &bind(xsk::bind::ZEROCOPY, true)).unwrap();
    assert!(socket.zero_copy());
    drop((connection, socket));
    eventually(|| site.server().sockets().is_empty());
    let program = Rust::new(|_, _| Verdict::Pass as u64);
    let point = HookPoint { ifindex: IFINDEX, queue: Some(0) };
    site.engine.attach(point, program, AttachFlags::default()).unwrap();
    assert_eq!(refused(open(&site, &bind(xsk::bind::ZEROCOPY, true))).0, Errno::EPERM);
    // Past the program that somebody put there: not with copies either.
    let (errno, reason) = refused(open(&site, &bind(xsk::bind::COPY, true)));
    assert_eq!(errno, Errno::EPERM);
    assert!(reason.contains("past it"), "{reason}");
    site.end();
}

/// A path at which something else stands is not cleared; a socket that nobody listens at any more is.
#[test]
fn what_stands_at_its_path_is_left_alone() {
    let site = Site::new("path", Policy::default());
    let again = |path: &std::path::Path| {
        let queues = std::sync::Arc::new(xway_xsk::EngineQueues(site.engine.clone()));
        xway_xsk::Server::listen(path, queues, Policy::default())
    };
    let path = site.path.with_extension("other");
    std::fs::write(&path, "precious").unwrap();
    assert!(again(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    // A living server of another kind refuses the connection in its own way.
    let stream = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(again(&path).is_err() && path.exists());
    drop(stream);
    // A child that another test starts meanwhile has the listener for a moment too: it listens until that one executes.
    eventually(|| again(&path).is_ok());
    assert!(!path.exists());
    site.end();
}

/// Whoever is in the group of the socket has sockets, with copies; nobody else is let in.
#[test]
fn the_group_of_the_socket_and_nobody_else_is_let_in() {
    if !Needs::of("xsk::the_group_of_the_socket_and_nobody_else_is_let_in").root().met() {
        return;
    }
    let (stranger, group) = (65_533, 64_001);
    let access = Access { gid: Some(group), ..Access::default() };
    let site = Site::new("group", Policy { access, ..Policy::default() });
    let mode = std::fs::metadata(&site.path).unwrap();
    assert_eq!((mode.mode() & 0o777, mode.uid(), mode.gid()), (0o660, 0, group));
    let opened = as_user((stranger, stranger), &[], || Connection::open(&site.path));
    let words = opened.err().expect("a stranger is let in").to_string();
    assert!(words.contains("ermission denied"), "{words}");
    let mut connection = as_user((stranger, stranger), &[group], || Connection::open(&site.path)).unwrap();
    let umem = connection.umem(64, 2048, 0).unwrap();
    let name = format!("wire{IFINDEX}");
    let refused = connection.bind(&umem, &Bind { flags: ZEROCOPY, ..Bind::new(name.clone(), 0) });
    assert!(refused.err().unwrap().to_string().contains("it must be trusted"));
    assert!(!connection.bind(&umem, &Bind::new(name, 0)).unwrap().zero_copy());
    drop(connection);
    site.end();
}

/// What makes no sense on the connection ends it, and nothing else.
#[test]
fn a_connection_that_makes_no_sense_ends() {
    let site = Site::new("sense", Policy::default());
    let raw = || {
        let address = rustix::net::SocketAddrUnix::new(&site.path).unwrap();
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
        let fd = rustix::net::socket(family, kind, None).unwrap();
        rustix::net::connect(&fd, &address).unwrap();
        fd
    };
    let hello = Request::Hello { version: VERSION }.encode();
    let ask_first = Request::Statistics { socket: 1 }.encode();
    let mut garbage = [0xee; REQUEST];
    garbage[0] = 3;
    let wrong: [&[u8]; 5] = [&hello[..10], &ask_first, &[0; REQUEST], &[1; 4 * REQUEST], &garbage];
    for bytes in wrong {
        let fd = raw();
        rustix::net::send(&fd, bytes, rustix::net::SendFlags::NOSIGNAL).unwrap();
        let (_, len) = rustix::net::recv(&fd, &mut [0u8; 256], rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(len, 0, "the end of the connection");
    }
    let other = Request::Hello { version: VERSION + 1 }.encode();
    let fd = raw();
    rustix::net::send(&fd, &other, rustix::net::SendFlags::NOSIGNAL).unwrap();
    let mut answer = [0u8; 256];
    let (_, len) = rustix::net::recv(&fd, &mut answer, rustix::net::RecvFlags::empty()).unwrap();
    assert!(len == 256 && String::from_utf8_lossy(&answer).contains("version"));
    let (connection, socket) = open(&site, &bind(0, true)).unwrap();
    drop((connection, socket));
    site.end();
}

/// What a child does until it is killed.
#[test]
fn child() {
    let Some((words, path)) = application::words() else { return };
    let (way, mode) = words.split_once('-').unwrap();
    let mut connection = Connection::open(path).unwrap();
    let umem = connection.umem(128, 2048, 0).unwrap();
    let flags = if mode == "lent" { xsk::bind::ZEROCOPY } else { xsk::bind::COPY };
    let mut socket = connection.bind(&umem, &bind(flags | xsk::bind::SHARED_UMEM, true)).unwrap();
    application::live(&mut socket, way, Instant::now() + Duration::from_secs(60));
}

/// Killed with -9 in the middle of work, with packets in hand, asleep: its frames come home, its queue serves the next one, and
/// the engine goes on all the while.
#[test]
fn an_application_that_is_killed_harms_only_itself() {
    let site = Site::new("killed", Policy::default());
    for way in ["works-copy", "works-lent", "keeps-copy", "keeps-lent", "stops-copy", "stops-lent"] {
        site.wire.flood(true);
        let mut child = application::start("child", &site.path, way);
        eventually(|| site.server().sockets().len() == 1);
        let busy = site.wire.offered();
        match way.starts_with("works") {
            true => eventually(|| site.wire.offered() > busy + 2000),
            // Who takes nothing gets nothing: packets stay with the port.
            false => eventually(|| {
                let before = site.wire.offered();
                std::thread::sleep(Duration::from_millis(5));
                site.wire.offered() == before
            }),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        eventually(|| site.server().sockets().is_empty());
        let busy = site.wire.offered();
        eventually(|| site.wire.offered() > busy + 200);
        site.wire.flood(false);
        // The queue serves the next application, and nothing of the last one is missing.
        let (connection, mut socket) = open(&site, &bind(xsk::bind::ZEROCOPY, true)).unwrap();
        socket.fill(32);
        eventually(|| site.wire.idle());
        site.wire.send(0, 5);
        let mut came = 0;
        while came < 5 {
            assert!(socket.wait(WAIT).unwrap(), "{way}");
            while let Some(packet) = socket.receive() {
                socket.give_back(packet);
                came += 1;
            }
            socket.fill(32);
        }
        drop((connection, socket));
        eventually(|| site.server().sockets().is_empty());
    }
    site.end();
}

/// The ways without a handle for each packet, with and without copies: packets made in free chunks leave, packets that came go back
/// changed where they lie. Two sockets of one application share its memory, and a chunk can go from one to the other.
#[test]
fn packets_are_made_and_changed_where_they_lie() {
    for flags in [xsk::bind::COPY, xsk::bind::ZEROCOPY] {
        let site = Site::new("made", Policy::default());
        let (mut connection, mut socket) = open(&site, &bind(flags, true)).unwrap();
        let mut made = 0u32;
        while made < 300 {
            let before = made;
            socket.produce(32, |room| {
                room[..60].fill(0);
                room[..4].copy_from_slice(&made.to_be_bytes());
                made += 1;
                60
            });
            socket.flush();
            let _ = made == before || socket.wait(Some(Duration::from_millis(1))).unwrap();
        }
        eventually(|| {
            socket.reap();
            site.wire.sent_count() == u64::from(made)
        });
        let numbers: Vec<_> = site.wire.sent().iter().map(|packet| wire::frame_number(packet)).collect();
        assert_eq!(numbers, (0..made).collect::<Vec<_>>());
        socket.fill(32);
        site.wire.send(0, 30);
        let mut came = 0;
        while came < 30 {
            assert!(socket.wait(WAIT).unwrap());
            came += socket.process(64, |packet| {
                packet[5] = 0xaa;
                if packet[3].is_multiple_of(2) { Fate::Send } else { Fate::Free }
            });
            socket.flush();
            socket.fill(32);
        }
        eventually(|| site.wire.sent_count() == u64::from(made) + 15);
        assert!(
            site.wire.sent()[made as usize..].iter().all(|packet| packet[5] == 0xaa && packet[3].is_multiple_of(2))
        );
        if flags == xsk::bind::COPY {
            let umem = connection.umem(8, 2048, 0).unwrap();
            let one = connection.bind(&umem, &bind(xsk::bind::SHARED_UMEM, false)).unwrap();
            let mut two = connection.bind(&umem, &bind(xsk::bind::SHARED_UMEM, false)).unwrap();
            let mut one = one;
            assert_eq!((one.free(), two.free()), (8, 0));
            let chunk = one.chunk().unwrap();
            two.give_back_chunk(chunk);
            assert_eq!((one.free(), two.free()), (7, 1));
            // A chunk of another memory is none of its own.
            let other = socket.chunk().unwrap();
            two.give_back_chunk(other);
            assert_eq!(two.free(), 1);
        }
        site.end();
    }
}

/// A server that goes takes its sockets along; applications see the end of the connection.
#[test]
fn a_server_can_go_while_applications_are_there() {
    let mut site = Site::new("goes", Policy::default());
    let (mut connection, mut socket) = open(&site, &bind(xsk::bind::ZEROCOPY, true)).unwrap();
    socket.fill(32);
    site.wire.send(0, 10);
    eventually(|| site.wire.idle());
    site.server = None;
    assert!(connection.statistics(&socket).is_err());
    // What has come is still there; then there is nothing to wait for.
    assert!(socket.wait(None).unwrap());
    while let Some(packet) = socket.receive() {
        socket.give_back(packet);
    }
    let gone = socket.wait(None).unwrap_err().to_string();
    assert!(gone.contains("the server has closed the socket"), "{gone}");
    assert!(!site.path.exists());
    site.end();
}

/// A queue is taken away and comes back while an application has a socket on it, with and without copies: every frame comes home,
/// the application hears nothing and harms nobody, and binds anew when the queue is there again.
#[test]
fn queues_come_and_go_under_sockets() {
    for flags in [xsk::bind::COPY, xsk::bind::ZEROCOPY] {
        let site = Site::new("moving", Policy::default());
        let mut connection = Connection::open(&site.path).unwrap();
        for round in 0..3 {
            let umem = connection.umem(128, 2048, 0).unwrap();
            let mut socket = connection.bind(&umem, &bind(flags, true)).unwrap();
            socket.fill(32);
            site.wire.send(0, 20);
            assert_eq!(echo(&mut socket, 20).len(), 20);
            eventually(|| site.wire.sent_count() == round * 20 + 20);
            // The application holds packets, and has others on their way, when the queue goes.
            socket.fill(32);
            let report = site.engine.remove_queue(IFINDEX, 0).unwrap();
            assert_eq!((report.leak, report.counters.balance()), (None, Ok(())), "round {round}");
            assert!(matches!(connection.bind(&umem, &bind(flags, true)), Err(ClientError::Refused { .. })));
            socket.flush();
            assert!(socket.receive().is_none());
            site.engine.add_queue(IFINDEX, 0, 0).unwrap();
            connection.close(socket).unwrap();
            assert!(site.server().sockets().is_empty());
        }
        drop(connection);
        site.end();
    }
}
