//! Live traffic over AF_XDP sockets on veth pairs.

#[path = "../../port-packet/tests/harness/mod.rs"]
mod harness;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use harness::{RIGHT, cable};
use xway_abi::Verdict;
use xway_engine::{Device, Port, PortStats, Rx, Support};
use xway_kernel::XdpMode;
use xway_packet::{Backing, Burst, Frame, Pool, PoolConfig};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice, AfXdpPort, Copying, OpenError};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_tap::{Injector, Stacked};
use xway_testkit::{Lab, Namespace, Needs, packets::Packet, traffic};

macro_rules! needs_lab {
    ($name:literal) => {
        if !Needs::of($name).root().command("ip").kernel(5, 10).met() {
            return;
        }
    };
}

fn memory() -> PoolConfig {
    PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(1024) }
}

fn config(interface: &str) -> AfXdpConfig {
    AfXdpConfig { entries: 256, ..AfXdpConfig::new(interface) }
}

fn device(namespace: &Namespace, config: &AfXdpConfig) -> Result<AfXdpDevice, OpenError> {
    namespace.enter(|| AfXdpDevice::open(config)).unwrap()
}

/// Queue 0 of an interface.
fn open(namespace: &Namespace, config: &AfXdpConfig, pool: &mut Pool) -> Result<AfXdpPort, OpenError> {
    let mut device = device(namespace, config)?;
    namespace.enter(move || device.open_port(0, pool)).unwrap()
}

fn boxed(port: AfXdpPort) -> Box<dyn Port> {
    Box::new(port)
}

fn datagram(number: u8) -> Vec<u8> {
    Packet::eth().ipv4([10, 9, 0, 1], [10, 9, 0, 2]).udp(1, 9).pattern(usize::from(number)).build()
}

/// Sends frames from an interface.
fn send(namespace: &Namespace, interface: &str, packets: &[Vec<u8>]) {
    let mut port = namespace.enter(|| PacketPort::open_sender(&PacketConfig::new(interface))).unwrap().unwrap();
    let mut pool = Pool::new(PoolConfig::new(64)).unwrap();
    for packets in packets.chunks(Burst::MAX) {
        let mut burst = Burst::new();
        for packet in packets {
            let mut frame = pool.alloc().unwrap();
            frame.fill(packet).unwrap();
            burst.push(frame).unwrap();
        }
        assert_eq!(port.tx(0, &mut pool, &mut burst).sent as usize, packets.len());
    }
}

/// Receives until `count` frames came, for half a minute at most.
fn receive(port: &mut AfXdpPort, pool: &mut Pool, count: usize) -> Vec<Vec<u8>> {
    receive_until(&mut [port], pool, |_, out| out.len() >= count)
}

/// Receives on all these queues until it is enough, for half a minute at most.
fn receive_until(
    ports: &mut [&mut AfXdpPort],
    pool: &mut Pool,
    mut enough: impl FnMut(&mut [&mut AfXdpPort], &[Vec<u8>]) -> bool,
) -> Vec<Vec<u8>> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let mut out = Vec::new();
    while !enough(ports, &out) && std::time::Instant::now() < deadline {
        let mut idle = true;
        for port in ports.iter_mut() {
            let mut burst = Burst::new();
            idle &= port.rx(0, pool, &mut burst, Burst::MAX).unwrap() == Rx::Idle;
            out.extend(burst.frames().iter().map(|frame| frame.packet().to_vec()));
            pool.release_burst(&mut burst);
        }
        if idle {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    out
}

fn is_test_datagram(packet: &[u8]) -> bool {
    packet.get(12..14) == Some(&[8, 0]) && packet.get(23) == Some(&17) && packet.get(36..38) == Some(&[0, 9])
}

#[test]
fn packets_arrive_whole_and_in_order_in_both_modes() {
    needs_lab!("packets_arrive_whole_and_in_order_in_both_modes");
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let (_lab, left, right) = cable("order");
        let mut pool = Pool::new(memory()).unwrap();
        let mut port = open(&right, &AfXdpConfig { mode, ..config("r0") }, &mut pool).unwrap();
        // Several times around the rings.
        let sent: Vec<_> = (0..1000).map(|n| datagram((n % 200) as u8)).collect();
        for part in sent.chunks(50) {
            send(&left, "l0", part);
            let got: Vec<_> = receive(&mut port, &mut pool, 50).into_iter().filter(|p| is_test_datagram(p)).collect();
            assert_eq!(got, part, "{mode:?}");
        }
        let stats = port.stats();
        assert_eq!((stats.dropped, stats.oversize, &stats.other[..]), (0, 0, &[][..]));
        assert!(stats.rx >= 1000);
        port.close(&mut pool);
        pool.close().unwrap();
    }
}

#[test]
fn what_nobody_had_taken_when_a_port_is_closed_is_counted() {
    needs_lab!("what_nobody_had_taken_when_a_port_is_closed_is_counted");
    let (_lab, left, right) = cable("unread");
    let mut pool = Pool::new(memory()).unwrap();
    let mut port = open(&right, &config("r0"), &mut pool).unwrap();
    send(&left, "l0", &vec![datagram(60); 30]);
    let taken = receive(&mut port, &mut pool, 10).len() as u64;
    send(&left, "l0", &vec![datagram(60); 30]);
    // The other end of a veth takes them a moment later.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while right.packets("r0").unwrap().0 < 60 && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    port.close(&mut pool);
    let stats = port.stats();
    let unread = stats.other.iter().find(|(name, _)| *name == "unread").map_or(0, |&(_, count)| count);
    // Whatever the host itself has to say may be among them.
    assert!(unread >= 30 && taken + unread >= 60, "{taken} taken, {stats:?}");
    assert_eq!((stats.rx, stats.dropped), (taken, 0));
    pool.close().unwrap();
}

/// What was given to send goes when the port is closed, where it can; where it cannot it is counted, also for the process that goes on.
#[test]
fn what_was_not_sent_when_a_port_is_closed_is_counted() {
    needs_lab!("what_was_not_sent_when_a_port_is_closed_is_counted");
    let (_lab, _left, right) = cable("unsent");
    let link = |state: &str| right.ip(&["link", "set", "r0", state]).unwrap();
    let config = config("r0");
    let mut pool = Pool::new(memory()).unwrap();
    let mut afxdp = device(&right, &config).unwrap();
    let mut port = right.enter(|| afxdp.open_port(0, &mut pool)).unwrap().unwrap();
    let mut kept = afxdp.keep().unwrap();
    for (down, lost) in [(false, None), (true, Some(5))] {
        kept.shut().unwrap();
        if down {
            link("down");
        }
        let mut burst = Burst::new();
        for _ in 0..5 {
            let mut frame = pool.alloc().unwrap();
            frame.fill(&datagram(60)).unwrap();
            burst.push(frame).unwrap();
        }
        assert_eq!(port.tx(0, &mut pool, &mut burst).sent, 5);
        port.close(&mut pool);
        let of = |stats: &PortStats, which: &str| stats.other.iter().find(|(name, _)| *name == which).map(|&(_, n)| n);
        assert_eq!(of(&port.stats(), "unsent"), lost);
        // Every frame is at home.
        pool.close().unwrap();
        link("up");
        let parts = kept.parts().unwrap().unwrap();
        drop((port, afxdp));
        pool = Pool::new(memory()).unwrap();
        afxdp = device(&right, &config).unwrap();
        right.enter(|| afxdp.adopt(parts)).unwrap().unwrap();
        port = right.enter(|| afxdp.open_port(0, &mut pool)).unwrap().unwrap();
        kept = afxdp.keep().unwrap();
        kept.open().unwrap();
        assert_eq!(of(&port.stats(), "upgrade-unsent"), lost);
    }
    port.close(&mut pool);
    pool.close().unwrap();
}

#[test]
fn two_hosts_talk_through_the_engine() {
    needs_lab!("two_hosts_talk_through_the_engine");
    let lab = Lab::new("talk").unwrap();
    let [left, middle, right] = ["left", "middle", "right"].map(|name| lab.namespace(name).unwrap());
    lab.veth(&left, "l0", &middle, "m0").unwrap();
    lab.veth(&right, "r0", &middle, "m1").unwrap();
    left.address("l0", "10.9.0.1/24").unwrap();
    right.address("r0", "10.9.0.2/24").unwrap();
    let ports = |pool: &mut Pool| ["m0", "m1"].map(|i| boxed(open(&middle, &config(i), pool).unwrap())).into();
    let (report, ()) = harness::run_in(
        memory(),
        ports,
        |_| Verdict::Pass,
        || {
            left.enter(|| {
                assert_eq!(traffic::ping(RIGHT, 5).unwrap(), 5);
            })
            .unwrap();
        },
    );
    assert_eq!(report.counters.passed, report.counters.rx);
    assert_eq!(report.ports[0].1.rx, report.ports[1].1.tx);
}

/// The host's kernel never sees what a program drops, and answers nothing; what is sent back comes back.
#[test]
fn the_verdict_rules() {
    needs_lab!("the_verdict_rules");
    let (_lab, left, right) = cable("rule");
    right.address("r0", "10.9.0.2/24").unwrap();
    let mac = right.ip(&["-br", "link", "show", "dev", "r0"]).unwrap();
    let mac = mac.split_whitespace().nth(2).unwrap().to_owned();
    left.ip(&["neigh", "add", "10.9.0.2", "lladdr", &mac, "dev", "l0"]).unwrap();
    let answer = |frame: &mut Frame| {
        let packet = frame.packet_mut();
        if packet.get(12..14) != Some(&[8, 0]) || packet.get(23) != Some(&1) || packet.get(34) != Some(&8) {
            return Verdict::Drop;
        }
        let (to, from) = packet.split_at_mut(6);
        to.swap_with_slice(&mut from[..6]);
        let (from, to) = packet[26..].split_at_mut(4);
        from.swap_with_slice(&mut to[..4]);
        packet[34] = 0;
        let sum = u32::from(u16::from_be_bytes([packet[36], packet[37]])) + 0x0800;
        packet[36..38].copy_from_slice(&((sum & 0xffff) as u16 + (sum >> 16) as u16).to_be_bytes());
        // The metadata area and the room in front are there, as on a driver.
        assert_eq!(frame.adjust_meta(-32), Ok(()));
        assert_eq!(frame.adjust_head(-64).and_then(|()| frame.adjust_head(64)), Ok(()));
        assert!(frame.tailroom() > 1000);
        Verdict::Tx
    };
    let ports = |pool: &mut Pool| vec![boxed(open(&right, &config("r0"), pool).unwrap())];
    let (report, answered) = harness::run_in(memory(), ports, answer, || {
        let answered = left.enter(|| traffic::ping(RIGHT, 5)).unwrap().unwrap();
        send(&left, "l0", &[datagram(1), datagram(2)]);
        answered
    });
    assert_eq!(answered, 5);
    assert_eq!(report.counters.tx, 5);
    assert!(report.counters.verdict(Verdict::Drop) >= 2);
}

/// PASS of a queue that is taken from the host puts packets back into it, as packets of the same interface: the host answers
/// pings and programs on it receive datagrams, while others are dropped.
#[test]
fn what_passes_enters_the_host_on_the_same_interface() {
    if !Needs::of("what_passes_enters_the_host_on_the_same_interface").root().command("ip").kernel(6, 6).met() {
        return;
    }
    let (_lab, left, right) = cable("pass");
    right.address("r0", "10.9.0.2/24").unwrap();
    let mac = right.ip(&["-br", "link", "show", "dev", "r0"]).unwrap();
    let mac: Vec<u8> =
        mac.split_whitespace().nth(2).unwrap().split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
    let ports = |pool: &mut Pool| {
        let ifindex = right.ifindex("r0").unwrap();
        let wire = boxed(open(&right, &config("r0"), pool).unwrap());
        let (mut tap, way) = right.enter(|| Injector::open(ifindex, 1)).unwrap().unwrap().split();
        let stacked = Stacked::injecting(wire, tap.take(0).unwrap(), Arc::new(way)).unwrap();
        vec![Box::new(stacked) as Box<dyn Port>]
    };
    let dropped = |frame: &mut Frame| {
        if is_test_datagram(frame.packet()) && frame.packet().len() > 100 { Verdict::Drop } else { Verdict::Pass }
    };
    let socket = right.enter(|| std::net::UdpSocket::bind("10.9.0.2:9")).unwrap().unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    let (report, ()) = harness::run_in(memory(), ports, dropped, || {
        assert_eq!(left.enter(|| traffic::ping(RIGHT, 5)).unwrap().unwrap(), 5);
        let to_host = |number| {
            let mut packet = datagram(number);
            packet[..6].copy_from_slice(&mac);
            packet
        };
        send(&left, "l0", &[to_host(10), to_host(90), to_host(11)]);
        let mut buffer = [0; 200];
        let lens: Vec<_> = (0..2).map(|_| socket.recv(&mut buffer).unwrap()).collect();
        assert_eq!(lens, [10, 11]);
    });
    assert_eq!(report.counters.verdict(Verdict::Drop), 1);
    assert_eq!(report.counters.passed + 1, report.counters.rx);
    assert!(report.counters.passed >= 7);
}

#[test]
fn queues_share_the_memory_of_one_pool() {
    needs_lab!("queues_share_the_memory_of_one_pool");
    let lab = Lab::new("share").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    let queues = ["numrxqueues", "2", "numtxqueues", "2"];
    let add = ["link", "add", "r0"].into_iter().chain(queues).chain(["type", "veth", "peer", "name", "l0"]);
    let add: Vec<_> = add.chain(queues).chain(["netns", left.name()]).collect();
    right.ip(&add).unwrap();
    left.ip(&["link", "set", "l0", "up"]).unwrap();
    right.ip(&["link", "set", "r0", "up"]).unwrap();
    let mut device = device(&right, &config("r0")).unwrap();
    assert_eq!(device.rx_queues(), 2);
    let mut pool = Pool::new(memory()).unwrap();
    let (mut device, mut pool, ports) = right
        .enter(move || {
            let ports: Vec<_> = (0..2).map(|queue| device.open_port(queue, &mut pool).unwrap()).collect();
            (device, pool, ports)
        })
        .unwrap();
    assert_eq!(device.effective().iter().map(|e| e.queue).collect::<Vec<_>>(), [0, 1]);
    let [mut first, mut second] = <[AfXdpPort; 2]>::try_from(ports).ok().unwrap();
    // Each CPU of the sender has its own queue; together they get everything.
    send(&left, "l0", &(0..100).map(datagram).collect::<Vec<_>>());
    let all = |out: &[Vec<u8>]| out.iter().filter(|p| is_test_datagram(p)).count() >= 100;
    let got = receive_until(&mut [&mut first, &mut second], &mut pool, |_, out| all(out));
    assert_eq!(got.iter().filter(|p| is_test_datagram(p)).count(), 100);
    // A queue can be closed and opened again while the other goes on; sending works through the one that was second.
    first.close(&mut pool);
    drop(first);
    let mut again = right.enter(|| device.open_port(0, &mut pool)).unwrap().unwrap();
    let mut burst = Burst::new();
    let mut frame = pool.alloc().unwrap();
    frame.fill(&datagram(7)).unwrap();
    burst.push(frame).unwrap();
    assert_eq!(second.tx(0, &mut pool, &mut burst).sent, 1);
    second.flush().unwrap();
    again.close(&mut pool);
    second.close(&mut pool);
    pool.close().unwrap();
}

#[test]
fn frames_of_another_pool_are_sent_too() {
    needs_lab!("frames_of_another_pool_are_sent_too");
    let (_lab, left, right) = cable("other");
    let (mut pool, mut theirs) = (Pool::new(memory()).unwrap(), Pool::new(memory()).unwrap());
    let mut elsewhere = Pool::new(PoolConfig::new(8)).unwrap();
    let mut sender = open(&right, &config("r0"), &mut pool).unwrap();
    let mut receiver = open(&left, &config("l0"), &mut theirs).unwrap();
    for number in 0..100 {
        let mut burst = Burst::new();
        let mut frame = elsewhere.alloc().unwrap();
        frame.fill(&datagram(number)).unwrap();
        burst.push(frame).unwrap();
        assert_eq!(sender.tx(0, &mut pool, &mut burst).sent, 1);
        sender.flush().unwrap();
    }
    let got = receive(&mut receiver, &mut theirs, 100);
    let got: Vec<_> = got.into_iter().filter(|p| is_test_datagram(p)).collect();
    assert_eq!(got, (0..100).map(datagram).collect::<Vec<_>>());
    sender.close(&mut pool);
    receiver.close(&mut theirs);
    for pool in [pool, theirs, elsewhere] {
        pool.close().unwrap();
    }
}

/// What was asked for, what came of it and why is told, and a demand that cannot be met is an error.
#[test]
fn modes_are_told_and_demands_are_kept() {
    needs_lab!("modes_are_told_and_demands_are_kept");
    let (_lab, _left, right) = cable("modes");
    let mut pool = Pool::new(memory()).unwrap();
    let told = |config: &AfXdpConfig, pool: &mut Pool| {
        let mut device = device(&right, config).unwrap();
        let (device, port) = right
            .enter(move || {
                let port = device.open_port(0, pool);
                (device, port)
            })
            .unwrap();
        (device.effective().first().map(ToString::to_string), port)
    };
    let (text, port) = told(&config("r0"), &mut pool);
    assert_eq!(port.unwrap().capabilities().drop, Support::Full);
    let native = "queue 0: native (asked: auto), copy (asked: auto): the driver does not offer xsk-zerocopy";
    assert_eq!(text.as_deref(), Some(native));
    pool.reclaim_all();
    let (text, port) = told(&AfXdpConfig { mode: XdpMode::Generic, ..config("r0") }, &mut pool);
    drop(port.unwrap());
    assert_eq!(
        text.as_deref(),
        Some("queue 0: generic (asked: generic), copy (asked: auto): generic mode always copies")
    );
    pool.reclaim_all();
    let (_, port) = told(&AfXdpConfig { copying: Copying::ZeroCopy, ..config("r0") }, &mut pool);
    let error = port.err().unwrap();
    assert!(matches!(error, OpenError::NoZeroCopy { queue: 0, .. }), "{error}");
    let (_, port) = told(&AfXdpConfig { busy_poll: Some(64), ..config("r0") }, &mut pool);
    drop(port.unwrap());
    pool.reclaim_all();
}

#[test]
fn what_cannot_be_opened_says_why() {
    needs_lab!("what_cannot_be_opened_says_why");
    let (_lab, _left, right) = cable("why");
    let mut pool = Pool::new(memory()).unwrap();
    let refused = |config: AfXdpConfig| device(&right, &config).err().unwrap();
    assert!(matches!(refused(config("none0")), OpenError::NoInterface { .. }));
    assert!(matches!(refused(AfXdpConfig { entries: 100, ..config("r0") }), OpenError::Entries { entries: 100 }));
    let queues = Some((1, 1));
    assert!(matches!(refused(AfXdpConfig { queues, ..config("r0") }), OpenError::NoQueue { queue: 1, have: 1, .. }));
    let mut anonymous = Pool::new(PoolConfig::new(64)).unwrap();
    let error = open(&right, &config("r0"), &mut anonymous).err().unwrap();
    assert!(matches!(error, OpenError::Memory { .. }), "{error}");
    // Somebody is there.
    let first = open(&right, &config("r0"), &mut pool).unwrap();
    let error = open(&right, &config("r0"), &mut pool).err().unwrap();
    assert!(matches!(error, OpenError::ProgramThere { .. }), "{error}");
    drop(first);
    pool.reclaim_all();
    // Whoever drops device and ports, in a panic too, leaves the interface as it was.
    let config = config("r0");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _port = open(&right, &config, &mut pool).unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(panicked.is_err());
    pool.reclaim_all();
    let shown = right.ip(&["link", "show", "dev", "r0"]).unwrap();
    assert!(!shown.contains("xdp"), "{shown}");
    right.ip(&["link", "set", "r0", "down"]).unwrap();
    assert!(matches!(refused(config.clone()), OpenError::Down { .. }));
}

#[test]
fn a_removed_interface_is_told_and_frames_come_home() {
    needs_lab!("a_removed_interface_is_told_and_frames_come_home");
    let (_lab, left, right) = cable("gone");
    let mut pool = Pool::new(memory()).unwrap();
    let mut port = open(&right, &config("r0"), &mut pool).unwrap();
    left.ip(&["link", "del", "l0"]).unwrap();
    let mut burst = Burst::new();
    let mut calls = (0..10_000).map(|_| {
        let result = port.rx(0, &mut pool, &mut burst, Burst::MAX);
        pool.release_burst(&mut burst);
        result
    });
    let error = calls.find_map(Result::err).expect("an interface that is gone is noticed");
    assert_eq!(error.to_string(), "afxdp:r0: the interface was removed");
    port.close(&mut pool);
    pool.close().unwrap();
}

/// A consumer that is too slow loses packets, and each loss is counted: what was sent is what came and what was dropped.
#[test]
fn what_comes_too_fast_is_counted() {
    needs_lab!("what_comes_too_fast_is_counted");
    let (_lab, left, right) = cable("fast");
    let mut pool = Pool::new(memory()).unwrap();
    let mut port = open(&right, &config("r0"), &mut pool).unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    send(&left, "l0", &(0..1000).map(|_| datagram(20)).collect::<Vec<_>>());
    let got = receive_until(&mut [&mut port], &mut pool, |ports, _| {
        let stats = ports[0].stats();
        stats.rx + stats.dropped >= 1000
    });
    seen.fetch_add(got.len() as u64, Ordering::Relaxed);
    let stats = port.stats();
    assert!(stats.dropped >= 700, "{stats:?}");
    assert!(stats.rx + stats.dropped >= 1000, "{stats:?}");
    assert_eq!(stats.rx, seen.load(Ordering::Relaxed));
    port.close(&mut pool);
    pool.close().unwrap();
}

/// Sends datagrams of many lengths to a host's port 9 and expects each of them back.
fn echoed(namespace: &Namespace, to: Ipv4Addr, lens: &[usize]) {
    let socket = namespace.enter(|| std::net::UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let mut buffer = vec![0; 65_536];
    for &len in lens {
        let data: Vec<u8> = (0..len).map(|n| (n * 3 + n / 255 + len) as u8).collect();
        socket.send_to(&data, (to, 9)).unwrap();
        let (got, _) = socket.recv_from(&mut buffer).unwrap_or_else(|e| panic!("{len} bytes: {e}"));
        assert!(buffer[..got] == data[..], "{len} bytes came back otherwise");
    }
}

/// Jumbo frames come in several buffers and leave in several.
#[test]
fn long_packets_come_and_go_in_several_buffers() {
    if !Needs::of("long_packets_come_and_go_in_several_buffers").root().command("ip").kernel(6, 6).met() {
        return;
    }
    let (_lab, left, right) = cable("frags");
    left.ip(&["link", "set", "l0", "mtu", "30000"]).unwrap();
    right.ip(&["link", "set", "r0", "mtu", "30000"]).unwrap();
    let mac = right.ip(&["-br", "link", "show", "dev", "r0"]).unwrap();
    let mac = mac.split_whitespace().nth(2).unwrap().to_owned();
    left.ip(&["neigh", "add", "10.9.0.2", "lladdr", &mac, "dev", "l0"]).unwrap();
    let several = Arc::new(AtomicU64::new(0));
    let seen = several.clone();
    let answer = move |frame: &mut Frame| {
        let parts = frame.frag_count() as u64;
        let packet = frame.packet_mut();
        if !is_test_datagram(packet) {
            return Verdict::Drop;
        }
        let (to, from) = packet.split_at_mut(6);
        to.swap_with_slice(&mut from[..6]);
        let (from, to) = packet[26..].split_at_mut(4);
        from.swap_with_slice(&mut to[..4]);
        // The host leaves the checksum to the hardware; none at all is as good.
        packet[40..42].fill(0);
        seen.fetch_max(parts, Ordering::Relaxed);
        Verdict::Tx
    };
    let config = AfXdpConfig { frags: true, mode: XdpMode::Native, ..config("r0") };
    let shape = PoolConfig { tailroom: 0, ..memory() };
    let lens = [100, 3700, 3799, 3800, 5000, 8000, 9000, 20_000, 29_972];
    let ports = |pool: &mut Pool| vec![boxed(open(&right, &config, pool).unwrap())];
    let (report, ()) = harness::run_in(shape, ports, answer, || echoed(&left, RIGHT, &lens));
    assert_eq!(report.counters.tx, lens.len() as u64);
    assert!(several.load(Ordering::Relaxed) >= 7);
    let stats = &report.ports[0].1;
    assert_eq!((stats.oversize, &stats.other[..]), (0, &[][..]));
    assert!(stats.tx_bytes >= lens.iter().map(|len| *len as u64 + 42).sum::<u64>());
}
