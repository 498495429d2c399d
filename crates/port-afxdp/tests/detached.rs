//! A queue that is detached from the host: suspicious traffic is steered to it, looked at here, and what is good goes back.

#[path = "../../port-packet/tests/harness/mod.rs"]
mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use harness::{LEFT, RIGHT};
use xway_abi::Verdict;
use xway_engine::{Device, Port};
use xway_isa::Slot;
use xway_kernel::{KernelProg, ProgSpec, TcxLink, consts};
use xway_packet::{Backing, Burst, Frame, Pool, PoolConfig};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_port_tap::{Injector, Stacked};
use xway_testkit::{Lab, Namespace, Needs, packets::Packet};

/// Datagrams to port 53 are steered to queue 1, everything else to queue 0, as a card's rule would: a virtual cable's receive queue is
/// the one that its sender chose. In force until this is dropped.
fn steer(sender: &Namespace) -> TcxLink {
    let slot = |opcode, dst, src, off, imm| Slot { opcode, dst, src, off, imm };
    // `queue_mapping` of `struct __sk_buff` lies at 12, and holds the number and 1.
    let insns = [
        slot(0xbf, 6, 1, 0, 0),      // r6 = r1
        slot(0xb7, 7, 0, 0, 1),      // r7 = 1
        slot(0x28, 0, 0, 0, 12),     // r0 = the packet's type
        slot(0x55, 0, 0, 3, 0x0800), // not IPv4: on to the store
        slot(0x28, 0, 0, 0, 36),     // r0 = where UDP has the port
        slot(0x55, 0, 0, 1, 53),     // not 53: on to the store
        slot(0xb7, 7, 0, 0, 2),      // r7 = 2
        slot(0x63, 6, 7, 12, 0),     // skb->queue_mapping = r7
        slot(0xb7, 0, 0, 0, 0),      // go on
        slot(0x95, 0, 0, 0, 0),
    ];
    let (prog_type, attach_type) = (consts::PROG_TYPE_SCHED_CLS, consts::ATTACH_TCX_EGRESS);
    let spec = ProgSpec { prog_type, attach_type, ..ProgSpec::xdp("test_steer", &insns) };
    let program = KernelProg::load(&spec).unwrap();
    let ifindex = sender.ifindex("l0").unwrap();
    sender.enter(|| TcxLink::attach_egress(&program, ifindex)).unwrap().unwrap()
}

/// The host gets every packet of the other queue by itself, of the detached one those that the program lets through, and each once.
#[test]
fn a_detached_queue_is_looked_at_and_the_good_go_back() {
    const NAME: &str = "a_detached_queue_is_looked_at_and_the_good_go_back";
    if !Needs::of(NAME).root().command("ip").kernel(6, 6).met() {
        return;
    }
    let lab = Lab::new("detached").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    let queues = ["numrxqueues", "2", "numtxqueues", "2"];
    let ends = [&["link", "add", "r0"][..], &queues, &["type", "veth", "peer", "name", "l0"], &queues];
    right.ip(&[&ends.concat()[..], &["netns", left.name()]].concat()).unwrap();
    right.address("r0", &format!("{RIGHT}/24")).unwrap();
    left.address("l0", &format!("{LEFT}/24")).unwrap();
    right.ip(&["link", "set", "r0", "up"]).unwrap();
    left.ip(&["link", "set", "l0", "up"]).unwrap();
    let _rule = steer(&left);
    let mac = right.ip(&["-br", "link", "show", "dev", "r0"]).unwrap();
    let mac: Vec<u8> =
        mac.split_whitespace().nth(2).unwrap().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();

    let ports = |pool: &mut Pool| {
        let config = AfXdpConfig { queues: Some((1, 1)), entries: 256, ..AfXdpConfig::new("r0") };
        let mut device = right.enter(|| AfXdpDevice::open(&config)).unwrap().unwrap();
        let open = || (device.open_port(0, pool).unwrap(), device.rx_queues(), device.effective()[0].queue);
        let (wire, queues, number) = right.enter(open).unwrap();
        assert_eq!((queues, number), (1, 1));
        let ifindex = right.ifindex("r0").unwrap();
        let (mut tap, way) = right.enter(|| Injector::open(ifindex, 1)).unwrap().unwrap().split();
        vec![Box::new(Stacked::injecting(Box::new(wire), tap.take(0).unwrap(), Arc::new(way)).unwrap()) as Box<dyn Port>]
    };
    // Datagrams whose first byte is odd are bad. Nothing but port 53 may ever come here.
    let strangers = Arc::new(AtomicU64::new(0));
    let counted = strangers.clone();
    let judge = move |frame: &mut Frame| {
        let packet = frame.packet();
        if packet.get(23) != Some(&17) || packet.get(36..38) != Some(&[0, 53]) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        if packet.get(42).is_some_and(|byte| byte % 2 == 1) { Verdict::Drop } else { Verdict::Pass }
    };
    let [suspicious, plain] = [53, 9].map(|port| {
        let socket = right.enter(|| std::net::UdpSocket::bind((RIGHT, port))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    });
    let memory = PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(1024) };
    let (report, ()) = harness::run_in(memory, ports, judge, || {
        let config = PacketConfig { qdisc_bypass: false, ..PacketConfig::new("l0") };
        let mut sender = left.enter(|| PacketPort::open_sender(&config)).unwrap().unwrap();
        let (mut pool, mut burst) = (Pool::new(PoolConfig::new(8)).unwrap(), Burst::new());
        for number in 0..100 {
            for port in [53, 9] {
                let packet = Packet::eth().ipv4(LEFT.octets(), RIGHT.octets()).udp(7, port).payload(&[number; 20]);
                let mut packet = packet.build();
                packet[..6].copy_from_slice(&mac);
                burst.push(pool.frame_of(&packet).unwrap()).unwrap();
            }
            assert_eq!(sender.tx(0, &mut pool, &mut burst).sent, 2);
        }
        let numbers = |socket: &std::net::UdpSocket, count: usize| -> Vec<u8> {
            let mut packet = [0; 100];
            (0..count).map(|_| socket.recv(&mut packet).map(|_| packet[0]).unwrap()).collect()
        };
        assert_eq!(numbers(&plain, 100), (0..100).collect::<Vec<_>>(), "past us");
        assert_eq!(numbers(&suspicious, 50), (0..100).step_by(2).collect::<Vec<_>>(), "the good ones");
        for socket in [&plain, &suspicious] {
            socket.set_nonblocking(true).unwrap();
            assert!(socket.recv(&mut [0; 100]).is_err(), "each once");
        }
    });
    let counters = &report.counters;
    assert_eq!((counters.rx, counters.verdict(Verdict::Drop), counters.passed), (100, 50, 50));
    assert_eq!(strangers.load(Ordering::Relaxed), 0, "only what was steered comes here");
}
