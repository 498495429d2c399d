//! Live traffic in network namespaces: pings, TCP connections and datagrams of the kernel's own stack.

mod harness;

use std::time::Duration;

use harness::{LEFT, Program, RIGHT, ip_protocol};
use xway_abi::Verdict;
use xway_engine::{End, Limits, Port, PortErrorKind, Report, Stop, Worker, WorkerConfig};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_port_packet::{OpenError, PacketConfig, PacketPort};
use xway_testkit::{Lab, Namespace, Needs, packets::Packet, traffic};

/// Runs a program on interfaces of a namespace, both ways between them when there are two, while `work` goes on outside.
fn run<T: Send>(
    namespace: &Namespace,
    interfaces: &[&str],
    program: impl FnMut(&mut Frame) -> Verdict + Send + 'static,
    work: impl FnOnce() -> T,
) -> (Report, T) {
    let open = |_: &mut Pool| {
        let open = |name: &&str| Box::new(PacketPort::open(&PacketConfig::new(*name)).unwrap()) as Box<dyn Port>;
        namespace.enter(|| interfaces.iter().map(open).collect()).unwrap()
    };
    harness::run(open, program, work)
}

/// Two hosts on a cable.
fn two_hosts(label: &str) -> (Lab, Namespace, Namespace) {
    let (lab, left, right) = harness::cable(label);
    right.address("r0", "10.9.0.2/24").unwrap();
    (lab, left, right)
}

/// Two hosts with a namespace in between that forwards nothing by itself.
fn bump(label: &str) -> (Lab, Namespace, Namespace, Namespace) {
    let lab = Lab::new(label).unwrap();
    let [left, middle, right] = ["left", "middle", "right"].map(|name| lab.namespace(name).unwrap());
    lab.veth(&left, "l0", &middle, "m0").unwrap();
    lab.veth(&right, "r0", &middle, "m1").unwrap();
    left.address("l0", "10.9.0.1/24").unwrap();
    right.address("r0", "10.9.0.2/24").unwrap();
    (lab, left, middle, right)
}

macro_rules! needs_lab {
    ($name:literal) => {
        if !Needs::of($name).root().command("ip").met() {
            return;
        }
    };
}

#[test]
fn counts_what_the_host_really_receives_and_the_host_answers() {
    needs_lab!("counts_what_the_host_really_receives_and_the_host_answers");
    let (_lab, left, right) = two_hosts("count");
    let counts = std::sync::Arc::new(std::sync::Mutex::new([0u64; 256]));
    let tcp = right.enter(|| traffic::tcp_echo_server((RIGHT, 7).into(), 2)).unwrap().unwrap();
    let udp = right.enter(|| traffic::udp_echo_server((RIGHT, 7).into(), 5)).unwrap().unwrap();
    let program = {
        let counts = counts.clone();
        move |frame: &mut Frame| {
            if let Some(protocol) = ip_protocol(frame) {
                counts.lock().unwrap()[usize::from(protocol)] += 1;
            }
            assert_eq!(frame.rx_queue(), 0);
            Verdict::Pass
        }
    };
    let (report, ()) = run(&right, &["r0"], program, || {
        left.enter(|| {
            assert_eq!(traffic::ping(RIGHT, 4).unwrap(), 4);
            assert_eq!(traffic::udp_echo_client((RIGHT, 7).into(), 5).unwrap(), 5);
            traffic::tcp_echo_client((RIGHT, 7).into(), 3000).unwrap();
            traffic::tcp_echo_client((RIGHT, 7).into(), 10).unwrap();
        })
        .unwrap();
    });
    assert_eq!(tcp.join().unwrap().unwrap(), 2);
    assert_eq!(udp.join().unwrap().unwrap(), 5);
    let counts = counts.lock().unwrap();
    assert_eq!((counts[1], counts[17]), (4, 5), "echo requests and datagrams, and none of the answers");
    // Two connections: at least SYN, ACK, data, FIN each.
    assert!(counts[6] >= 8, "{} TCP segments", counts[6]);
    assert_eq!(report.counters.passed, report.counters.rx);
    let (_, stats) = &report.ports[0];
    assert_eq!((stats.dropped, stats.oversize, stats.truncated, stats.rx), (0, 0, 0, report.counters.rx));
}

#[test]
fn between_two_interfaces_what_passes_reaches_the_other_side() {
    needs_lab!("between_two_interfaces_what_passes_reaches_the_other_side");
    let (_lab, left, middle, right) = bump("bump");
    let tcp = right.enter(|| traffic::tcp_echo_server((RIGHT, 7).into(), 1)).unwrap().unwrap();
    let udp = right.enter(|| traffic::udp_echo_server((RIGHT, 7).into(), 5)).unwrap().unwrap();
    let (report, ()) = run(
        &middle,
        &["m0", "m1"],
        |_| Verdict::Pass,
        || {
            left.enter(|| {
                assert_eq!(traffic::ping(RIGHT, 3).unwrap(), 3);
                assert_eq!(traffic::udp_echo_client((RIGHT, 7).into(), 5).unwrap(), 5);
                traffic::tcp_echo_client((RIGHT, 7).into(), 20_000).unwrap();
            })
            .unwrap();
        },
    );
    assert_eq!(tcp.join().unwrap().unwrap(), 1);
    assert_eq!(udp.join().unwrap().unwrap(), 5);
    assert_eq!(report.counters.passed, report.counters.rx);
    let sent: u64 = report.ports.iter().map(|(_, stats)| stats.tx).sum();
    assert_eq!(sent, report.counters.rx);
}

#[test]
fn between_two_interfaces_the_verdict_rules() {
    needs_lab!("between_two_interfaces_the_verdict_rules");
    let (_lab, left, middle, right) = bump("rule");
    let udp = right.enter(|| traffic::udp_echo_server((RIGHT, 7).into(), 2)).unwrap().unwrap();
    let drop_pings = |frame: &mut Frame| if ip_protocol(frame) == Some(1) { Verdict::Drop } else { Verdict::Pass };
    let (report, ()) = run(&middle, &["m0", "m1"], drop_pings, || {
        left.enter(|| {
            assert_eq!(traffic::ping(RIGHT, 1).unwrap(), 0);
            assert_eq!(traffic::udp_echo_client((RIGHT, 7).into(), 2).unwrap(), 2);
        })
        .unwrap();
    });
    assert_eq!(udp.join().unwrap().unwrap(), 2);
    assert_eq!(report.counters.verdict(Verdict::Drop), 1);
}

#[test]
fn tx_goes_back_to_the_sender_as_the_program_left_it() {
    needs_lab!("tx_goes_back_to_the_sender_as_the_program_left_it");
    let (_lab, left, right) = two_hosts("tx");
    // Nobody but the program answers pings.
    right.ip(&["addr", "flush", "dev", "r0"]).unwrap();
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
        // Echo reply: type 8 becomes 0, so the checksum grows by 0x0800.
        packet[34] = 0;
        let sum = u32::from(u16::from_be_bytes([packet[36], packet[37]])) + 0x0800;
        packet[36..38].copy_from_slice(&((sum & 0xffff) as u16 + (sum >> 16) as u16).to_be_bytes());
        Verdict::Tx
    };
    let (report, answered) = run(&right, &["r0"], answer, || left.enter(|| traffic::ping(RIGHT, 5)).unwrap().unwrap());
    assert_eq!(answered, 5);
    assert_eq!((report.counters.tx, report.counters.tx_full, report.counters.tx_err.total()), (5, 0, 0));
}

#[test]
fn tags_long_packets_and_packets_too_long_to_send_are_accounted_for() {
    needs_lab!("tags_long_packets_and_packets_too_long_to_send_are_accounted_for");
    let (_lab, left, right) = two_hosts("tags");
    for (namespace, interface) in [(&left, "l0"), (&right, "r0")] {
        namespace.ip(&["link", "set", interface, "mtu", "9000"]).unwrap();
    }
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let program = {
        let seen = seen.clone();
        move |frame: &mut Frame| {
            seen.lock().unwrap().push(frame.packet().to_vec());
            if frame.adjust_tail(3520 - frame.len() as i32).is_err() { Verdict::Aborted } else { Verdict::Tx }
        }
    };
    let short = Packet::eth().ipv4([10, 9, 0, 1], [10, 9, 0, 2]).udp(1, 9).pattern(100).build();
    // The receiving side's kernel takes the tag out before packet sockets see the packet.
    let mut tagged = short.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let long = Packet::eth().ipv4([10, 9, 0, 1], [10, 9, 0, 2]).udp(1, 9).pattern(5000).build();
    let (report, ()) = run(&right, &["r0"], program, || {
        left.enter(|| send("l0", &long)).unwrap();
        right.ip(&["link", "set", "r0", "mtu", "1500"]).unwrap();
        left.enter(|| {
            send("l0", &tagged);
            send("l0", &short);
        })
        .unwrap();
    });
    let seen = seen.lock().unwrap();
    assert_eq!(*seen, [tagged, short.clone()]);
    let (_, stats) = &report.ports[0];
    assert_eq!(stats.oversize, 1);
    // Grown beyond the interface's MTU: neither can be sent, and the reason is told.
    assert_eq!(report.counters.tx_err.get(xway_abi::Errno::EMSGSIZE), 2);
}

/// Sends one frame through the port under test, which is the simplest raw sender at hand.
fn send(interface: &str, packet: &[u8]) {
    let mut port = PacketPort::open_sender(&PacketConfig::new(interface)).unwrap();
    let mut pool = Pool::new(PoolConfig { chunk_size: 16384, ..PoolConfig::new(1) }).unwrap();
    let mut burst = xway_packet::Burst::new();
    let mut frame = pool.alloc().unwrap();
    frame.fill(packet).unwrap();
    burst.push(frame).unwrap();
    assert_eq!(port.tx(0, &mut pool, &mut burst).sent, 1);
    assert_eq!(port.rx(0, &mut pool, &mut burst, 1).unwrap(), xway_engine::Rx::End, "it receives nothing");
}

#[test]
fn segments_that_no_wire_carries_are_counted() {
    needs_lab!("segments_that_no_wire_carries_are_counted");
    let (_lab, left, right) = two_hosts("gso");
    let tcp = right.enter(|| traffic::tcp_echo_server((RIGHT, 7).into(), 1)).unwrap().unwrap();
    let (report, ()) = run(
        &right,
        &["r0"],
        |_| Verdict::Pass,
        || {
            left.enter(|| {
                use std::io::{Read, Write};
                let mut stream = std::net::TcpStream::connect((RIGHT, 7)).unwrap();
                let mut reader = stream.try_clone().unwrap();
                let back = std::thread::spawn(move || reader.read_exact(&mut vec![0; 300_000]));
                stream.write_all(&vec![1; 300_000]).unwrap();
                back.join().unwrap().unwrap();
            })
            .unwrap();
        },
    );
    tcp.join().unwrap().unwrap();
    let (_, stats) = &report.ports[0];
    let gso = stats.other.iter().find(|(name, _)| *name == "gso").map_or(0, |&(_, count)| count);
    assert!(gso > 0, "{stats:?}");
    assert!(stats.rx > 0);
}

#[test]
fn what_comes_too_fast_is_counted_as_dropped() {
    needs_lab!("what_comes_too_fast_is_counted_as_dropped");
    let (_lab, left, right) = two_hosts("fast");
    let (port, before) = right
        .enter(|| {
            let config = PacketConfig { slots: 64, ..PacketConfig::new("r0") };
            let port = PacketPort::open(&config).unwrap();
            (port, right.packets("r0").unwrap().0)
        })
        .unwrap();
    let mut port = port;
    left.enter(|| {
        let socket = std::net::UdpSocket::bind((LEFT, 0)).unwrap();
        for _ in 0..500 {
            socket.send_to(&[0; 32], (RIGHT, 9)).unwrap();
        }
    })
    .unwrap();
    let arrived = right.packets("r0").unwrap().0 - before;
    let mut pool = Pool::new(PoolConfig::new(64)).unwrap();
    let mut burst = xway_packet::Burst::new();
    let mut received = 0;
    loop {
        port.rx(0, &mut pool, &mut burst, 64).unwrap();
        if burst.is_empty() {
            break;
        }
        received += burst.len() as u64;
        pool.release_burst(&mut burst);
    }
    let dropped = port.stats().dropped;
    assert!(arrived >= 500 && dropped > 0, "{arrived} arrived, {dropped} dropped");
    assert_eq!(received + dropped, arrived);
    assert_eq!(port.stats().dropped, dropped, "the kernel forgets at each look, the port does not");
}

#[test]
fn missing_down_and_vanishing_interfaces_are_named() {
    needs_lab!("missing_down_and_vanishing_interfaces_are_named");
    let (_lab, left, right) = two_hosts("gone");
    let open = |name: &str| right.enter(|| PacketPort::open(&PacketConfig::new(name)).map(drop)).unwrap();
    assert!(matches!(open("none"), Err(OpenError::NoInterface { .. })));
    assert!(matches!(open("a-name-longer-than-any-interface"), Err(OpenError::NoInterface { .. })));
    assert!(matches!(open(""), Err(OpenError::NoInterface { .. })));
    right.ip(&["link", "add", "d0", "type", "veth", "peer", "name", "d1"]).unwrap();
    let down = open("d0").unwrap_err();
    assert!(matches!(down, OpenError::Down { .. }));
    assert_eq!(down.to_string(), "interface d0 is down; `ip link set d0 up` brings it up");
    right.ip(&["tuntap", "add", "t0", "mode", "tun"]).unwrap();
    assert!(matches!(open("t0"), Err(OpenError::NotEthernet { hardware: 65534, .. })));

    for (what, message) in
        [("down", "packet:r0: the interface went down"), ("del", "packet:r0: the interface was removed")]
    {
        let stop = Stop::new().unwrap();
        let mut config = WorkerConfig::new(stop);
        config.limits = Limits { count: None, timeout: Some(Duration::from_secs(10)) };
        let port = right.enter(|| PacketPort::open(&PacketConfig::new("r0")).unwrap()).unwrap();
        let pool = Pool::new(PoolConfig::new(64)).unwrap();
        let report = std::thread::scope(|scope| {
            let inside = &right;
            let worker = scope.spawn(move || {
                inside.enter(|| {
                    Worker::new(vec![Box::new(port)], Box::new(Program(|_: &mut Frame| Verdict::Pass)), pool, config)
                        .run()
                })
            });
            std::thread::sleep(Duration::from_millis(50));
            if what == "down" {
                right.ip(&["link", "set", "r0", "down"]).unwrap();
            } else {
                left.ip(&["link", "del", "l0"]).unwrap();
            }
            worker.join().unwrap().unwrap()
        });
        let End::Failed(error) = report.end else { panic!("{:?}", report.end) };
        assert_eq!((error.kind, error.to_string().as_str()), (PortErrorKind::Missing, message));
        if what == "down" {
            right.ip(&["link", "set", "r0", "up"]).unwrap();
        }
    }
}

#[test]
fn rings_of_impossible_shape_are_refused() {
    for (slots, packet_max) in
        [(0, 1500), (63, 1500), (100, 1500), (131072, 1500), (4096, 0), (4096, 100_000), (65536, 65536)]
    {
        let config = PacketConfig { slots, packet_max, ..PacketConfig::new("lo") };
        assert!(matches!(PacketPort::open(&config), Err(OpenError::Ring { .. })), "{slots} {packet_max}");
    }
}
