//! Live traffic of the kernel's own stacks through TAP devices.

#[path = "../../port-packet/tests/harness/mod.rs"]
mod harness;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use harness::{LEFT, RIGHT, ip_protocol};
use xway_abi::{Errno, Verdict};
use xway_engine::{Port, Report};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_tap::{Offload, OpenError, Stacked, TapConfig, TapDevice, TapPort};
use xway_testkit::{Lab, Namespace, Needs, traffic};

macro_rules! needs_tap {
    ($name:literal) => {
        if !Needs::of($name).root().command("ip").file("/dev/net/tun").met() {
            return;
        }
    };
}

fn open(namespace: &Namespace, config: &TapConfig, address: Option<Ipv4Addr>) -> Vec<Box<dyn Port>> {
    let mut device = namespace.enter(|| TapDevice::open(config)).unwrap().unwrap();
    if let Some(address) = address {
        namespace.address(&config.name, &format!("{address}/24")).unwrap();
    }
    device.take_all().into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect()
}

/// Two hosts whose only connection is the engine.
fn joined(
    label: &str,
    config: &TapConfig,
    program: impl FnMut(&mut Frame) -> Verdict + Send + 'static,
    work: impl FnOnce(&Namespace, &Namespace),
) -> Report {
    let lab = Lab::new(label).unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    // One side has one queue, whatever the other has.
    let one = TapConfig { queues: 1, ..config.clone() };
    let ports = |_: &mut Pool| {
        let mut ports = open(&right, &one, Some(RIGHT));
        ports.extend(open(&left, config, Some(LEFT)));
        ports
    };
    harness::run_in(PoolConfig::new(1024), ports, program, || work(&left, &right)).0
}

#[test]
fn two_stacks_talk_through_the_engine() {
    needs_tap!("two_stacks_talk_through_the_engine");
    let report = joined(
        "talk",
        &TapConfig::new("xw0"),
        |_| Verdict::Pass,
        |left, right| {
            let tcp = right.enter(|| traffic::tcp_echo_server((RIGHT, 7).into(), 1)).unwrap().unwrap();
            let udp = right.enter(|| traffic::udp_echo_server((RIGHT, 7).into(), 5)).unwrap().unwrap();
            left.enter(|| {
                assert_eq!(traffic::ping(RIGHT, 3).unwrap(), 3);
                assert_eq!(traffic::udp_echo_client((RIGHT, 7).into(), 5).unwrap(), 5);
                traffic::tcp_echo_client((RIGHT, 7).into(), 20_000).unwrap();
            })
            .unwrap();
            assert_eq!((tcp.join().unwrap().unwrap(), udp.join().unwrap().unwrap()), (1, 5));
        },
    );
    assert_eq!(report.counters.passed, report.counters.rx);
    for (name, stats) in &report.ports {
        assert_eq!((stats.oversize, &stats.other[..]), (0, &[][..]), "{name}");
    }
}

#[test]
fn the_verdict_rules_what_the_host_sends() {
    needs_tap!("the_verdict_rules_what_the_host_sends");
    let drop_pings = |frame: &mut Frame| if ip_protocol(frame) == Some(1) { Verdict::Drop } else { Verdict::Pass };
    let report = joined("rule", &TapConfig::new("xw0"), drop_pings, |left, right| {
        let udp = right.enter(|| traffic::udp_echo_server((RIGHT, 7).into(), 2)).unwrap().unwrap();
        left.enter(|| {
            assert_eq!(traffic::ping(RIGHT, 1).unwrap(), 0);
            assert_eq!(traffic::udp_echo_client((RIGHT, 7).into(), 2).unwrap(), 2);
        })
        .unwrap();
        assert_eq!(udp.join().unwrap().unwrap(), 2);
    });
    assert_eq!(report.counters.verdict(Verdict::Drop), 1);
}

/// Bulk TCP with each kind of work left to us: the bytes arrive, and no frame is longer than the wire's.
#[test]
fn what_the_host_leaves_undone_is_done_here() {
    needs_tap!("what_the_host_leaves_undone_is_done_here");
    const BYTES: usize = 1_000_000;
    for offload in [Offload::None, Offload::Checksum, Offload::Segmentation] {
        let longest = Arc::new(AtomicU64::new(0));
        let config = TapConfig { offload, ..TapConfig::new("xw0") };
        let seen = longest.clone();
        let program = move |frame: &mut Frame| {
            seen.fetch_max(frame.len() as u64, Ordering::Relaxed);
            Verdict::Pass
        };
        let report = joined("bulk", &config, program, |left, right| {
            let tcp = right.enter(|| traffic::tcp_bulk_server((RIGHT, 7).into())).unwrap().unwrap();
            left.enter(|| traffic::tcp_bulk_client((RIGHT, 7).into(), BYTES)).unwrap().unwrap();
            assert_eq!(tcp.join().unwrap().unwrap(), BYTES, "{offload:?}");
        });
        assert_eq!(longest.load(Ordering::Relaxed), 1514, "{offload:?}");
        assert_eq!(report.counters.passed, report.counters.rx);
        assert!(report.ports.iter().all(|(_, stats)| stats.other.is_empty()), "{:?}", report.ports);
    }
}

/// PASS of another port into the host's stack: a host on a cable reaches an address that lives on a TAP behind the engine.
/// The program sees what comes from the cable, not what the host answers.
#[test]
fn another_ports_traffic_passes_into_the_host() {
    needs_tap!("another_ports_traffic_passes_into_the_host");
    let lab = Lab::new("into").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", "10.9.0.1/24").unwrap();
    let ports = |_: &mut Pool| {
        let cable = PacketConfig { promiscuous: true, ..PacketConfig::new("r0") };
        let cable = right.enter(|| PacketPort::open(&cable)).unwrap().unwrap();
        let stack = right.enter(|| TapPort::open(&TapConfig::new("xw0"))).unwrap().unwrap();
        right.address("xw0", "10.9.0.2/24").unwrap();
        vec![Box::new(Stacked::new(Box::new(cable), stack).unwrap()) as Box<dyn Port>]
    };
    let program = |frame: &mut Frame| {
        let packet = frame.packet();
        // What the host answers would have its address as the source.
        let answer = packet.get(12..14) == Some(&[8, 0]) && packet.get(26..30) == Some(&RIGHT.octets());
        if answer || ip_protocol(frame) == Some(17) { Verdict::Drop } else { Verdict::Pass }
    };
    let (report, ()) = harness::run(ports, program, || {
        let tcp = right.enter(|| traffic::tcp_echo_server((RIGHT, 7).into(), 1)).unwrap().unwrap();
        left.enter(|| {
            assert_eq!(traffic::ping(RIGHT, 3).unwrap(), 3);
            traffic::tcp_echo_client((RIGHT, 7).into(), 5_000).unwrap();
            assert_eq!(traffic::udp_echo_client((RIGHT, 7).into(), 1).unwrap(), 0);
        })
        .unwrap();
        assert_eq!(tcp.join().unwrap().unwrap(), 1);
    });
    assert_eq!(report.counters.verdict(Verdict::Drop), 1);
    assert_eq!(report.counters.passed + 1, report.counters.rx);
    assert!(report.ports[0].1.other.is_empty(), "{:?}", report.ports);
}

#[test]
fn several_queues_are_one_interface() {
    needs_tap!("several_queues_are_one_interface");
    let queues = Arc::new(AtomicU64::new(0));
    let seen = queues.clone();
    let program = move |frame: &mut Frame| {
        seen.fetch_or(1 << frame.rx_queue(), Ordering::Relaxed);
        Verdict::Pass
    };
    let config = TapConfig { queues: 4, ..TapConfig::new("xw0") };
    let report = joined("queues", &config, program, |left, right| {
        // Many flows: the host spreads them by their hash.
        let servers: Vec<_> = (0..32)
            .map(|n| right.enter(|| traffic::udp_echo_server((RIGHT, 100 + n).into(), 1)).unwrap().unwrap())
            .collect();
        for n in 0..32 {
            assert_eq!(left.enter(|| traffic::udp_echo_client((RIGHT, 100 + n).into(), 1)).unwrap().unwrap(), 1);
        }
        assert!(servers.into_iter().all(|server| server.join().unwrap().unwrap() == 1));
    });
    assert_eq!(report.counters.passed, report.counters.rx);
    assert!(queues.load(Ordering::Relaxed).count_ones() > 1, "{queues:?}");
}

#[test]
fn a_device_that_is_down_or_removed_is_told() {
    needs_tap!("a_device_that_is_down_or_removed_is_told");
    let lab = Lab::new("gone").unwrap();
    let here = lab.namespace("here").unwrap();
    let mut port = open(&here, &TapConfig::new("xw0"), None).remove(0);
    let mut pool = Pool::new(PoolConfig::new(8)).unwrap();
    let mut burst = xway_packet::Burst::new();
    let mut frame = pool.alloc().unwrap();
    frame.fill(&[0x55; 60]).unwrap();
    burst.push(frame).unwrap();
    here.ip(&["link", "set", "xw0", "down"]).unwrap();
    let sent = port.tx(0, &mut pool, &mut burst);
    assert_eq!((sent.failed, sent.errno), (1, Some(Errno::ENETDOWN)));
    assert_eq!(port.rx(0, &mut pool, &mut burst, 1).unwrap(), xway_engine::Rx::Idle);
    here.ip(&["link", "del", "xw0"]).unwrap();
    let error = port.rx(0, &mut pool, &mut burst, 1).unwrap_err();
    assert_eq!(error.to_string(), "tap:xw0: the interface was removed");
    assert!(burst.is_empty());
    pool.close().unwrap();
}

#[test]
fn what_cannot_be_opened_says_why() {
    for name in ["", "a/b", "x%d", "sixteen-letters-", ".."] {
        assert!(matches!(TapPort::open(&TapConfig::new(name)), Err(OpenError::Name { .. })), "{name}");
    }
    let none = TapConfig { queues: 0, ..TapConfig::new("xw0") };
    assert!(matches!(TapPort::open(&none), Err(OpenError::Queues { queues: 0, max: 256 })));
    needs_tap!("what_cannot_be_opened_says_why");
    let lab = Lab::new("why").unwrap();
    let here = lab.namespace("here").unwrap();
    let open = |config: &TapConfig| here.enter(|| TapDevice::open(config)).unwrap();
    let first = open(&TapConfig::new("xw0")).unwrap();
    assert!(matches!(open(&TapConfig::new("xw0")), Err(OpenError::Busy { .. })));
    let two = TapConfig { queues: 2, ..TapConfig::new("xw0") };
    assert!(matches!(open(&two), Err(OpenError::Mismatch { queues: 2, .. })));
    assert!(matches!(open(&TapConfig::new("lo")), Err(OpenError::Mismatch { .. } | OpenError::Busy { .. })));
    drop(first);
    // A device that the port made goes with it.
    assert!(here.ifindex("xw0").is_err());
    assert_eq!(open(&two).unwrap().take_all().len(), 2);
}

/// Jumbo frames between two hosts come in several buffers, and are whole, with the checksum that the sender left to us.
#[test]
fn long_packets_come_in_several_buffers() {
    needs_tap!("long_packets_come_in_several_buffers");
    let several = Arc::new(AtomicU64::new(0));
    let seen = several.clone();
    let config = TapConfig { frags: true, ..TapConfig::new("xw0") };
    let program = move |frame: &mut Frame| {
        seen.fetch_add(u64::from(frame.has_frags()), Ordering::Relaxed);
        Verdict::Pass
    };
    let lens = [100usize, 3478, 3479, 8000, 20_000, 39_972];
    let report = joined("frags", &config, program, |left, right| {
        for namespace in [left, right] {
            namespace.ip(&["link", "set", "xw0", "mtu", "40000"]).unwrap();
        }
        let [from, to] = [left, right].map(|namespace| {
            let socket = namespace.enter(|| std::net::UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
            socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
            socket
        });
        let mut buffer = vec![0; 65_536];
        for len in lens {
            let data: Vec<u8> = (0..len).map(|n| (n * 5 + n / 255) as u8).collect();
            from.send_to(&data, (RIGHT, 9)).unwrap();
            let got = to.recv(&mut buffer).unwrap_or_else(|e| panic!("{len} bytes: {e}"));
            assert!(buffer[..got] == data[..], "{len} bytes");
        }
    });
    assert_eq!(several.load(Ordering::Relaxed), 4, "those longer than 3520 bytes with their headers");
    assert_eq!(report.counters.passed, report.counters.rx);
    assert!(report.ports.iter().all(|(_, stats)| stats.oversize == 0));
}
